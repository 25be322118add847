//! Fewer and larger files, removal of old days and of what nothing names, and checks.
//!
//! Maintenance that races with maintenance is refused by the log, and has changed nothing: both
//! commit a transaction of one name. The library's own `OPTIMIZE` does not do that, and two of them
//! at once double every row. **Never run it on a store**, nor that of another program.

use std::collections::{BTreeMap, HashSet};

use deltalake_core::kernel::Add;
use futures::{StreamExt as _, TryStreamExt as _};
use object_store::{ObjectMeta, ObjectStoreExt as _};
use parquet::arrow::ProjectionMask;

use crate::log::{Committed, DataFile, Log};
use crate::merge::Merge;
use crate::read::rows_of;
use crate::schema::Table;
use crate::sorted_file::{Effort, FileWriter};
use crate::{Store, StoreError, now_ms};

/// Files of this size are not merged any more.
const TARGET_BYTES: u64 = 128 << 20;
/// Files that are merged at once.
const MOST_MERGED: usize = 256;
/// The directory of a table's log.
const LOG: &str = "_delta_log/";

/// The result of [`Store::compact`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Compacted {
    /// Files that were merged.
    pub files_before: usize,
    /// Files that they were merged into.
    pub files_after: usize,
    /// Bytes of the former.
    pub bytes_before: u64,
    /// Bytes of the latter.
    pub bytes_after: u64,
    /// Rows that were read.
    pub rows: u64,
}

/// The result of [`Store::expire`] and [`Store::sweep`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Expired {
    /// Files.
    pub files: usize,
    /// Their bytes.
    pub bytes: u64,
    /// Rows in them, where the log says so.
    pub rows: u64,
}

/// The state of one table.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Checked {
    /// The table.
    pub table: Table,
    /// Files that the last commit names.
    pub files: usize,
    /// Their bytes.
    pub bytes: u64,
    /// Their rows.
    pub rows: u64,
    /// Files that no commit names: of writers that were killed, and of merged files.
    pub unnamed_files: usize,
    /// Their bytes.
    pub unnamed_bytes: u64,
    /// Problems of files: a sentence each.
    pub problems: Vec<String>,
}

impl Store {
    /// Merges small files of each table into larger ones. Rows stay what they are; of those with a
    /// key, the last one stays.
    ///
    /// # Errors
    ///
    /// [`StoreError::Raced`] when other maintenance changed the same table meanwhile; when files
    /// cannot be read or written.
    pub async fn compact(&self) -> Result<Compacted, StoreError> {
        let mut sums = Compacted::default();
        for table in Table::ALL {
            let mut log = self.log(table).await?;
            let mut partitions: BTreeMap<(Option<String>, Option<String>), Vec<DataFile>> = BTreeMap::new();
            for file in log.files()? {
                if file.bytes < TARGET_BYTES / 2 {
                    partitions.entry((file.day.clone(), file.service.clone())).or_default().push(file);
                }
            }
            for files in partitions.values() {
                for files in files.chunks(MOST_MERGED).filter(|files| files.len() > 1) {
                    let partition = merge(&mut log, files).await?;
                    sums.files_before += partition.files_before;
                    sums.files_after += partition.files_after;
                    sums.bytes_before += partition.bytes_before;
                    sums.bytes_after += partition.bytes_after;
                    sums.rows += partition.rows;
                }
            }
        }
        Ok(sums)
    }

    /// Removes the samples of the days before `day`, as `2026-11-27`. Their files stay until
    /// [`sweep`](Self::sweep) finds them old enough.
    ///
    /// # Errors
    ///
    /// As [`compact`](Self::compact).
    pub async fn expire(&self, day: &str) -> Result<Expired, StoreError> {
        let mut log = self.log(Table::Sample).await?;
        let mut old = log.files()?;
        old.retain(|file| file.day.as_deref().is_some_and(|of_file| of_file < day));
        if old.is_empty() {
            return Ok(Expired::default());
        }
        match log.remove(&old, format!("p_day < '{day}'")).await? {
            Committed::Done => Ok(expired(&old)),
            Committed::Raced => Err(StoreError::Raced { table: Table::Sample.name() }),
        }
    }

    /// Deletes files that no commit names and that are older than this many milliseconds.
    ///
    /// Younger ones may belong to a writer that has not committed yet, or to a reader that began
    /// before a merge.
    ///
    /// # Errors
    ///
    /// When the directory cannot be read or written.
    pub async fn sweep(&self, older_than_ms: i64) -> Result<Expired, StoreError> {
        let mut sums = Expired::default();
        let limit = now_ms().saturating_sub(older_than_ms);
        for table in Table::ALL {
            let log = self.log(table).await?;
            for object in unnamed(&log).await? {
                if object.last_modified.timestamp_millis() > limit {
                    continue;
                }
                let file = object.location.to_string();
                match log.objects().delete(&object.location).await {
                    // Another sweep was faster.
                    Ok(()) | Err(object_store::Error::NotFound { .. }) => {}
                    Err(source) => return Err(StoreError::Object { file, source }),
                }
                sums.files += 1;
                sums.bytes += object.size;
            }
        }
        Ok(sums)
    }

