//! Rows of tables as Arrow batches.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, BinaryBuilder, BooleanBuilder, Int64Array, Int64Builder, ListBuilder, MapBuilder,
    MapFieldNames, StringArray, StringBuilder, StructBuilder,
};
use arrow::datatypes::{DataType, Field, Fields};
use arrow::record_batch::RecordBatch;

use crate::block::{Block, Line, Module, Place, Process, Sample, Shape, Stack};
use crate::schema::Table;
use crate::{Id, StoreError};

/// The identifiers of a column.
fn ids<'a>(ids: impl IntoIterator<Item = &'a [u8]>) -> ArrayRef {
    let mut column = BinaryBuilder::new();
    ids.into_iter().for_each(|id| column.append_value(id));
    Arc::new(column.finish())
}

fn texts<'a>(texts: impl IntoIterator<Item = &'a str>) -> ArrayRef {
    Arc::new(StringArray::from_iter_values(texts))
}

fn numbers(numbers: impl IntoIterator<Item = i64>) -> ArrayRef {
    Arc::new(Int64Array::from_iter_values(numbers))
}

fn optional_numbers(numbers: impl IntoIterator<Item = Option<i64>>) -> ArrayRef {
    Arc::new(Int64Array::from_iter(numbers))
}

fn batch(table: Table, columns: Vec<ArrayRef>) -> Result<RecordBatch, StoreError> {
    RecordBatch::try_new(table.schema(), columns).map_err(|error| StoreError::damaged(table.name(), error))
}

/// Orders rows of one key: later ones, and those with names, replace others.
fn revision(now_ms: i64, is_named: bool) -> i64 {
    const NAMED: i64 = 1 << 50;
    now_ms + if is_named { NAMED } else { 0 }
}

/// The item of a list column, and a builder for its structures.
fn list_of_structs(table: Table, column: &str) -> (Arc<Field>, StructBuilder) {
    let schema = table.schema();
    let item = match schema.field_with_name(column).map(Field::data_type) {
        Ok(DataType::List(item)) => Arc::clone(item),
        _ => Arc::new(Field::new("element", DataType::Struct(Fields::empty()), false)),
    };
    let fields = match item.data_type() {
        DataType::Struct(fields) => fields.clone(),
        _ => Fields::empty(),
    };
    (item, StructBuilder::from_fields(fields, 0))
}

/// Appends to the builder of a field of a structure. The builders were made from the schema, so
/// that their types are known.
macro_rules! append {
    ($item:expr, $index:expr, $builder:ty, $value:expr) => {
        if let Some(builder) = $item.field_builder::<$builder>($index) {
            builder.append_value($value);
        }
    };
    ($item:expr, $index:expr, $builder:ty, optional $value:expr) => {
        if let Some(builder) = $item.field_builder::<$builder>($index) {
            builder.append_option($value);
        }
    };
}

/// Samples of one process.
pub(crate) type OfProcess<'a> = (&'a Process, &'a [Sample]);

/// Returns the rows of samples of one day and service.
pub(crate) fn samples<'a>(
    day: &str,
    service: &str,
    parts: &[OfProcess<'a>],
) -> Result<RecordBatch, StoreError> {
    let of_part = |&(process, samples): &OfProcess<'a>| samples.iter().map(move |sample| (process, sample));
    let rows: Vec<(&Process, &Sample)> = parts.iter().flat_map(of_part).collect();
    let text = |of: fn(&Process) -> &str| texts(rows.iter().map(|&(process, _)| of(process)));
    let number = |of: fn(&Sample) -> i64| numbers(rows.iter().map(|&(_, sample)| of(sample)));
    let mut counters: [Vec<i64>; 9] = std::array::from_fn(|_| Vec::with_capacity(rows.len()));
    for (_, sample) in &rows {
        for (column, value) in counters.iter_mut().zip(sample.counters()) {
            column.push(value);
        }
    }
    let mut columns = vec![
        texts(rows.iter().map(|_| day)),
        texts(rows.iter().map(|_| service)),
        text(|process| &process.version),
        text(|process| &process.host),
        ids(rows.iter().map(|(process, _)| process.id.bytes().as_slice())),
        number(|sample| sample.end_ms),
        number(|sample| sample.slice_ms),
        ids(rows.iter().map(|(_, sample)| sample.stack.bytes().as_slice())),
    ];
    columns.extend(counters.into_iter().map(numbers));
    columns.push(optional_numbers(rows.iter().map(|(_, sample)| sample.variance)));
    batch(Table::Sample, columns)
}

/// Returns the rows of processes.
pub(crate) fn processes<'a>(
    processes: impl Iterator<Item = &'a Process> + Clone,
    revision: i64,
) -> Result<RecordBatch, StoreError> {
    let text = |of: fn(&Process) -> &str| texts(processes.clone().map(of));
    let names = MapFieldNames { entry: "key_value".into(), key: "key".into(), value: "value".into() };
    let mut labels = MapBuilder::new(Some(names), StringBuilder::new(), StringBuilder::new());
    for process in processes.clone() {
        for (key, value) in &process.labels {
            labels.keys().append_value(key);
            labels.values().append_value(value);
        }
        labels.append(true).map_err(|error| StoreError::damaged("labels", error))?;
    }
    let columns: Vec<ArrayRef> = vec![
        ids(processes.clone().map(|process| process.id.bytes().as_slice())),
        text(|process| &process.service),
        text(|process| &process.version),
        text(|process| &process.host),
        ids(processes.clone().map(|process| process.build_id.as_slice())),
        text(|process| &process.command),
        Arc::new(labels.finish()),
        numbers(processes.clone().map(|process| process.started_ms)),
        optional_numbers(processes.clone().map(|process| process.ended_ms)),
        text(|process| &process.source),
        text(|process| if process.clock_offset_ms == 0 { "sender" } else { "receipt" }),
        numbers(processes.clone().map(|process| process.clock_offset_ms)),
        optional_numbers(processes.clone().map(|process| process.sample_bytes)),
        text(|process| &process.remarks),
        numbers(processes.map(|_| revision)),
    ];
    batch(Table::Process, columns)
}

