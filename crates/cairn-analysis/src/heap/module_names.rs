//! Names of addresses from the symbol files of their modules.

use std::cell::RefCell;
use std::path::PathBuf;

use cairn_format::StatedAddress;
use cairn_format::recording::PcKind;
use cairn_symbols::{AddressKind, Lookup, ModuleReport, Place, SourceFrame, SymbolizerOptions};

use super::names::Namer;
use super::stacks::{Address, Module, Stacks};
use crate::names::{AddressNames, ModuleKey};

/// Names from symbol files.
#[derive(Debug)]
pub struct ModuleNames {
    names: RefCell<AddressNames>,
    keys: Vec<ModuleKey>,
    /// By module: true where no name is asked for.
    is_left_out: Vec<bool>,
}

impl ModuleNames {
    /// Names for stacks that are of no recording, by files that are searched for as `options` say.
    #[must_use]
    pub fn of(stacks: &Stacks, options: SymbolizerOptions) -> Self {
        Self::over(stacks, AddressNames::new(options))
    }

    /// Names by files that were opened for other stacks, which [`into_inner`](Self::into_inner)
    /// returns.
    #[must_use]
    pub fn over(stacks: &Stacks, names: AddressNames) -> Self {
        let key = |module: &Module| ModuleKey {
            path: PathBuf::from(&module.path),
            build_id: module.build_id.clone(),
            size_bytes: None,
        };
        let keys = stacks.modules().iter().map(key).collect();
        Self { names: RefCell::new(names), keys, is_left_out: Vec::new() }
    }

    /// Asks for no names of these modules, by their index: nothing says which build of them ran.
    #[must_use]
    pub fn without(mut self, modules: impl IntoIterator<Item = usize>) -> Self {
        self.is_left_out = vec![false; self.keys.len()];
        for module in modules {
            if let Some(is_left_out) = self.is_left_out.get_mut(module) {
                *is_left_out = true;
            }
        }
        self
    }

    /// Every module that was asked for, and what became of the search for its symbols.
    #[must_use]
    pub fn reports(&self) -> Vec<(ModuleKey, ModuleReport)> {
        self.names.borrow().reports().map(|(key, report)| (key.clone(), report)).collect()
    }

    /// The programs here that would be answered faster from an index.
    #[must_use]
    pub fn without_index(&self) -> Vec<PathBuf> {
        self.names.borrow().without_index()
    }

    /// The names, to tell what is missing.
    #[must_use]
    pub fn into_inner(self) -> AddressNames {
        self.names.into_inner()
    }
}

impl Namer for ModuleNames {
    fn name(&self, _stacks: &Stacks, addresses: &[&Address]) -> Vec<Vec<SourceFrame>> {
        let mut names = self.names.borrow_mut();
        let place = |address: &&Address| {
            let kind = match address.kind {
                PcKind::ReturnAddress | PcKind::ReturnWithoutTables => AddressKind::ReturnAddress,
                PcKind::ProgramCounter => AddressKind::ProgramCounter,
                _ => return None,
            };
            let (module, _) = address.module?;
            if self.is_left_out.get(module as usize) == Some(&true) {
                return None;
            }
            let key = self.keys.get(module as usize)?;
            Some((key, Lookup { place: Place::Stated(StatedAddress::new(address.stated)), kind }))
        };
        names.prepare(addresses.iter().filter_map(place));
        let frames = |address: &&Address| {
            place(address).map_or_else(Vec::new, |(key, lookup)| names.resolve(key, lookup).frames().to_vec())
        };
        addresses.iter().map(frames).collect()
    }
}
