//! Reads the heap in a thread of its own: a large file takes time, and the screen answers
//! meanwhile.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, TrySendError, channel, sync_channel};
use std::time::Duration;

use cairn_analysis::heap::slices::Slices;
use cairn_analysis::heap::{About, HeapRead, Stacks};
use cairn_analysis::source::{FollowedHeap, HeapSource};

use crate::commands::target::{is_other, recording_of};

/// A message of the thread.
pub(super) enum News {
    Seen(Box<Seen>),
    /// The time of a recording that has ended, cut into moments.
    Moments(Box<Slices>),
    Failed(String),
}

/// The recording at one moment.
pub(super) struct Seen {
    pub(super) read: HeapRead,
    pub(super) stacks: Arc<Stacks>,
    pub(super) about: About,
    pub(super) has_ended: bool,
    /// More of it is being read.
    pub(super) is_behind: bool,
    /// By how much it is older than now, where it is.
    pub(super) behind_nanos: Option<u64>,
    /// The process runs another program by now.
    pub(super) is_replaced: bool,
    /// The file that the program writes to, as long as it takes requests there.
    pub(super) spool: Option<PathBuf>,
    /// The kind of a file that cannot grow and is no recording.
    pub(super) file_kind: Option<&'static str>,
    /// Only blocks that were alive at one moment are known.
    pub(super) is_image: bool,
}

/// A request for the time of a heap that has ended.
struct WantMoments;

/// Interval between updates while a large recording is read.
const SHOWN_EVERY: Duration = Duration::from_millis(250);
/// How many moments there are.
const MOMENTS: usize = 256;

/// A thread that reads.
pub(super) struct Watch {
    pub(super) news: Receiver<News>,
    wanted: Sender<WantMoments>,
}

impl Watch {
    /// Reads the recording every `interval`.
    pub(super) fn begin(heap: FollowedHeap, interval: Duration) -> Self {
        // A slow receiver gets a later update.
        let (sender, news) = sync_channel(1);
        let (wanted, asked) = channel();
        std::thread::spawn(move || watch(heap, interval, &sender, &asked));
        Self { news, wanted }
    }

    /// Asks for [`News::Moments`], which come when the recording has ended.
    pub(super) fn want_moments(&self) {
        // A thread that has ended has sent the reason.
        let _ = self.wanted.send(WantMoments);
    }
}

fn watch(mut heap: FollowedHeap, interval: Duration, news: &SyncSender<News>, asked: &Receiver<WantMoments>) {
    loop {
        let mut is_behind = false;
        let said = match heap.catch_up(SHOWN_EVERY) {
            Ok(update) => {
                is_behind = update.is_behind;
                let behind_nanos = update.behind_nanos;
                News::Seen(Box::new(Seen { is_behind, behind_nanos, ..seen(&heap) }))
            }
            Err(error) => News::Failed(error.to_string()),
        };
        let has_failed = matches!(said, News::Failed(_));
        // An update that is not the latest does not wait for a slow receiver, which gets the next
        // one.
        let is_gone = if is_behind {
            matches!(news.try_send(said), Err(TrySendError::Disconnected(_)))
        } else {
            news.send(said).is_err()
        };
        if is_gone || has_failed {
            return;
        }
        if heap.has_ended() {
            break;
        }
        let pause = if is_behind { Duration::ZERO } else { interval };
        if matches!(asked.recv_timeout(pause), Err(RecvTimeoutError::Disconnected)) {
            return;
        }
    }
    while asked.recv().is_ok() {
        let said = match heap.read_slices(MOMENTS) {
            Ok(Some(slices)) => News::Moments(Box::new(slices)),
            Ok(None) => continue,
            Err(error) => News::Failed(error.to_string()),
        };
        if news.send(said).is_err() {
            return;
        }
    }
}

fn seen(heap: &FollowedHeap) -> Seen {
    Seen {
        read: heap.snapshot(),
        stacks: heap.stacks(),
        about: heap.about(),
        has_ended: heap.has_ended(),
        is_behind: false,
        behind_nanos: None,
        is_replaced: heap.spool().is_some_and(|spool| {
            let process = heap.recording().map_or(0, |recording| recording.header().process);
            recording_of(process).is_ok_and(|other| is_other(spool, &other))
        }),
        spool: heap.spool().map(PathBuf::from),
        file_kind: heap.complete().map(HeapSource::kind_name),
        is_image: heap.complete().is_some_and(HeapSource::is_image),
    }
}
