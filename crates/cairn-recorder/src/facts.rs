//! Writes facts: `name=value` pairs, each with a NUL at its end.
//!
//! Facts that do not fit are left out, and `facts.cut` states that.

use crate::build_id::BUILD_ID_BYTES;
use crate::path_text::PathText;

/// Writes facts into a buffer.
pub(crate) struct Facts<'a> {
    bytes: &'a mut [u8],
    used: usize,
    is_cut: bool,
}

/// The remark that facts were left out, for which room stays reserved.
const CUT: &[u8] = b"facts.cut=yes\0";

impl<'a> Facts<'a> {
    pub(crate) fn new(bytes: &'a mut [u8]) -> Self {
        Self { bytes, used: 0, is_cut: false }
    }

    pub(crate) fn add(&mut self, name: &[u8], value: &[u8]) {
        let length = name.len() + value.len() + 2;
        let limit = self.bytes.len().saturating_sub(CUT.len());
        let place =
            self.bytes.get_mut(..limit).and_then(|bytes| bytes.get_mut(self.used..self.used + length));
        let Some(place) = place else {
            self.is_cut = true;
            return;
        };
        let (name_place, rest) = place.split_at_mut(name.len());
        name_place.copy_from_slice(name);
        rest[0] = b'=';
        rest[1..=value.len()].copy_from_slice(value);
        rest[value.len() + 1] = 0;
        self.used += length;
    }

    pub(crate) fn add_number(&mut self, name: &[u8], value: u32) {
        let mut digits = [0; 16];
        let mut number = PathText::new(&mut digits);
        number.push_number(value);
        let length = number.length();
        self.add(name, digits.get(..length).unwrap_or_default());
    }

    /// Returns the number of written bytes.
    pub(crate) fn finish(self) -> usize {
        match self.bytes.get_mut(self.used..self.used + CUT.len()) {
            Some(place) if self.is_cut => {
                place.copy_from_slice(CUT);
                self.used + CUT.len()
            }
            _ => self.used,
        }
    }

    /// Adds a variable of the environment, as a fact of its name behind `env.`.
    pub(crate) fn add_variable(&mut self, name: &[u8], value: &[u8]) {
        let mut full = [0_u8; 128];
        let length = name.len() + PREFIX.len();
        if let Some(place) = full.get_mut(..length) {
            place[..PREFIX.len()].copy_from_slice(PREFIX);
            place[PREFIX.len()..].copy_from_slice(name);
            self.add(place, value);
        }
    }

    /// Adds a build id, in hexadecimal digits.
    pub(crate) fn add_build_id(&mut self, build_id: &[u8]) {
        let mut digits = [0_u8; 2 * BUILD_ID_BYTES];
        for (pair, byte) in digits.chunks_exact_mut(2).zip(build_id) {
            pair[0] = HEXADECIMAL[usize::from(byte >> 4)];
            pair[1] = HEXADECIMAL[usize::from(byte & 15)];
        }
        self.add(b"executable.build_id", digits.get(..build_id.len() * 2).unwrap_or_default());
    }
}

const PREFIX: &[u8] = b"env.";
const HEXADECIMAL: &[u8; 16] = b"0123456789abcdef";
