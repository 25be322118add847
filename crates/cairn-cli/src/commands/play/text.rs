//! Events as text, in the shape that call-stack-tracker's viewer made known.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt::{self, Write as _};
use std::io::{self, Write};

use cairn_analysis::calendar::Moment;
use cairn_analysis::names::{AddressNames, named_frames, without_recorder};
use cairn_analysis::player::{Event, PlayedFrame, PlayedModule, StackGroup, StackKey, Tables, What};
use cairn_format::recording::{EndReason, LossKind, MappingKind, MarkValue, PcKind};
use cairn_symbols::SourceFrame;

use super::TimeStyle;
use crate::output::{Palette, printable};

/// Texts of stacks that are remembered, in bytes.
const MAX_REMEMBERED_BYTES: usize = 64 << 20;

/// Prints events and remembers the texts of their stacks.
pub(super) struct EventPrinter {
    time: TimeStyle,
    palette: Palette,
    stacks: HashMap<(StackKey, usize, bool), String>,
    remembered_bytes: usize,
}

impl EventPrinter {
    pub(super) fn new(time: TimeStyle) -> Self {
        Self { time, palette: Palette::of_stdout(), stacks: HashMap::new(), remembered_bytes: 0 }
    }

    /// Prints one event.
    pub(super) fn event(
        &mut self,
        output: &mut impl Write,
        event: &Event,
        tables: &dyn Tables,
        names: Option<&mut AddressNames>,
    ) -> io::Result<()> {
        let time = shown_time(event.nanos, tables, self.time);
        let thread = Thread(event, tables);
        match &event.what {
            What::Mark { is_lost, value, text, is_cut, .. } => {
                write!(output, "{time}: {{")?;
                let head = head_of_mark(thread, *value, text, *is_cut);
                if !head.is_empty() {
                    write!(output, " {head}")?;
                }
                writeln!(output)?;
                if *is_lost {
                    writeln!(output, "    ... the stack was lost: no memory was left for it")?;
                }
                output.write_all(self.stack(event, tables, names).as_bytes())?;
                writeln!(output, "}}")
            }
            What::Alloc { size_bytes, .. } => {
                writeln!(output, "{time}: {{ {thread}: allocated {size_bytes} bytes")?;
                output.write_all(self.stack(event, tables, names).as_bytes())?;
                writeln!(output, "}}")
            }
            What::Free { size_bytes, .. } => {
                writeln!(output, "{time}: {{ {thread}: freed {size_bytes} bytes that were allocated here")?;
                output.write_all(self.stack(event, tables, names).as_bytes())?;
                writeln!(output, "}}")
            }
            What::Mapping { kind, address, size_bytes, .. } => {
                let what = mapping(*kind);
                writeln!(output, "{time}: {{ {thread}: {what} {size_bytes} bytes at {address}")?;
                output.write_all(self.stack(event, tables, names).as_bytes())?;
                writeln!(output, "}}")
            }
            What::ModuleLoaded(module) => {
                writeln!(output, "{time}: loaded {}", shown_module(tables, *module))
            }
            What::ModuleUnloaded(module) => {
                writeln!(output, "{time}: unloaded {}", shown_module(tables, *module))
            }
            What::ThreadBegan => writeln!(output, "{time}: {thread} began"),
            What::ThreadNamed => writeln!(output, "{time}: {thread} has this name now"),
            What::ThreadEnded => writeln!(output, "{time}: {thread} ended"),
            What::Usage { resident_bytes, own_bytes: Some(own), page_faults, threads } => writeln!(
                output,
                "{time}: {resident_bytes} bytes resident, and {own} of cairn, {page_faults} page faults, {threads} threads"
            ),
            What::Usage { resident_bytes, own_bytes: None, page_faults, threads } => writeln!(
                output,
                "{time}: {resident_bytes} bytes resident, {page_faults} page faults, {threads} threads"
            ),
            What::Lost { kind, count } => writeln!(output, "{time}: {count} {}", loss(*kind)),
            What::Ended(reason) => writeln!(output, "{time}: {}", end(*reason)),
            What::Anomaly(text) => writeln!(output, "{time}: {}", printable(text)),
            _ => Ok(()),
        }
    }

