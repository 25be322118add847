//! The C face: what `cairn_heap.h` declares.
//!
//! `cargo xtask header` writes the header from the text of this file, doc comments included, which
//! are therefore written for readers of C. `libcairn` has these functions; for a device, the crate
//! is built as a static library with the features `c-api` and `staticlib`.
//!
//! The functions that allocate are naked: their first instructions note the return address and the
//! frame pointer of the caller, which no instruction behind them could know. So a recorded stack
//! begins at the caller, however the rest is compiled.
//!
//! Long because the header is written from this one file, with all structs, functions and their doc
//! comments in its order.

use core::ffi::{c_char, c_int, c_void};
use core::mem::offset_of;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use core::{mem, ptr, slice};

use cairn_format::{AbsoluteAddress, SliceSink, WordSize};
use cairn_unwind::{AddressRange, FnMemory, FrameLayout, FramePointerWalk};
use cairn_wire::heapblock::{BlockLayout, StackReference};
use cairn_wire::lws::log_line;

use crate::backend::Backend;
use crate::heap::{Event, Heap, Options};
use crate::lock::{Critical, HAS_CRITICAL_SECTION, Lock};
use crate::lws::{self, Owner};
use crate::stack::{CallStack, UserBits};

/// The layout of libwebsockets: a compressed stack and a list of all blocks.
pub const CAIRN_LAYOUT_LWS: u32 = 1;

/// The layout of heapprof: addresses between two magic words.
pub const CAIRN_LAYOUT_HEAPPROF: u32 = 2;

/// The layout of cairn: 16 bytes, and a guard behind the block.
pub const CAIRN_LAYOUT_CAIRN: u32 = 3;

/// An argument is invalid, such as a null pointer that is required.
pub const CAIRN_HEAP_ERROR_ARGUMENT: c_int = -1;

/// A block was allocated; the program does not have it yet.
pub const CAIRN_EVENT_ALLOCATED: u32 = 1;

/// A block is about to be freed; its contents are unchanged.
pub const CAIRN_EVENT_FREEING: u32 = 2;

/// A block was resized, and usually moved.
pub const CAIRN_EVENT_MOVED: u32 = 3;

/// An allocation failed for want of memory, or for the limit.
pub const CAIRN_EVENT_REFUSED: u32 = 4;

/// The guard behind a block was overwritten. Noticed when the block is freed or resized.
pub const CAIRN_EVENT_OVERFLOWED: u32 = 5;

/// A block was freed a second time.
pub const CAIRN_EVENT_FREED_TWICE: u32 = 6;

/// One event of the heap, for observer_function.
#[repr(C)]
pub struct CairnAnnotatedEvent {
    /// The size of this struct.
    pub type_size: usize,
    /// One of CAIRN_EVENT_...
    pub kind: u32,
    /// Overflowed: bytes from the start of the guard to its last wrong byte. Else 0.
    pub overflow_bytes: u32,
    /// The block; null for a failed allocation.
    pub block: *mut c_void,
    /// Moved: the previous address. Else null.
    pub from: *mut c_void,
    /// The requested size in bytes; 0 if it is unknown.
    pub size: usize,
}

/// The caller that allocates a block, for the functions whose names end with _at. Fill it with
/// zeros, then set type_size and the known fields. With zeros alone they do the same as the
/// functions without _at.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CairnAnnotatedCall {
    /// The size of this struct.
    pub type_size: usize,
    /// The return addresses to record, innermost first; or null.
    pub frames: *const usize,
    /// Number of frames.
    pub frame_count: usize,
    /// Without frames: the return address to begin with, or 0 for that of this call itself. A
    /// function that wraps the allocation passes __builtin_return_address(0).
    pub pc: usize,
    /// With pc: the frame pointer of the function that pc lies in; 0 if there is none. For
    /// walk_function.
    pub fp: usize,
    /// Layout of libwebsockets: bits of the program, written behind the size. The other layouts
    /// ignore them.
    pub user_bits: u64,
    /// Number of these bits; at most 64.
    pub user_bit_count: u32,
}

/// Layout of annotations, and source of memory. Fill it with zeros, then set type_size, layout,
/// malloc_function, free_function, and the fields that differ from their defaults.
#[repr(C)]
pub struct CairnAnnotatedOptions {
    /// The size of this struct.
    pub type_size: usize,
    /// One of CAIRN_LAYOUT_...; 0 for cairn's.
    pub layout: u32,
    /// heapprof: number of callers (up to 97); 0 for 16.
    pub callers: u32,
    /// Number of innermost frames to leave out of stacks.
    pub pre: u32,
    /// Number of outermost frames to leave out of stacks.
    pub post: u32,
    /// cairn: nonzero for no guard behind the blocks.
    pub has_no_guards: u32,
    /// cairn: nonzero to store stacks in front of the blocks even if they have numbers.
    pub is_inline: u32,
    /// Alignment of memory from malloc_function; 0 for two pointers.
    pub alignment: usize,
    /// Limit of the bytes in use; 0 for no limit.
    pub limit_bytes: usize,
    /// Allocates as malloc does: an RTOS's heap, dlmalloc, the C library's own.
    pub malloc_function: Option<unsafe extern "C" fn(usize) -> *mut c_void>,
    /// Frees as free does.
    pub free_function: Option<unsafe extern "C" fn(*mut c_void)>,
    /// Resizes as realloc does, or null.
    pub realloc_function: Option<unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void>,
    /// Allocates as memalign does (alignment, size), or null. With null, more bytes are requested,
    /// and aligned here.
    pub memalign_function: Option<unsafe extern "C" fn(usize, usize) -> *mut c_void>,
    /// Writes the return addresses of the present stack, innermost first, and returns their number.
    /// It writes at most as many as its last argument allows. It is called from inside of cairn, so
    /// the frames up to the return address of the annotated call are left out. If that address is
    /// not among them, it is recorded alone. Null, without a walk_function: cairn captures the
    /// stack if that is built in, else the return address of the call is recorded alone.
    pub capture_function: Option<unsafe extern "C" fn(*mut usize, usize) -> usize>,
    /// Called before the lists are changed, for a few instructions: disables interrupts. Null for a
    /// lock. Required by a library for a processor without compare-and-swap, where the counters
    /// need it as well.
    pub enter_function: Option<unsafe extern "C" fn() -> usize>,
    /// Called after the change, with the result of enter_function.
    pub leave_function: Option<unsafe extern "C" fn(usize)>,
    /// Walks the stack in place of capture_function. It takes the return address of the annotated
    /// call and the frame pointer of the function around it, writes the return addresses further
    /// out, at most as many as its last argument allows, and returns their number.
    /// cairn_frame_pointer_walk does this for code with frame pointers.
    pub walk_function: Option<unsafe extern "C" fn(usize, usize, *mut usize, usize) -> usize>,
    /// Called for every event, in its thread, with observer_context. It may allocate and free, and
    /// is called for that as well. Null for none.
    pub observer_function: Option<unsafe extern "C" fn(*const CairnAnnotatedEvent, *mut c_void)>,
    /// The last argument of observer_function.
    pub observer_context: *mut c_void,
}

