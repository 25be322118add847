//! The two halves together: real programs run under `cairn heap --annotate`, `gcore` dumps them,
//! and `cairn core` reads them. Each block that it finds is compared with the chunks of glibc's own
//! heap in the same dump, with the counters of a program, and with the lists of the lws layout.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(clippy::print_stdout, reason = "a test says what it could not check here")]

#[path = "../../cairn-memory/tests/support/asleep.rs"]
mod asleep;
#[allow(dead_code, reason = "the readers of recordings are for other tests")]
mod support;

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use cairn_memory::heap::{Annotated, Block, BlockLayout, ChunkState, FindOptions, GlibcHeap};
use cairn_memory::image::{Image, OpenOptions};
use serde_json::Value;
use support::{cairn, scratch};

const LAYOUTS: [(&str, BlockLayout); 3] =
    [("cairn", BlockLayout::Cairn), ("lws", BlockLayout::Lws), ("heapprof", BlockLayout::Heapprof)];

/// A program that writes a line that contains `ready`, then waits for input.
struct Program {
    path: &'static str,
    arguments: Vec<String>,
    input: String,
    ready: &'static str,
}

fn python() -> Program {
    let script = "import json, re, threading, sys\n\
                  stored = [json.dumps([str(i) * 3 for i in range(n)]) for n in range(300)]\n\
                  more = {i: bytearray(600 + i % 900) for i in range(4000)}\n\
                  t = [threading.Thread(target=lambda: stored.append('x' * 100000)) for _ in range(3)]\n\
                  [x.start() for x in t]; [x.join() for x in t]\n\
                  print('ready', flush=True); sys.stdin.readline()";
    Program {
        path: "/usr/bin/python3",
        arguments: vec!["-c".into(), script.into()],
        input: String::new(),
        ready: "ready",
    }
}

fn sqlite() -> Program {
    let input = "create table t(a integer primary key, b text);\n\
                 with recursive c(x) as (select 1 union all select x+1 from c where x<20000) \
                 insert into t select x, hex(randomblob(20)) from c;\n\
                 create index i on t(b);\n\
                 select count(*) from t where b > 'A';\n\
                 .system echo ready\n";
    Program {
        path: "sqlite3",
        arguments: vec!["-batch".into(), ":memory:".into()],
        input: input.into(),
        ready: "ready",
    }
}

fn git() -> Program {
    let repository = support::workspace().to_str().unwrap().to_owned();
    Program {
        path: "git",
        arguments: ["-C", &repository, "cat-file", "--batch-check"].map(str::to_owned).to_vec(),
        input: "HEAD\nHEAD~1^{tree}\nHEAD^{tree}\n0000000000000000000000000000000000000000\n".into(),
        ready: "0000 missing",
    }
}

fn gdb() -> Program {
    Program {
        path: "gdb",
        arguments: ["-nx", "-q", "/bin/true"].map(str::to_owned).to_vec(),
        input: "info functions main\necho ready\\n\n".into(),
        ready: "ready",
    }
}

/// A running program, ended with this value.
struct Running {
    command: Child,
    process: u32,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = Command::new("kill").args(["-KILL", &self.process.to_string()]).status();
        let _ = self.command.wait();
    }
}

fn is_here(program: &str) -> bool {
    let is_here = Command::new("which").arg(program).output().is_ok_and(|found| found.status.success());
    if !is_here {
        println!("{program} is not here");
    }
    is_here
}

fn start(program: &Program, layout: &str, environment: &[(&str, &str)]) -> Running {
    let mut command = cairn()
        .args(["heap", &format!("--annotate={layout}"), "--", program.path])
        .args(&program.arguments)
        .envs(environment.iter().copied())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    command.stdin.as_mut().unwrap().write_all(program.input.as_bytes()).unwrap();
    let mut lines = BufReader::new(command.stdout.as_mut().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains(program.ready)), "{} ended", program.path);
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", command.id())).unwrap();
    let process = children.split_whitespace().next().unwrap().parse().unwrap();
    // Not during an allocation for the input that it waits for.
    asleep::wait_until_asleep(process);
    Running { command, process }
}

/// A core of the process, which goes on.
fn dump(running: &Running, directory: &Path) -> PathBuf {
    let output = Command::new("gcore")
        .arg("-o")
        .arg(directory.join("core"))
        .arg(running.process.to_string())
        .output()
        .unwrap();
    let core = directory.join(format!("core.{}", running.process));
    assert!(core.is_file(), "{}", String::from_utf8_lossy(&output.stderr));
    core
}

