//! `exec` and its family: recording continues in the next program of the process, in a file of its
//! own.
//!
//! The program's environment does not contain our variables ([`crate::environment`]), so they are
//! added here: for the recorded process itself, and for its children if these are recorded.
//!
//! May run in a child of `vfork`, in the memory of its parent: it writes to its own stack only.

use core::ffi::{CStr, c_char, c_int};
use core::mem;

use crate::arch::list_entry;
use crate::environment::{self, OwnVariables};
use crate::next::{NEXT, Next};
use crate::system::ReadOnly;
use crate::{start, system, target};

type CText = *const c_char;
type CTexts = *const *const c_char;

fn is_found(next: &'static Next) -> bool {
    if next.address().is_null() {
        start::begin();
    }
    if next.address().is_null() {
        system::set_errno(libc::ENOSYS);
    }
    !next.address().is_null()
}

/// Evaluates to the next definition of a function, or returns `$failing` when there is none.
macro_rules! real {
    ($next:ident: $kind:ty, or $failing:expr) => {{
        if !is_found(&NEXT.$next) {
            return $failing;
        }
        // SAFETY: the next definition of the name, which has this type.
        unsafe { mem::transmute::<*mut core::ffi::c_void, $kind>(NEXT.$next.address()) }
    }};
}

/// Calls `f` with the environment of the new program. `takes_library` returns whether it can load
/// this library.
///
/// # Safety
///
/// `environment` is valid for `exec`: null, or an array of texts that ends with a null pointer.
unsafe fn with_own(
    own: Option<OwnVariables>,
    environment: CTexts,
    takes_library: impl FnOnce() -> bool,
    mut f: impl FnMut(CTexts) -> c_int,
) -> c_int {
    let Some(mut own) = own else { return f(environment) };
    own.is_wanted = own.is_wanted && is_reachable(own.library) && takes_library();
    // SAFETY: the caller promises an array of texts that ends with a null pointer.
    unsafe { own.with(environment.cast(), &mut f) }
}

/// As [`with_own`], for a function that returns only if it fails.
///
/// # Safety
///
/// As for [`with_own`].
unsafe fn replaced(
    environment: CTexts,
    takes_library: impl FnOnce() -> bool,
    f: impl FnMut(CTexts) -> c_int,
) -> c_int {
    start::note_exec(true);
    // SAFETY: the caller promises an environment that is valid for `exec`.
    let result = unsafe { with_own(start::variables_for_exec(), environment, takes_library, f) };
    start::note_exec(false);
    result
}

/// Returns whether the next program can read this library. That program may have another user's
/// rights or another root.
fn is_reachable(library: &'static [u8]) -> bool {
    // The loader searches for a name without a directory.
    // SAFETY: the loader's name of this library, which ends with a NUL.
    !library.contains(&b'/') || system::is_reachable(unsafe { CStr::from_ptr(library.as_ptr().cast()) })
}

/// # Safety
///
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execve(path: CText, arguments: CTexts, environment: CTexts) -> c_int {
    let real = real!(execve: unsafe extern "C" fn(CText, CTexts, CTexts) -> c_int, or -1);
    // SAFETY: the caller promises what the C library's function requires.
    unsafe {
        let takes_library = || target::takes_library(path);
        replaced(environment, takes_library, |new| real(path, arguments, new))
    }
}

/// # Safety
///
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execv(path: CText, arguments: CTexts) -> c_int {
    // SAFETY: the caller promises what the C library's function requires, with the present
    // environment.
    unsafe { execve(path, arguments, environment::current().cast()) }
}

/// # Safety
///
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execvpe(file: CText, arguments: CTexts, environment: CTexts) -> c_int {
    let real = real!(execvpe: unsafe extern "C" fn(CText, CTexts, CTexts) -> c_int, or -1);
    // SAFETY: the caller promises what the C library's function requires.
    unsafe {
        let takes_library = || target::found_takes_library(file);
        replaced(environment, takes_library, |new| real(file, arguments, new))
    }
}

/// # Safety
///
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execvp(file: CText, arguments: CTexts) -> c_int {
    // SAFETY: the caller promises what the C library's function requires, with the present
    // environment.
    unsafe { execvpe(file, arguments, environment::current().cast()) }
}

/// # Safety
///
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fexecve(file: c_int, arguments: CTexts, environment: CTexts) -> c_int {
    let real = real!(fexecve: unsafe extern "C" fn(c_int, CTexts, CTexts) -> c_int, or -1);
    // SAFETY: the caller promises what the C library's function requires.
    unsafe {
        let takes_library = || target::file_takes_library(&ReadOnly::of_program(file));
        replaced(environment, takes_library, |new| real(file, arguments, new))
    }
}

/// # Safety
///
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execveat(
    directory: c_int,
    path: CText,
    arguments: CTexts,
    environment: CTexts,
    flags: c_int,
) -> c_int {
    let real = real!(execveat: unsafe extern "C" fn(c_int, CText, CTexts, CTexts, c_int) -> c_int, or -1);
    // SAFETY: the caller promises what the C library's function requires.
    unsafe {
        let takes_library = || {
            if flags & libc::AT_EMPTY_PATH != 0 && path.as_ref().is_none_or(|first| *first == 0) {
                target::file_takes_library(&ReadOnly::of_program(directory))
            } else {
                target::at_takes_library(directory, path)
            }
        };
        replaced(environment, takes_library, |new| real(directory, path, arguments, new, flags))
    }
}

list_entry! { execl => execv }
list_entry! { execlp => execvp }
list_entry! { execle => on_execle }

/// Calls `execve` with the environment, which is behind the null pointer that ends the arguments.
///
/// # Safety
///
/// `arguments` is an array that ends with a null pointer, behind which the environment is passed.
unsafe extern "C" fn on_execle(path: CText, arguments: CTexts) -> c_int {
    // SAFETY: the caller promises arguments that end with null, and the environment behind them.
    unsafe {
        let mut end = arguments;
        while !(*end).is_null() {
            end = end.add(1);
        }
        execve(path, arguments, *end.add(1) as CTexts)
    }
}

type Spawn = unsafe extern "C" fn(
    *mut libc::pid_t,
    CText,
    *const libc::posix_spawn_file_actions_t,
    *const libc::posix_spawnattr_t,
    CTexts,
    CTexts,
) -> c_int;

/// # Safety
///
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_spawn(
    process: *mut libc::pid_t,
    path: CText,
    actions: *const libc::posix_spawn_file_actions_t,
    attributes: *const libc::posix_spawnattr_t,
    arguments: CTexts,
    environment: CTexts,
) -> c_int {
    let real = real!(posix_spawn: Spawn, or libc::ENOSYS);
    // SAFETY: the caller promises what the C library's function requires.
    unsafe {
        let takes_library = || target::takes_library(path);
        with_own(start::variables_for_children(), environment, takes_library, |new| {
            real(process, path, actions, attributes, arguments, new)
        })
    }
}

/// # Safety
///
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_spawnp(
    process: *mut libc::pid_t,
    file: CText,
    actions: *const libc::posix_spawn_file_actions_t,
    attributes: *const libc::posix_spawnattr_t,
    arguments: CTexts,
    environment: CTexts,
) -> c_int {
    let real = real!(posix_spawnp: Spawn, or libc::ENOSYS);
    // SAFETY: the caller promises what the C library's function requires.
    unsafe {
        let takes_library = || target::found_takes_library(file);
        with_own(start::variables_for_children(), environment, takes_library, |new| {
            real(process, file, actions, attributes, arguments, new)
        })
    }
}
