//! The streams of a PDB that lookups use, restricted to input on which its parser terminates.
//!
//! The parser walks the symbols of a module (an object file). It follows a nested function's stated
//! end, even backwards, and recurses into inlined calls.

use std::collections::BTreeSet;
use std::sync::{Mutex, OnceLock, PoisonError};

use pdb_addr2line::maybe_owned::MaybeOwned;
use pdb_addr2line::pdb::{
    self, AddressMap, DebugInformation, FallibleIterator, IdInformation, ImageSectionHeader, Module,
    ModuleInfo, PDB, StringTable, SymbolData, SymbolIndex, SymbolTable, TypeInformation,
};
use pdb_addr2line::{Context, ModuleProvider, TypeFormatter, TypeFormatterFlags};

use super::PdbBytes;

/// The parsed streams; see the module documentation.
pub(super) struct PdbStreams {
    pdb: Mutex<PDB<'static, PdbBytes>>,
    sections: Vec<ImageSectionHeader>,
    global_symbols: SymbolTable<'static>,
    debug_information: DebugInformation<'static>,
    types: TypeInformation<'static>,
    ids: IdInformation<'static>,
    address_map: AddressMap<'static>,
    strings: Option<StringTable<'static>>,
    /// Parsed on demand; `None` if parsing failed.
    modules: Box<[OnceLock<Option<ModuleInfo<'static>>>]>,
}

impl PdbStreams {
    pub(super) fn read(mut pdb: PDB<'static, PdbBytes>) -> Result<Self, pdb::Error> {
        let debug_information = pdb.debug_information()?;
        let modules = debug_information.modules()?.count()?;
        Ok(Self {
            sections: pdb.sections()?.unwrap_or_default(),
            global_symbols: pdb.global_symbols()?,
            debug_information,
            types: pdb.type_information()?,
            ids: pdb.id_information()?,
            address_map: pdb.address_map()?,
            strings: pdb.string_table().ok(),
            modules: (0..modules).map(|_| OnceLock::new()).collect(),
            pdb: Mutex::new(pdb),
        })
    }

    pub(super) fn context(&self) -> Result<Context<'_, 'static>, pdb_addr2line::Error> {
        let names = TypeFormatter::new_from_parts(
            self,
            self.debug_information.modules()?.collect()?,
            &self.debug_information,
            &self.types,
            &self.ids,
            self.strings.as_ref(),
            TypeFormatterFlags::default(),
        )?;
        Context::new_from_parts(
            self,
            &self.sections,
            &self.address_map,
            &self.global_symbols,
            self.strings.as_ref(),
            &self.debug_information,
            MaybeOwned::Owned(names),
        )
    }

    fn read_module(&self, module: &Module<'_>) -> Option<ModuleInfo<'static>> {
        let mut pdb = self.pdb.lock().unwrap_or_else(PoisonError::into_inner);
        let information = pdb.module_info(module).ok()??;
        has_an_end(&information).then_some(information)
    }
}

impl ModuleProvider<'static> for PdbStreams {
    fn get_module_info(
        &self,
        index: usize,
        module: &Module<'_>,
    ) -> Result<Option<&ModuleInfo<'static>>, pdb::Error> {
        let Some(slot) = self.modules.get(index) else { return Ok(None) };
        Ok(slot.get_or_init(|| self.read_module(module)).as_ref())
    }
}

/// Reports whether the parser terminates on these symbols.
fn has_an_end(information: &ModuleInfo<'_>) -> bool {
    let mut shape = Shape::new();
    let mut read = || -> Result<bool, pdb::Error> {
        let mut symbols = information.symbols()?;
        while let Some(symbol) = symbols.next()? {
            let scope = match symbol.starts_scope().then(|| symbol.parse()) {
                Some(Ok(SymbolData::Procedure(function))) => Some(Scope::Function(function.end)),
                Some(Ok(SymbolData::SeparatedCode(code))) => Some(Scope::Part(code.end)),
                Some(Ok(SymbolData::Thunk(thunk))) => Some(Scope::Part(thunk.end)),
                Some(Ok(SymbolData::InlineSite(call))) => Some(Scope::Inlined(call.end)),
                _ => None,
            };
            if !shape.add(symbol.index(), scope) {
                return Ok(false);
            }
        }
        Ok(true)
    };
    read().unwrap_or(false)
}

