//! Finds the file of a program, and checks whether the library can be loaded into it.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::{env, fs};

use super::StartError;

/// Finds `name`, as `CreateProcess` does, and checks that it is a 64-bit program for x86-64.
///
/// With a separator in it, it is a path; otherwise it is searched in the working directory and in
/// `PATH`. Without an extension, `.exe` is added.
///
/// # Errors
///
/// [`StartError::NotFound`], [`StartError::Unreadable`] and [`StartError::OtherMachine`].
pub fn find(name: &OsStr) -> Result<PathBuf, StartError> {
    let path = places(name)
        .into_iter()
        .flat_map(|place| [place.clone(), with_exe(&place)])
        .find(|path| path.is_file())
        .ok_or_else(|| StartError::NotFound(name.into()))?;
    let unreadable = |error| StartError::Unreadable(path.clone(), error);
    let machine = File::open(&path).and_then(|mut file| machine(&mut file)).map_err(unreadable)?;
    match machine {
        Some(X86_64) => fs::canonicalize(&path).map(without_prefix).map_err(unreadable),
        Some(X86_32) => Err(StartError::OtherMachine(path, "it is a 32-bit program")),
        Some(_) => Err(StartError::OtherMachine(path, "it is a program for another processor")),
        None => Err(StartError::OtherMachine(
            path,
            "it is no program for Windows (scripts are run by one: name that)",
        )),
    }
}

const X86_64: u16 = 0x8664;
const X86_32: u16 = 0x14c;

fn places(name: &OsStr) -> Vec<PathBuf> {
    let is_path = name.as_encoded_bytes().iter().any(|byte| matches!(byte, b'\\' | b'/' | b':'));
    if is_path || name.is_empty() {
        return vec![name.into()];
    }
    let path = env::var_os("PATH").unwrap_or_default();
    [PathBuf::from(".")].into_iter().chain(env::split_paths(&path)).map(|place| place.join(name)).collect()
}

/// Appends `.exe`, unless the name has an extension.
fn with_exe(path: &Path) -> PathBuf {
    if path.extension().is_some() {
        return path.to_owned();
    }
    path.with_extension("exe")
}

/// Removes the prefix of extended paths, which many programs do not expect of their own path.
fn without_prefix(path: PathBuf) -> PathBuf {
    match path.to_str().and_then(|text| text.strip_prefix(r"\\?\")) {
        Some(rest) if rest.as_bytes().get(1) == Some(&b':') => rest.into(),
        _ => path,
    }
}

/// Reads the processor of a PE file; `None` for another file.
fn machine(file: &mut File) -> io::Result<Option<u16>> {
    let mut head = [0; 64];
    let mut signature = [0; 6];
    let is_short = |error: io::Error| {
        if error.kind() == io::ErrorKind::UnexpectedEof { Ok(None) } else { Err(error) }
    };
    if let Err(error) = file.read_exact(&mut head) {
        return is_short(error);
    }
    let [.., a, b, c, d] = head;
    if !head.starts_with(b"MZ") {
        return Ok(None);
    }
    file.seek(SeekFrom::Start(u32::from_le_bytes([a, b, c, d]).into()))?;
    if let Err(error) = file.read_exact(&mut signature) {
        return is_short(error);
    }
    Ok(match signature {
        [b'P', b'E', 0, 0, low, high] => Some(u16::from_le_bytes([low, high])),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file_of(name: &str, machine: [u8; 2]) -> PathBuf {
        let path = env::temp_dir().join(format!("cairn-run-{}-{name}", std::process::id()));
        let mut bytes = vec![0; 64];
        bytes[..2].copy_from_slice(b"MZ");
        bytes[60] = 64;
        bytes.extend_from_slice(b"PE\0\0");
        bytes.extend_from_slice(&machine);
        fs::write(&path, bytes).unwrap();
        path
    }

    #[test]
    fn program_is_refused_by_its_file() {
        let own = env::current_exe().unwrap();
        assert!(find(own.as_os_str()).unwrap().is_absolute());
        assert!(find(own.with_extension("").as_os_str()).is_ok(), "the extension may be left out");
        let old = file_of("old.exe", [0x4c, 1]);
        assert!(matches!(find(old.as_os_str()), Err(StartError::OtherMachine(_, "it is a 32-bit program"))));
        let arm = file_of("arm.exe", [0x64, 0xaa]);
        assert!(matches!(find(arm.as_os_str()), Err(StartError::OtherMachine(..))));
        fs::write(&arm, "echo").unwrap();
        assert!(matches!(find(arm.as_os_str()), Err(StartError::OtherMachine(..))));
        fs::remove_file(&arm).unwrap();
        fs::remove_file(&old).unwrap();
        assert!(matches!(find(arm.as_os_str()), Err(StartError::NotFound(_))));
        assert!(matches!(find(OsStr::new("no-such-program")), Err(StartError::NotFound(_))));
    }
}
