//! `cairn heap` on small programs: each behaves as it does without, and what is recorded of it is exact.

#![cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
#![allow(clippy::print_stdout, reason = "a test says what it could not check here")]

mod support;

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use cairn_analysis::heap::{HeapRecording, LiveHeap, Scope};
use cairn_recording::{EndReason, MappingKind, Module, Recording};
use serde_json::Value;
use support::{
    Count, Executable, Shown, cairn, compile, executable, recording, recordings, run, same_as_plain,
    same_as_plain_with, scratch, scratch_place, wait_for,
};

/// Runs a program both ways, and compares its recording with what it says of itself.
fn check(test: &str, source: &str, flags: &[&str], arguments: &[&str]) -> Shown {
    let directory = scratch(test);
    let program = compile(&directory, source, "program", flags);
    let shown = same_as_plain(&directory, &program, arguments);
    recording(&directory).assert_as_expected(&shown);
    shown
}

#[test]
fn every_entry_of_the_allocator_is_seen() {
    check("entry_points", "entry_points.c", &["-fno-builtin"], &[]);
}

#[test]
fn all_forms_of_new_and_delete_are_seen() {
    check("new_delete", "new_delete.cpp", &["-fno-builtin", "-std=c++17"], &[]);
}

#[test]
fn heap_records_calls_before_constructors_and_after_destructors() {
    check("early_late", "early_late.cpp", &["-fno-builtin"], &[]);
}

#[test]
fn heap_counts_an_allocator_that_calls_its_public_names_once() {
    let directory = scratch("foreign");
    compile(&directory, "foreign.c", "libforeign.so", &["-shared", "-fPIC", "-fno-builtin"]);
    let link = format!("-L{}", directory.display());
    let path = format!("-Wl,-rpath,{}", directory.display());
    let flags = ["-fno-builtin", &link, "-Wl,--no-as-needed", "-lforeign", &path];
    let program = compile(&directory, "entry_points.c", "program", &flags);
    let shown = same_as_plain(&directory, &program, &[]);
    recording(&directory).assert_as_expected(&shown);
}

#[test]
fn operator_new_of_other_allocators_is_seen() {
    for library in ["libjemalloc.so.2", "libtcmalloc_minimal.so.4", "libmimalloc.so.2"] {
        let is_here = fs::read_dir(format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH))
            .is_ok_and(|entries| entries.filter_map(Result::ok).any(|entry| entry.file_name() == library));
        if !is_here {
            // Which of them a machine has is its own affair.
            continue;
        }
        let link = format!("-l:{library}");
        let flags = ["-fno-builtin", "-std=c++17", "-Wl,--no-as-needed", &link];
        check(&format!("new_delete_{library}"), "new_delete.cpp", &flags, &[]);
    }
}

