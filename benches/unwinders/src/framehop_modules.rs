//! framehop, with the modules that are loaded when it is prepared.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};

use framehop::x86_64::{CacheX86_64, UnwindRegsX86_64, UnwinderX86_64};
use framehop::{ExplicitModuleSectionInfo, Module, MustNotAllocateDuringUnwind, Unwinder};

use crate::{FRAMES, MAX_FRAMES};

type Policy = MustNotAllocateDuringUnwind;

struct State {
    unwinder: UnwinderX86_64<&'static [u8], Policy>,
    cache: CacheX86_64<Policy>,
}

struct Slot(UnsafeCell<Option<State>>);

// SAFETY: the benchmarks capture on one thread at a time.
unsafe impl Sync for Slot {}

static STATE: Slot = Slot(UnsafeCell::new(None));

pub(crate) fn prepare() -> Result<(), String> {
    let mut unwinder = UnwinderX86_64::new();
    // SAFETY: `add_module` takes what it is given, and the pointer is that of the unwinder.
    unsafe { libc::dl_iterate_phdr(Some(add_module), (&raw mut unwinder).cast()) };
    // SAFETY: one thread at a time, and no capture under way.
    unsafe { *STATE.0.get() = Some(State { unwinder, cache: CacheX86_64::new_in() }) };
    Ok(())
}

/// Adds a module to the unwinder, by its program headers.
///
/// # Safety
///
/// - `info` is valid during the call, and `argument` points to an unwinder to which no other
///   reference exists.
unsafe extern "C" fn add_module(info: *mut libc::dl_phdr_info, _size: usize, argument: *mut c_void) -> c_int {
    // SAFETY: the caller promises a valid `info` and the only reference to an unwinder.
    let (unwinder, info) =
        unsafe { (&mut *argument.cast::<UnwinderX86_64<&'static [u8], Policy>>(), &*info) };
    // SAFETY: the loader's own table of this module.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
    let base = info.dlpi_addr;
    let range = |header: &libc::Elf64_Phdr| base + header.p_vaddr..base + header.p_vaddr + header.p_memsz;
    let loads = || headers.iter().filter(|header| header.p_type == libc::PT_LOAD);
    let Some(index) = headers.iter().find(|header| header.p_type == libc::PT_GNU_EH_FRAME).map(range) else {
        return 0;
    };
    let text = loads().find(|header| header.p_flags & libc::PF_X != 0).map(range);
    let all = loads().map(range).reduce(|first, next| first.start..next.end);
    let segment = loads().map(range).find(|range| range.contains(&index.start));
    let (Some(text), Some(all), Some(segment)) = (text, all, segment) else { return 0 };
    // The index begins with version and encodings (4 bytes), then the frames' address relative to
    // that place. SAFETY: mapped, as the program header says.
    let distance = unsafe { ((index.start + 4) as *const i32).read_unaligned() };
    let frames = (index.start + 4).wrapping_add_signed(distance.into())..segment.end;
    // SAFETY: mapped for as long as the module is, and the benchmarks unload none.
    let bytes = |range: &std::ops::Range<u64>| unsafe {
        std::slice::from_raw_parts(range.start as *const u8, (range.end - range.start) as usize)
    };
    let sections = ExplicitModuleSectionInfo {
        base_svma: all.start,
        text_svma: Some(text.clone()),
        text: Some(bytes(&text)),
        eh_frame: Some(bytes(&frames)),
        eh_frame_svma: Some(frames),
        eh_frame_hdr: Some(bytes(&index)),
        eh_frame_hdr_svma: Some(index),
        ..Default::default()
    };
    unwinder.add_module(Module::new(String::new(), all.clone(), all.start, sections));
    0
}

/// Naked, so that the registers are still the caller's.
#[unsafe(naked)]
pub(crate) extern "C" fn capture() -> u64 {
    core::arch::naked_asm!(
        "mov rdi, qword ptr [rsp]",
        "lea rsi, [rsp + 8]",
        "mov rdx, rbp",
        "jmp {walk}",
        walk = sym walk,
    )
}

extern "C" fn walk(pc: u64, sp: u64, fp: u64) -> u64 {
    // SAFETY: prepared, and one thread at a time.
    let Some(State { unwinder, cache }) = (unsafe { &mut *STATE.0.get() }) else { return 0 };
    // SAFETY: framehop asks for words of the stack that its rules say are there; in these programs
    // they are.
    let mut read = |address: u64| Ok(unsafe { *(address as *const u64) });
    let mut frames = unwinder.iter_frames(pc, UnwindRegsX86_64::new(pc, sp, fp), cache, &mut read);
    let mut count = 0;
    while count < MAX_FRAMES {
        let Ok(Some(frame)) = frames.next() else { break };
        // SAFETY: count is below the capacity.
        unsafe { FRAMES.as_mut_ptr().add(count).write(frame.address() as usize) };
        count += 1;
    }
    count as u64
}
