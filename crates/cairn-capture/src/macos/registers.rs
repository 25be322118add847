//! Reads registers from this processor, or from the context of a signal.

use crate::CallSite;

/// The pc, sp and fp of an interrupted context; zeros for one without registers.
pub(crate) fn interrupted_call_site(context: &libc::ucontext_t) -> CallSite {
    // SAFETY: the pointer is null or leads to the registers that the kernel has stored with the
    // context, which live as long.
    let Some(machine) = (unsafe { context.uc_mcontext.as_ref() }) else {
        return CallSite { pc: 0, sp: 0, fp: 0 };
    };
    let state = &machine.__ss;
    #[cfg(target_arch = "x86_64")]
    return CallSite { pc: state.__rip, sp: state.__rsp, fp: state.__rbp };
    #[cfg(target_arch = "aarch64")]
    CallSite { pc: state.__pc, sp: state.__sp, fp: state.__fp }
}

/// The link register of an interrupted context, where the processor has one.
pub(crate) fn interrupted_link(context: &libc::ucontext_t) -> Option<u64> {
    #[cfg(target_arch = "x86_64")]
    {
        let _ = context;
        None
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: the pointer is null or leads to the registers that the kernel has stored with the
    // context, which live as long.
    unsafe { context.uc_mcontext.as_ref() }.map(|machine| machine.__ss.__lr)
}

/// Returns the bits of a code address that hold no pointer authentication code. Darwin's user space
/// ends below 2^47.
pub(crate) const fn address_mask() -> u64 {
    if cfg!(target_arch = "aarch64") { (1 << 47) - 1 } else { u64::MAX }
}
