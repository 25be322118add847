//! The formats by name, and one function that writes any of them.

use std::collections::HashMap;
use std::io::Write;
use std::path::Path;

use cairn_analysis::heap::{HeapProfile, HeapRecording, Scope, ThreadName};

use flate2::write::GzEncoder;

use crate::error::ExchangeError;
use crate::formats::{dhat, firefox, folded, heapprofile, heaptrack, otlp, pprof, speedscope, table};
use crate::import::Imported;
use crate::model::marks::MarkAt;
use crate::model::profile::{Profile, Unit};

/// A format that can be written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Target {
    /// For `pprof`, and services that take it.
    Pprof,
    /// For profiler.firefox.com.
    Firefox,
    /// For speedscope.app.
    Speedscope,
    /// Chrome's memory panel, and speedscope.
    Heapprofile,
    /// For flamegraph.pl, inferno, and others.
    Folded,
    /// For `heaptrack_gui` and `heaptrack_print`.
    Heaptrack,
    /// For valgrind's `dh_view.html`.
    Dhat,
    /// OpenTelemetry's profiles; experimental.
    Otlp,
    /// A table with commas.
    Csv,
    /// A table as JSON, one object a line.
    JsonLines,
}

impl Target {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Pprof,
        Self::Firefox,
        Self::Speedscope,
        Self::Heapprofile,
        Self::Folded,
        Self::Heaptrack,
        Self::Dhat,
        Self::Otlp,
        Self::Csv,
        Self::JsonLines,
    ];

    /// The word for it, as arguments have it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pprof => "pprof",
            Self::Firefox => "firefox",
            Self::Speedscope => "speedscope",
            Self::Heapprofile => "heapprofile",
            Self::Folded => "folded",
            Self::Heaptrack => "heaptrack",
            Self::Dhat => "dhat",
            Self::Otlp => "otlp",
            Self::Csv => "csv",
            Self::JsonLines => "jsonl",
        }
    }

    /// What it is for, as a list of formats says it.
    #[must_use]
    pub const fn reader(self) -> &'static str {
        match self {
            Self::Pprof => "Google's pprof, and services that take it",
            Self::Firefox => "profiler.firefox.com: allocations over time",
            Self::Speedscope => "speedscope.app",
            Self::Heapprofile => "Chrome's .heapprofile",
            Self::Folded => "Folded stacks, for flame graph tools",
            Self::Heaptrack => "heaptrack_gui and heaptrack_print",
            Self::Dhat => "valgrind's dh_view.html",
            Self::Otlp => "OpenTelemetry profiles (an alpha)",
            Self::Csv => "A table with commas",
            Self::JsonLines => "A table of JSON objects, one a line",
        }
    }

    /// What a file of it is called behind its last points.
    #[must_use]
    pub const fn extension(self) -> &'static str {
        match self {
            Self::Pprof => "pb.gz",
            Self::Firefox => "firefox.json",
            Self::Speedscope => "speedscope.json",
            Self::Heapprofile => "heapprofile",
            Self::Folded => "folded",
            Self::Heaptrack => "heaptrack.zst",
            Self::Dhat => "dhat.json",
            Self::Otlp => "otlp",
            Self::Csv => "csv",
            Self::JsonLines => "jsonl",
        }
    }

    /// True when a file holds events, and not sums.
    #[must_use]
    pub const fn has_events(self) -> bool {
        matches!(self, Self::Firefox | Self::Heaptrack | Self::Dhat)
    }

    /// True when a file holds one kind of number, which has to be chosen.
    #[must_use]
    pub const fn has_one_column(self) -> bool {
        matches!(self, Self::Heapprofile | Self::Folded)
    }
}

/// What a table lists.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rows {
    /// Whole stacks.
    Stacks,
    /// Functions that asked.
    Functions,
    /// Lines that asked.
    Lines,
    /// Modules that asked.
    Modules,
    /// Threads.
    Threads,
    /// Classes of sizes.
    Sizes,
    /// Classes of lifetimes.
    Lifetimes,
    /// Memory over time.
    Timeline,
}

