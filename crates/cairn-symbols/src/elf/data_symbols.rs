//! Whatever has an address, by the symbol tables of a file: functions, variables, and marks of the linker.

use std::collections::HashSet;

use object::{Object, ObjectSection, ObjectSymbol, ObjectSymbolTable, SectionFlags, SymbolKind};

/// The symbols of one or several files, sorted by address, one for each.
#[derive(Debug, Default)]
pub(crate) struct DataSymbols {
    symbols: Vec<Symbol>,
    /// All names, one after the other.
    names: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
struct Symbol {
    start: u64,
    size_bytes: u64,
    name: Name,
    /// Of a local symbol: the source file, should there be one.
    file: Option<Name>,
}

/// Where a name begins, and how long it is.
#[derive(Clone, Copy, Debug)]
struct Name(u32, u32);

/// What is at an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Datum<'a> {
    pub(crate) start: u64,
    /// 0 where the symbol has none: then it reaches up to the next one.
    pub(crate) size_bytes: u64,
    pub(crate) name: &'a str,
    /// The source file that the symbol is local to, without its directory.
    pub(crate) file: Option<&'a str>,
}

impl DataSymbols {
    /// Adds what a file's full table has or, where there is none, the dynamic one.
    pub(crate) fn add(&mut self, object: &object::File<'_>) {
        let is_loaded = |section: &object::Section<'_, '_>| match section.flags() {
            SectionFlags::Elf { sh_flags, .. } => sh_flags.0 & ALLOCATED != 0,
            _ => true,
        };
        let loaded: HashSet<_> = object.sections().filter(is_loaded).map(|section| section.index()).collect();
        let full = object.symbol_table().filter(|table| table.symbols().next().is_some());
        let Some(table) = full.or_else(|| object.dynamic_symbol_table()) else { return };
        let mut file = None;
        for symbol in table.symbols() {
            let Ok(name) = symbol.name_bytes() else { continue };
            match symbol.kind() {
                // One without a name ends the symbols of the one before.
                SymbolKind::File => file = self.add_name(name),
                SymbolKind::Text | SymbolKind::Data | SymbolKind::Label | SymbolKind::Unknown
                    if symbol.section_index().is_some_and(|section| loaded.contains(&section)) =>
                {
                    // Marks between code and data of some processors.
                    let is_mark = name.first() == Some(&b'$') && name.get(2).is_none_or(|&byte| byte == b'.');
                    let Some(name) = self.add_name(name).filter(|_| !is_mark) else { continue };
                    self.symbols.push(Symbol {
                        start: symbol.address(),
                        size_bytes: symbol.size(),
                        name,
                        file: file.filter(|_| symbol.is_local()),
                    });
                }
                _ => {}
            }
        }
    }

    fn add_name(&mut self, name: &[u8]) -> Option<Name> {
        let place = Name(u32::try_from(self.names.len()).ok()?, u32::try_from(name.len()).ok()?);
        if name.is_empty() || name.len() > crate::MAX_NAME_BYTES {
            return None;
        }
        self.names.extend_from_slice(name);
        Some(place)
    }

    /// Sorts what was added. Of several symbols at one address the largest counts, the last one of those that are as large.
    pub(crate) fn finish(&mut self) {
        self.symbols.sort_by_key(|symbol| (symbol.start, symbol.size_bytes));
        self.symbols.reverse();
        self.symbols.dedup_by_key(|symbol| symbol.start);
        self.symbols.reverse();
        self.symbols.shrink_to_fit();
    }

    /// What is at an address.
    pub(crate) fn find(&self, address: u64) -> Option<Datum<'_>> {
        let after = self.symbols.partition_point(|symbol| symbol.start <= address);
        let &Symbol { start, size_bytes, name, file } = self.symbols.get(after.checked_sub(1)?)?;
        if size_bytes != 0 && address - start >= size_bytes {
            return None;
        }
        Some(Datum { start, size_bytes, name: self.text(name)?, file: file.and_then(|file| self.text(file)) })
    }

    fn text(&self, Name(begin, bytes): Name) -> Option<&str> {
        let rest = self.names.get(begin as usize..)?;
        std::str::from_utf8(rest.get(..bytes as usize)?).ok()
    }
}

/// `SHF_ALLOC`.
const ALLOCATED: u64 = 2;
