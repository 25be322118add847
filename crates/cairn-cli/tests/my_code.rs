//! Rows name the user's code, in programs that are compiled here: with and without debug
//! information, inlined or not, through libraries and wrappers; and the options that say otherwise.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

#[allow(dead_code, reason = "not all of it is needed here")]
mod support;

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use support::{cairn, compile, run, scratch};

/// A program that was compiled and recorded in a directory of its own.
struct Recorded {
    directory: PathBuf,
    file: PathBuf,
}

fn record(test: &str, source: &str, flags: &[&str]) -> Recorded {
    let directory = scratch(test);
    let program = compile(&directory, source, "program", flags);
    let file = directory.join("program.cairn");
    let output =
        run(cairn().args(["heap", "--quiet", "-o"]).arg(&file).arg(&program).current_dir(&directory));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Recorded { directory, file }
}

impl Recorded {
    /// Runs a command on the recording, in its directory.
    fn text(&self, command: &str, options: &[&str]) -> String {
        let output = self.output(command, options);
        assert!(
            output.status.success(),
            "{command} {options:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn output(&self, command: &str, options: &[&str]) -> std::process::Output {
        let mut cairn = cairn();
        cairn.arg(command).arg(&self.file).args(options).current_dir(&self.directory);
        run(cairn.env("COLUMNS", "150").env("NO_COLOR", "1"))
    }

    fn json(&self, options: &[&str]) -> Value {
        let options: Vec<&str> = ["--json"].iter().chain(options).copied().collect();
        serde_json::from_str(&self.text("report", &options)).expect("one object")
    }

    /// The names of the rows, without parameters.
    fn rows(&self, options: &[&str]) -> Vec<String> {
        functions(&self.json(options)["top"])
    }

    fn write(&self, name: &str, text: &str) -> String {
        let path = self.directory.join(name);
        fs::write(&path, text).expect("written");
        path.display().to_string()
    }
}

fn functions(list: &Value) -> Vec<String> {
    let name = |frame: &Value| {
        let name = frame["function"].as_str().expect("a name");
        name.split('(').next().unwrap_or(name).to_owned()
    };
    list.as_array().expect("a list").iter().map(name).collect()
}

#[test]
fn rows_name_the_users_functions_whatever_is_inlined() {
    for flags in [&["-O0"][..], &["-O2"], &["-O2", "-g0"]] {
        let recorded = record(&format!("my-code{}", flags.concat()), "shop.cpp", flags);
        let report = recorded.json(&["--cost", "allocated"]);
        let rows = functions(&report["top"]);
        assert_eq!(rows[..2], ["shop::load_orders", "shop::report_month"], "{flags:?}");
        for entry in report["top"].as_array().expect("a list").iter().take(2) {
            assert_eq!(entry["owner"], "mine", "{flags:?}");
            let stack = &entry["stacks"][0];
            let of_row = entry["function"].as_str().expect("a name").split('(').next().expect("a part");
            assert_eq!(functions(&stack["frames"]), [of_row, "main"], "{flags:?}");
            assert!(stack["folded_frames"].as_u64() >= Some(3), "{stack}");
        }
        let text = recorded.text("report", &["--cost", "peak"]);
        assert!(text.contains("× shop::load_orders"), "{text}");
        assert!(text.contains("frames of the stacks shown are folded: --internals shows them"), "{text}");
    }
}

#[test]
fn all_views_fold_alike_and_internals_unfold() {
    let recorded = record("my-code-views", "shop.cpp", &["-O1"]);
    let folded = recorded.text("flame", &["--format", "folded", "--cost", "allocated"]);
    let mut stacks: Vec<&str> =
        folded.lines().filter_map(|line| line.rsplit_once(' ')).map(|(s, _)| s).collect();
    stacks.retain(|stack| stack.contains("shop::"));
    assert_eq!(stacks.len(), 2, "{folded}");
    assert!(stacks[0].starts_with("main;shop::load_orders(int)") && !folded.contains("std::__new_allocator"));
    let tree = recorded.text("report", &["--by", "tree", "--cost", "allocated"]);
    assert!(tree.contains("├ shop::load_orders") && !tree.contains("std::"), "{tree}");
    let top = recorded.text("top", &["--once", "--plain"]);
    assert!(top.contains("shop::load_orders") && !top.contains("std::"), "{top}");
    for (command, options) in [
        ("report", &["--cost", "allocated", "--internals"][..]),
        ("flame", &["--format", "folded", "--internals"]),
        ("top", &["--once", "--plain", "--internals"]),
    ] {
        let unfolded = recorded.text(command, options);
        assert!(unfolded.contains("allocate"), "{command}: {unfolded}");
        assert!(!unfolded.contains("folded:"), "{command}: {unfolded}");
    }
}

#[test]
fn every_view_says_how_many_frames_are_folded() {
    let recorded = record("my-code-counts", "shop.cpp", &["-O1"]);
    let flame = recorded.directory.join("flame.svg").display().to_string();
    let note = "frames of the stacks shown are folded: --internals shows them";
    for options in [&["--by", "tree"][..], &["--by", "callers"], &["--by", "stack"], &[]] {
        let text = recorded.text("report", options);
        assert!(text.contains(note), "{options:?}: {text}");
        let options: Vec<&str> = options.iter().chain(&["--internals"]).copied().collect();
        let text = recorded.text("report", &options);
        assert!(!text.contains("folded"), "{options:?}: {text}");
    }
    for by in ["tree", "callers"] {
        let picture = |options: &[&str]| {
            let options: Vec<&str> = ["--by", by, "--cost", "allocated", "--force", "-o", &flame]
                .iter()
                .chain(options)
                .copied()
                .collect();
            recorded.text("flame", &options);
            fs::read_to_string(&flame).expect("a picture")
        };
        let folded = picture(&[]);
        assert!(folded.contains("frames are folded: --internals draws them"), "{by}: {folded}");
        assert!(folded.contains("<rect class=\"fold\" y="), "{by}: {folded}");
        assert!(folded.contains(" between it and its caller: folded"), "{by}: {folded}");
        assert!(folded.contains(" between it and its allocations: folded"), "{by}: {folded}");
        let whole = picture(&["--internals"]);
        assert!(!whole.contains("folded") && !whole.contains("\"fold\""), "{by}: {whole}");
    }
    let top = recorded.text("top", &["--once", "--plain", "--by", "stack"]);
    assert!(top.contains("shop::load_orders") && top.contains(" folded)"), "{top}");
    let top = recorded.text("top", &["--once", "--plain", "--by", "stack", "--internals"]);
    assert!(!top.contains(" folded)"), "{top}");
    // The frames that are counted are those that the whole tree has more.
    let tree = |options: &[&str]| {
        let options: Vec<&str> = ["--by", "tree", "--full"].iter().chain(options).copied().collect();
        recorded.json(&options)["tree"].as_array().expect("a list").clone()
    };
    let (folded, whole) = (tree(&[]), tree(&["--internals"]));
    let counted: usize =
        folded.iter().filter_map(|node| node["folded_frames"].as_u64()).map(|frames| frames as usize).sum();
    assert!(folded.len() < whole.len(), "{} {}", folded.len(), whole.len());
    assert!(counted > 0 && whole.iter().all(|node| node["folded_frames"] == 0), "{counted}");
}

#[test]
fn diff_has_owners_wrappers_and_folded_frames() {
    let before = record("my-code-diff-before", "wrappers.c", &[]);
    let after = record("my-code-diff-after", "shop.cpp", &["-O1"]);
    let diff = |options: &[&str]| {
        let files = [before.file.display().to_string(), after.file.display().to_string()];
        let mut cairn = cairn();
        cairn.arg("diff").args(files).args(["--cost", "allocated"]).args(options);
        let output = run(cairn.current_dir(&after.directory).env("COLUMNS", "150"));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let json = |options: &[&str]| -> Value {
        let options: Vec<&str> = ["--json"].iter().chain(options).copied().collect();
        serde_json::from_str(&diff(&options)).expect("one object")
    };
    let change_of = |report: &Value, name: &str| -> Value {
        let is_of = |change: &&Value| {
            let function = change["function"].as_str();
            function.is_some_and(|function| function.split('(').next() == Some(name))
        };
        report["changes"].as_array().expect("a list").iter().find(is_of).expect("a change").clone()
    };
    let report = json(&[]);
    // The names of wrappers, and their sums, are those of a report on the same file.
    assert_eq!(report["wrappers_before"], before.json(&[])["wrappers"]);
    assert_eq!(functions(&report["wrappers_before"]), ["try_alloc", "zmalloc", "zcalloc"]);
    assert_eq!(report["wrappers"], Value::Array(Vec::new()));
    let load = change_of(&report, "shop::load_orders");
    assert_eq!(load["owner"], "mine", "{load}");
    assert!(load.get("owner_name").is_none(), "{load}");
    assert!(load["folded_frames"].as_u64() >= Some(3), "{load}");
    for frame in load["frames"].as_array().expect("a list") {
        assert_eq!(frame["owner"], "mine", "{load}");
    }

    let whole = json(&["--internals"]);
    let changes = whole["changes"].as_array().expect("a list");
    assert!(changes.iter().all(|change| change["folded_frames"] == 0), "{whole}");
    let frames = || changes.iter().flat_map(|change| change["frames"].as_array().expect("a list"));
    let of_library = |frame: &&Value| frame["owner"] == "standard-library" && frame["owner_name"] == "C++";
    assert!(frames().any(|frame| of_library(&frame)), "{whole}");
    assert_eq!(whole["wrappers_before"], Value::Array(Vec::new()));

    for by in ["function", "module"] {
        let grouped = json(&["--by", by]);
        for change in grouped["changes"].as_array().expect("a list") {
            assert!(change["owner"].is_string() && change.get("folded_frames").is_none(), "{change}");
        }
    }
    let text = diff(&[]);
    assert!(text.contains("note: wrappers found: try_alloc"), "{text}");
    assert!(text.contains("frames of the stacks shown are folded: --internals shows them"), "{text}");
    assert!(!diff(&["--internals"]).contains("note:"), "{text}");
}

const MAKERS: [&str; 4] = ["make_values", "make_clients", "make_hashes", "make_scripts"];

#[test]
fn wrappers_are_found_by_name_and_by_behaviour() {
    let named = record("my-code-named-wrappers", "wrappers.c", &[]);
    let report = named.json(&["--cost", "allocated"]);
    assert_eq!(functions(&report["top"])[..4], MAKERS);
    assert_eq!(functions(&report["wrappers"]), ["try_alloc", "zmalloc", "zcalloc"]);
    // Half of the functions that have "alloc" in their names are not the allocator's.
    assert!(functions(&report["top"]).contains(&"alloc_report".to_owned()));
    let text = named.text("report", &[]);
    assert!(
        text.contains("note: wrappers found: try_alloc, zmalloc, zcalloc (96.4 % of the bytes)"),
        "{text}"
    );

    let quiet = record("my-code-quiet-wrapper", "wrappers.c", &["-DQUIET"]);
    let report = quiet.json(&["--cost", "allocated"]);
    assert_eq!(functions(&report["wrappers"]), ["get_block"]);
    assert_eq!(functions(&report["top"])[..4], MAKERS);
}

#[test]
fn users_say_what_is_a_wrapper() {
    let recorded = record("my-code-said-wrappers", "wrappers.c", &[]);
    let none = recorded.write("none.txt", "# none of these\n!alloc\n");
    let rows = recorded.rows(&["--cost", "allocated", "--wrappers", &none]);
    assert_eq!(rows[..2], ["try_alloc", "zcalloc"]);
    let more = recorded.write("more.txt", "^make_values$\n");
    assert!(!recorded.rows(&["--wrappers", &more]).contains(&"make_values".to_owned()));
    let bad = recorded.write("bad.txt", "one\n*\n");
    let output = recorded.output("report", &["--wrappers", &bad]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(errors.contains("bad.txt: line 2: an empty pattern matches every frame"), "{errors}");
}

#[test]
fn project_file_is_found_upwards_and_checked() {
    let recorded = record("my-code-project", "wrappers.c", &[]);
    recorded.write(".cairn.toml", "wrappers = ['^make_']\nnot-wrappers = ['^zcalloc$']\n");
    let deep = recorded.directory.join("a/b");
    fs::create_dir_all(&deep).expect("directories");
    let rows = |directory: &Path| {
        let output = run(cairn()
            .args(["report", "--json", "--cost", "allocated"])
            .arg(&recorded.file)
            .current_dir(directory));
        let report: Value = serde_json::from_slice(&output.stdout).expect("one object");
        functions(&report["top"])
    };
    assert_eq!(rows(&deep)[..2], ["main", "zcalloc"]);
    // Outside of the project its file is not read.
    assert_eq!(rows(recorded.directory.parent().expect("a directory"))[..4], MAKERS);
    assert_eq!(recorded.rows(&["--cost", "allocated", "--project", "/dev/null"])[..4], MAKERS);

    recorded.write(".cairn.toml", "wrapper = []\n");
    for command in ["report", "flame", "export", "top"] {
        let options: &[&str] = match command {
            "top" => &["--once"],
            "export" => &["--format", "pprof", "-o", "/dev/null"],
            _ => &["-o", "/dev/null"],
        };
        let output = recorded.output(command, options);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{command}: {errors}");
        assert!(
            errors.contains(".cairn.toml: \"wrapper\" is no key; did you mean wrappers?"),
            "{command}: {errors}"
        );
    }
}

#[test]
fn focus_counts_only_its_stacks_and_hidden_frames_fold() {
    let recorded = record("my-code-focus", "wrappers.c", &[]);
    let report = recorded.json(&["--focus", "function=^make_lists$", "--cost", "count"]);
    assert_eq!(functions(&report["top"]), ["make_lists"]);
    assert_eq!(report["total_allocations"], 200);
    let all = recorded.json(&["--hide", "^make_", "--cost", "count"]);
    assert_eq!(functions(&all["top"]), ["main", "alloc_report"]);
    // The module is not a part of any function's name.
    assert_eq!(recorded.json(&["--focus", "function=wrappers.c"])["total_allocations"], 0);
    let of_file = recorded.json(&["--focus", "file=wrappers.c"]);
    assert!(of_file["total_allocations"].as_u64() >= Some(1839), "{}", of_file["total_allocations"]);
    let top = recorded.text("top", &["--once", "--plain", "--focus", "^make_sets$"]);
    assert!(top.contains("make_sets") && !top.contains("make_lists"), "{top}");
    let output = recorded.output("report", &["--focus", ""]);
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn leaks_of_every_program_are_held_back_in_one_line() {
    let recorded = record("my-code-known-leaks", "shop.cpp", &[]);
    let (usual, all) = (recorded.json(&[]), recorded.json(&["--no-default-suppressions"]));
    let held_back: Vec<&Value> = usual["suppressed"].as_array().expect("a list").iter().collect();
    assert!(held_back.iter().any(|entry| entry["pattern"] == "stdio buffers"), "{held_back:?}");
    assert!(held_back.iter().all(|entry| entry["reason"].is_string()));
    let sum: u64 = held_back.iter().map(|entry| entry["bytes"].as_u64().expect("bytes")).sum();
    assert_eq!(all["leaked_bytes"].as_u64(), Some(usual["leaked_bytes"].as_u64().expect("bytes") + sum));
    assert_eq!(all["suppressed"], Value::Array(Vec::new()));
    let text = recorded.text("report", &[]);
    assert!(text.contains("note: held back, because every program leaks it: "), "{text}");
    // Blocks that are alive at a time are in use: nothing is held back.
    let at_peak = recorded.json(&["--at", "peak"]);
    assert_eq!(at_peak["suppressed"], Value::Array(Vec::new()));
}

// Failed before: it counted as the loader's; with --internals, `libstdc++.so.6+0xa5780` was a leak.
#[test]
fn emergency_pool_of_a_library_that_is_loaded_later_is_known() {
    let recorded = record("my-code-emergency-pool", "load_cxx.c", &[]);
    let usual = recorded.json(&["--cost", "leaked"]);
    let of_pool = |entry: &&Value| entry["pattern"] == "libstdc++'s emergency pool";
    for report in [&usual, &recorded.json(&["--internals"]), &recorded.json(&["--no-symbols"])] {
        let pool = report["suppressed"].as_array().expect("a list").iter().find(of_pool);
        assert!(pool.is_some_and(|pool| pool["bytes"].as_u64() >= Some(60_000)), "{report}");
    }
    let all = recorded.text("report", &["--cost", "leaked", "--no-default-suppressions", "--internals"]);
    assert!(all.contains("libstdc++.so"), "{all}");
    // A block of libstdc++ that the program asked for is its own leak.
    assert_eq!(functions(&usual["top"])[0], "leak_through_cxx", "{usual}");
}

#[test]
fn summary_of_heap_names_the_users_functions() {
    let directory = scratch("my-code-summary");
    let program = compile(&directory, "shop.cpp", "program", &["-O2"]);
    let output = run(cairn().arg("heap").arg(&program).current_dir(&directory).env("COLUMNS", "120"));
    let summary = String::from_utf8_lossy(&output.stderr);
    let first = summary.lines().skip_while(|line| !line.contains("Most memory at the peak")).nth(1);
    assert!(first.is_some_and(|line| line.contains("shop::load_orders")), "{summary}");
}
