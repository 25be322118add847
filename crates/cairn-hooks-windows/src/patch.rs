//! Writes jumps to the hooks into the first bytes of functions of ntdll.
//!
//! ```text
//! function:    jmp [rip]; address of the hook      (14 bytes, and the rest of an instruction)
//! rest:        ...
//! trampoline:  the moved instructions
//!              jmp [rip]; address of `rest`
//! ```
//!
//! The trampoline has no entry in a function table. An exception inside of the function is at an
//! address behind its moved instructions, where the function's own entry holds; only a walk from
//! one of the moved instructions, as a debugger makes it, ends there.
//!
//! The bytes are not written at once: no other thread may be inside of them. `cairn` loads this
//! library while the program's own thread is suspended.

use core::ffi::CStr;
use core::sync::atomic::{AtomicPtr, Ordering};

use crate::calls;
use crate::prologue::{INSTRUCTION_BYTES, movable_bytes};

/// Bytes of a jump to any address.
const JUMP_BYTES: usize = 14;
/// Maximum bytes that are moved.
const MOVED_BYTES: usize = JUMP_BYTES - 1 + INSTRUCTION_BYTES;
/// Bytes of one trampoline.
const TRAMPOLINE_BYTES: usize = 64;
/// Bytes in which the system gives memory.
const PAGE_BYTES: usize = 4096;

const _: () = assert!(MOVED_BYTES + JUMP_BYTES <= TRAMPOLINE_BYTES);

/// A function to be hooked.
pub(crate) struct Hook {
    pub(crate) name: &'static CStr,
    pub(crate) target: *const u8,
    /// Receives the address that calls the real function.
    pub(crate) real: &'static AtomicPtr<u8>,
}

/// Reason why nothing was hooked.
pub(crate) enum PatchError {
    /// ntdll has no such function.
    Missing(&'static CStr),
    /// An instruction cannot be moved: its place in the function, and its first bytes.
    Fixed(&'static CStr, usize, [u8; 8]),
    /// The system refuses memory for code, or a change of it; the number is its status.
    Protected(i32),
}

/// Hooks all functions or none.
pub(crate) fn install<const COUNT: usize>(hooks: &[Hook; COUNT]) -> Result<(), PatchError> {
    const { assert!(COUNT * TRAMPOLINE_BYTES <= PAGE_BYTES) };
    let mut functions = [(core::ptr::null_mut::<u8>(), 0); COUNT];
    for (hook, place) in hooks.iter().zip(&mut functions) {
        *place = examine(hook)?;
    }
    let page = calls::pages(PAGE_BYTES).map_err(PatchError::Protected)?;
    for (index, (hook, &(function, moved))) in hooks.iter().zip(&functions).enumerate() {
        // SAFETY: the page has room for all trampolines, by the assertion; `examine` has read the
        // moved bytes.
        unsafe {
            let trampoline = page.add(index * TRAMPOLINE_BYTES);
            core::ptr::copy_nonoverlapping(function, trampoline, moved);
            write_jump(trampoline.add(moved), function.add(moved));
            hook.real.store(trampoline, Ordering::Release);
        }
    }
    // SAFETY: nothing writes to the trampolines any more.
    unsafe { calls::protect(page, PAGE_BYTES, calls::EXECUTE_READ) }.map_err(PatchError::Protected)?;
    calls::flush_code(page, PAGE_BYTES);
    // All are unprotected first, so that a refusal comes before the first change.
    let mut before = [0; COUNT];
    for (&(function, moved), before) in functions.iter().zip(&mut before) {
        // SAFETY: the code remains executable.
        *before = unsafe { calls::protect(function, moved, calls::EXECUTE_READ_WRITE) }
            .map_err(PatchError::Protected)?;
    }
    for (hook, &(function, moved)) in hooks.iter().zip(&functions) {
        // SAFETY: the range can be written since the loop above; the moved instructions are whole.
        unsafe { write_jump(function, hook.target) };
        calls::flush_code(function, moved);
    }
    // In reverse, because functions may share a page, whose first answer is the original state.
    for (&(function, moved), &before) in functions.iter().zip(&before).rev() {
        // SAFETY: as before; a failure leaves the page writable, which harms nothing.
        let _ = unsafe { calls::protect(function, moved, before) };
    }
    Ok(())
}

/// Returns the address of a function, and the bytes of it that are moved.
fn examine(hook: &Hook) -> Result<(*mut u8, usize), PatchError> {
    let function = calls::ntdll_function(hook.name);
    if function.is_null() {
        return Err(PatchError::Missing(hook.name));
    }
    // SAFETY: a function of ntdll, whose code is followed by more code or by the rest of a page.
    let code = unsafe { core::slice::from_raw_parts(function, MOVED_BYTES) };
    match movable_bytes(code, JUMP_BYTES) {
        Ok(moved) => Ok((function, moved)),
        Err(at) => {
            let mut bytes = [0; 8];
            bytes.iter_mut().zip(code.iter().skip(at)).for_each(|(place, byte)| *place = *byte);
            Err(PatchError::Fixed(hook.name, at, bytes))
        }
    }
}

/// Writes a jump to `target`.
///
/// # Safety
///
/// [`JUMP_BYTES`] bytes at `at` can be written, and no thread executes them.
unsafe fn write_jump(at: *mut u8, target: *const u8) {
    /// `jmp [rip + 0]`.
    const JUMP: [u8; 6] = [0xff, 0x25, 0, 0, 0, 0];
    let address = (target.expose_provenance() as u64).to_le_bytes();
    // SAFETY: the two parts are the bytes that the caller provides.
    unsafe {
        core::ptr::copy_nonoverlapping(JUMP.as_ptr(), at, JUMP.len());
        core::ptr::copy_nonoverlapping(address.as_ptr(), at.add(JUMP.len()), address.len());
    }
}
