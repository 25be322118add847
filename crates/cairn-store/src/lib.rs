//! Heap profiles of many machines as tables that any engine can ask.
//!
//! A [`Store`] is a directory, or a part of a bucket, with seven [tables](Table), each a Delta
//! table: Parquet files, and a log that says which of them count. Samples come in [blocks](Block),
//! and each block is stored once, however often a sender repeats it. Nothing here asks questions;
//! the `cairn-fleet` program, DuckDB and Spark do that.
//!
//! ```no_run
//! use cairn_store::{Block, Store};
//!
//! # async fn example() -> Result<(), cairn_store::StoreError> {
//! let mut store = Store::create("fleet").await?;
//! let block = Block { sender: "host-17/4711".to_owned(), number: 1, ..Block::default() };
//! store.append(&[block]).await?;
//! # Ok(())
//! # }
//! ```
//!
//! | module | task |
//! |---|---|
//! | `place` | directories and buckets |
//! | `schema` | tables, columns, orders |
//! | `id` | identifiers that are the same on all machines |
//! | `block` | what a sender gives |
//! | `rows` | blocks as rows |
//! | `log` | which files a table has; commits |
//! | `numbers` | the last block of each sender |
//! | `sorted_file`, `read` | files of rows |
//! | `store` | making, opening, appending |
//! | `merge`, `maintenance` | fewer and larger files, expiry, checks |

#![forbid(unsafe_code)]

pub mod block;
mod calendar;
mod error;
mod id;
mod log;
mod maintenance;
mod merge;
mod numbers;
mod place;
mod read;
mod rows;
mod schema;
mod sorted_file;
mod store;

pub use block::Block;
pub use calendar::{day_of, now_ms};
pub use error::StoreError;
pub use id::Id;
pub use log::DataFile;
pub use maintenance::{Checked, Compacted, Expired};
pub use place::objects_at;
pub use schema::{COUNTERS, Table};
pub use store::{Appended, DayOfService, FoundNames, LAYOUT, Store, file_sender};
