//! Chooses the connection that gives way when there are too many.
//!
//! All clients have the address of this machine, so the token distinguishes them: a
//! connection that has shown it is one of the user's. One that has not, whether it is silent, sends
//! its header byte by byte, or asks without the token, is closed first, the oldest of them. Then
//! those of the user's that wait for a next request, or do not take their answer. A request that is
//! being answered is never ended.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::OwnedSemaphorePermit;
use tokio::task::AbortHandle;

/// The state of a connection; the first ones give way first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum State {
    /// It has not shown the token.
    Stranger,
    /// It has, and its last answer is made.
    Waiting,
    /// A request of it is being answered.
    Answering,
}

/// All connections.
#[derive(Default)]
pub(super) struct Seats(Mutex<Table>);

#[derive(Default)]
struct Table {
    /// Counts everything that happens: the lowest number is the longest ago.
    clock: u64,
    taken: BTreeMap<u64, (State, u64, Option<AbortHandle>)>,
}

impl Table {
    fn now(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }
}

impl Seats {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A seat for a new connection.
    pub(super) fn take(self: &Arc<Self>, permit: OwnedSemaphorePermit) -> Seat {
        let mut table = self.table();
        let number = table.now();
        table.taken.insert(number, (State::Stranger, number, None));
        Seat { seats: Arc::clone(self), number, _permit: permit }
    }

    /// Says which task serves the connection of this number.
    pub(super) fn is_served_by(&self, number: u64, task: AbortHandle) {
        if let Some((_, _, slot)) = self.table().taken.get_mut(&number) {
            *slot = Some(task);
        }
    }

    /// Closes the connection that is needed least; false when all are being answered.
    pub(super) fn close_one(&self) -> bool {
        let mut table = self.table();
        let closable = table.taken.iter().filter(|(_, (state, ..))| *state != State::Answering);
        let Some(number) =
            closable.min_by_key(|(_, (state, since, _))| (*state, *since)).map(|(number, _)| *number)
        else {
            return false;
        };
        if let Some((_, _, Some(task))) = table.taken.remove(&number) {
            task.abort();
        }
        true
    }
}

/// The seat of one connection, until it is dropped.
pub(super) struct Seat {
    seats: Arc<Seats>,
    number: u64,
    _permit: OwnedSemaphorePermit,
}

impl Seat {
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// A request with the token is being answered.
    pub(super) fn answers(&self) {
        self.set(State::Answering);
    }

    /// An answer is made. A client without the token stays a stranger.
    pub(super) fn answered(&self) {
        let was_answering =
            self.seats.table().taken.get(&self.number).is_some_and(|(state, ..)| *state == State::Answering);
        if was_answering {
            self.set(State::Waiting);
        }
    }

    fn set(&self, state: State) {
        let mut table = self.seats.table();
        let now = table.now();
        if let Some((known, since, _)) = table.taken.get_mut(&self.number) {
            (*known, *since) = (state, now);
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.seats.table().taken.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::Semaphore;

    use super::*;

    #[test]
    fn seats_close_strangers_then_waiting_and_never_answering() {
        let permits = Arc::new(Semaphore::new(8));
        let seats = Arc::new(Seats::default());
        let take = || seats.take(Arc::clone(&permits).try_acquire_owned().unwrap());
        let all: Vec<Seat> = (0..5).map(|_| take()).collect();
        all[0].answers();
        all[1].answers();
        all[3].answers();
        all[3].answered();
        all[1].answered();
        all[2].answered();
        let left = || seats.table().taken.keys().copied().collect::<Vec<_>>();
        for gone in [2, 4, 3, 1] {
            assert!(seats.close_one());
            assert!(!left().contains(&all[gone].number), "{gone}");
        }
        assert!(!seats.close_one());
        assert_eq!(left(), [all[0].number]);
        drop(all);
        assert!(left().is_empty() && permits.available_permits() == 8);
    }
}
