//! Answers for programs: the output of `--json`, described field by field in
//! `docs/book/reference/report.md`.
//!
//! The schemas are stable: within a version, fields are added and never change their meaning or go
//! away.
//!
//! Long because each field of the output is documented here, next to the one that has its meaning.

use serde::Serialize;

use super::about::{About, ThreadName};
use super::diff::{Diff, DiffEntry};
use super::heap_read::HeapRead;
use super::names::LineId;
use super::patterns::Suppressed;
use super::questions::{Entry, Group, Questions};
use super::resident::{Resident, UsageSample};
use super::tree::Tree;
use super::unfreed::Unfreed;
use super::{
    Amount, Cost, Errors, Owner, OwnerKind, Position, Sampling, Sums, lifetime_class_range, size_class_range,
};
use cairn_format::recording::EndReason;

/// Name and version of [`Report`].
pub const REPORT_SCHEMA: &str = "cairn.heap.report/1";
/// Name and version of [`DiffReport`].
pub const DIFF_SCHEMA: &str = "cairn.heap.diff/1";

/// How much of each list is shown.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Limits {
    /// Entries of each list.
    pub entries: usize,
    /// Stacks of each entry.
    pub stacks: usize,
    /// Entries that are a smaller part of the whole are left out, from 0 to 1.
    pub least_share: f64,
}

impl Limits {
    /// Returns how many of the entries are shown, of a list in which the most expensive come first.
    #[must_use]
    pub fn shown(&self, entries: &[Entry], cost: Cost, whole: Amount) -> usize {
        let is_shown = |entry: &Entry| cost.of(&entry.sums).share_of(whole) >= self.least_share;
        entries.iter().take(self.entries).take_while(|entry| is_shown(entry)).count()
    }
}

/// The sums of a heap.
#[derive(Clone, PartialEq, Serialize, Debug)]
pub struct Report {
    /// [`REPORT_SCHEMA`].
    pub schema: &'static str,
    /// The recorded program.
    pub recording: Recorded,
    /// The part that is counted.
    pub scope: ScopeJson,
    /// One byte of this many was picked on average; absent where every allocation was recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sample_bytes: Option<u64>,
    /// Allocations.
    pub total_allocations: u64,
    /// Their bytes.
    pub total_bytes: u64,
    /// Frees of them.
    pub total_frees: u64,
    /// The kind of blocks that were not freed: `leaked` when the program exited, else `alive`.
    ///
    /// It holds here and in all fields whose names begin with `leaked`.
    pub unfreed: &'static str,
    /// Bytes that were not freed.
    pub leaked_bytes: u64,
    /// Blocks that were not freed.
    pub leaked_allocations: u64,
    /// Bytes at the moment at which the program held most.
    pub peak_bytes: u64,
    /// Blocks at that moment.
    pub peak_allocations: u64,
    /// When that was.
    pub peak_nanos: u64,
    /// Bytes of the whole program then; `peak_bytes` is the part that is counted.
    pub peak_bytes_of_all: u64,
    /// Allocations that were freed before their thread allocated again.
    pub temporary_allocations: u64,
    /// Until when the recording was looked at.
    pub duration_nanos: u64,
    /// Standard errors of the totals of a sampled recording.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub errors: Option<ErrorsJson>,
    /// Frees of blocks that are older than the recording.
    pub unmatched_frees: u64,
    /// Most resident memory of the process at any time, by the kernel's count.
    ///
    /// Cairn's own is included. Null when the program did not end through `exit`.
    pub peak_resident_bytes: Option<u64>,
    /// Most resident memory in a sample, without cairn's own where that is known.
    pub most_resident_bytes: Option<u64>,
    /// Cairn's own resident memory beside that; null when it is not known, and included.
    pub cairn_resident_bytes: Option<u64>,
    /// Its parts at the moment when most was resident.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resident: Option<ResidentJson>,
    /// The measure of `top` and `tree`.
    pub cost: &'static str,
    /// The group of an entry of `top`: a function, line, module, or stack.
    pub group: &'static str,
    /// The functions, lines, modules or stacks that asked for the memory, the most expensive first.
    pub top: Vec<EntryJson>,
    /// How many entries there are besides those in `top`.
    pub more_entries: usize,
    /// Wrappers of the allocator that were found in the recording, most bytes first.
    pub wrappers: Vec<WrapperJson>,
    /// Leaks that were held back.
    pub suppressed: Vec<SuppressedJson>,
    /// By thread.
    pub threads: Vec<ThreadJson>,
    /// By size; classes in which nothing is are left out.
    pub sizes: Vec<SizeJson>,
    /// How long blocks lived that were freed.
    pub lifetimes: Vec<LifetimeJson>,
    /// Memory over time.
    pub timeline: TimelineJson,
    /// Resident memory over time, where it was sampled.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub usage: Vec<UsageJson>,
    /// The tree that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tree: Option<Vec<TreeNodeJson>>,
    /// Limits and damage of the file: a sentence each.
    pub findings: Vec<String>,
}

