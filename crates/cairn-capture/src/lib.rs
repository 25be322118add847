//! This thread's call stack, now, from anywhere: fast enough for malloc, safe enough for signal handlers.
//!
//! # Three lines to a stack
//!
//! ```
//! let stack = cairn_capture::capture();
//! for frame in stack.frames() {
//!     println!("{frame:?}");
//! }
//! ```
//!
//! [`capture`] answers with a [`Stack`], which is a number: its [`StackId`]. Equal stacks have equal numbers, in all
//! threads and for as long as the process lives, so a stack is counted, kept and compared like any other number. The
//! innermost frame is the caller's own; no frame of this crate is among them.
//!
//! To see it at once, without names: [`stack.write_text(2)`](Stack::write_text). For names, look the addresses up later,
//! with `cairn-symbols` or `addr2line`, in a process that has time.
//!
//! Every stack says why it ends where it ends. Here it was followed to the start of the thread:
//!
//! ```
//! use cairn_capture::{StopReason, capture};
//! assert_eq!(capture().stop_reason(), StopReason::EndOfStack);
//! ```
//!
//! # Ten lines in a signal handler
//!
//! [`capture`] may be called in a handler and shows the handler, the signal's frame and what was interrupted. Mostly one
//! wants the last of these alone: [`capture_interrupted`] has it, with the interrupted instruction as its innermost frame.
//!
//! ```
//! use std::sync::atomic::{AtomicU32, Ordering};
//! use cairn_capture::{Stack, StackId, capture_interrupted};
//! use cairn_format::Frame;
//!
//! static INTERRUPTED: AtomicU32 = AtomicU32::new(0);
//!
//! extern "C" fn on_signal(_: i32, _: *mut libc::siginfo_t, context: *mut core::ffi::c_void) {
//!     // SAFETY: the context that this handler was called with.
//!     let stack = unsafe { capture_interrupted(context.cast()) };
//!     INTERRUPTED.store(stack.id().number(), Ordering::Relaxed);
//! }
//!
//! // SAFETY: zeros are a value of an action, and the handler does only what a handler may do.
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
//! A program that handles crashes gives its handler a stack of its own (`sigaltstack`): after a stack overflow there is no
//! other left, and the overflowed one is read all the same. Whole programs are in the repository's `examples/`: a
//! self-print, a sampling profiler, a crash handler, an allocator that counts, the stack of another thread.
//!
//! # A stack into any wire format
//!
//! The frames go into every encoder of `cairn-format` as they are. Nothing allocates, so this can be done in the handler:
//!
//! ```
//! use cairn_format::{Frame, SliceSink, WordSize};
//! use cairn_wire::{cbf, lws};
//!
//! let stack = cairn_capture::capture();
//!
//! // Swift's Compact Backtrace Format. `marked_frames` tells the reader when a stack could not be followed to its end.
//! let mut buffer = [0; 1024];
//! let mut sink = SliceSink::new(&mut buffer);
//! cbf::encode(stack.marked_frames(), WordSize::NATIVE, cbf::CbfDialect::Strict, &mut sink)?;
//! let decoder = cbf::CbfDecoder::new(sink.written(), cbf::Rules::STRICT);
//! assert_eq!(decoder.collect::<Result<Vec<Frame>, _>>()?, stack.frames().collect::<Vec<_>>());
//!
//! // libwebsockets' backtrace of an allocation: up to 31 addresses, their number first.
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
//! A capture always takes the whole stack, because the whole is what makes the next capture cheap. What to keep of it is
//! said afterwards, by adaptors between the frames and an encoder:
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
//! // Top and bottom, what lies between left out and counted: 12 entries, 4 of them from the outer end.
//! let limit = CaptureLimit { limit: 12, offset: 0, top: 4 };
//! let depth = stack.frames().count() as u64;
//! let ends: Vec<Frame> = limit.known_length(stack.frames(), depth).collect();
//! assert_eq!(ends.len(), 12);
//! assert_eq!(ends[7], Frame::Omitted(depth - 11));
//!
//! // Recursion, of up to 4 functions in turn, shown once and counted.
//! let folded: Vec<Frame> = FoldRecursion::<_, 4>::new(stack.frames()).collect();
//! assert!(folded.len() < 50);
//! assert!(folded.iter().any(|frame| matches!(frame, Frame::Omitted(490..))));
//!
//! // As libwebsockets: the 2 innermost frames skipped, no more than 32, the outermost of these dropped.
//! let addresses = stack.frames().filter_map(Frame::address);
//! let kept: Vec<AbsoluteAddress> = lws::trim(addresses, lws::DEFAULT_PRE, lws::DEFAULT_POST).collect();
//! assert_eq!(kept.len(), 31);
//! ```
//!
//! # Under a recorder
//!
//! A library that stands in front of `malloc` has three more needs, and finds here:
//!
//! - [`capture_at`]: the stack of its caller, from the registers that it noted at its first instruction;
//! - [`StackCursor`] and [`StackId::row`]: the stack table as rows of (stack, its caller's stack, frame, module), those that
//!   are new since the last time, and [`LoadedModule`] for what to say of a module;
//! - [`take_less_room`]: what to do before the program limits its address space, or has all of it locked in memory;
//! - [`after_fork_in_child`]: what a forked child does about the threads that are not there any more.
//!
//! # By frame pointers
//!
//! [`walk_frames`] follows frame pointers, with the controls of Darwin's `backtrace(9)`: the caller chooses where it starts and
//! resumes, and it finds where Swift's async frames branch off. `docs/book/backtrace9.md` maps the manual page to this crate and to the C API.
//!
//! # Async Rust
//!
//! A stack shows who called whom. A suspended task has called nobody: it is a value in memory, and on no stack. So a
//! capture inside an `async fn` shows
//!
//! - the `poll` functions of the task that is being polled: the innermost `async fn`, each one that awaits it *directly*,
//!   up to the task's own future, named `{async_fn#0}` or `{async_block#0}` by symbols, then the executor, then the thread;
//! - not who spawned the task, nor what waits for it through a join handle, a channel or a lock: these ended or are
//!   suspended;
//! - nothing at all of suspended tasks. Their futures say where they will go on only to the compiler's own code.
//!
//! Other systems keep such a chain where an unwinder finds it (Swift's async contexts, which
//! `cairn_unwind::xnu` follows). The model has a place for it: [`Frame::AsyncResumePoint`](cairn_format::Frame), an
//! address where a task will continue, looked up as it stands. A program that notes for each task where it was spawned can
//! append that to what the stack shows, and the Compact Backtrace Format carries it:
//!
//! ```
//! use cairn_capture::{Stack, capture};
//! use cairn_format::{Frame, SliceSink, WordSize};
//! use cairn_wire::cbf;
//!
//! struct Task {
//!     /// Noted when it was spawned.
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
//! # How it works, and what it costs
//!
//! A stack is not walked but recognised: the thread remembers some, a table tells from the caller's address and stack
//! pointer which of them this should be, and the words that decide it are compared in one loop. The result is exact, by
//! induction over the frames, and needs no frame pointers. What is new since the last capture is walked by packed unwind
//! rules; what these cannot express, by full ones. The modules' sources tell each part; ARCHITECTURE.md has the overview.
//!
//! - Memory comes from the kernel: for each thread that captures, once and again when its stack is far deeper than before,
//!   and for new stacks, four bytes a frame that no other stack has. The latter is never given back: numbers stay valid.
//! - In steady state there is no system call. A thread makes a few when its stack is deeper than in any capture before,
//!   and where a stack is unusual.
//! - `cargo xtask bench` measures; `benchmarks/record` keeps what was measured.
//!
//! # Limits
//!
//! - x86-64 Linux with glibc 2.35 or later. On an older one modules cannot be found without a lock, and every stack ends
//!   at once with [`StopReason::NoUnwindInfo`].
//! - Calls that the compiler turned into jumps have left the stack, and inlined calls were never on it. Symbols bring
//!   the latter back.
//! - Code without unwind tables (written by a JIT compiler, some assembly) ends a stack, with the reason, unless its frame
//!   pointer leads to a module's code. A module that is loaded to where such code lay counts as that code, at the
//!   addresses that were on a stack before, until some module is unloaded.
//! - A million frames, or as many as the kernel gives a thread memory for: the innermost are kept, then
//!   [`StopReason::Limit`]. A frame of more than 8 MiB makes its stack an unusual one.
//! - Modules that are unloaded: wrap the call in [`while_unloading`]. `libcairn` does that for `dlclose` by itself.
//! - The kernel is asked through `process_vm_readv` how far a stack is readable. Where a sandbox forbids this call, it is
//!   asked in another way, page by page.
//! - A capture inside a capture, by a signal, is whole; a third one inside both is lost and counted
//!   ([`StackId::LOST`], [`statistics`]).
//! - Numbers are valid in this process and in what it forks, not in another one. Wire formats are for those.
//!
//! Shadow stacks (Intel's SHSTK, Arm's GCS) hold the return addresses side by side, kept by the processor. Where a thread
//! has one, a capture could copy it in place of all this; the place for that is `engine::capture`, before the
//! records. It is not done yet: no kernel that this crate was tested on gives programs one.
//!
//! # Safety in detail
//!
//! Nothing here allocates from the heap, takes a lock, formats text, or panics by design. `docs/signal-safety.md` in the
//! repository lists what a capture does and what it never does, with the reasons.
//!
//! # Processors
//!
//! x86-64 and AArch64, Linux with glibc 2.35 or later. On AArch64 every capture walks the whole stack: exact, and some
//! hundred times slower.
//!
//! On Darwin there are walks, and no numbers for stacks: `walk_stack` by compact unwind info and frame pointers, and [`walk_frames`]. That
//! part is compiled for both of its processors, and has never run there. `docs/book/porting.md` says what is missing.
#![no_std]
#![cfg_attr(
    not(target_arch = "x86_64"),
    allow(dead_code, reason = "the tables are made for the hot path, which is x86-64's")
)]

