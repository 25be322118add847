//! The annotating library: writes the allocating stack in front of each block; records nothing.
//!
//! The program's calls of `malloc` and its family come here and go on to [`HEAP`], which requests a
//! few bytes more from the next allocator. Memory that was allocated without this library (by the
//! loader at the start, by an allocator's own functions) is recognised and passed on unchanged.
//!
//! In the cairn layout, a block holds the number of its stack. [`TABLE`] maps numbers to stacks, in
//! the program's own memory, so that a core file contains it; the anchor of [`HEAP`] leads there.
//!
//! The process stays annotated after `exec`; processes that it starts are not, unless `children` is
//! set.
//!
//! # The options
//!
//! `CAIRN_HEAP` holds words that commas separate:
//!
//! | word | meaning |
//! |---|---|
//! | `cairn`, `lws`, `heapprof` | the layout; `cairn` if none is given |
//! | `frames=N` | heapprof: number of callers; default `HEAPPROF_FRAMES`, or 16 |
//! | `post=N` | number of outermost frames to leave out (lws) |
//! | `no-guards` | cairn: no guard behind the blocks |
//! | `inline` | cairn: stacks in front of the blocks, and no table |
//! | `children` | also programs that this one starts |

use core::ffi::{c_char, c_int, c_void};
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

use cairn_capture::{CallSite, NewStacks};
use cairn_format::Frame;
use cairn_heap::{At, Backend, Heap, Options, StackTable};
use cairn_wire::heapblock::{BlockLayout, stack_table::FrameKind};

use crate::arch::{self, entry};
use crate::at_fork;
use crate::environment::{self, OwnVariables, ProcessArguments};
use crate::next::NEXT;
use crate::real::{
    Block, Free, OfSize, OfTwo, PosixMemalign, Realloc, UsableSize, address_of, no_memory, real,
};
use crate::{nesting, next, system};

/// Number of shards; 64, so that threads that run at once mostly use different ones.
const SHARDS: usize = 64;

static HEAP: Heap<NextAllocator, SHARDS> = Heap::new(NextAllocator, Options::new(BlockLayout::Cairn));

/// Room for 268 million stacks, the limit of a capture's numbers.
static TABLE: StackTable<4096> = StackTable::new();

/// The allocator that the program would have called.
struct NextAllocator;

/// Alignment of blocks in bytes; 16, that of the C library and its replacements on 64-bit machines.
const ALIGNMENT: usize = 16;

/// Calls the next allocator. An allocator other than the C library's may call the hooks again,
/// which pass such calls on.
#[inline(always)]
fn below<R: Copy>(call: impl FnOnce() -> R) -> R {
    if next::is_foreign() { nesting::outermost(call, |_| ()) } else { call() }
}

/// Returns true when the next allocator itself calls.
#[inline(always)]
fn is_from_below() -> bool {
    next::is_foreign() && nesting::is_inside()
}

// SAFETY: the next allocator returns exclusive memory, as every definition of these functions must.
unsafe impl Backend for NextAllocator {
    #[inline(always)]
    fn alignment(&self) -> usize {
        ALIGNMENT
    }

    #[inline(always)]
    fn allocate(&self, size: usize, alignment: usize, is_zeroed: bool) -> *mut u8 {
        if alignment > ALIGNMENT {
            let real = real!(memalign: OfTwo, or ptr::null_mut());
            // SAFETY: a power of two, and any size.
            let block = below(|| unsafe { real(alignment, size) }).cast::<u8>();
            if is_zeroed && !block.is_null() {
                // SAFETY: fresh memory of that size.
                unsafe { block.write_bytes(0, size) };
            }
            return block;
        }
        if is_zeroed {
            let real = real!(calloc: OfTwo, or ptr::null_mut());
            // SAFETY: takes any size.
            return below(|| unsafe { real(1, size) }).cast();
        }
        let real = real!(malloc: OfSize, or ptr::null_mut());
        // SAFETY: takes any size.
        below(|| unsafe { real(size) }).cast()
    }

    #[inline(always)]
    unsafe fn release(&self, origin: *mut u8, _size: usize, _alignment: usize) {
        let real = real!(free: Free);
        // SAFETY: the caller promises memory of this allocator that nobody uses any more.
        below(|| unsafe { real(origin.cast()) });
    }

    #[inline(always)]
    unsafe fn resize(&self, origin: *mut u8, _size: usize, new_size: usize) -> *mut u8 {
        let real = real!(realloc: Realloc, or ptr::null_mut());
        // SAFETY: the caller promises memory of this allocator that nobody else uses.
        below(|| unsafe { real(origin.cast(), new_size) }).cast()
    }

