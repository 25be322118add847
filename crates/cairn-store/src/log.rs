//! The log of one table: which files it has. A commit adds and removes files at once, or does
//! nothing.

use std::collections::HashMap;
use std::sync::Arc;

use deltalake_core::kernel::engine::arrow_conversion::TryIntoKernel;
use deltalake_core::kernel::transaction::{
    CommitBuilder, CommitConflictError, CommitProperties, TransactionError,
};
use deltalake_core::kernel::{Action, Add, DataType, Remove, StructField, Transaction};
use deltalake_core::logstore::object_store::{ObjectStore, ObjectStoreExt as _, path::Path};
use deltalake_core::operations::create::CreateBuilder;
use deltalake_core::protocol::{DeltaOperation, SaveMode};
use deltalake_core::{DeltaTable, DeltaTableBuilder, DeltaTableError};
use url::Url;
use uuid::Uuid;

use crate::StoreError;
use crate::calendar::now_ms;
use crate::schema::Table;

/// Retries of a commit while others commit.
const RETRIES: usize = 200;
/// Commits after which the log is summarised.
const COMMITS_OF_CHECKPOINT: &str = "20";
/// The identifier that all maintenance shares. The log refuses two commits at once that have it.
const MAINTENANCE: &str = "cairn-maintenance";

/// The log of a table, as of some commit.
pub(crate) struct Log {
    pub(crate) table: Table,
    inner: DeltaTable,
}

/// Milliseconds after which the numbers of processes expire; seven days.
///
/// `NUMBERS_LAST` says the same to the log.
pub(crate) const NUMBERS_LAST_MS: i64 = 7 * 86_400_000;
const NUMBERS_LAST: &str = "interval 7 days";

/// The beginning of the names of senders that are files.
pub(crate) const FILE_SENDER: &str = "file:";

/// The result of a commit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Committed {
    Done,
    /// A commit of another process has a transaction of the same sender.
    Raced,
}

/// A file of a table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DataFile {
    /// Path below the table's directory.
    pub path: String,
    /// Address.
    pub url: Url,
    /// Bytes.
    pub bytes: u64,
    /// Rows.
    pub rows: u64,
    /// The day of its samples; none of other tables.
    pub day: Option<String>,
    /// The service of its samples; none of other tables.
    pub service: Option<String>,
}

impl Log {
    fn error(table: Table) -> impl Fn(DeltaTableError) -> StoreError {
        move |source| StoreError::Log { table: table.name(), source: Box::new(source) }
    }

    fn url(root: &Url, table: Table) -> Result<Url, StoreError> {
        root.join(&format!("{}/", table.name()))
            .map_err(|error| StoreError::Place { place: root.to_string(), why: error.to_string() })
    }

    /// Makes an empty table.
    pub(crate) async fn create(root: &Url, table: Table) -> Result<(), StoreError> {
        let error = Self::error(table);
        let url = Self::url(root, table)?;
        let mut columns: Vec<StructField> = Vec::new();
        for field in table.schema().fields() {
            let column: StructField =
                field.as_ref().try_into_kernel().map_err(|error| StoreError::damaged(table.name(), error))?;
            columns.push(column);
        }
        for partition in table.partitions() {
            columns.push(StructField::new(*partition, DataType::STRING, false));
        }
        let log_store =
            DeltaTableBuilder::from_url(url).and_then(|builder| builder.build_storage()).map_err(&error)?;
        let properties = [
            ("delta.checkpointInterval", Some(COMMITS_OF_CHECKPOINT)),
            ("delta.setTransactionRetentionDuration", Some(NUMBERS_LAST)),
            ("delta.logRetentionDuration", Some("interval 7 days")),
        ];
        CreateBuilder::new()
            .with_log_store(log_store)
            .with_table_name(table.name())
            .with_columns(columns)
            .with_partition_columns(table.partitions().iter().copied())
            .with_configuration(properties)
            .with_save_mode(SaveMode::ErrorIfExists)
            .await
            .map_err(error)?;
        Ok(())
    }

