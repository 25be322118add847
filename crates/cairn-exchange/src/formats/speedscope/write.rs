//! Writes each column as a speedscope profile over a shared frame table.

use std::collections::HashMap;
use std::io::Write;

use serde::{Serialize, Serializer};

use crate::error::ExchangeError;
use crate::model::profile::{Line, Profile, Unit};

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SpeedscopeFile<'a> {
    #[serde(rename = "$schema")]
    schema: &'static str,
    exporter: &'static str,
    name: &'a str,
    active_profile_index: usize,
    shared: SharedFrames<'a>,
    profiles: Vec<Sampled<'a>>,
}

#[derive(Serialize)]
struct SharedFrames<'a> {
    frames: Vec<Frame<'a>>,
}

#[derive(Serialize)]
struct Frame<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u32>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Sampled<'a> {
    r#type: &'static str,
    name: &'a str,
    unit: &'static str,
    start_value: u64,
    end_value: u64,
    samples: ColumnStacks<'a>,
    weights: Vec<u64>,
}

/// Serializes the stacks with values in a column, one at a time.
///
/// Each is a full list of frames, so a deep recursion that allocates at every level would exhaust
/// memory.
struct ColumnStacks<'a> {
    profile: &'a Profile,
    column: usize,
    frames: &'a HashMap<Line, usize>,
}

impl Serialize for ColumnStacks<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let rows = self.profile.samples.iter().filter(|sample| sample.values[self.column] > 0);
        serializer.collect_seq(rows.map(|sample| {
            let lines = self.profile.lines_of(sample.stack).map(|(line, _)| line);
            let mut stack: Vec<usize> = lines.filter_map(|line| self.frames.get(&line).copied()).collect();
            // Outermost first.
            stack.reverse();
            stack
        }))
    }
}

/// Writes all columns.
pub(crate) fn write(profile: &Profile, output: &mut dyn Write) -> Result<(), ExchangeError> {
    let mut frames = Vec::new();
    let mut known: HashMap<Line, usize> = HashMap::new();
    for &line in profile.locations.iter().flat_map(|location| &location.lines) {
        known.entry(line).or_insert_with(|| {
            let function = profile.functions.get(line.function as usize);
            frames.push(Frame {
                name: profile.function_name(line),
                file: function.and_then(|function| function.file.as_deref()),
                line: Some(line.line).filter(|&line| line > 0),
            });
            frames.len() - 1
        });
    }
    let profiles = profile.columns.iter().enumerate().map(|(index, column)| Sampled {
        r#type: "sampled",
        name: &column.title,
        unit: if column.unit == Unit::Bytes { "bytes" } else { "none" },
        start_value: 0,
        end_value: profile.total(index),
        samples: ColumnStacks { profile, column: index, frames: &known },
        weights: profile
            .samples
            .iter()
            .map(|sample| sample.values[index])
            .filter(|&value| value > 0)
            .collect(),
    });
    let file = SpeedscopeFile {
        schema: "https://www.speedscope.app/file-format-schema.json",
        exporter: concat!("cairn ", env!("CARGO_PKG_VERSION")),
        name: &profile.title,
        active_profile_index: profile.main_column,
        profiles: profiles.collect(),
        shared: SharedFrames { frames },
    };
    serde_json::to_writer(output, &file).map_err(|error| ExchangeError::writing(error.into()))
}
