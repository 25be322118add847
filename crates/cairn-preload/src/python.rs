//! Finds the interpreters of CPython in the program, so that captures read their frames.
//!
//! An interpreter is a module that exports `Py_GetVersion` and `Py_Initialize`: the program itself,
//! a library that it was linked with, or one that it opened, also with `RTLD_LOCAL`. The modules
//! are searched when this library is loaded, and again before the next call of the loader after a
//! `dlopen`: a program that opens an interpreter asks the loader for its functions.

use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, Ordering};

use cairn_recorder::InterpreterState;

#[cfg(target_arch = "x86_64")]
use crate::environment;
#[cfg(target_arch = "x86_64")]
use crate::hooks::{self, python::AllocatorFunctions};
use crate::loaded::each_listed_module;
use crate::next::Module;

/// The first version whose allocators have the four functions that are replaced.
#[cfg(target_arch = "x86_64")]
const FIRST_WITH_ALLOCATORS: u32 = 0x0305_0000;

/// False when the options exclude Python.
static IS_WANTED: AtomicBool = AtomicBool::new(false);

/// Sets whether [`find`] does anything.
pub(crate) fn set_wanted(is_wanted: bool) {
    IS_WANTED.store(is_wanted, Ordering::Relaxed);
}

fn is_wanted() -> bool {
    IS_WANTED.load(Ordering::Relaxed) && !crate::recorder::forbids_system_calls()
}

/// Searches all modules for interpreters that are not known yet.
pub(crate) fn find() {
    if is_wanted() {
        // SAFETY: the lock of the loader's list is held, so that the module stays.
        each_listed_module(|module| unsafe { examine(module) });
    }
}

/// Reads the frames of the interpreter in this module, if there is one; records its allocators.
///
/// # Safety
///
/// The module is loaded, and stays until this function returns.
pub(crate) unsafe fn attach_to(module: &Module) {
    if is_wanted() {
        // SAFETY: the caller's promise.
        unsafe { examine(module) };
    }
}

/// Gives the allocators back to the interpreter in this module, if there is one.
///
/// The end of its code objects is still noticed, so that a later recording confuses none.
///
/// # Safety
///
/// As for [`attach_to`].
pub(crate) unsafe fn detach_from(module: &Module) {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: the caller promises a loaded module.
        let symbol = |name: &CStr| unsafe { module.exported(name) };
        if symbol(c"Py_Initialize").is_some() {
            // SAFETY: the functions of one loaded interpreter.
            unsafe { hooks::python::remove(allocator_functions(symbol)) };
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = module;
}

/// # Safety
///
/// The tables are a loaded module's.
unsafe fn examine(module: &Module) {
    // SAFETY: the caller promises a loaded module.
    let symbol = |name: &CStr| unsafe { module.exported(name) };
    let address = |name: &CStr| symbol(name).map_or(0, |(address, _)| address);
    if address(c"Py_GetVersion") == 0 || address(c"Py_Initialize") == 0 {
        return;
    }
    let runtime = address(c"_PyRuntime");
    #[cfg(target_arch = "x86_64")]
    {
        let current = match address(c"PyThreadState_GetUnchecked") {
            0 => address(c"_PyThreadState_UncheckedGet"),
            current => current,
        };
        let symbols = cairn_capture::PythonSymbols {
            // SAFETY: the caller promises a loaded module, and the symbols are of an interpreter.
            version: unsafe { version(address(c"Py_Version"), address(c"Py_GetVersion")) },
            runtime,
            code_type: address(c"PyCode_Type"),
            current_state: current,
            own_state: address(c"PyGILState_GetThisThreadState"),
            evaluation: symbol(c"_PyEval_EvalFrameDefault").unwrap_or_default(),
        };
        let state = if runtime == 0 {
            Some(InterpreterState::UnknownVersion)
        } else {
            // SAFETY: the exported symbols of one loaded interpreter, which is relocated. Unloads
            // are announced to the captures.
            unsafe { cairn_capture::read_python_frames(&symbols) }
        };
        if let Some(state) = state {
            crate::recorder::note_interpreter(symbols.version, state);
        }
        // Objects are counted also where frames are not read.
        if symbols.version < FIRST_WITH_ALLOCATORS {
            return;
        }
        let functions = allocator_functions(symbol);
        // SAFETY: the functions of one loaded interpreter. It does not run yet; or this is called
        // by a hook of the loader, or in a thread that was stopped outside of the allocators.
        unsafe { hooks::python::install(functions) };
        // Up to 3.6 an interpreter sets them to those of `malloc` first, and then to its own.
        let times = usize::from(sets_allocators()).max(if symbols.version < 0x0307_0000 { 2 } else { 0 });
        if times > 0 {
            hooks::python::watch(functions, times);
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = runtime;
        let state = InterpreterState::OtherProcessor;
        crate::recorder::note_interpreter(0, state);
    }
}

#[cfg(target_arch = "x86_64")]
fn allocator_functions(symbol: impl Fn(&CStr) -> Option<(u64, u64)>) -> AllocatorFunctions {
    let address = |name: &CStr| symbol(name).map_or(0, |(address, _)| address);
    AllocatorFunctions { read: address(c"PyMem_GetAllocator"), write: address(c"PyMem_SetAllocator") }
}

/// Whether the environment makes interpreters set their allocators. `malloc` alone needs no hooks.
#[cfg(target_arch = "x86_64")]
fn sets_allocators() -> bool {
    let environment = environment::current();
    // SAFETY: the program's environment, as the C library reads it.
    let value = |name: &[u8]| unsafe { environment::value(environment, name) };
    value(b"PYTHONMALLOC=").is_some_and(|value| !value.is_empty() && value != b"malloc")
        || value(b"PYTHONDEVMODE=").is_some_and(|value| !value.is_empty())
}

/// Returns `PY_VERSION_HEX`; before 3.11, major and minor version alone. 0 when it is not known.
///
/// # Safety
///
/// The addresses are 0, or those of the interpreter's variable and function of these names.
#[cfg(target_arch = "x86_64")]
unsafe fn version(variable: u64, function: u64) -> u32 {
    if variable != 0 {
        // SAFETY: the variable is an `unsigned long`, by contract.
        return unsafe { *(variable as *const u64) } as u32;
    }
    if function == 0 {
        return 0;
    }
    // SAFETY: the function has this type, by contract. It prints into a static buffer.
    let text = unsafe {
        let version: unsafe extern "C" fn() -> *const core::ffi::c_char = core::mem::transmute(function);
        CStr::from_ptr(version())
    };
    version_of(text.to_bytes()).unwrap_or(0)
}

/// Parses `3.10.13 (main, ...)`.
#[cfg(target_arch = "x86_64")]
fn version_of(text: &[u8]) -> Option<u32> {
    let mut numbers = text.split(|byte| !byte.is_ascii_digit());
    let mut next = || -> Option<u32> { core::str::from_utf8(numbers.next()?).ok()?.parse().ok() };
    let (major, minor, micro) = (next()?, next()?, next().unwrap_or(0));
    let fits = [major, minor, micro].iter().all(|number| *number < 256);
    fits.then_some(major << 24 | minor << 16 | micro << 8)
}
