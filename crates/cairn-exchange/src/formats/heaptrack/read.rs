//! From a heaptrack file to a heap.
//!
//! Lines are read once, in order; what is kept grows with texts, stacks and live blocks, and not with events. heaptrack frees classes and
//! not blocks, so of equal blocks the one that was allocated last counts as freed: sums and peaks are the same whichever it was, lifetimes are not known.

use std::collections::HashMap;
use std::io::Read;
use std::sync::Arc;

use cairn_analysis::heap::slices::{SliceOptions, Slices};
use cairn_analysis::heap::{Aggregator, HeapProfile, Sampling, Scope, UsageSample};

use super::FORMAT;
use crate::error::ExchangeError;
use crate::inflate::{Budget, Limits, Unpacked};
use crate::model::changes::Moved;
use crate::model::profile::{Function, Line, Location, Module, Profile, Stack};

/// A text is at most so long; C++ has names of some hundred thousand bytes.
const MAX_LINE_BYTES: u64 = 1 << 22;
const NANOS_PER_MILLISECOND: u64 = 1_000_000;
/// Thirty years: what is said to be later is no time.
const MOST_MILLISECONDS: u64 = 30 * 366 * 86_400 * 1000;
/// What an entry of a table takes here, in all its forms: more than it can take, so that a budget holds.
const ENTRY_BYTES: usize = 160;
/// What a byte of a line can become: "1 1 1" is a line of source.
const BYTES_PER_BYTE: usize = 8;
/// What a stack takes, with its sums.
const STACK_BYTES: usize = 96;
/// What a live block takes, here and in the aggregator.
const SEGMENT_BYTES: usize = 32;

/// What the events of a file add up to. Stack `n` of the profile is stack `n + 1` of the sums; 0 has no frames.
pub(crate) struct Sums {
    pub(crate) sums: HeapProfile,
    /// Where they were asked for.
    pub(crate) slices: Option<Slices>,
    pub(crate) usage: Vec<UsageSample>,
    /// Frees of classes of which no block was left.
    pub(crate) unmatched_frees: u64,
}

/// Reads names and stacks.
pub(crate) fn read_tables(input: impl Read, limits: Limits) -> Result<Profile, ExchangeError> {
    let mut tables = Tables::default();
    lines(input, limits, |record, budget| tables.take(record, budget))?;
    Ok(tables.profile)
}

/// Adds up the events of the scope. The tables were read before, so that sums have their places.
pub(crate) fn read_events(
    input: impl Read,
    limits: Limits,
    profile: &Profile,
    scope: &Scope,
    slices: Option<&SliceOptions>,
) -> Result<Sums, ExchangeError> {
    let mut heap = Aggregator::new(profile.stacks.len() + 1, 1, scope.clone(), Sampling::All);
    if let Some(options) = slices {
        heap = heap.sliced(options);
    }
    let replayed = replay(input, limits, profile, |moved| moved.add_to(&mut heap))?;
    let (sums, slices) = heap.finish_sliced(replayed.nanos);
    Ok(Sums { sums, slices, usage: replayed.usage, unmatched_frees: replayed.unmatched_frees })
}

/// What a file has beside its blocks.
pub(crate) struct Replayed {
    nanos: u64,
    pub(crate) usage: Vec<UsageSample>,
    unmatched_frees: u64,
}

/// Gives each block that came or went to `take`.
pub(crate) fn replay(
    input: impl Read,
    limits: Limits,
    profile: &Profile,
    take: impl FnMut(Moved),
) -> Result<Replayed, ExchangeError> {
    let mut events = Events {
        moved: take,
        stacks: profile.stacks.len() + 1,
        classes: Vec::new(),
        free_objects: Vec::new(),
        objects: 0,
        nanos: 0,
        page_bytes: 0,
        usage: Vec::new(),
        unmatched_frees: 0,
    };
    lines(input, limits, |record, budget| events.take(record, budget))?;
    let Events { nanos, usage, unmatched_frees, .. } = events;
    Ok(Replayed { nanos, usage, unmatched_frees })
}