/// Returns the rows of stacks.
pub(crate) fn stacks(stacks: &[&Stack], now_ms: i64) -> Result<RecordBatch, StoreError> {
    let (item, fields) = list_of_structs(Table::Stack, "frames");
    let mut frames = ListBuilder::new(fields).with_field(item);
    for stack in stacks {
        for (module, offset) in stack.frames() {
            let frame = frames.values();
            append!(frame, 0, BinaryBuilder, &**module);
            append!(frame, 1, Int64Builder, *offset);
            frame.append(true);
        }
        frames.append(true);
    }
    let mut shapes = BinaryBuilder::new();
    stacks.iter().for_each(|stack| shapes.append_option(stack.shape.as_ref().map(Id::bytes)));
    let columns: Vec<ArrayRef> = vec![
        ids(stacks.iter().map(|stack| stack.id.bytes().as_slice())),
        Arc::new(frames.finish()),
        Arc::new(shapes.finish()),
        numbers(stacks.iter().map(|stack| revision(now_ms, stack.shape.is_some()))),
    ];
    batch(Table::Stack, columns)
}

/// Returns the rows of shapes.
pub(crate) fn shapes(shapes: &[&Shape], revision: i64) -> Result<RecordBatch, StoreError> {
    let (item, fields) = list_of_structs(Table::Shape, "frames");
    let mut frames = ListBuilder::new(fields).with_field(item);
    for shape in shapes {
        for compared in &shape.frames {
            let frame = frames.values();
            append!(frame, 0, StringBuilder, optional compared.function.as_deref());
            append!(frame, 1, StringBuilder, &compared.module);
            append!(frame, 2, StringBuilder, optional compared.file.as_deref());
            frame.append(true);
        }
        frames.append(true);
    }
    let columns: Vec<ArrayRef> = vec![
        ids(shapes.iter().map(|shape| shape.id.bytes().as_slice())),
        Arc::new(frames.finish()),
        numbers(shapes.iter().map(|_| revision)),
    ];
    batch(Table::Shape, columns)
}

/// Returns the rows of frames: places, and their lines of code.
pub(crate) fn frames(frames: &[(&Place, &[Line])], now_ms: i64) -> Result<RecordBatch, StoreError> {
    let (item, fields) = list_of_structs(Table::Frame, "lines");
    let mut lists = ListBuilder::new(fields).with_field(item);
    for (_, lines) in frames {
        for line in *lines {
            let fields = lists.values();
            append!(fields, 0, StringBuilder, optional line.function.as_deref());
            append!(fields, 1, StringBuilder, optional line.file.as_deref());
            append!(fields, 2, Int64Builder, optional line.line);
            append!(fields, 3, BooleanBuilder, line.is_inlined);
            fields.append(true);
        }
        lists.append(true);
    }
    let columns: Vec<ArrayRef> = vec![
        ids(frames.iter().map(|((module, _), _)| &**module)),
        numbers(frames.iter().map(|((_, offset), _)| *offset)),
        Arc::new(lists.finish()),
        numbers(frames.iter().map(|(_, lines)| revision(now_ms, !lines.is_empty()))),
    ];
    batch(Table::Frame, columns)
}

/// Returns the rows of modules.
pub(crate) fn modules(modules: &[&Module], now_ms: i64) -> Result<RecordBatch, StoreError> {
    let mut has_build_id = BooleanBuilder::new();
    modules.iter().for_each(|module| has_build_id.append_value(module.has_build_id));
    let columns: Vec<ArrayRef> = vec![
        ids(modules.iter().map(|module| &*module.id)),
        texts(modules.iter().map(|module| module.path.as_str())),
        Arc::new(has_build_id.finish()),
        texts(modules.iter().map(|module| if module.has_names { "have" } else { "missing" })),
        numbers(modules.iter().map(|module| revision(now_ms, module.has_names))),
    ];
    batch(Table::Module, columns)
}

/// Returns the rows of blocks.
pub(crate) fn blocks(blocks: &[&Block], received_ms: i64) -> Result<RecordBatch, StoreError> {
    let columns: Vec<ArrayRef> = vec![
        texts(blocks.iter().map(|block| block.sender.as_str())),
        numbers(blocks.iter().map(|block| block.number)),
        ids(blocks.iter().map(|block| block.content.bytes().as_slice())),
        texts(blocks.iter().map(|block| block.process.source.as_str())),
        numbers(blocks.iter().map(|block| i64::try_from(block.samples.len()).unwrap_or(i64::MAX))),
        numbers(blocks.iter().map(|_| received_ms)),
        numbers(blocks.iter().map(|_| received_ms)),
    ];
    batch(Table::Block, columns)
}