/// Resident memory at one moment.
#[derive(Clone, PartialEq, Eq, Serialize, Debug)]
pub struct UsageJson {
    /// When, from the start of the recording.
    pub nanos: u64,
    /// Resident memory, without cairn's own where that is known.
    pub resident_bytes: u64,
    /// Cairn's own beside it; null when it is not known, and included.
    pub cairn_bytes: Option<u64>,
    /// Page faults since the start.
    pub page_faults: u64,
    /// Threads.
    pub threads: u32,
}

impl From<&UsageSample> for UsageJson {
    fn from(sample: &UsageSample) -> Self {
        let UsageSample { nanos, resident_bytes, own_bytes, page_faults, threads } = *sample;
        Self { nanos, resident_bytes, cairn_bytes: own_bytes, page_faults, threads }
    }
}

/// The recorded program.
#[derive(Clone, PartialEq, Eq, Serialize, Debug)]
pub struct Recorded {
    /// The words of the command line.
    pub command: Vec<String>,
    /// The process.
    pub process: u32,
    /// When it began, in nanoseconds since 1970.
    pub started_wall_nanos: u64,
    /// How it ended: `exit`, `exec`, `stopped`, or `gone`.
    ///
    /// `gone` is the end of a child by `_exit` or a signal. `None` when the recording has no end.
    pub end: Option<&'static str>,
    /// Whether the recording ended, or was read, before the program ended.
    ///
    /// Then blocks that were not freed are no leaks.
    pub ended_before_program: bool,
    /// Until when a recording was read that the program still writes; nothing else.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_until_nanos: Option<u64>,
}

/// The part of a heap that is counted.
#[derive(Clone, PartialEq, Eq, Serialize, Debug, Default)]
pub struct ScopeJson {
    /// Allocations from this time on.
    pub from_nanos: u64,
    /// Events until this time; nothing for all.
    pub to_nanos: Option<u64>,
    /// The filters, as they were given.
    pub filters: Vec<String>,
}

/// The sums of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Debug)]
pub struct SumsJson {
    /// Allocations.
    pub allocations: u64,
    /// Their bytes.
    pub allocated_bytes: u64,
    /// Blocks that were not freed.
    pub leaked_allocations: u64,
    /// Their bytes.
    pub leaked_bytes: u64,
    /// Blocks at the peak of the program.
    pub peak_allocations: u64,
    /// Their bytes.
    pub peak_bytes: u64,
    /// Allocations that were freed before their thread allocated again.
    pub temporary_allocations: u64,
}

impl From<&Sums> for SumsJson {
    fn from(sums: &Sums) -> Self {
        Self {
            allocations: sums.allocations,
            allocated_bytes: sums.allocated_bytes,
            leaked_allocations: sums.live_blocks,
            leaked_bytes: sums.live_bytes,
            peak_allocations: sums.peak_blocks,
            peak_bytes: sums.peak_bytes,
            temporary_allocations: sums.temporary,
        }
    }
}

/// Resident memory at its peak.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Debug)]
#[non_exhaustive]
pub struct ResidentJson {
    /// When.
    pub nanos: u64,
    /// In blocks that the program held.
    pub held_bytes: u64,
    /// Mapped by the program itself, where mappings are recorded.
    pub mapped_bytes: u64,
    /// Everything else: the program, libraries, stacks, what the allocator keeps.
    pub rest_bytes: u64,
    /// Threads.
    pub threads: u32,
    /// Page faults up to then.
    pub page_faults: u64,
}

