//! Broken files, and files that attack their readers.

use std::io::Read;

use cairn_analysis::heap::{Scope, Sums};
use cairn_exchange::import::{Imported, ImportedSums, Kind};
use cairn_exchange::{ExchangeError, Target};

use crate::spool::Random;
use crate::subject::{export, recorded};

fn read(bytes: &[u8]) -> Result<ImportedSums, ExchangeError> {
    Imported::from_bytes(bytes.to_vec())?.read(&Scope::default())
}

/// Checks that an error states the position, or that the file is of another kind.
fn check(bytes: &[u8]) {
    match read(bytes) {
        Ok(_) | Err(ExchangeError::Unknown | ExchangeError::NoHeap { .. }) => {}
        Err(ExchangeError::Malformed { place, .. }) => {
            let places = ["byte ", "line ", "before byte ", "threads[", "shared.", "meta"];
            assert!(places.iter().any(|start| place.starts_with(start)), "{place}");
        }
        Err(error) => panic!("{error}: {bytes:?}"),
    }
}

/// Returns a small file of each format, as written and without compression.
fn files() -> Vec<Vec<u8>> {
    let shape: Vec<(usize, usize)> = (0..12).map(|index| (index / 2, index)).collect();
    let events: Vec<(usize, u64, u32)> =
        (0..30).map(|index| (index * 7, if index % 3 == 2 { 0 } else { 8 << (index % 5) }, 0)).collect();
    let heap = recorded(&shape, &events);
    let (pprof, heaptrack) = (export(Target::Pprof, &heap), export(Target::Heaptrack, &heap));
    let mut plain_pprof = Vec::new();
    flate2::read::GzDecoder::new(&pprof[..]).read_to_end(&mut plain_pprof).unwrap();
    let plain_heaptrack = zstd::decode_all(&heaptrack[..]).unwrap();
    let files = vec![plain_pprof, plain_heaptrack, pprof, heaptrack, export(Target::Firefox, &heap)];
    for file in &files {
        assert!(read(file).unwrap().sums.totals.allocations > 15);
    }
    files
}

#[test]
fn truncated_files_give_results_or_positions() {
    for file in files() {
        (0..file.len()).for_each(|end| check(&file[..end]));
    }
}

#[test]
fn damaged_files_give_results_or_positions() {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for file in files() {
        for _ in 0..2000 {
            let mut bytes = file.clone();
            for _ in 0..=random.below(3) {
                let at = random.below(bytes.len() as u64) as usize;
                match random.below(4) {
                    0 => bytes[at] = random.next() as u8,
                    1 => bytes[at] ^= 1 << random.below(8),
                    2 => drop(bytes.remove(at)),
                    _ => bytes.insert(at, random.next() as u8),
                }
            }
            check(&bytes);
        }
    }
}

fn error_of(text: &str) -> String {
    read(text.as_bytes()).map(|read| read.sums.totals).unwrap_err().to_string()
}

#[test]
fn heaptrack_errors_state_the_line() {
    let cases = [
        ("v 10400 2\n", "line 1: version 2 of the format"),
        ("v \n", "line 1: a heaptrack file begins with its version"),
        ("v 1 3\ns 5 abc\n", "line 2: a text of 3 bytes, where 5 are announced"),
        ("v 1 3\ni 10 1\n", "line 2: text 1, where there are 0"),
        ("v 1 3\nt 1 0\n", "line 2: place 1, where there are 0"),
        ("v 1 3\ni 10 0\nt 1 1\n", "line 3: stack 1, where there are 0"),
        ("v 1 3\ni 10 0\nt 0 0\n", "line 3: a stack without a place"),
        ("v 1 3\na 10 1\n", "line 2: stack 1, where there are 0"),
        ("v 1 3\n+ 0\n", "line 2: class 0, where there are 0"),
        ("v 1 3\na 10 0\n+ x\n", "line 3: \"x\" is no hexadecimal number"),
        ("v 1 3\na 10 0\n-\n", "line 3: a class is missing"),
        ("v 1 3\nc ffffffffffffffff\n", "are no time"),
    ];
    for (text, problem) in cases {
        let error = error_of(text);
        assert!(error.contains(problem), "{text:?}: {error}");
    }
}

