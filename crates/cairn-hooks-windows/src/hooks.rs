//! The functions that the jumps in ntdll lead to.
//!
//! An entry in assembly passes the caller's registers to a Rust function, so that the innermost
//! frame of a stack is the caller of the heap, and none of this library. The entry has unwind data:
//! with `HEAP_GENERATE_EXCEPTIONS` the real functions raise exceptions through it.
//!
//! A block is recorded behind its allocation and before its free, as on Linux. Where one function
//! of the heap calls another one, the outermost call counts.

use core::ffi::c_void;
use core::sync::atomic::{AtomicPtr, Ordering};

use cairn_recorder::environment::LastErrorGuard;
use cairn_recorder::{CallSite, heap};

use crate::calls::{GetProcessHeap, HeapEntry, HeapLock, HeapUnlock, HeapWalk, Library};
use crate::nesting::{is_inside, outermost, unwind_frame};
use crate::patch::Hook;

/// The registers of a caller, as the entries write them.
#[repr(C)]
pub(crate) struct Registers {
    pub(crate) pc: u64,
    sp: u64,
    fp: u64,
}

impl Registers {
    pub(crate) const fn site(&self) -> CallSite {
        CallSite { pc: self.pc, sp: self.sp, fp: self.fp }
    }

    /// Returns the arguments behind the fourth one, which are on the stack.
    ///
    /// # Safety
    ///
    /// The caller has passed that many, and waits.
    pub(crate) unsafe fn more_arguments<const COUNT: usize>(&self) -> [usize; COUNT] {
        /// Room for the arguments that are in registers.
        const HOME_BYTES: u64 = 0x20;
        let place = core::ptr::with_exposed_provenance::<[usize; COUNT]>((self.sp + HOME_BYTES) as usize);
        // SAFETY: aligned words of the caller's frame, by contract.
        unsafe { place.read() }
    }
}

// The four arguments stay in their registers; the fifth one is the address of the registers:
//
//   rsp + 0x00  room that a callee may use for its arguments
//   rsp + 0x20  the fifth argument
//   rsp + 0x28  pc, sp, fp
//   rsp + 0x48  the return address
macro_rules! entry {
    ($name:literal, $hook:path) => {
        core::arch::global_asm!(
            ".text",
            ".balign 16",
            concat!(".globl ", $name),
            concat!(".seh_proc ", $name),
            concat!($name, ":"),
            "sub rsp, 0x48",
            ".seh_stackalloc 0x48",
            ".seh_endprologue",
            ".seh_handler {unwound}, @unwind",
            "mov rax, [rsp + 0x48]",
            "mov [rsp + 0x28], rax",
            "lea rax, [rsp + 0x50]",
            "mov [rsp + 0x30], rax",
            "mov [rsp + 0x38], rbp",
            "lea rax, [rsp + 0x28]",
            "mov [rsp + 0x20], rax",
            "call {hook}",
            // Otherwise the return address is in the epilogue, where unwinding calls no handler.
            "nop",
            "add rsp, 0x48",
            "ret",
            ".seh_endproc",
            unwound = sym $crate::hooks::unwound,
            hook = sym $hook,
        );
    };
}

pub(crate) use entry;

entry!("cairn_allocate_entry", allocate);
entry!("cairn_reallocate_entry", reallocate);
entry!("cairn_free_entry", free);

unsafe extern "system" {
    fn cairn_allocate_entry();
    fn cairn_reallocate_entry();
    fn cairn_free_entry();
}

/// Called by the system when an exception unwinds an entry's frame.
///
/// # Safety
///
/// None is necessary: a type of the system. `frame` is the entry's stack pointer.
pub(crate) unsafe extern "system" fn unwound(
    _exception: *mut c_void,
    frame: u64,
    _context: *mut c_void,
    _dispatcher: *mut c_void,
) -> i32 {
    /// `ExceptionContinueSearch`.
    const CONTINUE: i32 = 1;
    unwind_frame(frame);
    CONTINUE
}

type Allocate = unsafe extern "system" fn(*mut c_void, u32, usize) -> *mut c_void;
type Reallocate = unsafe extern "system" fn(*mut c_void, u32, *mut c_void, usize) -> *mut c_void;
type Free = unsafe extern "system" fn(*mut c_void, u32, *mut c_void) -> i32;
type Destroy = unsafe extern "system" fn(*mut c_void) -> *mut c_void;

static ALLOCATE: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());
static REALLOCATE: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());
static FREE: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());
static DESTROY: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());

/// Returns the real function, as a pointer of that type.
///
/// # Safety
///
/// `patch` has stored a trampoline of a function of type `F`.
#[inline(always)]
pub(crate) unsafe fn real<F: Copy>(trampoline: &AtomicPtr<u8>) -> F {
    const { assert!(size_of::<F>() == size_of::<*mut u8>()) };
    let address = trampoline.load(Ordering::Relaxed);
    // SAFETY: of one size, and by contract such a function.
    unsafe { core::mem::transmute_copy(&address) }
}

