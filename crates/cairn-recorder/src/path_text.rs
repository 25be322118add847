//! Builds C strings in buffers, without allocation.

use core::ffi::CStr;

/// Builds a C string in a buffer.
pub(crate) struct PathText<'a> {
    bytes: &'a mut [u8],
    length: usize,
    is_cut: bool,
}

impl<'a> PathText<'a> {
    pub(crate) fn new(bytes: &'a mut [u8]) -> Self {
        Self { bytes, length: 0, is_cut: false }
    }

    pub(crate) fn push(&mut self, part: &[u8]) {
        // One byte stays for the NUL.
        let end = self.length + part.len();
        match self.bytes.get_mut(self.length..end + 1) {
            Some(place) => {
                place[..part.len()].copy_from_slice(part);
                place[part.len()] = 0;
                self.length = end;
            }
            None => self.is_cut = true,
        }
    }

    pub(crate) fn push_number(&mut self, number: u32) {
        let mut digits = [0_u8; 10];
        let (mut rest, mut first) = (number, digits.len());
        loop {
            first -= 1;
            digits[first] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        self.push(&digits[first..]);
    }

    /// Returns the length without the NUL.
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// Returns the string; `None` if it did not fit, or contains a NUL.
    pub(crate) fn as_c_string(&self) -> Option<&CStr> {
        let bytes = self.bytes.get(..self.length + 1)?;
        if self.is_cut { None } else { CStr::from_bytes_with_nul(bytes).ok() }
    }
}