    /// Compares the files of all tables with their logs.
    ///
    /// # Errors
    ///
    /// When a log or the directory cannot be read. Problems of files are in the result.
    pub async fn check(&self) -> Result<Vec<Checked>, StoreError> {
        let mut tables = Vec::new();
        for table in Table::ALL {
            let log = self.log(table).await?;
            let files = log.files()?;
            let mut problems = Vec::new();
            for file in &files {
                match rows_of(&log.objects(), file, |schema| ProjectionMask::none(schema.num_columns())).await
                {
                    Ok(rows) => {
                        let counted = rows
                            .map_ok(|batch| batch.num_rows() as u64)
                            .try_fold(0_u64, |sum, rows| std::future::ready(Ok(sum + rows)))
                            .await;
                        match counted {
                            Ok(rows) if rows == file.rows => {}
                            Ok(rows) => {
                                problems.push(format!(
                                    "{}: {rows} rows, and the log says {}",
                                    file.path, file.rows
                                ));
                            }
                            Err(error) => problems.push(format!("{}: {error}", file.path)),
                        }
                    }
                    Err(error) => problems.push(error.to_string()),
                }
            }
            let unnamed = unnamed(&log).await?;
            let sums = expired(&files);
            tables.push(Checked {
                table,
                files: sums.files,
                bytes: sums.bytes,
                rows: sums.rows,
                unnamed_files: unnamed.len(),
                unnamed_bytes: unnamed.iter().map(|object| object.size).sum(),
                problems,
            });
        }
        Ok(tables)
    }
}

fn expired(files: &[DataFile]) -> Expired {
    Expired {
        files: files.len(),
        bytes: files.iter().map(|file| file.bytes).sum(),
        rows: files.iter().map(|file| file.rows).sum(),
    }
}

/// The objects of a table that its last commit does not name.
async fn unnamed(log: &Log) -> Result<Vec<ObjectMeta>, StoreError> {
    // Listed first: what is committed between the two would be missing in an older log.
    let objects: Vec<ObjectMeta> = log
        .objects()
        .list(None)
        .try_collect()
        .await
        .map_err(|source| StoreError::Object { file: log.table.name().to_owned(), source })?;
    let log = log.reopened().await?;
    let named: HashSet<String> = log.files()?.into_iter().map(|file| file.path).collect();
    let is_unnamed = |object: &ObjectMeta| {
        let path = object.location.as_ref();
        !path.starts_with(LOG) && !named.contains(path)
    };
    Ok(objects.into_iter().filter(is_unnamed).collect())
}

/// Merges files of one partition, and puts the result in their place.
async fn merge(log: &mut Log, files: &[DataFile]) -> Result<Compacted, StoreError> {
    let mut inputs = Vec::new();
    for file in files {
        inputs.push((file.path.clone(), rows_of(&log.objects(), file, |_| ProjectionMask::all()).await?));
    }
    let added = write_merged(log, files, inputs).await?;
    let before = expired(files);
    let sums = Compacted {
        files_before: before.files,
        files_after: added.len(),
        bytes_before: before.bytes,
        bytes_after: added.iter().map(|file| file.size.unsigned_abs()).sum(),
        rows: before.rows,
    };
    match log.replace(files, added.clone(), TARGET_BYTES).await {
        Ok(Committed::Done) => Ok(sums),
        Ok(Committed::Raced) | Err(StoreError::Raced { .. }) => {
            discard(log, &added).await;
            Err(StoreError::Raced { table: log.table.name() })
        }
        Err(error) => Err(error),
    }
}

/// Deletes objects that lost a race. Those that cannot be deleted now are swept later.
async fn discard(log: &Log, files: &[Add]) {
    let paths = files.iter().map(|file| Ok(object_store::path::Path::from(file.path.as_str())));
    let paths = futures::stream::iter(paths.collect::<Vec<_>>()).boxed();
    let _: Result<Vec<_>, _> = log.objects().delete_stream(paths).try_collect().await;
}

async fn write_merged(
    log: &Log,
    files: &[DataFile],
    inputs: Vec<(String, crate::read::FileRows)>,
) -> Result<Vec<Add>, StoreError> {
    let table = log.table;
    let failed = |error: parquet::errors::ParquetError| StoreError::damaged(table.name(), error);
    let partition = files.first().and_then(|file| Some((file.day.clone()?, file.service.clone()?)));
    let partition = partition.as_ref().map(|(day, service)| (day.as_str(), service.as_str()));
    let mut merge = Merge::new(table, inputs).await?;
    let mut writer = FileWriter::new(table, Effort::Much).map_err(failed)?;
    let mut added = Vec::new();
    while let Some(batch) = merge.next().await? {
        writer.write(&batch).map_err(failed)?;
        if writer.bytes() as u64 >= TARGET_BYTES {
            let full = std::mem::replace(&mut writer, FileWriter::new(table, Effort::Much).map_err(failed)?);
            let rows = full.rows();
            added.push(log.put(partition, full.finish()?, rows).await?);
        }
    }
    if writer.rows() > 0 {
        let rows = writer.rows();
        added.push(log.put(partition, writer.finish()?, rows).await?);
    }
    Ok(added)
}
