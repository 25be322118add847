//! `cairn view`: serves the page on this machine.

mod browser;

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use cairn_analysis::source::{HeapFilter, HeapSource};
use cairn_web::view::{PageLimit, PageState, Shown, SourceRoot, View, ViewOptions};
use clap::Args;

use super::heap_input::{HeapInput, failed};
use super::input_file::InputFile;
use super::options::{CostName, Limit, ListOptions, TimeOptions, ViewName, views};
use super::target::{Target, resolve};
use crate::output::{Outcome, complain, refusal};

/// Open heaps in a browser, also while the program runs
///
/// Serves a page on this machine until Ctrl-C, and opens it. It is the page of `cairn report
/// --format html`, and more: it follows a running program, starts and stops its recording, sets
/// marks, compares two files, reads parts of large ones, and shows source files. Only a browser
/// with the printed address can open it: the address holds a token that is new each time.
#[derive(Args)]
#[command(name = "view", after_help = EXAMPLES)]
pub(crate) struct ViewCommand {
    /// A recording, core file or file of another tool; two to compare; - for standard input. Also a
    /// directory with recordings, or the PID of a recorded process
    #[arg(required = true, value_name = "FILE|DIR|PID")]
    what: Vec<PathBuf>,

    /// The view that the page begins with
    #[arg(long, value_name = "VIEW", value_parser = views(VIEWS))]
    by: Option<ViewName>,

    /// The cost that the page begins with [default: the usual one of the file]
    #[arg(long, value_name = "COST")]
    cost: Option<CostName>,

    #[command(flatten)]
    times: TimeOptions,

    #[command(flatten)]
    list: ListOptions,

    /// Print the address and open no browser
    #[arg(long)]
    no_open: bool,

    /// The port [default: any free one]
    #[arg(long, value_name = "PORT", default_value_t = 0, hide_default_value = true)]
    port: u16,

    /// Listen on ::1 instead of 127.0.0.1
    #[arg(long)]
    ipv6: bool,

    /// Show source files below this directory. With FROM=TO, recorded names below FROM are searched
    /// for in TO. May be repeated; without it no file is shown
    #[arg(long, value_name = "DIR|FROM=TO")]
    source: Vec<PathBuf>,

    #[command(flatten)]
    input: HeapInput,
}

/// The views that a page has.
const VIEWS: &[ViewName] = &[
    ViewName::Function,
    ViewName::Module,
    ViewName::Tree,
    ViewName::Callers,
    ViewName::Thread,
    ViewName::Size,
    ViewName::Lifetime,
];

const EXAMPLES: &str = "\
Examples:
  cairn view app.4711.cairn                      one recording
  cairn view app.4711.cairn --cost leaked --filter thread=worker
  cairn view app.4711.cairn --from 10s --to 20s  what was allocated meanwhile
  cairn view core.4711                           the blocks in a core file
  cairn view 4711                                a process that `cairn heap` records, as it goes on
  cairn view before.cairn after.cairn            what grew, as a differential flame graph
  cairn view .                                   every recording in this directory, the latest first
  cairn view app.4711.cairn --source ~/app       with source files below ~/app
  cairn view app.cairn --source /build/app=.     of a program that was built elsewhere
  ssh -L 7007:127.0.0.1:7007 HOST cairn view --no-open --port 7007 app.cairn     on another machine

docs/book/reference/view.md describes the access rules, http.md the requests for other programs.

Exit codes: 0 it was ended; 1 it could not be served; 2 invalid arguments.";

