//! The content of a page as bytes: a JSON object with texts and single numbers, and behind it
//! columns of numbers.
//!
//! ```text
//! | length of the JSON object: u32, little endian | the JSON object | columns |
//! | columns of slices |
//! ```
//!
//! The second part is the larger one, and is needed once a range of time is chosen: it has a place
//! of its own in the file, so that the first picture does not wait for it. The object's `columns`
//! gives the part of each column, its start, and its count of numbers.
//! `docs/book/reference/page.md` describes the fields. Numbers of calls in JSON would take a
//! browser longer to read than to draw.

use std::collections::{BTreeMap, HashMap};

use cairn_analysis::attribution::Owner;
use cairn_analysis::heap::slices::SliceEntry;
use cairn_analysis::heap::{
    HeapMark, HeapRead, LIFETIME_CLASSES, Names, SIZE_CLASSES, Sampling, Sums, Unfreed, lifetime_class_range,
    size_class_range,
};
use cairn_format::Hexadecimal;
use cairn_recording::EndReason;
use cairn_symbols::shorten::shorten;
use serde::Serialize;

use crate::columns::{MOST, put, put_signed};
use crate::frames::{Callee, Frames, Node};
use crate::shown::shown;
use crate::slices::PageSlices;
use crate::subject::{PageModule, PageSubject, PageThread, Times};
use crate::{PageError, PageOptions};

/// Name and version of the content of a page.
pub const PAGE_SCHEMA: &str = "cairn.page/1";

/// Modules in a page; real programs load some hundred.
const MOST_MODULES: usize = 4000;
/// Threads in a page by name.
const MOST_THREADS: usize = 4000;
/// Findings in a page.
const MOST_FINDINGS: usize = 200;
/// Words of the command line.
const MOST_WORDS: usize = 100;

#[derive(Serialize)]
struct Content {
    schema: &'static str,
    recording: Recorded,
    totals: Totals,
    left_out: LeftOut,
    strings: Vec<String>,
    slices: SlicesJson,
    bin_nanos: u64,
    modules: Vec<ModuleJson>,
    owners: Vec<OwnerJson>,
    threads: Vec<ThreadJson>,
    sizes: Vec<(u64, u64)>,
    lifetimes: Vec<(u64, u64)>,
    marks: Vec<MarkJson>,
    findings: Vec<String>,
    columns: BTreeMap<&'static str, ColumnPlace>,
}

#[derive(Serialize)]
struct Recorded {
    command: Vec<String>,
    process: u32,
    started_wall_nanos: String,
    duration_nanos: u64,
    times: &'static str,
    end: Option<&'static str>,
    /// `leaked` or `alive`.
    unfreed: &'static str,
    /// The same in words.
    unfreed_note: &'static str,
    behind_nanos: Option<u64>,
    sample_bytes: Option<u64>,
    filters: Vec<String>,
    from_nanos: u64,
    to_nanos: Option<u64>,
    peak_resident_bytes: Option<u64>,
    most_resident_bytes: Option<u64>,
    cairn_resident_bytes: Option<u64>,
    page_faults: Option<u64>,
    unmatched_frees: u64,
    cairn: &'static str,
}

#[derive(Serialize)]
struct Totals {
    allocations: u64,
    allocated_bytes: u64,
    frees: u64,
    leaked_bytes: u64,
    leaked_blocks: u64,
    peak_bytes: u64,
    peak_blocks: u64,
    peak_nanos: u64,
    peak_bytes_of_all: u64,
    temporary: u64,
}

#[derive(Serialize)]
struct LeftOut {
    least_share: f64,
    stacks: usize,
    stacks_put_together: usize,
    stacks_too_deep: usize,
    marks: u64,
    modules: usize,
    threads: usize,
    findings: usize,
}

#[derive(Serialize)]
struct SlicesJson {
    count: usize,
    nanos: u64,
    rows: usize,
}

#[derive(Serialize)]
struct ModuleJson {
    path: String,
    build_id: String,
    size_bytes: u64,
    loaded_nanos: u64,
    unloaded_nanos: Option<u64>,
}