/// Returns the JSON that `cairn core` prints of a core.
fn answer(core: &Path) -> Value {
    let output = cairn().args(["core", "--json", "--no-symbols"]).arg(core).output().unwrap();
    assert!(matches!(output.status.code(), Some(0 | 3)), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// How many blocks the heap says it has on its lists.
fn listed(image: &Image, found: &Annotated) -> u64 {
    let [anchor] = found.anchors() else { panic!("{:?}", found.anchors()) };
    let owner = |list| anchor.lists_address + list * u64::from(anchor.list_stride_bytes);
    (0..u64::from(anchor.list_count)).map(|list| image.word(owner(list) + 16).unwrap()).sum()
}

/// Checks that each block lies at the start of an allocated chunk, alone.
///
/// Nearly each such chunk must contain a block.
fn compare_with_heap(what: &str, image: &Image, blocks: &[Block]) {
    let heap = GlibcHeap::find(image).unwrap_or_else(|| panic!("{what}: no heap"));
    assert_eq!(heap.damage(), [], "{what}");
    let mut held: HashMap<u64, u64> = HashMap::new();
    for block in blocks {
        // A chunk extends into the first word of the next one, so a small block's own address may
        // lie there.
        let Some(chunk) = heap.chunk_at(block.start()) else {
            panic!("{what}: {block:x?} lies in no chunk");
        };
        let (start, bytes) = heap.user_part(chunk);
        assert!(chunk.state.is_in_use(), "{what}: {block:x?} lies in {chunk:x?}");
        let end = block.end() + if block.is_guarded { 1 } else { 0 };
        assert!(block.start() >= start && end <= start + bytes, "{what}: {block:x?} does not fit {chunk:x?}");
        let other = held.insert(chunk.address, block.user_address);
        assert_eq!(other, None, "{what}: two blocks in {chunk:x?}");
        // Over-aligned blocks have pads; except for whole pages, glibc adds at most 31 bytes to a
        // request.
        let spare = start + bytes - block.end();
        assert!(
            chunk.state == ChunkState::Mapped || spare < 64,
            "{what}: {block:x?} leaves {spare} in {chunk:x?}"
        );
    }
    let others: Vec<_> = heap
        .chunks()
        .iter()
        .filter(|chunk| chunk.state.is_in_use() && !held.contains_key(&chunk.address))
        .collect();
    println!("{what}: {} blocks, chunks without one: {others:x?}", blocks.len());
    // The C library allocates the cache of each thread without `malloc`.
    assert!(others.len() <= 1 + heap.arenas().len() * 2, "{what}: {others:x?}");
}

fn check(program: &Program) {
    if !is_here(program.path) || !is_here("gcore") {
        return;
    }
    for (name, layout) in LAYOUTS {
        let what = format!("{} {name}", program.path);
        let directory = scratch(&format!("core_programs_{}_{name}", program.path.replace('/', "_")));
        let running = start(program, name, &[]);
        let core = dump(&running, &directory);
        drop(running);
        let image = Image::open(&core, &OpenOptions::default()).unwrap();
        let found = Annotated::find(&image, &FindOptions::default());
        let blocks: Vec<Block> =
            found.blocks().iter().filter(|block| block.layout == Some(layout)).copied().collect();
        compare_with_heap(&what, &image, &blocks);
        if layout == BlockLayout::Lws {
            assert_eq!(listed(&image, &found), blocks.len() as u64, "{what}");
        }
        // None of another layout.
        assert_eq!(found.blocks().len(), blocks.len(), "{what}");
        let without_stack =
            blocks.iter().filter(|block| found.stacks().frames(block.stack).is_empty()).count();
        assert_eq!(without_stack, 0, "{what}: blocks without a stack");
        let answer = answer(&core);
        assert_eq!(answer["blocks"].as_u64(), Some(blocks.len() as u64), "{what}");
        assert_eq!(answer["live_bytes"].as_u64(), Some(found.live_bytes()), "{what}");
        assert_eq!(answer["damage"], Value::Array(Vec::new()), "{what}");
        fs::remove_dir_all(&directory).unwrap();
    }
}

#[test]
fn core_finds_all_blocks_of_python() {
    check(&python());
}

#[test]
fn core_finds_all_blocks_of_sqlite() {
    check(&sqlite());
}

#[test]
fn core_finds_all_blocks_of_git() {
    check(&git());
}

#[test]
fn core_finds_all_blocks_of_gdb() {
    check(&gdb());
}

/// Checks the blocks of Redis against its own counters, which are exact.
///
/// Redis has its own allocator below the annotation, and counts blocks by `malloc_usable_size`.
#[test]
fn core_agrees_with_the_counters_of_redis() {
    if !is_here("redis-server") || !is_here("redis-cli") || !is_here("gcore") {
        return;
    }
    let mut totals = BTreeMap::new();
    for (name, layout) in LAYOUTS {
        let directory = scratch(&format!("core_programs_redis_{name}"));
        // The name of a socket has an end soon.
        let socket = std::env::temp_dir().join(format!("cairn-redis-{}-{name}", std::process::id()));
        let program = Program {
            path: "redis-server",
            arguments: ["--port", "0", "--save", "", "--unixsocket", socket.to_str().unwrap()]
                .map(str::to_owned)
                .to_vec(),
            input: String::new(),
            ready: "eady to accept connections",
        };
        let running = start(&program, name, &[]);
        let ask = |words: &[&str]| {
            let output = Command::new("redis-cli").arg("-s").arg(&socket).args(words).output().unwrap();
            String::from_utf8(output.stdout).unwrap()
        };
        let filled = ask(&[
            "eval",
            "for i = 1, 20000 do redis.call('set', 'key' .. i, string.rep('v', i % 700)) end",
            "0",
        ]);
        let counted = |information: &str| -> u64 {
            let line = information.lines().find_map(|line| line.strip_prefix("used_memory:"));
            line.unwrap_or_else(|| panic!("{filled} {information}")).trim().parse().unwrap()
        };
        let used = counted(&ask(&["info", "memory"]));
        let core = dump(&running, &directory);
        drop(running);
        let _ = fs::remove_file(&socket);
        let image = Image::open(&core, &OpenOptions::default()).unwrap();
        let found = Annotated::find(&image, &FindOptions::default());
        let blocks = found.blocks().iter().filter(|block| block.layout == Some(layout)).count();
        assert_eq!(found.blocks().len(), blocks, "{name}");
        if layout == BlockLayout::Lws {
            assert_eq!(listed(&image, &found), blocks as u64);
        }
        println!("redis {name}: {blocks} blocks, {} bytes; it counts {used}", found.live_bytes());
        totals.insert(name, (found.live_bytes(), used));
        assert!(blocks > 40_000, "{name}: {blocks}");
        fs::remove_dir_all(&directory).unwrap();
    }
    for (name, (found, used)) in &totals {
        // Not counted by it: what libraries allocate, Lua's state above all.
        assert!(found > used && found - used < used / 15, "{name}: found {found}, it counts {used}");
    }
    // That is the same in each layout.
    let uncounted: Vec<u64> = totals.values().map(|(found, used)| found - used).collect();
    let spread = uncounted.iter().max().unwrap() - uncounted.iter().min().unwrap();
    assert!(spread < 4096, "{uncounted:?}");
}

/// A program that holds one block of 77 bytes and a given number of 1000.
fn held(directory: &Path, blocks: u32) -> Program {
    let path = directory.join("held");
    let mut compiler = Command::new("cc");
    compiler.args(["-O1", "-g", "-fno-optimize-sibling-calls", "-Wl,--build-id"]);
    compiler.arg(support::workspace().join("fixtures/programs/held.c")).arg("-o").arg(&path);
    assert!(compiler.status().unwrap().success());
    let path = path.to_str().unwrap().to_owned().leak();
    Program { path, arguments: vec![blocks.to_string()], input: String::new(), ready: "ready" }
}

// Failed with: "no cairn recording: it begins with other bytes".
#[test]
fn diff_of_two_cores_shows_what_grew_between_them() {
    if !is_here("gcore") {
        return;
    }
    let directory = scratch("core_programs_diff");
    let core_of = |blocks: u32| {
        let running = start(&held(&directory, blocks), "cairn", &[]);
        dump(&running, &directory)
    };
    let (before, after) = (core_of(3), core_of(10));
    let diff = |words: &[&str]| cairn().arg("diff").args([&before, &after]).args(words).output().unwrap();
    let output = diff(&["--json"]);
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((output.status.code(), words.as_str()), (Some(0), ""));
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&answer["cost"], &answer["only_alive"]), (&Value::from("leaked"), &Value::from(true)));
    let change = &answer["changes"][0];
    assert_eq!(change["function"], "load", "{answer:#}");
    let numbers = ["before", "after", "growth", "count_before", "count_after"].map(|name| &change[name]);
    assert_eq!(numbers.map(|number| number.as_i64().unwrap()), [3000, 10000, 7000, 3, 10]);
    assert!(!answer["changes"].as_array().unwrap().iter().any(|change| change["function"] == "settle"));
    let output = diff(&["--no-cache"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("alive") && text.contains("load") && !text.contains("peak"), "{text}");
    // A core file lacks some information; requests for it are refused with a message each.
    for (words, expected) in [
        (&["--cost", "peak"][..], "has the blocks that were alive"),
        (&["--from", "1s"], "is one moment"),
        (&["--filter", "thread=main"], "does not say which thread"),
    ] {
        let output = diff(words);
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(1) && words.contains(expected), "{words}");
    }
    fs::remove_dir_all(&directory).unwrap();
}

