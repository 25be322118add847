//! The whole walk: from the registers of a thread to its outermost frame, and the reason why it ended there.

use cairn_format::{AbsoluteAddress, Frame};

use crate::cfi::{CfiError, CfiErrorKind, FrameTable, RowHead, RowState, RowView};
use crate::{AddressRange, Machine, MemoryReader, Registers, StopReason};

/// What the walk needs to know of the process: which table covers an address, and what is code.
pub trait Modules {
    /// The unwind table of the module that covers `address`, if it has one.
    fn frame_table(&self, address: AbsoluteAddress) -> Option<FrameTable<'_>>;

    /// True when `address` lies in memory mapped executable. Guards the guesses of the frame-pointer step; a process whose
    /// mappings are not known may answer true for everything, at the price of invented frames.
    fn is_executable(&self, address: AbsoluteAddress) -> bool;
}

impl<M: Modules + ?Sized> Modules for &M {
    fn frame_table(&self, address: AbsoluteAddress) -> Option<FrameTable<'_>> {
        (**self).frame_table(address)
    }

    fn is_executable(&self, address: AbsoluteAddress) -> bool {
        (**self).is_executable(address)
    }
}

/// A process of one module: a test, a static program, firmware.
#[derive(Clone, Copy, Debug)]
pub struct OneModule<'a> {
    /// Its code.
    pub code: AddressRange,
    /// Its unwind table.
    pub table: Option<FrameTable<'a>>,
}

impl Modules for OneModule<'_> {
    fn frame_table(&self, address: AbsoluteAddress) -> Option<FrameTable<'_>> {
        self.table.filter(|_| self.code.contains(address))
    }

    fn is_executable(&self, address: AbsoluteAddress) -> bool {
        self.code.contains(address)
    }
}

/// How a frame was found, which is how far it can be trusted.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum FoundBy {
    /// It is the start: the registers were given.
    Context,
    /// By unwind tables. Exact, as far as the tables are.
    Cfi,
    /// By the signal frame below it, which holds the interrupted registers. Exact.
    SignalFrame,
    /// By the frame pointer, because no table covers the callee. Plausible: the record lies in the live stack and its
    /// return address is code.
    FramePointer,
    /// Its callee's pc was no code, as after a call through a null pointer: the return address was where the call put it.
    BadCall,
}

/// One frame of a walk.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct WalkFrame<M: Machine> {
    /// The frame in the common vocabulary: a program counter or a return address.
    pub frame: Frame,
    /// The registers in that frame.
    pub registers: Registers<M>,
    /// How it was found.
    pub found_by: FoundBy,
}

/// Walks a stack, innermost frame first.
///
/// ```
/// use cairn_format::AbsoluteAddress;
/// use cairn_unwind::{AddressRange, OneModule, Registers, SliceMemory, StopReason, Walk, x86_64::X86_64};
///
/// let at = AbsoluteAddress::new;
/// let words: [u64; 4] = [0x7010, 0x401100, 0, 0x401200];
/// let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
/// let memory = SliceMemory::new(at(0x7000), &bytes);
///
/// let program = OneModule { code: AddressRange::new(at(0x401000), at(0x402000)), table: None };
/// let registers = Registers::<X86_64>::new(0x401050, 0x7000, 0x7000);
/// let mut walk = Walk::new(registers, memory, program);
/// let addresses: Vec<_> = walk.by_ref().filter_map(|frame| frame.frame.address()).collect();
/// assert_eq!(addresses, [at(0x401050), at(0x401100), at(0x401200)]);
/// assert_eq!(walk.stop_reason(), Some(StopReason::EndOfStack));
/// ```
#[derive(Clone, Debug)]
pub struct Walk<M: Machine, Mem, Mods> {
    registers: Registers<M>,
    memory: Mem,
    modules: Mods,
    stack: AddressRange,
    /// True when the pc of `registers` was about to run, false when a call will return to it.
    is_exact_pc: bool,
    found_by: FoundBy,
    yielded: u32,
    limit: u32,
    stop: Option<StopReason>,
    scratch: Scratch<M>,
}