#[test]
fn heaptrack_incomplete_last_line_is_ignored() {
    let read = read(b"v 1 3\na ffffffffffffffff 0\n+ 0\n+ 0\n- 0\n- 0\n- 0\n+ 0\n+ ").unwrap();
    assert_eq!((read.sums.totals.allocations, read.sums.totals.live_blocks), (3, 1));
    assert_eq!(read.unmatched_frees, 1);
}

/// Encodes a field of a message: its number and its content.
fn field(tag: u8, content: &[u8]) -> Vec<u8> {
    assert!(content.len() < 128);
    [&[tag << 3 | 2, content.len() as u8], content].concat()
}

#[test]
fn pprof_errors_state_the_byte() {
    let kind = field(1, &[8, 1, 16, 2]);
    let texts = [field(6, b""), field(6, b"inuse_space"), field(6, b"bytes")].concat();
    let sound = [&kind[..], &texts].concat();
    assert_eq!(read(&sound).unwrap().sums.totals.allocations, 0);
    let at = sound.len();
    let cases: [(Vec<u8>, String); 7] = [
        (field(4, &[]), format!("byte {at}: a location without an id")),
        (
            [field(4, &[8, 1]), field(4, &[8, 1])].concat(),
            format!("byte {}: location 1 for the second time", at + 4),
        ),
        (field(2, &[8, 7, 16, 1]), format!("byte {at}: a sample at location 7, which is not there")),
        (field(2, &[16, 1, 16, 1]), format!("byte {at}: a sample of 2 values, where each has 1")),
        (vec![0x12, 0x7f], format!("byte {at}: a field that is longer than the file")),
        (vec![0x0b], format!("byte {at}: a field of a kind that the format does not have")),
        (field(3, &[8]), format!("byte {at}: mapping: ")),
    ];
    for (more, problem) in cases {
        let error = read(&[&sound[..], &more].concat()).map(|read| read.sums.totals).unwrap_err().to_string();
        assert!(error.contains(&problem), "{error}, not {problem}");
    }
    let cpu = [field(1, &[8, 1, 16, 1]), field(6, b""), field(6, b"cpu")].concat();
    assert!(matches!(read(&cpu), Err(ExchangeError::NoHeap { counts, .. }) if counts == "cpu"));
}

/// Builds a processed profile with four allocations and a free, two in `main`, with replaced parts.
fn firefox(replaced: &[(&str, &str)]) -> String {
    let mut text = r#"{"meta":{"preprocessedProfileVersion":48,"startTime":1700000000000,"product":"app"},
"threads":[{"name":"GeckoMain","pid":"7","tid":70,
"stringArray":["main","load","src/a.c","libc.so.6"],
"stackTable":{"frame":[0,1],"prefix":[null,0],"length":2},
"frameTable":{"func":[0,1],"line":[10,null],"length":2},
"funcTable":{"name":[0,1],"fileName":[2,null],"resource":[-1,0],"length":2},
"resourceTable":{"name":[3],"length":1},
"samples":{"stack":[0],"time":[1],"weight":null,"weightType":"samples","length":1},
"nativeAllocations":{"time":[1,2,3,4,5],"stack":[0,1,1,0,null],"weight":[100,10,1,0,-10],"memoryAddress":[16,32,48,64,32],"length":5}}]}"#
        .to_owned();
    for (old, new) in replaced {
        assert!(text.contains(old), "{old}");
        text = text.replace(old, new);
    }
    text
}

