//! Events as JSON, one object a line; `docs/book/reference/json.md` describes the fields.

use std::io::{self, Write};
use std::sync::Arc;

use cairn_analysis::calendar::Moment;
use cairn_analysis::names::{AddressNames, named_frames, without_recorder};
use cairn_analysis::player::{Event, PlayedFrame, PlayedModule, StackGroup, Tables, What};
use cairn_format::recording::{EndReason, LossKind, MappingKind, MarkValue, PcKind};
use cairn_symbols::{BuildId, SourceFrame};
use serde::Serialize;

/// Version of the fields; grows when one changes its meaning or goes.
const SCHEMA: u32 = 1;

#[derive(Serialize)]
struct JsonEvent<'a> {
    schema: u32,
    event: &'static str,
    /// From the start of the recording.
    nanos: i64,
    time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    thread: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    thread_name: Option<&'a str>,
    #[serde(flatten)]
    what: JsonWhat<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    frames: Option<Vec<PlayedFrameJson<'a>>>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum JsonWhat<'a> {
    Mark {
        #[serde(skip_serializing_if = "Option::is_none")]
        text: Option<String>,
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        text_is_cut: bool,
        #[serde(skip_serializing_if = "Option::is_none")]
        value: Option<serde_json::Number>,
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        stack_is_lost: bool,
    },
    Module(PlayedModuleJson<'a>),
    Heap {
        size_bytes: u64,
    },
    Mapping {
        kind: &'static str,
        address: String,
        size_bytes: u64,
    },
    Usage {
        resident_bytes: u64,
        cairn_bytes: Option<u64>,
        page_faults: u64,
        threads: u32,
    },
    Lost {
        reason: &'static str,
        count: u64,
    },
    Ended {
        reason: &'static str,
    },
    Odd {
        text: &'a str,
    },
    Group {
        count: u64,
        last_nanos: i64,
        last_time: String,
    },
    Nothing {},
}

/// One load of a module.
#[derive(Serialize)]
pub(super) struct PlayedModuleJson<'a> {
    /// Number of the load.
    module: usize,
    path: &'a str,
    start: String,
    end: String,
    build_id: Option<String>,
    loaded_nanos: i64,
    unloaded_nanos: Option<i64>,
}

#[derive(Serialize)]
struct PlayedFrameJson<'a> {
    kind: &'static str,
    /// None for a Python frame.
    #[serde(skip_serializing_if = "Option::is_none")]
    address: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    module: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    module_name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    offset: Option<String>,
    #[serde(flatten)]
    call: PlayedCallJson,
    /// Calls that were inlined here, innermost first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    inlined: Vec<PlayedCallJson>,
}

#[derive(Serialize, Default)]
struct PlayedCallJson {
    #[serde(skip_serializing_if = "Option::is_none")]
    function: Option<Arc<str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<Arc<str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    column: Option<u32>,
}

/// Prints one event.
pub(super) fn event(
    output: &mut impl Write,
    event: &Event,
    tables: &dyn Tables,
    names: Option<&mut AddressNames>,
) -> io::Result<()> {
    let (kind, what) = described(event, tables);
    line(output, event, kind, what, tables, names)
}

/// Prints equal stacks once, with their number.
pub(super) fn group(
    output: &mut impl Write,
    group: &StackGroup,
    tables: &dyn Tables,
    names: Option<&mut AddressNames>,
) -> io::Result<()> {
    let last_time = iso(group.last_nanos, tables);
    let what = JsonWhat::Group { count: group.count, last_nanos: group.last_nanos, last_time };
    let mut first = group.first.clone();
    // Equal stacks may be those of many threads.
    first.thread = None;
    line(output, &first, "stacks", what, tables, names)
}

/// Prints one load of a module.
pub(super) fn module(output: &mut impl Write, index: usize, module: &PlayedModule) -> io::Result<()> {
    #[derive(Serialize)]
    struct EventLine<'a> {
        schema: u32,
        #[serde(flatten)]
        module: PlayedModuleJson<'a>,
    }
    serde_json::to_writer(
        &mut *output,
        &EventLine { schema: SCHEMA, module: PlayedModuleJson::new(index, module) },
    )?;
    writeln!(output)
}

fn line(
    output: &mut impl Write,
    event: &Event,
    kind: &'static str,
    what: JsonWhat<'_>,
    tables: &dyn Tables,
    mut names: Option<&mut AddressNames>,
) -> io::Result<()> {
    let thread = event.thread.and_then(|thread| tables.threads().get(thread));
    let frames = event.stack().map(|_| {
        let frames = event.frames(tables);
        let is_mark = matches!(event.what, What::Mark { .. });
        let frames = frames.iter().enumerate();
        frames
            .map(|(index, frame)| {
                let is_place = is_mark && index == 0;
                PlayedFrameJson::new(frame, tables, names.as_deref_mut(), is_place)
            })
            .collect()
    });
    let line = JsonEvent {
        schema: SCHEMA,
        event: kind,
        nanos: event.nanos,
        time: iso(event.nanos, tables),
        thread: thread.map(|thread| thread.kernel_thread),
        thread_name: thread.map(|thread| thread.name.as_str()).filter(|name| !name.is_empty()),
        what,
        frames,
    };
    serde_json::to_writer(&mut *output, &line)?;
    writeln!(output)
}

fn iso(nanos: i64, tables: &dyn Tables) -> String {
    Moment::new(tables.wall_nanos(nanos)).iso().to_string()
}