    /// Opens a table as it is now.
    pub(crate) async fn open(root: &Url, table: Table) -> Result<Self, StoreError> {
        let inner = DeltaTableBuilder::from_url(Self::url(root, table)?).map_err(Self::error(table))?;
        Ok(Self { table, inner: inner.load().await.map_err(Self::error(table))? })
    }

    /// The same table as it is now.
    pub(crate) async fn reopened(&self) -> Result<Self, StoreError> {
        let mut log = Self { table: self.table, inner: self.inner.clone() };
        log.refresh().await?;
        Ok(log)
    }

    /// Catches up with the commits of others.
    pub(crate) async fn refresh(&mut self) -> Result<(), StoreError> {
        self.inner.update_state().await.map_err(Self::error(self.table))
    }

    /// The number of the last block of a sender.
    pub(crate) async fn last_number(&self, sender: &str) -> Result<Option<i64>, StoreError> {
        let state = self.inner.snapshot().map_err(Self::error(self.table))?;
        state
            .transaction_version(self.inner.log_store().as_ref(), sender)
            .await
            .map_err(Self::error(self.table))
    }

    /// The last commit that this log has.
    pub(crate) fn version(&self) -> Option<u64> {
        self.inner.version()
    }

    /// A commit as it was written; none when it is not there.
    pub(crate) async fn commit_entry(&self, version: u64) -> Result<Option<bytes::Bytes>, StoreError> {
        self.inner.log_store().read_commit_entry(version).await.map_err(Self::error(self.table))
    }

    /// The files of the table.
    pub(crate) fn files(&self) -> Result<Vec<DataFile>, StoreError> {
        let state = self.inner.snapshot().map_err(Self::error(self.table))?;
        let root = self.inner.table_url().clone();
        let mut files = Vec::new();
        for file in state.log_data().iter() {
            let partitions = file.partition_values_map();
            let value = |name: &str| partitions.get(name).cloned().flatten();
            let path = file.object_store_path().to_string();
            let mut url = root.clone();
            {
                let mut parts = url.path_segments_mut().map_err(|()| StoreError::Place {
                    place: root.to_string(),
                    why: "an address that nothing can be below".to_owned(),
                })?;
                parts.pop_if_empty();
                path.split('/').for_each(|part| {
                    parts.push(part);
                });
            }
            files.push(DataFile {
                url,
                path,
                bytes: u64::try_from(file.size()).unwrap_or(0),
                rows: file.num_records().unwrap_or(0) as u64,
                day: value("p_day"),
                service: value("p_service"),
            });
        }
        files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(files)
    }

    /// Writes an object that no commit names yet.
    pub(crate) async fn put(
        &self,
        partition: Option<(&str, &str)>,
        bytes: Vec<u8>,
        rows: usize,
    ) -> Result<Add, StoreError> {
        // A new name for each attempt: one that lost a race must not replace the winner's object.
        let name = Uuid::now_v7();
        let path = match partition {
            Some((day, _)) => format!("p_day={day}/{name}.parquet"),
            None => format!("{name}.parquet"),
        };
        let size = i64::try_from(bytes.len()).unwrap_or(i64::MAX);
        self.objects()
            .put(&Path::from(path.as_str()), bytes.into())
            .await
            .map_err(|source| StoreError::Object { file: path.clone(), source })?;
        let partition_values = partition.map_or_else(HashMap::new, |(day, service)| {
            HashMap::from([
                ("p_day".to_owned(), Some(day.to_owned())),
                ("p_service".to_owned(), Some(service.to_owned())),
            ])
        });
        Ok(Add {
            path,
            partition_values,
            size,
            modification_time: now_ms(),
            data_change: true,
            stats: Some(format!("{{\"numRecords\":{rows}}}")),
            tags: None,
            deletion_vector: None,
            base_row_id: None,
            default_row_commit_version: None,
            clustering_provider: None,
        })
    }

