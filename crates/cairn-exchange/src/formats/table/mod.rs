//! Tables as CSV and as lines of JSON, for databases and spreadsheets.

mod write;

pub(crate) use write::{write_csv, write_json_lines};