    unsafe fn usable_size(&self, origin: *mut u8) -> Option<usize> {
        let real = real!(malloc_usable_size: UsableSize, or None);
        // SAFETY: the caller promises memory of this allocator.
        Some(below(|| unsafe { real(origin.cast()) }))
    }

    #[cold]
    fn may_read_before(&self, user: *const u8) -> bool {
        let errno = system::errno();
        let mut bytes = [0; 16];
        let from = (user.addr() as u64).wrapping_sub(bytes.len() as u64);
        let count = cairn_capture::read_own_memory(from, &mut bytes);
        system::set_errno(errno);
        count == bytes.len()
    }

    unsafe fn release_foreign(&self, user: *mut u8) {
        // SAFETY: the caller promises memory of the next allocator that nobody uses any more.
        unsafe { self.release(user, 0, 0) }
    }

    unsafe fn resize_foreign(&self, user: *mut u8, size: usize) -> *mut u8 {
        // SAFETY: the caller promises memory of the next allocator that nobody else uses.
        unsafe { self.resize(user, 0, size) }
    }

    unsafe fn freed_twice(&self, origin: *mut u8) {
        // As without this library: the C library reports the error and ends the program.
        // SAFETY: the caller promises an address that this allocator gave out; the C library
        // reports the error.
        unsafe { self.release(origin, 0, 0) }
    }

    /// The address of this thread's control block.
    #[inline(always)]
    fn thread(&self) -> usize {
        arch::thread_pointer()
    }

    #[inline(always)]
    fn shard(&self) -> usize {
        // Control blocks lie at the ends of stacks, some pages apart.
        self.thread() >> 12
    }
}

/// Allocates a block of the heap; null with `errno` on failure.
#[inline(always)]
fn allocated(size: usize, alignment: usize, is_zeroed: bool, site: CallSite) -> Block {
    // SAFETY: the entries of the hooks pass the caller's registers, and it waits for the hook.
    let block = HEAP.allocate(size, alignment, is_zeroed, unsafe { At::new(site) });
    if block.is_null() { no_memory() } else { block.cast() }
}

/// Returns true when the options are read, which set the layout.
#[inline(always)]
fn is_ready() -> bool {
    !address_of(&NEXT.malloc).is_null()
}

entry! { 1 malloc => on_malloc }
/// # Safety
///
/// The arguments are valid for the C library's `malloc`. The registers `pc`, `sp` and `fp` belong
/// to the caller, which waits for this function.
unsafe extern "C" fn on_malloc(size: usize, pc: u64, sp: u64, fp: u64) -> Block {
    if !is_ready() || is_from_below() {
        let real = real!(malloc: OfSize, or no_memory());
        // SAFETY: the caller promises arguments that are valid for the C library's function.
        return unsafe { real(size) };
    }
    allocated(size, 1, false, CallSite { pc, sp, fp })
}

entry! { 2 calloc => on_calloc }
/// # Safety
///
/// The arguments are valid for the C library's `calloc`. The registers `pc`, `sp` and `fp` belong
/// to the caller, which waits for this function.
unsafe extern "C" fn on_calloc(count: usize, size: usize, pc: u64, sp: u64, fp: u64) -> Block {
    if !is_ready() || is_from_below() {
        let real = real!(calloc: OfTwo, or no_memory());
        // SAFETY: the caller promises arguments that are valid for the C library's function.
        return unsafe { real(count, size) };
    }
    let Some(size) = count.checked_mul(size) else { return no_memory() };
    allocated(size, 1, true, CallSite { pc, sp, fp })
}

entry! { 2 realloc => on_realloc }
/// # Safety
///
/// The arguments are valid for the C library's `realloc`. The registers `pc`, `sp` and `fp` belong
/// to the caller, which waits for this function.
unsafe extern "C" fn on_realloc(old: Block, size: usize, pc: u64, sp: u64, fp: u64) -> Block {
    // SAFETY: the caller promises arguments that are valid for the C library's function.
    unsafe { reallocated(old, size, CallSite { pc, sp, fp }) }
}

