//! The course of a recording under `cairn heap`: limits, `ctl`, children, ends, full disks, and the
//! summary.

#![cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
#![allow(clippy::print_stdout, reason = "a test says what it could not check here")]

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use cairn_analysis::heap::{HeapRecording, LiveHeap, Scope};
use cairn_recording::{EndReason, Recording};
use serde_json::Value;
use support::{
    Count, Executable, Shown, cairn, compile, executable, recording, recordings, run, same_as_plain,
    same_as_plain_with, scratch, scratch_place, wait_for,
};

#[test]
fn a_recording_ends_when_it_is_as_large_or_as_long_as_it_may_be() {
    for limit in [["--max-size", "100KiB"], ["--for", "100ms"]] {
        let directory = scratch(&format!("limited{}", limit[0]));
        compile(&directory, "churn.c", "churn", &["-fno-builtin"]);
        let mut command = cairn();
        command.args(["heap", "--quiet"]).args(limit).args(["./churn", "3000000"]).current_dir(&directory);
        let shown = Shown::from(run(&mut command));
        assert_eq!((shown.status, shown.signal), (Some(0), None), "{shown:?}");
        let recording = recording(&directory);
        // 3 million pairs are six million events and some seven megabytes.
        assert!(recording.events > 0 && recording.events < 6_000_000, "{limit:?}: {}", recording.events);
    }
}

#[test]
fn heap_records_nothing_that_starts_after_the_time_limit() {
    let directory = scratch("limited-later");
    compile(&directory, "churn.c", "churn", &["-fno-builtin"]);
    // A program that lived less would be dropped, and its time with it.
    let script = "sleep 1.1; exec ./churn 3000000 1";
    let mut command = cairn();
    command.args(["heap", "--quiet", "--for", "100ms", "sh", "-c", script]).current_dir(&directory);
    let shown = Shown::from(run(&mut command));
    assert_eq!((shown.status, shown.signal), (Some(0), None), "{shown:?}");
    let all = recordings(&directory);
    assert_eq!(all.len(), 2, "one for each program");
    assert!(
        all.iter().all(|one| one.events < 6_000_000),
        "{:?}",
        all.iter().map(|one| one.events).collect::<Vec<_>>()
    );
}

#[test]
fn a_recording_can_be_paused_from_outside() {
    let directory = scratch("ctl");
    let ctl = |process: &str, what: &str| {
        Shown::from(run(cairn().args(["heap", "ctl", process, what]).current_dir(&directory)))
    };
    let none = ctl("1", "stop");
    assert_eq!(none.status, Some(1), "{none:?}");
    let script = "while [ ! -e stop ]; do sleep 0.02; x=$(printf %s a); done";
    let mut child = cairn();
    child.args(["heap", "--quiet", "--start-paused", "sh", "-c", script]).current_dir(&directory);
    let mut child = child.spawn().unwrap();
    let path = wait_for("a recording", || Some(recordings(&directory).first()?.path.clone()));
    let process = support::Recording::read(&path).process.to_string();
    std::thread::sleep(std::time::Duration::from_millis(400));
    assert_eq!(support::Recording::read(&path).events, 0, "paused");
    assert_eq!(ctl(&process, "start").status, Some(0));
    wait_for_events(&path);
    let mark = ["heap", "ctl", &process, "mark", "half of it"];
    let marked = Shown::from(run(cairn().args(mark).current_dir(&directory)));
    assert_eq!(marked.status, Some(0), "{marked:?}");
    fs::write(directory.join("stop"), "").unwrap();
    assert!(child.wait().unwrap().success());
    let played = run(cairn().arg("play").arg(&path));
    assert!(String::from_utf8_lossy(&played.stdout).contains("half of it"), "{played:?}");
}

/// Waits until there are events in a recording that grows.
fn wait_for_events(path: &Path) {
    wait_for("an event", || (support::Recording::read(path).events > 0).then_some(()));
}

/// Runs `command` as a user without rights, where this is root.
fn as_nobody(command: &mut Command) -> &mut Command {
    const NOBODY: u32 = 65534;
    let user = run(Command::new("id").arg("-u"));
    if user.stdout == b"0\n" { command.uid(NOBODY).gid(NOBODY) } else { command }
}

