//! The library of another processor: programs are recorded in an emulator, without the command, and
//! read here.
//!
//! `cargo xtask portability aarch64` builds the library, and sets environment variables to its path
//! and to the commands that compile and run programs for that processor. Without these variables
//! the tests check nothing, and print that.

#![cfg(target_os = "linux")]
#![allow(clippy::print_stdout, reason = "a test says what it could not check here")]

#[allow(dead_code, reason = "programs are compiled and run by other tools here")]
mod support;

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use cairn_recording::{Events, Mapping, MappingKind, Recording, Wanted};
use serde_json::Value;
use support::{Count, Shown, cairn, recording, recordings, run, scratch, workspace};

/// The other processor's tools.
struct Emulated {
    library: String,
    compiler: String,
    runner: Vec<String>,
}

impl Emulated {
    fn find() -> Option<Self> {
        let variable = |what: &str| env::var(format!("CAIRN_EMULATED_{what}")).ok();
        let (Some(library), Some(compiler), Some(runner)) =
            (variable("LIBRARY"), variable("COMPILER"), variable("RUNNER"))
        else {
            println!("not checked: no library of another processor was built; see cargo xtask portability");
            return None;
        };
        Some(Self { library, compiler, runner: runner.split(' ').map(str::to_owned).collect() })
    }

    fn compile(&self, directory: &Path, source: &str, name: &str, flags: &[&str]) -> PathBuf {
        let program = directory.join(name);
        let output = Command::new(&self.compiler)
            .args(["-O1", "-g", "-pthread", "-w", "-fno-builtin"])
            .arg(workspace().join("fixtures/programs/heap").join(source))
            .arg("-o")
            .arg(&program)
            .args(flags)
            .output()
            .unwrap();
        assert!(output.status.success(), "{source}: {}", String::from_utf8_lossy(&output.stderr));
        program
    }

    /// The command that runs a program, and with options records it.
    fn command(&self, program: &Path, arguments: &[&str], options: Option<&str>) -> Command {
        let mut command = Command::new(&self.runner[0]);
        command.args(&self.runner[1..]).current_dir(program.parent().unwrap());
        if let Some(options) = options {
            // For the program alone: the emulator runs on this processor. It takes commas for the
            // ends of variables.
            command.arg("-E").arg(format!("LD_PRELOAD={}", self.library));
            command.env("CAIRN_HEAP", options);
        }
        command.arg(program).args(arguments);
        command
    }

    /// Runs `program` plain and recorded: it must show the same.
    fn same_as_plain(&self, program: &Path, arguments: &[&str], options: &str) -> Shown {
        let plain = Shown::from(run(&mut self.command(program, arguments, None)));
        // The emulator has a note for every page of the address space: if a recording may be large,
        // it takes seconds.
        let options = ["max-size=256MiB", options].join(if options.is_empty() { "" } else { "," });
        let recorded = Shown::from(run(&mut self.command(program, arguments, Some(&options))));
        assert_eq!(plain, recorded, "left: plain, right: recorded; {program:?} {arguments:?}");
        recorded
    }

    /// Runs a program both ways, and compares its recording with what it says of itself.
    fn check(&self, test: &str, source: &str, arguments: &[&str]) -> Shown {
        let directory = scratch(test);
        let program = self.compile(&directory, source, "program", &["-DROUNDS=1200"]);
        let shown = self.same_as_plain(&program, arguments, "");
        recording(&directory).assert_as_expected(&shown);
        shown
    }
}

#[test]
fn every_entry_of_the_allocator_is_seen() {
    let Some(emulated) = Emulated::find() else { return };
    emulated.check("emulated_entry_points", "entry_points.c", &[]);
}

#[test]
fn threads_that_free_each_others_blocks_are_counted_exactly() {
    let Some(emulated) = Emulated::find() else { return };
    emulated.check("emulated_race", "threads.c", &["race"]);
    emulated.check("emulated_small_stacks", "threads.c", &["small_stacks"]);
}

#[test]
fn nothing_is_lost_whatever_the_end() {
    let Some(emulated) = Emulated::find() else { return };
    for how in ["exit", "_exit", "exit_group", "kill"] {
        emulated.check(&format!("emulated_end_{how}"), "ends.c", &[how]);
    }
}

#[test]
fn heap_leaves_forked_children_out_or_records_each() {
    let Some(emulated) = Emulated::find() else { return };
    let directory = scratch("emulated_fork");
    let program = emulated.compile(&directory, "children.c", "program", &[]);
    let shown = emulated.same_as_plain(&program, &[], "");
    recording(&directory).assert_as_expected(&shown);

    let directory = scratch("emulated_children");
    let program = emulated.compile(&directory, "children.c", "program", &[]);
    emulated.same_as_plain(&program, &[], "children");
    let all = recordings(&directory);
    assert_eq!(all.len(), 4, "one for each child");
    let of_children = all.iter().filter(|one| one.count(16001) == Count { made: 200, left: 100 });
    assert_eq!(of_children.count(), 3);
}

