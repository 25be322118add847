//! Lists the loaded modules, from the loader's own list.
//!
//! At the start the loader is asked, which takes its lock. A module that turns up on a stack before
//! it is listed is searched for in the list without the lock, as memory that may be unreadable: it
//! is loaded, so that its entry is there.

use core::ffi::c_void;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU64, Ordering};

use cairn_capture::{LoadedModule, read_own_memory};

use super::calls::{LdrEnumerateLoadedModules, LoaderEntry};
use super::process_block;
use crate::build_id::{BASE, Headers};
use crate::os::File;

/// True when the first mark, which may be in a signal handler, may list the modules. Windows has no
/// such handlers.
pub(crate) const IS_SIGNAL_SAFE: bool = true;

/// How the loader's list is read: there is one way.
#[derive(Clone, Copy)]
pub(crate) enum Access {
    /// Under the loader's lock.
    Shared,
}

/// Returns how the list is read at the start of a recording.
pub(crate) fn access_at_start() -> Access {
    Access::Shared
}

/// Modules that are collected at once; 64, which are 512 bytes of stack.
pub(crate) const FOUND_AT_ONCE: usize = 64;

/// Numbers of loads and unloads that were notified, plus 1.
pub(crate) static LOADS: AtomicU64 = AtomicU64::new(1);
pub(crate) static UNLOADS: AtomicU64 = AtomicU64::new(1);

/// An address in each of some modules, collected under the loader's lock and used outside of it.
pub(crate) struct FoundModules {
    inside: [u64; FOUND_AT_ONCE],
    count: usize,
    pub(crate) skip: usize,
    passed: usize,
    pub(crate) added: u64,
    pub(crate) removed: u64,
}

impl FoundModules {
    pub(crate) fn new() -> Self {
        Self { inside: [0; FOUND_AT_ONCE], count: 0, skip: 0, passed: 0, added: 0, removed: 0 }
    }

    /// Returns the collected addresses.
    pub(crate) fn addresses(&self) -> &[u64] {
        self.inside.get(..self.count).unwrap_or_default()
    }

    /// Collects the next modules, and the numbers of loads and unloads before that.
    pub(crate) fn collect(&mut self, _access: Access) {
        (self.count, self.passed) = (0, 0);
        self.added = LOADS.load(Ordering::Acquire);
        self.removed = UNLOADS.load(Ordering::Acquire);
        if self.skip == usize::MAX {
            return;
        }
        // SAFETY: the callback takes a `FoundModules`, which is passed here and lives longer than
        // the call.
        unsafe { LdrEnumerateLoadedModules(0, on_module, core::ptr::from_mut(self).cast()) };
    }
}

/// Called for each module, under the loader's lock.
///
/// # Safety
///
/// `entry` is the loader's, and `found` points to a [`FoundModules`] that nobody else uses.
unsafe extern "system" fn on_module(entry: *const LoaderEntry, found: *mut c_void, is_enough: *mut u8) {
    // SAFETY: both by contract.
    let (entry, found) = unsafe { (&*entry, &mut *found.cast::<FoundModules>()) };
    found.passed += 1;
    if found.passed > found.skip
        && let Some(place) = found.inside.get_mut(found.count)
    {
        *place = entry.base;
        found.count += 1;
    }
    if found.count == FOUND_AT_ONCE {
        // SAFETY: the loader passes the address of a byte, to be set for the last call.
        unsafe { is_enough.write(1) };
    }
}

/// Returns the loader's entry of the module that begins there.
fn entry_of(start: u64) -> Option<LoaderEntry> {
    /// Maximum entries of the list, in case that it changes into a circle.
    const MOST_ENTRIES: usize = 1 << 14;
    /// Place of the list in the loader's data.
    const IN_ORDER_OF_LOADING: u64 = 0x10;
    let head = process_block::loader_data()? + IN_ORDER_OF_LOADING;
    let mut at = head;
    for _ in 0..MOST_ENTRIES {
        let mut next = [0; 8];
        if read_own_memory(at, &mut next) != next.len() {
            return None;
        }
        at = u64::from_le_bytes(next);
        if at == head {
            return None;
        }
        let mut entry = MaybeUninit::<LoaderEntry>::zeroed();
        // SAFETY: the bytes are those of the variable.
        let bytes = unsafe {
            core::slice::from_raw_parts_mut(entry.as_mut_ptr().cast::<u8>(), size_of::<LoaderEntry>())
        };
        if read_own_memory(at, bytes) != bytes.len() {
            return None;
        }
        // SAFETY: all fields are numbers or pointers, for which all bytes are values.
        let entry = unsafe { entry.assume_init() };
        if entry.base == start {
            return Some(entry);
        }
    }
    None
}

/// Returns the path of a module, as the loader knows it.
pub(crate) fn path<'a>(_name: &[u8], module: &LoadedModule, into: &'a mut [u8]) -> &'a [u8] {
    let length = entry_of(module.start.value()).map_or(0, |entry| process_block::copy(&entry.path, into));
    into.get(..length).unwrap_or_default()
}

/// Returns the addresses of a module in memory less the ones stated in its file.
///
/// The system overwrites the stated base in memory where it moves a module, so the file is read. If
/// it cannot be, or is of another build by now, the base in memory is all that is known.
pub(crate) fn bias(module: &LoadedModule, path: &[u8]) -> u64 {
    let start = module.start.value();
    let stated = stated_base(start, path).or_else(|| Headers::at(start)?.base()).unwrap_or(0);
    start.wrapping_sub(stated)
}

fn stated_base(start: u64, path: &[u8]) -> Option<u64> {
    let file = File::open_to_read(path).ok()?;
    let mut headers = [0; 1024];
    let count = file.read_at(0, &mut headers).ok()?;
    let headers = headers.get(..count)?;
    let at = |place: usize| Some(u32::from_le_bytes(*headers.get(place..)?.first_chunk()?));
    let header = at(0x3c)? as usize;
    let is_same = Headers::at(start)?.stamp_and_size()? == (at(header + 8)?, at(header + 80)?);
    let base = headers.get(header + BASE as usize..)?.first_chunk()?;
    is_same.then(|| u64::from_le_bytes(*base))
}