entry! { 3 reallocarray => on_reallocarray }
/// # Safety
///
/// The arguments are valid for the C library's `reallocarray`. The registers `pc`, `sp` and `fp`
/// belong to the caller, which waits for this function.
unsafe extern "C" fn on_reallocarray(
    old: Block,
    count: usize,
    size: usize,
    pc: u64,
    sp: u64,
    fp: u64,
) -> Block {
    let Some(size) = count.checked_mul(size) else { return no_memory() };
    // SAFETY: the caller promises arguments that are valid for the C library's function.
    unsafe { reallocated(old, size, CallSite { pc, sp, fp }) }
}

/// # Safety
///
/// `old` is null or a block that nobody else uses; `site` has the registers of the caller, which
/// waits.
#[inline(always)]
unsafe fn reallocated(old: Block, size: usize, site: CallSite) -> Block {
    if !is_ready() || is_from_below() {
        let real = real!(realloc: Realloc, or no_memory());
        // SAFETY: the caller promises arguments that are valid for the C library's function.
        return unsafe { real(old, size) };
    }
    if size == 0 && !old.is_null() {
        // The C library frees the block then.
        // SAFETY: the caller promises arguments that are valid for the C library's function.
        unsafe { HEAP.release(old.cast(), 1) };
        return ptr::null_mut();
    }
    // SAFETY: the caller promises a block that nobody else uses, and its registers.
    let block = unsafe { HEAP.resize(old.cast(), size, 1, At::new(site)) };
    if block.is_null() { no_memory() } else { block.cast() }
}

/// Allocates with the next power of two as alignment, as the C library does.
fn aligned(alignment: usize, size: usize, site: CallSite) -> Block {
    let Some(alignment) = alignment.checked_next_power_of_two() else {
        system::set_errno(libc::EINVAL);
        return ptr::null_mut();
    };
    allocated(size, alignment, false, site)
}

entry! { 2 memalign => on_memalign }
/// # Safety
///
/// The arguments are valid for the C library's `memalign`. The registers `pc`, `sp` and `fp` belong
/// to the caller, which waits for this function.
unsafe extern "C" fn on_memalign(alignment: usize, size: usize, pc: u64, sp: u64, fp: u64) -> Block {
    if !is_ready() || is_from_below() {
        let real = real!(memalign: OfTwo, or no_memory());
        // SAFETY: the caller promises arguments that are valid for the C library's function.
        return unsafe { real(alignment, size) };
    }
    aligned(alignment, size, CallSite { pc, sp, fp })
}

entry! { 2 aligned_alloc => on_aligned_alloc }
/// # Safety
///
/// The arguments are valid for the C library's `aligned_alloc`. The registers `pc`, `sp` and `fp`
/// belong to the caller, which waits for this function.
unsafe extern "C" fn on_aligned_alloc(alignment: usize, size: usize, pc: u64, sp: u64, fp: u64) -> Block {
    if !is_ready() || is_from_below() {
        let real = real!(aligned_alloc: OfTwo, or no_memory());
        // SAFETY: the caller promises arguments that are valid for the C library's function.
        return unsafe { real(alignment, size) };
    }
    aligned(alignment, size, CallSite { pc, sp, fp })
}

entry! { 3 posix_memalign => on_posix_memalign }
/// # Safety
///
/// The arguments are valid for the C library's `posix_memalign`. The registers `pc`, `sp` and `fp`
/// belong to the caller, which waits for this function.
unsafe extern "C" fn on_posix_memalign(
    place: *mut Block,
    alignment: usize,
    size: usize,
    pc: u64,
    sp: u64,
    fp: u64,
) -> c_int {
    if !is_ready() || is_from_below() {
        let real = real!(posix_memalign: PosixMemalign, or libc::ENOMEM);
        // SAFETY: the caller promises arguments that are valid for the C library's function.
        return unsafe { real(place, alignment, size) };
    }
    if !alignment.is_power_of_two() || alignment < size_of::<usize>() {
        return libc::EINVAL;
    }
    let errno = system::errno();
    let block = allocated(size, alignment, false, CallSite { pc, sp, fp });
    system::set_errno(errno);
    if block.is_null() {
        return libc::ENOMEM;
    }
    // SAFETY: the caller promises arguments that are valid for the C library's function.
    unsafe { place.write(block) };
    0
}

entry! { 1 valloc => on_valloc }
/// # Safety
///
/// The arguments are valid for the C library's `valloc`. The registers `pc`, `sp` and `fp` belong
/// to the caller, which waits for this function.
unsafe extern "C" fn on_valloc(size: usize, pc: u64, sp: u64, fp: u64) -> Block {
    if !is_ready() || is_from_below() {
        let real = real!(valloc: OfSize, or no_memory());
        // SAFETY: the caller promises arguments that are valid for the C library's function.
        return unsafe { real(size) };
    }
    allocated(size, system::page_bytes(), false, CallSite { pc, sp, fp })
}

