//! The whole walk: steps with full unwind rows, for every stack that the hot path cannot handle.
//! Those are signal frames, rows that do not fit a packed rule, coroutines with deep stacks, and
//! captures inside other captures.
//!
//! It takes a hundred times as long as the hot path and is safe in the same places: no allocation,
//! no lock. The kernel reads memory outside the thread's own stack, so that a wild pointer ends the
//! walk instead of crashing the program.

use core::mem::MaybeUninit;
use core::ptr::NonNull;

use cairn_format::{AbsoluteAddress, Frame};
use cairn_unwind::cfi::FrameTable;
use cairn_unwind::pdata::FunctionTable;
use cairn_unwind::{AddressRange, Machine, Modules, SHAPE_BYTES_BEFORE, StopReason, Walk};
#[cfg(target_arch = "x86_64")]
use cairn_unwind::{CoreRegisters, MemoryReader};

use crate::stacks::arch::{Native, Rule, no_registers, take_own_registers};
use crate::stacks::context::{Context, interrupted_sp, take_interrupted_registers};
use crate::stacks::generated::Evidence;
use crate::stacks::mapping;
use crate::stacks::modules::{LoadedModules, rule_at};
use crate::stacks::own_memory;
use crate::stacks::pc_kind::{self, PcKind};
use crate::stacks::process::{Process, process};
#[cfg(target_arch = "x86_64")]
use crate::stacks::runtimes;
use crate::stacks::stack_memory::StackMemory;

/// Frames of the deepest stack; deeper ones are cut, and the cut is marked.
pub(crate) const MAX_DEPTH: usize = 1 << 20;

/// The start of a walk.
#[derive(Clone, Copy)]
pub(crate) enum Start<'a> {
    /// The registers of an interrupted context.
    Interrupted(&'a Context),
    /// The frame that a call returns to, at this stack pointer. The walk starts in its own function
    /// and omits the frames below.
    Caller { sp: u64 },
}

impl Start<'_> {
    /// The lowest stack pointer of the frames that the walk reports.
    pub(crate) fn sp(&self) -> u64 {
        match self {
            Self::Interrupted(context) => interrupted_sp(context),
            Self::Caller { sp } => *sp,
        }
    }
}

/// The working memory of a whole walk, which a handler's stack has no room for. It takes three
/// kilobytes, and more for deep stacks. Zeros are empty room.
pub(crate) struct WalkRoom {
    walk: MaybeUninit<Walk<Native, StackMemory, OwnCode>>,
    numbers: NumberList,
}

impl WalkRoom {
    /// The first `count` numbers that the last walk found.
    pub(crate) fn numbers(&mut self, count: usize) -> &[u32] {
        self.numbers.all().get(..count).unwrap_or_default()
    }
}

/// The code of this process: of its modules, and of JIT compilers.
#[derive(Clone, Copy)]
struct OwnCode;

impl Modules for OwnCode {
    fn frame_table(&self, address: AbsoluteAddress) -> Option<FrameTable<'_>> {
        LoadedModules.frame_table(address)
    }

    fn function_table(&self, address: AbsoluteAddress) -> Option<FunctionTable<'_>> {
        LoadedModules.function_table(address)
    }

    fn is_executable(&self, address: AbsoluteAddress) -> bool {
        process().is_executable(address.value(), Evidence::Word)
    }

    fn is_generated(&self, address: AbsoluteAddress) -> bool {
        process().is_generated(address.value(), Evidence::Word)
    }

    /// Walks read code only for its shape. An address that was numbered without a known shape has
    /// none for good, because the hot path does not read the code again.
    fn read_code(&self, address: AbsoluteAddress, into: &mut [u8]) -> Option<()> {
        let pc = address.value().wrapping_add(SHAPE_BYTES_BEFORE as u64);
        if process().rule_of_number(pc) == Some(Rule::NO_TABLES) {
            return None;
        }
        (own_memory::read_bytes(address.value(), into) == into.len()).then_some(())
    }

    /// As for known shapes: an address that was numbered when no runtime was known has no step.
    #[cfg(target_arch = "x86_64")]
    fn caller_by_runtime(&self, callee: CoreRegisters, memory: &dyn MemoryReader) -> Option<CoreRegisters> {
        if !runtimes::are_known() || process().rule_of_number(callee.pc) == Some(Rule::NO_TABLES) {
            return None;
        }
        runtimes::caller(process(), callee, memory)
    }

    fn is_return_address<M: Machine>(&self, address: AbsoluteAddress) -> bool {
        process().is_return_address(address.value())
    }
}

/// Pc numbers, innermost first.
struct NumberList {
    first: [u32; Self::FIRST],
    /// The capacity of `more`, which replaces `first` for deeper stacks; 0 at first.
    room: usize,
    more: *mut u32,
}

impl NumberList {
    const FIRST: usize = 512;
    const FACTOR: usize = 16;

    fn all(&mut self) -> &mut [u32] {
        match self.room {
            0 => &mut self.first,
            // SAFETY: with `room` not 0, `more` is a zeroed mapping of `room` numbers that only
            // `self` refers to (`grow`).
            room => unsafe { core::slice::from_raw_parts_mut(self.more, room) },
        }
    }

