//! System calls of Windows: memory, threads, clocks, and the process's own paths.
//!
//! Every entry of the recorder that can make a system call preserves the program's last error
//! ([`ErrnoGuard`]).

use core::ffi::{CStr, c_void};
use core::ptr;

use cairn_capture::environment;

use super::calls::{
    GetSystemTimePreciseAsFileTime, IoStatus, NtDelayExecution, NtFlushVirtualMemory,
    NtQueryInformationProcess, NtQueryInformationThread, NtQueryVirtualMemory, QueryPerformanceCounter,
    QueryPerformanceFrequency, THIS_PROCESS, THIS_THREAD, UnicodeString,
};
use super::errors::answer;
use super::process_block;
use crate::path_text::PathText;

pub(crate) use cairn_capture::environment::{LastErrorGuard as ErrnoGuard, process_id, thread_id};

pub(crate) use super::errors::Errno;
pub(crate) use super::file::File;
pub(crate) use super::memory::{forget, lengthen, unmap, zeroed, zeroed_apart};

/// Returns true when this process has more rights than its caller: Windows has no such programs.
pub(crate) fn has_raised_rights() -> bool {
    false
}

/// Extends the mapping of a file that ends at `end`, by the range of the file at `offset`. Fails if
/// other memory is behind it.
pub(crate) fn lengthen_file<E>(
    end: usize,
    more: usize,
    offset: u64,
    file: impl FnOnce() -> Result<File, E>,
) -> Result<(), Errno> {
    file().map_err(|_| Errno::FILE_MISSING)?.map_behind(end, more, offset)
}

/// Leaves a mapping of the recorder as it is: Windows cannot replace one while threads use it.
///
/// # Safety
///
/// As on Linux: no thread needs the contents any more.
pub(crate) unsafe fn replace_by_zeros(_at: usize, _bytes: usize) {}

/// Leaves pages of a mapped file in memory: the system takes those that it needs.
pub(crate) fn leave_to_file(_at: usize, _bytes: usize) {}

/// Bytes of the steps in which memory is reserved.
pub(crate) const PAGE_BYTES: usize = 1 << 16;

/// Does nothing, because no process is a copy of another one.
pub(crate) fn wipe_on_fork(_at: usize, _bytes: usize) -> Result<(), Errno> {
    Ok(())
}

/// Returns false: there are no children to be wiped.
pub(crate) fn ignores_advice(_shared: usize) -> bool {
    false
}

/// Leaves the pages to page faults.
pub(crate) fn populate(_at: usize, _bytes: usize) {}

/// Writes the range to its file, and waits until the disk has it.
pub(crate) fn synchronise<E>(
    at: usize,
    bytes: usize,
    file: impl FnOnce() -> Result<File, E>,
) -> Result<(), Errno> {
    let end = at + bytes;
    let mut from = at;
    while from < end {
        // Each mapping separately: the file is mapped in several.
        let (mut address, mut length) = (ptr::with_exposed_provenance_mut::<c_void>(from), end - from);
        let piece_end = end_of_range(from).filter(|piece| *piece > from).ok_or(Errno::INVALID_NAME)?;
        length = length.min(piece_end - from);
        let mut status = IoStatus::default();
        // SAFETY: the range is the caller's own mapping, which the kernel only reads.
        answer(unsafe {
            NtFlushVirtualMemory(THIS_PROCESS, &raw mut address, &raw mut length, &raw mut status)
        })?;
        from = piece_end;
    }
    file().map_err(|_| Errno::FILE_MISSING)?.flush()
}

/// Returns the first address behind the pages of equal state around an address.
fn end_of_range(address: usize) -> Option<usize> {
    // `MEMORY_BASIC_INFORMATION`; its words 0 and 3 are start and length.
    let mut found = [0_usize; 6];
    let bytes = size_of_val(&found);
    // SAFETY: the call accepts any address, and fills at most the structure.
    let status = unsafe {
        NtQueryVirtualMemory(
            THIS_PROCESS,
            ptr::without_provenance(address),
            0,
            found.as_mut_ptr().cast(),
            bytes,
            ptr::null_mut(),
        )
    };
    (status >= 0).then(|| found[0] + found[3])
}

/// Returns the limit of a file's length: Windows sets none.
pub(crate) fn file_size_limit() -> u64 {
    u64::MAX
}

/// Returns the limit of the address space: Windows sets none.
pub(crate) fn address_space_limit() -> u64 {
    u64::MAX
}

/// Reads words about this process; zeros where the system does not tell.
fn about_process<const WORDS: usize>(class: u32) -> [u64; WORDS] {
    let mut words = [0; WORDS];
    let bytes = size_of_val(&words) as u32;
    // SAFETY: the kernel fills at most the array.
    unsafe {
        NtQueryInformationProcess(THIS_PROCESS, class, words.as_mut_ptr().cast(), bytes, ptr::null_mut())
    };
    words
}

pub(crate) fn parent_id() -> u32 {
    /// `ProcessBasicInformation`; its last word is the parent's number.
    const BASIC: u32 = 0;
    about_process::<6>(BASIC)[5] as u32
}

/// Returns the most resident memory of this process; 0 when it is not known.
pub(crate) fn peak_resident_bytes() -> u64 {
    /// `ProcessVmCounters`; its word 3 is the largest working set.
    const MEMORY: u32 = 3;
    about_process::<11>(MEMORY)[3]
}

