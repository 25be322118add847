//! The names that PE and Mach-O files carry without debug information: their symbol tables and what they export.

use object::{ExportTarget, NameOrOrdinal, Object, ObjectSection, ObjectSymbol, SectionKind, SymbolKind};

/// Names by address.
#[derive(Default)]
pub(crate) struct ObjectSymbols {
    symbols: Vec<Symbol>,
    /// Where code is, so that the last function does not reach to the end of the address space.
    code: Vec<(u64, u64)>,
}

struct Symbol {
    address: u64,
    rank: Rank,
    name: Box<str>,
}

/// Which of two names at one address is shown: the lower one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Function,
    Exported,
    Label,
}

/// More names than this are in no real file; a table that claims them is broken.
const MAX_SYMBOLS: usize = 64 << 20;

impl ObjectSymbols {
    /// All names of code. `bare` takes off what the system adds to the names of C.
    pub(crate) fn new<'data>(file: &impl Object<'data>, bare: fn(&str) -> &str) -> Self {
        let mut new = Self::default();
        for section in file.sections().filter(|section| section.kind() == SectionKind::Text) {
            new.code.push((section.address(), section.address().saturating_add(section.size())));
        }
        for symbol in file.symbols().take(MAX_SYMBOLS) {
            let rank = match symbol.kind() {
                _ if symbol.is_undefined() => continue,
                SymbolKind::Text => Rank::Function,
                SymbolKind::Section | SymbolKind::File => continue,
                // Of PE files only functions say what they are.
                _ => Rank::Label,
            };
            if let Ok(name) = symbol.name()
                && !name.is_empty()
            {
                new.symbols.push(Symbol { address: symbol.address(), rank, name: bare(name).into() });
            }
        }
        for export in file.exports().into_iter().flatten().take(MAX_SYMBOLS) {
            let Ok(export) = export else { break };
            if let ExportTarget::Address { address } = export.target()
                && let NameOrOrdinal::Name(name) = export.name()
                && let Ok(name) = std::str::from_utf8(name)
            {
                new.symbols.push(Symbol { address, rank: Rank::Exported, name: bare(name).into() });
            }
        }
        new.symbols
            .retain(|symbol| new.code.iter().any(|&(start, end)| (start..end).contains(&symbol.address)));
        new.symbols.sort_by_key(|symbol| (symbol.address, symbol.rank));
        new.symbols.dedup_by_key(|symbol| symbol.address);
        new
    }

    /// The name of the code at the address, and where it begins.
    pub(crate) fn find(&self, address: u64) -> Option<(&str, u64)> {
        let &(code_start, _) = self.code.iter().find(|&&(start, end)| (start..end).contains(&address))?;
        let after = self.symbols.partition_point(|symbol| symbol.address <= address);
        let symbol = &self.symbols[after.checked_sub(1)?];
        (symbol.address >= code_start).then_some((&*symbol.name, symbol.address))
    }

    /// True when the address is in a section with code.
    pub(crate) fn is_code(&self, address: u64) -> bool {
        self.code.iter().any(|&(start, end)| (start..end).contains(&address))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.symbols.is_empty()
    }
}
