//! `cairn decode` of Swift's JSON crash logs: fixtures/crash_logs, and what may be wrong with such
//! logs.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

const NAMED: &str = "fixtures/crash_logs/named.json";
const CRASHED: &str = "fixtures/crash_logs/crashed.json";

fn repository() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn cairn(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cairn"));
    command.current_dir(repository()).args(["decode", "--no-cache"]).args(arguments).env("NO_COLOR", "1");
    command
}

fn run(arguments: &[&str]) -> (Option<i32>, String, String) {
    texts(cairn(arguments).output().unwrap())
}

fn texts(output: Output) -> (Option<i32>, String, String) {
    let [stdout, stderr] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    (output.status.code(), stdout, stderr)
}

/// The same with this standard input.
fn fed(arguments: &[&str], input: &[u8]) -> (Option<i32>, String, String) {
    let mut command = cairn(arguments);
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || stdin.write_all(input));
        texts(child.wait_with_output().unwrap())
    })
}

fn logged(file: &str) -> Value {
    serde_json::from_slice(&std::fs::read(repository().join(file)).unwrap()).unwrap()
}

/// Returns the JSON that `--json` prints of a log.
fn decoded(log: &Value) -> (Value, String) {
    let (_, stdout, stderr) = fed(&["--json"], log.to_string().as_bytes());
    (serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{error}: {stdout}\n{stderr}")), stderr)
}

// Failed with: nothing printed, and exit code 0; with --input-format swift-json: `bad Swift JSON:
// no key "backtrace"`.
#[test]
fn the_head_of_a_crash_log_is_read() {
    for arguments in [&[NAMED][..], &["--input-format", "swift-json", NAMED]] {
        let (code, stdout, stderr) = run(arguments);
        assert_eq!(code, Some(0), "{stderr}");
        let mut lines = stdout.lines();
        assert_eq!(lines.next(), Some("Fatal error: Index out of range at 0x7f0000001234"));
        let facts = "2025-03-27T11:12:13.456789Z, linux (Ubuntu 22.04.5 LTS), x86_64";
        assert_eq!(lines.next(), Some(facts));
    }
    let (json, _) = decoded(&logged(CRASHED));
    assert_eq!(json["crash"]["timestamp"], "2025-03-28T01:02:03.000004Z");
    assert_eq!(json["crash"]["description"], "Bad pointer dereference");
    assert_eq!(json["crash"]["fault_address"], "0x4");
    assert_eq!(json["crash"]["platform"], "linux (Ubuntu 22.04.5 LTS)");
    assert_eq!(json["crash"]["architecture"], "x86_64");
    assert_eq!((&json["format"], &json["word_bits"]), (&json!("swift-json"), &json!(64)));

    for key in ["timestamp", "kind", "description", "faultAddress", "platform", "architecture"] {
        let mut log = logged(CRASHED);
        log.as_object_mut().unwrap().remove(key);
        let (code, stdout, stderr) = fed(&["--input-format", "swift-json"], log.to_string().as_bytes());
        assert_eq!(code, Some(1));
        assert!(stderr.contains(&format!("bad crash log: there is no \"{key}\"")), "{stderr}");
        assert!(stdout.contains("thread 0, crashed:"), "{stdout}");
        let (code, stdout, _) =
            fed(&["--input-format", "swift-json", "--strict"], log.to_string().as_bytes());
        assert_eq!((code, &*stdout), (Some(1), ""));
    }
    let mut other = logged(CRASHED);
    other["kind"] = json!("hangReport");
    let (code, stdout, stderr) = fed(&["--input-format", "swift-json"], other.to_string().as_bytes());
    assert_eq!((code, &*stdout), (Some(1), ""));
    assert!(stderr.contains("a report of kind \"hangReport\""), "{stderr}");
}

// Failed with: nothing printed, and exit code 0.
#[test]
fn addresses_and_data_of_a_crash_log_are_hexadecimal() {
    let frame = |log: &mut Value, address: Value| log["threads"][0]["frames"][0]["address"] = address;
    for (text, read) in [("0x10", "0x10"), ("0xFFFFFFFFFFFFFFFF", "0xffffffffffffffff")] {
        let mut log = logged(CRASHED);
        frame(&mut log, json!(text));
        log["faultAddress"] = json!(text);
        let (json, stderr) = decoded(&log);
        assert_eq!(json["crash"]["threads"][0]["frames"][0]["address"], read, "{stderr}");
        assert_eq!(json["crash"]["fault_address"], read);
        assert_eq!(json.get("faults"), None);
    }
    // A number without 0x may be decimal: it is no address.
    let wrong =
        [json!("1234"), json!("0x"), json!("0x+1"), json!("0x1ffffffffffffffff"), json!(4096), json!([])];
    for address in wrong {
        let mut log = logged(CRASHED);
        frame(&mut log, address.clone());
        log["images"][0]["baseAddress"] = address.clone();
        log["threads"][0]["registers"]["rax"] = address.clone();
        let (json, stderr) = decoded(&log);
        let frame = &json["crash"]["threads"][0]["frames"][0];
        assert_eq!((frame.get("address"), &frame["kind"]), (None, &Value::Null), "{address}");
        assert!(json["crash"]["images"][0]["base"].is_null());
        assert!(json["crash"]["threads"][0]["registers"]["rax"].is_null());
        let wanted = "is not a hexadecimal text such as \"0x1f40\"";
        for place in
            ["thread 0, frame 0: \"address\"", "image 0: \"baseAddress\"", "thread 0: register \"rax\""]
        {
            assert!(stderr.contains(&format!("bad crash log: {place} {wanted}")), "{address}: {stderr}");
        }
        assert_eq!(json["faults"].as_array().unwrap().len(), 3);
    }
    for (id, read) in
        [("0aFF", json!("0aff")), ("0x0aff", Value::Null), ("abc", Value::Null), ("gg", Value::Null)]
    {
        let mut log = logged(CRASHED);
        log["images"][0]["buildId"] = json!(id);
        let (json, stderr) = decoded(&log);
        assert_eq!(json["crash"]["images"][0]["build_id"], read);
        assert_eq!(
            read.is_null(),
            stderr.contains("\"buildId\" is not pairs of hexadecimal digits"),
            "{stderr}"
        );
    }
}

// Failed with: nothing printed, and exit code 0.
#[test]
fn each_thread_of_a_crash_log_is_a_stack() {
    let (_, stdout, _) = run(&["--no-symbols", NAMED]);
    let heads: Vec<_> = stdout.lines().filter(|line| line.starts_with("thread ")).collect();
    assert_eq!(heads, ["thread 0 \"pantry\", crashed:", "thread 1 \"worker\":", "thread 2:"]);
    assert!(stdout.contains("\n    rax=0x0 rdx=0x11 rcx=0x22 rbx=0x33\n"), "{stdout}");
    assert!(stdout.contains(" rip=0x7f0000001234 rflags=0x10246 cs=0x33"), "{stdout}");

    let log = logged(NAMED);
    let (json, _) = decoded(&log);
    let threads = json["crash"]["threads"].as_array().unwrap();
    let crashed: Vec<_> = threads.iter().map(|thread| thread["crashed"].as_bool().unwrap()).collect();
    assert_eq!(crashed, [true, false, false]);
    for (thread, logged) in threads.iter().zip(log["threads"].as_array().unwrap()) {
        assert_eq!(thread["name"], logged.get("name").cloned().unwrap_or_default());
        assert_eq!(thread["frames"].as_array().unwrap().len(), logged["frames"].as_array().unwrap().len());
        let Some(registers) = logged.get("registers") else {
            assert_eq!(thread.get("registers"), None);
            continue;
        };
        for (name, value) in registers.as_object().unwrap() {
            let number = |text: &Value| u64::from_str_radix(&text.as_str().unwrap()[2..], 16).unwrap();
            assert_eq!(number(&thread["registers"][name]), number(value), "{name}");
        }
    }

    // Each is a stack in other formats; the inlined call has no address of its own.
    let (code, stacks, stderr) = run(&["--format", "cbf", NAMED]);
    assert_eq!(code, Some(0), "{stderr}");
    let (_, back, _) = fed(&["--input-format", "cbf", "--kinds"], stacks.as_bytes());
    let back: Vec<_> = back.lines().collect();
    let innermost = "~b#pc:0x7f0000001234 ra:0x5600000011a8 ...42 async:0x560000001218 async:0x5600000015d8 \
                     async:0x7f0001004a18 ... ";
    assert_eq!(back, [innermost, "~b#pc:0x7f0000005678 ra:0x560000002000 ", "~b#pc:0x7f0000006000 "]);
    // The list of images goes with the thread that crashed.
    let (_, jsons, _) = run(&["--format", "swift-json", "--input-format", "swift-json", NAMED]);
    let with_images: Vec<_> = jsons.lines().map(|line| line.contains("imageMap")).collect();
    assert_eq!(with_images, [true, false, false]);
}

// Failed with: nothing printed, and exit code 0.
#[test]
fn every_kind_of_frame_of_a_crash_log_is_read() {
    let (json, _) = decoded(&logged(NAMED));
    let frames = json["crash"]["threads"][0]["frames"].as_array().unwrap();
    let kinds: Vec<_> = frames.iter().map(|frame| frame["kind"].as_str().unwrap()).collect();
    let [counter, address, resume] = ["program-counter", "return-address", "async-resume-point"];
    assert_eq!(kinds, [counter, counter, address, "omitted", resume, resume, resume, "truncated"]);
    assert_eq!(frames[2]["address"], "0x5600000011a8");
    assert_eq!(frames[3]["omitted"], 42);
    assert_eq!((frames[3].get("address"), frames[7].get("address")), (None, None));
    let flags = |frame: &Value| {
        ["inlined", "runtime_failure", "thunk", "system"].map(|flag| frame.get(flag) == Some(&json!(true)))
    };
    assert_eq!(flags(&frames[0]), [true, true, false, false]);
    assert_eq!(flags(&frames[1]), [false, false, false, true]);
    assert_eq!(flags(&frames[5]), [false, false, true, false]);

    let (_, stdout, _) = run(&["--no-symbols", NAMED]);
    for line in [
        "    pc:0x7f0000001234 Array.subscript.getter + 52 in libswiftCore.so [system]\n",
        "    ... 42 frames omitted ...\n    async:0x560000001218 ",
        "    ... the stack goes on, but was not recorded\n",
        " [thunk]\n",
        " [inlined] [runtime failure]\n",
    ] {
        assert!(stdout.contains(line), "{line}: {stdout}");
    }

    for (field, value, problem) in [
        ("kind", json!("returnAdress"), "\"kind\" is not one of programCounter, returnAddress, "),
        ("address", Value::Null, "\"address\" is not a hexadecimal text"),
        (
            "inlined",
            json!(1),
            "\"inlined\", \"runtimeFailure\", \"thunk\" or \"system\" is not true or false",
        ),
    ] {
        let mut log = logged(NAMED);
        log["threads"][1]["frames"][1][field] = value;
        let (code, stdout, stderr) = fed(&["--no-symbols"], log.to_string().as_bytes());
        assert_eq!(code, Some(1), "{stdout}");
        assert!(
            stderr.contains(&format!("standard input:1: bad crash log: thread 1, frame 1: {problem}")),
            "{stderr}"
        );
        assert!(stdout.contains("thread 2:\n    pc:0x7f0000006000 "), "{stdout}");
    }
    let mut log = logged(NAMED);
    log["threads"][0]["frames"][3]["count"] = json!(-1);
    let (_, stderr) = decoded(&log);
    assert!(stderr.contains("thread 0, frame 3: \"count\" is not a number of frames"), "{stderr}");
}

// Failed with: nothing printed, and exit code 0.
#[test]
fn names_in_a_crash_log_are_shown() {
    let (_, stdout, _) = run(&["--no-symbols", NAMED]);
    for line in [
        "    ra:0x5600000011a8 Pantry.take(index:) + 15 in pantry at /work/Sources/pantry/Pantry.swift:13:17\n",
        // Swift writes 0 for a column or line that it does not know.
        "    async:0x560000001218 static Main.main() in pantry at /work/Sources/pantry/Pantry.swift:22\n",
        " in pantry at //<compiler-generated> [thunk]\n",
        // Without a description, the name of the linker is made readable.
        "    async:0x7f0001004a18 swift::AsyncTask::run(int) + 7 in libswift_Concurrency.so [system]\n",
        "    ra:0x560000002000 ?? (pantry+0x2000)\n",
    ] {
        assert!(stdout.contains(line), "{line}: {stdout}");
    }
    let (json, _) = decoded(&logged(NAMED));
    let thread = |number: usize, frame: usize| &json["crash"]["threads"][number]["frames"][frame];
    let symbol = json!({
        "name": "Pantry.take(index:) + 15", "raw_name": "$s6pantry6PantryV4take5indexSSSi_tF", "offset": 15,
        "image": "pantry", "file": "/work/Sources/pantry/Pantry.swift", "line": 13, "column": 17,
    });
    assert_eq!(thread(0, 2)["symbol"], symbol);
    assert_eq!(thread(1, 0)["symbol"]["offset"], -8);
    assert_eq!(thread(1, 1).get("symbol"), None);

    // Text of a stranger does not drive the terminal.
    let evil = "a\u{1b}]0;b\u{7}\nc\u{202e}\u{9b}d";
    let mut log = logged(CRASHED);
    let location = json!({"file": evil, "line": 1, "column": 1});
    log["threads"][0]["frames"][0] = json!({
        "kind": "programCounter", "address": "0x1", "symbol": evil, "description": evil, "image": evil,
        "sourceLocation": location,
    });
    log["threads"][0]["frames"][1] = json!({"kind": evil});
    log["threads"][0]["name"] = json!(evil);
    log["threads"][0]["registers"][evil] = json!(evil);
    log["capturedMemory"] = json!({evil: evil});
    log["images"] = json!([{"name": evil, "path": evil, "baseAddress": "0x0", "endOfText": "0x9"}]);
    for key in ["timestamp", "description", "platform", "architecture"] {
        log[key] = json!(evil);
    }
    let (_, stdout, stderr) = fed(&[], log.to_string().as_bytes());
    let drives = |c: char| c != '\n' && cairn_format::changes_its_surroundings(c);
    assert!(!stdout.contains(drives), "{stdout:?}");
    assert!(!stderr.contains(drives), "{stderr:?}");
    assert!(
        !format!("{stdout}{stderr}")
            .lines()
            .any(|line| line.starts_with('c') && !line.starts_with("cairn: "))
    );
    log["threads"][0]["frames"] = json!(evil);
    let (code, _, stderr) = fed(&[], log.to_string().as_bytes());
    assert_eq!(code, Some(1));
    assert!(stderr.contains("bad crash log: invalid type: string") && !stderr.contains(drives), "{stderr:?}");
}

// Failed with: nothing printed, and exit code 0.
#[test]
fn images_of_a_crash_log_find_their_symbols() {
    let (_, stdout, stderr) = run(&[CRASHED]);
    assert!(stdout.contains("    pc:0x555500000147 ?? (dwarf5+0x147)\n"), "{stdout}");
    assert!(stdout.contains("    ra:0x7f0000001000 ??\n"), "{stdout}");
    assert!(stderr.contains("cairn: dwarf5: no symbols: "), "{stderr}");

    let named = "    pc:0x555500000147 innermost in dwarf5 at /fixture/inlined.c:5:10\n     \
                 (inlined by) middle in dwarf5 at /fixture/inlined.c:10:19\n     \
                 (inlined by) outer in dwarf5 at /fixture/inlined.c:15:17\n    \
                 ra:0x555500000158 middle in dwarf5 at /fixture/inlined.c:11:20\n     \
                 (inlined by) outer in dwarf5 at /fixture/inlined.c:15:17\n    \
                 ra:0x7f0000001000 ??\n";
    let (code, stdout, stderr) = run(&["--symbols", "fixtures/symbols/bin", CRASHED]);
    assert!(stdout.contains(named), "{stdout}");
    assert_eq!((code, &*stderr), (Some(0), ""));
    let image = "    0x0000555500000000-0x0000555500001000 3278d18a8f3f68f4ec125ed623494f1b6ac53d45 dwarf5 \
                 /work/.build/release/dwarf5\n";
    assert!(stdout.contains(image), "{stdout}");
    // The debug file of a stripped program has the same build id.
    let (_, stdout, _) = run(&["--debug-dir", "fixtures/symbols/debug", CRASHED]);
    assert!(stdout.contains(named), "{stdout}");
    let (_, stdout, _) = run(&["--json", "--symbols", "fixtures/symbols/bin", CRASHED]);
    let json: Value = serde_json::from_str(&stdout).unwrap();
    let frame = &json["crash"]["threads"][0]["frames"][1];
    assert_eq!((&frame["module"], &frame["module_offset"]), (&json!("dwarf5"), &json!("0x158")));
    assert_eq!(frame["locations"][0]["function"], "middle");
    assert_eq!(json["crash"]["images"][0]["name"], "dwarf5");

    // A file of another build names nothing.
    let mut log = logged(CRASHED);
    log["images"][0]["buildId"] = json!("6610bbc2c72178edbded41d84041ef7b5ce3691b");
    let (_, stdout, stderr) = fed(&["--symbols", "fixtures/symbols/bin"], log.to_string().as_bytes());
    assert!(stdout.contains("    pc:0x555500000147 ?? (dwarf5+0x147)\n"), "{stdout}");
    assert!(stderr.contains("dwarf5: a file was not used: "), "{stderr}");
    // Without a list of images, the executable names what lies in it.
    log["images"] = Value::Null;
    log["threads"][0]["frames"] = json!([{"kind": "programCounter", "address": "0x400147"}]);
    let (_, stdout, _) = fed(&["-e", "fixtures/symbols/bin/dwarf5"], log.to_string().as_bytes());
    assert!(stdout.contains("    pc:0x400147 innermost at /fixture/inlined.c:5:10\n"), "{stdout}");
    // A name of the log is preserved.
    let mut log = logged(CRASHED);
    log["threads"][0]["frames"][0]["symbol"] = json!("mine");
    let (_, stdout, _) = fed(&["--symbols", "fixtures/symbols/bin"], log.to_string().as_bytes());
    assert!(stdout.contains("    pc:0x555500000147 mine\n"), "{stdout}");
    // The images alone, in another format.
    let (code, map, _) = run(&["--format", "cif", CRASHED]);
    let (_, back, _) = fed(&["--input-format", "cif"], map.as_bytes());
    assert_eq!(code, Some(0));
    assert!(
        back.contains("3278d18a8f3f68f4ec125ed623494f1b6ac53d45 /work/.build/release/dwarf5\n"),
        "{back}"
    );
}

// Failed with: nothing printed, and exit code 0.
#[test]
fn memory_of_a_crash_log_is_shown() {
    let (_, stdout, _) = run(&["--no-symbols", NAMED]);
    let memory = "\nmemory:\n    0x7f0000001234 0f 0b 48 83 ec 08\n    \
                  0x7ffc00001040 00 10 20 00 00 00 00 00 00 00 00 00 00 00 00 80\n";
    assert!(stdout.contains(memory), "{stdout}");
    let mut log = logged(NAMED);
    let memory = log["capturedMemory"].as_object_mut().unwrap();
    memory.insert("1234".into(), json!("00"));
    memory.insert("0x10".into(), json!("0x00"));
    let (json, stderr) = decoded(&log);
    let pieces = json["crash"]["memory"].as_array().unwrap();
    assert_eq!(pieces.len(), 2);
    assert_eq!(pieces[0], json!({"address": "0x7f0000001234", "bytes": "0f0b4883ec08"}));
    assert!(stderr.contains("2 entries of \"capturedMemory\" are not an address with 0x"), "{stderr}");
}

// Failed with: nothing printed, and exit code 0.
#[test]
fn omissions_of_a_crash_log_are_shown() {
    let (_, stdout, _) = run(&[CRASHED]);
    for line in ["\n3 threads omitted\n", "\n12 images omitted\n", "\nwritten in 0.000019 s\n"] {
        assert!(stdout.contains(line), "{line}: {stdout}");
    }
    let (json, _) = decoded(&logged(CRASHED));
    assert_eq!(
        (&json["crash"]["omitted_threads"], &json["crash"]["omitted_images"]),
        (&json!(3), &json!(12))
    );
    assert_eq!(json["crash"]["backtrace_seconds"], 1.9e-5);
    let (_, stdout, _) = run(&["--no-symbols", NAMED]);
    assert!(!stdout.contains("threads omitted") && !stdout.contains("images omitted"), "{stdout}");
    assert!(stdout.contains("\nwritten in 0.001930083"), "{stdout}");
    let mut log = logged(CRASHED);
    (log["omittedThreads"], log["omittedImages"]) = (json!("3"), json!(-1));
    let (_, stderr) = decoded(&log);
    assert!(stderr.contains("\"omittedThreads\" is not a number of threads"), "{stderr}");
    assert!(stderr.contains("\"omittedImages\" is not a number of images"), "{stderr}");
}

// Failed with: nothing printed of the logs.
#[test]
fn crash_logs_are_found_between_other_lines() {
    let log = logged(CRASHED);
    let pretty = serde_json::to_string_pretty(&log).unwrap();
    // On one line; on many, behind a line that begins an object; and without an end. Between them,
    // lines that begin alike.
    let text = format!(
        "boot\n{log}\n{{\"timestamp\": \"now\", \"message\": \"~m#IF0BmUQugNCkgCnkhdAYpQa6wAAV\"}}\n{{\n{pretty}\n\
         {{\n  \"timestamp\": 1,\nvoid\n0x1000 0x2000\n{}\n~b#0x3000\n",
        &pretty[..pretty.len() - 40]
    );
    let (code, stdout, stderr) = fed(&[], text.as_bytes());
    assert_eq!(code, Some(1));
    // The `{` in front of the second one is not part of it.
    let heads = stdout.lines().filter(|line| line.starts_with("Bad pointer dereference"));
    assert_eq!(heads.count(), 2, "{stdout}");
    for line in
        ["~b#size: 7520, 0x406651 0x406852 0x406c1b 0x406294 \n", "~b#0x1000 0x2000 \n", "~b#0x3000 \n"]
    {
        assert!(stdout.contains(line), "{line}: {stdout}");
    }
    let lines = text.lines().count() - 1;
    assert!(stderr.contains(&format!("standard input:{lines}: bad crash log: ")), "{lines}: {stderr}");
    // With --keep, other lines are as they were.
    let (_, stdout, _) = fed(&["--keep"], b"{\n  \"timestamp\": 1\n}\r\n{\n\nint x;\n{\"kind\": \n");
    assert_eq!(stdout, "{\n  \"timestamp\": 1\n}\r\n{\n\nint x;\n{\"kind\": \n");
    // A log that was cut off does not hide the one behind it.
    let (cut, _) = pretty.split_at(pretty.find("crashReport").unwrap() + 30);
    let (code, stdout, stderr) = fed(&[], format!("{cut}\n{log}\n").as_bytes());
    assert_eq!((code, stdout.matches("Bad pointer").count()), (Some(1), 1), "{stderr}");
    assert!(stderr.contains("bad crash log: "), "{stderr}");
    // A log that was cut off, as a whole input.
    let cut = &log.to_string()[..600];
    for arguments in [&[][..], &["--input-format", "swift-json"]] {
        let (code, stdout, stderr) = fed(arguments, cut.as_bytes());
        assert_eq!((code, &*stdout), (Some(1), ""));
        assert!(stderr.contains("bad crash log: EOF while parsing"), "{stderr}");
    }
}

// Failed with: nothing printed, and exit code 0.
#[test]
fn a_backtrace_in_json_may_have_several_lines() {
    let json = b"{\n  \"architecture\": \"arm\",\n  \"backtrace\": \"ASpAZlEhAgEhA8kh9nkA\"\n}\n";
    let (code, stdout, stderr) = fed(&[], json);
    assert_eq!((code, &*stdout, &*stderr), (Some(0), "~b#0x406651 0x406852 0x406c1b 0x406294 \n", ""));
}

// Failed with: nothing printed, and exit code 0; now 60 MiB of them take at most 492 MiB.
#[cfg(target_os = "linux")]
#[test]
fn large_crash_logs_are_read_in_bounded_memory() {
    // The texts of these elements are as short as they can be.
    let many = |element: &str| vec![element; (4 << 20) / (element.len() + 1)].join(",");
    let head = "{\"kind\":\"crashReport\",\"threads\":[";
    let logs = [
        format!("{head}{{\"frames\":[{}]}}]}}", many("{\"kind\":0}")),
        format!("{head}{}]}}", many("{\"frames\":[]}")),
        format!("{head}],\"images\":[{}]}}", many("{\"baseAddress\":0,\"endOfText\":0}")),
        format!("{head}{{\"frames\":[],\"registers\":{{{}}}}}]}}", many("\"\":0")),
        format!("{head}],\"capturedMemory\":{{{}}}}}", many("\"0x0\":\"\"")),
        format!("{{{}", "\n".repeat(4 << 20)),
    ];
    for log in &logs {
        for arguments in ["cairn decode --input-format swift-json --json", "cairn decode"] {
            // The program itself uses a part of 256 MiB.
            let line = format!("ulimit -v 262144; exec {}", arguments.replacen("cairn", "\"$0\"", 1));
            let mut command = Command::new("sh");
            command.args(["-c", &line, env!("CARGO_BIN_EXE_cairn")]).stdout(Stdio::null());
            let mut child = command.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
            let mut stdin = child.stdin.take().unwrap();
            let output = std::thread::scope(|scope| {
                scope.spawn(move || stdin.write_all(log.as_bytes()));
                child.wait_with_output().unwrap()
            });
            let errors = String::from_utf8_lossy(&output.stderr);
            let expected = i32::from(log.contains("kind") || arguments.contains("swift-json"));
            assert_eq!(output.status.code(), Some(expected), "{arguments} {:.60}: {errors}", log);
        }
    }
}