    /// Adds files, and with them the number of the last block of each sender.
    pub(crate) async fn append(
        &mut self,
        files: Vec<Add>,
        blocks: &[(String, i64)],
    ) -> Result<Committed, StoreError> {
        let now = now_ms();
        let transactions = blocks
            .iter()
            .map(|(sender, number)| {
                // A process ends, and its number is needed no more; a file can be given again.
                let expires = !sender.starts_with(FILE_SENDER);
                Transaction::new_with_last_update(sender, *number, expires.then_some(now))
            })
            .collect();
        let operation = DeltaOperation::Write {
            mode: SaveMode::Append,
            partition_by: Some(self.table.partitions().iter().map(|&name| name.to_owned()).collect()),
            predicate: None,
        };
        let actions = files.into_iter().map(Action::Add).collect();
        self.commit(actions, transactions, operation).await
    }

    /// Replaces files by others with the same rows.
    pub(crate) async fn replace(
        &mut self,
        removed: &[DataFile],
        mut added: Vec<Add>,
        target_bytes: u64,
    ) -> Result<Committed, StoreError> {
        added.iter_mut().for_each(|file| file.data_change = false);
        let mut actions = self.removals(removed, false)?;
        actions.extend(added.into_iter().map(Action::Add));
        let target_size = i64::try_from(target_bytes).unwrap_or(i64::MAX);
        self.maintain(actions, DeltaOperation::Optimize { predicate: None, target_size }).await
    }

    /// Removes files with their rows.
    pub(crate) async fn remove(
        &mut self,
        removed: &[DataFile],
        why: String,
    ) -> Result<Committed, StoreError> {
        let actions = self.removals(removed, true)?;
        self.maintain(actions, DeltaOperation::Delete { predicate: Some(why) }).await
    }

    fn removals(&self, removed: &[DataFile], is_data_change: bool) -> Result<Vec<Action>, StoreError> {
        let state = self.inner.snapshot().map_err(Self::error(self.table))?;
        let wanted: std::collections::HashSet<&str> = removed.iter().map(|file| file.path.as_str()).collect();
        let is_wanted = |path: &Path| wanted.contains(path.as_ref());
        let found: Vec<Remove> = state
            .log_data()
            .iter()
            .filter(|file| is_wanted(&file.object_store_path()))
            .map(|file| file.remove_action(is_data_change))
            .collect();
        if found.len() == wanted.len() {
            Ok(found.into_iter().map(Action::Remove).collect())
        } else {
            Err(StoreError::Raced { table: self.table.name() })
        }
    }

    /// Commits unless another maintenance did so since this log was read.
    async fn maintain(
        &mut self,
        actions: Vec<Action>,
        operation: DeltaOperation,
    ) -> Result<Committed, StoreError> {
        let last = self.last_number(MAINTENANCE).await?.unwrap_or(0);
        self.commit(actions, vec![Transaction::new(MAINTENANCE, last + 1)], operation).await
    }

    async fn commit(
        &mut self,
        actions: Vec<Action>,
        transactions: Vec<Transaction>,
        operation: DeltaOperation,
    ) -> Result<Committed, StoreError> {
        let properties =
            CommitProperties::default().with_application_transactions(transactions).with_max_retries(RETRIES);
        let state = self.inner.snapshot().map_err(Self::error(self.table))?;
        let result = CommitBuilder::from(properties)
            .with_actions(actions)
            .build(Some(state), self.inner.log_store(), operation)
            .await;
        match result {
            Ok(_) => {
                self.refresh().await?;
                Ok(Committed::Done)
            }
            Err(DeltaTableError::Transaction {
                source:
                    TransactionError::CommitConflict(
                        CommitConflictError::ConcurrentTransaction
                        | CommitConflictError::ConcurrentDeleteDelete
                        | CommitConflictError::ConcurrentDeleteRead
                        | CommitConflictError::ConcurrentAppend,
                    ),
            }) => Ok(Committed::Raced),
            Err(source) => Err(Self::error(self.table)(source)),
        }
    }

    /// The objects below the table's directory.
    pub(crate) fn objects(&self) -> Arc<dyn ObjectStore> {
        self.inner.object_store()
    }
}
