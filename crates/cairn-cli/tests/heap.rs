//! `cairn heap` on small programs: each behaves as it does without, and what is recorded of it is
//! exact.

#![cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
#![allow(clippy::print_stdout, reason = "a test says what it could not check here")]

mod support;

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use cairn_recording::{EndReason, MappingKind, Module, Recording};
use support::{
    Count, Executable, Shown, cairn, compile, executable, recording, recordings, run, same_as_plain,
    same_as_plain_with, scratch,
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
        // The recording has the blocks from before it ended.
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
        // Programs that another program becomes or starts are examined then.
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
    // The limit of the stack holds for the command too, which takes some 256 KiB of it when it is
    // not optimised. So do the others: with some of these it has no memory left while the program
    // runs, with others when it sums up.
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

/// Modules unloaded by another thread must not be read.
///
/// The kernel does not copy the program's memory in this test.
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
    assert_eq!(wrong.errors, "cairn: CAIRN_HEAP: \"sampel=3\" is not an option; nothing is recorded\n");
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
    assert!(options.ends_with("/%n.%p.cairn") && options.contains("/environment-"), "{options}");
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