#[cfg(target_os = "linux")]
mod arch;
#[cfg(all(target_os = "linux", target_arch = "aarch64"))]
use arch::engine;
mod call_site;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod engine;
#[cfg(target_os = "linux")]
mod entry;
mod frame_walk;
#[cfg(target_os = "linux")]
mod headerless;
#[cfg(target_os = "linux")]
mod index;
#[cfg(target_os = "macos")]
mod macos;
#[cfg(target_os = "linux")]
mod mapping;
#[cfg(target_os = "linux")]
mod modules;
#[cfg(target_os = "linux")]
mod own_memory;
#[cfg(target_os = "linux")]
mod pcs;
#[cfg(target_os = "linux")]
mod process;
#[cfg(target_os = "linux")]
mod region;
#[cfg(target_os = "linux")]
mod stack;
#[cfg(target_os = "linux")]
mod stack_bounds;
#[cfg(target_os = "linux")]
mod table;
#[cfg(target_os = "linux")]
mod text;
#[cfg(target_os = "linux")]
mod thread;
#[cfg(target_os = "linux")]
mod thread_memory;
#[cfg(target_os = "linux")]
mod thread_pointer;
#[cfg(target_os = "linux")]
mod tree;
#[cfg(target_os = "linux")]
mod walk;

#[cfg(not(any(target_os = "linux", target_os = "macos")))]
compile_error!("cairn-capture knows Linux and Darwin; docs/book/porting.md says what another system needs");

