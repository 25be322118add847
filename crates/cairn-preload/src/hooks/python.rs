//! The allocators of Python's objects.
//!
//! CPython serves requests of up to 512 bytes from arenas of its own, which come from `mmap`: a
//! hook of `malloc` sees none of them, and these are nearly all of a program's objects. So the
//! hooks here take the place of the allocators of two of the interpreter's domains, MEM and OBJ,
//! before it is initialized; the third, RAW, is `malloc` itself. Blocks are passed on as they are.
//!
//! A large request goes on to `malloc`, whose hook must not record it again: as with any allocator
//! that calls itself, the outermost call alone is recorded ([`nesting`]).

use core::cell::UnsafeCell;
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use cairn_capture::CallSite;

use crate::real::Block;
use crate::{nesting, next, recorder};

/// The interpreter's `PyMemAllocatorEx`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Allocator {
    context: *const c_void,
    malloc: Malloc,
    calloc: Calloc,
    realloc: Realloc,
    free: unsafe extern "C" fn(*const c_void, Block),
}

type Malloc = unsafe extern "C" fn(*const c_void, usize) -> Block;
type Calloc = unsafe extern "C" fn(*const c_void, usize, usize) -> Block;
type Realloc = unsafe extern "C" fn(*const c_void, Block, usize) -> Block;

/// `PyMem_GetAllocator` and `PyMem_SetAllocator`.
type AllocatorFunction = unsafe extern "C" fn(c_int, *mut Allocator);

/// The functions of one interpreter, by their addresses; 0 where it does not export them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct AllocatorFunctions {
    pub(crate) read: u64,
    pub(crate) write: u64,
}

/// The domains MEM and OBJ.
const DOMAINS: [c_int; 2] = [1, 2];

/// Allocators that were replaced; 16, two for each of four interpreters, twice.
const MOST_REPLACED: usize = 16;

/// Allocators as they were before, to which the hooks pass on. A hook's context is the address of
/// one of them, so none is ever written again.
struct Replaced {
    places: [UnsafeCell<Option<Allocator>>; MOST_REPLACED],
    count: AtomicUsize,
}

// SAFETY: a place is written once, by the thread that has taken its number, before any other thread
// can have its address.
unsafe impl Sync for Replaced {}

static REPLACED: Replaced =
    Replaced { places: [const { UnsafeCell::new(None) }; MOST_REPLACED], count: AtomicUsize::new(0) };

/// The functions of an interpreter whose hooks are to be put back; 0 when there is none.
static WATCHED: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// Notes that an interpreter will set its allocators while it starts, which removes the hooks.
///
/// [`put_back`] puts them back then.
pub(crate) fn watch(functions: AllocatorFunctions) {
    WATCHED[1].store(functions.write, Ordering::Relaxed);
    WATCHED[0].store(functions.read, Ordering::Release);
}

/// Puts the hooks back if the interpreter has removed them. Called for allocations that reach
/// `malloc` by themselves: an interpreter makes some hundred of these while it starts.
#[inline(always)]
pub(crate) fn put_back() {
    if WATCHED[0].load(Ordering::Relaxed) != 0 {
        put_back_watched();
    }
}

#[cold]
#[inline(never)]
fn put_back_watched() {
    let read = WATCHED[0].load(Ordering::Acquire);
    let functions = AllocatorFunctions { read, write: WATCHED[1].load(Ordering::Relaxed) };
    let before = REPLACED.count.load(Ordering::Relaxed);
    // SAFETY: the functions of an interpreter that was found. They copy a structure, under a lock
    // of their own from 3.12 on, under which nothing allocates.
    unsafe { install(functions) };
    // Once is enough: a second time, the program itself has set an allocator.
    if REPLACED.count.load(Ordering::Relaxed) != before {
        WATCHED[0].store(0, Ordering::Release);
    }
}

/// Puts the hooks into an interpreter, unless they are there.
///
/// # Safety
///
/// - The functions are those of a loaded interpreter, which either does not run yet, or which this
///   thread may call.
pub(crate) unsafe fn install(functions: AllocatorFunctions) {
    if functions.read == 0 || functions.write == 0 {
        return;
    }
    // SAFETY: not 0, so functions of these names, which have this type, by contract.
    let (read, write) = unsafe {
        let function = |address: u64| core::mem::transmute::<u64, AllocatorFunction>(address);
        (function(functions.read), function(functions.write))
    };
    for domain in DOMAINS {
        let mut present = core::mem::MaybeUninit::<Allocator>::uninit();
        // SAFETY: the function fills the structure for a domain that exists.
        let present = unsafe {
            read(domain, present.as_mut_ptr());
            present.assume_init()
        };
        if present.malloc as usize == hooked_malloc as *const () as usize {
            continue;
        }
        let number = REPLACED.count.fetch_add(1, Ordering::Relaxed);
        let Some(place) = REPLACED.places.get(number) else { return };
        // SAFETY: the number is this call's alone, and nobody has the address yet.
        unsafe { *place.get() = Some(present) };
        // From here on `malloc` may be called by a function that is recorded itself.
        next::expect_nesting();
        // SAFETY: the entries have these types: they take the arguments of the hooks below, without
        // the registers that the entries add.
        let mut hooks = unsafe {
            Allocator {
                context: place.get().cast_const().cast(),
                malloc: core::mem::transmute::<*const (), Malloc>(hooked_malloc as *const ()),
                calloc: core::mem::transmute::<*const (), Calloc>(hooked_calloc as *const ()),
                realloc: core::mem::transmute::<*const (), Realloc>(hooked_realloc as *const ()),
                free: hooked_free,
            }
        };
        // SAFETY: the function copies the structure.
        unsafe { write(domain, &raw mut hooks) };
    }
}

