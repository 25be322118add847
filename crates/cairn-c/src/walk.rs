//! Walks by frame pointers, with the controls of Darwin's `backtrace(9)`.

use core::ffi::{c_int, c_void};
use core::{ptr, slice};

use cairn_capture::xnu::{Packing, Quirks, UserWalk, UserWalkInfo, Validity};
use cairn_capture::{
    CallSite, Context, FrameControl, MemoryReader, StopReason, kernel_walk_at, walk_frames_at,
};
use cairn_format::{AbsoluteAddress, WordSize};
use cairn_wire::xnu::{self, OutOfReach};

use crate::capture::{CAIRN_ERROR_ARGUMENT, CAIRN_ERROR_FORMAT, CairnStop, exported_stop};
use crate::versioned::{self, MAX_TYPE_SIZE};

/// In cairn_walk_control: frames of 32 bits. Only with a copy function.
pub const CAIRN_WALK_32_BIT: u32 = 1;

/// In cairn_walk_control: frame pointers are refused as on x86-64, whatever this processor is.
pub const CAIRN_WALK_X86_64: u32 = 2;

/// In cairn_walk_control: frame pointers are refused as on arm64, whatever this processor is.
pub const CAIRN_WALK_ARM64: u32 = 4;

/// In cairn_walk_control: Darwin's faults at the end of the buffer are repeated. A stack that ends
/// where the buffer ends is then reported as truncated.
pub const CAIRN_WALK_AS_XNU: u32 = 8;

/// In cairn_walk_info: the frames have 64 bits.
pub const CAIRN_WALK_INFO_64_BIT: u32 = 1;

/// In cairn_walk_info: the stack continues beyond the recorded addresses, or could not be followed.
pub const CAIRN_WALK_INFO_TRUNCATED: u32 = 2;

/// Addresses are packed as they are, in 8 bytes each, little-endian.
pub const CAIRN_PACK_NONE: u32 = 0;

/// Addresses are packed as signed distances from packing_base, in 4 bytes each, little-endian.
pub const CAIRN_PACK_OFFSET_32: u32 = 1;

/// Start of a walk, memory that it reads, and offset of addresses. Fill it with zeros, set
/// type_size, then the fields that you need: zeros mean this thread, from the caller of the
/// function.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CairnWalkControl {
    /// Size of this struct.
    pub type_size: usize,
    /// CAIRN_WALK_... flags.
    pub flags: u32,
    /// Zero.
    pub reserved: u32,
    /// Nonzero: the first frame record, in place of the caller's. To leave out frames, to continue
    /// at next_frame_address, or to follow async_frame_address.
    pub frame_address: u64,
    /// The number to add to each recorded address. It is 1 for async frames, so that looking up
    /// address - 1 finds the resume point.
    pub address_offset: i64,
    /// The third argument of a signal handler of this thread, or null. If it is not null, the walk
    /// starts where the signal interrupted the thread.
    pub context: *const c_void,
    /// Reads the memory of the walked thread, in place of this process's, if it is not null. It
    /// copies as many bytes as its last argument states from the address into the buffer, and
    /// returns 0 or an errno. Its first argument is copy_context. Only for cairn_walk_user.
    pub copy_function: Option<unsafe extern "C" fn(*mut c_void, *mut c_void, u64, usize) -> c_int>,
    /// First argument of copy_function.
    pub copy_context: *mut c_void,
    /// With copy_function: the pc of the thread that is walked; it is recorded first.
    pub pc: u64,
    /// With copy_function: the frame pointer of the thread that is walked.
    pub frame_pointer: u64,
    /// With copy_function: the bits of an address that are no pointer authentication code; 0 for
    /// all.
    pub address_mask: u64,
    /// Base of packed distances.
    pub packing_base: u64,
}

const _: () = assert!(size_of::<CairnWalkControl>() == 88);

