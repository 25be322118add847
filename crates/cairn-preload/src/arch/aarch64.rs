//! Entries of hooks on AArch64.
//!
//! An entry is a naked function: a compiler's prologue would hide the caller's registers, and add a
//! frame of this library. Arguments of the AAPCS64 stay where they are: x0 to x7. The caller's
//! return address is in the link register, its stack pointer is the present one.
//!
//! - **Landing pads.** Programs call through pointers, and a processor may insist that such a call
//!   lands on `bti c` (`hint #34`; older processors pass it by). Ways out go through x16, the only
//!   register from which a *jump* may land there.
//! - **Signed addresses.** A return address is signed by the function that saves it, after the
//!   call, and checked by it before it jumps on to another. So the link register holds a plain
//!   address here, in tail calls, too, and nothing has to be stripped. The walk strips what it
//!   finds in frames.

use core::arch::asm;
use core::ffi::c_long;

/// Makes a system call.
///
/// # Safety
///
/// As for the call of that number.
#[inline(always)]
pub(crate) unsafe fn system_call(number: c_long, arguments: [usize; 6]) -> isize {
    let [a, b, c, d, e, f] = arguments;
    let answer: isize;
    // SAFETY: the caller promises arguments that are valid for the call of that number.
    unsafe {
        asm!(
            "svc #0",
            in("x8") number,
            inlateout("x0") a as isize => answer,
            in("x1") b, in("x2") c, in("x3") d, in("x4") e, in("x5") f,
            options(nostack),
        );
    }
    answer
}

/// Ends the process immediately.
#[cfg_attr(not(panic = "abort"), allow(dead_code, reason = "std has a panic handler of its own"))]
pub(crate) fn abort() -> ! {
    // SAFETY: an instruction that is never defined.
    unsafe { asm!("udf #0", options(noreturn)) }
}

#[inline(always)]
pub(crate) fn stack_pointer() -> u64 {
    let sp: u64;
    // SAFETY: reads a register, and changes nothing.
    unsafe { asm!("mov {}, sp", out(reg) sp, options(nomem, nostack, preserves_flags)) };
    sp
}

/// The thread pointer: another one for each thread.
#[cfg(feature = "annotate")]
#[inline(always)]
pub(crate) fn thread_pointer() -> usize {
    let address: usize;
    // SAFETY: reads a register, and changes nothing.
    unsafe { asm!("mrs {}, tpidr_el0", out(reg) address, options(nomem, nostack, preserves_flags)) };
    address
}

/// Reads the thread's word of [`crate::nesting`].
#[inline(always)]
pub(crate) fn load_nesting_word() -> u64 {
    let word: u64;
    // SAFETY: reads the 8 bytes that `nesting` reserves in every thread.
    unsafe {
        asm!(
            "mrs {thread}, tpidr_el0",
            "adrp {word}, :gottprel:cairn_preload_is_inside",
            "ldr {word}, [{word}, :gottprel_lo12:cairn_preload_is_inside]",
            "ldr {word}, [{thread}, {word}]",
            word = out(reg) word,
            thread = out(reg) _,
            options(nostack, readonly, preserves_flags),
        );
    }
    word
}

/// Writes the thread's word of [`crate::nesting`].
#[inline(always)]
pub(crate) fn store_nesting_word(word: u64) {
    // SAFETY: writes the 8 bytes that `nesting` reserves in every thread; no other code accesses
    // them.
    unsafe {
        asm!(
            "mrs {thread}, tpidr_el0",
            "adrp {place}, :gottprel:cairn_preload_is_inside",
            "ldr {place}, [{place}, :gottprel_lo12:cairn_preload_is_inside]",
            "str {word}, [{thread}, {place}]",
            place = out(reg) _,
            thread = out(reg) _,
            word = in(reg) word,
            options(nostack, preserves_flags),
        );
    }
}

/// Exports `$name` as a jump to the address that `$before` returns. `$before` gets the first eight
/// arguments; all of them, the ones on the stack and the return address are as the caller left them
/// when the real function begins. So the real function sees its caller, as `dlopen` must, and may
/// take any number of arguments, as `syscall` does.
///
/// It saves the registers of arguments, and x8, where a caller may want a large result. The vector
/// registers are not: of the functions that this is for none takes a floating-point argument, also
/// not behind its dots.
macro_rules! pass_on {
    ($name:ident, $before:path) => {
        /// Passes on to the function of this name.
        ///
        /// # Safety
        ///
        /// The contract is that of the replaced function.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                ".cfi_startproc",
                "hint #34",
                "stp x29, x30, [sp, #-96]!",
                ".cfi_def_cfa_offset 96",
                ".cfi_offset x29, -96",
                ".cfi_offset x30, -88",
                "mov x29, sp",
                "stp x0, x1, [sp, #16]",
                "stp x2, x3, [sp, #32]",
                "stp x4, x5, [sp, #48]",
                "stp x6, x7, [sp, #64]",
                "str x8, [sp, #80]",
                "bl {before}",
                "mov x16, x0",
                "ldp x0, x1, [sp, #16]",
                "ldp x2, x3, [sp, #32]",
                "ldp x4, x5, [sp, #48]",
                "ldp x6, x7, [sp, #64]",
                "ldr x8, [sp, #80]",
                "ldp x29, x30, [sp], #96",
                ".cfi_def_cfa_offset 0",
                ".cfi_restore x29",
                ".cfi_restore x30",
                "br x16",
                ".cfi_endproc",
                before = sym $before,
            )
        }
    };
}