/// All hooks. `RtlCreateHeap` has none: the blocks of a heap are found by a walk at its end.
pub(crate) fn all() -> [Hook; 4] {
    [
        Hook {
            library: Library::Ntdll,
            name: c"RtlAllocateHeap",
            target: cairn_allocate_entry as *const u8,
            real: &ALLOCATE,
        },
        Hook {
            library: Library::Ntdll,
            name: c"RtlReAllocateHeap",
            target: cairn_reallocate_entry as *const u8,
            real: &REALLOCATE,
        },
        Hook {
            library: Library::Ntdll,
            name: c"RtlFreeHeap",
            target: cairn_free_entry as *const u8,
            real: &FREE,
        },
        Hook {
            library: Library::Ntdll,
            name: c"RtlDestroyHeap",
            target: destroy as *const u8,
            real: &DESTROY,
        },
    ]
}

/// In place of `RtlAllocateHeap`.
///
/// # Safety
///
/// As of the real function; `registers` are those of the caller, which waits for this.
unsafe extern "system" fn allocate(
    heap: *mut c_void,
    flags: u32,
    size_bytes: usize,
    _unused: usize,
    registers: &Registers,
) -> *mut c_void {
    // SAFETY: this function runs by the jump, which is written after the trampoline; the arguments
    // are the caller's.
    let call = || unsafe { real::<Allocate>(&ALLOCATE)(heap, flags, size_bytes) };
    if is_inside() {
        return call();
    }
    outermost(|| {
        let block = call();
        if !block.is_null() {
            // SAFETY: the registers of a call that has not returned.
            unsafe { heap::allocated(block as u64, size_bytes as u64, registers.site()) };
        }
        block
    })
}

/// In place of `RtlReAllocateHeap`.
///
/// # Safety
///
/// As [`allocate`].
unsafe extern "system" fn reallocate(
    heap: *mut c_void,
    flags: u32,
    block: *mut c_void,
    size_bytes: usize,
    registers: &Registers,
) -> *mut c_void {
    // SAFETY: as in `allocate`.
    let call = || unsafe { real::<Reallocate>(&REALLOCATE)(heap, flags, block, size_bytes) };
    if is_inside() || block.is_null() {
        return call();
    }
    outermost(|| {
        let moving = heap::moving(block as u64);
        let moved = call();
        if !moved.is_null() {
            // SAFETY: the registers of a call that has not returned.
            unsafe { heap::moved(moving, moved as u64, size_bytes as u64, registers.site()) };
        }
        moved
    })
}

/// In place of `RtlFreeHeap`.
///
/// # Safety
///
/// As [`allocate`].
unsafe extern "system" fn free(
    heap: *mut c_void,
    flags: u32,
    block: *mut c_void,
    _unused: usize,
    _registers: &Registers,
) -> i32 {
    // SAFETY: as in `allocate`.
    let call = || unsafe { real::<Free>(&FREE)(heap, flags, block) };
    if is_inside() || block.is_null() {
        return call();
    }
    outermost(|| {
        heap::freeing(block as u64);
        call()
    })
}

/// In place of `RtlDestroyHeap`, which frees all blocks of the heap.
///
/// The real call is not marked as inside a hook: it frees memory of other heaps, such as that of
/// the heap's lock, by calls that are events.
///
/// # Safety
///
/// As of the real function.
unsafe extern "system" fn destroy(heap: *mut c_void) -> *mut c_void {
    // SAFETY: the call takes no argument.
    let is_process_heap = heap == unsafe { GetProcessHeap() };
    // The process heap is never destroyed.
    if !is_inside() && !is_process_heap && !heap.is_null() {
        // SAFETY: the heap is valid until the real call.
        outermost(|| unsafe { free_all(heap) });
    }
    // SAFETY: as in `allocate`.
    unsafe { real::<Destroy>(&DESTROY)(heap) }
}

/// Records the frees of all blocks of a heap.
///
/// # Safety
///
/// `heap` is a heap that no other thread destroys.
unsafe fn free_all(heap: *mut c_void) {
    /// `PROCESS_HEAP_ENTRY_BUSY`.
    const BUSY: u16 = 4;
    let _last_error = LastErrorGuard::new();
    let mut entry = HeapEntry::default();
    // SAFETY: the heap is valid, and locked during the walk unless it has no lock.
    unsafe {
        let is_locked = HeapLock(heap) != 0;
        while HeapWalk(heap, &raw mut entry) != 0 {
            if entry.flags & BUSY != 0 {
                heap::freeing(entry.address as u64);
            }
        }
        if is_locked {
            HeapUnlock(heap);
        }
    }
}
