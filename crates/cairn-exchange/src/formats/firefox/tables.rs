//! Adds source lines, files and modules of frames, which `fxprof-processed-profile` cannot express.
//!
//! Each frame gets a [`label`] with its line of the profile. The tables of frames, functions and
//! modules in the written JSON are then rebuilt from the labels; everything else is copied
//! unchanged.

use std::collections::HashMap;
use std::fmt;
use std::io::Write;

use serde::de::{MapAccess, Visitor};
use serde::ser::SerializeSeq;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

use crate::error::ExchangeError;
use crate::model::profile::{Line, Profile};

/// Marks a missing module.
const NO_MODULE: u32 = u32::MAX;
/// The format's type number of a library.
const LIBRARY: u32 = 1;

/// Returns the placeholder text of a line.
pub(super) fn label(line: Line, module: Option<u32>) -> String {
    format!("{}:{}:{}", line.function, line.line, module.unwrap_or(NO_MODULE))
}

/// Parses a label; `None` for other texts.
fn of_label(text: &str) -> Option<(Line, u32)> {
    let mut numbers = text.trim_matches('"').split(':').map(str::parse::<u32>);
    let mut next = || numbers.next()?.ok();
    Some((Line { function: next()?, line: next()? }, next()?))
}

/// Writes the file with its real tables.
pub(super) fn write(
    file: &fxprof_processed_profile::Profile,
    profile: &Profile,
    output: &mut dyn Write,
) -> Result<(), ExchangeError> {
    with_places(file, profile, output).map_err(|error| ExchangeError::writing(error.into()))
}

fn with_places(
    file: &fxprof_processed_profile::Profile,
    profile: &Profile,
    output: &mut dyn Write,
) -> Result<(), serde_json::Error> {
    let text = serde_json::to_string(file)?;
    let mut whole: Object<'_> = serde_json::from_str(&text)?;
    let threads: Vec<Object<'_>> = whole.get("threads")?;
    let threads = threads.into_iter().map(|thread| thread_with_places(thread, profile));
    whole.put("threads", Part::Threads(threads.collect::<Result<_, _>>()?));
    serde_json::to_writer(output, &whole)
}

fn thread_with_places<'t>(
    mut thread: Object<'t>,
    profile: &'t Profile,
) -> Result<Object<'t>, serde_json::Error> {
    let texts: Vec<&RawValue> = thread.get("stringArray")?;
    let functions: Object<'_> = thread.get("funcTable")?;
    let mut frames: Object<'_> = thread.get("frameTable")?;
    let names: Vec<u32> = functions.get("name")?;
    let mut tables = ThreadTables::new(profile, texts.len());
    // Each function in the generated file is a label.
    let (mut of_frames, mut lines) = (Vec::new(), Vec::new());
    for function in frames.get::<Vec<u32>>("func")? {
        let label = names.get(function as usize).and_then(|&name| texts.get(name as usize));
        let unknown = (Line { function: u32::MAX, line: 0 }, NO_MODULE);
        let (line, module) = label.and_then(|label| of_label(label.get())).unwrap_or(unknown);
        of_frames.push(tables.function(line.function, module));
        lines.push(Some(line.line).filter(|&line| line > 0));
    }
    frames.put("func", Part::Numbers(of_frames));
    frames.put("line", Part::Optional(lines));
    thread.put("frameTable", Part::Table(frames));
    let ThreadTables { functions, files, modules, of_function, new_texts, .. } = tables;
    let count = |entries: usize| Part::Number(entries as u64);
    let none = |entries: usize| Part::Optional(vec![None; entries]);
    let (length, rows) = (functions.len(), modules.len());
    let functions = Object(vec![
        ("length", count(length)),
        ("name", Part::Numbers(functions)),
        ("isJS", Part::Flags(vec![false; length])),
        ("relevantForJS", Part::Flags(vec![false; length])),
        ("resource", Part::Signed(of_function)),
        ("fileName", Part::Optional(files)),
        ("lineNumber", none(length)),
        ("columnNumber", none(length)),
    ]);
    let resources = Object(vec![
        ("length", count(rows)),
        ("lib", none(rows)),
        ("name", Part::Numbers(modules)),
        ("host", none(rows)),
        ("type", Part::Numbers(vec![LIBRARY; rows])),
    ]);
    thread.put("funcTable", Part::Table(functions));
    thread.put("resourceTable", Part::Table(resources));
    // Texts are referenced by index, so new ones are appended.
    thread.put("stringArray", Part::Texts(texts, new_texts));
    Ok(thread)
}

