//! Finds the module that covers a code address of this process, and its unwind table.
//!
//! `_dl_find_object` of glibc 2.35 and later finds both without a lock, even while another thread
//! loads or unloads modules. On an older C library `module_table.rs` does so.

use core::ffi::c_void;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use cairn_format::{AbsoluteAddress, WordSize};
use cairn_unwind::cfi::{Bases, CachingTable, CfiError, CfiErrorKind, FrameTable, RuleAt, Section};
use cairn_unwind::{AddressRange, Modules};

use crate::stacks::arch::{self, Native, Rule};
use crate::stacks::index::MIX;
pub(crate) use crate::stacks::linux::module_table::after_fork_in_child;
use crate::stacks::linux::{headerless, loader, module_table};
use crate::stacks::module_state::{ModuleState, is_unloading};
use crate::stacks::own_memory;
use crate::stacks::pc_kind::{self, PcKind};

/// glibc's `struct dl_find_object` on x86-64 and AArch64.
#[repr(C)]
pub(crate) struct FoundObject {
    flags: u64,
    map_start: *const c_void,
    map_end: *const c_void,
    link_map: *const c_void,
    eh_frame_header: *const c_void,
    reserved: [u64; 7],
}

const _: () = assert!(size_of::<FoundObject>() == 96);

impl FoundObject {
    pub(crate) fn new(start: u64, end: u64, link_map: u64, eh_frame_header: u64) -> Self {
        Self {
            flags: 0,
            map_start: start as *const c_void,
            map_end: end as *const c_void,
            link_map: link_map as *const c_void,
            eh_frame_header: eh_frame_header as *const c_void,
            reserved: [0; 7],
        }
    }

    #[cfg(test)]
    pub(crate) fn link_map_and_header(&self) -> (u64, u64) {
        (self.link_map as u64, self.eh_frame_header as u64)
    }
}

/// Page size. Segments start at multiples of it, except the parts of a program with holes between
/// its segments.
const PAGE_BYTES: u64 = 4096;

type FindObject = unsafe extern "C" fn(*const c_void, *mut FoundObject) -> i32;

/// Address of the look-up function, once it is known.
static FIND: AtomicUsize = AtomicUsize::new(0);

/// The loader's look-up function, or ours where the C library has none.
#[inline]
fn find_object() -> FindObject {
    let mut address = FIND.load(Ordering::Relaxed);
    if address == 0 {
        address = first_find_object();
    }
    // SAFETY: the address of a function of this type.
    unsafe { core::mem::transmute::<usize, FindObject>(address) }
}

#[cold]
#[inline(never)]
fn first_find_object() -> usize {
    let own = module_table::find as *const () as usize;
    let is_own_wanted = cfg!(feature = "own-module-table");
    let of_library = (!is_own_wanted).then(|| loader::c_library_symbol(c"_dl_find_object")).flatten();
    let address = of_library.map_or(own, |address| address as usize);
    FIND.store(address, Ordering::Relaxed);
    address
}

/// Makes look-ups of modules fast on C libraries older than glibc 2.35.
///
/// It finds the loader's counters, which say whether its list of modules has changed. Without them,
/// each look-up reads the list. On newer C libraries it does nothing.
///
/// It calls the C library, and must not be called in a signal handler. Call it at the start, and
/// after modules were loaded.
pub fn prepare_modules() {
    if find_object() as usize == module_table::find as *const () as usize {
        module_table::find_counters();
    }
}

/// The modules of this process. Each query goes to the loader.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoadedModules;

impl LoadedModules {
    /// The first address of the module that covers `address`, and the first one behind it.
    pub(crate) fn bounds(self, address: AbsoluteAddress) -> Option<(AbsoluteAddress, AbsoluteAddress)> {
        let object = Self::find(address)?;
        let at = |place: *const c_void| AbsoluteAddress::new(place as u64);
        Some((at(object.map_start), at(object.map_end)))
    }

    fn find(address: AbsoluteAddress) -> Option<FoundObject> {
        let find = find_object();
        let mut found = MaybeUninit::uninit();
        // SAFETY: the function accepts any address, and writes only to `found`, which has the size
        // of its structure. It takes no lock and is safe in a signal handler.
        let status = unsafe { find(address.value() as *const c_void, found.as_mut_ptr()) };
        // SAFETY: the function fills the structure when it returns 0.
        (status == 0).then(|| unsafe { found.assume_init() })
    }
}

