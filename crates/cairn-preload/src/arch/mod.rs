//! What differs between processors: how a hook is entered.

mod x86_64;

pub(crate) use x86_64::{entry, list_entry, pass_on};
