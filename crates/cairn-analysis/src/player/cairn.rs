//! Plays cairn's own recordings.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use super::event::{Event, PlayedFrame, PlayedModule, PlayedThread, StackKey, Tables, What};
use super::filter::Filter;
use super::{PlayError, difference};
use crate::heap::{InterpretedCode, generated_names};
use crate::names::ModuleKey;
use cairn_recording::{
    Alloc, At, Change, CodePiece, Events, Finding, Free, Live, Mapping, Mark, Module, ModuleId, PcKind,
    Place, Recording, RecordingError, StackId, ThreadId, TimeScale, Usage, Wanted,
};
use cairn_symbols::SourceFrame;

/// A cairn recording, as a source of the player.
pub(super) struct CairnRecording {
    recording: Recording,
    /// In the recording's order, so that its module numbers are indices here.
    modules: Vec<PlayedModule>,
    threads: Vec<PlayedThread>,
    /// Names of code that JIT compilers made, by the number of the address.
    generated: HashMap<u32, SourceFrame>,
    /// How many pieces of names and how many addresses they are from.
    generated_from: (usize, usize),
    /// Findings of reading the events.
    of_events: RefCell<Vec<Finding>>,
}

impl std::fmt::Debug for CairnRecording {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CairnRecording").field("header", self.recording.header()).finish_non_exhaustive()
    }
}

impl CairnRecording {
    pub(super) fn new(recording: Recording) -> Self {
        let mut played = Self {
            modules: Vec::new(),
            threads: Vec::new(),
            generated: HashMap::new(),
            generated_from: (0, 0),
            of_events: RefCell::default(),
            recording,
        };
        played.take_tables();
        played
    }

    fn take_tables(&mut self) {
        self.modules = self.recording.modules().iter().map(played).collect();
        let threads = self.recording.threads().iter().map(|thread| PlayedThread {
            kernel_thread: thread.kernel_thread,
            name: String::from_utf8_lossy(&thread.name).into_owned(),
            earlier_names: thread
                .earlier_names
                .iter()
                .map(|name| String::from_utf8_lossy(name).into_owned())
                .collect(),
        });
        self.threads = threads.collect();
        self.name_generated_code();
    }

    /// Finds the names of addresses outside of modules, if the tables have new ones.
    fn name_generated_code(&mut self) {
        let from = (self.recording.generated_code().pieces().len(), self.recording.stacks().pcs_len());
        if from.0 > 0 && from != self.generated_from {
            self.generated = generated_names(&self.recording);
            self.generated_from = from;
        }
    }

    /// Adds names of generated code that the recording does not have.
    pub(super) fn add_code_files(&mut self, pieces: Vec<CodePiece>) {
        self.recording.add_generated_code(pieces);
        self.name_generated_code();
    }

    /// Reads the new part of a growing file.
    pub(super) fn poll(&mut self, live: &mut Live, is_last: bool) -> Result<(), PlayError> {
        live.look(&mut self.recording, is_last).map_err(PlayError::Recording)?;
        self.take_tables();
        Ok(())
    }

