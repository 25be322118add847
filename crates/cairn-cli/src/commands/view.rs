//! `cairn view`: the page, served on this machine.

mod browser;

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use cairn_analysis::heap::Folding;
use cairn_web::view::{Shown, SourceRoot, View, ViewOptions};
use clap::Args;

use super::symbol_options::SymbolOptions;
use super::target::{Target, resolve};
use crate::output::{Outcome, complain};

/// Look at recordings in a browser, also while the program runs
///
/// Serves a page on this machine until Ctrl-C, and opens it. It is the page that `cairn report --html` writes, and more: it follows
/// a program that runs, tells it to start, to stop, and to set marks, compares two recordings, goes into parts of large ones, and
/// shows source files. Only who has the printed address can open it: it holds a token that is new each time.
#[derive(Args)]
#[command(name = "view", after_help = EXAMPLES)]
pub(crate) struct ViewCommand {
    /// A recording, two to compare, a directory with recordings, or the id of a process that records
    #[arg(required = true, value_name = "FILE|DIR|PID")]
    what: Vec<PathBuf>,

    /// Print the address and open no browser
    #[arg(long)]
    no_open: bool,

    /// The port; any that is free when it is not given
    #[arg(long, value_name = "PORT", default_value_t = 0, hide_default_value = true)]
    port: u16,

    /// Listen at ::1, in place of 127.0.0.1
    #[arg(long)]
    ipv6: bool,

    /// Show source files below this directory; with FROM=TO, recorded names below FROM are looked for in TO. May be repeated;
    /// without it no file is shown
    #[arg(long, value_name = "DIR|FROM=TO")]
    source: Vec<PathBuf>,

    /// Show the allocator's frames and those in front of main too
    #[arg(long)]
    internals: bool,

    #[command(flatten)]
    symbols: SymbolOptions,
}

const EXAMPLES: &str = "\
Examples:
  cairn view app.4711.cairn                      one recording
  cairn view 4711                                a process that `cairn heap` records, as it goes on
  cairn view before.cairn after.cairn            what grew, as a differential flame graph
  cairn view .                                   every recording in this directory, the latest first
  cairn view app.4711.cairn --source ~/app       with source files below ~/app
  cairn view app.cairn --source /build/app=.     of a program that was built elsewhere
  ssh -L 7007:127.0.0.1:7007 HOST cairn view --no-open --port 7007 app.cairn     on another machine

docs/book/reference/view.md lists what it lets in, http.md its requests for other programs.

Exit codes: 0 it was ended; 1 it could not be served; 2 the arguments make no sense.";

impl ViewCommand {
    pub(crate) fn run(self) -> io::Result<Outcome> {
        let shown = self.shown()?;
        let mut options = ViewOptions::new(shown);
        options.compares = self.what.len() == 2;
        options.port = self.port;
        options.uses_ipv6 = self.ipv6;
        options.symbols = self.symbols.wanted().then(|| self.symbols.symbolizer());
        options.folding = Folding { allocator: !self.internals, startup: !self.internals };
        options.sources = self.source.iter().map(|text| source_root(text)).collect::<io::Result<_>>()?;
        let view = View::bind(options)?;
        let url = view.url();
        {
            let mut output = crate::output::stdout();
            writeln!(output, "{url}")?;
            output.flush()?;
        }
        complain(&"this address shows the page, to whoever has it; Ctrl-C ends it");
        // What it needs to go on is kept until the end.
        let _opened = (!self.no_open).then(|| browser::open(&url)).and_then(|opened| match opened {
            Ok(opened) => Some(opened),
            Err(error) => {
                complain(&format_args!("no browser was opened: {error}; open the address by hand"));
                None
            }
        });
        let without_index = view.run()?;
        self.symbols.index_these_later(without_index);
        Ok(Outcome::Done)
    }

    fn shown(&self) -> io::Result<Shown> {
        let mut files = Vec::new();
        for what in &self.what {
            match resolve(what.as_os_str())? {
                Target::Directory(directory, _) if self.what.len() == 1 => {
                    return Ok(Shown::Directory(directory));
                }
                Target::Directory(directory, _) => {
                    let why = "a directory is shown by itself; name the recordings in it";
                    return Err(io::Error::other(format!("{}: {why}", directory.display())));
                }
                Target::File(path) => {
                    super::heap_input::check_recording(&path)?;
                    files.push(path);
                }
            }
        }
        Ok(Shown::Files(files))
    }
}

/// A directory, or where recorded names are looked for.
fn source_root(text: &Path) -> io::Result<SourceRoot> {
    if text.is_dir() {
        return SourceRoot::new(text, None);
    }
    match text.to_str().and_then(|text| text.split_once('=')) {
        Some((from, to)) if !from.is_empty() && !to.is_empty() => {
            SourceRoot::new(Path::new(to), Some(Path::new(from)))
        }
        _ => SourceRoot::new(text, None),
    }
}
