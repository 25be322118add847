//! Finds the readable part of this thread's own stack: the thread's environment block has it.
//!
//! A fiber has bounds of its own there, which the system changes when it switches to the fiber. So
//! the bounds are compared in each capture ([`has_changed`]).

use super::environment::environment_word;

/// Places in the environment block. The first address above the stack:
const STACK_BASE: usize = 0x08;
/// The lowest page that is in use.
const STACK_LIMIT: usize = 0x10;
/// The lowest page that is reserved.
const RESERVED_FROM: usize = 0x1478;

/// Returns the readable part of this thread's own stack, from `sp` to its top. Returns `None` when
/// `sp` lies on another stack.
pub(crate) fn own_stack_at(sp: u64, _known: (u64, u64), _hole: &mut Hole) -> Option<(u64, u64)> {
    let top = own_top();
    // SAFETY: the places lie within the block.
    let (limit, reserved) = unsafe { (environment_word(STACK_LIMIT), environment_word(RESERVED_FROM)) };
    let local = 0_u64;
    let here = (&raw const local) as u64;
    // All pages between limit and top are in use; below is the guard page. After a stack overflow
    // the handler runs further down, and the system may not have moved the limit: everything above
    // this frame is in use.
    let low = if reserved <= here && here < top { limit.min(here) } else { limit };
    (low <= sp && sp < top).then_some((low.next_multiple_of(8), top & !7))
}

/// Nothing has to be remembered between two queries.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Hole;

impl Hole {
    pub(crate) const NONE: Self = Self;
}

/// True when the thread now uses a stack that ends elsewhere than at `top`.
#[inline(always)]
pub(crate) fn has_changed(top: u64) -> bool {
    own_top() & !7 != top
}

/// True for the first address above the calling thread's own stack.
pub(crate) fn is_top_of_own_stack(address: u64) -> bool {
    address == own_top() & !7
}

#[inline(always)]
fn own_top() -> u64 {
    // SAFETY: the place lies within the block.
    unsafe { environment_word(STACK_BASE) }
}
