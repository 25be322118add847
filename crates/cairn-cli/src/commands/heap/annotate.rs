//! `cairn heap --annotate`: writes the allocating stack in front of each block; nothing is
//! recorded.

use std::ffi::{OsStr, OsString};
use std::time::Duration;

use cairn_run::{End, Event, Library, Program, Start};
use clap::ValueEnum;

use super::{HeapCommand, Refused, not_run};
use crate::output::{Outcome, complain};

/// Layout of the annotation in front of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(super) enum Layout {
    /// 16 bytes, and a guard behind the block that detects overflows
    Cairn,
    /// A compressed stack in the format of libwebsockets, and a list of all blocks
    Lws,
    /// Plain addresses in the format of heapprof; HEAPPROF_FRAMES sets how many
    Heapprof,
}

impl HeapCommand {
    /// Runs the program with annotated blocks.
    pub(super) fn annotate(
        &self,
        layout: Layout,
        name: &OsStr,
        arguments: &[OsString],
    ) -> Result<End, Refused> {
        let program = Program::find(name)?;
        let is_ready = program.inspect().map_err(Refused::from).and_then(|()| {
            Library::unpack_for_annotation().map_err(|error| Refused {
                outcome: Outcome::Refused,
                message: format!("the library for annotations: {error}; nothing can be annotated"),
            })
        });
        let library = match is_ready {
            Ok(library) => Some(library),
            Err(refused) if self.or_run && refused.outcome != Outcome::CannotRun => {
                complain(&format_args!("{}; it runs without annotations", refused.message));
                None
            }
            Err(refused) => return Err(refused),
        };
        let mut options = match layout {
            Layout::Cairn => "cairn",
            Layout::Lws => "lws",
            Layout::Heapprof => "heapprof",
        }
        .to_owned();
        if self.children {
            options.push_str(",children");
        }
        let options = OsString::from(options);
        let library = library.as_ref().map(|library| (library, options.as_os_str()));
        let start = Start { program: &program, arguments, library };
        let mut running = start.run().map_err(|error| Refused::start(&program, &error))?;
        loop {
            // There is nothing to do until the program ends.
            let event = running.wait(Duration::from_secs(3600)).map_err(|error| not_run(&error))?;
            if let Event::Ended(end) = event {
                return Ok(end);
            }
        }
    }
}
