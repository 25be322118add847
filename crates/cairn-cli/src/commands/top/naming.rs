//! Names, found by a thread of its own, each address once: the symbols of a large program take
//! seconds, and what has no name yet is shown as a place in its module.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use cairn_analysis::heap::{Address, Namer, Stacks};
use cairn_analysis::names::{AddressNames, ModuleKey};
use cairn_analysis::source::SourceNames;
use cairn_format::StatedAddress;
use cairn_format::recording::PcKind;
use cairn_symbols::{AddressKind, Lookup, Place, SourceFrame, SymbolizerOptions};

/// A place in a module. Modules have numbers of their own here, which stay when a recording learns
/// of more.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    module: u32,
    lookup: Lookup,
}

/// Addresses that are named at once; 64, so that the screen gets names in small portions.
const PORTION: usize = 64;

/// The names that are known, and the thread that finds the others.
pub(super) struct Naming {
    state: RefCell<State>,
    finder: Option<Finder>,
    /// Those of a file that is complete: they are found at once.
    own: Option<SourceNames>,
}

#[derive(Default)]
struct State {
    modules: HashMap<ModuleKey, u32>,
    known: HashMap<Key, Vec<SourceFrame>>,
    asked: HashSet<Key>,
    wanted: Vec<(Key, ModuleKey)>,
}

struct Finder {
    requests: Sender<Vec<(Key, ModuleKey)>>,
    answers: Receiver<Vec<(Key, Vec<SourceFrame>)>>,
    names: Receiver<AddressNames>,
}

impl Naming {
    /// Begins to find names: the file's own ones, or those in symbol files; without options there
    /// are none.
    pub(super) fn begin(options: Option<SymbolizerOptions>, own: Option<SourceNames>) -> Self {
        let finder = options.filter(|_| own.is_none()).map(Finder::begin);
        Self { state: RefCell::default(), finder, own }
    }

    /// Requests the names that were missing since the last call.
    pub(super) fn ask(&self) {
        let wanted = std::mem::take(&mut self.state.borrow_mut().wanted);
        if let Some(finder) = self.finder.as_ref().filter(|_| !wanted.is_empty()) {
            // When the thread is gone, addresses stay what they are.
            let _ = finder.requests.send(wanted);
        }
    }

    /// Takes what was found; true when there was anything. Waits for it, for no longer than
    /// `patience`.
    pub(super) fn take(&self, patience: Duration) -> bool {
        let Some(finder) = &self.finder else { return false };
        let state = &mut *self.state.borrow_mut();
        let mut is_new = false;
        let mut take = |found: Vec<(Key, Vec<SourceFrame>)>| {
            is_new = true;
            state.known.extend(found);
        };
        if !patience.is_zero()
            && let Ok(found) = finder.answers.recv_timeout(patience)
        {
            take(found);
        }
        finder.answers.try_iter().for_each(take);
        is_new
    }

    /// Waits until everything that was asked for is known, or until `patience` is over. False when
    /// nothing was missing.
    pub(super) fn wait(&self, patience: Duration) -> bool {
        let began = Instant::now();
        let mut is_new = false;
        while self.is_waiting() && began.elapsed() < patience {
            is_new |= self.take(Duration::from_millis(50));
        }
        is_new
    }

    /// Reports whether names are still to come.
    pub(super) fn is_waiting(&self) -> bool {
        let state = self.state.borrow();
        self.finder.is_some() && state.known.len() < state.asked.len()
    }

    /// Returns the names, if the thread has finished its requests.
    pub(super) fn finish(self) -> Option<AddressNames> {
        const PATIENCE: Duration = Duration::from_millis(200);
        if let Some(own) = self.own {
            return own.into_lookups();
        }
        let Finder { requests, names, answers } = self.finder?;
        drop(requests);
        let names = names.recv_timeout(PATIENCE).ok();
        drop(answers);
        names
    }
}

impl Finder {
    fn begin(options: SymbolizerOptions) -> Self {
        let (requests, asked) = channel::<Vec<(Key, ModuleKey)>>();
        let (answer, answers) = channel();
        let (give_names, names) = channel();
        std::thread::spawn(move || {
            let mut names = AddressNames::new(options);
            while let Ok(wanted) = asked.recv() {
                for portion in wanted.chunks(PORTION) {
                    names.prepare(portion.iter().map(|(key, module)| (module, key.lookup)));
                    let found = portion
                        .iter()
                        .map(|(key, module)| (*key, names.resolve(module, key.lookup).frames().to_vec()));
                    if answer.send(found.collect()).is_err() {
                        return;
                    }
                }
            }
            let _ = give_names.send(names);
        });
        Self { requests, answers, names }
    }
}

impl Namer for Naming {
    fn name(&self, stacks: &Stacks, addresses: &[&Address]) -> Vec<Vec<SourceFrame>> {
        if let Some(own) = &self.own {
            return own.name(stacks, addresses);
        }
        if self.finder.is_none() {
            return vec![Vec::new(); addresses.len()];
        }
        let state = &mut *self.state.borrow_mut();
        let keys: Vec<ModuleKey> = stacks
            .modules()
            .iter()
            .map(|module| ModuleKey {
                path: PathBuf::from(&module.path),
                build_id: module.build_id.clone(),
                size_bytes: None,
            })
            .collect();
        let numbers: Vec<u32> = keys
            .iter()
            .map(|key| {
                let next = state.modules.len() as u32;
                *state.modules.entry(key.clone()).or_insert(next)
            })
            .collect();
        let mut frames = |address: &&Address| {
            let kind = match address.kind {
                PcKind::ReturnAddress | PcKind::ReturnWithoutTables => AddressKind::ReturnAddress,
                PcKind::ProgramCounter => AddressKind::ProgramCounter,
                _ => return Vec::new(),
            };
            let index = address.module.map_or(usize::MAX, |(module, _)| module as usize);
            let (Some(&module), Some(module_key)) = (numbers.get(index), keys.get(index)) else {
                return Vec::new();
            };
            let lookup = Lookup { place: Place::Stated(StatedAddress::new(address.stated)), kind };
            let key = Key { module, lookup };
            if let Some(known) = state.known.get(&key) {
                return known.clone();
            }
            if state.asked.insert(key) {
                state.wanted.push((key, module_key.clone()));
            }
            Vec::new()
        };
        addresses.iter().map(&mut frames).collect()
    }
}
