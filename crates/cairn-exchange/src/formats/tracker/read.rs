//! Reads a call-stack-tracker recording through the player, and counts its stacks.

use std::io::Read;
use std::ops::ControlFlow;

use cairn_analysis::names::AddressNames;
use cairn_analysis::player::{Filter, PlayError, Player, What};

use crate::error::ExchangeError;
use crate::model::changes::{Change, Changes};
use crate::model::marks::MarkProfileBuilder;
use crate::model::profile::Profile;

pub(super) const FORMAT: &str = "call-stack-tracker";
/// Remark on the numbers of an imported recording.
pub(crate) const NOTE: &str = "call-stack-tracker records neither sizes nor frees: each recorded stack counts as an allocation of unknown size";
/// Plausible wall times in nanoseconds: from 2000 to 2100.
const CLOCK_NANOS: std::ops::Range<u64> = 946_684_800_000_000_000..4_102_444_800_000_000_000;
/// Maximum frames of a stack, as in the tracker.
const MOST_FRAMES: u16 = 200;
/// Maximum UTF-16 units of a path, as in Windows.
const MOST_UNITS: u16 = 1 << 15;

/// Detects a recording, which has no magic: an event type, a time, and a length in plausible
/// ranges.
pub(crate) fn begins(bytes: &[u8]) -> bool {
    let [code @ 0..=2, rest @ ..] = bytes else { return false };
    let Some((nanos, rest)) = rest.split_first_chunk() else { return false };
    let Some((length, rest)) = rest.split_first_chunk() else { return false };
    let length = u16::from_le_bytes(*length);
    let is_length = match code {
        2 => length <= MOST_FRAMES,
        // A path begins with a letter or a slash.
        _ => {
            length == 0 || (length <= MOST_UNITS && matches!(rest, [unit, 0, ..] if !unit.is_ascii_control()))
        }
    };
    is_length && CLOCK_NANOS.contains(&u64::from_le_bytes(*nanos))
}

/// The content of a recording.
#[derive(Debug)]
pub(crate) struct TrackerImport {
    pub(crate) profile: Profile,
    pub(crate) changes: Changes,
    /// Defects of the recording.
    pub(crate) findings: Vec<String>,
}

/// Reads a recording; resolves names if requested.
pub(crate) fn read(
    input: impl Read,
    names: Option<&mut AddressNames>,
) -> Result<TrackerImport, ExchangeError> {
    let mut player = Player::from_reader(input).map_err(of_player)?;
    let mut builder = MarkProfileBuilder::default();
    let mut list = Vec::new();
    let outcome = player.play(&Filter::default(), names, &mut |event, tables, names| {
        if let What::Mark { .. } = event.what {
            let stack = builder.stack_of(event, tables, names).map_or(0, |stack| stack + 1);
            let nanos = u64::try_from(event.nanos).unwrap_or(0);
            list.push(Change { nanos, stack, thread: 0, process: 0, bytes: 0, address: 0 });
        }
        ControlFlow::Continue(())
    });
    outcome.map_err(of_player)?;
    if list.is_empty() {
        let counts = "modules that came and went; it has no stacks".to_owned();
        return Err(ExchangeError::NoHeap { format: FORMAT, counts });
    }
    let mut profile = builder.into_profile();
    let end_nanos = u64::try_from(player.tables().extent().1).unwrap_or(0);
    profile.started_wall_nanos = player.tables().wall_nanos(0);
    profile.duration_nanos = end_nanos;
    let changes = Changes { list, has_frees: false, end_nanos };
    Ok(TrackerImport { profile, changes, findings: player.findings() })
}

pub(super) fn of_player(error: PlayError) -> ExchangeError {
    match error {
        PlayError::Io(error) => ExchangeError::reading(error),
        error => ExchangeError::at_byte(FORMAT, 0, error.to_string()),
    }
}
