//! Writes which modules are loaded, and when they came and went.
//!
//! A module is written when it is first seen: at the start, after every `dlopen`, and at the latest
//! when an address of it is first on a stack. `docs/design/0004-following-modules.md` compares the
//! ways to notice loads and unloads.
//!
//! A module is identified by the identity that a capture gives its addresses, and by where it lies.
//! When it goes its entry in the table is closed for good, so that the same file at the same
//! address gets another number later.

use core::ffi::{c_int, c_void};
use core::sync::atomic::Ordering;

use cairn_capture::{LoadedModule, ModuleIdentity};
use cairn_format::AbsoluteAddress;
use cairn_format::recording;

use crate::build_id::{self, BUILD_ID_BYTES};
use crate::clock;
use crate::module_table::{GONE, ModuleLoad, ModuleTable, key_of};
use crate::os::{self, ErrnoGuard, PathText};
use crate::recorder::{self, Recorder};
use crate::spool::PATH_BYTES;
use crate::tables::TableWriter;
use crate::writer::LONGEST_SLOTS;

/// Returns the number of the module around an address on a stack, or 0 for none. An unknown module
/// is written first.
pub(crate) fn number_of(
    table: &ModuleTable,
    identity: ModuleIdentity,
    address: u64,
    tables: &mut TableWriter<'_>,
) -> u32 {
    if identity == ModuleIdentity::NONE {
        return 0;
    }
    let found = table
        .loads()
        .find(|(_, load)| load.key.load(Ordering::Acquire) as u32 == identity.number() && load.is_written());
    if let Some((number, _)) = found {
        return number;
    }
    // A return address may be the first one behind its module.
    let module = [address, address.wrapping_sub(1)].into_iter().find_map(|address| {
        LoadedModule::at(AbsoluteAddress::new(address)).filter(|module| module.identity == identity)
    });
    module.map_or(0, |module| add(table, &module, tables))
}

/// Returns the number of a module that is loaded now, and writes it unless that was done.
fn add(table: &ModuleTable, module: &LoadedModule, tables: &mut TableWriter<'_>) -> u32 {
    let key = key_of(module);
    let Some((number, load)) = table.entry(key) else { return 0 };
    if load.is_written() {
        return number;
    }
    load.start.store(module.start.value(), Ordering::Release);
    load.end.store(module.end.value(), Ordering::Release);
    let seen = clock::counter();
    // One thread writes the record: a second one might be late, when the module is gone again. And
    // `module` may have been read from an earlier load at this address, whose memory was free by
    // then. So name and build id are compared with what is there now, before the claim.
    let is_there = || LoadedModule::at(module.start).filter(|now| key_of(now) == key);
    let is_true = |name: &[u8], id: &[u8]| {
        is_there().is_some_and(|now| {
            (name.len() >= NAME_BYTES || now.has_name(name))
                && build_id::of_module(&now, name.is_empty(), &mut [0; BUILD_ID_BYTES]) == id
        }) && is_there().is_some()
    };
    let begin = |tables: &mut TableWriter<'_>, name: &[u8], id: &[u8]| {
        let is_mine = is_true(name, id) && load.claim_writing();
        if is_mine {
            close_overlapped(table, (number, seen), module, tables);
        }
        is_mine
    };
    match write((number, seen), module, tables, begin) {
        WriteOutcome::NoRoom => load.unclaim_writing(),
        // A thread that unloads the module may have searched the table before this was written.
        WriteOutcome::Written if is_there().is_none() => {
            close(load, (number, clock::counter()), key, tables);
        }
        WriteOutcome::Written | WriteOutcome::NotBegun => {}
    }
    if load.is_written() { number } else { 0 }
}

/// Writes once that the module of this key is gone.
fn close(load: &ModuleLoad, (number, counter): (u32, u64), key: u64, tables: &mut TableWriter<'_>) {
    if load.close(key) {
        tables.append(2, |sink| sink.module_unloaded(number, counter));
    }
}

/// Writes that the modules are gone whose memory another one occupies now.
fn close_overlapped(
    table: &ModuleTable,
    (number, counter): (u32, u64),
    by: &LoadedModule,
    tables: &mut TableWriter<'_>,
) {
    for (other, load) in table.loads().filter(|(other, _)| *other != number) {
        let key = load.key.load(Ordering::Acquire);
        let is_overlapped = load.start.load(Ordering::Acquire) < by.end.value()
            && by.start.value() < load.end.load(Ordering::Acquire);
        if key != 0 && key != GONE && is_overlapped {
            close(load, (other, counter), key, tables);
        }
    }
}

