//! The one door to the recorder.

use cairn_capture::CallSite;

use crate::options::Options;
use crate::system::Error;

/// Why recording did not begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BeginError {
    /// There is no path to record to, or no file can be made there.
    Path(Error),
}

impl BeginError {
    pub(crate) const fn meaning(self) -> &'static str {
        match self {
            Self::Path(error) => error.meaning(),
        }
    }
}

pub(crate) fn begin(path: &[u8], options: &Options<'_>) -> Result<(), BeginError> {
    let _ = (path, options);
    Ok(())
}

#[inline(always)]
pub(crate) fn allocated(address: u64, size: u64, site: CallSite) {
    let _ = (address, size, site);
}

#[inline(always)]
pub(crate) fn freeing(address: u64) {
    let _ = address;
}

#[inline(always)]
pub(crate) fn moving(address: u64) -> u64 {
    address
}

#[inline(always)]
pub(crate) fn moved(moving: u64, address: u64, size: u64, site: CallSite) {
    let _ = (moving, address, size, site);
}

#[inline(always)]
pub(crate) fn released(moving: u64) {
    let _ = moving;
}

pub(crate) fn note_modules() {}

pub(crate) fn while_unloading<R>(unload: impl FnOnce() -> R) -> R {
    cairn_capture::while_unloading(unload)
}

pub(crate) fn end_before_sandbox() {}