/// Results of a walk other than the addresses. Set type_size before the call; the fields of a newer
/// library are then left out.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CairnWalkInfo {
    /// Size of this struct.
    pub type_size: usize,
    /// CAIRN_WALK_INFO_... flags.
    pub flags: u32,
    /// 0, 14 (EFAULT) or 22 (EINVAL). 14 means that a frame pointer or memory could not be
    /// followed, 22 that the control is not valid.
    pub error: c_int,
    /// The reason why the walk ended.
    pub stop: CairnStop,
    /// Where to continue when the buffer was full: the next frame_address. Otherwise 0.
    pub next_frame_address: u64,
    /// The index of the recorded address that the async stack takes the place of, with all behind
    /// it. It counts where async_frame_address is not 0.
    pub async_start_index: u64,
    /// The first async frame, to be walked with address_offset 1; 0 when there is none.
    pub async_frame_address: u64,
}

const _: () = assert!(size_of::<CairnWalkInfo>() == 56);

/// errno, as Darwin and Linux number it.
const EFAULT: c_int = 14;
const EINVAL: c_int = 22;

impl CairnWalkControl {
    const NONE: Self = Self {
        type_size: size_of::<Self>(),
        flags: 0,
        reserved: 0,
        frame_address: 0,
        address_offset: 0,
        context: ptr::null(),
        copy_function: None,
        copy_context: ptr::null_mut(),
        pc: 0,
        frame_pointer: 0,
        address_mask: 0,
        packing_base: 0,
    };

    /// Reads the struct of any version.
    ///
    /// # Safety
    ///
    /// `control` is null or points to as many bytes as its first field states.
    unsafe fn read(control: *const Self) -> Option<Self> {
        if control.is_null() {
            return Some(Self::NONE);
        }
        // SAFETY: the caller promises that `control` is null or points to as many bytes as its
        // first field states; the fields are numbers and pointers, and the function pointer is null
        // or one of the program's.
        let known = unsafe { versioned::take(control, Self::NONE) }?;
        let flags = CAIRN_WALK_32_BIT | CAIRN_WALK_X86_64 | CAIRN_WALK_ARM64 | CAIRN_WALK_AS_XNU;
        let machines = CAIRN_WALK_X86_64 | CAIRN_WALK_ARM64;
        let is_other = known.copy_function.is_some();
        let is_understood = known.flags & !flags == 0
            && known.flags & machines != machines
            && known.reserved == 0
            // Registers and width are known for this thread; another thread has no context.
            && (is_other || known.flags & (CAIRN_WALK_32_BIT | machines) == 0)
            && (!is_other || known.context.is_null());
        is_understood.then_some(known)
    }

    fn quirks(&self) -> Quirks {
        if self.flags & CAIRN_WALK_AS_XNU == 0 { Quirks::Corrected } else { Quirks::Xnu }
    }

    fn start_frame(&self) -> Option<AbsoluteAddress> {
        (self.frame_address != 0).then_some(AbsoluteAddress::new(self.frame_address))
    }

    /// Returns the walk of this thread.
    ///
    /// # Safety
    ///
    /// The context is null or one of this thread.
    unsafe fn own(&self) -> FrameControl<'_> {
        let mut own = FrameControl::new();
        own.start_frame = self.start_frame();
        own.address_offset = self.address_offset;
        // SAFETY: the caller promises that the context is null or one of this thread.
        own.interrupted = unsafe { self.context.cast::<Context>().as_ref() };
        own.quirks = self.quirks();
        own
    }

    /// Returns the walk of another thread, by its registers.
    fn other(&self) -> UserWalk {
        let is_arm = match self.flags & (CAIRN_WALK_X86_64 | CAIRN_WALK_ARM64) {
            0 => cfg!(target_arch = "aarch64"),
            machine => machine == CAIRN_WALK_ARM64,
        };
        let validity = if is_arm { Validity::Arm64 } else { Validity::X86_64 };
        let is_narrow = self.flags & CAIRN_WALK_32_BIT != 0;
        let word_size = if is_narrow { WordSize::Bits32 } else { WordSize::Bits64 };
        let mut walk = UserWalk::new(self.pc, self.frame_pointer, word_size, validity);
        walk.start_frame = self.start_frame();
        walk.address_offset = self.address_offset;
        walk.address_mask = if self.address_mask == 0 { u64::MAX } else { self.address_mask };
        walk.quirks = self.quirks();
        walk
    }

    fn packing(&self, packing: u32) -> Option<Packing> {
        Some(match packing {
            CAIRN_PACK_NONE => Packing::None,
            CAIRN_PACK_OFFSET_32 => {
                Packing::KernelOffset32 { kernel_base: AbsoluteAddress::new(self.packing_base) }
            }
            _ => return None,
        })
    }
}