/// Writes which modules are gone. If nothing was loaded meanwhile, no other module can lie in the
/// place of a known one, and its start proves that it is there; otherwise its key is compared too.
fn close_unloaded(table: &ModuleTable, may_be_replaced: bool, tables: &mut TableWriter<'_>) {
    for (number, load) in table.loads() {
        let key = load.key.load(Ordering::Acquire);
        let start = load.start.load(Ordering::Acquire);
        if key == 0 || key == GONE || start == 0 {
            continue;
        }
        let start = AbsoluteAddress::new(start);
        let is_there = LoadedModule::start_at(start) == Some(start)
            && (!may_be_replaced || LoadedModule::at(start).is_some_and(|now| key_of(&now) == key));
        if !is_there {
            close(load, (number, clock::counter()), key, tables);
        }
    }
}

/// Result of writing a module.
#[derive(PartialEq, Eq)]
enum WriteOutcome {
    Written,
    NotBegun,
    NoRoom,
}

/// Limit of a name's length, in bytes; a longer one is cut.
const NAME_BYTES: usize = 4000;

/// Writes a module as it is in memory: changes of its file meanwhile have no effect. Name and build
/// id are read before `begin` decides by them whether the module is written.
fn write(
    number_and_counter: (u32, u64),
    module: &LoadedModule,
    tables: &mut TableWriter<'_>,
    begin: impl FnOnce(&mut TableWriter<'_>, &[u8], &[u8]) -> bool,
) -> WriteOutcome {
    let scratch = tables.take_scratch();
    let outcome = write_in(scratch, number_and_counter, module, tables, begin);
    tables.return_scratch(scratch);
    outcome
}

fn write_in(
    scratch: &mut [u8],
    (number, counter): (u32, u64),
    module: &LoadedModule,
    tables: &mut TableWriter<'_>,
    begin: impl FnOnce(&mut TableWriter<'_>, &[u8], &[u8]) -> bool,
) -> WriteOutcome {
    let Some((id_place, rest)) = scratch.split_at_mut_checked(BUILD_ID_BYTES) else {
        return WriteOutcome::NoRoom;
    };
    let Some((path_place, name_place)) = rest.split_at_mut_checked(PATH_BYTES) else {
        return WriteOutcome::NoRoom;
    };
    let name = module.copy_name(name_place.get_mut(..NAME_BYTES).unwrap_or_default());
    let build_id = build_id::of_module(module, name.is_empty(), id_place);
    let path = path(name, module, path_place);
    let loaded = recording::LoadedModule {
        number,
        counter,
        start: module.start.value(),
        end: module.end.value(),
        bias: module.bias,
        build_id,
        path,
    };
    let slots = LONGEST_SLOTS.min(6 + (build_id.len() + path.len()).div_ceil(8));
    if !begin(tables, name, build_id) {
        return WriteOutcome::NotBegun;
    }
    if tables.append(slots, |sink| sink.module_loaded(&loaded)) {
        WriteOutcome::Written
    } else {
        WriteOutcome::NoRoom
    }
}

/// Returns the path of a module whose name in the loader is given. The name of the program itself
/// is empty, and that of a library opened by a relative path is relative.
fn path<'a>(name: &[u8], module: &LoadedModule, into: &'a mut [u8]) -> &'a [u8] {
    if name.is_empty() {
        let length = os::read_link(c"/proc/self/exe", into).len();
        // The name of the kernel's own module is no path, and on some systems empty.
        let is_vdso = is_kernel_module(module);
        return if is_vdso { b"[vdso]" } else { into.get(..length).unwrap_or_default() };
    }
    let is_relative = !name.starts_with(b"/") && name.contains(&b'/');
    let directory = if is_relative { os::working_directory(into) } else { 0 };
    let mut text = PathText::new(into.get_mut(directory..).unwrap_or_default());
    if directory > 0 {
        text.push(b"/");
    }
    text.push(name);
    let length = directory + text.length();
    into.get(..length).unwrap_or_default()
}

fn is_kernel_module(module: &LoadedModule) -> bool {
    // SAFETY: `getauxval` only reads the auxiliary vector, which exists in every process.
    module.start.value() == unsafe { libc::getauxval(libc::AT_SYSINFO_EHDR) }
}

