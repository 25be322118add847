//! Stacks through code that JIT compilers made: a program that makes its own code, and the runtimes
//! that are on this machine.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(clippy::print_stdout, reason = "a test says what it could not check here")]

#[allow(dead_code, reason = "it serves other tests too")]
mod support;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use support::{Shown, cairn, compile, run, scratch, scratch_place, wait_for};

/// A stack: its frames from the outermost one inwards, and the number of its allocations.
#[derive(Debug)]
struct Folded {
    frames: Vec<String>,
    count: u64,
}

impl Folded {
    fn is_cut(&self) -> bool {
        self.frames[0].starts_with("[ends at")
    }

    fn has(&self, function: &str) -> bool {
        self.frames.iter().any(|frame| frame == function)
    }

    /// The frames with these functions come in this order.
    fn leads(&self, functions: &[&str]) -> bool {
        let mut frames = self.frames.iter();
        functions.iter().all(|function| frames.any(|frame| frame.contains(function)))
    }
}

fn folded(recording: &Path) -> Vec<Folded> {
    folded_with(recording, &[])
}

fn folded_with(recording: &Path, options: &[&str]) -> Vec<Folded> {
    let mut command = cairn();
    command.args(["export", "--format", "folded", "--cost", "count", "-o", "-"]).args(options).arg(recording);
    let shown = Shown::from(run(&mut command));
    assert_eq!(shown.status, Some(0), "{shown:?}");
    let stack = |line: &str| {
        let (frames, count) = line.rsplit_once(' ').unwrap();
        Folded { frames: frames.split(';').map(str::to_owned).collect(), count: count.parse().unwrap() }
    };
    shown.output.lines().map(stack).collect()
}

fn stack_of<'a>(stacks: &'a [Folded], function: &str) -> &'a Folded {
    let mut found = stacks.iter().filter(|stack| stack.has(function));
    let stack = found.next().unwrap_or_else(|| panic!("{function}: {stacks:#?}"));
    assert!(found.next().is_none(), "{function} has two stacks: {stacks:#?}");
    stack
}

/// Before, each stack ended at the first frame in such code, and lost `main`.
#[test]
fn stacks_lead_through_generated_code_to_main() {
    let directory = scratch("jit_alone");
    let program = compile(&directory, "generated.c", "generated", &["-fno-builtin"]);
    let recording = directory.join("alone.cairn");
    let mut command = cairn();
    command.args(["heap", "--quiet", "-o"]).arg(&recording).arg(&program).arg("alone");
    let shown = Shown::from(run(&mut command));
    assert_eq!((shown.status, shown.output.trim()), (Some(0), "done"), "{shown:?}");
    let stacks = folded(&recording);
    for ask in ["ask_1111", "ask_4444"] {
        let stack = stack_of(&stacks, ask);
        assert_eq!((stack.frames[0].as_str(), stack.count), ("main", 1000), "{stack:?}");
        assert!(stack.leads(&["main", "run", "0x", ask]), "{stack:?}");
        assert_eq!(stack.frames.len(), 4, "{stack:?}");
    }
    // Nothing there proves itself.
    let bare = stack_of(&stacks, "ask_3333");
    assert!(bare.is_cut() && bare.frames.len() == 3, "{bare:?}");
    let mut command = cairn();
    let shown = Shown::from(run(command.arg("report").arg(&recording)));
    assert!(shown.output.contains("3 return addresses are in code without unwind tables"), "{shown:?}");
}

/// The file of the recording while it is written, with all chunks so far.
fn packed(recording: &Path) -> Vec<u8> {
    let mut fresh = recording.as_os_str().to_owned();
    fresh.push(".new");
    fs::read(PathBuf::from(fresh)).unwrap_or_default()
}

fn contains(bytes: &[u8], what: &[u8]) -> bool {
    bytes.windows(what.len()).any(|window| window == what)
}