/// A line of the file.
struct Record<'a> {
    number: u64,
    kind: u8,
    rest: &'a [u8],
}

impl<'a> Record<'a> {
    fn bad(&self, problem: impl Into<String>) -> ExchangeError {
        ExchangeError::at_line(FORMAT, self.number, problem)
    }

    /// The next hexadecimal number; `None` at the end of the line.
    fn next(&mut self) -> Result<Option<u64>, ExchangeError> {
        let word = self.rest.trim_ascii_start();
        let end = word.iter().position(u8::is_ascii_whitespace).unwrap_or(word.len());
        let (word, rest) = word.split_at(end);
        self.rest = rest;
        if word.is_empty() {
            return Ok(None);
        }
        let number = std::str::from_utf8(word).ok().and_then(|word| u64::from_str_radix(word, 16).ok());
        number
            .map(Some)
            .ok_or_else(|| self.bad(format!("{:?} is no hexadecimal number", String::from_utf8_lossy(word))))
    }

    fn number(&mut self, what: &str) -> Result<u64, ExchangeError> {
        self.next()?.ok_or_else(|| self.bad(format!("{what} is missing")))
    }

    /// A time from the start of the program.
    fn nanos(&mut self) -> Result<u64, ExchangeError> {
        let milliseconds = self.number("a time")?;
        if milliseconds > MOST_MILLISECONDS {
            return Err(self.bad(format!("{milliseconds} milliseconds are no time")));
        }
        Ok(milliseconds.saturating_mul(NANOS_PER_MILLISECOND))
    }

    /// A number that counts from 1 in a table of this length; 0 is none.
    fn index(&mut self, what: &str, length: usize) -> Result<Option<u32>, ExchangeError> {
        let number = self.number(what)?;
        self.check(what, number, length)
    }

    fn check(&self, what: &str, number: u64, length: usize) -> Result<Option<u32>, ExchangeError> {
        if number > length as u64 {
            return Err(self.bad(format!("{what} {number:x}, where there are {length:x}")));
        }
        Ok(number.checked_sub(1).map(|index| index as u32))
    }
}

/// Calls `take` with every line.
fn lines(
    input: impl Read,
    limits: Limits,
    mut take: impl FnMut(Record<'_>, &mut Budget) -> Result<(), ExchangeError>,
) -> Result<(), ExchangeError> {
    let mut input = Unpacked::new(FORMAT, input, limits)?;
    let mut budget = input.budget();
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        input.line(MAX_LINE_BYTES, &mut line)?;
        if line.is_empty() {
            if number == 1 {
                return Err(ExchangeError::at_line(FORMAT, 1, "the file is empty"));
            }
            break;
        }
        if line.last() == Some(&b'\n') {
            line.pop();
        } else if line.len() as u64 >= MAX_LINE_BYTES {
            return Err(ExchangeError::at_line(FORMAT, number, "a line without an end"));
        } else {
            // The program or its recorder was killed: the last line is half written.
            break;
        }
        let Some((&kind, rest)) = line.split_first() else { continue };
        let mut record = Record { number, kind, rest };
        if number == 1 {
            let version =
                (kind == b'v').then(|| record.next().and_then(|_| record.next())).transpose()?.flatten();
            match version {
                Some(3) => {}
                Some(version) => {
                    return Err(record.bad(format!(
                        "version {version} of the format; only 3 is read, as heaptrack writes since 1.3"
                    )));
                }
                None => {
                    return Err(record.bad("a heaptrack file begins with its version; is this a raw one?"));
                }
            }
            continue;
        }
        take(record, &mut budget)?;
    }
    Ok(())
}

/// Names and stacks.
#[derive(Default)]
struct Tables {
    texts: Vec<Arc<str>>,
    /// By text: the module of that path, the function of that name and file.
    modules: HashMap<u32, u32>,
    functions: HashMap<(u32, u32), u32>,
    profile: Profile,
}