    /// Prints equal stacks once, with their number.
    pub(super) fn group(
        &mut self,
        output: &mut impl Write,
        group: &StackGroup,
        tables: &dyn Tables,
        names: Option<&mut AddressNames>,
    ) -> io::Result<()> {
        let first = shown_time(group.first.nanos, tables, self.time);
        let last = shown_time(group.last_nanos, tables, self.time);
        let times = if group.count == 1 { "time" } else { "times" };
        writeln!(output, "{} {times}, first {first}, last {last}: {{", group.count)?;
        output.write_all(self.stack(&group.first, tables, names).as_bytes())?;
        writeln!(output, "}}")
    }

    /// The lines of a stack.
    fn stack(&mut self, event: &Event, tables: &dyn Tables, mut names: Option<&mut AddressNames>) -> &str {
        let Some(stack) = event.stack() else { return "" };
        if self.remembered_bytes > MAX_REMEMBERED_BYTES {
            self.stacks.clear();
            self.remembered_bytes = 0;
        }
        let is_mark = matches!(event.what, What::Mark { .. });
        let key = (stack, event.skip(), is_mark);
        if self.stacks.get(&key).is_none_or(String::is_empty) {
            let mut text = String::new();
            for (index, frame) in event.frames(tables).iter().enumerate() {
                let hide = if index == 0 && is_mark { without_recorder } else { all };
                // Writing to a string cannot fail.
                let _ = write_frame(&mut text, frame, tables, names.as_deref_mut(), hide, self.palette);
            }
            self.remembered_bytes += text.len() + size_of::<String>() * 2;
            self.stacks.insert(key, text);
        }
        self.stacks.get(&key).map_or("", String::as_str)
    }
}

fn write_frame(
    text: &mut String,
    frame: &PlayedFrame,
    tables: &dyn Tables,
    names: Option<&mut AddressNames>,
    shown: fn(&[SourceFrame]) -> &[SourceFrame],
    Palette { function, dim }: Palette,
) -> fmt::Result {
    if let Some(reason) = frame.end_reason() {
        return writeln!(text, "    ... {reason}");
    }
    let address = frame.address;
    let Some(module) = frame.module.and_then(|module| tables.modules().get(module)) else {
        let Some(own) = tables.own_name(frame) else {
            return match frame.kind {
                PcKind::Interpreted => writeln!(text, "    \"\"! [Python frame without a name]"),
                _ => writeln!(text, "    \"\"! {address}: "),
            };
        };
        let name = own.function.as_deref().unwrap_or("??");
        return match &own.file {
            Some(file) => {
                let line = own.line.unwrap_or(0);
                writeln!(
                    text,
                    "    \"\"! {}({line}): {function}{}{function:#}",
                    printable(file),
                    printable(name)
                )
            }
            None => {
                writeln!(text, "    \"\"! {dim}{address}{dim:#}: {function}{}{function:#}", printable(name))
            }
        };
    };
    let name = quoted(module.name());
    let found = names.zip(frame.lookup(tables)).map(|(names, (file, lookup))| names.resolve(file, lookup));
    let found = shown(found.map_or(&[][..], named_frames));
    if found.is_empty() {
        let place = format_args!("{}+{}", printable(module.name()), module.offset(address)).to_string();
        return writeln!(text, "    {name}! {dim}{address}{dim:#}: {place}");
    }
    for source in found {
        write!(text, "    {name}! ")?;
        match &source.file {
            Some(file) => write!(text, "{}({}): ", printable(file), source.line.unwrap_or(0))?,
            None => write!(text, "{dim}{address}{dim:#}: ")?,
        }
        match &source.function {
            Some(name) => write!(text, "{function}{}{function:#}", printable(name))?,
            None => write!(text, "{}+{}", printable(module.name()), module.offset(address))?,
        }
        writeln!(text, "{}", if source.inlined { " [inlined]" } else { "" })?;
    }
    Ok(())
}

fn all(frames: &[SourceFrame]) -> &[SourceFrame] {
    frames
}