/// Writes all modules that were loaded or unloaded since the last call.
///
/// Call it after `dlopen` and `dlmopen`, outside of hooks: it takes the loader's lock, as these do.
/// When nothing has changed it compares two counters of the loader.
pub fn scan() {
    scan_after(false);
}

/// Writes all modules at the start of a recording.
///
/// In a forked child, the lock of the loader's lists may belong to a thread of the parent, and is
/// then never released. Where one thread exists, nothing changes the lists, and the lock is not
/// taken.
pub(crate) fn scan_at_start() {
    let Some(recorder) = recorder::current() else { return };
    let _errno = ErrnoGuard::new();
    if !os::has_one_thread() || !scan_once(&recorder.modules, recorder, Access::Alone) {
        scan();
    }
}

fn scan_after(is_unloaded: bool) {
    let Some(recorder) = recorder::current() else { return };
    let _errno = ErrnoGuard::new();
    // The loader counts a module as unloaded before it is gone, and a scan by another thread may
    // have run in between.
    if is_unloaded && let Some(mut tables) = TableWriter::take(recorder) {
        close_unloaded(&recorder.modules, false, &mut tables);
    }
    for _ in 0..SCANS {
        if scan_once(&recorder.modules, recorder, Access::Shared) {
            return;
        }
    }
}

/// Maximum scans while other threads load and unload; 3, after which their own scans do the rest.
const SCANS: u32 = 3;

/// Scans once. Returns true when nothing changed meanwhile: the counters are then stored, and later
/// scans do nothing until they change.
fn scan_once(modules: &ModuleTable, recorder: &Recorder, access: Access) -> bool {
    let mut found = FoundModules {
        inside: [0; FOUND_AT_ONCE],
        count: 0,
        skip: 0,
        added: COUNTERS_UNREAD,
        removed: COUNTERS_UNREAD,
    };
    found.collect(access);
    let (added, removed) = (found.added, found.removed);
    let is_added = modules.added.load(Ordering::Acquire) != added;
    let is_removed = modules.removed.load(Ordering::Acquire) != removed;
    if !is_added && !is_removed {
        return true;
    }
    let Some(mut tables) = TableWriter::take(recorder) else { return false };
    // Unloaded modules come first: another one may lie in the place of one of them.
    if is_removed {
        close_unloaded(modules, is_added, &mut tables);
    }
    let mut is_whole = true;
    loop {
        for &address in found.inside.iter().take(found.count) {
            is_whole &= is_written(modules, AbsoluteAddress::new(address), &mut tables);
        }
        if found.count < FOUND_AT_ONCE {
            break;
        }
        found.skip += FOUND_AT_ONCE;
        found.collect(access);
    }
    found.skip = usize::MAX;
    found.collect(access);
    let is_stable = is_whole && (found.added, found.removed) == (added, removed);
    if is_stable {
        modules.added.store(added, Ordering::Release);
        modules.removed.store(removed, Ordering::Release);
    }
    is_stable
}

/// Writes the module around this address unless it is known. Returns false for one that is in the
/// loader's lists but cannot be found: another thread is loading or unloading it.
fn is_written(modules: &ModuleTable, address: AbsoluteAddress, tables: &mut TableWriter<'_>) -> bool {
    let Some(start) = LoadedModule::start_at(address) else { return false };
    if !modules.has_start(start) {
        return LoadedModule::at(address).is_some_and(|module| add(modules, &module, tables) != 0);
    }
    true
}

const FOUND_AT_ONCE: usize = 64;

/// The counters of a scan that did not read them: the next one then scans all lists.
const COUNTERS_UNREAD: u64 = u64::MAX;

/// How the loader's lists are read.
#[derive(Clone, Copy)]
enum Access {
    /// Under the loader's lock: other threads may load and unload.
    Shared,
    /// Without the lock, by the only thread.
    Alone,
}

/// An address in each of some modules, collected under the loader's lock and used outside of it.
struct FoundModules {
    inside: [u64; FOUND_AT_ONCE],
    count: usize,
    skip: usize,
    added: u64,
    removed: u64,
}

