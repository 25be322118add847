//! Recordings of a Windows process: modules that come and go, threads, clocks, several files.

#![cfg(windows)]

mod support;

use std::ffi::{CString, c_void};
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Mutex;

use cairn_capture::capture;
use cairn_format::recording::control;
use cairn_recorder::{
    EndReason, Keep, MarkValue, Options, StartError, dump, flush, heap, mark, mark_value, start, stop,
};
use support::{Module, Spool, fresh_path};

/// Held by each test: the recorder is one for the process.
static ALONE: Mutex<()> = Mutex::new(());

#[link(name = "kernel32")]
unsafe extern "system" {
    fn LoadLibraryA(name: *const i8) -> *mut c_void;
    fn FreeLibrary(module: *mut c_void) -> i32;
    fn GetProcAddress(module: *mut c_void, name: *const i8) -> *mut c_void;
    fn GetLastError() -> u32;
    fn SetLastError(error: u32);
    fn QueryPerformanceCounter(count: *mut i64) -> i32;
    fn QueryPerformanceFrequency(frequency: *mut i64) -> i32;
}

/// Records what `work` does, and reads the file while it is still mapped.
fn record(name: &str, work: impl FnOnce()) -> Spool {
    let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let path = fresh_path(name);
    start(&Options::new(path.as_os_str().as_encoded_bytes())).unwrap();
    work();
    stop(EndReason::Stopped);
    let spool = Spool::open(&path);
    spool.check();
    assert_eq!(spool.lost_events, 0);
    let _ = std::fs::remove_file(&path);
    spool
}

fn load(name: &str) -> u64 {
    let name = CString::new(name).unwrap();
    // SAFETY: a library of the system, whose entry does what the system allows.
    let module = unsafe { LoadLibraryA(name.as_ptr()) };
    assert!(!module.is_null(), "{name:?}");
    module as u64
}

fn unload(module: u64) {
    // SAFETY: loaded by `load`, and nothing of it is used any more.
    assert_ne!(unsafe { FreeLibrary(module as *mut c_void) }, 0);
}

/// The loads of a library, in order.
fn loads<'a>(spool: &'a Spool, name: &str) -> Vec<&'a Module> {
    let is_of = |module: &&Module| module.path.to_lowercase().ends_with(name);
    let mut found: Vec<_> = spool.modules.values().filter(is_of).collect();
    found.sort_by_key(|module| module.loaded);
    found
}

