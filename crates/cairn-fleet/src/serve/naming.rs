//! Names the code of new samples behind commits, by the debug files of some directories.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{Notify, watch};
use tokio::time::sleep;

use crate::commands::complain;
use crate::symbols::{Extent, FileIndex, add};

/// The shortest pause between two searches.
const LEAST_PAUSE: Duration = Duration::from_millis(200);
/// Pause in times of the search before it: names take a fifth of a processor at most.
const PAUSE_TIMES: u32 = 4;

/// Names what is there, and what comes with each commit, until the server ends.
pub(crate) async fn run(
    place: String,
    directories: Vec<PathBuf>,
    committed: Arc<Notify>,
    mut ending: watch::Receiver<bool>,
) {
    let mut index = FileIndex::default();
    loop {
        let start = Instant::now();
        // Files come and go.
        for directory in &directories {
            let directory = directory.clone();
            let scanned = tokio::task::spawn_blocking(move || {
                index.scan(&directory);
                index
            });
            index = scanned.await.unwrap_or_default();
        }
        match add(&place, &index, Extent::Unnamed).await {
            Ok(done) if done.has_changed() => complain(&done),
            Ok(_) => {}
            // The next search tries again.
            Err(error) => complain(&format_args!("symbols: {error}")),
        }
        let pause = (start.elapsed() * PAUSE_TIMES).max(LEAST_PAUSE);
        tokio::select! {
            () = async { sleep(pause).await; committed.notified().await } => {}
            _ = ending.wait_for(|&is_ending| is_ending) => return,
        }
    }
}