impl FoundModules {
    /// Collects the next modules, and under the lock the loader's counters.
    fn collect(&mut self, access: Access) {
        self.count = 0;
        match access {
            Access::Shared => {
                // SAFETY: the callback takes a `FoundModules`, which is passed here and lives
                // longer than the call.
                unsafe { libc::dl_iterate_phdr(Some(on_first_module), core::ptr::from_mut(self).cast()) };
            }
            // SAFETY: no other thread exists that could change the lists.
            Access::Alone => unsafe { self.walk() },
        }
    }

    /// Collects modules from the loader's lists.
    ///
    /// # Safety
    ///
    /// The lists do not change meanwhile.
    unsafe fn walk(&mut self) {
        let skip = self.skip;
        // SAFETY: the entries of the loader's lists, by contract.
        unsafe {
            let mut namespace = debugger_interface();
            while let Some(lists) = namespace.as_ref() {
                let mut entry = lists.first;
                while let Some(module) = entry.as_ref() {
                    self.add(module.dynamic_section);
                    entry = module.next;
                }
                namespace = if lists.version >= 2 { lists.next } else { core::ptr::null() };
            }
        }
        self.skip = skip;
    }

    fn add(&mut self, address: u64) {
        if self.skip > 0 {
            self.skip -= 1;
        } else if let Some(place) = self.inside.get_mut(self.count) {
            *place = address;
            self.count += 1;
        }
    }
}

/// Called for the first module. `dl_iterate_phdr` shows the caller's namespace only, but holds the
/// lock that protects the lists of all namespaces.
///
/// # Safety
///
/// `info` is the loader's, and `found` points to a [`FoundModules`] that nobody else uses.
unsafe extern "C" fn on_first_module(info: *mut libc::dl_phdr_info, _: usize, found: *mut c_void) -> c_int {
    // SAFETY: both by contract.
    let (info, found) = unsafe { (&*info, &mut *found.cast::<FoundModules>()) };
    (found.added, found.removed) = (info.dlpi_adds, info.dlpi_subs);
    // SAFETY: the caller, `dl_iterate_phdr`, holds the loader's lock, so that its lists do not
    // change.
    unsafe { found.walk() };
    1
}

/// `struct r_debug_extended` of <link.h>.
#[repr(C)]
struct Namespace {
    version: c_int,
    first: *const ListedModule,
    breakpoint: u64,
    state: c_int,
    loader_base: u64,
    /// From version 2 on.
    next: *const Namespace,
}

/// `struct link_map` of <link.h>, as far as it is public.
#[repr(C)]
struct ListedModule {
    bias: u64,
    name: *const libc::c_char,
    dynamic_section: u64,
    next: *const ListedModule,
}

/// Returns the loader's interface for debuggers, which lists all modules. An entry of the program's
/// dynamic section leads there.
fn debugger_interface() -> *const Namespace {
    const DT_DEBUG: u64 = 21;
    // SAFETY: `getauxval` only reads the auxiliary vector, which exists in every process.
    let (headers, count) = unsafe { (libc::getauxval(libc::AT_PHDR), libc::getauxval(libc::AT_PHNUM)) };
    if headers == 0 {
        return core::ptr::null();
    }
    // SAFETY: the kernel states address and number of the program's headers, which stay mapped.
    let table = unsafe { core::slice::from_raw_parts(headers as *const libc::Elf64_Phdr, count as usize) };
    let stated = |kind| table.iter().find(|header| header.p_type == kind).map(|header| header.p_vaddr);
    let (Some(own), Some(dynamic)) = (stated(libc::PT_PHDR), stated(libc::PT_DYNAMIC)) else {
        return core::ptr::null();
    };
    let mut entry = headers.wrapping_sub(own).wrapping_add(dynamic) as *const [u64; 2];
    loop {
        // SAFETY: the section ends with an entry of tag 0, and no entry behind it is read.
        match unsafe { *entry } {
            [0, _] => return core::ptr::null(),
            [DT_DEBUG, address] => return address as *const Namespace,
            // SAFETY: this entry is not the last one.
            _ => entry = unsafe { entry.add(1) },
        }
    }
}

/// Runs `unload`, which may unload modules as `dlclose` does, and writes which are gone.
///
/// Wrap every unload in this. It contains [`cairn_capture::while_unloading`].
pub fn while_unloading<R>(unload: impl FnOnce() -> R) -> R {
    // A module that was never on a stack is written before it goes.
    scan();
    let result = cairn_capture::while_unloading(unload);
    scan_after(true);
    result
}
