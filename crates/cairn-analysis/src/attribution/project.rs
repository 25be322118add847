//! The project file `.cairn.toml`.