/// The tables of a thread under construction.
struct ThreadTables<'p> {
    profile: &'p Profile,
    texts: usize,
    new_texts: Vec<&'p str>,
    text_of: HashMap<&'p str, u32>,
    /// By function and module.
    known: HashMap<(u32, u32), u32>,
    /// For each function: its name, its file, and its entry in the resource table.
    functions: Vec<u32>,
    files: Vec<Option<u32>>,
    of_function: Vec<i64>,
    known_modules: HashMap<u32, u32>,
    modules: Vec<u32>,
}

impl<'p> ThreadTables<'p> {
    fn new(profile: &'p Profile, texts: usize) -> Self {
        Self {
            profile,
            texts,
            new_texts: Vec::new(),
            text_of: HashMap::new(),
            known: HashMap::new(),
            functions: Vec::new(),
            files: Vec::new(),
            of_function: Vec::new(),
            known_modules: HashMap::new(),
            modules: Vec::new(),
        }
    }

    fn text(&mut self, text: &'p str) -> u32 {
        let next = (self.texts + self.new_texts.len()) as u32;
        let index = *self.text_of.entry(text).or_insert(next);
        if index == next {
            self.new_texts.push(text);
        }
        index
    }

    fn function(&mut self, function: u32, module: u32) -> u32 {
        if let Some(&known) = self.known.get(&(function, module)) {
            return known;
        }
        let profile = self.profile;
        let name = self.text(profile.name_of(function));
        let file = profile.functions.get(function as usize).and_then(|function| function.file.as_deref());
        let file = file.map(|file| self.text(file));
        let of_module = self.module(module);
        let index = self.functions.len() as u32;
        self.functions.push(name);
        self.files.push(file);
        self.of_function.push(of_module.map_or(-1, i64::from));
        self.known.insert((function, module), index);
        index
    }

    fn module(&mut self, module: u32) -> Option<u32> {
        let profile = self.profile;
        let name = profile.modules.get(module as usize)?.name();
        if let Some(&known) = self.known_modules.get(&module) {
            return Some(known);
        }
        let name = self.text(name);
        let index = self.modules.len() as u32;
        self.modules.push(name);
        self.known_modules.insert(module, index);
        Some(index)
    }
}

/// A JSON object whose values are copied unchanged or replaced.
struct Object<'t>(Vec<(&'t str, Part<'t>)>);

enum Part<'t> {
    Retained(&'t RawValue),
    Number(u64),
    Numbers(Vec<u32>),
    Signed(Vec<i64>),
    Optional(Vec<Option<u32>>),
    Flags(Vec<bool>),
    Texts(Vec<&'t RawValue>, Vec<&'t str>),
    Table(Object<'t>),
    Threads(Vec<Object<'t>>),
}

impl<'t> Object<'t> {
    /// Returns a required value.
    fn get<T: Deserialize<'t>>(&self, key: &str) -> Result<T, serde_json::Error> {
        match self.0.iter().find(|(name, _)| *name == key) {
            Some((_, Part::Retained(value))) => serde_json::from_str(value.get()),
            _ => Err(serde::de::Error::custom(format_args!("no {key}"))),
        }
    }

    fn put(&mut self, key: &'static str, value: Part<'t>) {
        match self.0.iter_mut().find(|(name, _)| *name == key) {
            Some((_, place)) => *place = value,
            None => self.0.push((key, value)),
        }
    }
}

impl<'de: 't, 't> Deserialize<'de> for Object<'t> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;

        impl<'de> Visitor<'de> for Entries {
            type Value = Vec<(&'de str, &'de RawValue)>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(entries)
            }
        }

        let entries = deserializer.deserialize_map(Entries)?;
        Ok(Self(entries.into_iter().map(|(key, value)| (key, Part::Retained(value))).collect()))
    }
}

impl Serialize for Object<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(key, value)| (key, value)))
    }
}

impl Serialize for Part<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Retained(value) => value.serialize(serializer),
            Self::Number(number) => serializer.serialize_u64(*number),
            Self::Numbers(list) => list.serialize(serializer),
            Self::Signed(list) => list.serialize(serializer),
            Self::Optional(list) => list.serialize(serializer),
            Self::Flags(list) => list.serialize(serializer),
            Self::Texts(old, new) => {
                let mut list = serializer.serialize_seq(Some(old.len() + new.len()))?;
                for text in old {
                    list.serialize_element(text)?;
                }
                for text in new {
                    list.serialize_element(text)?;
                }
                list.end()
            }
            Self::Table(object) => object.serialize(serializer),
            Self::Threads(list) => list.serialize(serializer),
        }
    }
}