#[test]
fn ctl_works_without_root_for_own_recordings() {
    // Outside of the target directory, which others may be unable to reach; with a blank and a
    // bracket in the name.
    let directory = std::env::temp_dir().join(format!("cairn ctl (deleted) {}", std::process::id()));
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir(&directory).unwrap();
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o777)).unwrap();
    let program = directory.join("cairn");
    executable(&program, &Executable::Copy(Path::new(env!("CARGO_BIN_EXE_cairn"))));
    let nobody = || {
        let mut command = Command::new(&program);
        as_nobody(&mut command).current_dir(&directory).env("HOME", &directory).env_remove("XDG_CACHE_HOME");
        command
    };
    let script = "while [ ! -e stop ]; do sleep 0.02; x=$(printf %s a); done";
    let child = nobody().args(["heap", "--quiet", "--start-paused", "sh", "-c", script]).spawn().unwrap();
    let path = wait_for("a recording", || Some(recordings(&directory).first()?.path.clone()));
    let process = support::Recording::read(&path).process.to_string();
    let ctl = |what: &[&str]| Shown::from(run(nobody().args(["heap", "ctl", &process]).args(what)));
    for what in [&["start"][..], &["mark", "seen by all"], &["stop"]] {
        let shown = ctl(what);
        assert_eq!(shown.status, Some(0), "{what:?}: {shown:?}");
        // Everything recorded between start and stop must be there.
        wait_for_events(&path);
    }
    let of_another = Shown::from(run(nobody().args(["heap", "ctl", "1", "stop"])));
    assert_eq!(of_another.status, Some(1), "{of_another:?}");
    let mut look = Command::new("cat");
    let is_own = run(as_nobody(&mut look).arg("/proc/1/maps")).status.success();
    let is_hidden = !Path::new("/proc/1").exists();
    if is_own || is_hidden {
        println!("the first process is of the same user, or hidden");
    } else {
        let reason = "only its own user, or root, may control its recording";
        assert!(of_another.errors.contains(reason), "{of_another:?}");
    }
    let nobody_there = Shown::from(run(nobody().args(["heap", "ctl", "99999999", "stop"])));
    assert!(nobody_there.errors.contains("there is no process 99999999"), "{nobody_there:?}");
    fs::write(directory.join("stop"), "").unwrap();
    assert!(child.wait_with_output().unwrap().status.success());
    assert!(support::Recording::read(&path).events > 0, "between start and stop");
    let played = run(cairn().arg("play").arg(&path));
    fs::remove_dir_all(&directory).unwrap();
    assert!(String::from_utf8_lossy(&played.stdout).contains("seen by all"), "{played:?}");
}

#[test]
fn recordings_of_children_stay_open_until_they_end() {
    let directory = scratch("outlived");
    compile(&directory, "ends.c", "worker", &["-fno-builtin", "-O0"]);
    // It allocates when the program that started it has ended, which that does when the child's
    // recording has begun.
    let script = "(x=$(printf a); while kill -0 $$; do sleep 0.05; done 2>/dev/null; exec ./worker exit) & \
                  while ! ls *.cairn | grep -q \"[.]$![.]cairn$\"; do sleep 0.05; done; exit 5";
    let mut command = cairn();
    command.args(["heap", "--quiet", "--children", "sh", "-c", script]).current_dir(&directory);
    assert_eq!(run(&mut command).status.code(), Some(5));
    let all = recordings(&directory);
    let workers = all.iter().filter(|one| one.count(14001) == Count { made: 5000, left: 1000 }).count();
    assert_eq!(workers, 1, "{:?}", all.iter().map(|one| &one.path).collect::<Vec<_>>());
}

#[test]
fn heap_follows_a_child_that_was_started_last() {
    let directory = scratch("started_last");
    compile(&directory, "ends.c", "worker", &["-fno-builtin", "-O0"]);
    for _ in 0..5 {
        let mut command = cairn();
        command.args(["heap", "--quiet", "--children", "sh", "-c", "./worker exit & exit 5"]);
        assert_eq!(run(command.current_dir(&directory)).status.code(), Some(5));
        let all = recordings(&directory);
        let worker = all.iter().find(|one| one.count(14001) == Count { made: 5000, left: 1000 }).unwrap();
        assert!(Recording::open(&worker.path).unwrap().totals().is_some(), "left as the program wrote it");
        all.iter().for_each(|one| fs::remove_file(&one.path).unwrap());
    }
}

