//! Python frames in native stacks.
//!
//! Where a stack has calls of CPython's evaluation function, the interpreter's own list of frames
//! says which Python functions they run. A capture reads the list of its thread ([`chain`]),
//! numbers the code objects ([`codes`]), and puts the frames into the native stack ([`merge`]). A
//! Python frame is a node of the calling-context tree like any other; its address is of the kind
//! [`PcKind::Interpreted`]: the code's number and the offset of the instruction.
//!
//! Nothing of the interpreter is called that allocates, locks or changes anything, except two
//! functions that read this thread's state. `docs/design/0012-python-frames.md` has the reasons.
//!
//! A thread reads its own list only. That list is stable while the thread has the interpreter's
//! lock; without the lock it is read through the kernel, and not at all once the interpreter is
//! being finalized, because other threads free it then.

mod chain;
mod codes;
mod current_state;
mod memory;
mod merge;
mod room;

use core::cell::UnsafeCell;
use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use cairn_format::recording::InterpreterState;
pub use codes::CodeContents;
pub(crate) use merge::{PythonThread, with_python_frames};

use cairn_format::AbsoluteAddress;
use cairn_unwind::python::{ChainKind, Layout, TYPE_DEALLOC, TYPE_NAME, ThreadListLayout};
use codes::Codes;
use current_state::{CurrentState, StateFunction};
use memory::{Guarded, Words};

use crate::stacks::modules::identity_of_loaded;

/// Addresses of what a loaded CPython exports; 0 for what it does not.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PythonSymbols {
    /// `PY_VERSION_HEX`.
    pub version: u32,
    /// `_PyRuntime`.
    pub runtime: u64,
    /// `PyCode_Type`.
    pub code_type: u64,
    /// `PyThreadState_GetUnchecked`, or `_PyThreadState_UncheckedGet` before 3.13.
    pub current_state: u64,
    /// `PyGILState_GetThisThreadState`.
    pub own_state: u64,
    /// `_PyEval_EvalFrameDefault`, and how many bytes its symbol covers.
    pub evaluation: (u64, u64),
}

type FreeFunction = unsafe extern "C" fn(*mut c_void);

/// An interpreter whose frames are read.
pub(crate) struct Interpreter {
    pub(super) layout: Layout,
    code_type: u64,
    finalizing: u64,
    /// Thread state: its thread.
    state_thread_id: u64,
    /// True when the current state is that of this thread, and not that of the thread with the
    /// lock.
    is_current_of_thread: bool,
    current_state: CurrentState,
    own_state: StateFunction,
    /// The evaluation function's code, for versions without marks.
    evaluation: (u64, u64),
    /// False until one list was read through the kernel, and all of its code objects were such.
    is_trusted: AtomicBool,
    /// True once a list was not as this version should have it. Nothing is read any more.
    is_refused: AtomicBool,
    /// Identity of its module; see [`crate::stacks::modules::identity_of_loaded`].
    identity: Option<u32>,
    runtime: u64,
}

/// Interpreters of a process; 4, because more than one is rare already.
const MOST_INTERPRETERS: usize = 4;

struct Interpreters {
    /// Written once each, before the count says that they are there.
    places: [UnsafeCell<Option<Interpreter>>; MOST_INTERPRETERS],
    count: AtomicUsize,
    /// 1 while one is being added.
    is_adding: AtomicU32,
    runtimes: [AtomicU64; MOST_INTERPRETERS],
}

// SAFETY: a place is written by the thread that holds `is_adding`, before the count includes it,
// and only read afterwards.
unsafe impl Sync for Interpreters {}

static INTERPRETERS: Interpreters = Interpreters {
    places: [const { UnsafeCell::new(None) }; MOST_INTERPRETERS],
    count: AtomicUsize::new(0),
    is_adding: AtomicU32::new(0),
    runtimes: [const { AtomicU64::new(0) }; MOST_INTERPRETERS],
};

static CODES: Codes = Codes::new();

/// Captures in which a list of frames could not be read.
static UNREAD: AtomicU64 = AtomicU64::new(0);

/// The observer of these captures; null for none.
static UNREAD_OBSERVER: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());

/// The functions that free code objects, by interpreter, as they were before.
static FREE_CODE: [AtomicPtr<c_void>; MOST_INTERPRETERS] =
    [const { AtomicPtr::new(core::ptr::null_mut()) }; MOST_INTERPRETERS];

