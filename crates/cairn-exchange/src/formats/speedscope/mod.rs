//! speedscope's own JSON: one table of frames, and a profile for each column.

mod write;

pub(crate) use write::write;
