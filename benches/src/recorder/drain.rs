//! Imitates the process that drains a spool: returns segments whose thread has gone on to
//! another, extends the file, ticks. The records themselves are not read; what that costs is
//! another benchmark's affair.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use cairn_format::recording::{Lane, SEGMENT_BYTES, SEGMENT_HEADER_BYTES, SegmentHeader, control};

/// Drains until it is dropped.
pub(crate) struct Drain {
    shall_end: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Drain {
    fn drop(&mut self) {
        self.shall_end.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

pub(crate) fn begin(path: &Path) -> Drain {
    let file = File::options().read(true).write(true).open(path).expect("the spool");
    let shall_end = Arc::new(AtomicBool::new(false));
    let done = Arc::clone(&shall_end);
    let work = move || {
        let mut state = DrainState { file, given: HashMap::new(), ticks: 0, count: 0 };
        while !done.load(Ordering::Relaxed) {
            state.turn();
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    Drain { shall_end, thread: Some(std::thread::spawn(work)) }
}

pub(crate) fn claimed_blocks(path: &Path) -> u64 {
    word(&File::open(path).expect("the spool"), control::CLAIMED_SEGMENTS)
}

/// Reads and writes of a file are coherent with a shared mapping of it.
fn word(file: &File, offset: usize) -> u64 {
    let mut bytes = [0; 8];
    file.read_exact_at(&mut bytes, offset as u64).expect("a control word");
    u64::from_le_bytes(bytes)
}

struct DrainState {
    file: File,
    /// The claim that was given back, by block.
    given: HashMap<u64, u64>,
    ticks: u64,
    count: u64,
}

impl DrainState {
    fn turn(&mut self) {
        self.ticks += 1;
        self.set(control::TICK, self.ticks);
        let claimed = word(&self.file, control::CLAIMED_SEGMENTS);
        let backed = word(&self.file, control::BACKED_SEGMENTS);
        if claimed + 64 > backed {
            let (from, length) = (backed * SEGMENT_BYTES as u64, 256 * SEGMENT_BYTES as u64);
            // SAFETY: extends a file that is open here.
            let result = unsafe { libc::fallocate(self.file.as_raw_fd(), 0, from as i64, length as i64) };
            assert_eq!(result, 0, "no room on the disk");
            self.set(control::BACKED_SEGMENTS, backed + 256);
        }
        let headers: Vec<(u64, SegmentHeader)> =
            (1..claimed).filter_map(|block| Some((block, self.header(block)?))).collect();
        let mut last: HashMap<(u32, Lane), u32> = HashMap::new();
        for (_, header) in &headers {
            let sequence = last.entry((header.thread, header.lane)).or_default();
            *sequence = header.sequence.max(*sequence);
        }
        for (block, header) in headers {
            let is_left = header.sequence < last[&(header.thread, header.lane)];
            if is_left && self.given.insert(block, header.claim) != Some(header.claim) {
                let at = control::FREE_RING + self.count as usize % control::FREE_RING_ENTRIES * 4;
                self.file.write_all_at(&(block as u32).to_le_bytes(), at as u64).expect("the ring");
                self.count += 1;
                self.set(control::FREE_GIVEN, self.count);
            }
        }
    }

    fn header(&self, block: u64) -> Option<SegmentHeader> {
        let mut bytes = [0; SEGMENT_HEADER_BYTES];
        self.file.read_exact_at(&mut bytes, block * SEGMENT_BYTES as u64).ok()?;
        SegmentHeader::read(&bytes).ok()
    }

    fn set(&self, offset: usize, value: u64) {
        self.file.write_all_at(&value.to_le_bytes(), offset as u64).expect("a control word");
    }
}