#[test]
fn firefox_errors_state_the_position() {
    let sound = read(firefox(&[]).as_bytes()).unwrap();
    let Sums { allocations, allocated_bytes, live_bytes, live_blocks, .. } = sound.sums.totals;
    assert_eq!((allocations, allocated_bytes, live_bytes, live_blocks), (4, 111, 101, 3));
    let cases: &[(&[(&str, &str)], &str)] = &[
        (&[("48,", "48,]")], "line 1, column "),
        (&[("\"length\":5}}]}", "\"length\":5}}]} more")], "line 9, column "),
        (&[("[null,0]", "[null,\"0\"]")], "line 4, column "),
        (&[("\"preprocessedProfileVersion\":48,", "")], "meta: it has no preprocessedProfileVersion"),
        (
            &[("[null,0]", "[null,1]")],
            "threads[0].stackTable.prefix[1]: a caller that does not precede its callee",
        ),
        (
            &[("[0,1,1,0,null]", "[0,1,9,0,null]")],
            "threads[0].stackTable.prefix[9]: stack 9, where there are 2",
        ),
        (&[("\"frame\":[0,1]", "\"frame\":[0,7]")], "threads[0].frameTable.func[7]: no function for frame 7"),
        (
            &[("\"frame\":[0,1]", "\"frame\":[0,null]")],
            "threads[0].stackTable.frame[1]: a stack without a frame",
        ),
        (&[("\"func\":[0,1]", "\"func\":[0,5]")], "threads[0].funcTable.name[5]: no name for function 5"),
        (&[("[1,2,3,4,5]", "[1,2,3,4,1e30]")], "threads[0].nativeAllocations.time[4]: "),
        (&[("[100,10,", "[1e300,10,")], "threads[0].nativeAllocations.weight[0]: "),
        (
            &[("\"weight\":[100,10,1,0,-10],", "")],
            "threads[0].nativeAllocations: allocations without weights",
        ),
    ];
    for (replaced, problem) in cases {
        let error = error_of(&firefox(replaced));
        assert!(error.contains(problem), "{error}, not {problem}");
    }
    let no_heap = read(firefox(&[("nativeAllocations", "otherAllocations")]).as_bytes());
    assert!(matches!(no_heap, Err(ExchangeError::NoHeap { .. })), "{no_heap:?}");
}

#[test]
fn firefox_versions_are_all_read() {
    // Newer versions have tables shared by all threads, and a table of files.
    let newer = firefox(&[
        ("\n\"threads\":[{", "\"shared\":{"),
        ("\"name\":\"GeckoMain\",\"pid\":\"7\",\"tid\":70,", ""),
        ("\"fileName\":[2,null]", "\"source\":[0,null]"),
        (
            "\"resourceTable\":{\"name\":[3],\"length\":1},\n",
            "\"resourceTable\":{\"name\":[3],\"length\":1},\"sources\":{\"filename\":[2]}},\n\"threads\":[{",
        ),
    ]);
    // The newest versions have bits for set columns, and callers by distance.
    let newest = newer
        .replace("\"prefix\":[null,0]", "\"prefixOffset\":[0,1]")
        .replace(
            "\"source\":[0,null],\"resource\":[-1,0]",
            "\"source\":[0,0],\"resource\":[0,0],\"flags\":[8,4]",
        )
        .replace("Version\":48", "Version\":75");
    assert!(newest.contains("prefixOffset") && newest.contains("flags"));
    for text in [newer, newest.clone()] {
        let profile = Imported::from_bytes(text.into_bytes()).unwrap();
        let functions: Vec<_> = profile
            .profile()
            .functions
            .iter()
            .map(|function| (&*function.name, function.file.as_deref()))
            .collect();
        assert_eq!(functions, [("main", Some("src/a.c")), ("load", None)]);
        assert_eq!(profile.profile().modules[0].name(), "libc.so.6");
        assert_eq!(profile.profile().modules.len(), 1);
        assert_eq!(
            profile.profile().stacks.iter().map(|stack| stack.caller).collect::<Vec<_>>(),
            [None, Some(0)]
        );
        assert_eq!(profile.read(&Scope::default()).unwrap().sums.totals.live_bytes, 101);
    }
    let error = error_of(&newest.replace("Version\":75", "Version\":76"));
    assert!(error.contains("meta.preprocessedProfileVersion: version 76"), "{error}");
    let error = error_of(
        &newest
            .replace("[0,1],\"length\":2}", "[0,2],\"length\":2}")
            .replace("Offset\":[0,1]", "Offset\":[0,2]"),
    );
    assert!(error.contains("shared.stackTable.prefix[1]"), "{error}");

    // Without addresses, frees cannot be matched; nor in scripts, nor in samples weighted by bytes.
    let no_addresses = firefox(&[("\"memoryAddress\":[16,32,48,64,32],", "")]);
    let scripts = firefox(&[("nativeAllocations", "jsAllocations")]);
    let samples = firefox(&[
        ("nativeAllocations", "other"),
        ("\"weight\":null,\"weightType\":\"samples\"", "\"weight\":[111],\"weightType\":\"bytes\""),
    ]);
    for (file, allocations) in [(no_addresses, 4), (scripts, 4), (samples, 1)] {
        let file = Imported::from_bytes(file.into_bytes()).unwrap();
        let Sums { allocations: count, allocated_bytes, live_bytes, peak_bytes, .. } =
            file.read(&Scope::default()).unwrap().sums.totals;
        assert_eq!((count, allocated_bytes, live_bytes, peak_bytes), (allocations, 111, 0, 0));
        assert!(file.notes()[0].contains("no frees"), "{:?}", file.notes());
    }
}

