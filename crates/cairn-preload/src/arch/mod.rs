//! What differs between processors: how a hook is entered.

mod x86_64;

pub(crate) use x86_64::{SiteOnStack, entry, list_entry, long_entry, pass_on};
