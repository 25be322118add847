//! Whole walks: each frame by its module's compact unwind info, or by its frame pointer where there
//! is none.

use core::ffi::c_void;
use core::mem::MaybeUninit;

use cairn_format::AbsoluteAddress;
use cairn_unwind::StopReason;
use cairn_unwind::compact::{CompactMachine, CompactRegisters, CompactRule, CompactTable};

use super::memory::ThreadMemory;
use super::registers::{address_mask, interrupted_call_site, interrupted_link};
use crate::CallSite;
use crate::call_site::call_site_here;

const MACHINE: CompactMachine =
    if cfg!(target_arch = "aarch64") { CompactMachine::Arm64 } else { CompactMachine::X86_64 };

/// `struct dyld_unwind_sections` of `<mach-o/dyld_priv.h>`, which LLVM's and Apple's libunwind rely
/// on.
#[repr(C)]
struct UnwindSections {
    module: *const c_void,
    dwarf_section: *const c_void,
    dwarf_section_length: usize,
    compact_unwind_section: *const c_void,
    compact_unwind_section_length: usize,
}

unsafe extern "C" {
    /// Returns true, and fills `sections`, for an address that a module covers.
    fn _dyld_find_unwind_sections(address: *const c_void, sections: *mut UnwindSections) -> bool;
}

/// The result of [`walk_stack`] besides the addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct WalkedStack {
    /// Number of recorded addresses.
    pub count: usize,
    /// The reason why the walk ended; [`StopReason::Limit`] when the buffer was full.
    pub stop: StopReason,
}

/// Fills `addresses` with the caller's stack, innermost first. These are the place of this call,
/// and return addresses.
///
/// Do not use it in a handler that may have interrupted dyld, which takes a lock to find unwind
/// info on some systems.
#[inline(always)]
pub fn walk_stack(addresses: &mut [AbsoluteAddress]) -> WalkedStack {
    walk_stack_at(call_site_here(), None, addresses)
}

/// Walks as [`walk_stack`] does, from given registers, or from a context that a signal interrupted.
#[inline(never)]
pub fn walk_stack_at(
    site: CallSite,
    interrupted: Option<&libc::ucontext_t>,
    addresses: &mut [AbsoluteAddress],
) -> WalkedStack {
    let CallSite { pc, sp, fp } = interrupted.map_or(site, interrupted_call_site);
    let memory = ThreadMemory::around(sp);
    let stack = memory.stack();
    let mut registers = CompactRegisters { pc, sp, fp, link: interrupted.and_then(interrupted_link) };
    // A return address is looked up one byte earlier: its call may be the last instruction of its
    // function.
    let mut lookup = if interrupted.is_some() { pc } else { pc.wrapping_sub(1) };
    let mut count = 0;
    loop {
        let Some(slot) = addresses.get_mut(count) else {
            return WalkedStack { count, stop: StopReason::Limit };
        };
        *slot = AbsoluteAddress::new(registers.pc);
        count += 1;
        let rule = rule_at(lookup);
        if let Err(stop) = rule.step(MACHINE, &mut registers, &memory, stack) {
            return WalkedStack { count, stop };
        }
        registers.pc &= address_mask();
        if let Some(link) = &mut registers.link {
            *link &= address_mask();
        }
        if registers.pc == 0 {
            return WalkedStack { count, stop: StopReason::EndOfStack };
        }
        lookup = registers.pc.wrapping_sub(1);
    }
}

/// Returns the rule from the module's table. Where there is none, or where it refers to DWARF, it
/// is the frame pointer's.
fn rule_at(address: u64) -> CompactRule {
    match table_rule(address) {
        Some(rule @ (CompactRule::FramePointer | CompactRule::Frameless { .. })) => rule,
        // Darwin's own code has frame pointers, and its compilers emit them by default.
        _ => CompactRule::FramePointer,
    }
}

fn table_rule(address: u64) -> Option<CompactRule> {
    let mut found = MaybeUninit::<UnwindSections>::zeroed();
    // SAFETY: the function accepts any address and writes only to the structure; zeros are a value
    // of it.
    let found = unsafe {
        _dyld_find_unwind_sections(address as *const c_void, found.as_mut_ptr()).then(|| found.assume_init())
    }?;
    if found.compact_unwind_section.is_null() {
        return None;
    }
    // SAFETY: dyld describes a section of a module whose code is on the walked stack, so the
    // section remains mapped.
    let bytes = unsafe {
        core::slice::from_raw_parts(
            found.compact_unwind_section.cast::<u8>(),
            found.compact_unwind_section_length,
        )
    };
    let offset = u32::try_from(address.checked_sub(found.module as u64)?).ok()?;
    let encoding = CompactTable::new(bytes)?.encoding(offset)?;
    Some(CompactRule::of(encoding, MACHINE))
}
