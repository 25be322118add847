//! Texts in fixed-size memory, for paths, variables and messages, without allocation or formatting.

/// A text of up to `N` bytes. A part that does not fit is dropped as a whole, and marks it
/// [`cut`](Self::is_cut).
pub(crate) struct Text<const N: usize> {
    bytes: [u8; N],
    length: usize,
    is_cut: bool,
}

impl<const N: usize> Text<N> {
    pub(crate) const fn new() -> Self {
        Self { bytes: [0; N], length: 0, is_cut: false }
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        match self.bytes.get_mut(self.length..self.length + bytes.len()) {
            Some(place) => {
                place.copy_from_slice(bytes);
                self.length += bytes.len();
            }
            None => self.is_cut = true,
        }
    }

    pub(crate) fn push_number(&mut self, mut number: u64) {
        let mut digits = [0; 20];
        let mut at = digits.len();
        loop {
            at -= 1;
            digits[at] = b'0' + (number % 10) as u8;
            number /= 10;
            if number == 0 {
                break;
            }
        }
        self.push(&digits[at..]);
    }

    /// Empties the text.
    pub(crate) const fn clear(&mut self) {
        self.length = 0;
        self.is_cut = false;
    }

    /// Removes the last byte.
    pub(crate) const fn pop(&mut self) {
        self.length = self.length.saturating_sub(1);
    }

    /// Cuts the text to `length` bytes.
    pub(crate) fn truncate(&mut self, length: usize) {
        self.length = self.length.min(length);
    }

    pub(crate) const fn is_cut(&self) -> bool {
        self.is_cut
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }
}
