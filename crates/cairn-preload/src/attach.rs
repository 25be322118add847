//! Recording a program that runs already: `cairn heap --attach` loads this library into it and calls [`cairn_attach`].
//!
//! Nothing of the program comes here then, because its calls are bound to the C library. So they are bound anew:
//!
//! - **The slots** that the loader filled with the addresses of functions (`JUMP_SLOT` and `GLOB_DAT` relocations, and pointers
//!   in data) of all loaded modules. A slot is changed only if it holds what the name means in this program, or is not
//!   bound yet.
//! - **The symbols** themselves, in the memory of the module that defines them: what is loaded later is bound by them,
//!   before its first constructor runs.
//!
//! A word is written at once, so that other threads, which go on meanwhile, see the old address or the new one. Recording
//! begins when all of it is done, and ends before it is undone: every block is either seen from its beginning to its end, or
//! is older than the recording.
//!
//! **All of this runs under the loader's lock**, which `dlopen` holds while it maps, relocates and protects a module, and `dlclose`
//! while it unmaps one: no module is half relocated, and none goes. No function of the C library takes that lock for others. But
//! `dlsym` holds it while it asks an indirect function (`STT_GNU_IFUNC`) for its address, so the work is done by the resolver of
//! such a symbol of this library, `cairn_locked`. A page is writable afterwards if it was writable before: that is asked of the
//! kernel, and not concluded from the module's headers.
//!
//! [`cairn_detach`] puts everything back. The library stays: a thread may be inside it, and the program may have kept an
//! address of a hook; it does what the C library does then. What the recording has left in memory is unmapped by
//! [`cairn_release`], when `cairn` has seen that no thread is inside the library.
//!
//! A module that the program opens with `RTLD_DEEPBIND` is bound past a library that was preloaded. [`before_deep_open`] changes the
//! symbols for it.

use core::cell::UnsafeCell;
use core::ffi::{CStr, c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::next::{self, Dynamic, Module, Symbol};
use crate::{recorder, start, system};

/// One function that is hooked.
#[derive(Clone, Copy)]
struct Hook {
    name: &'static CStr,
    own: u64,
    real: u64,
    /// The C library's own definition, where another module's is the one that is reached; otherwise `real`.
    library: u64,
    /// Its entry in the table of the module that defines it, and the bias of that; null when later modules cannot be bound by it.
    symbol: *const Symbol,
    bias: u64,
    is_mapping: bool,
    /// It allocates or frees.
    is_heap: bool,
}

const MOST_HOOKS: usize = 160;

struct Hooks {
    all: [Option<Hook>; MOST_HOOKS],
    count: usize,
}

struct HooksCell(UnsafeCell<Hooks>);

// SAFETY: written by the thread that has taken the work, once; read by it, and by others after `ARE_KNOWN`.
unsafe impl Sync for HooksCell {}

static HOOKS: HooksCell = HooksCell(UnsafeCell::new(Hooks { all: [None; MOST_HOOKS], count: 0 }));
/// The hooks are filled in, and do not change any more.
static ARE_KNOWN: AtomicBool = AtomicBool::new(false);
/// Modules were loaded that nobody has looked at.
static HAS_LOADED: AtomicBool = AtomicBool::new(false);
static IS_ATTACHED: AtomicBool = AtomicBool::new(false);
/// Modules that are loaded later have to be changed themselves: not every symbol could be changed, or was from the beginning.
static MUST_FOLLOW: AtomicBool = AtomicBool::new(false);
/// The symbols were changed for modules that are opened with `RTLD_DEEPBIND`.
static IS_DEEP: AtomicBool = AtomicBool::new(false);
/// Places that could not be changed.
static REFUSED: AtomicU32 = AtomicU32::new(0);
/// Slots that lead to a hook.
static BOUND: AtomicU64 = AtomicU64::new(0);
/// Slots that lead past the hooks, to the C library.
static PASSING: AtomicU64 = AtomicU64::new(0);

/// What `cairn` reads and writes from outside.
#[repr(C)]
pub struct Shared {
    /// Where the thread's word of the recorder is, as a distance from the thread pointer; 0 while that is not known.
    thread_word: AtomicU64,
    /// 1 when ended recordings have left memory for [`cairn_release`].
    has_memory: AtomicU64,
    /// Who changes modules, as process and thread; 0 for nobody.
    worker: AtomicU64,
    /// The stack pointer of the resolver's frame while work is done under the loader's lock: see `cairn_recover`.
    recovery: AtomicU64,
    /// The stack that `cairn` has given to a thread for its calls, and its size; nothing between calls, if `cairn` was not killed.
    stack: [AtomicU64; 2],
}

/// See [`Shared`].
#[allow(non_upper_case_globals, reason = "the name of a symbol that `cairn` looks up")]
#[unsafe(no_mangle)]
pub static cairn_shared: Shared = Shared {
    thread_word: AtomicU64::new(0),
    has_memory: AtomicU64::new(0),
    worker: AtomicU64::new(0),
    recovery: AtomicU64::new(0),
    stack: [const { AtomicU64::new(0) }; 2],
};

/// What `cairn` is told.
#[repr(i32)]
#[derive(Clone, Copy)]
enum Answer {
    Done = 0,
    /// A recording is under way.
    Recorded = 1,
    /// The recording could not begin; why was announced.
    NoRecording = 2,
    /// The kernel does not let the pages be changed.
    Protected = 3,
    /// No call of the program could be bound to a hook.
    Nothing = 4,
    /// Another thread changes modules at this moment.
    Busy = 5,
    /// There is nothing to detach from.
    NotAttached = 6,
    /// The work under the loader's lock could not be done, or not to its end.
    Fault = 7,
}

/// Begins to record. `text` is what would be in `CAIRN_HEAP`. When that is done, `is_done` is set, and what is left is a wait to be
/// stopped.
///
/// # Safety
///
/// - `text` has `length` bytes, and `is_done` is a word.
/// - The thread may take the loader's lock.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairn_attach(text: *const u8, length: usize, is_done: *const AtomicU64) -> c_int {
    // SAFETY: by contract.
    let is_done = unsafe { &*is_done };
    // SAFETY: by contract.
    let text = unsafe { core::slice::from_raw_parts(text, length) };
    let Some(work) = Work::take() else { return done(is_done, Answer::Busy) };
    let answer = if recorder::is_under_way() { Answer::Recorded } else { attach(&work, text) };
    note_memory();
    drop(work);
    done(is_done, answer)
}