impl CairnWalkInfo {
    const fn new(stop: CairnStop) -> Self {
        Self {
            type_size: 0,
            flags: 0,
            error: 0,
            stop,
            next_frame_address: 0,
            async_start_index: 0,
            async_frame_address: 0,
        }
    }

    /// Returns the results for an invalid control.
    fn invalid() -> Self {
        Self { error: EINVAL, ..Self::new(exported_stop(StopReason::EndOfStack)) }
    }

    fn of_user(found: &UserWalkInfo) -> Self {
        let start = found.async_stack.filter(|start| start.frame.is_some_and(|frame| frame.value() != 0));
        Self {
            flags: flags(found.is_64_bit, found.truncated),
            error: found.error_number() as c_int,
            next_frame_address: found.next_frame.map_or(0, AbsoluteAddress::value),
            async_start_index: start.map_or(0, |start| start.start_index as u64),
            async_frame_address: start.and_then(|start| start.frame).map_or(0, AbsoluteAddress::value),
            ..Self::new(exported_stop(found.stop))
        }
    }

    fn of_own(stop: StopReason, truncated: bool, next_frame: Option<AbsoluteAddress>) -> Self {
        let is_fault = matches!(stop, StopReason::UnreadableMemory { .. } | StopReason::OutsideStack { .. });
        Self {
            flags: flags(true, truncated || is_fault),
            error: if is_fault { EFAULT } else { 0 },
            next_frame_address: next_frame.map_or(0, AbsoluteAddress::value),
            ..Self::new(exported_stop(stop))
        }
    }

    /// Copies the results into the caller's struct, as far as they fit.
    ///
    /// # Safety
    ///
    /// `info` is null or points to as many bytes as its first field states.
    unsafe fn give(mut self, info: *mut Self) {
        if info.is_null() {
            return;
        }
        // SAFETY: not null, so the caller promises the first field.
        self.type_size = unsafe { (*info).type_size };
        if !(size_of::<usize>()..=MAX_TYPE_SIZE).contains(&self.type_size) {
            return;
        }
        // SAFETY: the caller promises that `info` is null or points to as many bytes as its first
        // field states.
        unsafe { versioned::give(&self, info, self.type_size) };
    }
}

const fn flags(is_64_bit: bool, truncated: bool) -> u32 {
    (if is_64_bit { CAIRN_WALK_INFO_64_BIT } else { 0 })
        | (if truncated { CAIRN_WALK_INFO_TRUNCATED } else { 0 })
}

/// The registers of a caller, as the naked functions put them on the stack. The first two are a
/// frame record, as that of a function with a frame pointer.
#[repr(C)]
struct Caller {
    fp: u64,
    pc: u64,
    sp: u64,
}

impl Caller {
    const fn site(&self) -> CallSite {
        CallSite { pc: self.pc, sp: self.sp, fp: self.fp }
    }

    /// Returns the site whose first frame record is this one. A walk from there records first where
    /// the caller called.
    fn record(&self) -> CallSite {
        let record = ptr::from_ref(self) as u64;
        CallSite { pc: self.pc, sp: record, fp: record }
    }
}