#[test]
fn firefox_free_on_another_thread_is_matched() {
    let change = |pid: &str, weight: i32, time: u32| {
        format!(
            r#"{{"name":"t{time}","pid":{pid},"tid":"{time}","nativeAllocations":{{"time":[{time}],"stack":[null],"weight":[{weight}],"memoryAddress":[16]}}}}"#
        )
    };
    let file = |threads: [String; 3]| {
        let text =
            format!(r#"{{"meta":{{"preprocessedProfileVersion":48}},"threads":[{}]}}"#, threads.join(","));
        Imported::from_bytes(text.into_bytes()).unwrap()
    };
    let one = file([change("1", 100, 1), change("1", -100, 3), change("2", 10, 2)]);
    let read = one.read(&Scope::default()).unwrap();
    assert_eq!(
        (read.sums.totals.live_bytes, read.sums.totals.peak_bytes, read.unmatched_frees),
        (10, 110, 0)
    );
    assert_eq!(one.threads().iter().map(|thread| thread.kernel_thread).collect::<Vec<_>>(), [1, 3, 2]);
    let of_thread = one.read(&Scope { threads: Some(vec![2]), ..Scope::default() }).unwrap();
    assert_eq!(of_thread.sums.totals.allocated_bytes, 10);
    let two = file([change("1", 100, 1), change("2", -100, 3), change("1", 10, 2)]);
    let read = two.read(&Scope::default()).unwrap();
    // Another allocation at the same address: the first block was freed without a record.
    assert_eq!((read.sums.totals.live_bytes, read.unmatched_frees), (10, 1));
}

#[test]
fn tracker_stacks_count_as_allocations() {
    let vectors = include_str!("../../../../fixtures/vectors/module_recording.json");
    let vectors: serde_json::Value = serde_json::from_str(vectors).unwrap();
    let mut with_stacks = 0;
    for case in vectors["cases"].as_array().unwrap() {
        let digits = case["recording_hex"].as_str().unwrap();
        let bytes: Vec<u8> = (0..digits.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap())
            .collect();
        let stacks = case["stacks"].as_array().unwrap().len() as u64;
        match Imported::from_bytes(bytes) {
            Ok(file) => {
                assert_eq!(file.kind(), Kind::Tracker);
                let totals = file.read(&Scope::default()).unwrap().sums.totals;
                assert_eq!((totals.allocations, totals.allocated_bytes), (stacks, 0), "{}", case["id"]);
                assert_eq!(file.findings().is_empty(), case["error"].is_null(), "{}", case["id"]);
                assert!(file.notes()[0].contains("neither sizes nor frees"));
                with_stacks += 1;
            }
            Err(
                error @ (ExchangeError::NoHeap { .. }
                | ExchangeError::Malformed { .. }
                | ExchangeError::Unknown),
            ) => {
                assert_eq!(stacks, 0, "{}: {error}", case["id"]);
            }
            Err(error) => panic!("{}: {error}", case["id"]),
        }
    }
    assert!(with_stacks > 15, "{with_stacks}");
    // A module was loaded and unloaded, without any stack.
    let mut module = [&[0][..], &1_700_000_000_000_000_000_u64.to_le_bytes(), &[1, 0, b'C', 0]].concat();
    module.extend([0; 12]);
    assert!(
        matches!(Imported::from_bytes(module), Err(ExchangeError::NoHeap { counts, .. }) if counts.contains("no stacks"))
    );
}

#[test]
fn unknown_formats_are_refused() {
    for bytes in
        [&b""[..], b"hello, world\n", b"{\"nodes\":{}}", b"\x7fELF\x02\x01\x01", b"\n\n\n", &[0; 100]]
    {
        assert!(matches!(read(bytes), Err(ExchangeError::Unknown)), "{bytes:?}");
    }
}

#[test]
fn pipes_and_directories_are_refused() {
    let directory = std::env::temp_dir();
    assert!(matches!(Imported::open(&directory), Err(ExchangeError::NoFile)));
    assert!(matches!(Imported::open(&directory.join("no-such-file")), Err(ExchangeError::Io { .. })));
}
