//! Records a running program: `cairn heap --attach` loads this library into it and calls
//! [`cairn_attach`].
//!
//! The program's calls are bound to the C library at that time, and are bound to the hooks as
//! follows:
//!
//! - **The slots** that the loader filled with the addresses of functions (`JUMP_SLOT` and
//!   `GLOB_DAT` relocations, and pointers in data) of all loaded modules. A slot is changed only if
//!   it holds this program's definition of the name, or is not bound yet.
//! - **The symbols** themselves, in the memory of the module that defines them: a module that is
//!   loaded later is bound by them, before its first constructor runs.
//!
//! A word is written atomically, so that other threads, which continue meanwhile, see the old
//! address or the new one. Recording begins after all changes, and ends before they are undone:
//! every block is either recorded from allocation to free, or older than the recording.
//!
//! **All of this runs under the loader's lock**, which `dlopen` holds while it maps, relocates and
//! protects a module, and `dlclose` while it unmaps one: no module is half relocated, and none is
//! unmapped. The C library has no function that takes that lock for a caller. But `dlsym` holds it
//! while it asks an indirect function (`STT_GNU_IFUNC`) for its address, so the work is done by the
//! resolver of such a symbol of this library, `cairn_locked`. A page is writable afterwards if it
//! was writable before, which the kernel states, and not the module's headers.
//!
//! [`cairn_detach`] puts everything back. The library stays: a thread may be inside it, and the
//! program may hold the address of a hook, which then only calls the C library. [`cairn_release`]
//! unmaps the memory of the recording, after `cairn` has checked that no thread is inside the
//! library.
//!
//! A module that the program opens with `RTLD_DEEPBIND` bypasses a preloaded library.
//! [`before_deep_open`] changes the symbols for it.

