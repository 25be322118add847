//! Walks a stack as Darwin's kernel does, over any memory reader: for Darwin cores, panics and
//! stackshots, and for programs that need exactly the result of `backtrace_user` or of the kernel's
//! `backtrace`.
//!
//! ```text
//!   frame record, 64-bit:                      Swift async frame: bit 60 of the saved fp is set,
//!                                              and the async context lies just below the record
//!   fp --> | saved fp: u64 | return: u64 |     fp - 8 --> | async context | saved fp + bit 60 | return |
//!   fp --> | saved fp: u32 | return: u32 |     async context --> | parent context | resume address |
//! ```
//!
//! The two walks differ at the outermost frame: the [user walk](UserWalk) records the return
//! address first and checks the saved frame pointer afterwards; the [kernel walk](KernelWalk)
//! checks it first, so the return address next to a zero frame pointer is never recorded.
//!
//! The kernel's code has errors at the end of the buffer. [`Quirks::Corrected`] (the default)
//! corrects them, [`Quirks::Xnu`] reproduces them bit for bit:
//! - A stack that ends exactly where the buffer ends is reported as truncated, and the address to
//!   resume from is that of its last frame, which a second call would record twice.
//! - The packed kernel walk counts an entry that does not fit, so the returned size may exceed the
//!   buffer; and the first frame overwrites the interrupted pc while both are counted.
//! - An interrupted kernel walk with room for one address returns without filling in its flags.

pub use cairn_wire::xnu::{OutOfReach, PackError, Packing};

use cairn_format::{AbsoluteAddress, WordSize};
use cairn_wire::xnu::Packer;

use crate::{AddressRange, MemoryReader, StopReason};

/// Darwin's `EFAULT`. The kernel reports it for an unreadable frame and for an invalid frame
/// pointer.
pub const ERROR_BAD_ADDRESS: u32 = 14;

/// The bit of a saved frame pointer that marks a Swift async frame.
const ASYNC_FRAME_BIT: u64 = 1 << 60;

/// The frame pointers that the kernel refuses to follow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Validity {
    /// On x86-64: zero, and all from `0x7fff_ffff_f000` up.
    X86_64,
    /// On arm64: those that are not multiples of 4. The kernel's comment requires 16, its code
    /// checks 4; and zero passes.
    Arm64,
}

impl Validity {
    /// The end of user space on x86-64 Darwin.
    const X86_64_USER_END: u64 = 0x7fff_ffff_f000;

    const fn accepts(self, frame_pointer: u64) -> bool {
        match self {
            Self::X86_64 => frame_pointer != 0 && frame_pointer < Self::X86_64_USER_END,
            Self::Arm64 => frame_pointer & 3 == 0,
        }
    }
}

/// Selects whether the kernel's errors are corrected or reproduced. The module documentation lists
/// them.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Quirks {
    /// Reports truncation only when frames are missing.
    #[default]
    Corrected,
    /// Reproduces the kernel's results bit for bit.
    Xnu,
}

/// The walk of a user stack: the kernel's `backtrace_user`.
///
/// ```
/// use cairn_format::{AbsoluteAddress, WordSize};
/// use cairn_unwind::{SliceMemory, xnu::{UserWalk, Validity}};
///
/// let words: [u64; 4] = [0x7010, 0x1010, 0, 0x1020];
/// let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
/// let memory = SliceMemory::new(AbsoluteAddress::new(0x7000), &bytes);
///
/// let mut addresses = [AbsoluteAddress::default(); 8];
/// let walk = UserWalk::new(0x1000, 0x7000, WordSize::Bits64, Validity::Arm64);
/// let info = walk.run(&memory, &mut addresses);
/// assert_eq!(addresses[..info.count].iter().map(|a| a.value()).collect::<Vec<_>>(), [0x1000, 0x1010, 0x1020]);
/// assert!(!info.truncated);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct UserWalk {
    /// The interrupted instruction; recorded first, unless `start_frame` is given.
    pub pc: u64,
    /// The frame pointer at that instruction.
    pub frame_pointer: u64,
    /// Another first frame, without the pc: to resume, or to follow an async stack. Such a walk may
    /// go down as well as up, because async contexts lie in the heap in any order; only the
    /// buffer's size bounds it.
    pub start_frame: Option<AbsoluteAddress>,
    /// Added to each address recorded.
    pub address_offset: i64,
    /// 64 bits, or 32 (without async frames).
    pub word_size: WordSize,
    /// The frame pointers that are followed.
    pub validity: Validity,
    /// The bits of an address that hold no pointer authentication code. All bits are set unless the
    /// process signs pointers.
    pub address_mask: u64,
    /// Selects whether the kernel's errors are reproduced.
    pub quirks: Quirks,
}

