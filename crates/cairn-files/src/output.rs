//! The kinds of output.

use std::fs::File;

use crate::NewFile;

/// Where output goes.
#[derive(Debug)]
pub enum Output {
    /// A file that gets its name when it is complete; whether it replaces one is decided by then.
    New(NewFile),
    /// A device, a FIFO or an open file of this process, which is written to as it is.
    Stream(File),
    /// Standard output, under the name that it has in `/dev` or `/proc`.
    Stdout,
}
