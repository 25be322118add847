//! Exports to any format, chosen by name.

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

/// A format for export.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Target {
    /// `pprof`, and services that accept it.
    Pprof,
    /// profiler.firefox.com.
    Firefox,
    /// speedscope.app.
    Speedscope,
    /// Chrome's memory panel, and speedscope.
    Heapprofile,
    /// flamegraph.pl, inferno, and other flame graph tools.
    Folded,
    /// `heaptrack_gui` and `heaptrack_print`.
    Heaptrack,
    /// valgrind's `dh_view.html`.
    Dhat,
    /// OpenTelemetry's profiles; experimental.
    Otlp,
    /// A table with commas.
    Csv,
    /// A table of JSON objects, one per line.
    JsonLines,
}

impl Target {
    /// All formats.
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

    /// Returns the format's name on the command line.
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

    /// Returns a description for a list of formats.
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

    /// Returns the file name extension.
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

    /// Reports whether the format stores events instead of sums.
    #[must_use]
    pub const fn has_events(self) -> bool {
        matches!(self, Self::Firefox | Self::Heaptrack | Self::Dhat)
    }

    /// Reports whether the format stores a single column, which must be chosen.
    #[must_use]
    pub const fn has_one_column(self) -> bool {
        matches!(self, Self::Heapprofile | Self::Folded)
    }
}

/// The rows of a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Rows {
    /// Whole stacks.
    Stacks,
    /// Allocating functions.
    Functions,
    /// Allocating lines.
    Lines,
    /// Allocating modules.
    Modules,
    /// Threads.
    Threads,
    /// Size classes.
    Sizes,
    /// Lifetime classes.
    Lifetimes,
    /// Memory over time.
    Timeline,
}

/// The data to export.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// Stacks with their values.
    pub profile: &'a Profile,
    /// The source of heap events, if there is a heap.
    pub heap: Option<&'a HeapEvents<'a>>,
    /// All marks.
    pub marks: &'a [MarkAt],
}

/// The source of heap events.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum EventSource<'a> {
    /// A recording by cairn.
    Recording(&'a HeapRecording),
    /// A file of another tool with [complete times](crate::import::Times::All).
    Imported(&'a Imported),
    /// A memory image: it has live blocks, but no times.
    Live(&'a [LiveBlock]),
}

/// A block in a memory image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LiveBlock {
    /// Number of its stack.
    pub stack: u32,
    /// Size in bytes.
    pub size_bytes: u64,
}

/// A heap with its events, for the formats that store them.
#[derive(Debug)]
pub struct HeapEvents<'a> {
    /// The source of the events.
    pub source: EventSource<'a>,
    /// The exported part of the events.
    pub scope: &'a Scope,
    /// The sums of that part.
    pub sums: &'a HeapProfile,
    /// The threads.
    pub threads: Vec<ThreadName>,
    /// The profile's stack for each stack of the recording.
    pub stacks: &'a HashMap<u32, Option<u32>>,
}

/// Usual value of [`Choice::most_blocks`]; 1,000,000.
///
/// The Firefox Profiler takes seconds for more.
pub const MOST_BLOCKS: u64 = 1_000_000;

/// Choices for formats that cannot store everything.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Choice {
    /// The column, for formats with one.
    pub column: usize,
    /// The rows, for tables.
    pub rows: Rows,
    /// Maximum blocks in the Firefox format, which omits those with the shortest lives.
    pub most_blocks: u64,
    /// The compression; `None` for the format's default.
    pub compression: Option<Compression>,
}

/// The compression of a file. Readers such as `heaptrack_print` recognise it only by the file's
/// name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Compression {
    /// No compression.
    Plain,
    /// gzip: `.gz`.
    Gzip,
    /// Zstandard: `.zst`.
    Zstd,
}

impl Compression {
    /// Returns the compression for a file name.
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

/// The result of an export.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct Written {
    /// Sentences about data that the format could not store.
    pub losses: Vec<String>,
}

/// Exports the subject in a format, with the compression in [`Choice::compression`].
///
/// A pprof file is always compressed with gzip.
///
/// # Errors
///
/// If the output cannot be written, the recording cannot be read, or the format cannot store the
/// data.
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
            // heaptrack itself uses level 3.
            let mut packed = zstd::stream::write::Encoder::new(output, 3).map_err(ExchangeError::writing)?;
            let written = write_plain(target, subject, choice, &mut packed)?;
            packed.finish().map_err(ExchangeError::writing)?;
            Ok(written)
        }
    }
}

/// Exports without compression.
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
                reason: "it stores bytes, and this input has none; speedscope or folded store any numbers",
            },
        )?;
    }
    if target.has_one_column() && profile.columns.len() > 1 {
        let chosen = &profile.columns[column];
        losses.push(format!(
            "{} stores one number per stack: {} ({})",
            target.name(),
            chosen.name,
            chosen.unit.name()
        ));
    }
    match target {
        Target::Pprof => {
            pprof::write(profile, output)?;
            losses.push("pprof has no times, only sums".to_owned());
        }
        Target::Speedscope => {
            speedscope::write(profile, output)?;
            losses
                .push("speedscope has no times and no threads, only sums: one profile per column".to_owned());
        }
        Target::Otlp => {
            otlp::write(profile, output)?;
            losses.push(
                "OTLP profiles are an alpha: written as version 1.10, which other tools may not read"
                    .to_owned(),
            );
        }
        Target::Heapprofile => {
            heapprofile::write(profile, column, output)?;
            losses.push(".heapprofile has no source lines of calls, no times and no threads".to_owned());
        }
        Target::Folded => {
            folded::write(profile, column, output)?;
            losses.push("folded stacks have function names only".to_owned());
        }
        Target::Csv => table::write_csv(subject, choice.rows, output)?,
        Target::JsonLines => table::write_json_lines(subject, choice.rows, output)?,
        Target::Firefox => match subject.heap {
            Some(heap) => {
                let heap = whole(target, heap)?;
                losses.extend(firefox::write(heap, profile, choice.most_blocks, output)?);
            }
            None if subject.marks.is_empty() && !profile.samples.is_empty() => {
                return Err(ExchangeError::CannotHold {
                    format: "a profile of the Firefox Profiler",
                    reason: "it consists of events, and this input has sums only; pprof or speedscope store sums",
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
            losses.push("DHAT's file has no threads, and lifetimes instead of times".to_owned());
        }
    }
    if target.has_events() && subject.heap.is_some_and(|heap| matches!(heap.source, EventSource::Live(_))) {
        let name = target.name();
        losses.push(format!(
            "an image has no allocation times: in {name} all blocks are allocated at time 0 and never freed"
        ));
    }
    Ok(Written { losses })
}

fn events_of<'a>(format: &'static str, subject: &Subject<'a>) -> Result<&'a HeapEvents<'a>, ExchangeError> {
    let reason = "it is for heap recordings with events; pprof or speedscope store other stacks and sums";
    subject.heap.ok_or(ExchangeError::CannotHold { format, reason })
}

/// Refuses sampled recordings: formats of single blocks cannot state that a block represents many.
fn whole<'a>(target: Target, heap: &'a HeapEvents<'a>) -> Result<&'a HeapEvents<'a>, ExchangeError> {
    if heap.sums.sampling.is_estimate() {
        return Err(ExchangeError::CannotHold {
            format: target.name(),
            reason: "it stores single blocks, and each block of a sampled recording represents many; pprof or speedscope store estimated sums",
        });
    }
    Ok(heap)
}
