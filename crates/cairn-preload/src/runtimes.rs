//! Finds the runtimes whose compiled code captures step through: LuaJIT and PHP, and the tables
//! that others register.
//!
//! The code of these two has neither tables nor frame pointers. They are known by their exports.
//! The modules are searched when those of Python are: at the start, and after each `dlopen`.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicU64, Ordering};

use crate::arch::pass_on;
use crate::loaded::each_listed_module;
use crate::next::{Module, NEXT, Next};

/// The interface of extensions of PHP 8.2, whose JIT is known. The code of 8.4 is by another
/// compiler, and has frames of its own.
const PHP_INTERFACE: c_int = 420_220_829;

/// `execute_ex` and `zend_execute_ex`; 0 before they were found. The JIT comes with an extension,
/// which is loaded later and says the version.
static PHP_EXECUTE: AtomicU64 = AtomicU64::new(0);
static PHP_VARIABLE: AtomicU64 = AtomicU64::new(0);

/// Searches all modules.
pub(crate) fn find() {
    if !crate::recorder::forbids_system_calls() {
        // SAFETY: the lock of the loader's list is held, so that the module stays.
        each_listed_module(|module| unsafe { examine(module) });
    }
}

/// # Safety
///
/// The tables are a loaded module's.
pub(crate) unsafe fn examine(module: &Module) {
    // SAFETY: the caller promises a loaded module.
    let address = |name| unsafe { module.exported(name) }.map(|(address, _)| address);
    if address(c"__register_frame").is_some() {
        for next in [&NEXT.register_frame, &NEXT.deregister_frame] {
            if next.address().is_null() {
                next.resolve();
            }
        }
    }
    if address(c"luaJIT_setmode").is_some() {
        cairn_capture::step_through_luajit();
    }
    if let (Some(execute), Some(variable)) = (address(c"execute_ex"), address(c"zend_execute_ex")) {
        PHP_VARIABLE.store(variable, Ordering::Relaxed);
        PHP_EXECUTE.store(execute, Ordering::Relaxed);
    }
    if let Some(info) = address(c"extension_version_info") {
        // SAFETY: extensions of Zend export a structure of this name, which begins with the number
        // of the interface as an `int`; the module is loaded.
        let interface = unsafe { (info as *const c_int).read() };
        let execute = PHP_EXECUTE.load(Ordering::Relaxed);
        if interface == PHP_INTERFACE && execute != 0 {
            cairn_capture::step_through_php(execute, PHP_VARIABLE.load(Ordering::Relaxed));
        }
    }
}

/// Returns libgcc's own function, also of a library that was loaded later.
///
/// Where libgcc's functions are missing, no caller of them works.
fn real(next: &'static Next) -> *mut c_void {
    if next.address().is_null() {
        next.resolve();
    }
    if next.address().is_null() { missing as *mut c_void } else { next.address() }
}

/// Replaces a function that no library has.
extern "C" fn missing() {}

pass_on!(__register_frame, before_register);
extern "C" fn before_register(table: *const c_void) -> *mut c_void {
    // SAFETY: the caller registers this table with libgcc, which reads it as well.
    unsafe { cairn_capture::add_frame_table(table as u64) };
    real(&NEXT.register_frame)
}

pass_on!(__deregister_frame, before_deregister);
extern "C" fn before_deregister(table: *const c_void) -> *mut c_void {
    cairn_capture::remove_frame_table(table as u64);
    real(&NEXT.deregister_frame)
}