/// Ends the recording that [`cairn_attach`] began, and leaves the program as it was.
///
/// # Safety
///
/// As for that.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairn_detach(_: usize, _: usize, is_done: *const AtomicU64) -> c_int {
    // SAFETY: by contract.
    let is_done = unsafe { &*is_done };
    let Some(work) = Work::take() else { return done(is_done, Answer::Busy) };
    if !IS_ATTACHED.load(Ordering::Acquire) {
        drop(work);
        return done(is_done, Answer::NotAttached);
    }
    recorder::end();
    let answer = if work.under_lock(Task::Out) { Answer::Done } else { Answer::Fault };
    // After a fault some slots may still lead here: what comes is passed on, and the next attempt changes the rest.
    if matches!(answer, Answer::Done) {
        IS_ATTACHED.store(false, Ordering::Release);
    }
    // Last: threads that were in the midst of an event have had time to finish it.
    recorder::leave_file();
    note_memory();
    drop(work);
    done(is_done, answer)
}

/// Ends a call: says that it is done, and waits until `cairn` stops the thread, or for some seconds if nobody does.
fn done(is_done: &AtomicU64, answer: Answer) -> c_int {
    const SECONDS: i64 = 3;
    is_done.store(1, Ordering::SeqCst);
    system::wait_to_be_stopped(SECONDS);
    answer as c_int
}

/// Unmaps what ended recordings have left, and the stack of a call in which `cairn` was killed.
///
/// # Safety
///
/// As for [`cairn_recorder::release_ended`]: no other thread of the process runs before it returns, and none was stopped inside this
/// library, or on that stack.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairn_release() -> c_int {
    // SAFETY: by contract.
    unsafe { recorder::release_ended() };
    let [stack, bytes] = &cairn_shared.stack;
    let (at, bytes) = (stack.swap(0, Ordering::SeqCst), bytes.swap(0, Ordering::SeqCst));
    if at != 0 {
        // SAFETY: a mapping of `cairn`'s, that no thread has as its stack: by contract.
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

/// Binds what was loaded since, where the symbols could not do that. Threads that load at once leave it to one of them, which looks
/// again when others have come meanwhile.
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
        // It may have ended before the work was taken.
        if IS_ATTACHED.load(Ordering::Acquire) || IS_DEEP.load(Ordering::Relaxed) {
            work.under_lock(Task::Follow);
            recorder::note_bypassing_slots(PASSING.load(Ordering::Relaxed));
        }
    }
}

/// To be called before `dlopen` with `RTLD_DEEPBIND`: the module will look for functions in its own dependencies first, and find the
/// C library's before the hooks. It finds the hooks all the same when they are what the C library's symbols mean.
pub(crate) fn before_deep_open() {
    if IS_ATTACHED.load(Ordering::Acquire) || !recorder::is_under_way() {
        return;
    }
    // Before the work, so that whoever does it now looks again at the modules afterwards.
    if IS_DEEP.swap(true, Ordering::SeqCst) {
        return;
    }
    if let Some(work) = Work::take() {
        work.under_lock(Task::Deep);
    }
}