use core::cell::UnsafeCell;
use core::ffi::{CStr, c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::loaded::{Loaded, PT_DYNAMIC, each_linked_module, each_module};
use crate::next::{self, Dynamic, Module, Symbol};
#[cfg(target_arch = "x86_64")]
use crate::runtimes;
use crate::{python, recorder, start, system};

/// One hooked function.
#[derive(Clone, Copy)]
struct Hook {
    name: &'static CStr,
    own: u64,
    real: u64,
    /// The C library's own definition if the program's calls reach another module's; otherwise
    /// `real`.
    library: u64,
    /// The hook's entry in the symbol table of the defining module, and the bias of that module.
    /// The entry is null when it cannot bind later modules.
    symbol: *const Symbol,
    bias: u64,
    is_mapping: bool,
    /// True if it allocates or frees.
    is_heap: bool,
}

/// Maximum hooks; 160, above the number of exported names.
const MOST_HOOKS: usize = 160;

struct Hooks {
    all: [Option<Hook>; MOST_HOOKS],
    count: usize,
}

struct HooksCell(UnsafeCell<Hooks>);

// SAFETY: written by the thread that has taken the work, once; read by it, and by others after
// `ARE_KNOWN`.
unsafe impl Sync for HooksCell {}

static HOOKS: HooksCell = HooksCell(UnsafeCell::new(Hooks { all: [None; MOST_HOOKS], count: 0 }));
/// True when the hooks are filled in; they do not change any more.
static ARE_KNOWN: AtomicBool = AtomicBool::new(false);
/// True when modules were loaded that were not searched for slots yet.
static HAS_LOADED: AtomicBool = AtomicBool::new(false);
static IS_ATTACHED: AtomicBool = AtomicBool::new(false);
/// True when modules that are loaded later must be changed themselves. Then not every symbol could
/// be changed.
static MUST_FOLLOW: AtomicBool = AtomicBool::new(false);
/// True when the symbols were changed for modules that are opened with `RTLD_DEEPBIND`.
static IS_DEEP: AtomicBool = AtomicBool::new(false);
/// Number of words that could not be changed.
static REFUSED: AtomicU32 = AtomicU32::new(0);
/// Number of slots that lead to a hook.
static BOUND: AtomicU64 = AtomicU64::new(0);
/// Number of slots that bypass the hooks and lead to the C library.
static PASSING: AtomicU64 = AtomicU64::new(0);

/// Words that `cairn` reads and writes from its own process.
#[repr(C)]
pub struct Shared {
    /// Distance of the recorder's thread word from the thread pointer; 0 while it is unknown.
    thread_word: AtomicU64,
    /// 1 when ended recordings have left memory for [`cairn_release`].
    has_memory: AtomicU64,
    /// Process and thread that change modules; 0 for none.
    worker: AtomicU64,
    /// The stack pointer of the resolver's frame while work is done under the loader's lock. See
    /// `cairn_recover`.
    recovery: AtomicU64,
    /// The stack that `cairn` has mapped for its calls, and its size. Both are zero between calls,
    /// unless `cairn` was killed.
    stack: [AtomicU64; 2],
}

/// The shared words of this process.
#[allow(non_upper_case_globals, reason = "the name of a symbol that `cairn` looks up")]
#[unsafe(no_mangle)]
pub static cairn_shared: Shared = Shared {
    thread_word: AtomicU64::new(0),
    has_memory: AtomicU64::new(0),
    worker: AtomicU64::new(0),
    recovery: AtomicU64::new(0),
    stack: [const { AtomicU64::new(0) }; 2],
};

/// Result of a call by `cairn`.
#[repr(i32)]
#[derive(Clone, Copy)]
enum Answer {
    Done = 0,
    /// A recording is under way.
    Recorded = 1,
    /// The recording could not begin; the reason was announced.
    NoRecording = 2,
    /// The kernel refuses to change the pages.
    Protected = 3,
    /// No call of the program could be bound to a hook.
    Nothing = 4,
    /// Another thread changes modules at this moment.
    Busy = 5,
    /// No recording is attached.
    NotAttached = 6,
    /// The work under the loader's lock failed, or was interrupted.
    Fault = 7,
}

/// Begins to record by the options in `text`, in the format of `CAIRN_HEAP`. At the end it sets
/// `is_done` and waits until `cairn` stops the thread.
///
/// # Safety
///
/// - `text` has `length` bytes, and `is_done` is a word.
/// - The thread may take the loader's lock.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairn_attach(text: *const u8, length: usize, is_done: *const AtomicU64) -> c_int {
    // SAFETY: the caller promises that `text` has `length` bytes, and `is_done` is a word; the
    // thread may take the loader's lock.
    let is_done = unsafe { &*is_done };
    // SAFETY: the caller promises that `text` has `length` bytes, and `is_done` is a word; the
    // thread may take the loader's lock.
    let text = unsafe { core::slice::from_raw_parts(text, length) };
    let Some(work) = Work::take() else { return done(is_done, Answer::Busy) };
    let answer = if recorder::is_under_way() { Answer::Recorded } else { attach(&work, text) };
    note_memory();
    drop(work);
    done(is_done, answer)
}

/// Ends the recording that [`cairn_attach`] began, and restores the program's bindings.
///
/// # Safety
///
/// `is_done` is a word, and the thread may take the loader's lock.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairn_detach(_: usize, _: usize, is_done: *const AtomicU64) -> c_int {
    // SAFETY: the caller promises that `is_done` is a word.
    let is_done = unsafe { &*is_done };
    let Some(work) = Work::take() else { return done(is_done, Answer::Busy) };
    if !IS_ATTACHED.load(Ordering::Acquire) {
        drop(work);
        return done(is_done, Answer::NotAttached);
    }
    recorder::end();
    let answer = if work.under_lock(Task::Out) { Answer::Done } else { Answer::Fault };
    // After a fault some slots may still lead here: the hooks pass such calls on, and the next
    // attempt changes the rest.
    if matches!(answer, Answer::Done) {
        IS_ATTACHED.store(false, Ordering::Release);
    }
    // Last, so that threads which were writing an event have had time to finish it.
    recorder::leave_file();
    note_memory();
    drop(work);
    done(is_done, answer)
}

