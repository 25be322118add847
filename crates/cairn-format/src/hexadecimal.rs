//! Bytes as hexadecimal digits.

use core::fmt;

/// Displays bytes as lower-case hexadecimal digits, two for each, as tools print build ids.
///
/// ```
/// use cairn_format::Hexadecimal;
///
/// assert_eq!(Hexadecimal(&[0xca, 0x1a, 0x01]).to_string(), "ca1a01");
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Hexadecimal<'a>(pub &'a [u8]);

impl fmt::Display for Hexadecimal<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
