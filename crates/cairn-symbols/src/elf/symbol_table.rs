//! Finds functions in the symbol tables of a file: names and sizes, no lines.

use std::collections::HashSet;

use object::{
    Object, ObjectSection, ObjectSymbol, ObjectSymbolTable, SectionFlags, SectionIndex, SectionKind,
    SymbolFlags, SymbolKind,
};

/// The functions of one or several symbol tables, sorted by address.
#[derive(Debug, Default)]
pub(crate) struct SymbolTable {
    symbols: Vec<FunctionSymbol>,
    /// All names, concatenated.
    names: Vec<u8>,
    /// Bounds in `names` of each source file's name.
    files: Vec<(u32, u32)>,
}

const NO_FILE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct FunctionSymbol {
    start: u64,
    end: u64,
    name: u32,
    name_bytes: u32,
    /// For a local symbol, its source file: index into the table's `files`, or [`NO_FILE`].
    file: u32,
    /// The smallest rank at an address wins.
    rank: u8,
}

/// A function found by address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Found<'a> {
    pub(crate) start: u64,
    pub(crate) name: &'a str,
    /// Source file of a local symbol, without its directory. Linkers emit one file symbol before
    /// the local symbols of each object file; global symbols follow after all of them.
    pub(crate) file: Option<&'a str>,
}

impl SymbolTable {
    /// Adds the functions of a file's full and dynamic tables.
    pub(crate) fn add(&mut self, object: &object::File<'_>) {
        let holds_code = |section: &object::Section<'_, '_>| match section.flags() {
            SectionFlags::Elf { sh_flags, .. } => sh_flags.0 & EXECUTABLE != 0,
            _ => section.kind() == SectionKind::Text,
        };
        let code: HashSet<_> = object.sections().filter(holds_code).map(|section| section.index()).collect();
        for table in [object.symbol_table(), object.dynamic_symbol_table()].into_iter().flatten() {
            let mut file = NO_FILE;
            for symbol in table.symbols() {
                if symbol.kind() == SymbolKind::File {
                    file = self.add_file(symbol.name_bytes().unwrap_or_default());
                } else {
                    self.add_symbol(&symbol, &code, if symbol.is_local() { file } else { NO_FILE });
                }
            }
        }
    }

    /// A file symbol without a name ends the previous file: the linker's own symbols follow.
    fn add_file(&mut self, name: &[u8]) -> u32 {
        let (Ok(begin), Ok(index)) = (u32::try_from(self.names.len()), u32::try_from(self.files.len()))
        else {
            return NO_FILE;
        };
        if name.is_empty() || name.len() > crate::MAX_NAME_BYTES {
            return NO_FILE;
        }
        self.names.extend_from_slice(name);
        self.files.push((begin, begin.saturating_add(name.len() as u32)));
        index
    }

    fn add_symbol<'data>(
        &mut self,
        symbol: &impl ObjectSymbol<'data>,
        code: &HashSet<SectionIndex>,
        file: u32,
    ) {
        let is_code = match symbol.kind() {
            SymbolKind::Text => true,
            // Hand-written assembly often omits the type.
            SymbolKind::Label | SymbolKind::Unknown => {
                symbol.section_index().is_some_and(|section| code.contains(&section))
            }
            _ => false,
        };
        let Ok(name) = symbol.name_bytes() else { return };
        if !is_code || symbol.is_undefined() || name.is_empty() || name.len() > crate::MAX_NAME_BYTES {
            return;
        }
        // Mapping symbols of some processors mark code and data; they are not functions.
        if name.first() == Some(&b'$') && name.len() <= 2 || name.get(2) == Some(&b'.') && name[0] == b'$' {
            return;
        }
        let Ok(at) = u32::try_from(self.names.len()) else { return };
        let start = symbol.address();
        let rank = rank(symbol);
        let symbol = FunctionSymbol {
            start,
            end: start.saturating_add(symbol.size()),
            name: at,
            name_bytes: name.len() as u32,
            file,
            rank,
        };
        self.names.extend_from_slice(name);
        self.symbols.push(symbol);
    }

    /// Sorts the symbols, and removes all but one per address.
    pub(crate) fn finish(&mut self) {
        self.symbols.sort_by_key(|symbol| (symbol.start, symbol.rank, symbol.name_bytes));
        self.symbols.dedup_by_key(|symbol| symbol.start);
        // A symbol without a size extends to the next one.
        let mut next = u64::MAX;
        for symbol in self.symbols.iter_mut().rev() {
            if symbol.end == symbol.start {
                symbol.end = next;
            }
            next = symbol.start;
        }
        self.symbols.shrink_to_fit();
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.symbols.is_empty()
    }

    /// Finds the function at an address.
    pub(crate) fn find(&self, address: u64) -> Option<Found<'_>> {
        let after = self.symbols.partition_point(|symbol| symbol.start <= address);
        // A label inside a sized function ends early; the function is a few symbols further back.
        let symbol =
            self.symbols[..after].iter().rev().take(MAX_NESTED).find(|symbol| symbol.end > address)?;
        let text =
            |begin: u32, end: u32| std::str::from_utf8(self.names.get(begin as usize..end as usize)?).ok();
        let name = text(symbol.name, symbol.name.saturating_add(symbol.name_bytes))?;
        let file = self.files.get(symbol.file as usize).and_then(|&(begin, end)| text(begin, end));
        Some(Found { start: symbol.start, name, file })
    }

    /// Returns the addresses at which the answer may change, unordered.
    pub(crate) fn boundaries(&self) -> impl Iterator<Item = u64> {
        self.symbols.iter().flat_map(|symbol| [symbol.start, symbol.end])
    }
}

/// `SHF_EXECINSTR`.
const EXECUTABLE: u64 = 4;

/// Maximum labels inside one function that the search steps over; 16.
const MAX_NESTED: usize = 16;

/// Ranks a symbol, best first.
///
/// Functions precede labels, global precede weak and weak precede local names, sized precede
/// sizeless symbols.
fn rank<'data>(symbol: &impl ObjectSymbol<'data>) -> u8 {
    const GLOBAL: u8 = 1;
    const WEAK: u8 = 2;
    let binding = match symbol.flags() {
        SymbolFlags::Elf { st_info, .. } => match st_info.0 >> 4 {
            GLOBAL => 0,
            WEAK => 1,
            _ => 2,
        },
        _ if symbol.is_global() => 0,
        _ => 2,
    };
    binding + 3 * u8::from(symbol.size() == 0) + 6 * u8::from(symbol.kind() != SymbolKind::Text)
}
