//! A parent drains the spool while the program runs, or has announced itself and is gone. Other
//! programs here forbid themselves system calls.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use cairn_format::recording::{
    Lane, MarkValue, Record, Records, SEGMENT_BYTES, SEGMENT_HEADER_BYTES, SegmentHeader, control,
};
use cairn_recorder::{forbid_system_calls, mark, mark_value, start};

use crate::support::Spool;
use crate::{Runner, options};

const THREADS: i64 = 3;
const MARKS: i64 = 150_000;

/// The draining side, as simple as can be. It may stand in another process just as well: it knows
/// the file alone.
struct Drain<'a> {
    file: File,
    seen: &'a mut HashSet<i64>,
    /// By segment: the claim, and how far it was read.
    read: HashMap<u64, (u64, usize)>,
    given: u64,
    ticks: u64,
    reused: u64,
    last_tick: Instant,
    longest_silence: Duration,
}

/// Longest silence of the parent in a run that counts. The program waits for longer before it helps
/// itself. A busy machine may delay the parent for longer: then the test cannot check how much the
/// program has helped itself.
const SILENCE: Duration = Duration::from_millis(150);

impl<'a> Drain<'a> {
    fn new(file: File, seen: &'a mut HashSet<i64>) -> Self {
        let (last_tick, longest_silence) = (Instant::now(), Duration::ZERO);
        Self { file, seen, read: HashMap::new(), given: 0, ticks: 0, reused: 0, last_tick, longest_silence }
    }

    fn word(&self, offset: usize) -> u64 {
        let mut bytes = [0; 8];
        self.file.read_exact_at(&mut bytes, offset as u64).unwrap();
        u64::from_le_bytes(bytes)
    }

    fn set(&self, offset: usize, value: u64) {
        self.file.write_all_at(&value.to_le_bytes(), offset as u64).unwrap();
    }

    /// One who does not show up for a while is taken to be gone.
    fn tick(&mut self) {
        self.longest_silence = self.longest_silence.max(self.last_tick.elapsed());
        self.ticks += 1;
        self.set(control::TICK, self.ticks);
        self.last_tick = Instant::now();
    }

    fn turn(&mut self) {
        self.tick();
        let (claimed, backed) = (self.word(control::CLAIMED_SEGMENTS), self.word(control::BACKED_SEGMENTS));
        // The program may not grow beyond what little there is: it waits for segments that are
        // given back.
        if claimed + 4 > backed && backed < 80 {
            // SAFETY: extends our own file.
            let result = unsafe {
                libc::fallocate(self.file.as_raw_fd(), 0, (backed << 16) as i64, (8 * SEGMENT_BYTES) as i64)
            };
            assert_eq!(result, 0);
            self.set(control::BACKED_SEGMENTS, backed + 8);
        }
        let mut headers = Vec::new();
        for segment in 1..claimed {
            self.tick();
            let mut bytes = vec![0; SEGMENT_BYTES];
            self.file.read_exact_at(&mut bytes, segment << 16).unwrap();
            if let Ok(header) = SegmentHeader::read(&bytes) {
                self.read_marks(segment, &header, &bytes);
                headers.push((segment, header));
            }
        }
        let mut last: HashMap<(u32, Lane), u32> = HashMap::new();
        for (_, header) in &headers {
            let sequence = last.entry((header.thread, header.lane)).or_default();
            *sequence = header.sequence.max(*sequence);
        }
        for (segment, before) in headers {
            if before.sequence >= last[&(before.thread, before.lane)] {
                continue;
            }
            self.tick();
            // Left: what is committed now is all there will be.
            let mut bytes = vec![0; SEGMENT_BYTES];
            self.file.read_exact_at(&mut bytes, segment << 16).unwrap();
            let Ok(header) = SegmentHeader::read(&bytes) else { continue };
            // Given back before, and taken by a thread since: it was not this one that was left.
            if header.claim != before.claim {
                continue;
            }
            self.read_marks(segment, &header, &bytes);
            let (claim, offset) = self.read[&segment];
            if offset != usize::MAX && claim == header.claim {
                self.read.insert(segment, (claim, usize::MAX));
                let at = control::FREE_RING + self.given as usize % control::FREE_RING_ENTRIES * 4;
                self.file.write_all_at(&(segment as u32).to_le_bytes(), at as u64).unwrap();
                self.given += 1;
                self.set(control::FREE_GIVEN, self.given);
            }
        }
    }

    fn read_marks(&mut self, segment: u64, header: &SegmentHeader, bytes: &[u8]) {
        let place = self.read.entry(segment).or_insert((header.claim, SEGMENT_HEADER_BYTES));
        if place.0 != header.claim {
            *place = (header.claim, SEGMENT_HEADER_BYTES);
            self.reused += 1;
        }
        if place.1 == usize::MAX {
            return;
        }
        let committed = header.committed_bytes as usize;
        for placed in Records::new(&bytes[place.1..committed], place.1) {
            if let Record::Mark { value: MarkValue::Integer(number), .. } = placed.unwrap().record {
                assert!(self.seen.insert(number), "{number} twice");
            }
        }
        place.1 = committed;
    }
}