/// The result of a [`UserWalk`] besides the addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UserWalkInfo {
    /// Number of recorded addresses.
    pub count: usize,
    /// True for a walk of 64-bit frames.
    pub is_64_bit: bool,
    /// True when the stack has more frames than were recorded.
    pub truncated: bool,
    /// The first async frame met, if any.
    pub async_stack: Option<AsyncStack>,
    /// The first frame of a next walk for the rest, when the buffer was full.
    pub next_frame: Option<AbsoluteAddress>,
    /// The reason why the walk ended.
    pub stop: StopReason,
}

impl UserWalkInfo {
    /// The kernel's error number: [`ERROR_BAD_ADDRESS`] or 0.
    #[must_use]
    pub const fn error_number(&self) -> u32 {
        match self.stop {
            StopReason::UnreadableMemory { .. } | StopReason::OutsideStack { .. } => ERROR_BAD_ADDRESS,
            _ => 0,
        }
    }
}

/// The place where an async stack branches off a stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AsyncStack {
    /// The index of the recorded address whose frame has the mark. The async stack replaces the
    /// addresses from here on.
    pub start_index: usize,
    /// The first async frame, to start a walk from; `None` when the word that holds it could not be
    /// read.
    pub frame: Option<AbsoluteAddress>,
}

/// The outcome of a user walk, from which the flags are derived.
struct UserState {
    count: usize,
    frame_pointer: u64,
    async_stack: Option<AsyncStack>,
    /// True when the error that ended the walk counts as truncation.
    cut_by_error: bool,
}

impl UserWalk {
    /// Creates a walk from an interrupted pc and its frame pointer; set the other fields as needed.
    #[must_use]
    pub const fn new(pc: u64, frame_pointer: u64, word_size: WordSize, validity: Validity) -> Self {
        Self {
            pc,
            frame_pointer,
            start_frame: None,
            address_offset: 0,
            word_size,
            validity,
            address_mask: u64::MAX,
            quirks: Quirks::Corrected,
        }
    }

    /// Walks, fills `addresses` from its start, and clears the slot after the last address if there
    /// is one.
    pub fn run<M: MemoryReader>(&self, memory: &M, addresses: &mut [AbsoluteAddress]) -> UserWalkInfo {
        let frame_pointer = self.start_frame.map_or(self.frame_pointer, AbsoluteAddress::value);
        let mut state = UserState { count: 0, frame_pointer, async_stack: None, cut_by_error: false };
        let stop = self.walk(memory, addresses, &mut state);
        if let Some(slot) = addresses.get_mut(state.count) {
            *slot = AbsoluteAddress::new(0);
        }
        self.describe(&state, stop, addresses.len())
    }

    /// Follows the async stack that an earlier walk of this stack found. Returns `None` when that
    /// walk met no async frame.
    ///
    /// Its resume points are recorded plus one, so that the look-up of `address - 1`, as for a
    /// return address, finds the resume point.
    pub fn run_async<M: MemoryReader>(
        &self,
        memory: &M,
        found: &UserWalkInfo,
        addresses: &mut [AbsoluteAddress],
    ) -> Option<UserWalkInfo> {
        let start_frame = found.async_stack?.frame.filter(|frame| frame.value() != 0);
        let follow_up = Self { start_frame: Some(start_frame?), address_offset: 1, ..*self };
        Some(follow_up.run(memory, addresses))
    }

    fn walk<M: MemoryReader>(
        &self,
        memory: &M,
        addresses: &mut [AbsoluteAddress],
        state: &mut UserState,
    ) -> StopReason {
        if self.start_frame.is_none() && !self.record(self.pc, addresses, state) {
            return StopReason::Limit;
        }
        if state.count >= addresses.len() {
            return StopReason::Limit;
        }
        if state.frame_pointer == 0 {
            return StopReason::EndOfStack;
        }
        if !self.validity.accepts(state.frame_pointer) {
            state.cut_by_error = true;
            return StopReason::OutsideStack { address: AbsoluteAddress::new(state.frame_pointer) };
        }
        while state.frame_pointer != 0 && state.count < addresses.len() {
            if let Some(stop) = self.step(memory, addresses, state) {
                return stop;
            }
        }
        if state.frame_pointer == 0 { StopReason::EndOfStack } else { StopReason::Limit }
    }

