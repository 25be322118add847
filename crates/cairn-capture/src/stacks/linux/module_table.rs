//! A table of the loaded modules, for C libraries without `_dl_find_object`.
//!
//! It takes no lock and may be used in a signal handler, while other threads load and unload. The
//! modules are those of the loader's list. They are read through the kernel: memory of a module
//! that goes meanwhile is an error in place of a fault.
//!
//! **Generation.** A read is valid if the list has not changed in the meantime, and a table may be
//! used again as long as it does not. The loader counts all modules that it has ever added, and
//! those that it has now; the two together never return to an earlier value. glibc writes both when
//! it changes the list: an addition is counted before the new module's first instruction runs, a
//! removal before its memory can belong to another module of the loader. The counters are inside of
//! `_rtld_global`, at places that [`find_counters`] determines. Until it has been called, and where
//! it found none, each look-up reads the list anew, which takes tens of microseconds. A module that
//! it finds is right. That it finds none is believed if two reads saw the same list; if the list
//! changes all the time, an address may count as one without a module.
//!
//! Modules of further namespaces (`dlmopen`) are not listed by these C libraries.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use crate::stacks::index::MIX;
use crate::stacks::linux::loader::{self, ListedModule, LoaderNamespace};
use crate::stacks::linux::modules::FoundObject;
use crate::stacks::own_memory::{self, PAGE_BYTES};

/// Modules of a table; 1024, which take 32 KiB. Look-ups in programs with more read the list.
const MOST_MODULES: usize = 1024;

/// Attempts to read a list that changes all the time.
const MOST_ATTEMPTS: usize = 64;

/// Part of the address space that belongs to a module, and its unwind table.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
struct Place {
    start: u64,
    end: u64,
    link_map: u64,
    eh_frame_header: u64,
}

impl Place {
    fn covers(&self, address: u64) -> bool {
        (self.start..self.end).contains(&address)
    }
}

/// A [`Place`] that is written while others read it.
struct SharedPlace([AtomicU64; 4]);

impl SharedPlace {
    fn load(&self) -> Place {
        let [start, end, link_map, eh_frame_header] =
            [0, 1, 2, 3].map(|part: usize| self.0.get(part).map_or(0, |part| part.load(Ordering::Relaxed)));
        Place { start, end, link_map, eh_frame_header }
    }

    fn store(&self, place: Place) {
        let parts = [place.start, place.end, place.link_map, place.eh_frame_header];
        for (part, value) in self.0.iter().zip(parts) {
            part.store(value, Ordering::Relaxed);
        }
    }
}

/// The table that all threads share.
struct Table {
    /// Odd while a thread writes.
    sequence: AtomicU32,
    count: AtomicU32,
    /// The generation that it was read in.
    added: AtomicU64,
    present: AtomicU32,
    places: [SharedPlace; MOST_MODULES],
}

static TABLE: Table = Table {
    sequence: AtomicU32::new(0),
    count: AtomicU32::new(0),
    added: AtomicU64::new(0),
    present: AtomicU32::new(0),
    places: [const { SharedPlace([const { AtomicU64::new(0) }; 4]) }; MOST_MODULES],
};

/// Modules that the loader has ever added, and those that it has now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Generation {
    added: u64,
    present: u32,
}

/// Address of the loader's count of additions; 0 while it is unknown.
static ADDED_AT: AtomicU64 = AtomicU64::new(0);
/// Address of the loader's count of modules.
static PRESENT_AT: AtomicU64 = AtomicU64::new(0);

/// The present generation, if the counters were found.
fn generation() -> Option<Generation> {
    let added_at = ADDED_AT.load(Ordering::Acquire);
    if added_at == 0 {
        return None;
    }
    let present_at = PRESENT_AT.load(Ordering::Relaxed);
    // SAFETY: aligned words of the loader, which is never unloaded; it writes them under its lock.
    let (added, present) =
        unsafe { (AtomicU64::from_ptr(added_at as *mut u64), AtomicU32::from_ptr(present_at as *mut u32)) };
    Some(Generation { added: added.load(Ordering::Acquire), present: present.load(Ordering::Acquire) })
}

