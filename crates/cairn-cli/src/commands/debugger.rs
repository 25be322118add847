//! `cairn debugger`: prints the command `cairn-block` for gdb and lldb.

use std::io::{self, Write};

use clap::{Args, ValueEnum};

use crate::output::Outcome;

/// Print the command cairn-block for gdb or lldb: the stack that allocated the block at an address
///
/// In the debugger, `cairn-block ADDRESS` shows the start and the size of the block at an address,
/// and the stack that allocated it, in the open core file or in the stopped program, whose memory
/// is saved for a moment.
#[derive(Args)]
#[command(after_help = "\
Examples:
  cairn debugger gdb > ~/.cairn_gdb.py       then, in ~/.gdbinit:   source ~/.cairn_gdb.py
  cairn debugger lldb > ~/.cairn_lldb.py     then, in ~/.lldbinit:  command script import ~/.cairn_lldb.py
  gdb ./program core.4711 -ex 'cairn-block pointer'

The environment variable CAIRN names the cairn program, if it is not on PATH.")]
pub(crate) struct Debugger {
    /// The debugger
    debugger: Name,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Name {
    /// The GNU debugger
    Gdb,
    /// The debugger of LLVM
    Lldb,
}

impl Debugger {
    pub(crate) fn run(self) -> io::Result<Outcome> {
        let script = match self.debugger {
            Name::Gdb => include_str!("../../debuggers/cairn_gdb.py"),
            Name::Lldb => include_str!("../../debuggers/cairn_lldb.py"),
        };
        let mut output = crate::output::stdout();
        output.write_all(script.as_bytes())?;
        output.flush()?;
        Ok(Outcome::Done)
    }
}
