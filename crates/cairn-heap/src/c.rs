//! The C face: what `cairn_heap.h` declares.
//!
//! `cargo xtask header` writes the header from the text of this file, doc comments included, which are therefore written for
//! readers of C. `libcairn` has these functions; for a device, the crate is built as a static library with the features
//! `c-api` and `staticlib`.

use core::ffi::{c_char, c_int, c_void};
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use core::{mem, ptr, slice};

use cairn_format::SliceSink;
use cairn_format::heapblock::{BlockLayout, StackReference};
use cairn_format::lws::log_line;

use crate::backend::Backend;
use crate::heap::{Heap, Options};
use crate::lock::{Critical, Lock};
use crate::lws::{self, Owner};
use crate::stack::CallStack;

/// The layout of libwebsockets: a compressed stack and a list of all blocks.
pub const CAIRN_LAYOUT_LWS: u32 = 1;

/// The layout of heapprof: addresses between two magic words.
pub const CAIRN_LAYOUT_HEAPPROF: u32 = 2;

/// The layout of cairn: 16 bytes, and a guard behind the block.
pub const CAIRN_LAYOUT_CAIRN: u32 = 3;

/// An argument is null where it must not be, or makes no sense.
pub const CAIRN_HEAP_ERROR_ARGUMENT: c_int = -1;

/// How to annotate, and where memory comes from. Fill it with zeros, then set type_size, layout, malloc_function, free_function,
/// and what shall be otherwise than by default.
#[repr(C)]
pub struct CairnAnnotatedOptions {
    /// The size of this struct.
    pub type_size: usize,
    /// One of CAIRN_LAYOUT_...; 0 for cairn's.
    pub layout: u32,
    /// heapprof: how many callers (up to 97); 0 for 16.
    pub callers: u32,
    /// How many innermost frames to leave out of stacks.
    pub pre: u32,
    /// How many outermost frames to leave out of stacks.
    pub post: u32,
    /// cairn: not 0 for no guard behind the blocks.
    pub has_no_guards: u32,
    /// cairn: not 0 to keep stacks in front of the blocks even where they have numbers.
    pub is_inline: u32,
    /// The alignment of what malloc_function returns; 0 for two pointers.
    pub alignment: usize,
    /// Refuse what would bring the bytes in use above this; 0 for no limit.
    pub limit_bytes: usize,
    /// As malloc: an RTOS's heap, dlmalloc, the C library's own.
    pub malloc_function: Option<unsafe extern "C" fn(usize) -> *mut c_void>,
    /// As free.
    pub free_function: Option<unsafe extern "C" fn(*mut c_void)>,
    /// As realloc, or null.
    pub realloc_function: Option<unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void>,
    /// As memalign (alignment, size), or null: then more is asked for, and aligned here.
    pub memalign_function: Option<unsafe extern "C" fn(usize, usize) -> *mut c_void>,
    /// Writes return addresses of the caller's caller, innermost first, at most so many, and says how many. Null: captured by cairn
    /// where that is built in, else none.
    pub capture_function: Option<unsafe extern "C" fn(*mut usize, usize) -> usize>,
    /// Called before the lists are changed, for a few instructions: interrupts off. Null for a lock.
    pub enter_function: Option<unsafe extern "C" fn() -> usize>,
    /// Called after it, with what enter_function returned.
    pub leave_function: Option<unsafe extern "C" fn(usize)>,
}

/// What there is and was. Fill in type_size.
#[repr(C)]
pub struct CairnAnnotatedCounters {
    /// The size of this struct.
    pub type_size: usize,
    /// Blocks in use.
    pub live_blocks: usize,
    /// Bytes in use, as asked for.
    pub live_bytes: usize,
    /// The most bytes in use.
    pub peak_bytes: usize,
    /// Blocks given out since the start.
    pub allocations: usize,
    /// Requests that were refused.
    pub refused: usize,
    /// Frees of what is no block of the heap.
    pub foreign: usize,
    /// Blocks freed twice.
    pub freed_twice: usize,
    /// Blocks behind whose end somebody wrote.
    pub overflowed: usize,
}

