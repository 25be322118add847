//! Walks stacks of real processes: programs of known depth, comparisons with gdb, and refusals.

#![cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
#![allow(clippy::print_stdout, reason = "shown by `cargo test -- --nocapture`: what is not installed here")]

#[path = "support/asleep.rs"]
mod asleep;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use cairn_format::{AbsoluteAddress, Frame};
use cairn_memory::process::{
    Error, Mapping, ModuleMap, NoRegisters, StoppedProcess, Thread, ThreadSource, ThreadStack, while_stopped,
};
use cairn_symbols::{Lookup, ModuleId, Symbolizer, SymbolizerOptions};
use cairn_unwind::{FoundBy, MemoryReader, SliceMemory, StopReason};

/// A program that ends with the test.
struct Running {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
}

impl Running {
    fn start(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { child, output }
    }

    fn id(&self) -> u32 {
        self.child.id()
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn wait_until_asleep(&self) {
        asleep::wait_until_asleep(self.id());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Compiles a C program for this test.
fn compile(name: &str, source: &str) -> PathBuf {
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let program = directory.join(format!("{name}-{}", std::process::id()));
    let mut compiler = Command::new("cc")
        .args(["-O2", "-g", "-pthread", "-fomit-frame-pointer", "-x", "c", "-", "-o"])
        .arg(&program)
        .stdin(Stdio::piped())
        .spawn()
        .expect("a C compiler");
    compiler.stdin.take().unwrap().write_all(source.as_bytes()).unwrap();
    assert!(compiler.wait().unwrap().success());
    program
}

/// Four threads; each calls as deeply as its number.
const DEPTHS: &str = r#"
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>
int descend(int depth);
static int (*volatile next)(int) = descend;
static int (*volatile wait_for_signal)(void) = pause;
__attribute__((noinline)) int descend(int depth) {
    if (depth == 0) return wait_for_signal() + 1;
    return next(depth - 1) + 1;
}
static void *worker(void *depth) { return (void *)(long)descend((int)(long)depth); }
int main(void) {
    pthread_t thread;
    for (long number = 1; number < 4; number++) pthread_create(&thread, 0, worker, (void *)(number * 100));
    puts("ready");
    fflush(stdout);
    return descend(7);
}
"#;

fn stacks(process: &impl ThreadSource) -> Vec<(Thread, ThreadStack)> {
    let stack =
        |thread: &Thread| Some((thread.clone(), process.stack(thread.registers.as_ref().ok()?, 10_000)));
    process.threads().iter().filter_map(stack).collect()
}

fn addresses(stack: &ThreadStack) -> Vec<u64> {
    stack.frames.iter().filter_map(|found| Some(found.frame.address()?.value())).collect()
}

fn symbols_of(program: &Path) -> (Symbolizer, ModuleId) {
    let mut symbolizer = Symbolizer::new(SymbolizerOptions::new());
    let module = symbolizer.add_file(program).unwrap();
    (symbolizer, module)
}

/// Returns the name of the function at each frame of this program, `?` elsewhere.
fn names(
    process: &StoppedProcess,
    stack: &ThreadStack,
    (symbolizer, program): &(Symbolizer, ModuleId),
) -> Vec<String> {
    let name = |frame: Frame| {
        let address = frame.lookup_address()?;
        let module = process.modules().module_at(address)?;
        let answer = symbolizer.resolve(*program, Lookup::stated(module.stated_address(address)));
        let is_ours = module.range().contains(process.modules().modules()[0].range().start);
        answer.frames().last()?.function.as_deref().filter(|_| is_ours).map(str::to_owned)
    };
    stack.frames.iter().map(|found| name(found.frame).unwrap_or_else(|| "?".to_owned())).collect()
}

#[test]
fn walk_finds_every_frame_of_every_thread() {
    let program = compile("depths", DEPTHS);
    let mut running = Running::start(&mut Command::new(&program));
    assert_eq!(running.line(), "ready");
    running.wait_until_asleep();
    let symbols_path = program.clone();
    let depths = while_stopped(running.id(), |process| {
        let symbols = symbols_of(&symbols_path);
        assert!(process.modules().modules().iter().any(|module| module.name() == b"[vdso]"));
        let mut depths = Vec::new();
        for (_, stack) in stacks(process) {
            assert_eq!(stack.stop, StopReason::EndOfStack, "{stack:?}");
            assert_eq!(stack.frames[0].found_by, FoundBy::Context);
            assert!(stack.frames[1..].iter().all(|found| found.found_by == FoundBy::Cfi), "{stack:?}");
            let names = names(process, &stack, &symbols);
            let descents = names.iter().filter(|name| *name == "descend").count();
            let outside = names.iter().rev().find(|name| ["main", "worker"].contains(&name.as_str()));
            depths.push((descents, outside.unwrap().clone()));
        }
        let calls = process.memory().system_calls();
        assert!(calls < 60, "{calls} system calls for 600 frames");
        depths
    })
    .unwrap();
    let expected = [(8, "main"), (101, "worker"), (201, "worker"), (301, "worker")];
    assert_eq!(depths, expected.map(|(depth, name)| (depth, name.to_owned())));

    compare_with_gdb(&running);

    // A replaced program: stacks come from memory, names must not come from the new file at its
    // path.
    fs::remove_file(&program).unwrap();
    fs::copy("/bin/true", &program).unwrap();
    let (again, file) = while_stopped(running.id(), |process| {
        let depths: Vec<usize> = stacks(process).iter().map(|(_, stack)| stack.frames.len()).collect();
        (depths, process.modules().file_of(&process.modules().modules()[0]))
    })
    .unwrap();
    assert!(again[3] > 301 && file.is_none(), "{again:?} {file:?}");
    fs::remove_file(&program).unwrap();
}

/// Copies a process like a kernel core: all anonymous memory, and the first page of each file.
struct Core {
    threads: Vec<Thread>,
    modules: ModuleMap,
    memory: Memory,
}

struct Memory(Vec<(AbsoluteAddress, Vec<u8>)>);

impl MemoryReader for Memory {
    fn read(&self, address: AbsoluteAddress, into: &mut [u8]) -> Option<()> {
        self.0.iter().find_map(|(start, bytes)| SliceMemory::new(*start, bytes).read(address, into))
    }
}

impl Core {
    fn of(process: &StoppedProcess) -> Self {
        let mappings = process.modules().mappings();
        let copy = |mapping: &Mapping| {
            let (start, end) = (mapping.range.start, mapping.range.end);
            let length = match (mapping.inode, mapping.file_offset.value()) {
                (0, _) => end.value() - start.value(),
                (_, 0) => 4096,
                _ => return None,
            };
            let mut bytes = vec![0; length as usize];
            process.memory().read(start, &mut bytes)?;
            Some((start, bytes))
        };
        let memory = Memory(mappings.iter().filter(|mapping| mapping.is_readable).filter_map(copy).collect());
        let modules = ModuleMap::new(mappings.to_vec(), &memory, Some(PathBuf::from("/")));
        Self { threads: process.threads().to_vec(), modules, memory }
    }
}

impl ThreadSource for Core {
    type Memory = Memory;

    fn threads(&self) -> &[Thread] {
        &self.threads
    }

    fn memory(&self) -> &Memory {
        &self.memory
    }

    fn modules(&self) -> &ModuleMap {
        &self.modules
    }
}

#[test]
fn walk_reads_pages_omitted_by_a_core_from_files() {
    let program = compile("core", DEPTHS);
    let mut running = Running::start(&mut Command::new(&program));
    assert_eq!(running.line(), "ready");
    running.wait_until_asleep();
    let (core, live) = while_stopped(running.id(), |process| (Core::of(process), stacks(process))).unwrap();
    drop(running);
    assert_eq!(stacks(&core), live);
    // Without the program's file its frames have no tables, and none are invented.
    fs::remove_file(&program).unwrap();
    fs::copy("/bin/true", &program).unwrap();
    let without = Core {
        modules: ModuleMap::new(core.modules.mappings().to_vec(), &core.memory, Some("/".into())),
        ..core
    };
    let stacks = stacks(&without);
    fs::remove_file(&program).unwrap();
    for ((_, cut), (_, whole)) in stacks.iter().zip(&live) {
        assert!(whole.frames.starts_with(&cut.frames) && cut.frames.len() == 2, "{cut:?}");
    }
}

/// Returns gdb's stacks of a process: addresses by thread, without frames of inlined calls.
fn gdb_stacks(process: u32) -> Option<BTreeMap<u32, Vec<u64>>> {
    let script = "import gdb
for t in gdb.selected_inferior().threads():
    t.switch()
    f = gdb.newest_frame()
    pcs = []
    while f is not None:
        if f.type() != gdb.INLINE_FRAME:
            pcs.append('%x' % f.pc())
        f = f.older()
    print('STACK', t.ptid[1], ' '.join(pcs))
";
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("stacks-{process}.py"));
    fs::write(&file, script).unwrap();
    let output = Command::new("gdb")
        .args(["-nx", "-batch", "-ex", "set backtrace past-main on", "-ex", "set backtrace past-entry on"])
        .args(["-p", &process.to_string(), "-x"])
        .arg(&file)
        .env("DEBUGINFOD_URLS", "")
        .output();
    fs::remove_file(&file).unwrap();
    let text = String::from_utf8_lossy(&output.ok()?.stdout).into_owned();
    let mut stacks = BTreeMap::new();
    for line in text.lines().filter_map(|line| line.strip_prefix("STACK ")) {
        let (thread, pcs) = line.split_once(' ')?;
        let pcs = pcs.split_whitespace().map(|pc| u64::from_str_radix(pc, 16).unwrap()).collect();
        stacks.insert(thread.parse().ok()?, pcs);
    }
    (!stacks.is_empty()).then_some(stacks)
}

/// The process sleeps, so that both inspections see the same state.
fn compare_with_gdb(running: &Running) {
    let Some(truth) = gdb_stacks(running.id()) else {
        println!("not compared with gdb: it is not installed, or has no Python");
        return;
    };
    running.wait_until_asleep();
    let found: BTreeMap<u32, Vec<u64>> = while_stopped(running.id(), |process| {
        stacks(process).iter().map(|(thread, stack)| (thread.id, addresses(stack))).collect()
    })
    .unwrap();
    assert_eq!(found, truth);
}

#[test]
fn walk_of_python_agrees_with_gdb() {
    let script = "import threading, time, sys
def sleep(n):
    if n: return sleep(n - 1)
    time.sleep(1000)
for n in 5, 50:
    threading.Thread(target=sleep, args=(n,), daemon=True).start()
print('ready', flush=True)
sleep(20)";
    if Command::new("python3").arg("--version").output().is_err() {
        println!("not run: there is no python3");
        return;
    }
    let mut running = Running::start(Command::new("python3").args(["-c", script]));
    assert_eq!(running.line(), "ready");
    running.wait_until_asleep();
    while_stopped(running.id(), |process| {
        let stacks = stacks(process);
        assert_eq!(stacks.len(), 3);
        assert!(stacks.iter().all(|(_, stack)| stack.stop == StopReason::EndOfStack), "{stacks:?}");
        assert!(stacks.iter().all(|(_, stack)| stack.frames.len() > 10), "{stacks:?}");
    })
    .unwrap();
    compare_with_gdb(&running);
}

#[test]
fn attach_handles_threads_that_start_and_end() {
    let program = compile(
        "storm",
        r#"
#include <pthread.h>
#include <stdio.h>
static volatile int sink;
static void *work(void *argument) { for (int i = 0; i < 20000; i++) sink += i; return argument; }
static void *spawn(void *argument) {
    for (;;) {
        pthread_t threads[4];
        for (int i = 0; i < 4; i++) pthread_create(&threads[i], 0, work, 0);
        for (int i = 0; i < 4; i++) pthread_join(threads[i], 0);
    }
    return argument;
}
int main(void) {
    pthread_t thread;
    pthread_create(&thread, 0, spawn, 0);
    pthread_create(&thread, 0, spawn, 0);
    puts("ready");
    fflush(stdout);
    spawn(0);
}
"#,
    );
    let mut running = Running::start(&mut Command::new(&program));
    fs::remove_file(&program).unwrap();
    assert_eq!(running.line(), "ready");
    let mut seen = std::collections::BTreeSet::new();
    let mut complete = 0;
    for _ in 0..60 {
        let (threads, first) = while_stopped(running.id(), |process| {
            let ids: Vec<u32> = process.threads().iter().map(|thread| thread.id).collect();
            let reasons: Vec<_> = process.threads().iter().map(|thread| thread.registers.err()).collect();
            assert!(!reasons.contains(&Some(NoRegisters::DidNotStop)), "{reasons:?}");
            (ids, stacks(process).remove(0))
        })
        .unwrap();
        assert_eq!((threads[0], first.0.id), (running.id(), running.id()));
        // The C library's clone3 has no tables after its system call: they would be wrong in the
        // new thread.
        let in_clone = first.1.frames.len() == 1 && matches!(first.1.stop, StopReason::NoUnwindInfo { .. });
        assert!(first.1.stop == StopReason::EndOfStack || in_clone, "{first:?}");
        complete += usize::from(!in_clone);
        seen.extend(threads);
    }
    assert!(complete > 30, "{complete} of 60 stacks were whole");
    assert!(seen.len() > 10, "threads came and went: {}", seen.len());
    assert_eq!(tracer_of(running.id()), "0");
}

fn tracer_of(process: u32) -> String {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("TracerPid:"));
    line.unwrap().trim().to_owned()
}

#[test]
fn attach_loses_no_signal() {
    // A signal between the seizing of a thread and its stop is held by the tracer, and few tracers
    // handle real-time signals. This program is always about to get one.
    let program = compile(
        "signals",
        r#"
#include <signal.h>
#include <stdio.h>
static volatile sig_atomic_t count, is_over;
static void count_it(int signal) { (void)signal; count++; }
static void end(int signal) { (void)signal; is_over = 1; }
int main(void) {
    signal(SIGRTMIN + 3, count_it);
    signal(SIGTERM, end);
    puts("ready");
    fflush(stdout);
    for (long sent = 1; !is_over; sent++) {
        raise(SIGRTMIN + 3);
        if (count != sent) { puts("lost"); return 1; }
    }
    puts("retained");
}
"#,
    );
    let mut running = Running::start(&mut Command::new(&program));
    fs::remove_file(&program).unwrap();
    assert_eq!(running.line(), "ready");
    for _ in 0..300 {
        match while_stopped(running.id(), |process| process.threads().len()) {
            // The program ends if it misses a signal.
            Ok(_) | Err(Error::Zombie { .. } | Error::NoSuchProcess { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
    // SAFETY: `kill` touches no memory of this process; the child was not waited for, so its id is
    // valid.
    unsafe { libc::kill(running.id() as i32, libc::SIGTERM) };
    assert_eq!(running.line(), "retained");
}

#[cfg(target_arch = "x86_64")]
#[test]
#[cfg(target_arch = "x86_64")]
fn attach_restarts_interrupted_waits() {
    let program = compile(
        "waits",
        r#"
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/sem.h>
#include <unistd.h>
static int semaphore;
static void *wait_for_semaphore(void *unused) {
    struct sembuf take = {0, -1, 0};
    int found = semop(semaphore, &take, 1);
    printf("semop %d %d\n", found, found ? errno : 0);
    return unused;
}
int main(void) {
    struct epoll_event event = {.events = EPOLLIN};
    int waiting = epoll_create1(0);
    epoll_ctl(waiting, EPOLL_CTL_ADD, 0, &event);
    semaphore = semget(IPC_PRIVATE, 1, 0600);
    pthread_t thread;
    pthread_create(&thread, 0, wait_for_semaphore, 0);
    puts("ready");
    fflush(stdout);
    int found = epoll_wait(waiting, &event, 1, -1);
    printf("epoll %d %d\n", found, found < 0 ? errno : 0);
    fflush(stdout);
    struct sembuf give = {0, 1, 0};
    semop(semaphore, &give, 1);
    pthread_join(thread, 0);
    semctl(semaphore, 0, IPC_RMID);
    return 0;
}
"#,
    );
    let mut running = Running::start(&mut Command::new(&program));
    assert_eq!(running.line(), "ready");
    for _ in 0..20 {
        running.wait_until_asleep();
        while_stopped(running.id(), |process| assert_eq!(process.threads().len(), 2)).unwrap();
    }
    running.child.stdin.take().unwrap().write_all(b"x").unwrap();
    assert_eq!(running.line(), "epoll 1 0");
    assert_eq!(running.line(), "semop 0 0");
    assert!(running.child.wait().unwrap().success());
    fs::remove_file(program).unwrap();
}

#[test]
fn walk_crosses_generated_code_by_frame_pointer() {
    let program = compile(
        "jit",
        r#"
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
/* push rbp; mov rbp, rsp; call rdi; pop rbp; ret */
static const unsigned char code[] = { 0x55, 0x48, 0x89, 0xe5, 0xff, 0xd7, 0x5d, 0xc3 };
static int (*volatile wait_for_signal)(void) = pause;
static int callee(void) { return wait_for_signal() + 1; }
int main(void) {
    void *page = mmap(0, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memcpy(page, code, sizeof code);
    printf("%lx\n", (unsigned long)page);
    fflush(stdout);
    return ((int (*)(int (*)(void)))page)(callee) + 1;
}
"#,
    );
    let mut running = Running::start(&mut Command::new(&program));
    let page = u64::from_str_radix(&running.line(), 16).unwrap();
    running.wait_until_asleep();
    let symbols_path = program.clone();
    let (addresses, names, stack) = while_stopped(running.id(), |process| {
        let (_, stack) = stacks(process).remove(0);
        let symbols = symbols_of(&symbols_path);
        (addresses(&stack), names(process, &stack, &symbols), stack)
    })
    .unwrap();
    fs::remove_file(&program).unwrap();
    let made =
        addresses.iter().position(|&address| address == page + 6).expect("the made code is on the stack");
    assert_eq!((names[made - 1].as_str(), names[made + 1].as_str()), ("callee", "main"), "{names:?}");
    assert_eq!(stack.frames[made + 1].found_by, FoundBy::FramePointer);
    assert_eq!(stack.stop, StopReason::EndOfStack);
}

#[test]
fn attach_resumes_the_process_after_a_panic() {
    let running = Running::start(Command::new("sleep").arg("1000"));
    running.wait_until_asleep();
    let panic = std::panic::catch_unwind(|| while_stopped(running.id(), |_| panic!("as intended")));
    assert!(panic.is_err());
    assert_eq!(tracer_of(running.id()), "0");
    running.wait_until_asleep();
    assert!(while_stopped(running.id(), |process| stacks(process).len()).is_ok_and(|count| count == 1));
}

fn error_of(process: u32) -> Error {
    while_stopped(process, |_| ()).expect_err("there is nothing to see")
}

#[test]
fn attach_refuses_missing_processes() {
    let gone = {
        let mut child = Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        child.id()
    };
    assert!(matches!(error_of(gone), Error::NoSuchProcess { process } if process == gone));
    assert!(matches!(error_of(u32::MAX), Error::NoSuchProcess { .. }));
    assert!(matches!(error_of(std::process::id()), Error::OwnProcess));

    let mut zombie = Command::new("true").spawn().unwrap();
    let stat = format!("/proc/{}/stat", zombie.id());
    while !fs::read_to_string(&stat).unwrap().contains(") Z") {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(matches!(error_of(zombie.id()), Error::Zombie { .. }));
    zombie.wait().unwrap();

    if fs::read_to_string("/proc/2/comm").is_ok_and(|name| name == "kthreadd\n") {
        assert!(matches!(error_of(2), Error::KernelThread { process: 2 }));
    } else {
        println!("not run: threads of the kernel cannot be seen here");
    }
}

#[test]
fn attach_refuses_a_thread_id() {
    let program = compile("thread-number", DEPTHS);
    let mut running = Running::start(&mut Command::new(&program));
    fs::remove_file(&program).unwrap();
    assert_eq!(running.line(), "ready");
    let thread = while_stopped(running.id(), |process| process.threads()[1].id).unwrap();
    let error = error_of(thread);
    assert!(matches!(error, Error::IsThread { process, .. } if process == running.id()), "{error}");
}

#[test]
fn attach_works_after_main_thread_exit() {
    let program = compile(
        "first-ended",
        r#"
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>
static void *work(void *argument) { puts("ready"); fflush(stdout); pause(); return argument; }
int main(void) { pthread_t thread; pthread_create(&thread, 0, work, 0); pthread_exit(0); }
"#,
    );
    let mut running = Running::start(&mut Command::new(&program));
    fs::remove_file(&program).unwrap();
    assert_eq!(running.line(), "ready");
    let stat = format!("/proc/{}/stat", running.id());
    while !fs::read_to_string(&stat).unwrap().contains(") Z") {
        std::thread::sleep(Duration::from_millis(1));
    }
    while_stopped(running.id(), |process| {
        assert_eq!(process.threads()[0].registers, Err(NoRegisters::Ended));
        let stacks = stacks(process);
        assert_eq!(stacks.len(), 1);
        assert_eq!(stacks[0].1.stop, StopReason::EndOfStack, "{stacks:?}");
    })
    .unwrap();
}

#[test]
fn attach_refuses_a_traced_process() {
    let running = Running::start(Command::new("sleep").arg("1000"));
    running.wait_until_asleep();
    let error = while_stopped(running.id(), |_| error_of(running.id())).unwrap();
    assert!(matches!(error, Error::TracedBy { tracer, .. } if tracer != 0), "{error}");
}

#[test]
fn attach_refuses_32_bit_programs() {
    // pause() in a loop: mov eax, 29; int 0x80; jmp -9
    let code = [0xb8, 29, 0, 0, 0, 0xcd, 0x80, 0xeb, 0xf7];
    let base = 0x0804_8000_u32;
    let mut file = vec![0x7f, b'E', b'L', b'F', 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    file.extend([2_u16, 3].iter().flat_map(|value| value.to_le_bytes()));
    file.extend([1, base + 84, 52, 0, 0].iter().flat_map(|value| value.to_le_bytes()));
    file.extend([52_u16, 32, 1, 0, 0, 0].iter().flat_map(|value| value.to_le_bytes()));
    file.extend([1, 0, base, base, 93, 93, 5, 0x1000].iter().flat_map(|value| value.to_le_bytes()));
    file.extend(code);
    let program = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("bits32-{}", std::process::id()));
    fs::write(&program, file).unwrap();
    fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let started = Command::new(&program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    fs::remove_file(&program).unwrap();
    let Ok(mut child) = started else {
        println!("not run: this kernel runs no 32-bit programs");
        return;
    };
    let error = error_of(child.id());
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(matches!(error, Error::Is32Bit { .. }), "{error}");
}

/// Not a test itself: [`attach_without_permission_gives_advice`] runs it as another user.
#[test]
fn child_that_lacks_permission() {
    if let Ok(process) = std::env::var("CAIRN_TEST_NO_PERMISSION") {
        println!("answer: {}", error_of(process.parse().unwrap()));
    }
}

#[test]
fn attach_without_permission_gives_advice() {
    const NOBODY: u32 = 65534;
    let running = Running::start(Command::new("sleep").arg("1000"));
    running.wait_until_asleep();
    // SAFETY: `geteuid` has no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        println!("not run: only root can become a user who may not look");
        return;
    }
    // A copy in a directory that every user can access.
    let copy = std::env::temp_dir().join(format!("cairn-process-test-{}", std::process::id()));
    // Copied by another process: if a child of another test inherited a descriptor that is open for
    // writing, the kernel would refuse to run the file.
    assert!(Command::new("cp").arg(std::env::current_exe().unwrap()).arg(&copy).status().unwrap().success());
    let output = Command::new(&copy)
        .args(["--exact", "child_that_lacks_permission", "--nocapture"])
        .env("CAIRN_TEST_NO_PERMISSION", running.id().to_string())
        .current_dir("/")
        .uid(NOBODY)
        .gid(NOBODY)
        .output();
    fs::remove_file(&copy).unwrap();
    let output = String::from_utf8_lossy(&output.unwrap().stdout).into_owned();
    let expected = format!("answer: no permission to look at process {}", running.id());
    assert!(output.contains(&expected), "{output}");
}

#[test]
fn memory_that_is_not_mapped_is_an_answer() {
    let running = Running::start(Command::new("sleep").arg("1000"));
    running.wait_until_asleep();
    while_stopped(running.id(), |process| {
        assert_eq!(process.memory().word64(AbsoluteAddress::new(8)), None);
        let module = &process.modules().modules()[0];
        assert_eq!(process.memory().word64(module.range().start).map(|word| word as u32), Some(0x464c_457f));
    })
    .unwrap();
}