impl From<&Resident> for ResidentJson {
    fn from(resident: &Resident) -> Self {
        Self {
            nanos: resident.sample.nanos,
            held_bytes: resident.held_bytes,
            mapped_bytes: resident.mapped_bytes,
            rest_bytes: resident.rest_bytes(),
            threads: resident.sample.threads,
            page_faults: resident.sample.page_faults,
        }
    }
}

/// Standard errors.
#[derive(Clone, Copy, PartialEq, Serialize, Debug)]
pub struct ErrorsJson {
    /// Standard error of the allocations.
    pub allocations: f64,
    /// Standard error of their bytes.
    pub allocated_bytes: f64,
    /// Standard error of the blocks that were not freed.
    pub leaked_allocations: f64,
    /// Standard error of their bytes.
    pub leaked_bytes: f64,
    /// Standard error of the blocks at the peak.
    pub peak_allocations: f64,
    /// Standard error of their bytes.
    pub peak_bytes: f64,
}

impl From<&Errors> for ErrorsJson {
    fn from(errors: &Errors) -> Self {
        Self {
            allocations: errors.allocations,
            allocated_bytes: errors.allocated_bytes,
            leaked_allocations: errors.live_blocks,
            leaked_bytes: errors.live_bytes,
            peak_allocations: errors.peak_blocks,
            peak_bytes: errors.peak_bytes,
        }
    }
}

/// A frame of a stack.
#[derive(Clone, PartialEq, Eq, Serialize, Debug)]
pub struct FrameJson {
    /// Its function, or its place in a module: `module+0x1234`.
    pub function: String,
    /// Its source file.
    pub file: Option<String>,
    /// Its line.
    pub line: Option<u32>,
    /// Path of its module.
    pub module: Option<String>,
    /// The kind of its owner.
    ///
    /// It is `mine`, `library`, `unknown`, `interpreter`, `standard-library`, `runtime`, `wrapper`
    /// or `allocator`.
    pub owner: &'static str,
    /// The library, language or interpreter that owns it; absent for the user's code.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner_name: Option<String>,
}

/// A line of a list.
#[derive(Clone, PartialEq, Serialize, Debug)]
pub struct EntryJson {
    /// The function, file, line and module that asked for most of it.
    #[serde(flatten)]
    pub frame: FrameJson,
    /// By the cost that was asked for: bytes at the peak, leaked, or allocated. For `count` and
    /// `temporary`, all bytes that were allocated.
    pub bytes: u64,
    /// The blocks or allocations that go with it.
    pub count: u64,
    /// Standard error of `bytes`, or of `count` where that is the cost, in a sampled recording.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<f64>,
    /// All sums.
    #[serde(flatten)]
    pub sums: SumsJson,
    /// The most expensive stacks.
    pub stacks: Vec<StackJson>,
    /// How many stacks there are besides.
    pub more_stacks: usize,
}

/// A stack of an entry.
#[derive(Clone, PartialEq, Eq, Serialize, Debug)]
pub struct StackJson {
    /// As for the entry.
    pub bytes: u64,
    /// As for the entry.
    pub count: u64,
    /// The frames from the one that asked outwards.
    pub frames: Vec<FrameJson>,
    /// Frames of the stack that are not in `frames`, because they are folded.
    pub folded_frames: usize,
}

/// A wrapper of the allocator that the recording shows.
#[derive(Clone, PartialEq, Eq, Serialize, Debug)]
pub struct WrapperJson {
    /// The function.
    pub function: String,
    /// Path of its module.
    pub module: Option<String>,
    /// Bytes that were allocated through it.
    pub allocated_bytes: u64,
    /// Allocations through it.
    pub allocations: u64,
    /// True when most of these go through another wrapper in it, where they are counted as well.
    pub is_nested: bool,
}

/// A leak that was held back.
#[derive(Clone, PartialEq, Eq, Serialize, Debug)]
pub struct SuppressedJson {
    /// The pattern that matched; the name of a leak that every program has.
    pub pattern: String,
    /// Blocks.
    pub count: u64,
    /// Bytes.
    pub bytes: u64,
    /// Why every program has it; absent for a pattern of the user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<&'static str>,
}

