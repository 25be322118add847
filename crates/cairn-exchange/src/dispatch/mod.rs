//! Chooses the format: by name when writing, by the first bytes when reading.

pub mod target;
