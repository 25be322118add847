//! The signals that ask a command to end.

use std::mem::MaybeUninit;
use std::ptr;
use std::time::Duration;

/// The signals that ask a command to end. The command waits for them; they do not end it.
#[derive(Debug)]
pub struct Interrupts {
    signals: libc::sigset_t,
}

impl Interrupts {
    /// Blocks the signals from now on, in this thread and those that it starts.
    #[must_use]
    pub fn hold() -> Self {
        let mut signals = MaybeUninit::uninit();
        // SAFETY: a set that lives here, made empty before it is read.
        unsafe {
            libc::sigemptyset(signals.as_mut_ptr());
            for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT] {
                libc::sigaddset(signals.as_mut_ptr(), signal);
            }
            let signals = signals.assume_init();
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const signals, ptr::null_mut());
            Self { signals }
        }
    }

    /// Waits for one of the signals, at most for `time`; returns true when one came.
    #[must_use]
    pub fn wait(&self, time: Duration) -> bool {
        let time =
            libc::timespec { tv_sec: time.as_secs() as libc::time_t, tv_nsec: time.subsec_nanos().into() };
        // SAFETY: the set and the time live here; null for the signal's details is allowed.
        unsafe { libc::sigtimedwait(&raw const self.signals, ptr::null_mut(), &raw const time) > 0 }
    }
}
