//! `cairn heap --annotate`: programs behave as without it, and every block they have is found in
//! their memory, with its size and its callers.

#![cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
#![allow(clippy::print_stdout, reason = "a test says what it could not check here")]

#[path = "../../cairn-memory/tests/support/asleep.rs"]
mod asleep;
#[allow(dead_code, reason = "the readers of recordings are for other tests")]
mod support;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use cairn_format::{AbsoluteAddress, WordSize};
use cairn_wire::heapblock::{
    ANCHOR_BYTES, ANCHOR_MAGIC, Anchor, BlockLayout, BlockState, ByteOrder, HEADER_BYTES, Header,
    StackReference, guard, stack_table,
};
use cairn_wire::{heapprof, lws};
use support::{Shown, cairn, compile, run, same_as_plain_with, scratch};

const LAYOUTS: [(&str, BlockLayout); 3] =
    [("cairn", BlockLayout::Cairn), ("lws", BlockLayout::Lws), ("heapprof", BlockLayout::Heapprof)];

/// Runs a fixture plain and in each layout; it must show the same.
fn check(test: &str, source: &str, flags: &[&str], arguments: &[&str]) -> Vec<Shown> {
    LAYOUTS
        .iter()
        .map(|(layout, _)| {
            let directory = scratch(&format!("annotate_{test}_{layout}"));
            let program = compile(&directory, source, "program", flags);
            let option = format!("--annotate={layout}");
            same_as_plain_with(&directory, program.as_os_str(), arguments, &[&option])
        })
        .collect()
}

#[test]
fn programs_that_use_every_entry_show_the_same() {
    check("new_delete", "new_delete.cpp", &["-fno-builtin", "-std=c++17"], &[]);
    check("early_late", "early_late.cpp", &["-fno-builtin"], &[]);
}

#[test]
fn programs_with_threads_and_forks_show_the_same() {
    check("forks", "forks.c", &["-fno-builtin"], &[]);
    check("churn", "churn.c", &["-fno-builtin"], &[]);
}

/// Checks that a run leaves the processes of the system untouched.
///
/// Additions to a program's environment survive its `exec`, but its children do not inherit them.
#[test]
fn the_environment_is_the_programs_own() {
    let script = "echo $LD_PRELOAD $CAIRN_HEAP; grep -c libcairn_annotate /proc/$$/maps; \
                  exec sh -c 'echo $LD_PRELOAD $CAIRN_HEAP; grep -c libcairn_annotate /proc/$$/maps; \
                  sh -c \"grep -c libcairn_annotate /proc/\\$\\$/maps; true\"'";
    let shown = Shown::from(run(cairn().args(["heap", "--annotate", "--", "sh", "-c", script])));
    let lines: Vec<&str> = shown.output.lines().map(str::trim).collect();
    assert_eq!(lines.len(), 5, "{shown:?}");
    assert_eq!((lines[0], lines[2], lines[4]), ("", "", "0"), "{shown:?}");
    assert!(lines[1].parse::<u32>().unwrap() > 0 && lines[3].parse::<u32>().unwrap() > 0, "{shown:?}");
}