/// Counters of the heap. Set type_size before the call.
#[repr(C)]
pub struct CairnAnnotatedCounters {
    /// The size of this struct.
    pub type_size: usize,
    /// Blocks in use.
    pub live_blocks: usize,
    /// Bytes in use, by requested sizes.
    pub live_bytes: usize,
    /// Peak of the bytes in use.
    pub peak_bytes: usize,
    /// Blocks allocated since the start.
    pub allocations: usize,
    /// Failed allocations.
    pub refused: usize,
    /// Frees of addresses that are no blocks of the heap.
    pub foreign: usize,
    /// Blocks freed twice.
    pub freed_twice: usize,
    /// Blocks whose guard was overwritten.
    pub overflowed: usize,
}

/// A list of live blocks in the layout of libwebsockets; zeros are an empty one. Nodes are three
/// pointers: previous, next, owner.
#[repr(C)]
pub struct CairnLwsOwner {
    /// The last node.
    pub tail: *mut c_void,
    /// The first node.
    pub head: *mut c_void,
    /// Number of nodes.
    pub count: usize,
}

const _: () = assert!(size_of::<CairnLwsOwner>() == size_of::<Owner>());

/// The size of the struct in the first version of the header.
const FIRST_OPTIONS_BYTES: usize = offset_of!(CairnAnnotatedOptions, walk_function);
/// The size of that struct in the first version of the header.
const FIRST_CALL_BYTES: usize = size_of::<CairnAnnotatedCall>();

/// Copies a struct of a caller that may know fewer fields of it, or more: missing ones are zero.
///
/// # Safety
///
/// - Zeros are a value of `T`, whose first field is its size.
/// - `given` is null or points to as many bytes as its first field says.
unsafe fn versioned<T>(given: *const T, first_bytes: usize) -> Option<T> {
    // SAFETY: the caller promises that zeros are a value of `T`, whose first field is its size;
    // `given` is null or points to as many bytes as its first field says.
    unsafe {
        let bytes = *given.cast::<usize>().as_ref()?;
        if bytes < first_bytes {
            return None;
        }
        let mut taken = mem::MaybeUninit::<T>::zeroed();
        let bytes = bytes.min(size_of::<T>());
        ptr::copy_nonoverlapping(given.cast::<u8>(), taken.as_mut_ptr().cast::<u8>(), bytes);
        Some(taken.assume_init())
    }
}

/// A word that holds a function; null for none.
struct Function(AtomicPtr<()>);

impl Function {
    const fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    fn set(&self, function: *mut ()) {
        self.0.store(function, Ordering::Release);
    }

    /// # Safety
    ///
    /// `F` is an `Option` of the type of function that was set.
    unsafe fn get<F>(&self) -> F {
        const { assert!(size_of::<F>() == size_of::<*mut ()>()) };
        let word = self.0.load(Ordering::Acquire);
        // SAFETY: the caller promises that `F` is an `Option` of the type of function that was set;
        // null is `None`.
        unsafe { mem::transmute_copy(&word) }
    }
}

static MALLOC: Function = Function::new();
static FREE: Function = Function::new();
static REALLOC: Function = Function::new();
static MEMALIGN: Function = Function::new();
static CAPTURE: Function = Function::new();
static ENTER: Function = Function::new();
static LEAVE: Function = Function::new();
static WALK: Function = Function::new();
static OBSERVE: Function = Function::new();
static OBSERVER_CONTEXT: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
static ALIGNMENT: AtomicUsize = AtomicUsize::new(2 * size_of::<usize>());

/// The allocator of the configured functions.
struct Configured;

impl Configured {
    fn functions(&self) -> Option<crate::MallocFunctions> {
        // SAFETY: `cairn_annotated_configure` stores functions of these types only.
        unsafe {
            Some(crate::MallocFunctions {
                malloc: MALLOC.get::<Option<_>>()?,
                free: FREE.get::<Option<_>>()?,
                realloc: REALLOC.get(),
                memalign: MEMALIGN.get(),
                alignment: ALIGNMENT.load(Ordering::Relaxed),
            })
        }
    }
}

// SAFETY: `cairn_annotated_configure` requires functions that are an allocator, and nothing is
// given out before it was called.
unsafe impl Backend for Configured {
    fn alignment(&self) -> usize {
        ALIGNMENT.load(Ordering::Relaxed)
    }

    fn can_align(&self) -> bool {
        self.functions().is_some_and(|functions| functions.can_align())
    }

    fn allocate(&self, size: usize, alignment: usize, is_zeroed: bool) -> *mut u8 {
        self.functions().map_or(ptr::null_mut(), |functions| functions.allocate(size, alignment, is_zeroed))
    }

    unsafe fn release(&self, origin: *mut u8, size: usize, alignment: usize) {
        if let Some(functions) = self.functions() {
            // SAFETY: the caller promises memory of these functions that nobody uses any more.
            unsafe { functions.release(origin, size, alignment) }
        }
    }

    unsafe fn resize(&self, origin: *mut u8, size: usize, new_size: usize) -> *mut u8 {
        // SAFETY: the caller promises memory of these functions that nobody else uses.
        self.functions()
            .map_or(ptr::null_mut(), |functions| unsafe { functions.resize(origin, size, new_size) })
    }

    unsafe fn release_foreign(&self, user: *mut u8) {
        if let Some(functions) = self.functions() {
            // SAFETY: the caller promises memory of these functions that nobody uses any more.
            unsafe { functions.release_foreign(user) }
        }
    }

    unsafe fn resize_foreign(&self, user: *mut u8, size: usize) -> *mut u8 {
        // SAFETY: the caller promises memory of these functions that nobody else uses.
        self.functions().map_or(ptr::null_mut(), |functions| unsafe { functions.resize_foreign(user, size) })
    }
}

static LOCK: Lock = Lock::new();

