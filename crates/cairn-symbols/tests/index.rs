//! The index on disk answers as the files do, for this test's own program, and survives what happens to files.

use std::fs;
use std::path::{Path, PathBuf};

use cairn_format::StatedAddress;
use cairn_symbols::{Lookup, ModuleId, Resolution, Symbolizer, SymbolizerOptions};

fn scratch(name: &str) -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("symbols-index-{name}"));
    let _ = fs::remove_dir_all(&directory);
    directory
}

fn open(options: SymbolizerOptions) -> (Symbolizer, ModuleId) {
    let mut symbolizer = Symbolizer::new(options);
    let module = symbolizer.add_file(std::env::current_exe().unwrap()).unwrap();
    (symbolizer, module)
}

/// The indexes in the directory; not the notes of programs that cannot have one.
fn indexes(directory: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> =
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_none_or(|extension| extension != "cairnsym-none"));
    files.sort();
    files
}

/// Addresses all over the program, and beyond both of its ends.
fn answers(symbolizer: &Symbolizer, module: ModuleId, step: usize) -> Vec<Resolution> {
    let end = fs::metadata(std::env::current_exe().unwrap()).unwrap().len();
    let lookups: Vec<(ModuleId, Lookup)> =
        (0..end).step_by(step).map(|address| (module, Lookup::stated(StatedAddress::new(address)))).collect();
    symbolizer.resolve_many(&lookups).iter().cloned().collect()
}

#[test]
fn an_index_answers_as_the_files() {
    let directory = scratch("same");
    let (plain, module) = open(SymbolizerOptions::new());
    let expected = answers(&plain, module, 241);
    assert!(expected.iter().filter(|answer| answer.frames().len() > 1).count() > 100);

    let cached = || SymbolizerOptions::new().cache_dir(&directory);
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
fn writers_at_the_same_time_leave_one_whole_index() {
    let directory = scratch("writers");
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let (symbolizer, module) = open(SymbolizerOptions::new().cache_dir(&directory));
                assert!(symbolizer.build_index(module));
            });
        }
    });
    assert_eq!(indexes(&directory).len(), 1, "{:?}", indexes(&directory));
    let (symbolizer, module) = open(SymbolizerOptions::new().cache_dir(&directory));
    assert!(symbolizer.module_report(module).from_index);
}

#[test]
fn the_directory_stays_below_its_limit() {
    let directory = scratch("limit");
    fs::create_dir_all(&directory).unwrap();
    let old = directory.join("0123-00000000.cairnsym");
    fs::write(&old, vec![0; 1 << 20]).unwrap();
    let (symbolizer, module) = open(SymbolizerOptions::new().cache_dir(&directory));
    assert!(symbolizer.build_index(module));
    let own = indexes(&directory).into_iter().find(|path| *path != old).unwrap();
    let bytes = fs::metadata(&own).unwrap().len();
    fs::remove_file(&own).unwrap();

    let (symbolizer, module) = open(SymbolizerOptions::new().cache_dir(&directory).cache_limit_bytes(bytes));
    assert!(symbolizer.build_index(module));
    assert_eq!(indexes(&directory), std::slice::from_ref(&own), "the older one had to go");
    fs::remove_file(&own).unwrap();

    let (symbolizer, module) =
        open(SymbolizerOptions::new().cache_dir(&directory).cache_limit_bytes(bytes - 1));
    let _ = symbolizer.build_index(module);
    assert_eq!(indexes(&directory), Vec::<PathBuf>::new(), "larger than the limit by itself");
}

#[test]
fn damaged_indexes_are_refused_or_answer_something() {
    let directory = scratch("damaged");
    let options = || SymbolizerOptions::new().cache_dir(&directory);
    let (symbolizer, module) = open(options());
    assert!(symbolizer.build_index(module));
    let path = indexes(&directory).remove(0);
    let sound = fs::read(&path).unwrap();

    for cut in [0, 7, 50, 87, 100, sound.len() / 2, sound.len() - 1] {
        fs::write(&path, &sound[..cut]).unwrap();
        let (symbolizer, module) = open(options());
        assert!(!symbolizer.module_report(module).from_index, "cut at {cut}");
    }
    for at in (0..88).step_by(6) {
        let mut damaged = sound.clone();
        damaged[at] ^= 0x40;
        fs::write(&path, &damaged).unwrap();
        let (symbolizer, module) = open(options());
        assert!(!symbolizer.module_report(module).from_index, "byte {at} of the header");
    }
    // Behind the header only answers can be wrong; none may take the process along.
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    for _ in 0..6 {
        let mut damaged = sound.clone();
        for _ in 0..damaged.len() / 64 {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            let at = 400 + (random >> 20) as usize % (damaged.len() - 400);
            damaged[at] ^= random as u8;
        }
        fs::write(&path, &damaged).unwrap();
        let (symbolizer, module) = open(options());
        let _ = answers(&symbolizer, module, 4001);
    }
}