impl Modules for LoadedModules {
    // Not inlined, so that the loader's answer takes stack space in this function alone.
    #[inline(never)]
    fn frame_table(&self, address: AbsoluteAddress) -> Option<FrameTable<'_>> {
        let object = Self::find(address)?;
        let header = object.eh_frame_header as u64;
        if header == 0 {
            return headerless::table(address);
        }
        // SAFETY: the loader found the header, `readable_segment` the segment around it; the module
        // stays loaded while its code is on a stack that is walked.
        unsafe { frame_table(header, readable_segment(&object, header)?) }
    }

    /// True in modules only. Walks ask [`Process`](crate::stacks::process::Process) instead, which
    /// knows the code that a JIT made as well.
    fn is_executable(&self, address: AbsoluteAddress) -> bool {
        Self::find(address).is_some()
    }
}

/// True when `address` lies in a module.
pub(crate) fn is_in_module(address: u64) -> bool {
    LoadedModules::find(AbsoluteAddress::new(address)).is_some()
}

/// The unwind table whose header lies at `header`.
///
/// # Safety
///
/// - `segment` is readable memory that contains `header`, and remains mapped while the table is
///   used.
#[inline(always)]
unsafe fn frame_table<'a>(header: u64, segment: AddressRange) -> Option<FrameTable<'a>> {
    let length = |start: u64| usize::try_from(segment.end.value() - start).ok();
    // SAFETY: the slice goes from the header to the end of the segment, which the caller promises
    // to be readable and to stay.
    let header_bytes = unsafe { core::slice::from_raw_parts(header as *const u8, length(header)?) };
    let start = segment.start.value();
    // SAFETY: the slice is the whole segment, which the caller promises to be readable and to stay.
    let frame_bytes = unsafe { core::slice::from_raw_parts(start as *const u8, length(start)?) };
    FrameTable::with_header_and_bases(
        Section::new(header_bytes, AbsoluteAddress::new(header)),
        Section::new(frame_bytes, segment.start),
        Bases::default(),
        WordSize::NATIVE,
    )
    .ok()
}

/// A thread's cache of modules: new addresses mostly come from the same few. It must be cleared
/// when modules are unloaded. Zeros are an empty cache.
#[repr(C)]
pub(crate) struct KnownModules {
    modules: [KnownModule; Self::PLACES],
    next: usize,
}

#[repr(C)]
struct KnownModule {
    start: u64,
    end: u64,
    identity: u32,
    /// 1 where `table` is filled.
    has_table: u32,
    /// Bytes of the module, which is loaded while they are used.
    ///
    /// An unload changes the module state, and then the thread clears this cache before it uses it.
    table: MaybeUninit<CachingTable<'static>>,
}

impl KnownModule {
    #[inline(never)]
    fn rule(&mut self, lookup: u64) -> Rule {
        let address = AbsoluteAddress::new(lookup);
        // SAFETY: `fill` has filled the table where it says so.
        let table = (self.has_table != 0).then(|| unsafe { self.table.assume_init_mut() });
        rule_from(table.map(|table| table.rule::<Native>(address)))
    }

    /// Remembers the unwind table. The loader's answer is not on the stack any more: that of a
    /// signal handler is small.
    ///
    /// # Safety
    ///
    /// As [`frame_table`], as long as this module is used.
    #[inline(never)]
    unsafe fn fill(&mut self, header: u64, segment: AddressRange) {
        // SAFETY: the caller promises it.
        if let Some(table) = unsafe { frame_table(header, segment) } {
            self.table.write(CachingTable::new(table));
            self.has_table = 1;
        }
    }
}

impl KnownModules {
    const PLACES: usize = 4;

    pub(crate) fn forget(&mut self) {
        for module in &mut self.modules {
            (module.start, module.end) = (0, 0);
        }
    }

    /// The packed rule at a return address, from its module's tables, and the module's identity.
    #[inline]
    pub(crate) fn rule_and_identity(&mut self, pc: u64, state: &ModuleState) -> (Rule, u32) {
        // The call lies below the address it returns to, and may be the last instruction of its
        // function.
        let lookup = pc.wrapping_sub(1);
        let is_in = |module: &KnownModule| module.start <= lookup && lookup < module.end;
        match self
            .modules
            .iter()
            .position(is_in)
            .or_else(|| self.add(pc, state))
            .and_then(|place| self.modules.get_mut(place))
        {
            Some(module) => (module.rule(lookup), module.identity),
            None => (rule_of(pc), identity_at(pc, PcKind::ReturnAddress, state)),
        }
    }

