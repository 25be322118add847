//! An index on disk answers like the files, for this test program, and survives damage. Only large
//! ELF files have indexes, which this program is on Linux alone.

#![cfg(target_os = "linux")]
#![allow(clippy::print_stdout, reason = "reports skipped tests")]

use std::fs;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use cairn_format::StatedAddress;
use cairn_symbols::{Lookup, ModuleId, Resolution, Symbolizer, SymbolizerOptions};

fn scratch(name: &str) -> Scratch {
    // Outside the checkout, which may belong to another user; the cache would be refused.
    let process = std::process::id();
    let directory = std::env::temp_dir().join(format!("cairn-symbols-index-{name}-{process}"));
    let _ = fs::remove_dir_all(&directory);
    fs::DirBuilder::new().mode(0o700).create(&directory).unwrap();
    Scratch(directory)
}

/// Removes its directory at the end of the test.
struct Scratch(PathBuf);

impl std::ops::Deref for Scratch {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl AsRef<Path> for Scratch {
    fn as_ref(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn open(options: SymbolizerOptions) -> (Symbolizer, ModuleId) {
    let mut symbolizer = Symbolizer::new(options);
    let module = symbolizer.add_file(std::env::current_exe().unwrap()).unwrap();
    (symbolizer, module)
}

/// Bytes of an index header.
const HEADER_BYTES: usize = 96;

/// Lists the indexes in the directory, without the marks of failed builds.
fn indexes(directory: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> =
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_none_or(|extension| extension != "cairnsym-none"));
    files.sort();
    files
}

/// Resolves addresses all over the program, and beyond both of its ends.
fn answers(symbolizer: &Symbolizer, module: ModuleId, step: usize) -> Vec<Resolution> {
    let end = fs::metadata(std::env::current_exe().unwrap()).unwrap().len();
    let lookups: Vec<(ModuleId, Lookup)> =
        (0..end).step_by(step).map(|address| (module, Lookup::stated(StatedAddress::new(address)))).collect();
    symbolizer.resolve_many(&lookups).iter().cloned().collect()
}

#[test]
fn index_answers_like_the_files() {
    let directory = scratch("same");
    let (plain, module) = open(SymbolizerOptions::new());
    let expected = answers(&plain, module, 241);
    assert!(expected.iter().filter(|answer| answer.frames().len() > 1).count() > 100);

    let cached = || SymbolizerOptions::new().cache_dir(&*directory);
    let (building, module) = open(cached());
    assert!(!building.module_report(module).from_index);
    // In the background, after the first answer.
    let _ = building.resolve(module, Lookup::stated(StatedAddress::new(0)));
    building.wait_for_indexes();
    assert_eq!(indexes(&directory).len(), 1);

    let (indexed, module) = open(cached());
    assert!(indexed.module_report(module).from_index);
    let found = answers(&indexed, module, 241);
    for (index, (found, expected)) in found.iter().zip(&expected).enumerate() {
        assert_eq!(found, expected, "at {:#x}", index * 241);
    }
}

#[test]
fn index_concurrent_writers_leave_one_whole_file() {
    let directory = scratch("writers");
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let (symbolizer, module) = open(SymbolizerOptions::new().cache_dir(&*directory));
                assert!(symbolizer.build_index(module));
            });
        }
    });
    assert_eq!(indexes(&directory).len(), 1, "{:?}", indexes(&directory));
    let (symbolizer, module) = open(SymbolizerOptions::new().cache_dir(&*directory));
    assert!(symbolizer.module_report(module).from_index);
}

#[test]
fn index_directory_stays_below_its_limit() {
    let directory = scratch("limit");
    let old = directory.join("0123-00000000.cairnsym");
    fs::write(&old, vec![0; 1 << 20]).unwrap();
    let (symbolizer, module) = open(SymbolizerOptions::new().cache_dir(&*directory));
    assert!(symbolizer.build_index(module));
    let own = indexes(&directory).into_iter().find(|path| *path != old).unwrap();
    let bytes = fs::metadata(&own).unwrap().len();
    fs::remove_file(&own).unwrap();

    let (symbolizer, module) = open(SymbolizerOptions::new().cache_dir(&*directory).cache_limit_bytes(bytes));
    assert!(symbolizer.build_index(module));
    assert_eq!(indexes(&directory), std::slice::from_ref(&own), "the older one had to go");
    fs::remove_file(&own).unwrap();

    let (symbolizer, module) =
        open(SymbolizerOptions::new().cache_dir(&*directory).cache_limit_bytes(bytes - 1));
    let _ = symbolizer.build_index(module);
    assert_eq!(indexes(&directory), Vec::<PathBuf>::new(), "larger than the limit by itself");
}