#[test]
fn a_program_without_symbols_is_named_with_what_to_do() {
    let directory = scratch("no_symbols");
    let program = compile(&directory, "temporary.c", "stripped", &["-fno-builtin", "-s"]);
    let shown = run(cairn().args(["heap", "--"]).arg(&program).current_dir(&directory));
    let note = "functions without names in stripped: install their debug symbols";
    let errors = String::from_utf8_lossy(&shown.stderr);
    assert!(errors.contains(note), "{errors}");
    let recording = recording(&directory).path;
    let report = |arguments: &[&str]| {
        let output = run(cairn().arg("report").arg(&recording).args(arguments));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert!(report(&[]).contains(note));
    assert!(!report(&["--no-symbols"]).contains("functions without names"));
}

#[test]
fn programs_without_an_index_of_unwind_tables_are_recorded() {
    // As Go links its programs.
    check("no_index", "entry_points.c", &["-fno-builtin", "-Wl,--no-eh-frame-hdr"], &[]);
}

#[test]
fn a_program_with_holes_between_its_segments_is_known_in_each() {
    for (test, kind) in [("holes", "-pie"), ("holes_fixed", "-no-pie")] {
        let directory = scratch(test);
        let flags = ["-fno-builtin", kind, "-Wl,-z,max-page-size=0x200000,-z,separate-code,--build-id"];
        let program = compile(&directory, "entry_points.c", "program", &flags);
        same_as_plain(&directory, &program, &[]);
        let path = recording(&directory).path;
        let recorded = Recording::open(&path).unwrap();
        let own = |module: &&Module| Path::new(std::ffi::OsStr::from_bytes(&module.path)) == program;
        let modules: Vec<_> = recorded.modules().iter().filter(own).collect();
        assert!(!modules.is_empty(), "{:?}", recorded.modules());
        assert!(modules.iter().all(|module| !module.build_id.is_empty()), "{modules:?}");
    }
}

#[test]
fn nothing_is_lost_whatever_the_end() {
    for how in [
        "exit",
        "_exit",
        "quick_exit",
        "exit_group",
        "abort",
        "segv",
        "kill",
        "term",
        "overflow",
        "double_free",
        "pthread_exit",
    ] {
        check(&format!("end_{how}"), "ends.c", &["-fno-builtin", "-O0"], &[how]);
    }
}

#[test]
fn recording_goes_on_in_the_program_that_takes_the_place() {
    for how in ["exec", "execvp", "execle"] {
        let directory = scratch(how);
        let program = compile(&directory, "ends.c", "program", &["-fno-builtin", "-O0"]);
        let shown = same_as_plain(&directory, &program, &[how]);
        assert_eq!(shown.status, Some(5), "{shown:?}");
        let all = recordings(&directory);
        assert_eq!(all.len(), 2, "one for each program");
        assert_eq!(all[0].process, all[1].process);
        let before = all.iter().find(|one| one.count(14001).made > 0).unwrap();
        assert_eq!(before.count(14001), Count { made: 5000, left: 1000 });
        let after = all.iter().find(|one| one.count(14003).made > 0).unwrap();
        assert_eq!(after.count(14003), Count { made: 100, left: 100 });
        assert_eq!(after.count(14001).made, 0);
    }
}

#[test]
fn threads_that_free_each_others_blocks_are_counted_exactly() {
    check("race", "threads.c", &["-fno-builtin"], &["race"]);
}

#[test]
fn threads_may_have_the_smallest_stack() {
    check("small_stacks", "threads.c", &["-fno-builtin"], &["small_stacks"]);
}

#[test]
fn many_threads_come_and_go() {
    check("many_threads", "threads.c", &["-fno-builtin"], &["many"]);
}

#[test]
fn signal_handlers_may_have_the_smallest_stack() {
    check("signal_stack", "threads.c", &["-fno-builtin"], &["signal_stack"]);
}

#[test]
fn threads_are_cancelled_as_ever() {
    let directory = scratch("cancel");
    let program = compile(&directory, "threads.c", "program", &["-fno-builtin"]);
    same_as_plain(&directory, &program, &["cancel"]);
    assert_eq!(recording(&directory).lost, 0);
}

#[test]
fn children_run_unrecorded_and_leave_the_recording_alone() {
    for what in ["fork", "vfork", "spawn", "system", "clone", "daemon", "failing_exec"] {
        let shown = check(&format!("processes_{what}"), "processes.c", &["-fno-builtin"], &[what]);
        assert_eq!(shown.status, Some(0), "{what}: {shown:?}");
    }
}

#[test]
fn children_are_recorded_on_request_each_to_a_file_of_its_own() {
    let directory = scratch("children");
    compile(&directory, "ends.c", "worker", &["-fno-builtin", "-O0"]);
    let script = "./worker exit; ./worker _exit & wait; sh -c './worker quick_exit; :'; exit 12";
    let shown = same_as_plain_with(&directory, "sh".as_ref(), &["-c", script], &["--children"]);
    assert_eq!(shown.status, Some(12));
    let all = recordings(&directory);
    let workers = all.iter().filter(|one| one.count(14001) == Count { made: 5000, left: 1000 }).count();
    assert_eq!(workers, 3, "{:?}", all.iter().map(|one| &one.path).collect::<Vec<_>>());
}

#[test]
fn heap_records_how_a_child_ended_if_it_is_known() {
    for (how, end) in [("exit", EndReason::Exit), ("_exit", EndReason::Gone), ("kill", EndReason::Gone)] {
        let directory = scratch(&format!("child_end_{how}"));
        compile(&directory, "ends.c", "worker", &["-fno-builtin", "-O0"]);
        let script = format!("./worker {how}; :");
        same_as_plain_with(&directory, "sh".as_ref(), &["-c", &script], &["--children"]);
        let all = recordings(&directory);
        let worker = all.iter().find(|one| one.count(14001).made > 0).unwrap();
        let recording = Recording::open(&worker.path).unwrap();
        assert_eq!(recording.end().map(|(reason, _)| reason), Some(end), "{how}");
    }
}

#[test]
fn heap_leaves_environment_signals_and_descriptors_unchanged() {
    for what in ["environment", "descriptors", "signals"] {
        check(&format!("surroundings_{what}"), "surroundings.c", &["-fno-builtin"], &[what]);
    }
}

#[test]
fn a_storm_of_signals_changes_nothing() {
    check("ticks", "surroundings.c", &["-fno-builtin"], &["ticks"]);
}

#[test]
fn sandboxes_and_limits_end_the_recording_and_not_the_program() {
    for what in ["strict", "filter", "limits"] {
        let directory = scratch(&format!("sandbox_{what}"));
        let program = compile(&directory, "surroundings.c", "program", &["-fno-builtin"]);
        let shown = same_as_plain(&directory, &program, &[what]);
        assert_eq!(shown.signal, None, "{shown:?}");
        // What came before is there.
        assert_eq!(recording(&directory).count(17001), Count { made: 100, left: 50 });
    }
}

/// Runs `room.c` both ways, and with its children recorded as well.
fn check_room(what: &str) {
    for options in [&[][..], &["--children"]] {
        let directory = scratch(&format!("room_{what}{}", options.len()));
        let program = compile(&directory, "room.c", "program", &["-fno-builtin"]);
        let shown = same_as_plain_with(&directory, program.as_os_str(), &[what], options);
        assert_eq!(shown.status, Some(0), "{what} {options:?}: {shown:?}");
        let all = recordings(&directory);
        let own = all.iter().find(|one| one.count(19001).made > 0).unwrap();
        own.assert_as_expected(&shown);
    }
}

#[test]
fn heap_leaves_a_program_the_address_space_of_its_own_limit() {
    check_room("limit");
    check_room("limit_in_child");
}

#[test]
fn heap_leaves_a_program_the_data_of_its_own_limit() {
    check_room("limit_data");
    check_room("limit_data_in_child");
}

#[test]
fn heap_adds_little_to_the_memory_that_a_program_locks() {
    check_room("lock");
    check_room("lock_in_child");
}

#[test]
fn heap_does_not_get_a_sandboxed_child_killed() {
    check_room("sandboxed_child");
    check_room("child_of_sandboxed");
}

#[test]
fn heap_leaves_readable_memory_readable() {
    check_room("memory");
}

#[test]
fn heap_leaves_descriptor_2_of_a_child_alone() {
    check_room("data");
}

#[test]
fn heap_takes_any_temporary_directory_or_none() {
    for name in ["a,b", "missing/directory"] {
        let directory = scratch(&format!("temporary_{}", name.len()));
        let temporary = directory.join(name);
        if name == "a,b" {
            fs::create_dir(&temporary).unwrap();
        }
        let program = compile(&directory, "room.c", "program", &["-fno-builtin"]);
        let mut command = cairn();
        command.args(["heap", "--quiet"]).arg(&program).arg("none");
        let shown = Shown::from(run(command.env("TMPDIR", &temporary).current_dir(&directory)));
        assert_eq!((shown.status, shown.errors.as_str()), (Some(0), ""), "{name}");
        recording(&directory).assert_as_expected(&shown);
    }
}

#[test]
fn a_program_with_a_sanitizer_is_refused_or_runs_as_ever() {
    for kind in ["address", "thread"] {
        let directory = scratch(&format!("sanitizer_{kind}"));
        let source = directory.join("program.c");
        fs::write(&source, "int main(void) { return 6; }\n").unwrap();
        let program = directory.join("program");
        let flag = format!("-fsanitize={kind}");
        let mut compiler = Command::new("gcc");
        compiler.arg(&flag).arg(&source).arg("-o").arg(&program);
        if !compiler.output().is_ok_and(|output| output.status.success()) {
            println!("no {kind} sanitizer here");
            continue;
        }
        let plain = Shown::from(run(&mut Command::new(&program)));
        if plain.status != Some(6) {
            println!("the {kind} sanitizer does not run here: {plain:?}");
            continue;
        }
        let shown = Shown::from(run(cairn().arg("heap").arg(&program).current_dir(&directory)));
        assert_eq!(shown.status, Some(2), "{shown:?}");
        assert!(shown.errors.contains("built with a sanitizer"), "{shown:?}");
        // What another program becomes or starts is looked at then.
        for options in [&["--quiet"][..], &["--quiet", "--children"]] {
            for script in ["exec ./program", "./program; exit $?"] {
                let mut command = cairn();
                command.arg("heap").args(options).args(["sh", "-c", script]);
                let shown = Shown::from(run(command.current_dir(&directory)));
                assert_eq!(
                    (shown.status, shown.output.as_str()),
                    (Some(6), ""),
                    "{options:?} {script}: {shown:?}"
                );
            }
        }
    }
}

#[test]
fn heap_adds_no_library_to_programs_of_another_loader() {
    let directory = scratch("other_loader");
    let loader = directory.join("ld-other.so.1");
    std::os::unix::fs::symlink("/lib64/ld-linux-x86-64.so.2", &loader).unwrap();
    let flag = format!("-Wl,--dynamic-linker={}", loader.display());
    compile(&directory, "room.c", "other", &["-fno-builtin", &flag]);
    executable(&directory.join("script"), &Executable::Script("#!./other none\n"));
    // All ways to start it, and what the programs that it starts find.
    let python = "import os,sys; os.execv('./other', ['other', 'environment'])";
    let spawn = "import os; os.waitpid(os.posix_spawnp('other', ['other', 'environment'], os.environ), 0)";
    let scripts = [
        "exec ./other environment".to_owned(),
        "./other environment".to_owned(),
        "PATH=$PWD:$PATH; export PATH; other environment; :".to_owned(),
        "./script; :".to_owned(),
        format!("python3 -c \"{python}\""),
        format!("PATH=$PWD:$PATH python3 -c \"{spawn}\""),
    ];
    for script in scripts {
        for options in [&[][..], &["--children"]] {
            let shown = same_as_plain_with(&directory, "sh".as_ref(), &["-c", &script], options);
            assert!(shown.output.contains("expect 19001"), "{script}: {shown:?}");
            for one in recordings(&directory) {
                assert_eq!(one.count(19001).made, 0, "{script}: {}", one.path.display());
                fs::remove_file(&one.path).unwrap();
            }
        }
    }
}

#[test]
fn heap_hides_an_unreadable_library_after_a_change_of_user() {
    let is_root = run(Command::new("id").arg("-u")).stdout == b"0\n";
    if !is_root || Command::new("setpriv").arg("--version").output().is_err() {
        println!("only root can become another user");
        return;
    }
    let directory = scratch("other_user");
    let change = "setpriv --reuid 65534 --regid 65534 --clear-groups";
    for script in [format!("exec {change} id -u"), format!("{change} sh -c 'id -u; :'; :")] {
        for options in [&["--quiet"][..], &["--quiet", "--children"]] {
            let mut command = cairn();
            command.arg("heap").args(options).args(["sh", "-c", &script]);
            // There only its owner finds it.
            let cache = directory.join("cache");
            let shown = Shown::from(run(command.env("XDG_CACHE_HOME", &cache).current_dir(&directory)));
            assert_eq!(
                (shown.status, shown.output.as_str(), shown.errors.as_str()),
                (Some(0), "65534\n", "")
            );
        }
    }
}

#[test]
fn heap_prints_nothing_over_a_full_screen_program() {
    if Command::new("script").arg("--version").output().is_err() {
        println!("no `script` here");
        return;
    }
    let directory = scratch("terminal");
    // Before the program has chosen, there may be a line or none.
    for (modes, is_shown) in [("icanon", true), ("-icanon", false)] {
        let line =
            format!("stty -icanon; {} heap sh -c 'stty {modes}; sleep 1'", env!("CARGO_BIN_EXE_cairn"));
        let shown = Shown::from(run(Command::new("script")
            .args(["-qec", &line, "/dev/null"])
            .current_dir(&directory)));
        assert_eq!(shown.status, Some(0), "{shown:?}");
        assert_eq!(shown.output.contains("allocations/s"), is_shown, "{modes}: {shown:?}");
    }
}

#[test]
fn limits_of_the_shell_change_nothing() {
    // The limit of the stack holds for the command too, which takes some 256 KiB of it when it is not optimised. So do the others: with
    // some of these it has no memory left while the program runs, with others when it sums up.
    let limits = [
        "-v 200000",
        "-v 140000",
        "-v 100000",
        "-v 60000",
        "-d 60000",
        "-d 30000",
        "-n 4",
        "-f 0",
        "-f 100",
        "-s 512",
    ];
    for limit in limits {
        let directory = scratch(&format!("limit{}", limit.replace(' ', "_")));
        let program = compile(&directory, "entry_points.c", "program", &["-fno-builtin"]);
        let plain = format!("ulimit {limit}; exec {}", program.display());
        let recorded = format!(
            "ulimit {limit}; CAIRN_HEAP=off; exec \"$0\" heap --quiet --or-run {}",
            program.display()
        );
        let plain = Shown::from(run(Command::new("bash").args(["-c", &plain]).current_dir(&directory)));
        let cairn = env!("CARGO_BIN_EXE_cairn");
        let recorded =
            Shown::from(run(Command::new("bash").args(["-c", &recorded, cairn]).current_dir(&directory)));
        assert_eq!(plain.output, recorded.output, "{limit}: {recorded:?}");
        assert_eq!((plain.status, plain.signal), (recorded.status, recorded.signal), "{limit}");
    }
}

/// The program whose threads load and unload two modules, and what is asked of it.
fn loading_storm(directory: &Path) -> (PathBuf, [String; 3]) {
    let program = compile(directory, "loader.c", "program", &["-fno-builtin"]);
    let module = |name: &str, flags: &[&str]| {
        let flags = [&["-shared", "-fPIC", "-fno-builtin"], flags].concat();
        compile(directory, "module.c", name, &flags).to_str().unwrap().to_owned()
    };
    (program, ["storm".to_owned(), module("libfirst.so", &[]), module("libsecond.so", &["-DSIZE=18003"])])
}

#[test]
fn modules_come_and_go_while_threads_allocate() {
    let directory = scratch("modules");
    let (program, arguments) = loading_storm(&directory);
    let shown = same_as_plain(&directory, &program, &arguments.each_ref().map(String::as_str));
    let recording = recording(&directory);
    recording.assert_as_expected(&shown);
    // The two threads may meet in one load, so there are fewer loads than calls.
    let loads = recording.modules_loaded.iter().filter(|path| path.contains("libfirst")).count();
    assert!(loads > 1, "{loads} loads of one module, {} unloads", recording.modules_unloaded);
    assert!(recording.modules_unloaded > 2);
}

/// Where the kernel does not copy the program's memory, modules that another thread unloads must not be read either.
#[test]
fn modules_come_and_go_where_reading_own_memory_is_forbidden() {
    let directory = scratch("confined");
    let confined = compile(&directory, "confined.c", "confined", &[]);
    let (program, arguments) = loading_storm(&directory);
    for _ in 0..3 {
        let mut command = Command::new(&confined);
        command.arg(env!("CARGO_BIN_EXE_cairn")).args(["heap", "--quiet"]);
        let shown = Shown::from(run(command.arg(&program).args(&arguments).current_dir(&directory)));
        assert_eq!((shown.status, shown.signal), (Some(0), None), "{shown:?}");
        let recording = recording(&directory);
        recording.assert_as_expected(&shown);
        assert!(recording.modules_unloaded > 2);
        fs::remove_file(recording.path).unwrap();
    }
}

#[test]
fn libraries_are_found_by_the_path_of_the_one_that_opens_them() {
    let directory = scratch("caller");
    let hidden = directory.join("hidden");
    fs::create_dir_all(&hidden).unwrap();
    compile(&hidden, "inner.c", "libinner.so", &["-shared", "-fPIC"]);
    compile(&directory, "outer.c", "libouter.so", &["-shared", "-fPIC", "-Wl,-rpath,$ORIGIN/hidden"]);
    compile(&directory, "module.c", "libmodule.so", &["-shared", "-fPIC", "-fno-builtin"]);
    let program = compile(&directory, "loader.c", "program", &["-fno-builtin"]);
    let shown = same_as_plain(&directory, &program, &["caller", "./libouter.so", "./libmodule.so"]);
    assert!(shown.output.contains("found by the caller's path 42"), "{shown:?}");
}

#[test]
fn mappings_are_recorded_on_request() {
    let directory = scratch("mappings");
    let program = compile(&directory, "mappings.c", "program", &["-fno-builtin"]);
    same_as_plain_with(&directory, program.as_os_str(), &[], &["--mmap"]);
    let page = 4096;
    let wanted = [
        (MappingKind::Map, 5 << 20),
        (MappingKind::Map, page),
        (MappingKind::Unmap, 5 << 20),
        (MappingKind::Map, 7 << 20),
        (MappingKind::Unmap, page),
        (MappingKind::Grow, 65536),
        (MappingKind::Shrink, 65536),
    ];
    assert_eq!(recording(&directory).mappings, wanted);
    fs::remove_file(&recording(&directory).path).unwrap();
    same_as_plain(&directory, &program, &[]);
    assert_eq!(recording(&directory).mappings, []);
}

#[test]
fn without_the_command_the_library_records_by_itself() {
    let directory = scratch("by_itself");
    let program = compile(&directory, "ends.c", "program", &["-fno-builtin", "-O0"]);
    // The command unpacks it.
    run(cairn().args(["heap", "--quiet", "true"]).current_dir(&directory));
    for entry in fs::read_dir(&directory).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|ending| ending == "cairn") {
            fs::remove_file(path).unwrap();
        }
    }
    let library = library(&directory);
    let shown = Shown::from(run(Command::new(&program)
        .arg("exec")
        .env("LD_PRELOAD", &library)
        .current_dir(&directory)));
    assert_eq!((shown.status, shown.errors.as_str()), (Some(5), ""));
    let all = recordings(&directory);
    assert_eq!(all.iter().map(|one| one.count(14001).made).sum::<u64>(), 5000);
    assert_eq!(all.iter().map(|one| one.count(14003).made).sum::<u64>(), 100);
    let first = all.iter().find(|one| one.count(14001).made > 0).unwrap();
    let name = first.path.file_name().unwrap().to_string_lossy().into_owned();
    assert_eq!(name, format!("program.{}.cairn", first.process).as_str());

    let wrong = Shown::from(run(Command::new(&program)
        .arg("exit")
        .env("LD_PRELOAD", &library)
        .env("CAIRN_HEAP", "sampel=3")
        .current_dir(&directory)));
    assert_eq!(wrong.status, Some(4));
    assert_eq!(wrong.errors, "cairn: CAIRN_HEAP: \"sampel=3\" makes no sense; nothing is recorded\n");
    let unwritable = Shown::from(run(Command::new(&program)
        .arg("exit")
        .env("LD_PRELOAD", &library)
        .env("CAIRN_HEAP", "output=/nonexistent/x.cairn")));
    assert_eq!(unwritable.status, Some(4));
    assert!(
        unwritable.errors.contains("/nonexistent/x.cairn: no such directory; nothing is recorded"),
        "{unwritable:?}"
    );
}