    /// Adds the module that covers the call before `pc`, and returns its place in the cache.
    #[cold]
    #[inline(never)]
    fn add(&mut self, pc: u64, state: &ModuleState) -> Option<usize> {
        let place = self.next;
        let module = self.modules.get_mut(place)?;
        let (header, segment) = place_of(module, pc)?;
        module.identity = identity_at(pc, PcKind::ReturnAddress, state);
        // SAFETY: the loader found the header, `readable_segment` the segment around it; both stay
        // as long as the module is used, see `KnownModule::table`.
        unsafe { module.fill(header, segment) };
        self.next = (place + 1) % Self::PLACES;
        Some(place)
    }
}

/// Begins to know the module that covers the call before `pc`. Returns the header of its unwind
/// table, and the segment around it.
#[inline(never)]
fn place_of(module: &mut KnownModule, pc: u64) -> Option<(u64, AddressRange)> {
    let object = LoadedModules::find(AbsoluteAddress::new(pc.wrapping_sub(1)))?;
    let header = object.eh_frame_header as u64;
    let segment = readable_segment(&object, header)?;
    (module.start, module.end) = (object.map_start as u64, object.map_end as u64);
    module.has_table = 0;
    Some((header, segment))
}

/// The loader's record of one module.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LinkMap {
    /// Difference of addresses in memory and addresses stated in the file.
    pub(crate) bias: u64,
    /// Address of the file's name, a C string; empty for the program itself.
    pub(crate) name: u64,
}

/// Reads the loader's record of the module that covers `address`.
pub(crate) fn link_map_at(address: u64) -> Option<LinkMap> {
    let link_map = LoadedModules::find(AbsoluteAddress::new(address))?.link_map as u64;
    if link_map == 0 {
        // A static program has no list of modules.
        return Some(LinkMap { bias: loader::program_headers()?.bias, name: c"".as_ptr() as u64 });
    }
    // `struct link_map` of <link.h>: l_addr, l_name, ... The loader may free it when the module is
    // unloaded.
    let mut words = [0; 16];
    if own_memory::read_bytes(link_map, &mut words) != words.len() {
        return None;
    }
    let (&bias, name) = words.split_first_chunk()?;
    Some(LinkMap { bias: u64::from_ne_bytes(bias), name: u64::from_ne_bytes(*name.first_chunk()?) })
}

/// The packed rule at a return address, from its module's tables.
#[inline(never)]
pub(crate) fn rule_of(pc: u64) -> Rule {
    // The call lies below the address it returns to, and may be the last instruction of its
    // function.
    let lookup = AbsoluteAddress::new(pc.wrapping_sub(1));
    let rule = rule_from(LoadedModules.frame_table(lookup).map(|table| table.rule::<Native>(lookup)));
    if rule == Rule::NO_TABLES { arch::rule_without_tables(pc) } else { rule }
}

/// The rule that a table answered with; `None` is an address without a table.
#[inline]
fn rule_from(answer: Option<Result<RuleAt<Rule>, CfiError>>) -> Rule {
    match answer {
        None => Rule::NO_TABLES,
        Some(Ok(found)) => found.rule,
        Some(Err(error)) if error.kind == CfiErrorKind::NotCovered => Rule::NO_TABLES,
        Some(Err(_)) => Rule::NEEDS_FULL_EVALUATION,
    }
}

/// The packed rule at exactly this address; `None` where no table covers it.
#[inline(never)]
pub(crate) fn rule_at(address: AbsoluteAddress) -> Option<Rule> {
    let table = LoadedModules.frame_table(address);
    Some(table.as_ref()?.rule::<Native>(address).ok()?.rule)
}