    /// Makes room for more numbers than there are.
    #[cold]
    #[inline(never)]
    fn grow(&mut self) -> Option<()> {
        let (count, bytes) = (self.all().len(), size_of_val(self.all()));
        let room = (count * Self::FACTOR).min(MAX_DEPTH);
        if room <= count {
            return None;
        }
        let more = mapping::reserve(room * size_of::<u32>())?.cast::<u32>();
        // SAFETY: both hold `count` numbers, the new mapping being larger, and a new mapping
        // overlaps nothing.
        unsafe { more.copy_from_nonoverlapping(NonNull::from(self.all()).cast(), count) };
        let old = core::mem::replace(&mut self.more, more.as_ptr());
        if let Some(old) = NonNull::new(old) {
            // SAFETY: `old` is a mapping of `bytes` bytes that an earlier call made, and `more` was
            // the only pointer to it.
            unsafe { mapping::release(old.cast(), bytes) };
        }
        self.room = room;
        Some(())
    }
}

/// Creates a walk in place, without registers. A separate function, because the new walk lies on
/// the stack before it is moved to its place.
#[inline(never)]
fn begin(
    place: &mut MaybeUninit<Walk<Native, StackMemory, OwnCode>>,
    memory: StackMemory,
) -> &mut Walk<Native, StackMemory, OwnCode> {
    /// Frames between this function and the caller whose stack is captured; 64 is far more than
    /// there are.
    const OWN_FRAMES: u32 = 64;
    let walk = Walk::new(no_registers(), memory, OwnCode).with_stack(memory.frame_range());
    place.write(walk.with_limit(MAX_DEPTH as u32 + OWN_FRAMES))
}

/// Walks from `start` and stores the pc numbers in `room`, innermost first. If the walk ended
/// before the start of the stack, the number of the reason follows the last frame. Returns the
/// count of numbers, or `None` when there is no memory for a new number.
///
/// `place` receives, for each number, the stack pointer of its frame, and whether it is the reason.
#[cold]
#[inline(never)]
pub(crate) fn walk(
    process: &Process,
    start: Start<'_>,
    memory: StackMemory,
    room: &mut WalkRoom,
    place: &mut dyn FnMut(u64, bool),
) -> Option<usize> {
    let visible_from = match start {
        Start::Interrupted(_) => 0,
        Start::Caller { sp } => sp,
    };
    let local = 0_u64;
    let memory = match start {
        Start::Interrupted(_) => memory,
        // The walk begins in this function.
        Start::Caller { .. } => memory.down_to((&raw const local) as u64),
    };
    let WalkRoom { walk, numbers } = room;
    let walk = begin(walk, memory);
    match start {
        Start::Interrupted(context) => take_interrupted_registers(context, walk.registers_mut()),
        Start::Caller { .. } => take_own_registers(walk.registers_mut()),
    }
    let mut count = 0;
    let mut is_full = false;
    let mut outermost = None;
    while let Some(frame) = walk.next_frame() {
        let sp = walk.registers().sp();
        if !(memory.low..=memory.high).contains(&sp) {
            // The handler's own stack ends here, and the interrupted one begins.
            walk.set_stack(AddressRange::ALL);
        }
        if sp < visible_from && count == 0 {
            continue;
        }
        let (pc, kind) = match frame {
            Frame::ProgramCounter(address) => (address.value(), PcKind::ProgramCounter),
            frame => (frame.address()?.value(), PcKind::ReturnAddress),
        };
        // One place stays free for the reason why the walk ended.
        if count + 1 >= numbers.all().len() && numbers.grow().is_none() {
            is_full = true;
            break;
        }
        *numbers.all().get_mut(count)? = process.number(pc, kind)?;
        place(sp, false);
        count += 1;
        outermost = Some((frame, sp));
    }
    let reason = match (walk.stop_reason(), outermost) {
        _ if is_full => Some(StopReason::Limit),
        (Some(StopReason::EndOfStack), Some((frame, sp))) => Some(reason_of_end(frame, sp, memory)),
        (reason, _) => reason,
    };
    if let Some((kind, address)) = reason.and_then(pc_kind::of_stop) {
        *numbers.all().get_mut(count)? = process.number(address, kind)?;
        place(0, true);
        count += 1;
    }
    Some(count)
}

/// Decides whether a null return address is the end of the stack.
///
/// On a thread's own stack the tables show where the thread begins. A null caller elsewhere on it
/// is an error: while an exception unwinder jumps to a handler, it overwrites its own frames with
/// the handler's, and a walk that is interrupted there may find any value. On other stacks, such as
/// those of coroutines, null marks the end.
fn reason_of_end(outermost: Frame, sp: u64, memory: StackMemory) -> StopReason {
    let is_own_stack = memory.contains(sp);
    match outermost.lookup_address().and_then(rule_at) {
        _ if !is_own_stack => StopReason::EndOfStack,
        Some(Rule::END_OF_STACK) => StopReason::EndOfStack,
        Some(_) => StopReason::NoUnwindInfo { pc: AbsoluteAddress::new(0) },
        None => StopReason::NoUnwindInfo { pc: outermost.address().unwrap_or(AbsoluteAddress::new(0)) },
    }
}
