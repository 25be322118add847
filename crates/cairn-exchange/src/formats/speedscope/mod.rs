//! speedscope's own JSON: a shared table of frames, and a profile per column.

mod write;

pub(crate) use write::write;
