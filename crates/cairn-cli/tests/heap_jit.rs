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
    let directory = scratch_place(name);
    if Command::new(program).arg("--version").output().is_err() {
        println!("skipped: {program} is not here");
        return None;
    }
    let recording = directory.join("runtime.cairn");
    let mut command = cairn();
    command.args(["heap", "--quiet", "-o"]).arg(&recording).arg(program).args(arguments);
    let shown = Shown::from(run(command.current_dir(&directory)));
    assert_eq!(shown.status, Some(0), "{shown:?}");
    // A launcher makes a recording of its own; the last one is the runtime's.
    let later = (2..9).rev().map(|number| directory.join(format!("runtime.{number}.cairn")));
    let recording = later.chain([recording]).find(|path| path.exists()).unwrap();
    // With the frames of the runtime itself.
    Some(folded_with(&recording, &["--internals"]))
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

#[test]
fn java_stacks_have_java_methods() {
    let directory = scratch("jit_java");
    let source = "import java.util.zip.Deflater;\npublic class P {\n\
        static int work() { int s = 0; for (int i = 0; i < 30000; i++) { Deflater d = new Deflater(); s += i; d.end(); } return s; }\n\
        public static void main(String[] a) { System.out.println(work()); } }\n";
    fs::write(directory.join("P.java"), source).unwrap();
    if Command::new("javac").arg("P.java").current_dir(&directory).output().is_err() {
        println!("skipped: javac is not here");
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
    let python = std::env::var("CAIRN_TEST_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let has_wasmtime = Command::new(&python).args(["-c", "import wasmtime"]).output();
    if !has_wasmtime.is_ok_and(|output| output.status.success()) {
        println!("skipped: {python} has no wasmtime; CAIRN_TEST_PYTHON names another python");
        return;
    }
    let Some(stacks) = record("jit_wasmtime", &python, &["p.py"]) else { return };
    check_whole(&stacks, &["wasmtime_func_call", "wasm[0]::function", "inner", "_call_function_pointer"]);
}

/// LuaJIT's traces have no frame pointer: such a stack ends there and says so.
#[test]
fn luajit_stacks_are_whole_or_say_why_not() {
    let directory = scratch("jit_lua");
    let script = "local ffi = require('ffi')\nffi.cdef[[ void *malloc(size_t n); void free(void *p); ]]\n\
        for k = 1, 20000 do local p = ffi.C.malloc(100); ffi.C.free(p) end\n";
    fs::write(directory.join("p.lua"), script).unwrap();
    let Some(stacks) = record("jit_lua", "luajit", &["p.lua"]) else { return };
    for stack in &stacks {
        assert!(stack.is_cut() || stack.has("main") || stack.count < 10, "{stack:?}");
    }
    let Some(stacks) = record("jit_lua", "luajit", &["-joff", "p.lua"]) else { return };
    assert!(stacks.iter().all(|stack| !stack.is_cut()), "{stacks:#?}");
}
