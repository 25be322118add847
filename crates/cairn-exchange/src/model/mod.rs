//! The tool-independent model that readers fill and writers read.

pub(crate) mod changes;
pub(crate) mod events;
pub(crate) mod known;
pub mod marks;
pub mod profile;
