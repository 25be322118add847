//! Writes a stack as text to a file descriptor, for self-prints and crash handlers.
//!
//! Runs in signal handlers of a program that may be damaged: no allocation, no lock, no `core::fmt`
//! (large, and full of indirect calls). The kernel reads the loader's records of modules, so that a
//! wild pointer in them costs a name instead of a second crash. Each line is built on the stack and
//! written by one call.

use core::fmt;

use cairn_format::Frame;
use cairn_unwind::{FoldRecursion, StopReason};

use crate::stacks::modules::link_map_at;
use crate::stacks::stack::Stack;
use crate::stacks::{console, own_memory};

/// Writing a stack to a file descriptor failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WriteError {
    /// The error number of the `write` call; 0 when it wrote nothing without an error.
    pub errno: i32,
}

impl fmt::Display for WriteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the stack could not be written: error number {}", self.errno)
    }
}

impl core::error::Error for WriteError {}

/// Most functions of a mutual recursion that is folded.
const FOLDED_ROUND: usize = 8;

pub(crate) fn write(stack: Stack, descriptor: i32) -> Result<(), WriteError> {
    let mut number = 0;
    for frame in FoldRecursion::<_, FOLDED_ROUND>::new(stack.frames()) {
        let mut line = Line::new();
        match frame.address() {
            Some(address) => {
                frame_line(&mut line, number, frame, address.value());
                number += 1;
            }
            None => {
                let Frame::Omitted(count) = frame else { continue };
                line.text(b"    ... ").decimal(count).text(b" frames of the same recursion");
                number += count;
            }
        }
        line.write(descriptor)?;
    }
    let mut line = Line::new();
    if end_line(&mut line, stack.stop_reason()) {
        line.write(descriptor)?;
    }
    Ok(())
}

fn frame_line(line: &mut Line, number: u64, frame: Frame, address: u64) {
    line.text(b"#").decimal(number);
    // Aligns the addresses of the first hundred frames.
    line.text(if number < 10 { b"  0x" } else { b" 0x" }).hexadecimal(address, 16).text(b" ");
    let lookup_address = frame.lookup_address().map_or(address, |address| address.value());
    let Some(module) = link_map_at(lookup_address) else {
        line.text(b"(in no module)");
        return;
    };
    line.module_name(module.name).text(b"+0x").hexadecimal(address.wrapping_sub(module.bias), 1);
}

/// Adds the reason why a stack ends early; returns false for a complete stack.
fn end_line(line: &mut Line, reason: StopReason) -> bool {
    let (text, value): (&[u8], u64) = match reason {
        StopReason::EndOfStack => return false,
        StopReason::Limit => {
            line.text(b"    the stack goes on: frame limit reached");
            return true;
        }
        StopReason::NoUnwindInfo { pc } => (b"no unwind information at", pc.value()),
        StopReason::BadUnwindInfo { pc } => (b"malformed unwind information at", pc.value()),
        StopReason::UnreadableMemory { address } => (b"unreadable memory at", address.value()),
        StopReason::OutsideStack { address } => {
            (b"the frame pointer leads outside the stack, to", address.value())
        }
        StopReason::NoProgress { pc } => (b"the caller is not above it on the stack:", pc.value()),
        StopReason::UnknownRegister { register } => (b"the value is not known of register", register.into()),
        _ => (b"the walk ended near", 0),
    };
    line.text(b"    the stack goes on: ").text(text).text(b" 0x").hexadecimal(value, 1);
    true
}

/// One line of text in a fixed buffer; text that does not fit is omitted.
struct Line {
    bytes: [u8; Self::CAPACITY],
    used: usize,
}

impl Line {
    /// Bytes of a line: a module's name takes up to [`MAX_NAME_BYTES`](Self::MAX_NAME_BYTES), the
    /// rest some 60.
    const CAPACITY: usize = 384;
    const MAX_NAME_BYTES: usize = 256;

    const fn new() -> Self {
        Self { bytes: [0; Self::CAPACITY], used: 0 }
    }

    fn text(&mut self, text: &[u8]) -> &mut Self {
        // One byte is reserved for the end of the line.
        for (to, from) in self.bytes[..Self::CAPACITY - 1].iter_mut().skip(self.used).zip(text) {
            *to = *from;
            self.used += 1;
        }
        self
    }

