//! Hooks of `mmap` and related functions: the program's own mappings, recorded on request only.
//!
//! Mappings of the C library (for large blocks, stacks of threads, modules) do not call these
//! functions. This library's own calls are recognised by their return address, and go to the
//! kernel.

use core::ffi::{c_int, c_void};
use core::mem;

use cairn_capture::CallSite;

use crate::arch::{SiteInMemory, entry, long_entry};
use crate::next::{NEXT, Next, is_own_code};
use crate::recorder::{self, MappingKind};
use crate::{start, system};

type Address = *mut c_void;

const FAILED: Address = usize::MAX as Address;

fn address_of(next: &'static Next) -> Address {
    if next.address().is_null() {
        start::begin();
    }
    next.address()
}

fn note(kind: MappingKind, address: Address, size: usize, site: CallSite) {
    if start::with_mappings() && size > 0 {
        let errno = system::errno();
        recorder::mapping(kind, address as u64, size as u64, site);
        system::set_errno(errno);
    }
}

fn whole_pages(size: usize) -> usize {
    let page_bytes = system::page_bytes();
    size.saturating_add(page_bytes - 1) & !(page_bytes - 1)
}

fn site_of(site: SiteInMemory) -> CallSite {
    CallSite { pc: site.pc, sp: site.sp, fp: site.fp }
}

long_entry! { mmap => on_mmap }
long_entry! { mmap64 => on_mmap }
/// # Safety
///
/// The arguments are valid for the C library's `mmap`. The last ones are registers of the caller,
/// which waits for this function.
unsafe extern "C" fn on_mmap(
    wish: Address,
    size: usize,
    protection: c_int,
    flags: c_int,
    file: c_int,
    offset: libc::off_t,
    site: SiteInMemory,
) -> Address {
    type Real = unsafe extern "C" fn(Address, usize, c_int, c_int, c_int, libc::off_t) -> Address;
    let arguments =
        [wish as usize, size, protection as usize, flags as usize, file as usize, offset as usize];
    // This library itself may call before everything is initialised.
    if is_own_code(site.pc) {
        return system::raw_mmap(arguments) as Address;
    }
    let address = address_of(&NEXT.mmap);
    if address.is_null() {
        return system::raw_mmap(arguments) as Address;
    }
    // SAFETY: the next definition of the name, which has this type.
    let real = unsafe { mem::transmute::<Address, Real>(address) };
    // SAFETY: the caller promises arguments that are valid for the C library's function.
    let got = unsafe { real(wish, size, protection, flags, file, offset) };
    if got != FAILED {
        note(MappingKind::Map, got, whole_pages(size), site_of(site));
    }
    got
}

entry! { 2 munmap => on_munmap }
/// # Safety
///
/// The arguments are valid for the C library's `munmap`. The registers `pc`, `sp` and `fp` belong
/// to the caller, which waits for this function.
unsafe extern "C" fn on_munmap(place: Address, size: usize, pc: u64, sp: u64, fp: u64) -> c_int {
    if is_own_code(pc) {
        return system::raw_munmap(place as usize, size) as c_int;
    }
    let address = address_of(&NEXT.munmap);
    if address.is_null() {
        return system::raw_munmap(place as usize, size) as c_int;
    }
    // SAFETY: the next definition of the name, which has this type.
    let real: unsafe extern "C" fn(Address, usize) -> c_int = unsafe { mem::transmute(address) };
    // Before the call: another thread may get the addresses at once. A failing call is recorded
    // too, and unmaps no recorded range.
    if (place as usize).is_multiple_of(system::page_bytes()) {
        note(MappingKind::Unmap, place, whole_pages(size), CallSite { pc, sp, fp });
    }
    // SAFETY: the caller promises arguments that are valid for the C library's function.
    unsafe { real(place, size) }
}

long_entry! { mremap => on_mremap }
/// # Safety
///
/// The arguments are valid for the C library's `mremap`. The last ones are registers of the caller,
/// which waits for this function.
unsafe extern "C" fn on_mremap(
    old: Address,
    old_size: usize,
    size: usize,
    flags: c_int,
    wish: Address,
    _unused: usize,
    site: SiteInMemory,
) -> Address {
    type Real = unsafe extern "C" fn(Address, usize, usize, c_int, Address) -> Address;
    let address = address_of(&NEXT.mremap);
    if address.is_null() {
        system::set_errno(libc::ENOSYS);
        return FAILED;
    }
    // SAFETY: the next definition of the name, which has this type.
    let real = unsafe { mem::transmute::<Address, Real>(address) };
    // SAFETY: the caller promises arguments that are valid for the C library's function, which
    // reads the last one only with the flag for it.
    let got = unsafe { real(old, old_size, size, flags, wish) };
    if got != FAILED {
        note(MappingKind::Unmap, old, whole_pages(old_size), site_of(site));
        note(MappingKind::Map, got, whole_pages(size), site_of(site));
    }
    got
}

entry! { 1 sbrk => on_sbrk }
/// # Safety
///
/// The arguments are valid for the C library's `sbrk`. The registers `pc`, `sp` and `fp` belong to
/// the caller, which waits for this function.
unsafe extern "C" fn on_sbrk(difference: isize, pc: u64, sp: u64, fp: u64) -> Address {
    let address = address_of(&NEXT.sbrk);
    if address.is_null() {
        system::set_errno(libc::ENOMEM);
        return FAILED;
    }
    // SAFETY: the next definition of the name, which has this type.
    let real: unsafe extern "C" fn(isize) -> Address = unsafe { mem::transmute(address) };
    // SAFETY: the caller promises arguments that are valid for the C library's function.
    let before = unsafe { real(difference) };
    if before != FAILED {
        note_break(before as usize, difference, CallSite { pc, sp, fp });
    }
    before
}

entry! { 1 brk => on_brk }
/// # Safety
///
/// The arguments are valid for the C library's `brk`. The registers `pc`, `sp` and `fp` belong to
/// the caller, which waits for this function.
unsafe extern "C" fn on_brk(end: Address, pc: u64, sp: u64, fp: u64) -> c_int {
    let address = address_of(&NEXT.brk);
    if address.is_null() {
        system::set_errno(libc::ENOMEM);
        return -1;
    }
    // SAFETY: the next definition of the name, which has this type.
    let real: unsafe extern "C" fn(Address) -> c_int = unsafe { mem::transmute(address) };
    let before = current_break();
    // SAFETY: the caller promises arguments that are valid for the C library's function.
    let status = unsafe { real(end) };
    if status == 0 && before != 0 {
        note_break(before, (end as usize).wrapping_sub(before) as isize, CallSite { pc, sp, fp });
    }
    status
}

fn note_break(before: usize, difference: isize, site: CallSite) {
    let size = difference.unsigned_abs();
    if difference > 0 {
        note(MappingKind::Grow, before as Address, size, site);
    } else {
        note(MappingKind::Shrink, before.wrapping_sub(size) as Address, size, site);
    }
}

/// Returns the program break; 0 if it is unknown.
fn current_break() -> usize {
    let address = NEXT.sbrk.address();
    if address.is_null() {
        return 0;
    }
    // SAFETY: the next definition of the name, which has this type.
    let real: unsafe extern "C" fn(isize) -> Address = unsafe { mem::transmute(address) };
    // SAFETY: moves nothing.
    match unsafe { real(0) } {
        FAILED => 0,
        address => address as usize,
    }
}
