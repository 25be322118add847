//! How far compressed input may unpack.
//!
//! A few compressed bytes can claim to be more than any machine holds. Every reader of compressed
//! input takes its default limit from here: a constant, or a multiple of the compressed size where
//! that is more. The user can replace it.
//!
//! Measured: files of heaptrack unpack to 3 to 15 times their size, and to 5,000 times where a
//! program repeats one loop; profiles of pprof to 2 to 5 times; sections of debug information to 3
//! to 5 times; cores of Python and of redis-server to 30 and 140 times, zeros included. A program
//! that holds gigabytes of zeros leaves a core that unpacks to more than 1,000 times its size.
//!
//! ```
//! use cairn_format::unpack::UnpackBound;
//!
//! let limit = UnpackBound::PROFILE_TEXT.limit(512 << 10, None);
//! assert_eq!(limit.limit_bytes, 512 << 20);
//! assert_eq!(
//!     limit.to_string(),
//!     "would unpack to more than 512 MiB (1,024 times its size); raise the limit with --max-unpacked SIZE",
//! );
//! assert_eq!(UnpackBound::PROFILE_TEXT.limit(1 << 30, None).limit_bytes, 64 << 30);
//! assert_eq!(UnpackBound::PROFILE_TEXT.limit(1 << 30, Some(1 << 31)).limit_bytes, 1 << 31);
//! ```

use core::fmt;

/// A default limit: a constant, or a multiple of the compressed size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnpackBound {
    least_bytes: u64,
    times: u64,
}

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

impl UnpackBound {
    /// The text of a profile of another tool, read as a stream: bounds the time.
    pub const PROFILE_TEXT: Self = Self::new(512 * MIB, 64);
    /// The memory that such a profile takes when it is read.
    pub const PROFILE_MEMORY: Self = Self::new(256 * MIB, 64);
    /// A core or minidump with its zeros, which become holes of a temporary file: bounds the time.
    pub const IMAGE: Self = Self::new(8 * GIB, 4096);
    /// A core or minidump without its zeros: bounds the space on the disk.
    pub const IMAGE_DATA: Self = Self::new(GIB, 256);
    /// All compressed debug sections of a file together.
    pub const DEBUG_SECTIONS: Self = Self::new(64 * MIB, 64);
    /// The small ELF file in the section `.gnu_debugdata`.
    pub const MINI_DEBUG: Self = Self::new(8 * MIB, 64);

    const fn new(least_bytes: u64, times: u64) -> Self {
        Self { least_bytes, times }
    }

    /// Returns the limit for input of this compressed size. `chosen` is the user's limit and
    /// replaces the default.
    #[must_use]
    pub const fn limit(self, packed_bytes: u64, chosen: Option<u64>) -> UnpackLimit {
        let by_size = packed_bytes.saturating_mul(self.times);
        let default_bytes = if by_size > self.least_bytes { by_size } else { self.least_bytes };
        let limit_bytes = match chosen {
            Some(chosen) => chosen,
            None => default_bytes,
        };
        UnpackLimit { packed_bytes, limit_bytes }
    }
}

/// The limit of one input. Its text says that the input is refused, and how to raise the limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnpackLimit {
    /// Size of the input as it is stored.
    pub packed_bytes: u64,
    /// It may not unpack to more than this.
    pub limit_bytes: u64,
}

impl fmt::Display for UnpackLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let times = self.limit_bytes / self.packed_bytes.max(1);
        write!(
            f,
            "would unpack to more than {} ({} times its size); raise the limit with --max-unpacked SIZE",
            Size(self.limit_bytes),
            Grouped(times)
        )
    }
}

/// A size in the largest unit that it fills, with one decimal place where it is no whole number.
#[derive(Clone, Copy, Debug)]
pub struct Size(pub u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (shift, unit) = match self.0 {
            0..1024 => return write!(f, "{} bytes", self.0),
            1024..MIB => (10, "KiB"),
            MIB..GIB => (20, "MiB"),
            _ => (30, "GiB"),
        };
        let (whole, rest) = (self.0 >> shift, self.0 & ((1 << shift) - 1));
        match (rest * 10) >> shift {
            0 => write!(f, "{} {unit}", Grouped(whole)),
            tenths => write!(f, "{}.{tenths} {unit}", Grouped(whole)),
        }
    }
}

/// A number with a comma in front of every three digits.
struct Grouped(u64);

impl fmt::Display for Grouped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut divisor = 1;
        while self.0 / divisor >= 1000 {
            divisor *= 1000;
        }
        write!(f, "{}", self.0 / divisor)?;
        while divisor > 1 {
            divisor /= 1000;
            write!(f, ",{:03}", self.0 / divisor % 1000)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::string::ToString;

    use super::*;

    #[test]
    fn unpack_limit_text_has_both_numbers() {
        for (packed, limit, text) in [
            (727 << 10, 8 << 30, "more than 8 GiB (11,538 times"),
            (1, 1_000_000, "more than 976.5 KiB (1,000,000 times"),
            (0, 17, "more than 17 bytes (17 times"),
            (1 << 30, u64::MAX, "more than 17,179,869,183.9 GiB (17,179,869,183 times"),
        ] {
            let limit = UnpackLimit { packed_bytes: packed, limit_bytes: limit };
            assert!(limit.to_string().contains(text), "{limit}");
        }
        assert_eq!(UnpackBound::IMAGE.limit(u64::MAX, None).limit_bytes, u64::MAX);
    }
}