#[test]
fn generated_code_is_named_as_of_the_time_it_ran() {
    let directory = scratch("jit_named");
    let program = compile(&directory, "generated.c", "generated", &["-fno-builtin"]);
    let recording = directory.join("named.cairn");
    let mut command = cairn();
    command.args(["heap", "--quiet", "-o"]).arg(&recording).arg(&program);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    // The first function is there while its lines are read; then another one takes its place.
    wait_for("a piece of the map in the recording", || contains(&packed(&recording), b"JITC").then_some(()));
    child.stdin.take().unwrap().write_all(b"go\n").unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(line, "done\n");

    let packed_again = directory.join("again.cairn");
    let shown = Shown::from(run(cairn().arg("pack").arg(&recording).arg("-o").arg(&packed_again)));
    assert_eq!(shown.status, Some(0), "{shown:?}");
    for recording in [recording, packed_again] {
        let stacks = folded(&recording);
        for (ask, function) in [("ask_1111", "first"), ("ask_2222", "second"), ("ask_4444", "inner")] {
            let stack = stack_of(&stacks, ask);
            let expected = ["main", "run", function, ask];
            assert_eq!((stack.frames.as_slice(), stack.count), (&expected.map(str::to_owned)[..], 1000));
        }
        let bare = stack_of(&stacks, "ask_3333");
        assert!(bare.is_cut() && bare.leads(&["bare", "ask_3333"]), "{bare:?}");

        let mut command = cairn();
        command.args(["report", "--by", "stack", "--cost", "count", "--full"]).arg(&recording);
        let shown = Shown::from(run(&mut command));
        for place in ["first  app.js:3", "second  app.js:9", "inner  app.py"] {
            assert!(shown.output.contains(place), "{place}: {}", shown.output);
        }
    }
}

/// Records a runtime; `None`, with a word why, when it is not on this machine.
fn record(name: &str, program: &str, arguments: &[&str]) -> Option<Vec<Folded>> {
    record_some(name, &[], program, arguments, &[])
}

/// Records a runtime with options of `heap`; returns the stacks that options of `export` choose.
fn record_some(
    name: &str,
    heap_options: &[&str],
    program: &str,
    arguments: &[&str],
    options: &[&str],
) -> Option<Vec<Folded>> {
    let directory = scratch_place(name);
    if Command::new(program).arg("--version").output().is_err() {
        println!("skipped: {program} is not here");
        return None;
    }
    let recording = directory.join("runtime.cairn");
    let mut command = cairn();
    command.args(["heap", "--quiet"]).args(heap_options);
    command.arg("-o").arg(&recording).arg(program).args(arguments);
    let shown = Shown::from(run(command.current_dir(&directory)));
    assert_eq!(shown.status, Some(0), "{shown:?}");
    // A launcher makes a recording of its own; the last one is the runtime's.
    let later = (2..9).rev().map(|number| directory.join(format!("runtime.{number}.cairn")));
    let recording = later.chain([recording]).find(|path| path.exists()).unwrap();
    // With the frames of the runtime itself.
    Some(folded_with(&recording, &[&["--internals"], options].concat()))
}

/// There are stacks that lead through these functions, none of them is cut, and hardly any other.
#[track_caller]
fn check_whole(stacks: &[Folded], functions: &[&str]) {
    let found: Vec<_> = stacks.iter().filter(|stack| stack.leads(functions)).collect();
    assert!(!found.is_empty(), "no stack leads through {functions:?}");
    for stack in found {
        assert!(!stack.is_cut(), "{stack:?}");
    }
    let (all, cut) = stacks.iter().fold((0, 0), |(all, cut), stack| {
        (all + stack.count, cut + if stack.is_cut() { stack.count } else { 0 })
    });
    assert!(cut * 100 <= all, "{cut} of {all} allocations have a cut stack");
}

#[test]
fn node_stacks_have_javascript_functions() {
    let directory = scratch("jit_node");
    let script = "function makeBuffers(n) { const a = []; for (let i = 0; i < n; i++) a.push(Buffer.allocUnsafeSlow(100000)); return a; }\n\
        function outer() { let t = 0; for (let k = 0; k < 200; k++) t += makeBuffers(20).length; return t; }\n\
        outer();\n";
    fs::write(directory.join("p.js"), script).unwrap();
    let flags = ["--perf-basic-prof", "--interpreted-frames-native-stack", "p.js"];
    let Some(stacks) = record("jit_node", "node", &flags) else { return };
    check_whole(&stacks, &["node::Start", "Builtins_JSEntry", "outer", "makeBuffers"]);
}

