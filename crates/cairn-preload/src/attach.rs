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
//! is older than the recording. Pages that the loader made read-only are so again afterwards.
//!
//! [`cairn_detach`] puts everything back. The library stays: a thread may be inside it, and the program may have kept an
//! address of a hook; it does what the C library does then.

use core::cell::UnsafeCell;
use core::ffi::{CStr, c_int, c_void};
use core::mem;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::next::{self, Dynamic, Module, NEXT, Symbol};
use crate::{recorder, start, system};

/// One function that is hooked.
#[derive(Clone, Copy)]
struct Hook {
    name: &'static CStr,
    own: u64,
    real: u64,
    /// Its entry in the table of the module that defines it, and the bias of that; null when later modules cannot be bound by it.
    symbol: *const Symbol,
    bias: u64,
    is_mapping: bool,
}

const MOST_HOOKS: usize = 160;

struct Hooks {
    all: [Option<Hook>; MOST_HOOKS],
    count: usize,
}

struct HooksCell(UnsafeCell<Hooks>);

// SAFETY: touched only by the thread that has taken `IS_WORKING`.
unsafe impl Sync for HooksCell {}

static HOOKS: HooksCell = HooksCell(UnsafeCell::new(Hooks { all: [None; MOST_HOOKS], count: 0 }));
static IS_WORKING: AtomicBool = AtomicBool::new(false);
/// Modules were loaded that nobody has looked at.
static HAS_LOADED: AtomicBool = AtomicBool::new(false);
static IS_ATTACHED: AtomicBool = AtomicBool::new(false);
/// Not every symbol could be changed, so modules that are loaded later have to be changed themselves.
static MUST_FOLLOW: AtomicBool = AtomicBool::new(false);
/// Places that could not be changed.
static REFUSED: AtomicU32 = AtomicU32::new(0);
/// Slots that were changed.
static CHANGED: AtomicU64 = AtomicU64::new(0);

/// What `cairn` is told.
#[repr(i32)]
enum Answer {
    Done = 0,
    /// Another recording is under way, or none is.
    NotNow = 1,
    /// The recording could not begin; why was announced.
    NoRecording = 2,
    /// The kernel does not let the pages be changed.
    Protected = 3,
    /// No call of the program could be bound to a hook.
    Nothing = 4,
}

/// Begins to record. `text` is what would be in `CAIRN_HEAP`.
///
/// # Safety
///
/// - `text` has `length` bytes.
/// - The thread may take the loader's lock.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairn_attach(text: *const u8, length: usize) -> c_int {
    // SAFETY: by contract.
    let text = unsafe { core::slice::from_raw_parts(text, length) };
    if cairn_recorder::is_recording() || !take_work() {
        return Answer::NotNow as c_int;
    }
    let answer = attach(text);
    IS_WORKING.store(false, Ordering::Release);
    answer as c_int
}

/// Ends the recording that [`cairn_attach`] began, and leaves the program as it was.
///
/// # Safety
///
/// As for that.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairn_detach() -> c_int {
    if !IS_ATTACHED.load(Ordering::Acquire) || !take_work() {
        return Answer::NotNow as c_int;
    }
    recorder::end();
    IS_ATTACHED.store(false, Ordering::Release);
    // SAFETY: the work was taken.
    let hooks = unsafe { &*HOOKS.0.get() };
    change(hooks, Direction::Out);
    // Last: threads that were in the midst of an event have had time to finish it.
    recorder::leave_file();
    IS_WORKING.store(false, Ordering::Release);
    Answer::Done as c_int
}

/// Binds what was loaded since, where the symbols could not do that. Threads that load at once leave it to one of them, which looks
/// again when others have come meanwhile.
pub(crate) fn after_load() {
    if !(IS_ATTACHED.load(Ordering::Acquire) && MUST_FOLLOW.load(Ordering::Relaxed)) {
        return;
    }
    HAS_LOADED.store(true, Ordering::SeqCst);
    while HAS_LOADED.load(Ordering::SeqCst) && take_work() {
        HAS_LOADED.store(false, Ordering::SeqCst);
        // It may have ended before the work was taken.
        if IS_ATTACHED.load(Ordering::Acquire) {
            // SAFETY: the work was taken.
            change_slots(unsafe { &*HOOKS.0.get() }, Direction::In);
        }
        IS_WORKING.store(false, Ordering::SeqCst);
    }
}

fn take_work() -> bool {
    IS_WORKING.compare_exchange(false, true, Ordering::SeqCst, Ordering::SeqCst).is_ok()
}

fn attach(text: &[u8]) -> Answer {
    next::resolve();
    // SAFETY: the work was taken.
    let hooks = unsafe { &mut *HOOKS.0.get() };
    if hooks.count == 0 {
        hooks.fill();
    }
    let Ok(asked) = start::begin_attached(text) else { return Answer::NoRecording };
    REFUSED.store(0, Ordering::Relaxed);
    CHANGED.store(0, Ordering::Relaxed);
    change(hooks, Direction::In);
    // A thread may be loading a module right now, and be about to fill its slots: wait until it is done.
    wait_for_loader();
    change_slots(hooks, Direction::In);
    let failure = match (REFUSED.load(Ordering::Relaxed), CHANGED.load(Ordering::Relaxed)) {
        (1.., _) => Some(Answer::Protected),
        (0, 0) => Some(Answer::Nothing),
        _ => None,
    };
    if let Some(failure) = failure {
        change(hooks, Direction::Out);
        recorder::end();
        recorder::leave_file();
        return failure;
    }
    IS_ATTACHED.store(true, Ordering::Release);
    if !asked.begins_paused {
        recorder::resume();
    }
    Answer::Done
}

