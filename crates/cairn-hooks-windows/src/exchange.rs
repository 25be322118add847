//! Memory shared with `cairn`: what it requests, and the answer.
//!
//! A named section rather than variables of the environment, which the program would see and its
//! children would inherit. The name has the process id, and the section is created before this
//! library is loaded: by `cairn`, and for a child by this library in its parent. `cairn-run` has
//! the same layout (`windows/exchange.rs`):
//!
//! ```text
//!     0  magic
//!     8  length of the path
//!    12  answer: 0 none, 1 recording, 2 refused
//!    16  length of the answer's text
//!    20  requests: 1 children, 2 mappings
//!    24  process id of `cairn`, which is in the name of the run's memory; 0 for none
//!    28  reserved, 0
//!    64  path of the recording, WTF-8; `%n` is the program's name, `%p` the process id
//!  4160  text of the answer, WTF-8
//!  8192  path of this library, UTF-16 with a NUL at its end
//! 12288  end
//! ```

use core::ffi::c_void;
use core::mem::ManuallyDrop;
use core::sync::atomic::{AtomicPtr, Ordering};

use cairn_recorder::environment::process_id;

use crate::calls::{
    CloseHandle, CreateFileMappingW, MapViewOfFile, OpenFileMappingW, UnmapViewOfFile, last_error,
};

const MAGIC: &[u8; 8] = b"cairnhp2";
const BYTES: usize = 12288;
const ANSWER: usize = 12;
const REQUESTS: usize = 20;
const RUN: usize = 24;
const HEAD: usize = 64;
const PATH: usize = 64;
const TEXT: usize = 4160;
const LIBRARY: usize = 8192;
const NAME: &str = r"Local\cairn-heap-";

/// Units of a section's name, with the NUL at its end.
const NAME_UNITS: usize = 48;

const READ_WRITE: u32 = 6;

/// Answers to `cairn`.
#[derive(Clone, Copy)]
pub(crate) enum Answer {
    Recording = 1,
    Refused = 2,
}

/// Events that are recorded beside those of heaps.
#[derive(Clone, Copy)]
pub(crate) struct Requests {
    pub(crate) children: bool,
    pub(crate) mappings: bool,
}

/// The section of this process, if it stays mapped.
static RETAINED: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());

/// The section, mapped.
pub(crate) struct Exchange(*mut u8);

impl Exchange {
    /// Opens the section of this process; `None` if no `cairn` has made one.
    pub(crate) fn open() -> Option<Self> {
        let exchange = Self(open_section(NAME, process_id(), BYTES)?);
        (exchange.bytes().get(..8)? == MAGIC).then_some(exchange)
    }

    /// Leaves the section mapped until the end of the process.
    pub(crate) fn retain(self) {
        RETAINED.store(ManuallyDrop::new(self).0, Ordering::Release);
    }

    /// Returns the section that was left mapped.
    pub(crate) fn retained() -> Option<ManuallyDrop<Self>> {
        let address = RETAINED.load(Ordering::Acquire);
        (!address.is_null()).then_some(ManuallyDrop::new(Self(address)))
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: mapped with that many bytes; others change them only while this library is not
        // loaded in the process that the section is for.
        unsafe { core::slice::from_raw_parts(self.0, BYTES) }
    }

    fn number(&self, at: usize) -> u32 {
        let bytes = self.bytes().get(at..).and_then(|rest| rest.first_chunk());
        bytes.map_or(0, |bytes| u32::from_le_bytes(*bytes))
    }

    /// Returns the path of the recording.
    pub(crate) fn path(&self) -> Option<&[u8]> {
        self.bytes().get(PATH..TEXT)?.get(..self.number(8) as usize)
    }

    /// Returns which other events are recorded.
    pub(crate) fn requests(&self) -> Requests {
        let requests = self.number(REQUESTS);
        Requests { children: requests & 1 != 0, mappings: requests & 2 != 0 }
    }

    /// Returns the process id of `cairn`, which has made memory for the whole run; 0 for none.
    pub(crate) fn run(&self) -> u32 {
        self.number(RUN)
    }

    /// Returns this library's path, as it is in the memory: UTF-16 with a NUL at its end.
    pub(crate) fn library(&self) -> &[u8] {
        let room = self.bytes().get(LIBRARY..).unwrap_or_default();
        let units = room.chunks_exact(2).take_while(|unit| *unit != [0, 0]).count();
        room.get(..2 * (units + 1)).unwrap_or_default()
    }