    /// Records one frame and moves to the next, or returns the reason why there is none.
    fn step<M: MemoryReader>(
        &self,
        memory: &M,
        addresses: &mut [AbsoluteAddress],
        state: &mut UserState,
    ) -> Option<StopReason> {
        let frame = AbsoluteAddress::new(state.frame_pointer);
        let Some((saved, return_address)) = read_record(memory, frame, self.word_size) else {
            state.cut_by_error = true;
            return Some(StopReason::UnreadableMemory { address: frame });
        };
        self.record(return_address & self.address_mask, addresses, state);
        let is_async = self.word_size == WordSize::Bits64 && saved & ASYNC_FRAME_BIT != 0;
        if is_async && state.async_stack.is_none() {
            let context = AbsoluteAddress::new(frame.value().wrapping_sub(8));
            let start = memory.word64(context).map(|start| AbsoluteAddress::new(start & self.address_mask));
            state.async_stack = Some(AsyncStack { start_index: state.count - 1, frame: start });
            if start.is_none() {
                return Some(StopReason::UnreadableMemory { address: context });
            }
        }
        let next = saved & !ASYNC_FRAME_BIT & self.address_mask;
        let goes_back = next < frame.value() && self.start_frame.is_none();
        if next != 0 && self.validity.accepts(next) && next != frame.value() && !goes_back {
            state.frame_pointer = next;
            return None;
        }
        // The kernel ends the walk with the frame pointer of the last frame, and so reports a full
        // buffer as a cut stack. (A zero that arm64's rule accepts in a walk with a custom start is
        // the exception.)
        let falls_through = next == 0 && self.validity.accepts(0) && self.start_frame.is_some();
        if self.quirks == Quirks::Corrected || falls_through {
            state.frame_pointer = 0;
        }
        let is_end = next == 0 || !self.validity.accepts(next);
        Some(if is_end {
            StopReason::EndOfStack
        } else {
            StopReason::NoProgress { pc: AbsoluteAddress::new(return_address) }
        })
    }

    fn record(&self, address: u64, addresses: &mut [AbsoluteAddress], state: &mut UserState) -> bool {
        let Some(slot) = addresses.get_mut(state.count) else { return false };
        *slot = AbsoluteAddress::new(address.wrapping_add_signed(self.address_offset));
        state.count += 1;
        true
    }

    fn describe(&self, state: &UserState, stop: StopReason, room: usize) -> UserWalkInfo {
        let may_go_on = match self.quirks {
            Quirks::Corrected => state.frame_pointer != 0 && self.validity.accepts(state.frame_pointer),
            Quirks::Xnu => self.validity.accepts(state.frame_pointer),
        };
        let out_of_space = may_go_on && state.count == room;
        let error = matches!(stop, StopReason::UnreadableMemory { .. } | StopReason::OutsideStack { .. });
        let resumable = out_of_space && !error && state.frame_pointer != 0;
        UserWalkInfo {
            count: state.count,
            is_64_bit: self.word_size == WordSize::Bits64,
            truncated: state.cut_by_error || out_of_space,
            async_stack: state.async_stack,
            next_frame: resumable.then(|| AbsoluteAddress::new(state.frame_pointer)),
            stop,
        }
    }
}

/// Returns the saved frame pointer and the return address of the record at `frame`. It reads both
/// at once, as the kernel does.
fn read_record<M: MemoryReader>(
    memory: &M,
    frame: AbsoluteAddress,
    word_size: WordSize,
) -> Option<(u64, u64)> {
    if word_size == WordSize::Bits64 {
        let mut bytes = [0; 16];
        memory.read(frame, &mut bytes)?;
        let record = u128::from_le_bytes(bytes);
        return Some((record as u64, (record >> 64) as u64));
    }
    let mut bytes = [0; 8];
    memory.read(frame, &mut bytes)?;
    let record = u64::from_le_bytes(bytes);
    Some((record & 0xffff_ffff, record >> 32))
}

/// The walk of a kernel stack: the kernel's `backtrace` and `backtrace_packed`.
///
/// ```
/// use cairn_format::AbsoluteAddress;
/// use cairn_unwind::{AddressRange, SliceMemory, xnu::KernelWalk};
///
/// let at = AbsoluteAddress::new;
/// let words: [u64; 4] = [0x7010, 0x1010, 0, 0x1020];
/// let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
/// let memory = SliceMemory::new(at(0x7000), &bytes);
///
/// let mut addresses = [AbsoluteAddress::default(); 8];
/// let walk = KernelWalk::new(0x7000, AddressRange::new(at(0x7000), at(0x7020)));
/// let info = walk.run(&memory, &mut addresses);
/// assert_eq!(addresses[..info.count], [at(0x1010)], "the outermost frame is not recorded");
/// ```
#[derive(Clone, Copy, Debug)]
pub struct KernelWalk {
    /// The kernel stack; a frame pointer outside ends the walk.
    pub stack: AddressRange,
    /// The first frame; zero selects that of the interrupted context.
    pub start_frame: u64,
    /// Added to each return address recorded, not to an interrupted pc.
    pub address_offset: i64,
    /// The interrupted context: its pc is recorded first. `None` outside interrupts, and where user
    /// space was interrupted.
    pub interrupted: Option<Interrupted>,
    /// The bits of an address that hold no pointer authentication code.
    pub address_mask: u64,
    /// Selects whether the kernel's errors are reproduced.
    pub quirks: Quirks,
}

