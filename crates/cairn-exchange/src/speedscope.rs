//! speedscope's own JSON: one table of frames, and a profile for each column.

use std::collections::HashMap;
use std::io::Write;

use serde::Serialize;

use crate::error::ExchangeError;
use crate::profile::{Line, Profile};

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct File<'a> {
    #[serde(rename = "$schema")]
    schema: &'static str,
    exporter: &'static str,
    name: &'a str,
    active_profile_index: usize,
    shared: Shared<'a>,
    profiles: Vec<Sampled<'a>>,
}

#[derive(Serialize)]
struct Shared<'a> {
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
    /// Outermost first.
    samples: Vec<&'a [usize]>,
    weights: Vec<u64>,
}

/// Writes all columns.
pub(crate) fn write(profile: &Profile, output: &mut dyn Write) -> Result<(), ExchangeError> {
    let mut frames = Vec::new();
    let mut known: HashMap<Line, usize> = HashMap::new();
    let mut frame = |line: Line| {
        *known.entry(line).or_insert_with(|| {
            let file =
                profile.functions.get(line.function as usize).and_then(|function| function.file.as_deref());
            frames.push(Frame {
                name: profile.function_name(line),
                file,
                line: Some(line.line).filter(|&line| line > 0),
            });
            frames.len() - 1
        })
    };
    let stacks: Vec<Vec<usize>> = profile
        .samples
        .iter()
        .map(|sample| {
            let mut stack: Vec<usize> = profile.lines_of(sample.stack).map(|(line, _)| frame(line)).collect();
            stack.reverse();
            stack
        })
        .collect();
    let profiles = profile.columns.iter().enumerate().map(|(index, column)| {
        let rows = || profile.samples.iter().zip(&stacks).filter(|(sample, _)| sample.values[index] > 0);
        Sampled {
            r#type: "sampled",
            name: &column.title,
            unit: if column.unit == crate::profile::Unit::Bytes { "bytes" } else { "none" },
            start_value: 0,
            end_value: profile.total(index),
            samples: rows().map(|(_, stack)| &stack[..]).collect(),
            weights: rows().map(|(sample, _)| sample.values[index]).collect(),
        }
    });
    let file = File {
        schema: "https://www.speedscope.app/file-format-schema.json",
        exporter: concat!("cairn ", env!("CARGO_PKG_VERSION")),
        name: &profile.title,
        active_profile_index: profile.main_column,
        profiles: profiles.collect(),
        shared: Shared { frames },
    };
    serde_json::to_writer(output, &file).map_err(|error| ExchangeError::writing(error.into()))
}