fn described<'a>(event: &'a Event, tables: &'a dyn Tables) -> (&'static str, JsonWhat<'a>) {
    let module = |index: usize| {
        let module = tables.modules().get(index);
        module.map_or(JsonWhat::Nothing {}, |module| JsonWhat::Module(PlayedModuleJson::new(index, module)))
    };
    match &event.what {
        What::Mark { is_lost, value, text, is_cut, .. } => {
            let what = JsonWhat::Mark {
                text: (!text.is_empty()).then(|| String::from_utf8_lossy(text).into_owned()),
                text_is_cut: *is_cut,
                value: match *value {
                    MarkValue::Integer(value) => Some(value.into()),
                    MarkValue::Float(value) => serde_json::Number::from_f64(value),
                    _ => None,
                },
                stack_is_lost: *is_lost,
            };
            ("mark", what)
        }
        What::ModuleLoaded(index) => ("module-loaded", module(*index)),
        What::ModuleUnloaded(index) => ("module-unloaded", module(*index)),
        What::ThreadBegan => ("thread-began", JsonWhat::Nothing {}),
        What::ThreadNamed => ("thread-named", JsonWhat::Nothing {}),
        What::ThreadEnded => ("thread-ended", JsonWhat::Nothing {}),
        What::Alloc { size_bytes, .. } => ("alloc", JsonWhat::Heap { size_bytes: *size_bytes }),
        What::Free { size_bytes, .. } => ("free", JsonWhat::Heap { size_bytes: *size_bytes }),
        What::Mapping { kind, address, size_bytes, .. } => {
            let kind = match kind {
                MappingKind::Map => "map",
                MappingKind::Unmap => "unmap",
                MappingKind::Grow => "grow",
                MappingKind::Shrink => "shrink",
                _ => "other",
            };
            let what = JsonWhat::Mapping { kind, address: address.to_string(), size_bytes: *size_bytes };
            ("mapping", what)
        }
        What::Usage { resident_bytes, own_bytes, page_faults, threads } => {
            let (resident_bytes, page_faults, threads) = (*resident_bytes, *page_faults, *threads);
            let cairn_bytes = *own_bytes;
            ("usage", JsonWhat::Usage { resident_bytes, cairn_bytes, page_faults, threads })
        }
        What::Lost { kind, count } => {
            let reason = match kind {
                LossKind::NoStorage => "no-storage",
                LossKind::NestedTooDeep => "nested-too-deep",
                LossKind::NoStackMemory => "no-stack-memory",
                LossKind::WideAddress => "wide-address",
                LossKind::Overwritten => "overwritten",
                LossKind::Passing => "passing",
                LossKind::CodeNames => "code-names",
                LossKind::UnreadFrames => "unread-frames",
                _ => "other",
            };
            ("lost", JsonWhat::Lost { reason, count: *count })
        }
        What::Ended(reason) => {
            let reason = match reason {
                EndReason::Stopped => "stopped",
                EndReason::Exit => "exit",
                EndReason::Exec => "exec",
                EndReason::Gone => "gone",
                _ => "other",
            };
            ("ended", JsonWhat::Ended { reason })
        }
        What::Anomaly(text) => ("odd", JsonWhat::Odd { text }),
        _ => ("other", JsonWhat::Nothing {}),
    }
}

impl<'a> PlayedModuleJson<'a> {
    fn new(index: usize, module: &'a PlayedModule) -> Self {
        let build_id = &module.file.build_id;
        Self {
            module: index,
            path: &module.path,
            start: module.start.to_string(),
            end: module.end.to_string(),
            build_id: (!build_id.is_empty()).then(|| BuildId::new(build_id).to_string()),
            loaded_nanos: module.loaded_nanos,
            unloaded_nanos: module.unloaded_nanos,
        }
    }
}

impl PlayedCallJson {
    fn new(frame: &SourceFrame) -> Self {
        let SourceFrame { function, file, line, column, .. } = frame.clone();
        Self { function, file, line, column }
    }
}

impl<'a> PlayedFrameJson<'a> {
    /// `is_place` for the innermost frame of a mark.
    fn new(
        frame: &PlayedFrame,
        tables: &'a dyn Tables,
        names: Option<&mut AddressNames>,
        is_place: bool,
    ) -> Self {
        let module = frame.module.and_then(|index| Some((index, tables.modules().get(index)?)));
        let own = tables.own_name(frame);
        let found =
            names.zip(frame.lookup(tables)).map(|(names, (file, lookup))| names.resolve(file, lookup));
        let found = found.map_or(&[][..], named_frames);
        let found = if is_place { without_recorder(found) } else { found };
        let found = own.as_ref().map_or(found, std::slice::from_ref);
        let (call, inlined) = match found.split_last() {
            Some((call, inlined)) => {
                (PlayedCallJson::new(call), inlined.iter().map(PlayedCallJson::new).collect())
            }
            None => (PlayedCallJson::default(), Vec::new()),
        };
        Self {
            kind: match frame.kind {
                PcKind::ReturnAddress => "return-address",
                PcKind::ReturnWithoutTables => "return-without-tables",
                PcKind::ProgramCounter => "program-counter",
                PcKind::NoUnwindInfo => "end-no-unwind-info",
                PcKind::BadUnwindInfo => "end-bad-unwind-info",
                PcKind::UnreadableMemory => "end-unreadable-memory",
                PcKind::NoProgress => "end-no-progress",
                PcKind::OutsideStack => "end-outside-stack",
                PcKind::UnknownRegister => "end-unknown-register",
                PcKind::Limit => "end-limit",
                PcKind::Interpreted => "python",
                _ => "end",
            },
            address: (frame.kind != PcKind::Interpreted).then(|| frame.address.to_string()),
            module: module.map(|(index, _)| index),
            module_name: module.map(|(_, module)| module.name()),
            offset: module.map(|(_, module)| module.offset(frame.address).to_string()),
            call,
            inlined,
        }
    }
}