fn enter() -> usize {
    // SAFETY: `cairn_annotated_configure` stores a function of this type only.
    match unsafe { ENTER.get::<Option<unsafe extern "C" fn() -> usize>>() } {
        // SAFETY: `cairn_annotated_configure` requires functions that may be called with any such
        // arguments.
        Some(enter) => unsafe { enter() },
        None => {
            LOCK.acquire(1);
            0
        }
    }
}

fn leave(state: usize) {
    // SAFETY: `cairn_annotated_configure` stores a function of this type only.
    match unsafe { LEAVE.get::<Option<unsafe extern "C" fn(usize)>>() } {
        // SAFETY: `cairn_annotated_configure` requires functions that may be called with any such
        // arguments.
        Some(leave) => unsafe { leave(state) },
        None => LOCK.release(),
    }
}

static HEAP: Heap<Configured> = {
    let heap = Heap::new(Configured, Options::new(BlockLayout::Cairn));
    if HAS_CRITICAL_SECTION { heap } else { heap.with_critical(Critical { enter, leave }) }
};

/// The critical section of a library for C: the two functions of the program.
#[cfg(all(feature = "staticlib", any(feature = "critical-section", not(target_has_atomic = "ptr"))))]
mod section {
    struct Section;

    critical_section::set_impl!(Section);

    // SAFETY: `cairn_annotated_configure` takes no options without the two functions, which the
    // program states to be a critical section. Before that call nothing is given out, and only a
    // counter of foreign blocks changes.
    unsafe impl critical_section::Impl for Section {
        unsafe fn acquire() -> critical_section::RawRestoreState {
            // SAFETY: `cairn_annotated_configure` stores a function of this type only.
            let enter = unsafe { super::ENTER.get::<Option<unsafe extern "C" fn() -> usize>>() };
            // SAFETY: `cairn_annotated_configure` requires functions that may be called with any
            // such arguments.
            enter.map_or(0, |enter| unsafe { enter() })
        }

        unsafe fn release(state: critical_section::RawRestoreState) {
            // SAFETY: `cairn_annotated_configure` stores a function of this type only.
            if let Some(leave) = unsafe { super::LEAVE.get::<Option<unsafe extern "C" fn(usize)>>() } {
                // SAFETY: `cairn_annotated_configure` requires functions that may be called with
                // any such arguments.
                unsafe { leave(state) }
            }
        }
    }
}

/// Passes an event to the program's observer.
fn observe(event: &Event) {
    // SAFETY: `cairn_annotated_configure` stores a function of this type only.
    let function =
        unsafe { OBSERVE.get::<Option<unsafe extern "C" fn(*const CairnAnnotatedEvent, *mut c_void)>>() };
    let Some(function) = function else { return };
    let null = ptr::null_mut();
    let (kind, block, from, size, overflow) = match *event {
        Event::Allocated { user, size } => (CAIRN_EVENT_ALLOCATED, user, null, size, 0),
        Event::Freeing { user, size } => (CAIRN_EVENT_FREEING, user, null, size, 0),
        Event::Moved { from, to, size } => (CAIRN_EVENT_MOVED, to, from, size, 0),
        Event::Refused { size } => (CAIRN_EVENT_REFUSED, null, null, size, 0),
        Event::Overflowed { user, size, bytes } => (CAIRN_EVENT_OVERFLOWED, user, null, size, bytes),
        Event::FreedTwice { user } => (CAIRN_EVENT_FREED_TWICE, user, null, 0, 0),
    };
    let event = CairnAnnotatedEvent {
        type_size: size_of::<CairnAnnotatedEvent>(),
        kind,
        overflow_bytes: overflow as u32,
        block: block.cast(),
        from: from.cast(),
        size,
    };
    // SAFETY: `cairn_annotated_configure` requires functions that may be called with any such
    // arguments.
    unsafe { function(&raw const event, OBSERVER_CONTEXT.load(Ordering::Acquire)) }
}

/// The caller's registers, stored by a naked function; zeros on processors without one.
#[derive(Clone, Copy)]
struct Site {
    /// The return address.
    pc: usize,
    /// The frame pointer.
    fp: usize,
    /// The stack pointer once the call has returned.
    #[cfg(feature = "capture")]
    sp: usize,
}

/// The stack of the caller of a function of this file.
struct Caller {
    site: Site,
    /// The call that the program stated.
    call: Option<CairnAnnotatedCall>,
}

type Capture = Option<unsafe extern "C" fn(*mut usize, usize) -> usize>;
type Walk = Option<unsafe extern "C" fn(usize, usize, *mut usize, usize) -> usize>;

impl Caller {
    /// Returns the return address to begin with, and the frame pointer there. Both are 0 on
    /// processors without a naked function.
    fn start(&self) -> (usize, usize) {
        match self.call {
            Some(call) if call.pc != 0 => (code_address(call.pc), call.fp),
            _ => (code_address(self.site.pc), self.site.fp),
        }
    }

    /// Returns the addresses that the program stated.
    fn given(&self) -> Option<&[usize]> {
        let call = self.call.as_ref().filter(|call| !call.frames.is_null())?;
        // SAFETY: every function with `_at` requires frames of `frame_count` words, and waits for
        // this one.
        Some(unsafe { slice::from_raw_parts(call.frames, call.frame_count) })
    }

    /// Returns true when cairn captures the stack.
    #[cfg(feature = "capture")]
    fn is_captured(&self) -> bool {
        // SAFETY: `cairn_annotated_configure` stores functions of these types only.
        let has_functions = unsafe { CAPTURE.get::<Capture>().is_some() || WALK.get::<Walk>().is_some() };
        !has_functions && self.call.is_none_or(|call| call.frames.is_null() && call.pc == 0)
    }

    /// Returns the stack of the stored registers.
    #[cfg(feature = "capture")]
    fn captured(&self) -> crate::At {
        let Site { pc, fp, sp } = self.site;
        let site = cairn_capture::CallSite { pc: pc as u64, sp: sp as u64, fp: fp as u64 };
        // SAFETY: a naked function has stored the registers of its caller, which waits for this
        // function.
        unsafe { crate::At::new(site) }
    }

    /// Captures the stack of this function, from which the frames of cairn have to be cut.
    #[cfg(feature = "capture")]
    fn captured_from_here(&self, into: &mut [usize]) -> usize {
        crate::Here { skip: 0 }.addresses(into)
    }