#[test]
fn perf_trampolines_of_python_do_not_cut_stacks() {
    let directory = scratch("jit_python");
    let script = "def inner():\n    return [bytearray(5000) for _ in range(50)]\n\
        def outer():\n    return sum(len(inner()) for _ in range(200))\nouter()\n";
    fs::write(directory.join("p.py"), script).unwrap();
    let homes = std::env::var_os("HOME").map(|home| Path::new(&home).join(".pyenv/versions"));
    let versions = homes.and_then(|versions| fs::read_dir(versions).ok()).into_iter().flatten().flatten();
    let installed = versions.map(|version| version.path().join("bin/python3")).filter(|path| path.exists());
    let candidates = installed.map(|path| path.to_string_lossy().into_owned());
    let supports = |python: &String| {
        let mut command = Command::new(python);
        let asked = command.args(["-c", "import sys; sys.activate_stack_trampoline('perf')"]).output();
        asked.is_ok_and(|output| output.status.success())
    };
    let pythons: Vec<String> =
        candidates.chain(["python3".to_owned(), "python3.13".to_owned()]).filter(supports).collect();
    if pythons.is_empty() {
        println!("skipped: no python with perf trampolines (3.12 and later) is here");
    }
    for python in pythons {
        let Some(stacks) = record("jit_python", &python, &["-X", "perf", "p.py"]) else { continue };
        check_whole(&stacks, &["py_trampoline_evaluator", "outer", "py_trampoline_evaluator", "inner"]);
    }
}

/// Compiles `P.java` in a directory; false, with a word why, when there is no compiler.
fn compile_java(directory: &Path) -> bool {
    let source = "import java.util.zip.Deflater;\npublic class P {\n\
        static int work() { int s = 0; for (int i = 0; i < 30000; i++) { Deflater d = new Deflater(); s += i; d.end(); } return s; }\n\
        public static void main(String[] a) { System.out.println(work()); } }\n";
    fs::write(directory.join("P.java"), source).unwrap();
    if Command::new("javac").arg("P.java").current_dir(directory).output().is_err() {
        println!("skipped: javac is not here");
        return false;
    }
    true
}

#[test]
fn java_stacks_have_java_methods() {
    let directory = scratch("jit_java");
    if !compile_java(&directory) {
        return;
    }
    let flags = [
        "-XX:+PreserveFramePointer",
        "-XX:+UnlockDiagnosticVMOptions",
        "-XX:+DumpPerfMapAtExit",
        "-cp",
        ".",
        "P",
    ];
    let Some(stacks) = record("jit_java", "java", &flags) else { return };
    let path = ["JavaMain", "JavaCalls::call_helper", "java.util.zip.Deflater.init", "deflateInit2_"];
    check_whole(&stacks, &path);
}

/// Java's compiled code has no frame pointers by default: the report names the flag.
#[test]
fn report_of_cut_java_stacks_names_the_flag() {
    let directory = scratch("jit_java_default");
    if !compile_java(&directory) {
        return;
    }
    scratch("jit_java_flag");
    for (name, flags, is_cut) in [
        ("jit_java_default", &["-cp", ".", "P"][..], true),
        ("jit_java_flag", &["-XX:+PreserveFramePointer", "-cp", "../jit_java_default", "P"], false),
    ] {
        let Some(_) = record(name, "java", flags) else { return };
        let recording = scratch_place(name).join("runtime.cairn");
        let shown = Shown::from(run(cairn().arg("report").arg(recording)));
        let advice = "run java with -XX:+PreserveFramePointer";
        assert_eq!(shown.output.contains(advice), is_cut, "{name}: {}", shown.output);
    }
}