/// Takes the place of `tp_dealloc` in the type of code objects.
///
/// # Safety
///
/// - The interpreter of this number calls it for a code object that it is freeing.
unsafe extern "C" fn free_code<const NUMBER: usize>(code: *mut c_void) {
    CODES.forget(code as u64);
    let before = FREE_CODE.get(NUMBER).map_or(core::ptr::null_mut(), |place| place.load(Ordering::Acquire));
    // SAFETY: null is `None`; any other value was the interpreter's function, of this type.
    if let Some(free) = unsafe { core::mem::transmute::<*mut c_void, Option<FreeFunction>>(before) } {
        // SAFETY: the caller is the interpreter, which meant to call this function.
        unsafe { free(code) };
    }
}

const FREE_FUNCTIONS: [FreeFunction; MOST_INTERPRETERS] =
    [free_code::<0>, free_code::<1>, free_code::<2>, free_code::<3>];

/// Returns true when some interpreter's frames are read. A capture in any other process costs this
/// look alone.
#[inline(always)]
pub(crate) fn is_active() -> bool {
    INTERPRETERS.count.load(Ordering::Relaxed) != 0
}

fn interpreters() -> impl Iterator<Item = &'static Interpreter> {
    let count = INTERPRETERS.count.load(Ordering::Acquire);
    // SAFETY: the first `count` places were written before the count, and are not written again.
    INTERPRETERS.places.iter().take(count).filter_map(|place| unsafe { (*place.get()).as_ref() })
}

/// Reads the Python frames of all captures from now on, for threads of this interpreter.
///
/// Returns `None` when that is done already. Otherwise the answer is [`InterpreterState::Read`], or
/// why the frames are not read. Call it outside of captures, in one thread at a time, before the
/// interpreter runs or while the caller may call its functions.
///
/// # Safety
///
/// - The addresses are those of the exported symbols of one loaded CPython of this version, which
///   is relocated and never unloaded.
#[must_use]
pub unsafe fn read_python_frames(symbols: &PythonSymbols) -> Option<InterpreterState> {
    let is_known = |runtime: &AtomicU64| runtime.load(Ordering::Relaxed) == symbols.runtime;
    if symbols.runtime != 0 && INTERPRETERS.runtimes.iter().any(is_known) {
        return None;
    }
    if INTERPRETERS.is_adding.swap(1, Ordering::Acquire) != 0 {
        return None;
    }
    // SAFETY: the caller's promise.
    let state = unsafe { add(symbols) }.err().unwrap_or(InterpreterState::Read);
    INTERPRETERS.is_adding.store(0, Ordering::Release);
    Some(state)
}

/// # Safety
///
/// As for [`read_python_frames`], in one thread at a time.
unsafe fn add(symbols: &PythonSymbols) -> Result<(), InterpreterState> {
    let PythonSymbols { version, runtime, code_type, current_state, own_state, evaluation } = *symbols;
    if [runtime, code_type, current_state, own_state].contains(&0) {
        return Err(InterpreterState::NotExported);
    }
    let layout = Layout::of(version, runtime, &Guarded)?;
    if layout.chain == ChainKind::Objects && evaluation.1 == 0 {
        return Err(InterpreterState::NotExported);
    }
    check_code_type(code_type)?;
    let number = INTERPRETERS.count.load(Ordering::Relaxed);
    let (place, runtime_place) = INTERPRETERS
        .places
        .get(number)
        .zip(INTERPRETERS.runtimes.get(number))
        .ok_or(InterpreterState::UnknownVersion)?;
    // SAFETY: not 0, so functions of this name, which have this type.
    let function = |address: u64| unsafe { core::mem::transmute::<u64, StateFunction>(address) };
    /// The first version in which each thread has its current state.
    const FIRST_OF_THREAD: u32 = 0x030c_0000;
    let interpreter = Interpreter {
        layout,
        code_type,
        finalizing: runtime.wrapping_add(layout.runtime_finalizing),
        state_thread_id: ThreadListLayout::of(version, runtime, &Guarded)?.state_thread_id,
        is_current_of_thread: version >= FIRST_OF_THREAD,
        // SAFETY: the caller promises a loaded interpreter.
        current_state: unsafe { CurrentState::of(function(current_state), &Guarded) },
        own_state: function(own_state),
        evaluation,
        is_trusted: AtomicBool::new(false),
        is_refused: AtomicBool::new(false),
        identity: identity_of_loaded(AbsoluteAddress::new(runtime)),
        runtime,
    };
    // SAFETY: this place is not counted yet, so that nobody reads it, and only this thread adds.
    unsafe { *place.get() = Some(interpreter) };
    // The type is an exported, static, writable object. From here on no freed code is missed, and
    // none was numbered before.
    let slot = code_type.wrapping_add(TYPE_DEALLOC) as *const AtomicPtr<c_void>;
    // SAFETY: `check_code_type` has recognised the type, and this is its word for that function; it
    // is aligned, and only read and written as a whole.
    let slot = unsafe { &*slot };
    if let (Some(before), Some(free)) = (FREE_CODE.get(number), FREE_FUNCTIONS.get(number)) {
        before.store(slot.load(Ordering::Acquire), Ordering::Release);
        slot.store(*free as *mut c_void, Ordering::Release);
    }
    runtime_place.store(runtime, Ordering::Relaxed);
    INTERPRETERS.count.store(number + 1, Ordering::Release);
    Ok(())
}

