//! Reads and writes at a position of a file.

use std::fs::File;
use std::io;

/// Fills `into` with the bytes of a file from `offset` on.
///
/// On Windows this moves the file's own position.
///
/// # Errors
///
/// [`UnexpectedEof`](io::ErrorKind::UnexpectedEof) when the file ends before, and what the system
/// says.
pub fn read_exact_at(file: &File, into: &mut [u8], offset: u64) -> io::Result<()> {
    #[cfg(not(windows))]
    return std::os::unix::fs::FileExt::read_exact_at(file, into, offset);
    #[cfg(windows)]
    {
        use std::os::windows::fs::FileExt;
        let (mut rest, mut offset) = (into, offset);
        while !rest.is_empty() {
            match file.seek_read(rest, offset) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => {
                    rest = rest.get_mut(count..).unwrap_or_default();
                    offset += count as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn positions_are_read_in_any_order_and_not_beyond_the_end() {
        let mut file = crate::unnamed_file().unwrap();
        file.write_all(b"0123456789").unwrap();
        let mut three = [0; 3];
        for (offset, expected) in [(7, b"789"), (0, b"012"), (3, b"345")] {
            read_exact_at(&file, &mut three, offset).unwrap();
            assert_eq!(&three, expected);
        }
        for offset in [8, 10, 1 << 40] {
            let error = read_exact_at(&file, &mut three, offset).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "{offset}");
        }
    }
}
