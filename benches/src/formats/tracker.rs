//! call-stack-tracker recordings: one per program, its modules and then its stacks.

use cairn_format::{AbsoluteAddress, Sink, SliceSink};
use cairn_wire::tracker::{
    Change, Event, MAX_STACK_ADDRESSES, ModuleSlot, Reader, Timeline, TrackerLayout, Writer,
};

use super::{CAIRN, Inputs, REAL, fold, used};
use crate::corpus::{Program, Stacks};
use crate::measure::{Case, Unit};
use crate::records::Records;

const LAYOUT: TrackerLayout = TrackerLayout::WINDOWS_64;

/// Room for the recording of one program.
const RECORDING_BYTES: usize = 1 << 20;

/// Slots for the modules of one program.
const MODULES: usize = 256;

struct Source<'a> {
    program: &'a Program,
    stacks: Stacks,
}

pub(crate) fn add<'a>(inputs: &'a Inputs, cases: &mut Vec<Case<'a>>) {
    let source =
        |program: &'a Program| Source { program, stacks: program.stacks.innermost(MAX_STACK_ADDRESSES) };
    let sources: Vec<Source<'_>> = inputs.programs.iter().map(source).collect();
    let recordings = || {
        let mut recordings = Records::default();
        sources.iter().for_each(|source| recordings.push(|sink| write(source, sink)));
        recordings
    };
    let (read, resolved) = (recordings(), recordings());
    let units = sources.iter().map(|source| source.stacks.frames()).sum();
    let bytes = read.bytes();
    check(&sources, &read);
    let case = |operation, pass| Case {
        operation,
        implementation: CAIRN,
        input: REAL,
        unit: Unit::Frame,
        units,
        bytes,
        pass,
    };
    cases.push(case("tracker write", Box::new(move || write_all(&sources))));
    cases.push(case("tracker read", Box::new(move || read_all(&read))));
    cases.push(case("tracker resolve", Box::new(move || resolve_all(&resolved))));
}

fn write(source: &Source<'_>, sink: impl Sink) {
    let mut writer = Writer::new(sink, LAYOUT);
    for module in &source.program.modules {
        let size_bytes = u32::try_from(module.end_of_text() - module.base).expect("a module below 4 GiB");
        let base = AbsoluteAddress::new(module.base);
        writer.module_loaded(0, module.name.as_str(), base, size_bytes).expect("room for a module");
    }
    for stack in source.stacks.iter() {
        writer.stack(0, stack.addresses.iter().copied()).expect("room for a stack");
    }
}

fn check(sources: &[Source<'_>], recordings: &Records) {
    for (source, recording) in sources.iter().zip(recordings.iter()) {
        let mut stacks = source.stacks.iter();
        for record in Reader::new(recording, LAYOUT) {
            if let Event::Stack(addresses) = record.expect("a recording of the writer").event {
                let expected = stacks.next().expect("no more stacks").addresses;
                assert!(addresses.eq(expected.iter().copied()), "tracker recordings do not round-trip");
            }
        }
        assert!(stacks.next().is_none(), "a tracker recording lost a stack");
    }
}

fn write_all(sources: &[Source<'_>]) -> u64 {
    let mut buffer = vec![0; RECORDING_BYTES];
    let mut written = 0;
    for source in sources {
        let mut sink = SliceSink::new(&mut buffer);
        write(source, &mut sink);
        written += used(sink.written());
    }
    written
}

fn read_all(recordings: &Records) -> u64 {
    let mut checksum = 0;
    for recording in recordings.iter() {
        for record in Reader::new(recording, LAYOUT) {
            if let Event::Stack(addresses) = record.expect("a recording of the writer").event {
                checksum = addresses.fold(checksum, |sum, address| fold(sum, address.value()));
            }
        }
    }
    checksum
}

/// Reads, and finds the module and the offset of every address.
fn resolve_all(recordings: &Records) -> u64 {
    let mut checksum = 0;
    for recording in recordings.iter() {
        let mut slots = [const { ModuleSlot::EMPTY }; MODULES];
        let mut timeline = Timeline::new(Reader::new(recording, LAYOUT), &mut slots);
        while let Some(step) = timeline.step() {
            if let Change::Stack(stack) = step.expect("a recording of the writer").change {
                let places = stack.frames().filter_map(|frame| frame.place);
                checksum = places.fold(checksum, |sum, place| fold(sum, place.offset.value()));
            }
        }
    }
    checksum
}
