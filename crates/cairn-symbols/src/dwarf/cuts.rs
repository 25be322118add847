//! A bit set of the addresses in a window at which an answer may change.
//!
//! A window has hundreds of thousands of cuts, most of them repeated, and sorting them takes
//! several times as long as setting bits. A window of one megabyte needs 128 KiB.

/// A set of addresses within one window.
#[derive(Debug)]
pub(super) struct Cuts {
    begin: u64,
    end: u64,
    words: Vec<u64>,
}

impl Cuts {
    /// Creates an empty set for addresses from `begin` up to `end`.
    pub(super) fn new(begin: u64, end: u64) -> Self {
        let addresses = usize::try_from(end.saturating_sub(begin)).unwrap_or(0);
        Self { begin, end, words: vec![0; addresses.div_ceil(64)] }
    }

    /// Adds an address, if it is inside the window.
    #[inline]
    pub(super) fn insert(&mut self, address: u64) {
        if (self.begin..self.end).contains(&address) {
            let at = address - self.begin;
            if let Some(word) = self.words.get_mut((at / 64) as usize) {
                *word |= 1 << (at % 64);
            }
        }
    }

    /// Iterates over the addresses in order, each once.
    pub(super) fn iter(&self) -> impl Iterator<Item = u64> {
        self.words.iter().enumerate().flat_map(move |(index, &word)| {
            let mut rest = word;
            std::iter::from_fn(move || {
                let bit = (rest != 0).then(|| rest.trailing_zeros())?;
                rest &= rest - 1;
                Some(self.begin + index as u64 * 64 + u64::from(bit))
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_are_sorted_and_distinct() {
        let mut cuts = Cuts::new(1000, 1200);
        for address in [1199, 1000, 1063, 1064, 1063, 999, 1200, 0, u64::MAX] {
            cuts.insert(address);
        }
        assert_eq!(cuts.iter().collect::<Vec<_>>(), [1000, 1063, 1064, 1199]);
        assert_eq!(Cuts::new(5, 5).iter().count(), 0);
        // The end of the address space.
        let mut cuts = Cuts::new(u64::MAX - 70, u64::MAX);
        cuts.insert(u64::MAX - 1);
        assert_eq!(cuts.iter().collect::<Vec<_>>(), [u64::MAX - 1]);
    }
}