/// Finds the counters of the loader. Not to be called in signal handlers.
///
/// `dl_iterate_phdr` shows the count of additions. A word of `_rtld_global` with that value is its
/// place, if it lies behind the namespaces and the loader's locks as in all versions from 2.17 on,
/// and if it is the only one. Otherwise the next call, when more has been loaded, tries again.
pub(crate) fn find_counters() {
    if ADDED_AT.load(Ordering::Relaxed) != 0 || loader::loader_namespaces().is_none() {
        return;
    }
    if let Some((added_at, present_at)) = search_counters() {
        PRESENT_AT.store(present_at, Ordering::Relaxed);
        ADDED_AT.store(added_at, Ordering::Release);
    }
}

/// Searches both counters, and returns their addresses.
fn search_counters() -> Option<(u64, u64)> {
    /// Bytes that one namespace may take: 112 to 160 in known versions.
    const NAMESPACE_BYTES: core::ops::RangeInclusive<u64> = 64..=512;
    const NAMESPACES: u64 = 16;
    const LOCK_BYTES: u64 = size_of::<libc::pthread_mutex_t>() as u64;

    let (start, bytes) = loader::loader_symbol(c"_rtld_global")?;
    let word = |place: u64| {
        // SAFETY: an aligned word of the loader's structure, see `generation`.
        unsafe { AtomicU64::from_ptr(place as *mut u64) }.load(Ordering::Relaxed)
    };
    // It begins with the first namespace: its list, and the count of modules there.
    let namespace = loader::loader_namespaces()?;
    if !start.is_multiple_of(8) || bytes < 16 || word(start) != namespace.first as u64 {
        return None;
    }
    // The count of namespaces follows the namespaces, then come two locks, or three.
    let follows_namespaces = |place: u64| {
        [2, 3].iter().any(|locks| {
            let count_at = place.wrapping_sub(locks * LOCK_BYTES + 8);
            let distance = count_at.wrapping_sub(start);
            distance < bytes
                && distance.is_multiple_of(8 * NAMESPACES)
                && NAMESPACE_BYTES.contains(&(distance / NAMESPACES))
                && (1..=NAMESPACES).contains(&word(count_at))
        })
    };
    let added = additions();
    let mut places = (start..start + bytes / 8 * 8)
        .step_by(8)
        .filter(|place| word(*place) == added && follows_namespaces(*place));
    let place = places.next()?;
    // While another thread loads a module, the right word may have been passed over.
    (places.next().is_none() && additions() == added).then_some((place, start + 8))
}

/// Returns how many modules the loader has ever added.
fn additions() -> u64 {
    /// # Safety
    ///
    /// `info` is the loader's, and `added` points to a number that nobody else uses.
    unsafe extern "C" fn first(info: *mut libc::dl_phdr_info, _: usize, added: *mut c_void) -> c_int {
        // SAFETY: the caller promises both.
        unsafe { *added.cast::<u64>() = (*info).dlpi_adds };
        1
    }
    let mut added = 0_u64;
    // SAFETY: the callback writes to `added`, which lives longer than the call.
    unsafe { libc::dl_iterate_phdr(Some(first), (&raw mut added).cast()) };
    added
}

/// Finds the module that covers an address, as `_dl_find_object` does. Returns 0 if there is one.
///
/// # Safety
///
/// `found` points to memory for the answer.
pub(crate) unsafe extern "C" fn find(address: *const c_void, found: *mut FoundObject) -> c_int {
    match place_of(address as u64) {
        Some(place) => {
            let object = FoundObject::new(place.start, place.end, place.link_map, place.eh_frame_header);
            // SAFETY: the caller promises it.
            unsafe { found.write(object) };
            0
        }
        None => -1,
    }
}