/// The owner of calls.
#[derive(Serialize)]
pub(crate) struct OwnerJson {
    /// `mine`, `library`, `standard-library` … or `none`.
    kind: &'static str,
    name: String,
    /// Both in words.
    text: String,
}

#[derive(Serialize)]
struct ThreadJson {
    kernel_thread: u32,
    name: String,
    began_nanos: u64,
    ended_nanos: Option<u64>,
}

#[derive(Serialize)]
struct MarkJson {
    nanos: u64,
    thread: u32,
    text: String,
}

#[derive(Serialize)]
pub(crate) struct ColumnPlace {
    /// 0 for those behind the object, 1 for those in the part that comes later.
    part: usize,
    at: usize,
    count: usize,
}

/// The bytes of a page: what it needs for its first picture, and the columns of slices.
pub(crate) struct Packed {
    pub(crate) first: Vec<u8>,
    pub(crate) slices: Vec<u8>,
}

/// The columns, and where each one is.
#[derive(Default)]
pub(crate) struct Columns {
    part: usize,
    pub(crate) bytes: Vec<u8>,
    pub(crate) places: BTreeMap<&'static str, ColumnPlace>,
}

impl Columns {
    pub(crate) fn add(&mut self, name: &'static str, values: impl IntoIterator<Item = u64>) {
        let at = self.bytes.len();
        let mut count = 0;
        for value in values {
            put(&mut self.bytes, value);
            count += 1;
        }
        self.places.insert(name, ColumnPlace { part: self.part, at, count });
    }

    fn add_signed(&mut self, name: &'static str, values: impl IntoIterator<Item = i64>) {
        let at = self.bytes.len();
        let mut count = 0;
        for value in values {
            put_signed(&mut self.bytes, value);
            count += 1;
        }
        self.places.insert(name, ColumnPlace { part: self.part, at, count });
    }
}

/// The texts of a page, each once.
#[derive(Default)]
pub(crate) struct Strings {
    pub(crate) texts: Vec<String>,
    numbers: HashMap<String, u64>,
}

impl Strings {
    pub(crate) fn number(&mut self, text: &str) -> u64 {
        if let Some(&number) = self.numbers.get(text) {
            return number;
        }
        let number = self.texts.len() as u64;
        self.texts.push(shown(text).into_owned());
        self.numbers.insert(text.to_owned(), number);
        number
    }
}

/// Everything that the page shows.
pub(crate) fn pack(
    subject: &PageSubject,
    read: &HeapRead,
    names: &Names<'_>,
    frames: &Frames,
    slices: &PageSlices,
    options: &PageOptions,
) -> Result<Packed, PageError> {
    let mut strings = Strings::default();
    let mut columns = Columns::default();
    add_calls(&mut columns, &mut strings, names, frames);
    let owners = add_owners(&mut columns, names, frames);
    add_time(&mut columns, read);
    let sums = [("size", &read.profile.sizes), ("thread", &read.profile.threads)];
    for (kind, sums) in sums {
        add_sums(&mut columns, kind, sums.iter());
    }
    columns.add("lifetime_blocks", read.profile.lifetimes.iter().map(|lifetime| lifetime.blocks));
    columns.add("lifetime_bytes", read.profile.lifetimes.iter().map(|lifetime| lifetime.bytes));

    let first_part = std::mem::take(&mut columns.bytes);
    columns.part = 1;
    add_slices(&mut columns, slices, read.profile.sampling);

    // Instead of sums that cannot be used, the events answered.
    let of_events = read.findings.iter().filter(|finding| finding.is_damage()).map(ToString::to_string);
    let findings: Vec<String> = subject.findings.iter().cloned().chain(of_events).collect();
    let content = Content {
        schema: PAGE_SCHEMA,
        recording: recorded(subject, read, options),
        totals: totals(read),
        left_out: LeftOut {
            least_share: frames.least_share,
            stacks: frames.stacks,
            stacks_put_together: frames.stacks_put_together,
            stacks_too_deep: frames.stacks_too_deep,
            marks: read.more_marks,
            modules: subject.modules.len().saturating_sub(MOST_MODULES),
            threads: subject.threads.len().saturating_sub(MOST_THREADS),
            findings: findings.len().saturating_sub(MOST_FINDINGS),
        },
        slices: SlicesJson { count: slices.count, nanos: slices.slice_nanos, rows: slices.calls },
        bin_nanos: read.profile.timeline.bin_nanos,
        modules: subject.modules.iter().take(MOST_MODULES).map(module).collect(),
        owners,
        threads: subject.threads.iter().take(MOST_THREADS).map(thread).collect(),
        sizes: (0..SIZE_CLASSES).map(|class| exact(size_class_range(class))).collect(),
        lifetimes: (0..LIFETIME_CLASSES).map(|class| exact(lifetime_class_range(class))).collect(),
        marks: read.marks.iter().map(mark).collect(),
        findings: findings.iter().take(MOST_FINDINGS).map(|finding| shown(finding).into_owned()).collect(),
        strings: strings.texts,
        columns: columns.places,
    };
    Ok(Packed { first: with_json(&content, &first_part)?, slices: columns.bytes })
}

