//! State that this process inherited, noted before Rust's runtime changes it: the runtime ignores
//! SIGPIPE (and this library SIGXFSZ), and opens /dev/null for closed standard streams. A program
//! that we start gets the state that we inherited.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

static IGNORES_PIPE: AtomicBool = AtomicBool::new(false);
static IGNORES_CHILD: AtomicBool = AtomicBool::new(false);
static IGNORES_LIMIT: AtomicBool = AtomicBool::new(false);
/// One bit for each standard stream that was closed.
static CLOSED: AtomicU8 = AtomicU8::new(0);

#[used]
#[unsafe(link_section = ".init_array")]
static NOTE: extern "C" fn() = note;

extern "C" fn note() {
    IGNORES_PIPE.store(is_ignored(libc::SIGPIPE), Ordering::Relaxed);
    IGNORES_CHILD.store(is_ignored(libc::SIGCHLD), Ordering::Relaxed);
    IGNORES_LIMIT.store(is_ignored(libc::SIGXFSZ), Ordering::Relaxed);
    // For this process, a file that may not grow is an error like others.
    // SAFETY: no handler.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    for stream in 0..3 {
        // SAFETY: asks for the flags of a descriptor.
        if unsafe { libc::fcntl(stream, libc::F_GETFD) } < 0 {
            CLOSED.fetch_or(1 << stream, Ordering::Relaxed);
        }
    }
}

fn is_ignored(signal: libc::c_int) -> bool {
    // SAFETY: zeros are a value of an action, and the call only writes to it.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &raw mut action) == 0
            && action.sa_sigaction == libc::SIG_IGN
    }
}

/// Restores all of it. Calls only functions that may be called between `fork` and `exec`.
pub(crate) fn restore() {
    let disposition = |ignores: &AtomicBool| {
        if ignores.load(Ordering::Relaxed) { libc::SIG_IGN } else { libc::SIG_DFL }
    };
    // SAFETY: neither is a handler.
    unsafe {
        libc::signal(libc::SIGPIPE, disposition(&IGNORES_PIPE));
        libc::signal(libc::SIGCHLD, disposition(&IGNORES_CHILD));
        libc::signal(libc::SIGXFSZ, disposition(&IGNORES_LIMIT));
    }
    for stream in 0..3 {
        if CLOSED.load(Ordering::Relaxed) & 1 << stream != 0 {
            // SAFETY: the runtime's /dev/null, which nobody uses after the exec that follows.
            unsafe { libc::close(stream) };
        }
    }
}
