//! The tables of a store and their columns.
//!
//! Every engine that reads Parquet reads these: numbers are 64-bit and signed, identifiers are
//! plain bytes, moments are milliseconds since 1970. Sums of such numbers are equal in every
//! engine, those of floats are not.

use std::sync::{Arc, LazyLock};

use arrow::datatypes::{DataType, Field, Fields, Schema, SchemaRef};

/// A table of a store.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Table {
    /// Memory of a stack of a process in a slice of time.
    Sample,
    /// Processes.
    Process,
    /// Stacks: their frames, and their shape once names are known.
    Stack,
    /// Shapes: the parts of stacks that are the same in another build.
    Shape,
    /// The lines of code at an offset of a module.
    Frame,
    /// Modules: files with code.
    Module,
    /// The blocks that samples came in.
    Block,
}

impl Table {
    /// All tables. Samples come last: they are written after the rows that they point to.
    pub const ALL: [Self; 7] =
        [Self::Module, Self::Frame, Self::Shape, Self::Stack, Self::Process, Self::Block, Self::Sample];

    /// Returns its name, which is that of its directory.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sample => "sample",
            Self::Process => "process",
            Self::Stack => "stack",
            Self::Shape => "shape",
            Self::Frame => "frame",
            Self::Module => "module",
            Self::Block => "block",
        }
    }

    /// Returns the columns of its files.
    #[must_use]
    pub fn schema(self) -> SchemaRef {
        static SCHEMAS: LazyLock<[SchemaRef; 7]> =
            LazyLock::new(|| Table::ALL.map(|table| Arc::new(Schema::new(table.fields()))));
        let at = Self::ALL.iter().position(|table| *table == self).unwrap_or_default();
        Arc::clone(&SCHEMAS[at])
    }

    /// Returns the columns by which its files are divided. The log holds them, the files do not:
    /// files of samples repeat them as `day` and `service`.
    #[must_use]
    pub const fn partitions(self) -> &'static [&'static str] {
        match self {
            Self::Sample => &["p_day", "p_service"],
            _ => &[],
        }
    }

    /// Returns the columns by which rows of a file are sorted.
    #[must_use]
    pub const fn order(self) -> &'static [&'static str] {
        match self {
            Self::Sample => &["version", "stack_id", "host", "process", "t_end"],
            Self::Process => &["process", "revision"],
            Self::Stack => &["stack_id", "revision"],
            Self::Shape => &["shape_id", "revision"],
            Self::Frame => &["module", "offset", "revision"],
            Self::Module => &["module", "revision"],
            Self::Block => &["sender", "number", "revision"],
        }
    }

    /// Returns the columns that identify a row; of rows that are equal in them, the last one
    /// counts. Samples have no key: every row counts.
    #[must_use]
    pub const fn key(self) -> &'static [&'static str] {
        match self {
            Self::Sample => &[],
            Self::Process => &["process"],
            Self::Stack => &["stack_id"],
            Self::Shape => &["shape_id"],
            Self::Frame => &["module", "offset"],
            Self::Module => &["module"],
            Self::Block => &["sender", "number"],
        }
    }

    fn fields(self) -> Vec<Field> {
        let id = |name: &str| Field::new(name, DataType::Binary, false);
        let text = |name: &str| Field::new(name, DataType::Utf8, false);
        let number = |name: &str| Field::new(name, DataType::Int64, false);
        let optional = |field: Field| field.with_nullable(true);
        let list = |name: &str, fields: Vec<Field>| {
            let item = Field::new("element", DataType::Struct(Fields::from(fields)), false);
            Field::new(name, DataType::List(Arc::new(item)), false)
        };
        match self {
            Self::Sample => {
                let texts = ["day", "service", "version", "host"].map(text);
                let ids = [id("process"), number("t_end"), number("slice_ms"), id("stack_id")];
                texts
                    .into_iter()
                    .chain(ids)
                    .chain(COUNTERS.map(number))
                    .chain([optional(number("variance"))])
                    .collect()
            }
            Self::Process => vec![
                id("process"),
                text("service"),
                text("version"),
                text("host"),
                id("build_id"),
                text("command"),
                Field::new("labels", map_of_texts(), false),
                number("started"),
                optional(number("ended")),
                text("source"),
                text("clock"),
                number("clock_offset_ms"),
                optional(number("sample_bytes")),
                text("remarks"),
                number("revision"),
            ],
            Self::Stack => vec![
                id("stack_id"),
                list("frames", vec![id("module"), number("offset")]),
                optional(id("shape_id")),
                number("revision"),
            ],
            Self::Shape => vec![
                id("shape_id"),
                list("frames", vec![optional(text("function")), text("module"), optional(text("file"))]),
                number("revision"),
            ],
            Self::Frame => vec![
                id("module"),
                number("offset"),
                list(
                    "lines",
                    vec![
                        optional(text("function")),
                        optional(text("file")),
                        optional(number("line")),
                        Field::new("inlined", DataType::Boolean, false),
                    ],
                ),
                number("revision"),
            ],
            Self::Module => vec![
                id("module"),
                text("path"),
                Field::new("has_build_id", DataType::Boolean, false),
                text("symbols"),
                number("revision"),
            ],
            Self::Block => vec![
                text("sender"),
                number("number"),
                id("content"),
                text("source"),
                number("rows"),
                number("received"),
                number("revision"),
            ],
        }
    }
}

/// The columns of samples that count.
pub const COUNTERS: [&str; 9] = [
    "live_bytes",
    "live_blocks",
    "alloc_bytes",
    "alloc_blocks",
    "freed_bytes",
    "freed_blocks",
    "temporary",
    "peak_bytes",
    "peak_blocks",
];

fn map_of_texts() -> DataType {
    let entries = Fields::from(vec![
        Field::new("key", DataType::Utf8, false),
        Field::new("value", DataType::Utf8, true),
    ]);
    DataType::Map(Arc::new(Field::new("key_value", DataType::Struct(entries), false)), false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_orders_are_columns() {
        for table in Table::ALL {
            let schema = table.schema();
            for column in table.key().iter().chain(table.order()) {
                assert!(schema.column_with_name(column).is_some(), "{}: {column}", table.name());
            }
            assert!(table.order().starts_with(table.key()), "{}", table.name());
        }
    }
}