    #[cfg(not(feature = "capture"))]
    #[expect(clippy::unused_self, reason = "the twin above uses it")]
    const fn captured_from_here(&self, _into: &mut [usize]) -> usize {
        0
    }
}

impl CallStack for Caller {
    fn addresses(&self, into: &mut [usize]) -> usize {
        if let Some(frames) = self.given() {
            return frames.addresses(into);
        }
        #[cfg(feature = "capture")]
        if self.is_captured() {
            return self.captured().addresses(into);
        }
        let (pc, fp) = self.start();
        // SAFETY: `cairn_annotated_configure` stores a function of this type only.
        if let Some(walk) = unsafe { WALK.get::<Walk>() } {
            let Some((first, rest)) = into.split_first_mut() else { return 0 };
            *first = pc;
            // SAFETY: `cairn_annotated_configure` requires functions that may be called with any
            // such arguments.
            return 1 + unsafe { walk(pc, fp, rest.as_mut_ptr(), rest.len()) }.min(rest.len());
        }
        // SAFETY: `cairn_annotated_configure` stores a function of this type only.
        let count = match unsafe { CAPTURE.get::<Capture>() } {
            // SAFETY: `cairn_annotated_configure` requires functions that may be called with any
            // such arguments.
            Some(capture) => unsafe { capture(into.as_mut_ptr(), into.len()) }.min(into.len()),
            None => self.captured_from_here(into),
        };
        begin_at(pc, into, count)
    }

    fn reference(&self) -> StackReference {
        #[cfg(feature = "capture")]
        if self.is_captured() {
            return self.captured().reference();
        }
        StackReference::None
    }

    fn user_bits(&self) -> UserBits {
        self.call
            .map_or(UserBits::NONE, |call| UserBits { value: call.user_bits, count: call.user_bit_count })
    }
}

/// Returns a return address without the bit of the instruction set.
const fn code_address(pc: usize) -> usize {
    if cfg!(target_arch = "arm") { pc & !1 } else { pc }
}

/// Removes the addresses in front of `pc` from the first `count`. If `pc` is not among them, it
/// remains alone. Returns the number of addresses.
fn begin_at(pc: usize, addresses: &mut [usize], count: usize) -> usize {
    if pc == 0 {
        return count;
    }
    let found = addresses.get(..count).unwrap_or_default();
    if let Some(start) = found.iter().position(|address| code_address(*address) == pc) {
        addresses.copy_within(start..count, 0);
        return count - start;
    }
    addresses.first_mut().map_or(0, |place| {
        *place = pc;
        1
    })
}

/// Defines functions of up to three arguments as naked functions. They pass the caller's return
/// address, frame pointer and stack pointer as fourth to sixth argument. On processors that are not
/// listed here these are zeros, and stacks come from the functions of the program.
macro_rules! entries {
    ($(
        $(#[$attribute:meta])*
        pub $(unsafe $(@$safety:tt)?)? extern "C" fn $name:ident($($argument:ident: $type:ty),* $(,)?) -> *mut c_void {
            $inner:ident($($given:expr),*)
        }
    )*) => { $(
        entries!(@one [$(#[$attribute])*] [$(unsafe $(@$safety)?)?] $name [$($argument: $type),*] $inner [$($given),*]);
    )* };
    (@one [$($attribute:tt)*] [$($safety:tt)*] $name:ident [$($arguments:tt)*] $inner:ident [$($given:expr),*]) => {
        #[cfg(any(
            target_arch = "x86_64",
            target_arch = "x86",
            target_arch = "aarch64",
            target_arch = "arm",
            target_arch = "riscv32",
            target_arch = "riscv64"
        ))]
        $($attribute)*
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub $($safety)* extern "C" fn $name($($arguments)*) -> *mut c_void {
            #[cfg(target_arch = "x86_64")]
            core::arch::naked_asm!(
                ".cfi_startproc",
                "mov rcx, qword ptr [rsp]",
                "mov r8, rbp",
                "lea r9, [rsp + 8]",
                "jmp {inner}",
                ".cfi_endproc",
                inner = sym $inner,
            );
            // The pushed words leave the stack pointer aligned to 16 at the call.
            #[cfg(target_arch = "x86")]
            core::arch::naked_asm!(
                ".cfi_startproc",
                "lea eax, [esp + 4]",
                "sub esp, 4",
                "push eax",
                "push ebp",
                "push dword ptr [esp + 12]",
                "push dword ptr [esp + 28]",
                "push dword ptr [esp + 28]",
                "push dword ptr [esp + 28]",
                ".cfi_def_cfa_offset 32",
                "call {inner}",
                "add esp, 28",
                ".cfi_def_cfa_offset 4",
                "ret",
                ".cfi_endproc",
                inner = sym $inner,
            );
            #[cfg(target_arch = "aarch64")]
            core::arch::naked_asm!(
                ".cfi_startproc",
                "mov x3, x30",
                "mov x4, x29",
                "mov x5, sp",
                "b {inner}",
                ".cfi_endproc",
                inner = sym $inner,
            );
            // A call and not a jump: a jump of ARMv6-M reaches 2 KiB.
            #[cfg(target_arch = "arm")]
            core::arch::naked_asm!(
                "push {{r4, lr}}",
                "sub sp, #8",
                "mov r3, lr",
                concat!("mov r4, ", frame_pointer!()),
                "str r4, [sp, #0]",
                "add r4, sp, #16",
                "str r4, [sp, #4]",
                "bl {inner}",
                "add sp, #8",
                "pop {{r4, pc}}",
                inner = sym $inner,
            );
            #[cfg(any(target_arch = "riscv32", target_arch = "riscv64"))]
            core::arch::naked_asm!(
                "mv a3, ra",
                "mv a4, s0",
                "mv a5, sp",
                "tail {inner}",
                inner = sym $inner,
            );
        }

        #[cfg(not(any(
            target_arch = "x86_64",
            target_arch = "x86",
            target_arch = "aarch64",
            target_arch = "arm",
            target_arch = "riscv32",
            target_arch = "riscv64"
        )))]
        $($attribute)*
        #[unsafe(no_mangle)]
        pub $($safety)* extern "C" fn $name($($arguments)*) -> *mut c_void {
            $inner($($given,)* 0, 0, 0)
        }
    };
}

/// Frame pointer of Thumb code, for targets without an operating system.
#[cfg(all(target_arch = "arm", target_os = "none"))]
macro_rules! frame_pointer {
    () => {
        "r7"
    };
}
/// Frame pointer of Arm code.
#[cfg(all(target_arch = "arm", not(target_os = "none")))]
macro_rules! frame_pointer {
    () => {
        "r11"
    };
}

