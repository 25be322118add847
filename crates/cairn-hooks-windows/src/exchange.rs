//! Memory shared with `cairn`: what it requests, and the answer.
//!
//! A named section rather than variables of the environment, which the program would see and its
//! children would inherit. The name has the process id, and `cairn` creates it before this library
//! is loaded. `cairn-run` has the same layout (`windows/exchange.rs`):
//!
//! ```text
//!    0  magic
//!    8  length of the path
//!   12  answer: 0 none, 1 recording, 2 refused
//!   16  length of the answer's text
//!   20  reserved, 0
//!   64  path of the recording, WTF-8
//! 4160  text of the answer, WTF-8
//! 8192  end
//! ```

use core::ffi::c_void;

use cairn_recorder::environment::process_id;

use crate::calls::{CloseHandle, MapViewOfFile, OpenFileMappingW, UnmapViewOfFile};

const MAGIC: &[u8; 8] = b"cairnhp1";
const BYTES: usize = 8192;
const PATH: usize = 64;
const TEXT: usize = 4160;
const NAME: &str = r"Local\cairn-heap-";

/// Answers to `cairn`.
#[derive(Clone, Copy)]
pub(crate) enum Answer {
    Recording = 1,
    Refused = 2,
}

/// The section, mapped.
pub(crate) struct Exchange(*mut u8);

impl Exchange {
    /// Opens the section of this process; `None` if no `cairn` has made one.
    pub(crate) fn open() -> Option<Self> {
        const READ_WRITE: u32 = 6;
        let mut name = [0_u16; 32];
        write_name(&mut name)?;
        // SAFETY: the name ends with NUL, because `write_name` leaves the last unit.
        let section = unsafe { OpenFileMappingW(READ_WRITE, 0, name.as_ptr()) };
        if section.is_null() {
            return None;
        }
        // SAFETY: the handle was opened above, and is not used afterwards: the mapping stays.
        let address = unsafe {
            let address = MapViewOfFile(section, READ_WRITE, 0, 0, BYTES);
            CloseHandle(section);
            address
        };
        if address.is_null() {
            return None;
        }
        let exchange = Self(address.cast());
        (exchange.bytes().get(..8)? == MAGIC).then_some(exchange)
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: `open` has mapped that many bytes; `cairn` changes them only while this library
        // is not loaded.
        unsafe { core::slice::from_raw_parts(self.0, BYTES) }
    }

    /// Returns the path of the recording.
    pub(crate) fn path(&self) -> Option<&[u8]> {
        let length = self.bytes().get(8..12)?.first_chunk()?;
        let length = u32::from_le_bytes(*length) as usize;
        self.bytes().get(PATH..TEXT)?.get(..length)
    }

    /// Writes the answer, with a text that is cut to its room.
    pub(crate) fn answer(self, answer: Answer, text: &[u8]) {
        // SAFETY: as in `bytes`, and no other reference exists: `self` is not borrowed.
        let bytes = unsafe { core::slice::from_raw_parts_mut(self.0, BYTES) };
        let length = text.len().min(BYTES - TEXT);
        let (Some(head), Some(place)) = (bytes.first_chunk_mut::<TEXT>(), text.get(..length)) else {
            return;
        };
        if let Some(head) = head.get_mut(12..20) {
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
        // SAFETY: mapped by `open`, and not used afterwards.
        unsafe { UnmapViewOfFile(self.0.cast::<c_void>().cast_const()) };
    }
}

/// Writes the section's name, with a NUL at its end.
fn write_name(into: &mut [u16; 32]) -> Option<()> {
    let mut number = process_id();
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
    let text = NAME.bytes().chain(digits.into_iter().skip(digits.len() - count));
    let (end, room) = into.split_last_mut()?;
    *end = 0;
    room.iter_mut().zip(text).for_each(|(unit, byte)| *unit = byte.into());
    Some(())
}
