//! The column of times: when something happened, and how many events there were then.
//!
//! The number of events in each ten microseconds is nearly all the information in a repetitive
//! program, and it resembles noise: no byte of it repeats, and which numbers are likely depends on
//! the one before. So each takes as many bits as it is unexpected. A binary range coder, with
//! chances that the writer and the reader learn alike, takes a quarter to a third fewer bytes than
//! zstd; for one number each ten microseconds, its ten bits or so cost nothing that matters. They
//! would for the operations, which are hundreds of times as many.

/// Probability that a bit is 1, in 65,536ths.
///
/// It is the mean of a fast estimate, of the last few bits, and a slow one, of the last hundred.
#[derive(Clone, Copy)]
struct Chance {
    quick: u16,
    slow: u16,
}

impl Chance {
    const EVEN: Self = Self { quick: 1 << 15, slow: 1 << 15 };
    const QUICK: u32 = 4;
    const SLOW: u32 = 7;

    /// In 4,096ths, never none and never all.
    fn of_one(self) -> u32 {
        ((u32::from(self.quick) + u32::from(self.slow)) >> 5).clamp(1, 4095)
    }

    fn learn(&mut self, bit: bool) {
        let Self { quick, slow } = self;
        if bit {
            *quick += (u16::MAX - *quick) >> Self::QUICK;
            *slow += (u16::MAX - *slow) >> Self::SLOW;
        } else {
            *quick -= *quick >> Self::QUICK;
            *slow -= *slow >> Self::SLOW;
        }
    }
}

/// The range never becomes smaller, so that each chance has a part of it.
const LEAST_RANGE: u32 = 1 << 24;

/// A side that takes part in the coding of bits: the writer gets them, the reader finds them out.
trait Coder {
    /// `bit` is what the writer has to say; the answer is what the bit is. `None` where the bytes
    /// end.
    fn bit(&mut self, bit: bool, chance: &mut Chance) -> Option<bool>;
    /// The same of one that is 1 as often as 0.
    fn even_bit(&mut self, bit: bool) -> Option<bool>;
}

struct Writer {
    bytes: Vec<u8>,
    low: u32,
    range: u32,
}

impl Writer {
    fn new() -> Self {
        Self { bytes: Vec::new(), low: 0, range: u32::MAX }
    }

    /// Takes the upper part, which begins here.
    fn raise(&mut self, by: u32) {
        let (low, is_carried) = self.low.overflowing_add(by);
        self.low = low;
        if is_carried {
            for byte in self.bytes.iter_mut().rev() {
                *byte = byte.wrapping_add(1);
                if *byte != 0 {
                    break;
                }
            }
        }
    }

    fn put_byte(&mut self) {
        self.bytes.push((self.low >> 24) as u8);
        self.low <<= 8;
    }

    fn widen(&mut self) {
        while self.range < LEAST_RANGE {
            self.put_byte();
            self.range <<= 8;
        }
    }
}

impl Coder for Writer {
    fn bit(&mut self, bit: bool, chance: &mut Chance) -> Option<bool> {
        let bound = (self.range >> 12) * chance.of_one();
        if bit {
            self.range = bound;
        } else {
            self.raise(bound);
            self.range -= bound;
        }
        chance.learn(bit);
        self.widen();
        Some(bit)
    }

    fn even_bit(&mut self, bit: bool) -> Option<bool> {
        self.range >>= 1;
        if !bit {
            self.raise(self.range);
        }
        self.widen();
        Some(bit)
    }
}

/// Reads a column; has four bytes in its hands.
pub(crate) struct TimeReader<'a> {
    rest: &'a [u8],
    code: u32,
    range: u32,
}

impl<'a> TimeReader<'a> {
    /// An empty column has no times.
    pub(crate) fn new(column: &'a [u8]) -> Self {
        let (code, rest) = column.split_first_chunk().unwrap_or((&[0; 4], &[]));
        Self { rest, code: u32::from_be_bytes(*code), range: u32::MAX }
    }

    fn widen(&mut self) -> Option<()> {
        while self.range < LEAST_RANGE {
            let (&byte, rest) = self.rest.split_first()?;
            self.rest = rest;
            self.code = self.code << 8 | u32::from(byte);
            self.range <<= 8;
        }
        Some(())
    }

    fn is_lower(&mut self, bound: u32) -> bool {
        let is_lower = self.code < bound;
        if is_lower {
            self.range = bound;
        } else {
            self.code -= bound;
            self.range -= bound;
        }
        is_lower
    }
}

impl Coder for TimeReader<'_> {
    fn bit(&mut self, _: bool, chance: &mut Chance) -> Option<bool> {
        let bit = self.is_lower((self.range >> 12) * chance.of_one());
        chance.learn(bit);
        self.widen()?;
        Some(bit)
    }

    fn even_bit(&mut self, _: bool) -> Option<bool> {
        self.range >>= 1;
        let bit = self.code < self.range;
        if !bit {
            self.code -= self.range;
        }
        self.widen()?;
        Some(bit)
    }
}

/// Bits below the first one of a number that have chances; those below these are noise.
const LEARNED_BITS: u32 = 6;
/// As are those of numbers with that many bits below the first one.
const LONG: u32 = 16;
/// Number of chances: of the six bits of a number's length, and of the bits behind its first one.
///
/// Each length has its own chances.
const CHANCES: usize = 64 + ((LONG as usize) << LEARNED_BITS);

/// Numbers from 1 on.
struct Numbers {
    chances: Vec<Chance>,
}

impl Numbers {
    fn new(contexts: usize) -> Self {
        Self { chances: vec![Chance::EVEN; contexts * CHANCES] }
    }

