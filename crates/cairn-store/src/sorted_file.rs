//! Files of sorted rows.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, UInt32Array};
use arrow::compute::take_record_batch;
use arrow::error::ArrowError;
use arrow::row::{RowConverter, Rows, SortField};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::schema::types::ColumnPath;

use crate::StoreError;
use crate::schema::{COUNTERS, Table};

/// Rows of one row group. A reader decodes the groups that its question needs.
const GROUP_ROWS: usize = 256 << 10;

/// Rows of a batch that is read or written at once.
pub(crate) const BATCH_ROWS: usize = 8192;

/// Sorts rows as the table's files have them. The last row of a key stays, so that a file has each
/// key once.
pub(crate) fn sorted(table: Table, batch: &RecordBatch) -> Result<RecordBatch, ArrowError> {
    let orders = Order::new(table, table.order())?.keys(batch)?;
    let mut rows: Vec<u32> = (0..).take(batch.num_rows()).collect();
    if !orders.iter().is_sorted() {
        rows.sort_by(|&a, &b| orders.row(a as usize).cmp(&orders.row(b as usize)));
    } else if table.key().is_empty() {
        return Ok(batch.clone());
    }
    if !table.key().is_empty() {
        let keys = Order::new(table, table.key())?.keys(batch)?;
        let is_last = |at: usize| {
            rows.get(at + 1).is_none_or(|&next| keys.row(next as usize) != keys.row(rows[at] as usize))
        };
        rows = (0..rows.len()).filter(|&at| is_last(at)).map(|at| rows[at]).collect();
    }
    take_record_batch(batch, &UInt32Array::from(rows))
}

fn columns_of(batch: &RecordBatch, names: &[&str]) -> Result<Vec<ArrayRef>, ArrowError> {
    let column = |name: &&str| Ok(Arc::clone(batch.column(batch.schema().index_of(name)?)));
    names.iter().map(column).collect()
}

/// Compares rows of different batches by some of their columns.
pub(crate) struct Order {
    names: &'static [&'static str],
    converter: RowConverter,
}

impl Order {
    /// An order by these columns of a table.
    pub(crate) fn new(table: Table, names: &'static [&'static str]) -> Result<Self, ArrowError> {
        let schema = table.schema();
        let field = |name: &&str| Ok(SortField::new(schema.field_with_name(name)?.data_type().clone()));
        let fields = names.iter().map(field).collect::<Result<Vec<_>, ArrowError>>()?;
        Ok(Self { names, converter: RowConverter::new(fields)? })
    }

    /// The keys of a batch's rows, which compare as bytes.
    pub(crate) fn keys(&self, batch: &RecordBatch) -> Result<Rows, ArrowError> {
        self.converter.convert_columns(&columns_of(batch, self.names)?)
    }
}

/// How much work is spent on making a file small.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Effort {
    /// For a file that compaction soon writes again.
    Little,
    /// For a file that stays.
    Much,
}

/// Writes one file into memory.
pub(crate) struct FileWriter {
    table: Table,
    writer: ArrowWriter<Vec<u8>>,
    rows: usize,
}

impl FileWriter {
    pub(crate) fn new(table: Table, effort: Effort) -> Result<Self, ParquetError> {
        let writer = ArrowWriter::try_new(Vec::new(), table.schema(), Some(properties(table, effort)))?;
        Ok(Self { table, writer, rows: 0 })
    }

    /// Writes rows, which follow those before in the table's order.
    pub(crate) fn write(&mut self, batch: &RecordBatch) -> Result<(), ParquetError> {
        self.rows += batch.num_rows();
        self.writer.write(batch)
    }

    /// Bytes so far, those of the group in the making by estimate.
    pub(crate) fn bytes(&self) -> usize {
        self.writer.bytes_written() + self.writer.in_progress_size()
    }

    pub(crate) const fn rows(&self) -> usize {
        self.rows
    }

    pub(crate) fn finish(self) -> Result<Vec<u8>, StoreError> {
        let Self { table, writer, .. } = self;
        writer.into_inner().map_err(|error| StoreError::damaged(table.name(), error))
    }
}

fn properties(table: Table, effort: Effort) -> WriterProperties {
    let level = |level: i32| Compression::ZSTD(ZstdLevel::try_new(level).unwrap_or_default());
    let mut properties = WriterProperties::builder()
        .set_compression(level(if effort == Effort::Much { 3 } else { 1 }))
        .set_max_row_group_row_count(Some(GROUP_ROWS))
        .set_statistics_enabled(EnabledStatistics::Chunk);
    if table == Table::Sample {
        // Counters of one stack differ little, so their upper bytes are the same, and sums of bytes
        // are multiples of a block's size, so their lowest bytes are.
        for name in COUNTERS.into_iter().chain(["variance"]) {
            let column = ColumnPath::from(name);
            properties = properties
                .set_column_dictionary_enabled(column.clone(), false)
                .set_column_encoding(column, Encoding::BYTE_STREAM_SPLIT);
        }
        // Every stack has nearly the same processes in the same order; finding that takes a better
        // search.
        if effort == Effort::Much {
            for name in ["host", "process", "stack_id"] {
                properties = properties.set_column_compression(ColumnPath::from(name), level(9));
            }
        }
    }
    properties.build()
}