/// Returns the caller of a function without _at, from the registers that its naked function passes.
const fn plain(pc: usize, fp: usize, _sp: usize) -> Caller {
    let site = Site {
        pc,
        fp,
        #[cfg(feature = "capture")]
        sp: _sp,
    };
    Caller { site, call: None }
}

/// Returns the caller of a function with _at; `None` for an invalid argument.
fn with_call(call: *const CairnAnnotatedCall, pc: usize, fp: usize, sp: usize) -> Option<Caller> {
    let caller = plain(pc, fp, sp);
    if call.is_null() {
        return Some(caller);
    }
    // SAFETY: every function with `_at` requires `type_size` bytes there; zeros are such a call.
    let call = unsafe { versioned(call, FIRST_CALL_BYTES) }?;
    let is_usable = call.user_bit_count <= 64 && (call.frames.is_null() || call.frames.is_aligned());
    is_usable.then_some(Caller { call: Some(call), ..caller })
}

type Call = *const CairnAnnotatedCall;

/// Allocates for a caller; null if the size overflows or the call is invalid.
fn allocate(size: Option<usize>, alignment: usize, is_zeroed: bool, caller: Option<Caller>) -> *mut c_void {
    let (Some(size), Some(caller)) = (size, caller) else { return ptr::null_mut() };
    HEAP.allocate(size, alignment, is_zeroed, caller).cast()
}

extern "C" fn malloc(size: usize, _: usize, _: usize, pc: usize, fp: usize, sp: usize) -> *mut c_void {
    allocate(Some(size), 1, false, Some(plain(pc, fp, sp)))
}

extern "C" fn malloc_at(size: usize, call: Call, _: usize, pc: usize, fp: usize, sp: usize) -> *mut c_void {
    allocate(Some(size), 1, false, with_call(call, pc, fp, sp))
}

extern "C" fn calloc(count: usize, size: usize, _: usize, pc: usize, fp: usize, sp: usize) -> *mut c_void {
    allocate(count.checked_mul(size), 1, true, Some(plain(pc, fp, sp)))
}

extern "C" fn calloc_at(
    count: usize,
    size: usize,
    call: Call,
    pc: usize,
    fp: usize,
    sp: usize,
) -> *mut c_void {
    allocate(count.checked_mul(size), 1, true, with_call(call, pc, fp, sp))
}

extern "C" fn memalign(
    alignment: usize,
    size: usize,
    _: usize,
    pc: usize,
    fp: usize,
    sp: usize,
) -> *mut c_void {
    allocate(Some(size), alignment, false, Some(plain(pc, fp, sp)))
}

extern "C" fn memalign_at(
    alignment: usize,
    size: usize,
    call: Call,
    pc: usize,
    fp: usize,
    sp: usize,
) -> *mut c_void {
    allocate(Some(size), alignment, false, with_call(call, pc, fp, sp))
}

extern "C" fn realloc(
    block: *mut c_void,
    size: usize,
    _: usize,
    pc: usize,
    fp: usize,
    sp: usize,
) -> *mut c_void {
    // SAFETY: `cairn_annotated_realloc` requires null or a block of this heap that nobody else
    // uses.
    unsafe { resize(block, size, plain(pc, fp, sp)) }
}

extern "C" fn realloc_at(
    block: *mut c_void,
    size: usize,
    call: Call,
    pc: usize,
    fp: usize,
    sp: usize,
) -> *mut c_void {
    let Some(caller) = with_call(call, pc, fp, sp) else { return ptr::null_mut() };
    // SAFETY: `cairn_annotated_realloc_at` requires null or a block of this heap that nobody else
    // uses.
    unsafe { resize(block, size, caller) }
}

/// # Safety
///
/// `block` is null, or a block of this heap that nobody else uses.
unsafe fn resize(block: *mut c_void, size: usize, caller: Caller) -> *mut c_void {
    if size == 0 && !block.is_null() {
        // SAFETY: the caller promises null, or a block of this heap that nobody else uses.
        unsafe { HEAP.release(block.cast(), 1) };
        return ptr::null_mut();
    }
    // SAFETY: the caller promises null, or a block of this heap that nobody else uses.
    unsafe { HEAP.resize(block.cast(), size, 1, caller) }.cast()
}

/// Sets the source of memory and the layout, before the first block; all allocations fail until
/// then. Returns 0 or CAIRN_HEAP_ERROR_ARGUMENT.
///
/// # Safety
///
/// `options` points to `type_size` bytes, and the functions do what their fields require.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairn_annotated_configure(options: *const CairnAnnotatedOptions) -> c_int {
    // SAFETY: the caller promises that `options` points to `type_size` bytes, and the functions do
    // what they are said to do; zeros are such options.
    let Some(given) = (unsafe { versioned(options, FIRST_OPTIONS_BYTES) }) else {
        return CAIRN_HEAP_ERROR_ARGUMENT;
    };
    let word = size_of::<usize>();
    let alignment = if given.alignment == 0 { 2 * word } else { given.alignment };
    // Where the crate `critical-section` guards lists, it is the program's, or in a library for C
    // these two functions.
    let has_section = given.enter_function.is_some() && given.leave_function.is_some();
    let has_neither = given.enter_function.is_none() && given.leave_function.is_none();
    let is_section_usable = match (HAS_CRITICAL_SECTION, cfg!(feature = "staticlib")) {
        (false, _) => has_section || has_neither,
        (true, true) => has_section,
        (true, false) => has_neither,
    };
    let is_usable = given.malloc_function.is_some()
        && given.free_function.is_some()
        && is_section_usable
        && alignment.is_power_of_two()
        && alignment >= word;
    let layout = match given.layout {
        1 => BlockLayout::Lws,
        2 => BlockLayout::Heapprof,
        0 | 3 => BlockLayout::Cairn,
        _ => return CAIRN_HEAP_ERROR_ARGUMENT,
    };
    if !is_usable {
        return CAIRN_HEAP_ERROR_ARGUMENT;
    }
    let mut options = Options::new(layout);
    options.callers = if given.callers == 0 { 16 } else { given.callers as usize };
    (options.pre, options.post) = (given.pre as usize, given.post as usize);
    (options.has_guards, options.is_inline) = (given.has_no_guards == 0, given.is_inline != 0);
    HEAP.configure(options);
    HEAP.set_limit(if given.limit_bytes == 0 { usize::MAX } else { given.limit_bytes });
    ALIGNMENT.store(alignment, Ordering::Relaxed);
    let null = ptr::null_mut();
    CAPTURE.set(given.capture_function.map_or(null, |function| function as *mut ()));
    ENTER.set(given.enter_function.map_or(null, |function| function as *mut ()));
    LEAVE.set(given.leave_function.map_or(null, |function| function as *mut ()));
    WALK.set(given.walk_function.map_or(null, |function| function as *mut ()));
    OBSERVER_CONTEXT.store(given.observer_context, Ordering::Release);
    OBSERVE.set(given.observer_function.map_or(null, |function| function as *mut ()));
    HEAP.set_observer(given.observer_function.map(|_| observe as fn(&Event)));
    REALLOC.set(given.realloc_function.map_or(null, |function| function as *mut ()));
    MEMALIGN.set(given.memalign_function.map_or(null, |function| function as *mut ()));
    FREE.set(given.free_function.map_or(null, |function| function as *mut ()));
    MALLOC.set(given.malloc_function.map_or(null, |function| function as *mut ()));
    // SAFETY: a static; the program configures the heap before other threads use it.
    unsafe { HEAP.write_anchor(0) };
    0
}

