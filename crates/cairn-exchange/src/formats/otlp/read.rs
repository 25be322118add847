//! Reads profiles of an OTLP message: one for each resource.
//!
//! The bytes are weighed before they are decoded: two of them can be an entry of a hundred bytes in
//! memory.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use opentelemetry_proto::tonic::common::v1::{AnyValue, any_value};
use opentelemetry_proto::tonic::profiles::v1development as otlp;
use prost::Message;
use prost::bytes::Buf;
use prost::encoding::{WireType, decode_key, decode_varint};

use super::FORMAT;
use crate::error::ExchangeError;
use crate::inflate::{Budget, Limits};
use crate::model::known::{Known, STACK_BYTES};
use crate::model::profile::{Column, Function, Line, Location, Module, Profile, Stack, Unit};

/// The profiles of a resource: those of a process, mostly.
#[derive(Debug)]
pub(crate) struct Resource {
    /// The attributes of the resource that are texts, numbers or truth values.
    pub(crate) attributes: BTreeMap<String, String>,
    /// The profiles of the resource as one.
    pub(crate) profile: Profile,
}

/// Columns of the profiles of a resource.
const MOST_COLUMNS: usize = 32;
/// Bytes of memory of an entry of a table, or of a sample, beside its numbers.
const ENTRY_BYTES: usize = 256;
/// Bytes of memory of a byte: a packed number takes eight in memory.
const BYTES_PER_BYTE: usize = 8;
/// Bytes of memory of a byte of attributes: an empty one in a list has two.
const BYTES_PER_BYTE_OF_ATTRIBUTE: usize = 48;

/// A kind of message, as far as it is weighed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Weighed {
    Data,
    ResourceProfiles,
    ScopeProfiles,
    Profile,
    Dictionary,
    Location,
    /// One without entries of its own.
    Entry,
    /// Attributes, which nest.
    Attributes,
}

impl Weighed {
    /// The kind of a field, when it is a message that is weighed.
    const fn field(self, tag: u32) -> Option<Self> {
        match (self, tag) {
            (Self::Data, 1) => Some(Self::ResourceProfiles),
            (Self::Data, 2) => Some(Self::Dictionary),
            (Self::ResourceProfiles, 2) => Some(Self::ScopeProfiles),
            (Self::ScopeProfiles, 2) => Some(Self::Profile),
            (Self::Dictionary, 2) => Some(Self::Location),
            (Self::Profile, 1 | 2 | 5) | (Self::Dictionary, 1 | 3 | 4 | 5 | 7) | (Self::Location, 3) => {
                Some(Self::Entry)
            }
            (Self::ResourceProfiles | Self::ScopeProfiles, 1) | (Self::Dictionary, 6) => {
                Some(Self::Attributes)
            }
            _ => None,
        }
    }
}

/// Charges the memory that decoding a message will take, at most.
fn weigh(kind: Weighed, bytes: &[u8], start: u64, budget: &mut Budget) -> Result<(), ExchangeError> {
    budget.keep(ENTRY_BYTES)?;
    match kind {
        Weighed::Entry => return budget.keep(bytes.len().saturating_mul(BYTES_PER_BYTE)),
        Weighed::Attributes => return budget.keep(bytes.len().saturating_mul(BYTES_PER_BYTE_OF_ATTRIBUTE)),
        _ => {}
    }
    let mut rest = bytes;
    while rest.has_remaining() {
        let at = start + (bytes.len() - rest.len()) as u64;
        let bad = |problem: &str| ExchangeError::at_byte(FORMAT, at, problem);
        let (tag, wire) = decode_key(&mut rest).map_err(|_| bad("not a field"))?;
        match wire {
            WireType::Varint => drop(decode_varint(&mut rest).map_err(|_| bad("a number without an end"))?),
            WireType::LengthDelimited => {
                let length = decode_varint(&mut rest).map_err(|_| bad("a number without an end"))?;
                let length = usize::try_from(length).ok().filter(|&length| length <= rest.len());
                let length = length.ok_or_else(|| bad("a field that is longer than its message"))?;
                let (field, behind) = rest.split_at(length);
                let at = start + (bytes.len() - rest.len()) as u64;
                rest = behind;
                match kind.field(tag) {
                    Some(kind) => weigh(kind, field, at, budget)?,
                    None => budget.keep(length.saturating_mul(BYTES_PER_BYTE))?,
                }
            }
            WireType::SixtyFourBit if rest.len() >= 8 => rest.advance(8),
            WireType::ThirtyTwoBit if rest.len() >= 4 => rest.advance(4),
            _ => return Err(bad("a field of a kind that the format does not have")),
        }
    }
    Ok(())
}

