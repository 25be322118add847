//! The table of the modules that were loaded, each with its place in memory.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use cairn_capture::LoadedModule;
use cairn_format::AbsoluteAddress;

/// Maximum number of loads; 2^14, a hundred times those of a large program.
const LOADS: usize = 1 << 14;
/// Key of a module that is gone. Never a real key: the lower half of one is a nonzero identity.
pub(crate) const GONE: u64 = 1 << 32;

/// One load of a file.
#[repr(C)]
pub(crate) struct ModuleLoad {
    /// Page of the first address, and identity; 0 for an unused entry, [`GONE`].
    pub(crate) key: AtomicU64,
    pub(crate) start: AtomicU64,
    pub(crate) end: AtomicU64,
    is_written: AtomicU32,
    reserved: u32,
}

impl ModuleLoad {
    /// Returns true when it is in the recording, or will be in a moment.
    pub(crate) fn is_written(&self) -> bool {
        self.is_written.load(Ordering::Acquire) != 0
    }

    /// Claims the writing of the record; returns false when another thread has done so.
    pub(crate) fn claim_writing(&self) -> bool {
        self.is_written.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Gives the claim back, because there was no storage for the record.
    pub(crate) fn unclaim_writing(&self) {
        self.is_written.store(0, Ordering::Release);
    }

    /// Closes the load of this key for good; returns true for the one caller that closed it.
    pub(crate) fn close(&self, key: u64) -> bool {
        self.is_written() && self.key.compare_exchange(key, GONE, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

/// All loads. The number of a load is its index plus 1.
#[repr(C)]
pub(crate) struct ModuleTable {
    loads: [ModuleLoad; LOADS],
    used: AtomicU32,
    /// The loader's counts of loaded and unloaded modules at the last complete scan.
    pub(crate) added: AtomicU64,
    pub(crate) removed: AtomicU64,
}

/// Returns the key of a module: where it lies, and the identity that a capture gives its addresses.
pub(crate) fn key_of(module: &LoadedModule) -> u64 {
    module.start.value() >> 12 << 32 | u64::from(module.identity.number())
}

impl ModuleTable {
    /// Yields each load with its number.
    pub(crate) fn loads(&self) -> impl Iterator<Item = (u32, &ModuleLoad)> {
        (1..).zip(self.loads.iter().take(self.used.load(Ordering::Acquire) as usize))
    }

    /// Returns the load of this key, a new one if there is none.
    pub(crate) fn entry(&self, key: u64) -> Option<(u32, &ModuleLoad)> {
        for (index, load) in (0..).zip(&self.loads) {
            match load.key.compare_exchange(0, key, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => {
                    self.used.fetch_max(index + 1, Ordering::AcqRel);
                    return Some((index + 1, load));
                }
                Err(other) if other == key => return Some((index + 1, load)),
                Err(_) => {}
            }
        }
        None
    }

    /// Returns true when a module that begins there is in the recording and not gone.
    pub(crate) fn has_start(&self, start: AbsoluteAddress) -> bool {
        self.loads().any(|(_, load)| {
            load.start.load(Ordering::Acquire) == start.value()
                && load.is_written()
                && load.key.load(Ordering::Acquire) != GONE
        })
    }
}
