//! A heap that may still grow: a recording as its program writes it, or a file that is complete.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use cairn_recording::Recording;

use super::filter::widest;
use super::{HeapFilter, HeapSource, ReadDetail, SourceError, SourceNames, SourceOptions, TimeSpan};
use crate::file_kind::FileKind;
use crate::heap::slices::Slices;
use crate::heap::{About, Folding, HeapRead, LiveFilter, LiveHeap, Names, NoNames, Scope, Stacks, Update};

/// A heap that may still grow. [`catch_up`](Self::catch_up) reads what is new; a file that cannot
/// grow has ended at once.
#[derive(Debug)]
pub struct FollowedHeap {
    state: FollowedState,
    options: SourceOptions,
    filter: LiveFilter,
}

#[derive(Debug)]
enum FollowedState {
    Recording(Box<LiveHeap>, std::path::PathBuf),
    Complete(Box<Complete>),
}

#[derive(Debug)]
struct Complete {
    source: HeapSource,
    scope: Scope,
    read: HeapRead,
    stacks: Arc<Stacks>,
    is_fresh: bool,
}

impl FollowedHeap {
    /// Opens a heap of any kind, and counts the blocks that filters of threads and sizes let in.
    ///
    /// Filters of functions and modules choose stacks, whose names may come later than their sums:
    /// [`HeapProfile::of_stacks`](crate::heap::HeapProfile::of_stacks) applies them.
    ///
    /// # Errors
    ///
    /// As [`HeapSource::open`] and [`HeapSource::scope`].
    pub fn open(path: &Path, options: &SourceOptions, filters: &[HeapFilter]) -> Result<Self, SourceError> {
        let of_blocks: Vec<HeapFilter> =
            filters.iter().filter(|filter| filter.is_of_blocks()).cloned().collect();
        let filter = live_filter(&of_blocks);
        let kind = FileKind::of_file(path).map_err(|error| SourceError::open(path, options, error))?;
        let state = if kind == FileKind::Recording {
            let live = LiveHeap::open_filtered(path, filter.clone())
                .map_err(|error| SourceError::recording(path, options, error))?;
            FollowedState::Recording(Box::new(live), path.to_owned())
        } else {
            let source = HeapSource::open(path, options)?;
            let mut names = Names::new(source.stacks(), &NoNames, Folding::default());
            let scope = source.scope(&of_blocks, TimeSpan::ALL, &mut names)?;
            let read = source.read(scope.clone(), ReadDetail::Whole)?;
            let stacks = Arc::new(source.stacks().clone());
            FollowedState::Complete(Box::new(Complete { source, scope, read, stacks, is_fresh: true }))
        };
        Ok(Self { state, options: options.clone(), filter })
    }

    /// Reads what is new, until nothing is or this time has passed.
    ///
    /// # Errors
    ///
    /// When the file cannot be read any more, and when it has ended without a thread that a filter
    /// names.
    pub fn catch_up(&mut self, most: Duration) -> Result<Update, SourceError> {
        match &mut self.state {
            FollowedState::Recording(live, path) => {
                let update = live
                    .catch_up(most)
                    .map_err(|error| SourceError::recording(path, &self.options, error))?;
                if update.has_ended {
                    check_threads(&self.filter, &live.about())?;
                }
                Ok(update)
            }
            FollowedState::Complete(complete) => Ok(Update {
                is_new: std::mem::take(&mut complete.is_fresh),
                is_behind: false,
                has_ended: true,
                behind_nanos: None,
            }),
        }
    }

    /// The sums of what was read so far.
    #[must_use]
    pub fn snapshot(&self) -> HeapRead {
        match &self.state {
            FollowedState::Recording(live, _) => live.snapshot(),
            FollowedState::Complete(complete) => complete.read.clone(),
        }
    }

    /// The stacks that the sums are of.
    #[must_use]
    pub fn stacks(&self) -> Arc<Stacks> {
        match &self.state {
            FollowedState::Recording(live, _) => live.stacks(),
            FollowedState::Complete(complete) => Arc::clone(&complete.stacks),
        }
    }

    /// Returns the facts about the program beside its sums.
    #[must_use]
    pub fn about(&self) -> About {
        match &self.state {
            FollowedState::Recording(live, _) => live.about(),
            FollowedState::Complete(complete) => complete.source.about(),
        }
    }

    /// True once nothing follows.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        match &self.state {
            FollowedState::Recording(live, _) => live.has_ended(),
            FollowedState::Complete(_) => true,
        }
    }

    /// The file that the program writes to, as long as it takes requests there.
    #[must_use]
    pub fn spool(&self) -> Option<&Path> {
        match &self.state {
            FollowedState::Recording(live, _) => live.spool(),
            FollowedState::Complete(_) => None,
        }
    }

    /// The recording, if it is one.
    #[must_use]
    pub fn recording(&self) -> Option<&Recording> {
        match &self.state {
            FollowedState::Recording(live, _) => Some(live.recording()),
            FollowedState::Complete(_) => None,
        }
    }

    /// The source, if the file was complete when it was opened.
    #[must_use]
    pub fn complete(&self) -> Option<&HeapSource> {
        match &self.state {
            FollowedState::Recording(..) => None,
            FollowedState::Complete(complete) => Some(&complete.source),
        }
    }

    /// Names of a file that was complete when it was opened; `None` of a recording.
    #[must_use]
    pub fn own_names(&self) -> Option<SourceNames> {
        self.complete().map(HeapSource::symbols)
    }

    /// Reads the sums of each slice of the time, once the heap has ended.
    ///
    /// Returns `None` before that, and for a file without times.
    ///
    /// # Errors
    ///
    /// When the file cannot be read any more.
    pub fn read_slices(&self, most_slices: usize) -> Result<Option<Slices>, SourceError> {
        match &self.state {
            FollowedState::Recording(live, path) => match live.ended() {
                Some(ended) => match ended.read_sliced(live.scope(), most_slices) {
                    Ok((_, slices)) => Ok(Some(slices)),
                    Err(error) => Err(SourceError::recording(path, &self.options, error)),
                },
                None => Ok(None),
            },
            FollowedState::Complete(complete) => {
                let (_, slices) = complete.source.read_sliced(complete.scope.clone(), most_slices)?;
                Ok(Some(slices).filter(|slices| slices.count > 0))
            }
        }
    }
}

/// Returns the filter of a recording whose threads are not all known yet.
fn live_filter(filters: &[HeapFilter]) -> LiveFilter {
    let mut live = LiveFilter::default();
    let mut sizes = None;
    for filter in filters {
        match filter {
            HeapFilter::Thread(wanted) => live.threads.get_or_insert_default().push(wanted.clone()),
            HeapFilter::Size(range) => sizes = Some(widest(sizes, range)),
            HeapFilter::Function(_) | HeapFilter::Module(_) => {}
        }
    }
    live.sizes = sizes.unwrap_or(live.sizes);
    live
}

/// Refuses threads that a recording without further events does not have.
fn check_threads(filter: &LiveFilter, about: &About) -> Result<(), SourceError> {
    let is_there = |wanted: &&String| about.threads.iter().any(|thread| thread.is_called(wanted));
    match filter.threads.iter().flatten().find(|wanted| !is_there(wanted)) {
        Some(wanted) => Err(SourceError::no_thread(wanted, &about.threads)),
        None => Ok(()),
    }
}