    fn decimal(&mut self, value: u64) -> &mut Self {
        let mut digits = [b'0'; 20];
        let mut rest = value;
        let mut first = digits.len();
        for (index, digit) in digits.iter_mut().enumerate().rev() {
            *digit = b'0' + (rest % 10) as u8;
            rest /= 10;
            first = index;
            if rest == 0 {
                break;
            }
        }
        self.text(digits.get(first..).unwrap_or_default())
    }

    fn hexadecimal(&mut self, value: u64, least_digits: u32) -> &mut Self {
        let digits = (64 - value.leading_zeros()).div_ceil(4).max(least_digits);
        for place in (0..digits).rev() {
            let digit = (value >> (4 * place) & 15) as u8;
            self.text(&[digit + if digit < 10 { b'0' } else { b'a' - 10 }]);
        }
        self
    }

    /// The C string at `name`; the path of the running program where it is empty.
    fn module_name(&mut self, name: u64) -> &mut Self {
        let mut bytes = [0; Self::MAX_NAME_BYTES];
        let mut length = own_memory::read_bytes(name, &mut bytes);
        let text = bytes.get(..length).unwrap_or_default();
        length = text.iter().position(|&byte| byte == 0).unwrap_or(length);
        if length == 0 {
            length = console::program_path(&mut bytes);
        }
        match bytes.get(..length) {
            None | Some([]) => self.text(b"(the program)"),
            Some(text) => self.text(text),
        }
    }

    /// Ends the line and writes it.
    fn write(&mut self, descriptor: i32) -> Result<(), WriteError> {
        if let Some(end) = self.bytes.get_mut(self.used) {
            *end = b'\n';
            self.used += 1;
        }
        let mut rest = self.bytes.get(..self.used).unwrap_or_default();
        while !rest.is_empty() {
            match console::write(descriptor, rest) {
                Ok(count) => rest = rest.get(count..).unwrap_or_default(),
                Err(errno) => return Err(WriteError { errno }),
            }
        }
        Ok(())
    }
}

#[cfg(target_os = "linux")]
#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::string::String;

    fn text(line: &Line) -> &str {
        std::str::from_utf8(&line.bytes[..line.used]).unwrap()
    }

    #[test]
    fn line_formats_numbers_as_fmt_does() {
        for value in [0, 1, 9, 10, 15, 16, 255, 256, 1_000_000, u64::MAX] {
            let mut line = Line::new();
            line.decimal(value).text(b" ").hexadecimal(value, 1).text(b" ").hexadecimal(value, 16);
            assert_eq!(text(&line), std::format!("{value} {value:x} {value:016x}"));
        }
    }

    #[test]
    fn line_that_is_too_long_is_cut_and_ended() {
        let (mut line, long) = (Line::new(), [b'a'; 1000]);
        line.text(&long);
        let mut pipe = [0; 2];
        // SAFETY: the array has room for the two descriptors that the call writes.
        assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
        line.write(pipe[1]).unwrap();
        assert!(text(&line).ends_with("a\n"));
        assert_eq!(line.used, Line::CAPACITY);
    }

    #[test]
    fn write_to_closed_descriptor_fails_and_keeps_errno() {
        // SAFETY: the pointer to this thread's errno is valid while the thread runs, and nothing
        // else refers to it here.
        let errno = unsafe { &mut *libc::__errno_location() };
        *errno = 77;
        assert_eq!(crate::capture().write_text(-1), Err(WriteError { errno: libc::EBADF }));
        assert_eq!(*errno, 77);
    }

    #[test]
    fn early_end_has_a_line_with_its_reason() {
        let at = cairn_format::AbsoluteAddress::new(0x1234);
        let line_of = |reason| {
            let mut line = Line::new();
            end_line(&mut line, reason).then(|| String::from(text(&line)))
        };
        assert_eq!(line_of(StopReason::EndOfStack), None);
        assert_eq!(line_of(StopReason::Limit).unwrap(), "    the stack goes on: frame limit reached");
        assert!(
            line_of(StopReason::NoUnwindInfo { pc: at })
                .unwrap()
                .ends_with("no unwind information at 0x1234")
        );
    }
}