#[test]
fn modules_come_and_go_between_the_marks() {
    const LIBRARY: &str = "wsock32.dll";
    let mut bases = Vec::new();
    let spool = record("modules", || {
        mark("before");
        for round in 0..3 {
            bases.push(load(LIBRARY));
            mark_value("loaded", MarkValue::Integer(round));
            unload(bases[round as usize]);
            mark_value("unloaded", MarkValue::Integer(round));
        }
    });
    let found = loads(&spool, LIBRARY);
    assert_eq!(found.iter().map(|module| module.start).collect::<Vec<_>>(), bases);
    let mut moments: Vec<u64> = vec![spool.marks[0].counter];
    for (module, marks) in found.iter().zip(spool.marks[1..].chunks(2)) {
        moments.extend([module.loaded, marks[0].counter, module.unloaded.unwrap(), marks[1].counter]);
        assert!(module.path.starts_with(r"C:\") && module.end > module.start, "{module:?}");
    }
    assert!(moments.is_sorted(), "loads and unloads lie between the marks of their time: {moments:?}");
}

type Compare = extern "C" fn(*const c_void, *const c_void) -> i32;
type Sort = extern "C" fn(*mut c_void, usize, usize, Compare);

extern "C" fn mark_and_compare(_: *const c_void, _: *const c_void) -> i32 {
    mark("compare");
    0
}

#[test]
fn a_module_that_returns_to_its_place_has_new_frames() {
    const LIBRARY: &str = "msvcr100.dll";
    let mut bases = Vec::new();
    let spool = record("returns", || {
        for _ in 0..3 {
            bases.push(load(LIBRARY));
            let module = bases[bases.len() - 1];
            // SAFETY: the library has a function of this name and type.
            let sort = unsafe {
                std::mem::transmute::<*mut c_void, Sort>(GetProcAddress(
                    module as *mut c_void,
                    c"qsort".as_ptr(),
                ))
            };
            let mut pair = [2_u64, 1];
            sort(pair.as_mut_ptr().cast(), pair.len(), 8, mark_and_compare);
            unload(module);
        }
    });
    assert!(bases.iter().all(|base| *base == bases[0]), "the loader puts it elsewhere: {bases:x?}");
    let found: Vec<u32> = spool
        .marks
        .iter()
        .map(|mark| {
            let modules = spool.stack(mark.stack).into_iter().map(|(_, _, module)| module);
            let through = modules.filter(|number| {
                let path = spool.modules.get(number).map(|module| module.path.to_lowercase());
                path.is_some_and(|path| path.ends_with(LIBRARY))
            });
            let through: Vec<u32> = through.collect();
            let module = &spool.modules[&through[0]];
            let is_of_its_time = module.loaded < mark.counter && mark.counter < module.unloaded.unwrap();
            assert!(is_of_its_time, "{module:?} at {}", mark.counter);
            through[0]
        })
        .collect();
    assert!(found.len() >= 3 && found.is_sorted());
    assert_ne!(found[0], found[found.len() - 1]);
}

#[test]
fn modules_from_before_the_start_are_listed() {
    let library = load("wtsapi32.dll");
    let spool = record("before", || mark("one"));
    unload(library);
    for name in ["ntdll.dll", "kernel32.dll", "wtsapi32.dll", ".exe"] {
        let found = loads(&spool, name);
        assert_eq!(found.len(), 1, "{name}: {:x?}", spool.modules);
        assert!(found[0].unloaded.is_none());
    }
    let program = std::env::current_exe().unwrap();
    let name = program.file_name().unwrap().to_str().unwrap();
    let found = loads(&spool, name);
    let here = modules_from_before_the_start_are_listed as *const () as u64;
    assert!((found[0].start..found[0].end).contains(&here));
    // The linker has written that base into the file.
    let bytes = std::fs::read(&program).unwrap();
    let header = u32::from_le_bytes(bytes[0x3c..0x40].try_into().unwrap()) as usize;
    let base = u64::from_le_bytes(bytes[header + 48..header + 56].try_into().unwrap());
    assert_eq!(found[0].start.wrapping_sub(found[0].bias), base);
}

#[test]
fn threads_begin_end_and_have_names() {
    const THREADS: u64 = 6;
    const EVENTS: u64 = 20_000;
    let spool = record("threads", || {
        let work = |thread: u64| {
            for number in 0..EVENTS {
                let address = (thread + 1) << 32 | number * 16;
                heap::allocated_by(address, 24, capture());
                if number % 2 == 0 {
                    heap::freeing(address);
                }
            }
            mark_value("done", MarkValue::Integer(thread as i64));
        };
        // Not scoped ones: those end a moment after their scope.
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let builder = std::thread::Builder::new().name(format!("worker-{thread}"));
                builder.spawn(move || work(thread)).unwrap()
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
    let heap_events: usize = spool.sequences.values().map(|sequence| sequence.heap.len()).sum();
    assert_eq!(heap_events as u64, THREADS * (EVENTS + EVENTS / 2));
    let pairing = spool.pair();
    assert_eq!(pairing.local + pairing.remote, THREADS * EVENTS / 2);
    assert_eq!(pairing.live.len() as u64, THREADS * EVENTS / 2);
    let mut names: Vec<_> = spool.sequences.values().flat_map(|sequence| sequence.names.clone()).collect();
    names.retain(|name| name.starts_with("worker"));
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len() as u64, THREADS, "{names:?}");
    let ended: u32 = spool.sequences.values().map(|sequence| sequence.ended).sum();
    assert_eq!(u64::from(ended), THREADS, "each thread says that it ends");
}

#[test]
fn a_thread_of_another_one_frees_its_blocks() {
    const BLOCKS: u64 = 5_000;
    let spool = record("handed-over", || {
        for number in 0..BLOCKS {
            heap::allocated_by(0x10_0000 + number * 16, 16, capture());
        }
        let free = || (0..BLOCKS).for_each(|number| heap::freeing(0x10_0000 + number * 16));
        std::thread::spawn(free).join().unwrap();
    });
    let pairing = spool.pair();
    assert_eq!((pairing.remote, pairing.live.len()), (BLOCKS, 0));
}

#[test]
fn a_large_recording_grows_in_place() {
    const EVENTS: i64 = 300_000;
    let text = "a text that takes room in the file, so that it has to grow many times".repeat(2);
    let spool = record("large", || {
        (0..EVENTS).for_each(|number| mark_value(&text, MarkValue::Integer(number)));
        flush().unwrap();
    });
    assert!(spool.segments_used > 700, "{} segments", spool.segments_used);
    let values: Vec<_> = spool.marks.iter().map(|mark| mark.value).collect();
    assert!(values.iter().copied().eq((0..EVENTS).map(MarkValue::Integer)));
}

#[test]
fn names_of_files_and_options_are_as_on_linux() {
    let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let directory = std::env::temp_dir().join(format!("记录-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let path = directory.join("%e-%p-测试.cairn");
    let mut options = Options::new(path.as_os_str().as_encoded_bytes());
    options.environment = b"CAIRN_TEST,Path";
    // SAFETY: no other thread reads the environment, as the lock is held.
    unsafe { std::env::set_var("CAIRN_TEST", "测试=1") };
    for round in 0..3 {
        start(&options).unwrap();
        assert_eq!(start(&options), Err(StartError::AlreadyStarted));
        mark_value("round", MarkValue::Integer(round));
        stop(EndReason::Stopped);
    }
    let program = std::env::current_exe().unwrap();
    let name = program.file_name().unwrap().to_str().unwrap();
    for (round, ending) in ["", ".1", ".2"].into_iter().enumerate() {
        let file = directory.join(format!("{name}-{}-测试.cairn{ending}", std::process::id()));
        let spool = Spool::open(&file);
        assert_eq!(spool.marks[0].value, MarkValue::Integer(round as i64));
        let fact =
            |name: &str| spool.facts.iter().find(|(known, _)| known == name).map(|(_, value)| &**value);
        assert_eq!(fact("system"), Some("windows"));
        assert_eq!(fact("env.CAIRN_TEST"), Some("测试=1"));
        assert!(fact("command").unwrap().contains(".exe"), "{:?}", spool.facts);
        assert!(fact("executable").unwrap().ends_with(name));
        assert!(fact("kernel").unwrap().starts_with("Windows "), "{:?}", spool.facts);
    }
    for wrong in [r"Z:\no\such\directory\x.cairn", r"\\.\pipe\x", "C:\\a\u{0}b"] {
        let result = start(&Options::new(wrong.as_bytes()));
        assert!(matches!(result, Err(StartError::Create(_) | StartError::Path)), "{wrong}: {result:?}");
    }
    let _ = std::fs::remove_dir_all(&directory);
}

#[test]
fn a_ring_in_memory_is_dumped() {
    let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let path = fresh_path("dumped");
    let mut options = Options::new(b"");
    options.keep = Keep::Last { bytes: 1 << 20, nanos: u64::MAX };
    start(&options).unwrap();
    (0..100_000).for_each(|number| mark_value("ring", MarkValue::Integer(number)));
    dump(path.as_os_str().as_encoded_bytes(), None).unwrap();
    assert!(dump(path.as_os_str().as_encoded_bytes(), None).is_err(), "a file is not overwritten");
    stop(EndReason::Stopped);
    let spool = Spool::open(&path);
    spool.check();
    std::fs::remove_file(&path).unwrap();
    let values: Vec<_> = spool.marks.iter().map(|mark| mark.value).collect();
    let first = 100_000 - values.len() as i64;
    assert!(values.iter().copied().eq((first..100_000).map(MarkValue::Integer)));
    assert_eq!(spool.overwritten, first as u64);
}

#[test]
fn last_error_and_clocks_are_the_programs() {
    let performance_nanos = || {
        let (mut count, mut frequency) = (0, 0);
        // SAFETY: both calls write one number each.
        unsafe {
            QueryPerformanceCounter(&raw mut count);
            QueryPerformanceFrequency(&raw mut frequency);
        }
        (count as u128 * 1_000_000_000 / frequency as u128) as u64
    };
    let before = performance_nanos();
    let wall = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64;
    let spool = record("clocks", || {
        // SAFETY: both functions access a word of this thread.
        unsafe { SetLastError(4711) };
        std::thread::spawn(|| mark("elsewhere")).join().unwrap();
        // SAFETY: as above.
        unsafe { SetLastError(4711) };
        for number in 0..50_000 {
            heap::allocated_by(0x10_0000 + number * 16, 16, capture());
        }
        mark("here");
        // SAFETY: as above.
        assert_eq!(unsafe { GetLastError() }, 4711);
    });
    let after = performance_nanos();
    assert!((before..=after).contains(&spool.header.start_monotonic_nanos));
    assert!(spool.header.start_wall_nanos.abs_diff(wall) < 60_000_000_000);
}

/// The path that this process records to as the child of a test; `None` in the test itself.
fn path_of_child() -> Option<PathBuf> {
    std::env::var_os("CAIRN_TEST_CHILD").map(PathBuf::from)
}

/// Runs the test of this name as a child; returns how it ended, and its recording.
fn run_child(test: &str) -> (ExitStatus, Vec<u8>) {
    let path = fresh_path(test);
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env("CAIRN_TEST_CHILD", &path);
    let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap();
    let bytes = std::fs::read(&path).unwrap();
    std::fs::remove_file(&path).expect("the process has ended");
    (status, bytes)
}

fn mark_many() {
    (0..1000).for_each(|number| mark_value("one of many", MarkValue::Integer(number)));
}

fn control_word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

#[test]
fn a_crash_loses_no_mark() {
    if let Some(path) = path_of_child() {
        start(&Options::new(path.as_os_str().as_encoded_bytes())).unwrap();
        mark_many();
        std::process::abort();
    }
    let (status, bytes) = run_child("a_crash_loses_no_mark");
    assert!(!status.success());
    assert_eq!(Spool::read(&bytes).marks.len(), 1000);
    assert_eq!(control_word(&bytes, control::EXITING), 0, "a crash is no orderly end");
}

#[test]
fn an_orderly_end_is_noted_with_its_moment() {
    if let Some(path) = path_of_child() {
        start(&Options::new(path.as_os_str().as_encoded_bytes())).unwrap();
        mark_many();
        std::process::exit(7);
    }
    let (status, bytes) = run_child("an_orderly_end_is_noted_with_its_moment");
    assert_eq!(status.code(), Some(7));
    let spool = Spool::read(&bytes);
    assert_eq!(spool.marks.len(), 1000);
    assert_eq!(control_word(&bytes, control::EXITING), 1);
    assert!(control_word(&bytes, control::EXIT_COUNTER) > spool.marks[999].counter);
    assert!(spool.modules.values().all(|module| module.unloaded.is_none()));
}