/// The real function behind the hook `name`, where modules were changed: their tables lead to the hook itself then.
pub(crate) fn real_behind(name: &CStr) -> Option<*mut c_void> {
    if !ARE_KNOWN.load(Ordering::Acquire) {
        return None;
    }
    // SAFETY: filled in, and not changed any more.
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
            // Nobody's; or of the process that this one was forked from, or of a thread that has ended, or of a call of this thread
            // that was given up: a thread that is at work does not come here.
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

    /// Does the task under the loader's lock. False when that was not possible, or not to the end.
    fn under_lock(&self, task: Task) -> bool {
        let Some(look_up) = next::library_dlsym() else { return false };
        IS_DONE.store(false, Ordering::Relaxed);
        TASK.store(task as u32, Ordering::SeqCst);
        // SAFETY: the C library's `dlsym`; without a handle it looks where calls of this library lead.
        unsafe { look_up(core::ptr::null_mut(), c"cairn_locked".as_ptr()) };
        TASK.store(Task::None as u32, Ordering::SeqCst);
        cairn_shared.recovery.store(0, Ordering::Relaxed);
        // A call that was given up may have left a page open.
        OPEN_PAGE.close();
        IS_DONE.load(Ordering::Relaxed)
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        cairn_shared.worker.store(0, Ordering::SeqCst);
    }
}

/// What is to be done under the loader's lock.
#[repr(u32)]
#[derive(Clone, Copy, PartialEq, Eq)]
enum Task {
    None,
    /// Bind all modules to the hooks.
    In,
    /// Bind the slots of modules that were loaded since.
    Follow,
    /// Bind the symbols only.
    Deep,
    /// Put everything back.
    Out,
}

static TASK: AtomicU32 = AtomicU32::new(Task::None as u32);
static IS_DONE: AtomicBool = AtomicBool::new(false);

/// Does the task, on behalf of the resolver `cairn_locked`: the caller is the loader, which holds its lock. Whoever else looks that
/// symbol up finds nothing to do. `frame` is where the resolver's stack pointer is.
pub(crate) extern "C" fn do_task(frame: u64) {
    let task = TASK.swap(Task::None as u32, Ordering::SeqCst);
    if task == Task::None as u32 {
        return;
    }
    cairn_shared.recovery.store(frame, Ordering::SeqCst);
    next::resolve();
    // SAFETY: the thread that has set the task has taken the work; and the loader's lock lets one thread in.
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
    } else {
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
    // First: a call that is given up while it waits for the lock has done nothing then.
    let is_done = work.under_lock(Task::In);
    let failure = match (REFUSED.load(Ordering::Relaxed), BOUND.load(Ordering::Relaxed)) {
        _ if !is_done => Some(Answer::Fault),
        (1.., _) => Some(Answer::Protected),
        (0, 0) => Some(Answer::Nothing),
        _ => asked.begin().is_err().then_some(Answer::NoRecording),
    };
    if let Some(failure) = failure {
        // What cannot be put back leads to hooks that pass on.
        if work.under_lock(Task::Out) {
            IS_ATTACHED.store(false, Ordering::Release);
        }
        return failure;
    }
    recorder::note_bypassing_slots(PASSING.load(Ordering::Relaxed));
    if !asked.begins_paused {
        recorder::resume();
    }
    Answer::Done
}

impl Hooks {
    /// All that this library exports and the program has as well.
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

    /// Those that are asked for.
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

/// Symbols before slots: a slot that is bound lazily meanwhile is bound right, or is overwritten.
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
            // SAFETY: an entry of a module that does not go: the program's calls reach it.
            let place = unsafe { &raw const (*hook.symbol).value } as u64;
            let (from, to) = hook.change_in(direction);
            if module.contains(place) {
                let (from, to) = (from.wrapping_sub(hook.bias), to.wrapping_sub(hook.bias));
                // SAFETY: a value of a symbol.
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

/// What became of a word.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Written {
    /// It is what it should be now.
    Yes,
    /// It holds something else, or cannot be written.
    No,
}

/// The page that words are being written to.
struct OpenPage {
    address: AtomicU64,
    /// It was read-only before.
    was_sealed: AtomicBool,
}

/// Of the thread that works under the loader's lock.
static OPEN_PAGE: OpenPage = OpenPage { address: AtomicU64::new(0), was_sealed: AtomicBool::new(false) };

impl OpenPage {
    /// Makes the page around `place` writable, if it is not; false when the kernel does not allow that.
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
            // SAFETY: the page can be read all the time, and `close` makes it what it was.
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