/// A thread and what it allocated.
#[derive(Clone, PartialEq, Eq, Serialize, Debug)]
pub struct ThreadJson {
    /// Its number in the recording.
    pub thread: u32,
    /// Its number in the kernel.
    pub kernel_thread: u32,
    /// Its last name.
    pub name: String,
    /// The names that it had before, oldest first.
    pub earlier_names: Vec<String>,
    /// All sums.
    #[serde(flatten)]
    pub sums: SumsJson,
}

/// A class of sizes.
#[derive(Clone, PartialEq, Eq, Serialize, Debug)]
pub struct SizeJson {
    /// The smallest size.
    pub from_bytes: u64,
    /// The largest size.
    pub to_bytes: u64,
    /// All sums.
    #[serde(flatten)]
    pub sums: SumsJson,
}

/// A class of lifetimes.
#[derive(Clone, PartialEq, Eq, Serialize, Debug)]
pub struct LifetimeJson {
    /// The shortest one.
    pub from_nanos: u64,
    /// The longest one.
    pub to_nanos: u64,
    /// Blocks that lived so long.
    pub count: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Memory over time.
#[derive(Clone, PartialEq, Eq, Serialize, Debug)]
pub struct TimelineJson {
    /// Width of a bin.
    pub bin_nanos: u64,
    /// Most bytes in each bin, from the start.
    pub most_bytes: Vec<u64>,
    /// Bytes at the end of each bin.
    pub last_bytes: Vec<u64>,
    /// Allocations in each bin.
    pub allocations: Vec<u64>,
}

/// A node of a tree; the first one is the root, each names its parent.
#[derive(Clone, PartialEq, Eq, Serialize, Debug)]
pub struct TreeNodeJson {
    /// Index of its parent; nothing for the root.
    pub parent: Option<usize>,
    /// The frame; nothing for the root.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub frame: Option<FrameJson>,
    /// Bytes, or blocks where these are the cost.
    pub value: u64,
    /// Blocks.
    pub count: u64,
    /// The part of the value that ends here.
    pub own_value: u64,
    /// Folded frames around it, the most of any stack.
    ///
    /// They are between it and its caller, and between it and the allocations that it is named for.
    pub folded_frames: usize,
}

/// The request for a report, beside the profile.
#[derive(Clone, Debug)]
pub struct ReportRequest<'a> {
    /// The recording.
    pub about: &'a About,
    /// The sums that were read.
    pub read: &'a HeapRead,
    /// The scope, for the record.
    pub scope: ScopeJson,
    /// The measure.
    pub cost: Cost,
    /// The group of an entry.
    pub group: Group,
    /// How much of each list is shown.
    pub limits: Limits,
    /// Known leaks that are left out.
    pub suppressed: &'a [Suppressed],
    /// A tree, where one was asked for.
    pub tree: Option<&'a Tree>,
}

