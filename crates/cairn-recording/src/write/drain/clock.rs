//! The clocks while a spool is drained: how the counter of its events converts to time.

use cairn_format::recording::FileHeader;

use crate::clock::TimeScale;
use crate::mapped_file::read_clocks;

/// Interval at which the clocks are compared.
const COMPARED_NANOS: u64 = 50_000_000;
/// Interval at which a comparison of clocks goes into the recording; 10 s.
///
/// The wall clock is known then, and the list stays short.
const STORED_NANOS: u64 = 10_000_000_000;

/// See the module documentation.
pub(super) struct DrainClock {
    pub(super) scale: TimeScale,
    compared_nanos: u64,
    stored_nanos: u64,
    /// The counter when the last step began, from the start.
    pub(super) now_ticks: u64,
}

/// One reading of the clocks.
pub(super) struct ClockReading {
    /// The counter, from the start.
    pub(super) ticks: u64,
    /// Nanoseconds from the start and the wall clock, when it is time to store them.
    pub(super) stored: Option<(u64, u64)>,
}

impl DrainClock {
    pub(super) fn new(scale: TimeScale) -> Self {
        Self { scale, compared_nanos: 0, stored_nanos: 0, now_ticks: 0 }
    }

    pub(super) fn read(&mut self, header: &FileHeader) -> ClockReading {
        let clocks = read_clocks(header.counter);
        let nanos = clocks.monotonic_nanos.saturating_sub(header.start_monotonic_nanos);
        let mut stored = None;
        if !self.scale.is_known() || nanos >= self.compared_nanos.saturating_add(COMPARED_NANOS) {
            self.compared_nanos = nanos;
            self.scale.push(header, &clocks);
            if nanos >= self.stored_nanos.saturating_add(STORED_NANOS) {
                self.stored_nanos = nanos;
                stored = Some((nanos, clocks.wall_nanos));
            }
        }
        ClockReading { ticks: clocks.counter.saturating_sub(header.start_counter), stored }
    }
}
