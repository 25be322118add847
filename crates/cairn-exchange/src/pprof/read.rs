//! From a pprof file to a profile.
//!
//! The file is taken apart field by field, so that what a hostile one says of its sizes costs no memory: what is kept is a small
//! multiple of what was read.

use std::collections::HashMap;
use std::io::Read;
use std::sync::Arc;

use prost::Message;
use prost::bytes::Buf;
use prost::encoding::{WireType, decode_key, decode_varint};

use super::{FORMAT, proto};
use crate::error::ExchangeError;
use crate::inflate::inflated;
use crate::profile::{Column, Function, Line, Location, Module, Profile, Sample, Stack, Unit};

/// Of a file without its compression. The largest profiles that services take are a tenth of it.
const MAX_BYTES: u64 = 256 << 20;
/// Of texts, functions, locations, mappings.
const MAX_ENTRIES: usize = 8 << 20;
/// Of all stacks together.
const MAX_STACKS: usize = 64 << 20;

/// Reads a profile; sums of the same stack are added up.
pub(crate) fn read(input: impl Read) -> Result<Profile, ExchangeError> {
    let mut bytes = Vec::new();
    inflated(input)
        .and_then(|input| input.take(MAX_BYTES + 1).read_to_end(&mut bytes))
        .map_err(ExchangeError::reading)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(ExchangeError::TooLarge { format: FORMAT, what: "bytes", limit: MAX_BYTES });
    }
    let mut tables = Tables::default();
    fields(&bytes, |field, at| tables.keep(field, at))?;
    // Samples refer to tables that may stand behind them.
    let mut build = Build::new(tables)?;
    fields(&bytes, |field, at| build.sample(field, at))?;
    Ok(build.profile)
}

/// A field of the outermost message.
enum Field<'a> {
    Number(u32, u64),
    Bytes(u32, &'a [u8]),
}