impl Report {
    /// Builds the report; finds the names of the stacks in it.
    #[must_use]
    pub fn new(questions: &mut Questions<'_>, asked: &ReportRequest<'_>) -> Self {
        let profile = questions.profile();
        let entries = questions.top_of(asked.group, asked.cost, asked.limits.stacks);
        let top = entries_json(questions, &entries, asked.cost, asked.limits);
        let totals = &profile.totals;
        let about = asked.about;
        // Instead of sums that cannot be used, the events answered.
        let of_events = asked.read.findings.iter().filter(|finding| finding.is_damage());
        let of_events = of_events.map(ToString::to_string);
        Self {
            schema: REPORT_SCHEMA,
            recording: Recorded {
                command: about.command.clone(),
                process: about.process,
                started_wall_nanos: about.started_wall_nanos,
                end: about.end.map(end_word),
                ended_before_program: about.ended_before_program,
                read_until_nanos: about.growth.map(|growth| growth.until_nanos.unwrap_or(profile.end_nanos)),
            },
            scope: asked.scope.clone(),
            sample_bytes: match profile.sampling {
                Sampling::All => None,
                Sampling::Poisson { mean_bytes } => Some(mean_bytes),
            },
            total_allocations: totals.allocations,
            total_bytes: totals.allocated_bytes,
            total_frees: totals.frees(),
            unfreed: if asked.scope.to_nanos.is_some() { Unfreed::Alive } else { about.unfreed }.word(),
            leaked_bytes: totals.live_bytes,
            leaked_allocations: totals.live_blocks,
            peak_bytes: totals.peak_bytes,
            peak_allocations: totals.peak_blocks,
            peak_nanos: profile.peak_nanos,
            peak_bytes_of_all: profile.peak_bytes_of_all,
            temporary_allocations: totals.temporary,
            duration_nanos: profile.end_nanos,
            errors: profile.sampling.is_estimate().then(|| (&profile.errors).into()),
            unmatched_frees: asked.read.unmatched_frees,
            peak_resident_bytes: about.peak_resident_bytes,
            most_resident_bytes: asked.read.most_resident_bytes,
            cairn_resident_bytes: asked.read.own_resident_bytes(),
            resident: asked.read.resident.as_ref().map(ResidentJson::from),
            cost: asked.cost.name(),
            group: asked.group.name(),
            more_entries: entries.len() - top.len(),
            top,
            wrappers: WrapperJson::all_of(questions),
            suppressed: asked.suppressed.iter().map(SuppressedJson::from).collect(),
            threads: tell_threads(&about.threads, &profile.threads),
            sizes: tell_sizes(&profile.sizes),
            lifetimes: tell_lifetimes(&profile.lifetimes),
            timeline: TimelineJson {
                bin_nanos: profile.timeline.bin_nanos,
                most_bytes: profile.timeline.bins.iter().map(|bin| bin.most_bytes).collect(),
                last_bytes: profile.timeline.bins.iter().map(|bin| bin.last_bytes).collect(),
                allocations: profile.timeline.bins.iter().map(|bin| bin.allocations).collect(),
            },
            usage: asked.read.usage.iter().map(UsageJson::from).collect(),
            tree: asked.tree.map(|tree| tell_tree(questions, tree)),
            findings: about.findings.iter().cloned().chain(of_events).collect(),
        }
    }
}

fn end_word(reason: EndReason) -> &'static str {
    match reason {
        EndReason::Stopped => "stopped",
        EndReason::Exit => "exit",
        EndReason::Exec => "exec",
        EndReason::Gone => "gone",
        _ => "other",
    }
}

impl From<&Suppressed> for SuppressedJson {
    fn from(held_back: &Suppressed) -> Self {
        Self {
            pattern: held_back.name.clone(),
            count: held_back.blocks,
            bytes: held_back.bytes,
            reason: held_back.reason,
        }
    }
}

fn tell_threads(threads: &[ThreadName], sums: &[Sums]) -> Vec<ThreadJson> {
    let thread_json = |(thread, sums): (&ThreadName, &Sums)| ThreadJson {
        thread: thread.number,
        kernel_thread: thread.kernel_thread,
        name: thread.name.clone(),
        earlier_names: thread.earlier_names.clone(),
        sums: sums.into(),
    };
    threads.iter().zip(sums).filter(|(_, sums)| !sums.is_empty()).map(thread_json).collect()
}

fn tell_sizes(sizes: &[Sums]) -> Vec<SizeJson> {
    let used = sizes.iter().enumerate().filter(|(_, sums)| !sums.is_empty());
    used.map(|(class, sums)| {
        let (from_bytes, to_bytes) = size_class_range(class);
        SizeJson { from_bytes, to_bytes, sums: sums.into() }
    })
    .collect()
}

fn tell_lifetimes(lifetimes: &[super::Lifetimes]) -> Vec<LifetimeJson> {
    let used = lifetimes.iter().enumerate().filter(|(_, lifetime)| lifetime.blocks > 0);
    used.map(|(class, lifetime)| {
        let (from_nanos, to_nanos) = lifetime_class_range(class);
        LifetimeJson { from_nanos, to_nanos, count: lifetime.blocks, bytes: lifetime.bytes }
    })
    .collect()
}

/// `bytes` and `count` of an entry.
fn bytes_and_count(cost: Cost, sums: &Sums) -> (u64, u64) {
    let amount = cost.of(sums);
    let bytes = if cost.is_bytes() { amount.value } else { sums.allocated_bytes };
    (bytes, amount.blocks)
}