/// The context of an interrupt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Interrupted {
    /// The interrupted instruction.
    pub pc: u64,
    /// The frame pointer at that instruction.
    pub frame_pointer: u64,
}

/// The result of a [`KernelWalk`] besides the addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KernelWalkInfo {
    /// Number of recorded addresses; number of bytes for a packed walk.
    pub count: usize,
    /// True when the stack has more frames than were recorded.
    pub truncated: bool,
    /// False where the kernel returns without filling in its flags; always true with
    /// [`Quirks::Corrected`].
    pub flags_written: bool,
    /// The first frame of a next walk for the rest, when the buffer was full. The kernel does not
    /// report it.
    pub next_frame: Option<AbsoluteAddress>,
    /// The reason why the walk ended.
    pub stop: StopReason,
}

/// The output of a kernel walk.
trait AddressOutput {
    fn is_full(&self) -> bool;
    fn put(&mut self, address: u64);
}

struct ArrayOutput<'a> {
    addresses: &'a mut [AbsoluteAddress],
    count: usize,
}

impl AddressOutput for ArrayOutput<'_> {
    fn is_full(&self) -> bool {
        self.count >= self.addresses.len()
    }

    fn put(&mut self, address: u64) {
        if let Some(slot) = self.addresses.get_mut(self.count) {
            *slot = AbsoluteAddress::new(address);
            self.count += 1;
        }
    }
}

struct PackedOutput<'a> {
    buffer: &'a mut [u8],
    packing: Packing,
    out_of_reach: OutOfReach,
    count: usize,
    quirks: Quirks,
    error: Option<PackError>,
}

impl<'a> PackedOutput<'a> {
    fn new(buffer: &'a mut [u8], packing: Packing, out_of_reach: OutOfReach, quirks: Quirks) -> Self {
        Self { buffer, packing, out_of_reach, count: 0, quirks, error: None }
    }

    /// The bytes of one entry, as many of them as the packing uses.
    fn encode(&self, address: u64) -> Result<[u8; 8], PackError> {
        let mut entry = [0; 8];
        let packer = Packer::new(self.packing).out_of_reach(self.out_of_reach);
        match packer.pack([AbsoluteAddress::new(address)], &mut entry) {
            Ok(_) => Ok(entry),
            Err(error) => Err(PackError { offset: self.count, ..error }),
        }
    }
}

impl AddressOutput for PackedOutput<'_> {
    fn is_full(&self) -> bool {
        let wanted = if self.quirks == Quirks::Xnu { 1 } else { self.packing.entry_bytes() };
        self.error.is_some() || self.buffer.len().saturating_sub(self.count) < wanted
    }

    fn put(&mut self, address: u64) {
        let entry = match self.encode(address) {
            Ok(entry) => entry,
            Err(error) => {
                self.error = Some(error);
                return;
            }
        };
        let end = self.count.saturating_add(self.packing.entry_bytes());
        let fits = self.buffer.get_mut(self.count..end);
        if let (Some(slot), Some(bytes)) = (fits, entry.get(..self.packing.entry_bytes())) {
            slot.copy_from_slice(bytes);
            self.count = end;
        } else if self.quirks == Quirks::Xnu {
            self.count = end;
        }
    }
}

impl KernelWalk {
    /// Creates a walk from `start_frame` within `stack`; set the other fields as needed.
    #[must_use]
    pub const fn new(start_frame: u64, stack: AddressRange) -> Self {
        Self {
            stack,
            start_frame,
            address_offset: 0,
            interrupted: None,
            address_mask: u64::MAX,
            quirks: Quirks::Corrected,
        }
    }