/// The Python that has this package; `None`, with a word why, when none has.
fn python_with(package: &str) -> Option<String> {
    let named = std::env::var("CAIRN_TEST_PYTHON").ok();
    let candidates = named.into_iter().chain(["python3", "/usr/bin/python3"].map(str::to_owned));
    let has_package = |python: &String| {
        let output = Command::new(python).args(["-c", &format!("import {package}")]).output();
        output.is_ok_and(|output| output.status.success())
    };
    let found = candidates.into_iter().find(has_package);
    if found.is_none() {
        println!("skipped: no python has {package}; CAIRN_TEST_PYTHON names another python");
    }
    found
}

/// LLVM registers the tables of its code, also of code that it has freed and made again.
#[test]
fn numba_stacks_lead_through_compiled_functions_to_main() {
    let directory = scratch("jit_numba");
    let script = "import ctypes, gc\nfrom numba import njit\nlibc = ctypes.CDLL(None)\n\
        malloc, free = libc.malloc, libc.free\nmalloc.restype = ctypes.c_void_p\n\
        malloc.argtypes = [ctypes.c_size_t]\nfree.restype = None\nfree.argtypes = [ctypes.c_void_p]\n\
        def make(size):\n\
        \x20   @njit\n    def inner(n):\n        total = 0\n        for k in range(n):\n\
        \x20           p = malloc(size)\n            if p:\n                total += k\n            free(p)\n\
        \x20       return total\n\
        \x20   @njit\n    def outer(n):\n        total = 0\n        for k in range(n):\n            total += inner(100)\n\
        \x20       return total\n\
        \x20   return outer\n\
        for size in (54321, 43210, 32100):\n    print(make(size)(100))\n    gc.collect()\n";
    fs::write(directory.join("p.py"), script).unwrap();
    let Some(python) = python_with("numba") else { return };
    // Without Python frames: the compiler runs without the interpreter's lock, where they are slow
    // to read.
    let heap = ["--python=native"];
    // Not the allocations of the compiler, which have very many stacks.
    let sizes = ["--filter", "size=54321", "--filter", "size=43210", "--filter", "size=32100"];
    let Some(stacks) = record_some("jit_numba", &heap, &python, &["p.py"], &sizes) else { return };
    // The compiled functions are addresses: LLVM writes no map here.
    let compiled = stacks.iter().filter(|stack| stack.count >= 10_000);
    assert!(compiled.clone().all(|stack| stack.leads(&["Py_BytesMain", "0x", "0x"])), "{stacks:#?}");
    assert_eq!(compiled.map(|stack| stack.count).sum::<u64>(), 30_000, "{stacks:#?}");
    assert!(stacks.iter().all(|stack| !stack.is_cut()), "{stacks:#?}");
}

/// .NET's compiled code has frame pointers. `CAIRN_TEST_DOTNET` names another `dotnet`.
#[test]
fn dotnet_stacks_have_managed_methods() {
    let directory = scratch("jit_dotnet");
    let source = "using System; using System.Runtime.InteropServices;\npublic class Probe {\n\
        [DllImport(\"libc\")] static extern IntPtr malloc(IntPtr n);\n[DllImport(\"libc\")] static extern void free(IntPtr p);\n\
        static int Inner(int n) { int t = 0; for (int k = 0; k < n; k++) { IntPtr p = malloc((IntPtr)54321); if (p != IntPtr.Zero) t++; free(p); } return t; }\n\
        static int Outer(int n) { int t = 0; for (int k = 0; k < n; k++) t += Inner(100); return t; }\n\
        public static int Main() { Console.WriteLine(Outer(200)); return 0; } }\n";
    fs::write(directory.join("Probe.cs"), source).unwrap();
    let dotnet = std::env::var("CAIRN_TEST_DOTNET").unwrap_or_else(|_| "dotnet".to_owned());
    let compiled = Command::new("mcs").args(["-out:Probe.dll", "Probe.cs"]).current_dir(&directory).output();
    if !compiled.is_ok_and(|output| output.status.success()) {
        println!("skipped: mcs is not here");
        return;
    }
    let config = "{ \"runtimeOptions\": { \"rollForward\": \"LatestMajor\", \"framework\": { \"name\": \"Microsoft.NETCore.App\", \
        \"version\": \"3.1.0\" }, \"configProperties\": { \"System.Globalization.Invariant\": true } } }\n";
    fs::write(directory.join("Probe.runtimeconfig.json"), config).unwrap();
    if Command::new(&dotnet).arg("--version").output().is_err() {
        println!("skipped: {dotnet} is not here; CAIRN_TEST_DOTNET names another dotnet");
        return;
    }
    let Some(stacks) = record(
        "jit_dotnet",
        "env",
        &["DOTNET_PerfMapEnabled=1", "COMPlus_PerfMapEnabled=1", &dotnet, "Probe.dll"],
    ) else {
        return;
    };
    check_whole(&stacks, &["main", "coreclr_execute_assembly", "Probe::Main", "Probe::Outer"]);
}

