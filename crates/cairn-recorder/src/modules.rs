//! Which modules are loaded, and when they came and went.
//!
//! A module is written when it is first seen: at the start, after every `dlopen`, and at the latest when an address of it
//! is first on a stack. `docs/design/0004-following-modules.md` compares the ways to learn of loads and unloads.
//!
//! A module is known by the identity that a capture gives its addresses, and by where it lies. When it goes its place in the
//! table is closed for ever, so that the same file at the same address later has another number.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use cairn_capture::{LoadedModule, ModuleIdentity, read_own_memory};
use cairn_format::AbsoluteAddress;
use cairn_format::recording;

use crate::clock;
use crate::os::{self, KeptErrno, PathText};
use crate::recorder::{self, Recorder};
use crate::tables::Tables;
use crate::writer::LONGEST_SLOTS;

/// As many loads as are told apart.
const LOADS: usize = 1 << 14;
/// In place of the key of a module that is gone. No key: its lower half would be an identity.
const GONE: u64 = 1 << 32;

/// One load of a file.
#[repr(C)]
struct Load {
    /// Page of the first address and identity; 0 for none yet, [`GONE`].
    key: AtomicU64,
    start: AtomicU64,
    end: AtomicU64,
    is_written: AtomicU32,
    reserved: u32,
}

impl Load {
    /// Whether it is in the recording, or will be in a moment.
    fn is_written(&self) -> bool {
        self.is_written.load(Ordering::Acquire) != 0
    }

    /// Writes that the module of this key is gone; once.
    fn close(&self, (number, counter): (u32, u64), key: u64, tables: &mut Tables<'_>) {
        if self.is_written()
            && self.key.compare_exchange(key, GONE, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        {
            tables.append(2, |sink| sink.module_unloaded(number, counter));
        }
    }
}

/// See the module documentation. The number of a load is its place in the table, from 1.
#[repr(C)]
pub(crate) struct ModuleTable {
    loads: [Load; LOADS],
    used: AtomicU32,
    /// What the loader had counted at the last scan: modules loaded, modules unloaded.
    added: AtomicU64,
    removed: AtomicU64,
}

fn key_of(module: &LoadedModule) -> u64 {
    module.start.value() >> 12 << 32 | u64::from(module.identity.number())
}

impl ModuleTable {
    /// The number of the module that an address on a stack belongs to, which is written before if it is not known; 0 for
    /// none.
    pub(crate) fn number_of(&self, identity: ModuleIdentity, address: u64, tables: &mut Tables<'_>) -> u32 {
        if identity == ModuleIdentity::NONE {
            return 0;
        }
        let found = self.loads().find(|(_, load)| {
            load.key.load(Ordering::Acquire) as u32 == identity.number() && load.is_written()
        });
        if let Some((number, _)) = found {
            return number;
        }
        // A return address may be the first one behind its module.
        let module = [address, address.wrapping_sub(1)].into_iter().find_map(|address| {
            LoadedModule::at(AbsoluteAddress::new(address)).filter(|module| module.identity == identity)
        });
        module.map_or(0, |module| self.add(&module, tables))
    }

    fn loads(&self) -> impl Iterator<Item = (u32, &Load)> {
        (1..).zip(self.loads.iter().take(self.used.load(Ordering::Acquire) as usize))
    }

