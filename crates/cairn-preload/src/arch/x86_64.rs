//! Entries of hooks on x86-64.
//!
//! An entry is a naked function: a compiler's prologue would hide the caller's registers, and add a
//! frame of this library. Arguments of the System V ABI stay where they are: rdi, rsi, rdx, rcx,
//! r8, r9.

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
            "syscall",
            inlateout("rax") number as isize => answer,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    answer
}

/// Ends the process immediately.
#[cfg_attr(not(panic = "abort"), allow(dead_code, reason = "std has a panic handler of its own"))]
pub(crate) fn abort() -> ! {
    // SAFETY: an instruction that is never defined.
    unsafe { asm!("ud2", options(noreturn)) }
}

#[inline(always)]
pub(crate) fn stack_pointer() -> u64 {
    let sp: u64;
    // SAFETY: reads a register, and changes nothing.
    unsafe { asm!("mov {sp}, rsp", sp = out(reg) sp, options(nomem, nostack, preserves_flags)) };
    sp
}

/// The address of this thread's control block.
#[cfg(feature = "annotate")]
#[inline(always)]
pub(crate) fn thread_pointer() -> usize {
    let address: usize;
    // SAFETY: the first word of the block is its own address, by the ABI.
    unsafe {
        asm!("mov {}, fs:[0]", out(reg) address, options(nostack, readonly, preserves_flags));
    }
    address
}

/// Reads the thread's word of [`crate::nesting`].
#[inline(always)]
pub(crate) fn load_nesting_word() -> u64 {
    let word: u64;
    // SAFETY: reads the 8 bytes that `nesting` reserves in every thread.
    unsafe {
        asm!(
            "mov {word}, qword ptr [rip + cairn_preload_is_inside@gottpoff]",
            "mov {word}, qword ptr fs:[{word}]",
            word = out(reg) word,
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
            "mov {place}, qword ptr [rip + cairn_preload_is_inside@gottpoff]",
            "mov qword ptr fs:[{place}], {word}",
            place = out(reg) _,
            word = in(reg) word,
            options(nostack, preserves_flags),
        );
    }
}

/// Exports `$name` as a jump to the address that `$before` returns. `$before` gets the first six
/// arguments; all of them, the ones on the stack and the return address are as the caller left them
/// when the real function begins. So the real function sees its caller, as `dlopen` must, and may
/// take any number of arguments, as `syscall` does.
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
                "push rdi",
                ".cfi_adjust_cfa_offset 8",
                "push rsi",
                ".cfi_adjust_cfa_offset 8",
                "push rdx",
                ".cfi_adjust_cfa_offset 8",
                "push rcx",
                ".cfi_adjust_cfa_offset 8",
                "push r8",
                ".cfi_adjust_cfa_offset 8",
                "push r9",
                ".cfi_adjust_cfa_offset 8",
                // The number of vector registers with arguments; it also aligns the stack to 16.
                "push rax",
                ".cfi_adjust_cfa_offset 8",
                "call {before}",
                "mov r11, rax",
                "pop rax",
                ".cfi_adjust_cfa_offset -8",
                "pop r9",
                ".cfi_adjust_cfa_offset -8",
                "pop r8",
                ".cfi_adjust_cfa_offset -8",
                "pop rcx",
                ".cfi_adjust_cfa_offset -8",
                "pop rdx",
                ".cfi_adjust_cfa_offset -8",
                "pop rsi",
                ".cfi_adjust_cfa_offset -8",
                "pop rdi",
                ".cfi_adjust_cfa_offset -8",
                "jmp r11",
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
                // The arguments in registers go below those on the stack: one array.
                "pop rax",
                ".cfi_adjust_cfa_offset -8",
                ".cfi_register rip, rax",
                "push r9",
                ".cfi_adjust_cfa_offset 8",
                "push r8",
                ".cfi_adjust_cfa_offset 8",
                "push rcx",
                ".cfi_adjust_cfa_offset 8",
                "push rdx",
                ".cfi_adjust_cfa_offset 8",
                "push rsi",
                ".cfi_adjust_cfa_offset 8",
                "mov rsi, rsp",
                "push rax",
                ".cfi_adjust_cfa_offset 8",
                ".cfi_rel_offset rip, 0",
                "call {hook}",
                // The hook returns only after an error.
                "pop rcx",
                ".cfi_adjust_cfa_offset -8",
                ".cfi_register rip, rcx",
                "add rsp, 40",
                ".cfi_adjust_cfa_offset -40",
                "push rcx",
                ".cfi_adjust_cfa_offset 8",
                ".cfi_rel_offset rip, 0",
                "ret",
                ".cfi_endproc",
                hook = sym $hook,
            )
        }
    };
}