/// The library as the command unpacks it.
fn library(directory: &Path) -> PathBuf {
    let output = directory.join("environment-%p");
    let mut command = cairn();
    command.args(["heap", "--quiet", "--children", "-o"]).arg(&output).arg("env");
    let text = String::from_utf8(run(&mut command).stdout).unwrap();
    let list = text.lines().find_map(|line| line.strip_prefix("LD_PRELOAD=")).unwrap();
    let options = text.lines().find_map(|line| line.strip_prefix("CAIRN_HEAP=")).unwrap();
    assert!(options.ends_with("environment-%p") && options.contains("output=/"), "{options}");
    list.split(':').next().unwrap().into()
}

const LOADER: &str =
    if cfg!(target_arch = "aarch64") { "/lib/ld-linux-aarch64.so.1" } else { "/lib64/ld-linux-x86-64.so.2" };

#[test]
fn heap_refuses_unrecordable_programs_before_they_run() {
    let directory = scratch("refused");
    let own = directory.join("own.c");
    fs::write(&own, "#include <stddef.h>\nvoid *malloc(size_t n) { static char b[1 << 20]; static size_t at; char *p = b + at; at += (n + 15) & ~15UL; return p; }\nvoid free(void *p) { (void)p; }\nint main(void) { return malloc(3) == 0; }\n").unwrap();
    compile(&directory, "entry_points.c", "static", &["-static", "-fno-builtin"]);
    assert!(
        Command::new("cc")
            .args(["-w", "-fno-builtin", "-o"])
            .arg(directory.join("own"))
            .arg(&own)
            .status()
            .unwrap()
            .success()
    );
    let program = compile(&directory, "entry_points.c", "set_id", &["-fno-builtin"]);
    let mut elf32 = fs::read(&program).unwrap();
    elf32[4] = 1;
    elf32[18] = 3;
    fs::write(directory.join("elf32"), &elf32).unwrap();
    fs::write(directory.join("cut"), &fs::read(&program).unwrap()[..19]).unwrap();
    fs::write(directory.join("lonely"), "#!/no/such/interpreter\n").unwrap();
    fs::write(directory.join("text"), "not run").unwrap();
    for name in ["elf32", "cut", "lonely"] {
        fs::set_permissions(directory.join(name), fs::Permissions::from_mode(0o755)).unwrap();
    }
    for (name, status, reason) in [
        ("./static", 2, "linked statically"),
        (LOADER, 2, "the loader itself"),
        ("./own", 2, "malloc of its own"),
        ("./elf32", 2, "32-bit x86"),
        ("./cut", 126, "header is cut"),
        ("./lonely", 126, "/no/such/interpreter"),
        ("./text", 126, "Permission denied"),
        ("./absent", 127, "no such program"),
        ("no-such-command-anywhere", 127, "no such program"),
        (".", 126, "directory"),
    ] {
        let shown = Shown::from(run(cairn().args(["heap", name]).current_dir(&directory)));
        assert_eq!(shown.status, Some(status), "{name}: {shown:?}");
        assert!(shown.errors.contains(reason), "{name}: {shown:?}");
        assert_eq!(shown.output, "", "{name} was run");
    }
    let shown = Shown::from(run(cairn().args(["heap", "--or-run", "./static"]).current_dir(&directory)));
    assert_eq!(shown.status, Some(0));
    assert!(shown.output.contains("expect") && shown.errors.contains("runs unrecorded"), "{shown:?}");
}