#[test]
fn index_damage_is_refused_or_harmless() {
    let directory = scratch("damaged");
    let options = || SymbolizerOptions::new().cache_dir(&*directory);
    let (symbolizer, module) = open(options());
    assert!(symbolizer.build_index(module));
    let path = indexes(&directory).remove(0);
    let sound = fs::read(&path).unwrap();

    for cut in [0, 7, 50, 95, 100, sound.len() / 2, sound.len() - 1] {
        fs::write(&path, &sound[..cut]).unwrap();
        let (symbolizer, module) = open(options());
        assert!(!symbolizer.module_report(module).from_index, "cut at {cut}");
    }
    for at in (0..HEADER_BYTES).step_by(6) {
        let mut damaged = sound.clone();
        damaged[at] ^= 0x40;
        fs::write(&path, &damaged).unwrap();
        let (symbolizer, module) = open(options());
        assert!(!symbolizer.module_report(module).from_index, "byte {at} of the header");
    }
    // After the header follow the answers. Before pages had checksums, every change here was
    // believed.
    let (plain, module) = open(SymbolizerOptions::new());
    let expected = answers(&plain, module, 20_011);
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    for round in 0..3 {
        let mut damaged = sound.clone();
        for _ in 0..damaged.len() / 64 {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            let at = 400 + (random >> 20) as usize % (damaged.len() - 400);
            damaged[at] ^= random as u8;
        }
        fs::write(&path, &damaged).unwrap();
        let (symbolizer, module) = open(options());
        assert!(answers(&symbolizer, module, 20_011) == expected, "round {round}");
    }
}

/// Failed with: the changed names were shown, because only the header had a checksum.
#[test]
fn index_with_changed_text_is_refused_and_rebuilt() {
    let directory = scratch("text");
    let options = || SymbolizerOptions::new().cache_dir(&*directory).indexes_in_background(false);
    let (symbolizer, module) = open(options());
    assert!(symbolizer.build_index(module));
    let (plain, own) = open(SymbolizerOptions::new());
    let expected = answers(&plain, own, 20_011);
    let path = indexes(&directory).remove(0);
    let sound = fs::read(&path).unwrap();
    let mut bytes = sound.clone();
    let mut at = 0;
    while let Some(next) = bytes[at..].windows(4).position(|part| part == b"core") {
        bytes[at + next..][..4].copy_from_slice(b"eroc");
        at += next + 4;
    }
    assert!(at > 0);
    fs::write(&path, &bytes).unwrap();

    let (symbolizer, module) = open(options());
    assert!(symbolizer.module_report(module).from_index);
    assert!(answers(&symbolizer, module, 20_011) == expected);
    assert!(symbolizer.build_index(module));
    assert!(fs::read(&path).unwrap() == sound, "it was not rebuilt");
}

/// Failed with: indexes of another user, and directories writable by others, were used.
#[test]
fn index_of_another_user_is_refused() {
    let directory = scratch("foreign");
    let options = || SymbolizerOptions::new().cache_dir(&*directory).indexes_in_background(false);
    let (symbolizer, module) = open(options());
    assert!(symbolizer.build_index(module));
    let path = indexes(&directory).remove(0);
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let is_used = || {
        let (symbolizer, module) = open(options());
        symbolizer.module_report(module).from_index
    };
    assert!(is_used());
    let set_mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    set_mode(&path, 0o666);
    assert!(!is_used());
    set_mode(&path, 0o600);
    set_mode(&directory, 0o777);
    assert!(!is_used());
    set_mode(&directory, 0o700);
    assert!(is_used());
    if chown(&path, Some(65534), None).is_err() {
        println!("skipped: only root can give files to another user");
        return;
    }
    assert!(!is_used());
    chown(&path, Some(0), None).unwrap();
    chown(&directory, Some(65534), None).unwrap();
    assert!(!is_used());
    let count = fs::read_dir(&*directory).unwrap().count();
    let (symbolizer, module) = open(options());
    assert!(!symbolizer.build_index(module));
    assert_eq!(fs::read_dir(&*directory).unwrap().count(), count, "something was made in it");
}
