//! Contents of a recording, read back with the format's own readers.

mod support;

use cairn_recorder::{EndReason, MarkValue, Options, heap, mark, mark_value, start, stop};
use support::{Spool, fresh_path};

/// Everything in one test: the recorder is one for the process.
#[test]
fn spool_holds_marks_and_heap_events() {
    let path = fresh_path("spool");
    let mut options = Options::new(path.as_os_str().as_encoded_bytes());
    options.environment = b"PATH,NO_SUCH_VARIABLE";
    start(&options).unwrap();
    assert_eq!(start(&options), Err(cairn_recorder::StartError::AlreadyStarted));
    mark("first");
    mark_value("second", MarkValue::Float(1.5));
    let block = Box::new([1_u8; 50]);
    let address = block.as_ptr() as u64;
    heap::allocated_by(address, 50, cairn_capture::capture());
    let moving = heap::moving(address);
    heap::moved_by(moving, address, 60, cairn_capture::capture());
    heap::freeing(address);
    heap::freeing(address);
    stop(EndReason::Stopped);
    mark("after the end");

    let spool = Spool::open(&path);
    assert_eq!(spool.check(), 7, "{spool:#?}");
    assert_eq!(spool.ends, 1);
    assert_eq!(spool.lost_events, 0);
    let texts: Vec<&str> = spool.marks.iter().map(|mark| mark.text.as_str()).collect();
    assert_eq!(texts, ["first", "second"]);
    assert_eq!(spool.marks[1].value, MarkValue::Float(1.5));
    let pairing = spool.pair();
    assert_eq!(
        (pairing.local, pairing.remote, pairing.unmatched),
        (2, 0, 1),
        "the second free is of no known block"
    );
    assert!(pairing.live.is_empty());
    // The innermost frame is in this program, and the modules are those of this process.
    let own = spool_holds_marks_and_heap_events as *const () as u64;
    let innermost = spool.stack(spool.marks[0].stack)[0];
    let module = &spool.modules[&innermost.2];
    assert!(innermost.1 > own && (module.start..module.end).contains(&own), "{module:x?}");
    assert_eq!(std::path::Path::new(&module.path), std::env::current_exe().unwrap());
    assert!(!module.build_id.is_empty());
    let has = |part: &str| spool.modules.values().any(|module| module.path.contains(part));
    assert!(
        if cfg!(windows) { has("ntdll.dll") && has("kernel32.dll") } else { has("libc.so") && has("vdso") },
        "{:?}",
        spool.modules.values().map(|m| &m.path).collect::<Vec<_>>()
    );
    let fact =
        |name: &str| spool.facts.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone());
    assert_eq!(fact("env.PATH"), std::env::var("PATH").ok());
    assert_eq!(fact("env.NO_SUCH_VARIABLE"), None);
    assert_eq!(fact("executable").unwrap(), std::env::current_exe().unwrap().to_str().unwrap());
    assert_eq!(fact("cairn").unwrap(), env!("CARGO_PKG_VERSION"));
    let words: Vec<String> = std::env::args().collect();
    // Windows stores the line as it was typed, in which the program has quotation marks.
    let command = fact("command").unwrap().replace('"', "");
    assert_eq!(command, words.join(" "));
    let build_id: String = module.build_id.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(fact("executable.build_id"), Some(build_id));

    // A second recording of the same process, in a file of the next name: stacks that are known
    // already are in it too.
    start(&options).unwrap();
    mark_value("again", MarkValue::Integer(7));
    stop(EndReason::Stopped);
    let second = format!("{}.1", path.display());
    let again = Spool::open(std::path::Path::new(&second));
    assert_eq!(again.check(), 1);
    assert_eq!(again.marks[0].value, MarkValue::Integer(7));
    assert_eq!(Spool::open(&path).check(), 7, "the first one is as it was");
    for file in [path.as_path(), second.as_ref()] {
        // Windows removes no file that a process has mapped.
        assert!(std::fs::remove_file(file).is_ok() || cfg!(windows));
    }
}