entry! { 1 pvalloc => on_pvalloc }
/// # Safety
///
/// The arguments are valid for the C library's `pvalloc`. The registers `pc`, `sp` and `fp` belong
/// to the caller, which waits for this function.
unsafe extern "C" fn on_pvalloc(size: usize, pc: u64, sp: u64, fp: u64) -> Block {
    if !is_ready() || is_from_below() {
        let real = real!(pvalloc: OfSize, or no_memory());
        // SAFETY: the caller promises arguments that are valid for the C library's function.
        return unsafe { real(size) };
    }
    let Some(size) = size.checked_next_multiple_of(system::page_bytes()) else { return no_memory() };
    allocated(size, system::page_bytes(), false, CallSite { pc, sp, fp })
}

/// # Safety
///
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free(block: Block) {
    if !is_ready() || is_from_below() {
        let real = real!(free: Free);
        // SAFETY: the caller promises what the C library's function requires.
        return unsafe { real(block) };
    }
    // SAFETY: the caller promises what the C library's function requires.
    unsafe { HEAP.release(block.cast(), 1) }
}

/// # Safety
///
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cfree(block: Block) {
    // SAFETY: the caller promises what the C library's function requires.
    unsafe { free(block) }
}

/// # Safety
///
/// As for C23's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free_sized(block: Block, _size: usize) {
    // SAFETY: the caller promises a block of the C library's allocator, which is not used any more.
    unsafe { free(block) }
}

/// # Safety
///
/// As for C23's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free_aligned_sized(block: Block, _alignment: usize, _size: usize) {
    // SAFETY: the caller promises a block of the C library's allocator, which is not used any more.
    unsafe { free(block) }
}

/// Returns the requested size, which is all that the program may use: a guard is behind it.
///
/// # Safety
///
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc_usable_size(block: Block) -> usize {
    if block.is_null() {
        return 0;
    }
    if is_ready() && !is_from_below() {
        // SAFETY: the caller promises what the C library's function requires.
        if let Some(size) = unsafe { HEAP.size_of(block.cast()) } {
            return size;
        }
    }
    let real = real!(malloc_usable_size: UsableSize, or 0);
    // SAFETY: the caller promises what the C library's function requires.
    unsafe { real(block) }
}

/// # Safety
///
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlclose(handle: *mut c_void) -> c_int {
    let real = real!(dlclose: unsafe extern "C" fn(*mut c_void) -> c_int, or -1);
    // SAFETY: the caller promises what the C library's function requires.
    cairn_capture::while_unloading(|| unsafe { real(handle) })
}

static HAS_BEGUN: AtomicBool = AtomicBool::new(false);
/// Number of the process that began.
static PROCESS: AtomicU32 = AtomicU32::new(0);
static WITH_CHILDREN: AtomicBool = AtomicBool::new(false);
/// The text of `CAIRN_HEAP=...` in the kernel's own array; null when there is none.
static OPTIONS: AtomicPtr<c_char> = AtomicPtr::new(ptr::null_mut());

/// Finds the next allocator and reads the options, at the first call, which is usually the
/// loader's.
#[cold]
pub(crate) extern "C" fn begin() {
    let errno = system::errno();
    if !HAS_BEGUN.swap(true, Ordering::AcqRel) {
        // SAFETY: the program has not begun.
        let environment = match unsafe { ProcessArguments::find() } {
            Some(found) => found.environment,
            None => environment::current(),
        };
        // SAFETY: the environment is an array of texts.
        let (text, frames) = unsafe {
            (environment::options(environment), environment::value(environment, b"HEAPPROF_FRAMES="))
        };
        // The caller must not direct a program with more rights than itself.
        let is_ours = !system::has_raised_rights();
        let (text, frames) = (text.filter(|_| is_ours), frames.filter(|_| is_ours));
        let (options, with_children) = options(text.unwrap_or_default(), frames);
        HEAP.configure(options);
        let has_table = options.layout == BlockLayout::Cairn && !options.is_inline;
        if has_table {
            cairn_capture::observe_new_stacks(on_new_stacks);
        }
        let table = if has_table { (&raw const TABLE).addr() } else { 0 };
        // SAFETY: a static, and this is done once.
        unsafe { HEAP.write_anchor(table) };
        if let Some(text) = text {
            // SAFETY: the name of the variable is in front of its value.
            let whole = unsafe { text.as_ptr().sub(b"CAIRN_HEAP=".len()) };
            OPTIONS.store(whole.cast_mut().cast(), Ordering::Relaxed);
        }
        PROCESS.store(system::process_id(), Ordering::Relaxed);
        WITH_CHILDREN.store(with_children, Ordering::Relaxed);
        // With children, the variables stay: `system` and `popen` pass the environment on.
        if !with_children {
            // SAFETY: the program has not begun.
            unsafe { environment::remove_own(environment, next::own_path()) };
        }
    }
    // Last: a thread that finds the functions finds the options set.
    next::resolve();
    system::set_errno(errno);
}

