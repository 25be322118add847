//! Files of other tools as a heap that can be asked questions: recognised by their bytes, names and all.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use cairn_analysis::format::recording::{MAGIC, PcKind};
use cairn_analysis::heap::{
    Address, HeapProfile, Module, NO_FRAMES, Namer, Scope, Stacks, Sums, UsageSample,
};
use cairn_analysis::symbols::SourceFrame;

use crate::error::ExchangeError;
use crate::inflate::inflated;
use crate::profile::{Line, Profile};
use crate::{heaptrack, pprof};

/// A kind of file that is read here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Kind {
    /// A recording of cairn's own: not for this module.
    Cairn,
    /// heaptrack's data file.
    Heaptrack,
    /// A profile of pprof.
    Pprof,
}

impl Kind {
    /// Of a file that begins so; `None` when that is no format that is known here.
    ///
    /// # Errors
    ///
    /// When the file cannot be read.
    pub fn of(input: impl Read) -> io::Result<Option<Self>> {
        let mut start = Vec::new();
        // What is not even compressed is told by its own bytes; broken compression is an error of its reader.
        inflated(input)?.take(16).read_to_end(&mut start)?;
        Ok(match start.as_slice() {
            start if start.starts_with(MAGIC.as_ref()) => Some(Self::Cairn),
            [b'v', b' ', ..] => Some(Self::Heaptrack),
            // `sample_type` is the first field that every writer writes; Go's begins with it, too.
            [0x0a, ..] => Some(Self::Pprof),
            _ => None,
        })
    }
}

/// A heap from a file of another tool.
#[derive(Debug)]
pub struct Imported {
    profile: Profile,
    stacks: Stacks,
    names: Names,
    sums: HeapProfile,
    usage: Vec<UsageSample>,
    unmatched_frees: u64,
    kind: Kind,
}

impl Imported {
    /// Reads the file, and of its events those of the scope.
    ///
    /// # Errors
    ///
    /// [`ExchangeError::Unknown`] for what is of no format that is known here; else what is wrong with the file, and where.
    pub fn open(path: &Path, scope: &Scope) -> Result<Self, ExchangeError> {
        let open = || File::open(path).map(|file| Box::new(file) as Box<dyn Read>);
        Self::read(open, scope)
    }

    /// As [`open`](Self::open), from anything that can be read again.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub fn read(
        mut open: impl FnMut() -> io::Result<Box<dyn Read>>,
        scope: &Scope,
    ) -> Result<Self, ExchangeError> {
        let kind = Kind::of(open().map_err(ExchangeError::reading)?).map_err(ExchangeError::reading)?;
        match kind {
            Some(Kind::Heaptrack) => {
                let heap = heaptrack::read(open, scope)?;
                let stacks = stacks_of(&heap.profile);
                Ok(Self {
                    names: Names::new(&heap.profile),
                    profile: heap.profile,
                    stacks,
                    sums: heap.sums,
                    usage: heap.usage,
                    unmatched_frees: heap.unmatched_frees,
                    kind: Kind::Heaptrack,
                })
            }
            Some(Kind::Pprof) => {
                if scope.from_nanos > 0
                    || scope.to_nanos < u64::MAX
                    || scope.threads.is_some()
                    || scope.sizes != (0..=u64::MAX)
                {
                    return Err(ExchangeError::CannotHold {
                        format: "pprof",
                        reason: "a profile has sums alone, so there are no times, threads and sizes to choose by",
                    });
                }
                let profile = pprof::read(open().map_err(ExchangeError::reading)?)?;
                let sums = sums_of(&profile, scope)?;
                Ok(Self {
                    names: Names::new(&profile),
                    stacks: stacks_of(&profile),
                    sums,
                    usage: Vec::new(),
                    unmatched_frees: 0,
                    kind: Kind::Pprof,
                    profile,
                })
            }
            Some(Kind::Cairn) | None => Err(ExchangeError::Unknown),
        }
    }

    /// What kind of file it was.
    #[must_use]
    pub const fn kind(&self) -> Kind {
        self.kind
    }

    /// What was run, and when.
    #[must_use]
    pub const fn profile(&self) -> &Profile {
        &self.profile
    }

    /// The stacks.
    #[must_use]
    pub const fn stacks(&self) -> &Stacks {
        &self.stacks
    }

    /// The names that the file has.
    #[must_use]
    pub const fn names(&self) -> &Names {
        &self.names
    }

    /// The sums of the scope.
    #[must_use]
    pub const fn sums(&self) -> &HeapProfile {
        &self.sums
    }

    /// Resident memory over time, where the file has it.
    #[must_use]
    pub fn usage(&self) -> &[UsageSample] {
        &self.usage
    }

    /// Frees of blocks that were not there.
    #[must_use]
    pub const fn unmatched_frees(&self) -> u64 {
        self.unmatched_frees
    }
}

