//! Names in PE and Mach-O files without debug information: symbol tables and exports.

use object::{ExportTarget, NameOrOrdinal, Object, ObjectSection, ObjectSymbol, SectionKind, SymbolKind};

/// Names by address.
#[derive(Default)]
pub(crate) struct ObjectSymbols {
    symbols: Vec<CodeSymbol>,
    /// The code sections, so that the last function does not extend to the end of the address
    /// space.
    code: Vec<(u64, u64)>,
}

struct CodeSymbol {
    address: u64,
    rank: Rank,
    name: Box<str>,
}

/// The priority of a name among those of one address; the lowest is shown.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Function,
    Exported,
    Label,
}

/// Maximum names; 64 Mi, because no real file has more, so a larger table is broken.
const MAX_SYMBOLS: usize = 64 << 20;

impl ObjectSymbols {
    /// Collects the names of all code. `bare` strips the decoration that the system adds to C
    /// names.
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
                // In PE files, only functions state their kind.
                _ => Rank::Label,
            };
            if let Ok(name) = symbol.name()
                && !name.is_empty()
            {
                new.symbols.push(CodeSymbol { address: symbol.address(), rank, name: bare(name).into() });
            }
        }
        for export in file.exports().into_iter().flatten().take(MAX_SYMBOLS) {
            let Ok(export) = export else { break };
            if let ExportTarget::Address { address } = export.target()
                && let NameOrOrdinal::Name(name) = export.name()
                && let Ok(name) = std::str::from_utf8(name)
            {
                new.symbols.push(CodeSymbol { address, rank: Rank::Exported, name: bare(name).into() });
            }
        }
        new.symbols
            .retain(|symbol| new.code.iter().any(|&(start, end)| (start..end).contains(&symbol.address)));
        new.symbols.sort_by_key(|symbol| (symbol.address, symbol.rank));
        new.symbols.dedup_by_key(|symbol| symbol.address);
        new
    }

    /// Returns the name of the code at an address, and its start.
    pub(crate) fn find(&self, address: u64) -> Option<(&str, u64)> {
        let &(code_start, _) = self.code.iter().find(|&&(start, end)| (start..end).contains(&address))?;
        let after = self.symbols.partition_point(|symbol| symbol.address <= address);
        let symbol = &self.symbols[after.checked_sub(1)?];
        (symbol.address >= code_start).then_some((&*symbol.name, symbol.address))
    }

    /// Reports whether an address is in a code section.
    pub(crate) fn is_code(&self, address: u64) -> bool {
        self.code.iter().any(|&(start, end)| (start..end).contains(&address))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.symbols.is_empty()
    }
}