#[test]
fn heap_refuses_unwritable_output_before_the_program_runs() {
    let directory = scratch("unwritable");
    for output in ["/nonexistent/x.cairn", "/proc/x.cairn"] {
        let shown =
            Shown::from(run(cairn().args(["heap", "-o", output, "echo", "ran"]).current_dir(&directory)));
        assert_eq!((shown.status, shown.output.as_str()), (Some(1), ""), "{shown:?}");
        assert!(shown.errors.contains("nothing can be recorded there"), "{shown:?}");
    }
}

#[test]
fn heap_creates_an_output_directory_that_ends_with_a_slash() {
    let directory = scratch("made_directory");
    for process in 1..=2 {
        let shown =
            Shown::from(run(cairn().args(["heap", "-q", "-o", "new/one/", "true"]).current_dir(&directory)));
        assert_eq!(shown.status, Some(0), "{shown:?}");
        assert_eq!(fs::read_dir(directory.join("new/one")).unwrap().count(), process);
    }
}

#[test]
fn scripts_are_recorded_as_their_interpreter() {
    let directory = scratch("scripts");
    let script = directory.join("with_line");
    executable(&script, &Executable::Script("#!/bin/sh\necho \"$0 $1\"; exit 3\n"));
    let shown = same_as_plain_with(&directory, script.as_os_str(), &["x y"], &[]);
    assert_eq!(shown.status, Some(3));
    assert!(recording(&directory).events > 0);
}

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
    let script = "sleep 0.5; exec ./churn 3000000 1";
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
    // Outside of the target directory, which others may be unable to reach; with a blank and a bracket in the name.
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
        // What is recorded between start and stop must be there.
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
    // It allocates when the program that started it has ended, which that does when the child's recording has begun.
    let script = "(x=$(printf a); while kill -0 $$; do sleep 0.05; done 2>/dev/null; exec ./worker exit) & \
                  while ! ls | grep -q \"[.]$![.]cairn$\"; do sleep 0.05; done; exit 5";
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
        assert!(Recording::open(&worker.path).unwrap().summary().is_some(), "left as the program wrote it");
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
    let told = report(&directory, &["--by", "time"]);
    let samples = told["usage"].as_array().unwrap();
    assert!(samples.iter().all(|sample| sample["resident_bytes"].as_u64() > Some(0)), "{samples:?}");
    let most = samples.iter().filter_map(|sample| sample["resident_bytes"].as_u64()).max();
    assert_eq!(most, told["most_resident_bytes"].as_u64());
}

