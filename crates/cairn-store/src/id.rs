//! Names of stacks, shapes, modules and processes that are the same on all machines.

use std::fmt;

use sha2::{Digest, Sha256};

/// An identifier of 128 bits: the beginning of a SHA-256 hash.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Id([u8; 16]);

impl Id {
    /// Returns the identifier of these bytes.
    #[must_use]
    pub const fn new(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Returns its bytes.
    #[must_use]
    pub const fn bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// Reads the 32 hexadecimal digits that [`Display`](fmt::Display) writes.
    ///
    /// ```
    /// use cairn_store::Id;
    ///
    /// let id = Id::of_module("/usr/lib/libc.so.6");
    /// assert_eq!(Id::parse(&id.to_string()), Some(id));
    /// assert_eq!(Id::parse("libc"), None);
    /// ```
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        if text.len() != 32 || !text.is_ascii() {
            return None;
        }
        let mut bytes = [0; 16];
        for (index, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(text.get(2 * index..2 * index + 2)?, 16).ok()?;
        }
        Some(Self(bytes))
    }

    /// Identifies a module that has no build id, by its path.
    #[must_use]
    pub fn of_module(path: &str) -> Self {
        let mut hash = Hash::new("module");
        hash.part(path.as_bytes());
        hash.finish()
    }

    /// Identifies a stack by its frames, the innermost first: the module's build id, and the offset
    /// in it. Equal stacks of one build have one identifier on all machines.
    #[must_use]
    pub fn of_stack<'a>(frames: impl IntoIterator<Item = (&'a [u8], i64)>) -> Self {
        let mut hash = Hash::new("stack");
        for (module, offset) in frames {
            hash.part(module);
            hash.part(&offset.to_le_bytes());
        }
        hash.finish()
    }

    /// Identifies a shape by the function, module and file of its frames, the innermost first.
    ///
    /// The shape is what remains of a stack in another build: `cairn diff` matches by it.
    #[must_use]
    pub fn of_shape<'a>(
        frames: impl IntoIterator<Item = (Option<&'a str>, &'a str, Option<&'a str>)>,
    ) -> Self {
        let mut hash = Hash::new("shape");
        for (function, module, file) in frames {
            hash.optional(function);
            hash.part(module.as_bytes());
            hash.optional(file);
        }
        hash.finish()
    }

    /// Identifies a file by its bytes and by what is said of it.
    #[must_use]
    pub fn of_content<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut hash = Hash::new("content");
        for part in parts {
            hash.part(part);
        }
        hash.finish()
    }
}

impl fmt::Display for Id {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(formatter, "{byte:02x}"))
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

/// A hash of parts, each with its length, so that no two lists of parts are the same bytes.
struct Hash {
    hash: Sha256,
    /// Bytes that are not hashed yet: parts are small, and a pass over each is slow.
    pending: [u8; Self::PENDING],
    count: usize,
}

impl Hash {
    const PENDING: usize = 1024;

    fn new(kind: &str) -> Self {
        let mut hash = Self { hash: Sha256::new(), pending: [0; Self::PENDING], count: 0 };
        hash.part(b"cairn 1");
        hash.part(kind.as_bytes());
        hash
    }

    fn part(&mut self, bytes: &[u8]) {
        self.bytes(&(bytes.len() as u64).to_le_bytes());
        self.bytes(bytes);
    }

    fn optional(&mut self, text: Option<&str>) {
        match text {
            Some(text) => self.part(text.as_bytes()),
            None => self.bytes(&u64::MAX.to_le_bytes()),
        }
    }

    fn bytes(&mut self, bytes: &[u8]) {
        if self.count + bytes.len() > Self::PENDING {
            self.flush();
        }
        match self.pending.get_mut(self.count..self.count + bytes.len()) {
            Some(place) => {
                place.copy_from_slice(bytes);
                self.count += bytes.len();
            }
            None => self.hash.update(bytes),
        }
    }

    fn flush(&mut self) {
        self.hash.update(self.pending.get(..self.count).unwrap_or_default());
        self.count = 0;
    }

    fn finish(mut self) -> Id {
        self.flush();
        let mut bytes = [0; 16];
        for (to, from) in bytes.iter_mut().zip(self.hash.finalize()) {
            *to = from;
        }
        Id(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_parts_differ() {
        assert_ne!(Id::of_content([&b"ab"[..], b"c"]), Id::of_content([&b"a"[..], b"bc"]));
        let frame = |function| [(function, "libfoo.so", None)];
        assert_ne!(Id::of_shape(frame(None)), Id::of_shape(frame(Some(""))));
        assert_ne!(Id::of_stack([(&b"a"[..], 1)]), Id::of_stack([(&b"a"[..], 1), (b"a", 1)]));
    }

    #[test]
    fn long_parts_are_hashed_as_short_ones() {
        let long: Vec<u8> = (0..3000_u32).map(|number| number as u8).collect();
        let expected = Sha256::new()
            .chain_update(7_u64.to_le_bytes())
            .chain_update(b"cairn 1")
            .chain_update(7_u64.to_le_bytes())
            .chain_update(b"content")
            .chain_update(3_u64.to_le_bytes())
            .chain_update(b"abc")
            .chain_update(3000_u64.to_le_bytes())
            .chain_update(&long)
            .chain_update(3_u64.to_le_bytes())
            .chain_update(b"def")
            .finalize();
        assert_eq!(Id::of_content([&b"abc"[..], &long, b"def"]).bytes()[..], expected[..16]);
    }

    /// Stores hold these: a change needs another version of the layout.
    #[test]
    fn ids_are_the_same_in_every_release() {
        let stack = Id::of_stack([(&b"\x01\x02"[..], 0x1234), (b"", -1)]);
        assert_eq!(stack.to_string(), STACK);
        let shape = Id::of_shape([(Some("f"), "app", Some("f.c")), (None, "libc.so", None)]);
        assert_eq!(shape.to_string(), SHAPE);
    }

    const STACK: &str = "08a5dbc67ec21fe51b7d64dcec63f424";
    const SHAPE: &str = "2abf7d504e7de735eaa9386e39463aa1";
}