/// A list of live blocks in the layout of libwebsockets; zeros are an empty one. Nodes are three pointers: previous, next, owner.
#[repr(C)]
pub struct CairnLwsOwner {
    /// The last node.
    pub tail: *mut c_void,
    /// The first node.
    pub head: *mut c_void,
    /// How many there are.
    pub count: usize,
}

const _: () = assert!(size_of::<CairnLwsOwner>() == size_of::<Owner>());

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
        // SAFETY: by contract; null is `None`.
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
static ALIGNMENT: AtomicUsize = AtomicUsize::new(2 * size_of::<usize>());

/// What the functions that were configured give.
struct Configured;

impl Configured {
    fn functions(&self) -> Option<crate::MallocFunctions> {
        // SAFETY: set by `cairn_annotated_configure` to these types.
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

// SAFETY: the functions are an allocator, by contract of `cairn_annotated_configure`.
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
            // SAFETY: by contract.
            unsafe { functions.release(origin, size, alignment) }
        }
    }

    unsafe fn resize(&self, origin: *mut u8, size: usize, new_size: usize) -> *mut u8 {
        // SAFETY: by contract.
        self.functions()
            .map_or(ptr::null_mut(), |functions| unsafe { functions.resize(origin, size, new_size) })
    }

    unsafe fn release_foreign(&self, user: *mut u8) {
        if let Some(functions) = self.functions() {
            // SAFETY: by contract.
            unsafe { functions.release_foreign(user) }
        }
    }

    unsafe fn resize_foreign(&self, user: *mut u8, size: usize) -> *mut u8 {
        // SAFETY: by contract.
        self.functions().map_or(ptr::null_mut(), |functions| unsafe { functions.resize_foreign(user, size) })
    }
}

static LOCK: Lock = Lock::new();

fn enter() -> usize {
    // SAFETY: set to this type.
    match unsafe { ENTER.get::<Option<unsafe extern "C" fn() -> usize>>() } {
        // SAFETY: by contract of `cairn_annotated_configure`.
        Some(enter) => unsafe { enter() },
        None => {
            LOCK.acquire(1);
            0
        }
    }
}

fn leave(state: usize) {
    // SAFETY: set to this type.
    match unsafe { LEAVE.get::<Option<unsafe extern "C" fn(usize)>>() } {
        // SAFETY: by contract of `cairn_annotated_configure`.
        Some(leave) => unsafe { leave(state) },
        None => LOCK.release(),
    }
}

static HEAP: Heap<Configured> =
    Heap::new(Configured, Options::new(BlockLayout::Cairn)).with_critical(Critical { enter, leave });

/// The stack of the caller of a function of this file.
struct Caller {
    #[cfg(feature = "capture")]
    stack: cairn_capture::Stack,
}

impl Caller {
    #[inline(always)]
    fn new() -> Self {
        Self {
            #[cfg(feature = "capture")]
            stack: cairn_capture::capture(),
        }
    }
}

type Capture = Option<unsafe extern "C" fn(*mut usize, usize) -> usize>;

impl CallStack for Caller {
    fn addresses(&self, into: &mut [usize]) -> usize {
        // SAFETY: set to this type.
        if let Some(capture) = unsafe { CAPTURE.get::<Capture>() } {
            // SAFETY: by contract of `cairn_annotated_configure`.
            return unsafe { capture(into.as_mut_ptr(), into.len()) }.min(into.len());
        }
        #[cfg(feature = "capture")]
        {
            // The innermost frame is the function's own.
            let frames = self.stack.frames().skip(1).filter_map(cairn_format::Frame::address);
            into.iter_mut().zip(frames).map(|(place, address)| *place = address.value() as usize).count()
        }
        #[cfg(not(feature = "capture"))]
        0
    }

    fn reference(&self) -> StackReference {
        #[cfg(feature = "capture")]
        // SAFETY: set to this type.
        if unsafe { CAPTURE.get::<Capture>() }.is_none()
            && let Some(row) = self.stack.id().row()
        {
            return StackReference::Number(row.parent.number());
        }
        StackReference::None
    }
}

