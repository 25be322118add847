//! `cairn top` in a terminal, as a user runs it: keys go in, and the screen is checked; and its
//! tables without a terminal.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

#[allow(dead_code, reason = "it serves other tests too")]
mod support;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cairn_analysis::heap::{HeapRecording, Scope};
use cairn_recording::Recording;
use support::{cairn, compile, run, scratch, wait_for};

/// Only what never comes takes so long, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(300);

/// A program under `cairn heap`. Both are ended with it.
struct Recorded {
    command: Child,
    path: PathBuf,
    process: String,
}

impl Recorded {
    fn start(directory: &Path, program: &Path, arguments: &[&str]) -> Self {
        let mut command = cairn();
        command.args(["heap", "--quiet", "--output", "it.cairn", "--"]).arg(program).args(arguments);
        // It ends at the end of its input, which nobody closes.
        let command =
            command.current_dir(directory).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let path = directory.join("it.cairn");
        let packed = directory.join("it.cairn.new");
        wait_for("recording", || packed.exists().then_some(()));
        let process = wait_for("process", || Some(Recording::open(&path).ok()?.header().process.to_string()));
        Self { command, path, process }
    }

    /// Lets the program come to its end.
    fn end(&mut self) {
        drop(self.command.stdin.take());
        self.command.wait().unwrap();
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        let _ = Command::new("kill").args(["-9", &self.process]).stderr(Stdio::null()).status();
        let _ = self.command.wait();
    }
}

fn size(value: u16) -> NonZero<u16> {
    NonZero::new(value).unwrap()
}

/// `cairn top` in a terminal of its own.
struct Terminal {
    script: Child,
    keys: Option<ChildStdin>,
    screen: Arc<Mutex<vt100::Parser>>,
    directory: PathBuf,
}