#[cfg(target_os = "linux")]
#[doc(hidden)]
pub use arch::cairn_capture_here;
pub use cairn_unwind::{FoldRecursion, MemoryReader, StopReason, xnu};
pub use call_site::CallSite;
#[cfg(target_os = "linux")]
pub use entry::{Statistics, capture, capture_at, capture_interrupted, statistics};
pub use frame_walk::{FrameControl, kernel_walk_at, walk_frames, walk_frames_at};
#[cfg(target_os = "macos")]
pub use macos::{ThreadMemory, WalkedStack, read_own_memory, walk_stack, walk_stack_at};
#[cfg(target_os = "linux")]
pub use mapping::{own_memory, own_memory_changes};
#[cfg(target_os = "linux")]
pub use own_memory::read_bytes as read_own_memory;
#[cfg(target_os = "linux")]
pub use process::{after_fork_in_child, forget_stacks, take_less_room, while_unloading};
#[cfg(target_os = "linux")]
pub use stack::{Frames, Stack};
#[cfg(target_os = "linux")]
pub use table::{
    FrameId, LoadedModule, ModuleIdentity, NewStacks, StackCursor, StackRow, observe_new_stacks,
};
#[cfg(target_os = "linux")]
pub use text::WriteError;
#[cfg(target_os = "linux")]
pub use thread_memory::ThreadMemory;
#[cfg(target_os = "linux")]
pub use tree::StackId;

/// The programs of the page.
#[cfg(all(doctest, target_os = "linux"))]
#[doc = include_str!("../../../docs/book/backtrace9.md")]
struct Backtrace9;
