//! Plays a recording while it is written.
//!
//! The file is read again and again, and what is new in each thread is played. How far a thread was played is a number of
//! events: the events of one thread have one order and only become more, while times are estimated better as a recording
//! grows.
//!
//! ```text
//!   thread 1:  # # # # # # | # # .      # played   | new at this look   . later than the look began: at the next one
//! ```
//!
//! While one thread's events are read, another thread may write earlier ones than these into what was read before. So what
//! is later than the beginning of a look waits for the next one.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use super::cairn::CairnRecording;
use super::event::{Event, Tables};
use super::filter::Filter;
use super::{EventSink, PlayError, Player, Source, Stage};
use crate::names::Names;

/// See the module documentation.
struct Follower {
    path: PathBuf,
    /// For each thread how many events were played, and how many were seen.
    threads: HashMap<Option<usize>, Progress>,
}

#[derive(Clone, Copy, Default)]
struct Progress {
    played: u64,
    seen: u64,
}

impl Player {
    /// Plays the recording in a file, and goes on with what comes, until the recording ends, the recorded program is gone,
    /// or the sink or `pause` has enough. `pause` is called between two looks at the file; it waits a little and shows
    /// what was printed so far. Returns the recording as it was seen last.
    ///
    /// # Errors
    ///
    /// [`PlayError`]; [`PlayError::CannotFollow`] for recordings that do not grow at their end.
    pub fn follow(
        path: &Path,
        filter: &Filter,
        mut names: Option<&mut Names>,
        sink: &mut EventSink<'_>,
        pause: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<Self, PlayError> {
        let mut follower = Follower { path: path.to_owned(), threads: HashMap::new() };
        loop {
            let (player, progress) = follower.look(filter, names.as_deref_mut(), sink)?;
            if progress.is_break() || pause().is_break() {
                return Ok(player);
            }
        }
    }
}

impl Follower {
    fn look(
        &mut self,
        filter: &Filter,
        names: Option<&mut Names>,
        sink: &mut EventSink<'_>,
    ) -> Result<(Player, ControlFlow<()>), PlayError> {
        // Before the file is read: what a program writes at its end is there when it is gone.
        let now = SystemTime::now();
        let player = Player::open(&self.path)?;
        let Source::Cairn(recording) = &player.source else {
            return Err(PlayError::CannotFollow {
                problem: "a recording of call-stack-tracker is written at once",
            });
        };
        if recording.is_ring() {
            return Err(PlayError::CannotFollow {
                problem: "a ring forgets its oldest events while it is read",
            });
        }
        let is_over = recording.has_ended() || !is_running(recording.process());
        // A second look, for what was written between the first one and the program's end.
        let player = if is_over { Player::open(&self.path)? } else { player };
        let Source::Cairn(recording) = &player.source else { return Ok((player, ControlFlow::Break(()))) };
        let until = if is_over { i64::MAX } else { nanos_at(&**recording, now) };
        let mut progress = self.play(recording, until, filter, names, sink)?;
        if is_over {
            progress = ControlFlow::Break(());
        }
        Ok((player, progress))
    }

    /// Plays what is new and not later than `until`.
    fn play(
        &mut self,
        recording: &CairnRecording,
        until: i64,
        filter: &Filter,
        names: Option<&mut Names>,
        sink: &mut EventSink<'_>,
    ) -> Result<ControlFlow<()>, PlayError> {
        let before = self.threads.clone();
        for progress in self.threads.values_mut() {
            progress.seen = 0;
        }
        let threads = &mut self.threads;
        let mut stage = Stage::new(filter, recording, names, sink);
        let mut outcome = ControlFlow::Continue(());
        // Without its times: events are counted, so all must be seen.
        let all = Filter { since: None, until: None, ..filter.clone() };
        recording.play(&all, &mut |event: Event| {
            let progress = threads.entry(event.thread).or_default();
            progress.seen += 1;
            let seen_before = before.get(&event.thread).is_some_and(|before| progress.seen <= before.seen);
            let is_new = progress.seen > progress.played;
            if is_new && (event.nanos <= until || seen_before) {
                progress.played = progress.seen;
                outcome = stage.push(event);
            }
            outcome
        })?;
        Ok(if outcome.is_break() { outcome } else { stage.flush() })
    }
}

fn nanos_at(tables: &dyn Tables, time: SystemTime) -> i64 {
    let since_1970 = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    tables.nanos_at_wall(u64::try_from(since_1970).unwrap_or(u64::MAX))
}

/// Whether the recorded process is there. Where that cannot be known it is taken to be.
fn is_running(process: u32) -> bool {
    let all = Path::new("/proc");
    if !all.join("self").exists() {
        return true;
    }
    let stat = std::fs::read_to_string(all.join(process.to_string()).join("stat"));
    // One that has ended and was not waited for has a line of its own still.
    stat.is_ok_and(|stat| stat.rsplit_once(") ").is_some_and(|(_, fields)| !fields.starts_with(['Z', 'X'])))
}
