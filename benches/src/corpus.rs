//! The corpus: call stacks of thirteen real programs, in the order in which their `malloc` calls
//! came.
//!
//! `fixtures/stacks/README.md` says how it was made and draws the bytes; [`Program::load`] reads
//! them back. The reader trusts its input only as far as a fixture deserves: a damaged file is an
//! error message, never a wrong figure.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use cairn_format::AbsoluteAddress;

/// Returns the committed corpus.
pub(crate) fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/stacks")
}

/// One watched program: its stacks and where its modules lay.
#[derive(Clone)]
pub(crate) struct Program {
    pub(crate) name: String,
    pub(crate) modules: Vec<Module>,
    pub(crate) stacks: Stacks,
}

/// A file mapped into the program, one entry however many executable mappings it has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Module {
    pub(crate) name: String,
    pub(crate) build_id: Vec<u8>,
    /// Where byte 0 of the file lies (or would lie): the start of the mapping less its file offset.
    pub(crate) base: u64,
    /// Executable mappings, end exclusive, ascending.
    pub(crate) mappings: Vec<(u64, u64)>,
}

impl Module {
    /// End of the last executable mapping.
    pub(crate) fn end_of_text(&self) -> u64 {
        self.mappings.last().map_or(self.base, |&(_, end)| end)
    }

    /// Where Debian keeps a file of this kind. The traces recorded names only; image maps hold
    /// paths.
    pub(crate) fn path(&self) -> String {
        let directory = match self.name.as_str() {
            name if name.starts_with('[') => "",
            name if name.contains(".cpython-") => "/usr/lib/python3.11/lib-dynload/",
            name if name.contains(".so") => "/usr/lib/x86_64-linux-gnu/",
            _ => "/usr/bin/",
        };
        format!("{directory}{}", self.name)
    }
}

/// Many stacks in one piece of memory. A pass over them measures the format, not the cache misses
/// of thousands of small vectors.
#[derive(Clone, Default)]
pub(crate) struct Stacks {
    addresses: Vec<AbsoluteAddress>,
    entries: Vec<Entry>,
}

#[derive(Clone, Copy)]
struct Entry {
    requested_bytes: u64,
    end: usize,
}

/// One stack: what was asked of `malloc`, and the return addresses, innermost first.
#[derive(Clone, Copy)]
pub(crate) struct Stack<'a> {
    pub(crate) requested_bytes: u64,
    pub(crate) addresses: &'a [AbsoluteAddress],
}

