//! The registers that a walk starts from.

/// The registers of a caller at its call, with their values after the call has returned.
///
/// They are all that a packed unwind rule needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CallSite {
    /// The return address.
    pub pc: u64,
    /// The stack pointer after the return.
    pub sp: u64,
    /// The frame pointer register (rbp, x29), which may have another use.
    pub fp: u64,
}

/// Reads the registers at a place in the function into which this is inlined.
#[inline(always)]
pub(crate) fn call_site_here() -> CallSite {
    let (pc, sp, fp): (u64, u64, u64);
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the instructions copy registers to declared outputs, and access no memory.
    unsafe {
        core::arch::asm!(
            "lea {pc}, [rip]",
            "mov {sp}, rsp",
            "mov {fp}, rbp",
            pc = out(reg) pc, sp = out(reg) sp, fp = out(reg) fp,
            options(nomem, nostack, preserves_flags),
        );
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: the instructions copy registers to declared outputs, and access no memory.
    unsafe {
        core::arch::asm!(
            "adr {pc}, .",
            "mov {sp}, sp",
            "mov {fp}, x29",
            pc = out(reg) pc, sp = out(reg) sp, fp = out(reg) fp,
            options(nomem, nostack, preserves_flags),
        );
    }
    CallSite { pc, sp, fp }
}