/// Stack `n` of the profile is stack `n + 1`, behind the one without frames; a location is an address.
fn stacks_of(profile: &Profile) -> Stacks {
    let mut stacks = Stacks::new();
    for module in &profile.modules {
        let build_id = (0..module.build_id.len() / 2)
            .map_while(|index| u8::from_str_radix(module.build_id.get(2 * index..2 * index + 2)?, 16).ok());
        stacks.add_module(Module { path: module.path.to_string(), build_id: build_id.collect() });
    }
    for (location, index) in profile.locations.iter().zip(0..) {
        let start = |module: u32| profile.modules.get(module as usize).map_or(0, |module| module.start);
        stacks.add_address(Address {
            // What stands in a profile is the address of the call, as symbolizers are asked for.
            kind: PcKind::ProgramCounter,
            absolute: location.address,
            // Nobody looks these up in files: what is asked for is the entry of the file's own table.
            stated: index,
            module: location.module.map(|module| (module, location.address.wrapping_sub(start(module)))),
        });
    }
    for stack in &profile.stacks {
        let caller = stack.caller.map_or(NO_FRAMES, |caller| caller + 1);
        if stacks.add_stack(caller, stack.location).is_none() {
            stacks.skip();
        }
    }
    stacks
}

/// The sums of a heap profile of any maker: those of Go, jemalloc and gperftools have no peak, and then the moment that they are of is it.
fn sums_of(profile: &Profile, scope: &Scope) -> Result<HeapProfile, ExchangeError> {
    let column = |names: &[&str]| names.iter().find_map(|name| profile.column(name));
    let live_bytes = column(&["inuse_space", "space", "inuse_bytes"]);
    let live_blocks = column(&["inuse_objects", "objects"]);
    let bytes = column(&["alloc_space"]).or(live_bytes);
    let allocations = column(&["alloc_objects"]).or(live_blocks);
    if bytes.is_none() && allocations.is_none() {
        let names: Vec<&str> = profile.columns.iter().map(|column| &*column.name).collect();
        return Err(ExchangeError::Malformed {
            format: "pprof",
            place: "sample_type".to_owned(),
            problem: format!("it is no heap: it counts {}", names.join(", ")),
        });
    }
    let peak_bytes = column(&["peak_space"]).or(live_bytes);
    let peak_blocks = column(&["peak_objects"]).or(live_blocks);
    let temporary = column(&["temporary_objects"]);
    let mut rows = vec![Sums::default(); profile.stacks.len() + 1];
    for sample in &profile.samples {
        let stack = sample.stack.map_or(0, |stack| stack as usize + 1);
        if scope.stacks.as_ref().is_some_and(|list| !list.get(stack).copied().unwrap_or(false)) {
            continue;
        }
        let value =
            |column: Option<usize>| column.and_then(|column| sample.values.get(column)).copied().unwrap_or(0);
        let sums = Sums {
            allocations: value(allocations),
            allocated_bytes: value(bytes),
            live_blocks: value(live_blocks),
            live_bytes: value(live_bytes),
            peak_blocks: value(peak_blocks),
            peak_bytes: value(peak_bytes),
            temporary: value(temporary),
        };
        if let Some(row) = rows.get_mut(stack) {
            row.add(&sums);
        }
    }
    Ok(HeapProfile::of_sums(rows, profile.duration_nanos))
}

/// The names that came with a file.
#[derive(Debug)]
pub struct Names {
    /// By address.
    frames: Vec<Vec<SourceFrame>>,
}

impl Names {
    fn new(profile: &Profile) -> Self {
        let frame = |line: &Line, inlined: bool| {
            let function = profile.functions.get(line.function as usize);
            let mut frame = SourceFrame::default();
            frame.function = function.map(|function| Arc::clone(&function.name));
            frame.file = function.and_then(|function| function.file.clone());
            frame.line = Some(line.line).filter(|&line| line > 0);
            frame.inlined = inlined;
            frame
        };
        let frames = profile.locations.iter().map(|location| {
            let last = location.lines.len().saturating_sub(1);
            location.lines.iter().enumerate().map(|(index, line)| frame(line, index < last)).collect()
        });
        Self { frames: frames.collect() }
    }
}

impl Namer for Names {
    fn name(&self, _stacks: &Stacks, addresses: &[&Address]) -> Vec<Vec<SourceFrame>> {
        let of_entry =
            |address: &&Address| self.frames.get(address.stated as usize).cloned().unwrap_or_default();
        addresses.iter().map(of_entry).collect()
    }
}