/// The length of the JSON object, the object, and the columns behind it.
pub(crate) fn with_json(object: &impl Serialize, columns: &[u8]) -> Result<Vec<u8>, std::io::Error> {
    let json = serde_json::to_vec(object).map_err(std::io::Error::other)?;
    let length = u32::try_from(json.len())
        .map_err(|_| std::io::Error::other("the texts of the recording take more than 4 GiB"))?;
    let mut bytes = length.to_le_bytes().to_vec();
    bytes.extend(json);
    bytes.extend(columns);
    Ok(bytes)
}

/// As far as a browser counts exactly.
fn exact((from, to): (u64, u64)) -> (u64, u64) {
    (from.min(MOST), to.min(MOST))
}

fn add_calls(columns: &mut Columns, strings: &mut Strings, names: &Names<'_>, frames: &Frames) {
    // Functions are numbered as the calls name them; 0 to 2 are no functions.
    const NO_FUNCTIONS: [(&str, u64); 3] = [
        ("everything", 2),
        ("[smaller calls, put together]", 2),
        ("[calls left out: the stack is too deep]", 2),
    ];
    let mut functions: Vec<(u64, u64, u64)> =
        NO_FUNCTIONS.iter().map(|&(name, kind)| (strings.number(name), 0, kind)).collect();
    let mut numbers = HashMap::new();
    let mut number = |node: &Node, strings: &mut Strings| match node.callee {
        Callee::Root => 0,
        Callee::PutTogether => 1,
        Callee::TooDeep => 2,
        Callee::Function(id) => *numbers.entry(id).or_insert_with(|| {
            let function = names.function(id);
            let path = function.module.and_then(|module| names.stacks().modules().get(module as usize));
            let module = path.map_or(0, |module| strings.number(&module.path) + 1);
            functions.push((strings.number(&function.name), module, u64::from(!function.is_named)));
            functions.len() as u64 - 1
        }),
    };
    let of_nodes: Vec<u64> = frames.nodes.iter().map(|node| number(node, strings)).collect();
    columns.add("call_function", of_nodes);
    columns.add("call_depth", frames.nodes.iter().map(|node| u64::from(node.depth)));
    let lines = frames.nodes.iter().map(|node| node.line.map(|line| names.source_line(line)));
    let files: Vec<u64> = lines
        .clone()
        .map(|line| line.and_then(|line| line.file.as_deref()).map_or(0, |file| strings.number(file) + 1))
        .collect();
    columns.add("call_file", files);
    columns.add("call_line", lines.map(|line| u64::from(line.and_then(|line| line.line).unwrap_or(0))));
    add_sums(columns, "call", frames.nodes.iter().map(|node| &node.own));
    columns.add("function_name", functions.iter().map(|&(name, _, _)| name));
    let short: Vec<u64> = functions
        .iter()
        .map(|&(name, _, _)| {
            let short = shorten(&strings.texts[name as usize]).into_owned();
            strings.number(&short)
        })
        .collect();
    columns.add("function_short_name", short);
    columns.add("function_module", functions.iter().map(|&(_, module, _)| module));
    columns.add("function_kind", functions.iter().map(|&(_, _, kind)| kind));
}

