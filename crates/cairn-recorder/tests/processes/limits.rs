//! Whatever runs out ends the recording, or keeps it from beginning; never the program.

use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use cairn_format::recording::MarkValue;
use cairn_format::recording::control::State;
use cairn_recorder::{StartError, is_recording, mark, mark_value, start};

use crate::support::Spool;
use crate::{Runner, options};

const MARKS: usize = 300_000;

fn many_marks() {
    (0..MARKS).for_each(|_| mark("a text of some thirty characters"));
}

fn limit(resource: libc::__rlimit_resource_t, most: u64) {
    let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
    // SAFETY: reads the variable.
    assert_eq!(unsafe { libc::setrlimit(resource, &raw const limit) }, 0);
}

/// Checks a recording that ended before its program: full, with all losses counted. Everything else
/// is there.
fn check_full(path: &Path) -> usize {
    let spool = Spool::open(path);
    spool.check();
    assert_eq!(spool.state, State::Full);
    assert_eq!(spool.marks.len() + spool.lost_events as usize, MARKS);
    assert!(spool.lost_events > 0 && spool.marks.len() > 1000, "{} marks", spool.marks.len());
    spool.marks.len()
}

pub(crate) fn file_size(path: &Path) {
    limit(libc::RLIMIT_FSIZE, 6_500_000);
    start(&options(path)).unwrap();
    many_marks();
    assert!(!is_recording());
}

pub(crate) fn check_file_size(runner: &Runner) {
    runner.run();
    check_full(&runner.path);
    assert!(std::fs::metadata(&runner.path).unwrap().len() <= 6_500_000);
}

pub(crate) fn address_space(path: &Path) {
    // The present memory is some ten MiB. The limits go from plenty to nearly nothing more.
    for (index, mebibytes) in [400_u64, 100, 40, 20, 12, 8].into_iter().enumerate() {
        // SAFETY: the child has one thread and ends by _exit.
        let process = unsafe { libc::fork() };
        if process == 0 {
            limit(libc::RLIMIT_AS, mebibytes << 20);
            let path = PathBuf::from(format!("{}.{index}", path.display()));
            let code = match start(&options(&path)) {
                Ok(()) => {
                    mark("one");
                    mark("two");
                    0
                }
                Err(StartError::AddressSpace(error)) => i32::from(error != libc::ENOMEM),
                Err(_) => 2,
            };
            // SAFETY: ends the process at once.
            unsafe { libc::_exit(code) };
        }
        let mut status = 0;
        // SAFETY: waits for our own child.
        unsafe { libc::waitpid(process, &raw mut status, 0) };
        assert_eq!(status, 0, "{mebibytes} MiB");
    }
}

pub(crate) fn check_address_space(runner: &Runner) {
    runner.run();
    let mut recorded = 0;
    for index in 0..6 {
        let path = PathBuf::from(format!("{}.{index}", runner.path.display()));
        if path.exists() {
            let spool = Spool::open(&path);
            spool.check();
            assert_eq!(spool.marks.len() + spool.lost_events as usize, 2, "limit {index}");
            recorded += usize::from(spool.marks.len() == 2);
            std::fs::remove_file(&path).unwrap();
        }
    }
    assert!(recorded >= 1, "recorded under {recorded} of the limits");
}

pub(crate) fn descriptors(path: &Path) {
    start(&options(path)).unwrap();
    // No further one can be opened: the file does not grow any more.
    limit(libc::RLIMIT_NOFILE, 0);
    many_marks();
    let second = start(&options(path));
    assert_eq!(second, Err(StartError::AlreadyStarted));
}

pub(crate) fn check_descriptors(runner: &Runner) {
    runner.run();
    check_full(&runner.path);
}

/// A small file system of its own, where the kernel lets programs make one.
fn mount(directory: &Path) -> bool {
    let target = std::ffi::CString::new(directory.as_os_str().as_encoded_bytes()).unwrap();
    // SAFETY: all strings end with a NUL; what is mounted is seen by this process alone.
    unsafe {
        let is_apart = libc::unshare(libc::CLONE_NEWNS) == 0
            || libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS) == 0;
        let private = libc::MS_REC | libc::MS_PRIVATE;
        let none = std::ptr::null();
        is_apart
            && libc::mount(none, c"/".as_ptr(), none, private, none.cast()) == 0
            && libc::mount(
                c"tmpfs".as_ptr(),
                target.as_ptr(),
                c"tmpfs".as_ptr(),
                0,
                c"size=7m".as_ptr().cast(),
            ) == 0
    }
}

