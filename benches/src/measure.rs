//! Interleaved timing: every case runs once per round, so that a noisy second of the machine falls
//! on all of them alike.

use std::hint::black_box;
use std::time::{Duration, Instant};

/// How long one timed run of a case lasts at least; shorter runs measure the clock.
const RUN: Duration = Duration::from_millis(8);

/// Timed runs per case. Odd, so that the median is one of them.
const ROUNDS: usize = 21;

/// Name of one unit of work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unit {
    Frame,
    Image,
    /// Bytes searched, not frames found.
    Byte,
}

impl Unit {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Frame => "frame",
            Self::Image => "image",
            Self::Byte => "byte",
        }
    }
}

/// One operation of one implementation over one set of inputs.
pub(crate) struct Case<'a> {
    /// The format and operation, as in `CBF encode`; cases with the same one are compared.
    pub(crate) operation: &'static str,
    pub(crate) implementation: &'static str,
    pub(crate) input: &'static str,
    pub(crate) unit: Unit,
    /// Units of work in one pass.
    pub(crate) units: usize,
    /// Encoded bytes that one pass reads or writes.
    pub(crate) bytes: usize,
    /// One skip the input. The number keeps the optimiser from dropping the work, and shows
    /// that all passes and all implementations of an operation did the same.
    pub(crate) pass: Box<dyn FnMut() -> u64 + 'a>,
}

impl Case<'_> {
    /// Returns the name by which `loop` runs it.
    pub(crate) fn id(&self) -> String {
        format!("{}/{}/{}", self.operation, self.implementation, self.input).to_lowercase().replace(' ', "-")
    }

    pub(crate) fn bytes_per_unit(&self) -> f64 {
        self.bytes as f64 / self.units as f64
    }
}

/// Nanoseconds per unit over the rounds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timing {
    pub(crate) median_nanos: f64,
    pub(crate) lowest_nanos: f64,
    pub(crate) highest_nanos: f64,
}

/// Times all cases, round by round; one timing per case, in their order.
pub(crate) fn interleaved(cases: &mut [Case<'_>]) -> Vec<Timing> {
    let passes: Vec<u32> = cases.iter_mut().map(passes_for_one_run).collect();
    let mut runs: Vec<Vec<f64>> = vec![Vec::with_capacity(ROUNDS); cases.len()];
    for _ in 0..ROUNDS {
        for ((case, &passes), runs) in cases.iter_mut().zip(&passes).zip(&mut runs) {
            let elapsed = time(case, passes);
            runs.push(elapsed.as_nanos() as f64 / f64::from(passes) / case.units as f64);
        }
    }
    runs.into_iter().map(summarize).collect()
}

fn passes_for_one_run(case: &mut Case<'_>) -> u32 {
    time(case, 1);
    let mut passes = 1;
    while time(case, passes) < RUN && passes < 1 << 20 {
        passes *= 2;
    }
    passes
}

fn time(case: &mut Case<'_>, passes: u32) -> Duration {
    let start = Instant::now();
    for _ in 0..passes {
        black_box((case.pass)());
    }
    start.elapsed()
}

fn summarize(mut nanos: Vec<f64>) -> Timing {
    nanos.sort_by(f64::total_cmp);
    Timing {
        median_nanos: nanos[nanos.len() / 2],
        lowest_nanos: nanos[0],
        highest_nanos: nanos[nanos.len() - 1],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_is_the_middle_and_the_ends() {
        let timing = summarize(vec![5.0, 1.0, 9.0]);
        assert_eq!((timing.lowest_nanos, timing.median_nanos, timing.highest_nanos), (1.0, 5.0, 9.0));
    }
}
