//! `cairn view`: the page, served on this machine.
//!
//! It serves the page that [`page`](crate::page) makes a file of, with features that a file cannot
//! have: recordings that grow, parts of recordings that are too large to be shown at once, two
//! recordings side by side, the text of source files, and buttons that start and stop recording.
//! `docs/book/reference/http.md` describes the requests; they are versioned, and may be used by
//! other programs.
//!
//! Three things are never done: to listen on an address that another machine reaches, to answer a
//! request without the token, and to open a file whose path a browser names. Everything that a
//! request can make large is bounded, and so is how long it may take.
//!
//! The server is hyper by itself. A router for a dozen paths is one `match` here, and the limits of
//! the connection (size of the header, time until it is there) are hyper's own, which what is built
//! upon it does not hand on.
//!
//! ```no_run
//! use cairn_web::view::{Shown, View, ViewOptions};
//!
//! let view = View::bind(ViewOptions::new(Shown::Files(vec!["program.4711.cairn".into()])))?;
//! println!("{}", view.url());
//! view.run()?;
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! | module | task |
//! |---|---|
//! | `door` | access control |
//! | `http` | connections, and their limits |
//! | `seats` | which connections give way when there are too many |
//! | `api` | from a request to an answer |
//! | `words` | what a request asks for |
//! | `catalogue` | which recordings there are |
//! | `desk` | one recording: opened, read, named, asked |
//! | `comparison` | two of them as one tree |
//! | `source_text` | the text of a source file |
//! | `control` | requests to a recording program |

mod api;
mod catalogue;
mod comparison;
mod control;
mod desk;
mod door;
mod http;
mod seats;
mod source_text;
mod words;

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use cairn_analysis::heap::{Cost, Folding};
use cairn_analysis::source::SourceOptions;
use cairn_symbols::SymbolizerOptions;

pub use catalogue::Shown;
pub use source_text::SourceRoot;

/// The content of a view, and how it is served.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ViewOptions {
    /// The recordings.
    pub shown: Shown,
    /// The page begins with the first two recordings compared.
    pub compares: bool,
    /// The port; 0 for any that is free.
    pub port: u16,
    /// Listens at `::1` in place of `127.0.0.1`.
    pub uses_ipv6: bool,
    /// How files are opened, and where symbols are searched for.
    pub source: SourceOptions,
    /// The frames that are left out of stacks.
    pub folding: Folding,
    /// The first state of the page.
    pub state: PageState,
    /// Directories of source files that may be read; none if it is empty.
    pub sources: Vec<SourceRoot>,
    /// How long a connection may take to send the header of a request, and may be open between two.
    pub header_time: Duration,
}

/// The first state of the page; a reader may change it.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct PageState {
    /// The cost.
    pub cost: Option<Cost>,
    /// The tab: `functions`, `modules`, `sizes`, `lifetimes`, `threads`, `about`.
    pub tab: Option<&'static str>,
    /// The flame graph begins at the functions that asked for memory.
    pub is_inverted: bool,
    /// Only this thread.
    pub thread: Option<String>,
    /// Only blocks of these sizes.
    pub sizes: Option<RangeInclusive<u64>>,
    /// Only stacks with a function of this pattern.
    pub function: Option<String>,
    /// Only stacks with a module of this pattern.
    pub module: Option<String>,
    /// Only what was allocated from this time on, in nanoseconds.
    pub from_nanos: Option<u64>,
    /// Only what was allocated up to this time, in nanoseconds.
    pub to_nanos: Option<u64>,
    /// How much of a list is shown.
    pub limit: PageLimit,
}

/// How much of the lists and the graph of a page is shown.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub enum PageLimit {
    /// As much as is usual.
    #[default]
    Usual,
    /// This many rows of each list.
    Rows(usize),
    /// Rows and frames of at least this part of the whole, from 0 to 1.
    Share(f64),
    /// Everything, and calls that are usually put together.
    Everything,
}

