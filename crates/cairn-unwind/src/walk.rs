//! The whole walk: from the registers of a thread to its outermost frame, with the reason why it
//! ended there.

use cairn_format::{AbsoluteAddress, Frame, WordSize};

use crate::cfi::{CfiError, CfiErrorKind, FrameTable, RowHead, RowState, RowView};
use crate::frame_pointer::FrameRecord;
use crate::machine::{CALL_BYTES, SHAPE_BYTES, SHAPE_BYTES_BEFORE};
use crate::pdata::{CodePlace, FunctionTable};
use crate::{AddressRange, CoreRegisters, Machine, MemoryReader, Registers, StopReason};

/// Bytes of the smallest page.
const PAGE_BYTES: u64 = 4096;

/// The modules of a process: their unwind tables and their code.
pub trait Modules {
    /// The unwind table of the module that covers `address`, if it has one.
    fn frame_table(&self, address: AbsoluteAddress) -> Option<FrameTable<'_>>;

    /// The function table of the Windows module that covers `address`, if there is one.
    ///
    /// It is asked for where there is no [`frame_table`](Self::frame_table).
    fn function_table(&self, _address: AbsoluteAddress) -> Option<FunctionTable<'_>> {
        None
    }

    /// True when `address` lies in memory that is mapped as executable.
    ///
    /// The frame-pointer step uses it to reject implausible return addresses. Where mappings are
    /// unknown, true for every address is allowed, at the price of false frames.
    fn is_executable(&self, address: AbsoluteAddress) -> bool;

    /// True when `address` lies in generated code: in executable memory that belongs to no module.
    ///
    /// A return address there needs no call in front of it, if its frame record leads to another
    /// one: interpreters made by Java's JIT push return addresses that no call has stored.
    fn is_generated(&self, _address: AbsoluteAddress) -> bool {
        false
    }

    /// Fills all of `into` with the code at `address`, or returns `None`.
    ///
    /// Walks read code only where no table covers it. `None` for every address is allowed: the
    /// steps there then prove themselves by executable memory alone.
    fn read_code(&self, _address: AbsoluteAddress, _into: &mut [u8]) -> Option<()> {
        None
    }

    /// The caller of code without tables that a runtime has made, if that runtime's data shows it.
    ///
    /// `callee` are the registers in a frame that has made a call. All registers but those of the
    /// answer are unknown in the caller.
    fn caller_by_runtime(&self, _callee: CoreRegisters, _memory: &dyn MemoryReader) -> Option<CoreRegisters> {
        None
    }

    /// True when a call returns to `address`.
    ///
    /// It is executable then, and a call instruction is in front of it, as far as code can be read.
    fn is_return_address<M: Machine>(&self, address: AbsoluteAddress) -> bool {
        if !self.is_executable(address) {
            return false;
        }
        let mut code = [0; CALL_BYTES];
        // The code may begin where its memory does, after the start of a page.
        let lengths = [CALL_BYTES, (address.value() % PAGE_BYTES) as usize];
        for length in lengths {
            let Some(code) = code.get_mut(..length) else { continue };
            let start = AbsoluteAddress::new(address.value().wrapping_sub(code.len() as u64));
            if self.read_code(start, code).is_some() {
                return M::ends_with_call(code);
            }
        }
        true
    }
}

impl<T: Modules + ?Sized> Modules for &T {
    fn frame_table(&self, address: AbsoluteAddress) -> Option<FrameTable<'_>> {
        (**self).frame_table(address)
    }

    fn function_table(&self, address: AbsoluteAddress) -> Option<FunctionTable<'_>> {
        (**self).function_table(address)
    }

    fn is_executable(&self, address: AbsoluteAddress) -> bool {
        (**self).is_executable(address)
    }

    fn is_generated(&self, address: AbsoluteAddress) -> bool {
        (**self).is_generated(address)
    }

    fn read_code(&self, address: AbsoluteAddress, into: &mut [u8]) -> Option<()> {
        (**self).read_code(address, into)
    }

    fn caller_by_runtime(&self, callee: CoreRegisters, memory: &dyn MemoryReader) -> Option<CoreRegisters> {
        (**self).caller_by_runtime(callee, memory)
    }

    fn is_return_address<M: Machine>(&self, address: AbsoluteAddress) -> bool {
        (**self).is_return_address::<M>(address)
    }
}