/// What `cairn report --json` says of the recording in `directory`, with `arguments`.
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

/// The summary reads all events: of many it leaves the sums in the recording, for whoever asks next.
#[test]
fn heap_stores_sums_in_recordings_of_many_events() {
    for (pairs, arguments, is_kept) in
        [("1000100", &[][..], true), ("1000100", &["--quiet"], false), ("1000", &[], false)]
    {
        let directory = scratch(&format!("sums-{pairs}-{}", arguments.len()));
        let program = compile(&directory, "churn.c", "program", &["-fno-builtin", "-O1", "-pthread"]);
        let path = directory.join("churn.cairn");
        let mut command = cairn();
        command.arg("heap").args(arguments).arg("-o").arg(&path).arg(&program).args([pairs, "1"]);
        assert!(command.output().unwrap().status.success());
        let heap = HeapRecording::new(Recording::open(&path).unwrap());
        assert_eq!(heap.keeps_sums().unwrap(), is_kept, "{pairs} {arguments:?}");
        let read = heap.read(Scope::default()).unwrap();
        assert!(read.profile.totals.allocations >= pairs.parse().unwrap());
        fs::remove_file(path).unwrap();
    }
}

#[test]
fn a_chain_of_programs_has_one_line_for_all_but_the_last() {
    let directory = scratch("chain");
    let script = "exec sh -c 'exec env sh -c \"exec env true\"'";
    let shown = Shown::from(run(cairn().args(["heap", "sh", "-c", script]).current_dir(&directory)));
    let lines: Vec<&str> = shown.errors.lines().filter(|line| line.starts_with("cairn: ")).collect();
    let [before, last] = lines[..] else { panic!("{shown:?}") };
    assert!(before.starts_with("cairn: before, it was 5 other programs: sh."), "{before}");
    assert!(before.ends_with(".cairn and 2 more"), "{before}");
    assert!(last.starts_with("cairn: process ") && last.contains("/true."), "{last}");
    assert_eq!(recordings(&directory).len(), 6);
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
        // What a child does is in its own file only.
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
        // What keeps the pipe open is the program: it is waited for though its parent is gone.
        let script = format!("./churn {PAIRS} && echo done");
        command.args(["heap", "--quiet", "--children", "sh", "-c", &script]).current_dir(&directory);
        let mut child = command.stdout(std::process::Stdio::piped()).spawn().unwrap();
        let of_churn = |entry: fs::DirEntry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            (name.starts_with("churn.") && name.contains(".cairn")).then(|| entry.path())
        };
        let files = || -> Vec<_> {
            fs::read_dir(&directory).unwrap().filter_map(|entry| of_churn(entry.unwrap())).collect()
        };
        wait_for("a recording", || (!files().is_empty()).then_some(()));
        std::thread::sleep(std::time::Duration::from_millis(millis));
        child.kill().unwrap();
        let mut output = String::new();
        std::io::Read::read_to_string(child.stdout.as_mut().unwrap(), &mut output).unwrap();
        child.wait().unwrap();
        assert!(output.ends_with("done\n"), "{output:?}");
        let files = files();
        // What was drained and what was not: nothing is in neither; blocks that were drained and not taken again are in both.
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
    let told = |name: &str| answer["resident"][name].as_u64().unwrap_or_else(|| panic!("{name}: {answer}"));
    let most = answer["most_resident_bytes"].as_u64().unwrap();
    assert!((70 << 20..90 << 20).contains(&most), "{most}");
    assert!((30 << 20..31 << 20).contains(&told("held_bytes")), "{answer}");
    assert_eq!(told("mapped_bytes"), 40 << 20);
    assert_eq!(told("rest_bytes"), most - told("held_bytes") - told("mapped_bytes"));
    assert!(told("page_faults") >= (70 << 20) / 4096 / 512, "{answer}");
    assert_eq!(told("threads"), 1);
    let text = Shown::from(run(cairn().arg("report").arg(recording(&directory).path)));
    assert!(text.output.contains("40.0 MiB    mapped by main"), "{text:?}");
}

#[test]
fn pool_blocks_are_reported_by_the_allocating_stack() {
    let directory = scratch("pool");
    let program = compile(&directory, "../../../examples/c/pool.c", "pool", &[]);
    let shown = same_as_plain(&directory, &program, &[]);
    assert_eq!(shown.output, "300 sessions are kept\n");
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
        ("static", &["-static"][..], "it then became another program, of which nothing is recorded: "),
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
    // Where the file is another one by now, it is no reason.
    let program = directory.join("own");
    fs::remove_file(&program).unwrap();
    fs::copy("/bin/true", &program).unwrap();
    let report = run(cairn().arg("report").arg(&unseen.path));
    let text = String::from_utf8_lossy(&report.stdout);
    assert!(text.contains("note: no allocation was seen\n"), "{text}");
}
