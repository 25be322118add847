//! A store: the tables of a directory, and what is written into them.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::Hash;
use std::path::PathBuf;
use std::sync::Arc;

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::Int64Type;
use deltalake_core::kernel::Add;
use futures::TryStreamExt as _;
use object_store::{ObjectStore, ObjectStoreExt as _};
use parquet::arrow::ProjectionMask;
use url::Url;

use crate::block::{Block, Frame, Line, Module, ModuleId, Place, Process, Shape, Stack};
use crate::calendar::{day_of, is_same_day, now_ms};
use crate::log::{Committed, DataFile, FILE_SENDER, Log};
use crate::numbers::Numbers;
use crate::place::{address_of, check_conditions, objects_below, put_new};
use crate::read::rows_of;
use crate::rows::OfProcess;
use crate::schema::Table;
use crate::sorted_file::{BATCH_ROWS, Effort, FileWriter, sorted};
use crate::{Id, StoreError, rows};

/// The version of the tables' layout, which a store's mark has.
pub const LAYOUT: u64 = 1;

/// The file that marks a store.
const MARK: &str = "cairn-store.json";

/// A store.
pub struct Store {
    root: Url,
    objects: Arc<dyn ObjectStore>,
    known: Known,
    numbers: Numbers,
}

/// The result for one block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Appended {
    /// It is in the store from now on.
    Stored,
    /// It was there already.
    Duplicate,
    /// An earlier block of its sender is missing: the sender must go on with this number.
    Gap {
        /// The number of the block that is expected.
        expected: i64,
    },
}

/// Names that were found after the blocks that they belong to.
#[derive(Clone, Debug, Default)]
pub struct FoundNames {
    /// Places, each with its lines of code.
    pub frames: Vec<Frame>,
    /// Shapes that follow from these.
    pub shapes: Vec<Shape>,
    /// Stacks, each with its shape.
    pub stacks: Vec<Stack>,
    /// Modules whose names are known now.
    pub modules: Vec<Module>,
}

/// Samples of one day and service.
#[derive(Clone, Debug)]
pub struct DayOfService {
    /// The day, as [`day_of`](crate::day_of) writes it.
    pub day: String,
    /// The service.
    pub service: String,
    /// The rows, with the columns of [`Table::Sample`].
    pub rows: RecordBatch,
}

/// The content of the tables of stacks, shapes, frames and modules. Rows may be written twice, and
/// the last one counts; this saves the space.
#[derive(Default)]
struct Known {
    is_read: bool,
    /// Whether its shape is known.
    stacks: HashMap<Id, bool>,
    shapes: HashSet<Id>,
    /// Whether it has a name.
    frames: HashMap<Place, bool>,
    modules: HashMap<ModuleId, bool>,
}

impl Store {
    /// Makes an empty store. The directory is new, or empty; nothing is in a bucket below the
    /// address.
    ///
    /// # Errors
    ///
    /// When there are other files, when they cannot be written, and when the bucket replaces
    /// objects that it was asked to make.
    pub async fn create(place: &str) -> Result<Self, StoreError> {
        let root = address_of(place)?;
        let occupied = || StoreError::Occupied { place: place.to_owned() };
        let store = Self::at(place, root)?;
        if let Some(path) = path_of(&store.root) {
            let unusable =
                |error: std::io::Error| StoreError::Place { place: place.to_owned(), why: error.to_string() };
            std::fs::create_dir_all(&path).map_err(unusable)?;
            if std::fs::read_dir(&path).map_err(unusable)?.next().is_some() {
                return Err(occupied());
            }
        } else {
            let failed = |source| StoreError::Object { file: place.to_owned(), source };
            if store.objects.list(None).try_next().await.map_err(failed)?.is_some() {
                return Err(occupied());
            }
            check_conditions(place, &store.objects).await?;
        }
        for table in Table::ALL {
            Log::create(&store.root, table).await?;
        }
        let mark = serde_json::json!({ "cairn-store": LAYOUT }).to_string();
        put_new(&store.objects, MARK, mark.into_bytes())
            .await
            .map_err(|source| StoreError::Object { file: MARK.to_owned(), source })?;
        Ok(store)
    }

    /// Opens a store.
    ///
    /// # Errors
    ///
    /// When there is none at this place, or one of another layout.
    pub async fn open(place: &str) -> Result<Self, StoreError> {
        let root = address_of(place)?;
        if path_of(&root).is_some_and(|path| !path.is_dir()) {
            return Err(StoreError::NoStore { place: place.to_owned() });
        }
        let store = Self::at(place, root)?;
        let mark = match store.objects.get(&MARK.into()).await {
            Ok(mark) => mark.bytes().await,
            Err(error) => Err(error),
        };
        let mark = match mark {
            Err(object_store::Error::NotFound { .. }) => {
                return Err(StoreError::NoStore { place: place.to_owned() });
            }
            mark => mark.map_err(|source| StoreError::Object { file: MARK.to_owned(), source })?,
        };
        let layout = serde_json::from_slice::<serde_json::Value>(&mark)
            .ok()
            .and_then(|mark| mark.get("cairn-store")?.as_u64())
            .ok_or_else(|| StoreError::damaged(format!("{place}/{MARK}"), "not the mark of a store"))?;
        if layout != LAYOUT {
            return Err(StoreError::Layout { place: place.to_owned(), found: layout });
        }
        Ok(store)
    }