/// A process of one module: a test, a static program, firmware.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct OneModule<'a> {
    /// Its code.
    pub code: AddressRange,
    /// Its unwind table.
    pub table: Option<FrameTable<'a>>,
}

impl<'a> OneModule<'a> {
    /// A process whose only module has this code and this unwind table.
    #[must_use]
    pub const fn new(code: AddressRange, table: Option<FrameTable<'a>>) -> Self {
        Self { code, table }
    }
}

impl Modules for OneModule<'_> {
    fn frame_table(&self, address: AbsoluteAddress) -> Option<FrameTable<'_>> {
        self.table.filter(|_| self.code.contains(address))
    }

    fn is_executable(&self, address: AbsoluteAddress) -> bool {
        self.code.contains(address)
    }
}

/// The way in which a frame was found, which decides how reliable it is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum FoundBy {
    /// When it is the first frame, whose registers were given.
    Context,
    /// By unwind tables. Exact, if the tables are right.
    Cfi,
    /// By the signal frame below it, which holds the interrupted registers. Exact.
    SignalFrame,
    /// By the frame pointer, because no table covers the callee. Plausible: the record lies in the
    /// used stack, and a call returns to its return address.
    FramePointer,
    /// By the bytes of the callee's code, which have a known shape and no table. Exact.
    KnownCode,
    /// By the data of the runtime that has made the callee's code. Exact.
    Runtime,
    /// By the return address that a call has stored, because the callee's pc was not code. A call
    /// through a null pointer is an example.
    BadCall,
}

/// One frame of a walk.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct WalkFrame<M: Machine> {
    /// The frame: a program counter or a return address.
    pub frame: Frame,
    /// The registers in that frame.
    pub registers: Registers<M>,
    /// The way in which it was found.
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
/// let program = OneModule::new(AddressRange::new(at(0x401000), at(0x402000)), None);
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
    /// True when the pc of `registers` is the next instruction to run, false when it is a return
    /// address.
    is_exact_pc: bool,
    found_by: FoundBy,
    yielded: u32,
    limit: u32,
    stop: Option<StopReason>,
    scratch: Scratch<M>,
}

/// The working memory of a step. It is a part of the walk, because a signal handler's stack has no
/// room for it, and its caller can place the walk elsewhere.
#[derive(Clone, Debug)]
struct Scratch<M: Machine> {
    caller: Registers<M>,
    row: RowState<M>,
}

impl<M: Machine, Mem: MemoryReader, Mods: Modules> Walk<M, Mem, Mods> {
    /// Default maximum of frames; 2^20, because a runaway recursion on a stack of 8 MiB has fewer.
    /// It also ends a cycle that the progress check does not detect.
    pub const DEFAULT_LIMIT: u32 = 1 << 20;

    /// Starts a walk from the registers of an interrupted or stopped thread.
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

    /// Marks the first pc as a return address instead of an interrupted pc. A function that
    /// captures its own stack needs this.
    #[must_use]
    pub fn from_return_address(mut self) -> Self {
        self.is_exact_pc = false;
        self
    }

    /// Sets the bounds of the stack. Outside of them, frame pointers are invalid. Tables may lead
    /// elsewhere, as from a signal's alternate stack; the memory reader decides what is readable.
    #[must_use]
    pub fn with_stack(mut self, stack: AddressRange) -> Self {
        self.stack = stack;
        self
    }

    /// Changes the bounds of [`with_stack`](Self::with_stack) for the remaining frames. This is for
    /// a walk that has reached another stack.
    pub fn set_stack(&mut self, stack: AddressRange) {
        self.stack = stack;
    }

    /// Sets the maximum number of frames.
    #[must_use]
    pub fn with_limit(mut self, limit: u32) -> Self {
        self.limit = limit;
        self
    }

    /// The reason why the walk ended; `None` before its end.
    #[must_use]
    pub fn stop_reason(&self) -> Option<StopReason> {
        self.stop
    }

