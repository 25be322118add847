//! The number of the last block of every sender, read at once.
//!
//! The library finds one number by reading the whole log. A gateway has thousands of senders in one
//! commit; so it reads the numbers of the last checkpoint once, and those of each commit behind it.

use std::collections::HashMap;

use arrow::array::{Array as _, AsArray as _};
use arrow::datatypes::Int64Type;
use futures::TryStreamExt as _;
use object_store::ObjectStoreExt as _;
use object_store::path::Path;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

use crate::StoreError;
use crate::calendar::now_ms;
use crate::log::{Log, NUMBERS_LAST_MS};

/// The numbers up to some version of a log.
#[derive(Default)]
pub(crate) struct Numbers {
    /// The version that was read last.
    read_to: Option<u64>,
    last: HashMap<String, Number>,
}

/// The number of a sender's last block.
#[derive(Clone, Copy)]
struct Number {
    number: i64,
    /// When it was written; `None` of one that does not expire.
    updated_ms: Option<i64>,
}

impl Numbers {
    /// The number of the last block of a sender; 0 when there is none.
    pub(crate) fn last(&self, sender: &str) -> i64 {
        let oldest_ms = now_ms() - NUMBERS_LAST_MS;
        let is_current = |number: &&Number| number.updated_ms.is_none_or(|updated| updated >= oldest_ms);
        self.last.get(sender).filter(is_current).map_or(0, |number| number.number)
    }

    /// Reads what was committed up to the version of a log.
    pub(crate) async fn catch_up(&mut self, log: &Log) -> Result<(), StoreError> {
        let Some(version) = log.version() else { return Ok(()) };
        if self.read_to == Some(version) {
            return Ok(());
        }
        if self.read_to.is_some_and(|read_to| read_to > version) {
            *self = Self::default();
        }
        let result = self.read(log, version).await;
        if result.is_err() {
            // A part was read: begin anew the next time.
            *self = Self::default();
        }
        result
    }

    async fn read(&mut self, log: &Log, version: u64) -> Result<(), StoreError> {
        let next = match self.read_to {
            Some(read_to) => read_to + 1,
            None => match last_checkpoint(log, version).await? {
                Some((checkpoint, path)) => {
                    self.read_checkpoint(log, &path).await?;
                    checkpoint + 1
                }
                None => 0,
            },
        };
        for commit in next..=version {
            let Some(bytes) = log.commit_entry(commit).await? else {
                // Commits before a checkpoint are deleted after some days.
                if self.read_to.take().is_some() {
                    self.last.clear();
                    return Box::pin(self.read(log, version)).await;
                }
                return Err(StoreError::damaged(log.table.name(), format!("commit {commit} is not there")));
            };
            self.read_commit(log, commit, &bytes)?;
        }
        self.read_to = Some(version);
        Ok(())
    }

    fn read_commit(&mut self, log: &Log, commit: u64, bytes: &[u8]) -> Result<(), StoreError> {
        for line in bytes.split(|&byte| byte == b'\n').filter(|line| !line.trim_ascii().is_empty()) {
            let action: serde_json::Value = serde_json::from_slice(line).map_err(|error| {
                StoreError::damaged(format!("{} commit {commit}", log.table.name()), error)
            })?;
            let Some(transaction) = action.get("txn") else { continue };
            if let (Some(sender), Some(number)) =
                (transaction["appId"].as_str(), transaction["version"].as_i64())
            {
                let updated_ms = transaction["lastUpdated"].as_i64();
                self.last.insert(sender.to_owned(), Number { number, updated_ms });
            }
        }
        Ok(())
    }

    async fn read_checkpoint(&mut self, log: &Log, path: &Path) -> Result<(), StoreError> {
        let damaged = |error: &dyn std::fmt::Display| StoreError::damaged(path.as_ref(), error);
        let unreadable = |source| StoreError::Object { file: path.to_string(), source };
        let bytes = log.objects().get(path).await.map_err(unreadable)?.bytes().await.map_err(unreadable)?;
        let builder = ParquetRecordBatchReaderBuilder::try_new(bytes).map_err(|error| damaged(&error))?;
        let columns = ProjectionMask::columns(builder.parquet_schema(), ["txn"]);
        let reader = builder.with_projection(columns).build().map_err(|error| damaged(&error))?;
        for batch in reader {
            let batch = batch.map_err(|error| damaged(&error))?;
            let Some(transactions) = batch.column_by_name("txn").and_then(|column| column.as_struct_opt())
            else {
                continue;
            };
            let column = |name: &str| transactions.column_by_name(name);
            let (Some(senders), Some(numbers)) = (column("appId"), column("version")) else { continue };
            let senders = arrow::compute::cast(senders, &arrow::datatypes::DataType::Utf8)
                .map_err(|error| damaged(&error))?;
            let (senders, numbers) = (senders.as_string::<i32>(), numbers.as_primitive::<Int64Type>());
            let updated = column("lastUpdated").and_then(|column| column.as_primitive_opt::<Int64Type>());
            for row in (0..transactions.len()).filter(|&row| transactions.is_valid(row)) {
                let updated_ms =
                    updated.filter(|updated| updated.is_valid(row)).map(|updated| updated.value(row));
                let number = Number { number: numbers.value(row), updated_ms };
                self.last.insert(senders.value(row).to_owned(), number);
            }
        }
        Ok(())
    }
}

/// The last checkpoint up to a version that is one file.
async fn last_checkpoint(log: &Log, version: u64) -> Result<Option<(u64, Path)>, StoreError> {
    let directory = Path::from("_delta_log");
    let objects: Vec<_> = log
        .objects()
        .list(Some(&directory))
        .try_collect()
        .await
        .map_err(|source| StoreError::Object { file: directory.to_string(), source })?;
    let checkpoint = |path: &Path| {
        let number = path.filename()?.strip_suffix(".checkpoint.parquet")?;
        (number.len() == 20).then(|| number.parse::<u64>().ok())?
    };
    let found = objects.into_iter().filter_map(|object| {
        let number = checkpoint(&object.location)?;
        (number <= version).then_some((number, object.location))
    });
    Ok(found.max_by_key(|(number, _)| *number))
}