impl ViewCommand {
    pub(crate) fn run(self) -> io::Result<Outcome> {
        let (shown, inputs) = self.shown()?;
        let state = self.state(&inputs)?;
        let mut options = ViewOptions::new(shown);
        options.compares = self.what.len() == 2;
        options.port = self.port;
        options.uses_ipv6 = self.ipv6;
        options.source = self.input.source_options();
        options.folding = self.input.folding()?;
        options.state = state;
        options.sources = self.source.iter().map(|text| source_root(text)).collect::<io::Result<_>>()?;
        let view = View::bind(options)?;
        let url = view.url();
        {
            let mut output = crate::output::stdout();
            writeln!(output, "{url}")?;
            output.flush()?;
        }
        complain(&"this address shows the page to everyone who knows it; Ctrl-C ends it");
        // The browser reads a file that has to exist until the end.
        let _opened = (!self.no_open).then(|| browser::open(&url)).and_then(|opened| match opened {
            Ok(opened) => Some(opened),
            Err(error) => {
                complain(&format_args!("no browser was opened: {error}; open the address by hand"));
                None
            }
        });
        let without_index = view.run()?;
        self.input.index_these_later(without_index);
        Ok(Outcome::Done)
    }

    /// Returns the state that the page begins with.
    fn state(&self, inputs: &[InputFile]) -> io::Result<PageState> {
        let mut state = PageState::default();
        state.cost = self.cost.map(CostName::cost);
        match self.by {
            Some(ViewName::Callers) => state.is_inverted = true,
            Some(ViewName::Module) => state.tab = Some("modules"),
            Some(ViewName::Thread) => state.tab = Some("threads"),
            Some(ViewName::Size) => state.tab = Some("sizes"),
            Some(ViewName::Lifetime) => state.tab = Some("lifetimes"),
            _ => {}
        }
        for (filter, text) in self.input.filters().into_iter().zip(self.input.filter_texts()) {
            let pattern = || text.split_once('=').map(|(_, pattern)| pattern.to_owned());
            match filter {
                HeapFilter::Thread(name) if state.thread.is_none() => state.thread = Some(name),
                HeapFilter::Size(range) if state.sizes.is_none() => state.sizes = Some(range),
                HeapFilter::Function(_) if state.function.is_none() => state.function = pattern(),
                HeapFilter::Module(_) if state.module.is_none() => state.module = pattern(),
                _ => {
                    let why = "the address of a page holds one filter of each kind";
                    return Err(refusal(format!("--filter {text}: {why}; `cairn report` takes several")));
                }
            }
        }
        if self.times.is_given() {
            let [input] = inputs else {
                let why = "choose a part of one file; name one. Of two that are compared, the page takes a part where its curves are brushed";
                return Err(refusal(format!("--at, --from and --to {why}")));
            };
            let span = self.times.span(&self.input.open_file(input)?)?;
            state.from_nanos = Some(span.from_nanos).filter(|&from| from > 0);
            state.to_nanos = Some(span.to_nanos).filter(|&to| to != u64::MAX);
        }
        state.limit = match self.list.limit() {
            _ if self.list.full => PageLimit::Everything,
            Some(Limit::Count(rows)) => PageLimit::Rows(rows),
            Some(Limit::Share(share)) => PageLimit::Share(share),
            None => PageLimit::Usual,
        };
        Ok(state)
    }

    /// Returns the files to show, and the inputs that have to be open meanwhile.
    fn shown(&self) -> io::Result<(Shown, Vec<InputFile>)> {
        let (mut files, mut inputs) = (Vec::new(), Vec::new());
        for what in &self.what {
            let path = if what == Path::new("-") {
                what.clone()
            } else {
                match resolve(what.as_os_str())? {
                    Target::Directory(directory, _) if self.what.len() == 1 => {
                        return Ok((Shown::Directory(directory), inputs));
                    }
                    Target::Directory(directory, _) => {
                        let why = "a directory is shown by itself; name the recordings in it";
                        return Err(io::Error::other(format!("{}: {why}", directory.display())));
                    }
                    Target::File(path) => path,
                }
            };
            let input = InputFile::open(&path)?;
            HeapSource::check_file(input.path(), &self.input.options_for(&input)).map_err(failed)?;
            files.push(input.path().to_owned());
            inputs.push(input);
        }
        Ok((Shown::Files(files), inputs))
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
