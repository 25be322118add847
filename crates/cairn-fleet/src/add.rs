//! Heaps from files as blocks of a store.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;

use cairn_analysis::attribution::Folding;
use cairn_analysis::heap::{Address, HeapRead, Namer, Questions, Scope, Stacks, Sums, shapes};
use cairn_analysis::source::{HeapSource, ReadDetail, SourceNames, SourceOptions, Times};
use cairn_exchange::import::{FORMATS, Imported};
use cairn_format::recording::PcKind;
use cairn_store::block::{Frame, Line, Module, ModuleId, Place, Process, Sample, Shape, ShapeFrame, Stack};
use cairn_store::{Block, Id, file_sender, now_ms};
use cairn_symbols::{SourceFrame, SymbolizerOptions};

use crate::error::FleetError;

/// Frames of one stack that a store holds; the outer ones of deeper stacks are left out.
pub(crate) const MOST_FRAMES: usize = 1024;

/// The beginning of the paths of modules that are files of an interpreter.
pub(crate) const INTERPRETED: &str = "[interpreted] ";
/// The path of the module that all code of JIT compilers is in.
pub(crate) const GENERATED: &str = "[generated]";

/// The labels that files are added with.
#[derive(Clone, Debug, Default)]
pub(crate) struct Labels {
    /// The service; the name of the program where it is not said.
    pub(crate) service: Option<String>,
    /// The version of the service.
    pub(crate) version: Option<String>,
    /// The machine.
    pub(crate) host: Option<String>,
    /// More of them.
    pub(crate) others: BTreeMap<String, String>,
}

impl Labels {
    /// Sorts labels as `service=web` and `region=eu`.
    pub(crate) fn of(texts: &[String]) -> Result<Self, FleetError> {
        let mut labels = Self::default();
        for text in texts {
            let (key, value) = text
                .split_once('=')
                .filter(|(key, value)| !key.is_empty() && !value.is_empty())
                .ok_or_else(|| FleetError::usage(format!("{text}: a label is KEY=VALUE, as region=eu")))?;
            if !key.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_') {
                return Err(FleetError::usage(format!(
                    "{key}: the key of a label is of small letters, digits and underscores, as it is a column"
                )));
            }
            let place = match key {
                "service" => &mut labels.service,
                "version" => &mut labels.version,
                "host" => &mut labels.host,
                _ => {
                    labels.others.insert(key.to_owned(), value.to_owned());
                    continue;
                }
            };
            *place = Some(value.to_owned());
        }
        Ok(labels)
    }
}

/// Returns the hash of a file and of its host. A file is stored once, also when it is given again
/// with other labels; equal files of two hosts are two.
pub(crate) fn content_of(path: &Path, labels: &Labels) -> Result<Id, FleetError> {
    let failed = |error| FleetError::file(path, error);
    let mut file = File::open(path).map_err(failed)?;
    let mut parts: Vec<Vec<u8>> = vec![labels.host.clone().unwrap_or_default().into_bytes()];
    loop {
        let mut part = Vec::new();
        file.by_ref().take(1 << 20).read_to_end(&mut part).map_err(failed)?;
        if part.is_empty() {
            break;
        }
        // The hash of each part: a large file is never in memory.
        parts.push(Id::of_content([part.as_slice()]).bytes().to_vec());
    }
    Ok(Id::of_content(parts.iter().map(Vec::as_slice)))
}

/// Slices of one recording. The recording is read once for each.
const MOST_SLICES: u64 = 1000;

/// Reads a file of any kind that `cairn` opens. A recording is divided into slices of this length.
pub(crate) fn block_of_file(
    path: &Path,
    content: Id,
    labels: &Labels,
    slice_ms: Option<u64>,
) -> Result<Block, FleetError> {
    let mut options = SourceOptions::default();
    options.formats = Some(&FORMATS);
    options.symbols = Some(SymbolizerOptions::default());
    let source = HeapSource::open(path, &options).map_err(FleetError::source)?;
    block_of_source(&source, path, content, labels, slice_ms)
}

/// Makes a block of a heap that came by a network.
pub(crate) fn block_of_heap(heap: Imported, content: Id, labels: &Labels) -> Result<Block, FleetError> {
    let mut options = SourceOptions::default();
    options.symbols = Some(SymbolizerOptions::default());
    let path = Path::new("");
    block_of_source(&HeapSource::of_import(path, Arc::new(heap), &options), path, content, labels, None)
}

