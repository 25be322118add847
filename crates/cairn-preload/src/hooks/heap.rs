//! `malloc` and its family.
//!
//! An allocation is recorded after the real call, a free before it, a reallocation on both sides.
//! In between, another thread may get the same address; the recorder's tickets order the events.

use core::ffi::{c_int, c_void};
use core::{mem, ptr};

use cairn_capture::CallSite;

use crate::arch::entry;
use crate::next::{NEXT, is_foreign};
use crate::real::{
    Block, Free, OfSize, OfTwo, PosixMemalign, Realloc, UsableSize, address_of, no_memory, real,
};
use crate::{nesting, recorder};

/// Calls `allocate` and records the block that it returns.
#[inline(always)]
fn noted(size: usize, site: CallSite, allocate: impl FnOnce() -> Block) -> Block {
    if is_foreign() {
        return noted_in_foreign(size, site, allocate);
    }
    let block = allocate();
    if !block.is_null() {
        recorder::allocated(block as u64, size as u64, site);
    }
    block
}

/// Does the same as [`noted`], for rarely called functions.
#[inline(always)]
fn noted_rarely(size: usize, site: CallSite, allocate: impl FnOnce() -> Block) -> Block {
    if is_foreign() {
        return noted_in_foreign(size, site, allocate);
    }
    let block = allocate();
    if !block.is_null() {
        recorder::allocated_rarely(block as u64, size as u64, site);
    }
    block
}

/// Returns true when the hook only has to call the real function. It does so by a jump, without a
/// frame of its own.
#[inline(always)]
fn passes(size: usize) -> bool {
    // An allocator that calls itself would be counted twice.
    recorder::is_at_rest() || !is_foreign() && recorder::skips_allocation(size as u64)
}

/// Returns true when the hook of a free only has to call the real function.
#[inline(always)]
fn passes_free(block: Block) -> bool {
    recorder::is_at_rest() || !is_foreign() && recorder::skips_free(block as u64)
}

/// Does the same as [`noted`], for an allocator that may call itself.
#[cold]
#[inline(never)]
fn noted_in_foreign(size: usize, site: CallSite, allocate: impl FnOnce() -> Block) -> Block {
    #[cfg(target_arch = "x86_64")]
    super::python::put_back();
    nesting::outermost(allocate, |block| {
        if !block.is_null() {
            recorder::allocated_rarely(block as u64, size as u64, site);
        }
    })
}

entry! { 1 malloc => on_malloc }
/// # Safety
///
/// The arguments are valid for the C library's `malloc`. The registers `pc`, `sp` and `fp` belong
/// to the caller, which waits for this function.
unsafe extern "C" fn on_malloc(size: usize, pc: u64, sp: u64, fp: u64) -> Block {
    if let Some(address) = NEXT.malloc.known().filter(|_| passes(size)) {
        // SAFETY: not null, so it is the next definition of the name, which has this type; the
        // caller promises arguments that are valid for it.
        return unsafe { mem::transmute::<*mut c_void, OfSize>(address)(size) };
    }
    // SAFETY: the caller promises arguments that are valid for the C library's function.
    unsafe { noted_malloc(size, pc, sp, fp) }
}

/// # Safety
///
/// The arguments are valid for the C library's `malloc`. The registers `pc`, `sp` and `fp` belong
/// to the caller, which waits for this function.
#[inline(never)]
unsafe extern "C" fn noted_malloc(size: usize, pc: u64, sp: u64, fp: u64) -> Block {
    let real = real!(malloc: OfSize, or no_memory());
    // SAFETY: the caller promises arguments that are valid for the C library's function.
    noted(size, CallSite { pc, sp, fp }, || unsafe { real(size) })
}

entry! { 2 calloc => on_calloc }
/// # Safety
///
/// The arguments are valid for the C library's `calloc`. The registers `pc`, `sp` and `fp` belong
/// to the caller, which waits for this function.
unsafe extern "C" fn on_calloc(count: usize, size: usize, pc: u64, sp: u64, fp: u64) -> Block {
    if let Some(address) = NEXT.calloc.known().filter(|_| passes(count.wrapping_mul(size))) {
        // SAFETY: not null, so it is the next definition of the name, which has this type; the
        // caller promises arguments that are valid for it.
        return unsafe { mem::transmute::<*mut c_void, OfTwo>(address)(count, size) };
    }
    // SAFETY: the caller promises arguments that are valid for the C library's function.
    unsafe { noted_calloc(count, size, pc, sp, fp) }
}

