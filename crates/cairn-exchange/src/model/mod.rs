//! The tool-independent model that readers fill and writers read.

pub(crate) mod changes;
pub(crate) mod events;
pub mod marks;
pub mod profile;