/// Ends a call: sets `is_done`, and waits until `cairn` stops the thread, at most some seconds.
fn done(is_done: &AtomicU64, answer: Answer) -> c_int {
    const SECONDS: i64 = 3;
    is_done.store(1, Ordering::SeqCst);
    system::wait_to_be_stopped(SECONDS);
    answer as c_int
}

/// Unmaps the memory of ended recordings, and the stack of a call during which `cairn` was killed.
///
/// # Safety
///
/// No other thread of the process runs before it returns, and none was stopped inside this library,
/// or on that stack: the contract of [`cairn_recorder::release_ended`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairn_release() -> c_int {
    // SAFETY: the caller promises that no other thread runs before it returns, and that none was
    // stopped inside this library.
    unsafe { recorder::release_ended() };
    let [stack, bytes] = &cairn_shared.stack;
    let (at, bytes) = (stack.swap(0, Ordering::SeqCst), bytes.swap(0, Ordering::SeqCst));
    if at != 0 {
        // SAFETY: `cairn` has mapped it, and the caller promises that no thread uses it as its
        // stack.
        unsafe { system::unmap(at as *mut u8, bytes as usize) };
    }
    note_memory();
    Answer::Done as c_int
}

fn note_memory() {
    #[cfg(target_arch = "x86_64")]
    cairn_shared.thread_word.store(recorder::thread_word_offset(), Ordering::Relaxed);
    cairn_shared.has_memory.store(recorder::has_ended_memory().into(), Ordering::Release);
}

/// Binds newly loaded modules, if the symbols could not bind them. When several threads load at
/// once, one of them does it, and repeats it when others have loaded meanwhile.
pub(crate) fn after_load() {
    let is_wanted = IS_ATTACHED.load(Ordering::Acquire) && MUST_FOLLOW.load(Ordering::Relaxed)
        || IS_DEEP.load(Ordering::Relaxed);
    if !is_wanted {
        return;
    }
    HAS_LOADED.store(true, Ordering::SeqCst);
    while HAS_LOADED.load(Ordering::SeqCst)
        && let Some(work) = Work::take()
    {
        HAS_LOADED.store(false, Ordering::SeqCst);
        // The recording may have ended before the work was taken.
        if IS_ATTACHED.load(Ordering::Acquire) || IS_DEEP.load(Ordering::Relaxed) {
            work.under_lock(Task::Follow);
            recorder::note_bypassing_slots(PASSING.load(Ordering::Relaxed));
        }
    }
}

/// Prepares a `dlopen` with `RTLD_DEEPBIND`. Its module searches its own dependencies first, and
/// finds the C library's functions before the hooks. Changed symbols of the C library lead it to
/// the hooks.
pub(crate) fn before_deep_open() {
    if IS_ATTACHED.load(Ordering::Acquire) || !recorder::is_under_way() {
        return;
    }
    // Before the work, so that a thread that is doing it now searches the modules again afterwards.
    if IS_DEEP.swap(true, Ordering::SeqCst) {
        return;
    }
    if let Some(work) = Work::take() {
        work.under_lock(Task::Deep);
    }
}

/// Returns the real function behind the hook `name` if modules were changed. Their tables lead to
/// the hook itself.
pub(crate) fn real_behind(name: &CStr) -> Option<*mut c_void> {
    if !ARE_KNOWN.load(Ordering::Acquire) {
        return None;
    }
    // SAFETY: `ARE_KNOWN` is set, after which the hooks do not change.
    let hooks = unsafe { &*HOOKS.0.get() };
    hooks.all.iter().flatten().find(|hook| hook.name == name).map(|hook| hook.real as *mut c_void)
}

/// The right to change modules. One thread of a process has it at a time.
struct Work(());

impl Work {
    fn take() -> Option<Self> {
        let worker = &cairn_shared.worker;
        let here = system::process_and_thread();
        let mut found = worker.load(Ordering::SeqCst);
        loop {
            // Free; or held by the process that this one was forked from, by a thread that has
            // ended, or by an interrupted call of this thread: a thread that holds it never calls
            // this.
            let is_free =
                found == 0 || found >> 32 != here >> 32 || found == here || system::has_ended(found as u32);
            if !is_free {
                return None;
            }
            match worker.compare_exchange(found, here, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return Some(Self(())),
                Err(other) => found = other,
            }
        }
    }