entries! {
/// Allocates as malloc does. The recorded stack begins at the caller.
pub extern "C" fn cairn_annotated_malloc(size: usize) -> *mut c_void {
    malloc(size, 0, 0)
}

/// Allocates as calloc does.
pub extern "C" fn cairn_annotated_calloc(count: usize, size: usize) -> *mut c_void {
    calloc(count, size, 0)
}

/// Allocates as memalign does: alignment is a power of two.
pub extern "C" fn cairn_annotated_memalign(alignment: usize, size: usize) -> *mut c_void {
    memalign(alignment, size, 0)
}

/// Resizes as realloc does; a size of 0 frees the block and returns null.
///
/// # Safety
///
/// As for realloc.
pub unsafe extern "C" fn cairn_annotated_realloc(block: *mut c_void, size: usize) -> *mut c_void {
    realloc(block, size, 0)
}

/// Allocates as malloc does, with the caller in call. Also returns null for an invalid call: a
/// wrong type_size, more than 64 bits, frames that are not aligned.
///
/// # Safety
///
/// `call` is null or points to `type_size` bytes, its frames to `frame_count` words.
pub unsafe extern "C" fn cairn_annotated_malloc_at(size: usize, call: *const CairnAnnotatedCall) -> *mut c_void {
    malloc_at(size, call, 0)
}

/// Allocates as calloc does, with the caller in call.
///
/// # Safety
///
/// `call` is null or points to `type_size` bytes, its frames to `frame_count` words.
pub unsafe extern "C" fn cairn_annotated_calloc_at(count: usize, size: usize, call: *const CairnAnnotatedCall) -> *mut c_void {
    calloc_at(count, size, call)
}

/// Allocates as memalign does, with the caller in call.
///
/// # Safety
///
/// `call` is null or points to `type_size` bytes, its frames to `frame_count` words.
pub unsafe extern "C" fn cairn_annotated_memalign_at(alignment: usize, size: usize, call: *const CairnAnnotatedCall) -> *mut c_void {
    memalign_at(alignment, size, call)
}

/// Resizes as realloc does, with the caller in call. Returns null and changes nothing for an
/// invalid call.
///
/// # Safety
///
/// `block` is null, or a block of this heap that nobody else uses; `call` as for
/// `cairn_annotated_malloc_at`.
pub unsafe extern "C" fn cairn_annotated_realloc_at(block: *mut c_void, size: usize, call: *const CairnAnnotatedCall) -> *mut c_void {
    realloc_at(block, size, call)
}
}

/// Walks frame pointers, for walk_function. It begins at fp, the frame pointer of a function that
/// called the allocation, and goes up to stack_end, the highest address of its stack. Writes the
/// return addresses that it finds, innermost first, at most room, and returns their number. It ends
/// at an invalid frame pointer: 0, outside of the stack, not aligned, or not above the frame
/// before. The frames are those of the compiler's convention: GCC's and LLVM's on x86, AArch64 and
/// RISC-V, LLVM's on Arm.
///
/// # Safety
///
/// The memory from `fp` to `stack_end` is a stack, and may be read; `addresses` points to `room`
/// words.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairn_frame_pointer_walk(
    fp: usize,
    stack_end: usize,
    addresses: *mut usize,
    room: usize,
) -> usize {
    let is_riscv = cfg!(any(target_arch = "riscv32", target_arch = "riscv64"));
    let layout = if is_riscv { FrameLayout::RISC_V } else { FrameLayout::PAIR_AT_FRAME_POINTER };
    let lowest = fp.saturating_sub(2 * size_of::<usize>());
    let at = |address: usize| AbsoluteAddress::new(address as u64);
    let stack = AddressRange::new(at(if is_riscv { lowest } else { fp }), at(stack_end));
    let memory = FnMemory(|address: AbsoluteAddress, into: &mut [u8]| {
        // SAFETY: the caller promises that the memory from `fp` to `stack_end` is a stack, and may
        // be read; `addresses` points to `room` words; the walk reads only within the range.
        unsafe {
            let from = ptr::with_exposed_provenance::<u8>(address.value() as usize);
            ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len());
        }
        Some(())
    });
    if addresses.is_null() {
        return 0;
    }
    let records = FramePointerWalk::new(memory, fp as u64, stack, WordSize::NATIVE).layout(layout);
    let mut count = 0;
    for record in records.take(room) {
        // SAFETY: the caller promises that the memory from `fp` to `stack_end` is a stack, and may
        // be read; `addresses` points to `room` words.
        unsafe { addresses.add(count).write(code_address(record.return_address.value() as usize)) };
        count += 1;
    }
    count
}

/// Frees as free does. Memory that malloc_function returned outside of this heap is passed to
/// free_function.
///
/// # Safety
///
/// `block` is null, or a block of this heap that nobody uses any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairn_annotated_free(block: *mut c_void) {
    // SAFETY: the caller promises null, or a block of this heap that nobody uses any more.
    unsafe { HEAP.release(block.cast(), 1) }
}

/// Returns the requested size; 0 for an address that is no block of this heap.
///
/// # Safety
///
/// `block` is null or a block that is in use.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairn_annotated_usable_size(block: *const c_void) -> usize {
    if block.is_null() {
        return 0;
    }
    // SAFETY: the caller promises that `block` is null or a block that is in use.
    unsafe { HEAP.size_of(block.cast()) }.unwrap_or(0)
}