fn place_of(address: u64) -> Option<Place> {
    let Some(namespace) = loader::loader_namespaces() else { return place_in_program(address) };
    let mut walk_before = None;
    for _ in 0..MOST_ATTEMPTS {
        let before = generation();
        if let Some(before) = before
            && !is_removing(namespace)
        {
            if let Some(answer) = look_up(before, address)
                && generation() == Some(before)
            {
                return answer;
            }
            renew(namespace, before);
            if let Some(answer) = look_up(before, address)
                && generation() == Some(before)
            {
                return answer;
            }
        }
        // Another thread renews the table, or it has no room, or nothing says whether it is new.
        let mut walk = (0_u64, None);
        let is_whole = each_place(namespace, |place| {
            walk.0 = (walk.0 ^ place.start ^ place.link_map).wrapping_mul(MIX).rotate_left(23);
            walk.1 = place.covers(address).then_some(place).or(walk.1);
        });
        // A module that is there is right, even if the list around it changes. That none covers the
        // address is sure only if the list did not change.
        let is_unchanged = match before {
            Some(_) => generation() == before,
            None => walk_before == Some(walk.0),
        };
        if walk.1.is_some() || is_whole && is_unchanged {
            return walk.1;
        }
        walk_before = is_whole.then_some(walk.0);
    }
    None
}

/// True while the loader unmaps modules.
///
/// It does so before it changes its list and its counters, and something else may take the
/// addresses meanwhile. So the list is read anew then, with its modules' headers.
fn is_removing(namespace: &LoaderNamespace) -> bool {
    /// `RT_DELETE` of <link.h>.
    const REMOVING: c_int = 2;
    // SAFETY: a word that the loader writes whole.
    unsafe { (&raw const namespace.state).read_volatile() == REMOVING }
}

/// Searches the address in the table, if it is of this generation.
fn look_up(generation: Generation, address: u64) -> Option<Option<Place>> {
    let sequence = TABLE.sequence.load(Ordering::Acquire);
    let is_of_generation = TABLE.added.load(Ordering::Relaxed) == generation.added
        && TABLE.present.load(Ordering::Relaxed) == generation.present;
    if sequence & 1 != 0 || !is_of_generation {
        return None;
    }
    let places = TABLE.places.get(..TABLE.count.load(Ordering::Relaxed) as usize)?;
    let start = |place: &SharedPlace| place.load().start;
    let behind = places.partition_point(|place| start(place) <= address);
    let found = behind.checked_sub(1).and_then(|last| places.get(last)).map(SharedPlace::load);
    fence(Ordering::Acquire);
    let is_unchanged = TABLE.sequence.load(Ordering::Relaxed) == sequence;
    is_unchanged.then(|| found.filter(|place| place.covers(address)))
}

/// Reads the list into the table, unless another thread does so. Nobody waits for anybody.
fn renew(namespace: &LoaderNamespace, before: Generation) {
    let sequence = TABLE.sequence.load(Ordering::Relaxed);
    let odd = sequence | 1;
    let taken = TABLE.sequence.compare_exchange(sequence & !1, odd, Ordering::Acquire, Ordering::Relaxed);
    if taken.is_err() {
        return;
    }
    fence(Ordering::Release);
    let mut count = 0;
    let is_whole = each_place(namespace, |place| {
        // Sorted by insertion: the list mostly is.
        let mut at: usize = count;
        count += 1;
        while let Some(below) = at.checked_sub(1).and_then(|below| TABLE.places.get(below)) {
            let other = below.load();
            if other.start <= place.start {
                break;
            }
            if let Some(here) = TABLE.places.get(at) {
                here.store(other);
            }
            at -= 1;
        }
        if let Some(here) = TABLE.places.get(at) {
            here.store(place);
        }
    });
    // A generation that never was, with which nothing is found.
    let is_valid = is_whole && count <= MOST_MODULES && generation() == Some(before);
    TABLE.added.store(if is_valid { before.added } else { 0 }, Ordering::Relaxed);
    TABLE.present.store(before.present, Ordering::Relaxed);
    TABLE.count.store(if is_valid { count as u32 } else { 0 }, Ordering::Relaxed);
    TABLE.sequence.store(odd.wrapping_add(1), Ordering::Release);
}