/// Calls `take` with every field and where it begins.
fn fields(
    bytes: &[u8],
    mut take: impl FnMut(Field<'_>, u64) -> Result<(), ExchangeError>,
) -> Result<(), ExchangeError> {
    let mut rest = bytes;
    while rest.has_remaining() {
        let at = (bytes.len() - rest.len()) as u64;
        let bad = |problem: &str| ExchangeError::at_byte(FORMAT, at, problem);
        let (tag, wire) = decode_key(&mut rest).map_err(|_| bad("not a field"))?;
        match wire {
            WireType::Varint => {
                let number = decode_varint(&mut rest).map_err(|_| bad("a number without an end"))?;
                take(Field::Number(tag, number), at)?;
            }
            WireType::LengthDelimited => {
                let length = decode_varint(&mut rest).map_err(|_| bad("a number without an end"))?;
                let length = usize::try_from(length).ok().filter(|&length| length <= rest.len());
                let length = length.ok_or_else(|| bad("a field that is longer than the file"))?;
                let (field, behind) = rest.split_at(length);
                rest = behind;
                take(Field::Bytes(tag, field), at)?;
            }
            WireType::SixtyFourBit if rest.len() >= 8 => rest.advance(8),
            WireType::ThirtyTwoBit if rest.len() >= 4 => rest.advance(4),
            _ => return Err(bad("a field of a kind that the format does not have")),
        }
    }
    Ok(())
}

fn message<M: Message + Default>(bytes: &[u8], at: u64, what: &str) -> Result<M, ExchangeError> {
    M::decode(bytes).map_err(|error| ExchangeError::at_byte(FORMAT, at, format!("{what}: {error}")))
}

fn keep<T>(list: &mut Vec<T>, entry: T, what: &'static str) -> Result<(), ExchangeError> {
    if list.len() >= MAX_ENTRIES {
        return Err(ExchangeError::TooLarge { format: FORMAT, what, limit: MAX_ENTRIES as u64 });
    }
    list.push(entry);
    Ok(())
}

/// Everything but the samples, as it stands in the file.
#[derive(Default)]
struct Tables {
    kinds: Vec<proto::ValueType>,
    mappings: Vec<proto::Mapping>,
    locations: Vec<proto::Location>,
    functions: Vec<proto::Function>,
    texts: Vec<Arc<str>>,
    comments: Vec<i64>,
    time_nanos: i64,
    duration_nanos: i64,
    default_kind: i64,
}

impl Tables {
    fn keep(&mut self, field: Field<'_>, at: u64) -> Result<(), ExchangeError> {
        match field {
            Field::Bytes(1, bytes) => {
                keep(&mut self.kinds, message(bytes, at, "sample_type")?, "kinds of values")
            }
            Field::Bytes(3, bytes) => keep(&mut self.mappings, message(bytes, at, "mapping")?, "mappings"),
            Field::Bytes(4, bytes) => keep(&mut self.locations, message(bytes, at, "location")?, "locations"),
            Field::Bytes(5, bytes) => keep(&mut self.functions, message(bytes, at, "function")?, "functions"),
            Field::Bytes(6, bytes) => keep(&mut self.texts, String::from_utf8_lossy(bytes).into(), "texts"),
            Field::Number(13, number) => keep(&mut self.comments, number as i64, "comments"),
            Field::Bytes(13, mut bytes) => {
                while bytes.has_remaining() {
                    let comment = decode_varint(&mut bytes).map_err(|_| {
                        ExchangeError::at_byte(FORMAT, at, "comment: a number without an end")
                    })?;
                    keep(&mut self.comments, comment as i64, "comments")?;
                }
                Ok(())
            }
            Field::Number(9, number) => {
                self.time_nanos = number as i64;
                Ok(())
            }
            Field::Number(10, number) => {
                self.duration_nanos = number as i64;
                Ok(())
            }
            Field::Number(14, number) => {
                self.default_kind = number as i64;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn text(&self, index: i64) -> Arc<str> {
        usize::try_from(index)
            .ok()
            .and_then(|index| self.texts.get(index))
            .map_or_else(|| "".into(), Arc::clone)
    }
}

/// A profile in the making.
struct Build {
    profile: Profile,
    /// Indices by the ids of the file.
    locations: HashMap<u64, u32>,
    stacks: HashMap<Stack, u32>,
    samples: HashMap<Option<u32>, usize>,
}

impl Build {
    fn new(tables: Tables) -> Result<Self, ExchangeError> {
        let columns: Vec<Column> = tables.kinds.iter().map(|kind| column(&tables, *kind)).collect();
        if columns.is_empty() {
            return Err(ExchangeError::at_byte(FORMAT, 0, "it says of no value what it is (sample_type)"));
        }
        let main = tables.text(tables.default_kind);
        let modules = tables.mappings.iter().map(|mapping| Module {
            path: tables.text(mapping.filename),
            build_id: tables.text(mapping.build_id).to_string(),
            start: mapping.memory_start,
            end: mapping.memory_limit,
        });
        let functions = tables.functions.iter().map(|function| {
            let name = tables.text(function.name);
            let name = if name.is_empty() { tables.text(function.system_name) } else { name };
            Function { name, file: Some(tables.text(function.filename)).filter(|file| !file.is_empty()) }
        });
        let mut profile = Profile {
            title: tables
                .comments
                .first()
                .map_or_else(String::new, |&comment| tables.text(comment).to_string()),
            started_wall_nanos: u64::try_from(tables.time_nanos).unwrap_or(0),
            duration_nanos: u64::try_from(tables.duration_nanos).unwrap_or(0),
            main_column: columns.iter().position(|column| column.name == main).unwrap_or(columns.len() - 1),
            columns,
            modules: modules.collect(),
            functions: functions.collect(),
            ..Profile::default()
        };
        let function_ids: HashMap<u64, u32> =
            tables.functions.iter().zip(0..).map(|(function, index)| (function.id, index)).collect();
        let mapping_ids: HashMap<u64, u32> =
            tables.mappings.iter().zip(0..).map(|(mapping, index)| (mapping.id, index)).collect();
        let mut locations = HashMap::new();
        for (location, index) in tables.locations.iter().zip(0..) {
            let module = mapping_ids.get(&location.mapping_id).copied().filter(|_| location.mapping_id != 0);
            let line = |line: &proto::Line| {
                let function = *function_ids.get(&line.function_id)?;
                Some(Line { function, line: u32::try_from(line.line).unwrap_or(0) })
            };
            let mut lines: Vec<Line> = location.line.iter().filter_map(line).collect();
            if lines.is_empty() {
                lines.push(nameless(&mut profile, location.address, module));
            }
            profile.locations.push(Location { address: location.address, module, lines });
            locations.insert(location.id, index);
        }
        Ok(Self { profile, locations, stacks: HashMap::new(), samples: HashMap::new() })
    }

    fn sample(&mut self, field: Field<'_>, at: u64) -> Result<(), ExchangeError> {
        let Field::Bytes(2, bytes) = field else { return Ok(()) };
        let sample: proto::Sample = message(bytes, at, "sample")?;
        if sample.value.len() != self.profile.columns.len() {
            let (has, kinds) = (sample.value.len(), self.profile.columns.len());
            return Err(ExchangeError::at_byte(
                FORMAT,
                at,
                format!("a sample of {has} values, where each has {kinds}"),
            ));
        }
        let mut stack = None;
        for id in sample.location_id.iter().rev() {
            let location = *self.locations.get(id).ok_or_else(|| {
                ExchangeError::at_byte(FORMAT, at, format!("a sample at location {id}, which is not there"))
            })?;
            stack = Some(self.stack(Stack { caller: stack, location })?);
        }
        let width = self.profile.columns.len();
        let index = *self.samples.entry(stack).or_insert_with(|| {
            self.profile.samples.push(Sample { stack, values: vec![0; width] });
            self.profile.samples.len() - 1
        });
        for (sum, value) in self.profile.samples[index].values.iter_mut().zip(&sample.value) {
            // A difference of two profiles has values below 0, which no heap has.
            *sum = sum.saturating_add(u64::try_from(*value).unwrap_or(0));
        }
        Ok(())
    }

    fn stack(&mut self, stack: Stack) -> Result<u32, ExchangeError> {
        if let Some(&known) = self.stacks.get(&stack) {
            return Ok(known);
        }
        if self.profile.stacks.len() >= MAX_STACKS {
            return Err(ExchangeError::TooLarge { format: FORMAT, what: "frames", limit: MAX_STACKS as u64 });
        }
        let index = self.profile.stacks.len() as u32;
        self.profile.stacks.push(stack);
        self.stacks.insert(stack, index);
        Ok(index)
    }
}

fn column(tables: &Tables, kind: proto::ValueType) -> Column {
    let name = tables.text(kind.r#type);
    let unit = if &*tables.text(kind.unit) == "bytes" { Unit::Bytes } else { Unit::Count };
    Column { title: Arc::clone(&name), name, unit }
}

/// A line for a place that has no name.
fn nameless(profile: &mut Profile, address: u64, module: Option<u32>) -> Line {
    let module = module.and_then(|module| profile.modules.get(module as usize));
    let name = match module {
        Some(module) => format!("{}+{:#x}", module.name(), address.wrapping_sub(module.start)),
        None => format!("{address:#x}"),
    };
    profile.functions.push(Function { name: name.into(), file: None });
    Line { function: profile.functions.len() as u32 - 1, line: 0 }
}