#[test]
fn memory_over_time_shows_what_was_resident() {
    let directory = scratch("over_time");
    let mut command = cairn();
    command.args(["heap", "--quiet", "sh", "-c", "sleep 0.4; x=$(printf a)"]).current_dir(&directory);
    assert!(run(&mut command).status.success());
    let path = recording(&directory).path;
    let shown = run(cairn().args(["report", "--by", "time"]).arg(&path));
    let text = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(text.lines().any(|line| line.trim_end().ends_with("resident")), "{text}");
    let reported = report(&directory, &["--by", "time"]);
    let samples = reported["usage"].as_array().unwrap();
    assert!(samples.iter().all(|sample| sample["resident_bytes"].as_u64() > Some(0)), "{samples:?}");
    let most = samples.iter().filter_map(|sample| sample["resident_bytes"].as_u64()).max();
    assert_eq!(most, reported["most_resident_bytes"].as_u64());
}

/// Returns the output of `cairn report --json` for the recording in `directory`, with `arguments`.
fn report(directory: &Path, arguments: &[&str]) -> Value {
    let path = recording(directory).path;
    let output = run(cairn().args(["report", "--json", "--full"]).args(arguments).arg(path));
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

#[test]
fn the_summary_and_the_report_count_as_one_does_by_hand() {
    let directory = scratch("temporary");
    compile(&directory, "temporary.c", "program", &["-fno-builtin", "-O0"]);
    let shown =
        Shown::from(run(cairn().args(["heap", "./program"]).env("COLUMNS", "120").current_dir(&directory)));
    assert_eq!(shown.status, Some(0));
    let by_size = |range: &str| report(&directory, &["--filter", &format!("size={range}")]);
    let numbers = |answer: &Value| {
        ["total_allocations", "temporary_allocations", "leaked_allocations"]
            .map(|name| answer[name].as_u64().unwrap())
    };
    assert_eq!(numbers(&by_size("21001")), [10, 10, 0], "freed at once");
    assert_eq!(numbers(&by_size("22000..22004")), [5, 5, 0], "reallocated");
    assert_eq!(numbers(&by_size("23000..23003")), [4, 1, 0], "freed in turn");
    assert_eq!(numbers(&by_size("21003")), [1, 1, 0], "of another thread");
    assert_eq!(numbers(&by_size("1000000")), [3, 0, 3], "leaked");

    // The summary's numbers are those of the report.
    let all = report(&directory, &[]);
    let line = |word: &str| {
        let found = shown.errors.lines().find_map(|line| line.strip_prefix("  ")?.strip_prefix(word));
        found.unwrap_or_else(|| panic!("{word}: {shown:?}")).trim().to_owned()
    };
    let [allocations, temporary, leaked] = numbers(&all);
    assert!(line("allocated").ends_with(&format!(" in {allocations} calls")), "{shown:?}");
    assert!(line("temporary").starts_with(&format!("{temporary} calls (")), "{shown:?}");
    assert!(line("leaked").ends_with(&format!(" in {leaked} blocks")), "{shown:?}");
    let of_leaks = shown.errors.split("Most memory leaked:\n").nth(1).unwrap().lines().next().unwrap();
    assert!(of_leaks.contains("3 ×  main (temporary.c:"), "{of_leaks}");
    let of_temporary = shown.errors.split("Most temporary blocks:\n").nth(1).unwrap().lines().next().unwrap();
    assert!(of_temporary.contains("10 ×  at_once (temporary.c:"), "{of_temporary}");
}

/// The summary reads all events. If there are many, it stores the sums in the recording for the
/// next reader.
#[test]
fn heap_stores_sums_in_recordings_of_many_events() {
    for (pairs, arguments, is_retained) in
        [("1000100", &[][..], true), ("1000100", &["--quiet"], false), ("1000", &[], false)]
    {
        let directory = scratch(&format!("sums-{pairs}-{}", arguments.len()));
        let program = compile(&directory, "churn.c", "program", &["-fno-builtin", "-O1", "-pthread"]);
        let path = directory.join("churn.cairn");
        let mut command = cairn();
        command.arg("heap").args(arguments).arg("-o").arg(&path).arg(&program).args([pairs, "1"]);
        assert!(command.output().unwrap().status.success());
        let heap = HeapRecording::new(Recording::open(&path).unwrap());
        assert_eq!(heap.has_summary().unwrap(), is_retained, "{pairs} {arguments:?}");
        let read = heap.read(Scope::default()).unwrap();
        assert!(read.profile.totals.allocations >= pairs.parse().unwrap());
        fs::remove_file(path).unwrap();
    }
}

#[test]
fn a_recording_knows_how_its_program_ended() {
    let ends_of = |test: &str, how: &str| {
        let directory = scratch(test);
        let program = compile(&directory, "ends.c", "program", &["-fno-builtin", "-O0"]);
        run(cairn().args(["heap", "--quiet"]).arg(&program).arg(how).current_dir(&directory));
        let end = |path: &PathBuf| {
            let recording = Recording::open(path).unwrap();
            recording.end().map(|(reason, _)| reason)
        };
        recordings(&directory).iter().map(|one| end(&one.path)).collect::<Vec<_>>()
    };
    assert_eq!(ends_of("end_by_return", "_exit"), [Some(EndReason::Exit)]);
    assert_eq!(ends_of("end_by_kill", "kill"), [None]);
    let mut both = ends_of("end_by_exec", "exec");
    both.sort_by_key(Option::is_some);
    assert!(both.contains(&Some(EndReason::Exec)) && both.contains(&Some(EndReason::Exit)), "{both:?}");
}

#[test]
fn forked_children_are_recorded_on_request_in_a_storm_of_forks() {
    const FORKS: u64 = 30;
    let directory = scratch("forks");
    let program = compile(&directory, "forks.c", "program", &["-fno-builtin", "-O0"]);
    let shown = same_as_plain_with(&directory, program.as_os_str(), &["30"], &["--children"]);
    assert_eq!((shown.status, shown.output.as_str()), (Some(0), "done\n"), "{shown:?}");
    let all = recordings(&directory);
    assert_eq!(all.len() as u64, 1 + 2 * FORKS, "the process, its children, and theirs");
    let having = |size: u64, count: Count| all.iter().filter(|one| one.count(size) == count).count() as u64;
    assert_eq!(having(25000, Count { made: 10 * FORKS, left: FORKS }), 1);
    assert_eq!(having(25001, Count { made: 200, left: 40 }), FORKS);
    assert_eq!(having(25002, Count { made: 50, left: 5 }), FORKS);
    assert_eq!(having(25003, Count { made: 10, left: 1 }), FORKS);
    for one in &all {
        // The events of a child are in its own file only.
        let kinds = [25000, 25001, 25002].iter().filter(|size| one.count(**size).made > 0).count();
        assert_eq!((kinds, one.lost), (1, 0), "{}", one.path.display());
    }
    let mut processes: Vec<u32> = all.iter().map(|one| one.process).collect();
    processes.sort_unstable();
    processes.dedup();
    assert_eq!(processes.len(), all.len(), "each process has one file");
}

#[test]
fn heap_leaves_children_out_without_the_option() {
    let directory = scratch("forks_alone");
    let program = compile(&directory, "forks.c", "program", &["-fno-builtin", "-O0"]);
    same_as_plain(&directory, &program, &["10"]);
    let only = recording(&directory);
    assert_eq!(only.count(25000), Count { made: 100, left: 10 });
    assert_eq!((only.count(25001).made, only.count(25002).made), (0, 0));
}

/// How many allocations a report finds in the file at `path`.
fn allocations_in(path: &Path) -> u64 {
    let output = run(cairn().args(["report", "--json"]).arg(path));
    let answer: Option<Value> = serde_json::from_slice(&output.stdout).ok();
    answer.and_then(|answer| answer["total_allocations"].as_u64()).unwrap_or(0)
}

#[test]
fn heap_records_on_when_cairn_is_killed() {
    const PAIRS: u64 = 1_000_000;
    for millis in [0, 900] {
        let directory = scratch(&format!("killed_{millis}"));
        compile(&directory, "churn.c", "churn", &["-fno-builtin"]);
        let mut command = cairn();
        // The program has the pipe open: cairn waits for it though its parent has exited.
        let script = format!("./churn {PAIRS} && echo done");
        command.args(["heap", "--quiet", "--children", "sh", "-c", &script]).current_dir(&directory);
        let mut child = command.stdout(std::process::Stdio::piped()).spawn().unwrap();
        let of_churn = |entry: fs::DirEntry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            (name.starts_with("churn.") && name.contains(".cairn")).then(|| entry.path())
        };
        let files = || -> Vec<_> {
            let runs = fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path());
            let inside = runs.filter(|path| path.is_dir()).flat_map(|path| fs::read_dir(path).unwrap());
            inside.filter_map(|entry| of_churn(entry.unwrap())).collect()
        };
        wait_for("a recording", || (!files().is_empty()).then_some(()));
        std::thread::sleep(std::time::Duration::from_millis(millis));
        child.kill().unwrap();
        let mut output = String::new();
        std::io::Read::read_to_string(child.stdout.as_mut().unwrap(), &mut output).unwrap();
        child.wait().unwrap();
        assert!(output.ends_with("done\n"), "{output:?}");
        let files = files();
        // No block is missing from both the drained and the undrained part; blocks that were
        // drained and not read again are in both.
        let found: u64 = files.iter().map(|path| allocations_in(path)).sum();
        assert!((PAIRS..=2 * PAIRS).contains(&found), "{found} in {files:?} after {millis} ms");
    }
}

