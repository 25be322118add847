//! Terms for blocks that were not freed. Only a program that exited has leaked them.

use cairn_format::recording::EndReason;

use cairn_recording::Recording;

/// Kind of the blocks that were not freed in a recording.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub enum Unfreed {
    /// The program exited: nothing will free them.
    Leaked,
    /// The program still runs, and may free them.
    AliveNow,
    /// The recording ended, and the program went on and may have freed them.
    AliveAtStop,
    /// Another program took the place of the recorded one, and its memory with it.
    AliveAtExec,
    /// The process ended by `_exit` or by a signal; it is not known by which.
    AliveAtEnd,
    /// The program exited; but the recording was stopped for a while.
    ///
    /// Blocks that were freed meanwhile are here as well.
    AliveAfterPause,
    /// The recording has no end: the program was killed, or the file does not say.
    #[default]
    Alive,
}

impl Unfreed {
    /// Determines the kind for a recording.
    #[must_use]
    pub fn of(recording: &Recording) -> Self {
        match recording.end() {
            None if recording.growth().is_some() => Self::AliveNow,
            None => Self::Alive,
            Some((EndReason::Exit, _)) if !recording.pauses().is_empty() => Self::AliveAfterPause,
            Some((EndReason::Exit, _)) => Self::Leaked,
            Some((EndReason::Exec, _)) => Self::AliveAtExec,
            Some((EndReason::Gone, _)) => Self::AliveAtEnd,
            Some(_) => Self::AliveAtStop,
        }
    }

    /// Whether they are leaks.
    #[must_use]
    pub const fn is_leaked(self) -> bool {
        matches!(self, Self::Leaked)
    }

    /// One word for them, in tables and in JSON.
    #[must_use]
    pub const fn word(self) -> &'static str {
        if self.is_leaked() { "leaked" } else { "alive" }
    }

    /// Determines the kind for a comparison of two recordings.
    #[must_use]
    pub const fn of_both(self, other: Self) -> Self {
        if self.is_leaked() { other } else { self }
    }

    /// The heading of a list of them.
    #[must_use]
    pub const fn heading(self) -> &'static str {
        match self {
            Self::Leaked => "Leaked (never freed)",
            Self::AliveNow => "Alive now (the program still runs)",
            Self::AliveAtStop => "Alive when the recording ended (the program went on)",
            Self::AliveAtExec => "Alive when another program took its place (exec)",
            Self::AliveAtEnd => "Alive at the end of the program (_exit or a signal)",
            Self::AliveAfterPause => "Alive at the end (the recording was stopped for a while)",
            Self::Alive => "Alive when the recording stops",
        }
    }
}