/// Computes the identity of the module that a numbered address belongs to; 0 where there is none.
///
/// The identity is constant while the module is loaded, and differs for another module at the same
/// place, as far as 32 bits allow. The address must be in use on the caller's stack, so that its
/// module stays loaded.
pub(crate) fn identity_at(pc: u64, kind: PcKind, state: &ModuleState) -> u32 {
    /// A cache: the upper half is a tag of the module and of the module state, the lower half the
    /// identity. It saves a hundred nanoseconds, a third of the cost of a new address.
    static KNOWN: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];

    let Some(object) = pc_kind::code_address(kind, pc).and_then(LoadedModules::find) else { return 0 };
    let module_state = state.value();
    let parts = [object.map_start as u64, object.map_end as u64, object.link_map as u64, module_state];
    let tag = parts.iter().fold(1, |hash: u64, part| (hash ^ part).wrapping_mul(MIX)) & !u64::from(u32::MAX);
    let known = &KNOWN[(tag >> 58) as usize];
    let found = known.load(Ordering::Relaxed);
    if found != 0 && (found ^ tag) >> 32 == 0 && !is_unloading(module_state) {
        return found as u32;
    }
    let identity = identity(&object, |address, into| {
        // SAFETY: `identity` reads bytes within the first page of the module and the page of its
        // unwind table header, which are readable while the module is loaded; the caller's stack
        // uses the module.
        into.copy_from_slice(unsafe { core::slice::from_raw_parts(address as *const u8, into.len()) });
        Some(())
    });
    if !is_unloading(module_state) {
        known.store(tag | u64::from(identity), Ordering::Relaxed);
    }
    identity
}

/// Computes identities as [`identity_at`] does, while another thread may unload the modules. It
/// reads through the kernel, and caches modules for the pass over all addresses of the process.
pub(crate) struct Identities {
    known: [(u64, u32); Self::PLACES],
}

impl Identities {
    const PLACES: usize = 64;

    pub(crate) const fn new() -> Self {
        Self { known: [(0, 0); Self::PLACES] }
    }

    pub(crate) fn identity_at(&mut self, pc: u64, kind: PcKind) -> u32 {
        let Some(object) = pc_kind::code_address(kind, pc).and_then(LoadedModules::find) else { return 0 };
        let start = object.map_start as u64;
        let Some(known) = self.known.get_mut((start >> 12) as usize % Self::PLACES) else { return 0 };
        if known.0 != start {
            *known = (
                start,
                identity(&object, |address, into| {
                    (own_memory::read_bytes(address, into) == into.len()).then_some(())
                }),
            );
        }
        known.1
    }
}

/// Computes the identity as [`identity_at`] does, while another thread may unload the module.
/// Returns `None` in place of 0.
pub(crate) fn identity_of_loaded(address: AbsoluteAddress) -> Option<u32> {
    let read = |address, into: &mut [u8]| (own_memory::read_bytes(address, into) == into.len()).then_some(());
    LoadedModules::find(address).map(|object| identity(&object, read)).filter(|&identity| identity != 0)
}

/// Hashes the addresses of a module and its first bytes. Two modules of equal layout differ there:
/// in the build id, which is among the notes at the start of the file, or in a size that the
/// headers state.
fn identity(object: &FoundObject, read: impl Fn(u64, &mut [u8]) -> Option<()>) -> u32 {
    /// Bytes of one read; 256, for few system calls and little stack space.
    const PIECE_BYTES: usize = 256;

    let header = object.eh_frame_header as u64;
    let map_start = object.map_start as u64;
    // Four independent chains, for speed: this runs for each new address.
    let mut lanes = [map_start, object.map_end as u64, object.link_map as u64, header];
    let mut mix_bytes = |address: u64, limit: u64| {
        // Not beyond the page: the next one need not be readable.
        let end = address + limit.min(PAGE_BYTES - address % PAGE_BYTES);
        for place in (address..end).step_by(PIECE_BYTES) {
            let mut bytes = [0_u8; PIECE_BYTES];
            let count = (end - place).min(PIECE_BYTES as u64) as usize;
            read(place, bytes.get_mut(..count)?)?;
            let (rows, _) = bytes.get(..count.next_multiple_of(32))?.as_chunks::<32>();
            for row in rows {
                let (words, _) = row.as_chunks();
                for (lane, word) in lanes.iter_mut().zip(words) {
                    *lane = (*lane ^ u64::from_le_bytes(*word))
                        .wrapping_mul(0x2545_f491_4f6c_dd1d)
                        .rotate_left(23);
                }
            }
        }
        Some(())
    };
    // Programs linked by Go have no header; the one of a damaged file may lie anywhere.
    let has_header = is_in(object, header)
        || header != 0
            && LoadedModules::find(AbsoluteAddress::new(header))
                .is_some_and(|other| other.link_map == object.link_map && is_in(&other, header));
    if mix_bytes(map_start, 768).is_none() || has_header && mix_bytes(header, 256).is_none() {
        return 0;
    }
    let hash = lanes.iter().fold(0, |hash: u64, lane| (hash ^ lane).wrapping_mul(MIX));
    (hash >> 32) as u32 | 1
}

