//! Hooks for linked allocators, whose `operator new` and own functions bypass `malloc`.
//!
//! `operator new` may throw, and an exception must not pass through Rust. So its hook is assembly
//! with unwind tables around the real call, and two Rust functions, one before and one after it.

use core::ffi::c_int;
use core::mem;

use cairn_capture::CallSite;

use crate::arch::{THROWING_FRAME_BYTES, entry, throwing_entry};
use crate::next::{NEXT, Next};
use crate::real::Block;
use crate::{nesting, recorder, start, system};

/// Returns the real function. Searches again while there is none, because it may be in a module
/// that was loaded later.
fn real(next: &'static Next) -> Block {
    if next.address().is_null() {
        start::begin();
        next.resolve();
    }
    next.address()
}

/// Functions as `operator new`: the size is their first argument, and they may throw.
macro_rules! throwing {
    ($($name:ident = $text:literal,)*) => {
        $(
            throwing_entry!($name = $text, before_new, after_new);
        )*
    };
}

extern "C" fn before_new(next: &'static Next, sp: u64) -> Block {
    let mut address = real(next);
    if address.is_null() {
        // Without a C++ library, `malloc`, which `operator new` would call first.
        address = NEXT.malloc.address();
    }
    nesting::enter(sp);
    address
}

extern "C" fn after_new(block: Block, size: usize, pc: u64, sp: u64, fp: u64) -> Block {
    if nesting::leave(sp) && !block.is_null() {
        recorder::allocated(block as u64, size as u64, CallSite { pc, sp: sp + THROWING_FRAME_BYTES, fp });
    }
    block
}

throwing! {
    _Znwm = c"_Znwm",
    _Znam = c"_Znam",
    _ZnwmRKSt9nothrow_t = c"_ZnwmRKSt9nothrow_t",
    _ZnamRKSt9nothrow_t = c"_ZnamRKSt9nothrow_t",
    _ZnwmSt11align_val_t = c"_ZnwmSt11align_val_t",
    _ZnamSt11align_val_t = c"_ZnamSt11align_val_t",
    _ZnwmSt11align_val_tRKSt9nothrow_t = c"_ZnwmSt11align_val_tRKSt9nothrow_t",
    _ZnamSt11align_val_tRKSt9nothrow_t = c"_ZnamSt11align_val_tRKSt9nothrow_t",
    tc_new = c"tc_new",
    tc_newarray = c"tc_newarray",
    tc_new_nothrow = c"tc_new_nothrow",
    tc_newarray_nothrow = c"tc_newarray_nothrow",
    mi_new = c"mi_new",
    mi_new_nothrow = c"mi_new_nothrow",
    mi_new_aligned = c"mi_new_aligned",
}

/// Functions that free their first argument, and may take two more.
macro_rules! freeing {
    ($($name:ident = $text:literal,)*) => {
        $(
            /// Replaces the function of this name.
            ///
            /// # Safety
            ///
            /// The contract is that of the replaced function.
            #[unsafe(no_mangle)]
            #[allow(non_snake_case, reason = "names of C++")]
            pub unsafe extern "C" fn $name(block: Block, second: usize, third: usize) {
                static NEXT_ONE: Next = Next::new($text);
                // SAFETY: the program passes arguments that are valid for the function that it
                // calls.
                unsafe { free_by(&NEXT_ONE, block, second, third) }
            }
        )*
    };
}

/// # Safety
///
/// `block` is null or a block that nobody uses any more. The others are valid for the function of
/// `next`.
unsafe fn free_by(next: &'static Next, block: Block, second: usize, third: usize) {
    let mut address = real(next);
    if address.is_null() {
        address = NEXT.free.address();
    }
    if address.is_null() {
        return;
    }
    // SAFETY: the next definition of the name; arguments that it does not have are not looked at.
    let real: unsafe extern "C" fn(Block, usize, usize) = unsafe { mem::transmute(address) };
    if !block.is_null() && !nesting::is_inside() {
        recorder::freeing(block as u64, || u64::MAX);
    }
    // SAFETY: the caller promises null, or a block that nobody uses any more.
    nesting::outermost(|| unsafe { real(block, second, third) }, |()| ());
}

freeing! {
    _ZdlPv = c"_ZdlPv",
    _ZdaPv = c"_ZdaPv",
    _ZdlPvm = c"_ZdlPvm",
    _ZdaPvm = c"_ZdaPvm",
    _ZdlPvRKSt9nothrow_t = c"_ZdlPvRKSt9nothrow_t",
    _ZdaPvRKSt9nothrow_t = c"_ZdaPvRKSt9nothrow_t",
    _ZdlPvSt11align_val_t = c"_ZdlPvSt11align_val_t",
    _ZdaPvSt11align_val_t = c"_ZdaPvSt11align_val_t",
    _ZdlPvmSt11align_val_t = c"_ZdlPvmSt11align_val_t",
    _ZdaPvmSt11align_val_t = c"_ZdaPvmSt11align_val_t",
    _ZdlPvSt11align_val_tRKSt9nothrow_t = c"_ZdlPvSt11align_val_tRKSt9nothrow_t",
    _ZdaPvSt11align_val_tRKSt9nothrow_t = c"_ZdaPvSt11align_val_tRKSt9nothrow_t",
    dallocx = c"dallocx",
    sdallocx = c"sdallocx",
    tc_free = c"tc_free",
    tc_cfree = c"tc_cfree",
    tc_free_sized = c"tc_free_sized",
    tc_delete = c"tc_delete",
    tc_delete_sized = c"tc_delete_sized",
    tc_deletearray = c"tc_deletearray",
    tc_deletearray_sized = c"tc_deletearray_sized",
    tc_delete_nothrow = c"tc_delete_nothrow",
    tc_deletearray_nothrow = c"tc_deletearray_nothrow",
    mi_free = c"mi_free",
    mi_free_size = c"mi_free_size",
    mi_free_size_aligned = c"mi_free_size_aligned",
    mi_free_aligned = c"mi_free_aligned",
}

