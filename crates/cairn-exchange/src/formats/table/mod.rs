//! Tables as CSV and as JSON lines, for databases and spreadsheets.

mod write;

pub(crate) use write::{write_csv, write_json_lines};
