//! Programs that never ran, for test pages: an ordinary one, one of a hostile author, and a large
//! one.

#![allow(dead_code, reason = "each user of this file needs a part of it")]

#[path = "../../../cairn-recording/tests/support/spool.rs"]
mod spool;

use cairn_analysis::heap::slices::Slices;
use cairn_analysis::heap::{Address, Folding, HeapRead, HeapRecording, Namer, Names, Scope, Stacks};
use cairn_format::recording::{Lane, PcKind, ThreadEvent};
use cairn_recording::Recording;
use cairn_symbols::SourceFrame;

pub(crate) use spool::Random;
use spool::{Program, START};

const BASE: u64 = 0x5555_0000_0000;
const STEP: u64 = 0x100;

/// A recording, and the names of its addresses.
///
/// The address of index `i` is that many [`STEP`]s into its module.
pub(crate) struct Made {
    pub(crate) bytes: Vec<u8>,
    pub(crate) heap: HeapRecording,
    pub(crate) namer: Table,
}

/// Names by address.
pub(crate) struct Table(Vec<(String, String, u32)>);

impl Namer for Table {
    fn name(&self, _stacks: &Stacks, addresses: &[&Address]) -> Vec<Vec<SourceFrame>> {
        let name = |address: &&Address| {
            let index = address.module.map_or(0, |(_, offset)| offset / STEP) as usize;
            let Some((function, file, line)) = index.checked_sub(1).and_then(|index| self.0.get(index))
            else {
                return Vec::new();
            };
            let mut frame = SourceFrame::default();
            frame.function = Some(function.as_str().into());
            frame.file = Some(file.as_str().into()).filter(|_| !file.is_empty());
            frame.line = Some(*line);
            vec![frame]
        };
        addresses.iter().map(name).collect()
    }
}

impl Made {
    pub(crate) fn read(&self) -> HeapRead {
        self.heap.read(Scope::default()).expect("it is in memory")
    }

    pub(crate) fn read_sliced(&self) -> (HeapRead, Slices) {
        self.heap.read_sliced(Scope::default(), 256).expect("it is in memory")
    }

    pub(crate) fn names(&self) -> Names<'_> {
        Names::new(self.heap.stacks(), &self.namer, Folding::default())
    }
}

/// Writes a program: its functions, then stacks of them, then what it does.
struct Author {
    program: Program,
    names: Vec<(String, String, u32)>,
    next_word: u32,
}

impl Author {
    fn new(threads: u32, modules: &[&str]) -> Self {
        // Every event is stamped, so that times are what they are said to be.
        let mut program = Program::new(threads, 1);
        for (number, path) in (1..).zip(modules) {
            let start = BASE + u64::from(number) * 0x1_0000_0000;
            program.spool.module(number, start, start + 0x8000_0000, path);
        }
        Self { program, names: Vec::new(), next_word: 1 }
    }

    fn thread_name(&mut self, thread: u32, name: &[u8]) {
        let counter = self.program.counter;
        self.program
            .spool
            .write(thread, Lane::Outer, counter, |sink| sink.thread(counter, ThreadEvent::Named(name)));
    }

    /// A function; answers with its number.
    fn function(&mut self, module: u32, name: &str, file: &str, line: u32) -> u32 {
        self.names.push((name.to_owned(), file.to_owned(), line));
        let number = self.names.len() as u32;
        let address = BASE + u64::from(module) * 0x1_0000_0000 + u64::from(number) * STEP;
        self.program
            .spool
            .write(1, Lane::Outer, START, |sink| sink.pc(number, PcKind::ProgramCounter, address, module));
        number
    }

    fn stack(&mut self, parent: u32, functions: &[u32]) -> u32 {
        let stack = self.program.spool.segment(1, self.next_word, parent, functions);
        self.next_word += 1 + functions.len() as u32;
        stack
    }

    fn wait_millis(&mut self, millis: u64) {
        self.program.counter += millis * 3_000_000;
    }

    fn mark(&mut self, thread: u32, stack: u32, text: &str) {
        let counter = self.program.counter;
        self.program.spool.mark(thread, counter, stack, text);
    }

    fn finish(self) -> Made {
        let bytes = self.program.finish();
        let recording = Recording::from_bytes(bytes.clone()).expect("it is a recording");
        Made { bytes, heap: HeapRecording::new(recording), namer: Table(self.names) }
    }
}

