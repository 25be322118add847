//! Cores that gdb's `gcore` and the kernel write of real programs: each module is listed and each
//! frame is named, with any coredump filter. No name is given if no evidence identifies the build
//! that ran.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(clippy::print_stdout, reason = "a test says what it could not check here")]

#[path = "../../cairn-memory/tests/support/asleep.rs"]
mod asleep;
#[allow(dead_code, reason = "the readers of recordings are for other tests")]
mod support;

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use cairn_memory::image::{FileState, Image, ImageModule, OpenOptions};
use serde_json::Value;
use support::{cairn, scratch, workspace};

/// Bits of the coredump filter that dump a program's first page.
///
/// They are private file mappings and ELF headers.
const DUMPS_HEADERS: u32 = 0x04 | 0x10;
const DUMPS_STACKS: u32 = 0x01;

fn is_here(program: &str) -> bool {
    let is_here = Command::new("which").arg(program).output().is_ok_and(|found| found.status.success());
    if !is_here {
        println!("{program} is not here");
    }
    is_here
}

fn compile(directory: &Path, flags: &[&str]) -> PathBuf {
    let program = directory.join("waiting");
    let mut compiler = Command::new("cc");
    compiler.args(["-g", "-pthread", "-Wl,--build-id"]).args(flags);
    compiler.arg(workspace().join("fixtures/programs/waiting.c")).arg("-o").arg(&program);
    assert!(compiler.status().unwrap().success());
    program
}

/// A program that waits, ended with this value.
struct Waiting(Child);