    /// Does the task under the loader's lock; returns false if it failed or was interrupted.
    fn under_lock(&self, task: Task) -> bool {
        let Some(look_up) = next::library_dlsym() else { return false };
        IS_DONE.store(false, Ordering::Relaxed);
        TASK.store(task as u32, Ordering::SeqCst);
        // SAFETY: the C library's `dlsym`; without a handle it searches where calls of this library
        // lead.
        unsafe { look_up(core::ptr::null_mut(), c"cairn_locked".as_ptr()) };
        TASK.store(Task::None as u32, Ordering::SeqCst);
        cairn_shared.recovery.store(0, Ordering::Relaxed);
        // An interrupted call may have left a page writable.
        OPEN_PAGE.close();
        IS_DONE.load(Ordering::Relaxed)
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        cairn_shared.worker.store(0, Ordering::SeqCst);
    }
}

/// Work to do under the loader's lock.
#[repr(u32)]
#[derive(Clone, Copy, PartialEq, Eq)]
enum Task {
    None,
    /// Bind all modules to the hooks.
    In,
    /// Bind the slots of newly loaded modules.
    Follow,
    /// Bind the symbols only.
    Deep,
    /// Find the runtimes whose frames and allocators are recorded.
    Runtimes,
    /// Restore all bindings.
    Out,
}

static TASK: AtomicU32 = AtomicU32::new(Task::None as u32);
static IS_DONE: AtomicBool = AtomicBool::new(false);

/// Does the task, on behalf of the resolver `cairn_locked`. The caller is the loader, which holds
/// its lock. Without a task, as when the program searches that symbol, it does nothing. `frame` is
/// the resolver's stack pointer.
pub(crate) extern "C" fn do_task(frame: u64) {
    let task = TASK.swap(Task::None as u32, Ordering::SeqCst);
    if task == Task::None as u32 {
        return;
    }
    cairn_shared.recovery.store(frame, Ordering::SeqCst);
    next::resolve();
    // SAFETY: the thread that has set the task has taken the work; and the loader's lock lets one
    // thread in.
    let hooks = unsafe { &mut *HOOKS.0.get() };
    if hooks.count == 0 {
        hooks.fill();
        ARE_KNOWN.store(true, Ordering::Release);
    }
    if task == Task::In as u32 {
        IS_ATTACHED.store(true, Ordering::Release);
        change_symbols(hooks, Direction::In);
        change_slots(hooks, Direction::In);
    } else if task == Task::Deep as u32 {
        change_symbols(hooks, Direction::In);
    } else if task == Task::Follow as u32 {
        change_slots(hooks, Direction::In);
    } else if task == Task::Runtimes as u32 {
        each_linked_module(|module| {
            // SAFETY: a loaded module, which stays while the loader's lock is held.
            unsafe {
                python::attach_to(module);
                #[cfg(target_arch = "x86_64")]
                runtimes::examine(module);
            }
        });
    } else {
        // SAFETY: as above.
        each_linked_module(|module| unsafe { python::detach_from(module) });
        change_symbols(hooks, Direction::Out);
        change_slots(hooks, Direction::Out);
    }
    OPEN_PAGE.close();
    cairn_shared.recovery.store(0, Ordering::SeqCst);
    IS_DONE.store(true, Ordering::Relaxed);
}

