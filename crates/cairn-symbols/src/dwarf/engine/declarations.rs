//! Finds declarations of functions and variables. Rarely queried, so nothing is cached or indexed.

use std::sync::Arc;

use gimli::{AttributeValue, Operation, UnitOffset, UnitRef};

use super::{MAX_REFERENCES, ModuleDebugInfo, UnitView};
use crate::dwarf::functions::Origin;
use crate::dwarf::units::{DwarfError, Reader, Unit};

/// A declaration, read from an entry or from an entry that it refers to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Declared {
    pub(crate) file: Option<Arc<str>>,
    pub(crate) line: Option<u32>,
    /// First address, if the code is contiguous.
    pub(crate) low: Option<u64>,
}

/// A variable with a static address.
pub(super) struct Variable {
    address: u64,
    unit: u32,
    offset: UnitOffset,
}

impl<'a> ModuleDebugInfo<'a> {
    /// Returns one declaration per frame of an address, innermost first.
    pub(super) fn declarations(&self, address: u64) -> Result<Vec<Declared>, DwarfError> {
        for unit in self.directory.find(address) {
            let view = self.view(unit);
            let Some(((quickly, index), function)) = self.function_at(unit, &view, address)? else {
                if self.lines(unit).map_err(|problem| *problem)?.find(address).is_some() {
                    return Ok(vec![Declared::default()]);
                }
                continue;
            };
            let mut declarations = Vec::new();
            let mut next = function.innermost(address);
            while let Some(index) = next {
                if declarations.len() >= crate::MAX_INLINE_DEPTH {
                    return Err(DwarfError::TooDeep);
                }
                let inlined = &function.inlined[index as usize];
                declarations.push(self.declared(unit, &view, inlined.offset)?);
                next = inlined.parent;
            }
            let functions = self.functions(unit, &view, quickly).map_err(|problem| *problem)?;
            declarations.push(self.declared(unit, &view, functions.entries[index as usize].offset)?);
            return Ok(declarations);
        }
        Ok(Vec::new())
    }

    /// Finds the declaration of the variable at an address, in the first unit that has it.
    pub(super) fn variable(&self, address: u64) -> Result<Option<Declared>, DwarfError> {
        let variables = self.variables.get_or_init(|| {
            let mut all = Vec::new();
            for (unit, index) in self.directory.units.iter().zip(0..) {
                // A broken unit still has the variables in front of the damage.
                let _ = read_variables(self.view(unit).unit, index, &mut all);
            }
            all.sort_by_key(|variable: &Variable| variable.address);
            all.dedup_by_key(|variable| variable.address);
            all
        });
        let Ok(found) = variables.binary_search_by_key(&address, |variable| variable.address) else {
            return Ok(None);
        };
        let Variable { unit, offset, .. } = variables[found];
        let unit = &self.directory.units[unit as usize];
        self.declared(unit, &self.view(unit), offset).map(Some)
    }

    /// Follows an entry's references until both line and file are known.
    fn declared(
        &self,
        unit: &Unit<'a>,
        view: &UnitView<'_, 'a>,
        offset: UnitOffset,
    ) -> Result<Declared, DwarfError> {
        let mut declared = Declared::default();
        let mut line = None;
        let mut file = None;
        // The unit whose file table applies; none for the supplement.
        let mut owner = Some(unit);
        let mut entry = (view.unit, offset);
        for step in 0..MAX_REFERENCES {
            let (unit, offset) = entry;
            let mut entries = unit.entries_raw(Some(offset))?;
            let Some(abbreviation) = entries.read_abbreviation()? else { break };
            let mut elsewhere = Origin::Nowhere;
            for &specification in abbreviation.attributes() {
                let attribute = entries.read_attribute(specification)?;
                let value = attribute.value();
                match attribute.name() {
                    gimli::DW_AT_low_pc if step == 0 => {
                        declared.low = match value {
                            AttributeValue::Addr(address) => Some(address),
                            AttributeValue::DebugAddrIndex(index) => Some(unit.address(index)?),
                            _ => None,
                        }
                    }
                    gimli::DW_AT_decl_line if line.is_none() => line = value.udata_value(),
                    gimli::DW_AT_decl_file if file.is_none() => {
                        // Like llvm-symbolizer: a number in the abbreviation itself names no file.
                        let is_named = specification.form() != gimli::DW_FORM_implicit_const;
                        file = Some(match (owner, value) {
                            (Some(owner), AttributeValue::FileIndex(index)) if is_named => {
                                self.path(owner, index)?
                            }
                            _ => None,
                        });
                    }
                    gimli::DW_AT_abstract_origin | gimli::DW_AT_specification => {
                        elsewhere = match value {
                            AttributeValue::UnitRef(offset) => Origin::InUnit(offset),
                            AttributeValue::DebugInfoRef(offset) => Origin::InFile(offset),
                            AttributeValue::DebugInfoRefSup(offset) => Origin::InSupplement(offset),
                            _ => elsewhere,
                        }
                    }
                    _ => {}
                }
            }
            if line.is_some() && file.is_some() {
                break;
            }
            entry = match elsewhere {
                Origin::InUnit(offset) => (unit, offset),
                Origin::Nowhere | Origin::Written(_) => break,
                Origin::InFile(_) | Origin::InSupplement(_) => {
                    let Some((dwarf, other, offset)) = self.other_unit(view, unit, elsewhere) else { break };
                    owner = std::ptr::eq(dwarf, &self.dwarf).then_some(other);
                    (UnitRef::new(dwarf, &other.unit), offset)
                }
            };
        }
        declared.line = line.and_then(|line| u32::try_from(line).ok()).filter(|&line| line != 0);
        declared.file = file.flatten();
        Ok(declared)
    }

    fn path(&self, unit: &Unit<'a>, index: u64) -> Result<Option<Arc<str>>, DwarfError> {
        let lines = self.lines(unit).map_err(|problem| *problem)?;
        Ok(lines.file(UnitRef::new(&self.dwarf, &unit.unit), index).map(Arc::from))
    }
}

/// Collects variables with one static address, anywhere in the unit.
fn read_variables<'a>(
    unit: UnitRef<'_, Reader<'a>>,
    index: u32,
    out: &mut Vec<Variable>,
) -> Result<(), DwarfError> {
    let mut entries = unit.entries_raw(None)?;
    while !entries.is_empty() {
        let offset = entries.next_offset();
        let Some(abbreviation) = entries.read_abbreviation()? else { continue };
        if abbreviation.tag() != gimli::DW_TAG_variable {
            entries.skip_attributes(abbreviation.attributes())?;
            continue;
        }
        for &specification in abbreviation.attributes() {
            let attribute = entries.read_attribute(specification)?;
            if attribute.name() == gimli::DW_AT_location
                && let AttributeValue::Exprloc(expression) = attribute.value()
                && let Some(address) = fixed_address(unit, expression)
            {
                out.push(Variable { address, unit: index, offset });
            }
        }
    }
    Ok(())
}

/// Evaluates a location that is one static address, perhaps plus a constant.
fn fixed_address<'a>(
    unit: UnitRef<'_, Reader<'a>>,
    expression: gimli::Expression<Reader<'a>>,
) -> Option<u64> {
    let mut operations = expression.operations(unit.encoding());
    let address = match operations.next().ok()?? {
        Operation::Address { address } => address,
        Operation::AddressIndex { index } => unit.address(index).ok()?,
        _ => return None,
    };
    match operations.next().ok()? {
        None => Some(address),
        Some(Operation::PlusConstant { value }) => {
            operations.next().ok()?.is_none().then(|| address.wrapping_add(value))
        }
        Some(_) => None,
    }
}