/// Loads 400 documents, keeps every eighth, and works on them in a second thread; 4 seconds.
///
/// `load` allocates in the first half only, `work` in the second half only, so that each half of
/// the time distinguishes them.
pub(crate) fn ordinary() -> Made {
    let mut author = Author::new(2, &["/usr/bin/program", "/usr/lib/libparse.so.1", "/usr/lib/libwork.so"]);
    author.thread_name(1, b"main");
    author.thread_name(2, b"worker");
    let main = author.function(1, "main", "/src/program/main.c", 10);
    let load = author.function(1, "load", "/src/program/load.c", 42);
    let parse = author.function(2, "parse_document(char const*)", "/src/parse/document.cpp", 7);
    let node = author.function(2, "make_node", "/src/parse/node.cpp", 99);
    let worker = author.function(1, "worker", "/src/program/worker.c", 5);
    let work = author.function(3, "work", "/src/work/work.c", 3);
    let in_load = author.stack(0, &[main, load]);
    let in_parse = author.stack(in_load, &[parse]);
    let in_node = author.stack(in_parse, &[node]);
    let in_nested = author.stack(in_node, &[parse, node]);
    let in_work = author.stack(0, &[worker, work]);
    author.mark(1, in_load, "loading begins");
    for document in 0..400_usize {
        author.program.alloc(1, 4096, in_load);
        author.program.alloc(1, 200, in_parse);
        author.program.alloc(1, 48, in_node);
        author.program.alloc(1, 16, in_nested);
        // The document's text; its nodes stay.
        if document % 8 != 0 {
            let index = author.program.live.len() - 4;
            author.program.free(1, index);
        }
        author.wait_millis(5);
    }
    author.mark(2, in_work, "work begins");
    for _ in 0..400 {
        author.program.alloc(2, 10_000, in_work);
        author.wait_millis(2);
        let last = author.program.live.len() - 1;
        author.program.free(2, last);
        author.wait_millis(3);
    }
    author.finish()
}

/// Allocates in frames of every owner.
///
/// These are the program, a library with a recursion, the standard library, the allocator, and
/// the frames that lead to `main`. The bytes of each place are another power of two, so that a sum
/// says which places are in it.
pub(crate) fn owned() -> Made {
    let mut author = Author::new(
        1,
        &[
            "/opt/shop/shop",
            "/usr/lib/x86_64-linux-gnu/libjansson.so.4",
            "/usr/lib/x86_64-linux-gnu/libc.so.6",
        ],
    );
    author.program.spool.facts(&[("argument", "/opt/shop/shop")]);
    let start = author.function(1, "_start", "", 0);
    let libc = author.function(3, "__libc_start_main", "", 0);
    let main = author.function(1, "main", "/src/shop/main.cpp", 3);
    let report = author.function(1, "shop::report(Month)", "/src/shop/report.cpp", 20);
    let sort = author.function(
        1,
        "std::sort<Order*, Less>(Order*, Order*, Less)",
        "/usr/include/c++/12/bits/stl_algo.h",
        4800,
    );
    let inner_sort = author.function(
        1,
        "std::__introsort_loop<Order*, Less>(Order*, Order*, Less)",
        "/usr/include/c++/12/bits/stl_algo.h",
        1900,
    );
    let less = author.function(1, "shop::Less::operator()(Order const&)", "/src/shop/report.cpp", 44);
    let push = author.function(
        1,
        "std::vector<Order>::push_back(Order&&)",
        "/usr/include/c++/12/bits/stl_vector.h",
        1296,
    );
    let grow = author.function(
        1,
        "std::vector<Order>::_M_realloc_insert<Order>(Order&&)",
        "/usr/include/c++/12/bits/vector.tcc",
        440,
    );
    let load = author.function(2, "json_load", "", 0);
    let value = author.function(2, "parse_value", "", 0);
    let malloc = author.function(3, "malloc", "", 0);
    let in_main = author.stack(0, &[start, libc, main]);
    let in_report = author.stack(in_main, &[report]);
    let in_less = author.stack(in_report, &[sort, inner_sort, less]);
    let stacks = [
        author.stack(in_report, &[malloc]),
        author.stack(in_report, &[push, grow, malloc]),
        author.stack(in_less, &[malloc]),
        author.stack(in_main, &[load, value, malloc]),
        author.stack(in_main, &[load, value, value, malloc]),
        author.stack(0, &[start, libc, malloc]),
    ];
    for (index, stack) in stacks.into_iter().enumerate() {
        author.program.alloc(1, 1024 << index, stack);
        author.wait_millis(10);
    }
    author.finish()
}

