//! Plays a recording while it is written.
//!
//! Each poll of the file reads its new part (see `cairn_recording::live`), and plays the events
//! whose order is final.

use std::ops::ControlFlow;
use std::path::Path;

use super::cairn::CairnRecording;
use super::filter::Filter;
use super::{EventSink, PlayError, Player, Source, Stage, is_cairns};
use crate::names::AddressNames;
use cairn_recording::{Live, is_running};

impl Player {
    /// Plays the recording in a file, and continues with new events.
    ///
    /// Ends when the recording ends, the recorded program is gone, or the sink or `pause` breaks.
    /// `pause` is called between two polls; it waits briefly and flushes output. Returns the
    /// recording in its last state, for its tables and findings; its events have been played.
    ///
    /// # Errors
    ///
    /// [`PlayError`]; [`PlayError::CannotFollow`] for recordings that do not grow at their end.
    pub fn follow(
        path: &Path,
        filter: &Filter,
        mut names: Option<&mut AddressNames>,
        sink: &mut EventSink<'_>,
        pause: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<Self, PlayError> {
        check_kind(path)?;
        let (recording, mut live) = Live::open(path).map_err(PlayError::Recording)?;
        let mut recording = CairnRecording::new(recording);
        if recording.is_ring() {
            let problem = "a ring forgets its oldest events while it is read";
            return Err(PlayError::CannotFollow { problem });
        }
        loop {
            recording.poll(&mut live, false)?;
            if live.is_drained() {
                let problem = "cairn drains it, so its blocks are used again; follow the recording that cairn makes of it";
                return Err(PlayError::CannotFollow { problem });
            }
            let is_over =
                recording.has_ended() || !is_running(recording.process()) && recording.is_settled(&live);
            if is_over {
                // Reads events written between the last poll and the program's end.
                recording.poll(&mut live, true)?;
            }
            let mut stage = Stage::new(filter, &recording, names.as_deref_mut(), sink);
            let mut progress = recording.play_new(&mut live, filter, &mut |event| stage.push(event))?;
            if progress.is_continue() {
                progress = stage.flush();
            }
            if progress.is_break() || is_over || pause().is_break() {
                recording.add_findings(live.findings());
                return Ok(Self { source: Source::Cairn(Box::new(recording)) });
            }
        }
    }
}

/// Checks the kind of the file; only cairn's own recordings grow.
fn check_kind(path: &Path) -> Result<(), PlayError> {
    use std::io::Read;
    let mut start = Vec::new();
    let file = std::fs::File::open(path).map_err(PlayError::Io)?;
    file.take(8).read_to_end(&mut start).map_err(PlayError::Io)?;
    if is_cairns(&start) {
        return Ok(());
    }
    // Reports the actual kind, or that it is none.
    Player::open(path)?;
    Err(PlayError::CannotFollow { problem: "a recording of call-stack-tracker is written at once" })
}
