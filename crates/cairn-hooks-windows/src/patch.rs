//! Writes jumps to the hooks into the first bytes of functions of the system.
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

use crate::calls::{self, Library};
use crate::prologue::{INSTRUCTION_BYTES, movable_bytes};

/// Bytes of a jump to any address.
const JUMP_BYTES: usize = 14;
/// Maximum bytes that are moved.
const MOVED_BYTES: usize = JUMP_BYTES - 1 + INSTRUCTION_BYTES;
/// Bytes of one trampoline.
const TRAMPOLINE_BYTES: usize = 64;
/// Bytes in which the system gives memory.
const PAGE_BYTES: usize = 4096;
/// Maximum hooks; 16, because all options together have 12.
const MOST_HOOKS: usize = 16;

const _: () = assert!(MOVED_BYTES + JUMP_BYTES <= TRAMPOLINE_BYTES);
const _: () = assert!(MOST_HOOKS * TRAMPOLINE_BYTES <= PAGE_BYTES);

/// A function to be hooked.
pub(crate) struct Hook {
    pub(crate) library: Library,
    pub(crate) name: &'static CStr,
    pub(crate) target: *const u8,
    /// Receives the address that calls the real function.
    pub(crate) real: &'static AtomicPtr<u8>,
}

/// Reason why nothing was hooked.
pub(crate) enum PatchError {
    /// The library has no such function.
    Missing(Library, &'static CStr),
    /// An instruction cannot be moved: its place in the function, and its first bytes.
    Fixed(Library, &'static CStr, usize, [u8; 8]),
    /// More than [`MOST_HOOKS`].
    TooMany,
    /// The system refuses memory for code, or a change of it; the number is its status.
    Protected(i32),
}

/// Hooks all functions or none.
pub(crate) fn install<'a>(hooks: impl Iterator<Item = &'a Hook> + Clone) -> Result<(), PatchError> {
    let mut places = [Place::NONE; MOST_HOOKS];
    if hooks.clone().count() > MOST_HOOKS {
        return Err(PatchError::TooMany);
    }
    for (hook, place) in hooks.clone().zip(&mut places) {
        *place = examine(hook)?;
    }
    let page = calls::pages(PAGE_BYTES).map_err(PatchError::Protected)?;
    for (index, (hook, place)) in hooks.clone().zip(&places).enumerate() {
        // SAFETY: the page has room for all trampolines, by the assertion; `examine` has read the
        // moved bytes.
        unsafe {
            let trampoline = page.add(index * TRAMPOLINE_BYTES);
            core::ptr::copy_nonoverlapping(place.function, trampoline, place.moved);
            write_jump(trampoline.add(place.moved), place.function.add(place.moved));
            hook.real.store(trampoline, Ordering::Release);
        }
    }
    // SAFETY: nothing writes to the trampolines any more.
    unsafe { calls::protect(page, PAGE_BYTES, calls::EXECUTE_READ) }.map_err(PatchError::Protected)?;
    calls::flush_code(page, PAGE_BYTES);
    // All are unprotected first, so that a refusal comes before the first change.
    for (_, place) in hooks.clone().zip(&mut places) {
        // SAFETY: the code remains executable.
        place.before = unsafe { calls::protect(place.function, place.moved, calls::EXECUTE_READ_WRITE) }
            .map_err(PatchError::Protected)?;
    }
    for (hook, place) in hooks.clone().zip(&places) {
        // SAFETY: the range can be written since the loop above; the moved instructions are whole.
        unsafe { write_jump(place.function, hook.target) };
        calls::flush_code(place.function, place.moved);
    }
    // In reverse, because functions may share a page, whose first answer is the original state.
    for place in places.iter().take(hooks.count()).rev() {
        // SAFETY: as before; a failure leaves the page writable, which harms nothing.
        let _ = unsafe { calls::protect(place.function, place.moved, place.before) };
    }
    Ok(())
}

/// The first bytes of a function.
#[derive(Clone, Copy)]
struct Place {
    function: *mut u8,
    /// Bytes that are moved.
    moved: usize,
    /// Protection of the page.
    before: u32,
}

impl Place {
    const NONE: Self = Self { function: core::ptr::null_mut(), moved: 0, before: 0 };
}

/// Finds a function, and the bytes of it that are moved.
fn examine(hook: &Hook) -> Result<Place, PatchError> {
    let function = calls::function(hook.library, hook.name);
    if function.is_null() {
        return Err(PatchError::Missing(hook.library, hook.name));
    }
    // SAFETY: a function of the system, whose code is followed by more code or by the rest of a
    // page.
    let code = unsafe { core::slice::from_raw_parts(function, MOVED_BYTES) };
    match movable_bytes(code, JUMP_BYTES) {
        Ok(moved) => Ok(Place { function, moved, before: 0 }),
        Err(at) => {
            let mut bytes = [0; 8];
            bytes.iter_mut().zip(code.iter().skip(at)).for_each(|(place, byte)| *place = *byte);
            Err(PatchError::Fixed(hook.library, hook.name, at, bytes))
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
