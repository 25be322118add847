//! Two marks some 0.3 ms apart, and an end that the recorder is not asked for: `short_recording
//! return|exit|quit|kill`. Prints the monotonic clock in nanoseconds before and after each mark, as
//! `fixtures/programs/heap/short.c` does.

#![allow(clippy::print_stdout, reason = "a program for the terminal")]

use cairn_recorder::mark;

fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes to the variable alone.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn main() {
    let mut times = [now(), 0, 0, 0];
    mark("first");
    times[1] = now();
    while now() - times[1] < 300_000 {}
    times[2] = now();
    mark("second");
    times[3] = now();
    println!("{} {} {} {}", times[0], times[1], times[2], times[3]);
    match std::env::args().nth(1).as_deref() {
        Some("exit") => std::process::exit(0),
        // SAFETY: ends this process.
        Some("quit") => unsafe { libc::_exit(0) },
        Some("kill") => {
            // SAFETY: sends this process a signal that ends it.
            unsafe { libc::raise(libc::SIGKILL) };
        }
        _ => {}
    }
}
