//! Spools: recordings as the program itself writes them, in segments of 64 KiB that each belong to
//! one thread.

mod address_table;
#[cfg(not(target_os = "linux"))]
pub(crate) mod control_elsewhere;
pub(crate) mod control_words;
pub(crate) mod deliver;
#[cfg(target_os = "linux")]
pub(crate) mod external_marks;
pub(crate) mod follower;
pub(crate) mod lane;
pub(crate) mod live;
pub(crate) mod lives;
pub(crate) mod merge;
pub(crate) mod pairing;
pub(crate) mod reader;
pub(crate) mod ring;
pub(crate) mod scan;
