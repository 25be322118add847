//! Functions that the C library calls around `fork`.

use core::ffi::{c_int, c_void};

type Handler = extern "C" fn();

unsafe extern "C" {
    /// `pthread_atfork` ends in this function. Before glibc 2.34 that name is in `libpthread.so`,
    /// and would bring that into every program.
    fn __register_atfork(
        prepare: Option<Handler>,
        parent: Option<Handler>,
        child: Option<Handler>,
        library: *const c_void,
    ) -> c_int;

    /// This library, as its start files name it.
    #[link_name = "__dso_handle"]
    static OWN_LIBRARY: c_void;
}

/// Registers functions that stay: this library is never unloaded.
pub(crate) fn register(prepare: Option<Handler>, parent: Option<Handler>, child: Handler) {
    // SAFETY: functions that take no argument; the handle is this library's own.
    unsafe { __register_atfork(prepare, parent, Some(child), &raw const OWN_LIBRARY) };
}
