//! Plays recordings of call-stack-tracker, which come mostly from Windows.
//!
//! They are small, because the tracker has one buffer of 1 MiB, so a recording is read completely.
//! Damage at the end is reported, and everything before it is played.

use std::borrow::Cow;
use std::path::PathBuf;

use cairn_format::recording::{MarkValue, PcKind};
use cairn_format::{AbsoluteAddress, WordSize};
use cairn_wire::tracker::{
    Change, CharWidth, EventPlace, Finding, ModuleSlot, Reader, Timeline, TimelineError, TrackerLayout,
};

use super::event::{Event, PlayedFrame, PlayedModule, PlayedThread, StackKey, Tables, What};
use super::{PlayError, difference, recording_problem};
use crate::names::ModuleKey;

/// Maximum module loads; 64 Ki, because programs have some hundred, and each takes about 250 bytes.
const MAX_LOADS: usize = 1 << 16;

/// A tracker recording, as a source of the player.
#[derive(Debug)]
pub(super) struct TrackerRecording {
    modules: Vec<PlayedModule>,
    frames: Vec<PlayedFrame>,
    /// End of the n-th stack in `frames`; it begins at the end of the previous one.
    ends: Vec<usize>,
    events: Vec<Event>,
    start_wall_nanos: u64,
    error: Option<TimelineError>,
    layout: TrackerLayout,
    is_guessed: bool,
}

impl TrackerRecording {
    pub(super) fn read(bytes: &[u8], word_size: Option<WordSize>) -> Result<Self, PlayError> {
        let no_recording = || PlayError::NoRecording { problem: recording_problem(bytes) };
        let layout = match word_size {
            Some(word_size) => layout_of(bytes, word_size),
            None => TrackerLayout::guess(bytes).layout,
        };
        let reader = Reader::new(bytes, layout);
        let first = reader.clone().next().and_then(Result::ok).map(|first| first.timestamp_nanos);
        let start_wall_nanos = match first {
            // No recording computer has its clock at 1970.
            None | Some(0) if word_size.is_none() => return Err(no_recording()),
            first => first.unwrap_or(0),
        };
        let loads = reader.count_loads();
        if loads > MAX_LOADS {
            return Err(PlayError::TooManyModules { count: loads });
        }
        let mut recording = Self {
            modules: Vec::new(),
            frames: Vec::new(),
            ends: Vec::new(),
            events: Vec::new(),
            start_wall_nanos,
            error: None,
            layout,
            is_guessed: word_size.is_none(),
        };
        recording.follow(reader, &mut vec![ModuleSlot::EMPTY; loads]);
        Ok(recording)
    }

    fn follow<'a>(&mut self, reader: Reader<'a>, slots: &mut [ModuleSlot<'a>]) {
        let mut timeline = Timeline::new(reader, slots);
        while let Some(step) = timeline.step() {
            let step = match step {
                Ok(step) => step,
                Err(error) => {
                    self.error = Some(error);
                    break;
                }
            };
            let (place, finding) = (step.place, step.finding);
            let what = match step.change {
                Change::Loaded(module) => Some(What::ModuleLoaded(module)),
                Change::Unloaded(module) => Some(What::ModuleUnloaded(module)),
                Change::Ignored => None,
                Change::Stack(stack) => {
                    self.frames.extend(stack.frames().map(|frame| PlayedFrame {
                        kind: PcKind::ReturnAddress,
                        address: frame.address,
                        module: frame.place.map(|place| place.module),
                        own_name: None,
                    }));
                    self.ends.push(self.frames.len());
                    let stack = StackKey(u32::try_from(self.ends.len() - 1).unwrap_or(u32::MAX));
                    Some(mark(stack))
                }
            };
            for what in finding.and_then(anomaly).into_iter().chain(what) {
                self.push(place, what);
            }
        }
        let modules: Vec<PlayedModule> =
            timeline.modules().iter().map(|module| played(module, |place| self.nanos(place))).collect();
        self.modules = modules;
    }

