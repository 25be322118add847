//! Finds crash logs between the lines of a log, on one line as Swift writes them or on many.

use super::MAX_BYTES;

/// Fields that a crash log, or Swift's JSON of a backtrace, may begin with, in any key order.
const FIRST_KEYS: [&[u8]; 14] = [
    b"timestamp",
    b"kind",
    b"description",
    b"faultAddress",
    b"platform",
    b"architecture",
    b"threads",
    b"omittedThreads",
    b"capturedMemory",
    b"omittedImages",
    b"images",
    b"backtraceTime",
    b"backtrace",
    b"imageMap",
];

/// The deepest nesting that the JSON parser takes.
const MAX_DEPTH: usize = 128;

/// Result of a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Gathered {
    /// It is not part of an object.
    Other,
    /// It is part of an object whose end is yet to come.
    Part,
    /// It ends an object: [`ObjectGatherer::take`] has it.
    Whole,
    /// The line is not JSON, or not the beginning of a crash log. [`ObjectGatherer::take`] returns
    /// it and the lines before it. It may begin another object, and is best added once more if
    /// there are any.
    Broken,
}

/// Lines that were gathered.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct GatheredText {
    /// Number of the first one in the input.
    pub first_line: u64,
    /// Their bytes, with the line breaks between them.
    pub bytes: Vec<u8>,
    /// False when the last one goes on in the input.
    pub ends: bool,
}

impl GatheredText {
    /// Number, bytes and whether it ends, for each line.
    pub fn lines(&self) -> impl Iterator<Item = (u64, &[u8], bool)> {
        let mut rest = Some(&self.bytes[..]);
        (self.first_line..).map_while(move |number| {
            let text = rest?;
            let end = memchr::memchr(b'\n', text);
            rest = end.map(|end| &text[end + 1..]);
            Some((number, &text[..end.unwrap_or(text.len())], end.is_some() || self.ends))
        })
    }

    /// Returns the bytes of the lines before the last one, if there are any.
    #[must_use]
    pub fn before_last(&self) -> Option<&[u8]> {
        self.bytes.get(..memchr::memrchr(b'\n', &self.bytes)?)
    }

    /// Returns the last line alone.
    #[must_use]
    pub fn into_last(mut self) -> Self {
        let Some(end) = memchr::memrchr(b'\n', &self.bytes) else { return self };
        let before = memchr::memchr_iter(b'\n', &self.bytes).count() as u64;
        let bytes = self.bytes.split_off(end + 1);
        Self { first_line: self.first_line.saturating_add(before), bytes, ends: self.ends }
    }
}

/// Gathers the lines of JSON objects that may be crash logs.
///
/// It holds no line longer than it must: one that cannot be part of a JSON object, or an object
/// whose first field no crash log has, is given back at once.
///
/// ```
/// use cairn_logs::crash_log::{Gathered, ObjectGatherer};
/// let mut gatherer = ObjectGatherer::new();
/// assert_eq!(gatherer.add(1, b"boot", true), Gathered::Other);
/// assert_eq!(gatherer.add(2, b"{", true), Gathered::Part);
/// assert_eq!(gatherer.add(3, b"  \"kind\": \"crashReport\"", true), Gathered::Part);
/// assert_eq!(gatherer.add(4, b"}", true), Gathered::Whole);
/// let text = gatherer.take().unwrap();
/// assert_eq!((text.first_line, text.bytes.len()), (2, 27));
/// ```
#[derive(Debug, Default)]
pub struct ObjectGatherer {
    text: Option<GatheredText>,
    open: Vec<u8>,
    /// The last byte that counts: a bracket, `,`, `:`, `"` for the end of a text, `0` for a word.
    last: u8,
    in_text: bool,
    is_escaped: bool,
    is_in_word: bool,
    /// Where the text that is open begins.
    text_start: usize,
    has_first_key: bool,
}

impl ObjectGatherer {
    /// Gathers nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next line, or the next piece of one that `ends` later.
    pub fn add(&mut self, number: u64, line: &[u8], ends: bool) -> Gathered {
        if self.text.is_none() {
            if line.trim_ascii_start().first() != Some(&b'{') {
                return Gathered::Other;
            }
            *self = Self {
                text: Some(GatheredText { first_line: number, ..GatheredText::default() }),
                ..Self::default()
            };
        }
        let Some(text) = &mut self.text else { return Gathered::Other };
        if !text.bytes.is_empty() && text.ends {
            text.bytes.push(b'\n');
        }
        let start = text.bytes.len();
        text.ends = ends;
        text.bytes.extend_from_slice(line);
        let is_sound = text.bytes.len() <= MAX_BYTES && self.scan(start);
        let Self { open, in_text, is_in_word, .. } = self;
        if ends {
            *is_in_word = false;
        }
        match (is_sound, ends) {
            (false, _) => Gathered::Broken,
            (true, true) if open.is_empty() => Gathered::Whole,
            // No text goes on after a line break.
            (true, true) if *in_text => Gathered::Broken,
            (true, _) => Gathered::Part,
        }
    }