fn is_in(object: &FoundObject, address: u64) -> bool {
    (object.map_start as u64..object.map_end as u64).contains(&address)
}

/// Finds the loaded segment that contains `address`, by the program headers in the module's first
/// page.
///
/// The loader represents a program with holes between its segments as several objects, one for each
/// segment. Then the object around `address` is the segment.
fn readable_segment(object: &FoundObject, address: u64) -> Option<AddressRange> {
    let contains = |segment: &AddressRange| segment.contains(AbsoluteAddress::new(address));
    let other;
    let object = if is_in(object, address) {
        object
    } else {
        other = LoadedModules::find(AbsoluteAddress::new(address))
            .filter(|other| other.link_map == object.link_map && is_in(other, address))?;
        &other
    };
    match segments(object.map_start as u64, object.map_end as u64)? {
        Segments::One(segment) => Some(segment),
        Segments::Listed(mut segments) => segments.find(contains),
    }
}

/// The readable segments of an object.
enum Segments<I> {
    /// When the object is a segment, or has no program headers.
    One(AddressRange),
    /// When program headers list them.
    Listed(I),
}

/// The readable segments of the object from `start` to `end`. `None` when its program headers are
/// damaged.
fn segments(start: u64, end: u64) -> Option<Segments<impl Iterator<Item = AddressRange>>> {
    if end - start < size_of::<libc::Elf64_Ehdr>() as u64 {
        return None;
    }
    let segment = AddressRange::new(AbsoluteAddress::new(start), AbsoluteAddress::new(end));
    if !start.is_multiple_of(PAGE_BYTES) {
        return Some(Segments::One(segment));
    }
    // SAFETY: `start` begins a page of a loaded object, so the page is readable, and the header
    // fits (compared above). All bit patterns are values. The object stays loaded while its code is
    // on the stack that is walked.
    let elf = unsafe { &*(start as *const libc::Elf64_Ehdr) };
    if elf.e_ident.first_chunk() != Some(b"\x7fELF") {
        return Some(Segments::One(segment));
    }
    let first = start.checked_add(elf.e_phoff)?;
    let size = u64::from(elf.e_phnum) * size_of::<libc::Elf64_Phdr>() as u64;
    if first.checked_add(size)? > end {
        return None;
    }
    // SAFETY: the table ends at or before `end` (compared above). Linkers place it directly behind
    // the header, in the same page.
    let headers =
        unsafe { core::slice::from_raw_parts(first as *const libc::Elf64_Phdr, elf.e_phnum.into()) };
    let mut loads = headers.iter().filter(|header| header.p_type == libc::PT_LOAD);
    // The first segment is mapped from the page of its address on, which gives the base of all
    // addresses in the headers.
    let bias = start.wrapping_sub(loads.clone().next()?.p_vaddr & !(PAGE_BYTES - 1));
    Some(Segments::Listed(core::iter::from_fn(move || {
        let header = loads.find(|header| header.p_flags & libc::PF_R != 0)?;
        let from = bias.wrapping_add(header.p_vaddr);
        let to = from.wrapping_add(header.p_filesz);
        Some(AddressRange::new(AbsoluteAddress::new(from), AbsoluteAddress::new(to)))
    })))
}

/// Returns the readable segments of the module at `code`, if it lacks an unwind table header. The
/// loader knows whether it has one.
pub(crate) fn segments_without_header(code: AbsoluteAddress) -> Option<impl Iterator<Item = AddressRange>> {
    let object = LoadedModules::find(code).filter(|object| object.eh_frame_header.is_null())?;
    if let Segments::Listed(segments) = segments(object.map_start as u64, object.map_end as u64)? {
        return Some(segments);
    }
    // Each segment of a program with holes is an object of its own, and the one with the code has
    // no program headers. The auxiliary vector has their address in the first page, behind the ELF
    // header.
    // SAFETY: the call reads the auxiliary vector and has no other effect.
    let listed_at = unsafe { libc::getauxval(libc::AT_PHDR) };
    let start = listed_at & !(PAGE_BYTES - 1);
    match LoadedModules::find(AbsoluteAddress::new(listed_at)) {
        Some(first) if first.link_map == object.link_map && is_in(&first, start) => {
            match segments(start, first.map_end as u64)? {
                Segments::Listed(segments) => Some(segments),
                Segments::One(_) => None,
            }
        }
        _ => None,
    }
}