/// Calls `$hook` with up to five arguments as they are and the caller's registers as the sixth.
macro_rules! with_caller {
    ($hook:path) => {
        #[cfg(target_arch = "x86_64")]
        core::arch::naked_asm!(
            ".cfi_startproc",
            "lea rax, [rsp + 8]",
            "push rax",
            ".cfi_adjust_cfa_offset 8",
            "push qword ptr [rsp + 8]",
            ".cfi_adjust_cfa_offset 8",
            "push rbp",
            ".cfi_adjust_cfa_offset 8",
            "mov r9, rsp",
            "call {hook}",
            "add rsp, 24",
            ".cfi_adjust_cfa_offset -24",
            "ret",
            ".cfi_endproc",
            hook = sym $hook,
        );
        #[cfg(target_arch = "aarch64")]
        core::arch::naked_asm!(
            ".cfi_startproc",
            "stp x29, x30, [sp, #-48]!",
            ".cfi_def_cfa_offset 48",
            ".cfi_offset x29, -48",
            ".cfi_offset x30, -40",
            "add x9, sp, #48",
            "str x9, [sp, #16]",
            "mov x5, sp",
            "mov x29, sp",
            "bl {hook}",
            "ldp x29, x30, [sp], #48",
            ".cfi_def_cfa_offset 0",
            ".cfi_restore x29",
            ".cfi_restore x30",
            "ret",
            ".cfi_endproc",
            hook = sym $hook,
        );
    };
}

/// Fills addresses with the return addresses of this thread, by frame pointers, innermost first.
/// Returns their number, at most capacity. This is backtrace of Darwin's backtrace(9). The first is
/// where this function returns to; the one next to a zero frame pointer, in the outermost frame, is
/// not recorded. control and info may be null.
///
/// It may be called in malloc and in signal handlers. The program must be built with frame pointers
/// (-fno-omit-frame-pointer).
///
/// # Safety
///
/// `addresses` has room for `capacity` numbers; `control` and `info` are null or valid.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn cairn_walk(
    addresses: *mut u64,
    capacity: usize,
    control: *const CairnWalkControl,
    info: *mut CairnWalkInfo,
) -> usize {
    with_caller!(walk_own);
}

/// # Safety
///
/// The arguments are valid for `cairn_walk`. `caller` points to the registers that `with_caller`
/// has stored, and that caller waits for this function.
unsafe extern "C" fn walk_own(
    addresses: *mut u64,
    capacity: usize,
    control: *const CairnWalkControl,
    info: *mut CairnWalkInfo,
    _: usize,
    caller: *const Caller,
) -> usize {
    // SAFETY: the caller promises that `control` is null or valid, and room for the results.
    let (control, addresses) = unsafe { (CairnWalkControl::read(control), room(addresses, capacity)) };
    let (count, found) = match control {
        Some(control) if control.copy_function.is_none() => {
            // SAFETY: the caller promises the registers that `with_caller` has stored, of a call
            // that waits.
            let (walk, memory) = unsafe { kernel_walk_at(&control.own(), (*caller).record()) };
            let found = walk.run(&memory, addresses);
            (found.count, CairnWalkInfo::of_own(found.stop, found.truncated, found.next_frame))
        }
        _ => (0, CairnWalkInfo::invalid()),
    };
    // SAFETY: the caller promises that `info` is null or valid.
    unsafe { found.give(info) };
    count
}

/// As cairn_walk, with the addresses packed into buffer: backtrace_packed of Darwin's backtrace(9).
/// packing is one of CAIRN_PACK_... Returns how many bytes are used, CAIRN_ERROR_ARGUMENT, or
/// CAIRN_ERROR_FORMAT for an address out of reach of packing_base.
///
/// # Safety
///
/// `buffer` has `size_bytes` bytes; `control` and `info` are null or valid.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn cairn_walk_packed(
    packing: u32,
    buffer: *mut u8,
    size_bytes: usize,
    control: *const CairnWalkControl,
    info: *mut CairnWalkInfo,
) -> isize {
    with_caller!(walk_own_packed);
}