    fn at(place: &str, root: Url) -> Result<Self, StoreError> {
        let objects = objects_below(place, &root)?;
        Ok(Self { root, objects, known: Known::default(), numbers: Numbers::default() })
    }

    /// The address of the directory or of the part of a bucket.
    #[must_use]
    pub const fn address(&self) -> &Url {
        &self.root
    }

    pub(crate) async fn log(&self, table: Table) -> Result<Log, StoreError> {
        Log::open(&self.root, table).await
    }

    /// The files of a table by the last commit.
    ///
    /// # Errors
    ///
    /// When the log cannot be read.
    pub async fn files(&self, table: Table) -> Result<Vec<DataFile>, StoreError> {
        self.log(table).await?.files()
    }

    /// Stores blocks, each once: all at once that are not there yet, or none.
    ///
    /// When it returns, they are on the disk. When it fails, or the process is killed, they can be
    /// given again.
    ///
    /// # Errors
    ///
    /// When a block contradicts itself, or the store cannot be written.
    pub async fn append(&mut self, blocks: &[Block]) -> Result<Vec<Appended>, StoreError> {
        self.append_content(blocks, |wanted| {
            let processes = wanted.iter().map(|block| block.process.clone()).collect();
            Ok((processes, days_of(wanted)?))
        })
        .await
    }

    /// Stores samples that are rows already, once, as [`append`](Self::append) does.
    ///
    /// A gateway or a generator has millions of them, of many processes. The block has no samples
    /// of its own. Each of `samples` is of one day and service.
    ///
    /// # Errors
    ///
    /// As [`append`](Self::append).
    pub async fn append_rows(
        &mut self,
        block: &Block,
        processes: &[Process],
        samples: &[DayOfService],
    ) -> Result<Appended, StoreError> {
        let content = |_: &[&Block]| Ok((processes.to_vec(), samples.to_vec()));
        let results = self.append_content(std::slice::from_ref(block), content).await?;
        Ok(results.first().copied().unwrap_or(Appended::Duplicate))
    }

    /// Stores those of the blocks that are not there yet.
    ///
    /// `content` makes processes and samples of them.
    async fn append_content(
        &mut self,
        blocks: &[Block],
        content: impl Fn(&[&Block]) -> Result<(Vec<Process>, Vec<DayOfService>), StoreError>,
    ) -> Result<Vec<Appended>, StoreError> {
        blocks.iter().try_for_each(Block::check)?;
        let mut log = self.log(Table::Sample).await?;
        loop {
            self.numbers.catch_up(&log).await?;
            let (results, wanted) = decide(&self.numbers, blocks);
            if wanted.is_empty() {
                return Ok(results);
            }
            let (processes, samples) = content(&wanted)?;
            // These point to nothing, and may be there twice.
            self.append_tables(&wanted, &processes).await?;
            let mut files = Vec::new();
            for DayOfService { day, service, rows } in &samples {
                files.push(put_sorted(&log, Some((day, service)), rows).await?);
            }
            match log.append(files, &last_numbers(&wanted)).await? {
                Committed::Done => return Ok(results),
                // Some of them are in by now, and the objects just written are in no commit.
                Committed::Raced => log.refresh().await?,
            }
        }
    }

