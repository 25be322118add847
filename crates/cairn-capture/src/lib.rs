//! Captures this thread's call stack, fast enough for malloc and safe enough for signal handlers.
//!
//! ```
//! use cairn_capture::{Stack, StopReason, capture};
//!
//! #[inline(never)]
//! fn allocate() -> Stack {
//!     capture()
//! }
//! let stacks: Vec<Stack> = (0..2).map(|_| allocate()).collect();
//! assert_eq!(stacks[0].id(), stacks[1].id(), "equal stacks have equal numbers");
//! assert_eq!(stacks[0].stop_reason(), StopReason::EndOfStack);
//! for frame in stacks[0].frames() {
//!     println!("{frame:?}");
//! }
//! ```
//!
//! # A stack is a number
//!
//! [`capture`] returns a [`Stack`], which is a number: its [`StackId`]. Equal stacks have equal
//! numbers, in all threads and for as long as the process lives, so a stack is counted, stored and
//! compared like any other number. The innermost frame is the caller's own; no frame of this crate
//! is in the stack.
//!
//! To print a stack at once, without names: [`stack.write_text(2)`](Stack::write_text). For names,
//! look up the addresses later with `cairn-symbols` or `addr2line`, in a process that has time.
//!
//! Every stack has a [`StopReason`]. [`StopReason::EndOfStack`] means that it was followed to the
//! start of the thread.
//!
//! # In a signal handler
//!
//! [`capture`] in a handler captures the handler, the signal's frame and the interrupted code.
//! [`capture_interrupted`] captures the interrupted code alone, with the interrupted instruction as
//! its innermost frame.
//!
//! ```
//! use std::sync::atomic::{AtomicU32, Ordering};
//! use cairn_capture::{Stack, StackId, capture_interrupted};
//! use cairn_format::Frame;
//!
//! static INTERRUPTED: AtomicU32 = AtomicU32::new(0);
//!
//! extern "C" fn on_signal(_: i32, _: *mut libc::siginfo_t, context: *mut core::ffi::c_void) {
//!     // SAFETY: the handler was called with this context, and has not returned.
//!     let stack = unsafe { capture_interrupted(context.cast()) };
//!     INTERRUPTED.store(stack.id().number(), Ordering::Relaxed);
//! }
//!
//! // SAFETY: zeros are a value of an action, and the handler is safe to run in a signal.
//! unsafe {
//!     let mut action: libc::sigaction = std::mem::zeroed();
//!     action.sa_sigaction = on_signal as *const () as usize;
//!     action.sa_flags = libc::SA_SIGINFO;
//!     libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut());
//!     libc::raise(libc::SIGUSR1);
//! }
//! let id = StackId::from_number(INTERRUPTED.load(Ordering::Relaxed)).unwrap();
//! let frames: Vec<Frame> = Stack::from_id(id).frames().collect();
//! assert!(matches!(frames[0], Frame::ProgramCounter(_)));
//! assert!(matches!(frames[1], Frame::ReturnAddress(_)));
//! ```
//!
//! A program that handles crashes gives its handler a separate stack (`sigaltstack`), because a
//! stack overflow leaves no room on the other one. The overflowed stack is still captured. The
//! repository's `examples/` has whole programs: a self-print, a sampling profiler, a crash handler,
//! an allocator that counts, the stack of another thread.
//!
//! # Wire formats
//!
//! Every encoder of `cairn-format` accepts the frames. Nothing allocates, so a handler can encode
//! them:
//!
//! ```
//! use cairn_format::{Frame, SliceSink, WordSize};
//! use cairn_wire::{cbf, lws};
//!
//! let stack = cairn_capture::capture();
//!
//! // Swift's Compact Backtrace Format. `marked_frames` adds a mark to a stack that could not be
//! // followed to its end.
//! let mut buffer = [0; 1024];
//! let mut sink = SliceSink::new(&mut buffer);
//! cbf::encode(stack.marked_frames(), WordSize::NATIVE, cbf::CbfDialect::Strict, &mut sink)?;
//! let decoder = cbf::CbfDecoder::new(sink.written(), cbf::Rules::STRICT);
//! assert_eq!(decoder.collect::<Result<Vec<Frame>, _>>()?, stack.frames().collect::<Vec<_>>());
//!
//! // libwebsockets' backtrace of an allocation: the count of addresses, then up to 31 addresses.
//! let addresses = || stack.frames().filter_map(Frame::address).take(lws::MAX_DEPTH);
//! let mut buffer = [0; lws::BLOB_BUFFER_BYTES];
//! let mut encoder = lws::LwsEncoder::new(SliceSink::new(&mut buffer), addresses().count())?;
//! for address in addresses() {
//!     encoder.address(address)?;
//! }
//! let (length, sink) = encoder.allocation_size(4096)?.close()?;
//! assert_eq!(lws::decode(sink.written(), WordSize::NATIVE)?.allocation_size_bytes, 4096);
//! assert_eq!(sink.written().len(), length);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # A part of a stack
//!
//! A capture always takes the whole stack, which makes the next capture cheap. Adaptors between the
//! frames and an encoder select a part of it afterwards:
//!
//! ```
//! use cairn_capture::{FoldRecursion, Stack, capture};
//! use cairn_wire::cbf::CaptureLimit;
//! use cairn_format::{AbsoluteAddress, Frame};
//! use cairn_wire::lws;
//!
//! #[inline(never)]
//! fn recurse(depth: u32) -> Stack {
//!     let stack = if depth == 0 { capture() } else { recurse(depth - 1) };
//!     std::hint::black_box(stack)
//! }
//! let stack = recurse(500);
//!
//! // Both ends: 12 entries, 4 of them from the outer end. The frames in between are omitted and
//! // counted.
//! let limit = CaptureLimit { limit: 12, offset: 0, top: 4 };
//! let depth = stack.frames().count() as u64;
//! let ends: Vec<Frame> = limit.known_length(stack.frames(), depth).collect();
//! assert_eq!(ends.len(), 12);
//! assert_eq!(ends[7], Frame::Omitted(depth - 11));
//!
//! // Recursion of up to 4 functions, shown once and counted.
//! let folded: Vec<Frame> = FoldRecursion::<_, 4>::new(stack.frames()).collect();
//! assert!(folded.len() < 50);
//! assert!(folded.iter().any(|frame| matches!(frame, Frame::Omitted(490..))));
//!
//! // As libwebsockets does: skips the 2 innermost frames, takes at most 32, and drops the
//! // outermost of these.
//! let addresses = stack.frames().filter_map(Frame::address);
//! let trimmed: Vec<AbsoluteAddress> = lws::trim(addresses, lws::DEFAULT_PRE, lws::DEFAULT_POST).collect();
//! assert_eq!(trimmed.len(), 31);
//! ```
//!
//! # Under a recorder
//!
//! A library with hooks in front of `malloc` also uses:
//!
//! - [`capture_at`]: captures the stack of its caller, from the registers at the first instruction
//!   of the hook;
//! - [`StackCursor`] and [`StackId::row`]: read the stack table as rows of (stack, its caller's
//!   stack, frame, module), from the first row or from the last one read; [`LoadedModule`]
//!   describes a module;
//! - [`take_less_room`]: call it before the program limits its address space, or locks all of its
//!   memory;
//! - [`after_fork_in_child`]: call it in a forked child, which has none of the parent's other
//!   threads.
//!
//! # By frame pointers
//!
//! [`walk_frames`] follows frame pointers, with the controls of Darwin's `backtrace(9)`: the caller
//! chooses the first frame and can resume a walk, and the walk finds the async frames of Swift.
//! `docs/book/reference/backtrace9.md` maps the manual page to this crate and to the C API.
//!
//! # Async Rust
//!
//! A stack shows which function called which. A suspended task has called nothing: it is a value in
//! memory, and on no stack. So a capture inside an `async fn` contains
//!
//! - the `poll` functions of the task that is being polled: the innermost `async fn`, each one that
//!   awaits it *directly*, up to the task's own future, named `{async_fn#0}` or `{async_block#0}`
//!   by symbols, then the executor, then the thread;
//! - neither the code that spawned the task, nor tasks that wait for it through a join handle, a
//!   channel or a lock: these have returned or are suspended;
//! - nothing of suspended tasks. Only the compiler's own code can read from their futures where
//!   they resume.
//!
//! Other systems have such a chain where an unwinder finds it (Swift's async contexts, which
//! `cairn_unwind::xnu` follows). The model represents it as
//! [`Frame::AsyncResumePoint`](cairn_format::Frame), the address where a task resumes, which is
//! looked up unchanged. A program that records for each task where it was spawned can append that
//! to the stack, and the Compact Backtrace Format encodes it:
//!
//! ```
//! use cairn_capture::{Stack, capture};
//! use cairn_format::{Frame, SliceSink, WordSize};
//! use cairn_wire::cbf;
//!
//! struct Task {
//!     /// Captured when the task was spawned.
//!     spawned_at: Stack,
//! }
//! let task = Task { spawned_at: capture() };
//!
//! // Later, while the task is polled.
//! let resume_points = task.spawned_at.frames().take(1).filter_map(Frame::address);
//! let frames = capture().frames().chain(resume_points.map(Frame::AsyncResumePoint));
//! let mut buffer = [0; 1024];
//! cbf::encode(frames, WordSize::NATIVE, cbf::CbfDialect::Strict, &mut SliceSink::new(&mut buffer))?;
//! # Ok::<(), cbf::CbfEncodeError>(())
//! ```
//!
//! # How it works, and its cost
//!
//! A capture recognises a stack instead of walking it. Each thread remembers earlier stacks. A
//! table finds by the caller's address and stack pointer which of them to expect, and one loop
//! compares the words that decide it. The result is exact, by induction over the frames, and needs
//! no frame pointers. Frames that are new since the last capture are walked by packed unwind rules,
//! and the rest by full ones. The modules' sources explain each part; ARCHITECTURE.md has the
//! overview.
//!
//! - The kernel provides the memory: for each thread that captures, once and again when its stack
//!   becomes far deeper; and for new stacks, four bytes for each frame that no other stack shares.
//!   Numbers stay valid, so the latter is never freed.
//! - In steady state there is no system call. A thread makes a few when its stack is deeper than in
//!   any capture before, and for stacks that take a whole walk.
//! - `cargo xtask bench` measures the cost; `benchmarks/record` has the results.
//!
//! # Limits
//!
//! - Linux with glibc 2.17 or later. Before 2.35 the C library cannot find modules without a lock,
//!   and a table here does so: call [`prepare_modules`] at the start, and after loading modules.
//!   Without that, each new address costs tens of microseconds. Modules of further namespaces
//!   (`dlmopen`) are not found there.
//! - Tail calls have left the stack, and inlined calls were never on it. Symbols restore the
//!   latter.
//! - Code without unwind tables (from a JIT compiler, some assembly) ends a stack, with the reason,
//!   unless its frame pointer leads to a module's code. A module that is loaded where such code lay
//!   counts as that code, at addresses that were on a stack before, until some module is unloaded.
//! - A million frames, or as many as the kernel gives a thread memory for: the innermost ones
//!   remain, then [`StopReason::Limit`]. A stack with a frame of more than 8 MiB takes a whole
//!   walk.
//! - Unloaded modules: wrap the call in [`while_unloading`]. `libcairn` does that for `dlclose` by
//!   itself.
//! - `process_vm_readv` finds how far a stack is readable. Where a sandbox forbids this call, each
//!   page is probed separately.
//! - A capture inside a capture, by a signal, is complete; a third one inside both is lost and
//!   counted ([`StackId::LOST`], [`statistics`]).
//! - Numbers are valid in this process and in its forks, not in other processes. Wire formats serve
//!   those.
//!
//! Shadow stacks (Intel's SHSTK, Arm's GCS) contain only return addresses, which the processor
//! writes. On a thread that has one, a capture could copy it instead of all this; the place for
//! that is `stacks::engine::capture`, before the records. It is not implemented: no kernel that
//! this crate was tested on gives programs a shadow stack.
//!
//! # Safety in detail
//!
//! Nothing here allocates from the heap, takes a lock, formats text, or panics by design.
//! `docs/book/reference/signal-safety.md` in the repository lists what a capture does and what it
//! never does, with the reasons.
//!
//! # Processors
//!
//! x86-64 and AArch64, Linux with glibc 2.17 or later. On AArch64, stacks with code
//! that no table covers are walked as a whole, and Python frames are not read.
//!
//! Windows on x86-64: [`capture`], [`capture_interrupted`] with the [`Context`] of an exception
//! handler or of a suspended thread, and all that belongs to numbers of stacks. Tested under Wine 8
//! only, against `RtlVirtualUnwind`. `docs/design/0017-captures-on-windows.md` says how it works
//! there; an example writes the stack of a crash. A program passes the tables of code that it makes
//! to `add_function_table` or `add_function_table_callback`.
//!
//! Darwin has walks, and no numbers for stacks: `walk_stack` by compact unwind info and frame
//! pointers, and [`walk_frames`]. That part is compiled for both of its processors, and has never
//! run there. `docs/book/reference/porting.md` lists what is missing.
#![no_std]

