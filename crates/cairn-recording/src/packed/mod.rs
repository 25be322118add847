//! Packed recordings: chunks of compressed columns, written by [`crate::write`].

pub(crate) mod chunk;
pub(crate) mod columns;
mod freed_slots;
pub(crate) mod heap_events;
pub(crate) mod live;
pub(crate) mod marks;
pub(crate) mod progress;
pub(crate) mod reader;
pub(crate) mod rows;
pub(crate) mod times;
pub(crate) mod zstd_stream;
