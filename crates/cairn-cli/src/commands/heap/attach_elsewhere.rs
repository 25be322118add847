//! `cairn heap --attach` and `--detach` on processors without support for them: both are refused.

use super::{HeapCommand, Refused};
use crate::output::Outcome;

impl HeapCommand {
    pub(super) fn attach(&self, process: u32) -> Result<Outcome, Refused> {
        Err(refused(process))
    }
}

pub(super) fn detach(process: u32) -> Result<Outcome, Refused> {
    Err(refused(process))
}

fn refused(process: u32) -> Refused {
    Refused {
        outcome: Outcome::Refused,
        message: format!(
            "process {process}: cairn can be put into a process that runs on x86-64 only; start the program with \
             `cairn heap PROGRAM`, or with LD_PRELOAD and `CAIRN_HEAP=paused`, and let it record with `cairn heap ctl`"
        ),
    }
}
