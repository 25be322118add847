//! The exported data: a heap with stacks of any shape, and names that are difficult in every
//! format.

use std::collections::BTreeMap;

use cairn_analysis::heap::{
    Address, Aggregator, Folding, HeapRecording, Namer, Names, Questions, Sampling, Scope, Stacks,
};
use cairn_exchange::import::Imported;
use cairn_exchange::target::{Choice, EventSource, HeapEvents, LiveBlock, MOST_BLOCKS, Rows};
use cairn_exchange::{ExchangeError, Profile, Subject, Target, Written, write};
use cairn_format::recording::{Lane, PcKind};
use cairn_recording::Recording;
use cairn_symbols::SourceFrame;

use crate::spool::{Program, START};

/// The functions at each address, innermost first.
pub(crate) const FRAMES: &[&[&str]] = &[
    &["main"],
    &["load"],
    &["inlined", "between", "outer"],
    &[],
    &["a;b"],
    &["core::array::<impl [T; 4]>::map"],
    &["new\nline\r\n"],
    &["\"quoted\", 'and' \\ more"],
    &["nul\0inside"],
    &["</script><script>alert(1)</script>"],
    &["ünï\u{202e}code"],
    &["operator new(unsigned long)"],
    &["=SUM(A1)"],
    &["load"],
];

const BASE: u64 = 0x5555_0000_0000;

/// Resolves names from the table above.
pub(crate) struct Table;

impl Namer for Table {
    fn name(&self, _stacks: &Stacks, addresses: &[&Address]) -> Vec<Vec<SourceFrame>> {
        let name = |address: &&Address| {
            let index = (address.absolute.wrapping_sub(BASE) / 16) as usize;
            let names = FRAMES.get(index).copied().unwrap_or_default();
            names.iter().enumerate().map(|(place, name)| frame(name, index + place)).collect()
        };
        addresses.iter().map(name).collect()
    }
}

fn frame(name: &str, place: usize) -> SourceFrame {
    let mut frame = SourceFrame::default();
    frame.function = Some(name.into());
    // Some have no line.
    if !place.is_multiple_of(3) {
        frame.file = Some(format!("src/{place} \"x\".c").into());
        frame.line = Some(10 * place as u32);
    }
    frame
}

/// Builds a program with these stacks, each given by its caller (an earlier index) and address.
///
/// Returns their numbers, after those of the empty and the lost stack.
pub(crate) fn program(shape: &[(usize, usize)]) -> (Program, Vec<u32>) {
    let mut program = Program::new(2, 1);
    let spool = &mut program.spool;
    spool.module(1, BASE, BASE + 0x10_0000, "/opt/a \"program\"");
    for index in 0..FRAMES.len() as u32 {
        let address = BASE + u64::from(index) * 16;
        spool.write(1, Lane::Outer, START, |sink| {
            sink.pc(index + 1, PcKind::ProgramCounter, address, u32::from(index != 4))
        });
    }
    // The empty stack, and the lost one.
    let mut stacks = vec![0, u32::MAX];
    let mut next_word = 1;
    for &(caller, address) in shape {
        // A lost stack has no callees.
        let caller = stacks[caller % stacks.len()];
        let caller = if caller == u32::MAX { 0 } else { caller };
        stacks.push(spool.segment(1, next_word, caller, &[1 + (address % FRAMES.len()) as u32]));
        next_word += 2;
    }
    (program, stacks)
}

/// Records events: an allocation of a size at a stack, or, with size 0, a free.
pub(crate) fn recorded(shape: &[(usize, usize)], events: &[(usize, u64, u32)]) -> HeapRecording {
    let (mut program, stacks) = program(shape);
    for &(which, size_bytes, thread) in events {
        program.counter += 3_000_000;
        if size_bytes > 0 {
            program.alloc(1 + thread % 2, size_bytes, stacks[which % stacks.len()]);
        } else if !program.live.is_empty() {
            let block = which % program.live.len();
            program.free(1 + thread % 2, block);
        }
    }
    opened(program)
}

pub(crate) fn opened(program: Program) -> HeapRecording {
    HeapRecording::new(Recording::from_bytes(program.finish()).expect("a spool as recorders write it"))
}

