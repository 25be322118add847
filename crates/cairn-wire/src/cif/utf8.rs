//! UTF-8 in pieces: a path comes as several slices, and a character may begin in one and end in the
//! next.

/// The bytes of an unfinished character at the end of the last piece.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Utf8Stream {
    unfinished: [u8; 4],
    length: usize,
}

/// Content of a piece.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Utf8Part<'a> {
    Text(&'a str),
    /// Bytes that belong to no character; known for sure at this offset in the piece.
    Invalid(usize),
}

impl Utf8Stream {
    /// Takes the next piece and hands its parts to `part`, until that returns an error.
    pub(super) fn feed<E>(
        &mut self,
        piece: &[u8],
        mut part: impl FnMut(Utf8Part<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut at = 0;
        while self.length > 0 {
            let Some(&byte) = piece.get(at) else { return Ok(()) };
            at += self.finish_character(byte, at, &mut part)?;
        }
        while let Some(rest) = piece.get(at..).filter(|rest| !rest.is_empty()) {
            let error = match core::str::from_utf8(rest) {
                Ok(text) => return part(Utf8Part::Text(text)),
                Err(error) => error,
            };
            let (valid, bad) = rest.split_at_checked(error.valid_up_to()).unwrap_or((rest, &[]));
            if let Ok(text) = core::str::from_utf8(valid) {
                part(Utf8Part::Text(text))?;
            }
            let Some(bad_length) = error.error_len() else {
                bad.iter().for_each(|&byte| self.push(byte));
                return Ok(());
            };
            part(Utf8Part::Invalid(at + valid.len()))?;
            at += valid.len() + bad_length;
        }
        Ok(())
    }

    /// Ends the text. True when its last character is complete.
    pub(super) fn finish(&mut self) -> bool {
        core::mem::take(self).length == 0
    }

    /// Offers the unfinished character one more byte; returns how many were taken, 1 or 0.
    fn finish_character<E>(
        &mut self,
        byte: u8,
        at: usize,
        part: &mut impl FnMut(Utf8Part<'_>) -> Result<(), E>,
    ) -> Result<usize, E> {
        let before = *self;
        self.push(byte);
        let character = *self;
        let bytes = character.unfinished.get(..character.length).unwrap_or_default();
        match core::str::from_utf8(bytes) {
            Ok(text) => {
                *self = Self::default();
                part(Utf8Part::Text(text))?;
                Ok(1)
            }
            Err(error) if error.error_len().is_none() && self.length > before.length => Ok(1),
            Err(_) => {
                // The byte itself may begin something new: it is read again.
                *self = Self::default();
                part(Utf8Part::Invalid(at))?;
                Ok(0)
            }
        }
    }

    fn push(&mut self, byte: u8) {
        if let Some(place) = self.unfinished.get_mut(self.length) {
            *place = byte;
            self.length += 1;
        }
    }
}