/// Returns the performance counter in nanoseconds.
pub(crate) fn monotonic_nanos() -> u64 {
    let (mut count, mut frequency) = (0, 0);
    // SAFETY: both calls write one number each.
    unsafe {
        QueryPerformanceCounter(&raw mut count);
        QueryPerformanceFrequency(&raw mut frequency);
    }
    let (count, frequency) = (count.unsigned_abs(), frequency.unsigned_abs().max(1));
    const NANOS: u64 = 1_000_000_000;
    (count / frequency).wrapping_mul(NANOS).wrapping_add(count % frequency * NANOS / frequency)
}

/// Returns the nanoseconds since 1970.
pub(crate) fn wall_nanos() -> u64 {
    /// From 1601, where Windows begins, to 1970, in units of 100 ns.
    const BEFORE_1970: u64 = 116_444_736_000_000_000;
    let mut time = 0;
    // SAFETY: the call writes one number.
    unsafe { GetSystemTimePreciseAsFileTime(&raw mut time) };
    time.saturating_sub(BEFORE_1970).wrapping_mul(100)
}

/// Returns true when this process has no thread of that number.
pub(crate) fn has_ended(thread: u32) -> bool {
    has_ended_in(process_id(), thread)
}

/// Returns true when that process has no thread of that number.
pub(crate) fn has_ended_in(process: u32, thread: u32) -> bool {
    environment::has_ended(process.cast_signed(), thread.cast_signed())
}

/// Sleeps.
pub(crate) fn sleep_micros(micros: u32) {
    // Negative numbers are distances from now, in units of 100 ns.
    let interval = -10 * i64::from(micros);
    // SAFETY: the kernel reads the variable.
    unsafe { NtDelayExecution(0, &raw const interval) };
}

/// Returns the name of the calling thread, cut to the buffer.
pub(crate) fn thread_name(into: &mut [u8; 16]) -> &[u8] {
    /// `ThreadNameInformation`: a `UNICODE_STRING` with its text behind it.
    const NAME: u32 = 38;
    let mut found = [0_u64; 66];
    let bytes = size_of_val(&found) as u32;
    // SAFETY: the kernel fills at most the array.
    let status = unsafe {
        NtQueryInformationThread(THIS_THREAD, NAME, found.as_mut_ptr().cast(), bytes, ptr::null_mut())
    };
    if status < 0 {
        return &[];
    }
    // SAFETY: the array begins with such a structure, zeroed or filled, and is aligned for it.
    let name = unsafe { found.as_ptr().cast::<UnicodeString>().read() };
    let length = process_block::copy(&name, into);
    into.get(..length).unwrap_or_default()
}

/// Character between the names of a path.
pub(crate) const SEPARATOR: u8 = b'\\';

/// Writes in front of a relative path what makes it absolute.
pub(crate) fn push_directory(path: &[u8], text: &mut PathText<'_>, scratch: &mut [u8]) {
    let drive = |directory: &[u8]| directory.get(..2).filter(|start| start.ends_with(b":")).map(<[u8]>::len);
    match path {
        [b'\\' | b'/', b'\\' | b'/', ..] | [_, b':', b'\\' | b'/', ..] => {}
        // On the present drive.
        [b'\\' | b'/', ..] => {
            let directory = process_block::working_directory(scratch);
            text.push(directory.get(..drive(directory).unwrap_or(0)).unwrap_or_default());
        }
        _ => {
            text.push(process_block::working_directory(scratch));
            text.push(&[SEPARATOR]);
        }
    }
}

/// Returns the path of the program, cut to the buffer.
pub(crate) fn executable(into: &mut [u8]) -> &[u8] {
    process_block::program(into)
}

/// Writes the working directory; returns its length, 0 if it is unknown.
pub(crate) fn working_directory(into: &mut [u8]) -> usize {
    process_block::working_directory(into).len()
}

/// Returns a variable of the environment, cut to the buffer; `None` where it is not set.
pub(crate) fn environment_variable<'b>(name: &[u8], into: &'b mut [u8]) -> Option<&'b [u8]> {
    /// Maximum bytes of a path in a variable, and of its name.
    const MOST_BYTES: usize = 512;
    let mut room = [0; MOST_BYTES];
    let mut length = None;
    process_block::variables(&mut room, |variable| {
        let value = variable.strip_prefix(name).and_then(|rest| rest.strip_prefix(b"="));
        let Some(value) = value else { return false };
        let count = value.len().min(into.len());
        if let (Some(place), Some(value)) = (into.get_mut(..count), value.get(..count)) {
            place.copy_from_slice(value);
            length = Some(count);
        }
        true
    });
    into.get(..length?)
}

/// Gives a nameless file a name: there are none.
pub(crate) fn link(_file: &File, _path: &CStr) -> Result<(), Errno> {
    Err(Errno::INVALID_NAME)
}

/// Removes a file.
pub(crate) fn unlink(path: &CStr) {
    File::remove(path);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_about_this_process_are_known() {
        assert!(peak_resident_bytes() > 1 << 20, "in wine it is unknown at the end of the process");
        assert!(!has_ended(thread_id()) && has_ended(0x3fff_fffc));
        let (before, wall) = (monotonic_nanos(), wall_nanos());
        sleep_micros(20_000);
        let (slept, passed) = (monotonic_nanos() - before, wall_nanos() - wall);
        assert!(slept >= 15_000_000 && passed >= 15_000_000, "{slept} ns and {passed} ns");
    }
}