/// A symbol that opens a scope, with the symbol that it states as its end.
#[derive(Clone, Copy)]
enum Scope {
    /// Skipped when nested in another function.
    Function(SymbolIndex),
    /// Walked through.
    Part(SymbolIndex),
    /// Recursed into.
    Inlined(SymbolIndex),
}

/// State of the check, up to one symbol.
struct Shape {
    /// The furthest end of any scope so far.
    end: SymbolIndex,
    /// Targets of jumps; each must be a symbol.
    jumps: BTreeSet<SymbolIndex>,
    /// Ends of the open inlined calls, each within the previous one.
    calls: Vec<SymbolIndex>,
}

/// Maximum nesting of inlined calls; 256, which takes some hundred KiB of stack.
const MOST_CALLS: usize = 256;

impl Shape {
    fn new() -> Self {
        Self { end: SymbolIndex(0), jumps: BTreeSet::new(), calls: Vec::new() }
    }

    /// Reports whether the parser terminates up to this symbol.
    fn add(&mut self, index: SymbolIndex, scope: Option<Scope>) -> bool {
        if self.jumps.first().is_some_and(|&jump| jump < index) {
            return false;
        }
        self.jumps.remove(&index);
        while self.calls.last().is_some_and(|&end| end <= index) {
            self.calls.pop();
        }
        let Some(scope) = scope else { return true };
        let end = match scope {
            Scope::Function(end) => {
                if index < self.end {
                    if end <= index {
                        return false;
                    }
                    self.jumps.insert(end);
                }
                end
            }
            Scope::Part(end) => end,
            Scope::Inlined(end) => {
                if self.calls.last().is_some_and(|&outer| outer < end) || self.calls.len() == MOST_CALLS {
                    return false;
                }
                if index < end {
                    self.calls.push(end);
                }
                end
            }
        };
        self.end = self.end.max(end);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepts(symbols: &[(u32, Option<Scope>)]) -> bool {
        let mut shape = Shape::new();
        symbols.iter().all(|&(index, scope)| shape.add(SymbolIndex(index), scope))
    }

    fn function(end: u32) -> Option<Scope> {
        Some(Scope::Function(SymbolIndex(end)))
    }

    fn inlined(end: u32) -> Option<Scope> {
        Some(Scope::Inlined(SymbolIndex(end)))
    }

    #[test]
    fn pdb_scopes_that_end_after_their_start_are_read() {
        assert!(accepts(&[(4, function(40)), (8, inlined(20)), (12, inlined(16)), (16, None), (20, None)]));
        assert!(accepts(&[(4, function(40)), (8, function(12)), (12, None), (40, None), (44, function(50))]));
        // Object files that were never linked state no ends.
        assert!(accepts(&[(4, function(0)), (8, None), (12, function(0)), (16, inlined(0)), (20, None)]));
    }

    #[test]
    fn pdb_invalid_jumps_are_refused() {
        assert!(!accepts(&[(4, function(40)), (8, function(4))]));
        assert!(!accepts(&[(4, function(40)), (8, function(8))]));
        assert!(!accepts(&[(4, function(40)), (8, function(14)), (12, None), (16, None)]));
        assert!(!accepts(&[(4, Some(Scope::Part(SymbolIndex(40)))), (8, function(4))]));
        assert!(!accepts(&[(4, inlined(40)), (8, function(4))]));
    }

    #[test]
    fn pdb_crossing_or_too_deep_calls_are_refused() {
        assert!(!accepts(&[(4, function(90)), (8, inlined(20)), (12, inlined(24))]));
        let nested =
            |count: u32| -> Vec<_> { (0..count).map(|number| (number, inlined(9999 - number))).collect() };
        assert!(accepts(&nested(MOST_CALLS as u32)));
        assert!(!accepts(&nested(MOST_CALLS as u32 + 1)));
    }
}
