//! Captures on Windows, compared frame by frame with the system's own unwinder.
//!
//! The functions between a test and its captures are random calls of C, C++ with exceptions, and
//! Rust. `CAIRN_WINDOWS_LIBRARIES` names the directory of the libraries in C and C++, which
//! `cargo xtask windows` compiles from `tests/support`; without it they are skipped.
//! `CAIRN_TRUTH_STACKS` sets the number of stacks.

#![cfg(windows)]
#![allow(clippy::print_stdout, reason = "says what was compared, measured and skipped")]

use std::ffi::{CString, c_void};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use cairn_capture::{
    Context, Stack, StackId, StopReason, capture, capture_interrupted, follow_after, statistics,
};
use cairn_format::Frame;

/// Held by each test, because the statistics count the captures of the whole process.
static ALONE: Mutex<()> = Mutex::new(());
/// Stacks that were compared.
static COMPARED: AtomicU64 = AtomicU64::new(0);

#[link(name = "ntdll")]
unsafe extern "system" {
    fn RtlVirtualUnwind(
        kind: u32,
        base: u64,
        pc: u64,
        function: *mut c_void,
        context: *mut Context,
        data: *mut *mut c_void,
        frame: *mut u64,
        pointers: *mut c_void,
    ) -> *mut c_void;
    fn RtlLookupFunctionEntry(pc: u64, base: *mut u64, history: *mut c_void) -> *mut c_void;
    fn RtlCaptureContext(context: *mut Context);
    fn RtlCaptureStackBackTrace(skip: u32, count: u32, into: *mut u64, hash: *mut u32) -> u16;
    fn RtlAddFunctionTable(entries: *const u32, count: u32, base: u64) -> u8;
    fn RtlInstallFunctionTableCallback(
        identifier: u64,
        base: u64,
        length: u32,
        find: cairn_capture::FindFunction,
        context: *mut c_void,
        library: *const u16,
    ) -> u8;
}

#[link(name = "kernel32")]
unsafe extern "system" {
    fn LoadLibraryA(name: *const i8) -> *mut c_void;
    fn GetProcAddress(module: *mut c_void, name: *const i8) -> *mut c_void;
    fn GetCurrentThreadId() -> u32;
    fn OpenThread(access: u32, inherit: i32, id: u32) -> *mut c_void;
    fn SuspendThread(thread: *mut c_void) -> u32;
    fn ResumeThread(thread: *mut c_void) -> u32;
    fn GetThreadContext(thread: *mut c_void, context: *mut Context) -> i32;
    fn AddVectoredExceptionHandler(
        first: u32,
        handler: extern "system" fn(*mut ExceptionPointers) -> i32,
    ) -> *mut c_void;
    fn RemoveVectoredExceptionHandler(handle: *mut c_void) -> u32;
    fn VirtualAlloc(address: *mut c_void, bytes: usize, kind: u32, protection: u32) -> *mut c_void;
    fn GetLastError() -> u32;
    fn SetLastError(error: u32);
}

#[repr(C)]
struct ExceptionPointers {
    record: *mut ExceptionRecord,
    context: *mut Context,
}

#[repr(C)]
struct ExceptionRecord {
    code: u32,
}

const MOST_FRAMES: usize = 512;

/// The stack from `context` outwards, by the system.
fn by_system(mut context: Context, into: &mut [u64; MOST_FRAMES]) -> usize {
    let mut count = 0;
    while context.rip != 0 && count < MOST_FRAMES {
        into[count] = context.rip;
        count += 1;
        let (mut base, mut data, mut frame) = (0, std::ptr::null_mut(), 0);
        let none = std::ptr::null_mut();
        // SAFETY: the context is one of a live frame, and all places live until the calls return.
        unsafe {
            let function = RtlLookupFunctionEntry(context.rip, &raw mut base, none);
            if function.is_null() {
                // A leaf function.
                context.rip = *(context.registers[4] as *const u64);
                context.registers[4] += 8;
            } else {
                RtlVirtualUnwind(
                    0,
                    base,
                    context.rip,
                    function,
                    &raw mut context,
                    &raw mut data,
                    &raw mut frame,
                    none,
                );
            }
        }
    }
    count
}

