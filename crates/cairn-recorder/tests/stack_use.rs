//! How much stack an event takes below its caller, on a thread's own stack and the first time as
//! well as later.

#![cfg(target_os = "linux")]

mod support;

use std::os::unix::ffi::OsStrExt;

use cairn_capture::capture;
use cairn_recorder::{Options, heap, mark, start};
use support::fresh_path;

const PAINTED: usize = 64 << 10;
const PAINT: u8 = 0xa5;

/// Runs `work` above painted stack; bytes below this function's frame that are not painted any
/// more.
#[inline(never)]
fn use_of(work: &dyn Fn()) -> usize {
    let here = std::hint::black_box(0_u8);
    // Below what the paint's own call needs.
    let top = &raw const here as usize - 512;
    let area = (top - PAINTED) as *mut u8;
    // SAFETY: the free part of this thread's stack, which the call of `work` will use again.
    unsafe { paint(area, PAINTED) };
    work();
    // SAFETY: as above.
    let untouched = (0..PAINTED).take_while(|at| unsafe { area.add(*at).read_volatile() } == PAINT).count();
    PAINTED - untouched + 512
}

/// Without a call, whose frames would lie in what is painted.
#[inline(always)]
unsafe fn paint(area: *mut u8, bytes: usize) {
    for at in 0..bytes {
        // SAFETY: by the caller.
        unsafe { area.add(at).write_volatile(PAINT) };
    }
}

#[test]
fn event_uses_little_stack() {
    let path = fresh_path("stack");
    start(&Options::new(path.as_os_str().as_bytes())).unwrap();
    let pair = || {
        heap::allocated_by(0x1000, 64, capture());
        heap::freeing(0x1000);
    };
    let first_mark = || mark("first");
    let measure = move || {
        let bare_first = use_of(&|| _ = std::hint::black_box(capture()));
        let bare = use_of(&|| _ = std::hint::black_box(capture()));
        let first = use_of(&pair);
        let again = use_of(&pair);
        let marked = use_of(&first_mark);
        // Over the end of a segment, which asks for a fresh one.
        let over = use_of(&|| (0..5000).for_each(|_| pair()));
        [bare_first, bare, first, again, marked, over]
    };
    let [bare_first, bare, first, again, marked, over] = std::thread::spawn(measure).join().unwrap();
    let text = format!(
        "capture first {bare_first}, again {bare}; pair first {first}, again {again}; mark {marked}; next segment {over}"
    );
    std::fs::remove_file(&path).unwrap();
    // Debug builds use several times as much; the figures of a release build are in
    // benchmarks/record.
    let limit = if cfg!(debug_assertions) { 16 << 10 } else { 2 << 10 };
    for bytes in [first, again, marked, over] {
        assert!(bytes <= limit, "{text}");
    }
    assert!(std::env::var_os("CAIRN_SHOW_STACK_USE").is_none(), "{text}");
}
