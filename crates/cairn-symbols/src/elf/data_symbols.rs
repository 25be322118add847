//! Finds any symbol by address: functions, variables, and linker symbols.

use std::collections::HashSet;

use object::{Object, ObjectSection, ObjectSymbol, ObjectSymbolTable, SectionFlags, SymbolKind};

/// The symbols of one or several files, sorted by address, one per address.
#[derive(Debug, Default)]
pub(crate) struct DataSymbols {
    symbols: Vec<AddressSymbol>,
    /// All names, concatenated.
    names: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
struct AddressSymbol {
    start: u64,
    size_bytes: u64,
    name: NameRange,
    /// The source file of a local symbol, if known.
    file: Option<NameRange>,
}

/// Start and length of a name.
#[derive(Clone, Copy, Debug)]
struct NameRange(u32, u32);

/// The symbol at an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FoundSymbol<'a> {
    pub(crate) start: u64,
    /// 0 if the symbol has none; then it extends to the next one.
    pub(crate) size_bytes: u64,
    pub(crate) name: &'a str,
    /// The source file of a local symbol, without its directory.
    pub(crate) file: Option<&'a str>,
}

impl DataSymbols {
    /// Adds a file's full symbol table, or the dynamic one if there is no other.
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
                // A file symbol without a name ends the previous file.
                SymbolKind::File => file = self.add_name(name),
                SymbolKind::Text | SymbolKind::Data | SymbolKind::Label | SymbolKind::Unknown
                    if symbol.section_index().is_some_and(|section| loaded.contains(&section)) =>
                {
                    // Mapping symbols of some processors.
                    let is_mark = name.first() == Some(&b'$') && name.get(2).is_none_or(|&byte| byte == b'.');
                    let Some(name) = self.add_name(name).filter(|_| !is_mark) else { continue };
                    self.symbols.push(AddressSymbol {
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

    fn add_name(&mut self, name: &[u8]) -> Option<NameRange> {
        let place = NameRange(u32::try_from(self.names.len()).ok()?, u32::try_from(name.len()).ok()?);
        if name.is_empty() || name.len() > crate::MAX_NAME_BYTES {
            return None;
        }
        self.names.extend_from_slice(name);
        Some(place)
    }

    /// Sorts the symbols. At one address the largest wins; among equals, the last.
    pub(crate) fn finish(&mut self) {
        self.symbols.sort_by_key(|symbol| (symbol.start, symbol.size_bytes));
        self.symbols.reverse();
        self.symbols.dedup_by_key(|symbol| symbol.start);
        self.symbols.reverse();
        self.symbols.shrink_to_fit();
    }

    /// Finds the symbol at an address.
    pub(crate) fn find(&self, address: u64) -> Option<FoundSymbol<'_>> {
        let after = self.symbols.partition_point(|symbol| symbol.start <= address);
        let &AddressSymbol { start, size_bytes, name, file } = self.symbols.get(after.checked_sub(1)?)?;
        if size_bytes != 0 && address - start >= size_bytes {
            return None;
        }
        Some(FoundSymbol {
            start,
            size_bytes,
            name: self.text(name)?,
            file: file.and_then(|file| self.text(file)),
        })
    }

    fn text(&self, NameRange(begin, bytes): NameRange) -> Option<&str> {
        let rest = self.names.get(begin as usize..)?;
        std::str::from_utf8(rest.get(..bytes as usize)?).ok()
    }
}

/// `SHF_ALLOC`.
const ALLOCATED: u64 = 2;
