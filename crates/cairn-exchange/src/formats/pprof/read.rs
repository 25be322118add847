//! Imports a profile from a pprof file.
//!
//! Parses field by field, so false sizes in a hostile file cost no memory: memory use is a small
//! multiple of the bytes read.

use std::collections::HashMap;
use std::io::Read;
use std::sync::Arc;

use prost::Message;
use prost::bytes::Buf;
use prost::encoding::{WireType, decode_key, decode_varint};

use super::{FORMAT, messages};
use crate::error::ExchangeError;
use crate::inflate::{Budget, Limits, Unpacked};
use crate::model::known::Known;
use crate::model::profile::{Column, Function, Line, Location, Module, Profile, Stack, Unit};

/// Detects the first bytes of a profile: valid fields of the format.
///
/// Writers start with different fields: Go's heap profiles with the period, its others with the
/// time.
pub(crate) fn begins(bytes: &[u8]) -> bool {
    let mut rest = bytes;
    // Requiring more fields would reject broken profiles as unknown files.
    for place in 0..3 {
        if rest.is_empty() {
            return place > 0;
        }
        let Ok((tag, wire)) = decode_key(&mut rest) else { return false };
        match (tag, wire) {
            (1..=6 | 11 | 13, WireType::LengthDelimited) => match decode_varint(&mut rest) {
                Ok(length) if length <= rest.len() as u64 => rest.advance(length as usize),
                Ok(_) => return place > 0,
                Err(_) => return false,
            },
            (7..=10 | 12..=14, WireType::Varint) if decode_varint(&mut rest).is_ok() => {}
            _ => return false,
        }
    }
    true
}

/// Parses a profile; adds up samples of equal stacks.
pub(crate) fn read(input: impl Read, limits: Limits) -> Result<Profile, ExchangeError> {
    let mut input = Unpacked::new(FORMAT, input, limits)?;
    let mut budget = input.budget();
    let mut bytes = Vec::new();
    loop {
        let chunk = input.chunk()?;
        if chunk.is_empty() {
            break;
        }
        budget.keep(chunk.len())?;
        bytes.extend_from_slice(chunk);
        let read = chunk.len();
        input.consume(read)?;
    }
    let mut tables = PprofTables::default();
    fields(&bytes, |field, at| tables.take(field, at, &mut budget))?;
    // Samples refer to tables that may follow them.
    let mut build = ProfileBuild::new(tables)?;
    fields(&bytes, |field, at| build.sample(field, at, &mut budget))?;
    Ok(build.profile)
}

/// A field of the outermost message.
enum Field<'a> {
    Number(u32, u64),
    Bytes(u32, &'a [u8]),
}

/// Calls `take` with every field and its position.
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

/// All fields but the samples, as stored.
#[derive(Default)]
struct PprofTables {
    kinds: Vec<messages::ValueType>,
    mappings: Vec<messages::Mapping>,
    mapping_ids: HashMap<u64, u32>,
    locations: Vec<messages::LocationMessage>,
    location_ids: HashMap<u64, u32>,
    functions: Vec<messages::FunctionMessage>,
    function_ids: HashMap<u64, u32>,
    texts: Vec<Arc<str>>,
    /// The first one only: the others are free text.
    comment: Option<i64>,
    time_nanos: i64,
    duration_nanos: i64,
    default_kind: i64,
}

/// Bytes per entry of a table, in all its forms; 256, slightly above the measured size.
///
/// The budget is then valid, but real files fit.
const PLACE_BYTES: usize = 256;
const ENTRY_BYTES: usize = 192;
const TEXT_BYTES: usize = 64;
/// Bytes per line of a location, as stored and in the profile.
const LINE_BYTES: usize = 40;
/// Bytes of memory per byte of an entry during parsing: a line of two bytes takes 24.
const BYTES_PER_BYTE: usize = 16;

impl PprofTables {
    fn take(&mut self, field: Field<'_>, at: u64, budget: &mut Budget) -> Result<(), ExchangeError> {
        match field {
            Field::Bytes(1 | 3 | 5, _) => budget.keep(ENTRY_BYTES)?,
            Field::Bytes(6, bytes) => budget.keep(bytes.len().saturating_add(TEXT_BYTES))?,
            _ => {}
        }
        match field {
            Field::Bytes(1, bytes) => self.kinds.push(message(bytes, at, "sample_type")?),
            Field::Bytes(3, bytes) => {
                let mapping: messages::Mapping = message(bytes, at, "mapping")?;
                number(&mut self.mapping_ids, mapping.id, at, "mapping")?;
                self.mappings.push(mapping);
            }
            Field::Bytes(4, bytes) => {
                let for_now = bytes.len().saturating_mul(BYTES_PER_BYTE);
                budget.keep(for_now)?;
                let location: messages::LocationMessage = message(bytes, at, "location")?;
                budget.keep(location.line.len().saturating_mul(LINE_BYTES).saturating_add(PLACE_BYTES))?;
                budget.release(for_now);
                number(&mut self.location_ids, location.id, at, "location")?;
                self.locations.push(location);
            }
            Field::Bytes(5, bytes) => {
                let function: messages::FunctionMessage = message(bytes, at, "function")?;
                number(&mut self.function_ids, function.id, at, "function")?;
                self.functions.push(function);
            }
            Field::Bytes(6, bytes) => self.texts.push(String::from_utf8_lossy(bytes).into()),
            Field::Number(13, number) => {
                self.comment.get_or_insert(number as i64);
            }
            Field::Bytes(13, mut bytes) if !bytes.is_empty() => {
                let comment = decode_varint(&mut bytes)
                    .map_err(|_| ExchangeError::at_byte(FORMAT, at, "comment: a number without an end"))?;
                self.comment.get_or_insert(comment as i64);
            }
            Field::Number(9, number) => self.time_nanos = number as i64,
            Field::Number(10, number) => self.duration_nanos = number as i64,
            Field::Number(14, number) => self.default_kind = number as i64,
            _ => {}
        }
        Ok(())
    }

