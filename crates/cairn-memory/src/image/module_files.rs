//! Maps each module file once while an image is assembled.
//!
//! Several steps need a module's file: its access rights, its build id, its omitted pages. Mapping
//! it in each of them would cost page faults, and could mix two files if one replaces the other
//! meanwhile.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::mapped_file::FileBytes;

/// The module files opened so far, by path; `None` for a file that cannot be opened.
#[derive(Debug, Default)]
pub(super) struct ModuleFiles {
    opened: HashMap<PathBuf, Option<Arc<FileBytes>>>,
}

impl ModuleFiles {
    /// Returns the mapped file at a path; `None` if it cannot be opened.
    pub(super) fn open(&mut self, path: &Path) -> Option<Arc<FileBytes>> {
        if let Some(known) = self.opened.get(path) {
            return known.clone();
        }
        let file = FileBytes::open(path).ok().map(Arc::new);
        self.opened.insert(path.to_owned(), file.clone());
        file
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Failed with: no such type; each step mapped the file again.
    #[test]
    fn module_files_are_mapped_once() {
        let path = std::env::current_exe().unwrap();
        let mut files = ModuleFiles::default();
        let first = files.open(&path).expect("this program is a regular file");
        let second = files.open(&path).expect("this program is a regular file");
        assert!(Arc::ptr_eq(&first, &second));
        assert!(files.open(Path::new("/nonexistent/library.so")).is_none());
        if cfg!(target_os = "linux") {
            let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
            let address = format!("{:x}-", first.as_ptr() as usize);
            assert_eq!(maps.lines().filter(|line| line.starts_with(&address)).count(), 1);
        }
    }
}
