//! `cairn fleet view`: the page of `cairn view` over a selection of a store.
//!
//! The page shows files, and a selection is none. So a file of one line takes its place, and what
//! opens it is the selection, which was read before.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use cairn_analysis::heap::Cost;
use cairn_analysis::source::{ForeignFormats, ImportError, OpenedImport, SourceOptions};
use cairn_web::view::{Shown, View, ViewOptions};
use clap::Args;

use crate::commands::{Chosen, complain, say_doubts, session_on};
use crate::doubts::Doubts;
use crate::error::FleetError;
use crate::questions::Measure;
use crate::selected_heap::SelectedHeap;

/// Show a selection in a browser
///
/// Serves the page of `cairn view` on this machine until Ctrl-C, and prints its address. Only a
/// browser with the address can open it: the address holds a token that is new each time. The
/// selection is read once, at the beginning.
#[derive(Args)]
pub(crate) struct ViewSelection {
    #[command(flatten)]
    chosen: Chosen,

    /// The measure that the page begins with
    #[arg(long, value_name = "MEASURE", default_value = "live")]
    by: Measure,

    /// The port [default: any free one]
    #[arg(long, value_name = "PORT", default_value_t = 0, hide_default_value = true)]
    port: u16,

    /// Listen on ::1 instead of 127.0.0.1
    #[arg(long)]
    ipv6: bool,
}

impl ViewSelection {
    pub(crate) async fn run(self) -> Result<u8, FleetError> {
        let session = session_on(&self.chosen.store, &self.chosen.on).await?;
        let title = self.chosen.title();
        let mut heap = SelectedHeap::read(&session, &self.chosen.selection(), title.clone()).await?;
        let doubts = Doubts::of(&session, &self.chosen.selection()).await?;
        say_doubts(&doubts);
        heap.set_doubts(&doubts);
        let place = StandIn::make(&title)?;
        let mut options = ViewOptions::new(Shown::Files(vec![place.file.clone()]));
        options.source = SourceOptions::default();
        // It is opened again after hours without a request, so that it lasts as long as the server.
        options.source.formats = Some(Box::leak(Box::new(Selected { heap })));
        options.port = self.port;
        options.uses_ipv6 = self.ipv6;
        options.state.cost = Some(match self.by {
            Measure::Live => Cost::Leaked,
            Measure::Peak => Cost::Peak,
            Measure::Allocated => Cost::Allocated,
        });
        let failed = |error: io::Error| FleetError::new(format!("the page: {error}"));
        // The server has a runtime of its own.
        let serving = tokio::task::spawn_blocking(move || {
            let view = View::bind(options)?;
            writeln!(io::stdout(), "{}", view.url())?;
            complain(&"this address shows the selection to everyone who knows it; Ctrl-C ends it");
            view.run()
        });
        serving.await.map_err(|error| FleetError::new(error.to_string()))?.map_err(failed)?;
        drop(place);
        Ok(0)
    }
}

/// Opens any file as the selection.
struct Selected {
    heap: SelectedHeap,
}

impl ForeignFormats for Selected {
    fn names(&self) -> &'static [&'static str] {
        &["selection"]
    }

    fn open(&self, _: &Path, _: &SourceOptions) -> Result<Option<OpenedImport>, ImportError> {
        Ok(Some(OpenedImport { heap: Box::new(self.heap.clone()), lookups: None }))
    }

    fn unpacked_start(&self, _: &Path) -> Option<Vec<u8>> {
        None
    }
}

/// The file that the page lists, in a directory for this user alone. Both are gone with this.
struct StandIn {
    directory: PathBuf,
    file: PathBuf,
}

impl StandIn {
    fn make(title: &str) -> Result<Self, FleetError> {
        let base = std::env::temp_dir();
        let name = format!("cairn-fleet-view-{}", std::process::id());
        let failed = |error: io::Error| FleetError::file(&base, error);
        // Fails when it exists: then it belongs to another process.
        let directory = cairn_files::Directory::open(&base).map_err(failed)?;
        let directory = directory.make(name.as_ref()).map_err(failed)?;
        let path = base.join(name);
        let made = Self { file: path.join("selection"), directory: path };
        let mut file = directory.create_new("selection".as_ref()).map_err(failed)?;
        writeln!(file, "A selection of a store: {title}").map_err(failed)?;
        Ok(made)
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}