/// Nothing is recorded that `exec` ends.
pub(crate) const fn note_exec(_is_calling: bool) {}

/// Returns the variables for the next program of this process.
pub(crate) fn variables_for_exec() -> Option<OwnVariables> {
    let follows =
        system::process_id() == PROCESS.load(Ordering::Relaxed) || WITH_CHILDREN.load(Ordering::Relaxed);
    follows.then(own_variables)
}

/// Returns the variables for a process that this one starts.
pub(crate) fn variables_for_children() -> Option<OwnVariables> {
    WITH_CHILDREN.load(Ordering::Relaxed).then(own_variables)
}

fn own_variables() -> OwnVariables {
    OwnVariables { is_wanted: true, options: OPTIONS.load(Ordering::Relaxed), library: next::own_path() }
}

/// Parses the words; reports unknown ones on standard error, and ignores them.
fn options(text: &[u8], frames: Option<&[u8]>) -> (Options, bool) {
    let mut options = Options::new(BlockLayout::Cairn);
    let mut with_children = false;
    if let Some(number) = frames.and_then(number) {
        options.callers = number;
    }
    for word in text.split(|byte| *byte == b',').filter(|word| !word.is_empty()) {
        let (name, value) = match word.iter().position(|byte| *byte == b'=') {
            Some(at) => (&word[..at], number(&word[at + 1..])),
            None => (word, None),
        };
        match (name, value) {
            (b"cairn", None) => options.layout = BlockLayout::Cairn,
            (b"lws", None) => options.layout = BlockLayout::Lws,
            (b"heapprof", None) => options.layout = BlockLayout::Heapprof,
            (b"frames", Some(number)) => options.callers = number,
            (b"post", Some(number)) => options.post = number,
            (b"no-guards", None) => options.has_guards = false,
            (b"inline", None) => options.is_inline = true,
            (b"children", None) => with_children = true,
            _ => {
                let mut line = crate::text::Text::<512>::new();
                for part in [b"cairn: CAIRN_HEAP: \"", word, b"\" is not an option here; it is ignored\n"] {
                    line.push(part);
                }
                system::complain(line.as_bytes());
            }
        }
    }
    (options, with_children)
}

fn number(digits: &[u8]) -> Option<usize> {
    let text = core::str::from_utf8(digits).ok()?;
    text.parse::<usize>().ok().filter(|number| *number <= 1000)
}

/// Adds the stacks of new numbers to the table. Called inside captures.
fn on_new_stacks(stacks: NewStacks) {
    for row in stacks.rows() {
        let (kind, address) = match row.frame {
            Ok(Frame::ProgramCounter(address)) => (FrameKind::ProgramCounter, address.value()),
            Ok(frame) => (FrameKind::ReturnAddress, frame.address().map_or(0, |address| address.value())),
            Err(_) => (FrameKind::Truncated, 0),
        };
        // Without memory, the stack of that number stays unknown.
        TABLE.add(row.id.number(), row.parent.number(), address, kind, |bytes| {
            system::map(bytes).unwrap_or(ptr::null_mut())
        });
    }
}

/// Returns true when the lists must not be half changed in a forked child.
fn has_lists() -> bool {
    HEAP.options().layout == BlockLayout::Lws
}

extern "C" fn before_fork() {
    if has_lists() {
        HEAP.lock_all(NextAllocator.thread());
    }
}

extern "C" fn after_fork() {
    if has_lists() {
        HEAP.unlock_all();
    }
}

extern "C" fn after_fork_in_child() {
    after_fork();
    // SAFETY: a child of `fork`, which has one thread.
    unsafe { cairn_capture::after_fork_in_child() };
}

extern "C" fn construct() {
    begin();
    at_fork::register(Some(before_fork), Some(after_fork), after_fork_in_child);
}

#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = construct;