impl WrapperJson {
    /// Lists the wrappers that a recording shows, most bytes first.
    #[must_use]
    pub fn all_of(questions: &Questions<'_>) -> Vec<Self> {
        let names = questions.names();
        let wrapper_json = |wrapper: &super::FoundWrapper| {
            let function = names.function(wrapper.function);
            let module = function.module.and_then(|module| names.stacks().modules().get(module as usize));
            Self {
                function: function.name.to_string(),
                module: module.map(|module| module.path.clone()),
                allocated_bytes: wrapper.bytes,
                allocations: wrapper.allocations,
                is_nested: wrapper.is_nested,
            }
        };
        names.found_wrappers().iter().map(wrapper_json).collect()
    }
}

fn entries_json(
    questions: &mut Questions<'_>,
    entries: &[Entry],
    cost: Cost,
    limits: Limits,
) -> Vec<EntryJson> {
    let whole = cost.of(&questions.profile().totals);
    let shown = &entries[..limits.shown(entries, cost, whole)];
    let stacks = |entry: &Entry| -> Vec<(u32, Position)> {
        entry.stacks.iter().take(limits.stacks).copied().collect()
    };
    questions.names_mut().find_stacks(shown.iter().flat_map(stacks).map(|(stack, _)| stack));
    shown
        .iter()
        .map(|entry| {
            let (bytes, count) = bytes_and_count(cost, &entry.sums);
            let stacks: Vec<StackJson> = stacks(entry)
                .into_iter()
                .map(|(stack, asker)| {
                    let (bytes, count) = bytes_and_count(cost, questions.sums(stack));
                    let frames = questions.frames(stack, asker);
                    StackJson {
                        bytes,
                        count,
                        folded_frames: questions.left_out(stack, asker),
                        frames: frames.into_iter().map(|line| frame_json(questions, line)).collect(),
                    }
                })
                .collect();
            EntryJson {
                frame: frame_json(questions, entry.line),
                bytes,
                count,
                error: questions.profile().sampling.is_estimate().then(|| cost.error(&entry.errors)),
                sums: (&entry.sums).into(),
                more_stacks: entry.stacks.len() - stacks.len(),
                stacks,
            }
        })
        .collect()
}

fn frame_json(questions: &Questions<'_>, line: LineId) -> FrameJson {
    let names = questions.names();
    let source = names.source_line(line);
    let module = names.module_path(line);
    FrameJson {
        function: names.function(source.function).name.to_string(),
        file: source.file.as_deref().map(str::to_owned),
        line: source.line,
        module: (!module.is_empty()).then(|| module.to_owned()),
        owner: names.owner_kind(line).word(),
        owner_name: owner_name(&names.owner(line)),
    }
}

fn tell_tree(questions: &Questions<'_>, tree: &Tree) -> Vec<TreeNodeJson> {
    let mut parents = vec![None; tree.nodes.len()];
    for (index, node) in tree.nodes.iter().enumerate() {
        node.children.iter().for_each(|&child| parents[child] = Some(index));
    }
    let node_json = |(node, parent): (&super::TreeNode, Option<usize>)| TreeNodeJson {
        parent,
        frame: node.line.map(|line| frame_json(questions, line)),
        value: node.amount.value,
        count: node.amount.blocks,
        own_value: node.own.value,
        folded_frames: node.folded_outside + node.folded_inside,
    };
    tree.nodes.iter().zip(parents).map(node_json).collect()
}

/// The differences between two heaps.
#[derive(Clone, PartialEq, Eq, Serialize, Debug)]
pub struct DiffReport {
    /// [`DIFF_SCHEMA`].
    pub schema: &'static str,
    /// The measure.
    pub cost: &'static str,
    /// The kind of blocks that were not freed before: `leaked` when that program exited, else
    /// `alive`.
    pub unfreed_before: &'static str,
    /// The same of those now.
    pub unfreed_after: &'static str,
    /// True when one of the two is an image of memory, which has only blocks that are alive.
    ///
    /// All its costs are theirs; earlier allocations and frees are unknown.
    pub only_alive: bool,
    /// The totals before.
    pub before: SumsJson,
    /// The totals now.
    pub after: SumsJson,
    /// The changes, the greatest first.
    pub changes: Vec<ChangeJson>,
    /// How many changes there are besides.
    pub more_changes: usize,
    /// Wrappers of the allocator that the recording before shows; they are folded in both.
    pub wrappers_before: Vec<WrapperJson>,
    /// Wrappers of the allocator that the recording after shows; they are folded in both.
    pub wrappers: Vec<WrapperJson>,
}