fn attach(work: &Work, text: &[u8]) -> Answer {
    let Ok(asked) = start::prepare_attached(text) else { return Answer::NoRecording };
    REFUSED.store(0, Ordering::Relaxed);
    BOUND.store(0, Ordering::Relaxed);
    // First: a call that is interrupted while it waits for the lock has changed nothing.
    let is_done = work.under_lock(Task::In);
    let failure = match (REFUSED.load(Ordering::Relaxed), BOUND.load(Ordering::Relaxed)) {
        _ if !is_done => Some(Answer::Fault),
        (1.., _) => Some(Answer::Protected),
        (0, 0) => Some(Answer::Nothing),
        _ => asked.begin().is_err().then_some(Answer::NoRecording),
    };
    if let Some(failure) = failure {
        // Bindings that cannot be restored lead to hooks, which pass the calls on.
        if work.under_lock(Task::Out) {
            IS_ATTACHED.store(false, Ordering::Release);
        }
        return failure;
    }
    recorder::note_bypassing_slots(PASSING.load(Ordering::Relaxed));
    // If it is interrupted, stacks have native frames alone.
    work.under_lock(Task::Runtimes);
    if !asked.begins_paused {
        recorder::resume();
    }
    Answer::Done
}

impl Hooks {
    /// Collects the functions that this library exports and the program has as well.
    fn fill(&mut self) {
        let Some(own) = next::own_module() else { return };
        // SAFETY: this library is loaded.
        unsafe {
            own.each_definition(|name, symbol| {
                let bytes = name.to_bytes();
                let found = if bytes.starts_with(b"cairn_") { None } else { next::reached(name) };
                let (Some((real, symbol_of)), Some(place)) = (found, self.all.get_mut(self.count)) else {
                    return;
                };
                let (symbol_of, bias) = symbol_of.unwrap_or((core::ptr::null(), 0));
                let library = next::library_definition(name).unwrap_or(real);
                *place = Some(Hook {
                    name,
                    own: own.bias + symbol.value,
                    real: real as u64,
                    library: library as u64,
                    symbol: symbol_of,
                    bias,
                    is_mapping: matches!(
                        bytes,
                        b"mmap" | b"mmap64" | b"munmap" | b"mremap" | b"brk" | b"sbrk"
                    ),
                    is_heap: matches!(
                        bytes,
                        b"malloc" | b"calloc" | b"realloc" | b"free" | b"posix_memalign"
                    ),
                });
                self.count += 1;
            });
        }
    }

    /// Yields the hooks that the options select.
    fn wanted(&self, direction: Direction) -> impl Iterator<Item = &Hook> {
        let with_mappings = direction == Direction::Out || start::with_mappings();
        self.all.iter().flatten().filter(move |hook| with_mappings || !hook.is_mapping)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    In,
    Out,
}

impl Hook {
    fn change_in(&self, direction: Direction) -> (u64, u64) {
        match direction {
            Direction::In => (self.real, self.own),
            Direction::Out => (self.own, self.real),
        }
    }
}

/// Changes the symbols, before the slots. A slot that is bound lazily meanwhile is bound to the
/// hook, or is overwritten.
fn change_symbols(hooks: &Hooks, direction: Direction) {
    if direction == Direction::In {
        MUST_FOLLOW.store(false, Ordering::Relaxed);
    }
    each_module(|module| {
        for hook in hooks.wanted(direction) {
            if hook.symbol.is_null() {
                MUST_FOLLOW.store(true, Ordering::Relaxed);
                continue;
            }
            // SAFETY: an entry in the table of a module that stays loaded, because the program's
            // calls reach it.
            let place = unsafe { &raw const (*hook.symbol).value } as u64;
            let (from, to) = hook.change_in(direction);
            if module.contains(place) {
                let (from, to) = (from.wrapping_sub(hook.bias), to.wrapping_sub(hook.bias));
                // SAFETY: the value of a function's symbol; the loader's lock is held.
                if unsafe { module.write(place, from, to) } == Written::No {
                    MUST_FOLLOW.store(true, Ordering::Relaxed);
                }
            }
        }
    });
}

fn change_slots(hooks: &Hooks, direction: Direction) {
    let Some(own) = next::own_module() else { return };
    PASSING.store(0, Ordering::Relaxed);
    each_module(|module| {
        if module.bias != own.bias {
            // SAFETY: a loaded module.
            unsafe { module.change_slots(hooks, &own, direction) };
        }
    });
}

/// Result of writing a word.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Written {
    /// It has the wanted value.
    Yes,
    /// It has another value, or cannot be written.
    No,
}

/// The page that is being written to.
struct OpenPage {
    address: AtomicU64,
    /// True if it was read-only before.
    was_sealed: AtomicBool,
}