    /// Gives the gathered lines back, if there are any, and begins anew.
    pub fn take(&mut self) -> Option<GatheredText> {
        self.text.take()
    }

    /// Follows the JSON from this byte on; false where no JSON begins.
    fn scan(&mut self, start: usize) -> bool {
        let Some(text) = &self.text else { return false };
        for (index, &byte) in text.bytes.iter().enumerate().skip(start) {
            if self.in_text {
                match byte {
                    _ if self.is_escaped => self.is_escaped = false,
                    b'\\' => self.is_escaped = true,
                    b'"' => {
                        self.in_text = false;
                        self.last = b'"';
                        let key = text.bytes.get(self.text_start..index).unwrap_or_default();
                        if !self.has_first_key && !FIRST_KEYS.contains(&key) {
                            return false;
                        }
                        self.has_first_key = true;
                    }
                    _ => {}
                }
                continue;
            }
            let in_object = self.open.last() == Some(&b'{');
            let value_may_follow = match self.last {
                b':' | b'[' => true,
                b',' => !in_object,
                _ => false,
            };
            let is_word = byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
            let goes_on = match byte {
                b' ' | b'\t' | b'\r' => true,
                // The parser refuses content after the object.
                _ if self.open.is_empty() && self.last != 0 => true,
                b'"' => value_may_follow || in_object && matches!(self.last, b'{' | b','),
                b'{' | b'[' => (value_may_follow || self.last == 0) && self.open.len() < MAX_DEPTH,
                b'}' => in_object && !matches!(self.last, b',' | b':'),
                b']' => self.open.last() == Some(&b'[') && self.last != b',',
                b',' => !self.open.is_empty() && matches!(self.last, b'"' | b'0' | b'}' | b']'),
                b':' => in_object && self.last == b'"',
                _ => is_word && (value_may_follow || self.is_in_word),
            };
            if !goes_on {
                return false;
            }
            self.is_in_word = is_word;
            match byte {
                b' ' | b'\t' | b'\r' => continue,
                _ if self.open.is_empty() && self.last != 0 => continue,
                b'"' => {
                    self.in_text = true;
                    self.text_start = index + 1;
                }
                b'{' | b'[' => self.open.push(byte),
                b'}' | b']' => _ = self.open.pop(),
                _ => {}
            }
            if byte != b'"' {
                self.last = if is_word { b'0' } else { byte };
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gathered(lines: &[&str]) -> Vec<Gathered> {
        let mut gatherer = ObjectGatherer::new();
        (1..).zip(lines).map(|(number, line)| gatherer.add(number, line.as_bytes(), true)).collect()
    }

    #[test]
    fn gather_returns_other_lines_at_once() {
        use Gathered::{Broken, Other, Part, Whole};
        assert_eq!(gathered(&["void f()", "{", "  int x;"]), [Other, Part, Broken]);
        assert_eq!(gathered(&["{\"level\": 1,"]), [Broken]);
        assert_eq!(gathered(&["{\"timestamp\": \"20"]), [Broken]);
        assert_eq!(gathered(&["{\"timestamp\": \"20\"", "boot"]), [Part, Broken]);
        assert_eq!(gathered(&["{\"timestamp\": 1,", "[1] boot"]), [Part, Broken]);
        assert_eq!(gathered(&["{", "", "\"kind\": [1, true, {}, -2.5e3]", "}"]), [Part, Part, Part, Whole]);
        assert_eq!(gathered(&["{\"kind\": \"}\\\"\"}"]), [Whole]);
        assert_eq!(gathered(&["{\"kind\": 1} rest"]), [Whole]);
        assert_eq!(gathered(&[&"{\"kind\":".repeat(200)]), [Broken]);
    }

    #[test]
    fn gather_joins_pieces_of_a_line() {
        let mut gatherer = ObjectGatherer::new();
        assert_eq!(gatherer.add(7, b"{\"kind\": \"crash", false), Gathered::Part);
        assert_eq!(gatherer.add(7, b"Report\"}", true), Gathered::Whole);
        let text = gatherer.take().unwrap();
        assert_eq!(text.bytes, b"{\"kind\": \"crashReport\"}");
        assert_eq!(text.lines().collect::<Vec<_>>(), [(7, &text.bytes[..], true)]);
        assert_eq!(gatherer.take(), None);
    }
}