impl Tables {
    fn take(&mut self, mut record: Record<'_>, budget: &mut Budget) -> Result<(), ExchangeError> {
        match record.kind {
            b's' | b'i' => {
                budget.keep(record.rest.len().saturating_mul(BYTES_PER_BYTE).saturating_add(ENTRY_BYTES))?;
            }
            b't' => budget.keep(STACK_BYTES)?,
            _ => {}
        }
        match record.kind {
            b'X' => self.profile.title = String::from_utf8_lossy(record.rest.trim_ascii()).into_owned(),
            b'c' => {
                let nanos = record.nanos()?;
                self.profile.duration_nanos = self.profile.duration_nanos.max(nanos);
            }
            b's' => {
                let length = record.number("the length of a text")?;
                let text = record.rest.strip_prefix(b" ").unwrap_or(record.rest);
                if text.len() as u64 != length {
                    return Err(record
                        .bad(format!("a text of {:x} bytes, where {length:x} are announced", text.len())));
                }
                self.texts.push(String::from_utf8_lossy(text).into());
            }
            b'i' => self.place(&mut record)?,
            b't' => {
                let place = record.index("place", self.profile.locations.len())?;
                let caller = record.index("stack", self.profile.stacks.len())?;
                let location = place.ok_or_else(|| record.bad("a stack without a place"))?;
                self.profile.stacks.push(Stack { caller, location });
            }
            _ => {}
        }
        Ok(())
    }

    fn place(&mut self, record: &mut Record<'_>) -> Result<(), ExchangeError> {
        let address = record.number("an address")?;
        let module = record.index("text", self.texts.len())?.map(|text| self.module(text, address));
        let mut lines = Vec::new();
        while let Some(function) = record.next()? {
            let function = record.check("text", function, self.texts.len())?;
            // heaptrack leaves out what it does not know at the end of the line.
            let file = match record.next()? {
                Some(file) => record.check("text", file, self.texts.len())?,
                None => None,
            };
            let line = record.next()?.unwrap_or(0);
            let function = self.function(function, file, address, module);
            lines.push(Line { function, line: u32::try_from(line).unwrap_or(0) });
        }
        if lines.is_empty() {
            let function = self.function(None, None, address, module);
            lines.push(Line { function, line: 0 });
        }
        self.profile.locations.push(Location { address, module, lines });
        Ok(())
    }

    fn module(&mut self, text: u32, address: u64) -> u32 {
        let next = self.profile.modules.len() as u32;
        let index = *self.modules.entry(text).or_insert(next);
        if index == next {
            let path = Arc::clone(&self.texts[text as usize]);
            self.profile.modules.push(Module { path, build_id: String::new(), start: address, end: address });
        }
        let module = &mut self.profile.modules[index as usize];
        module.start = module.start.min(address);
        module.end = module.end.max(address.saturating_add(1));
        index
    }

    fn function(&mut self, name: Option<u32>, file: Option<u32>, address: u64, module: Option<u32>) -> u32 {
        let next = self.profile.functions.len() as u32;
        let Some(name) = name else {
            let module = module.and_then(|module| self.profile.modules.get(module as usize));
            // heaptrack keeps addresses as they were in the process, and no start of the module.
            let name = module.map_or_else(
                || format!("{address:#x}"),
                |module| format!("{} at {address:#x}", module.name()),
            );
            self.profile.functions.push(Function { name: name.into(), file: None });
            return next;
        };
        let index = *self.functions.entry((name, file.map_or(0, |file| file + 1))).or_insert(next);
        if index == next {
            let file = file.map(|file| Arc::clone(&self.texts[file as usize]));
            self.profile.functions.push(Function { name: Arc::clone(&self.texts[name as usize]), file });
        }
        index
    }
}

/// Allocations and frees.
struct Events<F> {
    moved: F,
    /// How many there are, the one without frames among them.
    stacks: usize,
    classes: Vec<Class>,
    /// Numbers of blocks that were freed, to be given again.
    free_objects: Vec<u32>,
    objects: u32,
    nanos: u64,
    page_bytes: u64,
    usage: Vec<UsageSample>,
    unmatched_frees: u64,
}

struct Class {
    size_bytes: u64,
    stack: u32,
    /// The blocks of it that live.
    live: Vec<u32>,
}