#[test]
fn a_full_disk_ends_the_recording_and_not_the_program() {
    let directory = scratch("full_disk");
    compile(&directory, "churn.c", "churn", &["-fno-builtin"]);
    fs::create_dir(directory.join("small")).unwrap();
    let script = format!(
        "mount -t tmpfs -o size=6m tmpfs small || exit 77
        {0} heap -o small ./churn 1500000; echo status $?
        {0} report --json small/churn.*.cairn
        mount -o remount,ro small
        {0} heap -o small echo ran; echo status $?
        {0} heap --or-run -o small echo ran; echo status $?",
        env!("CARGO_BIN_EXE_cairn")
    );
    let mut command = Command::new("unshare");
    let shown = Shown::from(run(command.args(["-Urm", "sh", "-c", &script]).current_dir(&directory)));
    let lines: Vec<&str> = shown.output.lines().collect();
    let [first, report, refused, ran, unrecorded] = lines[..] else {
        assert!(lines.is_empty(), "{shown:?}");
        // This kernel lets no process mount a small file system: nothing to check.
        return;
    };
    assert_eq!(first, "status 0", "{shown:?}");
    let report: Value = serde_json::from_str(report).unwrap();
    assert!(report["total_allocations"].as_u64().unwrap() > 10_000, "{shown:?}");
    assert_eq!((refused, ran, unrecorded), ("status 1", "ran", "status 0"), "{shown:?}");
    assert!(shown.errors.contains("Read-only file system"), "{shown:?}");
    assert!(shown.errors.contains("it runs unrecorded"), "{shown:?}");
}