    /// Protects the page again that was protected before.
    fn close(&self) {
        let page = self.address.load(Ordering::Relaxed);
        if page != 0 && self.was_sealed.load(Ordering::Relaxed) {
            // SAFETY: it was read-only, and the loader's lock has kept it from being changed since.
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
const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PF_EXECUTE: u32 = 1;

/// One module, as the loader tells of it.
struct Loaded<'a> {
    bias: u64,
    headers: &'a [libc::Elf64_Phdr],
}

/// So many modules are collected in one walk of the loader's list.
const MODULES_AT_ONCE: usize = 32;

/// Some of the loader's list.
struct Listed {
    found: [(u64, *const libc::Elf64_Phdr, u16); MODULES_AT_ONCE],
    count: usize,
    skip: usize,
}

/// Calls `look` with each module. The caller holds the loader's lock, so that the list stays as it is; the lock of the list itself is
/// held for moments only: a thread that forks meanwhile leaves it locked in its child.
fn each_module(mut look: impl FnMut(&Loaded<'_>)) {
    unsafe extern "C" fn visit(information: *mut libc::dl_phdr_info, _: usize, listed: *mut c_void) -> c_int {
        // SAFETY: the loader's, for the time of this call; and what was passed below.
        let (information, listed) = unsafe { (&*information, &mut *listed.cast::<Listed>()) };
        if listed.skip > 0 {
            listed.skip -= 1;
            return 0;
        }
        let Some(place) = listed.found.get_mut(listed.count) else { return 1 };
        *place = (information.dlpi_addr, information.dlpi_phdr, information.dlpi_phnum);
        listed.count += 1;
        0
    }
    let mut first = 0;
    loop {
        let mut listed =
            Listed { found: [(0, core::ptr::null(), 0); MODULES_AT_ONCE], count: 0, skip: first };
        // SAFETY: the callback takes what it is given here, and it is not kept.
        unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut listed).cast()) };
        for &(bias, headers, count) in listed.found.iter().take(listed.count) {
            if !headers.is_null() {
                // SAFETY: the headers of a loaded module, which does not go while the loader's lock is held.
                let headers = unsafe { core::slice::from_raw_parts(headers, count.into()) };
                look(&Loaded { bias, headers });
            }
        }
        if listed.count < MODULES_AT_ONCE {
            return;
        }
        first += listed.count;
    }
}

impl Loaded<'_> {
    fn header(&self, kind: u32) -> Option<&libc::Elf64_Phdr> {
        self.headers.iter().find(|header| header.p_type == kind)
    }

    fn segment_of(&self, address: u64) -> Option<&libc::Elf64_Phdr> {
        self.headers.iter().find(|header| {
            let start = self.bias.wrapping_add(header.p_vaddr);
            header.p_type == PT_LOAD && (start..start.wrapping_add(header.p_memsz)).contains(&address)
        })
    }

    fn contains(&self, address: u64) -> bool {
        self.segment_of(address).is_some()
    }

    /// Writes `to` where `from` is.
    ///
    /// # Safety
    ///
    /// A word of this module that is read only as an address of a function. The caller holds the loader's lock.
    unsafe fn write(&self, place: u64, from: u64, to: u64) -> Written {
        let Some(segment) = self.segment_of(place) else { return Written::No };
        // Threads may run in such a page: what may be done with it is not changed for a moment, either.
        if segment.p_flags & PF_EXECUTE != 0 || !place.is_multiple_of(8) {
            return Written::No;
        }
        // SAFETY: by contract.
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
        // Another thread may have bound it since, which only it can say.
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
        // SAFETY: by contract.
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
            // SAFETY: not the last one.
            entry = unsafe { entry.add(1) };
        }
        for (table, bytes) in tables.into_iter().zip(sizes) {
            if !self.contains(table) {
                continue;
            }
            let count = bytes as usize / size_of::<Relocation>();
            // SAFETY: the table that the loader itself has read.
            let relocations = unsafe { core::slice::from_raw_parts(table as *const Relocation, count) };
            for relocation in relocations {
                let is_slot = match relocation.kind {
                    R_GLOB_DAT | R_JUMP_SLOT => true,
                    R_64 => relocation.addend == 0,
                    _ => false,
                };
                if is_slot && relocation.symbol != 0 {
                    // SAFETY: by contract.
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
        // SAFETY: names are texts in the module's table.
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
        // SAFETY: the loader has written there.
        let found = unsafe { (*(place as *const AtomicU64)).load(Ordering::Relaxed) };
        // Not bound yet: it leads to the module's own code that asks the loader. What that module has itself under the name
        // may be another function.
        // SAFETY: by contract; an entry of the module's table.
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
            // SAFETY: a slot for the address of this function.
            let mut written = unsafe { self.write(place, found, to) };
            // The program has bound it just now.
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
