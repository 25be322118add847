//! Paths as images have them: bytes of the system that the program ran on.

use std::path::{Component, Path, PathBuf, Prefix};

#[cfg(unix)]
pub(crate) fn path_of(bytes: &[u8]) -> PathBuf {
    use std::os::unix::ffi::OsStrExt;
    PathBuf::from(std::ffi::OsStr::from_bytes(bytes))
}

/// Bytes that are not UTF-8 name no file here.
#[cfg(not(unix))]
pub(crate) fn path_of(bytes: &[u8]) -> PathBuf {
    PathBuf::from(&*String::from_utf8_lossy(bytes))
}

#[cfg(unix)]
pub(crate) fn bytes_of(path: &Path) -> Vec<u8> {
    path.as_os_str().as_encoded_bytes().to_vec()
}

#[cfg(not(unix))]
pub(crate) fn bytes_of(path: &Path) -> Vec<u8> {
    path.to_string_lossy().into_owned().into_bytes()
}

/// Returns a path of the program below `root`. Below `/`, a path with a drive is left as it is.
///
/// No other machine is asked: a path with a server loses it.
pub(crate) fn below(root: &Path, path: &Path) -> PathBuf {
    if root == Path::new("/")
        && let Some(Component::Prefix(prefix)) = path.components().next()
        && matches!(prefix.kind(), Prefix::Disk(_) | Prefix::VerbatimDisk(_))
    {
        return path.to_owned();
    }
    let is_start = |part: &Component<'_>| matches!(part, Component::Prefix(_) | Component::RootDir);
    root.join(path.components().skip_while(is_start).collect::<PathBuf>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_lie_below_the_root_wherever_they_began() {
        let cases =
            [("/", "/usr/lib/a.so", "/usr/lib/a.so"), ("/s", "/usr/a", "/s/usr/a"), ("/s", "a", "/s/a")];
        for (root, path, expected) in cases {
            assert_eq!(below(root.as_ref(), path.as_ref()), Path::new(expected), "{root} {path}");
        }
    }

    #[cfg(windows)]
    #[test]
    fn paths_with_drives_lie_below_a_root_that_is_given() {
        for (root, path, expected) in
            [("/", r"C:\a\b.dll", r"C:\a\b.dll"), ("D:/s", r"C:\a\b.dll", r"D:\s\a\b.dll")]
        {
            assert_eq!(below(root.as_ref(), path.as_ref()), Path::new(expected), "{root} {path}");
        }
    }

    #[test]
    fn paths_survive_as_bytes() {
        let bytes = "/opt/测试.so".as_bytes();
        assert_eq!(bytes_of(&path_of(bytes)), bytes);
    }
}
