//! Replays a heap's events into lifetimes by stack, and writes them as DHAT JSON.

use std::collections::HashMap;
use std::io::Write;

use serde::Serialize;

use crate::dispatch::target::HeapEvents;
use crate::error::ExchangeError;
use crate::model::events::{Block, Blocks, replay};
use crate::model::profile::{Line, Profile};

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct File<'a> {
    dhat_file_version: u32,
    mode: &'static str,
    verb: &'static str,
    /// Lifetimes are there.
    bklt: bool,
    /// Accesses are not.
    bkacc: bool,
    tu: &'static str,
    #[serde(rename = "Mtu")]
    mtu: &'static str,
    /// Blocks that live shorter are short-lived.
    tuth: u64,
    cmd: &'a str,
    pid: u32,
    te: u64,
    tg: u64,
    pps: Vec<Point>,
    ftbl: Vec<String>,
}

/// A stack, in DHAT's words a program point.
#[derive(Serialize, Default)]
struct Point {
    tb: u64,
    tbk: u64,
    /// The lifetimes of all its blocks together.
    tl: u64,
    /// The most that it held at once.
    mb: u64,
    mbk: u64,
    gb: u64,
    gbk: u64,
    eb: u64,
    ebk: u64,
    /// Frames, outermost last.
    fs: Vec<usize>,
    #[serde(skip)]
    held: (u64, u64),
}

const NANOS_PER_MICROSECOND: u64 = 1000;

/// Writes the events of the scope.
pub(crate) fn write(
    heap: &HeapEvents<'_>,
    profile: &Profile,
    output: &mut dyn Write,
) -> Result<(), ExchangeError> {
    let column = |name: &str| profile.column(name);
    let (Some(tbk), Some(tb), Some(ebk), Some(eb), Some(gbk), Some(gb)) = (
        column("alloc_objects"),
        column("alloc_space"),
        column("inuse_objects"),
        column("inuse_space"),
        column("peak_objects"),
        column("peak_space"),
    ) else {
        return Err(ExchangeError::CannotHold { format: "DHAT", reason: "it is for heaps alone" });
    };
    // The viewer takes each list of frames once, and knows frames by their text.
    let mut frames =
        Frames { texts: vec!["[root]".to_owned()], known: HashMap::new(), lines: HashMap::new() };
    let mut lives =
        Lives { points: Vec::new(), of_stack: HashMap::new(), stacks: heap.stacks, live: Vec::new() };
    let mut known: HashMap<Vec<usize>, usize> = HashMap::new();
    for sample in &profile.samples {
        let mut list: Vec<usize> = profile
            .lines_of(sample.stack)
            .map(|(line, module)| frames.index(profile, line, module))
            .collect();
        if list.is_empty() {
            list.push(0);
        }
        let index = *known.entry(list).or_insert_with_key(|list| {
            lives.points.push(Point { fs: list.clone(), ..Point::default() });
            lives.points.len() - 1
        });
        lives.of_stack.insert(sample.stack, index);
        let point = &mut lives.points[index];
        let sums = [
            (&mut point.tb, tb),
            (&mut point.tbk, tbk),
            (&mut point.eb, eb),
            (&mut point.ebk, ebk),
            (&mut point.gb, gb),
            (&mut point.gbk, gbk),
        ];
        for (sum, column) in sums {
            *sum = sum.saturating_add(sample.values[column]);
        }
    }
    replay(heap, &mut lives)?;
    let end_nanos = heap.sums.end_nanos;
    lives.finish(end_nanos);
    let file = File {
        dhat_file_version: 2,
        mode: "heap",
        verb: "Allocated",
        bklt: true,
        bkacc: false,
        tu: "µs",
        mtu: "s",
        tuth: 500,
        cmd: &profile.title,
        pid: profile.process,
        te: end_nanos / NANOS_PER_MICROSECOND,
        tg: heap.sums.peak_nanos / NANOS_PER_MICROSECOND,
        pps: lives.points,
        ftbl: frames.texts,
    };
    serde_json::to_writer(output, &file).map_err(|error| ExchangeError::writing(error.into()))
}

/// The table of frames.
struct Frames {
    texts: Vec<String>,
    known: HashMap<String, usize>,
    lines: HashMap<(Line, Option<u32>), usize>,
}

impl Frames {
    fn index(&mut self, profile: &Profile, line: Line, module: Option<u32>) -> usize {
        let Self { texts, known, lines } = self;
        *lines.entry((line, module)).or_insert_with(|| {
            *known.entry(frame_text(profile, line, module)).or_insert_with_key(|text| {
                texts.push(text.clone());
                texts.len() - 1
            })
        })
    }
}

fn frame_text(profile: &Profile, line: Line, module: Option<u32>) -> String {
    let name = profile.function_name(line);
    let file = profile.functions.get(line.function as usize).and_then(|function| function.file.as_deref());
    match (file, module.and_then(|module| profile.modules.get(module as usize))) {
        (Some(file), _) => format!("{name} ({file}:{})", line.line),
        (None, Some(module)) => format!("{name} (in {})", module.path),
        (None, None) => name.to_owned(),
    }
}

/// Follows blocks, for what the sums do not tell: lifetimes, and the most that each stack held.
struct Lives<'a> {
    points: Vec<Point>,
    of_stack: HashMap<Option<u32>, usize>,
    stacks: &'a HashMap<u32, Option<u32>>,
    /// By object: its point, size, and when it was allocated.
    live: Vec<Option<(usize, u64, u64)>>,
}

impl Lives<'_> {
    fn end(&mut self, object: usize, nanos: u64) {
        let Some((point, size_bytes, born_nanos)) = self.live.get_mut(object).and_then(Option::take) else {
            return;
        };
        let point = &mut self.points[point];
        point.held = (point.held.0.saturating_sub(size_bytes), point.held.1.saturating_sub(1));
        let micros = nanos.saturating_sub(born_nanos) / NANOS_PER_MICROSECOND;
        point.tl = point.tl.saturating_add(micros);
    }

    fn finish(&mut self, end_nanos: u64) {
        for object in 0..self.live.len() {
            self.end(object, end_nanos);
        }
    }
}

impl Blocks for Lives<'_> {
    fn allocated(&mut self, block: Block) -> Result<(), ExchangeError> {
        let stack = self.stacks.get(&block.stack).copied().flatten();
        let Some(&index) = self.of_stack.get(&stack) else { return Ok(()) };
        let point = &mut self.points[index];
        point.held = (point.held.0.saturating_add(block.size_bytes), point.held.1 + 1);
        if point.held.0 > point.mb {
            (point.mb, point.mbk) = point.held;
        }
        let object = block.object as usize;
        if self.live.len() <= object {
            self.live.resize(object + 1, None);
        }
        self.live[object] = Some((index, block.size_bytes, block.nanos));
        Ok(())
    }

    fn freed(&mut self, object: u32, nanos: u64) -> Result<(), ExchangeError> {
        self.end(object as usize, nanos);
        Ok(())
    }
}
