//! Builds indexes on one background thread, in sequence, after the first answer was given.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use crate::index::Cache;
use crate::source::SymbolSource;

/// The background thread; it runs while there is work.
pub(crate) struct Indexer {
    cache: Cache,
    cancelled: Arc<AtomicBool>,
    worker: Mutex<Option<Worker>>,
}

struct Worker {
    queue: Sender<Arc<dyn SymbolSource>>,
    thread: JoinHandle<()>,
}

impl Indexer {
    pub(crate) fn new(cache: Cache) -> Self {
        Self { cache, cancelled: Arc::default(), worker: Mutex::default() }
    }

    /// Queues the build of a source's index.
    pub(crate) fn enqueue(&self, source: Arc<dyn SymbolSource>) {
        let mut worker = self.worker.lock().unwrap_or_else(PoisonError::into_inner);
        if worker.is_none() {
            let (queue, wanted) = channel();
            let (cache, cancelled) = (self.cache.clone(), Arc::clone(&self.cancelled));
            let thread = std::thread::Builder::new()
                .name("cairn-index".to_owned())
                .spawn(move || work(&wanted, &cache, &cancelled));
            // Without a thread no index is built; the answers are the same.
            *worker = thread.ok().map(|thread| Worker { queue, thread });
        }
        if let Some(worker) = &*worker {
            let _ = worker.queue.send(source);
        }
    }

    /// Builds the index of a source on this thread; true when it is on disk.
    pub(crate) fn build_now(&self, source: &dyn SymbolSource) -> bool {
        source.build_index(&self.cache, &self.cancelled)
    }

    /// Waits until every queued index is on disk or has failed.
    pub(crate) fn wait(&self) {
        let worker = self.worker.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Worker { queue, thread }) = worker {
            drop(queue);
            let _ = thread.join();
        }
    }
}

impl Drop for Indexer {
    /// Does not wait: the thread stops within the current window and leaves no temporary file.
    fn drop(&mut self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }
}

fn work(wanted: &Receiver<Arc<dyn SymbolSource>>, cache: &Cache, cancelled: &AtomicBool) {
    while let Ok(source) = wanted.recv() {
        if cancelled.load(Ordering::Relaxed) {
            return;
        }
        source.build_index(cache, cancelled);
    }
}
