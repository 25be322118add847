//! Which thread the records of a lane are of, when several threads had the lane one after the
//! other.
//!
//! The recorder gives the lane of a thread that has ended to a later thread, which goes on in the
//! same segment:
//!
//! ```text
//!   lane 3:  segment of 4711 | events | began 4720 | segment of 4720 | events | began 4733 | ...
//!   life:    3 ______________________ | 9 _________________________________ | 12 _____________
//! ```
//!
//! A *life* is what one thread recorded, from its record of kind *began* to the next one in the
//! lane. Each life has a number of its own, which is the thread's number in the recording: the
//! lane's number for the first life of a lane, a number that no lane and no life has for the later
//! ones. Which allocation a free belongs to is decided by lanes (`pairing`), and does not depend on
//! lives.
//!
//! A segment whose header names another thread than the one before it begins a life as well: in a
//! ring the record may be overwritten, and in a damaged file it may be unreadable.

use std::collections::{BTreeMap, HashMap};

use cairn_format::recording::ThreadEvent;

use crate::clock::TimeScale;
use crate::model::{Thread, ThreadId};

/// The recorder's number of a thread, and whether this is the lane of its signal handlers.
pub(crate) type LaneKey = (u32, bool);

/// More names of one thread are not remembered; the last one always is.
const MOST_NAMES: usize = 1000;

/// Numbers the lives of a recording, and keeps what is known of each.
///
/// Each lane has to be given in the order of its records; the lanes may come in any order.
#[derive(Clone, Default, Debug)]
pub(crate) struct Lives {
    rows: BTreeMap<u32, Life>,
    present: HashMap<LaneKey, u32>,
    /// By the recorder's number and the kernel's: the life of that kernel thread that was met last.
    latest: HashMap<(u32, u32), u32>,
    /// By the recorder's number and the counter of the record: the signal handlers' lane repeats
    /// it.
    by_start: HashMap<(u32, u64), u32>,
    /// The number that was given last to a life that is not the first one of its lane.
    last_given: u32,
}

/// Facts about one life.
#[derive(Clone, Default, Debug)]
struct Life {
    kernel_thread: u32,
    /// The last one.
    name: Vec<u8>,
    earlier_names: Vec<Vec<u8>>,
    began: Option<u64>,
    ended: Option<u64>,
    /// False while it is known by the header of a segment alone.
    has_began_record: bool,
}

impl Life {
    fn rename(&mut self, name: &[u8]) {
        if self.name == name {
            return;
        }
        let before = std::mem::replace(&mut self.name, name.to_vec());
        self.earlier_names.retain(|known| known != name);
        if !before.is_empty()
            && !self.earlier_names.contains(&before)
            && self.earlier_names.len() < MOST_NAMES
        {
            self.earlier_names.push(before);
        }
    }

    fn began_at(&mut self, counter: u64) {
        self.began = Some(self.began.map_or(counter, |began| began.min(counter)));
    }

    fn thread(&self, number: u32, scale: &TimeScale) -> Thread {
        Thread {
            id: ThreadId(number),
            kernel_thread: self.kernel_thread,
            name: self.name.clone(),
            earlier_names: self.earlier_names.clone(),
            began_nanos: self.began.map_or(0, |counter| scale.nanos(counter)),
            ended_nanos: self.ended.map(|counter| scale.nanos(counter)),
        }
    }
}

impl Lives {
    /// A row of a packed recording, where threads have the numbers of lives already.
    pub(crate) fn row(&mut self, number: u32, counter: u64, event: ThreadEvent<'_>) {
        let row = self.rows.entry(number).or_default();
        match event {
            ThreadEvent::Began { kernel_thread } => {
                row.kernel_thread = kernel_thread;
                row.began_at(counter);
            }
            ThreadEvent::Named(name) => row.rename(name),
            ThreadEvent::Ended => row.ended = Some(counter),
            _ => {}
        }
    }

    /// Keeps the numbers of lanes free for the first lives of these lanes.
    pub(crate) fn reserve(&mut self, lanes: impl Iterator<Item = u32>) {
        for number in lanes {
            self.rows.entry(number).or_default();
        }
    }

    /// A segment of a lane begins; the answer is whose records follow.
    pub(crate) fn block(&mut self, lane: LaneKey, kernel_thread: u32, counter: u64) -> u32 {
        let (number, is_nested) = lane;
        let is_of = |life: &Life| life.kernel_thread == kernel_thread && life.ended.is_none();
        if let Some(&present) = self.present.get(&lane)
            && self.rows.get(&present).is_some_and(is_of)
        {
            if let Some(life) = self.rows.get_mut(&present).filter(|life| !life.has_began_record) {
                life.began_at(counter);
            }
            return present;
        }
        // The other lane of the thread may have been read before this one.
        let known = self.latest.get(&(number, kernel_thread)).copied();
        let is_it = |life: &Life| is_nested || !life.has_began_record && life.ended.is_none();
        let life = match known.filter(|known| self.rows.get(known).is_some_and(is_it)) {
            Some(known) => known,
            None => self.new_life(number, kernel_thread, counter),
        };
        self.enter(lane, life, counter);
        life
    }

    /// Returns whose records follow in a lane; 0 when nothing was met of it.
    pub(crate) fn present(&self, lane: LaneKey) -> u32 {
        self.present.get(&lane).copied().unwrap_or(0)
    }