/// # Safety
///
/// The arguments are valid for the C library's `calloc`. The registers `pc`, `sp` and `fp` belong
/// to the caller, which waits for this function.
#[inline(never)]
unsafe extern "C" fn noted_calloc(count: usize, size: usize, pc: u64, sp: u64, fp: u64) -> Block {
    let real = real!(calloc: OfTwo, or no_memory());
    // A product that overflows has no block.
    // SAFETY: the caller promises arguments that are valid for the C library's function.
    noted(count.wrapping_mul(size), CallSite { pc, sp, fp }, || unsafe { real(count, size) })
}

entry! { 2 realloc => on_realloc }
/// # Safety
///
/// The arguments are valid for the C library's `realloc`. The registers `pc`, `sp` and `fp` belong
/// to the caller, which waits for this function.
unsafe extern "C" fn on_realloc(old: Block, size: usize, pc: u64, sp: u64, fp: u64) -> Block {
    if let Some(address) = NEXT.realloc.known().filter(|_| passes_free(old) && passes(size)) {
        // SAFETY: not null, so it is the next definition of the name, which has this type; the
        // caller promises arguments that are valid for it.
        return unsafe { mem::transmute::<*mut c_void, Realloc>(address)(old, size) };
    }
    // SAFETY: the caller promises arguments that are valid for the C library's function.
    unsafe { noted_realloc(old, size, pc, sp, fp) }
}

/// # Safety
///
/// The arguments are valid for the C library's `realloc`. The registers `pc`, `sp` and `fp` belong
/// to the caller, which waits for this function.
#[inline(never)]
unsafe extern "C" fn noted_realloc(old: Block, size: usize, pc: u64, sp: u64, fp: u64) -> Block {
    let site = CallSite { pc, sp, fp };
    let real = real!(realloc: Realloc, or no_memory());
    if old.is_null() {
        // SAFETY: the caller promises arguments that are valid for the C library's function.
        return noted_rarely(size, site, || unsafe { real(old, size) });
    }
    if is_foreign() && nesting::is_inside() {
        // SAFETY: the caller promises arguments that are valid for the C library's function.
        return unsafe { real(old, size) };
    }
    if size == 0 && !is_foreign() {
        // The C library frees the block. Other allocators may return a small one instead.
        let mut new = ptr::null_mut();
        freed(old, || {
            // SAFETY: the caller promises arguments that are valid for the C library's function.
            new = unsafe { real(old, size) };
        });
        return new;
    }
    let moving = recorder::moving(old as u64);
    // SAFETY: the caller promises arguments that are valid for the C library's function.
    let reallocate = || unsafe { real(old, size) };
    let new = if is_foreign() { nesting::outermost(reallocate, |_| ()) } else { reallocate() };
    if !new.is_null() {
        recorder::moved(moving, new as u64, size as u64, site);
    } else if size == 0 {
        recorder::freeing(old as u64, || u64::MAX);
    }
    new
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
    // The C library's function calls our realloc, which would record a frame too many.
    let Some(size) = count.checked_mul(size) else { return no_memory() };
    // SAFETY: the caller promises arguments that are valid for the C library's function.
    unsafe { noted_realloc(old, size, pc, sp, fp) }
}

entry! { 2 memalign => on_memalign }
/// # Safety
///
/// The arguments are valid for the C library's `memalign`. The registers `pc`, `sp` and `fp` belong
/// to the caller, which waits for this function.
unsafe extern "C" fn on_memalign(alignment: usize, size: usize, pc: u64, sp: u64, fp: u64) -> Block {
    let real = real!(memalign: OfTwo, or no_memory());
    // SAFETY: the caller promises arguments that are valid for the C library's function.
    noted_rarely(size, CallSite { pc, sp, fp }, || unsafe { real(alignment, size) })
}

entry! { 2 aligned_alloc => on_aligned_alloc }
/// # Safety
///
/// The arguments are valid for the C library's `aligned_alloc`. The registers `pc`, `sp` and `fp`
/// belong to the caller, which waits for this function.
unsafe extern "C" fn on_aligned_alloc(alignment: usize, size: usize, pc: u64, sp: u64, fp: u64) -> Block {
    let real = real!(aligned_alloc: OfTwo, or no_memory());
    // SAFETY: the caller promises arguments that are valid for the C library's function.
    noted_rarely(size, CallSite { pc, sp, fp }, || unsafe { real(alignment, size) })
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
    let real = real!(posix_memalign: PosixMemalign, or libc::ENOMEM);
    let mut status = 0;
    noted_rarely(size, CallSite { pc, sp, fp }, || {
        // SAFETY: the caller promises arguments that are valid for the C library's function, which
        // has written the block if it returned zero.
        unsafe {
            status = real(place, alignment, size);
            if status == 0 { *place } else { ptr::null_mut() }
        }
    });
    status
}