/// Adds whose each call is, whether it is folded, and the call that names its row. Returns the
/// owners; the first one is that of what is no function.
fn add_owners(columns: &mut Columns, names: &Names<'_>, frames: &Frames) -> Vec<OwnerJson> {
    let mut owners = OwnerList::default();
    let mut number = |node: &Node| node.line.map_or(0, |line| owners.number(names.owner(line)));
    let of_nodes: Vec<u64> = frames.nodes.iter().map(&mut number).collect();
    columns.add("call_owner", of_nodes);
    columns.add("call_is_folded", frames.nodes.iter().map(|node| u64::from(node.is_folded)));
    columns.add("call_levels_to_row", frames.nodes.iter().map(|node| u64::from(node.levels_to_row)));
    owners.list
}

/// Numbers owners; the first one is that of what is no function.
pub(crate) struct OwnerList {
    pub(crate) list: Vec<OwnerJson>,
    numbers: HashMap<Owner, u64>,
}

impl Default for OwnerList {
    fn default() -> Self {
        let none = OwnerJson { kind: "none", name: String::new(), text: "no function".to_owned() };
        Self { list: vec![none], numbers: HashMap::new() }
    }
}

impl OwnerList {
    pub(crate) fn number(&mut self, owner: Owner) -> u64 {
        let Self { list, numbers } = self;
        *numbers.entry(owner).or_insert_with_key(|owner| {
            list.push(OwnerJson {
                kind: owner.kind.word(),
                name: shown(&owner.name).into_owned(),
                text: shown(&owner.to_string()).into_owned(),
            });
            list.len() as u64 - 1
        })
    }
}

/// A column for each sum.
fn add_sums<'a>(columns: &mut Columns, kind: &'static str, sums: impl Iterator<Item = &'a Sums> + Clone) {
    let names: [&'static str; 7] = match kind {
        "call" => [
            "call_peak_bytes",
            "call_peak_blocks",
            "call_leaked_bytes",
            "call_leaked_blocks",
            "call_allocated_bytes",
            "call_allocations",
            "call_temporary",
        ],
        "size" => [
            "size_peak_bytes",
            "size_peak_blocks",
            "size_leaked_bytes",
            "size_leaked_blocks",
            "size_allocated_bytes",
            "size_allocations",
            "size_temporary",
        ],
        _ => [
            "thread_peak_bytes",
            "thread_peak_blocks",
            "thread_leaked_bytes",
            "thread_leaked_blocks",
            "thread_allocated_bytes",
            "thread_allocations",
            "thread_temporary",
        ],
    };
    let fields: [fn(&Sums) -> u64; 7] = [
        |sums| sums.peak_bytes,
        |sums| sums.peak_blocks,
        |sums| sums.live_bytes,
        |sums| sums.live_blocks,
        |sums| sums.allocated_bytes,
        |sums| sums.allocations,
        |sums| sums.temporary,
    ];
    for (name, field) in names.into_iter().zip(fields) {
        columns.add(name, sums.clone().map(field));
    }
}

fn add_slices(columns: &mut Columns, slices: &PageSlices, sampling: Sampling) {
    let entries = &slices.entries;
    let mut row = 0;
    columns.add(
        "slice_row_step",
        entries.iter().map(|entry| u64::from(entry.row - std::mem::replace(&mut row, entry.row))),
    );
    columns.add("slice", entries.iter().map(|entry| u64::from(entry.slice)));
    columns.add("slice_allocated_bytes", entries.iter().map(|entry| entry.allocated_bytes));
    columns.add("slice_allocations", entries.iter().map(|entry| sampling.blocks(entry.allocations)));
    // Less than what was allocated for the most part: the difference is a small number where all
    // was freed again.
    columns.add_signed("slice_grown_bytes", entries.iter().map(|entry: &SliceEntry| entry.grown_bytes));
    columns.add("slice_leaked_bytes", entries.iter().map(|entry| entry.leaked_bytes));
    columns.add("slice_temporary", entries.iter().map(|entry| entry.temporary));
}

fn add_time(columns: &mut Columns, read: &HeapRead) {
    let bins = &read.profile.timeline.bins;
    columns.add("bin_most_bytes", bins.iter().map(|bin| bin.most_bytes));
    columns.add("bin_last_bytes", bins.iter().map(|bin| bin.last_bytes));
    columns.add("bin_allocations", bins.iter().map(|bin| bin.allocations));
    columns.add("resident_nanos", read.usage.iter().map(|sample| sample.nanos));
    columns.add("resident_bytes", read.usage.iter().map(|sample| sample.resident_bytes));
}

