//! Answers as text, JSON, CSV and Parquet.

use std::io::{self, Write};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray as _, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Int64Type, Schema};
use cairn_analysis::units::bytes;
use cairn_format::Hexadecimal;
use clap::ValueEnum;

use crate::error::FleetError;

/// The form of an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub(crate) enum Form {
    /// A table for reading
    #[default]
    Text,
    /// One object a line
    Json,
    /// Comma-separated values with a heading
    Csv,
    /// A Parquet file; give its name with --output
    Parquet,
}

/// Frames of a stack that a table for reading shows.
const SHOWN_FRAMES: usize = 5;

/// Writes an answer.
pub(crate) fn write(batches: &[RecordBatch], form: Form, output: &mut dyn Write) -> Result<(), FleetError> {
    let failed = |error: &dyn std::fmt::Display| FleetError::new(format!("the output: {error}"));
    match form {
        Form::Text => write_text(batches, output).map_err(|error| failed(&error)),
        Form::Json => {
            let mut writer = arrow::json::LineDelimitedWriter::new(output);
            for batch in batches {
                writer.write(&plain(batch, usize::MAX)?).map_err(|error| failed(&error))?;
            }
            writer.finish().map_err(|error| failed(&error))
        }
        Form::Csv => {
            let mut writer = arrow::csv::Writer::new(output);
            for batch in batches {
                writer.write(&plain(batch, usize::MAX)?).map_err(|error| failed(&error))?;
            }
            Ok(())
        }
        Form::Parquet => {
            let Some(first) = batches.first() else {
                return Err(FleetError::new("the answer has no rows to write"));
            };
            let buffer = Vec::new();
            let mut writer = parquet::arrow::ArrowWriter::try_new(buffer, first.schema(), None)
                .map_err(|error| failed(&error))?;
            for batch in batches {
                writer.write(batch).map_err(|error| failed(&error))?;
            }
            let bytes = writer.into_inner().map_err(|error| failed(&error))?;
            output.write_all(&bytes).map_err(|error| failed(&error))
        }
    }
}

/// The texts of a column, without missing ones.
pub(crate) fn texts(batch: &RecordBatch, column: usize) -> Result<Vec<String>, FleetError> {
    let column = arrow::compute::cast(batch.column(column), &DataType::Utf8)?;
    Ok(column.as_string::<i32>().iter().flatten().map(str::to_owned).collect())
}

/// Identifiers as hexadecimal digits, and lists of frames as one text.
fn plain(batch: &RecordBatch, most_frames: usize) -> Result<RecordBatch, FleetError> {
    let (mut fields, mut columns) = (Vec::new(), Vec::new());
    for (field, column) in batch.schema().fields().iter().zip(batch.columns()) {
        let text = match field.data_type() {
            DataType::Binary | DataType::BinaryView | DataType::LargeBinary => Some(hexadecimal(column)?),
            DataType::List(item) if matches!(item.data_type(), DataType::Struct(_)) => {
                Some(frames(column, most_frames)?)
            }
            _ => None,
        };
        match text {
            Some(text) => {
                fields.push(Field::new(field.name(), DataType::Utf8, true));
                columns.push(Arc::new(text) as ArrayRef);
            }
            None => {
                fields.push(field.as_ref().clone());
                columns.push(Arc::clone(column));
            }
        }
    }
    Ok(RecordBatch::try_new(Arc::new(Schema::new(fields)), columns)?)
}

fn hexadecimal(column: &ArrayRef) -> Result<StringArray, FleetError> {
    let bytes = arrow::compute::cast(column, &DataType::Binary)?;
    let text = |bytes: &[u8]| Hexadecimal(bytes).to_string();
    Ok(bytes.as_binary::<i32>().iter().map(|bytes| bytes.map(text)).collect())
}

/// `inner < outer < main`: the function of each frame, or its module.
fn frames(column: &ArrayRef, most: usize) -> Result<StringArray, FleetError> {
    let lists = column.as_list::<i32>();
    let mut texts = Vec::new();
    for row in 0..lists.len() {
        if lists.is_null(row) {
            texts.push(None);
            continue;
        }
        let list = lists.value(row);
        let list = list.as_struct();
        let part = |name: &str| -> Result<Option<ArrayRef>, FleetError> {
            list.column_by_name(name)
                .map(|column| arrow::compute::cast(column, &DataType::Utf8))
                .transpose()
                .map_err(FleetError::from)
        };
        let (functions, modules) = (part("function")?, part("module")?);
        let text = |column: &Option<ArrayRef>, frame: usize| {
            let column = column.as_ref()?.as_string::<i32>();
            column.is_valid(frame).then(|| column.value(frame).to_owned())
        };
        let name =
            |frame: usize| text(&functions, frame).or_else(|| text(&modules, frame)).unwrap_or_default();
        let mut shown: Vec<String> = (0..list.len().min(most)).map(name).collect();
        if list.len() > most {
            shown.push(format!("{} more", list.len() - most));
        }
        texts.push(Some(shown.join(" < ")));
    }
    Ok(texts.into_iter().collect())
}

/// Characters of an identifier in a table: enough to name it in the next question.
const SHOWN_DIGITS: usize = 12;

fn write_text(batches: &[RecordBatch], output: &mut dyn Write) -> io::Result<()> {
    let mut rows: Vec<Vec<String>> = Vec::new();
    let mut right: Vec<bool> = Vec::new();
    for batch in batches {
        let batch = plain(batch, SHOWN_FRAMES).map_err(|error| io::Error::other(error.to_string()))?;
        if rows.is_empty() {
            rows.push(batch.schema().fields().iter().map(|field| field.name().replace('_', " ")).collect());
            right = batch.schema().fields().iter().map(|field| field.data_type().is_numeric()).collect();
        }
        let names: Vec<String> = batch.schema().fields().iter().map(|field| field.name().clone()).collect();
        for row in 0..batch.num_rows() {
            let cell = |(column, name): (&ArrayRef, &String)| cell(column, name, row);
            rows.push(batch.columns().iter().zip(&names).map(cell).collect());
        }
    }
    let widths: Vec<usize> = (0..right.len())
        .map(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0))
        .collect();
    for row in &rows {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let padding = " ".repeat(widths[column].saturating_sub(cell.chars().count()));
            line += if column == 0 { "" } else { "  " };
            line += &if right[column] { padding + cell } else { cell.clone() + &padding };
        }
        writeln!(output, "{}", line.trim_end())?;
    }
    Ok(())
}

fn cell(column: &ArrayRef, name: &str, row: usize) -> String {
    if column.is_null(row) {
        return String::new();
    }
    if let Some(numbers) = column.as_primitive_opt::<Int64Type>() {
        let value = numbers.value(row);
        return match name {
            "bytes" | "before" | "after" | "grew" | "most" => in_bytes(value),
            "first" => cairn_store::day_of(value),
            _ => value.to_string(),
        };
    }
    let text = arrow::util::display::array_value_to_string(column, row).unwrap_or_default();
    // Whole identifiers are in the other forms.
    if name == "shape_id" { text.chars().take(SHOWN_DIGITS).collect() } else { text }
}

/// Bytes that may be fewer than before, as `-1.5 MiB`.
fn in_bytes(value: i64) -> String {
    let sign = if value < 0 { "-" } else { "" };
    format!("{sign}{}", bytes(value.unsigned_abs()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_units() {
        assert_eq!(in_bytes(1023), "1023 B");
        assert_eq!(in_bytes(-1536), "-1.5 KiB");
        assert_eq!(in_bytes(5 << 40), "5.0 TiB");
    }
}