/// Takes the loader's lock and gives it back.
fn wait_for_loader() {
    let (open, close) = (NEXT.dlopen.address(), NEXT.dlclose.address());
    if open.is_null() || close.is_null() {
        return;
    }
    // SAFETY: the C library's, which have these types; no name means the program itself, and nothing is loaded.
    unsafe {
        let open: unsafe extern "C" fn(*const u8, c_int) -> *mut c_void = mem::transmute(open);
        let close: unsafe extern "C" fn(*mut c_void) -> c_int = mem::transmute(close);
        let program = open(core::ptr::null(), libc::RTLD_LAZY);
        if !program.is_null() {
            close(program);
        }
    }
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
                *place = Some(Hook {
                    name,
                    own: own.bias + symbol.value,
                    real: real as u64,
                    symbol: symbol_of,
                    bias,
                    is_mapping: matches!(
                        bytes,
                        b"mmap" | b"mmap64" | b"munmap" | b"mremap" | b"brk" | b"sbrk"
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

/// Symbols first: who binds a slot meanwhile binds it right, or is overwritten.
fn change(hooks: &Hooks, direction: Direction) {
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
                // SAFETY: a value of a symbol.
                let is_changed =
                    unsafe { module.write(place, from.wrapping_sub(hook.bias), to.wrapping_sub(hook.bias)) };
                if !is_changed {
                    MUST_FOLLOW.store(true, Ordering::Relaxed);
                }
            }
        }
    });
    change_slots(hooks, direction);
}

fn change_slots(hooks: &Hooks, direction: Direction) {
    let Some(own) = next::own_module() else { return };
    each_module(|module| {
        if module.bias != own.bias {
            // SAFETY: a loaded module.
            unsafe { module.change_slots(hooks, &own, direction) };
        }
    });
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
const PT_GNU_RELRO: u32 = 0x6474_e552;
const PF_EXECUTE: u32 = 1;
const PF_WRITE: u32 = 2;

/// One module, as the loader tells of it.
struct Loaded<'a> {
    bias: u64,
    headers: &'a [libc::Elf64_Phdr],
}

/// Calls `look` with each module, under the loader's lock for its list: none goes meanwhile.
fn each_module<F: FnMut(&Loaded<'_>)>(mut look: F) {
    unsafe extern "C" fn visit<F: FnMut(&Loaded<'_>)>(
        information: *mut libc::dl_phdr_info,
        _: usize,
        look: *mut c_void,
    ) -> c_int {
        // SAFETY: the loader's, for the time of this call; and the closure below.
        unsafe {
            let information = &*information;
            if !information.dlpi_phdr.is_null() {
                let headers =
                    core::slice::from_raw_parts(information.dlpi_phdr, information.dlpi_phnum.into());
                (*look.cast::<F>())(&Loaded { bias: information.dlpi_addr, headers });
            }
        }
        0
    }
    // SAFETY: the closure lives here.
    unsafe { libc::dl_iterate_phdr(Some(visit::<F>), (&raw mut look).cast()) };
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

    /// Whether the loader made the page read-only after it had filled its slots.
    fn is_read_only(&self, address: u64, segment: &libc::Elf64_Phdr) -> bool {
        let is_sealed = self.header(PT_GNU_RELRO).is_some_and(|header| {
            let start = self.bias.wrapping_add(header.p_vaddr);
            let page = !(system::page_bytes() as u64 - 1);
            let end = start.wrapping_add(header.p_memsz) & page;
            (start & page..end).contains(&address)
        });
        is_sealed || segment.p_flags & PF_WRITE == 0
    }

    /// Writes `to` where `from` is. False when it is something else, or cannot be written.
    ///
    /// # Safety
    ///
    /// A word of this module that is read only as an address of a function.
    unsafe fn write(&self, place: u64, from: u64, to: u64) -> bool {
        let Some(segment) = self.segment_of(place) else { return false };
        // Threads may run in such a page: what may be done with it is not changed for a moment, either.
        if segment.p_flags & PF_EXECUTE != 0 || !place.is_multiple_of(8) {
            return false;
        }
        // SAFETY: by contract.
        let word = unsafe { &*(place as *const AtomicU64) };
        if word.load(Ordering::Relaxed) != from {
            return false;
        }
        let page_bytes = system::page_bytes();
        let page = place & !(page_bytes as u64 - 1);
        let is_read_only = self.is_read_only(place, segment);
        // SAFETY: the page can be read all the time, and is as it was at the end.
        unsafe {
            if is_read_only && !system::protect(page, page_bytes, libc::PROT_READ | libc::PROT_WRITE) {
                REFUSED.fetch_add(1, Ordering::Relaxed);
                return false;
            }
            word.store(to, Ordering::Release);
            if is_read_only {
                system::protect(page, page_bytes, libc::PROT_READ);
            }
        }
        true
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
        if found == from || is_unbound {
            // SAFETY: a slot for the address of this function.
            let is_changed = unsafe { self.write(place, found, to) };
            CHANGED.fetch_add(is_changed.into(), Ordering::Relaxed);
        }
    }
}
