//! Blocks that wait for their commit, and the task that commits them.
//!
//! Many blocks share one commit, as each commit is an entry in the log and a file for each service.
//! A block is answered behind the commit: before it, nothing of it is promised.

use std::sync::Arc;
use std::time::Duration;

use cairn_store::block::{Line, Sample, ShapeFrame};
use cairn_store::{Appended, Block, Store, StoreError};
use tokio::sync::{Notify, Semaphore, mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until};

use super::body::{Held, Room};
use super::refusal::Refusal;
use crate::commands::complain;

/// The way to the task that commits.
#[derive(Clone)]
pub(crate) struct Queue {
    /// Its length is bounded by the room: each entry holds some of it.
    entries: mpsc::UnboundedSender<Entry>,
    room: Room,
    /// As many as there are processors.
    pub(crate) parsers: Arc<Semaphore>,
}

/// The blocks of a request.
struct Entry {
    blocks: Vec<Block>,
    held: Held,
    bytes: u64,
    came: Instant,
    answer: oneshot::Sender<Result<Vec<Appended>, Refusal>>,
}

/// When waiting blocks are committed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// The longest time that a block waits.
    pub(crate) every: Duration,
    /// The bytes of blocks that are not waited with.
    pub(crate) bytes: u64,
}

/// Memory that blocks take, about.
fn weight(blocks: &[Block]) -> u64 {
    let of_block = |block: &Block| {
        let samples = block.samples.len() * size_of::<Sample>();
        let stacks = block.stacks.iter().map(|stack| 128 + size_of_val(stack.frames())).sum::<usize>();
        let shapes = block.shapes.iter().map(|shape| 64 + shape.frames.len() * 2 * size_of::<ShapeFrame>());
        let frames = block.frames.iter().map(|frame| 96 + frame.lines.len() * 2 * size_of::<Line>());
        let labels = block.process.labels.iter().map(|(key, value)| 96 + key.len() + value.len());
        samples
            + stacks
            + shapes.sum::<usize>()
            + frames.sum::<usize>()
            + labels.sum::<usize>()
            + block.modules.len() * 512
            + block.process.command.len()
            + block.process.remarks.len()
            + 4096
    };
    blocks.iter().map(|block| of_block(block) as u64).sum()
}

impl Queue {
    /// Starts the task that commits to a store. It ends when the last `Queue` is gone.
    ///
    /// `committed` is notified behind each commit.
    pub(crate) fn start(
        store: Store,
        place: String,
        pace: Pace,
        room_bytes: u64,
        ending: watch::Receiver<bool>,
        committed: Arc<Notify>,
    ) -> (Self, tokio::task::JoinHandle<()>) {
        let (entries, waiting) = mpsc::unbounded_channel();
        let committer = Committer { store: Some(store), place, pace, waiting, ending, committed };
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let parsers = Arc::new(Semaphore::new(processors));
        (Self { entries, room: Room::new(room_bytes), parsers }, tokio::spawn(committer.run()))
    }

    /// Memory for a request.
    pub(crate) fn held(&self) -> Held {
        self.room.held()
    }

    /// Stores the blocks of a request; returns when they are committed.
    pub(crate) async fn store(&self, blocks: Vec<Block>, mut held: Held) -> Result<Vec<Appended>, Refusal> {
        let bytes = weight(&blocks);
        held.set(bytes)?;
        let (answer, answered) = oneshot::channel();
        let lost = || Refusal::unavailable("the server is ending");
        let entry = Entry { blocks, held, bytes, came: Instant::now(), answer };
        self.entries.send(entry).map_err(|_| lost())?;
        answered.await.unwrap_or_else(|_| Err(lost()))
    }
}

/// The task that commits.
struct Committer {
    store: Option<Store>,
    place: String,
    pace: Pace,
    waiting: mpsc::UnboundedReceiver<Entry>,
    ending: watch::Receiver<bool>,
    committed: Arc<Notify>,
}

impl Committer {
    async fn run(mut self) {
        while let Some(first) = self.waiting.recv().await {
            let entries = self.gather(first).await;
            self.commit(entries).await;
        }
    }

    /// Waits for more, as long as there is time and space.
    async fn gather(&mut self, first: Entry) -> Vec<Entry> {
        let deadline = first.came + self.pace.every;
        let mut bytes = first.bytes;
        let mut entries = vec![first];
        while bytes < self.pace.bytes {
            let next = tokio::select! {
                biased;
                next = self.waiting.recv() => next,
                () = sleep_until(deadline) => None,
                _ = self.ending.wait_for(|&is_ending| is_ending) => None,
            };
            let Some(next) = next else { break };
            bytes += next.bytes;
            entries.push(next);
        }
        entries
    }

    /// Commits, and answers.
    async fn commit(&mut self, entries: Vec<Entry>) {
        let (mut blocks, mut waiting) = (Vec::new(), Vec::new());
        for Entry { blocks: of_entry, held, answer, .. } in entries {
            waiting.push((of_entry.len(), held, answer));
            blocks.extend(of_entry);
        }
        match self.append(blocks).await {
            Ok(results) => {
                let mut results = results.into_iter();
                for (count, _held, answer) in waiting {
                    // A sender that is gone sends again, and gets `duplicate`.
                    let _ = answer.send(Ok(results.by_ref().take(count).collect()));
                }
                self.committed.notify_one();
            }
            Err(error) => {
                complain(&format_args!("{}: {error}", self.place));
                for (_, _held, answer) in waiting {
                    let _ = answer.send(Err(Refusal::unavailable(&error)));
                }
            }
        }
    }

    /// Appends in a task of its own: should it panic, the server goes on with a store opened anew.
    async fn append(&mut self, blocks: Vec<Block>) -> Result<Vec<Appended>, StoreError> {
        let mut store = match self.store.take() {
            Some(store) => store,
            None => Store::open(&self.place).await?,
        };
        let appending = tokio::spawn(async move {
            let result = store.append(&blocks).await;
            (store, result)
        });
        match appending.await {
            Ok((store, result)) => {
                self.store = Some(store);
                result
            }
            Err(error) => Err(StoreError::Block { why: error.to_string() }),
        }
    }
}