/// What a step needs beside the walk. It is a part of it because the walk can lie where there is room, which the stack of
/// a signal handler is not.
#[derive(Clone, Debug)]
struct Scratch<M: Machine> {
    caller: Registers<M>,
    row: RowState<M>,
}

impl<M: Machine, Mem: MemoryReader, Mods: Modules> Walk<M, Mem, Mods> {
    /// How many frames a walk yields unless told otherwise: enough for a runaway recursion on a stack of 8 MiB, and an
    /// end for a cycle that the progress check cannot see.
    pub const DEFAULT_LIMIT: u32 = 1 << 20;

    /// A walk from the registers of a thread that is interrupted or paused.
    pub fn new(registers: Registers<M>, memory: Mem, modules: Mods) -> Self {
        Self {
            registers,
            memory,
            modules,
            stack: AddressRange::ALL,
            is_exact_pc: true,
            found_by: FoundBy::Context,
            yielded: 0,
            limit: Self::DEFAULT_LIMIT,
            stop: None,
            scratch: Scratch { caller: registers, row: RowState::new() },
        }
    }

    /// The same walk, starting at a return address instead of an interrupted pc: the first frame is a function that has
    /// called, such as the one that asks for its own stack.
    #[must_use]
    pub fn from_return_address(mut self) -> Self {
        self.is_exact_pc = false;
        self
    }

    /// The same walk with the bounds of the stack, which frame pointers must respect. Tables may lead elsewhere, as from
    /// a signal's alternate stack; what may be read is the memory reader's affair.
    #[must_use]
    pub fn with_stack(mut self, stack: AddressRange) -> Self {
        self.stack = stack;
        self
    }

    /// Changes the bounds of [`with_stack`](Self::with_stack) for the frames that are still to come, when the walk has come to another stack.
    pub fn set_stack(&mut self, stack: AddressRange) {
        self.stack = stack;
    }

    /// The same walk, yielding at most `limit` frames.
    #[must_use]
    pub fn with_limit(mut self, limit: u32) -> Self {
        self.limit = limit;
        self
    }

    /// Why the walk ended; `None` while it goes on.
    #[must_use]
    pub fn stop_reason(&self) -> Option<StopReason> {
        self.stop
    }

    /// Moves to the caller.
    fn advance(&mut self) -> Result<(), StopReason> {
        let pc = self.registers.pc();
        // The call itself lies below the address it returns to, and may end its function.
        let lookup = if self.is_exact_pc { pc } else { AbsoluteAddress::new(pc.value().wrapping_sub(1)) };
        self.scratch.caller = self.registers;
        let found_by = self.step(lookup)?;
        let caller = &self.scratch.caller;
        let came_through_signal = found_by == FoundBy::SignalFrame;
        // A signal may have interrupted a call through a null pointer.
        if caller.pc().value() == 0 && !came_through_signal {
            return Err(StopReason::EndOfStack);
        }
        // A signal may have switched stacks, so only the limit bounds a cycle of signal frames.
        if !came_through_signal && !self.makes_progress(caller) {
            return Err(StopReason::NoProgress { pc });
        }
        self.registers = *caller;
        self.is_exact_pc = came_through_signal;
        self.found_by = found_by;
        Ok(())
    }

    /// True when the caller's frame lies above. A leaf that pushes nothing may share its caller's stack pointer, but only
    /// where it was interrupted.
    fn makes_progress(&self, caller: &Registers<M>) -> bool {
        let (sp, caller_sp) = (self.registers.sp(), caller.sp());
        let may_be_equal = !M::CALL_PUSHES && self.is_exact_pc && caller.pc() != self.registers.pc();
        caller_sp > sp || (may_be_equal && caller_sp == sp)
    }

    /// Makes the caller's registers of `scratch.caller`, which is a copy of the present ones.
    fn step(&mut self, lookup: AbsoluteAddress) -> Result<FoundBy, StopReason> {
        match self.step_by_tables(lookup)? {
            Ok(found_by) => Ok(found_by),
            Err(reason) => self.step_without_tables(lookup, reason),
        }
    }

