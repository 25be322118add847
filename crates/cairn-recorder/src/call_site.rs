//! The body of a naked function that passes its caller's registers on to a Rust function.

/// Jumps to `$hook` with the arguments of the surrounding naked function and the call site. The
/// caller's registers lie behind the arguments: return address, stack pointer after the return,
/// frame pointer.
///
/// The first argument is the number of arguments in integer registers, 1 to 3; floating-point
/// arguments pass through unchanged. `$hook` is an `extern "C"` function that takes three `u64`
/// more. A naked function is necessary: the first instructions of any other function may change the
/// registers, and put a frame of its own between caller and capture.
///
/// On AArch64 the entry begins with a landing pad (`bti c`, which is `hint #34`), because programs
/// call such functions through pointers. The link register holds a plain address there: a function
/// signs its return address after the call, and authenticates it before a tail call.
///
/// ```
/// use cairn_recorder::{CallSite, heap};
///
/// #[unsafe(naked)]
/// extern "C" fn pool_allocated(address: u64, size_bytes: u64) {
///     cairn_recorder::jump_with_call_site!(2, pool_allocated_at)
/// }
///
/// extern "C" fn pool_allocated_at(address: u64, size_bytes: u64, pc: u64, sp: u64, fp: u64) {
///     // SAFETY: `pool_allocated` passes the registers of its caller, which waits for this function.
///     unsafe { heap::allocated(address, size_bytes, CallSite { pc, sp, fp }) };
/// }
/// pool_allocated(0x1000, 16);
/// ```
#[cfg(all(target_arch = "x86_64", not(windows)))]
#[macro_export]
macro_rules! jump_with_call_site {
    (1, $hook:path) => { $crate::jump_with_call_site! { @ $hook, "rsi", "rdx", "rcx" } };
    (2, $hook:path) => { $crate::jump_with_call_site! { @ $hook, "rdx", "rcx", "r8" } };
    (3, $hook:path) => { $crate::jump_with_call_site! { @ $hook, "rcx", "r8", "r9" } };
    (@ $hook:path, $pc:literal, $sp:literal, $fp:literal) => {
        core::arch::naked_asm!(
            ".cfi_startproc",
            concat!("mov ", $pc, ", [rsp]"),
            concat!("lea ", $sp, ", [rsp + 8]"),
            concat!("mov ", $fp, ", rbp"),
            "jmp {hook}",
            ".cfi_endproc",
            hook = sym $hook,
        )
    };
}

/// Jumps to `$hook` with the arguments of the surrounding naked function and the call site. The
/// caller's registers lie behind the arguments; the documentation for x86-64 has the details.
#[cfg(target_arch = "aarch64")]
#[macro_export]
macro_rules! jump_with_call_site {
    (1, $hook:path) => { $crate::jump_with_call_site! { @ $hook, "x1", "x2", "x3" } };
    (2, $hook:path) => { $crate::jump_with_call_site! { @ $hook, "x2", "x3", "x4" } };
    (3, $hook:path) => { $crate::jump_with_call_site! { @ $hook, "x3", "x4", "x5" } };
    (@ $hook:path, $pc:literal, $sp:literal, $fp:literal) => {
        core::arch::naked_asm!(
            ".cfi_startproc",
            "hint #34",
            concat!("mov ", $pc, ", x30"),
            concat!("mov ", $sp, ", sp"),
            concat!("mov ", $fp, ", x29"),
            "b {hook}",
            ".cfi_endproc",
            hook = sym $hook,
        )
    };
}

/// Calls `$hook` with the arguments of the surrounding naked function `$this` and the call site.
///
/// As `jump_with_call_site!` elsewhere, but for Windows: a function gets four arguments in
/// registers there, so that the entry needs a frame for the rest. The number is that of all
/// arguments, 2 or 3, in registers of either kind. The three `u64` more lie behind them.
///
/// The frame has unwind data, because exceptions may be handled below it.
#[cfg(all(target_arch = "x86_64", windows))]
#[macro_export]
macro_rules! call_with_call_site {
    ($this:path, 2, $hook:path) => {
        $crate::call_with_call_site! { @ $this, $hook, "r8", "r9", "mov [rsp + 32], rbp", "" }
    };
    ($this:path, 3, $hook:path) => {
        $crate::call_with_call_site! {
            @ $this, $hook, "r9", "rax", "mov [rsp + 32], rax", "mov [rsp + 40], rbp"
        }
    };
    (@ $this:path, $hook:path, $pc:literal, $sp:literal, $fifth:literal, $sixth:literal) => {
        core::arch::naked_asm!(
            ".seh_proc {this}",
            "push rbp",
            ".seh_pushreg rbp",
            // Room for four arguments in registers, then the fifth and the sixth one.
            "sub rsp, 48",
            ".seh_stackalloc 48",
            ".seh_endprologue",
            concat!("mov ", $pc, ", [rsp + 56]"),
            concat!("lea ", $sp, ", [rsp + 64]"),
            $fifth,
            $sixth,
            "call {hook}",
            "add rsp, 48",
            "pop rbp",
            "ret",
            ".seh_endproc",
            this = sym $this,
            hook = sym $hook,
        )
    };
}