/// Used by the thread that works under the loader's lock.
static OPEN_PAGE: OpenPage = OpenPage { address: AtomicU64::new(0), was_sealed: AtomicBool::new(false) };

impl OpenPage {
    /// Makes the page around `place` writable; returns false if the kernel refuses.
    fn open(&self, place: u64) -> bool {
        let page = place & !(system::page_bytes() as u64 - 1);
        if self.address.load(Ordering::Relaxed) == page {
            return true;
        }
        self.close();
        let was_sealed = match system::is_writable(place) {
            Ok(is_writable) => !is_writable,
            Err(_) => return false,
        };
        if was_sealed {
            self.was_sealed.store(true, Ordering::Relaxed);
            self.address.store(page, Ordering::SeqCst);
            // SAFETY: adds the right to write; `close` removes it again.
            let is_open =
                unsafe { system::protect(page, system::page_bytes(), libc::PROT_READ | libc::PROT_WRITE) };
            if !is_open {
                self.address.store(0, Ordering::Relaxed);
                return false;
            }
        } else {
            self.was_sealed.store(false, Ordering::Relaxed);
            self.address.store(page, Ordering::Relaxed);
        }
        true
    }

    /// Removes the right to write again, if the page had none before.
    fn close(&self) {
        let page = self.address.load(Ordering::Relaxed);
        if page != 0 && self.was_sealed.load(Ordering::Relaxed) {
            // SAFETY: the page was read-only before `open`, and the loader's lock has prevented
            // changes since.
            unsafe { system::protect(page, system::page_bytes(), libc::PROT_READ) };
        }
        self.address.store(0, Ordering::Relaxed);
    }
}

#[repr(C)]
struct Relocation {
    offset: u64,
    kind: u32,
    symbol: u32,
    addend: i64,
}

#[cfg(target_arch = "x86_64")]
const R_64: u32 = 1;
#[cfg(target_arch = "x86_64")]
const R_GLOB_DAT: u32 = 6;
#[cfg(target_arch = "x86_64")]
const R_JUMP_SLOT: u32 = 7;
#[cfg(target_arch = "aarch64")]
const R_64: u32 = 257;
#[cfg(target_arch = "aarch64")]
const R_GLOB_DAT: u32 = 1025;
#[cfg(target_arch = "aarch64")]
const R_JUMP_SLOT: u32 = 1026;
const DT_NULL: i64 = 0;
const DT_PLTRELSZ: i64 = 2;
const DT_RELA: i64 = 7;
const DT_RELASZ: i64 = 8;
const DT_JMPREL: i64 = 23;
const PF_EXECUTE: u32 = 1;

