//! Hooks of the functions that map ranges of addresses, on request.
//!
//! A reservation counts as mapped with its whole size until it is released, whatever part of it is
//! committed; so does a view of a section. Calls from ntdll itself do not count: those are
//! memory of heaps, modules, and stacks of threads. Calls for other processes do not count either.
//!
//! A range is recorded after it was mapped and before it is unmapped, as on Linux.

use core::ffi::c_void;
use core::ops::Range;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use cairn_recorder::{MappingKind, heap};

use crate::calls::{self, Library, MemoryInformation};
use crate::hooks::{Registers, entry, real};
use crate::nesting::{is_inside, outermost};
use crate::patch::Hook;

entry!("cairn_allocate_memory_entry", allocate);
entry!("cairn_allocate_memory_ex_entry", allocate_ex);
entry!("cairn_free_memory_entry", free);
entry!("cairn_map_view_entry", map_view);
entry!("cairn_map_view_ex_entry", map_view_ex);
entry!("cairn_unmap_view_entry", unmap_view);
entry!("cairn_unmap_view_ex_entry", unmap_view_ex);

unsafe extern "system" {
    fn cairn_allocate_memory_entry();
    fn cairn_allocate_memory_ex_entry();
    fn cairn_free_memory_entry();
    fn cairn_map_view_entry();
    fn cairn_map_view_ex_entry();
    fn cairn_unmap_view_entry();
    fn cairn_unmap_view_ex_entry();
}

static ALLOCATE: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());
static ALLOCATE_EX: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());
static FREE: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());
static MAP_VIEW: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());
static MAP_VIEW_EX: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());
static UNMAP_VIEW: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());
static UNMAP_VIEW_EX: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());

/// The hooks of mappings.
pub(crate) fn all() -> [Hook; 7] {
    let hook = |name, target: unsafe extern "system" fn(), real| Hook {
        library: Library::Ntdll,
        name,
        target: target as *const u8,
        real,
    };
    [
        hook(c"NtAllocateVirtualMemory", cairn_allocate_memory_entry, &ALLOCATE),
        hook(c"NtAllocateVirtualMemoryEx", cairn_allocate_memory_ex_entry, &ALLOCATE_EX),
        hook(c"NtFreeVirtualMemory", cairn_free_memory_entry, &FREE),
        hook(c"NtMapViewOfSection", cairn_map_view_entry, &MAP_VIEW),
        hook(c"NtMapViewOfSectionEx", cairn_map_view_ex_entry, &MAP_VIEW_EX),
        hook(c"NtUnmapViewOfSection", cairn_unmap_view_entry, &UNMAP_VIEW),
        hook(c"NtUnmapViewOfSectionEx", cairn_unmap_view_ex_entry, &UNMAP_VIEW_EX),
    ]
}

/// Start and end of ntdll and of this library, whose own calls do not count.
static UNCOUNTED: [AtomicU64; 4] = [const { AtomicU64::new(0) }; 4];

/// Finds the modules whose calls do not count, before the hooks are installed.
pub(crate) fn prepare(own: *mut c_void) {
    for (module, place) in [calls::module(Library::Ntdll), own].into_iter().zip(UNCOUNTED.chunks(2)) {
        // SAFETY: both modules are loaded, and stay.
        let Range { start, end } = unsafe { calls::image_range(module) };
        place.iter().zip([start, end]).for_each(|(place, value)| place.store(value, Ordering::Relaxed));
    }
}

/// Returns true for a call of the program on its own addresses.
#[inline(always)]
fn is_counted(process: usize, registers: &Registers) -> bool {
    let is_uncounted = |module: &[AtomicU64]| match module {
        [start, end] => (start.load(Ordering::Relaxed)..end.load(Ordering::Relaxed)).contains(&registers.pc),
        _ => false,
    };
    !is_inside() && !UNCOUNTED.chunks(2).any(is_uncounted) && calls::is_this_process(process)
}

/// Records a range that was mapped; the pointers are those to which the system has just written.
///
/// # Safety
///
/// The real call has succeeded with these pointers; `registers` are those of its caller.
unsafe fn mapped(address: usize, bytes: usize, registers: &Registers) {
    let read = |place: usize| core::ptr::with_exposed_provenance::<u64>(place);
    // SAFETY: the system has written both words, at places of any alignment.
    let (address, bytes) = unsafe { (read(address).read_unaligned(), read(bytes).read_unaligned()) };
    // SAFETY: the registers of a call that has not returned.
    outermost(|| unsafe { heap::mapping(MappingKind::Map, address, bytes, registers.site()) });
}

