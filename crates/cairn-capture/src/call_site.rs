//! The registers that a walk starts from.

/// The registers of a caller at the place of its call, as they are once the call has returned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CallSite {
    /// The return address.
    pub pc: u64,
    /// The stack pointer after the return.
    pub sp: u64,
    /// The frame pointer register (rbp, x29), whatever it is used for.
    pub fp: u64,
}

/// The registers of this place in the function that this is inlined into.
#[inline(always)]
pub(crate) fn call_site_here() -> CallSite {
    let (pc, sp, fp): (u64, u64, u64);
    #[cfg(target_arch = "x86_64")]
    // SAFETY: copies registers.
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
    // SAFETY: copies registers.
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