mod call_site;
mod frame_walk;
#[cfg(target_os = "macos")]
mod macos;
#[cfg(any(target_os = "linux", windows))]
mod stacks;

#[cfg(not(any(target_os = "linux", target_os = "macos", windows)))]
compile_error!(
    "cairn-capture supports Linux, Windows and Darwin; docs/book/reference/porting.md describes what another system needs"
);

pub use cairn_unwind::{FoldRecursion, MemoryReader, StopReason, xnu};
pub use call_site::CallSite;
pub use frame_walk::{FrameControl, kernel_walk_at, walk_frames, walk_frames_at};
#[cfg(target_os = "macos")]
pub use macos::{Context, ThreadMemory, WalkedStack, read_own_memory, walk_stack, walk_stack_at};
#[cfg(all(any(target_os = "linux", windows), feature = "counters"))]
#[doc(hidden)]
pub use stacks::counts;
#[cfg(windows)]
#[doc(hidden)]
pub use stacks::environment;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub use stacks::{
    CodeContents, PythonSymbols, add_frame_table, observe_unread_python_stacks, python_code,
    read_python_frames, remove_frame_table, step_through_luajit, step_through_php, unread_python_stacks,
};
#[cfg(any(target_os = "linux", windows))]
pub use stacks::{
    Context, FrameId, Frames, LoadedModule, ModuleIdentity, NewStacks, Stack, StackCursor, StackId, StackRow,
    Statistics, ThreadMemory, WriteError, capture, capture_at, capture_interrupted, forget_stacks,
    observe_new_stacks, own_memory_changes, read_own_memory, statistics, take_less_room,
    visit_own_memory as own_memory, while_unloading,
};
#[cfg(windows)]
pub use stacks::{
    FindFunction, add_function_table, add_function_table_callback, forget_module, remove_function_table,
};
#[cfg(target_os = "linux")]
#[doc(hidden)]
pub use stacks::{ListedModule, LoaderNamespace, loader_namespaces};
#[cfg(target_os = "linux")]
pub use stacks::{after_fork_in_child, prepare_modules};
#[cfg(any(target_os = "linux", windows))]
#[doc(hidden)]
pub use stacks::{cairn_capture_here, follow_after};

/// Tests the examples of the page as doc tests.
#[cfg(all(doctest, target_os = "linux"))]
#[doc = include_str!("../../../docs/book/reference/backtrace9.md")]
struct Backtrace9;