    /// Makes the section of a child, with the requests of this one; the error is the system's.
    pub(crate) fn for_child(&self, child: u32) -> Result<ChildExchange, u32> {
        const EXISTS: u32 = 183;
        const READ_WRITE_PAGES: u32 = 4;
        let name = section_name(NAME, child);
        let no_file = core::ptr::without_provenance_mut(usize::MAX);
        // SAFETY: the name ends with NUL, because `section_name` leaves the last unit; the memory
        // belongs to no file.
        let section = unsafe {
            CreateFileMappingW(no_file, core::ptr::null(), READ_WRITE_PAGES, 0, BYTES as u32, name.as_ptr())
        };
        let error = last_error();
        if section.is_null() {
            return Err(error);
        }
        // SAFETY: the section was opened above and has that many bytes.
        let address = unsafe { MapViewOfFile(section, READ_WRITE, 0, 0, BYTES) };
        if address.is_null() || error == EXISTS {
            let error = if address.is_null() { last_error() } else { EXISTS };
            // SAFETY: opened and mapped above, and not used afterwards.
            unsafe {
                UnmapViewOfFile(address);
                CloseHandle(section);
            }
            return Err(error);
        }
        // SAFETY: fresh memory of that many bytes; the child does not run yet.
        let bytes = unsafe { core::slice::from_raw_parts_mut(address.cast::<u8>(), BYTES) };
        bytes.iter_mut().zip(self.bytes()).for_each(|(to, from)| *to = *from);
        if let Some(answer) = bytes.get_mut(ANSWER..REQUESTS) {
            answer.fill(0);
        }
        Ok(ChildExchange { exchange: Self(address.cast()), section })
    }

    /// Writes the answer, with a text that is cut to its room.
    pub(crate) fn answer(&mut self, answer: Answer, text: &[u8]) {
        // SAFETY: as in `bytes`, and no other reference exists, because `self` is borrowed alone.
        let bytes = unsafe { core::slice::from_raw_parts_mut(self.0, BYTES) };
        let length = text.len().min(LIBRARY - TEXT);
        let (Some(head), Some(place)) = (bytes.first_chunk_mut::<HEAD>(), text.get(..length)) else {
            return;
        };
        if let Some(head) = head.get_mut(ANSWER..REQUESTS) {
            let (state, size) = head.split_at_mut(4);
            state.copy_from_slice(&(answer as u32).to_le_bytes());
            size.copy_from_slice(&(length as u32).to_le_bytes());
        }
        if let Some(room) = bytes.get_mut(TEXT..TEXT + length) {
            room.copy_from_slice(place);
        }
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        // SAFETY: mapped when this was made, and not used afterwards.
        unsafe { UnmapViewOfFile(self.0.cast::<c_void>().cast_const()) };
    }
}

/// The section of a child.
pub(crate) struct ChildExchange {
    exchange: Exchange,
    section: *mut c_void,
}

impl ChildExchange {
    /// Returns the child's answer: `None` if it has none, otherwise the reason of a refusal.
    pub(crate) fn refusal(&self) -> Option<Result<(), &[u8]>> {
        const RECORDING: u32 = Answer::Recording as u32;
        const REFUSED: u32 = Answer::Refused as u32;
        match self.exchange.number(ANSWER) {
            RECORDING => Some(Ok(())),
            REFUSED => {
                let text = self.exchange.bytes().get(TEXT..LIBRARY).unwrap_or_default();
                Some(Err(text.get(..self.exchange.number(ANSWER + 4) as usize).unwrap_or_default()))
            }
            _ => None,
        }
    }
}

impl Drop for ChildExchange {
    fn drop(&mut self) {
        // SAFETY: opened when this was made, and not used afterwards.
        unsafe { CloseHandle(self.section) };
    }
}

/// Maps a named section whole; `None` if there is none.
pub(crate) fn open_section(name: &str, process: u32, bytes: usize) -> Option<*mut u8> {
    let name = section_name(name, process);
    // SAFETY: the name ends with NUL, because `section_name` leaves the last unit.
    let section = unsafe { OpenFileMappingW(READ_WRITE, 0, name.as_ptr()) };
    if section.is_null() {
        return None;
    }
    // SAFETY: the handle was opened above, and is not used afterwards: the mapping stays.
    let address = unsafe {
        let address = MapViewOfFile(section, READ_WRITE, 0, 0, bytes);
        CloseHandle(section);
        address
    };
    (!address.is_null()).then_some(address.cast())
}

/// Returns a section's name with a process id, and a NUL at its end.
fn section_name(name: &str, process: u32) -> [u16; NAME_UNITS] {
    let mut units = [0_u16; NAME_UNITS];
    let mut number = process;
    let mut digits = [0_u8; 10];
    let mut count = 0;
    for place in digits.iter_mut().rev() {
        *place = b'0' + (number % 10) as u8;
        number /= 10;
        count += 1;
        if number == 0 {
            break;
        }
    }
    let text = name.bytes().chain(digits.into_iter().skip(digits.len() - count));
    units.iter_mut().take(NAME_UNITS - 1).zip(text).for_each(|(unit, byte)| *unit = byte.into());
    units
}
