//! `cairn_heap_alloc` and `cairn_heap_free`: events of the program's own pools and arenas.
//!
//! These functions replace those of cairn's C library, so that the events of a program that is
//! linked with it go into the recording of its `malloc`. A program that is not linked with it
//! declares them weak, and finds them only when this library is preloaded.

use core::ffi::c_void;

use cairn_capture::CallSite;

use crate::arch::entry;
use crate::recorder;

entry! { 2 cairn_heap_alloc => on_pool_alloc }
/// # Safety
///
/// `pc`, `sp` and `fp` are registers of the caller, which waits for this function.
unsafe extern "C" fn on_pool_alloc(block: *const c_void, size: usize, pc: u64, sp: u64, fp: u64) {
    if !block.is_null() {
        recorder::allocated(block as u64, size as u64, CallSite { pc, sp, fp });
    }
}

/// Records that a block of a pool is about to be freed.
#[unsafe(no_mangle)]
pub extern "C" fn cairn_heap_free(block: *const c_void) {
    if !block.is_null() {
        recorder::freeing(block as u64, || u64::MAX);
    }
}