entry! { 1 valloc => on_valloc }
/// # Safety
///
/// The arguments are valid for the C library's `valloc`. The registers `pc`, `sp` and `fp` belong
/// to the caller, which waits for this function.
unsafe extern "C" fn on_valloc(size: usize, pc: u64, sp: u64, fp: u64) -> Block {
    let real = real!(valloc: OfSize, or no_memory());
    // SAFETY: the caller promises arguments that are valid for the C library's function.
    noted_rarely(size, CallSite { pc, sp, fp }, || unsafe { real(size) })
}

entry! { 1 pvalloc => on_pvalloc }
/// # Safety
///
/// The arguments are valid for the C library's `pvalloc`. The registers `pc`, `sp` and `fp` belong
/// to the caller, which waits for this function.
unsafe extern "C" fn on_pvalloc(size: usize, pc: u64, sp: u64, fp: u64) -> Block {
    let real = real!(pvalloc: OfSize, or no_memory());
    // SAFETY: the caller promises arguments that are valid for the C library's function.
    noted_rarely(size, CallSite { pc, sp, fp }, || unsafe { real(size) })
}

/// Records that `block` is about to be freed, and calls `free`.
#[inline(always)]
fn freed(block: Block, free: impl FnOnce()) {
    if is_foreign() {
        return freed_in_foreign(block, free);
    }
    if !block.is_null() {
        recorder::freeing(block as u64, || usable_size(block));
    }
    free();
}

/// Does the same as [`freed`], for an allocator that may call itself.
#[cold]
#[inline(never)]
fn freed_in_foreign(block: Block, free: impl FnOnce()) {
    if !block.is_null() && !nesting::is_inside() {
        recorder::freeing(block as u64, || u64::MAX);
    }
    nesting::outermost(free, |()| ());
}

/// Returns an upper bound of a block's size; `u64::MAX` if the allocator has no function for it.
fn usable_size(block: Block) -> u64 {
    let address = NEXT.malloc_usable_size.address();
    if address.is_null() {
        return u64::MAX;
    }
    // SAFETY: the next definition of the name, which has this type.
    let real: UsableSize = unsafe { mem::transmute(address) };
    // SAFETY: a block that the program is about to free; the C library reads the word in front of
    // it, as its free does.
    unsafe { real(block) as u64 }
}

/// # Safety
///
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free(block: Block) {
    if let Some(address) = NEXT.free.known().filter(|_| passes_free(block)) {
        // SAFETY: not null, so it is the next definition of the name, which has this type; the
        // caller promises arguments that are valid for it.
        return unsafe { mem::transmute::<*mut c_void, Free>(address)(block) };
    }
    // SAFETY: the caller promises what the C library's function requires.
    unsafe { noted_free(block) }
}

/// # Safety
///
/// `block` is null or a block that nobody uses any more.
#[inline(never)]
unsafe extern "C" fn noted_free(block: Block) {
    let real = real!(free: Free);
    // SAFETY: the caller promises null, or a block that nobody uses any more.
    freed(block, || unsafe { real(block) });
}

/// # Safety
///
/// As for the C library's, which calls the same function by another name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cfree(block: Block) {
    // SAFETY: the caller promises null, or a block that nobody uses any more.
    unsafe { free(block) }
}

/// Replaces `free_sized` of C23; an allocator that has it may use the size.
///
/// # Safety
///
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free_sized(block: Block, size: usize) {
    let address = address_of(&NEXT.free_sized);
    if address.is_null() {
        // SAFETY: the caller promises what the C library's function requires; the C library is
        // older than the function, and its free does the same.
        return unsafe { free(block) };
    }
    // SAFETY: the next definition of the name, which has this type.
    let real: unsafe extern "C" fn(Block, usize) = unsafe { mem::transmute(address) };
    // SAFETY: the caller promises what the C library's function requires.
    freed(block, || unsafe { real(block, size) });
}

/// Replaces `free_aligned_sized` of C23; an allocator that has it may use size and alignment.
///
/// # Safety
///
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free_aligned_sized(block: Block, alignment: usize, size: usize) {
    let address = address_of(&NEXT.free_aligned_sized);
    if address.is_null() {
        // SAFETY: the caller promises a block that nobody uses any more; an older C library's free
        // does the same.
        return unsafe { free(block) };
    }
    // SAFETY: the next definition of the name, which has this type.
    let real: unsafe extern "C" fn(Block, usize, usize) = unsafe { mem::transmute(address) };
    // SAFETY: the caller promises what the C library's function requires.
    freed(block, || unsafe { real(block, alignment, size) });
}