/// Parses a message: the body of an export request, or a file of one.
pub(crate) fn read(bytes: &[u8], limits: Limits) -> Result<Vec<Resource>, ExchangeError> {
    let mut budget = Budget::of(FORMAT, limits);
    weigh(Weighed::Data, bytes, 0, &mut budget)?;
    let data = otlp::ProfilesData::decode(bytes)
        .map_err(|error| ExchangeError::at_byte(FORMAT, 0, error.to_string()))?;
    let dictionary = data.dictionary.unwrap_or_default();
    let resource = |(number, profiles): (usize, otlp::ResourceProfiles)| {
        let attributes = profiles.resource.map_or_else(Vec::new, |resource| resource.attributes);
        let attributes = attributes.into_iter().filter_map(|attribute| {
            let value = text_of(attribute.value.as_ref()?)?;
            Some((attribute.key, value))
        });
        let place = format!("resource_profiles[{number}]");
        let mut build = ResourceBuild::new(&dictionary, place);
        for profile in profiles.scope_profiles.iter().flat_map(|scope| &scope.profiles) {
            build.add(profile, &mut budget)?;
        }
        Ok(Resource { attributes: attributes.collect(), profile: build.profile })
    };
    data.resource_profiles.into_iter().enumerate().map(resource).collect()
}

/// The text of a value that is no list.
fn text_of(value: &AnyValue) -> Option<String> {
    match value.value.as_ref()? {
        any_value::Value::StringValue(text) => Some(text.clone()),
        any_value::Value::BoolValue(truth) => Some(truth.to_string()),
        any_value::Value::IntValue(number) => Some(number.to_string()),
        any_value::Value::DoubleValue(number) => Some(number.to_string()),
        _ => None,
    }
}

/// A profile under construction.
struct ResourceBuild<'d> {
    dictionary: &'d otlp::ProfilesDictionary,
    place: String,
    profile: Profile,
    /// By the message's number.
    modules: HashMap<i32, u32>,
    functions: HashMap<i32, u32>,
    locations: HashMap<i32, u32>,
    /// By the message's number of the whole stack.
    whole: HashMap<i32, Option<u32>>,
    known: Known,
}

impl<'d> ResourceBuild<'d> {
    fn new(dictionary: &'d otlp::ProfilesDictionary, place: String) -> Self {
        Self {
            dictionary,
            place,
            profile: Profile::default(),
            modules: HashMap::new(),
            functions: HashMap::new(),
            locations: HashMap::new(),
            whole: HashMap::new(),
            known: Known::default(),
        }
    }

    fn bad(&self, problem: String) -> ExchangeError {
        ExchangeError::Malformed { format: FORMAT, place: self.place.clone(), problem }
    }

