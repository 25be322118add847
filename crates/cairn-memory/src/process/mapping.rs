//! The mappings of a process, from `/proc/PID/maps`: `7f00a000-7f00b000 r-xp 00002000 fd:01 1234
//! /usr/lib/x.so`.

use cairn_format::{AbsoluteAddress, FileOffset};
use cairn_unwind::AddressRange;

/// A mapping of a process's address space.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Mapping {
    /// The addresses of the mapping.
    pub range: AddressRange,
    /// Whether the process may read it.
    pub is_readable: bool,
    /// Whether the process may execute it.
    pub is_executable: bool,
    /// The offset in the file at which it begins.
    pub file_offset: FileOffset,
    /// The file's inode; 0 for memory without a file.
    pub inode: u64,
    /// The file, or the kernel's name of a mapping without a file, such as `[stack]`. Empty for
    /// anonymous memory. A deleted file has the suffix ` (deleted)`.
    pub name: Vec<u8>,
}

impl Mapping {
    /// Reports whether this is the vdso, the kernel's library of system calls, which is not a file.
    #[must_use]
    pub fn is_vdso(&self) -> bool {
        self.name == b"[vdso]"
    }
}

/// Parses the text of `/proc/PID/maps`. Invalid lines are ignored.
#[must_use]
pub fn parse_mappings(text: &[u8]) -> Vec<Mapping> {
    text.split(|&byte| byte == b'\n').filter_map(parse_line).collect()
}

fn parse_line(line: &[u8]) -> Option<Mapping> {
    let (range, rest) = word(line)?;
    let (permissions, rest) = word(rest)?;
    let (file_offset, rest) = word(rest)?;
    let (_device, rest) = word(rest)?;
    let (inode, name) = word(rest)?;
    let (start, end) = range.split_once('-')?;
    let address = |text: &str| u64::from_str_radix(text, 16).ok();
    Some(Mapping {
        range: AddressRange::new(AbsoluteAddress::new(address(start)?), AbsoluteAddress::new(address(end)?)),
        is_readable: permissions.as_bytes().first() == Some(&b'r'),
        is_executable: permissions.as_bytes().get(2) == Some(&b'x'),
        file_offset: FileOffset::new(address(file_offset)?),
        inode: inode.parse().ok()?,
        name: unescaped(name.trim_ascii_start()),
    })
}

/// Returns the first word of a line, and the rest.
fn word(line: &[u8]) -> Option<(&str, &[u8])> {
    let line = line.trim_ascii_start();
    let end = line.iter().position(|&byte| byte == b' ').unwrap_or(line.len());
    let (word, rest) = line.split_at_checked(end)?;
    Some((std::str::from_utf8(word).ok()?, rest)).filter(|(word, _)| !word.is_empty())
}

/// Decodes `\012`, the kernel's escape of a newline in a file name.
fn unescaped(name: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(name.len());
    let mut rest = name;
    while let Some((&byte, behind)) = rest.split_first() {
        match rest.strip_prefix(b"\\012") {
            Some(behind) => {
                plain.push(b'\n');
                rest = behind;
            }
            None => {
                plain.push(byte);
                rest = behind;
            }
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_of_every_kind_are_parsed() {
        let text =
            b"55d0a000-55d0b000 r--p 00002000 fd:01 1234                 /usr/lib/a b\\012c.so (deleted)\n\
            7ffc0000-7ffd0000 rwxp 00000000 00:00 0                            [stack]\n\
            7f000000-7f001000 --xs 00000000 00:00 0 \n\
            not a line\n\nffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0 [vsyscall]";
        let found = parse_mappings(text);
        let at = AbsoluteAddress::new;
        assert_eq!(
            found[0],
            Mapping {
                range: AddressRange::new(at(0x55d0_a000), at(0x55d0_b000)),
                is_readable: true,
                is_executable: false,
                file_offset: FileOffset::new(0x2000),
                inode: 1234,
                name: b"/usr/lib/a b\nc.so (deleted)".to_vec(),
            }
        );
        let names: Vec<_> = found.iter().map(|mapping| mapping.name.as_slice()).collect();
        assert_eq!(names[1..], [&b"[stack]"[..], b"", b"[vsyscall]"]);
        let flags: Vec<_> =
            found.iter().map(|mapping| (mapping.is_readable, mapping.is_executable)).collect();
        assert_eq!(flags, [(true, false), (true, true), (false, true), (false, true)]);
    }
}
