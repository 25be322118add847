//! Sorted files as one sorted sequence of rows, without holding them in memory.

use arrow::array::RecordBatch;
use arrow::compute::interleave_record_batch;
use arrow::error::ArrowError;
use arrow::row::Rows;
use futures::StreamExt as _;

use crate::StoreError;
use crate::read::FileRows;
use crate::schema::Table;
use crate::sorted_file::{BATCH_ROWS, Order};

/// Files of a table that are merged.
pub(crate) struct Merge {
    table: Table,
    order: Order,
    key: Option<Order>,
    runs: Vec<Run>,
    /// Runs that have rows left, as a heap: the smallest row first.
    heap: Vec<usize>,
    /// The row before the next one, which the next one replaces if it has the same key.
    pending: Option<Pending>,
}

/// A file in the middle of being read.
struct Run {
    name: String,
    rows: FileRows,
    batch: RecordBatch,
    order: Rows,
    key: Option<Rows>,
    at: usize,
    /// Its place among the batches of the output.
    place: Option<usize>,
}

struct Pending {
    batch: RecordBatch,
    row: usize,
    key: Vec<u8>,
}

/// Rows of the output, before they are copied together.
#[derive(Default)]
struct Chosen {
    batches: Vec<RecordBatch>,
    rows: Vec<(usize, usize)>,
}

impl Chosen {
    fn add(&mut self, batch: &RecordBatch) -> usize {
        self.batches.push(batch.clone());
        self.batches.len() - 1
    }

    fn copied(&self) -> Result<RecordBatch, ArrowError> {
        let batches: Vec<&RecordBatch> = self.batches.iter().collect();
        interleave_record_batch(&batches, &self.rows)
    }
}

impl Run {
    /// Goes to the next row; false at the end.
    async fn advance(&mut self, order: &Order, key: Option<&Order>) -> Result<bool, StoreError> {
        self.at += 1;
        while self.at >= self.batch.num_rows() {
            let Some(batch) = self.rows.next().await else { return Ok(false) };
            let batch = batch.map_err(|error| StoreError::damaged(&self.name, error))?;
            let damaged = |error: ArrowError| StoreError::damaged(&self.name, error);
            self.order = order.keys(&batch).map_err(damaged)?;
            self.key = key.map(|key| key.keys(&batch)).transpose().map_err(damaged)?;
            (self.batch, self.at, self.place) = (batch, 0, None);
        }
        Ok(true)
    }
}

impl Merge {
    /// Begins to merge sorted files.
    pub(crate) async fn new(table: Table, files: Vec<(String, FileRows)>) -> Result<Self, StoreError> {
        let damaged = |error: ArrowError| StoreError::damaged(table.name(), error);
        let order = Order::new(table, table.order()).map_err(damaged)?;
        let key = match table.key() {
            [] => None,
            key => Some(Order::new(table, key).map_err(damaged)?),
        };
        let empty = RecordBatch::new_empty(table.schema());
        let (mut runs, mut heap) = (Vec::new(), Vec::new());
        for (name, rows) in files {
            let keys = order.keys(&empty).map_err(damaged)?;
            let mut run =
                Run { name, rows, batch: empty.clone(), order: keys, key: None, at: 0, place: None };
            if run.advance(&order, key.as_ref()).await? {
                heap.push(runs.len());
            }
            runs.push(run);
        }
        let mut merge = Self { table, order, key, runs, heap, pending: None };
        for at in (0..merge.heap.len() / 2).rev() {
            merge.sink(at);
        }
        Ok(merge)
    }

    /// The next rows; `None` at the end.
    pub(crate) async fn next(&mut self) -> Result<Option<RecordBatch>, StoreError> {
        let mut chosen = Chosen::default();
        self.runs.iter_mut().for_each(|run| run.place = None);
        while chosen.rows.len() < BATCH_ROWS {
            let Some(&first) = self.heap.first() else { break };
            self.take(first, &mut chosen);
            let run = &mut self.runs[first];
            if !run.advance(&self.order, self.key.as_ref()).await? {
                let last = self.heap.len() - 1;
                self.heap.swap(0, last);
                self.heap.pop();
            }
            self.sink(0);
        }
        if self.heap.is_empty()
            && let Some(Pending { batch, row, .. }) = self.pending.take()
        {
            let place = chosen.add(&batch);
            chosen.rows.push((place, row));
        }
        if chosen.rows.is_empty() {
            return Ok(None);
        }
        chosen.copied().map(Some).map_err(|error| StoreError::damaged(self.table.name(), error))
    }

    /// Takes the row that a run is at.
    fn take(&mut self, first: usize, chosen: &mut Chosen) {
        let run = &mut self.runs[first];
        let Some(keys) = &run.key else {
            let place = *run.place.get_or_insert_with(|| chosen.add(&run.batch));
            chosen.rows.push((place, run.at));
            return;
        };
        let key = keys.row(run.at);
        let next = Pending { batch: run.batch.clone(), row: run.at, key: key.as_ref().to_vec() };
        if let Some(Pending { batch, row, key }) = self.pending.replace(next)
            && self.pending.as_ref().is_some_and(|next| next.key != key)
        {
            // Tables with keys are small: each row may come from a batch of its own.
            let place = chosen.add(&batch);
            chosen.rows.push((place, row));
        }
    }

    fn is_before(&self, a: usize, b: usize) -> bool {
        let (a, b) = (&self.runs[a], &self.runs[b]);
        a.order.row(a.at) < b.order.row(b.at)
    }

    /// Moves an entry of the heap down to its place.
    fn sink(&mut self, mut at: usize) {
        loop {
            let (left, right) = (2 * at + 1, 2 * at + 2);
            let mut least = at;
            for child in [left, right] {
                if child < self.heap.len() && self.is_before(self.heap[child], self.heap[least]) {
                    least = child;
                }
            }
            if least == at {
                return;
            }
            self.heap.swap(at, least);
            at = least;
        }
    }
}