    /// The number of a module that is loaded now; writes it unless that was done.
    fn add(&self, module: &LoadedModule, tables: &mut Tables<'_>) -> u32 {
        let key = key_of(module);
        let Some((number, load)) = self.place(key) else { return 0 };
        if load.is_written() {
            return number;
        }
        load.start.store(module.start.value(), Ordering::Release);
        load.end.store(module.end.value(), Ordering::Release);
        let seen = clock::counter();
        // The place of a module that is gone waits for the next time that it is loaded. Only one thread writes it: another one might
        // come to it when the module is gone again. And what was read of it may be of a load before this one, and of memory that was
        // free by then: it is read once more.
        let is_there = || LoadedModule::at(module.start).filter(|now| key_of(now) == key);
        let is_true = |name: &[u8], build_id: &[u8]| {
            is_there().is_some_and(|now| {
                (name.len() >= NAME_BYTES || now.has_name(name))
                    && build_id_of(&now, name.is_empty(), &mut [0; BUILD_ID_BYTES]) == build_id
            }) && is_there().is_some()
        };
        let begin = |tables: &mut Tables<'_>, name: &[u8], build_id: &[u8]| {
            let is_mine = is_true(name, build_id)
                && load.is_written.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Acquire).is_ok();
            if is_mine {
                self.close_overlapped((number, seen), module, tables);
            }
            is_mine
        };
        match write((number, seen), module, tables, begin) {
            Outcome::NoRoom => load.is_written.store(0, Ordering::Release),
            // Who unloads it may have looked for what to close before this was written.
            Outcome::Written if is_there().is_none() => {
                load.close((number, clock::counter()), key, tables);
            }
            Outcome::Written | Outcome::NotBegun => {}
        }
        if load.is_written() { number } else { 0 }
    }

    /// Writes that those are gone in whose place another one lies now.
    fn close_overlapped(&self, (number, counter): (u32, u64), by: &LoadedModule, tables: &mut Tables<'_>) {
        for (other, load) in self.loads().filter(|(other, _)| *other != number) {
            let key = load.key.load(Ordering::Acquire);
            let is_overlapped = load.start.load(Ordering::Acquire) < by.end.value()
                && by.start.value() < load.end.load(Ordering::Acquire);
            if key != 0 && key != GONE && is_overlapped {
                load.close((other, counter), key, tables);
            }
        }
    }

    /// The place of a key, a new one if need be.
    fn place(&self, key: u64) -> Option<(u32, &Load)> {
        for (index, load) in (0..).zip(&self.loads) {
            match load.key.compare_exchange(0, key, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => {
                    self.used.fetch_max(index + 1, Ordering::AcqRel);
                    return Some((index + 1, load));
                }
                Err(other) if other == key => return Some((index + 1, load)),
                Err(_) => {}
            }
        }
        None
    }

    /// Whether a module that begins there is in the table.
    fn has_start(&self, start: AbsoluteAddress) -> bool {
        self.loads().any(|(_, load)| {
            load.start.load(Ordering::Acquire) == start.value()
                && load.is_written()
                && load.key.load(Ordering::Acquire) != GONE
        })
    }

    /// Writes that those are gone which are. Where nothing was loaded meanwhile, no other module can have taken a place; else each one
    /// is looked at as a whole.
    fn close_unloaded(&self, may_be_replaced: bool, tables: &mut Tables<'_>) {
        for (number, load) in self.loads() {
            let key = load.key.load(Ordering::Acquire);
            let start = load.start.load(Ordering::Acquire);
            if key == 0 || key == GONE || start == 0 {
                continue;
            }
            let start = AbsoluteAddress::new(start);
            let is_there = LoadedModule::start_at(start) == Some(start)
                && (!may_be_replaced || LoadedModule::at(start).is_some_and(|now| key_of(&now) == key));
            if !is_there {
                load.close((number, clock::counter()), key, tables);
            }
        }
    }
}

#[derive(PartialEq, Eq)]
enum Outcome {
    Written,
    NotBegun,
    NoRoom,
}

/// As much of a longer name is kept.
const NAME_BYTES: usize = 4000;
/// No build id is longer.
const BUILD_ID_BYTES: usize = 64;

/// Writes a module as it is in memory: what became of its file meanwhile does not matter. What is known of it is read before `begin`
/// is asked whether it is to be written, by its name and build id.
fn write(
    (number, counter): (u32, u64),
    module: &LoadedModule,
    tables: &mut Tables<'_>,
    begin: impl FnOnce(&mut Tables<'_>, &[u8], &[u8]) -> bool,
) -> Outcome {
    let (build_id_place, rest) = tables.scratch().split_at_mut(BUILD_ID_BYTES);
    let (path_place, name_place) = rest.split_at_mut(4096);
    let name = module.copy_name(name_place.get_mut(..NAME_BYTES).unwrap_or_default());
    let build_id = build_id_of(module, name.is_empty(), build_id_place);
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
        return Outcome::NotBegun;
    }
    if tables.append(slots, |sink| sink.module_loaded(&loaded)) { Outcome::Written } else { Outcome::NoRoom }
}

/// The path of a module by the name that the loader has: the program itself has none, and what was opened by a relative
/// path has that.
fn path<'a>(name: &[u8], module: &LoadedModule, into: &'a mut [u8]) -> &'a [u8] {
    if name.is_empty() {
        let length = os::read_link(c"/proc/self/exe", into).len();
        // The loader names the kernel's own module by no path, and on some systems by nothing.
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
    // SAFETY: asks the auxiliary vector.
    module.start.value() == unsafe { libc::getauxval(libc::AT_SYSINFO_EHDR) }
}

