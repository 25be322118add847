//! The crates of a program that was itself installed from the registry, as by `cargo install`.
//!
//! All its sources are below the registry, its own too, so that directory alone says nothing. The
//! program's package is the one with its `main`. Other packages are the program's own if their
//! `Cargo.toml` names the same repository: `ignore` is ripgrep's, and a library for fd.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io::Read as _;

/// The directory in front of the registries' own directories, in cargo's home directory.
pub(super) const REGISTRY: &str = "cargo/registry/src/";
/// Bytes of a `Cargo.toml` that are read; 64 KiB, four times the longest seen.
const MOST_BYTES: u64 = 64 << 10;

/// The packages of a program.
#[derive(Default, Debug)]
pub(super) struct Packages {
    /// Directory of the program's package, and its repository.
    program: Option<(String, Option<String>)>,
    /// By directory: whether the package is the program's.
    known: RefCell<HashMap<String, bool>>,
}

impl Packages {
    /// The packages of a program whose `main` is in this source file.
    pub(super) fn of_main(file: &str) -> Self {
        let program = directory(file).map(|directory| (directory.to_owned(), repository(directory)));
        Self { program, known: RefCell::default() }
    }

    /// True for a source file of a package that is the program's own.
    pub(super) fn owns(&self, file: &str) -> bool {
        let (Some((program, of_program)), Some(directory)) = (&self.program, directory(file)) else {
            return false;
        };
        if program == directory {
            return true;
        }
        if let Some(&known) = self.known.borrow().get(directory) {
            return known;
        }
        let is_own = of_program.is_some() && repository(directory) == *of_program;
        self.known.borrow_mut().insert(directory.to_owned(), is_own);
        is_own
    }
}

/// The directory of a source file's package: `…/registry/src/index.crates.io-HASH/NAME-VERSION`.
fn directory(file: &str) -> Option<&str> {
    let start = file.rfind(REGISTRY)? + REGISTRY.len();
    let registry = file[start..].find('/')? + 1;
    let package = file[start + registry..].find('/')?;
    Some(&file[..start + registry + package])
}

/// The repository that a package's `Cargo.toml` names; `None` also if the sources are not here.
fn repository(directory: &str) -> Option<String> {
    let mut text = String::new();
    let file = std::fs::File::open(format!("{directory}/Cargo.toml")).ok()?;
    file.take(MOST_BYTES).read_to_string(&mut text).ok()?;
    repository_of_manifest(&text)
}

/// The repository of a manifest, without the directory in it.
fn repository_of_manifest(manifest: &str) -> Option<String> {
    let value =
        manifest.lines().find_map(|line| line.strip_prefix("repository")?.trim_start().strip_prefix('='))?;
    let value = value.trim().trim_matches('"');
    let value = value.split_once("/tree/").map_or(value, |(repository, _)| repository);
    let value = value.trim_end_matches('/').trim_end_matches(".git");
    (!value.is_empty()).then(|| value.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_of_one_repository_are_the_programs() {
        let home = std::env::temp_dir().join(format!("cairn-packages-{}", std::process::id()));
        let registry = home.join(".cargo/registry/src/index.crates.io-0123456789abcdef");
        let package = |name: &str, manifest: &str| {
            let directory = registry.join(name);
            std::fs::create_dir_all(&directory).expect("created");
            std::fs::write(directory.join("Cargo.toml"), manifest).expect("written");
            crate::names::with_slashes(&directory.join("src/lib.rs").display().to_string()).into_owned()
        };
        let main =
            package("rg-14.1.1", "[package]\nname = \"rg\"\nrepository = \"https://example.org/a/Rg\"\n");
        let own = package("ignore-0.4.23", "repository = \"https://example.org/a/rg.git/tree/main/ignore\"");
        let other = package("memchr-2.7.4", "repository = \"https://example.org/a/memchr\"");
        let without = package("odd-1.0.0", "[package]\nname = \"odd\"\n");
        let packages = Packages::of_main(&main);
        let owned = [&main, &own, &other, &without, &own].map(|file| packages.owns(file));
        assert_eq!(owned, [true, true, false, false, true]);
        // A program without a repository owns its package alone.
        let packages = Packages::of_main(&without);
        assert_eq!([&without, &own].map(|file| packages.owns(file)), [true, false]);
        assert!(!Packages::of_main("/home/me/app/src/main.rs").owns(&main));
        assert!(!Packages::default().owns(&main) && !packages.owns("cargo/registry/src/x"));
        std::fs::remove_dir_all(&home).expect("removed");
    }
}
