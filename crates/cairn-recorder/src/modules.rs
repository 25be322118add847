//! Writes which modules are loaded, and when they came and went.
//!
//! A module is written when it is first seen: at the start, after every `dlopen`, and at the latest
//! when an address of it is first on a stack. `docs/design/0004-following-modules.md` compares the
//! ways to notice loads and unloads.
//!
//! A module is identified by the identity that a capture gives its addresses, and by where it lies.
//! When it goes its entry in the table is closed for good, so that the same file at the same
//! address gets another number later.

use core::sync::atomic::Ordering;

use cairn_capture::{LoadedModule, ModuleIdentity};
use cairn_format::AbsoluteAddress;
use cairn_format::recording;

use crate::build_id::{self, BUILD_ID_BYTES};
use crate::clock;
use crate::module_list::{self, Access, FOUND_AT_ONCE, FoundModules};
use crate::module_table::{GONE, ModuleLoad, ModuleTable, key_of};
use crate::os::ErrnoGuard;
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
    let path = module_list::path(name, module, path_place);
    let loaded = recording::LoadedModule {
        number,
        counter,
        start: module.start.value(),
        end: module.end.value(),
        bias: module_list::bias(module, path),
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

/// Writes all modules that were loaded or unloaded since the last call.
///
/// Call it after `dlopen` and `dlmopen`, outside of hooks: it takes the loader's lock, as these do.
/// When nothing has changed it compares two counters of the loader.
pub fn scan() {
    scan_after(false);
}

/// Writes all modules at the start of a recording.
///
pub(crate) fn scan_at_start() {
    let Some(recorder) = recorder::current() else { return };
    let _errno = ErrnoGuard::new();
    if !scan_once(&recorder.modules, recorder, module_list::access_at_start()) {
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

/// Writes a module that the loader has just mapped.
#[cfg(windows)]
pub(crate) fn note_load(start: u64) {
    if let Some(mut tables) = recorder::current().and_then(TableWriter::take) {
        let modules = &tables.recorder().modules;
        is_written(modules, AbsoluteAddress::new(start), &mut tables);
    }
}

/// Writes that a module is gone which the loader is about to unmap.
#[cfg(windows)]
pub(crate) fn note_unload(start: u64) {
    let Some(mut tables) = recorder::current().and_then(TableWriter::take) else { return };
    for (number, load) in tables.recorder().modules.loads() {
        let key = load.key.load(Ordering::Acquire);
        if key != 0 && key != GONE && load.start.load(Ordering::Acquire) == start {
            close(load, (number, clock::counter()), key, &mut tables);
        }
    }
}

/// Maximum scans while other threads load and unload; 3, after which their own scans do the rest.
const SCANS: u32 = 3;

/// Scans once. Returns true when nothing changed meanwhile: the counters are then stored, and later
/// scans do nothing until they change.
fn scan_once(modules: &ModuleTable, recorder: &Recorder, access: Access) -> bool {
    let mut found = FoundModules::new();
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
        for &address in found.addresses() {
            is_whole &= is_written(modules, AbsoluteAddress::new(address), &mut tables);
        }
        if found.addresses().len() < FOUND_AT_ONCE {
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