    /// Writes the rows of blocks that are not samples.
    async fn append_tables(&mut self, blocks: &[&Block], processes: &[Process]) -> Result<(), StoreError> {
        self.learn().await?;
        let revision = now_ms();
        let known = &mut self.known;
        let modules = blocks.iter().flat_map(|block| &block.modules);
        let modules: Vec<_> =
            modules.filter(|module| is_news(&mut known.modules, &module.id, module.has_names)).collect();
        let shapes = blocks.iter().flat_map(|block| &block.shapes);
        let shapes: Vec<_> = shapes.filter(|shape| known.shapes.insert(shape.id)).collect();
        let mut frames: Vec<(&Place, &[Line])> = Vec::new();
        for Frame { place, lines } in blocks.iter().flat_map(|block| &block.frames) {
            if is_news(&mut known.frames, place, !lines.is_empty()) {
                frames.push((place, lines));
            }
        }
        let mut stacks = Vec::new();
        for stack in blocks.iter().flat_map(|block| &block.stacks) {
            // The places of a stack are written before it, so those of a known one are known.
            if !known.stacks.contains_key(&stack.id) {
                let places = stack.frames().iter();
                frames.extend(
                    places
                        .filter(|place| is_news(&mut known.frames, place, false))
                        .map(|place| (place, &[][..])),
                );
            }
            if is_news(&mut known.stacks, &stack.id, stack.shape.is_some()) {
                stacks.push(stack);
            }
        }
        let processes: BTreeMap<Id, _> = processes.iter().map(|process| (process.id, process)).collect();
        let tables = [
            (Table::Module, rows::modules(&modules, revision)?),
            (Table::Frame, rows::frames(&frames, revision)?),
            (Table::Shape, rows::shapes(&shapes, revision)?),
            (Table::Stack, rows::stacks(&stacks, revision)?),
            (Table::Process, rows::processes(processes.values().copied(), revision)?),
            (Table::Block, rows::blocks(blocks, revision)?),
        ];
        let written = self.append_batches(tables).await;
        if written.is_err() {
            // Rows that were not written are not known.
            self.known = Known::default();
        }
        written
    }

    /// Writes names that were found later, and what follows from them. They take the place of those
    /// before.
    ///
    /// Samples are not touched. When it fails, it can be repeated.
    ///
    /// # Errors
    ///
    /// When the store cannot be written.
    pub async fn put_names(&mut self, found: &FoundNames) -> Result<(), StoreError> {
        let FoundNames { frames, shapes, stacks, modules } = found;
        // Behind all rows of the same moment.
        let now_ms = now_ms() + 1;
        let of_frames: Vec<_> = frames.iter().map(|frame| (&frame.place, frame.lines.as_slice())).collect();
        // Modules come last: they say that the others are there.
        let tables = [
            (Table::Frame, rows::frames(&of_frames, now_ms)?),
            (Table::Shape, rows::shapes(&shapes.iter().collect::<Vec<_>>(), now_ms)?),
            (Table::Stack, rows::stacks(&stacks.iter().collect::<Vec<_>>(), now_ms)?),
            (Table::Module, rows::modules(&modules.iter().collect::<Vec<_>>(), now_ms)?),
        ];
        self.known = Known::default();
        self.append_batches(tables).await
    }

    async fn append_batches(
        &self,
        tables: impl IntoIterator<Item = (Table, RecordBatch)>,
    ) -> Result<(), StoreError> {
        for (table, batch) in tables {
            if batch.num_rows() == 0 {
                continue;
            }
            let mut log = self.log(table).await?;
            let file = put_sorted(&log, None, &batch).await?;
            while log.append(vec![file.clone()], &[]).await? == Committed::Raced {
                log.refresh().await?;
            }
        }
        Ok(())
    }

    /// Reads what the tables have, once.
    async fn learn(&mut self) -> Result<(), StoreError> {
        if self.known.is_read {
            return Ok(());
        }
        let mut known = Known { is_read: true, ..Known::default() };
        self.each_batch(Table::Stack, &["stack_id", "shape_id"], |batch| {
            let (ids, shapes) = (batch.column(0).as_binary::<i32>(), batch.column(1));
            for (row, id) in ids.iter().enumerate() {
                if let Some(id) = id.and_then(id_of) {
                    *known.stacks.entry(id).or_default() |= shapes.is_valid(row);
                }
            }
        })
        .await?;
        self.each_batch(Table::Shape, &["shape_id"], |batch| {
            known.shapes.extend(batch.column(0).as_binary::<i32>().iter().flatten().filter_map(id_of));
        })
        .await?;
        let mut module = ModuleId::default();
        self.each_batch(Table::Frame, &["module", "offset", "lines"], |batch| {
            let (modules, lines) = (batch.column(0).as_binary::<i32>(), batch.column(2).as_list::<i32>());
            let offsets = batch.column(1).as_primitive::<Int64Type>();
            for row in 0..batch.num_rows() {
                // Rows are sorted by module, whose identifier they share.
                if *module != *modules.value(row) {
                    module = modules.value(row).into();
                }
                let place = (module.clone(), offsets.value(row));
                *known.frames.entry(place).or_default() |= lines.value_length(row) > 0;
            }
        })
        .await?;
        self.each_batch(Table::Module, &["module", "symbols"], |batch| {
            let (modules, symbols) = (batch.column(0).as_binary::<i32>(), batch.column(1).as_string::<i32>());
            for row in 0..batch.num_rows() {
                *known.modules.entry(modules.value(row).into()).or_default() |= symbols.value(row) == "have";
            }
        })
        .await?;
        self.known = known;
        Ok(())
    }