#[test]
fn real_programs_show_the_same() {
    let sql = "with recursive c(x) as (select 1 union all select x+1 from c where x<20000) \
               select count(*), sum(length(hex(x))) from c;";
    let script = "import json,re,threading\n\
                  t=[threading.Thread(target=lambda:json.dumps([str(i)*3 for i in range(5000)])) for _ in range(4)]\n\
                  [x.start() for x in t];[x.join() for x in t]\n\
                  print(len(json.dumps([str(i)*3 for i in range(20000)])), re.sub('a+','b','caaat'))";
    let git = support::workspace();
    let git = git.to_str().unwrap();
    let programs: [(&str, &[&str]); 5] = [
        ("python3", &["-c", script]),
        ("git", &["-C", git, "log", "--oneline", "-3", "--stat"]),
        ("sqlite3", &[":memory:", sql]),
        ("redis-server", &["--version"]),
        ("gdb", &["-nx", "-batch", "-ex", "info functions main", "/bin/true"]),
    ];
    let directory = scratch("annotate_real");
    let mut checked = 0;
    for (program, arguments) in programs {
        if !Command::new("which").arg(program).output().is_ok_and(|found| found.status.success()) {
            println!("{program} is not here");
            continue;
        }
        for (layout, _) in LAYOUTS {
            let option = format!("--annotate={layout}");
            let shown = same_as_plain_with(&directory, program.as_ref(), arguments, &[&option]);
            assert_eq!(shown.status, Some(0), "{program}: {shown:?}");
            checked += 1;
        }
    }
    assert!(checked > 0, "none of the programs is here");
}

/// The memory of a process, as far as it may be written to: as a core file has it.
struct Image(Vec<(u64, Vec<u8>)>);

impl Image {
    fn of(process: u32) -> Self {
        let maps = fs::read_to_string(format!("/proc/{process}/maps")).unwrap();
        let memory = fs::File::open(format!("/proc/{process}/mem")).unwrap();
        let mut parts = Vec::new();
        for line in maps.lines() {
            let (range, rest) = line.split_once(' ').unwrap();
            let (start, end) = range.split_once('-').unwrap();
            let (start, end) =
                (u64::from_str_radix(start, 16).unwrap(), u64::from_str_radix(end, 16).unwrap());
            // The rest of this library's room for captures is large and empty.
            if !rest.starts_with("rw-p") || end - start > 1 << 28 {
                continue;
            }
            let mut bytes = vec![0; (end - start) as usize];
            if memory.read_exact_at(&mut bytes, start).is_ok() {
                parts.push((start, bytes));
            }
        }
        Self(parts)
    }

    fn at(&self, address: u64, count: usize) -> Option<&[u8]> {
        self.0.iter().find_map(|(start, bytes)| {
            let offset = usize::try_from(address.checked_sub(*start)?).ok()?;
            bytes.get(offset..offset.checked_add(count)?)
        })
    }

    fn word(&self, address: u64) -> Option<u64> {
        self.at(address, 8).map(|bytes| u64::from_ne_bytes(bytes.try_into().unwrap()))
    }

    fn anchors(&self) -> Vec<Anchor> {
        let mut found = Vec::new();
        for (start, bytes) in &self.0 {
            for offset in (0..bytes.len().saturating_sub(ANCHOR_BYTES)).step_by(8) {
                if bytes[offset..].starts_with(&ANCHOR_MAGIC)
                    && let Ok(anchor) = Anchor::parse(&bytes[offset..], ByteOrder::NATIVE)
                    && anchor.own_address == start + offset as u64
                {
                    found.push(anchor);
                }
            }
        }
        found
    }

    /// The addresses of a stack, innermost first.
    fn stack(&self, table: u64, number: u32) -> Vec<u64> {
        let head = stack_table::Head::parse(self.at(table, 32).unwrap(), ByteOrder::NATIVE).unwrap();
        let (mut number, mut addresses) = (number, Vec::new());
        while let Some((segment, offset)) = head.place_of(number) {
            let segment = self.word(table + 32 + 8 * u64::from(segment)).unwrap();
            let bytes = self.at(segment + offset, 16).unwrap().try_into().unwrap();
            let entry = stack_table::Entry::from_bytes(bytes, number, ByteOrder::NATIVE).unwrap();
            addresses.extend(entry.frame().address().map(AbsoluteAddress::value));
            number = entry.parent;
        }
        addresses
    }
}

/// User address -> size and stack.
type Blocks = BTreeMap<u64, (u64, Vec<u64>)>;

