//! Debug files that come after the samples give the same names and shapes as ones that were there.

mod program;
#[path = "../../cairn-recording/tests/support/spool.rs"]
mod spool;
mod support;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use cairn_format::Hexadecimal;
use cairn_format::recording::{Lane, LoadedModule, PcKind};
use object::{Object as _, ObjectSymbol as _};
use serde_json::{Value, json};
use spool::{Program, START};
use support::{Server, done, run, sql, store};

const SOURCE: &str = r#"
#include <stdlib.h>
__attribute__((noinline)) void *xmalloc(size_t size) { void *p = malloc(size); if (!p) abort(); return p; }
__attribute__((noinline)) static void *parse(size_t size) { char *p = xmalloc(size); p[0] = 1; return p; }
__attribute__((noinline)) static void *load(size_t size) { char *p = parse(size); p[1] = 2; return p; }
__attribute__((noinline)) static void *cache(size_t size) { char *p = xmalloc(size + 1); p[2] = 3; return p; }
int main(int argc, char **argv) { return load(argc + 8) == cache(argc + 16); }
"#;

/// Where the program is loaded.
const BASE: u64 = 0x5555_0000_0000;
/// A library without a file anywhere.
const LIBRARY: u64 = 0x7f00_0000_0000;
const LIBRARY_ID: [u8; 20] = [7; 20];
/// Stacks, the innermost function first.
const STACKS: [&[&str]; 3] =
    [&["xmalloc", "parse", "load", "main"], &["xmalloc", "cache", "main"], &["cache", "main"]];

/// A program with its debug information, and where its functions are.
struct Built {
    directory: tempfile::TempDir,
    build_id: Vec<u8>,
    functions: BTreeMap<String, u64>,
}

impl Built {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("app.c"), SOURCE).unwrap();
        let built = |program: &str, arguments: &[&str]| {
            let output =
                Command::new(program).args(arguments).current_dir(directory.path()).output().unwrap();
            assert!(output.status.success(), "{program} {arguments:?}: {output:?}");
        };
        built("cc", &["-g", "-O1", "-fPIE", "-pie", "-Wl,--build-id=sha1", "-o", "app", "app.c"]);
        std::fs::create_dir_all(directory.path().join("debug/nested")).unwrap();
        built("objcopy", &["--only-keep-debug", "app", "debug/nested/app.debug"]);
        built("strip", &["-o", "debug/app", "app"]);
        std::fs::write(directory.path().join("debug/readme"), "no ELF file\n").unwrap();
        let bytes = std::fs::read(directory.path().join("app")).unwrap();
        let object = object::File::parse(&*bytes).unwrap();
        let function =
            |symbol: object::Symbol<'_, '_>| Some((symbol.name().ok()?.to_owned(), symbol.address()));
        let functions = object.symbols().filter_map(function).collect();
        let build_id = object.build_id().unwrap().unwrap().to_vec();
        Self { directory, build_id, functions }
    }

    fn path(&self, name: &str) -> String {
        self.directory.path().join(name).display().to_string()
    }

    /// A return address in a function, from the beginning of the module.
    fn offset(&self, function: &str) -> u64 {
        self.functions[function] + 9
    }

    /// A recording of the program.
    fn recording(&self) -> Vec<u8> {
        let mut program = Program::new(1, 1);
        let path = self.path("app");
        program.spool.facts(&[("command", &path), ("executable", &path)]);
        let module = |number: u32, start: u64, build_id: &[u8], path: &str| LoadedModule {
            number,
            counter: START,
            start,
            end: start + 0x10_0000,
            bias: start,
            // They live as long as the call.
            build_id: build_id.to_vec().leak(),
            path: path.to_owned().leak().as_bytes(),
        };
        let modules = [
            module(1, BASE, &self.build_id, &path),
            module(2, LIBRARY, &LIBRARY_ID, "/opt/lib/libnone.so.1"),
        ];
        for module in &modules {
            program.spool.write(1, Lane::Outer, START, |sink| sink.module_loaded(module));
        }
        program
            .spool
            .write(1, Lane::Outer, START, |sink| sink.pc(1, PcKind::ReturnAddress, LIBRARY + 0x500, 2));
        let names: Vec<&str> = STACKS.iter().flat_map(|stack| stack.iter().copied()).collect();
        let mut numbers = BTreeMap::new();
        for (function, number) in names.into_iter().zip(2..) {
            let number = *numbers.entry(function).or_insert(number);
            let address = BASE + self.offset(function);
            program
                .spool
                .write(1, Lane::Outer, START, |sink| sink.pc(number, PcKind::ReturnAddress, address, 1));
        }
        let mut word = 1;
        for (stack, count) in STACKS.iter().zip([3, 5, 7]) {
            let mut pcs: Vec<u32> = stack.iter().rev().map(|function| numbers[function]).collect();
            pcs.insert(0, 1);
            let stack = program.spool.segment(1, word, 0, &pcs);
            word += 1 + pcs.len() as u32;
            for size in 0..count {
                program.counter += 3_000_000;
                program.alloc(1, 100 + size, stack);
            }
        }
        program.finish()
    }

    /// A block of the same stacks, as a sender makes it that has no names.
    fn block(&self) -> Value {
        let frame = |function: &&str| json!([0, self.offset(function) - 1]);
        let stacks: Vec<Vec<Value>> = STACKS
            .iter()
            .map(|stack| stack.iter().map(frame).chain([json!([1, 0x500 - 1])]).collect())
            .collect();
        let hexadecimal = |bytes: &[u8]| Hexadecimal(bytes).to_string();
        json!({
            "version": 1, "sender": "a", "number": 1,
            "process": {
                "service": "app", "started": support::now_ms() - 1000, "build_id": hexadecimal(&self.build_id),
            },
            "slice": {"end": support::now_ms(), "length": 1000},
            "modules": [
                {"path": self.path("app"), "build_id": hexadecimal(&self.build_id)},
                {"path": "/opt/lib/libnone.so.1", "build_id": hexadecimal(&LIBRARY_ID)},
            ],
            "stacks": stacks,
            "samples": [
                [0, 303, 3, 303, 3, 0, 0, 0, 303, 3],
                [1, 510, 5, 510, 5, 0, 0, 0, 510, 5],
                [2, 721, 7, 721, 7, 0, 0, 0, 721, 7],
            ],
        })
    }
}