/// The build id of a module. One with holes between its segments is several modules to the loader, one for each segment, and
/// only the first has the ELF header: for the others it lies where the file's address 0 is, or, in a program at fixed addresses,
/// before the headers that the kernel tells of.
fn build_id_of<'a>(module: &LoadedModule, is_program: bool, into: &'a mut [u8]) -> &'a [u8] {
    let first = if is_program && module.bias == 0 {
        // SAFETY: asks the auxiliary vector.
        unsafe { libc::getauxval(libc::AT_PHDR) & !0xfff }
    } else {
        module.bias
    };
    let starts = [module.start.value(), first];
    let length =
        starts.into_iter().find_map(|start| find_build_id(start, module.bias, into)).unwrap_or_default();
    into.get(..length).unwrap_or_default()
}

const PT_NOTE: u32 = 4;
const NT_GNU_BUILD_ID: u32 = 3;

/// The GNU build id among the notes of the module whose ELF header lies at `start`.
pub(crate) fn build_id(start: u64, bias: u64, into: &mut [u8]) -> &[u8] {
    let length = find_build_id(start, bias, into).unwrap_or(0);
    into.get(..length).unwrap_or_default()
}

fn find_build_id(start: u64, bias: u64, into: &mut [u8]) -> Option<usize> {
    let magic: [u8; 8] = read(start)?;
    if magic.get(..6)? != [0x7f, b'E', b'L', b'F', 2, 1] {
        return None;
    }
    // e_phoff, e_phentsize, e_phnum of a 64-bit ELF header.
    let headers = start.checked_add(u64::from_le_bytes(read(start + 32)?))?;
    let entry_bytes = u64::from(u16::from_le_bytes(read(start + 54)?));
    let count = u64::from(u16::from_le_bytes(read(start + 56)?)).min(64);
    for index in 0..count {
        let header = headers.checked_add(index * entry_bytes)?;
        if u32::from_le_bytes(read(header)?) != PT_NOTE {
            continue;
        }
        let notes = bias.wrapping_add(u64::from_le_bytes(read(header + 16)?));
        let bytes = u64::from_le_bytes(read(header + 40)?).min(1 << 16);
        if let Some(length) = build_id_among(notes, notes.checked_add(bytes)?, into) {
            return Some(length);
        }
    }
    None
}

/// The build id among the notes between two addresses.
fn build_id_among(notes: u64, end: u64, into: &mut [u8]) -> Option<usize> {
    let mut note = notes;
    while note.checked_add(12)? <= end {
        let word = |at: u64| Some(u64::from(u32::from_le_bytes(read(note + at)?)));
        let (name_bytes, value_bytes, kind) = (word(0)?, word(4)?, word(8)? as u32);
        let name = note + 12;
        let value = name.checked_add(name_bytes.next_multiple_of(4))?;
        if kind == NT_GNU_BUILD_ID && name_bytes == 4 && read(name)? == *b"GNU\0" {
            let place = into.get_mut(..value_bytes as usize)?;
            return (read_own_memory(value, place) == place.len()).then_some(place.len());
        }
        note = value.checked_add(value_bytes.next_multiple_of(4))?;
    }
    None
}

fn read<const N: usize>(address: u64) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    (read_own_memory(address, &mut bytes) == N).then_some(bytes)
}

/// Writes all modules that are loaded and were not known, and those that are not there any more. Call it after `dlopen` and
/// `dlmopen`, outside of hooks: it takes the loader's lock, as these do. It costs next to nothing when nothing has changed.
pub fn scan() {
    scan_after(false);
}

fn scan_after(is_unloaded: bool) {
    let Some(recorder) = recorder::current() else { return };
    let _errno = KeptErrno::new();
    // What the loader counts changes before its modules are gone, and a scan of another thread may have come between the two.
    if is_unloaded && let Some(mut tables) = Tables::take(recorder) {
        recorder.modules.close_unloaded(false, &mut tables);
    }
    for _ in 0..SCANS {
        if scan_once(&recorder.modules, recorder) {
            return;
        }
    }
}

/// So often a scan is repeated because other threads load and unload meanwhile; then it is left to theirs.
const SCANS: u32 = 3;