impl Terminal {
    fn start(directory: &Path, (lines, columns): (u16, u16), arguments: &[&str]) -> Self {
        let quoted: Vec<String> = arguments.iter().map(|word| format!("'{word}'")).collect();
        let line = format!(
            "stty rows {lines} cols {columns}; tty > tty; echo $$ > pid; exec '{}' top {}",
            env!("CARGO_BIN_EXE_cairn"),
            quoted.join(" ")
        );
        let _ = fs::remove_file(directory.join("pid"));
        let mut script = Command::new("script")
            .args(["-qfec", &line, "/dev/null"])
            .current_dir(directory)
            .env("TERM", "xterm-256color")
            .env("SHELL", "/bin/sh")
            .env_remove("COLUMNS")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let screen = Arc::new(Mutex::new(vt100::Parser::new(size(lines), size(columns), 0)));
        let mut output = script.stdout.take().unwrap();
        let parser = Arc::clone(&screen);
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = output.read(&mut bytes) {
                parser.lock().unwrap().process(&bytes[..count]);
            }
        });
        Self { keys: script.stdin.take(), script, screen, directory: directory.to_owned() }
    }

    fn press(&mut self, keys: &str) {
        self.keys.as_mut().unwrap().write_all(keys.as_bytes()).unwrap();
        self.keys.as_mut().unwrap().flush().unwrap();
    }

    fn text(&self) -> String {
        self.screen.lock().unwrap().screen().contents()
    }

    /// Waits until the screen shows all of this.
    fn expect(&self, all: &[&str]) -> String {
        let began = Instant::now();
        loop {
            let text = self.text();
            if all.iter().all(|part| text.contains(part)) {
                return text;
            }
            assert!(began.elapsed() < PATIENCE, "not all of {all:?} in\n{text}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until the heading is there, and one line above another.
    fn expect_in_order(&self, heading: &str, names: [&str; 2]) {
        wait_for(&format!("{names:?} in this order below {heading}"), || {
            let text = self.text();
            let places = names.map(|name| text.lines().position(|line| line.contains(name)));
            let is_in_order = matches!(places, [Some(first), Some(second)] if first < second);
            (is_in_order && text.contains(heading)).then_some(())
        });
    }

    /// Waits until it shows this no more.
    fn expect_without(&self, part: &str) -> String {
        wait_for(&format!("screen without {part:?}"), || {
            Some(self.text()).filter(|text| !text.contains(part))
        })
    }

    fn resize(&self, lines: u16, columns: u16) {
        let tty = fs::read_to_string(self.directory.join("tty")).unwrap();
        self.screen.lock().unwrap().screen_mut().set_size(size(lines), size(columns));
        let (lines, columns) = (lines.to_string(), columns.to_string());
        let status = Command::new("stty").args(["-F", tty.trim(), "rows", &lines, "cols", &columns]).status();
        assert!(status.unwrap().success());
    }

    fn is_on_own_screen(&self) -> bool {
        self.screen.lock().unwrap().screen().alternate_screen()
    }

    /// Waits for its end, and checks that the terminal is restored; returns the exit status.
    fn end(mut self) -> i32 {
        let status = wait_for("end", || self.script.try_wait().unwrap());
        wait_for("screen that was there before", || (!self.is_on_own_screen()).then_some(()));
        assert!(!self.screen.lock().unwrap().screen().hide_cursor());
        status.code().unwrap()
    }

    fn signal(&self, signal: &str) {
        let process = wait_for("process", || {
            fs::read_to_string(self.directory.join("pid")).ok().filter(|text| text.ends_with('\n'))
        });
        assert!(Command::new("kill").args([signal, process.trim()]).status().unwrap().success());
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.script.kill();
        let _ = self.script.wait();
    }
}

const HOSTILE: &str = "\u{1b}]0;owned\u{7}\u{1b}[2Jprogram";

#[test]
fn a_program_is_watched_in_a_terminal() {
    let directory = scratch("top-keys");
    // The name of the module, and of the threads, are what the program wants them to be.
    let program = compile(&directory, "live.c", HOSTILE, &[]);
    let mut recorded = Recorded::start(&directory, &program, &["3", "600000"]);
    let mut top = Terminal::start(&directory, (30, 130), &[&recorded.process, "--interval", "200ms"]);
    let text =
        top.expect(&["grows_for_ever", "is_freed_by_others", "allocations/s", "RSS", "recording", "▼LIVE"]);
    assert!(top.is_on_own_screen());
    assert!(text.contains(r"[\u{1b}]0;owned\u{7}\u{1b}[2Jprogram]"), "{text}");
    assert!(text.contains("threads 4"), "{text}");

    top.press("\t");
    top.expect(&["LINE", "live.c:"]);
    top.press("3");
    top.expect(&["STACK", "grows_for_ever ← work"]);
    top.press("5");
    top.expect(&["THREAD", r"\u{1b}[2Jworker"]);
    top.press("1");
    top.expect(&["FUNCTION"]);

    top.press("/comes");
    top.expect(&["search: comes_", "comes_and_goes"]);
    top.expect_without("grows_for_ever");
    top.press("\r");
    top.expect(&["only what has \"comes\" in it"]);
    top.press("\u{1b}");
    top.expect(&["grows_for_ever"]);

    // Sorted by name, the first rows differ; then in reverse order. The rows come a moment after
    // the heading.
    top.press("n");
    top.expect_in_order("▼FUNCTION", ["comes_and_goes", "grows_for_ever"]);
    top.press("r");
    top.expect_in_order("▲FUNCTION", ["grows_for_ever", "comes_and_goes"]);
    top.press("l");
    top.expect_in_order("▼LIVE", ["grows_for_ever", "is_freed_by_others"]);

    top.press("\r");
    top.expect(&["grows_for_ever  live.c:", "work  live.c:", "since zero"]);
    top.press("\r");
    top.expect(&["▼LIVE"]);
    top.press("0");
    top.expect(&["growth is counted from"]);
    top.press("p");
    top.expect(&["recording, held"]);
    top.press("p");
    top.expect_without("held");
    top.press("?");
    top.expect(&["put a mark into the recording"]);
    top.press("?");

    top.press("m");
    top.expect(&["text of the mark: _"]);
    top.press("warmed up\r");
    top.expect(&["marked: warmed up"]);
    top.press("x");
    top.expect(&["recording stopped"]);
    top.press("s");
    top.expect_without("recording stopped");

    for (lines, columns, shown) in [(5, 20, "cairn top needs"), (12, 40, "grows"), (50, 300, "TEMPORARY")] {
        top.resize(lines, columns);
        top.expect(&[shown]);
    }
    top.press("q");
    assert_eq!(top.end(), 0);

    let _ = Command::new("kill").args(["-9", &recorded.process]).status();
    recorded.end();
    let heap = HeapRecording::new(Recording::open(&recorded.path).unwrap());
    let read = heap.read(Scope::default()).unwrap();
    assert!(read.marks.iter().any(|mark| mark.text == "warmed up"), "{:?}", read.marks);
}

#[test]
fn top_shows_the_end_of_the_program_and_its_moments() {
    let directory = scratch("top-end");
    let program = compile(&directory, "live.c", "program", &[]);
    let mut recorded = Recorded::start(&directory, &program, &["2", "1000"]);
    let mut top = Terminal::start(&directory, (24, 100), &[&recorded.process, "--interval", "100ms"]);
    top.expect(&["grows_for_ever", "recording"]);
    let leaving = Terminal::start(&directory, (24, 100), &["it.cairn", "--exit", "--interval", "100ms"]);
    leaving.expect(&["grows_for_ever"]);
    recorded.end();
    assert_eq!(leaving.end(), 0);
    let whole = top.expect(&[": ended", "the recording has ended: q leaves"]);
    assert!(whole.contains("comes_and_goes"), "{whole}");
    top.press("\u{1b}[D");
    top.expect(&["moment 255 of 256"]);
    for _ in 0..300 {
        top.press("\u{1b}[D");
    }
    // In a two hundred and fiftieth of a second little is allocated.
    let first = top.expect(&["moment 1 of 256"]);
    let live = |text: &str| text.split("live ").nth(1).unwrap().split("  ").next().unwrap().to_owned();
    assert!(live(&whole).ends_with("MiB") && !live(&first).ends_with("MiB"), "{whole}\n{first}");
    top.press("x");
    top.expect(&["takes no requests any more"]);
    top.press("\u{3}");
    assert_eq!(top.end(), 0);
}

#[test]
fn signals_give_the_terminal_back() {
    let directory = scratch("top-signals");
    let program = compile(&directory, "live.c", "program", &[]);
    let recorded = Recorded::start(&directory, &program, &["1", "600000"]);
    for (signal, status) in [("-TERM", 143), ("-INT", 130)] {
        let top = Terminal::start(&directory, (24, 80), &[&recorded.process]);
        top.expect(&["grows_for_ever"]);
        assert!(top.is_on_own_screen());
        top.signal(signal);
        assert_eq!(top.end(), status);
    }
}

#[test]
fn a_terminal_that_is_gone_ends_it() {
    let directory = scratch("top-gone");
    let program = compile(&directory, "live.c", "program", &[]);
    let recorded = Recorded::start(&directory, &program, &["1", "600000"]);
    let mut top = Terminal::start(&directory, (24, 80), &[&recorded.process]);
    top.expect(&["grows_for_ever"]);
    let process = fs::read_to_string(directory.join("pid")).unwrap();
    let process = Path::new("/proc").join(process.trim());
    assert!(process.exists());
    top.script.kill().unwrap();
    top.script.wait().unwrap();
    wait_for("end of what has lost its terminal", || (!process.exists()).then_some(()));
}

#[test]
fn without_a_terminal_there_are_tables() {
    let directory = scratch("top-plain");
    let program = compile(&directory, "live.c", HOSTILE, &[]);
    let mut recorded = Recorded::start(&directory, &program, &["2", "1500"]);
    let top = |arguments: &[&str]| {
        let output = run(cairn().arg("top").args(arguments).env("COLUMNS", "130").current_dir(&directory));
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
    };
    let (status, once, errors) = top(&[&recorded.process, "--once", "-n", "3", "--by", "line"]);
    assert_eq!((status, errors.as_str()), (0, ""));
    assert_eq!(once.matches("LINE").count(), 1);
    assert!(once.contains("recording") && once.contains("live.c:"), "{once}");

    // Without --once there is one at each interval, until the end.
    let mut command = cairn();
    command.args(["top", "it.cairn", "--interval", "100ms"]).current_dir(&directory).stdout(Stdio::piped());
    let mut follower = command.spawn().unwrap();
    let mut lines = BufReader::new(follower.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut tables: Vec<String> = Vec::new();
    while !tables.last().is_some_and(|line| line.contains("FUNCTION")) {
        tables.push(lines.next().expect("there is a table while the program runs"));
    }
    recorded.end();
    tables.extend(lines);
    assert!(follower.wait().unwrap().success());
    let tables = tables.join("\n");
    assert!(tables.matches("FUNCTION").count() >= 2, "{tables}");
    assert!(tables.contains(": ended") && tables.contains("grows_for_ever"), "{tables}");
    assert!(!tables.contains('\u{1b}') && !tables.contains('\u{7}'), "{tables:?}");

    // The directory has one recording; what is left out of a table is not found in it.
    let (status, all, _) = top(&[".", "--search", "COMES"]);
    assert_eq!(status, 0);
    assert!(all.contains("comes_and_goes") && !all.contains("grows_for_ever"), "{all}");
    // Frames without names are places.
    let (_, places, _) = top(&["it.cairn", "--no-symbols", "--once"]);
    assert!(places.contains("program+0x") && !places.contains("grows_for_ever"), "{places}");
    let whole = HeapRecording::new(Recording::open(&recorded.path).unwrap()).read(Scope::default()).unwrap();
    let allocations = whole.profile.totals.allocations;
    let digits: String =
        all.split("allocations ").nth(1).unwrap().chars().take_while(|c| *c != ' ').collect();
    assert_eq!(digits.replace(',', ""), allocations.to_string());
}

/// The live bytes of each row, as they are shown, by the name of the row.
fn live_of_rows(table: &str) -> BTreeMap<String, String> {
    let rows = table.lines().skip_while(|line| !line.contains("LIVE")).skip(1);
    let row = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        (words[words.len() - 2].to_owned(), format!("{} {}", words[0], words[1]))
    };
    rows.map(row).filter(|(_, live)| live != "0 B").collect()
}

// Failed before: top refused both kinds of filters.
#[test]
fn top_filters_sizes_and_threads_as_report_does() {
    let directory = scratch("top-filters");
    let program = compile(&directory, "live.c", HOSTILE, &[]);
    let mut recorded = Recorded::start(&directory, &program, &["2", "900"]);
    let process = &recorded.process;
    let text = |arguments: &[&str]| {
        let output = run(cairn().args(arguments).env("COLUMNS", "130").current_dir(&directory));
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
    };
    // While it runs: a thread that is not there yet is no error, its rows are missing.
    let (code, table, errors) = text(&["top", process, "--once", "--filter", "size=5000.."]);
    assert!(
        code == 0 && table.contains("grows_for_ever") && !table.contains("comes_and_goes"),
        "{table}{errors}"
    );
    let (code, table, errors) = text(&["top", process, "--once", "--filter", "thread=nobody"]);
    assert!(code == 0 && table.contains("no thread of this name"), "{table}{errors}");
    recorded.end();

    let heap = HeapRecording::new(Recording::open(&recorded.path).unwrap());
    let threads = heap.about().threads;
    let worker = threads.iter().find(|thread| thread.name.contains("worker")).unwrap();
    let (by_name, by_number) =
        (format!("thread={}", worker.name), format!("thread={}", worker.kernel_thread));
    let filters = [
        &["size=..500"][..],
        &["size=1KiB..2KiB", "size=4KiB.."],
        &[&by_name],
        &[&by_number, "size=1KiB.."],
        &[&by_number, "size=1KiB..", "function=is_freed*"],
    ];
    for filters in filters {
        let filters: Vec<&str> = filters.iter().flat_map(|filter| ["--filter", *filter]).collect();
        let (code, table, errors) =
            text(&[&["top", "it.cairn", "--once", "--full", "--by", "function"], &filters[..]].concat());
        assert_eq!((code, errors.as_str()), (0, ""), "{filters:?}");
        let report = ["report", "it.cairn", "--json", "--full", "--by", "function", "--cost", "leaked"];
        // The table of `top` has the leaks of every program, too.
        let all = ["--no-default-suppressions"];
        let (code, report, _) = text(&[&report, &all[..], &filters[..]].concat());
        assert_eq!(code, 0, "{filters:?}");
        let report: serde_json::Value = serde_json::from_str(&report).unwrap();
        let bytes_of = |entry: &serde_json::Value| {
            let shown = match entry["leaked_bytes"].as_u64().unwrap() {
                bytes @ ..1024 => format!("{bytes} B"),
                bytes @ ..1_048_524 => format!("{:.1} KiB", bytes as f64 / 1024.0),
                bytes => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
            };
            (entry["function"].as_str().unwrap().to_owned(), shown)
        };
        let expected: BTreeMap<String, String> =
            report["top"].as_array().unwrap().iter().map(bytes_of).collect();
        assert!(!expected.is_empty(), "{filters:?}");
        assert_eq!(live_of_rows(&table), expected, "{filters:?}\n{table}");
    }
    let (code, _, errors) = text(&["top", "it.cairn", "--once", "--filter", "thread=nobody"]);
    assert!(code == 1 && errors.contains("no thread \"nobody\""), "{errors}");
    // Rows of threads are known of chosen threads and sizes, and not of chosen functions.
    let by_thread =
        |filter: &str| text(&["top", "it.cairn", "--once", "--by", "thread", "--filter", filter]).1;
    assert!(by_thread(&by_number).contains("worker"));
    assert!(by_thread("function=work").contains("threads are not known"));
}

#[test]
fn top_names_a_target_that_it_cannot_follow() {
    let directory = scratch("top-errors");
    fs::write(directory.join("other"), "no recording").unwrap();
    let own = std::process::id().to_string();
    for (target, status, expected) in [
        ("1073741824", 1, "there is no process 1073741824"),
        (own.as_str(), 1, "is not recorded; begin with `cairn heap --attach"),
        ("other", 1, "other: a text file"),
        ("nothing", 1, "nothing: No such file"),
        (".", 1, "there is no recording in it"),
    ] {
        let output = run(cairn().args(["top", target]).current_dir(&directory));
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(status), "{target}: {errors}");
        assert!(errors.contains(expected), "{target}: {errors}");
    }
    let output = run(cairn().args(["top", ".", "--interval", "1ms"]).current_dir(&directory));
    assert_eq!(output.status.code(), Some(2));
}