fn recorded(subject: &PageSubject, read: &HeapRead, options: &PageOptions) -> Recorded {
    let unfreed = if options.scope.to_nanos == u64::MAX { subject.unfreed } else { Unfreed::Alive };
    Recorded {
        unfreed: unfreed.word(),
        unfreed_note: unfreed.heading(),
        behind_nanos: subject.behind_nanos.map(|nanos| nanos.min(MOST)),
        command: subject.command.iter().take(MOST_WORDS).map(|word| shown(word).into_owned()).collect(),
        process: subject.process,
        // As text: it is larger than what a browser counts exactly.
        started_wall_nanos: subject.started_wall_nanos.to_string(),
        duration_nanos: read.profile.end_nanos.min(MOST),
        times: match subject.times {
            Times::All => "all",
            Times::Allocations => "allocations",
            Times::None => "none",
        },
        end: subject.end.map(|reason| match reason {
            EndReason::Stopped => "recording was stopped",
            EndReason::Exit => "the program exited",
            EndReason::Exec => "the program was replaced by another one (exec)",
            EndReason::Gone => "the process ended by _exit or a signal",
            _ => "for a reason that this cairn does not know",
        }),
        sample_bytes: match read.profile.sampling {
            Sampling::Poisson { mean_bytes } => Some(mean_bytes.min(MOST)),
            _ => None,
        },
        filters: options.filters.iter().map(|filter| shown(filter).into_owned()).collect(),
        from_nanos: options.scope.from_nanos.min(MOST),
        to_nanos: Some(options.scope.to_nanos).filter(|&to| to != u64::MAX).map(|to| to.min(MOST)),
        peak_resident_bytes: subject.peak_resident_bytes.map(|bytes| bytes.min(MOST)),
        most_resident_bytes: read.most_resident_bytes.map(|bytes| bytes.min(MOST)),
        cairn_resident_bytes: read.own_resident_bytes().map(|bytes| bytes.min(MOST)),
        page_faults: read.page_faults.map(|faults| faults.min(MOST)),
        unmatched_frees: read.unmatched_frees.min(MOST),
        cairn: env!("CARGO_PKG_VERSION"),
    }
}

fn totals(read: &HeapRead) -> Totals {
    let (profile, sums) = (&read.profile, &read.profile.totals);
    Totals {
        allocations: sums.allocations.min(MOST),
        allocated_bytes: sums.allocated_bytes.min(MOST),
        frees: sums.frees().min(MOST),
        leaked_bytes: sums.live_bytes.min(MOST),
        leaked_blocks: sums.live_blocks.min(MOST),
        peak_bytes: sums.peak_bytes.min(MOST),
        peak_blocks: sums.peak_blocks.min(MOST),
        peak_nanos: profile.peak_nanos.min(MOST),
        peak_bytes_of_all: profile.peak_bytes_of_all.min(MOST),
        temporary: sums.temporary.min(MOST),
    }
}

fn module(module: &PageModule) -> ModuleJson {
    ModuleJson {
        path: shown(&module.path).into_owned(),
        build_id: Hexadecimal(module.build_id.get(..32).unwrap_or(&module.build_id)).to_string(),
        size_bytes: module.size_bytes.min(MOST),
        loaded_nanos: module.loaded_nanos.min(MOST),
        unloaded_nanos: module.unloaded_nanos.map(|nanos| nanos.min(MOST)),
    }
}

fn thread(thread: &PageThread) -> ThreadJson {
    ThreadJson {
        kernel_thread: thread.kernel_thread,
        name: shown(&thread.name).into_owned(),
        began_nanos: thread.began_nanos.min(MOST),
        ended_nanos: thread.ended_nanos.map(|nanos| nanos.min(MOST)),
    }
}

fn mark(mark: &HeapMark) -> MarkJson {
    MarkJson { nanos: mark.nanos.min(MOST), thread: mark.thread, text: shown(&mark.text).into_owned() }
}
