//! A minidump of a Windows program, whose stacks are found by its function table.

use std::fs;
use std::path::{Path, PathBuf};

use cairn_memory::image::{FileState, Image, ImageModule, OpenOptions};
use cairn_memory::process::ThreadSource;
use cairn_unwind::FoundBy;

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/minidumps");
const PROGRAM: &str = "crash_windows.exe";

fn open(options: &OpenOptions) -> Image {
    Image::open(&Path::new(FIXTURES).join("windows.dmp"), options).unwrap()
}

fn with_program(program: PathBuf) -> OpenOptions {
    let mut options = OpenOptions::default();
    // Nothing of this machine is below it.
    options.root = program.parent().unwrap().to_owned();
    options.program = Some(program);
    options
}

fn module(image: &Image) -> &ImageModule {
    image.modules().iter().find(|module| module.path.to_string_lossy().ends_with(PROGRAM)).unwrap()
}

/// The frames of the crashed thread, and how many of them the tables gave.
fn stack(image: &Image) -> (Vec<u64>, usize) {
    let threads = ThreadSource::threads(image);
    let stack = image.stack(threads[0].registers.as_ref().unwrap(), 64);
    let frames = stack.frames.iter().filter_map(|found| Some(found.frame.address()?.value())).collect();
    let by_table = stack.frames.iter().filter(|found| found.found_by == FoundBy::Cfi).count();
    (frames, by_table)
}

/// The pcs that `RtlVirtualUnwind` found in the process itself.
fn expected() -> Vec<u64> {
    let text = fs::read_to_string(Path::new(FIXTURES).join("windows.stack")).unwrap();
    text.lines().map(|line| u64::from_str_radix(line.strip_prefix("0x").unwrap(), 16).unwrap()).collect()
}

// Failed with: one frame, and "no such file here".
#[test]
fn stack_in_a_minidump_is_that_of_windows_itself() {
    let image = open(&with_program(Path::new(FIXTURES).join(PROGRAM)));
    let module = module(&image);
    assert_eq!(module.file, FileState::Same(Path::new(FIXTURES).join(PROGRAM)));
    let (frames, by_table) = stack(&image);
    // The last frames are in wine's own libraries, whose files are not here: the walk reaches the
    // first of them.
    assert_eq!(frames, expected()[..8]);
    assert_eq!(by_table, 7);
}

/// A directory of this test alone.
fn scratch(name: &str) -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir_all(directory.join("srv/demo")).unwrap();
    directory
}

#[test]
fn program_is_found_below_the_root() {
    let root = scratch("windows-root");
    let program = root.join("srv/demo").join(PROGRAM);
    fs::copy(Path::new(FIXTURES).join(PROGRAM), &program).unwrap();
    let mut options = OpenOptions::default();
    options.root = root;
    let image = open(&options);
    assert_eq!(module(&image).file, FileState::Same(program));
    assert_eq!(stack(&image).1, 7);
}

/// Bytes of the file's link time, and the first byte of its debug record's GUID.
#[test]
fn file_of_another_build_gives_no_rules() {
    let bytes = fs::read(Path::new(FIXTURES).join(PROGRAM)).unwrap();
    let record = bytes.windows(4).position(|four| four == b"RSDS").unwrap();
    let header = u32::from_le_bytes(bytes[0x3c..0x40].try_into().unwrap()) as usize;
    // wine states no GUID, so that the link time decides.
    for (change, is_same) in [(header + 8, false), (record + 4, true)] {
        let program = scratch(&format!("windows-build-{change}")).join(PROGRAM);
        let mut other = bytes.clone();
        other[change] ^= 1;
        fs::write(&program, other).unwrap();
        let image = open(&with_program(program.clone()));
        let file = &module(&image).file;
        assert_eq!(*file == FileState::Same(program), is_same, "{change}: {file:?}");
        assert_eq!(stack(&image).1 == 7, is_same, "{change}");
    }
}

// A stated size must not be allocated, and an image that ends early must be read as far as it goes.
#[test]
fn damaged_programs_end_the_walk() {
    let bytes = fs::read(Path::new(FIXTURES).join(PROGRAM)).unwrap();
    let program = scratch("windows-damaged").join(PROGRAM);
    for length in [0, 64, 512, 1024, 0x1800, 0x4000, bytes.len() / 2] {
        fs::write(&program, &bytes[..length]).unwrap();
        let image = open(&with_program(program.clone()));
        let (frames, by_table) = stack(&image);
        assert!(by_table <= 7, "{length}: {frames:x?}");
        assert_eq!(frames[0], expected()[0]);
    }
}