/// A caller's registers as they are passed in memory, where all registers for arguments are taken.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct SiteInMemory {
    pub(crate) pc: u64,
    pub(crate) sp: u64,
    pub(crate) fp: u64,
}

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
                "lea rax, [rsp + 8]",
                "push rbp",
                ".cfi_adjust_cfa_offset 8",
                "push rax",
                ".cfi_adjust_cfa_offset 8",
                "push qword ptr [rsp + 16]",
                ".cfi_adjust_cfa_offset 8",
                "call {hook}",
                "add rsp, 24",
                ".cfi_adjust_cfa_offset -24",
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
                "push rdi",
                ".cfi_adjust_cfa_offset 8",
                "push rdx",
                ".cfi_adjust_cfa_offset 8",
                "push rsi",
                ".cfi_adjust_cfa_offset 8",
                "lea rdi, [rip + {next}]",
                "mov rsi, rsp",
                "call {before}",
                "mov rsi, [rsp]",
                "mov rdx, [rsp + 8]",
                "mov rdi, [rsp + 16]",
                "call rax",
                "mov rdi, rax",
                "mov rsi, [rsp + 16]",
                "mov rdx, [rsp + 24]",
                "mov rcx, rsp",
                "mov r8, rbp",
                "call {after}",
                "add rsp, 24",
                ".cfi_adjust_cfa_offset -24",
                "ret",
                ".cfi_endproc",
                next = sym NEXT_ONE,
                before = sym $before,
                after = sym $after,
            )
        }
    };
}

/// Bytes of the stack that a [`throwing_entry`] takes, the return address included. The caller's
/// stack pointer is that far above its own.
#[cfg(feature = "allocators")]
pub(crate) const THROWING_FRAME_BYTES: u64 = 32;

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
        ".type cairn_locked, @gnu_indirect_function",
        ".cfi_startproc",
        "push rbp",
        ".cfi_adjust_cfa_offset 8",
        "push rbx",
        ".cfi_adjust_cfa_offset 8",
        "push r12",
        ".cfi_adjust_cfa_offset 8",
        "push r13",
        ".cfi_adjust_cfa_offset 8",
        "push r14",
        ".cfi_adjust_cfa_offset 8",
        "push r15",
        ".cfi_adjust_cfa_offset 8",
        "sub rsp, 8",
        ".cfi_adjust_cfa_offset 8",
        "mov rdi, rsp",
        "call {task}",
        // Any address other than null.
        "mov eax, 1",
        "add rsp, 8",
        ".cfi_adjust_cfa_offset -8",
        "pop r15",
        ".cfi_adjust_cfa_offset -8",
        "pop r14",
        ".cfi_adjust_cfa_offset -8",
        "pop r13",
        ".cfi_adjust_cfa_offset -8",
        "pop r12",
        ".cfi_adjust_cfa_offset -8",
        "pop rbx",
        ".cfi_adjust_cfa_offset -8",
        "pop rbp",
        ".cfi_adjust_cfa_offset -8",
        "ret",
        ".cfi_endproc",
        task = sym crate::attach::do_task,
    )
}

/// Returns from [`cairn_locked`], so that the loader releases its lock. `cairn` continues a thread
/// here that had a fault in there.
///
/// # Safety
///
/// The thread is below [`cairn_locked`] on its stack, and its stack pointer is what
/// [`cairn_shared`](crate::attach::cairn_shared) says.
#[cfg(not(feature = "annotate"))]
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn cairn_recover() {
    core::arch::naked_asm!(
        "mov eax, 1",
        "add rsp, 8",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbx",
        "pop rbp",
        "ret",
    )
}

#[cfg(feature = "allocators")]
pub(crate) use throwing_entry;
pub(crate) use {list_entry, long_entry, pass_on};