/// A text between quotation marks, with those that are in it marked, as C++'s streams write paths.
fn quoted(text: &str) -> String {
    format!("\"{}\"", printable(&text.replace('\\', "\\\\").replace('"', "\\\"")))
}

/// Returns the text behind the brace that opens a marked stack; empty for nothing but a stack.
fn head_of_mark(thread: Thread<'_>, value: MarkValue, text: &[u8], is_cut: bool) -> String {
    let mut head = thread.to_string();
    let text = String::from_utf8_lossy(text);
    if !text.is_empty() {
        let cut = if is_cut { " (cut)" } else { "" };
        head.push_str(if head.is_empty() { "" } else { ": " });
        let _ = write!(head, "{}{cut}", quoted(&text));
    }
    match value {
        MarkValue::Integer(value) => drop(write!(head, " = {value}")),
        MarkValue::Float(value) => drop(write!(head, " = {value}")),
        _ => {}
    }
    head
}

fn mapping(kind: MappingKind) -> &'static str {
    match kind {
        MappingKind::Map => "mapped",
        MappingKind::Unmap => "unmapped",
        MappingKind::Grow => "grew the heap by",
        MappingKind::Shrink => "shrank the heap by",
        _ => "changed a mapping of",
    }
}

fn loss(kind: LossKind) -> &'static str {
    match kind {
        LossKind::NoStorage => "events were lost: no storage was left",
        LossKind::NestedTooDeep => "events in nested signal handlers were lost",
        LossKind::NoStackMemory => "events have no stack: no memory was left for it",
        LossKind::WideAddress => "events at addresses of more than 48 bits were lost",
        LossKind::Overwritten => "older events were overwritten, as asked for",
        LossKind::CodeNames => "bytes of the names of generated code were not stored",
        LossKind::UnreadFrames => "stacks have native frames only: their Python frames could not be read",
        LossKind::Passing => "places in modules lead past the recorder: their calls are not recorded",
        _ => "events were lost",
    }
}

fn end(reason: EndReason) -> &'static str {
    match reason {
        EndReason::Stopped => "recording was stopped",
        EndReason::Exit => "the program ended",
        EndReason::Exec => "the program replaced itself by another one",
        EndReason::Gone => "the process ended by `_exit` or a signal",
        _ => "recording ended",
    }
}

fn shown_module(tables: &dyn Tables, module: usize) -> String {
    let Some(module) = tables.modules().get(module) else { return "an unknown module".to_owned() };
    let PlayedModule { start, end, path, .. } = module;
    format!("{} at {start}-{end} ({})", quoted(module.name()), printable(path))
}

/// The thread of an event: `thread 4711 "main"`; nothing where it is not known.
#[derive(Clone, Copy)]
struct Thread<'a>(&'a Event, &'a dyn Tables);

impl fmt::Display for Thread<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(thread) = self.0.thread.and_then(|thread| self.1.threads().get(thread)) else {
            return Ok(());
        };
        write!(f, "thread {}", thread.kernel_thread)?;
        if thread.name.is_empty() { Ok(()) } else { write!(f, " {}", quoted(&thread.name)) }
    }
}

/// A time of the recording in the wanted style.
pub(super) fn shown_time(nanos: i64, tables: &dyn Tables, style: TimeStyle) -> Cow<'static, str> {
    let moment = Moment::new(tables.wall_nanos(nanos));
    match style {
        TimeStyle::Clock => format!("{}.{:06}", moment.plain(), moment.nanos_of_second() / 1000),
        TimeStyle::Viewer => format!("{}.{:06}", moment.plain(), moment.nanos_of_second() % 1_000_000),
        TimeStyle::Iso => moment.iso().to_string(),
        TimeStyle::Relative => seconds(nanos),
    }
    .into()
}

/// Nanoseconds as seconds with all their digits.
pub(super) fn seconds(nanos: i64) -> String {
    let sign = if nanos < 0 { "-" } else { "" };
    let nanos = nanos.unsigned_abs();
    format!("{sign}{}.{:09}", nanos / 1_000_000_000, nanos % 1_000_000_000)
}
