//! The reasons why a store cannot be read or written.

use std::fmt;

/// The reason why a store could not do what was asked.
#[derive(Debug)]
#[non_exhaustive]
pub enum StoreError {
    /// There is no store at this place.
    NoStore {
        /// The place.
        place: String,
    },
    /// There is something else at this place already.
    Occupied {
        /// The place.
        place: String,
    },
    /// Another version of cairn made it, with another layout.
    Layout {
        /// The place.
        place: String,
        /// The layout's version there.
        found: u64,
    },
    /// The place is not one that stores can be at.
    Place {
        /// The place.
        place: String,
        /// Why not.
        why: String,
    },
    /// The log of a table cannot be read or written.
    Log {
        /// The table.
        table: &'static str,
        /// The reason.
        source: Box<deltalake_core::DeltaTableError>,
    },
    /// Another maintenance ran at the same time. Nothing has changed; run this one again.
    Raced {
        /// The table.
        table: &'static str,
    },
    /// A file of a table cannot be read or written.
    Object {
        /// The file.
        file: String,
        /// The reason.
        source: object_store::Error,
    },
    /// A file of a table is not what it must be.
    Damaged {
        /// The file.
        file: String,
        /// The reason.
        why: String,
    },
    /// A block cannot be stored.
    Block {
        /// The reason.
        why: String,
    },
}

impl StoreError {
    pub(crate) fn damaged(file: impl Into<String>, why: impl fmt::Display) -> Self {
        Self::Damaged { file: file.into(), why: why.to_string() }
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoStore { place } => {
                write!(formatter, "{place}: there is no store here; make one with `cairn fleet init {place}`")
            }
            Self::Occupied { place } => {
                write!(
                    formatter,
                    "{place}: other files are here; give a new or an empty directory, or an unused part of a bucket"
                )
            }
            Self::Layout { place, found } => write!(
                formatter,
                "{place}: a store of layout {found}, and this cairn reads layout {}; use the cairn that made it",
                crate::LAYOUT
            ),
            Self::Place { place, why } => write!(formatter, "{place}: {why}"),
            Self::Log { table, source } => write!(formatter, "the log of table {table}: {source}"),
            Self::Raced { table } => write!(
                formatter,
                "table {table}: another maintenance changed it meanwhile; nothing has changed, run this again"
            ),
            Self::Object { file, source } => write!(formatter, "{file}: {source}"),
            Self::Damaged { file, why } => write!(formatter, "{file}: {why}"),
            Self::Block { why } => write!(formatter, "the block cannot be stored: {why}"),
        }
    }
}

impl std::error::Error for StoreError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Log { source, .. } => Some(source),
            Self::Object { source, .. } => Some(source),
            _ => None,
        }
    }
}
