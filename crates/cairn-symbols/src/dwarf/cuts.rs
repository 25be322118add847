//! The addresses of a window at which an answer may change.
//!
//! A bit for each address: a window has hundreds of thousands of cuts, most of them several times, and to sort them takes a
//! multiple of the time that it takes to set bits. A window of a megabyte needs 128 KiB.

/// A set of addresses of one window.
#[derive(Debug)]
pub(super) struct Cuts {
    begin: u64,
    end: u64,
    words: Vec<u64>,
}

impl Cuts {
    /// An empty set for the addresses from `begin` up to `end`.
    pub(super) fn new(begin: u64, end: u64) -> Self {
        let addresses = usize::try_from(end.saturating_sub(begin)).unwrap_or(0);
        Self { begin, end, words: vec![0; addresses.div_ceil(64)] }
    }

    /// Adds an address. Those outside of the window are passed over.
    #[inline]
    pub(super) fn insert(&mut self, address: u64) {
        if (self.begin..self.end).contains(&address) {
            let at = address - self.begin;
            if let Some(word) = self.words.get_mut((at / 64) as usize) {
                *word |= 1 << (at % 64);
            }
        }
    }

    /// The addresses in order, each once.
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
    fn addresses_come_back_in_order_and_once() {
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
