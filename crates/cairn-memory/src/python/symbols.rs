//! Looks up exported symbols of a loaded module, by its hash table in memory.

use cairn_format::AbsoluteAddress;
use cairn_unwind::{AddressRange, MemoryReader};

use super::Words;
use crate::process::LoadedModule;

const STRING_TABLE: u64 = 5;
const SYMBOL_TABLE: u64 = 6;
const OLD_HASH: u64 = 4;
const GNU_HASH: u64 = 0x6fff_fef5;
/// Maximum entries of a dynamic section; 1024, because real ones have some forty.
const MAX_ENTRIES: u64 = 1024;
/// Maximum symbols of one bucket; 2^16, because real ones have a few.
const MAX_CHAIN: u32 = 1 << 16;
const SYMBOL_BYTES: u64 = 24;

/// The exported symbols of a module.
pub(super) struct ExportedSymbols<'a, M> {
    words: Words<'a, M>,
    bias: u64,
    symbols: u64,
    strings: u64,
    hash: Hash,
}

#[derive(Clone, Copy)]
enum Hash {
    Gnu(u64),
    Old(u64),
}

impl<'a, M: MemoryReader> ExportedSymbols<'a, M> {
    /// Reads the dynamic section; `None` if it cannot be read, or has no symbols.
    pub(super) fn of(module: &LoadedModule, words: Words<'a, M>) -> Option<Self> {
        let section = module.dynamic()?;
        let bias = module.bias();
        let (mut symbols, mut strings, mut gnu, mut old) = (None, None, None, None);
        for index in 0..MAX_ENTRIES {
            let entry = section.value().checked_add(index * 16)?;
            let (tag, value) = (words.word(entry)?, words.word(entry.checked_add(8)?)?);
            let place = Some(value);
            match tag {
                0 => break,
                SYMBOL_TABLE => symbols = place,
                STRING_TABLE => strings = place,
                GNU_HASH => gnu = place,
                OLD_HASH => old = place,
                _ => {}
            }
        }
        // The C library adds the bias to these words; musl and a file's own content do not.
        let range = module.range();
        let address = |value: u64| {
            if range.contains(AbsoluteAddress::new(value)) { value } else { bias.wrapping_add(value) }
        };
        let hash = gnu.map(address).map(Hash::Gnu).or(old.map(address).map(Hash::Old))?;
        Some(Self { words, bias, symbols: address(symbols?), strings: address(strings?), hash })
    }

    /// Finds what the module exports by this name: its first byte, and the byte behind its last.
    pub(super) fn find(&self, name: &str) -> Option<AddressRange> {
        match self.hash {
            Hash::Gnu(table) => self.find_by_gnu_hash(table, name),
            Hash::Old(table) => self.find_by_old_hash(table, name),
        }
    }

    fn find_by_gnu_hash(&self, table: u64, name: &str) -> Option<AddressRange> {
        let field = |index: u64| self.words.half(table.wrapping_add(index * 4));
        let (buckets, first, bloom) = (field(0)?, field(1)?, field(2)?);
        let hash = name.bytes().fold(5381_u32, |hash, byte| hash.wrapping_mul(33).wrapping_add(byte.into()));
        let bucket_table = 4 + u64::from(bloom) * 2;
        let mut symbol = field(bucket_table + u64::from(hash.checked_rem(buckets)?))?;
        let chain_table = bucket_table + u64::from(buckets);
        for _ in 0..MAX_CHAIN {
            let stored = field(chain_table + u64::from(symbol.checked_sub(first)?))?;
            if stored | 1 == hash | 1
                && let Some(found) = self.symbol(symbol.into(), name)
            {
                return Some(found);
            }
            if stored & 1 != 0 {
                return None;
            }
            symbol = symbol.checked_add(1)?;
        }
        None
    }

    fn find_by_old_hash(&self, table: u64, name: &str) -> Option<AddressRange> {
        let field = |index: u64| self.words.half(table.wrapping_add(index * 4));
        let (buckets, chains) = (field(0)?, field(1)?);
        let hash = name.bytes().fold(0_u32, |hash, byte| {
            let hash = (hash << 4).wrapping_add(byte.into());
            let high = hash & 0xf000_0000;
            (hash ^ (high >> 24)) & !high
        });
        let mut symbol = field(2 + u64::from(hash.checked_rem(buckets)?))?;
        for _ in 0..chains.min(MAX_CHAIN) {
            if symbol == 0 {
                return None;
            }
            if let Some(found) = self.symbol(symbol.into(), name) {
                return Some(found);
            }
            symbol = field(2 + u64::from(buckets) + u64::from(symbol))?;
        }
        None
    }

    /// Returns the symbol at an index, if it is a defined one of this name.
    fn symbol(&self, index: u64, name: &str) -> Option<AddressRange> {
        let entry = self.symbols.checked_add(index * SYMBOL_BYTES)?;
        let name_at = self.strings.checked_add(self.words.half(entry)?.into())?;
        let mut stored = vec![0; name.len() + 1];
        self.words.0.read(AbsoluteAddress::new(name_at), &mut stored)?;
        let section = self.words.half(entry.checked_add(4)?)? >> 16;
        if stored.split_last() != Some((&0, name.as_bytes())) || section == 0 {
            return None;
        }
        let start = self.bias.wrapping_add(self.words.word(entry.checked_add(8)?)?);
        let bytes = self.words.word(entry.checked_add(16)?)?;
        let end = AbsoluteAddress::new(start.saturating_add(bytes));
        Some(AddressRange::new(AbsoluteAddress::new(start), end))
    }
}
