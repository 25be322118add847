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
