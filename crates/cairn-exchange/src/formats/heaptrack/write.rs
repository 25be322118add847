//! From a recording's events to a heaptrack file.
//!
//! A line `-` names a class of allocations and no block, and heaptrack takes a `-` right behind a `+` of its class for the end of a temporary
//! block. So events are written in their true order, one by one.

use std::collections::HashMap;
use std::io::Write;
use std::sync::Arc;

use crate::dispatch::target::HeapEvents;
use crate::error::ExchangeError;
use crate::model::events::{Block, Blocks, replay};
use crate::model::profile::Profile;

const PAGE_BYTES: u64 = 4096;
const NANOS_PER_MILLISECOND: u64 = 1_000_000;

/// Writes the events of the scope.
pub(crate) fn write(
    heap: &HeapEvents<'_>,
    profile: &Profile,
    output: &mut dyn Write,
) -> Result<(), ExchangeError> {
    let mut writer = Writer {
        profile,
        stacks: heap.stacks,
        texts: HashMap::new(),
        places: vec![0; profile.locations.len()],
        placed: 0,
        traces: vec![0; profile.stacks.len()],
        traced: 0,
        classes: HashMap::new(),
        class_of_object: Vec::new(),
        milliseconds: 0,
        output,
    };
    writer.head()?;
    replay(heap, &mut writer)?;
    writer.clock(heap.sums.end_nanos)
}

struct Writer<'a> {
    profile: &'a Profile,
    stacks: &'a HashMap<u32, Option<u32>>,
    texts: HashMap<Arc<str>, usize>,
    /// By location, the number of its line `i`; 0 where it has none yet.
    places: Vec<u32>,
    placed: u32,
    /// By stack, the number of its line `t`; 0 where it has none yet.
    traces: Vec<u32>,
    traced: u32,
    /// By size and trace.
    classes: HashMap<(u64, u32), u32>,
    class_of_object: Vec<u32>,
    milliseconds: u64,
    output: &'a mut dyn Write,
}

impl Writer<'_> {
    fn put(&mut self, line: std::fmt::Arguments<'_>) -> Result<(), ExchangeError> {
        self.output.write_fmt(line).map_err(ExchangeError::writing)
    }

    fn head(&mut self) -> Result<(), ExchangeError> {
        // The version of heaptrack whose files look like this one.
        self.put(format_args!("v 10400 3\n"))?;
        let command = one_line(&self.profile.title);
        self.put(format_args!("X {command}\nI {PAGE_BYTES:x} 0\n"))
    }

    fn text(&mut self, text: &Arc<str>) -> Result<usize, ExchangeError> {
        if text.is_empty() {
            return Ok(0);
        }
        if let Some(&known) = self.texts.get(text) {
            return Ok(known);
        }
        let number = self.texts.len() + 1;
        self.texts.insert(Arc::clone(text), number);
        let shown = one_line(text);
        self.put(format_args!("s {:x} {shown}\n", shown.len()))?;
        Ok(number)
    }

    fn place(&mut self, location: u32) -> Result<u32, ExchangeError> {
        if self.places[location as usize] > 0 {
            return Ok(self.places[location as usize]);
        }
        let profile = self.profile;
        let at = &profile.locations[location as usize];
        let module = match at.module.and_then(|module| profile.modules.get(module as usize)) {
            Some(module) => self.text(&module.path)?,
            None => 0,
        };
        let mut line = format!("i {:x} {module:x}", at.address);
        for source in &at.lines {
            let function = &profile.functions[source.function as usize];
            let name = self.text(&function.name)?;
            let file = function.file.as_ref().map_or(Ok(0), |file| self.text(file))?;
            line.push_str(&format!(" {name:x} {file:x} {:x}", source.line));
        }
        self.put(format_args!("{line}\n"))?;
        self.placed += 1;
        self.places[location as usize] = self.placed;
        Ok(self.placed)
    }

    fn trace(&mut self, stack: Option<u32>) -> Result<u32, ExchangeError> {
        let Some(innermost) = stack else { return Ok(0) };
        // From the innermost outwards to the first that is written, and back.
        let mut open = Vec::new();
        let mut next = Some(innermost);
        while let Some(stack) = next.filter(|&stack| self.traces[stack as usize] == 0) {
            open.push(stack);
            next = self.profile.stacks[stack as usize].caller;
        }
        for stack in open.into_iter().rev() {
            let caller =
                self.profile.stacks[stack as usize].caller.map_or(0, |caller| self.traces[caller as usize]);
            let place = self.place(self.profile.stacks[stack as usize].location)?;
            self.put(format_args!("t {place:x} {caller:x}\n"))?;
            self.traced += 1;
            self.traces[stack as usize] = self.traced;
        }
        Ok(self.traces[innermost as usize])
    }

    fn clock(&mut self, nanos: u64) -> Result<(), ExchangeError> {
        let milliseconds = nanos / NANOS_PER_MILLISECOND;
        if milliseconds > self.milliseconds {
            self.milliseconds = milliseconds;
            self.put(format_args!("c {milliseconds:x}\n"))?;
        }
        Ok(())
    }
}

impl Blocks for Writer<'_> {
    fn allocated(&mut self, block: Block) -> Result<(), ExchangeError> {
        self.clock(block.nanos)?;
        let trace = self.trace(self.stacks.get(&block.stack).copied().flatten())?;
        let class = match self.classes.get(&(block.size_bytes, trace)) {
            Some(&known) => known,
            None => {
                let class = self.classes.len() as u32;
                self.classes.insert((block.size_bytes, trace), class);
                self.put(format_args!("a {:x} {trace:x}\n", block.size_bytes))?;
                class
            }
        };
        if self.class_of_object.len() <= block.object as usize {
            self.class_of_object.resize(block.object as usize + 1, 0);
        }
        self.class_of_object[block.object as usize] = class;
        self.put(format_args!("+ {class:x}\n"))
    }

    fn freed(&mut self, object: u32, nanos: u64) -> Result<(), ExchangeError> {
        self.clock(nanos)?;
        let class = self.class_of_object[object as usize];
        self.put(format_args!("- {class:x}\n"))
    }

    fn used(&mut self, nanos: u64, resident_bytes: u64) -> Result<(), ExchangeError> {
        self.clock(nanos)?;
        self.put(format_args!("R {:x}\n", resident_bytes / PAGE_BYTES))
    }
}

/// A text that does not end its line.
fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}
