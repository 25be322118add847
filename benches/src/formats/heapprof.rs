//! heapprof blocks: headers written for every allocation of the corpus, and the search over the
//! heap that they make.

use cairn_format::{AbsoluteAddress, SliceSink};
use cairn_wire::heapprof::{HeaderWriter, HeapprofLayout, Search};

use super::{CAIRN, Inputs, REAL, fold, used};
use crate::corpus::{Stack, Stacks};
use crate::measure::{Case, Unit};

/// The reference's default number of callers.
const CALLERS: usize = 16;

/// Larger allocations are cut to this, so that a few of them do not become the whole heap.
const LARGEST_USER_BYTES: usize = 4096;

const LAYOUT: HeapprofLayout = HeapprofLayout::LittleEndian64;

pub(crate) fn add<'a>(inputs: &'a Inputs, cases: &mut Vec<Case<'a>>) {
    let writer = HeaderWriter::new(LAYOUT, CALLERS).expect("few enough callers");
    let stacks = &inputs.real;
    let frames = stacks.iter().map(|stack| retained(stack).len()).sum();
    cases.push(Case {
        operation: "heapprof write",
        implementation: CAIRN,
        input: REAL,
        unit: Unit::Frame,
        units: frames,
        bytes: stacks.len() * writer.user_offset(),
        pass: Box::new(move || write_all(stacks, writer)),
    });
    let heap = heap(stacks, writer);
    let found = Search::robust(LAYOUT).blocks(&heap).count();
    assert_eq!(found, stacks.len(), "the search misses blocks");
    let searches =
        [("heapprof search", Search::robust(LAYOUT)), ("heapprof search compat", Search::compat(LAYOUT))];
    for (operation, search) in searches {
        let heap = heap.clone();
        cases.push(Case {
            operation,
            implementation: CAIRN,
            input: REAL,
            unit: Unit::Byte,
            units: heap.len(),
            bytes: heap.len(),
            pass: Box::new(move || search.blocks(&heap).fold(0, |sum, block| fold(sum, block.size_bytes()))),
        });
    }
}

fn retained(stack: Stack<'_>) -> &[AbsoluteAddress] {
    stack.addresses.get(..CALLERS).unwrap_or(stack.addresses)
}

fn write_all(stacks: &Stacks, writer: HeaderWriter) -> u64 {
    let mut buffer = [0; 8 * (CALLERS + 4)];
    let mut written = 0;
    for stack in stacks.iter() {
        let mut sink = SliceSink::new(&mut buffer);
        writer.encode(stack.requested_bytes, retained(stack), &mut sink).expect("room for a header");
        written += used(sink.written());
    }
    written
}

/// Returns a heap of all allocations of the corpus. User data is text, pointers and zeros in turn,
/// as in real heaps.
fn heap(stacks: &Stacks, writer: HeaderWriter) -> Vec<u8> {
    let mut heap = Vec::new();
    for (index, stack) in stacks.iter().enumerate() {
        let mut header = [0; 8 * (CALLERS + 4)];
        writer
            .write_in_place(stack.requested_bytes, retained(stack), &mut header)
            .expect("room for a header");
        heap.extend_from_slice(&header[..writer.user_offset()]);
        let user_bytes = (stack.requested_bytes as usize).min(LARGEST_USER_BYTES).next_multiple_of(16);
        let pattern: [u8; 16] = match index % 3 {
            0 => *b"Heap and Profile",
            1 => (0x7fff_f7e0_0000_u128 << 64 | 0x5555_5570_1000).to_le_bytes(),
            _ => [0; 16],
        };
        heap.extend(pattern.into_iter().cycle().take(user_bytes));
    }
    heap
}