impl Loaded<'_> {
    /// Replaces `from` by `to` in a word.
    ///
    /// # Safety
    ///
    /// `place` is a word of this module that is read only as an address of a function. The caller
    /// holds the loader's lock.
    unsafe fn write(&self, place: u64, from: u64, to: u64) -> Written {
        let Some(segment) = self.segment_of(place) else { return Written::No };
        // Threads may run code of such a page, so that its protection must not change.
        if segment.p_flags & PF_EXECUTE != 0 || !place.is_multiple_of(8) {
            return Written::No;
        }
        // SAFETY: the caller promises a word of this module that is read only as an address of a
        // function.
        let word = unsafe { &*(place as *const AtomicU64) };
        match word.load(Ordering::Relaxed) {
            found if found == to => return Written::Yes,
            found if found != from => return Written::No,
            _ => {}
        }
        if !OPEN_PAGE.open(place) {
            REFUSED.fetch_add(1, Ordering::Relaxed);
            return Written::No;
        }
        // Another thread may have bound it meanwhile.
        match word.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => Written::Yes,
            Err(found) if found == to => Written::Yes,
            Err(_) => Written::No,
        }
    }

    /// # Safety
    ///
    /// The module is loaded, and stays.
    unsafe fn change_slots(&self, hooks: &Hooks, own: &Module, direction: Direction) {
        let Some(dynamic) = self.header(PT_DYNAMIC) else { return };
        let first = self.bias.wrapping_add(dynamic.p_vaddr) as *const Dynamic;
        // SAFETY: the caller promises that the module is loaded, and stays.
        let module = unsafe { Module::at(self.bias, first) };
        if module.symbols.is_null() || module.strings.is_null() {
            return;
        }
        let (mut tables, mut sizes) = ([0_u64; 2], [0_u64; 2]);
        let mut entry = first;
        // SAFETY: a dynamic section ends with a null entry.
        while let Some(Dynamic { tag, value }) = unsafe { entry.as_ref() }
            && *tag != DT_NULL
        {
            let address = if *value < self.bias { value + self.bias } else { *value };
            match *tag {
                DT_RELA => tables[0] = address,
                DT_RELASZ => sizes[0] = *value,
                DT_JMPREL => tables[1] = address,
                DT_PLTRELSZ => sizes[1] = *value,
                _ => {}
            }
            // SAFETY: this entry is not the last one.
            entry = unsafe { entry.add(1) };
        }
        for (table, bytes) in tables.into_iter().zip(sizes) {
            if !self.contains(table) {
                continue;
            }
            let count = bytes as usize / size_of::<Relocation>();
            // SAFETY: the module's dynamic section states address and size of this table.
            let relocations = unsafe { core::slice::from_raw_parts(table as *const Relocation, count) };
            for relocation in relocations {
                let is_slot = match relocation.kind {
                    R_GLOB_DAT | R_JUMP_SLOT => true,
                    R_64 => relocation.addend == 0,
                    _ => false,
                };
                if is_slot && relocation.symbol != 0 {
                    // SAFETY: the caller promises that the module is loaded, and stays.
                    unsafe { self.change_slot(&module, relocation, hooks, own, direction) };
                }
            }
        }
    }

    /// # Safety
    ///
    /// The relocation is the module's.
    unsafe fn change_slot(
        &self,
        module: &Module,
        relocation: &Relocation,
        hooks: &Hooks,
        own: &Module,
        direction: Direction,
    ) {
        // SAFETY: symbol and name are in the tables of a loaded module, by its relocation.
        let (name, ours) = unsafe {
            let symbol = module.symbols.add(relocation.symbol as usize);
            let name = CStr::from_ptr(module.strings.add((*symbol).name as usize).cast());
            (name, own.definition(name))
        };
        if ours.is_none() {
            return;
        }
        let Some(hook) = hooks.wanted(direction).find(|hook| hook.name == name) else { return };
        let place = self.bias.wrapping_add(relocation.offset);
        let (from, to) = hook.change_in(direction);
        if !self.contains(place) || !place.is_multiple_of(8) {
            return;
        }
        // SAFETY: an aligned word of a mapped segment, which the loader has relocated.
        let found = unsafe { (*(place as *const AtomicU64)).load(Ordering::Relaxed) };
        // An unbound slot leads to the module's own code that calls the loader. A definition of the
        // name in that module may be another function.
        // SAFETY: the caller promises that the relocation is the module's; an entry of the module's
        // table.
        let is_the_same = || unsafe {
            module.definition(name).is_none_or(|symbol| {
                let address = self.bias.wrapping_add((*symbol).value);
                address == hook.real || address == hook.own
            })
        };
        let is_unbound = direction == Direction::In
            && relocation.kind == R_JUMP_SLOT
            && found != from
            && found != to
            && self.contains(found)
            && is_the_same();
        if found == to || found == from || is_unbound {
            // SAFETY: a slot for the address of this function, and the caller holds the loader's
            // lock.
            let mut written = unsafe { self.write(place, found, to) };
            // The program has bound it meanwhile.
            if written == Written::No && is_unbound {
                // SAFETY: as above.
                written = unsafe { self.write(place, from, to) };
            }
            BOUND.fetch_add((written == Written::Yes).into(), Ordering::Relaxed);
        } else if direction == Direction::In && found == hook.library && hook.is_heap {
            PASSING.fetch_add(1, Ordering::Relaxed);
        }
    }
}