    /// Moves to the caller.
    fn advance(&mut self) -> Result<(), StopReason> {
        let pc = self.registers.pc();
        // The call lies below its return address, and may be the last instruction of its function.
        let lookup = if self.is_exact_pc { pc } else { AbsoluteAddress::new(pc.value().wrapping_sub(1)) };
        self.scratch.caller = self.registers;
        let found_by = self.step(lookup)?;
        let caller = &self.scratch.caller;
        let came_through_signal = found_by == FoundBy::SignalFrame;
        // A signal may have interrupted a call through a null pointer.
        if caller.pc().value() == 0 && !came_through_signal {
            return Err(StopReason::EndOfStack);
        }
        // A signal may have switched stacks, so only the limit ends a cycle of signal frames.
        if !came_through_signal && !self.makes_progress(caller) {
            return Err(StopReason::NoProgress { pc });
        }
        self.registers = *caller;
        self.is_exact_pc = came_through_signal;
        self.found_by = found_by;
        Ok(())
    }

    /// True when the caller's frame lies above. Only an interrupted leaf function that pushes
    /// nothing may share its caller's stack pointer.
    fn makes_progress(&self, caller: &Registers<M>) -> bool {
        let (sp, caller_sp) = (self.registers.sp(), caller.sp());
        let may_be_equal = !M::CALL_PUSHES && self.is_exact_pc && caller.pc() != self.registers.pc();
        caller_sp > sp || (may_be_equal && caller_sp == sp)
    }

    /// Turns `scratch.caller`, a copy of the present registers, into the caller's registers.
    fn step(&mut self, lookup: AbsoluteAddress) -> Result<FoundBy, StopReason> {
        match self.step_by_tables(lookup)? {
            Ok(found_by) => Ok(found_by),
            Err(reason) => self.step_without_tables(lookup, reason),
        }
    }

    /// Steps by the tables, if they cover the code. The inner error is the reason to report if no
    /// other step succeeds.
    ///
    /// It and its two parts are separate functions, so that their local variables are never on a
    /// handler's small stack at the same time.
    #[inline(never)]
    fn step_by_tables(&mut self, lookup: AbsoluteAddress) -> Result<Result<FoundBy, StopReason>, StopReason> {
        let pc = self.registers.pc();
        let Self { registers, memory, modules, scratch, is_exact_pc, .. } = self;
        let mut head = RowHead::empty::<M>();
        scratch.row.clear();
        match fill_row(modules, lookup, &mut head, &mut scratch.row) {
            Some(Ok(())) => {}
            Some(Err(error)) if error.kind != CfiErrorKind::NotCovered => {
                return Ok(Err(StopReason::BadUnwindInfo { pc }));
            }
            Some(Err(_)) => return Ok(Err(StopReason::NoUnwindInfo { pc })),
            None => {
                let place =
                    if *is_exact_pc { CodePlace::Instruction(pc) } else { CodePlace::ReturnAddress(pc) };
                match fill_function_row(modules, place, &mut head, &mut scratch.row) {
                    Some(Ok(())) => {}
                    Some(Err(reason)) => return Ok(Err(reason)),
                    None => return Ok(Err(StopReason::NoUnwindInfo { pc })),
                }
            }
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
        if self.is_exact_pc && !self.modules.is_executable(lookup) {
            let mut is_executable = |address| self.modules.is_executable(address);
            let step = M::step_from_bad_pc(&self.registers, &self.memory, &mut is_executable);
            self.scratch.caller = step.map_err(|_| reason)?;
            return Ok(FoundBy::BadCall);
        }
        if self.step_by_shape().is_some() {
            return Ok(FoundBy::KnownCode);
        }
        if self.step_by_runtime().is_some() {
            return Ok(FoundBy::Runtime);
        }
        // Code of Windows modules uses that register for something else.
        if self.modules.function_table(lookup).is_some() {
            return Err(reason);
        }
        let mut proves_itself = |record| self.proves_itself(record);
        match M::step_by_frame_pointer(&self.registers, &self.memory, self.stack, &mut proves_itself) {
            Ok(found) => {
                self.scratch.caller = found;
                Ok(FoundBy::FramePointer)
            }
            Err(StopReason::EndOfStack) => Err(StopReason::EndOfStack),
            // An invalid frame pointer only means that this code does not use one.
            Err(_) => Err(reason),
        }
    }
}

impl<M: Machine, Mem: MemoryReader, Mods: Modules> Walk<M, Mem, Mods> {
    /// Turns `scratch.caller` into the caller of code that has a known shape.
    fn step_by_shape(&mut self) -> Option<()> {
        let registers = &self.registers;
        let start = AbsoluteAddress::new(registers.pc().value().wrapping_sub(SHAPE_BYTES_BEFORE as u64));
        let mut code = [0; SHAPE_BYTES];
        self.modules.read_code(start, &mut code)?;
        let rule = M::rule_of_shape(&code).filter(|_| !self.is_exact_pc)?;
        let found = M::apply(rule, registers.core(), &self.memory).ok()?;
        if !self.modules.is_return_address::<M>(AbsoluteAddress::new(found.pc)) {
            return None;
        }
        let caller = &mut self.scratch.caller;
        caller.set(M::PROGRAM_COUNTER, found.pc);
        caller.set(M::STACK_POINTER, found.sp);
        caller.set(M::FRAME_POINTER, found.fp);
        Some(())
    }