fn cairn_blocks(image: &Image, anchor: &Anchor) -> Blocks {
    let mut blocks = Blocks::new();
    for (start, bytes) in &image.0 {
        for offset in (0..bytes.len().saturating_sub(HEADER_BYTES)).step_by(16) {
            let user = start + offset as u64 + HEADER_BYTES as u64;
            let header = bytes[offset..offset + HEADER_BYTES].try_into().unwrap();
            let Ok((header, BlockState::Live)) = Header::from_bytes(header, user, ByteOrder::NATIVE) else {
                continue;
            };
            let StackReference::Number(number) = header.stack() else { panic!("{header:?}") };
            let tail = image.at(user + header.size_bytes(), header.guard_bytes() as usize).unwrap();
            assert_eq!(guard::damaged_bytes(header.size_bytes(), tail), 0, "{user:#x} {header:?}");
            blocks.insert(user, (header.size_bytes(), image.stack(anchor.stack_table_address, number)));
        }
    }
    blocks
}

fn lws_blocks(image: &Image, anchor: &Anchor) -> Blocks {
    let mut blocks = Blocks::new();
    for list in 0..u64::from(anchor.list_count) {
        let owner = anchor.lists_address + list * u64::from(anchor.list_stride_bytes);
        let (mut node, mut count) = (image.word(owner + 8).unwrap(), 0);
        while node != 0 {
            assert_eq!(image.word(node + 16), Some(owner));
            let length: [u8; 2] = image.at(node - 2, 2).unwrap().try_into().unwrap();
            let length = u16::from_be_bytes(length);
            let blob = image.at(node - u64::from(length), length.into()).unwrap();
            let backtrace = lws::decode(blob, WordSize::Bits64).unwrap();
            let stack = backtrace.addresses.iter().map(|address| address.value()).collect();
            blocks.insert(node + 24, (backtrace.allocation_size_bytes, stack));
            node = image.word(node + 8).unwrap();
            count += 1;
        }
        assert_eq!(image.word(owner + 16), Some(count));
    }
    blocks
}

fn heapprof_blocks(image: &Image) -> Blocks {
    let mut blocks = Blocks::new();
    for (start, bytes) in &image.0 {
        for block in heapprof::Search::robust(heapprof::HeapprofLayout::LittleEndian64).blocks(bytes) {
            let callers = block.callers().map(AbsoluteAddress::value).filter(|caller| *caller != 0);
            blocks.insert(start + block.user_offset(), (block.size_bytes(), callers.collect()));
        }
    }
    blocks
}

/// A program that waits to be looked at, and what it says of itself.
struct Waiting {
    command: Child,
    process: u32,
    lines: Vec<String>,
}

fn start(program: &Path, layout: &str, environment: &[(&str, &str)]) -> Waiting {
    let mut command = cairn()
        .args(["heap", &format!("--annotate={layout}"), "--"])
        .arg(program)
        .envs(environment.iter().copied())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = Vec::new();
    for line in BufReader::new(command.stdout.as_mut().unwrap()).lines() {
        let line = line.unwrap();
        if line == "ready" {
            break;
        }
        lines.push(line);
    }
    let children = format!("/proc/{0}/task/{0}/children", command.id());
    let children = fs::read_to_string(children).unwrap();
    let process = children.split_whitespace().next().unwrap().parse().unwrap();
    // Its memory is read while it may run, but not during an allocation for the input that it waits
    // for.
    asleep::wait_until_asleep(process);
    Waiting { command, process, lines }
}