/// Says where memory comes from and how to annotate it; before the first block. Until then nothing is given out. Returns 0 or
/// CAIRN_HEAP_ERROR_ARGUMENT.
///
/// # Safety
///
/// `options` points to `type_size` bytes, and the functions do what they are said to do.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairn_annotated_configure(options: *const CairnAnnotatedOptions) -> c_int {
    // SAFETY: by contract.
    let Some(given) = (unsafe { options.as_ref() }) else { return CAIRN_HEAP_ERROR_ARGUMENT };
    let word = size_of::<usize>();
    let alignment = if given.alignment == 0 { 2 * word } else { given.alignment };
    let is_usable = given.type_size >= size_of::<CairnAnnotatedOptions>()
        && given.malloc_function.is_some()
        && given.free_function.is_some()
        && given.enter_function.is_some() == given.leave_function.is_some()
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
    REALLOC.set(given.realloc_function.map_or(null, |function| function as *mut ()));
    MEMALIGN.set(given.memalign_function.map_or(null, |function| function as *mut ()));
    FREE.set(given.free_function.map_or(null, |function| function as *mut ()));
    MALLOC.set(given.malloc_function.map_or(null, |function| function as *mut ()));
    // SAFETY: a static; who configures does it alone.
    unsafe { HEAP.write_anchor(0) };
    0
}

/// As malloc.
#[unsafe(no_mangle)]
pub extern "C" fn cairn_annotated_malloc(size: usize) -> *mut c_void {
    HEAP.allocate(size, 1, false, Caller::new()).cast()
}

/// As calloc.
#[unsafe(no_mangle)]
pub extern "C" fn cairn_annotated_calloc(count: usize, size: usize) -> *mut c_void {
    let Some(size) = count.checked_mul(size) else { return ptr::null_mut() };
    HEAP.allocate(size, 1, true, Caller::new()).cast()
}

/// As memalign: alignment is a power of two.
#[unsafe(no_mangle)]
pub extern "C" fn cairn_annotated_memalign(alignment: usize, size: usize) -> *mut c_void {
    HEAP.allocate(size, alignment, false, Caller::new()).cast()
}

/// As realloc; a size of 0 frees the block and returns null.
///
/// # Safety
///
/// As for realloc.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairn_annotated_realloc(block: *mut c_void, size: usize) -> *mut c_void {
    if size == 0 && !block.is_null() {
        // SAFETY: by contract.
        unsafe { HEAP.release(block.cast(), 1) };
        return ptr::null_mut();
    }
    // SAFETY: by contract.
    unsafe { HEAP.resize(block.cast(), size, 1, Caller::new()) }.cast()
}

/// As free. What malloc_function gave out past this heap goes to free_function as it is.
///
/// # Safety
///
/// As for free.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairn_annotated_free(block: *mut c_void) {
    // SAFETY: by contract.
    unsafe { HEAP.release(block.cast(), 1) }
}

/// The size that was asked for; 0 for what is no block of this heap.
///
/// # Safety
///
/// `block` is null or a block that is in use.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairn_annotated_usable_size(block: *const c_void) -> usize {
    if block.is_null() {
        return 0;
    }
    // SAFETY: by contract.
    unsafe { HEAP.size_of(block.cast()) }.unwrap_or(0)
}

/// What there is and was. Returns 0 or CAIRN_HEAP_ERROR_ARGUMENT.
///
/// # Safety
///
/// `counters` points to `type_size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairn_annotated_counters(counters: *mut CairnAnnotatedCounters) -> c_int {
    // SAFETY: by contract.
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

/// Calls put with a line ~m#... for each live block of the layout of libwebsockets, line end included, oldest first. put gets context
/// as it is, and must not allocate. Of other layouts, cairn_annotated_lines_in finds the blocks in the memory of the heap.
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
        // SAFETY: by contract.
        let mut sink = lws::line_sink(|bytes| unsafe { put(bytes.as_ptr().cast(), bytes.len(), context) });
        // The sink takes everything.
        let _ = block.write_line(&mut sink);
    });
    0
}

