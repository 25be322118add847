//! `cairn pack`: a spool as a small recording.

use std::fs;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use cairn_analysis::recording::{Recording, RecordingError, Summary, pack};
use clap::Args;

use crate::new_file::NewFile;
use crate::output::{Outcome, complain};

/// Pack a recording: the same events in a tenth of the bytes
///
/// A program that records without `cairn` beside it leaves a spool. Every command reads spools as they are; packed, they
/// are small and open at once.
#[derive(Args)]
#[command(after_help = "\
Examples:
  cairn pack program.4711.spool            writes program.4711.cairn
  cairn pack -o small.cairn old.cairn      a name of your own
  cairn pack -o - program.spool | ssh ...  to standard output")]
pub(crate) struct Pack {
    /// The recording; `-` for standard input
    recording: PathBuf,

    /// Where to write; `-` for standard output [default: the recording's name, ending in .cairn]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Replace a file that is there
    #[arg(long)]
    force: bool,
}

impl Pack {
    pub(crate) fn run(self) -> io::Result<Outcome> {
        let name = self.recording.display().to_string();
        let in_file = |error: RecordingError| match error {
            RecordingError::Io { source, .. } if crate::output::is_broken_pipe(&source) => source,
            error => io::Error::other(format!("{name}: {error}")),
        };
        let recording = if self.recording == Path::new("-") {
            Recording::from_reader(io::stdin().lock())
        } else {
            Recording::open(&self.recording)
        }
        .map_err(in_file)?;
        recording.findings().iter().for_each(|finding| complain(&format_args!("{name}: note: {finding}")));

        let output = self.output.unwrap_or_else(|| self.recording.with_extension("cairn"));
        if output == Path::new("-") {
            let stdout = BufWriter::with_capacity(1 << 16, io::stdout().lock());
            pack(&recording, stdout).map_err(in_file)?;
            return Ok(Outcome::Done);
        }
        let mut file = NewFile::create(&output, self.force)?;
        let summary = pack(&recording, &mut file).map_err(in_file)?;
        tell(&summary, &file.commit()?)?;
        Ok(Outcome::Done)
    }
}

fn tell(summary: &Summary, output: &Path) -> io::Result<()> {
    let bytes = fs::metadata(output)?.len();
    let Summary { allocations, marks, changes, .. } = summary;
    writeln!(
        anstream::stderr(),
        "{}: {bytes} bytes; {allocations} allocations, {marks} marks, {changes} other events",
        crate::output::printable(&output.display().to_string()),
    )
}
