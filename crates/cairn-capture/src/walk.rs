//! The whole walk, step by step with full unwind rows: for every stack that the hot path does not handle. Signal frames,
//! rows that do not fit a packed rule, coroutines whose memory ends far away, and captures inside other captures.
//!
//! Slower by a factor of a hundred, and safe at the same places: no allocation, no lock. Memory outside the thread's own
//! stack is read by the kernel on our behalf, so that a wild pointer is an answer and not a crash.

use core::mem::MaybeUninit;
use core::ptr::NonNull;
use core::sync::atomic::Ordering;

use cairn_format::{AbsoluteAddress, Frame};
use cairn_unwind::{AddressRange, MemoryReader, StopReason, Walk};

use crate::arch::{
    Native, Rule, interrupted_sp, no_registers, take_interrupted_registers, take_own_registers,
};
use crate::mapping;
use crate::modules::{LoadedModules, rule_at, rule_of};
use crate::own_memory::{self, PROBE_PAGES};
use crate::pcs::PcKind;
use crate::process::{PROCESS, is_unloading};
use crate::stack_bounds;
use crate::thread::{MAX_DEPTH, ThreadState};

/// This process's own memory: directly where it is known to be readable, elsewhere through the kernel.
#[derive(Clone, Copy)]
pub(crate) struct OwnMemory {
    pub(crate) low: u64,
    pub(crate) high: u64,
}

impl OwnMemory {
    /// What is known of the thread's own stack.
    #[inline(always)]
    pub(crate) fn own(thread: &ThreadState) -> Self {
        Self { low: thread.low, high: thread.high }
    }

    /// As far down as `here`, the address of a local variable, if it lies a little below on the same stack. All between is in use.
    fn down_to(self, here: u64) -> Self {
        /// More than the frames of a capture take, and less than there is between two stacks.
        const NEAR_BYTES: u64 = 1 << 14;
        let is_near = here < self.low && self.low - here < NEAR_BYTES && self.low < self.high;
        Self { low: if is_near { here } else { self.low }, ..self }
    }

    /// Around the stack that `sp` lies on: the thread's own, or as much of another as is readable in one piece.
    pub(crate) fn around(thread: &ThreadState, sp: u64) -> Self {
        if thread.low <= sp && sp < thread.high {
            Self::own(thread)
        } else {
            Self::elsewhere(sp, PROBE_PAGES)
        }
    }

    /// From `sp` on a stack that is not the thread's own; see [`own_memory::readable_end`].
    pub(crate) fn elsewhere(sp: u64, pages: usize) -> Self {
        Self { low: sp, high: own_memory::readable_end(sp, pages) }
    }

    /// Whether it is the thread's own stack. Asked anew each time: a walk has little room on the stack.
    pub(crate) fn is_own(self) -> bool {
        stack_bounds::is_top_of_own_stack(self.high)
    }

    /// Where frame records can lie. A coroutine begins with whatever frame pointer its maker had, which leads to another stack.
    fn stack(self) -> AddressRange {
        if self.is_own() {
            return AddressRange::ALL;
        }
        AddressRange::new(AbsoluteAddress::new(self.low), AbsoluteAddress::new(self.high))
    }
}

impl MemoryReader for OwnMemory {
    fn read(&self, address: AbsoluteAddress, into: &mut [u8]) -> Option<()> {
        let end = address.checked_add(into.len() as u64)?;
        if !(self.low <= address.value() && end.value() <= self.high) {
            // At once: each part would be a system call of its own.
            return (own_memory::read_bytes(address.value(), into) == into.len()).then_some(());
        }
        for (index, byte) in into.iter_mut().enumerate() {
            let address = address.value().checked_add(index as u64)?;
            let word = self.word64(AbsoluteAddress::new(address & !7))?;
            *byte = word.to_le_bytes()[(address % 8) as usize];
        }
        Some(())
    }

    #[inline]
    fn word64(&self, address: AbsoluteAddress) -> Option<u64> {
        let address = address.value();
        if address.is_multiple_of(8) && self.low <= address && address < self.high {
            // SAFETY: inside the readable part of this thread's stack, and aligned.
            return Some(unsafe { (address as *const u64).read_volatile() });
        }
        own_memory::read_word(address)
    }
}

/// Where a walk starts.
#[derive(Clone, Copy)]
pub(crate) enum Start<'a> {
    /// The registers of an interrupted context.
    Interrupted(&'a libc::ucontext_t),
    /// The frame that a call returns to, at this stack pointer; the walk starts in the present function and leaves out
    /// the frames below.
    Caller { sp: u64 },
}

impl Start<'_> {
    /// No frame that is visited lies below it.
    pub(crate) fn sp(&self) -> u64 {
        match self {
            Self::Interrupted(context) => interrupted_sp(context),
            Self::Caller { sp } => *sp,
        }
    }
}

/// What a whole walk works with: a kilobyte and, for deep stacks, more, which the stack of a handler has not. Zeros are
/// empty room.
pub(crate) struct WalkRoom {
    walk: MaybeUninit<Walk<Native, OwnMemory, LoadedModules>>,
    numbers: Numbers,
}