/// The stack of the caller, by the system.
#[inline(never)]
fn own_stack_by_system(into: &mut [u64; MOST_FRAMES]) -> usize {
    let mut context = Context::empty(0x10_000b);
    // SAFETY: the context is a place for the registers.
    unsafe { RtlCaptureContext(&raw mut context) };
    by_system(context, into)
}

fn addresses(stack: Stack) -> Vec<u64> {
    stack.frames().filter_map(|frame| Some(frame.address()?.value())).collect()
}

/// Compares the stack of this call.
#[inline(never)]
extern "C" fn check() {
    // SAFETY: the last error is the thread's own.
    unsafe { SetLastError(0x1234) };
    let stack = capture();
    // SAFETY: as above.
    assert_eq!(unsafe { GetLastError() }, 0x1234, "the program's last error remains");
    let mut truth = [0; MOST_FRAMES];
    let count = own_stack_by_system(&mut truth);
    let mut frames = stack.frames().filter_map(|frame| Some(frame.address()?.value()));
    // Both are in this function, at different calls.
    let own = (frames.next(), truth[1]);
    assert!(own.0.unwrap().abs_diff(own.1) < 0x400, "{own:x?}");
    let mut truth_frames = truth[2..count].iter().copied();
    loop {
        match (frames.next(), truth_frames.next()) {
            (None, None) => break,
            (found, expected) if found == expected => {}
            other => panic!("{other:x?}: found {:x?}, truth {:x?}", addresses(stack), &truth[..count]),
        }
    }
    assert_eq!(stack.stop_reason(), StopReason::EndOfStack);
    COMPARED.fetch_add(1, Relaxed);
}

/// The C program's `struct state`.
#[repr(C)]
struct State {
    random: u64,
    checks_left: i64,
    check: extern "C" fn(),
}

type RandomCalls = unsafe extern "C" fn(*mut State, u32);

/// A function of a library in C or C++; `None` without the libraries.
fn function(library: &str, name: &str) -> Option<RandomCalls> {
    let Some(directory) = std::env::var_os("CAIRN_WINDOWS_LIBRARIES").map(PathBuf::from) else {
        println!("skipped {library}: CAIRN_WINDOWS_LIBRARIES is not set");
        return None;
    };
    let path = CString::new(directory.join(library).into_os_string().into_encoded_bytes()).unwrap();
    let name = CString::new(name).unwrap();
    // SAFETY: the library runs no code of its own when it is loaded, and exports functions of this
    // type.
    unsafe {
        let module = LoadLibraryA(path.as_ptr());
        assert!(!module.is_null(), "{}: error {}", path.display(), GetLastError());
        let function = GetProcAddress(module, name.as_ptr());
        assert!(!function.is_null());
        Some(std::mem::transmute::<*mut c_void, RandomCalls>(function))
    }
}

trait Display {
    fn display(&self) -> String;
}

impl Display for CString {
    fn display(&self) -> String {
        self.to_string_lossy().into_owned()
    }
}

/// Stacks of one language.
fn wanted() -> u64 {
    std::env::var("CAIRN_TRUTH_STACKS").map_or(20_000, |number| number.parse().unwrap()) / 4
}

fn compare(name: &str, calls: RandomCalls) {
    let _alone = ALONE.lock();
    let (walks, start) = (statistics().whole_walks, COMPARED.load(Relaxed));
    let mut seed = 0_u64;
    while COMPARED.load(Relaxed) - start < wanted() {
        seed += 1;
        // By records alone, by following as often as possible, and as programs do.
        follow_after([u32::MAX, 1, 16][seed as usize % 3]);
        for depth in [3, 9, 16, 30, 90] {
            let random = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed) + u64::from(depth);
            let mut state = State { random, checks_left: 400, check };
            // SAFETY: the state outlives the call, and has the layout of the C program's.
            unsafe { calls(&raw mut state, depth) };
        }
    }
    follow_after(16);
    let (compared, walked) = (COMPARED.load(Relaxed) - start, statistics().whole_walks - walks);
    println!("{name}: {compared} stacks equal the system's, {walked} of them by whole walks");
    assert!(walked * 100 < compared, "the fast path takes the rest");
}

#[test]
fn stacks_of_c_equal_the_system() {
    if let Some(calls) = function("random_calls.dll", "random_calls") {
        compare("C", calls);
    }
}

