//! Split debug information: the part of a unit in a `.dwo` file or a `.dwp` package.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use gimli::{AttributeValue, SectionId, UnitRef};

use super::units::{Dwarf, Reader, Unit, language};
use crate::elf::debug_object::DebugObject;
use crate::source::Language;

/// The part of a unit that is in another file.
pub(super) struct SplitUnit<'a> {
    pub(super) dwarf: Dwarf<'a>,
    pub(super) unit: gimli::Unit<Reader<'a>>,
    pub(super) language: Language,
}

/// Finds the file of a unit by its stated directory and name, and checks its id.
pub(crate) type FindSplit = dyn Fn(&SplitName) -> Option<DebugObject> + Send + Sync;

/// The name of the split file, as its unit states it.
#[derive(Clone, Debug)]
pub(crate) struct SplitName {
    pub(crate) directory: Option<String>,
    pub(crate) name: String,
}

/// The sources of split units.
pub(super) struct Splits<'a> {
    package: Option<gimli::DwarfPackage<Reader<'a>>>,
    /// One per unit; filled when the unit is parsed.
    files: &'a [OnceLock<Option<DebugObject>>],
    find: &'a FindSplit,
    missing_some: AtomicBool,
}

impl<'a> Splits<'a> {
    pub(super) fn new(
        package: Option<&'a DebugObject>,
        files: &'a [OnceLock<Option<DebugObject>>],
        find: &'a FindSplit,
    ) -> Self {
        let package = package.and_then(|package| {
            let empty = package.plain(SectionId::DebugLoc);
            gimli::DwarfPackage::load(|id| Ok::<_, gimli::Error>(package.split(id)), empty).ok()
        });
        Self { package, files, find, missing_some: AtomicBool::new(false) }
    }

    /// Reports whether a split file was not found.
    pub(super) fn is_missing_some(&self) -> bool {
        self.missing_some.load(Ordering::Relaxed)
    }

    /// Loads the split part of unit number `index`, if it has one that can be found.
    pub(super) fn load(&self, dwarf: &Dwarf<'a>, unit: &Unit<'a>, index: usize) -> Option<SplitUnit<'a>> {
        let found = self.find_unit(dwarf, unit, index);
        if found.is_none() {
            self.missing_some.store(true, Ordering::Relaxed);
        }
        found
    }

    fn find_unit(&self, dwarf: &Dwarf<'a>, unit: &Unit<'a>, index: usize) -> Option<SplitUnit<'a>> {
        let id = unit.unit.dwo_id?;
        if let Some(package) = &self.package
            && let Ok(Some(found)) = package.find_cu(id, dwarf)
        {
            return split_unit(found, unit);
        }
        let reference = UnitRef::new(dwarf, &unit.unit);
        let object = self
            .files
            .get(index)?
            .get_or_init(|| {
                let name = unit.unit.dwo_name().ok()??;
                let name = reference.attr_string(name).ok()?.to_string_lossy().into_owned();
                let directory = unit.unit.comp_dir.map(|directory| directory.to_string_lossy().into_owned());
                (self.find)(&SplitName { directory, name })
            })
            .as_ref()?;
        let mut found = Dwarf::load(|id| Ok::<_, gimli::Error>(object.split(id))).ok()?;
        found.make_dwo(dwarf);
        let split = split_unit(found, unit)?;
        // A file of the same name from another build has another id.
        (split.unit.dwo_id == Some(id)).then_some(split)
    }
}

fn split_unit<'a>(dwarf: Dwarf<'a>, skeleton: &Unit<'a>) -> Option<SplitUnit<'a>> {
    let mut units = dwarf.units();
    // Type units can come first.
    let header = loop {
        let header = units.next().ok()??;
        if !matches!(header.type_(), gimli::UnitType::SplitType { .. } | gimli::UnitType::Type { .. }) {
            break header;
        }
    };
    let mut unit = dwarf.unit(header).ok()?;
    unit.copy_relocated_attributes(&skeleton.unit);
    let mut entries = unit.entries();
    let language = match entries.next_dfs().ok().flatten()?.attr_value(gimli::DW_AT_language) {
        Some(value @ AttributeValue::Language(_)) => language(value),
        _ => skeleton.language,
    };
    Some(SplitUnit { dwarf, unit, language })
}
