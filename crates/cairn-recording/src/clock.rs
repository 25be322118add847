//! From the counter that events are stamped with to nanoseconds, and from these to the time of day.

use cairn_format::recording::{Clock, CounterKind, FileHeader};

use super::error::Finding;

/// Converts the counter of a recording into nanoseconds from its start, and these into wall time.
///
/// Between two readings of the clocks the counter runs evenly; in front of the first and behind the
/// last one it is taken to run as fast as between them.
#[derive(Clone, PartialEq, Debug)]
pub struct TimeScale {
    start_counter: u64,
    start_wall_nanos: u64,
    /// By rising ticks; the first one begins at 0.
    stretches: Vec<Stretch>,
    /// (nanoseconds from the start, wall clock), by rising time.
    wall: Vec<(u64, u64)>,
    is_known: bool,
}

/// A stretch of time in which the counter runs evenly.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Stretch {
    ticks: u64,
    nanos: u64,
    /// Nanoseconds of a tick, times 2^32.
    scale: u64,
    /// Where the next one begins; [`u64::MAX`] for the last one.
    end_ticks: u64,
}

impl Stretch {
    #[inline]
    pub(crate) fn has(&self, ticks: u64) -> bool {
        self.ticks <= ticks && ticks < self.end_ticks
    }

    /// The time of ticks that are not before it.
    #[inline]
    pub(crate) fn nanos(&self, ticks: u64) -> u64 {
        let more = (u128::from(ticks.saturating_sub(self.ticks)) * u128::from(self.scale) + (1 << 31)) >> 32;
        u64::try_from(u128::from(self.nanos) + more).unwrap_or(u64::MAX)
    }

    /// Where the next one begins.
    pub(crate) fn end_ticks(&self) -> u64 {
        self.end_ticks
    }

    /// How long some nanoseconds are, rounded down.
    pub(crate) fn ticks_of(&self, nanos: u64) -> u64 {
        (nanos.min(u32::MAX.into()) << 32) / self.scale.max(1)
    }
}

/// Minimum distance of two clock readings, in nanoseconds.
///
/// Closer readings say too little about the counter's speed, unless there are no others.
const LEAST_SPAN_NANOS: u64 = 2_000_000;
/// The least distance of the two readings that a short recording's scale comes from. Each is exact
/// to some 50 ns, so that the speed is wrong by 1 % at most; where the later one was read at the
/// end, no time is wrong by more than these 50 ns.
const LEAST_SHORT_SPAN_NANOS: u64 = 10_000;
/// The wall clock may drift so far from the monotonic one between two readings before that is a
/// jump.
const JUMP_NANOS: i64 = 100_000_000;

impl TimeScale {
    /// The scale of a recording with these readings. `counter_hz` is how fast the counter runs,
    /// where the recorder knew.
    pub(crate) fn new(
        header: &FileHeader,
        clocks: &[Clock],
        counter_hz: Option<u64>,
        findings: &mut Vec<Finding>,
    ) -> Self {
        let mut points = vec![(0_u64, 0_u64)];
        let mut wall = vec![(0, header.start_wall_nanos)];
        let mut sorted: Vec<&Clock> = clocks.iter().collect();
        sorted.sort_by_key(|clock| clock.counter);
        for clock in &sorted {
            let ticks = clock.counter.saturating_sub(header.start_counter);
            let nanos = clock.monotonic_nanos.saturating_sub(header.start_monotonic_nanos);
            let (last_ticks, last_nanos) = points.last().copied().unwrap_or_default();
            let is_far = nanos >= last_nanos.saturating_add(LEAST_SPAN_NANOS);
            if ticks <= last_ticks || !is_far {
                continue;
            }
            points.push((ticks, nanos));
            let (_, last_wall) = wall.last().copied().unwrap_or_default();
            let ahead = clock.wall_nanos.wrapping_sub(last_wall).wrapping_sub(nanos - last_nanos) as i64;
            if !(-JUMP_NANOS..=JUMP_NANOS).contains(&ahead) {
                findings.push(Finding::ClockJump { nanos, by_nanos: ahead });
            }
            wall.push((nanos, clock.wall_nanos));
        }
        let &(end_ticks, end_nanos) = points.last().unwrap_or(&(0, 0));
        let short_span = sorted.last().and_then(|last| short_span(header, last));
        let mut is_known = true;
        let whole_scale = if header.counter == CounterKind::MonotonicNanos {
            1 << 32
        } else if end_ticks > 0 {
            scale(end_ticks, end_nanos)
        } else if let Some(hz) = counter_hz.filter(|&hz| hz > 0) {
            scale(hz, 1_000_000_000)
        } else if let Some((ticks, nanos)) = short_span {
            scale(ticks, nanos)
        } else {
            is_known = false;
            findings.push(Finding::UnknownClock);
            1 << 32
        };
        let mut stretches: Vec<Stretch> = points
            .windows(2)
            .filter_map(|pair| {
                let &[(ticks, nanos), (next_ticks, next_nanos)] = pair else { return None };
                let scale = scale(next_ticks - ticks, next_nanos - nanos);
                Some(Stretch { ticks, nanos, scale, end_ticks: next_ticks })
            })
            .collect();
        stretches.push(Stretch {
            ticks: end_ticks,
            nanos: end_nanos,
            scale: whole_scale,
            end_ticks: u64::MAX,
        });
        Self {
            start_counter: header.start_counter,
            start_wall_nanos: header.start_wall_nanos,
            stretches,
            wall,
            is_known,
        }
    }