impl<F: FnMut(Moved)> Events<F> {
    fn take(&mut self, mut record: Record<'_>, budget: &mut Budget) -> Result<(), ExchangeError> {
        match record.kind {
            b'I' => self.page_bytes = record.number("the size of a page")?,
            b'a' => {
                let size_bytes = record.number("a size")?;
                // 0 is the stack without frames, which is one of them.
                let stack = record.index("stack", self.stacks - 1)?.map_or(0, |stack| stack + 1);
                budget.keep(ENTRY_BYTES)?;
                self.classes.push(Class { size_bytes, stack, live: Vec::new() });
            }
            b'+' => {
                let class = class(&mut self.classes, &mut record)?;
                let object = match self.free_objects.pop() {
                    Some(freed) => freed,
                    None => {
                        budget.keep(SEGMENT_BYTES)?;
                        self.objects += 1;
                        self.objects - 1
                    }
                };
                class.live.push(object);
                let (stack, size_bytes, nanos) = (class.stack, class.size_bytes, self.nanos);
                (self.moved)(Moved::Allocated { object, stack, thread: 0, size_bytes, nanos });
            }
            b'-' => match class(&mut self.classes, &mut record)?.live.pop() {
                Some(object) => {
                    (self.moved)(Moved::Freed { object, nanos: self.nanos });
                    self.free_objects.push(object);
                }
                None => self.unmatched_frees += 1,
            },
            b'c' => self.nanos = self.nanos.max(record.nanos()?),
            b'R' => {
                let resident_bytes = record.number("pages")?.saturating_mul(self.page_bytes);
                budget.keep(size_of::<UsageSample>())?;
                (self.moved)(Moved::Used { nanos: self.nanos, resident_bytes });
                self.usage.push(UsageSample {
                    nanos: self.nanos,
                    resident_bytes,
                    own_bytes: None,
                    page_faults: 0,
                    threads: 0,
                });
            }
            _ => {}
        }
        Ok(())
    }
}

fn class<'c>(classes: &'c mut [Class], record: &mut Record<'_>) -> Result<&'c mut Class, ExchangeError> {
    let number = record.number("a class")?;
    let there = classes.len();
    let class = usize::try_from(number).ok().and_then(|index| classes.get_mut(index));
    class.ok_or_else(|| record.bad(format!("class {number:x}, where there are {there:x}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(packed: &[u8], chosen_bytes: Option<u64>) -> Result<(), ExchangeError> {
        let limits = Limits { packed_bytes: packed.len() as u64, chosen_bytes };
        let profile = read_tables(packed, limits)?;
        read_events(packed, limits, &profile, &Scope::default(), None).map(drop)
    }

    #[test]
    fn a_file_that_unpacks_without_end_stops_soon() {
        let lines = [
            ("s 0 \n", "texts"),
            ("i 0 0\n", "places"),
            ("a 1 0\n", "classes"),
            ("+ 0\n", "blocks"),
            ("R 0\n", "samples"),
        ];
        for (line, what) in lines {
            let text = format!("v 1 3\na 1 0\n{}", line.repeat(1 << 18));
            let packed = zstd::encode_all(text.as_bytes(), 1).unwrap();
            let outcome = read(&packed, None);
            assert!(
                matches!(outcome, Err(ExchangeError::TooLarge { format: FORMAT, .. })),
                "{what}: {outcome:?}"
            );
        }
    }

    // Failed with: 20 GiB of times, of which nothing stays, were read for minutes.
    #[test]
    fn file_of_which_nothing_stays_unpacks_to_its_limit() {
        let text = format!("v 1 3\n{}", "c 0\n".repeat(1 << 20));
        let packed = zstd::encode_all(text.as_bytes(), 1).unwrap();
        assert!(read(&packed, None).is_ok());
        let error = read(&packed, Some(4 << 20)).unwrap_err();
        assert!(matches!(error, ExchangeError::UnpacksTooFar { .. }), "{error}");
        let text = error.to_string();
        assert!(
            text.contains("would unpack to more than 4 MiB (") && text.contains("--max-unpacked"),
            "{text}"
        );
        assert!(read(&packed, Some(5 << 20)).is_ok());
    }
}