fn block_of_source(
    source: &HeapSource,
    path: &Path,
    content: Id,
    labels: &Labels,
    slice_ms: Option<u64>,
) -> Result<Block, FleetError> {
    let symbols = source.symbols();
    let detail = if source.times() == Times::All { ReadDetail::Whole } else { ReadDetail::Stacks };
    let whole = source.read(Scope::default(), detail).map_err(FleetError::source)?;
    let earlier = match slice_ms {
        Some(slice_ms) => earlier_reads(source, path, &whole, slice_ms)?,
        None => Vec::new(),
    };
    Ok(block_of(source, (&whole, &earlier), &symbols, path, content, labels))
}

/// Reads a recording up to the end of each slice but the last, in their order. Files without times
/// have one slice.
fn earlier_reads(
    source: &HeapSource,
    path: &Path,
    whole: &HeapRead,
    slice_ms: u64,
) -> Result<Vec<(u64, HeapRead)>, FleetError> {
    if source.times() != Times::All {
        return Ok(Vec::new());
    }
    let slice_nanos = slice_ms.saturating_mul(1_000_000);
    let count = whole.profile.end_nanos.div_ceil(slice_nanos);
    if count > MOST_SLICES {
        return Err(FleetError::usage(format!(
            "{}: {count} slices of {slice_ms} ms; at most {MOST_SLICES} are possible, so choose longer ones",
            path.display()
        )));
    }
    (1..count)
        .map(|slice| {
            let to_nanos = slice * slice_nanos;
            let scope = Scope { to_nanos, ..Scope::default() };
            let read = source.read(scope, ReadDetail::Stacks).map_err(FleetError::source)?;
            Ok((to_nanos / 1_000_000, read))
        })
        .collect()
}

fn block_of(
    source: &HeapSource,
    (read, earlier): (&HeapRead, &[(u64, HeapRead)]),
    symbols: &SourceNames,
    path: &Path,
    content: Id,
    labels: &Labels,
) -> Block {
    let stacks = source.stacks();
    let profile = &read.profile;
    let used: Vec<u32> =
        (0_u32..).zip(&profile.stacks).filter(|(_, sums)| !sums.is_empty()).map(|(stack, _)| stack).collect();
    let mut places = Places::of(stacks, &used, symbols);
    let mut questions = Questions::new(profile, source.names(symbols, Folding::default()));
    let compared: HashMap<u32, Vec<ShapeFrame>> = shapes(&mut questions, |sums| !sums.is_empty())
        .into_iter()
        .map(|(stack, frames)| (stack, frames.into_iter().map(shape_frame).collect()))
        .collect();

    let about = source.about();
    let started_ms = match about.started_wall_nanos {
        0 => modified_ms(path),
        nanos => i64::try_from(nanos / 1_000_000).unwrap_or(i64::MAX),
    };
    let lasted_ms = i64::try_from(profile.end_nanos.div_ceil(1_000_000)).unwrap_or(i64::MAX).max(1);
    let end_ms = started_ms.saturating_add(lasted_ms);
    let (mut stack_rows, mut shape_rows) = (BTreeMap::new(), BTreeMap::new());
    let lost = (!profile.lost_stack.is_empty()).then_some(None);
    let mut ids: HashMap<Option<u32>, Id> = HashMap::new();
    for stack in used.iter().map(|&stack| Some(stack)).chain(lost) {
        let frames = stack.map(|stack| places.frames_of(stacks, stack)).unwrap_or_default();
        let shape = stack.and_then(|stack| compared.get(&stack)).filter(|frames| !frames.is_empty());
        let shape = shape.map(|frames| {
            let shape = Shape::new(frames.clone());
            shape_rows.entry(shape.id).or_insert(shape).id
        });
        let stack_row = Stack::new(frames, shape);
        ids.insert(stack, stack_rows.entry(stack_row.id()).or_insert(stack_row).id());
    }
    let mut samples: BTreeMap<(i64, Id), Sample> = BTreeMap::new();
    let slice_ends = earlier.iter().map(|(millis, read)| (i64::try_from(*millis).unwrap_or(i64::MAX), read));
    let mut before: Option<(i64, &HeapRead)> = None;
    for (slice_end_ms, read) in slice_ends.chain([(lasted_ms, read)]) {
        let began_ms = before.map_or(0, |(millis, _)| millis);
        for (&stack, &id) in &ids {
            let sums = sums_of(read, stack);
            let sums_before = before.map(|(_, read)| sums_of(read, stack)).unwrap_or_default();
            if sums.live_blocks == 0 && sums == sums_before {
                continue;
            }
            let errors = stack.and_then(|stack| read.profile.stack_errors.get(stack as usize));
            let variance = errors.map(|errors| (errors.live_bytes * errors.live_bytes).min(9e18) as i64);
            // Stacks that differ in what a store does not hold are one.
            let sample = samples.entry((slice_end_ms, id)).or_insert(Sample {
                end_ms: started_ms.saturating_add(slice_end_ms),
                slice_ms: (slice_end_ms - began_ms).max(1),
                stack: id,
                variance: variance.map(|_| 0),
                ..Sample::default()
            });
            add(sample, &sums, &sums_before, variance);
        }
        before = Some((slice_end_ms, read));
    }
    let name = about.command.first().map(|program| last_part(program).to_owned());
    let file_name = || path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let program = stacks.program().and_then(|module| stacks.modules().get(module as usize));
    let mut remarks: Vec<String> =
        source.remarks().iter().filter(|remark| remark.is_loss).map(|remark| remark.text.clone()).collect();
    remarks.extend(read.findings.iter().map(ToString::to_string));
    let process = Process {
        id: content,
        service: labels.service.clone().or(name).unwrap_or_else(file_name),
        version: labels.version.clone().unwrap_or_default(),
        host: labels.host.clone().unwrap_or_default(),
        build_id: program.map(|module| module.build_id.clone()).unwrap_or_default(),
        command: about.command.join(" "),
        labels: labels.others.clone(),
        started_ms,
        ended_ms: (about.end.is_some() && !about.ended_before_program).then_some(end_ms),
        source: source.kind_name().to_owned(),
        clock_offset_ms: 0,
        sample_bytes: sample_bytes(profile.sampling),
        remarks: remarks.join("; "),
    };
    Block {
        sender: file_sender(content),
        number: 1,
        content,
        process,
        samples: samples.into_values().collect(),
        stacks: stack_rows.into_values().collect(),
        shapes: shape_rows.into_values().collect(),
        frames: places.rows(),
        modules: places.modules.into_values().collect(),
    }
}