#[test]
fn wasmtime_stacks_have_wasm_functions() {
    let directory = scratch("jit_wasmtime");
    let script = "import ctypes\nfrom wasmtime import *\nconfig = Config()\nconfig.profiler = 'perfmap'\n\
        engine = Engine(config)\nstore = Store(engine)\nlibc = ctypes.CDLL(None)\n\
        libc.malloc.restype = ctypes.c_void_p\nlibc.free.argtypes = [ctypes.c_void_p]\n\
        module = Module(engine, '(module (import \"\" \"host\" (func $host)) (func $inner (call $host)) \
        (func (export \"outer\") (local $i i32) (loop $l (call $inner) (local.set $i (i32.add (local.get $i) (i32.const 1))) \
        (br_if $l (i32.lt_u (local.get $i) (i32.const 1000))))))')\n\
        def host(): libc.free(libc.malloc(77777))\n\
        instance = Instance(store, module, [Func(store, FuncType([], []), host)])\n\
        instance.exports(store)['outer'](store)\n";
    fs::write(directory.join("p.py"), script).unwrap();
    let Some(python) = python_with("wasmtime") else { return };
    let Some(stacks) = record("jit_wasmtime", &python, &["p.py"]) else { return };
    check_whole(&stacks, &["wasmtime_func_call", "wasm[0]::function", "inner", "_call_function_pointer"]);
}

/// LuaJIT's traces run in the frame of its interpreter, and have neither tables nor frame pointers.
#[test]
fn luajit_stacks_lead_through_traces_to_main() {
    let directory = scratch("jit_lua");
    // The second loop has more values than registers, so that its trace lowers the stack pointer.
    let script = "local ffi = require('ffi')\nffi.cdef[[ void *malloc(size_t n); void free(void *p); ]]\n\
        for k = 1, 20000 do local p = ffi.C.malloc(54321); ffi.C.free(p) end\n\
        local n, t = 20, {}\nfor k = 1, 40 do t[k] = k end\nlocal s = {}\n\
        local a, b, c, d, e, f, g, h, i, j, l, m = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12\n\
        for k = 1, 20000 do\n\
          local p = ffi.C.malloc(43210); ffi.C.free(p)\n\
          a, b, c, d, e, f, g, h, i, j, l, m = b+1, c+k, d+a, e+b, f+c, g+d, h+e, i+f, j+g, l+h, m+i, a+j\n\
        end\nprint(a, b, c, d, e, f, g, h, i, j, l, m)\n";
    fs::write(directory.join("p.lua"), script).unwrap();
    let Some(stacks) = record("jit_lua", "luajit", &["p.lua"]) else { return };
    for stack in &stacks {
        assert!(!stack.is_cut() && stack.has("main"), "{stack:?}");
    }
    let in_traces: Vec<_> = stacks.iter().filter(|stack| stack.count > 1000).collect();
    assert!(in_traces.len() >= 2, "{stacks:#?}");
    for stack in in_traces {
        assert!(stack.leads(&["main", "lua_pcall", "0x"]), "{stack:?}");
    }
    let Some(stacks) = record("jit_lua", "luajit", &["-joff", "p.lua"]) else { return };
    assert!(stacks.iter().all(|stack| !stack.is_cut()), "{stacks:#?}");
}