/// As cairn_annotated_lines, for each live block of the layout of cairn or heapprof in these bytes of memory, in the order of
/// addresses. Nobody may allocate or free meanwhile.
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
        // SAFETY: by contract.
        let mut sink = lws::line_sink(|bytes| unsafe { put(bytes.as_ptr().cast(), bytes.len(), context) });
        // The sink takes everything.
        let _ = block.write_line(of_number, &mut sink);
    };
    // SAFETY: by contract.
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

/// Compresses a stack and a size into blob, and returns how many bytes to allocate more than size: a multiple of alignment, which is
/// a power of two and at least that of a pointer. As lws_alloc_metadata_gen, with the addresses given. A blob that does not fit into
/// one byte less than room says that it gave up. 0 for wrong arguments.
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
    let is_usable =
        !blob.is_null() && room >= 3 && !blob_bytes.is_null() && (count == 0 || !addresses.is_null());
    if !is_usable || !alignment.is_power_of_two() || alignment < size_of::<usize>() {
        return 0;
    }
    // SAFETY: by contract.
    let (addresses, buffer) = unsafe {
        let addresses = if count == 0 { &[] } else { slice::from_raw_parts(addresses, count) };
        (addresses, slice::from_raw_parts_mut(blob, room))
    };
    let generated = lws::generate(addresses, size, alignment, |_| (), buffer);
    let (prefix_bytes, bytes) = (generated.prefix_bytes(), generated.blob().len());
    let gave_up = bytes == 2;
    // SAFETY: by contract; there are at least 3 bytes.
    unsafe {
        if gave_up {
            blob.cast::<[u8; 2]>().write([0, 0]);
        }
        blob_bytes.write(bytes);
    }
    prefix_bytes
}

/// Puts a blob to the start of an allocation of prefix_bytes and more, and the block on the list; returns the user's address. As
/// _lws_alloc_metadata_adjust. The caller sees to it that nobody else uses the list meanwhile.
///
/// # Safety
///
/// The arguments are what `cairn_lws_generate` gave, for memory of its alignment.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairn_lws_adjust(
    owner: *mut CairnLwsOwner,
    origin: *mut c_void,
    prefix_bytes: usize,
    blob: *const u8,
    blob_bytes: usize,
) -> *mut c_void {
    // SAFETY: by contract.
    unsafe {
        let user = origin.cast::<u8>().add(prefix_bytes);
        lws::write_before(user, slice::from_raw_parts(blob, blob_bytes));
        lws::link(owner.cast(), lws::node_of(user));
        user.cast()
    }
}

/// Takes a block off its list and returns the start of the underlying allocation, to be freed. blob and blob_bytes, if not null, tell
/// where its blob is. As _lws_alloc_metadata_trim. The caller sees to it that nobody else uses the list meanwhile.
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
    // SAFETY: by contract.
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

/// Writes the return addresses of a block, innermost first, and its size, if that is not null. As lws_alloc_metadata_parse. Returns
/// how many addresses, or CAIRN_HEAP_ERROR_ARGUMENT for a blob that gave up or was overwritten.
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
    // SAFETY: by contract.
    let Ok(backtrace) = (unsafe { lws::parse(user.cast()) }) else { return CAIRN_HEAP_ERROR_ARGUMENT };
    // SAFETY: by contract.
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

/// Calls visit with each block of a list, oldest first: the user's address, the blob, its length, context. As
/// _lws_alloc_metadata_dump. The caller sees to it that nobody else uses the list meanwhile.
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
    // SAFETY: by contract.
    unsafe {
        for block in lws::live(owner.cast()) {
            visit(block.user().cast(), block.blob().as_ptr(), block.blob().len(), context);
        }
    }
}

/// Writes a blob as a text ~m#... that ends with a NUL, for a log; as lws_alloc_metadata_dump_stdout prints it. Returns its length
/// without the NUL, or CAIRN_HEAP_ERROR_ARGUMENT when there is no room.
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
    // SAFETY: by contract.
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