fn sample_bytes(sampling: cairn_analysis::heap::Sampling) -> Option<i64> {
    match sampling {
        cairn_analysis::heap::Sampling::Poisson { mean_bytes } => i64::try_from(mean_bytes).ok(),
        _ => None,
    }
}

fn modified_ms(path: &Path) -> i64 {
    let modified = path.metadata().and_then(|facts| facts.modified()).ok();
    let since = modified.and_then(|moment| moment.duration_since(std::time::UNIX_EPOCH).ok());
    since.and_then(|since| i64::try_from(since.as_millis()).ok()).unwrap_or_else(now_ms)
}

fn last_part(path: &str) -> &str {
    path.rsplit('/').find(|part| !part.is_empty()).unwrap_or(path)
}

pub(crate) fn shape_frame(frame: cairn_analysis::heap::DiffFrame) -> ShapeFrame {
    ShapeFrame {
        function: frame.function.map(|function| function.to_string()),
        module: frame.module,
        file: frame.file,
    }
}

/// The sums of a stack, or of all blocks whose stack was lost.
fn sums_of(read: &HeapRead, stack: Option<u32>) -> Sums {
    match stack {
        Some(stack) => read.profile.stacks.get(stack as usize).copied().unwrap_or_default(),
        None => read.profile.lost_stack,
    }
}

/// Adds a slice: what it allocated and freed, and what is alive at its end. Peaks are those since
/// the start.
fn add(sample: &mut Sample, sums: &Sums, before: &Sums, variance: Option<i64>) {
    let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    let within = |of: fn(&Sums) -> u64| of(sums).saturating_sub(of(before));
    let pairs = [
        (&mut sample.live_bytes, sums.live_bytes),
        (&mut sample.live_blocks, sums.live_blocks),
        (&mut sample.alloc_bytes, within(|sums| sums.allocated_bytes)),
        (&mut sample.alloc_blocks, within(|sums| sums.allocations)),
        (&mut sample.freed_bytes, within(|sums| sums.allocated_bytes.saturating_sub(sums.live_bytes))),
        (&mut sample.freed_blocks, within(Sums::frees)),
        (&mut sample.temporary, within(|sums| sums.temporary)),
        (&mut sample.peak_bytes, sums.peak_bytes),
        (&mut sample.peak_blocks, sums.peak_blocks),
    ];
    for (sum, value) in pairs {
        *sum = sum.saturating_add(number(value));
    }
    if let (Some(sum), Some(variance)) = (&mut sample.variance, variance) {
        *sum = sum.saturating_add(variance);
    }
}

/// Modules and offsets of the addresses of a heap, and their lines of code.
struct Places {
    modules: BTreeMap<ModuleId, Module>,
    /// By address.
    of_address: HashMap<u32, Place>,
    frames: BTreeMap<Place, Vec<Line>>,
}

