//! Fetches debug files from servers, for builds without local files. Active only with the feature
//! `debuginfod`, and while the environment names servers in `DEBUGINFOD_URLS`.
//!
//! Files are cached in `$DEBUGINFOD_CACHE_PATH`, or in `debuginfod_client` below the user's cache
//! directory, in elfutils' layout, so that its tools share them. An answer must begin within
//! `DEBUGINFOD_TIMEOUT` seconds, 90 by default, and end within four times that. This process does
//! not ask again for a file that every server lacks.

use std::collections::HashSet;
use std::env;
use std::ffi::OsString;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;

use cairn_files::Directory;

use crate::BuildId;

/// The requested file of a build.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum FileRole {
    Program,
    DebugInfo,
}

impl FileRole {
    fn name(self) -> &'static str {
        match self {
            Self::Program => "executable",
            Self::DebugInfo => "debuginfo",
        }
    }
}

/// Files that no server has.
static NOT_THERE: LazyLock<Mutex<HashSet<(BuildId, FileRole)>>> = LazyLock::new(Mutex::default);

/// Returns a build's file from the cache or a server. The caller checks that it is of that build.
pub(crate) fn fetch(build_id: &BuildId, kind: FileRole) -> Option<PathBuf> {
    let urls = env::var("DEBUGINFOD_URLS").ok().filter(|urls| !urls.trim().is_empty())?;
    let directory = cache_directory()?.join(build_id.to_string());
    let place = directory.join(kind.name());
    // A cache that another user can write to is not trusted.
    let retained = Directory::private_if_there(&directory)
        .and_then(|directory| directory.read_own(kind.name().as_ref()));
    if retained.and_then(|file| file.metadata()).is_ok_and(|metadata| metadata.len() > 0) {
        return Some(place);
    }
    let wanted = (build_id.clone(), kind);
    if NOT_THERE.lock().unwrap_or_else(PoisonError::into_inner).contains(&wanted) {
        return None;
    }
    for url in urls.split_ascii_whitespace() {
        let url = format!("{}/buildid/{build_id}/{}", url.trim_end_matches('/'), kind.name());
        if download(&url, &place).is_ok() {
            return Some(place);
        }
    }
    NOT_THERE.lock().unwrap_or_else(PoisonError::into_inner).insert(wanted);
    None
}

fn cache_directory() -> Option<PathBuf> {
    let given = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    given("DEBUGINFOD_CACHE_PATH").or_else(|| {
        let cache = given("XDG_CACHE_HOME").or_else(|| Some(given("HOME")?.join(".cache")))?;
        Some(cache.join("debuginfod_client"))
    })
}

fn download(url: &str, place: &Path) -> io::Result<()> {
    let seconds = env::var("DEBUGINFOD_TIMEOUT").ok().and_then(|text| text.parse().ok()).unwrap_or(90_u64);
    let timeout = Duration::from_secs(seconds.clamp(1, 600));
    let agent: ureq::Agent = ureq::Agent::config_builder()
        .timeout_connect(Some(timeout))
        .timeout_recv_response(Some(timeout))
        .timeout_global(Some(timeout * 4))
        .user_agent(concat!("cairn/", env!("CARGO_PKG_VERSION")))
        .build()
        .into();
    let mut response = agent.get(url).call().map_err(io::Error::other)?;
    let (parent, name) = place.parent().zip(place.file_name()).ok_or(io::ErrorKind::NotFound)?;
    let directory = Directory::private(parent)?;
    // Downloads to a temporary name, because other processes may fetch the same file.
    let temporary = OsString::from(format!(".{}.{}", std::process::id(), unique()));
    let written = directory.create_new(&temporary).and_then(|mut file| {
        let mut body = response.body_mut().as_reader().take(MAX_BYTES + 1);
        if io::copy(&mut body, &mut file)? > MAX_BYTES {
            return Err(io::Error::other("the file is too large"));
        }
        directory.rename(&temporary, name)
    });
    written.inspect_err(|_| {
        let _ = directory.remove(&temporary);
    })
}

fn unique() -> u32 {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    NUMBER.fetch_add(1, Ordering::Relaxed)
}

/// Maximum bytes of a download; 16 GiB, because debug files of some browsers have four.
const MAX_BYTES: u64 = 16 << 30;