    /// By the tables, if they cover the code; the inner error is the reason that holds if nothing else helps.
    ///
    /// A function of its own, and so are its two parts: a handler's stack is short, and what one needs the others do not.
    #[inline(never)]
    fn step_by_tables(&mut self, lookup: AbsoluteAddress) -> Result<Result<FoundBy, StopReason>, StopReason> {
        let pc = self.registers.pc();
        let Self { registers, memory, modules, scratch, .. } = self;
        let mut head = RowHead::empty::<M>();
        scratch.row.clear();
        match fill_row(modules, lookup, &mut head, &mut scratch.row) {
            Some(Ok(())) => {}
            Some(Err(error)) if error.kind != CfiErrorKind::NotCovered => {
                return Ok(Err(StopReason::BadUnwindInfo { pc }));
            }
            _ => return Ok(Err(StopReason::NoUnwindInfo { pc })),
        }
        let row = RowView { head: &head, state: &scratch.row };
        row.step_into(registers, memory, &mut scratch.caller)?;
        Ok(Ok(if head.is_signal_frame() { FoundBy::SignalFrame } else { FoundBy::Cfi }))
    }

    #[cold]
    #[inline(never)]
    fn step_without_tables(
        &mut self,
        lookup: AbsoluteAddress,
        reason: StopReason,
    ) -> Result<FoundBy, StopReason> {
        if let Some(interrupted) = M::step_from_signal_frame(&self.registers, &self.memory) {
            self.scratch.caller = interrupted;
            return Ok(FoundBy::SignalFrame);
        }
        let mut is_executable = |address| self.modules.is_executable(address);
        if self.is_exact_pc && !self.modules.is_executable(lookup) {
            let step = M::step_from_bad_pc(&self.registers, &self.memory, &mut is_executable);
            self.scratch.caller = step.map_err(|_| reason)?;
            return Ok(FoundBy::BadCall);
        }
        match M::step_by_frame_pointer(&self.registers, &self.memory, self.stack, &mut is_executable) {
            Ok(found) => {
                self.scratch.caller = found;
                Ok(FoundBy::FramePointer)
            }
            Err(StopReason::EndOfStack) => Err(StopReason::EndOfStack),
            // A frame pointer that leads nowhere only means that this code keeps none.
            Err(_) => Err(reason),
        }
    }
}

#[inline(never)]
fn fill_row<'a, M: Machine, Mods: Modules>(
    modules: &'a Mods,
    lookup: AbsoluteAddress,
    head: &mut RowHead<'a>,
    state: &mut RowState<M>,
) -> Option<Result<(), CfiError>> {
    let table = modules.frame_table(lookup);
    Some(table.as_ref()?.fill_row(lookup, head, state))
}

impl<M: Machine, Mem: MemoryReader, Mods: Modules> Iterator for Walk<M, Mem, Mods> {
    type Item = WalkFrame<M>;

    fn next(&mut self) -> Option<WalkFrame<M>> {
        let frame = self.next_frame()?;
        Some(WalkFrame { frame, registers: self.registers, found_by: self.found_by })
    }
}

impl<M: Machine, Mem: MemoryReader, Mods: Modules> Walk<M, Mem, Mods> {
    /// The registers in the frame that came last; at first those that the walk starts from.
    #[must_use]
    pub fn registers(&self) -> &Registers<M> {
        &self.registers
    }

    /// The same, to be changed before the walk's first frame is asked for: for a walk that lies where it stays, and to which
    /// its registers come.
    pub fn registers_mut(&mut self) -> &mut Registers<M> {
        &mut self.registers
    }

    /// As [`next`](Iterator::next), without the registers, which [`registers`](Self::registers) lends: for those who walk in
    /// a signal handler and count the bytes of its stack.
    pub fn next_frame(&mut self) -> Option<Frame> {
        if self.stop.is_some() {
            return None;
        }
        // The step to a frame happens when that frame is asked for, so a walk that is dropped early costs no more.
        if self.yielded > 0
            && let Err(reason) = self.advance()
        {
            self.stop = Some(reason);
            return None;
        }
        if self.yielded == self.limit {
            self.stop = Some(StopReason::Limit);
            return None;
        }
        self.yielded += 1;
        let pc = self.registers.pc();
        Some(if self.is_exact_pc { Frame::ProgramCounter(pc) } else { Frame::ReturnAddress(pc) })
    }
}