    /// Passes on the events whose order is final. The sieve checks times, because events pass only
    /// once.
    pub(super) fn play_new(
        &self,
        live: &mut Live,
        filter: &Filter,
        sink: &mut dyn FnMut(Event) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, PlayError> {
        let wanted = if filter.heap { Wanted::ALL } else { Wanted::OTHERS };
        let mut adapter = Adapter { recording: self, sink, is_enough: false };
        live.read_new(&self.recording, &wanted, &mut adapter).map_err(PlayError::Recording)?;
        Ok(if adapter.is_enough { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    }

    pub(super) fn add_findings(&mut self, findings: &[Finding]) {
        self.recording.add_findings(findings);
    }

    /// Passes on the events of the wanted time.
    pub(super) fn play(
        &self,
        filter: &Filter,
        sink: &mut dyn FnMut(Event) -> ControlFlow<()>,
    ) -> Result<(), PlayError> {
        let (since, until) = window(filter, self.recording.time_scale());
        let wanted = if filter.heap { Wanted::ALL } else { Wanted::OTHERS };
        let wanted = wanted.between(since, until);
        let mut adapter = Adapter { recording: self, sink, is_enough: false };
        let outcome = self.recording.read(&wanted, &mut adapter).map_err(PlayError::Recording)?;
        let known = &mut *self.of_events.borrow_mut();
        for finding in outcome.findings {
            if !known.contains(&finding) {
                known.push(finding);
            }
        }
        Ok(())
    }

    pub(super) fn process(&self) -> u32 {
        self.recording.header().process
    }

    /// Reports whether everything that an ended program wrote has been read.
    pub(super) fn is_settled(&self, live: &Live) -> bool {
        live.is_settled(&self.recording)
    }

    pub(super) fn has_ended(&self) -> bool {
        self.recording.end().is_some()
    }

    /// Reports whether the recording overwrites its oldest events.
    pub(super) fn is_ring(&self) -> bool {
        self.recording.fact("mode") == Some(b"ring")
    }

    pub(super) fn findings(&self) -> Vec<String> {
        self.all_findings().map(|finding| finding.to_string()).collect()
    }

    pub(super) fn is_whole(&self) -> bool {
        self.all_findings().all(|finding| !finding.is_damage())
    }

    /// Returns the findings of opening the recording, and of reading its events.
    fn all_findings(&self) -> impl Iterator<Item = Finding> {
        let of_events = self.of_events.borrow().clone();
        self.recording.findings().to_vec().into_iter().chain(of_events)
    }

    fn module_index(&self, id: ModuleId) -> Option<usize> {
        self.recording.modules().binary_search_by_key(&id, |module| module.id).ok()
    }

    /// Returns a thread's index; `None` for events without a thread.
    fn thread_index(&self, id: ThreadId) -> Option<usize> {
        let index = self.recording.threads().binary_search_by_key(&id, |thread| thread.id).ok()?;
        (self.threads.get(index)?.kernel_thread != 0).then_some(index)
    }
}

impl Tables for CairnRecording {
    fn modules(&self) -> &[PlayedModule] {
        &self.modules
    }

    fn threads(&self) -> &[PlayedThread] {
        &self.threads
    }

    fn frames(&self, stack: StackKey) -> Cow<'_, [PlayedFrame]> {
        let numbers = self.recording.stacks().pc_ids(StackId::from_number(stack.0));
        let frames = numbers.filter_map(|pc| {
            let frame = self.recording.frame(pc)?;
            let module = match frame.place {
                Place::Module(id, _) => self.module_index(id),
                Place::Absolute(_) => None,
            };
            let own_name = module.is_none().then(|| pc.number());
            Some(PlayedFrame { kind: frame.kind, address: frame.address, module, own_name })
        });
        Cow::Owned(frames.collect())
    }

    fn own_name(&self, frame: &PlayedFrame) -> Option<SourceFrame> {
        if frame.kind == PcKind::Interpreted {
            let address = frame.address.value();
            let code = self.recording.stacks().code((address >> 32) as u32)?;
            return Some(InterpretedCode::of_recording(code).source_frame(address as u32));
        }
        self.generated.get(&frame.own_name?).cloned()
    }

    fn wall_nanos(&self, nanos: i64) -> u64 {
        match u64::try_from(nanos) {
            Ok(nanos) => self.recording.time_scale().wall_nanos(nanos),
            Err(_) => self.recording.header().start_wall_nanos.saturating_add_signed(nanos),
        }
    }

    fn nanos_at_wall(&self, wall_nanos: u64) -> i64 {
        nanos_at_wall(self.recording.time_scale(), wall_nanos)
    }

    fn extent(&self) -> (i64, i64) {
        struct Last(u64);
        impl Last {
            fn see(&mut self, at: At) {
                self.0 = self.0.max(at.nanos);
            }
        }
        impl Events for Last {
            fn mark(&mut self, event: &Mark<'_>) {
                self.see(event.at);
            }
            fn mapping(&mut self, event: &Mapping) {
                self.see(event.at);
            }
            fn usage(&mut self, event: &Usage) {
                self.see(event.at);
            }
            fn change(&mut self, at: At, _: Change) {
                self.see(at);
            }
        }
        let stated_end = self.recording.totals().map(|totals| totals.end_nanos);
        let last = match stated_end.or(self.recording.end().map(|(_, nanos)| nanos)) {
            Some(nanos) => nanos,
            None => {
                let mut last = Last(0);
                // A part that cannot be read cannot be shown either.
                let _ = self.recording.read(&Wanted::OTHERS, &mut last);
                last.0
            }
        };
        (0, signed(last))
    }
}

/// Opens the part of a recording that the filter's times need.
pub(super) fn open_window(path: &Path, filter: &Filter) -> Result<Recording, RecordingError> {
    Recording::open_window(path, |scale| window(filter, scale))
}

/// Returns the times to play, in the reader's nanoseconds.
fn window(filter: &Filter, scale: &TimeScale) -> (u64, u64) {
    let (since, until) = filter.window_by(|wall_nanos| nanos_at_wall(scale, wall_nanos));
    let clamped = |nanos: i64| u64::try_from(nanos).unwrap_or(0);
    (clamped(since), if until == i64::MAX { u64::MAX } else { clamped(until) })
}

fn nanos_at_wall(scale: &TimeScale, wall_nanos: u64) -> i64 {
    // The wall clock may have been set back: use the latest reading that fits.
    let readings = scale.readings();
    let fits = readings.iter().rev().find(|(_, wall)| *wall <= wall_nanos);
    let &(nanos, wall) = fits.or(readings.first()).unwrap_or(&(0, 0));
    difference(wall_nanos, wall).saturating_add_unsigned(nanos)
}

/// Converts the reader's events to the player's.
struct Adapter<'a> {
    recording: &'a CairnRecording,
    sink: &'a mut dyn FnMut(Event) -> ControlFlow<()>,
    is_enough: bool,
}

impl Adapter<'_> {
    fn push(&mut self, at: At, what: What) {
        if self.is_enough {
            return;
        }
        let thread = self.recording.thread_index(at.thread);
        self.is_enough = (self.sink)(Event { nanos: signed(at.nanos), thread, what }).is_break();
    }
}

