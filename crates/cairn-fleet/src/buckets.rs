//! Buckets of object stores for the query engine.

use std::sync::Arc;

use cairn_store::objects_at;
use datafusion::common::{DataFusionError, Result};
use datafusion::execution::object_store::{DefaultObjectStoreRegistry, ObjectStoreRegistry};
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use object_store::ObjectStore;
use url::Url;

/// Opens each bucket when the first file of it is read, with the settings of the environment.
#[derive(Debug, Default)]
struct Buckets {
    opened: DefaultObjectStoreRegistry,
}

impl ObjectStoreRegistry for Buckets {
    fn register_store(&self, url: &Url, store: Arc<dyn ObjectStore>) -> Option<Arc<dyn ObjectStore>> {
        self.opened.register_store(url, store)
    }

    fn deregister_store(&self, url: &Url) -> Result<Arc<dyn ObjectStore>> {
        self.opened.deregister_store(url)
    }

    fn get_store(&self, url: &Url) -> Result<Arc<dyn ObjectStore>> {
        self.opened.get_store(url).or_else(|_| {
            let objects = objects_at(url).map_err(|error| DataFusionError::External(Box::new(error)))?;
            self.opened.register_store(url, Arc::clone(&objects));
            Ok(objects)
        })
    }
}

/// Returns the environment of a query engine that reads directories and buckets.
pub(crate) fn environment() -> RuntimeEnvBuilder {
    RuntimeEnvBuilder::new().with_object_store_registry(Arc::new(Buckets::default()))
}