/// Exports `$name`, a function of one argument and a list, as a call of `$hook`. The list of
/// further arguments ends with a null pointer (`execl`). `$hook` takes the first argument and the
/// address of that list.
macro_rules! list_entry {
    ($name:ident => $hook:path) => {
        /// Replaces the function of this name.
        ///
        /// # Safety
        ///
        /// The contract is that of the replaced function.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                ".cfi_startproc",
                "hint #34",
                // The arguments in registers go right below those on the stack: one array.
                "stp x29, x30, [sp, #-80]!",
                ".cfi_def_cfa_offset 80",
                ".cfi_offset x29, -80",
                ".cfi_offset x30, -72",
                "mov x29, sp",
                "str x1, [sp, #24]",
                "stp x2, x3, [sp, #32]",
                "stp x4, x5, [sp, #48]",
                "stp x6, x7, [sp, #64]",
                "add x1, sp, #24",
                "bl {hook}",
                // The hook returns only after an error.
                "ldp x29, x30, [sp], #80",
                ".cfi_def_cfa_offset 0",
                ".cfi_restore x29",
                ".cfi_restore x30",
                "ret",
                ".cfi_endproc",
                hook = sym $hook,
            )
        }
    };
}

/// A caller's registers as they are passed in memory, where most registers for arguments are taken.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct SiteInMemory {
    pub(crate) pc: u64,
    pub(crate) sp: u64,
    pub(crate) fp: u64,
}

// An argument larger than two registers is passed by its address, in the next register.
const _: () = assert!(size_of::<SiteInMemory>() == 24);

/// Does the same as [`entry`] for a function of 4 to 6 arguments. `$hook` takes six, and behind
/// them a [`SiteInMemory`].
macro_rules! long_entry {
    ($name:ident => $hook:path) => {
        /// Replaces the function of this name.
        ///
        /// # Safety
        ///
        /// The contract is that of the replaced function.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                ".cfi_startproc",
                "hint #34",
                "stp x29, x30, [sp, #-48]!",
                ".cfi_def_cfa_offset 48",
                ".cfi_offset x29, -48",
                ".cfi_offset x30, -40",
                "add x16, sp, #48",
                "stp x30, x16, [sp, #16]",
                "str x29, [sp, #32]",
                "mov x29, sp",
                "add x6, sp, #16",
                "bl {hook}",
                "ldp x29, x30, [sp], #48",
                ".cfi_def_cfa_offset 0",
                ".cfi_restore x29",
                ".cfi_restore x30",
                "ret",
                ".cfi_endproc",
                hook = sym $hook,
            )
        }
    };
}

/// Exports `$name`, which may throw, and whose first argument of up to three is a size. It calls
/// `$before` with the [`Next`](crate::next::Next) of `$text` and the stack pointer, the function
/// that `$before` returns with the arguments, and `$after` with that function's result, the size,
/// the caller's return address, the same stack pointer, and the caller's frame pointer.
#[cfg(feature = "allocators")]
macro_rules! throwing_entry {
    ($name:ident = $text:literal, $before:path, $after:path) => {
        /// Replaces the function of this name.
        ///
        /// # Safety
        ///
        /// The contract is that of the replaced function.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        #[allow(non_snake_case, reason = "names of C++")]
        pub unsafe extern "C" fn $name() {
            static NEXT_ONE: crate::next::Next = crate::next::Next::new($text);
            core::arch::naked_asm!(
                ".cfi_startproc",
                "hint #34",
                "stp x29, x30, [sp, #-48]!",
                ".cfi_def_cfa_offset 48",
                ".cfi_offset x29, -48",
                ".cfi_offset x30, -40",
                "mov x29, sp",
                "stp x0, x1, [sp, #16]",
                "str x2, [sp, #32]",
                "adrp x0, {next}",
                "add x0, x0, :lo12:{next}",
                "mov x1, sp",
                "bl {before}",
                "mov x16, x0",
                "ldp x0, x1, [sp, #16]",
                "ldr x2, [sp, #32]",
                "blr x16",
                "ldr x1, [sp, #16]",
                "ldr x2, [sp, #8]",
                "mov x3, sp",
                "ldr x4, [sp]",
                "bl {after}",
                "ldp x29, x30, [sp], #48",
                ".cfi_def_cfa_offset 0",
                ".cfi_restore x29",
                ".cfi_restore x30",
                "ret",
                ".cfi_endproc",
                next = sym NEXT_ONE,
                before = sym $before,
                after = sym $after,
            )
        }
    };
}

/// Bytes of the stack that a [`throwing_entry`] takes. The caller's stack pointer is that far above
/// its own.
#[cfg(feature = "allocators")]
pub(crate) const THROWING_FRAME_BYTES: u64 = 48;

#[cfg(feature = "allocators")]
pub(crate) use throwing_entry;
pub(crate) use {list_entry, long_entry, pass_on};

/// Does the [task](crate::attach::do_task), as the resolver of an indirect function. `dlsym` makes
/// the loader call it while the loader holds its lock.
///
/// # Safety
///
/// Only the loader calls it.
#[cfg(not(feature = "annotate"))]
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn cairn_locked() {
    core::arch::naked_asm!(
        ".type cairn_locked, %gnu_indirect_function",
        ".cfi_startproc",
        "hint #34",
        "stp x29, x30, [sp, #-16]!",
        ".cfi_def_cfa_offset 16",
        ".cfi_offset 29, -16",
        ".cfi_offset 30, -8",
        "mov x0, sp",
        "bl {task}",
        // Any address other than null.
        "mov x0, #1",
        "ldp x29, x30, [sp], #16",
        ".cfi_restore 29",
        ".cfi_restore 30",
        ".cfi_def_cfa_offset 0",
        "ret",
        ".cfi_endproc",
        task = sym crate::attach::do_task,
    )
}