impl Stacks {
    pub(crate) fn push(
        &mut self,
        requested_bytes: u64,
        addresses: impl IntoIterator<Item = AbsoluteAddress>,
    ) {
        self.addresses.extend(addresses);
        self.entries.push(Entry { requested_bytes, end: self.addresses.len() });
    }

    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = Stack<'_>> {
        let mut start = 0;
        self.entries.iter().map(move |entry| {
            let addresses = &self.addresses[start..entry.end];
            start = entry.end;
            Stack { requested_bytes: entry.requested_bytes, addresses }
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn frames(&self) -> usize {
        self.addresses.len()
    }

    /// Returns the stacks, each cut to its `limit` innermost frames, as by libwebsockets' capture.
    pub(crate) fn innermost(&self, limit: usize) -> Self {
        let mut cut = Self::default();
        for stack in self.iter() {
            cut.push(stack.requested_bytes, stack.addresses.iter().copied().take(limit));
        }
        cut
    }

    fn map(&self, relocate: impl Fn(u64) -> u64) -> Self {
        let relocate = |address: &AbsoluteAddress| AbsoluteAddress::new(relocate(address.value()));
        let addresses = self.addresses.iter().map(relocate).collect();
        Self { addresses, entries: self.entries.clone() }
    }
}

impl Program {
    /// Every program of the corpus in `directory`, by name.
    pub(crate) fn load_all(directory: &Path) -> Result<Vec<Self>, String> {
        program_names(directory, ".stacks")?.iter().map(|name| Self::load(directory, name)).collect()
    }

    /// Returns the program `name` of the corpus in `directory`.
    pub(crate) fn load(directory: &Path, name: &str) -> Result<Self, String> {
        let path = directory.join(format!("{name}.stacks"));
        let bytes = fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let stacks = unpack(&bytes)
            .ok_or_else(|| format!("{}: damaged; make it again (see its README)", path.display()))?;
        let modules = load_modules(&directory.join(format!("{name}.modules.tsv")))?;
        Ok(Self { name: name.to_owned(), modules, stacks })
    }

    /// Returns the program as if linked for low memory. Its modules, and the 1 MiB areas that
    /// belong to none, lie one after the other from 0x400000.
    ///
    /// libwebsockets' encoder loses bits of addresses of 2^31 and more; on these it and cairn do
    /// the same work.
    pub(crate) fn relocated_low(&self) -> Self {
        const FIRST: u64 = 0x40_0000;
        const AREA: u64 = 1 << 20;
        let mut areas = BTreeMap::new();
        for module in &self.modules {
            areas.insert(module.base, module.end_of_text());
        }
        for address in self.stacks.addresses.iter().map(|address| address.value()) {
            let inside = areas.range(..=address).next_back().is_some_and(|(_, &end)| address <= end);
            if !inside {
                let start = address / AREA * AREA;
                let next = areas.range(address..).next().map_or(u64::MAX, |(&base, _)| base);
                areas.insert(start, (start + AREA).min(next));
            }
        }
        let mut place = FIRST;
        let mut places = BTreeMap::new();
        for (&start, &end) in &areas {
            places.insert(start, place);
            place += (end - start).next_multiple_of(0x1000) + 0x1000;
        }
        assert!(place < 1 << 31, "{} does not fit below 2^31", self.name);
        let relocate = |address: u64| match places.range(..=address).next_back() {
            Some((start, place)) => address - start + place,
            None => address,
        };
        let modules = self.modules.iter().map(|module| Module {
            base: relocate(module.base),
            mappings: module
                .mappings
                .iter()
                .map(|&(start, end)| (relocate(start), relocate(start) + (end - start)))
                .collect(),
            ..module.clone()
        });
        Self { name: self.name.clone(), modules: modules.collect(), stacks: self.stacks.map(relocate) }
    }
}

/// Returns all stacks of all programs, one program after the other.
pub(crate) fn joined<'a>(programs: impl IntoIterator<Item = &'a Program>) -> Stacks {
    let mut all = Stacks::default();
    for program in programs {
        for stack in program.stacks.iter() {
            all.push(stack.requested_bytes, stack.addresses.iter().copied());
        }
    }
    all
}

/// Names of the files in `directory` that end with `suffix`, without it, sorted.
pub(crate) fn program_names(directory: &Path, suffix: &str) -> Result<Vec<String>, String> {
    let entries = fs::read_dir(directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    let mut names: Vec<String> = entries
        .flatten()
        .filter_map(|entry| Some(entry.file_name().to_str()?.strip_suffix(suffix)?.to_owned()))
        .collect();
    names.sort();
    if names.is_empty() {
        return Err(format!("{}: no *{suffix} file", directory.display()));
    }
    Ok(names)
}

fn load_modules(path: &Path) -> Result<Vec<Module>, String> {
    let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let mut modules: Vec<Module> = Vec::new();
    for (index, line) in text.lines().enumerate().skip(1) {
        let row = parse_row(line)
            .ok_or_else(|| format!("{}:{}: not a module row: {line}", path.display(), index + 1))?;
        match modules.iter_mut().find(|module| module.name == row.name) {
            Some(module) => module.mappings.extend(row.mappings),
            None => modules.push(row),
        }
    }
    Ok(modules)
}

fn parse_row(line: &str) -> Option<Module> {
    let mut columns = line.split('\t');
    let mut hex = || u64::from_str_radix(columns.next()?, 16).ok();
    let (start, end, file_offset) = (hex()?, hex()?, hex()?);
    let name = columns.next()?.to_owned();
    let digits = columns.next().unwrap_or_default();
    let build_id = (0..digits.len() / 2)
        .map(|index| u8::from_str_radix(digits.get(index * 2..index * 2 + 2)?, 16).ok())
        .collect::<Option<_>>()?;
    Some(Module { name, build_id, base: start.checked_sub(file_offset)?, mappings: vec![(start, end)] })
}

/// A run of consecutive stacks to keep: where it begins in the trace, and the stacks.
pub(crate) struct Window {
    pub(crate) first: u64,
    pub(crate) stacks: Stacks,
}

/// Returns the bytes of a `.stacks` file.
pub(crate) fn pack(windows: &[Window]) -> Vec<u8> {
    let mut table: Vec<AbsoluteAddress> =
        windows.iter().flat_map(|window| window.stacks.addresses.clone()).collect();
    table.sort_unstable();
    table.dedup();

    let mut bytes = Vec::new();
    put(&mut bytes, table.len() as u64);
    let mut previous = 0;
    for &address in &table {
        put(&mut bytes, address.value() - previous);
        previous = address.value();
    }
    put(&mut bytes, windows.len() as u64);
    for window in windows {
        put(&mut bytes, window.first);
        put(&mut bytes, window.stacks.len() as u64);
        let mut previous: &[AbsoluteAddress] = &[];
        for stack in window.stacks.iter() {
            let pairs = stack.addresses.iter().rev().zip(previous.iter().rev());
            let shared = pairs.take_while(|(this, that)| this == that).count();
            let fresh = &stack.addresses[..stack.addresses.len() - shared];
            put(&mut bytes, stack.requested_bytes);
            put(&mut bytes, shared as u64);
            put(&mut bytes, fresh.len() as u64);
            for address in fresh {
                put(&mut bytes, table.partition_point(|entry| entry < address) as u64);
            }
            previous = stack.addresses;
        }
    }
    bytes
}

/// Returns the stacks of a `.stacks` file, or `None` if it is damaged.
pub(crate) fn unpack(mut bytes: &[u8]) -> Option<Stacks> {
    let input = &mut bytes;
    let mut table = Vec::new();
    let mut address = 0_u64;
    for _ in 0..take(input)? {
        address = address.checked_add(take(input)?)?;
        table.push(AbsoluteAddress::new(address));
    }
    let mut stacks = Stacks::default();
    for _ in 0..take(input)? {
        let _first = take(input)?;
        let mut previous: Vec<AbsoluteAddress> = Vec::new();
        for _ in 0..take(input)? {
            let requested_bytes = take(input)?;
            let shared = usize::try_from(take(input)?).ok()?;
            let shared_from = previous.len().checked_sub(shared)?;
            let mut current = Vec::new();
            for _ in 0..take(input)? {
                current.push(*table.get(usize::try_from(take(input)?).ok()?)?);
            }
            current.extend_from_slice(previous.get(shared_from..)?);
            stacks.push(requested_bytes, current.iter().copied());
            previous = current;
        }
    }
    input.is_empty().then_some(stacks)
}

/// Appends a number as LEB128: seven bits a byte, low bits first, top bit set when more follow.
fn put(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

fn take(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_stacks_come_back_whole() {
        let mut stacks = Stacks::default();
        stacks.push(24, [0x7fff_f000_1234, 0x40_1000, 0x40_0f00].map(AbsoluteAddress::new));
        stacks.push(0, [0x40_1000, 0x40_0f00].map(AbsoluteAddress::new));
        stacks.push(1 << 40, []);
        stacks.push(7, [u64::MAX, 0].map(AbsoluteAddress::new));
        let bytes = pack(&[Window { first: 300, stacks: stacks.clone() }]);
        let read = unpack(&bytes).expect("its own bytes");
        let list = |stacks: &Stacks| -> Vec<(u64, Vec<AbsoluteAddress>)> {
            stacks.iter().map(|stack| (stack.requested_bytes, stack.addresses.to_vec())).collect()
        };
        assert_eq!(list(&read), list(&stacks));
        for length in 0..bytes.len() {
            assert!(unpack(&bytes[..length]).is_none(), "cut after {length} bytes");
        }
    }

    #[test]
    fn corpus_has_thirteen_programs_and_both_kinds_of_base() {
        let programs = Program::load_all(&directory()).expect("the committed corpus");
        assert_eq!(programs.len(), 13);
        for program in &programs {
            assert!(program.stacks.len() >= 400, "{}: {} stacks", program.name, program.stacks.len());
        }
        let all = joined(&programs);
        let has = |matches: fn(u64) -> bool| all.addresses.iter().any(|address| matches(address.value()));
        assert!(has(|address| address < 1 << 31), "a program linked to fixed low addresses");
        assert!(has(|address| address >> 40 == 0x55), "a position-independent program");
        assert!(has(|address| address >> 40 == 0x7f), "shared libraries");
    }

    #[test]
    fn low_relocation_keeps_stacks_apart_and_below_two_to_the_31() {
        for program in Program::load_all(&directory()).expect("the committed corpus") {
            let low = program.relocated_low();
            let pairs = program.stacks.addresses.iter().zip(&low.stacks.addresses);
            let map: BTreeMap<_, _> = pairs.map(|(&from, &to)| (from, to)).collect();
            let mut targets: Vec<u64> =
                map.values().map(|address: &AbsoluteAddress| address.value()).collect();
            targets.sort_unstable();
            targets.dedup();
            assert_eq!(targets.len(), map.len(), "{}: two addresses fell together", program.name);
            assert!(
                targets.iter().all(|&address| (0x40_0000..1 << 31).contains(&address)),
                "{}",
                program.name
            );
        }
    }
}