/// In a forked child: the thread that wrote the table may not exist.
pub(crate) fn after_fork_in_child() {
    let sequence = TABLE.sequence.load(Ordering::Relaxed);
    if sequence & 1 != 0 {
        TABLE.added.store(0, Ordering::Relaxed);
        TABLE.sequence.store(sequence.wrapping_add(1), Ordering::Release);
    }
}

/// Calls `meet` with the places of all modules in the list. Returns false if the list could not be
/// read to its end, which is so where it has changed meanwhile.
fn each_place(namespace: &LoaderNamespace, mut meet: impl FnMut(Place)) -> bool {
    /// More than any program has. A list that changes while it is read may be a ring.
    const MOST_LISTED: usize = 1 << 16;
    let program = loader::program_headers();
    let program_dynamic = program.as_ref().and_then(|program| {
        let dynamic = program.headers.iter().find(|header| header.p_type == libc::PT_DYNAMIC)?;
        Some(program.bias.wrapping_add(dynamic.p_vaddr))
    });
    // SAFETY: a word that the loader writes whole.
    let mut next = unsafe { (&raw const namespace.first).read_volatile() } as u64;
    for _ in 0..MOST_LISTED {
        if next == 0 {
            return true;
        }
        let Some(module) = loader::read::<ListedModule>(next) else { return false };
        match &program {
            Some(program) if Some(module.dynamic_section) == program_dynamic => {
                each_place_of(program.headers, module.bias, next, true, &mut meet);
            }
            _ => {
                // A file whose first segment is not its beginning has no header in memory. The
                // module that goes at this moment is unreadable, and then the counters change.
                let mut headers = HeaderBuffer::new();
                if let Some(headers) = headers.read(&module) {
                    each_place_of(headers, module.bias, next, false, &mut meet);
                }
            }
        }
        next = module.next as u64;
    }
    false
}

/// Answers for a static program, which is the only module.
fn place_in_program(address: u64) -> Option<Place> {
    let program = loader::program_headers()?;
    let mut found = None;
    each_place_of(program.headers, program.bias, 0, true, &mut |place| {
        found = place.covers(address).then_some(place).or(found);
    });
    found
}

/// Calls `meet` with the place of one module. The kernel loads the program, and may put something
/// else between its segments, so that each is a place then.
fn each_place_of(
    headers: &[libc::Elf64_Phdr],
    bias: u64,
    link_map: u64,
    is_program: bool,
    meet: &mut impl FnMut(Place),
) {
    let eh_frame = headers.iter().find(|header| header.p_type == libc::PT_GNU_EH_FRAME);
    let eh_frame_header = eh_frame.map_or(0, |header| bias.wrapping_add(header.p_vaddr));
    let mut whole = Place { start: u64::MAX, end: 0, link_map, eh_frame_header };
    for header in headers.iter().filter(|header| header.p_type == libc::PT_LOAD) {
        let start = bias.wrapping_add(header.p_vaddr) & !(PAGE_BYTES - 1);
        let end = bias.wrapping_add(header.p_vaddr).wrapping_add(header.p_memsz).next_multiple_of(PAGE_BYTES);
        if is_program && whole.end != 0 && start > whole.end {
            meet(whole);
            whole.start = u64::MAX;
        }
        whole = Place { start: whole.start.min(start), end: whole.end.max(end), ..whole };
    }
    if whole.start < whole.end {
        meet(whole);
    }
}

/// Program headers of a module, copied from its first page.
struct HeaderBuffer([libc::Elf64_Phdr; Self::MOST]);

impl HeaderBuffer {
    /// Twice as many as linkers make.
    const MOST: usize = 24;

    const fn new() -> Self {
        // SAFETY: numbers, for which all bits may be zero.
        Self(unsafe { core::mem::zeroed() })
    }