#[test]
fn resident_memory_is_explained_by_blocks_mappings_and_the_rest() {
    let directory = scratch("resident");
    let source = directory.join("resident.c");
    fs::write(
        &source,
        "#include <stdlib.h>\n#include <string.h>\n#include <sys/mman.h>\n#include <unistd.h>\n\
        int main(void) {\n\
        memset(mmap(0, 40 << 20, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 1, 40 << 20);\n\
        memset(malloc(30 << 20), 1, 30 << 20);\n\
        while (access(\"stop\", F_OK) != 0) usleep(5000);\n return 0; }\n",
    )
    .unwrap();
    let program = directory.join("program");
    let compiled =
        Command::new("cc").args(["-g", "-w", "-fno-builtin", "-o"]).arg(&program).arg(&source).status();
    assert!(compiled.unwrap().success());
    let mut command = cairn();
    command.args(["heap", "--quiet", "--mmap", "--", "./program"]).current_dir(&directory);
    let mut child = command.spawn().unwrap();
    // Until it was looked at with all of that.
    let path = wait_for("a recording", || Some(recordings(&directory).first()?.path.clone()));
    let mut heap = LiveHeap::open(&path).unwrap();
    wait_for("a look at its memory", || {
        heap.update().unwrap();
        heap.snapshot().most_resident_bytes.filter(|most| *most > 70 << 20)
    });
    fs::write(directory.join("stop"), "").unwrap();
    assert!(child.wait().unwrap().success());
    let answer = report(&directory, &[]);
    let reported =
        |name: &str| answer["resident"][name].as_u64().unwrap_or_else(|| panic!("{name}: {answer}"));
    let most = answer["most_resident_bytes"].as_u64().unwrap();
    assert!((70 << 20..90 << 20).contains(&most), "{most}");
    assert!((30 << 20..31 << 20).contains(&reported("held_bytes")), "{answer}");
    assert_eq!(reported("mapped_bytes"), 40 << 20);
    assert_eq!(reported("rest_bytes"), most - reported("held_bytes") - reported("mapped_bytes"));
    assert!(reported("page_faults") >= (70 << 20) / 4096 / 512, "{answer}");
    assert_eq!(reported("threads"), 1);
    let text = Shown::from(run(cairn().arg("report").arg(recording(&directory).path)));
    assert!(text.output.contains("40.0 MiB    mapped by main"), "{text:?}");
}