/// Leaves the interpreters alone whose modules were unloaded. Captures read no Python frames while
/// a module is being unloaded.
pub(crate) fn forget_unloaded() {
    for (interpreter, runtime) in interpreters().zip(&INTERPRETERS.runtimes) {
        if identity_of_loaded(AbsoluteAddress::new(interpreter.runtime)) != interpreter.identity {
            interpreter.is_refused.store(true, Ordering::Relaxed);
            runtime.store(0, Ordering::Relaxed);
        }
    }
}

/// A type object has its name behind its header. A build with another header is a debug build.
fn check_code_type(code_type: u64) -> Result<(), InterpreterState> {
    let name = Guarded.word(code_type.wrapping_add(TYPE_NAME)).ok_or(InterpreterState::OtherLayout)?;
    let mut text = [0; 5];
    let is_code = Guarded.copy(name, &mut text) && &text == b"code\0";
    let free = Guarded.word(code_type.wrapping_add(TYPE_DEALLOC));
    if is_code && free.is_some_and(|free| free != 0) { Ok(()) } else { Err(InterpreterState::OtherLayout) }
}

/// A thread's state in an interpreter.
#[derive(Clone, Copy)]
pub(super) struct ThreadState {
    address: u64,
    access: Access,
}

/// How the frames of a state can be read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    /// The thread has the interpreter's lock, so that its frames are stable.
    Direct,
    ThroughKernel,
    /// The frames that run may be those of another state.
    Unknown,
}

impl Interpreter {
    /// The state of this thread; `None` when it has none, or when it may go away at any moment.
    #[inline(always)]
    fn state_of_this_thread(&self) -> Option<ThreadState> {
        // SAFETY: both functions read a word of this thread or of the interpreter. In a library
        // that was opened by `dlopen` the first call in a thread may allocate memory for its
        // thread-local variables: the capture of that call finds this one under way, and reads no
        // frames.
        let (current, own) = unsafe {
            if self.is_current_of_thread {
                let current = self.current_state.get();
                if current != 0 {
                    return Some(ThreadState { address: current, access: Access::Direct });
                }
                (0, (self.own_state)() as u64)
            } else {
                match (self.own_state)() as u64 {
                    0 => return None,
                    own => (self.current_state.get(), own),
                }
            }
        };
        if own == 0 {
            return None;
        }
        if own == current {
            return Some(ThreadState { address: own, access: Access::Direct });
        }
        self.state_without_lock(own, current)
    }

    /// The state of a thread without the lock. Up to 3.11, `current` is that of the thread with it.
    ///
    /// Up to 3.11, if the current state has the number of this thread too, either this thread runs
    /// a subinterpreter, or another thread runs one that this thread has made.
    #[cold]
    #[inline(never)]
    fn state_without_lock(&self, own: u64, current: u64) -> Option<ThreadState> {
        if Guarded.word(self.finalizing) != Some(0) {
            return None;
        }
        let thread = |state: u64| Guarded.word(state.wrapping_add(self.state_thread_id));
        let is_ambiguous = current != 0 && thread(current) == thread(own);
        let access = if is_ambiguous { Access::Unknown } else { Access::ThroughKernel };
        Some(ThreadState { address: own, access })
    }
}

/// Returns the contents of the code of this number.
///
/// It is the upper half of the address of an interpreted frame.
#[must_use]
pub fn python_code(number: u32) -> Option<CodeContents> {
    CODES.contents(number)
}

/// Captures whose Python frames could not be read.
#[must_use]
pub fn unread_python_stacks() -> u64 {
    UNREAD.load(Ordering::Relaxed)
}

/// Calls `observer` for each capture from now on whose Python frames could not be read.
///
/// It must be able to run wherever a capture can.
pub fn observe_unread_python_stacks(observer: fn()) {
    UNREAD_OBSERVER.store(observer as *mut (), Ordering::Release);
}

/// Counts a capture whose Python frames could not be read.
#[cold]
fn count_unread() {
    UNREAD.fetch_add(1, Ordering::Relaxed);
    let observer = UNREAD_OBSERVER.load(Ordering::Acquire);
    // SAFETY: null becomes `None`; any other value was stored by `observe_unread_python_stacks`,
    // which takes functions of this type alone.
    if let Some(observer) = unsafe { core::mem::transmute::<*mut (), Option<fn()>>(observer) } {
        observer();
    }
}
