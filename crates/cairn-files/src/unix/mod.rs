//! Files relative to open directories, by descriptor. Users have numbers.

mod directory;
mod output;
mod trust;
mod unnamed;

pub use directory::Directory;
pub use output::{open_existing, open_output};
pub use trust::is_distrust;
pub use unnamed::{reopenable_file, unnamed_file, unnamed_file_in};

/// Returns the effective user of this process.
#[must_use]
pub fn effective_user() -> u32 {
    rustix::process::geteuid().as_raw()
}