/// The allocator behind a hook.
///
/// # Safety
///
/// - `context` is the one that [`install`] has given to the interpreter.
#[inline(always)]
unsafe fn behind(context: *const c_void) -> &'static Allocator {
    // SAFETY: by contract, the address of a place that was filled before and stays.
    unsafe { (*context.cast::<Option<Allocator>>()).as_ref().unwrap_unchecked() }
}

/// Calls `allocate`, and records its block unless this thread is inside of another allocation.
#[inline(always)]
fn noted(size: usize, site: CallSite, allocate: impl FnOnce() -> Block) -> Block {
    nesting::outermost_inline(allocate, |block| {
        if !block.is_null() && !recorder::is_at_rest() {
            recorder::allocated(block as u64, size as u64, site);
        }
    })
}

/// Defines `$name` as [`crate::arch::entry`] does, without exporting it.
macro_rules! inner_entry {
    ($arguments:tt $name:ident => $hook:path) => {
        /// # Safety
        ///
        /// The contract is that of the interpreter's allocator.
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            cairn_recorder::jump_with_call_site!($arguments, $hook)
        }
    };
}

inner_entry! { 2 hooked_malloc => on_malloc }
/// # Safety
///
/// As for the allocator behind `context`, which is the one of [`install`]. `pc`, `sp` and `fp` are
/// registers of the caller, which waits for this function.
unsafe extern "C" fn on_malloc(context: *const c_void, size: usize, pc: u64, sp: u64, fp: u64) -> Block {
    // SAFETY: the interpreter passes the context that `install` has given to it.
    let real = unsafe { behind(context) };
    // SAFETY: the caller's arguments, with the allocator's own context.
    noted(size, CallSite { pc, sp, fp }, || unsafe { (real.malloc)(real.context, size) })
}

inner_entry! { 3 hooked_calloc => on_calloc }
/// # Safety
///
/// As for [`on_malloc`].
unsafe extern "C" fn on_calloc(
    context: *const c_void,
    count: usize,
    size: usize,
    pc: u64,
    sp: u64,
    fp: u64,
) -> Block {
    // SAFETY: the interpreter passes the context that `install` has given to it.
    let real = unsafe { behind(context) };
    // SAFETY: the caller's arguments, with the allocator's own context.
    let allocate = || unsafe { (real.calloc)(real.context, count, size) };
    noted(count.wrapping_mul(size), CallSite { pc, sp, fp }, allocate)
}

inner_entry! { 3 hooked_realloc => on_realloc }
/// # Safety
///
/// As for [`on_malloc`].
unsafe extern "C" fn on_realloc(
    context: *const c_void,
    old: Block,
    size: usize,
    pc: u64,
    sp: u64,
    fp: u64,
) -> Block {
    // SAFETY: the interpreter passes the context that `install` has given to it.
    let real = unsafe { behind(context) };
    // SAFETY: the caller's arguments, with the allocator's own context.
    let reallocate = || unsafe { (real.realloc)(real.context, old, size) };
    let site = CallSite { pc, sp, fp };
    if old.is_null() {
        return noted(size, site, reallocate);
    }
    if nesting::is_inside() || recorder::is_at_rest() {
        return nesting::outermost(reallocate, |_| ());
    }
    let moving = recorder::moving(old as u64);
    let new = nesting::outermost(reallocate, |_| ());
    if !new.is_null() {
        recorder::moved(moving, new as u64, size as u64, site);
    }
    new
}

/// # Safety
///
/// As for [`on_malloc`].
unsafe extern "C" fn hooked_free(context: *const c_void, block: Block) {
    // SAFETY: the interpreter passes the context that `install` has given to it.
    let real = unsafe { behind(context) };
    if !block.is_null() && !nesting::is_inside() && !recorder::is_at_rest() {
        recorder::freeing(block as u64, || u64::MAX);
    }
    // SAFETY: the caller's block, with the allocator's own context.
    nesting::outermost_inline(|| unsafe { (real.free)(real.context, block) }, |()| ());
}