    fn text(&self, index: i64) -> Arc<str> {
        usize::try_from(index)
            .ok()
            .and_then(|index| self.texts.get(index))
            .map_or_else(|| "".into(), Arc::clone)
    }
}

/// Assigns the next index to an id. As in pprof, 0 is not an id, and ids are unique.
fn number(ids: &mut HashMap<u64, u32>, id: u64, at: u64, what: &str) -> Result<(), ExchangeError> {
    let next = ids.len() as u32;
    if id == 0 || ids.insert(id, next).is_some() {
        let problem = if id == 0 {
            format!("a {what} without an id")
        } else {
            format!("{what} {id} for the second time")
        };
        return Err(ExchangeError::at_byte(FORMAT, at, problem));
    }
    Ok(())
}

/// A profile under construction.
struct ProfileBuild {
    profile: Profile,
    /// Indices by the file's ids.
    locations: HashMap<u64, u32>,
    known: Known,
}

impl ProfileBuild {
    fn new(tables: PprofTables) -> Result<Self, ExchangeError> {
        let columns: Vec<Column> = tables.kinds.iter().map(|kind| column(&tables, *kind)).collect();
        if columns.is_empty() {
            return Err(ExchangeError::at_byte(
                FORMAT,
                0,
                "it does not state the types of its values (sample_type)",
            ));
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
            title: tables.comment.map_or_else(String::new, |comment| tables.text(comment).to_string()),
            started_wall_nanos: u64::try_from(tables.time_nanos).unwrap_or(0),
            duration_nanos: u64::try_from(tables.duration_nanos).unwrap_or(0),
            main_column: columns.iter().position(|column| column.name == main).unwrap_or(columns.len() - 1),
            columns,
            modules: modules.collect(),
            functions: functions.collect(),
            ..Profile::default()
        };
        for location in &tables.locations {
            let module = tables.mapping_ids.get(&location.mapping_id).copied();
            let line = |line: &messages::LineMessage| {
                let function = *tables.function_ids.get(&line.function_id)?;
                Some(Line { function, line: u32::try_from(line.line).unwrap_or(0) })
            };
            let mut lines: Vec<Line> = location.line.iter().filter_map(line).collect();
            if lines.is_empty() {
                lines.push(profile.line_without_name(location.address, module));
            }
            profile.locations.push(Location { address: location.address, module, lines });
        }
        Ok(Self { profile, locations: tables.location_ids, known: Known::default() })
    }

    fn sample(&mut self, field: Field<'_>, at: u64, budget: &mut Budget) -> Result<(), ExchangeError> {
        let Field::Bytes(2, bytes) = field else { return Ok(()) };
        let for_now = bytes.len().saturating_mul(BYTES_PER_BYTE);
        budget.keep(for_now)?;
        let sample: messages::SampleMessage = message(bytes, at, "sample")?;
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
            let next = Stack { caller: stack, location };
            stack = Some(self.known.stack(&mut self.profile, next, budget)?);
        }
        let values = self.known.values(&mut self.profile, stack, ENTRY_BYTES, budget)?;
        for (sum, value) in values.iter_mut().zip(&sample.value) {
            // Differences of profiles have negative values, which a heap cannot have.
            *sum = sum.saturating_add(u64::try_from(*value).unwrap_or(0));
        }
        budget.release(for_now);
        Ok(())
    }
}

fn column(tables: &PprofTables, kind: messages::ValueType) -> Column {
    let name = tables.text(kind.r#type);
    let unit = if &*tables.text(kind.unit) == "bytes" { Unit::Bytes } else { Unit::Count };
    Column { title: Arc::clone(&name), name, unit }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn pprof_unpacking_stops_at_the_limit() {
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packed.write_all(&[0x0a, 4, 8, 1, 16, 2]).unwrap();
        // Empty texts.
        packed.write_all(&[0x32, 0].repeat(1 << 20)).unwrap();
        let error = read(&packed.finish().unwrap()[..], Limits::default()).unwrap_err();
        assert!(matches!(error, ExchangeError::TooLarge { format: FORMAT, .. }), "{error}");
    }
}