/// Fills counters, whose type_size the caller has set. Returns 0 or CAIRN_HEAP_ERROR_ARGUMENT.
///
/// # Safety
///
/// `counters` points to `type_size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairn_annotated_counters(counters: *mut CairnAnnotatedCounters) -> c_int {
    // SAFETY: the caller promises that `counters` points to `type_size` bytes.
    match unsafe { counters.as_mut() } {
        Some(place) if place.type_size >= size_of::<CairnAnnotatedCounters>() => {
            let found = HEAP.counters();
            place.live_blocks = found.live_blocks;
            place.live_bytes = found.live_bytes;
            place.peak_bytes = found.peak_bytes;
            place.allocations = found.allocations;
            place.refused = found.refused;
            place.foreign = found.foreign;
            place.freed_twice = found.freed_twice;
            place.overflowed = found.overflowed;
            0
        }
        _ => CAIRN_HEAP_ERROR_ARGUMENT,
    }
}

/// Calls put with a line ~m#... for each live block of the layout of libwebsockets, line end
/// included, oldest first. put is passed context, and must not allocate. For other layouts,
/// cairn_annotated_lines_in finds the blocks in the memory of the heap.
///
/// # Safety
///
/// `put` may be called with these arguments.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairn_annotated_lines(
    put: Option<unsafe extern "C" fn(*const c_char, usize, *mut c_void)>,
    context: *mut c_void,
) -> c_int {
    let Some(put) = put else { return CAIRN_HEAP_ERROR_ARGUMENT };
    HEAP.for_each_live(|block| {
        // SAFETY: the caller promises that `put` may be called with these arguments.
        let mut sink = lws::line_sink(|bytes| unsafe { put(bytes.as_ptr().cast(), bytes.len(), context) });
        // The sink cannot fail.
        let _ = block.write_line(&mut sink);
    });
    0
}

/// Writes the lines of all live blocks of the layout of cairn or heapprof in these bytes of memory.
/// It does the same as cairn_annotated_lines for each block, in the order of addresses. No thread
/// may allocate or free meanwhile.
///
/// # Safety
///
/// The memory may be read and does not change; `put` as for `cairn_annotated_lines`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairn_annotated_lines_in(
    memory: *const c_void,
    bytes: usize,
    put: Option<unsafe extern "C" fn(*const c_char, usize, *mut c_void)>,
    context: *mut c_void,
) -> c_int {
    let Some(put) = put else { return CAIRN_HEAP_ERROR_ARGUMENT };
    let start = memory.cast::<u8>();
    if start.is_null() || start.addr() % size_of::<usize>() != 0 {
        return CAIRN_HEAP_ERROR_ARGUMENT;
    }
    let show = |block: crate::blocks::Block<'_>| {
        // SAFETY: the caller promises that the memory may be read and does not change; `put` as for
        // `cairn_annotated_lines`.
        let mut sink = lws::line_sink(|bytes| unsafe { put(bytes.as_ptr().cast(), bytes.len(), context) });
        // The sink takes everything.
        let _ = block.write_line(of_number, &mut sink);
    };
    // SAFETY: the caller promises that the memory may be read and does not change; `put` as for
    // `cairn_annotated_lines`.
    unsafe {
        match HEAP.options().layout {
            BlockLayout::Heapprof => crate::blocks::heapprof_blocks(start, bytes).for_each(show),
            _ => crate::blocks::cairn_blocks(start, bytes, size_of::<usize>()).for_each(show),
        }
    }
    0
}

#[cfg(feature = "capture")]
fn of_number(number: u32, into: &mut [usize]) -> usize {
    let Some(id) = cairn_capture::StackId::from_number(number) else { return 0 };
    let frames = cairn_capture::Stack::from_id(id).frames().filter_map(cairn_format::Frame::address);
    into.iter_mut().zip(frames).map(|(place, address)| *place = address.value() as usize).count()
}

#[cfg(not(feature = "capture"))]
fn of_number(_number: u32, _into: &mut [usize]) -> usize {
    0
}

/// Compresses a stack and a size into blob, and returns the bytes to allocate beyond size. This is
/// a multiple of alignment, which is a power of two and at least that of a pointer. Corresponds to
/// lws_alloc_metadata_gen, with the addresses as an argument. A blob that does not fit into one
/// byte less than room is replaced by the one that marks a failure. Returns 0 for invalid
/// arguments.
///
/// # Safety
///
/// `addresses` points to `count` words, `blob` to `room` bytes, `blob_bytes` to a word.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairn_lws_generate(
    size: usize,
    addresses: *const usize,
    count: usize,
    alignment: usize,
    blob: *mut u8,
    room: usize,
    blob_bytes: *mut usize,
) -> usize {
    // SAFETY: the caller promises that `addresses` points to `count` words, `blob` to `room` bytes,
    // `blob_bytes` to a word.
    unsafe { cairn_lws_generate_with(size, addresses, count, alignment, 0, 0, blob, room, blob_bytes) }
}

/// Does the same as cairn_lws_generate, with user_bit_count bits of the program behind the size.
/// The maximum is 64.
///
/// # Safety
///
/// `addresses` points to `count` words, `blob` to `room` bytes, `blob_bytes` to a word.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairn_lws_generate_with(
    size: usize,
    addresses: *const usize,
    count: usize,
    alignment: usize,
    user_bits: u64,
    user_bit_count: u32,
    blob: *mut u8,
    room: usize,
    blob_bytes: *mut usize,
) -> usize {
    let is_usable = user_bit_count <= 64
        && !blob.is_null()
        && room >= 3
        && !blob_bytes.is_null()
        && (count == 0 || !addresses.is_null());
    if !is_usable || !alignment.is_power_of_two() || alignment < size_of::<usize>() {
        return 0;
    }
    // SAFETY: the caller promises `count` words, `room` bytes and a word at these addresses.
    let (addresses, buffer) = unsafe {
        let addresses = if count == 0 { &[] } else { slice::from_raw_parts(addresses, count) };
        (addresses, slice::from_raw_parts_mut(blob, room))
    };
    let bits = UserBits { value: user_bits, count: user_bit_count };
    let generated = lws::generate(addresses, size, alignment, bits.fields(), buffer);
    let (prefix_bytes, bytes) = (generated.prefix_bytes(), generated.blob().len());
    let gave_up = bytes == 2;
    // SAFETY: the caller promises `count` words, `room` bytes and a word at these addresses; there
    // are at least 3 bytes.
    unsafe {
        if gave_up {
            blob.cast::<[u8; 2]>().write([0, 0]);
        }
        blob_bytes.write(bytes);
    }
    prefix_bytes
}