/// True when what was written is how things are: the counters are then kept, and nothing is done until they change.
fn scan_once(modules: &ModuleTable, recorder: &Recorder) -> bool {
    let mut found = Found { inside: [0; FOUND_AT_ONCE], count: 0, skip: 0, added: 0, removed: 0 };
    found.collect();
    let (added, removed) = (found.added, found.removed);
    let is_added = modules.added.load(Ordering::Acquire) != added;
    let is_removed = modules.removed.load(Ordering::Acquire) != removed;
    if !is_added && !is_removed {
        return true;
    }
    let Some(mut tables) = Tables::take(recorder) else { return false };
    // First those that are gone: another one may lie in their place.
    if is_removed {
        modules.close_unloaded(is_added, &mut tables);
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
        found.collect();
    }
    found.skip = usize::MAX;
    found.collect();
    let is_stable = is_whole && (found.added, found.removed) == (added, removed);
    if is_stable {
        modules.added.store(added, Ordering::Release);
        modules.removed.store(removed, Ordering::Release);
    }
    is_stable
}

/// Writes the module around an address of its unless it is known. False for one that is in the loader's lists and cannot be found
/// yet, or not any more: another thread is loading or unloading it.
fn is_written(modules: &ModuleTable, address: AbsoluteAddress, tables: &mut Tables<'_>) -> bool {
    let Some(start) = LoadedModule::start_at(address) else { return false };
    if !modules.has_start(start) {
        return LoadedModule::at(address).is_some_and(|module| modules.add(&module, tables) != 0);
    }
    true
}

const FOUND_AT_ONCE: usize = 64;

/// An address in each of some modules. They are written outside of the loader's lock, which the callback runs under.
struct Found {
    inside: [u64; FOUND_AT_ONCE],
    count: usize,
    skip: usize,
    added: u64,
    removed: u64,
}

impl Found {
    /// The next ones, and the counters.
    fn collect(&mut self) {
        self.count = 0;
        // SAFETY: the callback takes what it is given here, and it is not kept.
        unsafe { libc::dl_iterate_phdr(Some(on_first_module), core::ptr::from_mut(self).cast()) };
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

/// Called for the first module. `dl_iterate_phdr` shows the caller's namespace alone, but holds the lock that keeps the lists of all
/// of them as they are.
unsafe extern "C" fn on_first_module(info: *mut libc::dl_phdr_info, _: usize, found: *mut c_void) -> c_int {
    // SAFETY: the loader's, valid during the call; and what `scan` passed.
    let (info, found) = unsafe { (&*info, &mut *found.cast::<Found>()) };
    (found.added, found.removed) = (info.dlpi_adds, info.dlpi_subs);
    let skip = found.skip;
    // SAFETY: the lists are the loader's, which stands still.
    unsafe {
        let mut namespace = debugger_interface();
        while let Some(lists) = namespace.as_ref() {
            let mut entry = lists.first;
            while let Some(module) = entry.as_ref() {
                found.add(module.dynamic_section);
                entry = module.next;
            }
            namespace = if lists.version >= 2 { lists.next } else { core::ptr::null() };
        }
    }
    found.skip = skip;
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

/// Where the loader tells debuggers what is loaded: an entry of the program's dynamic section says it.
fn debugger_interface() -> *const Namespace {
    const DT_DEBUG: u64 = 21;
    // SAFETY: asks the auxiliary vector.
    let (headers, count) = unsafe { (libc::getauxval(libc::AT_PHDR), libc::getauxval(libc::AT_PHNUM)) };
    if headers == 0 {
        return core::ptr::null();
    }
    // SAFETY: the program's own headers, which stay mapped.
    let table = unsafe { core::slice::from_raw_parts(headers as *const libc::Elf64_Phdr, count as usize) };
    let stated = |kind| table.iter().find(|header| header.p_type == kind).map(|header| header.p_vaddr);
    let (Some(own), Some(dynamic)) = (stated(libc::PT_PHDR), stated(libc::PT_DYNAMIC)) else {
        return core::ptr::null();
    };
    let mut entry = headers.wrapping_sub(own).wrapping_add(dynamic) as *const [u64; 2];
    loop {
        // SAFETY: the dynamic section ends with an entry of tag 0.
        match unsafe { *entry } {
            [0, _] => return core::ptr::null(),
            [DT_DEBUG, address] => return address as *const Namespace,
            // SAFETY: not the last one.
            _ => entry = unsafe { entry.add(1) },
        }
    }
}

/// Runs `unload`, which may unload modules, as a call of `dlclose` does, and writes which are gone. Wrap every unload in this,
/// in place of [`cairn_capture::while_unloading`], which is part of it.
pub fn while_unloading<R>(unload: impl FnOnce() -> R) -> R {
    // What was never on a stack is seen for the first time, before it goes.
    scan();
    let result = cairn_capture::while_unloading(unload);
    scan_after(true);
    result
}
