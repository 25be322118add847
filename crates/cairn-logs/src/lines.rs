//! Lines of a log, in bounded memory.
//!
//! A device log may hold a gigabyte without a line break, or bytes that are no text at all. Lines
//! longer than [`MAX_LINE_BYTES`] therefore arrive in pieces; a piece ends at white space where
//! there is some, so that a mark in the line is not cut in two.

use std::io::{self, Read};

/// The longest line that is yielded whole; also the size of the buffer.
pub const MAX_LINE_BYTES: usize = 1 << 20;

/// Distance from the end of a full buffer to search for a place to cut; longer than any marked
/// text.
const CUT_SEARCH_BYTES: usize = 1 << 16;

/// One line, or one piece of a line that is too long.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Line<'a> {
    /// Number of the line in the input, from 1. All pieces of a line have its number.
    pub number: u64,
    /// The bytes, without the line break.
    pub bytes: &'a [u8],
    /// False when the line goes on in the next piece.
    pub ends: bool,
}

/// Splits a byte stream into lines. An answer is given as soon as its line is complete, so a live
/// pipe can be followed.
#[derive(Debug)]
pub struct LineReader<R> {
    input: R,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Bytes after `start` that are known to hold no line break.
    searched: usize,
    number: u64,
    at_line_start: bool,
    finished: bool,
}

impl<R: Read> LineReader<R> {
    /// Reads lines from `input`, which needs no buffering of its own.
    pub fn new(input: R) -> Self {
        let buffer = vec![0; MAX_LINE_BYTES];
        Self { input, buffer, start: 0, end: 0, searched: 0, number: 0, at_line_start: true, finished: false }
    }

    /// Returns the next line, or `None` at the end of the input.
    ///
    /// # Errors
    ///
    /// Answer of the input. Interrupted reads are repeated.
    pub fn next_line(&mut self) -> io::Result<Option<Line<'_>>> {
        loop {
            let unsearched = &self.buffer[self.start + self.searched..self.end];
            if let Some(length) = memchr::memchr(b'\n', unsearched) {
                let length = self.searched + length;
                return Ok(Some(self.hand_out(length, length + 1, true)));
            }
            self.searched = self.end - self.start;
            if self.finished {
                if self.searched == 0 {
                    return Ok(None);
                }
                return Ok(Some(self.hand_out(self.searched, self.searched, true)));
            }
            if self.searched == self.buffer.len() {
                let length = self.cut_length();
                return Ok(Some(self.hand_out(length, length, false)));
            }
            self.refill()?;
        }
    }

    /// Returns true when the next line is here already: [`next_line`](Self::next_line) would not
    /// wait for the input.
    #[must_use]
    pub fn has_line(&self) -> bool {
        memchr::memchr(b'\n', &self.buffer[self.start + self.searched..self.end]).is_some()
    }

    fn hand_out(&mut self, length: usize, consumed: usize, ends: bool) -> Line<'_> {
        self.number += u64::from(self.at_line_start);
        self.at_line_start = ends;
        let bytes = &self.buffer[self.start..self.start + length];
        self.start += consumed;
        self.searched = 0;
        Line { number: self.number, bytes, ends }
    }

    fn cut_length(&self) -> usize {
        let line = &self.buffer[self.start..self.end];
        let search_from = line.len() - CUT_SEARCH_BYTES;
        let cut = line[search_from..].iter().rposition(u8::is_ascii_whitespace);
        cut.map_or(line.len(), |at| search_from + at + 1)
    }

    fn refill(&mut self) -> io::Result<()> {
        if self.end == self.buffer.len() {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        loop {
            match self.input.read(&mut self.buffer[self.end..]) {
                Ok(0) => self.finished = true,
                Ok(count) => self.end += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            }
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Hands out at most `step` bytes a read, as a pipe does.
    struct Trickle<'a>(&'a [u8], usize);

    impl Read for Trickle<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let count = self.0.len().min(self.1).min(buffer.len());
            buffer[..count].copy_from_slice(&self.0[..count]);
            self.0 = &self.0[count..];
            Ok(count)
        }
    }

    fn lines(input: &[u8], step: usize) -> Vec<(u64, Vec<u8>, bool)> {
        let mut reader = LineReader::new(Trickle(input, step));
        let mut lines = Vec::new();
        while let Some(line) = reader.next_line().unwrap() {
            lines.push((line.number, line.bytes.to_vec(), line.ends));
        }
        lines
    }

    #[test]
    fn lines_include_a_last_line_without_break() {
        assert_eq!(
            lines(b"a\n\nb", 1),
            [(1, b"a".to_vec(), true), (2, vec![], true), (3, b"b".to_vec(), true)]
        );
        assert_eq!(lines(b"", 1), []);
    }

    #[test]
    fn lines_longer_than_the_buffer_are_cut_at_white_space() {
        let mut input = vec![b'x'; MAX_LINE_BYTES - 10];
        input.extend_from_slice(b" ~m#mark-that-is-not-cut\nnext");
        let lines = lines(&input, 1 << 16);
        assert_eq!(lines.len(), 3);
        assert_eq!((lines[0].0, lines[0].1.len(), lines[0].2), (1, MAX_LINE_BYTES - 9, false));
        assert_eq!(lines[1], (1, b"~m#mark-that-is-not-cut".to_vec(), true));
        assert_eq!(lines[2], (2, b"next".to_vec(), true));
    }

    proptest! {
        #[test]
        fn lines_agree_with_a_plain_split(input in "[ab\n]{0,60}", step in 1_usize..9) {
            let mut expected: Vec<_> = input.as_bytes().split(|&byte| byte == b'\n').map(<[u8]>::to_vec).collect();
            if expected.last().is_some_and(Vec::is_empty) {
                expected.pop();
            }
            let found: Vec<_> = lines(input.as_bytes(), step).into_iter().map(|(_, bytes, _)| bytes).collect();
            prop_assert_eq!(found, expected);
        }
    }
}