#[test]
fn stacks_of_c_with_frame_pointers_equal_the_system() {
    if let Some(calls) = function("random_calls_frame_pointer.dll", "random_calls") {
        compare("C with frame pointers", calls);
    }
}

#[test]
fn stacks_of_exceptions_equal_the_system() {
    if let Some(calls) = function("random_throws.dll", "random_throws") {
        compare("C++ with exceptions", calls);
    }
}

/// Random calls of Rust functions with frames of different sizes.
unsafe extern "C" fn rust_calls(state: *mut State, depth: u32) {
    // SAFETY: the caller passes a state that outlives the call.
    let state = unsafe { &mut *state };
    while state.checks_left > 0 {
        frame_of::<3>(state, depth);
    }
}

#[inline(never)]
fn frame_of<const WORDS: usize>(state: &mut State, depth: u32) -> u64 {
    let mut words = [u64::from(depth); WORDS];
    state.random = state.random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
    let random = state.random >> 33;
    if depth == 0 || random % 7 == 0 {
        state.checks_left -= 1;
        (state.check)();
    }
    for word in &mut words {
        *word = word.wrapping_add(random);
    }
    if depth > 0 {
        words[random as usize % WORDS] += match random % 4 {
            0 => frame_of::<2>(state, depth - 1),
            1 => frame_of::<7>(state, depth - 1),
            2 => frame_of::<40>(state, depth - 1),
            _ => frame_of::<900>(state, depth - 1),
        };
    }
    std::hint::black_box(&words).iter().fold(0, |sum, word| sum ^ word)
}

#[test]
fn stacks_of_rust_equal_the_system() {
    compare("Rust", rust_calls);
}

#[test]
fn stacks_of_threads_end_at_their_start() {
    std::thread::spawn(|| check()).join().unwrap();
    let threads: Vec<_> = (0..8).map(|_| std::thread::spawn(|| (0..200).for_each(|_| check()))).collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

/// Where the thread of the next test waits.
static STAGE: AtomicU64 = AtomicU64::new(0);

#[inline(never)]
fn spin(depth: u32) {
    if depth > 0 {
        spin(depth - 1);
    }
    while STAGE.load(Relaxed) < 2 {
        STAGE.fetch_max(1, Relaxed);
        std::hint::spin_loop();
    }
    std::hint::black_box(depth);
}

#[test]
fn suspended_thread_is_captured_by_its_context() {
    let _alone = ALONE.lock();
    let (send, receive) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        // SAFETY: the call takes no argument.
        send.send(unsafe { GetCurrentThreadId() }).unwrap();
        spin(20);
    });
    let id = receive.recv().unwrap();
    // SAFETY: suspend, resume, get context.
    let handle = unsafe { OpenThread(0x001a, 0, id) };
    assert!(!handle.is_null());
    while STAGE.load(Relaxed) == 0 {
        std::thread::yield_now();
    }
    let mut deepest = 0;
    for _ in 0..200 {
        let mut context = Context::empty(0x10_000b);
        // SAFETY: the handle is of a live thread, which nothing else suspends.
        unsafe {
            assert_ne!(SuspendThread(handle), u32::MAX);
            assert_ne!(GetThreadContext(handle, &raw mut context), 0);
        }
        let mut truth = [0; MOST_FRAMES];
        // Nothing here allocates until the thread runs again: it may hold the lock of the heap.
        let count = by_system(context, &mut truth);
        // SAFETY: the thread is suspended, so its context and stack do not change.
        let stack = unsafe { capture_interrupted(&raw const context) };
        // SAFETY: as above.
        unsafe { ResumeThread(handle) };
        assert_eq!(addresses(stack), truth[..count], "{context:x?}");
        assert!(matches!(stack.frames().next(), Some(Frame::ProgramCounter(_))));
        deepest = deepest.max(count);
    }
    STAGE.store(2, Relaxed);
    thread.join().unwrap();
    assert!(deepest > 20, "{deepest}");
}

static INTERRUPTED: AtomicU64 = AtomicU64::new(0);
static TRUTH: Mutex<Vec<u64>> = Mutex::new(Vec::new());

