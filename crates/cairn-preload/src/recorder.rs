//! All calls of the recorder by the hooks.

use cairn_capture::CallSite;
use cairn_recorder::{EndReason, StartError, heap};

pub(crate) use cairn_recorder::{
    MappingKind, end_before_sandbox, forbids_system_calls, is_at_rest, limit_room, note_exec,
};

pub(crate) use cairn_recorder::heap::{Moving, moving, skips_allocation, skips_free};
pub(crate) use cairn_recorder::modules::{scan as note_modules, while_unloading};
pub(crate) use cairn_recorder::note_interpreter;

pub(crate) use cairn_recorder::{needs_fork_hook, wipe_in_child};

#[cfg(target_arch = "x86_64")]
pub(crate) use cairn_recorder::thread_word_offset;
pub(crate) use cairn_recorder::{has_ended_memory, is_under_way, note_bypassing_slots, release_ended};

pub(crate) use cairn_recorder::{recording_path, set_child_starter, start, start_in_child};

use crate::options::Options;
use crate::system::Error;

/// Begins to record to `path`, which is absolute, by `start`, one of the recorder's start
/// functions.
pub(crate) fn begin(
    path: &[u8],
    options: &Options<'_>,
    start: fn(&cairn_recorder::Options<'_>) -> Result<(), StartError>,
) -> Result<(), StartError> {
    let mut asked = cairn_recorder::Options::new(path);
    asked.has_parent = options.has_parent;
    asked.is_paused = options.begins_paused;
    if let Some(bytes) = options.max_size_bytes {
        asked.limit_bytes = bytes;
    }
    /// Events between two stamps while `cairn` drains the recording and ticks.
    const STAMP_INTERVAL_WITH_TICKS: u32 = 16;
    // Sampled events are few, so that each can have a stamp.
    let has_ticks = options.has_parent && options.sample_bytes.is_none();
    asked.stamp_interval = match (options.stamp_interval, has_ticks) {
        (Some(interval), _) => interval,
        (None, true) => STAMP_INTERVAL_WITH_TICKS,
        (None, false) => 1,
    };
    asked.sample_bytes = options.sample_bytes;
    asked.sample_seed = options.sample_seed;
    start(&asked)
}

/// Returns the text of a failed start.
pub(crate) const fn meaning(error: StartError) -> &'static str {
    match error {
        StartError::Path => "the path is too long",
        StartError::Exists => "a thousand recordings of that name exist",
        StartError::Create(number) | StartError::Storage(number) | StartError::AddressSpace(number) => {
            Error(number).meaning()
        }
        _ => "a recording is under way already",
    }
}

/// Records a block that the program got by a call from `site`, which has not returned.
#[inline(always)]
pub(crate) fn allocated(address: u64, size: u64, site: CallSite) {
    // SAFETY: the entries of the hooks pass the caller's registers, and it waits for the hook.
    unsafe { heap::allocated(address, size, site) }
}

/// Records as [`allocated`] does, for rarely used hooks. They share one capture, which is a
/// kilobyte of code.
#[inline(never)]
pub(crate) fn allocated_rarely(address: u64, size: u64, site: CallSite) {
    allocated(address, size, site);
}

/// Records that a block is about to be freed; `usable_size` is called for few blocks.
#[inline(always)]
pub(crate) fn freeing(address: u64, usable_size: impl FnOnce() -> u64) {
    heap::freeing_of_size(address, usable_size);
}

/// Records the new address of a block.
#[inline(always)]
pub(crate) fn moved(moving: Moving, address: u64, size: u64, site: CallSite) {
    // SAFETY: as for `allocated`.
    unsafe { heap::moved(moving, address, size, site) }
}

/// Records a change of a range of addresses.
pub(crate) fn mapping(kind: MappingKind, address: u64, size: u64, site: CallSite) {
    // SAFETY: as for `allocated`.
    unsafe { heap::mapping(kind, address, size, site) }
}

/// Resumes a recording that began paused.
pub(crate) fn resume() {
    cairn_recorder::resume();
}

/// Ends the recording on request. Its memory stays until [`leave_file`].
pub(crate) fn end() {
    cairn_recorder::stop(EndReason::Stopped);
}

pub(crate) use cairn_recorder::leave_file;
