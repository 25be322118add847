//! Places of stores: directories, and buckets of object stores.
//!
//! A bucket's keys and its service's address are in the variables of the environment that its own
//! tools read, as `AWS_ACCESS_KEY_ID`, `AZURE_STORAGE_ACCOUNT_NAME` or `GOOGLE_SERVICE_ACCOUNT`.

use std::path::Path;
use std::sync::{Arc, Once};

use deltalake_core::logstore::{
    LogStore, LogStoreFactory, ObjectStoreFactory, ObjectStoreRef, StorageConfig, default_logstore,
    logstore_factories, object_store_factories,
};
use deltalake_core::{DeltaResult, DeltaTableError};
use object_store::path::Path as ObjectPath;
use object_store::prefix::PrefixStore;
use object_store::{ObjectStore, ObjectStoreExt as _, PutMode};
use url::Url;

use crate::StoreError;

/// Addresses that are buckets.
const BUCKETS: [&str; 7] = ["s3", "s3a", "gs", "az", "abfs", "abfss", "azure"];

/// Variables of the environment that say how a bucket is reached.
const VARIABLES: [&str; 3] = ["AWS_", "AZURE_", "GOOGLE_"];

fn refused(place: &str, why: impl ToString) -> StoreError {
    StoreError::Place { place: place.to_owned(), why: why.to_string() }
}

/// The address of a place. It ends with `/`, so that names can be added.
pub(crate) fn address_of(place: &str) -> Result<Url, StoreError> {
    let Some((scheme, _)) = place.split_once("://") else {
        let path = std::path::absolute(Path::new(place)).map_err(|error| refused(place, error))?;
        return Url::from_directory_path(path)
            .map_err(|()| refused(place, "the path is not one that an address can have"));
    };
    if scheme != "file" && !BUCKETS.contains(&scheme) {
        let known = BUCKETS.join("://, ");
        return Err(refused(place, format!("a store is a directory or a bucket: {known}://")));
    }
    let mut url = Url::parse(place).map_err(|error| refused(place, error))?;
    if !url.path().ends_with('/') {
        url.set_path(&format!("{}/", url.path()));
    }
    Ok(url)
}

/// The objects of a whole bucket or machine, and the place of `url` in it.
fn root_of(url: &Url) -> object_store::Result<(Arc<dyn ObjectStore>, ObjectPath)> {
    let settings = std::env::vars_os().filter_map(|(name, value)| {
        let name = name.into_string().ok()?;
        let is_setting = VARIABLES.iter().any(|beginning| name.starts_with(beginning));
        Some((name, value.into_string().ok()?)).filter(|_| is_setting)
    });
    let (objects, path) = object_store::parse_url_opts(url, settings)?;
    Ok((Arc::from(objects), path))
}

/// Returns the objects of the bucket or machine that `url` is in, by paths from its root. Query
/// engines read files of stores through it.
///
/// # Errors
///
/// [`StoreError::Place`] when the address or the variables of the environment cannot be right.
pub fn objects_at(url: &Url) -> Result<Arc<dyn ObjectStore>, StoreError> {
    root_of(url).map(|(objects, _)| objects).map_err(|error| refused(url.as_str(), error))
}

/// The objects of a store, by paths from its directory.
pub(crate) fn objects_below(place: &str, root: &Url) -> Result<Arc<dyn ObjectStore>, StoreError> {
    register_buckets();
    let (objects, path) = root_of(root).map_err(|error| refused(place, error))?;
    Ok(Arc::new(PrefixStore::new(objects, path)))
}

/// Writes an object that must not be there.
pub(crate) async fn put_new(
    objects: &dyn ObjectStore,
    name: &str,
    bytes: Vec<u8>,
) -> object_store::Result<()> {
    objects.put_opts(&name.into(), bytes.into(), PutMode::Create.into()).await.map(drop)
}

/// Proves that an object store refuses to replace an object by a new one.
///
/// Two writers that commit at once both believe to have done so otherwise, and the rows of one are
/// lost.
pub(crate) async fn check_conditions(place: &str, objects: &dyn ObjectStore) -> Result<(), StoreError> {
    const PROBE: &str = "cairn-store.probe";
    let failed = |source| StoreError::Object { file: PROBE.to_owned(), source };
    match put_new(objects, PROBE, Vec::new()).await {
        // A check that was killed has left it.
        Ok(()) | Err(object_store::Error::AlreadyExists { .. }) => {}
        Err(source) => return Err(failed(source)),
    }
    let second = put_new(objects, PROBE, Vec::new()).await;
    let deleted = objects.delete(&PROBE.into()).await;
    match second {
        Err(object_store::Error::AlreadyExists { .. }) => deleted.map_err(failed),
        Ok(()) => Err(refused(
            place,
            "this object store replaces objects although it is asked not to (If-None-Match: *), so that commits of \
             two writers at once would be lost; use another one, or a directory",
        )),
        Err(source) => Err(failed(source)),
    }
}

/// Makes the library of the logs find buckets.
fn register_buckets() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        for scheme in BUCKETS {
            if let Ok(scheme) = Url::parse(&format!("{scheme}://")) {
                object_store_factories().insert(scheme.clone(), Arc::new(Buckets));
                logstore_factories().insert(scheme, Arc::new(Buckets));
            }
        }
    });
}

struct Buckets;

impl ObjectStoreFactory for Buckets {
    fn parse_url_opts(&self, url: &Url, _: &StorageConfig) -> DeltaResult<(ObjectStoreRef, ObjectPath)> {
        root_of(url).map_err(|source| DeltaTableError::ObjectStore { source })
    }
}

impl LogStoreFactory for Buckets {
    fn with_options(
        &self,
        prefixed_store: ObjectStoreRef,
        root_store: ObjectStoreRef,
        location: &Url,
        options: &StorageConfig,
    ) -> DeltaResult<Arc<dyn LogStore>> {
        Ok(default_logstore(prefixed_store, root_store, location, options))
    }
}
