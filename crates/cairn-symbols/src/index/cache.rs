//! Identifies which index belongs to which files.

use std::fs;
use std::path::PathBuf;
use std::time::SystemTime;

use crate::elf::debug_object::DebugObject;

/// A directory of indexes.
#[derive(Clone, Debug)]
pub(crate) struct Cache {
    pub(crate) directory: PathBuf,
    #[cfg_attr(
        not(any(target_os = "linux", windows)),
        allow(dead_code, reason = "indexes are stored on Linux and Windows only")
    )]
    pub(crate) limit_bytes: u64,
}

/// Identifies the files of an index.
///
/// Uses build id and size or, without a build id, path and modification time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Identity {
    #[cfg_attr(
        not(any(target_os = "linux", windows)),
        allow(dead_code, reason = "indexes are stored on Linux and Windows only")
    )]
    pub(super) name: String,
    bytes: Vec<u8>,
}

impl Identity {
    /// Identifies files that answer together, each with its role; the first build id gives the
    /// name.
    pub(crate) fn of<'a>(objects: impl Iterator<Item = (u8, &'a DebugObject)>) -> Self {
        let mut bytes = Vec::new();
        let mut name = None;
        for (role, object) in objects {
            bytes.push(role);
            bytes.extend((object.bytes().len() as u64).to_le_bytes());
            match crate::locate::build_id_of(object.bytes()) {
                Some(build_id) => {
                    bytes.push(build_id.bytes().len().min(255) as u8);
                    bytes.extend(build_id.bytes().iter().take(255));
                    let mut text = build_id.to_string();
                    text.truncate(MAX_NAME_CHARS);
                    name.get_or_insert(text);
                }
                None => {
                    let modified = fs::metadata(object.path()).and_then(|metadata| metadata.modified());
                    let nanos = modified
                        .ok()
                        .and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok())
                        .map_or(0, |since| since.as_nanos());
                    bytes.push(0);
                    bytes.extend(nanos.to_le_bytes());
                    bytes.extend(object.path().as_os_str().as_encoded_bytes());
                    bytes.push(0);
                }
            }
        }
        let mut checksum = flate2::Crc::new();
        checksum.update(&bytes);
        let name = name.unwrap_or_else(|| "no-build-id".to_owned());
        Self { name: format!("{name}-{:08x}.{EXTENSION}", checksum.sum()), bytes }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// Maximum characters of an index file's name; 128, because some file systems end names at 255
/// bytes.
const MAX_NAME_CHARS: usize = 128;

pub(super) const EXTENSION: &str = "cairnsym";
