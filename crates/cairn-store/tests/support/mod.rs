//! Blocks with known sums, and the sums of a store as a plain Parquet reader finds them.

#![allow(dead_code, reason = "each test uses a part of this")]

use std::collections::BTreeMap;
use std::fs::File;

use arrow::array::AsArray;
use arrow::datatypes::Int64Type;
use cairn_store::block::{Frame, Line, Module, ModuleId, Process, Sample, Shape, ShapeFrame, Stack};
use cairn_store::{Block, Id, Store, Table};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

pub(crate) const DAY_MS: i64 = 86_400_000;
/// Noon of 1 October 2026.
pub(crate) const NOON_MS: i64 = 1_790_856_000_000;

/// A directory that is removed at the end.
pub(crate) fn scratch() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

/// A block of a process: `rows` samples of one byte in `number` blocks.
pub(crate) fn block(sender: &str, number: i64, rows: usize, end_ms: i64) -> Block {
    let build_id = ModuleId::from(&[7; 20][..]);
    let (mut samples, mut stacks, mut shapes, mut frames) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for row in 0..rows {
        let offset = 16 * row as i64;
        let function = format!("function_{row}");
        let shape_frames = vec![ShapeFrame {
            function: Some(function.clone()),
            module: "app".to_owned(),
            file: Some("app.c".to_owned()),
        }];
        let shape = Shape::new(shape_frames);
        let stack = Stack::new(vec![(build_id.clone(), offset)], Some(shape.id));
        samples.push(Sample {
            end_ms,
            slice_ms: 1000,
            stack: stack.id(),
            live_bytes: 1,
            live_blocks: number,
            ..Sample::default()
        });
        stacks.push(stack);
        shapes.push(shape);
        let line = Line {
            function: Some(function),
            file: Some("app.c".to_owned()),
            line: Some(1),
            is_inlined: false,
        };
        frames.push(Frame { place: (build_id.clone(), offset), lines: vec![line] });
    }
    let process = Process {
        id: Id::of_content([sender.as_bytes()]),
        service: format!("of {sender}").chars().take(6).collect(),
        version: "1.0".to_owned(),
        host: sender.to_owned(),
        ..Process::default()
    };
    let module = Module { id: build_id, path: "/bin/app".to_owned(), has_build_id: true, has_names: true };
    Block {
        sender: sender.to_owned(),
        number,
        process,
        samples,
        stacks,
        shapes,
        frames,
        modules: vec![module],
        ..Block::default()
    }
}

/// Rows of samples by host and by the number of their block.
pub(crate) async fn rows(store: &Store) -> BTreeMap<(String, i64), usize> {
    let mut rows = BTreeMap::new();
    for file in store.files(Table::Sample).await.unwrap() {
        let file = File::open(file.url.to_file_path().unwrap()).unwrap();
        for batch in ParquetRecordBatchReaderBuilder::try_new(file).unwrap().build().unwrap() {
            let batch = batch.unwrap();
            let hosts = batch.column_by_name("host").unwrap().as_string::<i32>().clone();
            let blocks = batch.column_by_name("live_blocks").unwrap().as_primitive::<Int64Type>().clone();
            for row in 0..batch.num_rows() {
                *rows.entry((hosts.value(row).to_owned(), blocks.value(row))).or_default() += 1;
            }
        }
    }
    rows
}

/// Rows of a table.
pub(crate) async fn count(store: &Store, table: Table) -> u64 {
    store.files(table).await.unwrap().iter().map(|file| file.rows).sum()
}