/// A debugger in batch mode, with the script of `cairn debugger` in it.
fn debugger(name: &str, script: &Path, open: &[&str]) -> Command {
    let mut command = Command::new(name);
    command.env("CAIRN", env!("CARGO_BIN_EXE_cairn")).env("TMPDIR", script.with_file_name("tmp"));
    if name == "gdb" {
        let source = format!("source {}", script.display());
        command.args(["-nx", "-q", "-batch", "-ex", "set debuginfod enabled off", "-ex", &source]).args(open);
        command.args(["-ex", "cairn-block retained"]);
        return command;
    }
    // Debian's lldb searches for its own Python modules in another directory than they are in.
    let modules = fs::read_dir("/usr/lib").unwrap().flatten().flat_map(|llvm| {
        let libraries = fs::read_dir(llvm.path().join("lib")).into_iter().flatten().flatten();
        libraries.map(|python| python.path().join("dist-packages")).filter(|path| path.join("lldb").is_dir())
    });
    if let Some(modules) = modules.max() {
        command.env("PYTHONPATH", modules);
    }
    let import = format!("command script import {}", script.display());
    command.args(["-b", "--no-lldbinit"]).args(open).args(["-o", &import, "-o", "cairn-block retained"]);
    command
}

#[test]
fn cairn_block_shows_the_allocating_stack_in_a_debugger() {
    if !is_here("gcore") {
        return;
    }
    let directory = scratch("core_programs_debugger");
    fs::create_dir(directory.join("tmp")).unwrap();
    let program = held(&directory, 5);
    let running = start(&program, "cairn", &[]);
    let core = dump(&running, &directory);
    let (core, process) = (core.to_str().unwrap(), running.process.to_string());
    for name in ["gdb", "lldb"] {
        if !is_here(name) {
            continue;
        }
        let printed = cairn().args(["debugger", name]).output().unwrap();
        let script = directory.join(format!("cairn_{name}.py"));
        fs::write(&script, printed.stdout).unwrap();
        let open_core: &[&str] =
            if name == "gdb" { &[program.path, core] } else { &["-c", core, program.path] };
        for open in [open_core, &["-p", &process]] {
            let output = debugger(name, &script, open).output().unwrap();
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let words = String::from_utf8_lossy(&output.stderr).into_owned();
            if words.contains("ModuleNotFoundError") {
                println!("{name} is here without its Python modules: {words}");
                continue;
            }
            let lines: Vec<&str> = text.lines().map(str::trim).collect();
            let at =
                lines.iter().position(|line| line.starts_with("byte 40 of the block of 1000 bytes at 0x"));
            let at = at.unwrap_or_else(|| panic!("{name} {open:?}: {text} {words}"));
            assert!(lines[at + 1].starts_with("load  held.c:"), "{name} {open:?}: {text}");
            assert!(lines[at + 2].starts_with("main  held.c:"), "{name} {open:?}: {text}");
            // The program goes on.
            asleep::wait_until_asleep(running.process);
        }
        // If CAIRN names no program, the command prints the remedy.
        let output = debugger(name, &script, open_core).env("CAIRN", "/nowhere/cairn").output().unwrap();
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(words.contains("set CAIRN to the path of cairn"), "{name}: {words}");
    }
    // No core of a running program is left behind.
    assert_eq!(fs::read_dir(directory.join("tmp")).unwrap().count(), 0);
    fs::remove_dir_all(&directory).unwrap();
}