pub(crate) fn drained(path: &Path) {
    let mut options = options(path);
    options.has_parent = true;
    options.stamp_interval = 8;
    start(&options).unwrap();
    let shall_end = AtomicBool::new(false);
    let mut seen = HashSet::new();
    let file = File::options().read(true).write(true).open(path).unwrap();
    let mut drain = Drain::new(file, &mut seen);
    std::thread::scope(|scope| {
        let end_flag = &shall_end;
        let drainer = scope.spawn(move || {
            while !end_flag.load(Ordering::Acquire) {
                drain.turn();
                std::thread::sleep(Duration::from_millis(1));
            }
            drain.turn();
            (drain.reused, drain.longest_silence > SILENCE)
        });
        let writers: Vec<_> = (0..THREADS)
            .map(|thread| {
                scope.spawn(move || {
                    for number in 0..MARKS {
                        mark_value("drained", MarkValue::Integer(thread << 32 | number));
                    }
                })
            })
            .collect();
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        end_flag.store(true, Ordering::Release);
        let (reused, was_silent) = drainer.join().unwrap();
        assert!(reused > 100 || was_silent, "{reused} segments were used again");
        println!("{}", if was_silent { "silent" } else { "ticking" });
    });
    assert_eq!(seen.len() as i64, THREADS * MARKS);
}

pub(crate) fn check_drained(runner: &Runner) {
    let printed = runner.run();
    let spool = Spool::open(&runner.path);
    assert_eq!(spool.lost_events, 0);
    let bytes = std::fs::metadata(&runner.path).unwrap().len();
    assert!(bytes < 90 << 16 || printed.contains("silent"), "the file stays small: {bytes} bytes");
}

/// Runs a program whose parent never comes: after some waiting the program helps itself.
pub(crate) fn orphan(path: &Path) {
    let mut options = options(path);
    options.has_parent = true;
    start(&options).unwrap();
    (0..MARKS).for_each(|_| mark("alone"));
}

pub(crate) fn check_orphan(runner: &Runner) {
    let begin = Instant::now();
    runner.run();
    let spool = Spool::open(&runner.path);
    spool.check();
    assert_eq!((spool.marks.len() as i64, spool.lost_events), (MARKS, 0));
    assert!(begin.elapsed() > Duration::from_millis(150), "it has waited");
}

/// Runs a program whose parent was stopped until the program helped itself, and then goes on. The
/// program waits for it again.
pub(crate) fn returning(path: &Path) {
    let mut options = options(path);
    options.has_parent = true;
    start(&options).unwrap();
    let mut seen = HashSet::new();
    let file = File::options().read(true).write(true).open(path).unwrap();
    let mut drain = Drain::new(file, &mut seen);
    let backed = drain.word(control::BACKED_SEGMENTS);
    while drain.word(control::BACKED_SEGMENTS) == backed {
        mark("alone");
    }
    std::thread::scope(|scope| {
        drain.tick();
        drain.longest_silence = Duration::ZERO;
        let writer = scope.spawn(|| (0..MARKS).for_each(|_| mark("together")));
        let mut tick_for = |turns: u32| {
            for _ in 0..turns {
                drain.tick();
                std::thread::sleep(Duration::from_millis(1));
            }
            let words = (drain.word(control::CLAIMED_SEGMENTS), drain.word(control::BACKED_SEGMENTS));
            (words, drain.longest_silence > SILENCE)
        };
        let mut was_silent = false;
        while !writer.is_finished() {
            let ((claimed, backed), _) = tick_for(1);
            if claimed == backed {
                let words;
                (words, was_silent) = tick_for(500);
                assert!(words == (backed, backed) || was_silent, "it waits: {words:?}");
                break;
            }
        }
        assert!(!writer.is_finished() || was_silent);
        // And helps itself once more when nobody is there.
    });
}

pub(crate) fn check_returning(runner: &Runner) {
    runner.run();
    let spool = Spool::open(&runner.path);
    spool.check();
    assert_eq!(spool.lost_events, 0);
    assert_eq!(spool.marks.iter().filter(|mark| mark.text == "together").count() as i64, MARKS);
}

/// Any system call but `exit` ends the process from here on. (The strict mode, without a filter,
/// forbids reading the counter too.)
fn forbid_all_calls() {
    let filter = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut filters = [
        // The number of the call is the first word.
        filter(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        filter(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, libc::SYS_exit as u32),
        filter(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
        filter(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_KILL_PROCESS),
    ];
    let program = libc::sock_fprog { len: filters.len() as u16, filter: filters.as_mut_ptr() };
    // SAFETY: the filter is as the kernel wants it, and what follows keeps to it.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program), 0);
    }
}

pub(crate) fn forbidden(path: &Path) {
    start(&options(path)).unwrap();
    for turn in 0..=MARKS {
        // The first mark has shown how deep the stack is.
        if turn == 1 {
            forbid_system_calls();
            forbid_all_calls();
        }
        mark("under seccomp");
    }
    // SAFETY: ends the thread, and with it the process.
    unsafe { libc::syscall(libc::SYS_exit, 0) };
}

pub(crate) fn check_forbidden(runner: &Runner) {
    runner.run();
    let spool = Spool::open(&runner.path);
    spool.check();
    assert_eq!(spool.state, control::State::Full);
    assert_eq!(spool.marks.len() as u64 + spool.lost_events, MARKS as u64 + 1);
    assert!(spool.marks.len() > 50_000, "what was there already is used: {} marks", spool.marks.len());
}
