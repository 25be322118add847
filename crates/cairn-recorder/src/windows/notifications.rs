//! Observes loads and unloads, in the loader.
//!
//! The observation begins before the list of loaded modules is read, so that nothing in between is
//! missed. The loader calls the function below under its lock: after it has mapped a module and
//! before it runs code of it, and after the last code of a module and before it unmaps it.

use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use cairn_format::AbsoluteAddress;

use super::calls::{
    DllNotification, LdrRegisterDllNotification, LdrUnregisterDllNotification, RtlDllShutdownInProgress,
};
use super::module_list::{LOADS, UNLOADS};
use crate::ending;
use crate::modules;
use crate::os::ErrnoGuard;
use crate::requests::is_under_way;

/// Observes loads and unloads from now on, once for the process.
pub(crate) fn observe() {
    if IS_OBSERVED.swap(true, Ordering::AcqRel) {
        return;
    }
    let mut cookie = core::ptr::null_mut();
    // SAFETY: the function has this type, and stays until `stop` removes the registration.
    let status = unsafe { LdrRegisterDllNotification(0, on_change, core::ptr::null_mut(), &raw mut cookie) };
    if status < 0 {
        IS_OBSERVED.store(false, Ordering::Release);
    } else {
        COOKIE.store(cookie, Ordering::Release);
    }
}

/// Ends the observation, before this code is unloaded.
pub(crate) fn stop() {
    let cookie = COOKIE.swap(core::ptr::null_mut(), Ordering::AcqRel);
    if !cookie.is_null() {
        // SAFETY: the cookie of a registration, which is removed once.
        unsafe { LdrUnregisterDllNotification(cookie) };
    }
}

static IS_OBSERVED: AtomicBool = AtomicBool::new(false);
/// Identifies the registration to the loader; null for none.
static COOKIE: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());

const LOADED: u32 = 1;
const UNLOADED: u32 = 2;

/// Called by the loader for each load and unload.
///
/// # Safety
///
/// `change` is the loader's.
unsafe extern "system" fn on_change(reason: u32, change: *const DllNotification, _: *mut c_void) {
    // SAFETY: valid until this function returns, by contract.
    let Some(change) = (unsafe { change.as_ref() }) else { return };
    // At the end of the process wine unloads all modules, and does not call the program's own
    // functions for it (`exits`), which Windows does.
    // SAFETY: the function reads a variable of the loader.
    if unsafe { RtlDllShutdownInProgress() } != 0 {
        return ending::exiting();
    }
    let _errno = ErrnoGuard::new();
    match reason {
        LOADED => {
            LOADS.fetch_add(1, Ordering::AcqRel);
            if is_under_way() {
                modules::note_load(change.base);
            }
        }
        UNLOADED => {
            UNLOADS.fetch_add(1, Ordering::AcqRel);
            if is_under_way() {
                modules::note_unload(change.base);
            }
            let end = change.base.saturating_add(change.bytes.into());
            cairn_capture::forget_module(AbsoluteAddress::new(change.base), AbsoluteAddress::new(end));
        }
        _ => {}
    }
}