/// Records a range that is about to be unmapped.
///
/// # Safety
///
/// `registers` are those of a caller that waits.
unsafe fn unmapping(range: Option<Range<u64>>, registers: &Registers) {
    let Some(Range { start, end }) = range.filter(|range| !range.is_empty()) else { return };
    // SAFETY: the registers of a call that has not returned.
    outermost(|| unsafe { heap::mapping(MappingKind::Unmap, start, end - start, registers.site()) });
}

const COMMIT: usize = 0x1000;
const RESERVE: usize = 0x2000;

/// Returns true if an allocation reserves addresses: a commitment does so too if it has no wish.
fn reserves(kind: usize, wish: usize) -> bool {
    kind & RESERVE != 0 || kind & COMMIT != 0 && calls::word_at(wish) == Some(0)
}

/// In place of `NtAllocateVirtualMemory`.
///
/// # Safety
///
/// As of the real function; `registers` are those of the caller, which waits for this.
unsafe extern "system" fn allocate(
    process: usize,
    address: usize,
    zero_bits: usize,
    bytes: usize,
    registers: &Registers,
) -> i32 {
    type Real = unsafe extern "system" fn(usize, usize, usize, usize, usize, usize) -> i32;
    // SAFETY: the real function has six arguments.
    let [kind, protection] = unsafe { registers.more_arguments() };
    let is_new = is_counted(process, registers) && reserves(kind, address);
    // SAFETY: this function runs by the jump, which is written after the trampoline; the arguments
    // are the caller's.
    let status = unsafe { real::<Real>(&ALLOCATE)(process, address, zero_bits, bytes, kind, protection) };
    if is_new && status >= 0 {
        // SAFETY: the call has succeeded.
        unsafe { mapped(address, bytes, registers) };
    }
    status
}

/// In place of `NtAllocateVirtualMemoryEx`.
///
/// # Safety
///
/// As [`allocate`].
unsafe extern "system" fn allocate_ex(
    process: usize,
    address: usize,
    bytes: usize,
    kind: usize,
    registers: &Registers,
) -> i32 {
    type Real = unsafe extern "system" fn(usize, usize, usize, usize, usize, usize, usize) -> i32;
    // SAFETY: the real function has seven arguments.
    let [protection, parameters, count] = unsafe { registers.more_arguments() };
    let is_new = is_counted(process, registers) && reserves(kind, address);
    // SAFETY: as in `allocate`.
    let status =
        unsafe { real::<Real>(&ALLOCATE_EX)(process, address, bytes, kind, protection, parameters, count) };
    if is_new && status >= 0 {
        // SAFETY: the call has succeeded.
        unsafe { mapped(address, bytes, registers) };
    }
    status
}

/// In place of `NtFreeVirtualMemory`.
///
/// # Safety
///
/// As [`allocate`].
unsafe extern "system" fn free(
    process: usize,
    address: usize,
    bytes: usize,
    kind: usize,
    registers: &Registers,
) -> i32 {
    type Real = unsafe extern "system" fn(usize, usize, usize, usize) -> i32;
    if is_counted(process, registers) {
        // SAFETY: the registers of a call that has not returned.
        unsafe { unmapping(released(address, bytes, kind), registers) };
    }
    // SAFETY: as in `allocate`.
    unsafe { real::<Real>(&FREE)(process, address, bytes, kind) }
}

/// Returns the range that a call of `NtFreeVirtualMemory` releases.
fn released(address: usize, bytes: usize, kind: usize) -> Option<Range<u64>> {
    /// Releases the addresses. Together with another flag, it leaves a placeholder there.
    const RELEASE: u32 = 0x8000;
    const PRIVATE: u32 = 0x2_0000;
    const PAGE_BYTES: u64 = 4096;
    let (address, bytes) = (calls::word_at(address)?, calls::word_at(bytes)?);
    if kind as u32 != RELEASE {
        return None;
    }
    let start = address & !(PAGE_BYTES - 1);
    let information = calls::memory_at(start).filter(|information| information.kind == PRIVATE)?;
    if bytes == 0 {
        // The system demands the first address then.
        return (information.allocation == start).then(|| whole_allocation(&information));
    }
    let end = address.checked_add(bytes)?.checked_next_multiple_of(PAGE_BYTES)?;
    Some(start..end)
}