pub(crate) fn full_disk(path: &Path) {
    let directory = PathBuf::from(format!("{}.mount", path.display()));
    std::fs::create_dir_all(&directory).unwrap();
    if !mount(&directory) {
        println!("no mount");
        return;
    }
    let inside = directory.join("full.cairn");
    start(&options(&inside)).unwrap();
    // Another file takes most of the rest.
    std::fs::write(directory.join("other"), vec![1; 1 << 20]).unwrap();
    many_marks();
    assert!(!is_recording());
    std::fs::copy(&inside, path).unwrap();
}

pub(crate) fn check_full_disk(runner: &Runner) {
    let printed = runner.run();
    let _ = std::fs::remove_dir(format!("{}.mount", runner.path.display()));
    if printed.contains("no mount") {
        println!("full-disk: this kernel lets no process mount a small file system; not checked");
        return;
    }
    check_full(&runner.path);
    let segments = std::fs::metadata(&runner.path).unwrap().len() >> 16;
    assert!((88..=96).contains(&segments), "all but a few segments of the free 6 MiB are used: {segments}");
}

/// Closes all descriptors and opens others, as daemons do.
pub(crate) fn closed(path: &Path) {
    start(&options(path)).unwrap();
    mark("before");
    // SAFETY: nothing here needs them; the standard three stay.
    assert_eq!(unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) }, 0);
    let victim = PathBuf::from(format!("{}.victim", path.display()));
    let files: Vec<std::fs::File> =
        (0..20).map(|_| std::fs::File::options().create(true).append(true).open(&victim).unwrap()).collect();
    many_marks();
    assert!(is_recording());
    assert!(files.iter().all(|file| file.as_raw_fd() >= 3));
    assert_eq!(std::fs::metadata(&victim).unwrap().len(), 0, "a file of the program was written to");
    std::fs::remove_file(&victim).unwrap();
}

pub(crate) fn check_closed(runner: &Runner) {
    runner.run();
    let spool = Spool::open(&runner.path);
    spool.check();
    assert_eq!((spool.marks.len(), spool.lost_events), (MARKS + 1, 0));
}

pub(crate) fn unwritable(_: &Path) {
    let cases: [(&[u8], i32); 4] = [
        (b"/proc/nothing-can-be-made-here.cairn", libc::ENOENT),
        (b"/no/such/directory/x.cairn", libc::ENOENT),
        (b"/proc/self/status/x.cairn", libc::ENOTDIR),
        (&[b'x'; 300], libc::ENAMETOOLONG),
    ];
    for (path, wanted) in cases {
        let result = start(&cairn_recorder::Options::new(path));
        let Err(StartError::Create(error)) = result else { panic!("{result:?}") };
        assert!(error == wanted || error == libc::EACCES, "errno {error} where {wanted} was expected");
    }
    assert_eq!(start(&cairn_recorder::Options::new(&[b'/'; 5000])), Err(StartError::Path));
    assert_eq!(start(&cairn_recorder::Options::new(b"a\0b")), Err(StartError::Path));
    assert_eq!(start(&cairn_recorder::Options::new(b"")), Err(StartError::Path));
    assert!(!is_recording());
}

pub(crate) fn check_unwritable(runner: &Runner) {
    runner.run();
}

/// Writes 64 MiB that nobody reads, and says how much of them is in its memory.
pub(crate) fn resident(path: &Path) {
    start(&options(path)).unwrap();
    let text = "x".repeat(200);
    for number in 0..(64 << 20) / 256 {
        mark_value(&text, MarkValue::Integer(number));
    }
    let mappings = std::fs::read_to_string("/proc/self/smaps").unwrap();
    // It was opened before it had a name.
    let inode = std::fs::metadata(path).unwrap().ino().to_string();
    let mut is_spool = false;
    let mut kib = 0;
    for line in mappings.lines() {
        let Some((word, rest)) = line.split_once(' ') else { continue };
        match word {
            "Rss:" if is_spool => kib += rest.trim().trim_end_matches(" kB").parse::<u64>().unwrap(),
            field if field.ends_with(':') => {}
            _ => is_spool = rest.split_ascii_whitespace().nth(3) == Some(&*inode),
        }
    }
    println!("{kib}");
}

pub(crate) fn check_resident(runner: &Runner) {
    let kib: u64 = runner.run().trim().parse().unwrap();
    assert!((4 << 10..12 << 10).contains(&kib), "{kib} KiB");
    let spool = Spool::open(&runner.path);
    spool.check();
    assert_eq!(spool.marks.len(), (64 << 20) / 256);
    assert!(spool.segments_used > 900, "{} segments", spool.segments_used);
}
