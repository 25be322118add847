//! Signal handlers that record, and interrupt an event.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cairn_capture::capture;
use cairn_format::recording::Lane;
use cairn_recorder::{capture_from_context, heap, mark, start};

use crate::support::Spool;
use crate::{Runner, options};

static IN_HANDLER: AtomicU64 = AtomicU64::new(0);

extern "C" fn on_signal(_: i32, _: *mut libc::siginfo_t, context: *mut core::ffi::c_void) {
    mark("in the handler");
    let address = 0x7000_0000_0000 + IN_HANDLER.fetch_add(1, Ordering::Relaxed) * 16;
    heap::allocated_by(address, 32, capture());
    heap::freeing(address);
    // SAFETY: the context that this handler was called with.
    unsafe { capture_from_context(context.cast(), b"interrupted") };
}

/// One in some hundred signals meets a thread that is writing an event.
const ENOUGH: u64 = 100;

/// Prints how many events of each kind there were.
pub(crate) fn child(path: &Path) {
    start(&options(path)).unwrap();
    // SAFETY: zeros are a value of an action, and the handler does only what a handler may do.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_signal as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
        libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut());
    }
    // SAFETY: asks only.
    let target = unsafe { libc::pthread_self() };
    let (end, latest) = (Instant::now() + Duration::from_secs(2), Instant::now() + Duration::from_secs(60));
    // On a machine that has much else to do they come rarely.
    let goes_on = move || {
        let now = Instant::now();
        now < end || IN_HANDLER.load(Ordering::Relaxed) < 2 * ENOUGH && now < latest
    };
    let mut events = 0_u64;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            while goes_on() {
                // SAFETY: the thread waits for this one before it ends.
                unsafe { libc::pthread_kill(target, libc::SIGUSR1) };
                std::thread::yield_now();
            }
        });
        while goes_on() {
            for _ in 0..200 {
                let address = 0x1_0000 + events % 640 * 16;
                heap::allocated_by(address, 16, capture());
                heap::freeing(address);
                events += 1;
            }
        }
    });
    println!("{events} {}", IN_HANDLER.load(Ordering::Relaxed));
}

/// Maximum runs until a signal has come during an event; 10, because some runs have none. On an
/// idle machine, signals come less often during events, and more often between them.
const RUNS: usize = 10;

pub(crate) fn check(runner: &Runner) {
    for _ in 0..RUNS {
        let (inside, nested) = check_run(runner);
        if inside > ENOUGH && nested > 0 {
            return;
        }
        std::fs::remove_file(&runner.path).unwrap();
    }
    panic!("no signal came during an event");
}

/// Checks one run; answers with the number of signals, and of heap events in the nested lane.
fn check_run(runner: &Runner) -> (u64, usize) {
    let printed = runner.run();
    let numbers: Vec<u64> = printed.split_whitespace().map(|word| word.parse().unwrap()).collect();
    let [outside, inside] = numbers[..] else { panic!("{printed}") };
    let spool = Spool::open(&runner.path);
    spool.check();
    assert_eq!(spool.lost_events, 0);
    assert_eq!(spool.marks.len() as u64, inside * 2);
    let heap: usize = spool.sequences.values().map(|sequence| sequence.heap.len()).sum();
    assert_eq!(heap as u64, (outside + inside) * 2);
    let nested: usize = spool
        .sequences
        .iter()
        .filter(|((_, lane), _)| *lane == Lane::Nested)
        .map(|(_, sequence)| sequence.heap.len())
        .sum();
    let pairing = spool.pair();
    assert_eq!((pairing.unmatched, pairing.live.len()), (0, 0));
    println!("signals: {outside} pairs, {inside} signals, {nested} heap events in the nested lane");
    (inside, nested)
}