    /// An entry of a table of the message; entry 0 means none.
    fn entry<'t, T>(&self, table: &'t [T], index: i32, what: &str) -> Result<Option<&'t T>, ExchangeError> {
        if index == 0 {
            return Ok(None);
        }
        let entry = usize::try_from(index).ok().and_then(|index| table.get(index));
        entry
            .map(Some)
            .ok_or_else(|| self.bad(format!("{what} {index}, and the dictionary has {}", table.len())))
    }

    fn text(&self, index: i32) -> Result<&'d str, ExchangeError> {
        Ok(self.entry(&self.dictionary.string_table, index, "text")?.map_or("", String::as_str))
    }

    /// Adds a profile, whose values are a column.
    fn add(&mut self, profile: &otlp::Profile, budget: &mut Budget) -> Result<(), ExchangeError> {
        let kind = profile.sample_type.unwrap_or_default();
        let (name, unit) = (self.text(kind.type_strindex)?, self.text(kind.unit_strindex)?);
        let unit = if unit == "bytes" { Unit::Bytes } else { Unit::Count };
        let known = self.profile.columns.iter().position(|column| &*column.name == name);
        let column = match known {
            Some(column) => column,
            None if self.profile.columns.len() >= MOST_COLUMNS => {
                return Err(self.bad(format!("more than {MOST_COLUMNS} types of values")));
            }
            None => {
                let name: Arc<str> = name.into();
                self.profile.columns.push(Column { title: Arc::clone(&name), name, unit });
                for sample in &mut self.profile.samples {
                    sample.values.push(0);
                }
                budget.keep(self.profile.samples.len().saturating_mul(8))?;
                self.profile.columns.len() - 1
            }
        };
        let (start, duration) = (profile.time_unix_nano, profile.duration_nano);
        let whole = &mut self.profile;
        if whole.started_wall_nanos == 0 || (start > 0 && start < whole.started_wall_nanos) {
            whole.started_wall_nanos = start;
        }
        whole.duration_nanos = whole.duration_nanos.max(duration);
        for sample in &profile.samples {
            self.sample(column, sample, budget)?;
        }
        Ok(())
    }

    fn sample(
        &mut self,
        column: usize,
        sample: &otlp::Sample,
        budget: &mut Budget,
    ) -> Result<(), ExchangeError> {
        let stack = self.stack(sample.stack_index, budget)?;
        let values = self.known.values(&mut self.profile, stack, ENTRY_BYTES, budget)?;
        // Times without values are one each.
        let sum = match sample.values.as_slice() {
            [] => sample.timestamps_unix_nano.len() as u64,
            values => values.iter().fold(0_u64, |sum, &value| {
                // A heap has no negative values.
                sum.saturating_add(u64::try_from(value).unwrap_or(0))
            }),
        };
        values[column] = values[column].saturating_add(sum);
        Ok(())
    }

    fn stack(&mut self, index: i32, budget: &mut Budget) -> Result<Option<u32>, ExchangeError> {
        if let Some(&known) = self.whole.get(&index) {
            return Ok(known);
        }
        let mut stack = None;
        let dictionary = self.dictionary;
        if let Some(entry) = self.entry(&dictionary.stack_table, index, "stack")? {
            for &location in entry.location_indices.iter().rev() {
                let location = self.location(location, budget)?;
                let next = Stack { caller: stack, location };
                stack = Some(self.known.stack(&mut self.profile, next, budget)?);
            }
        }
        budget.keep(STACK_BYTES)?;
        self.whole.insert(index, stack);
        Ok(stack)
    }

    fn location(&mut self, index: i32, budget: &mut Budget) -> Result<u32, ExchangeError> {
        if let Some(&known) = self.locations.get(&index) {
            return Ok(known);
        }
        let dictionary = self.dictionary;
        let none = otlp::Location::default();
        let location = self.entry(&dictionary.location_table, index, "location")?.unwrap_or(&none);
        budget.keep(ENTRY_BYTES.saturating_add(location.lines.len().saturating_mul(16)))?;
        let module = self.module(location.mapping_index)?;
        let mut lines = Vec::with_capacity(location.lines.len());
        for line in &location.lines {
            if let Some(function) = self.function(line.function_index, budget)? {
                lines.push(Line { function, line: u32::try_from(line.line).unwrap_or(0) });
            }
        }
        if lines.is_empty() {
            lines.push(self.profile.line_without_name(location.address, module));
        }
        let number = self.profile.locations.len() as u32;
        self.profile.locations.push(Location { address: location.address, module, lines });
        self.locations.insert(index, number);
        Ok(number)
    }

    fn module(&mut self, index: i32) -> Result<Option<u32>, ExchangeError> {
        let dictionary = self.dictionary;
        let Some(mapping) = self.entry(&dictionary.mapping_table, index, "mapping")? else { return Ok(None) };
        if let Some(&known) = self.modules.get(&index) {
            return Ok(Some(known));
        }
        let mut build_id = String::new();
        for &attribute in &mapping.attribute_indices {
            let attribute = self.entry(&dictionary.attribute_table, attribute, "attribute")?;
            let Some(attribute) = attribute else { continue };
            if self.text(attribute.key_strindex)? == "process.executable.build_id.gnu" {
                build_id = attribute.value.as_ref().and_then(text_of).unwrap_or_default();
            }
        }
        let number = self.profile.modules.len() as u32;
        let path = self.text(mapping.filename_strindex)?.into();
        // The mapping begins at an offset of the file, and so do not all of its addresses.
        let start = mapping.memory_start.wrapping_sub(mapping.file_offset);
        self.profile.modules.push(Module { path, build_id, start, end: mapping.memory_limit });
        self.modules.insert(index, number);
        Ok(Some(number))
    }

    fn function(&mut self, index: i32, budget: &mut Budget) -> Result<Option<u32>, ExchangeError> {
        let dictionary = self.dictionary;
        let Some(function) = self.entry(&dictionary.function_table, index, "function")? else {
            return Ok(None);
        };
        if let Some(&known) = self.functions.get(&index) {
            return Ok(Some(known));
        }
        let name = self.text(function.name_strindex)?;
        let name = if name.is_empty() { self.text(function.system_name_strindex)? } else { name };
        let file = self.text(function.filename_strindex)?;
        budget.keep(ENTRY_BYTES.saturating_add(name.len()).saturating_add(file.len()))?;
        let number = self.profile.functions.len() as u32;
        let file = Some(file).filter(|file| !file.is_empty()).map(Into::into);
        self.profile.functions.push(Function { name: name.into(), file });
        self.functions.insert(index, number);
        Ok(Some(number))
    }
}