    /// Reads the headers of the module, if its first page is where its bias says.
    fn read(&mut self, module: &ListedModule) -> Option<&[libc::Elf64_Phdr]> {
        let elf = loader::read::<libc::Elf64_Ehdr>(module.bias)?;
        let headers = self.0.get_mut(..usize::from(elf.e_phnum))?;
        if elf.e_ident.first_chunk() != Some(b"\x7fELF") {
            return None;
        }
        // SAFETY: any bytes are values of these structures.
        let bytes = unsafe {
            core::slice::from_raw_parts_mut(headers.as_mut_ptr().cast::<u8>(), size_of_val(headers))
        };
        if own_memory::read_bytes(module.bias.checked_add(elf.e_phoff)?, bytes) != bytes.len() {
            return None;
        }
        let dynamic = headers.iter().find(|header| header.p_type == libc::PT_DYNAMIC)?;
        // Another file may be there by now.
        (module.bias.wrapping_add(dynamic.p_vaddr) == module.dynamic_section).then_some(headers)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use core::mem::MaybeUninit;
    use std::ffi::CString;
    use std::path::{Path, PathBuf};
    use std::process::Command;
    use std::thread;
    use std::time::{Duration, Instant};
    use std::vec::Vec;
    use std::{format, fs};

    use super::*;

    /// Libraries whose constructors call the function that the environment names.
    ///
    /// They pass an address of their own code. Each has another size, so that they take the
    /// places of each other.
    const SOURCE: &str = "
    #include <stdlib.h>
    char room[ROOM] = {1};
    int inside(void) { return 7; }
    __attribute__((constructor)) static void begin(void) {
        void (*meet)(void *) = (void (*)(void *))strtoull(getenv(\"CAIRN_TEST_MEET\"), 0, 16);
        meet((void *)inside);
    }
    ";

    fn compile(directory: &Path, count: usize) -> Vec<PathBuf> {
        let source = directory.join("library.c");
        fs::write(&source, SOURCE).unwrap();
        (0..count)
            .map(|number| {
                let library = directory.join(format!("lib{number}.so"));
                let room = format!("-DROOM={}", 1 + number * 5000);
                let mut command = Command::new("cc");
                command.args(["-shared", "-fPIC", "-O1", &room, "-o"]).arg(&library).arg(&source);
                assert!(command.status().unwrap().success());
                library
            })
            .collect()
    }

    static MET: AtomicU64 = AtomicU64::new(0);

    static MISSED: AtomicU64 = AtomicU64::new(0);

    /// Called by constructors, before `dlopen` returns.
    extern "C" fn meet(code: *mut c_void) {
        match place_of(code as u64) {
            Some(place) => assert!(place.eh_frame_header != 0, "{code:?}: {place:x?}"),
            None => _ = MISSED.fetch_add(1, Ordering::Relaxed),
        }
        MET.fetch_add(1, Ordering::Relaxed);
    }

    /// Loads libraries at random for a while; returns how many.
    ///
    /// It compares the answers with the handles, which are the loader's entries.
    fn load_and_compare(libraries: &[PathBuf], mut seed: u64, until: Instant) -> u64 {
        let mut count = 0;
        while Instant::now() < until {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let path = &libraries[(seed >> 33) as usize % libraries.len()];
            let path = CString::new(path.to_str().unwrap()).unwrap();
            // SAFETY: the libraries are those of this test.
            let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
            assert!(!handle.is_null());
            // SAFETY: an open library.
            let inside = unsafe { libc::dlsym(handle, c"inside".as_ptr()) } as u64;
            for address in [inside, inside + 3] {
                let Some(place) = place_of(address) else {
                    MISSED.fetch_add(1, Ordering::Relaxed);
                    continue;
                };
                assert_eq!(place.link_map, handle as u64);
                assert!(place.covers(address) && place.covers(place.eh_frame_header), "{place:x?}");
            }
            // SAFETY: the library is not used any more.
            unsafe { libc::dlclose(handle) };
            count += 1;
        }
        count
    }

    /// Returns how many of the looked up addresses were found nowhere, and how many there were.
    fn load_in_threads(name: &str) -> (u64, u64) {
        MISSED.store(0, Ordering::Relaxed);
        MET.store(0, Ordering::Relaxed);
        let directory = std::env::temp_dir().join(format!("cairn-{name}-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let libraries = compile(&directory, 6);
        // SAFETY: no other test of this crate reads the environment while it is changed.
        unsafe { std::env::set_var("CAIRN_TEST_MEET", format!("{:x}", meet as *const () as usize)) };
        let until = Instant::now() + Duration::from_millis(1500);
        let libraries = &libraries;
        let loads: u64 = thread::scope(|scope| {
            let loaders: Vec<_> =
                (1..4).map(|seed| scope.spawn(move || load_and_compare(libraries, seed, until))).collect();
            // Addresses of modules that stay are found, whatever the others do.
            let own = place_of as *const () as u64;
            scope.spawn(move || {
                while Instant::now() < until {
                    assert!(place_of(own).is_some_and(|place| place.covers(own)));
                    assert_eq!(place_of(8), None);
                }
            });
            loaders.into_iter().map(|loader| loader.join().unwrap()).sum()
        });
        fs::remove_dir_all(&directory).unwrap();
        let met = MET.load(Ordering::Relaxed);
        assert!(loads > 100 && met > 50, "{loads}, {met}");
        (MISSED.load(Ordering::Relaxed), 2 * loads + met)
    }

    #[cfg_attr(not(target_arch = "x86_64"), ignore = "the emulator's libraries take another compiler")]
    #[test]
    fn module_table_is_right_while_threads_load_and_unload() {
        // Each look-up reads the list, unless another test has found the counters already. No
        // answer is wrong; some addresses are not found while three threads change the list.
        let (missed, all) = load_in_threads("uncounted");
        assert!(missed * 10 < all, "{missed} of {all}");
        find_counters();
        assert!(generation().is_some(), "this C library has its counters elsewhere");
        let (missed, all) = load_in_threads("counted");
        assert_eq!(missed, 0, "of {all}");
    }

    #[test]
    fn module_table_has_all_that_the_loader_finds() {
        let find_of_loader = loader::c_library_symbol(c"_dl_find_object").expect("glibc 2.35 or later");
        // SAFETY: the function of that name has this type.
        let find_of_loader: unsafe extern "C" fn(*const c_void, *mut FoundObject) -> c_int =
            unsafe { core::mem::transmute(find_of_loader as usize) };
        let mut checked = 0;
        // Other tests load and unload meanwhile.
        for _ in 0..100 {
            let mut places = Vec::new();
            each_place(loader::loader_namespaces().unwrap(), |place| places.push(place));
            for place in &places {
                for address in [place.start, place.start + 17, place.end - 1, place.end] {
                    let mut found = MaybeUninit::<FoundObject>::zeroed();
                    // SAFETY: the answer has room.
                    let status = unsafe { find_of_loader(address as *const c_void, found.as_mut_ptr()) };
                    // SAFETY: numbers and addresses, which may be zero.
                    let found = unsafe { found.assume_init() };
                    let own = place_of(address);
                    let (link_map, header) = found.link_map_and_header();
                    let own = own.map_or((-1, 0, 0), |own| (0, own.link_map, own.eh_frame_header));
                    let of_loader = if status == 0 { (0, link_map, header) } else { (-1, 0, 0) };
                    checked += usize::from(own == of_loader);
                    // The rest of a module's last page, and segments without code behind a hole,
                    // are its own, and not in the loader's object.
                    let is_rest = status != 0 && own.1 == place.link_map;
                    if own == of_loader || is_rest {
                        continue;
                    }
                    assert!(place.link_map != own.1, "{address:x}: {own:x?} {of_loader:x?}");
                }
            }
            if checked > 100 {
                return;
            }
        }
        panic!("{checked} addresses");
    }
}
