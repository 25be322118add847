//! The reasons why a command fails, as messages for a terminal.

use std::fmt;
use std::path::Path;

use cairn_analysis::source::SourceError;
use cairn_store::StoreError;
use datafusion::error::DataFusionError;

/// The reason why a command failed.
#[derive(Debug)]
pub(crate) struct FleetError {
    message: String,
    /// True for arguments that have no meaning.
    is_usage: bool,
}

impl FleetError {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), is_usage: false }
    }

    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self { message: message.into(), is_usage: true }
    }

    pub(crate) fn file(path: &Path, error: impl fmt::Display) -> Self {
        Self::new(format!("{}: {error}", path.display()))
    }

    pub(crate) fn source(error: SourceError) -> Self {
        Self::new(error.to_string())
    }

    /// The command's exit code.
    pub(crate) const fn code(&self) -> u8 {
        if self.is_usage { 2 } else { 1 }
    }
}

impl fmt::Display for FleetError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.message)
    }
}

impl From<StoreError> for FleetError {
    fn from(error: StoreError) -> Self {
        Self::new(error.to_string())
    }
}

impl From<DataFusionError> for FleetError {
    fn from(error: DataFusionError) -> Self {
        Self::new(format!("the query: {}", error.strip_backtrace()))
    }
}

impl From<arrow::error::ArrowError> for FleetError {
    fn from(error: arrow::error::ArrowError) -> Self {
        Self::new(error.to_string())
    }
}
