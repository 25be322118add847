//! Lists the loaded modules, from the lists of the C library's loader.

use core::ffi::{c_int, c_void};

use cairn_capture::LoadedModule;

use crate::os;
use crate::path_text::PathText;

/// True when the first mark, which may be in a signal handler, may list the modules.
pub(crate) const IS_SIGNAL_SAFE: bool = false;

/// Returns how the lists are read at the start of a recording.
///
/// In a forked child, the lock of the loader's lists may belong to a thread of the parent, and is
/// then never released. Where one thread exists, nothing changes the lists, and the lock is not
/// taken.
pub(crate) fn access_at_start() -> Access {
    if os::has_one_thread() { Access::Alone } else { Access::Shared }
}

/// Returns the addresses of a module in memory less the ones stated in its file.
pub(crate) fn bias(module: &LoadedModule, _path: &[u8]) -> u64 {
    module.bias
}

/// Returns the path of a module whose name in the loader is given. The name of the program itself
/// is empty, and that of a library opened by a relative path is relative.
pub(crate) fn path<'a>(name: &[u8], module: &LoadedModule, into: &'a mut [u8]) -> &'a [u8] {
    if name.is_empty() {
        let length = os::executable(into).len();
        // The name of the kernel's own module is no path, and on some systems empty.
        let is_vdso = is_kernel_module(module);
        return if is_vdso { b"[vdso]" } else { into.get(..length).unwrap_or_default() };
    }
    let is_relative = !name.starts_with(b"/") && name.contains(&b'/');
    let directory = if is_relative { os::working_directory(into) } else { 0 };
    let mut text = PathText::new(into.get_mut(directory..).unwrap_or_default());
    if directory > 0 {
        text.push(b"/");
    }
    text.push(name);
    let length = directory + text.length();
    into.get(..length).unwrap_or_default()
}

fn is_kernel_module(module: &LoadedModule) -> bool {
    // SAFETY: `getauxval` only reads the auxiliary vector, which exists in every process.
    module.start.value() == unsafe { libc::getauxval(libc::AT_SYSINFO_EHDR) }
}

/// Modules that are collected at once; 64, which are 512 bytes of stack.
pub(crate) const FOUND_AT_ONCE: usize = 64;

/// The counters of a scan that did not read them: the next one then scans all lists.
const COUNTERS_UNREAD: u64 = u64::MAX;

/// How the loader's lists are read.
#[derive(Clone, Copy)]
pub(crate) enum Access {
    /// Under the loader's lock: other threads may load and unload.
    Shared,
    /// Without the lock, by the only thread.
    Alone,
}

/// An address in each of some modules, collected under the loader's lock and used outside of it.
pub(crate) struct FoundModules {
    inside: [u64; FOUND_AT_ONCE],
    count: usize,
    pub(crate) skip: usize,
    pub(crate) added: u64,
    pub(crate) removed: u64,
}

impl FoundModules {
    pub(crate) fn new() -> Self {
        Self {
            inside: [0; FOUND_AT_ONCE],
            count: 0,
            skip: 0,
            added: COUNTERS_UNREAD,
            removed: COUNTERS_UNREAD,
        }
    }

    /// Returns the collected addresses.
    pub(crate) fn addresses(&self) -> &[u64] {
        self.inside.get(..self.count).unwrap_or_default()
    }

    /// Collects the next modules, and under the lock the loader's counters.
    pub(crate) fn collect(&mut self, access: Access) {
        self.count = 0;
        match access {
            Access::Shared => {
                cairn_capture::prepare_modules();
                // SAFETY: the callback takes a `FoundModules`, which is passed here and lives
                // longer than the call.
                unsafe { libc::dl_iterate_phdr(Some(on_first_module), core::ptr::from_mut(self).cast()) };
            }
            // SAFETY: no other thread exists that could change the lists.
            Access::Alone => unsafe { self.walk() },
        }
    }

    /// Collects modules from the loader's lists.
    ///
    /// # Safety
    ///
    /// The lists do not change meanwhile.
    unsafe fn walk(&mut self) {
        let skip = self.skip;
        // SAFETY: the entries of the loader's lists, by contract.
        unsafe {
            let mut namespace = cairn_capture::loader_namespaces();
            while let Some(lists) = namespace {
                let mut entry = lists.first;
                while let Some(module) = entry.as_ref() {
                    self.add(module.dynamic_section);
                    entry = module.next;
                }
                namespace = if lists.version >= 2 { lists.next.as_ref() } else { None };
            }
        }
        self.skip = skip;
    }

    fn add(&mut self, address: u64) {
        if self.skip > 0 {
            self.skip -= 1;
        } else if let Some(place) = self.inside.get_mut(self.count) {
            *place = address;
            self.count += 1;
        }
    }
}

/// Called for the first module. `dl_iterate_phdr` shows the caller's namespace only, but holds the
/// lock that protects the lists of all namespaces.
///
/// # Safety
///
/// `info` is the loader's, and `found` points to a [`FoundModules`] that nobody else uses.
unsafe extern "C" fn on_first_module(info: *mut libc::dl_phdr_info, _: usize, found: *mut c_void) -> c_int {
    // SAFETY: both by contract.
    let (info, found) = unsafe { (&*info, &mut *found.cast::<FoundModules>()) };
    (found.added, found.removed) = (info.dlpi_adds, info.dlpi_subs);
    // SAFETY: the caller, `dl_iterate_phdr`, holds the loader's lock, so that its lists do not
    // change.
    unsafe { found.walk() };
    1
}