/// Captures the place of a breakpoint, and continues behind it.
extern "system" fn on_exception(pointers: *mut ExceptionPointers) -> i32 {
    const BREAKPOINT: u32 = 0x8000_0003;
    const CONTINUE_SEARCH: i32 = 0;
    const CONTINUE_EXECUTION: i32 = -1;
    // SAFETY: the system passes a record and a context that live until the handler returns.
    let (record, context) = unsafe { (&*(*pointers).record, &mut *(*pointers).context) };
    if record.code != BREAKPOINT {
        return CONTINUE_SEARCH;
    }
    // SAFETY: the interrupted code waits for this handler.
    let stack = unsafe { capture_interrupted(context) };
    let mut truth = [0; MOST_FRAMES];
    let count = by_system(*context, &mut truth);
    *TRUTH.lock().unwrap() = truth[..count].to_vec();
    INTERRUPTED.store(stack.id().number().into(), Relaxed);
    context.rip += 1;
    CONTINUE_EXECUTION
}

#[inline(never)]
fn break_here(depth: u32) -> u32 {
    if depth == 0 {
        // SAFETY: the handler skips the instruction.
        unsafe { std::arch::asm!("int3") };
        return 0;
    }
    std::hint::black_box(break_here(depth - 1) + 1)
}

#[test]
fn exception_handler_captures_the_interrupted_stack() {
    let _alone = ALONE.lock();
    // SAFETY: the handler is safe to run for any exception.
    let handle = unsafe { AddVectoredExceptionHandler(1, on_exception) };
    assert_eq!(break_here(5), 5);
    // SAFETY: the handle is that of the handler added above.
    unsafe { RemoveVectoredExceptionHandler(handle) };
    let number = INTERRUPTED.load(Relaxed) as u32;
    let stack = Stack::from_id(StackId::from_number(number).unwrap());
    assert_eq!(addresses(stack), *TRUTH.lock().unwrap());
    let own = break_here as *const () as u64;
    let inner = addresses(stack).iter().take(6).filter(|&&pc| (own..own + 0x100).contains(&pc)).count();
    assert_eq!(inner, 6);
}

#[test]
fn generated_code_is_stepped_by_its_registered_table() {
    let _alone = ALONE.lock();
    let base = generated_code();
    // SAFETY: the table and its data lie in the memory, which stays.
    unsafe {
        assert_ne!(RtlAddFunctionTable((base + ENTRY) as *const u32, 1, base), 0);
        assert!(cairn_capture::add_function_table(base + ENTRY, 1, base, CODE_BYTES as u32));
        assert!(!cairn_capture::add_function_table(base - 8, 1, base, CODE_BYTES as u32));
    }
    call_generated(base);
    cairn_capture::while_unloading(|| cairn_capture::remove_function_table(base + ENTRY));
}

#[test]
fn generated_code_is_stepped_by_the_entry_that_a_callback_finds() {
    unsafe extern "system" fn find(address: u64, base: *mut c_void) -> *const c_void {
        CALLS.fetch_add(1, Relaxed);
        let base = base as u64;
        if (base..base + CODE_BYTES as u64).contains(&address) {
            (base + ENTRY) as *const c_void
        } else {
            std::ptr::null()
        }
    }
    static CALLS: AtomicU64 = AtomicU64::new(0);

    let _alone = ALONE.lock();
    let base = generated_code();
    let context = base as *mut c_void;
    // SAFETY: entry and data lie in the memory, which stays, and the function takes no lock.
    unsafe {
        let (bytes, none) = (CODE_BYTES as u32, std::ptr::null());
        assert_ne!(RtlInstallFunctionTableCallback(base | 3, base, bytes, find, context, none), 0);
        assert!(!cairn_capture::add_function_table_callback(base, base, bytes, find, context));
        assert!(cairn_capture::add_function_table_callback(base | 3, base, bytes, find, context));
    }
    let before = CALLS.load(Relaxed);
    call_generated(base);
    assert!(CALLS.load(Relaxed) > before);
    cairn_capture::while_unloading(|| cairn_capture::remove_function_table(base | 3));
    // Stacks end at code without an entry.
    let calls = CALLS.load(Relaxed);
    let _ = cairn_capture::capture();
    assert_eq!(CALLS.load(Relaxed), calls);
}