/// A function that a trace calls has the depth in its name: each stack has as many frames of
/// `deep`.
///
/// Traces of many sizes come and go at the same addresses, also in coroutines.
#[test]
fn luajit_stacks_have_all_frames_outside_of_traces() {
    const HEADERS: &str = "/usr/include/luajit-2.1";
    if !Path::new(HEADERS).exists() {
        println!("skipped: {HEADERS} is not here");
        return;
    }
    let directory = scratch("jit_lua_truth");
    let flags = ["-I", HEADERS, "-lluajit-5.1", "-rdynamic"];
    let program = compile(&directory, "luajit_truth.c", "luajit_truth", &flags);
    let Some(stacks) = record("jit_lua_truth", program.to_str().unwrap(), &[]) else { return };
    let mut asked = 0;
    for stack in &stacks {
        let Some((_, depth)) = stack.frames.last().unwrap().split_once("ask_") else { continue };
        let deep = stack.frames.iter().filter(|frame| *frame == "deep").count();
        assert_eq!(deep, depth.parse::<usize>().unwrap(), "{stack:?}");
        assert!(!stack.is_cut(), "{stack:?}");
        assert!(stack.leads(&["main", "deep", "call_lua", "lua_pcall"]), "{stack:?}");
        let is_in_trace = stack.frames[stack.frames.len() - 2].contains("0x");
        asked += if is_in_trace { stack.count } else { 0 };
    }
    assert!(asked > 200_000, "{asked} allocations in traces");
}

/// PHP's compiled code runs in the frame of `execute_ex`.
#[test]
fn php_stacks_lead_through_compiled_code_to_main() {
    let directory = scratch("jit_php");
    let script = "<?php\nfunction inner($i) { $a = []; for ($k = 0; $k < 50; $k++) { $a[] = str_repeat('x', 54321 + $k); } return count($a); }\n\
        function outer() { $t = 0; for ($i = 0; $i < 200; $i++) { $t += inner($i); } return $t; }\n\
        usort($unsorted = range(1, 300), fn($x, $y) => strlen(str_repeat('y', 43210)) ? $y - $x : 0);\n\
        echo outer(), \"\\n\";\n";
    let script =
        script.replace("usort($unsorted = range(1, 300)", "$unsorted = range(1, 300);\nusort($unsorted");
    fs::write(directory.join("p.php"), script).unwrap();
    let extensions = Command::new("php")
        .args(["-d", "opcache.enable_cli=1", "-r", "var_dump(function_exists('opcache_get_status'));"])
        .output();
    if !extensions.is_ok_and(|output| output.stdout.starts_with(b"bool(true)")) {
        println!("skipped: php with opcache is not here");
        return;
    }
    for (mode, function) in [("tracing", "TRACE-"), ("function", "inner")] {
        let jit = format!("opcache.jit={mode}");
        let flags = [
            "USE_ZEND_ALLOC=0",
            "php",
            "-d",
            "opcache.enable_cli=1",
            "-d",
            "opcache.jit_buffer_size=64M",
            // By default a script that is younger than 2 seconds is not compiled.
            "-d",
            "opcache.file_update_protection=0",
            "-d",
            &jit,
            // 0x10 is a perf map.
            "-d",
            "opcache.jit_debug=16",
            "p.php",
        ];
        let Some(stacks) = record("jit_php", "env", &flags) else { return };
        // The frame outside is a function that calls `execute_ex`.
        let calls = ["zend_execute", "zend_call_function", "zend_generator_resume"];
        for stack in &stacks {
            for (outer, inner) in stack.frames.iter().zip(stack.frames.iter().skip(1)) {
                let is_compiled = inner.contains(function) || inner.starts_with("JIT$");
                assert!(!is_compiled || calls.contains(&outer.as_str()), "{outer} {inner}: {stack:?}");
            }
        }
        check_whole(&stacks, &["__libc_start_call_main", "zend_execute_scripts", "zend_execute", function]);
        let compiled: u64 =
            stacks.iter().filter(|stack| stack.leads(&[function])).map(|stack| stack.count).sum();
        assert!(compiled > 5_000, "{mode}: {compiled} allocations in compiled code: {stacks:#?}");
        assert!(stacks.iter().all(|stack| !stack.is_cut()), "{mode}: {stacks:#?}");
    }
}