/// What is written.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// Stacks and their numbers.
    pub profile: &'a Profile,
    /// Where the events of a heap are.
    pub heap: Option<&'a HeapEvents<'a>>,
    /// Marks, one by one.
    pub marks: &'a [MarkAt],
}

/// Where the events of a heap are.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum EventSource<'a> {
    /// In a recording of cairn's.
    Recording(&'a HeapRecording),
    /// In a file of another tool that [tells all](crate::import::Times::All) of time.
    Imported(&'a Imported),
    /// In an image of memory: it has what lives, and no times.
    Live(&'a [LiveBlock]),
}

/// A block of an image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LiveBlock {
    /// Number of its stack.
    pub stack: u32,
    /// How large it is.
    pub size_bytes: u64,
}

/// A heap with its events, for the formats that hold them.
#[derive(Debug)]
pub struct HeapEvents<'a> {
    /// Where they are read.
    pub source: EventSource<'a>,
    /// What of it is written.
    pub scope: &'a Scope,
    /// What that adds up to.
    pub sums: &'a HeapProfile,
    /// Its threads.
    pub threads: Vec<ThreadName>,
    /// Which stack of the profile each stack of the recording is.
    pub stacks: &'a HashMap<u32, Option<u32>>,
}

/// What to choose where a format does not hold everything.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Choice {
    /// The column, in formats that have one.
    pub column: usize,
    /// The rows of a table.
    pub rows: Rows,
    /// How the file is packed: as its name says. `None` where there is no name: then as is usual
    /// for the format.
    pub compression: Option<Compression>,
}

/// How a file is packed. Readers such as `heaptrack_print` know it by the file's name alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Compression {
    /// Not at all.
    Plain,
    /// By gzip: `.gz`.
    Gzip,
    /// By Zstandard: `.zst`.
    Zstd,
}

impl Compression {
    /// How a file of this name is packed.
    ///
    /// ```
    /// use cairn_exchange::Compression;
    /// use std::path::Path;
    /// assert_eq!(Compression::of_name(Path::new("app.heaptrack.zst")), Compression::Zstd);
    /// assert_eq!(Compression::of_name(Path::new("app.heaptrack")), Compression::Plain);
    /// ```
    #[must_use]
    pub fn of_name(path: &Path) -> Self {
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("gz") => Self::Gzip,
            Some("zst") => Self::Zstd,
            _ => Self::Plain,
        }
    }
}

/// What became of it.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Written {
    /// What the format could not hold: a sentence each.
    pub losses: Vec<String>,
}

/// Writes the subject in the format, packed as [`Choice::compression`] says. A pprof file is always
/// packed with gzip.
///
/// # Errors
///
/// When the output cannot be written, the recording not be read, or the format is not for such a thing.
pub fn write(
    target: Target,
    subject: &Subject<'_>,
    choice: Choice,
    output: &mut dyn Write,
) -> Result<Written, ExchangeError> {
    let compression = match (target, choice.compression) {
        (Target::Pprof, _) => Compression::Plain,
        (Target::Heaptrack, None) => Compression::Zstd,
        (_, compression) => compression.unwrap_or(Compression::Plain),
    };
    match compression {
        Compression::Plain => write_plain(target, subject, choice, output),
        Compression::Gzip => {
            let mut packed = GzEncoder::new(output, flate2::Compression::default());
            let written = write_plain(target, subject, choice, &mut packed)?;
            packed.finish().map_err(ExchangeError::writing)?;
            Ok(written)
        }
        Compression::Zstd => {
            // Level 3 is what heaptrack itself writes.
            let mut packed = zstd::stream::write::Encoder::new(output, 3).map_err(ExchangeError::writing)?;
            let written = write_plain(target, subject, choice, &mut packed)?;
            packed.finish().map_err(ExchangeError::writing)?;
            Ok(written)
        }
    }
}