    /// Walks and fills `addresses` from its start; clears the slot after the last address if there
    /// is one.
    pub fn run<M: MemoryReader>(&self, memory: &M, addresses: &mut [AbsoluteAddress]) -> KernelWalkInfo {
        let mut output = ArrayOutput { addresses, count: 0 };
        if let Some(interrupted) = self.interrupted {
            output.put(interrupted.pc);
            if output.is_full() && self.quirks == Quirks::Xnu {
                return Self::early_return(output.count);
            }
        }
        let (next_frame, truncated, stop) = self.walk(memory, &mut output);
        let count = output.count;
        if let Some(slot) = addresses.get_mut(count) {
            *slot = AbsoluteAddress::new(0);
        }
        KernelWalkInfo { count, truncated, flags_written: true, next_frame, stop }
    }

    /// Walks and fills `buffer` with packed addresses; the count is in bytes.
    ///
    /// # Errors
    ///
    /// [`PackError`] for an address out of reach of the kernel's base with [`OutOfReach::Error`];
    /// the addresses before it are in the buffer. Kernels use one of the other two.
    pub fn run_packed<M: MemoryReader>(
        &self,
        memory: &M,
        packing: Packing,
        out_of_reach: OutOfReach,
        buffer: &mut [u8],
    ) -> Result<KernelWalkInfo, PackError> {
        let room = buffer.len();
        let mut output = PackedOutput::new(buffer, packing, out_of_reach, self.quirks);
        if let Some(interrupted) = self.interrupted {
            output.put(interrupted.pc);
        }
        if self.interrupted.is_none() || self.quirks == Quirks::Corrected {
            return self.finish_packed(memory, output, 0);
        }
        let counted_twice = output.count;
        if let Some(error) = output.error {
            return Err(error);
        }
        if counted_twice >= room {
            return Ok(Self::early_return(counted_twice));
        }
        // The kernel's error: the frames start at the beginning of the buffer again, with the room
        // that is left behind the pc.
        let shortened = output.buffer.get_mut(..room - counted_twice).unwrap_or_default();
        let output = PackedOutput::new(shortened, packing, out_of_reach, self.quirks);
        self.finish_packed(memory, output, counted_twice)
    }

    fn finish_packed<M: MemoryReader>(
        &self,
        memory: &M,
        mut output: PackedOutput<'_>,
        counted_before: usize,
    ) -> Result<KernelWalkInfo, PackError> {
        let (next_frame, truncated, stop) = self.walk(memory, &mut output);
        if let Some(error) = output.error {
            return Err(error);
        }
        let count = output.count.saturating_add(counted_before);
        Ok(KernelWalkInfo { count, truncated, flags_written: true, next_frame, stop })
    }

    const fn early_return(count: usize) -> KernelWalkInfo {
        KernelWalkInfo {
            count,
            truncated: false,
            flags_written: false,
            next_frame: None,
            stop: StopReason::Limit,
        }
    }

    /// Returns the next frame if the output is full, whether the stack is cut, and the reason for
    /// the end.
    fn walk<M: MemoryReader>(
        &self,
        memory: &M,
        output: &mut impl AddressOutput,
    ) -> (Option<AbsoluteAddress>, bool, StopReason) {
        let frame_pointer = match self.interrupted {
            Some(interrupted) if self.start_frame == 0 => interrupted.frame_pointer,
            _ => self.start_frame,
        };
        let mut frame = AbsoluteAddress::new(frame_pointer & self.address_mask);
        if !self.stack.contains(frame) {
            return (None, false, StopReason::OutsideStack { address: frame });
        }
        while !output.is_full() {
            let (next, return_address) = match self.next_record(memory, frame) {
                Ok(record) => record,
                Err(stop) => return (None, false, stop),
            };
            output.put(return_address.wrapping_add_signed(self.address_offset));
            if next <= frame {
                let cut = self.quirks == Quirks::Xnu && output.is_full();
                return (None, cut, StopReason::NoProgress { pc: AbsoluteAddress::new(return_address) });
            }
            frame = next;
        }
        match (self.quirks, self.next_record(memory, frame)) {
            (Quirks::Corrected, Err(stop @ StopReason::EndOfStack)) => (None, false, stop),
            _ => (Some(frame), true, StopReason::Limit),
        }
    }

    /// The next frame and the return address of the record at `frame`, unless it is the outermost.
    fn next_record<M: MemoryReader>(
        &self,
        memory: &M,
        frame: AbsoluteAddress,
    ) -> Result<(AbsoluteAddress, u64), StopReason> {
        let (saved, return_address) = read_record(memory, frame, WordSize::Bits64)
            .ok_or(StopReason::UnreadableMemory { address: frame })?;
        let next = AbsoluteAddress::new(saved & self.address_mask);
        let return_address = return_address & self.address_mask;
        if next.value() == 0 || !self.stack.contains(next) || return_address == 0 {
            return Err(StopReason::EndOfStack);
        }
        Ok((next, return_address))
    }
}
