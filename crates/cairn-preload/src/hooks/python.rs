//! The allocators of Python's objects.
//!
//! CPython serves requests of up to 512 bytes from arenas of its own, which come from `mmap`: a
//! hook of `malloc` sees none of them, and these are nearly all of a program's objects. So the
//! hooks here take the place of the allocators of two of the interpreter's domains, MEM and OBJ,
//! before it is initialized; the third, RAW, is `malloc` itself. Blocks are passed on as they are.
//!
//! A large request goes on to `malloc`, whose hook must not record it again: as with any allocator
//! that calls itself, the outermost call alone is recorded ([`nesting`]).
//!
//! An attached recording puts the hooks into an interpreter that runs, by a thread that need not
//! have the interpreter's lock. So the hooks leave the allocator's context as it is: the
//! interpreter's other threads may read one word of an allocator before the change and the next one
//! after it, and every mixture of the two allocators works.

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
    functions: Functions,
}

/// The functions of an allocator. Each takes the allocator's context first.
#[repr(C)]
#[derive(Clone, Copy)]
struct Functions {
    malloc: Malloc,
    calloc: Calloc,
    realloc: Realloc,
    free: unsafe extern "C" fn(*const c_void, Block),
}

impl Allocator {
    fn is_same(&self, other: &Self) -> bool {
        let words = |it: &Self| {
            let Functions { malloc, calloc, realloc, free } = it.functions;
            [it.context as usize, malloc as usize, calloc as usize, realloc as usize, free as usize]
        };
        words(self) == words(other)
    }
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

impl AllocatorFunctions {
    /// # Safety
    ///
    /// - The functions are those of a loaded interpreter.
    unsafe fn both(self) -> Option<(AllocatorFunction, AllocatorFunction)> {
        if self.read == 0 || self.write == 0 {
            return None;
        }
        // SAFETY: not 0, so functions of these names, which have this type, by contract.
        let function = |address: u64| unsafe { core::mem::transmute::<u64, AllocatorFunction>(address) };
        Some((function(self.read), function(self.write)))
    }
}

/// # Safety
///
/// - `read` is `PyMem_GetAllocator` of a loaded interpreter, and the domain exists.
unsafe fn allocator_of(read: AllocatorFunction, domain: c_int) -> Allocator {
    let mut allocator = core::mem::MaybeUninit::<Allocator>::uninit();
    // SAFETY: the caller promises the function, which fills the structure.
    unsafe {
        read(domain, allocator.as_mut_ptr());
        allocator.assume_init()
    }
}

/// The domains MEM and OBJ.
const DOMAINS: [c_int; 2] = [1, 2];

/// Allocators that can be replaced; 16, two for each of four interpreters, twice.
const MOST_REPLACED: usize = 16;

/// An allocator as it was before, to which the hooks of one number pass on. It is never written
/// again.
struct Replaced {
    allocator: UnsafeCell<Option<Allocator>>,
    /// `PyMem_SetAllocator` of its interpreter; 0 until the allocator is written.
    write: AtomicU64,
    domain: AtomicU64,
}

// SAFETY: the allocator is written once, by the thread that has taken its number, before `write`
// and before its hooks are in use.
unsafe impl Sync for Replaced {}

static REPLACED: [Replaced; MOST_REPLACED] = [const {
    Replaced { allocator: UnsafeCell::new(None), write: AtomicU64::new(0), domain: AtomicU64::new(0) }
}; MOST_REPLACED];

/// Numbers that are taken.
static TAKEN: AtomicUsize = AtomicUsize::new(0);

/// The functions of an interpreter whose hooks are to be put back; 0 when there is none.
static WATCHED: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
/// How often they are still to be put back.
static TIMES_LEFT: AtomicUsize = AtomicUsize::new(0);

/// Notes that an interpreter sets other allocators while it starts, and how many times.
///
/// That removes the hooks; [`put_back`] puts them back then.
pub(crate) fn watch(functions: AllocatorFunctions, times: usize) {
    TIMES_LEFT.store(times, Ordering::Relaxed);
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
    let before = TAKEN.load(Ordering::Relaxed);
    // SAFETY: the functions of an interpreter that was found. They copy a structure, under a lock
    // of their own from 3.12 on, under which nothing allocates.
    unsafe { install(functions) };
    // Later, the program itself has set an allocator.
    if TAKEN.load(Ordering::Relaxed) != before && TIMES_LEFT.fetch_sub(1, Ordering::Relaxed) <= 1 {
        WATCHED[0].store(0, Ordering::Release);
    }
}

/// Puts the hooks into an interpreter, unless they are there.
///
/// # Safety
///
/// - The functions are those of a loaded interpreter, and this thread is in neither of them.
pub(crate) unsafe fn install(functions: AllocatorFunctions) {
    // SAFETY: the caller promises a loaded interpreter.
    let Some((read, write)) = (unsafe { functions.both() }) else { return };
    for domain in DOMAINS {
        // SAFETY: a domain that exists.
        let present = unsafe { allocator_of(read, domain) };
        if hooked_number(&present).is_some() {
            continue;
        }
        let Some(number) = number_for(functions.write, domain, &present) else { return };
        let Some(hooks) = HOOKS.get(number) else { return };
        // From here on `malloc` may be called by a function that is recorded itself.
        next::expect_nesting();
        let mut hooks = Allocator { context: present.context, functions: *hooks };
        // SAFETY: the function copies the structure.
        unsafe { write(domain, &raw mut hooks) };
    }
}

/// Returns the number of hooks that pass on to `allocator`: that of an earlier recording, or a new
/// one. `None` if there is no number left.
fn number_for(write: u64, domain: c_int, allocator: &Allocator) -> Option<usize> {
    let is_same = |replaced: &Replaced| {
        replaced.write.load(Ordering::Acquire) == write
            && replaced.domain.load(Ordering::Relaxed) == domain as u64
            // SAFETY: `write` is not 0, so the allocator was written.
            && unsafe { *replaced.allocator.get() }.is_some_and(|before| before.is_same(allocator))
    };
    if let Some(number) = REPLACED.iter().position(is_same) {
        return Some(number);
    }
    let number = TAKEN.fetch_add(1, Ordering::Relaxed);
    let replaced = REPLACED.get(number)?;
    // SAFETY: the number is this call's alone, and its hooks are not in use yet.
    unsafe { *replaced.allocator.get() = Some(*allocator) };
    replaced.domain.store(domain as u64, Ordering::Relaxed);
    replaced.write.store(write, Ordering::Release);
    Some(number)
}

/// Gives the allocators back to an interpreter, where no other allocator has replaced the hooks
/// since.
///
/// # Safety
///
/// - As for [`install`].
pub(crate) unsafe fn remove(functions: AllocatorFunctions) {
    // SAFETY: the caller promises a loaded interpreter.
    let Some((read, write)) = (unsafe { functions.both() }) else { return };
    for domain in DOMAINS {
        // SAFETY: a domain that exists.
        let present = unsafe { allocator_of(read, domain) };
        let replaced = hooked_number(&present).and_then(|number| REPLACED.get(number));
        // SAFETY: these hooks are in use, so that the allocator behind them was written.
        if let Some(mut before) = replaced.and_then(|replaced| unsafe { *replaced.allocator.get() }) {
            // SAFETY: the function copies the structure.
            unsafe { write(domain, &raw mut before) };
        }
    }
}

/// Returns the number of the hooks that an allocator is; `None` if it is another allocator.
fn hooked_number(allocator: &Allocator) -> Option<usize> {
    HOOKS.iter().position(|hooks| allocator.functions.malloc as usize == hooks.malloc as usize)
}

/// The allocator behind the hooks of this number.
///
/// # Safety
///
/// - [`install`] has put these hooks into an interpreter.
#[inline(always)]
unsafe fn behind<const NUMBER: usize>() -> &'static Allocator {
    // SAFETY: the number is one of an array of hooks of that length; by contract, the allocator was
    // written before, and it stays.
    unsafe { (*REPLACED.get_unchecked(NUMBER).allocator.get()).as_ref().unwrap_unchecked() }
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

/// Defines `$name` as [`crate::arch::entry`] does, for each number of hooks, without exporting it.
macro_rules! inner_entry {
    ($arguments:tt $name:ident => $hook:ident) => {
        /// # Safety
        ///
        /// The contract is that of the interpreter's allocator.
        #[unsafe(naked)]
        unsafe extern "C" fn $name<const NUMBER: usize>() {
            cairn_recorder::jump_with_call_site!($arguments, $hook::<NUMBER>)
        }
    };
}

/// The hooks of each number.
static HOOKS: [Functions; MOST_REPLACED] = [
    hooks::<0>(),
    hooks::<1>(),
    hooks::<2>(),
    hooks::<3>(),
    hooks::<4>(),
    hooks::<5>(),
    hooks::<6>(),
    hooks::<7>(),
    hooks::<8>(),
    hooks::<9>(),
    hooks::<10>(),
    hooks::<11>(),
    hooks::<12>(),
    hooks::<13>(),
    hooks::<14>(),
    hooks::<15>(),
];

const fn hooks<const NUMBER: usize>() -> Functions {
    // SAFETY: the entries have these types: they take the arguments of the hooks below, without the
    // registers that the entries add.
    unsafe {
        Functions {
            malloc: core::mem::transmute::<Entry, Malloc>(hooked_malloc::<NUMBER>),
            calloc: core::mem::transmute::<Entry, Calloc>(hooked_calloc::<NUMBER>),
            realloc: core::mem::transmute::<Entry, Realloc>(hooked_realloc::<NUMBER>),
            free: hooked_free::<NUMBER>,
        }
    }
}

type Entry = unsafe extern "C" fn();

inner_entry! { 2 hooked_malloc => on_malloc }
/// # Safety
///
/// [`install`] has put the hooks of this number into the interpreter that calls. `pc`, `sp` and
/// `fp` are registers of the caller, which waits for this function.
unsafe extern "C" fn on_malloc<const NUMBER: usize>(
    context: *const c_void,
    size: usize,
    pc: u64,
    sp: u64,
    fp: u64,
) -> Block {
    // SAFETY: `install` has put the hooks of this number into the interpreter that calls.
    let real = unsafe { behind::<NUMBER>() };
    // SAFETY: the caller's arguments.
    noted(size, CallSite { pc, sp, fp }, || unsafe { (real.functions.malloc)(context, size) })
}

inner_entry! { 3 hooked_calloc => on_calloc }
/// # Safety
///
/// As for [`on_malloc`].
unsafe extern "C" fn on_calloc<const NUMBER: usize>(
    context: *const c_void,
    count: usize,
    size: usize,
    pc: u64,
    sp: u64,
    fp: u64,
) -> Block {
    // SAFETY: `install` has put the hooks of this number into the interpreter that calls.
    let real = unsafe { behind::<NUMBER>() };
    // SAFETY: the caller's arguments.
    let allocate = || unsafe { (real.functions.calloc)(context, count, size) };
    noted(count.wrapping_mul(size), CallSite { pc, sp, fp }, allocate)
}

inner_entry! { 3 hooked_realloc => on_realloc }
/// # Safety
///
/// As for [`on_malloc`].
unsafe extern "C" fn on_realloc<const NUMBER: usize>(
    context: *const c_void,
    old: Block,
    size: usize,
    pc: u64,
    sp: u64,
    fp: u64,
) -> Block {
    // SAFETY: `install` has put the hooks of this number into the interpreter that calls.
    let real = unsafe { behind::<NUMBER>() };
    // SAFETY: the caller's arguments.
    let reallocate = || unsafe { (real.functions.realloc)(context, old, size) };
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
unsafe extern "C" fn hooked_free<const NUMBER: usize>(context: *const c_void, block: Block) {
    // SAFETY: `install` has put the hooks of this number into the interpreter that calls.
    let real = unsafe { behind::<NUMBER>() };
    if !block.is_null() && !nesting::is_inside() && !recorder::is_at_rest() {
        recorder::freeing(block as u64, || u64::MAX);
    }
    // SAFETY: the caller's block.
    nesting::outermost_inline(|| unsafe { (real.functions.free)(context, block) }, |()| ());
}