fn added(built: &Built) -> tempfile::TempDir {
    let directory = store();
    std::fs::write(directory.path().join("app.cairn"), built.recording()).unwrap();
    done(directory.path(), &["add", "store", "app.cairn"]);
    directory
}

/// Stacks with their shapes, and the names of all places.
fn named(directory: &Path) -> (Vec<Value>, Vec<Value>) {
    let shapes = sql(
        directory,
        "select k.stack_id as stack, k.shape_id as shape, h.frames as frames from stack k \
         left join shape h on h.shape_id = k.shape_id order by stack",
    );
    let names = sql(
        directory,
        "select module, \"offset\", line['function'] as function, line['file'] as file, line['line'] as line, \
         line['inlined'] as inlined from (select module, \"offset\", unnest(lines) as line from frame) \
         order by module, \"offset\", function",
    );
    (shapes, names)
}

fn rows(directory: &Path) -> Vec<u64> {
    ["frame", "shape", "stack", "module"]
        .map(|table| {
            sql(directory, &format!("select count(*) as n from {table}_rows"))[0]["n"].as_u64().unwrap()
        })
        .to_vec()
}

#[test]
fn later_debug_files_give_the_same_shapes() {
    let built = Built::new();
    let with_names = added(&built);
    let expected = named(with_names.path());
    assert_eq!(expected.0.len(), 3, "{expected:?}");
    assert!(
        expected.0.iter().any(|stack| stack["frames"].as_str().unwrap().contains("parse < load < main")),
        "{expected:?}"
    );

    // The program is elsewhere while its recording is added.
    let app: PathBuf = built.path("app").into();
    let aside = app.with_file_name("aside");
    std::fs::rename(&app, &aside).unwrap();
    for files in [
        vec![built.path("debug/nested/app.debug")],
        vec![built.path("debug")],
        vec![built.path("aside"), built.path("debug/app")],
    ] {
        let without = added(&built);
        let directory = without.path();
        assert_ne!(named(directory), expected);
        let missing: Vec<Value> = done(directory, &["symbols", "missing", "store", "--format", "json"])
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(missing.len(), 2, "{missing:?}");
        let id = Hexadecimal(&built.build_id).to_string();
        // All stacks go through both, and equal ones are in the order of their paths.
        let library = "/opt/lib/libnone.so.1";
        let expected_rows = [
            json!({"path": library, "build_id": Hexadecimal(&LIBRARY_ID).to_string(), "frames": 1, "bytes": 1534}),
            json!({"path": built.path("app"), "build_id": id, "frames": 5, "bytes": 1534}),
        ];
        assert_eq!(missing, expected_rows);

        let arguments: Vec<&str> =
            ["symbols", "add", "store"].into_iter().chain(files.iter().map(String::as_str)).collect();
        done(directory, &arguments);
        assert_eq!(named(directory), expected, "{files:?}");
        let modules = sql(directory, "select path, symbols from module order by path");
        assert_eq!(modules[0]["symbols"], "missing", "{modules:?}");
        assert_eq!(modules[1]["symbols"], "have", "{modules:?}");
        let missing = done(directory, &["symbols", "missing", "store"]);
        assert!(missing.contains("libnone") && !missing.contains("/app"), "{missing}");
        // Again: nothing is written. A worse file takes nothing away.
        let before = rows(directory);
        done(directory, &arguments);
        done(directory, &["symbols", "add", "store", &built.path("debug/app")]);
        assert_eq!(rows(directory), before);
        assert_eq!(named(directory), expected);
        // Maintenance leaves the last rows.
        done(directory, &["compact", "store"]);
        assert_eq!(named(directory), expected);
    }
    let empty = store();
    for path in [built.path("app.c"), built.path("absent")] {
        let output = run(empty.path(), &["symbols", "add", "store", &path]);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
    }
}

#[test]
fn server_names_new_samples_behind_their_commit() {
    let built = Built::new();
    let with_names = added(&built);
    let expected = named(with_names.path());
    let directory = store();
    let server = Server::start(directory.path(), &["--symbols", &built.path("debug")]);
    let answer = server.block(&built.block());
    assert_eq!(answer.status, 200, "{}", answer.text());
    let deadline = Instant::now() + Duration::from_secs(120);
    loop {
        let unnamed = sql(directory.path(), "select count(*) as n from stack where shape_id is null");
        if unnamed[0]["n"] == 0 {
            break;
        }
        assert!(Instant::now() < deadline, "{}", server.log.lock().unwrap());
        std::thread::sleep(Duration::from_millis(300));
    }
    // Stacks of a sender and of a recording are the same ones.
    assert_eq!(named(directory.path()), expected);
}