#[test]
fn modules_come_and_go_while_threads_allocate() {
    let Some(emulated) = Emulated::find() else { return };
    let directory = scratch("emulated_modules");
    let program = emulated.compile(&directory, "loader.c", "program", &[]);
    let first = emulated.compile(&directory, "module.c", "libfirst.so", &["-shared", "-fPIC"]);
    let second =
        emulated.compile(&directory, "module.c", "libsecond.so", &["-shared", "-fPIC", "-DSIZE=18003"]);
    let arguments = ["storm", first.to_str().unwrap(), second.to_str().unwrap()];
    let shown = emulated.same_as_plain(&program, &arguments, "");
    let recording = recording(&directory);
    recording.assert_as_expected(&shown);
    assert!(recording.modules_unloaded > 2, "{} unloads", recording.modules_unloaded);
}

#[test]
fn libraries_are_found_by_the_path_of_the_one_that_opens_them() {
    let Some(emulated) = Emulated::find() else { return };
    let directory = scratch("emulated_caller");
    let hidden = scratch("emulated_caller/hidden");
    emulated.compile(&hidden, "inner.c", "libinner.so", &["-shared", "-fPIC"]);
    let flags = ["-shared", "-fPIC", "-Wl,-rpath,$ORIGIN/hidden"];
    emulated.compile(&directory, "outer.c", "libouter.so", &flags);
    emulated.compile(&directory, "module.c", "libmodule.so", &["-shared", "-fPIC"]);
    let program = emulated.compile(&directory, "loader.c", "program", &[]);
    let shown = emulated.same_as_plain(&program, &["caller", "./libouter.so", "./libmodule.so"], "");
    assert!(shown.output.contains("found by the caller's path 42"), "{shown:?}");
}

#[test]
fn mappings_are_recorded_on_request() {
    let Some(emulated) = Emulated::find() else { return };
    let directory = scratch("emulated_mappings");
    let program = emulated.compile(&directory, "mappings.c", "program", &[]);
    emulated.same_as_plain(&program, &[], "mmap");
    let path = recording(&directory).path;
    let wanted = [
        (MappingKind::Map, 5 << 20),
        (MappingKind::Map, 4096),
        (MappingKind::Unmap, 5 << 20),
        (MappingKind::Map, 7 << 20),
        (MappingKind::Unmap, 4096),
        (MappingKind::Grow, 65536),
        (MappingKind::Shrink, 65536),
    ];
    let mut found = Mappings::default();
    Recording::open(&path).unwrap().read(&Wanted::ALL, &mut found).unwrap();
    assert_eq!(found.0, wanted);
    // It has no allocation; that its processor is another one than this cairn's is not why.
    let shown = Shown::from(run(cairn().arg("report").arg(&path)));
    assert!(shown.output.contains("no allocation was seen\n"), "{shown:?}");
}

#[test]
fn stacks_lead_to_main_and_have_names_and_lines() {
    let Some(emulated) = Emulated::find() else { return };
    let directory = scratch("emulated_stacks");
    let program = emulated.compile(&directory, "churn.c", "program", &["-fno-omit-frame-pointer"]);
    emulated.same_as_plain(&program, &["20000", "1"], "");
    let report = report(&recording(&directory).path);
    assert_eq!(
        (&report["total_allocations"], &report["total_frees"]),
        (&Value::from(20000), &Value::from(20000))
    );
    let depths: Vec<usize> = report["top"].as_array().unwrap().iter().map(depth).collect();
    assert_eq!(depths.len(), 21, "one for each depth: {depths:?}");
    assert!((11..=31).all(|depth| depths.contains(&depth)), "{depths:?}");
}

/// Counts the calls of `at_depth` on an entry's stack.
///
/// The stack leads to `work` and `main` at the lines of their calls.
fn depth(entry: &Value) -> usize {
    let stack = entry["stacks"][0]["frames"].as_array().unwrap();
    let place = |frame: &Value| (frame["function"].as_str().unwrap_or("").to_owned(), frame["line"].as_u64());
    let names: Vec<_> = stack.iter().map(place).collect();
    let depth = names.iter().take_while(|(name, _)| name == "at_depth").count();
    assert_eq!(names[0], ("at_depth".to_owned(), Some(17)), "{names:?}");
    assert_eq!(names[1..depth].iter().find(|(_, line)| *line != Some(18)), None, "{names:?}");
    assert_eq!(names[depth], ("work".to_owned(), Some(30)), "{names:?}");
    assert_eq!(names[depth + 1], ("main".to_owned(), Some(52)), "{names:?}");
    depth
}

#[derive(Default)]
struct Mappings(Vec<(MappingKind, u64)>);

impl Events for Mappings {
    fn mapping(&mut self, event: &Mapping) {
        self.0.push((event.kind, event.size_bytes));
    }
}

fn report(recording: &Path) -> Value {
    let output =
        run(cairn().args(["report", "--json", "--by", "stack", "--cost", "count", "--full"]).arg(recording));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}