/// Functions of C that allocate: their arguments, and how the size follows from them.
macro_rules! allocating {
    ($($count:tt $name:ident = $text:literal, $hook:ident, |$($argument:ident),*| $size:expr;)*) => {
        $(
            entry! { $count $name => $hook }
            unsafe extern "C" fn $hook($($argument: usize,)* pc: u64, sp: u64, fp: u64) -> Block {
                static NEXT_ONE: Next = Next::new($text);
                let address = real(&NEXT_ONE);
                if address.is_null() {
                    system::set_errno(libc::ENOMEM);
                    return core::ptr::null_mut();
                }
                type Real = unsafe extern "C" fn($(allocating!(@ $argument usize)),*) -> Block;
                // SAFETY: the next definition of the name, whose arguments are words.
                let real = unsafe { mem::transmute::<Block, Real>(address) };
                let size: usize = $size;
                // SAFETY: the program passes arguments that are valid for the function that it
                // calls.
                nesting::outermost(|| unsafe { real($($argument),*) }, |block| {
                    if !block.is_null() {
                        recorder::allocated_rarely(block as u64, size as u64, CallSite { pc, sp, fp });
                    }
                })
            }
        )*
    };
    (@ $argument:ident $kind:ty) => { $kind };
}

allocating! {
    2 mallocx = c"mallocx", on_mallocx, |size, _flags| size;
    1 tc_malloc = c"tc_malloc", on_tc_malloc, |size| size;
    2 tc_calloc = c"tc_calloc", on_tc_calloc, |count, size| count.wrapping_mul(size);
    2 tc_memalign = c"tc_memalign", on_tc_memalign, |_alignment, size| size;
    1 tc_valloc = c"tc_valloc", on_tc_valloc, |size| size;
    1 tc_pvalloc = c"tc_pvalloc", on_tc_pvalloc, |size| size;
    1 mi_malloc = c"mi_malloc", on_mi_malloc, |size| size;
    1 mi_zalloc = c"mi_zalloc", on_mi_zalloc, |size| size;
    1 mi_malloc_small = c"mi_malloc_small", on_mi_malloc_small, |size| size;
    2 mi_calloc = c"mi_calloc", on_mi_calloc, |count, size| count.wrapping_mul(size);
    2 mi_mallocn = c"mi_mallocn", on_mi_mallocn, |count, size| count.wrapping_mul(size);
    2 mi_malloc_aligned = c"mi_malloc_aligned", on_mi_malloc_aligned, |size, _alignment| size;
    2 mi_zalloc_aligned = c"mi_zalloc_aligned", on_mi_zalloc_aligned, |size, _alignment| size;
    2 mi_memalign = c"mi_memalign", on_mi_memalign, |_alignment, size| size;
    2 mi_aligned_alloc = c"mi_aligned_alloc", on_mi_aligned_alloc, |_alignment, size| size;
}

/// Functions of C that reallocate their first argument to the size that is the second.
macro_rules! reallocating {
    ($($count:tt $name:ident = $text:literal, $hook:ident, [$($more:ident),*];)*) => {
        $(
            entry! { $count $name => $hook }
            unsafe extern "C" fn $hook(old: Block, size: usize, $($more: c_int,)* pc: u64, sp: u64, fp: u64) -> Block {
                static NEXT_ONE: Next = Next::new($text);
                let address = real(&NEXT_ONE);
                if address.is_null() {
                    system::set_errno(libc::ENOMEM);
                    return core::ptr::null_mut();
                }
                let flags = [$($more,)* 0][0];
                // SAFETY: `address` is the next definition of the name; the program passes
                // arguments that are valid for it, and the entry its registers.
                unsafe { reallocate_by(address, old, size, flags, CallSite { pc, sp, fp }) }
            }
        )*
    };
}

/// # Safety
///
/// `address` is the next definition of a function that reallocates. `old` is null or a block that
/// nobody else uses; `site` has the registers of the caller, which waits.
unsafe fn reallocate_by(address: Block, old: Block, size: usize, flags: c_int, site: CallSite) -> Block {
    // SAFETY: the next definition; an argument that it does not have is not looked at.
    let real: unsafe extern "C" fn(Block, usize, c_int) -> Block = unsafe { mem::transmute(address) };
    if nesting::is_inside() {
        // SAFETY: the caller promises a block that nobody else uses, or null.
        return unsafe { real(old, size, flags) };
    }
    let moving = (!old.is_null()).then(|| recorder::moving(old as u64));
    // SAFETY: the caller promises a block that nobody else uses, or null.
    let new = nesting::outermost(|| unsafe { real(old, size, flags) }, |_| ());
    match moving {
        _ if new.is_null() => {}
        Some(moving) => recorder::moved(moving, new as u64, size as u64, site),
        None => recorder::allocated_rarely(new as u64, size as u64, site),
    }
    new
}

reallocating! {
    3 rallocx = c"rallocx", on_rallocx, [flags];
    2 tc_realloc = c"tc_realloc", on_tc_realloc, [];
    2 mi_realloc = c"mi_realloc", on_mi_realloc, [];
}
