//! From a profile to a pprof file.

use std::collections::HashMap;
use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use prost::Message;

use super::messages;
use crate::error::ExchangeError;
use crate::model::profile::{Profile, Unit};

/// The table of texts.
struct Texts<'a> {
    list: Vec<String>,
    known: HashMap<&'a str, i64>,
}

impl<'a> Texts<'a> {
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

/// Numbers in pprof have a sign; what is larger than they can be is the largest.
fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// Of stacks, in memory at once: some megabytes.
const LOCATIONS_AT_ONCE: usize = 1 << 18;

/// Writes the profile.
pub(crate) fn write(profile: &Profile, output: &mut dyn Write) -> Result<(), ExchangeError> {
    let mut texts = Texts::new();
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
        messages::Function { id, name, system_name: name, filename, start_line: 0 }
    });
    let function: Vec<_> = function.collect();
    // What stands in no file, as "the stack was lost", has mapping 0: none.
    let mapping = profile.modules.iter().zip(1..).map(|(module, id)| messages::Mapping {
        id,
        memory_start: module.start,
        memory_limit: module.end,
        file_offset: 0,
        filename: texts.index(&module.path),
        build_id: texts.index(&module.build_id),
        // Without these, tools look for names themselves, and find none.
        has_functions: true,
        has_filenames: true,
        has_line_numbers: true,
        has_inline_frames: true,
    });
    let mapping: Vec<_> = mapping.collect();
    let location = profile.locations.iter().zip(1..).map(|(location, id)| {
        let lines = location.lines.iter();
        messages::Location {
            id,
            mapping_id: location.module.map_or(0, |module| u64::from(module) + 1),
            address: location.address,
            line: lines
                .map(|line| messages::Line {
                    function_id: u64::from(line.function) + 1,
                    line: line.line.into(),
                })
                .collect(),
        }
    });
    let main = profile.columns.get(profile.main_column);
    let message = messages::Profile {
        sample_type,
        sample: Vec::new(),
        mapping,
        location: location.collect(),
        function,
        time_nanos: signed(profile.started_wall_nanos),
        duration_nanos: signed(profile.duration_nanos),
        // Of heaps, what a sampler counts down: bytes, whatever the column.
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
    // Each stack is there from end to end: all at once, those of a deep recursion that allocates at every level would fill the memory. Messages end
    // to end are one message with the entries of all.
    let (mut some, mut locations) = (messages::Profile::default(), 0);
    for sample in &profile.samples {
        let location_id: Vec<u64> =
            profile.locations_of(sample.stack).map(|index| u64::from(index) + 1).collect();
        locations += location_id.len() + 1;
        let value = sample.values.iter().map(|&value| signed(value)).collect();
        some.sample.push(messages::Sample { location_id, value });
        if locations >= LOCATIONS_AT_ONCE {
            output.write_all(&some.encode_to_vec()).map_err(ExchangeError::writing)?;
            some.sample.clear();
            locations = 0;
        }
    }
    output.write_all(&some.encode_to_vec()).map_err(ExchangeError::writing)?;
    output.finish().map_err(ExchangeError::writing)?;
    Ok(())
}
