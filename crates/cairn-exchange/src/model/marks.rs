//! Converts the marks of a recording to a profile: how often each stack was marked, and when.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use cairn_analysis::names::{AddressNames, named_frames};
use cairn_analysis::player::{Event, Filter, PlayError, PlayedFrame, Player, Tables, What};
use cairn_format::Hexadecimal;

use crate::model::profile::{Column, Function, Line, Location, Module, Profile, Sample, Stack, Unit};

/// Usual maximum of marks to store individually; of more, only the sums.
pub const MOST_MARKS: usize = 2_000_000;

/// A mark, or the load or unload of a module.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct MarkAt {
    /// Nanoseconds since the start of the recording.
    pub nanos: u64,
    /// The kernel's id of the thread.
    pub thread: u32,
    /// The thread's name.
    pub thread_name: String,
    /// The text of the mark.
    pub text: String,
    /// Index of the stack in the profile.
    pub stack: Option<u32>,
}

/// The marks of a recording, and their profile.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct Marks {
    /// One column: the number of marks.
    pub profile: Profile,
    /// In order of time.
    pub marks: Vec<MarkAt>,
    /// Marks that are in the profile, but not in the list.
    pub left_out: u64,
}

/// Plays the marks that pass the filter, and stores up to `most_marks` of them individually.
/// Without `names`, frames are modules with offsets.
///
/// # Errors
///
/// Those of [`Player::play`].
pub fn read(
    player: &mut Player,
    filter: &Filter,
    names: Option<&mut AddressNames>,
    most_marks: usize,
) -> Result<Marks, PlayError> {
    let mut builder = MarkProfileBuilder { most_marks, ..MarkProfileBuilder::default() };
    builder.result.profile.columns =
        vec![Column { name: "marks".into(), unit: Unit::Count, title: "Marks".into() }];
    player.play(filter, names, &mut |event, tables, names| {
        builder.event(event, tables, names);
        ControlFlow::Continue(())
    })?;
    let (start, end) = player.tables().extent();
    let profile = &mut builder.result.profile;
    profile.started_wall_nanos = player.tables().wall_nanos(0);
    profile.duration_nanos = u64::try_from(end.saturating_sub(start.min(0))).unwrap_or(0);
    Ok(builder.result)
}

/// Converts stacks of a player to the tables of a profile.
#[derive(Default)]
pub(crate) struct MarkProfileBuilder {
    result: Marks,
    most_marks: usize,
    modules: HashMap<Arc<str>, u32>,
    functions: HashMap<Function, u32>,
    locations: HashMap<PlayedFrame, u32>,
    stacks: HashMap<Stack, u32>,
    samples: HashMap<Option<u32>, usize>,
}

impl MarkProfileBuilder {
    /// Returns the built profile.
    pub(crate) fn into_profile(self) -> Profile {
        self.result.profile
    }

    /// Returns the stack of an event; `None` without frames.
    pub(crate) fn stack_of(
        &mut self,
        event: &Event,
        tables: &dyn Tables,
        mut names: Option<&mut AddressNames>,
    ) -> Option<u32> {
        let mut stack = None;
        for frame in event.frames(tables).iter().rev() {
            let location = self.location(*frame, tables, names.as_deref_mut());
            stack = Some(self.stack(Stack { caller: stack, location }));
        }
        stack
    }

    fn event(&mut self, event: &Event, tables: &dyn Tables, names: Option<&mut AddressNames>) {
        let module_name =
            |index: usize| tables.modules().get(index).map_or("?", |module| module.name()).to_owned();
        let text = match &event.what {
            What::Mark { text, .. } => String::from_utf8_lossy(text).into_owned(),
            What::ModuleLoaded(index) => format!("loaded {}", module_name(*index)),
            What::ModuleUnloaded(index) => format!("unloaded {}", module_name(*index)),
            _ => return,
        };
        let stack = self.stack_of(event, tables, names);
        if matches!(event.what, What::Mark { .. }) {
            let samples = &mut self.result.profile.samples;
            let index = *self.samples.entry(stack).or_insert_with(|| {
                samples.push(Sample { stack, values: vec![0] });
                samples.len() - 1
            });
            samples[index].values[0] += 1;
        }
        if self.result.marks.len() >= self.most_marks {
            self.result.left_out += 1;
            return;
        }
        let thread = event.thread.and_then(|index| tables.threads().get(index)).cloned().unwrap_or_default();
        self.result.marks.push(MarkAt {
            nanos: u64::try_from(event.nanos).unwrap_or(0),
            thread: thread.kernel_thread,
            thread_name: thread.name,
            text,
            stack,
        });
    }

    fn stack(&mut self, stack: Stack) -> u32 {
        let stacks = &mut self.result.profile.stacks;
        *self.stacks.entry(stack).or_insert_with(|| {
            stacks.push(stack);
            stacks.len() as u32 - 1
        })
    }

    fn location(&mut self, frame: PlayedFrame, tables: &dyn Tables, names: Option<&mut AddressNames>) -> u32 {
        if let Some(&known) = self.locations.get(&frame) {
            return known;
        }
        let played = frame.module.and_then(|index| tables.modules().get(index));
        let address = played.map_or(frame.address.value(), |module| module.offset(frame.address).value());
        let module = played.map(|module| self.module(&module.path, &module.file.build_id, address));
        let mut lines = Vec::new();
        if let (Some((key, lookup)), Some(names)) = (frame.lookup(tables), names) {
            for source in named_frames(names.resolve(key, lookup)) {
                let Some(name) = source.function.clone() else { continue };
                let function = self.function(Function { name, file: source.file.clone() });
                lines.push(Line { function, line: source.line.unwrap_or(0) });
            }
        }
        if lines.is_empty() {
            let name =
                frame.end_reason().map(|reason| format!("[ends here: {reason}]")).unwrap_or_else(|| {
                    played.map_or_else(
                        || frame.address.to_string(),
                        |module| format!("{}+{:#x}", module.name(), module.offset(frame.address).value()),
                    )
                });
            let function = self.function(Function { name: name.into(), file: None });
            lines.push(Line { function, line: 0 });
        }
        let location = Location { address, module, lines };
        self.result.profile.locations.push(location);
        let index = self.result.profile.locations.len() as u32 - 1;
        self.locations.insert(frame, index);
        index
    }

    fn function(&mut self, function: Function) -> u32 {
        let functions = &mut self.result.profile.functions;
        match self.functions.get(&function) {
            Some(&known) => known,
            None => {
                functions.push(function.clone());
                let index = functions.len() as u32 - 1;
                self.functions.insert(function, index);
                index
            }
        }
    }

    fn module(&mut self, path: &str, build_id: &[u8], address: u64) -> u32 {
        let modules = &mut self.result.profile.modules;
        let index = match self.modules.get(path) {
            Some(&known) => known,
            None => {
                let build_id = Hexadecimal(build_id).to_string();
                let path: Arc<str> = path.into();
                modules.push(Module { path: Arc::clone(&path), build_id, start: address, end: address });
                let index = modules.len() as u32 - 1;
                self.modules.insert(path, index);
                index
            }
        };
        let module = &mut modules[index as usize];
        module.start = module.start.min(address);
        module.end = module.end.max(address.saturating_add(1));
        index
    }
}