const CODE_BYTES: usize = 0x1000;
/// Place of the entry of the function table.
const ENTRY: u64 = 0x300;

/// Memory with a function that calls its argument, its unwind data and its entry.
fn generated_code() -> u64 {
    // SAFETY: new memory, to which nothing else refers.
    let memory = unsafe { VirtualAlloc(std::ptr::null_mut(), CODE_BYTES, 0x3000, 0x40) };
    let base = memory as u64;
    // push rbx; sub rsp, 0x40; call rcx; add rsp, 0x40; pop rbx; ret.
    let code = [0x53, 0x48, 0x83, 0xec, 0x40, 0xff, 0xd1, 0x48, 0x83, 0xc4, 0x40, 0x5b, 0xc3];
    let data = [0x01_u8, 0x05, 0x02, 0x00, 0x05, 0x72, 0x01, 0x30];
    let entry = [0x100_u32, 0x100 + code.len() as u32, 0x200];
    // SAFETY: the memory has room for all three.
    unsafe {
        std::ptr::copy_nonoverlapping(code.as_ptr(), (base + 0x100) as *mut u8, code.len());
        std::ptr::copy_nonoverlapping(data.as_ptr(), (base + 0x200) as *mut u8, data.len());
        std::ptr::copy_nonoverlapping(entry.as_ptr(), (base + ENTRY) as *mut u32, entry.len());
    }
    base
}

/// Compares stacks that go through the generated code.
fn call_generated(base: u64) {
    // SAFETY: a function with this type lies there.
    let call = unsafe { std::mem::transmute::<u64, extern "C" fn(extern "C" fn())>(base + 0x100) };
    (0..10).for_each(|_| call(check));
}

/// Times of a capture and of the system's functions on the same stacks.
#[test]
#[ignore = "measures; run it alone"]
fn capture_is_timed_beside_the_system() {
    let _alone = ALONE.lock();
    for depth in [10, 37, 90] {
        measure_below(depth, depth);
    }
}

#[inline(never)]
fn measure_below(depth: u32, whole: u32) -> u32 {
    if depth > 0 {
        return std::hint::black_box(measure_below(depth - 1, whole) + 1);
    }
    let time = |count: u32, call: &mut dyn FnMut()| {
        let mut best = f64::MAX;
        for _ in 0..7 {
            let start = Instant::now();
            (0..count).for_each(|_| call());
            best = best.min(start.elapsed().as_nanos() as f64 / f64::from(count));
        }
        best
    };
    let mut places = [0; MOST_FRAMES];
    let frames = own_stack_by_system(&mut places);
    let own = time(100_000, &mut || {
        std::hint::black_box(capture());
    });
    let unwind = time(500, &mut || {
        std::hint::black_box(own_stack_by_system(&mut places));
    });
    let trace = time(500, &mut || {
        // SAFETY: the array has room for that number of frames.
        std::hint::black_box(unsafe {
            RtlCaptureStackBackTrace(0, 62, places.as_mut_ptr(), std::ptr::null_mut())
        });
    });
    println!(
        "{frames} frames: capture {own:.0} ns, RtlVirtualUnwind {unwind:.0} ns ({:.0} times), \
         RtlCaptureStackBackTrace (62 frames at most) {trace:.0} ns ({:.0} times)",
        unwind / own,
        trace / own
    );
    whole
}

#[path = "../examples/windows_crash_handler.rs"]
#[allow(dead_code, reason = "its own `main` is not called here")]
mod crash_handler;

/// Names the crash of the process that runs [`a_process_that_crashes`].
const CRASH: &str = "CAIRN_TEST_CRASH";

#[test]
fn a_process_that_crashes() {
    if let Ok(name) = std::env::var(CRASH) {
        crash_handler::handler::crash(name == "overflow");
    }
}

/// Not of a stack overflow: under Wine 8 no filter of any program runs after one.
#[test]
fn crash_handler_writes_the_stack() {
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    child.args(["a_process_that_crashes", "--exact", "--nocapture", "--test-threads=1"]);
    let output = child.env(CRASH, "write").output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{text}");
    let frames = text.lines().filter(|line| line.trim_start().starts_with('#')).count();
    assert!(frames > 5, "{text}");
    assert!(!text.contains("the stack goes on"), "{text}");
}