/// A stack, or a function, that costs more or less than before.
#[derive(Clone, PartialEq, Eq, Serialize, Debug)]
pub struct ChangeJson {
    /// The function that asked; nothing where its module's names are not known.
    pub function: Option<String>,
    /// Its source file, without directories.
    pub file: Option<String>,
    /// Its module, without directories and version.
    pub module: String,
    /// The kind of its owner.
    ///
    /// The words are those of [`FrameJson::owner`]. A module has the owner of the function in it
    /// that changed most.
    pub owner: &'static str,
    /// The library, language or interpreter that owns it; absent for the user's code.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner_name: Option<String>,
    /// The cost before.
    pub before: u64,
    /// The cost now.
    pub after: u64,
    /// `after` less `before`.
    pub growth: i64,
    /// Blocks before.
    pub count_before: u64,
    /// Blocks now.
    pub count_after: u64,
    /// The frames from the one that asked outwards.
    pub frames: Vec<ChangeFrameJson>,
    /// Frames of the longest of its stacks that are not in `frames`, because they are folded.
    ///
    /// Absent for a function or a module.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub folded_frames: Option<usize>,
}

/// A frame of a [`ChangeJson`].
#[derive(Clone, PartialEq, Eq, Serialize, Debug)]
pub struct ChangeFrameJson {
    /// As there.
    pub function: Option<String>,
    /// As there.
    pub file: Option<String>,
    /// As there.
    pub module: String,
    /// As there.
    pub owner: &'static str,
    /// As there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner_name: Option<String>,
}

impl DiffReport {
    /// Builds the report of the first `limit` changes; `unfreed` is of the two recordings.
    ///
    /// Its wrappers are empty.
    #[must_use]
    pub fn new(
        diff: &Diff,
        entries: &[DiffEntry],
        (before, after): (&Sums, &Sums),
        unfreed: [Unfreed; 2],
        limit: usize,
    ) -> Self {
        let changes: Vec<ChangeJson> = entries.iter().take(limit).map(tell_change).collect();
        Self {
            schema: DIFF_SCHEMA,
            cost: diff.cost.name(),
            unfreed_before: unfreed[0].word(),
            unfreed_after: unfreed[1].word(),
            only_alive: false,
            before: before.into(),
            after: after.into(),
            more_changes: entries.len() - changes.len(),
            changes,
            wrappers_before: Vec::new(),
            wrappers: Vec::new(),
        }
    }
}

fn owner_name(owner: &Owner) -> Option<String> {
    Some(owner.name.to_string()).filter(|name| !name.is_empty())
}

fn tell_change(entry: &DiffEntry) -> ChangeJson {
    let frame = |(frame, owner): (&super::DiffFrame, &Owner)| ChangeFrameJson {
        function: frame.function.as_deref().map(str::to_owned),
        file: frame.file.clone(),
        module: frame.module.clone(),
        owner: owner.kind.word(),
        owner_name: owner_name(owner),
    };
    let frames: Vec<ChangeFrameJson> = entry.frames.iter().zip(&entry.owners).map(frame).collect();
    let asker = frames.first().cloned();
    ChangeJson {
        function: asker.as_ref().and_then(|asker| asker.function.clone()),
        file: asker.as_ref().and_then(|asker| asker.file.clone()),
        owner: asker.as_ref().map_or(OwnerKind::Unknown.word(), |asker| asker.owner),
        owner_name: asker.as_ref().and_then(|asker| asker.owner_name.clone()),
        folded_frames: entry.folded_frames,
        module: asker.map_or_else(String::new, |asker| asker.module),
        before: entry.before.value,
        after: entry.after.value,
        growth: i64::try_from(entry.growth()).unwrap_or(if entry.growth() < 0 { i64::MIN } else { i64::MAX }),
        count_before: entry.before.blocks,
        count_after: entry.after.blocks,
        frames,
    }
}