    /// Turns `scratch.caller` into the caller of code that a runtime has made.
    fn step_by_runtime(&mut self) -> Option<()> {
        let callee = Some(self.registers.core()).filter(|_| !self.is_exact_pc)?;
        let found = self.modules.caller_by_runtime(callee, &self.memory)?;
        self.scratch.caller = Registers::new(found.pc, found.sp, found.fp);
        Some(())
    }

    /// Decides whether a frame record is one.
    ///
    /// A call returns to its return address; or that lies in generated code, and the next record's
    /// in executable memory.
    fn proves_itself(&self, record: FrameRecord) -> bool {
        let address = record.return_address;
        self.modules.is_return_address::<M>(address)
            || self.modules.is_generated(address) && self.leads_on(record).is_some()
    }

    /// Checks that the saved frame pointer leads to another record further up.
    fn leads_on(&self, record: FrameRecord) -> Option<()> {
        let above = record.address.checked_add(FRAME_RECORD_BYTES)?;
        let stack = AddressRange::new(above, self.stack.end);
        let next = FrameRecord::read(&self.memory, record.saved_frame_pointer, stack, WordSize::Bits64);
        let address = next.ok()?.return_address.value() & self.registers.address_mask();
        self.modules.is_executable(AbsoluteAddress::new(address)).then_some(())
    }
}

/// Bytes of a frame record: a saved frame pointer and a return address.
const FRAME_RECORD_BYTES: u64 = 16;

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

/// Fills the row of code in a Windows module. The error is the reason to stop.
#[inline(never)]
fn fill_function_row<M: Machine, Mods: Modules>(
    modules: &Mods,
    place: CodePlace,
    head: &mut RowHead<'_>,
    state: &mut RowState<M>,
) -> Option<Result<(), StopReason>> {
    let table = modules.function_table(place.lookup_address())?;
    let pc = match place {
        CodePlace::Instruction(pc) | CodePlace::ReturnAddress(pc) => pc,
    };
    Some(table.fill_row(place, head, state).map_err(|error| error.stop(pc)))
}

impl<M: Machine, Mem: MemoryReader, Mods: Modules> Iterator for Walk<M, Mem, Mods> {
    type Item = WalkFrame<M>;

    fn next(&mut self) -> Option<WalkFrame<M>> {
        let frame = self.next_frame()?;
        Some(WalkFrame { frame, registers: self.registers, found_by: self.found_by })
    }
}

impl<M: Machine, Mem: MemoryReader, Mods: Modules> Walk<M, Mem, Mods> {
    /// The registers in the last frame; before the first one, those from which the walk starts.
    #[must_use]
    pub fn registers(&self) -> &Registers<M> {
        &self.registers
    }

    /// Returns the registers, for a walk that is created in place without registers. Set them
    /// before the first frame is requested.
    pub fn registers_mut(&mut self) -> &mut Registers<M> {
        &mut self.registers
    }

    /// Returns the next frame without its registers, which [`registers`](Self::registers) lends. It
    /// needs less stack than [`next`](Iterator::next), for signal handlers.
    pub fn next_frame(&mut self) -> Option<Frame> {
        if self.stop.is_some() {
            return None;
        }
        // The step happens when its frame is requested, so a walk that ends early costs no more.
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
