//! Writes a profile as one OTLP message.

use std::collections::HashMap;
use std::io::Write;

use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, any_value};
use opentelemetry_proto::tonic::profiles::v1development as otlp;
use prost::Message;

use crate::error::ExchangeError;
use crate::model::profile::Profile;

/// Writes all columns, one profile each.
pub(crate) fn write(profile: &Profile, output: &mut dyn Write) -> Result<(), ExchangeError> {
    let mut dictionary = Dictionary::new();
    let functions: Vec<otlp::Function> = profile
        .functions
        .iter()
        .map(|function| {
            let name_strindex = dictionary.text(&function.name);
            otlp::Function {
                name_strindex,
                system_name_strindex: name_strindex,
                filename_strindex: function.file.as_deref().map_or(0, |file| dictionary.text(file)),
                start_line: 0,
            }
        })
        .collect();
    dictionary.tables.function_table.extend(functions);
    for module in &profile.modules {
        let filename_strindex = dictionary.text(&module.path);
        let attribute_indices = match module.build_id.as_str() {
            "" => Vec::new(),
            id => vec![dictionary.attribute("process.executable.build_id.gnu", id)],
        };
        dictionary.tables.mapping_table.push(otlp::Mapping {
            memory_start: module.start,
            memory_limit: module.end,
            file_offset: 0,
            filename_strindex,
            attribute_indices,
        });
    }
    let frame_type = dictionary.attribute("profile.frame.type", "native");
    dictionary.tables.location_table.extend(profile.locations.iter().map(|location| {
        otlp::Location {
            mapping_index: location.module.map_or(0, |module| index(module as usize)),
            address: location.address,
            lines: location
                .lines
                .iter()
                .map(|line| otlp::Line {
                    function_index: index(line.function as usize),
                    line: line.line.into(),
                    column: 0,
                })
                .collect(),
            attribute_indices: vec![frame_type],
        }
    }));
    let profiles = profile.columns.iter().enumerate().map(|(column, reported)| {
        let rows = profile.samples.iter().enumerate().filter(|(_, sample)| sample.values[column] > 0);
        otlp::Profile {
            sample_type: Some(otlp::ValueType {
                type_strindex: dictionary.text(&reported.name),
                unit_strindex: dictionary.text(reported.unit.name()),
            }),
            samples: rows
                .map(|(row, sample)| otlp::Sample {
                    stack_index: index(row),
                    values: vec![i64::try_from(sample.values[column]).unwrap_or(i64::MAX)],
                    ..otlp::Sample::default()
                })
                .collect(),
            time_unix_nano: profile.started_wall_nanos,
            duration_nano: profile.duration_nanos,
            profile_id: profile_id(profile, column),
            ..otlp::Profile::default()
        }
    });
    let profiles: Vec<_> = profiles.collect();
    let scope = InstrumentationScope {
        name: "cairn".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..InstrumentationScope::default()
    };
    let file = otlp::ProfilesData {
        resource_profiles: vec![otlp::ResourceProfiles {
            scope_profiles: vec![otlp::ScopeProfiles {
                scope: Some(scope),
                profiles,
                schema_url: String::new(),
            }],
            ..otlp::ResourceProfiles::default()
        }],
        dictionary: Some(dictionary.tables),
    };
    output.write_all(&file.encode_to_vec()).map_err(ExchangeError::writing)?;
    write_stacks(profile, output)
}

/// Locations of stacks in memory at once; 256 Ki, a few megabytes.
const LOCATIONS_AT_ONCE: usize = 1 << 18;

/// Writes the stacks in pieces, because each is a full list of locations.
///
/// A deep recursion that allocates at every level would otherwise exhaust memory. Concatenated
/// messages are one message with all entries.
fn write_stacks(profile: &Profile, output: &mut dyn Write) -> Result<(), ExchangeError> {
    let mut put = |stack_table: Vec<otlp::Stack>| {
        let dictionary = Some(otlp::ProfilesDictionary { stack_table, ..Default::default() });
        let some = otlp::ProfilesData { dictionary, ..Default::default() };
        output.write_all(&some.encode_to_vec()).map_err(ExchangeError::writing)
    };
    let (mut stacks, mut locations) = (Vec::new(), 0);
    for sample in &profile.samples {
        let location_indices: Vec<i32> =
            profile.locations_of(sample.stack).map(|location| index(location as usize)).collect();
        locations += location_indices.len() + 1;
        stacks.push(otlp::Stack { location_indices });
        if locations >= LOCATIONS_AT_ONCE {
            put(std::mem::take(&mut stacks))?;
            locations = 0;
        }
    }
    if stacks.is_empty() { Ok(()) } else { put(stacks) }
}

/// Returns a unique 16-byte id.
fn profile_id(profile: &Profile, column: usize) -> Vec<u8> {
    let process = u64::from(profile.process) << 32 | (column as u64 + 1);
    [profile.started_wall_nanos.to_be_bytes(), process.to_be_bytes()].concat()
}

/// Shifts an index past entry 0, which means none.
fn index(index: usize) -> i32 {
    i32::try_from(index + 1).unwrap_or(0)
}

struct Dictionary {
    tables: otlp::ProfilesDictionary,
    texts: HashMap<String, i32>,
}

impl Dictionary {
    fn new() -> Self {
        let tables = otlp::ProfilesDictionary {
            mapping_table: vec![otlp::Mapping::default()],
            location_table: vec![otlp::Location::default()],
            function_table: vec![otlp::Function::default()],
            link_table: vec![otlp::Link::default()],
            string_table: vec![String::new()],
            attribute_table: vec![otlp::KeyValueAndUnit::default()],
            stack_table: vec![otlp::Stack::default()],
        };
        Self { tables, texts: HashMap::from([(String::new(), 0)]) }
    }

    fn text(&mut self, text: &str) -> i32 {
        if let Some(&known) = self.texts.get(text) {
            return known;
        }
        let number = self.tables.string_table.len() as i32;
        self.tables.string_table.push(text.to_owned());
        self.texts.insert(text.to_owned(), number);
        number
    }

    fn attribute(&mut self, key: &str, value: &str) -> i32 {
        let key_strindex = self.text(key);
        let value = Some(AnyValue { value: Some(any_value::Value::StringValue(value.to_owned())) });
        self.tables.attribute_table.push(otlp::KeyValueAndUnit { key_strindex, value, unit_strindex: 0 });
        self.tables.attribute_table.len() as i32 - 1
    }
}