impl Waiting {
    fn start(program: &Path, directory: &Path) -> Self {
        // The limit of this test's own process may be 0.
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -c unlimited; exec \"$0\""]).arg(program);
        let mut child = command.current_dir(directory).stdout(Stdio::piped()).spawn().unwrap();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
        asleep::wait_until_asleep(child.id());
        Self(child)
    }

    fn set_filter(&self, filter: u32) {
        fs::write(format!("/proc/{}/coredump_filter", self.0.id()), format!("{filter:#x}")).unwrap();
    }

    /// The files that it runs code of, as the kernel lists them.
    fn modules(&self) -> BTreeSet<PathBuf> {
        let maps = fs::read_to_string(format!("/proc/{}/maps", self.0.id())).unwrap();
        let code = maps.lines().filter(|line| line.contains(" r-xp ") && line.contains('/'));
        code.map(|line| PathBuf::from(&line[line.find('/').unwrap()..])).collect()
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn gdb(arguments: &[&str], directory: &Path) {
    let output =
        Command::new("gdb").args(["-nx", "-q", "-batch"]).args(arguments).current_dir(directory).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Returns the JSON of `cairn core --stacks --json`, its exit code, and its standard error.
fn answer(core: &Path) -> (Value, i32, String) {
    let output = cairn().args(["core", "--json", "--stacks", "--no-cache"]).arg(core).output().unwrap();
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    let answer = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {words}"));
    (answer, output.status.code().unwrap(), words)
}

/// The functions of all threads, innermost first.
fn functions(answer: &Value) -> Vec<String> {
    let threads = answer["threads"].as_array().unwrap().iter();
    let frames = threads.flat_map(|thread| thread["frames"].as_array().unwrap());
    frames.filter_map(|frame| Some(frame["function"].as_str()?.to_owned())).collect()
}

fn paths(answer: &Value) -> BTreeSet<PathBuf> {
    let modules = answer["modules"].as_array().unwrap().iter().map(|module| module["path"].as_str().unwrap());
    modules.filter(|path| path.starts_with('/')).map(PathBuf::from).collect()
}

/// All that the program's own threads are in, which the source says.
const OWN_FUNCTIONS: [&str; 5] = ["main", "wait_for_worker", "work", "wait_for_work", "wait_inlined"];

fn assert_names(answer: &Value, what: &str) {
    let functions = functions(answer);
    for expected in OWN_FUNCTIONS {
        assert!(functions.iter().any(|name| name == expected), "{what}: {expected} of {functions:?}");
    }
    let ends = answer["threads"].as_array().unwrap().iter().map(|thread| thread["end"].as_str().unwrap());
    assert_eq!(ends.collect::<Vec<_>>(), ["end of stack", "end of stack"], "{what}");
}

// Failed with: [vdso] and ld.so of four modules; no function of either thread, "no unwind
// information".
#[test]
fn gcore_lists_each_module_and_names_each_frame() {
    if !is_here("gcore") {
        return;
    }
    let directory = scratch("core_gdb_gcore");
    let waiting = Waiting::start(&compile(&directory, &["-O2"]), &directory);
    let process = waiting.0.id().to_string();
    let core = directory.join(format!("core.{process}"));
    let made = Command::new("gcore").arg("-o").arg(directory.join("core")).arg(&process).output().unwrap();
    assert!(core.is_file(), "{}", String::from_utf8_lossy(&made.stderr));
    let (answer, code, words) = answer(&core);
    assert_eq!((code, words.as_str()), (0, ""));
    assert_eq!(paths(&answer), waiting.modules());
    assert!(answer["modules"].as_array().unwrap().iter().all(|module| {
        module["file"] == "same" || module["path"].as_str().is_some_and(|path| path.starts_with('['))
    }));
    assert_names(&answer, "gcore");
    fs::remove_dir_all(&directory).unwrap();
}

// Failed with: no libc.so.6; the others because gdb had written a breakpoint into their code.
#[test]
fn gcore_at_a_breakpoint_lists_each_module() {
    if !is_here("gdb") {
        return;
    }
    let directory = scratch("core_gdb_breakpoint");
    let program = compile(&directory, &["-O0"]);
    let core = directory.join("at.core");
    let save = format!("gcore {}", core.display());
    let program = program.to_str().unwrap();
    let own = ["-ex", "break wait_for_worker", "-ex", "run", "-ex", &save, "-ex", "kill", program];
    gdb(&[&["-ex", "set debuginfod enabled off"], &own[..]].concat(), &directory);
    let (answer, _, words) = answer(&core);
    let names: BTreeSet<String> = paths(&answer)
        .iter()
        .map(|path| path.file_name().unwrap().to_str().unwrap().split('.').next().unwrap().to_owned())
        .collect();
    assert_eq!(names, ["ld-linux-x86-64", "libc", "waiting"].map(str::to_owned).into(), "{words}");
    let frames = functions(&answer);
    assert_eq!(frames[..2], ["wait_for_worker", "main"], "{frames:?} {words}");
    fs::remove_dir_all(&directory).unwrap();
}

/// Checks that the modules of a core agree with the kernel's list.
///
/// The filter decides whether they are known to be the files on disk.
fn check_modules(core: &Path, filter: u32, expected: &BTreeSet<PathBuf>) {
    let image = Image::open(core, &OpenOptions::default()).unwrap();
    let is_file = |module: &&ImageModule| module.path.starts_with("/");
    let paths: BTreeSet<PathBuf> =
        image.modules().iter().filter(is_file).map(|module| module.path.clone()).collect();
    assert_eq!(&paths, expected, "{}", core.display());
    for module in image.modules().iter().filter(is_file) {
        let is_same = matches!(module.file, FileState::Same(_));
        let has_header = filter & DUMPS_HEADERS != 0;
        assert_eq!((module.is_identified, is_same), (has_header, has_header), "{filter:#x} {module:?}");
    }
}

/// Checks the names: present if the filter dumps stacks and headers.
///
/// Without headers there are none, and a message gives the reason.
fn check_names(core: &Path, filter: u32) {
    let what = format!("{} {filter:#x}", core.display());
    let (answer, code, words) = answer(core);
    if filter & DUMPS_HEADERS == 0 {
        let is_place = |name: &String| name.contains("+0x") || name.starts_with("0x");
        assert!(functions(&answer).iter().all(is_place), "{what}: {:?}", functions(&answer));
        assert_eq!(code, 3, "{what}: {words}");
        assert!(words.contains("nothing in the image says which build of"), "{what}: {words}");
    } else if filter & DUMPS_STACKS != 0 {
        assert_names(&answer, &what);
        assert_eq!(code, 0, "{what}: {words}");
    }
}

/// Filters that differ in what they dump of a program.
const NAMED_FILTERS: [u32; 7] = [0x00, 0x01, 0x03, 0x05, 0x11, 0x33, 0x7f];

// Failed with: [vdso] alone for 32 of 128 filters, [vdso] and ld.so for 32 others; all four modules
// only with filters that dump private file mappings.
#[test]
fn gcore_with_each_coredump_filter_lists_the_modules() {
    if !is_here("gdb") {
        return;
    }
    let directory = scratch("core_gdb_filters");
    let waiting = Waiting::start(&compile(&directory, &["-O2"]), &directory);
    let script = directory.join("save.py");
    // One session for all cores: starting gdb takes longer than all it does here.
    let lines = format!(
        "import gdb\nfor bits in range(128):\n    \
         open('/proc/{}/coredump_filter', 'w').write(hex(bits))\n    gdb.execute('gcore {}/core.%d' % bits)\n",
        waiting.0.id(),
        directory.display()
    );
    fs::write(&script, lines).unwrap();
    gdb(&["-p", &waiting.0.id().to_string(), "-x", script.to_str().unwrap()], &directory);
    for filter in 0..128 {
        check_modules(&directory.join(format!("core.{filter}")), filter, &waiting.modules());
    }
    for filter in NAMED_FILTERS {
        check_names(&directory.join(format!("core.{filter}")), filter);
    }
    fs::remove_dir_all(&directory).unwrap();
}

/// Reports whether the kernel writes a core into the directory of the program.
///
/// The setting belongs to the machine, and this test does not change it.
fn kernel_writes_cores() -> bool {
    let pattern = fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default();
    let is_plain = !pattern.is_empty() && !pattern.starts_with('|') && !pattern.contains(['/', '%']);
    if !is_plain {
        println!("cores of the kernel go elsewhere: {pattern}");
    }
    is_plain
}

/// The core that the kernel wrote of a process in its directory.
fn core_of(child: &mut Child, directory: &Path) -> Option<PathBuf> {
    let process = child.id();
    let status = child.wait().unwrap();
    if !status.core_dumped() {
        println!("the kernel wrote no core: {status}");
        return None;
    }
    let pattern = fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap();
    let pattern = pattern.trim();
    let names = [pattern.to_owned(), format!("{pattern}.{process}")];
    names.iter().map(|name| directory.join(name)).find(|core| core.is_file())
}

// Failed with: __libc_pause from the file on disk, of whatever build, for each filter without
// headers.
#[test]
fn kernel_cores_with_each_coredump_filter_list_the_modules() {
    if !kernel_writes_cores() {
        return;
    }
    let directory = scratch("core_gdb_kernel");
    let program = compile(&directory, &["-O2"]);
    for filter in 0..128 {
        let mut waiting = Waiting::start(&program, &directory);
        waiting.set_filter(filter);
        let expected = waiting.modules();
        let process = waiting.0.id().to_string();
        assert!(Command::new("kill").args(["-SEGV", &process]).status().unwrap().success());
        let Some(core) = core_of(&mut waiting.0, &directory) else { return };
        check_modules(&core, filter, &expected);
        if NAMED_FILTERS.contains(&filter) {
            check_names(&core, filter);
        }
        fs::remove_file(core).unwrap();
    }
    fs::remove_dir_all(&directory).unwrap();
}

// Failed with: no module of the program, so nothing was said of the other build.
#[test]
fn gcore_of_a_program_built_anew_gives_no_names() {
    if !is_here("gdb") {
        return;
    }
    let directory = scratch("core_gdb_replaced");
    let program = compile(&directory, &["-O2"]);
    let waiting = Waiting::start(&program, &directory);
    for (name, filter) in [("with", 0x33), ("without", 0x01)] {
        waiting.set_filter(filter);
        let save = format!("gcore {}", directory.join(name).display());
        gdb(&["-p", &waiting.0.id().to_string(), "-ex", &save], &directory);
    }
    fs::remove_file(&program).unwrap();
    compile(&directory, &["-O0", "-DANOTHER_BUILD"]);
    for (name, expected) in
        [("with", "is of a different build than the one that ran"), ("without", "which build of")]
    {
        let (answer, code, words) = answer(&directory.join(name));
        assert_eq!(code, 3, "{name}");
        let own = words.lines().filter(|line| line.contains("core_gdb_replaced/waiting"));
        assert!(own.clone().any(|line| line.contains(expected)), "{name}: {words}");
        let functions = functions(&answer);
        assert!(
            !functions.iter().any(|name| OWN_FUNCTIONS.contains(&name.as_str())),
            "{name}: {functions:?}"
        );
    }
    fs::remove_dir_all(&directory).unwrap();
}

/// Runs a program until it crashes, and gives what is in its core.
fn crash(command: &mut Command, directory: &Path) -> Option<Value> {
    let mut shell = Command::new("sh");
    shell.args(["-c", "ulimit -c unlimited; exec \"$0\" \"$@\""]).arg(command.get_program());
    shell.args(command.get_args()).current_dir(directory);
    let mut child = shell.stdout(Stdio::null()).stderr(Stdio::null()).stdin(Stdio::null()).spawn().unwrap();
    let core = core_of(&mut child, directory)?;
    let (answer, code, words) = answer(&core);
    assert_eq!((code, answer["signal"].as_u64()), (0, Some(11)), "{words}");
    Some(answer)
}

/// The names of the first thread's frames, innermost first; `module+offset` without symbols.
fn stack(answer: &Value) -> Vec<String> {
    let frames = answer["threads"][0]["frames"].as_array().unwrap().iter();
    frames.map(|frame| frame["function"].as_str().unwrap_or_default().to_owned()).collect()
}

/// True when the stack has these names in this order, others between them.
fn has_in_order(stack: &[String], names: &[&str]) -> bool {
    let mut frames = stack.iter();
    names.iter().all(|name| frames.any(|frame| frame.contains(name)))
}

#[test]
fn a_crash_of_python_is_named_down_to_main() {
    if !kernel_writes_cores() || !is_here("/usr/bin/python3") {
        return;
    }
    let directory = scratch("core_gdb_python");
    let mut python = Command::new("/usr/bin/python3");
    python.args(["-c", "import ctypes; ctypes.string_at(16)"]);
    let Some(answer) = crash(&mut python, &directory) else { return };
    assert_eq!(answer["fault_address"], "0x10");
    let stack = stack(&answer);
    assert!(
        has_in_order(&stack, &["ffi_call", "_PyEval_EvalFrameDefault", "Py_BytesMain", "__libc_start"]),
        "{stack:?}"
    );
    assert_eq!(answer["threads"][0]["end"], "end of stack", "{stack:?}");
    assert!(answer["heap"]["in_use_blocks"].as_u64().unwrap() > 100);
    fs::remove_dir_all(&directory).unwrap();
}

/// It has a handler of its own for the signal, and jemalloc.
#[test]
fn a_crash_of_redis_is_walked_through_its_signal_handler() {
    if !kernel_writes_cores() || !is_here("redis-server") || !is_here("redis-cli") {
        return;
    }
    let directory = scratch("core_gdb_redis");
    // The name of a socket has an end soon.
    let socket = std::env::temp_dir().join(format!("cairn-redis-crash-{}", std::process::id()));
    let path = socket.to_str().unwrap().to_owned();
    let asking = std::thread::spawn(move || {
        support::wait_for("redis", || {
            let output = Command::new("redis-cli").args(["-s", &path, "debug", "segfault"]).output().unwrap();
            let words = String::from_utf8_lossy(&output.stderr).into_owned();
            let words = words + &String::from_utf8_lossy(&output.stdout);
            (!words.contains("Could not connect")).then_some(words)
        })
    });
    let mut redis = Command::new("redis-server");
    // Its test of memory after a crash may crash itself.
    redis.args(["--port", "0", "--save", "", "--enable-debug-command", "yes"]);
    redis.args(["--crash-memcheck-enabled", "no", "--unixsocket"]).arg(&socket);
    let answer = crash(&mut redis, &directory);
    let words = asking.join().unwrap();
    let _ = fs::remove_file(&socket);
    let Some(answer) = answer else { return };
    let stack = stack(&answer);
    assert_eq!(answer["threads"][0]["end"], "end of stack", "{words} {stack:?}");
    assert!(has_in_order(&stack, &["bugReportEnd", "debugCommand", "aeMain", "main"]), "{words} {stack:?}");
    let modules = paths(&answer);
    assert!(modules.iter().any(|path| path.ends_with("libjemalloc.so.2")), "{modules:?}");
    fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn a_crash_of_nginx_names_the_module_that_crashed() {
    let nginx = if is_here("nginx") { "nginx" } else { "/usr/sbin/nginx" };
    if !kernel_writes_cores() || !is_here(nginx) {
        return;
    }
    let directory = scratch("core_gdb_nginx");
    let source = directory.join("bad.c");
    let text = "__attribute__((noinline)) void write_to(volatile int *place) { *place = 1; }\n\
                __attribute__((constructor)) static void bad_module_starts(void) {\n\
                write_to((volatile int *)32); __asm__ volatile(\"\"); }\n";
    fs::write(&source, text).unwrap();
    let module = directory.join("bad.so");
    let mut compiler = Command::new("cc");
    compiler
        .args(["-O1", "-g", "-shared", "-fPIC", "-w", "-Wl,--build-id"])
        .arg(&source)
        .arg("-o")
        .arg(&module);
    assert!(compiler.status().unwrap().success());
    let settings = directory.join("nginx.conf");
    let text = format!("load_module {};\nevents {{}}\nerror_log stderr;\n", module.display());
    fs::write(&settings, text).unwrap();
    let mut command = Command::new(nginx);
    command.arg("-t").arg("-p").arg(&directory).arg("-c").arg(&settings);
    let Some(answer) = crash(&mut command, &directory) else { return };
    assert_eq!(answer["fault_address"], "0x20");
    let stack = stack(&answer);
    assert_eq!(stack[..2], ["write_to", "bad_module_starts"]);
    assert!(has_in_order(&stack, &["_dl_init", "dlopen", "__libc_start"]), "{stack:?}");
    assert_eq!(answer["threads"][0]["end"], "end of stack", "{stack:?}");
    fs::remove_dir_all(&directory).unwrap();
}