/// Returns the range of the allocation or view that an address is in.
fn whole_allocation(information: &MemoryInformation) -> Range<u64> {
    let start = information.allocation;
    let mut end = start;
    while let Some(part) = calls::memory_at(end).filter(|part| part.allocation == start && part.bytes > 0) {
        end = part.base + part.bytes;
    }
    start..end
}

/// In place of `NtMapViewOfSection`.
///
/// # Safety
///
/// As [`allocate`].
unsafe extern "system" fn map_view(
    section: usize,
    process: usize,
    address: usize,
    zero_bits: usize,
    registers: &Registers,
) -> i32 {
    type Real = unsafe extern "system" fn(
        usize,
        usize,
        usize,
        usize,
        usize,
        usize,
        usize,
        usize,
        usize,
        usize,
    ) -> i32;
    // SAFETY: the real function has ten arguments.
    let [commit, offset, bytes, inherits, kind, protection] = unsafe { registers.more_arguments() };
    // SAFETY: as in `allocate`.
    let status = unsafe {
        real::<Real>(&MAP_VIEW)(
            section, process, address, zero_bits, commit, offset, bytes, inherits, kind, protection,
        )
    };
    if status >= 0 && is_counted(process, registers) {
        // SAFETY: the call has succeeded.
        unsafe { mapped(address, bytes, registers) };
    }
    status
}

/// In place of `NtMapViewOfSectionEx`.
///
/// # Safety
///
/// As [`allocate`].
unsafe extern "system" fn map_view_ex(
    section: usize,
    process: usize,
    address: usize,
    offset: usize,
    registers: &Registers,
) -> i32 {
    type Real =
        unsafe extern "system" fn(usize, usize, usize, usize, usize, usize, usize, usize, usize) -> i32;
    // SAFETY: the real function has nine arguments.
    let [bytes, kind, protection, parameters, count] = unsafe { registers.more_arguments() };
    // SAFETY: as in `allocate`.
    let status = unsafe {
        real::<Real>(&MAP_VIEW_EX)(
            section, process, address, offset, bytes, kind, protection, parameters, count,
        )
    };
    if status >= 0 && is_counted(process, registers) {
        // SAFETY: the call has succeeded.
        unsafe { mapped(address, bytes, registers) };
    }
    status
}

/// Returns the range of the view that an address is in.
fn view(address: usize) -> Option<Range<u64>> {
    const IMAGE: u32 = 0x100_0000;
    const MAPPED: u32 = 0x4_0000;
    let information = calls::memory_at(address as u64)?;
    matches!(information.kind, IMAGE | MAPPED).then(|| whole_allocation(&information))
}

/// In place of `NtUnmapViewOfSection`.
///
/// # Safety
///
/// As [`allocate`].
unsafe extern "system" fn unmap_view(
    process: usize,
    address: usize,
    third: usize,
    fourth: usize,
    registers: &Registers,
) -> i32 {
    type Real = unsafe extern "system" fn(usize, usize, usize, usize) -> i32;
    if is_counted(process, registers) {
        // SAFETY: the registers of a call that has not returned.
        unsafe { unmapping(view(address), registers) };
    }
    // SAFETY: as in `allocate`; the real function does not read the last two.
    unsafe { real::<Real>(&UNMAP_VIEW)(process, address, third, fourth) }
}

/// In place of `NtUnmapViewOfSectionEx`.
///
/// # Safety
///
/// As [`allocate`].
unsafe extern "system" fn unmap_view_ex(
    process: usize,
    address: usize,
    flags: usize,
    fourth: usize,
    registers: &Registers,
) -> i32 {
    /// The addresses stay reserved, as a placeholder.
    const PRESERVE: usize = 2;
    type Real = unsafe extern "system" fn(usize, usize, usize, usize) -> i32;
    if flags & PRESERVE == 0 && is_counted(process, registers) {
        // SAFETY: the registers of a call that has not returned.
        unsafe { unmapping(view(address), registers) };
    }
    // SAFETY: as in `allocate`; the real function does not read the last one.
    unsafe { real::<Real>(&UNMAP_VIEW_EX)(process, address, flags, fourth) }
}