/// Writes a blob to the start of an allocation, and appends the block to the list. The allocation
/// has prefix_bytes and more. Returns the user's address. Corresponds to
/// _lws_alloc_metadata_adjust. The caller must lock the list meanwhile.
///
/// # Safety
///
/// The arguments are results of `cairn_lws_generate`, for memory of its alignment.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairn_lws_adjust(
    owner: *mut CairnLwsOwner,
    origin: *mut c_void,
    prefix_bytes: usize,
    blob: *const u8,
    blob_bytes: usize,
) -> *mut c_void {
    // SAFETY: the caller promises that the arguments are what `cairn_lws_generate` gave, for memory
    // of its alignment.
    unsafe {
        let user = origin.cast::<u8>().add(prefix_bytes);
        lws::write_before(user, slice::from_raw_parts(blob, blob_bytes));
        lws::link(owner.cast(), lws::node_of(user));
        user.cast()
    }
}

/// Removes a block from its list and returns the start of the underlying allocation, to be freed.
/// Stores the place of its blob in blob and blob_bytes, if these are not null. Corresponds to
/// _lws_alloc_metadata_trim. The caller must lock the list meanwhile.
///
/// # Safety
///
/// `user` came from `cairn_lws_adjust` with this list and this alignment.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairn_lws_trim(
    owner: *mut CairnLwsOwner,
    user: *mut c_void,
    alignment: usize,
    blob: *mut *const u8,
    blob_bytes: *mut usize,
) -> *mut c_void {
    // SAFETY: the caller promises that `user` came from `cairn_lws_adjust` with this list and this
    // alignment.
    unsafe {
        let trimmed = lws::trim(owner.cast(), user.cast(), alignment);
        if let Some(place) = blob.as_mut() {
            *place = trimmed.blob;
        }
        if let Some(place) = blob_bytes.as_mut() {
            *place = trimmed.blob_bytes;
        }
        trimmed.origin.cast()
    }
}

/// Writes the return addresses of a block, innermost first, and its size, if that is not null.
/// Corresponds to lws_alloc_metadata_parse. Returns the number of addresses, or
/// CAIRN_HEAP_ERROR_ARGUMENT for a blob that marks a failure or was overwritten.
///
/// # Safety
///
/// `user` is a block with this layout; `addresses` points to `room` words.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairn_lws_parse(
    user: *const c_void,
    addresses: *mut usize,
    room: usize,
    size: *mut usize,
) -> c_int {
    // SAFETY: the caller promises that `user` is a block with this layout; `addresses` points to
    // `room` words.
    let Ok(backtrace) = (unsafe { lws::parse(user.cast()) }) else { return CAIRN_HEAP_ERROR_ARGUMENT };
    // SAFETY: the caller promises that `user` is a block with this layout; `addresses` points to
    // `room` words.
    unsafe {
        if let Some(size) = size.as_mut() {
            *size = backtrace.allocation_size_bytes as usize;
        }
        let mut count = 0;
        for address in backtrace.addresses.iter().take(if addresses.is_null() { 0 } else { room }) {
            addresses.add(count).write(address.value() as usize);
            count += 1;
        }
        count as c_int
    }
}

/// Reads bit_count bits of the program behind the size of a block. Returns 0, or
/// CAIRN_HEAP_ERROR_ARGUMENT when the block has fewer, or its blob marks a failure or was
/// overwritten.
///
/// # Safety
///
/// `user` is a block with this layout; `bits` points to 8 bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairn_lws_user_bits(user: *const c_void, bit_count: u32, bits: *mut u64) -> c_int {
    if user.is_null() || bits.is_null() || bit_count > 64 {
        return CAIRN_HEAP_ERROR_ARGUMENT;
    }
    // SAFETY: the caller promises that `user` is a block with this layout; `bits` points to 8
    // bytes.
    match unsafe { lws::user_bits(user.cast(), bit_count) } {
        Some(found) => {
            // SAFETY: the caller promises that `user` is a block with this layout; `bits` points to
            // 8 bytes.
            unsafe { bits.write(found) };
            0
        }
        None => CAIRN_HEAP_ERROR_ARGUMENT,
    }
}

/// Calls visit with each block of a list, oldest first. Its arguments are the user's address, the
/// blob, its length, and context. Corresponds to _lws_alloc_metadata_dump. The caller must lock the
/// list meanwhile.
///
/// # Safety
///
/// `visit` may be called with these arguments.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairn_lws_dump(
    owner: *const CairnLwsOwner,
    visit: Option<unsafe extern "C" fn(*const c_void, *const u8, usize, *mut c_void)>,
    context: *mut c_void,
) {
    let Some(visit) = visit else { return };
    // SAFETY: the caller promises that `visit` may be called with these arguments.
    unsafe {
        for block in lws::live(owner.cast()) {
            visit(block.user().cast(), block.blob().as_ptr(), block.blob().len(), context);
        }
    }
}

/// Writes a blob as a text ~m#... that ends with a NUL, for a log; as
/// lws_alloc_metadata_dump_stdout prints it. Returns its length without the NUL, or
/// CAIRN_HEAP_ERROR_ARGUMENT when there is no room.
///
/// # Safety
///
/// `blob` points to `blob_bytes` bytes, `line` to `room`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairn_lws_line(
    blob: *const u8,
    blob_bytes: usize,
    line: *mut c_char,
    room: usize,
) -> c_int {
    if blob.is_null() || line.is_null() || room == 0 {
        return CAIRN_HEAP_ERROR_ARGUMENT;
    }
    // SAFETY: the caller promises that `blob` points to `blob_bytes` bytes, `line` to `room`.
    let (blob, buffer) = unsafe {
        (slice::from_raw_parts(blob, blob_bytes), slice::from_raw_parts_mut(line.cast::<u8>(), room))
    };
    let Some((last, text)) = buffer.split_last_mut() else { return CAIRN_HEAP_ERROR_ARGUMENT };
    *last = 0;
    let mut sink = SliceSink::new(text);
    if log_line::write_compressed(blob, &mut sink).is_err() {
        return CAIRN_HEAP_ERROR_ARGUMENT;
    }
    let length = sink.written().len();
    if let Some(end) = text.get_mut(length) {
        *end = 0;
    }
    length as c_int
}