#[test]
fn pool_blocks_are_reported_by_the_allocating_stack() {
    let directory = scratch("pool");
    let program = compile(&directory, "../../../examples/c/pool.c", "pool", &[]);
    let shown = same_as_plain(&directory, &program, &[]);
    assert_eq!(shown.output, "300 sessions remain\n");
    let report = report(&directory, &["--by", "stack", "--cost", "count"]);
    let of = |function: &str| {
        let is_of = |entry: &&Value| {
            let frames = entry["stacks"][0]["frames"].as_array().unwrap();
            frames[0]["function"] == "pool_take"
                && frames[1]["function"] == function
                && frames[2]["function"] == "main"
        };
        let entries: Vec<&Value> = report["top"].as_array().unwrap().iter().filter(is_of).collect();
        assert_eq!(entries.len(), 1, "{function}: {report}");
        let number = |name: &str| entries[0][name].as_u64().unwrap();
        (
            number("allocations"),
            number("allocated_bytes"),
            number("leaked_allocations"),
            number("leaked_bytes"),
        )
    };
    assert_eq!(of("serve_requests"), (5000, 200_000, 0, 0));
    assert_eq!(of("remember_sessions"), (300, 7200, 300, 7200));
}

#[test]
fn a_recording_without_an_allocation_says_why() {
    let directory = scratch("unseen");
    let own = directory.join("own.c");
    fs::write(
        &own,
        "#include <stdlib.h>\n#include <unistd.h>\n\
         #ifdef OWN\n\
         static char pool[1 << 20]; static size_t used;\n\
         void *malloc(size_t size) { used += (size + 15) & ~15ul; return pool + used - ((size + 15) & ~15ul); }\n\
         void free(void *block) { (void)block; }\n\
         #endif\n\
         int main(void) { void *volatile block = malloc(10); free(block); usleep(1000000); return 7; }",
    )
    .unwrap();
    for (name, flags, said) in [
        ("own", &["-DOWN"][..], "note: no allocation was seen: "),
        ("static", &["-static"][..], "it then became another program, which is not recorded: "),
    ] {
        let directory = scratch(&format!("unseen_{name}"));
        let program = directory.join(name);
        let mut compiler = Command::new("cc");
        compiler.args(["-fno-builtin", "-o"]).arg(&program).arg(&own).args(flags);
        let compiled = run(&mut compiler);
        assert!(compiled.status.success(), "{compiled:?}");
        // A start that is looked at before is refused; a script is not.
        let mut command = cairn();
        command.args(["heap", "sh", "-c", "exec \"$0\""]).arg(&program).current_dir(&directory);
        let shown = Shown::from(run(&mut command));
        assert_eq!(shown.status, Some(7), "{shown:?}");
        let said = format!("{said}{}: ", program.display());
        assert!(shown.errors.contains(&said), "{said:?} in {}", shown.errors);
    }
    let directory = scratch_place("unseen_own");
    let recordings = recordings(&directory);
    let unseen = recordings.iter().find(|one| one.events == 0).expect("the program with its own malloc");
    let report = run(cairn().arg("report").arg(&unseen.path));
    let text = String::from_utf8_lossy(&report.stdout);
    assert!(text.contains("note: no allocation was seen: ") && text.contains("malloc of its own"), "{text}");
    let report = run(cairn().args(["report", "--json"]).arg(&unseen.path));
    let report: Value = serde_json::from_slice(&report.stdout).unwrap();
    let findings = report["findings"].as_array().unwrap();
    assert!(
        findings.iter().any(|finding| finding.as_str().unwrap().contains("malloc of its own")),
        "{findings:?}"
    );
    // A file that was replaced meanwhile is no reason.
    let program = directory.join("own");
    fs::remove_file(&program).unwrap();
    fs::copy("/bin/true", &program).unwrap();
    let report = run(cairn().arg("report").arg(&unseen.path));
    let text = String::from_utf8_lossy(&report.stdout);
    assert!(text.contains("note: no allocation was seen\n"), "{text}");
}