/// Writes the format itself.
fn write_plain(
    target: Target,
    subject: &Subject<'_>,
    choice: Choice,
    output: &mut dyn Write,
) -> Result<Written, ExchangeError> {
    let profile = subject.profile;
    let mut losses = Vec::new();
    let mut column = choice.column;
    if target == Target::Heapprofile
        && profile.columns.get(column).is_none_or(|column| column.unit != Unit::Bytes)
    {
        column = profile.columns.iter().position(|column| column.unit == Unit::Bytes).ok_or(
            ExchangeError::CannotHold {
                format: ".heapprofile",
                reason: "it holds bytes, and there are none here; speedscope or folded hold any numbers",
            },
        )?;
    }
    if target.has_one_column() && profile.columns.len() > 1 {
        let told = &profile.columns[column];
        losses.push(format!(
            "{} holds one number a stack: {} ({})",
            target.name(),
            told.name,
            told.unit.name()
        ));
    }
    match target {
        Target::Pprof => {
            pprof::write(profile, output)?;
            losses.push("pprof has no times: sums alone".to_owned());
        }
        Target::Speedscope => {
            speedscope::write(profile, output)?;
            losses.push("speedscope has no times and no threads: sums alone, a profile for each".to_owned());
        }
        Target::Otlp => {
            otlp::write(profile, output)?;
            losses.push(
                "OTLP profiles are an alpha: version 1.10 of the messages, which others may not read"
                    .to_owned(),
            );
        }
        Target::Heapprofile => {
            heapprofile::write(profile, column, output)?;
            losses.push(".heapprofile has no source lines of calls, no times and no threads".to_owned());
        }
        Target::Folded => {
            folded::write(profile, column, output)?;
            losses.push("folded stacks have function names alone".to_owned());
        }
        Target::Csv => table::write_csv(subject, choice.rows, output)?,
        Target::JsonLines => table::write_json_lines(subject, choice.rows, output)?,
        Target::Firefox => match subject.heap {
            Some(heap) => {
                let heap = whole(target, heap)?;
                losses.extend(firefox::write(heap, profile, output)?);
            }
            None if subject.marks.is_empty() && !profile.samples.is_empty() => {
                return Err(ExchangeError::CannotHold {
                    format: "a profile of the Firefox Profiler",
                    reason: "it is made of events, and there are only sums here; pprof or speedscope hold sums",
                });
            }
            None => firefox::write_marks(profile, subject.marks, output)?,
        },
        Target::Heaptrack => {
            let heap = whole(target, events_of("a heaptrack file", subject)?)?;
            heaptrack::write(heap, profile, output)?;
            losses.push(
                "heaptrack has no threads; it calls temporary a free right behind an allocation of the same stack and size \
                 (docs/book/reference/report.md has both definitions)"
                    .to_owned(),
            );
            losses.extend(
                profile.notes.iter().map(|note| format!("heaptrack calls leaked what was not freed: {note}")),
            );
        }
        Target::Dhat => {
            dhat::write(whole(target, events_of("DHAT's file", subject)?)?, profile, output)?;
            losses.push("DHAT's file has no threads, and of times only lifetimes".to_owned());
        }
    }
    if target.has_events() && subject.heap.is_some_and(|heap| matches!(heap.source, EventSource::Live(_))) {
        let name = target.name();
        losses.push(format!(
            "of an image it is not known when its blocks were allocated: in {name} all of them are at time 0, and nothing was freed"
        ));
    }
    Ok(Written { losses })
}

fn events_of<'a>(format: &'static str, subject: &Subject<'a>) -> Result<&'a HeapEvents<'a>, ExchangeError> {
    let reason =
        "it is for heap recordings with their events; pprof or speedscope hold other stacks and sums";
    subject.heap.ok_or(ExchangeError::CannotHold { format, reason })
}

/// Refuses samples: formats that hold single blocks do not know that a block stands for many.
fn whole<'a>(target: Target, heap: &'a HeapEvents<'a>) -> Result<&'a HeapEvents<'a>, ExchangeError> {
    if heap.sums.sampling.is_estimate() {
        return Err(ExchangeError::CannotHold {
            format: target.name(),
            reason: "it holds single blocks, and in a sampled recording each stands for many; pprof or speedscope hold estimated sums",
        });
    }
    Ok(heap)
}
