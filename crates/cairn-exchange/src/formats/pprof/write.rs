//! Exports a profile to a pprof file.

use std::collections::HashMap;
use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use prost::Message;

use super::messages;
use crate::error::ExchangeError;
use crate::model::profile::{Profile, Unit};

/// The string table.
struct StringTable<'a> {
    list: Vec<String>,
    known: HashMap<&'a str, i64>,
}

impl<'a> StringTable<'a> {
    fn new() -> Self {
        Self { list: vec![String::new()], known: HashMap::from([("", 0)]) }
    }

    fn index(&mut self, text: &'a str) -> i64 {
        *self.known.entry(text).or_insert_with(|| {
            self.list.push(text.to_owned());
            self.list.len() as i64 - 1
        })
    }
}

/// Converts to pprof's signed numbers; saturates.
fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// Locations of stacks in memory at once; 256 Ki, a few megabytes.
const LOCATIONS_AT_ONCE: usize = 1 << 18;

/// Writes the profile.
pub(crate) fn write(profile: &Profile, output: &mut dyn Write) -> Result<(), ExchangeError> {
    let mut texts = StringTable::new();
    let sample_type: Vec<_> = profile
        .columns
        .iter()
        .map(|column| messages::ValueType {
            r#type: texts.index(&column.name),
            unit: texts.index(column.unit.name()),
        })
        .collect();
    let function = profile.functions.iter().zip(1..).map(|(function, id)| {
        let name = texts.index(&function.name);
        let filename = function.file.as_deref().map_or(0, |file| texts.index(file));
        messages::FunctionMessage { id, name, system_name: name, filename, start_line: 0 }
    });
    let function: Vec<_> = function.collect();
    // Functions without a file, as "the stack was lost", have mapping 0: none.
    let mapping = profile.modules.iter().zip(1..).map(|(module, id)| messages::Mapping {
        id,
        memory_start: module.start,
        memory_limit: module.end,
        file_offset: 0,
        filename: texts.index(&module.path),
        build_id: texts.index(&module.build_id),
        // Without these flags, tools try to symbolize the profile themselves, and fail.
        has_functions: true,
        has_filenames: true,
        has_line_numbers: true,
        has_inline_frames: true,
    });
    let mapping: Vec<_> = mapping.collect();
    let location = profile.locations.iter().zip(1..).map(|(location, id)| {
        let lines = location.lines.iter();
        messages::LocationMessage {
            id,
            mapping_id: location.module.map_or(0, |module| u64::from(module) + 1),
            address: location.address,
            line: lines
                .map(|line| messages::LineMessage {
                    function_id: u64::from(line.function) + 1,
                    line: line.line.into(),
                })
                .collect(),
        }
    });
    let main = profile.columns.get(profile.main_column);
    let message = messages::ProfileMessage {
        sample_type,
        sample: Vec::new(),
        mapping,
        location: location.collect(),
        function,
        time_nanos: signed(profile.started_wall_nanos),
        duration_nanos: signed(profile.duration_nanos),
        // For heaps, the sampling period is in bytes, whatever the column.
        period_type: main.map(|column| match column.unit {
            Unit::Bytes => messages::ValueType { r#type: texts.index("space"), unit: texts.index("bytes") },
            Unit::Count => {
                messages::ValueType { r#type: texts.index(&column.name), unit: texts.index("count") }
            }
        }),
        period: 1,
        comment: Some(&profile.title)
            .filter(|title| !title.is_empty())
            .into_iter()
            .chain(&profile.notes)
            .map(|text| texts.index(text))
            .collect(),
        default_sample_type: main.map_or(0, |column| texts.index(&column.name)),
        string_table: texts.list,
    };
    let mut output = GzEncoder::new(output, Compression::default());
    output.write_all(&message.encode_to_vec()).map_err(ExchangeError::writing)?;
    // Writes stacks in pieces: each is a full list of locations, so a deep recursion that allocates
    // at every level would exhaust memory. Concatenated messages are one message with all entries.
    let (mut message, mut locations) = (messages::ProfileMessage::default(), 0);
    for sample in &profile.samples {
        let location_id: Vec<u64> =
            profile.locations_of(sample.stack).map(|index| u64::from(index) + 1).collect();
        locations += location_id.len() + 1;
        let value = sample.values.iter().map(|&value| signed(value)).collect();
        message.sample.push(messages::SampleMessage { location_id, value });
        if locations >= LOCATIONS_AT_ONCE {
            output.write_all(&message.encode_to_vec()).map_err(ExchangeError::writing)?;
            message.sample.clear();
            locations = 0;
        }
    }
    output.write_all(&message.encode_to_vec()).map_err(ExchangeError::writing)?;
    output.finish().map_err(ExchangeError::writing)?;
    Ok(())
}