impl Events for Adapter<'_> {
    fn alloc(&mut self, event: &Alloc) {
        let what = What::Alloc { stack: StackKey(event.stack.number()), size_bytes: event.size_bytes };
        self.push(event.at, what);
    }

    fn free(&mut self, event: &Free) {
        let what = What::Free { stack: StackKey(event.stack.number()), size_bytes: event.size_bytes };
        self.push(event.at, what);
    }

    fn mark(&mut self, event: &Mark<'_>) {
        let has_stack = event.stack != StackId::EMPTY && event.stack != StackId::LOST;
        let what = What::Mark {
            stack: has_stack.then(|| StackKey(event.stack.number())),
            is_lost: event.stack == StackId::LOST,
            skip: event.skip,
            value: event.value,
            text: event.text.into(),
            is_cut: event.is_cut,
        };
        self.push(event.at, what);
    }

    fn mapping(&mut self, event: &Mapping) {
        let Mapping { kind, address, size_bytes, stack, .. } = *event;
        let stack = StackKey(stack.number());
        self.push(event.at, What::Mapping { kind, address, size_bytes, stack });
    }

    fn usage(&mut self, event: &Usage) {
        let Usage { own_bytes, page_faults, threads, .. } = *event;
        let resident_bytes = event.program_bytes();
        self.push(event.at, What::Usage { resident_bytes, own_bytes, page_faults, threads });
    }

    fn change(&mut self, at: At, change: Change) {
        let module = |id| self.recording.module_index(id);
        let what = match change {
            Change::ModuleLoaded(id) => module(id).map(What::ModuleLoaded),
            Change::ModuleUnloaded(id) => module(id).map(What::ModuleUnloaded),
            Change::ThreadBegan => Some(What::ThreadBegan),
            Change::ThreadNamed => Some(What::ThreadNamed),
            Change::ThreadEnded => Some(What::ThreadEnded),
            Change::Lost { kind, count } => Some(What::Lost { kind, count }),
            Change::Ended(reason) => Some(What::Ended(reason)),
            // A newer kind of change has no event here.
            _ => None,
        };
        if let Some(what) = what {
            self.push(at, what);
        }
    }

    fn is_enough(&self) -> bool {
        self.is_enough
    }
}

fn signed(nanos: u64) -> i64 {
    i64::try_from(nanos).unwrap_or(i64::MAX)
}

fn played(module: &Module) -> PlayedModule {
    PlayedModule {
        file: ModuleKey { path: path_of(&module.path), build_id: module.build_id.clone(), size_bytes: None },
        path: module.path_text().into_owned(),
        start: module.start,
        end: module.end,
        bias: Some(module.bias),
        loaded_nanos: signed(module.loaded_nanos),
        unloaded_nanos: module.unloaded_nanos.map(signed),
    }
}

/// Converts a recorded path; keeps bytes that are not text, if this system can.
#[cfg(unix)]
fn path_of(bytes: &[u8]) -> PathBuf {
    use std::os::unix::ffi::OsStrExt;
    PathBuf::from(std::ffi::OsStr::from_bytes(bytes))
}

#[cfg(not(unix))]
fn path_of(bytes: &[u8]) -> PathBuf {
    PathBuf::from(String::from_utf8_lossy(bytes).into_owned())
}
