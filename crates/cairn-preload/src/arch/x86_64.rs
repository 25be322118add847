//! Entries of hooks on x86-64.
//!
//! An entry is a naked function: what the compiler would put before its first instruction would hide the caller's
//! registers, and what it would put on the stack would be a frame of ours. Arguments of the System V ABI stay where they
//! are: rdi, rsi, rdx, rcx, r8, r9.

/// Exports `$name`, a function of 1 to 3 arguments, as a jump to the Rust function `$hook`, which gets three more: the
/// caller's return address, its stack pointer after the return, and its frame pointer.
macro_rules! entry {
    (1 $name:ident => $hook:path) => { crate::arch::entry! { @ $name, $hook, "rsi", "rdx", "rcx" } };
    (2 $name:ident => $hook:path) => { crate::arch::entry! { @ $name, $hook, "rdx", "rcx", "r8" } };
    (3 $name:ident => $hook:path) => { crate::arch::entry! { @ $name, $hook, "rcx", "r8", "r9" } };
    (@ $name:ident, $hook:path, $pc:literal, $sp:literal, $fp:literal) => {
        /// Stands in for the function of this name.
        ///
        /// # Safety
        ///
        /// As for that function.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                ".cfi_startproc",
                concat!("mov ", $pc, ", [rsp]"),
                concat!("lea ", $sp, ", [rsp + 8]"),
                concat!("mov ", $fp, ", rbp"),
                "jmp {hook}",
                ".cfi_endproc",
                hook = sym $hook,
            )
        }
    };
}

/// Exports `$name` as a jump to what `$before` answers: an address. `$before` gets the first six arguments; all of them,
/// the ones on the stack and the return address are as the caller left them when the real function begins. So that one
/// sees who called it, as `dlopen` must, and may take any number of arguments, as `syscall` does.
macro_rules! pass_on {
    ($name:ident, $before:path) => {
        /// Passes on to the function of this name.
        ///
        /// # Safety
        ///
        /// As for that function.
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
                // How many vector registers hold arguments; and the stack is a multiple of 16 again.
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

/// Exports `$name`, a function of one argument and a list of further ones that ends with a null pointer (`execl`), as a
/// call of `$hook` with the first argument and the address of that list.
macro_rules! list_entry {
    ($name:ident => $hook:path) => {
        /// Stands in for the function of this name.
        ///
        /// # Safety
        ///
        /// As for that function.
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
                // It came back: there was an error.
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

/// A caller's registers as they are passed on the stack, where all registers for arguments are taken.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct SiteOnStack {
    pub(crate) pc: u64,
    pub(crate) sp: u64,
    pub(crate) fp: u64,
}

/// As [`entry`] for a function of 4 to 6 arguments: `$hook` gets them, and behind them a [`SiteOnStack`].
macro_rules! long_entry {
    ($name:ident => $hook:path) => {
        /// Stands in for the function of this name.
        ///
        /// # Safety
        ///
        /// As for that function.
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

pub(crate) use {entry, list_entry, long_entry, pass_on};