    /// `number` is what the writer has to say, the answer what the number is.
    fn code(&mut self, coder: &mut impl Coder, context: usize, number: u64) -> Option<u64> {
        let (lengths, below) =
            self.chances.get_mut(context * CHANCES..(context + 1) * CHANCES)?.split_at_mut(64);
        let length = number.max(1).ilog2();
        let mut node = 1;
        for shift in (0..6).rev() {
            let bit = coder.bit(length >> shift & 1 == 1, lengths.get_mut(node)?)?;
            node = node << 1 | usize::from(bit);
        }
        let length = (node - 64) as u32;
        let learned_bits = if length < LONG { LEARNED_BITS } else { 0 };
        let below = below.get_mut((node - 64) << LEARNED_BITS..).unwrap_or_default();
        let (mut reported, mut node) = (1_u64, 1);
        for shift in (0..length).rev() {
            let bit = number >> shift & 1 == 1;
            let bit = if length - shift <= learned_bits {
                let bit = coder.bit(bit, below.get_mut(node)?)?;
                node = node << 1 | usize::from(bit);
                bit
            } else {
                coder.even_bit(bit)?
            };
            reported = reported << 1 | u64::from(bit);
        }
        Some(reported)
    }
}

/// Contexts of counts, which are two for each power of two.
const CONTEXTS: usize = 40;

fn context(count: u64) -> usize {
    let bits = u64::BITS - count.leading_zeros();
    let context = match bits.checked_sub(2) {
        Some(more) if more > 0 => u64::from(2 * more) + (count >> more),
        _ => count,
    };
    (context as usize).min(CONTEXTS - 1)
}

/// State that writer and reader have learned; it continues from chunk to chunk.
pub(crate) struct Times {
    /// By whether the last two steps were.
    is_one: [Chance; 4],
    were_one: usize,
    steps: Numbers,
    counts: Numbers,
    count: u64,
}

impl Times {
    pub(crate) fn new() -> Self {
        Self {
            is_one: [Chance::EVEN; 4],
            were_one: 0,
            steps: Numbers::new(1),
            counts: Numbers::new(CONTEXTS),
            count: 0,
        }
    }

    /// How many quanta passed since the last time, and how many events there are.
    pub(crate) fn take(&mut self, reader: &mut TimeReader<'_>) -> Option<(u64, u64)> {
        self.code(reader, 0, 0)
    }

    fn code(&mut self, coder: &mut impl Coder, quanta: u64, count: u64) -> Option<(u64, u64)> {
        let is_one = coder.bit(quanta == 1, self.is_one.get_mut(self.were_one)?)?;
        self.were_one = (self.were_one << 1 | usize::from(is_one)) & 3;
        // A step that is not one may be none.
        let quanta =
            if is_one { 1 } else { self.steps.code(coder, 0, quanta.saturating_add(1))?.checked_sub(1)? };
        self.count = self.counts.code(coder, context(self.count), count)?;
        Some((quanta, self.count))
    }
}

/// A column that is being written.
pub(crate) struct TimeWriter {
    times: Times,
    writer: Writer,
}

impl TimeWriter {
    pub(crate) fn new() -> Self {
        Self { times: Times::new(), writer: Writer::new() }
    }

    pub(crate) fn put(&mut self, quanta: u64, count: u64) {
        // A writer never comes to the end of its bytes.
        let _ = self.times.code(&mut self.writer, quanta, count);
    }

    /// How many bytes there are, but for those that end the column.
    pub(crate) fn len(&self) -> usize {
        self.writer.bytes.len()
    }

    /// The column; the next one begins.
    pub(crate) fn end(&mut self) -> Vec<u8> {
        let mut writer = std::mem::replace(&mut self.writer, Writer::new());
        for _ in 0..4 {
            writer.put_byte();
        }
        writer.bytes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn columns(of: &[Vec<(u64, u64)>]) -> Vec<Vec<u8>> {
        let mut writer = TimeWriter::new();
        let mut column = |times: &Vec<(u64, u64)>| {
            times.iter().for_each(|&(quanta, count)| writer.put(quanta, count));
            writer.end()
        };
        of.iter().map(&mut column).collect()
    }

    proptest! {
        #[test]
        fn what_was_written_is_read(
            of in proptest::collection::vec(
                proptest::collection::vec(
                    (
                        prop_oneof![Just(1_u64), 0..40_u64, any::<u64>().prop_map(|number| number >> 1)],
                        prop_oneof![100..180_u64, any::<u64>().prop_map(|number| number.max(1))],
                    ),
                    0..200,
                ),
                1..5,
            ),
        ) {
            let mut times = Times::new();
            for (column, expected) in columns(&of).iter().zip(&of) {
                let mut reader = TimeReader::new(column);
                for &expected in expected {
                    prop_assert_eq!(times.take(&mut reader), Some(expected));
                }
                prop_assert!(reader.rest.is_empty());
            }
        }

        #[test]
        fn any_bytes_are_times_until_they_end(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let mut times = Times::new();
            let mut reader = TimeReader::new(&bytes);
            // At most 24 bits of information are in what takes no byte, and each bit here has at
            // least a part in 4,096 of it.
            let mut count = 0_u64;
            while times.take(&mut reader).is_some() {
                count += 1;
                prop_assert!(count < 400_000);
            }
        }
    }

    #[test]
    fn a_carry_runs_through_the_bytes_in_front() {
        let mut writer = Writer { bytes: vec![1, 0xff, 0xff], low: 0xffff_ffff, range: u32::MAX };
        writer.raise(1);
        assert_eq!((writer.bytes, writer.low), (vec![2, 0, 0], 0));
    }

    #[test]
    fn steady_times_take_a_tenth_of_a_bit() {
        let [column] = &columns(&[vec![(1, 64); 10_000]])[..] else { panic!() };
        assert!(column.len() < 150, "{}", column.len());
    }
}