    #[cfg(target_os = "linux")]
    /// A further reading, later than all others.
    pub(crate) fn push(&mut self, header: &FileHeader, clock: &Clock) {
        let ticks = clock.counter.saturating_sub(header.start_counter);
        let nanos = clock.monotonic_nanos.saturating_sub(header.start_monotonic_nanos);
        let Some(last) = self.stretches.last_mut() else { return };
        if !self.is_known
            && let Some((ticks, nanos)) = short_span(header, clock)
        {
            // Until there is a reading that is further away: a program may have ended by then.
            last.scale = scale(ticks, nanos);
        }
        if ticks <= last.ticks || nanos < last.nanos.saturating_add(LEAST_SPAN_NANOS) {
            return;
        }
        last.scale = scale(ticks - last.ticks, nanos - last.nanos);
        last.end_ticks = ticks;
        let whole = scale(ticks, nanos);
        self.stretches.push(Stretch { ticks, nanos, scale: whole, end_ticks: u64::MAX });
        self.wall.push((nanos, clock.wall_nanos));
        self.is_known = true;
    }

    #[cfg(target_os = "linux")]
    /// False when nothing tells yet how fast the counter runs.
    pub(crate) fn is_known(&self) -> bool {
        self.is_known
    }

    /// Returns the nanoseconds from the start of the recording to this counter value.
    ///
    /// 0 for values before the start.
    #[must_use]
    pub fn nanos(&self, counter: u64) -> u64 {
        self.nanos_of_ticks(counter.saturating_sub(self.start_counter))
    }

    /// The same, from ticks since the start.
    #[inline]
    pub(crate) fn nanos_of_ticks(&self, ticks: u64) -> u64 {
        self.stretch(ticks).nanos(ticks)
    }

    /// The stretch of time in which these ticks lie.
    pub(crate) fn stretch(&self, ticks: u64) -> Stretch {
        let index = match self.stretches.last() {
            Some(last) if last.ticks <= ticks => self.stretches.len() - 1,
            _ => self.stretches.partition_point(|stretch| stretch.ticks <= ticks).saturating_sub(1),
        };
        let none = Stretch { ticks: 0, nanos: 0, scale: 0, end_ticks: u64::MAX };
        self.stretches.get(index).copied().unwrap_or(none)
    }

    /// Nanoseconds since 1970 at `nanos` from the start of the recording. Follows the
    /// wall clock where it was set meanwhile.
    #[must_use]
    pub fn wall_nanos(&self, nanos: u64) -> u64 {
        let index = self.wall.partition_point(|&(at, _)| at <= nanos).saturating_sub(1);
        let (at, wall) = self.wall.get(index).copied().unwrap_or((0, self.start_wall_nanos));
        wall.saturating_add(nanos.saturating_sub(at))
    }

    /// The readings as (nanoseconds from the start, nanoseconds since 1970), the start first.
    #[must_use]
    pub fn readings(&self) -> &[(u64, u64)] {
        &self.wall
    }
}

/// Returns ticks and nanoseconds from the start to a reading close to it.
///
/// `None` if they are too close to give the speed of the counter.
fn short_span(header: &FileHeader, clock: &Clock) -> Option<(u64, u64)> {
    let ticks = clock.counter.checked_sub(header.start_counter)?;
    let nanos = clock.monotonic_nanos.checked_sub(header.start_monotonic_nanos)?;
    // A recorder that reads each clock once may have been interrupted between them. No processor
    // counts slower or faster than this.
    let least_and_most_hz = match header.counter {
        CounterKind::TimeStampCounter => 200_000_000..=10_000_000_000,
        CounterKind::VirtualCounter => 1_000_000..=10_000_000_000,
        CounterKind::MonotonicNanos => return None,
    };
    let hz = u128::from(ticks) * 1_000_000_000 / u128::from(nanos.max(1));
    let is_plausible = u64::try_from(hz).is_ok_and(|hz| least_and_most_hz.contains(&hz));
    (nanos >= LEAST_SHORT_SPAN_NANOS && is_plausible).then_some((ticks, nanos))
}

fn scale(ticks: u64, nanos: u64) -> u64 {
    u64::try_from((u128::from(nanos) << 32) / u128::from(ticks.max(1))).unwrap_or(u64::MAX)
}