/// The names that try to be more than text.
pub(crate) const EVIL: [&str; 8] = [
    "<img src=x onerror=\"globalThis.broken=1\">",
    "</script><script>globalThis.broken=1</script>",
    "two\nlines\r\nand\ttabs",
    "\u{202e}gnp.live\u{202c} \u{2066}x\u{2069} \u{200f}",
    "' onmouseover='globalThis.broken=1",
    "<!--<script>\u{0}\u{1b}[31m",
    "${globalThis.broken=1}`",
    "__proto__",
];

/// The same names as functions, files, modules, threads, marks and words of the command.
pub(crate) fn hostile() -> Made {
    let modules: Vec<String> = EVIL.iter().map(|name| format!("/tmp/{name}")).collect();
    let paths: Vec<&str> = modules.iter().map(String::as_str).collect();
    let mut author = Author::new(2, &paths);
    let words: Vec<(&str, &str)> = EVIL.iter().map(|&name| ("argument", name)).collect();
    let words: Vec<(&str, &str)> = words.into_iter().filter(|(_, word)| !word.contains('\0')).collect();
    author.program.spool.facts(&words);
    author.thread_name(1, b"<b>worker</b>");
    author.thread_name(2, b"\xff\xfe</script>");
    let functions: Vec<u32> = (1..)
        .zip(EVIL)
        .map(|(module, name)| author.function(module, name, &format!("/src/{name}"), 1))
        .collect();
    let mut stacks = Vec::new();
    for &function in &functions {
        stacks.push(author.stack(0, &[function]));
    }
    let all = author.stack(0, &functions);
    // Recursion as deep as a recorder follows.
    let mut deep = all;
    for _ in 0..40 {
        deep = author.stack(deep, &[functions[0], functions[1]].repeat(50));
    }
    stacks.extend([all, deep]);
    for (index, &stack) in stacks.iter().enumerate() {
        author.mark(1, stack, EVIL[index % EVIL.len()]);
        author.program.alloc(1 + index as u32 % 2, 1 << (index * 3), stack);
        author.wait_millis(10);
    }
    // Sizes that no machine has.
    author.program.alloc(1, u64::from(u32::MAX) * 4000, all);
    author.finish()
}

/// Builds a tree of a given number of calls, of 20,000 functions in 40 modules.
pub(crate) fn large(calls: u32) -> Made {
    let modules: Vec<String> = (0..40).map(|number| format!("/usr/lib/libpart{number}.so")).collect();
    let paths: Vec<&str> = modules.iter().map(String::as_str).collect();
    let mut author = Author::new(4, &paths);
    let mut random = Random(11);
    let functions: Vec<u32> = (0..20_000_u32)
        .map(|number| {
            let module = 1 + number % 40;
            let name = format!(
                "part{module}::Widget{}<std::vector<int>>::step_{number}(int, char const*)",
                number % 700
            );
            author.function(
                module,
                &name,
                &format!("/src/part{module}/file{}.cpp", number % 900),
                number % 3000,
            )
        })
        .collect();
    let mut stacks: Vec<(u32, u32)> = vec![(0, 0)];
    while (stacks.len() as u32) <= calls {
        // Mostly from what came last: deep paths with many short branches, as programs have them.
        // Now and then from anywhere, or else all that came last are as deep as can be.
        let window = if random.below(8) == 0 { u64::MAX } else { 3000 };
        let recent = random.below((stacks.len() as u64).min(window));
        let back = random.below(1 + recent) as usize;
        let (parent, depth) = stacks[stacks.len() - 1 - back];
        if depth >= 90 {
            continue;
        }
        let function = functions[random.below(20_000) as usize];
        stacks.push((author.stack(parent, &[function]), depth + 1));
    }
    for _ in 0..calls * 2 {
        let (stack, _) = stacks[1 + random.below(u64::from(calls)) as usize];
        author.program.alloc(1 + random.below(4) as u32, 16 + random.below(4000), stack);
        author.program.counter += 9_000;
        if author.program.live.len() > calls as usize {
            let index = random.below(author.program.live.len() as u64) as usize;
            let thread = author.program.live[index].thread;
            author.program.free(thread, index);
        }
    }
    author.finish()
}
