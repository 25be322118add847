//! Writes the modules and the marked stacks of a recording as call-stack-tracker records them.

use std::io::Write;
use std::ops::ControlFlow;

use cairn_analysis::player::{Event, Filter, PlayedModule, Player, Tables, What};
use cairn_format::{AbsoluteAddress, Sink, SinkFull, WordSize};
use cairn_wire::tracker::{self, CharWidth, MAX_PATH_UNITS, MAX_STACK_ADDRESSES, TrackerLayout};

use super::read::{FORMAT, of_player};
use crate::dispatch::target::Written;
use crate::error::ExchangeError;

/// Writes the loads and unloads of modules, and the stack of each mark, in order of time.
///
/// Paths have two bytes for each unit, as on Windows, if the modules lie there, and else four.
///
/// # Errors
///
/// If the recording cannot be read, or the output cannot be written.
pub fn write(player: &mut Player, output: &mut dyn Write) -> Result<Written, ExchangeError> {
    let is_of_windows = player.tables().modules().iter().any(|module| module.path.contains('\\'));
    let char_width = if is_of_windows { CharWidth::Two } else { CharWidth::Four };
    let layout = TrackerLayout { word_size: WordSize::Bits64, char_width };
    let mut events = TrackerEvents { layout, output, skipped: Skipped::default(), failure: None };
    let played = player.play(&Filter::default(), None, &mut |event, tables, _| events.add(event, tables));
    let TrackerEvents { skipped, failure, .. } = events;
    if let Some(error) = failure {
        return Err(error);
    }
    played.map_err(of_player)?;
    Ok(Written { losses: skipped.sentences() })
}

/// Facts that the format has no room for.
#[derive(Default)]
struct Skipped {
    texts: u64,
    heap_events: u64,
    cut_stacks: u64,
    large_modules: u64,
    long_paths: u64,
}

impl Skipped {
    fn sentences(&self) -> Vec<String> {
        let counted = [
            (self.texts, "marks had a text, a value or a thread, which call-stack-tracker does not record"),
            (self.heap_events, "allocations and frees are left out: call-stack-tracker records stacks alone"),
            (self.cut_stacks, "stacks are cut to their 200 innermost addresses"),
            (self.large_modules, "modules are larger than 4 GiB, and end there"),
            (self.long_paths, "modules have paths longer than 1,024 units, and are left out"),
        ];
        let are_there = counted.into_iter().filter(|(count, _)| *count > 0);
        are_there.map(|(count, what)| format!("{count} {what}")).collect()
    }
}

/// Writes each event when it is played.
struct TrackerEvents<'o> {
    layout: TrackerLayout,
    output: &'o mut dyn Write,
    skipped: Skipped,
    failure: Option<ExchangeError>,
}

impl TrackerEvents<'_> {
    fn add(&mut self, event: &Event, tables: &dyn Tables) -> ControlFlow<()> {
        let nanos = tables.wall_nanos(event.nanos);
        let module = |index: usize| tables.modules().get(index);
        match &event.what {
            What::ModuleLoaded(index) => module(*index).map_or(Ok(()), |module| self.loaded(nanos, module)),
            What::ModuleUnloaded(index) => {
                module(*index).map_or(Ok(()), |module| self.unloaded(nanos, module))
            }
            What::Mark { .. } => self.stack(nanos, event, tables),
            What::Alloc { .. } | What::Free { .. } => {
                self.skipped.heap_events += 1;
                Ok(())
            }
            _ => Ok(()),
        }
        .map_or_else(
            |error| {
                self.failure = Some(error);
                ControlFlow::Break(())
            },
            ControlFlow::Continue,
        )
    }

    fn has_room(&self, path: &str) -> bool {
        let units = match self.layout.char_width {
            CharWidth::Two => path.encode_utf16().count(),
            CharWidth::Four => path.chars().count(),
        };
        units <= MAX_PATH_UNITS
    }

    fn loaded(&mut self, nanos: u64, module: &PlayedModule) -> Result<(), ExchangeError> {
        if !self.has_room(&module.path) {
            self.skipped.long_paths += 1;
            return Ok(());
        }
        let size = module.end.value().saturating_sub(module.start.value());
        self.skipped.large_modules += u64::from(size > u32::MAX.into());
        let size = u32::try_from(size).unwrap_or(u32::MAX);
        self.put(|writer| writer.module_loaded(nanos, module.path.as_str(), module.start, size))
    }

    fn unloaded(&mut self, nanos: u64, module: &PlayedModule) -> Result<(), ExchangeError> {
        if !self.has_room(&module.path) {
            return Ok(());
        }
        self.put(|writer| writer.module_unloaded(nanos, module.path.as_str()))
    }

    fn stack(&mut self, nanos: u64, event: &Event, tables: &dyn Tables) -> Result<(), ExchangeError> {
        let frames = event.frames(tables);
        // Frames of interpreters have numbers in place of addresses.
        let is_native = |frame: &&cairn_analysis::player::PlayedFrame| {
            frame.lookup(tables).is_some() || frame.is_code() && tables.own_name(frame).is_none()
        };
        let mut addresses: Vec<AbsoluteAddress> =
            frames.iter().filter(is_native).map(|frame| frame.address).collect();
        self.skipped.cut_stacks += u64::from(addresses.len() > MAX_STACK_ADDRESSES);
        addresses.truncate(MAX_STACK_ADDRESSES);
        self.skipped.texts += 1;
        self.put(|writer| writer.stack(nanos, addresses))
    }

    fn put(
        &mut self,
        event: impl FnOnce(&mut tracker::Writer<Bytes>) -> Result<(), tracker::TrackerWriteError>,
    ) -> Result<(), ExchangeError> {
        let mut writer = tracker::Writer::new(Bytes(Vec::new()), self.layout);
        event(&mut writer).map_err(|error| ExchangeError::at_byte(FORMAT, 0, error.to_string()))?;
        self.output.write_all(&writer.into_sink().0).map_err(ExchangeError::writing)
    }
}

/// The bytes of one event.
struct Bytes(Vec<u8>);

impl Sink for Bytes {
    fn put(&mut self, bytes: &[u8]) -> Result<(), SinkFull> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }
}