/// # Safety
///
/// The arguments are valid for `cairn_walk_packed`. `caller` points to the registers that
/// `with_caller` has stored, and that caller waits for this function.
unsafe extern "C" fn walk_own_packed(
    packing: u32,
    buffer: *mut u8,
    size_bytes: usize,
    control: *const CairnWalkControl,
    info: *mut CairnWalkInfo,
    caller: *const Caller,
) -> isize {
    let size_bytes = if buffer.is_null() { 0 } else { size_bytes };
    let buffer = if buffer.is_null() { ptr::dangling_mut() } else { buffer };
    // SAFETY: the caller promises that `control` is null or valid, and room for the results.
    let (control, buffer) =
        unsafe { (CairnWalkControl::read(control), slice::from_raw_parts_mut(buffer, size_bytes)) };
    let control = control.filter(|control| control.copy_function.is_none());
    let (result, found) = match control.and_then(|control| Some((control, control.packing(packing)?))) {
        Some((control, packing)) => {
            // SAFETY: the caller promises the registers that `with_caller` has stored, of a call
            // that waits.
            let (walk, memory) = unsafe { kernel_walk_at(&control.own(), (*caller).record()) };
            match walk.run_packed(&memory, packing, OutOfReach::Error, buffer) {
                Ok(found) => (
                    found.count as isize,
                    CairnWalkInfo::of_own(found.stop, found.truncated, found.next_frame),
                ),
                Err(_) => (CAIRN_ERROR_FORMAT as isize, CairnWalkInfo::of_own(StopReason::Limit, true, None)),
            }
        }
        None => (CAIRN_ERROR_ARGUMENT as isize, CairnWalkInfo::invalid()),
    };
    // SAFETY: the caller promises that `info` is null or valid.
    unsafe { found.give(info) };
    result
}

/// Reads what cairn_walk_packed has written: backtrace_unpack of Darwin's backtrace(9). packing and
/// packing_base must be those that it was written with. Returns how many addresses are in
/// addresses, at most capacity, or CAIRN_ERROR_FORMAT where the bytes end within one, or
/// CAIRN_ERROR_ARGUMENT.
///
/// # Safety
///
/// `packed` has `size_bytes` bytes; `addresses` has room for `capacity` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairn_walk_unpack(
    packing: u32,
    packing_base: u64,
    packed: *const u8,
    size_bytes: usize,
    addresses: *mut u64,
    capacity: usize,
) -> isize {
    let control = CairnWalkControl { packing_base, ..CairnWalkControl::NONE };
    let Some(packing) = control.packing(packing).filter(|_| !packed.is_null() || size_bytes == 0) else {
        return CAIRN_ERROR_ARGUMENT as isize;
    };
    let packed = if packed.is_null() { ptr::dangling() } else { packed };
    // SAFETY: the caller promises that `packed` has `size_bytes` bytes; `addresses` has room for
    // `capacity` numbers.
    let (packed, addresses) =
        unsafe { (slice::from_raw_parts(packed, size_bytes), room(addresses, capacity)) };
    let Ok(unpacked) = xnu::unpack(packed, packing) else { return CAIRN_ERROR_FORMAT as isize };
    let mut count = 0;
    for (slot, address) in addresses.iter_mut().zip(unpacked) {
        *slot = address;
        count += 1;
    }
    count
}

/// Fills addresses with a stack by frame pointers, innermost first. Returns their number, at most
/// capacity. This is backtrace_user of Darwin's backtrace(9). It walks this thread, from where the
/// caller called this function, or with a copy_function whatever that reads, from the pc and
/// frame_pointer of the control. The pc comes first, unless frame_address is set. The slot behind
/// the last address is set to zero if there is one.
///
/// It may be called in malloc and in signal handlers. A copy_function must be safe there as well.
///
/// # Safety
///
/// `addresses` has room for `capacity` numbers; `control` and `info` are null or valid.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn cairn_walk_user(
    addresses: *mut u64,
    capacity: usize,
    control: *const CairnWalkControl,
    info: *mut CairnWalkInfo,
) -> usize {
    with_caller!(walk_user);
}