    /// Reads columns of a table's files. A column comes in the order of the table.
    async fn each_batch(
        &self,
        table: Table,
        columns: &[&str],
        mut take: impl FnMut(&RecordBatch),
    ) -> Result<(), StoreError> {
        let log = self.log(table).await?;
        for file in log.files()? {
            let stream = rows_of(&log.objects(), &file, |schema| {
                ProjectionMask::columns(schema, columns.iter().copied())
            })
            .await?;
            let damaged = |error| StoreError::damaged(&file.path, error);
            stream
                .map_err(damaged)
                .try_for_each(|batch| {
                    take(&batch);
                    std::future::ready(Ok(()))
                })
                .await?;
        }
        Ok(())
    }

    /// True when a file with this content was added before.
    ///
    /// # Errors
    ///
    /// When the log cannot be read.
    pub async fn has_file(&self, content: Id) -> Result<bool, StoreError> {
        Ok(self.log(Table::Sample).await?.last_number(&file_sender(content)).await?.is_some())
    }
}

/// The directory of a store that is not in a bucket.
fn path_of(root: &Url) -> Option<PathBuf> {
    if root.scheme() == "file" { root.to_file_path().ok() } else { None }
}

/// The name under which a file sends its one block.
#[must_use]
pub fn file_sender(content: Id) -> String {
    format!("{FILE_SENDER}{content}")
}

/// Notes a row; returns true for one that was not known, or has names now and had none.
fn is_news<K: Clone + Eq + Hash>(known: &mut HashMap<K, bool>, key: &K, is_named: bool) -> bool {
    match known.get_mut(key) {
        Some(before) => is_named && !std::mem::replace(before, true),
        None => {
            known.insert(key.clone(), is_named);
            true
        }
    }
}

fn id_of(bytes: &[u8]) -> Option<Id> {
    bytes.try_into().ok().map(Id::new)
}

/// Which blocks are to be stored, and the result for each.
fn decide<'a>(numbers: &Numbers, blocks: &'a [Block]) -> (Vec<Appended>, Vec<&'a Block>) {
    let mut last: HashMap<&str, i64> = HashMap::new();
    let (mut results, mut wanted) = (Vec::new(), Vec::new());
    for block in blocks {
        let before = last.get(block.sender.as_str()).copied().unwrap_or_else(|| numbers.last(&block.sender));
        let (result, after) = match block.number {
            number if number <= before => (Appended::Duplicate, before),
            number if number == before + 1 => (Appended::Stored, number),
            _ => (Appended::Gap { expected: before + 1 }, before),
        };
        last.insert(&block.sender, after);
        results.push(result);
        if result == Appended::Stored {
            wanted.push(block);
        }
    }
    (results, wanted)
}

fn last_numbers(blocks: &[&Block]) -> Vec<(String, i64)> {
    let mut last: BTreeMap<&str, i64> = BTreeMap::new();
    for block in blocks {
        let number = last.entry(&block.sender).or_default();
        *number = block.number.max(*number);
    }
    last.into_iter().map(|(sender, number)| (sender.to_owned(), number)).collect()
}

/// The samples of blocks by day and service.
fn days_of(blocks: &[&Block]) -> Result<Vec<DayOfService>, StoreError> {
    let mut parts: BTreeMap<(String, &str), Vec<OfProcess<'_>>> = BTreeMap::new();
    for Block { process, samples, .. } in blocks {
        for samples in samples.chunk_by(|a, b| is_same_day(a.end_ms, b.end_ms)) {
            let day = samples.first().map(|sample| day_of(sample.end_ms)).unwrap_or_default();
            parts.entry((day, &process.service)).or_default().push((process, samples));
        }
    }
    parts
        .into_iter()
        .map(|((day, service), parts)| {
            let rows = rows::samples(&day, service, &parts)?;
            Ok(DayOfService { day, service: service.to_owned(), rows })
        })
        .collect()
}

/// Files of fewer rows are small enough to be merged with others.
const ROWS_OF_A_LASTING_FILE: usize = 100_000;

/// Sorts rows and writes them as an object that no commit names yet.
async fn put_sorted(
    log: &Log,
    partition: Option<(&str, &str)>,
    batch: &RecordBatch,
) -> Result<Add, StoreError> {
    let table = log.table;
    let failed = |error: &dyn std::fmt::Display| StoreError::damaged(table.name(), error);
    let batch = sorted(table, batch).map_err(|error| failed(&error))?;
    let effort = if batch.num_rows() < ROWS_OF_A_LASTING_FILE { Effort::Little } else { Effort::Much };
    let mut writer = FileWriter::new(table, effort).map_err(|error| failed(&error))?;
    for start in (0..batch.num_rows()).step_by(BATCH_ROWS) {
        let part = batch.slice(start, BATCH_ROWS.min(batch.num_rows() - start));
        writer.write(&part).map_err(|error| failed(&error))?;
    }
    let rows = writer.rows();
    log.put(partition, writer.finish()?, rows).await
}