#[test]
fn every_block_is_in_the_image_with_its_size_and_its_stack() {
    for (name, layout) in LAYOUTS {
        let directory = scratch(&format!("annotate_image_{name}"));
        let program = compile(&directory, "annotated.c", "program", &["-fno-builtin"]);
        let mut waiting = start(&program, name, &[]);
        let image = Image::of(waiting.process);
        waiting.command.stdin.take().unwrap().write_all(b"\n").unwrap();
        assert!(waiting.command.wait().unwrap().success(), "{name}");

        let anchors = image.anchors();
        let [anchor] = anchors[..] else { panic!("{name}: {anchors:?}") };
        assert_eq!(anchor.layout, layout);
        let found = match layout {
            BlockLayout::Cairn => cairn_blocks(&image, &anchor),
            BlockLayout::Lws => lws_blocks(&image, &anchor),
            BlockLayout::Heapprof => heapprof_blocks(&image),
        };
        let hex = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).unwrap();
        let mut functions = Vec::new();
        let mut checked = 0;
        for line in &waiting.lines {
            let words: Vec<&str> = line.split(' ').collect();
            if words[0] == "make_blocks" {
                functions = vec![hex(words[1]), hex(words[2])];
                continue;
            }
            let (user, size) = (hex(words[1]), words[2].parse::<u64>().unwrap());
            let Some((found_size, stack)) = found.get(&user) else { panic!("{name}: no block {line}") };
            assert_eq!(*found_size, size, "{name}: {line}");
            // The innermost frame is one of the two functions that allocate.
            let is_in = |function: &u64| (*function..function + 0x600).contains(&stack[0]);
            assert!(functions.iter().any(is_in), "{name}: {line}: {stack:x?} {functions:x?}");
            checked += 1;
        }
        assert_eq!(checked, 200 + 2 * 17 + 2 + 400, "{name}");
        // Blocks of the C library itself are there, too; but none that is none.
        assert!(found.len() < checked + 40, "{name}: {} blocks", found.len());
    }
}

/// As many callers as heapprof's variable asks for, in every block that the program has.
// Failed with: nothing. If the variable is ignored, the second case finds 16 callers instead of 3.
#[test]
fn heapprof_frames_sets_the_number_of_callers() {
    for (asked, callers) in [(None, 16), (Some("3"), 3), (Some("97"), 97)] {
        let directory = scratch(&format!("annotate_frames_{callers}"));
        let program = compile(&directory, "annotated.c", "program", &["-fno-builtin"]);
        let environment: Vec<(&str, &str)> =
            asked.map(|asked| ("HEAPPROF_FRAMES", asked)).into_iter().collect();
        let mut waiting = start(&program, "heapprof", &environment);
        let image = Image::of(waiting.process);
        waiting.command.stdin.take().unwrap().write_all(b"\n").unwrap();
        assert!(waiting.command.wait().unwrap().success(), "{asked:?}");
        let mut counts = BTreeMap::new();
        for (start, bytes) in &image.0 {
            for block in heapprof::Search::robust(heapprof::HeapprofLayout::LittleEndian64).blocks(bytes) {
                counts.insert(start + block.user_offset(), block.caller_count());
            }
        }
        let is_block = |line: &&String| !line.starts_with("make_blocks");
        let users: Vec<u64> = waiting
            .lines
            .iter()
            .filter(is_block)
            .map(|line| {
                u64::from_str_radix(line.split(' ').nth(1).unwrap().trim_start_matches("0x"), 16).unwrap()
            })
            .collect();
        assert_eq!(users.len(), 200 + 2 * 17 + 2 + 400, "{asked:?}");
        for user in users {
            assert_eq!(counts.get(&user), Some(&callers), "{asked:?}: {user:#x}");
        }
    }
}

#[test]
fn annotate_reports_what_it_cannot_do() {
    let shown = Shown::from(run(cairn().args(["heap", "--annotate=other", "true"])));
    assert_eq!(shown.status, Some(2));
    assert!(shown.errors.contains("cairn, lws, heapprof"), "{shown:?}");
    let shown = Shown::from(run(cairn().args(["heap", "--annotate", "--output", "x", "true"])));
    assert_eq!(shown.status, Some(2), "{shown:?}");
    let shown = Shown::from(run(cairn().args(["heap", "--annotate", "--", "/no/such/program"])));
    assert_eq!(shown.status, Some(127), "{shown:?}");
}