impl WalkRoom {
    /// The first `count` numbers that the last walk found.
    pub(crate) fn numbers(&mut self, count: usize) -> &[u32] {
        self.numbers.all().get(..count).unwrap_or_default()
    }
}

/// Pc numbers, innermost first.
struct Numbers {
    first: [u32; Self::FIRST],
    /// Takes the place of `first` when a stack is deeper; 0 or how many numbers fit.
    room: usize,
    more: *mut u32,
}

impl Numbers {
    const FIRST: usize = 512;
    const FACTOR: usize = 16;

    fn all(&mut self) -> &mut [u32] {
        match self.room {
            0 => &mut self.first,
            // SAFETY: `grow` made a mapping of so many, which nobody else knows.
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
        // SAFETY: the new mapping is larger, and nobody else knows either.
        unsafe { more.copy_from_nonoverlapping(NonNull::from(self.all()).cast(), count) };
        let old = core::mem::replace(&mut self.more, more.as_ptr());
        if let Some(old) = NonNull::new(old) {
            // SAFETY: the mapping that was taken the last time, to which nothing points any more.
            unsafe { mapping::release(old.cast(), bytes) };
        }
        self.room = room;
        Some(())
    }
}

/// Makes a walk in its place, from registers that are still to come. A function of its own, because a new walk is on the
/// stack before it is in its place.
#[inline(never)]
fn begin(
    place: &mut MaybeUninit<Walk<Native, OwnMemory, LoadedModules>>,
    memory: OwnMemory,
) -> &mut Walk<Native, OwnMemory, LoadedModules> {
    /// Between this place and the caller that is asked about.
    const OWN_FRAMES: u32 = 64;
    let walk = Walk::new(no_registers(), memory, LoadedModules).with_stack(memory.stack());
    place.write(walk.with_limit(MAX_DEPTH as u32 + OWN_FRAMES))
}

/// Walks from `start` and keeps the pc numbers in `room`, innermost first; behind the last frame stands the number of
/// the reason why the walk ended, if that is not the start of the stack. Returns how many there are, or `None` when
/// there is no memory for a new number.
#[cold]
#[inline(never)]
pub(crate) fn walk(start: Start<'_>, memory: OwnMemory, room: &mut WalkRoom) -> Option<usize> {
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
            // A handler's stack ends where it interrupted another one.
            walk.set_stack(AddressRange::ALL);
        }
        if sp < visible_from && count == 0 {
            continue;
        }
        let (pc, kind) = match frame {
            Frame::ProgramCounter(address) => (address.value(), PcKind::ProgramCounter),
            frame => (frame.address()?.value(), PcKind::ReturnAddress),
        };
        // One place is left for the reason why the walk ended.
        if count + 1 >= numbers.all().len() && numbers.grow().is_none() {
            is_full = true;
            break;
        }
        *numbers.all().get_mut(count)? = number(pc, kind)?;
        count += 1;
        outermost = Some((frame, sp));
    }
    let reason = match (walk.stop_reason(), outermost) {
        _ if is_full => Some(StopReason::Limit),
        (Some(StopReason::EndOfStack), Some((frame, sp))) => Some(reason_of_end(frame, sp, memory)),
        (reason, _) => reason,
    };
    if let Some((kind, address)) = reason.and_then(PcKind::of_stop) {
        *numbers.all().get_mut(count)? = number(address, kind)?;
        count += 1;
    }
    Some(count)
}

/// What the end of a walk is worth. Tables tell where a thread of this C library begins, so a null that stands in for a
/// caller in the midst of its stack is no such place: while an exception unwinder jumps to a handler, it overwrites its
/// own frames with the handler's, and whoever is interrupted there finds anything. Elsewhere, as on the stacks of
/// coroutines, null is how stacks end.
fn reason_of_end(outermost: Frame, sp: u64, memory: OwnMemory) -> StopReason {
    let is_own_stack = memory.low <= sp && sp < memory.high;
    match outermost.lookup_address().and_then(rule_at) {
        _ if !is_own_stack => StopReason::EndOfStack,
        Some(Rule::END_OF_STACK) => StopReason::EndOfStack,
        Some(_) => StopReason::NoUnwindInfo { pc: AbsoluteAddress::new(0) },
        None => StopReason::NoUnwindInfo { pc: outermost.address().unwrap_or(AbsoluteAddress::new(0)) },
    }
}

/// The number of an address, which the hot path may meet later as well.
fn number(pc: u64, kind: PcKind) -> Option<u32> {
    let rule = || match kind {
        PcKind::ReturnAddress => rule_of(pc),
        _ => Rule::NEEDS_FULL_EVALUATION,
    };
    if is_unloading(PROCESS.module_state.load(Ordering::Acquire)) {
        return PROCESS.pcs.number_amid_unload(pc, kind, rule);
    }
    PROCESS.pcs.number(pc, kind).or_else(|| PROCESS.pcs.add(pc, kind, rule()))
}