    /// A record of a thread in a lane; the answer is whose records follow.
    pub(crate) fn record(&mut self, lane: LaneKey, counter: u64, event: ThreadEvent<'_>) -> Option<u32> {
        match event {
            ThreadEvent::Began { kernel_thread } => Some(self.began(lane, kernel_thread, counter)),
            ThreadEvent::Named(name) => {
                let present = *self.present.get(&lane)?;
                self.rows.get_mut(&present)?.rename(name);
                Some(present)
            }
            ThreadEvent::Ended => {
                let present = *self.present.get(&lane)?;
                self.rows.get_mut(&present)?.ended = Some(counter);
                Some(present)
            }
            _ => self.present.get(&lane).copied(),
        }
    }

    fn began(&mut self, lane: LaneKey, kernel_thread: u32, counter: u64) -> u32 {
        let number = lane.0;
        let life = match self.by_start.get(&(number, counter)) {
            Some(&known) => known,
            None => {
                let is_open = |known: &u32| {
                    self.rows.get(known).is_some_and(|life| {
                        !life.has_began_record && life.kernel_thread == kernel_thread && life.ended.is_none()
                    })
                };
                let present = self.present.get(&lane).copied();
                let latest = self.latest.get(&(number, kernel_thread)).copied();
                let open = [present, latest].into_iter().flatten().find(is_open);
                open.unwrap_or_else(|| self.new_life(number, kernel_thread, counter))
            }
        };
        self.by_start.insert((number, counter), life);
        if let Some(row) = self.rows.get_mut(&life) {
            row.has_began_record = true;
            row.began_at(counter);
        }
        self.enter(lane, life, counter);
        life
    }

    /// From now on the records of the lane are of this life.
    fn enter(&mut self, lane: LaneKey, life: u32, counter: u64) {
        let before = self.present.insert(lane, life);
        let (_, is_nested) = lane;
        if is_nested {
            return;
        }
        // The recorder gives a lane away when the kernel says that its thread has ended.
        if let Some(before) = before.filter(|&before| before != life)
            && let Some(before) = self.rows.get_mut(&before)
        {
            before.ended.get_or_insert(counter);
        }
    }

    fn new_life(&mut self, number: u32, kernel_thread: u32, counter: u64) -> u32 {
        let id = if self.rows.get(&number).is_none_or(|life| life.began.is_none()) {
            number
        } else {
            self.unused_number()
        };
        let life = Life { kernel_thread, began: Some(counter), ..Life::default() };
        self.rows.insert(id, life);
        self.latest.insert((number, kernel_thread), id);
        id
    }

    fn unused_number(&mut self) -> u32 {
        loop {
            self.last_given = self.last_given.wrapping_add(1).max(1);
            if !self.rows.contains_key(&self.last_given) {
                return self.last_given;
            }
        }
    }

    /// Returns the facts about one life.
    pub(crate) fn thread(&self, number: u32, scale: &TimeScale) -> Option<Thread> {
        Some(self.rows.get(&number)?.thread(number, scale))
    }

    /// Every life, by number.
    pub(crate) fn threads(&self, scale: &TimeScale) -> Vec<Thread> {
        let met = self.rows.iter().filter(|(_, life)| life.began.is_some());
        met.map(|(&number, life)| life.thread(number, scale)).collect()
    }

    /// Whether a record says when it began.
    pub(crate) fn has_began_record(&self, number: u32) -> bool {
        self.rows.get(&number).is_some_and(|life| life.has_began_record)
    }
}

/// Clocks of two files that were made of one spool differ by less.
const SLACK_NANOS: u64 = 10_000_000;

/// Numbers the threads in the rest of a spool as the packed recording in front of it does.
///
/// The same kernel thread at the same time is the same thread; all others get numbers that the
/// packed recording does not use.
pub(crate) fn numbers_behind(
    packed: &[Thread],
    rest: &[Thread],
    has_began_record: impl Fn(u32) -> bool,
) -> HashMap<u32, u32> {
    let mut by_kernel_thread: HashMap<u32, Vec<&Thread>> = HashMap::new();
    for thread in packed {
        by_kernel_thread.entry(thread.kernel_thread).or_default().push(thread);
    }
    let mut next = packed.iter().map(|thread| thread.id.0).max().unwrap_or(0);
    let mut numbers = HashMap::new();
    for thread in rest {
        let began = thread.began_nanos;
        let is_it = |known: &&&Thread| {
            let is_in_time = known.ended_nanos.is_none_or(|ended| ended.saturating_add(SLACK_NANOS) >= began);
            if has_began_record(thread.id.0) {
                // The record itself is in both, or the thread is one that the packed recording does
                // not have.
                known.began_nanos.abs_diff(began) <= SLACK_NANOS
            } else {
                // A later segment of a thread that began before.
                known.began_nanos <= began.saturating_add(SLACK_NANOS) && is_in_time
            }
        };
        let candidates = by_kernel_thread.get(&thread.kernel_thread);
        let known = candidates.into_iter().flatten().filter(is_it).max_by_key(|known| known.began_nanos);
        let number = known.map_or_else(
            || {
                next = next.saturating_add(1);
                next
            },
            |known| known.id.0,
        );
        numbers.insert(thread.id.0, number);
    }
    numbers
}
