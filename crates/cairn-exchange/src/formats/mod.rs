//! Formats of other tools, one folder each: `read` imports, `write` exports.

pub(crate) mod dhat;
pub(crate) mod firefox;
pub(crate) mod folded;
pub(crate) mod heapprofile;
pub(crate) mod heaptrack;
pub(crate) mod otlp;
pub(crate) mod pprof;
pub(crate) mod speedscope;
pub(crate) mod table;
pub(crate) mod tracker;