/// Exports the whole heap, without folding.
pub(crate) fn with_subject<R>(heap: &HeapRecording, take: impl FnOnce(&Subject<'_>) -> R) -> R {
    let scope = Scope::default();
    let answer = heap.read(scope.clone()).expect("it lies in memory");
    let folding = Folding::none();
    let mut questions = Questions::new(&answer.profile, Names::new(heap.stacks(), &Table, folding));
    let (mut profile, stacks) = Profile::of_heap(&mut questions);
    profile.title = "program --flag".into();
    let threads = heap.threads();
    let events = HeapEvents {
        source: EventSource::Recording(heap),
        scope: &scope,
        sums: &answer.profile,
        threads,
        stacks: &stacks,
    };
    take(&Subject { profile: &profile, heap: Some(&events), marks: &[] })
}

pub(crate) fn profile_of(heap: &HeapRecording) -> Profile {
    with_subject(heap, |subject| subject.profile.clone())
}

pub(crate) fn try_export(target: Target, heap: &HeapRecording) -> Result<(Vec<u8>, Written), ExchangeError> {
    with_subject(heap, |subject| {
        let mut bytes = Vec::new();
        let choice = Choice {
            column: subject.profile.main_column,
            rows: Rows::Stacks,
            most_blocks: MOST_BLOCKS,
            compression: None,
        };
        let written = write(target, subject, choice, &mut bytes)?;
        Ok((bytes, written))
    })
}

pub(crate) fn export(target: Target, heap: &HeapRecording) -> Vec<u8> {
    try_export(target, heap).expect("a vector takes everything").0
}

/// A frame as exported: function, file, line.
pub(crate) type ExportedFrame = (String, Option<String>, u32);

/// Returns the sums by stack, outermost frame first.
pub(crate) fn by_stack(
    profile: &Profile,
    name: impl Fn(&str) -> String,
) -> BTreeMap<Vec<ExportedFrame>, Vec<u64>> {
    let mut exported = BTreeMap::new();
    for sample in &profile.samples {
        let mut stack: Vec<ExportedFrame> = profile
            .lines_of(sample.stack)
            .map(|(line, _)| {
                let function = &profile.functions[line.function as usize];
                (name(&function.name), function.file.as_deref().map(&name), line.line)
            })
            .collect();
        stack.reverse();
        let sums = exported.entry(stack).or_insert_with(|| vec![0; sample.values.len()]);
        for (sum, value) in sums.iter_mut().zip(&sample.values) {
            *sum += value;
        }
    }
    exported
}

/// Builds a deep recursion that allocates halfway and at its end.
pub(crate) fn deep(frames: u32) -> HeapRecording {
    let (mut program, _) = program(&[]);
    let (mut parent, mut next_word) = (0, 1);
    for segment in 1..=frames / 1000 {
        let pcs: Vec<u32> = (0..1000).map(|place| 1 + place % 3).collect();
        parent = program.spool.segment(1, next_word, parent, &pcs);
        next_word += 1001;
        // Not at every level: formats without trees write each stack in full.
        if segment % (frames / 2000) == 0 {
            program.counter += 3_000_000;
            program.alloc(1, 100, parent);
        }
    }
    opened(program)
}

/// Converts a file of another tool to a format.
pub(crate) fn converted(file: &Imported, target: Target) -> Result<Vec<u8>, ExchangeError> {
    let scope = Scope::default();
    let answer = file.read(&scope)?;
    let folding = Folding::none();
    let mut questions = Questions::new(&answer.sums, Names::new(file.stacks(), file, folding));
    let (profile, stacks) = Profile::of_heap(&mut questions);
    let events = HeapEvents {
        source: EventSource::Imported(file),
        scope: &scope,
        sums: &answer.sums,
        threads: Vec::new(),
        stacks: &stacks,
    };
    let subject = Subject { profile: &profile, heap: Some(&events), marks: &[] };
    let mut bytes = Vec::new();
    write(
        target,
        &subject,
        Choice {
            column: profile.main_column,
            rows: Rows::Stacks,
            most_blocks: MOST_BLOCKS,
            compression: None,
        },
        &mut bytes,
    )?;
    Ok(bytes)
}

/// Exports image blocks with the recording's stacks; also returns their sums.
pub(crate) fn written_image(
    heap: &HeapRecording,
    blocks: &[LiveBlock],
    target: Target,
) -> (Vec<u8>, Profile) {
    let mut sums = Aggregator::new(heap.stacks().len(), 1, Scope::default(), Sampling::All);
    for (block, object) in blocks.iter().zip(0..) {
        sums.allocated(object, block.stack, 0, block.size_bytes, 0);
    }
    let (sums, scope) = (sums.finish(0), Scope::default());
    let folding = Folding::none();
    let mut questions = Questions::new(&sums, Names::new(heap.stacks(), &Table, folding));
    let (profile, stacks) = Profile::of_heap(&mut questions);
    let source = EventSource::Live(blocks);
    let events = HeapEvents { source, scope: &scope, sums: &sums, threads: Vec::new(), stacks: &stacks };
    let subject = Subject { profile: &profile, heap: Some(&events), marks: &[] };
    let mut bytes = Vec::new();
    let choice = Choice {
        column: profile.main_column,
        rows: Rows::Stacks,
        most_blocks: MOST_BLOCKS,
        compression: None,
    };
    let written = write(target, &subject, choice, &mut bytes).expect("a vector takes everything");
    assert!(written.losses.iter().any(|loss| loss.contains("at time 0")), "{:?}", written.losses);
    (bytes, profile)
}