impl Places {
    fn of(stacks: &Stacks, used: &[u32], namer: &dyn Namer) -> Self {
        let mut places =
            Self { modules: BTreeMap::new(), of_address: HashMap::new(), frames: BTreeMap::new() };
        let addresses: BTreeSet<u32> = used.iter().flat_map(|&stack| stacks.addresses_of(stack)).collect();
        let (mut numbers, mut asked): (Vec<u32>, Vec<&Address>) = (Vec::new(), Vec::new());
        for number in addresses {
            let Some(address) = stacks.address(number) else { continue };
            let own = stacks.generated_name(number).cloned().or_else(|| stacks.interpreted_frame(address));
            match own {
                Some(frame) => places.add_named(number, address, &frame),
                None => {
                    numbers.push(number);
                    asked.push(address);
                }
            }
        }
        let answers = namer.name(stacks, &asked);
        for ((number, address), frames) in numbers.into_iter().zip(asked).zip(answers) {
            places.add(stacks, number, address, &frames);
        }
        places
    }

    /// Adds code that has a name and no place in a file of machine code.
    fn add_named(&mut self, number: u32, address: &Address, frame: &SourceFrame) {
        let file = frame.file.as_deref().unwrap_or_default();
        let path = match address.kind {
            PcKind::Interpreted => format!("{INTERPRETED}{file}"),
            _ => GENERATED.to_owned(),
        };
        let function = frame.function.as_deref().unwrap_or_default();
        let name = format!("{function}\0{file}\0{}", frame.line.unwrap_or(0));
        let offset = offset_of([name.as_bytes()]);
        self.insert(number, &path, &[], offset, std::slice::from_ref(frame));
    }

    fn add(&mut self, stacks: &Stacks, number: u32, address: &Address, frames: &[SourceFrame]) {
        let module = address
            .module
            .and_then(|(module, offset)| Some((stacks.modules().get(module as usize)?, offset)));
        match module {
            Some((module, offset)) => {
                let offset = i64::try_from(offset).unwrap_or(i64::MAX);
                match address.lookup_offset() {
                    // Names of other tools are the places themselves where they have none.
                    Some(lookup) => {
                        let place = format!("{}+{offset:#x}", module.name());
                        let is_place = |frame: &SourceFrame| frame.function.as_deref() == Some(&*place);
                        let frames = if frames.iter().all(is_place) { &[] } else { frames };
                        let lookup = i64::try_from(lookup).unwrap_or(i64::MAX);
                        self.insert(number, &module.path, &module.build_id, lookup, frames);
                    }
                    // The stack ends here, which is no place in the code that has a name.
                    None => self.insert(number, &module.path, &module.build_id, !offset, &[]),
                }
            }
            None if !frames.is_empty() => {
                let names = frames.iter().map(|frame| frame.function.as_deref().unwrap_or_default());
                let offset = offset_of(names.map(str::as_bytes));
                self.insert(number, GENERATED, &[], offset, frames);
            }
            // Where the stack ends for this reason.
            None => self.insert(number, "", &[], -1 - i64::from(address.kind.number()), frames),
        }
    }

    fn insert(&mut self, number: u32, path: &str, build_id: &[u8], offset: i64, frames: &[SourceFrame]) {
        let id = ModuleId::of(build_id, path);
        let lines: Vec<Line> = frames.iter().filter_map(line_of).collect();
        let module = self.modules.entry(id.clone()).or_insert_with(|| Module {
            id: id.clone(),
            path: path.to_owned(),
            has_build_id: !build_id.is_empty(),
            has_names: false,
        });
        module.has_names |= !lines.is_empty();
        self.of_address.insert(number, (id.clone(), offset));
        let known = self.frames.entry((id, offset)).or_default();
        if known.is_empty() {
            *known = lines;
        }
    }

    fn frames_of(&self, stacks: &Stacks, stack: u32) -> Vec<Place> {
        let place = |address: u32| self.of_address.get(&address).cloned();
        stacks.addresses_of(stack).filter_map(place).take(MOST_FRAMES).collect()
    }

    fn rows(&mut self) -> Vec<Frame> {
        std::mem::take(&mut self.frames).into_iter().map(|(place, lines)| Frame { place, lines }).collect()
    }
}

/// The offset of code that has names and no place: a number made of these.
fn offset_of<'a>(names: impl IntoIterator<Item = &'a [u8]>) -> i64 {
    Id::of_content(names).bytes().iter().take(7).fold(0, |sum, &byte| sum << 8 | i64::from(byte))
}

/// A line of code, unless nothing is known of it.
pub(crate) fn line_of(frame: &SourceFrame) -> Option<Line> {
    let function = frame.function.as_deref().filter(|function| !function.is_empty());
    (function.is_some() || frame.file.is_some()).then(|| Line {
        function: function.map(str::to_owned),
        file: frame.file.as_deref().map(str::to_owned),
        line: frame.line.map(i64::from),
        is_inlined: frame.inlined,
    })
}