    fn push(&mut self, place: EventPlace, what: What) {
        self.events.push(Event { nanos: self.nanos(place), thread: None, what });
    }

    fn nanos(&self, place: EventPlace) -> i64 {
        place.timestamp_nanos.wrapping_sub(self.start_wall_nanos).cast_signed()
    }

    pub(super) fn events(&self) -> &[Event] {
        &self.events
    }

    pub(super) fn is_whole(&self) -> bool {
        self.error.is_none()
    }

    pub(super) fn findings(&self) -> Vec<String> {
        let Some(error) = self.error else { return Vec::new() };
        let width = match self.layout.word_size {
            WordSize::Bits64 => 64,
            WordSize::Bits32 => 32,
            WordSize::Bits16 => 16,
        };
        let guess = if self.is_guessed { ", which was guessed" } else { "" };
        vec![format!(
            "{error}; nothing behind it can be read (as a recording of {width}-bit addresses{guess})"
        )]
    }
}

impl Tables for TrackerRecording {
    fn modules(&self) -> &[PlayedModule] {
        &self.modules
    }

    fn threads(&self) -> &[PlayedThread] {
        &[]
    }

    fn frames(&self, stack: StackKey) -> Cow<'_, [PlayedFrame]> {
        let index = stack.0 as usize;
        let start = index.checked_sub(1).and_then(|before| self.ends.get(before)).copied().unwrap_or(0);
        let frames = self.ends.get(index).and_then(|&end| self.frames.get(start..end));
        Cow::Borrowed(frames.unwrap_or_default())
    }

    fn wall_nanos(&self, nanos: i64) -> u64 {
        self.start_wall_nanos.saturating_add_signed(nanos)
    }

    fn nanos_at_wall(&self, wall_nanos: u64) -> i64 {
        difference(wall_nanos, self.start_wall_nanos)
    }

    fn extent(&self) -> (i64, i64) {
        let times = || self.events.iter().map(|event| event.nanos);
        (times().min().unwrap_or(0), times().max().unwrap_or(0))
    }
}

/// Returns the layout of this word size that reads furthest.
///
/// Outside Windows, path units have four bytes.
fn layout_of(bytes: &[u8], word_size: WordSize) -> TrackerLayout {
    let with = |char_width| TrackerLayout { word_size, char_width };
    let end = |layout: &TrackerLayout| {
        Reader::new(bytes, *layout).find_map(Result::err).map_or(usize::MAX, |error| error.offset)
    };
    let (two, four) = (with(CharWidth::Two), with(CharWidth::Four));
    if end(&four) > end(&two) { four } else { two }
}

fn mark(stack: StackKey) -> What {
    What::Mark {
        stack: Some(stack),
        is_lost: false,
        skip: 0,
        value: MarkValue::None,
        text: Box::default(),
        is_cut: false,
    }
}

fn anomaly(finding: Finding) -> Option<What> {
    match finding {
        // At the start of every recording.
        Finding::ListedAgain => None,
        Finding::Overlapped(count) => {
            Some(What::Anomaly(format!("{count} other modules at these addresses had no recorded unload")))
        }
        Finding::UnknownPath => Some(What::Anomaly("an unknown module was unloaded".to_owned())),
        _ => Some(What::Anomaly("an unexpected event".to_owned())),
    }
}

fn played(module: &ModuleSlot<'_>, nanos: impl Fn(EventPlace) -> i64) -> PlayedModule {
    let path = module.path.to_string();
    let end = module.base.value().saturating_add(u64::from(module.size_bytes));
    PlayedModule {
        file: ModuleKey { path: PathBuf::from(&path), build_id: Vec::new(), size_bytes: None },
        path,
        start: module.base,
        end: AbsoluteAddress::new(end),
        bias: None,
        loaded_nanos: nanos(module.loaded),
        unloaded_nanos: module.unloaded.map(nanos),
    }
}
