//! Parses the options in `CAIRN_HEAP`: words that commas separate. `output=` comes last and takes
//! the rest, including commas.
//!
//! ```text
//! CAIRN_HEAP=max-size=2GiB,children,output=/var/tmp/%n.%p.cairn
//! ```
//!
//! | word | meaning |
//! |---|---|
//! | `off` | record nothing |
//! | `output=PATH` | path of the file; `%n` is the program's name, `%p` its process id, `%%` a percent sign |
//! | `max-size=SIZE` | end recording at this size of the file |
//! | `mmap` | record the program's own mappings as well |
//! | `python=native` | native frames only, and Python's allocations as `malloc` sees them; `python=full` is the default |
//! | `children` | record programs that this one starts, and its forked children, as well |
//! | `sample=SIZE` | record blocks that contain a picked byte; SIZE is the mean distance of picked bytes |
//! | `seed=NUMBER` | seed of the random numbers for that |
//! | `paused` | begin paused |
//! | `stamp=COUNT` | maximum events of a thread between two stamps |
//! | `parent` | a process drains the recording while it is made |
//! | `announce=PATH` | append a line to that file for each recording; `cairn heap` reads it |
//!
//! A size has a unit (`KiB`, `MiB`, `GiB`, or `K`, `M`, `G` for the same) or is in bytes.

/// Parsed options.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Options<'a> {
    pub(crate) is_off: bool,
    pub(crate) output: &'a [u8],
    pub(crate) max_size_bytes: Option<u64>,
    pub(crate) with_mappings: bool,
    /// True when the stacks have Python frames, and small objects of Python are recorded.
    pub(crate) with_python: bool,
    pub(crate) sample_bytes: Option<u64>,
    pub(crate) sample_seed: u64,
    pub(crate) with_children: bool,
    pub(crate) begins_paused: bool,
    pub(crate) stamp_interval: Option<u32>,
    pub(crate) has_parent: bool,
    pub(crate) announce: &'a [u8],
}

/// Default path, in the working directory.
const DEFAULT_OUTPUT: &[u8] = b"%n.%p.cairn";

impl<'a> Options<'a> {
    pub(crate) const fn new() -> Self {
        Self {
            is_off: false,
            output: DEFAULT_OUTPUT,
            max_size_bytes: None,
            with_mappings: false,
            with_python: true,
            sample_bytes: None,
            sample_seed: 0,
            with_children: false,
            begins_paused: false,
            stamp_interval: None,
            has_parent: false,
            announce: b"",
        }
    }

    /// Parses `text`; an error is the word that is not an option.
    pub(crate) fn parse(text: &'a [u8]) -> Result<Self, &'a [u8]> {
        let mut options = Self::new();
        let mut rest = text;
        while !rest.is_empty() {
            let end = rest.iter().position(|byte| *byte == b',').unwrap_or(rest.len());
            let (word, tail) = rest.split_at(end);
            if let Some(output) = rest.strip_prefix(b"output=") {
                if output.is_empty() {
                    return Err(rest);
                }
                options.output = output;
                break;
            }
            options.take(word).ok_or(word)?;
            rest = tail.strip_prefix(b",").unwrap_or(tail);
        }
        Ok(options)
    }

    fn take(&mut self, word: &'a [u8]) -> Option<()> {
        let (name, value) = match word.iter().position(|byte| *byte == b'=') {
            Some(at) => (word.get(..at)?, word.get(at + 1..)),
            None => (word, None),
        };
        match (name, value) {
            (b"", None) => {}
            (b"off", None) => self.is_off = true,
            (b"mmap", None) => self.with_mappings = true,
            (b"python", Some(b"full")) => self.with_python = true,
            (b"python", Some(b"native")) => self.with_python = false,
            (b"children", None) => self.with_children = true,
            (b"parent", None) => self.has_parent = true,
            (b"paused", None) => self.begins_paused = true,
            (b"max-size", Some(value)) => self.max_size_bytes = Some(size(value)?),
            (b"sample", Some(value)) => self.sample_bytes = Some(size(value).filter(|bytes| *bytes > 0)?),
            (b"seed", Some(value)) => self.sample_seed = size(value)?,
            (b"stamp", Some(value)) => {
                self.stamp_interval =
                    Some(size(value).and_then(|n| u32::try_from(n).ok()).filter(|n| *n > 0)?);
            }
            (b"announce", Some(value)) => self.announce = value,
            _ => return None,
        }
        Some(())
    }
}

/// Parses a number of bytes with its unit.
fn size(text: &[u8]) -> Option<u64> {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (number, unit) = text.split_at_checked(digits)?;
    let number: u64 = core::str::from_utf8(number).ok()?.parse().ok()?;
    let shift = match unit {
        b"" => 0,
        b"K" | b"KiB" => 10,
        b"M" | b"MiB" => 20,
        b"G" | b"GiB" => 30,
        _ => return None,
    };
    number.checked_mul(1 << shift)
}
