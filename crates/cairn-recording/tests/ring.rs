//! A ring whose segments the program overwrites while it is read: each reading is of whole
//! segments, and says what is missing.
#![cfg(target_os = "linux")]

use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use cairn_format::recording::MarkValue;
use cairn_recorder::{EndReason, Keep, Options, mark_value, start, stop};
use cairn_recording::{Events, Finding, Mark, Recording, Wanted};

const RING_BYTES: u64 = 2 << 20;
const THREADS: i64 = 2;

#[derive(Default)]
struct Numbers([Vec<i64>; THREADS as usize]);

impl Events for Numbers {
    fn mark(&mut self, event: &Mark<'_>) {
        if let MarkValue::Integer(value) = event.value {
            self.0[(value >> 32) as usize].push(value & 0xffff_ffff);
        }
    }
}

// Failed with: no word that it grows, or up to which moment it was read.
#[test]
fn ring_is_read_whole_while_it_is_overwritten() {
    let directory = std::env::temp_dir().join(format!("cairn-ring-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&directory);
    std::fs::create_dir_all(&directory).unwrap();
    let path = directory.join("it.cairn");
    let mut options = Options::new(path.as_os_str().as_bytes());
    options.keep = Keep::Last { bytes: RING_BYTES, nanos: u64::MAX };
    start(&options).unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let is_over = &is_over;
            scope.spawn(move || {
                for number in 0.. {
                    mark_value("ring", MarkValue::Integer(thread << 32 | number));
                    if is_over.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
        }
        let checked = std::panic::catch_unwind(|| check(&path));
        is_over.store(true, Ordering::Relaxed);
        checked.unwrap();
    });
    stop(EndReason::Stopped);
    assert!(Recording::open(&path).unwrap().growth().is_none());
    std::fs::remove_dir_all(directory).unwrap();
}

fn check(path: &std::path::Path) {
    const READINGS: u32 = 12;
    let (mut whole, mut last, mut until) = (0, [0; THREADS as usize], 0);
    let began = Instant::now();
    let mut readings = 0;
    // Until it was overwritten many times, and read without a gap.
    while readings < READINGS || whole == 0 || last.iter().any(|&number| number < 60_000) {
        assert!(began.elapsed() < Duration::from_secs(300), "{whole} of {readings} readings are whole");
        readings += 1;
        let recording = Recording::open(path).unwrap();
        let growth = recording.growth().expect("it still grows");
        assert!(!growth.is_drained && growth.until_nanos.unwrap() >= until, "{growth:?}");
        until = growth.until_nanos.unwrap();
        let mut numbers = Numbers::default();
        let outcome = recording.read(&Wanted::OTHERS, &mut numbers).unwrap();
        let findings: Vec<&Finding> = recording.findings().iter().chain(&outcome.findings).collect();
        let is_bad = |finding: &&Finding| {
            matches!(
                finding,
                Finding::DamagedSegment { .. } | Finding::DamagedRecords { .. } | Finding::TornTail { .. }
            )
        };
        assert!(!findings.iter().any(is_bad), "{findings:?}");
        let says_gap = |finding: &&Finding| {
            matches!(finding, Finding::MissingSegments { .. } | Finding::Overwritten { .. })
        };
        let is_whole = !findings.iter().any(says_gap);
        whole += u32::from(is_whole);
        for (numbers, last) in numbers.0.iter().zip(&mut last) {
            assert!(numbers.is_sorted() && numbers.windows(2).all(|pair| pair[0] < pair[1]));
            let has_gap = numbers.windows(2).any(|pair| pair[0] + 1 != pair[1]);
            assert!(!has_gap || !is_whole, "a gap without a word: {findings:?}");
            let newest = numbers.last().copied().unwrap_or(*last);
            assert!(newest >= *last || !is_whole, "{newest} after {last}");
            *last = newest.max(*last);
        }
    }
}