/// # Safety
///
/// The arguments are valid for `cairn_walk_user`. `caller` points to the registers that
/// `with_caller` has stored, and that caller waits for this function.
unsafe extern "C" fn walk_user(
    addresses: *mut u64,
    capacity: usize,
    control: *const CairnWalkControl,
    info: *mut CairnWalkInfo,
    _: usize,
    caller: *const Caller,
) -> usize {
    // SAFETY: the caller promises that `control` is null or valid, and room for the results.
    let (control, addresses) = unsafe { (CairnWalkControl::read(control), room(addresses, capacity)) };
    let (count, found) = match control {
        None => (0, CairnWalkInfo::invalid()),
        Some(control) => {
            let found = match control.copy_function {
                Some(copy) => {
                    let memory = CopiedMemory { copy, context: control.copy_context };
                    control.other().run(&memory, addresses)
                }
                // SAFETY: the caller promises the registers that `with_caller` has stored, of a
                // call that waits.
                None => unsafe { walk_frames_at(&control.own(), (*caller).site(), addresses) },
            };
            (found.count, CairnWalkInfo::of_user(&found))
        }
    };
    // SAFETY: the caller promises that `info` is null or valid.
    unsafe { found.give(info) };
    count
}

/// Does the same as cairn_backtrace, and reports in info, which may be null, whether the stack goes
/// on. CAIRN_WALK_INFO_TRUNCATED is set when there was no room for more frames, and when the stack
/// could not be followed to its end. The stack is found by unwind tables, so next_frame_address is
/// 0.
///
/// # Safety
///
/// `buffer` has room for `size` pointers; `info` is null or valid.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn cairn_backtrace_info(
    buffer: *mut *mut c_void,
    size: c_int,
    info: *mut CairnWalkInfo,
) -> c_int {
    with_caller!(backtrace_info);
}

/// # Safety
///
/// The arguments are valid for `cairn_backtrace_info`. `caller` points to the registers that
/// `with_caller` has stored, and that caller waits for this function.
unsafe extern "C" fn backtrace_info(
    buffer: *mut *mut c_void,
    size: c_int,
    info: *mut CairnWalkInfo,
    _: usize,
    _: usize,
    caller: *const Caller,
) -> c_int {
    let capacity = if buffer.is_null() { 0 } else { usize::try_from(size).unwrap_or(0) };
    // SAFETY: the caller's registers, and it waits for this function.
    let stack = unsafe { cairn_capture::capture_at((*caller).site()) };
    let mut frames = stack.frames();
    let (mut count, mut is_cut) = (0, false);
    for address in frames.by_ref().filter_map(|frame| frame.address()) {
        if count == capacity {
            is_cut = true;
            break;
        }
        // SAFETY: `count` is below the capacity, for which the caller promises room.
        unsafe { buffer.add(count).write(address.value() as *mut c_void) };
        count += 1;
    }
    let is_lost = stack.id() == cairn_capture::StackId::LOST;
    let reason = if is_cut || is_lost { StopReason::Limit } else { frames.stop_reason() };
    let truncated = reason != StopReason::EndOfStack;
    // SAFETY: the caller promises that `info` is null or valid.
    unsafe {
        CairnWalkInfo { flags: flags(true, truncated), ..CairnWalkInfo::new(exported_stop(reason)) }
            .give(info)
    };
    count as c_int
}

/// Memory that a function of the caller's copies.
struct CopiedMemory {
    copy: unsafe extern "C" fn(*mut c_void, *mut c_void, u64, usize) -> c_int,
    context: *mut c_void,
}

impl MemoryReader for CopiedMemory {
    fn read(&self, address: AbsoluteAddress, into: &mut [u8]) -> Option<()> {
        // SAFETY: the function is the caller's, and writes no more than it is asked for, by
        // contract.
        let status =
            unsafe { (self.copy)(self.context, into.as_mut_ptr().cast(), address.value(), into.len()) };
        (status == 0).then_some(())
    }
}

/// The caller's array.
///
/// # Safety
///
/// `addresses` is null or has room for `capacity` numbers.
unsafe fn room<'a>(addresses: *mut u64, capacity: usize) -> &'a mut [AbsoluteAddress] {
    if addresses.is_null() {
        return &mut [];
    }
    // SAFETY: the caller promises that `addresses` is null or has room for `capacity` numbers; an
    // address is a number.
    unsafe { slice::from_raw_parts_mut(addresses.cast(), capacity) }
}