impl PageState {
    /// The part of an address behind `#`, which the page reads.
    fn fragment(&self) -> String {
        let mut words: Vec<(&str, String)> = Vec::new();
        words.extend(self.cost.map(|cost| ("metric", cost.name().to_owned())));
        words.extend(self.tab.map(|tab| ("tab", tab.to_owned())));
        words.extend(self.is_inverted.then(|| ("inverted", "1".to_owned())));
        words.extend(self.thread.as_ref().map(|thread| ("thread", words::encoded(thread))));
        words.extend(self.sizes.as_ref().map(|range| ("size", format!("{}-{}", range.start(), range.end()))));
        words.extend(self.function.as_ref().map(|pattern| ("function", words::encoded(pattern))));
        words.extend(self.module.as_ref().map(|pattern| ("module", words::encoded(pattern))));
        words.extend(self.from_nanos.map(|nanos| ("from", nanos.to_string())));
        words.extend(self.to_nanos.map(|nanos| ("to", nanos.to_string())));
        words.extend(match self.limit {
            PageLimit::Usual => None,
            PageLimit::Rows(rows) => Some(("limit", rows.to_string())),
            PageLimit::Share(share) => Some(("limit", format!("{}%25", share * 100.0))),
            PageLimit::Everything => Some(("limit", "all".to_owned())),
        });
        let words: Vec<String> = words.into_iter().map(|(name, value)| format!("{name}={value}")).collect();
        if words.is_empty() { String::new() } else { format!("#{}", words.join("&")) }
    }
}

impl ViewOptions {
    /// These recordings, at any free port of `127.0.0.1`, with names, and without source files.
    #[must_use]
    pub fn new(shown: Shown) -> Self {
        let mut source = SourceOptions::default();
        source.symbols = Some(SymbolizerOptions::new());
        Self {
            shown,
            compares: false,
            port: 0,
            uses_ipv6: false,
            source,
            folding: Folding::default(),
            state: PageState::default(),
            sources: Vec::new(),
            header_time: http::HEADER_TIME,
        }
    }
}

/// A server that listens already.
pub struct View {
    listener: TcpListener,
    door: door::Door,
    api: api::Api,
    header_time: Duration,
    fragment: String,
}

impl std::fmt::Debug for View {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Without the token.
        f.debug_struct("View").field("listener", &self.listener).finish_non_exhaustive()
    }
}

impl View {
    /// Listens; requests wait until [`run`](Self::run).
    ///
    /// # Errors
    ///
    /// When the port is taken, or the system gives no random numbers.
    pub fn bind(options: ViewOptions) -> io::Result<Self> {
        let host =
            if options.uses_ipv6 { IpAddr::V6(Ipv6Addr::LOCALHOST) } else { IpAddr::V4(Ipv4Addr::LOCALHOST) };
        let wanted = SocketAddr::new(host, options.port);
        let named = |error: io::Error| {
            io::Error::new(error.kind(), format!("{wanted} cannot be listened at: {error}"))
        };
        let listener = TcpListener::bind(wanted).map_err(named)?;
        listener.set_nonblocking(true)?;
        let door = door::Door::new(listener.local_addr()?)?;
        let fragment = options.state.fragment();
        Ok(Self { listener, door, header_time: options.header_time, fragment, api: api::Api::new(options) })
    }

    /// The address to open, with the token: everyone who has it sees the recordings.
    #[must_use]
    pub fn url(&self) -> String {
        format!("{}{}", self.door.url(), self.fragment)
    }

    /// Answers until Ctrl-C, or a request to end (SIGTERM). Tells the programs that would have been
    /// named faster from an index of their symbols.
    ///
    /// # Errors
    ///
    /// When the system gives no means to wait for requests.
    pub fn run(self) -> io::Result<Vec<PathBuf>> {
        http::run(self.listener, self.door, self.api, self.header_time)
    }
}

/// Parses a request's address as the server does; returns whether it is valid. For the fuzz target.
#[doc(hidden)]
#[must_use]
pub fn reads_words(path: &str, query: &str) -> bool {
    let query = words::Query::parse(query);
    let part = query.and_then(|query| query.part("").and_then(|_| query.number("known")));
    words::decoded_parts(path).is_ok() && part.is_ok()
}
