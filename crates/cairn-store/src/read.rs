//! Rows of files as streams of batches.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt as _};
use parquet::arrow::arrow_reader::ArrowReaderOptions;
use parquet::arrow::async_reader::{AsyncFileReader, ParquetRecordBatchStream};
use parquet::arrow::{ParquetRecordBatchStreamBuilder, ProjectionMask};
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader};
use parquet::schema::types::SchemaDescriptor;

use crate::StoreError;
use crate::log::DataFile;
use crate::sorted_file::BATCH_ROWS;

/// The rows of a file, in their order.
pub(crate) type FileRows = ParquetRecordBatchStream<ObjectReader>;

/// An object as a file that can be read in parts.
pub(crate) struct ObjectReader {
    objects: Arc<dyn ObjectStore>,
    path: Path,
    bytes: u64,
}

impl AsyncFileReader for ObjectReader {
    fn get_bytes(&mut self, range: Range<u64>) -> BoxFuture<'_, Result<Bytes>> {
        async move { self.objects.get_range(&self.path, range).await.map_err(external) }.boxed()
    }

    fn get_byte_ranges(&mut self, ranges: Vec<Range<u64>>) -> BoxFuture<'_, Result<Vec<Bytes>>> {
        async move { self.objects.get_ranges(&self.path, &ranges).await.map_err(external) }.boxed()
    }

    fn get_metadata<'a>(
        &'a mut self,
        _: Option<&'a ArrowReaderOptions>,
    ) -> BoxFuture<'a, Result<Arc<ParquetMetaData>>> {
        async move {
            let bytes = self.bytes;
            ParquetMetaDataReader::new().load_and_finish(self, bytes).await.map(Arc::new)
        }
        .boxed()
    }
}

fn external(error: object_store::Error) -> ParquetError {
    ParquetError::External(Box::new(error))
}

/// Opens a file of a table. `columns` chooses the part that is read.
pub(crate) async fn rows_of(
    objects: &Arc<dyn ObjectStore>,
    file: &DataFile,
    columns: impl FnOnce(&SchemaDescriptor) -> ProjectionMask,
) -> std::result::Result<FileRows, StoreError> {
    let damaged = |error: ParquetError| StoreError::damaged(&file.path, error);
    let reader = ObjectReader {
        objects: Arc::clone(objects),
        path: Path::from(file.path.as_str()),
        bytes: file.bytes,
    };
    let builder = ParquetRecordBatchStreamBuilder::new(reader).await.map_err(damaged)?;
    let columns = columns(builder.parquet_schema());
    builder.with_batch_size(BATCH_ROWS).with_projection(columns).build().map_err(damaged)
}
