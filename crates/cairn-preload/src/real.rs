//! Types of the allocation functions, and the next definition of each: what both libraries call.
//!
//! The hooks themselves are not shared between the library that records and the one that annotates:
//! they have the same signatures, and nothing else in common.

use core::ffi::{c_int, c_void};
use core::ptr;

use crate::next::Next;
use crate::{start, system};

/// Address of a heap block, as the C library passes it.
pub(crate) type Block = *mut c_void;
pub(crate) type OfSize = unsafe extern "C" fn(usize) -> Block;
pub(crate) type OfTwo = unsafe extern "C" fn(usize, usize) -> Block;
pub(crate) type Realloc = unsafe extern "C" fn(Block, usize) -> Block;
pub(crate) type PosixMemalign = unsafe extern "C" fn(*mut Block, usize, usize) -> c_int;
pub(crate) type Free = unsafe extern "C" fn(Block);
pub(crate) type UsableSize = unsafe extern "C" fn(Block) -> usize;

/// Evaluates to the next definition of a function, or returns `$failing` when there is none.
macro_rules! real {
    ($next:ident: $kind:ty $(, or $failing:expr)?) => {{
        let address = crate::real::address_of(&crate::next::NEXT.$next);
        if address.is_null() {
            return $($failing)?;
        }
        // SAFETY: not null, so it is the next definition of this name, which has this type.
        unsafe { core::mem::transmute::<*mut core::ffi::c_void, $kind>(address) }
    }};
}
pub(crate) use real;

/// Returns the address of the next definition; null when there is none. The first call of any hook
/// finds no address yet, and starts everything.
#[inline(always)]
pub(crate) fn address_of(next: &'static Next) -> *mut c_void {
    let address = next.address();
    if address.is_null() { first_address_of(next) } else { address }
}

#[cold]
#[inline(never)]
fn first_address_of(next: &'static Next) -> *mut c_void {
    start::begin();
    next.address()
}

/// Returns null, with `errno` set as a failed allocation sets it.
#[cold]
pub(crate) fn no_memory() -> Block {
    system::set_errno(libc::ENOMEM);
    ptr::null_mut()
}
