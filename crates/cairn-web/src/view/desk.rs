//! One recording that somebody looks at: opened, read and named by a thread of its own, which answers one request after the other.
//!
//! Names are looked up once and kept, and they lean on the recording's tables: so everything stays on the stack of one thread, and
//! a recording that grows is read again by beginning a turn of its loop anew.
//!
//! ```text
//!   requests --> | queue of 8 | --> open, read --> answer, answer, ... --> grown, and due? --+
//!                                     ^                                                      |
//!                                     +------------------------------------------------------+
//! ```

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

use bytes::Bytes;
use cairn_analysis::heap::slices::Slices;
use cairn_analysis::heap::{
    Folding, HeapRead, HeapRecording, Module, ModuleNames, Namer, Names, NoNames, Pattern, Scope, Stacks,
    stacks_with,
};
use cairn_analysis::recording::Recording;
use cairn_analysis::symbols::SymbolizerOptions;
use tokio::sync::oneshot;

use super::catalogue::with_new;
use crate::content::Packed;
use crate::frames::{Askers, Callee, Frames};
use crate::{PageOptions, Source, contents, shown};

/// Requests that wait for one recording.
const MOST_WAITING: usize = 8;
/// Answers that are kept: the whole, and some filters of it.
const MOST_KEPT: usize = 4;
/// A recording that nobody asks for is closed.
const IDLE: Duration = Duration::from_secs(600);
/// A recording that grows is read again so often at most, ...
const LEAST_PACE: Duration = Duration::from_millis(900);
/// ... and so many times the time apart that reading it takes: who watches shall not be busier than who is watched.
const REST: u32 = 3;
/// A browser takes more than an e-mail.
const MOST_BYTES: usize = 48 << 20;

/// How recordings are named.
#[derive(Clone, Debug)]
pub(crate) struct Naming {
    /// Where symbols are; none when no names are wanted.
    pub(crate) symbols: Option<SymbolizerOptions>,
    pub(crate) folding: Folding,
}

/// Which part of a recording is wanted.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Part {
    pub(crate) from_nanos: u64,
    pub(crate) to_nanos: Option<u64>,
    /// Name or number in the kernel.
    pub(crate) thread: Option<String>,
    pub(crate) sizes: Option<(u64, u64)>,
    pub(crate) function: Option<String>,
    pub(crate) module: Option<String>,
    /// The calls below this one: the keys of the functions that lead there.
    pub(crate) below: Vec<u32>,
}

/// What is asked of a recording.
pub(crate) struct Asked {
    pub(crate) part: Part,
    /// The version that is known already: of the same one there is no answer.
    pub(crate) known: Option<u64>,
}

/// An answer.
pub(crate) struct Answer {
    pub(crate) version: u64,
    /// For the first picture.
    pub(crate) first: Bytes,
    /// For ranges of time.
    pub(crate) slices: Bytes,
}

/// Why there is none.
#[derive(Clone, Debug)]
pub(crate) enum NoAnswer {
    /// Nothing is new.
    Unchanged,
    /// What is asked for is not in the recording.
    NotThere(String),
    /// The recording cannot be read.
    Unreadable(String),
    /// Too many wait already.
    Busy,
}

type Reply = oneshot::Sender<Result<Answer, NoAnswer>>;

/// The way to the thread.
#[derive(Clone)]
pub(crate) struct Desk {
    requests: SyncSender<(Asked, Reply)>,
}

impl Desk {
    /// Opens a recording in a thread of its own.
    pub(crate) fn open(path: PathBuf, naming: Naming) -> std::io::Result<Self> {
        let (requests, queue) = sync_channel(MOST_WAITING);
        std::thread::Builder::new().name("cairn-desk".into()).spawn(move || serve(&path, &naming, &queue))?;
        Ok(Self { requests })
    }

    /// False when its thread has ended.
    pub(crate) fn ask(
        &self,
        asked: Asked,
    ) -> Result<oneshot::Receiver<Result<Answer, NoAnswer>>, Option<NoAnswer>> {
        let (reply, answer) = oneshot::channel();
        match self.requests.try_send((asked, reply)) {
            Ok(()) => Ok(answer),
            Err(TrySendError::Full(_)) => Err(Some(NoAnswer::Busy)),
            Err(TrySendError::Disconnected(_)) => Err(None),
        }
    }
}

/// A recording as it is at this moment, that of a program that still runs included.
pub(crate) fn open(path: &Path) -> Result<(HeapRecording, bool), String> {
    let told = |error: &dyn std::fmt::Display| {
        let (text, path) = (error.to_string(), path.display().to_string());
        if text.contains(&path) { text } else { format!("{path}: {text}") }
    };
    // What a command has packed of a program that runs is beside its spool; what is in the spool alone follows in a moment.
    let new = with_new(path);
    let opened = Recording::open(new.as_deref().unwrap_or(path));
    // It may have taken its place just now.
    let recording = match (opened, new) {
        (Err(_), Some(_)) => Recording::open(path),
        (opened, _) => opened,
    };
    let recording = recording.map_err(|error| told(&error))?;
    let is_growing = recording.end().is_none() && recording.summary().is_none();
    Ok((HeapRecording::new(recording), is_growing))
}

/// Names that outlast one reading of a recording that grows.
#[derive(Default)]
pub(crate) struct KeptNames {
    modules: Vec<Module>,
    names: Option<ModuleNames>,
}

impl KeptNames {
    /// Names for these stacks; the same as before where no module came.
    pub(crate) fn of(&mut self, stacks: &Stacks, naming: &Naming) -> &dyn Namer {
        let Some(options) = &naming.symbols else { return &NoNames };
        if self.names.is_none() || self.modules != stacks.modules() {
            self.modules = stacks.modules().to_vec();
            self.names = Some(ModuleNames::of(stacks, options.clone()));
        }
        match &self.names {
            Some(names) => names,
            None => &NoNames,
        }
    }
}

/// What differs when a file was written or took the place of another one. What is written through a mapping does not show.
fn stamp(path: &Path) -> Option<(u64, u64, i64, i64)> {
    let facts = std::fs::metadata(path).ok()?;
    Some((facts.ino(), facts.len(), facts.mtime(), facts.mtime_nsec()))
}

struct Kept {
    part: Part,
    first: Bytes,
    slices: Bytes,
}

fn serve(path: &Path, naming: &Naming, queue: &Receiver<(Asked, Reply)>) {
    let mut kept_names = KeptNames::default();
    let mut waiting = match queue.recv_timeout(IDLE) {
        Ok(first) => Some(first),
        Err(_) => return,
    };
    let mut version = 0;
    let mut last = None;
    loop {
        let began = Instant::now();
        let (heap, is_growing) = match open(path) {
            Ok(opened) => opened,
            Err(why) => {
                if let Some((_, reply)) = waiting.take() {
                    let _ = reply.send(Err(NoAnswer::Unreadable(why)));
                }
                match queue.recv_timeout(IDLE) {
                    Ok(next) => waiting = Some(next),
                    Err(_) => return,
                }
                continue;
            }
        };
        let namer = kept_names.of(heap.stacks(), naming);
        let mut turn = Turn {
            heap: &heap,
            names: Names::new(heap.stacks(), namer, naming.folding),
            version,
            kept: Vec::new(),
            whole: None,
        };
        // What is known of it is told by its sums: a recording in which nothing happened meanwhile is not shown anew.
        match turn.read_whole() {
            Ok(mark) if last != Some(mark) => {
                last = Some(mark);
                version += 1;
                turn.version = version;
            }
            _ => {}
        }
        let seen = stamp(path);
        let due = began + LEAST_PACE.max(began.elapsed() * REST);
        loop {
            let Some((asked, reply)) = waiting.take() else {
                match queue.recv_timeout(IDLE) {
                    Ok(next) => {
                        waiting = Some(next);
                        if Instant::now() >= due && (is_growing || stamp(path) != seen) {
                            break;
                        }
                        continue;
                    }
                    Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return,
                }
            };
            // Who asks does not wait any more.
            if reply.is_closed() {
                continue;
            }
            let _ = reply.send(turn.answer(&asked));
        }
    }
}

/// A recording as it was when it was opened last.
struct Turn<'a> {
    heap: &'a HeapRecording,
    names: Names<'a>,
    version: u64,
    kept: Vec<Kept>,
    whole: Option<(HeapRead, Slices)>,
}

impl Turn<'_> {
    /// Reads all of it; answers with what differs when more has happened.
    fn read_whole(&mut self) -> Result<(u64, u64, u64, usize), NoAnswer> {
        let (read, slices) = self.read(Scope::default())?;
        let sums = &read.profile.totals;
        let mark = (sums.allocations, sums.frees(), read.profile.end_nanos, read.usage.len());
        self.whole = Some((read, slices));
        Ok(mark)
    }

    fn read(&self, scope: Scope) -> Result<(HeapRead, Slices), NoAnswer> {
        let most_slices = PageOptions::default().most_slices;
        self.heap.read_sliced(scope, most_slices).map_err(|error| NoAnswer::Unreadable(error.to_string()))
    }

    fn answer(&mut self, asked: &Asked) -> Result<Answer, NoAnswer> {
        if asked.known == Some(self.version) {
            return Err(NoAnswer::Unchanged);
        }
        let of =
            |kept: &Kept, version| Answer { version, first: kept.first.clone(), slices: kept.slices.clone() };
        if let Some(kept) = self.kept.iter().find(|kept| kept.part == asked.part) {
            return Ok(of(kept, self.version));
        }
        let Packed { first, slices } = self.content(&asked.part)?;
        if self.kept.len() >= MOST_KEPT {
            self.kept.remove(0);
        }
        let kept = Kept { part: asked.part.clone(), first: first.into(), slices: slices.into() };
        let answer = of(&kept, self.version);
        self.kept.push(kept);
        Ok(answer)
    }

    fn content(&mut self, part: &Part) -> Result<Packed, NoAnswer> {
        if self.whole.is_none() {
            self.read_whole()?;
        }
        let Some((whole, whole_slices)) = &self.whole else { return Err(NoAnswer::Busy) };
        let mut options = PageOptions::default();
        options.most_bytes = MOST_BYTES;
        (options.scope, options.filters) = scope(self.heap, whole, &mut self.names, part)?;
        let scoped;
        let (read, slices) = if options.scope == Scope::default() {
            (whole, whole_slices)
        } else {
            scoped = self.read(options.scope.clone())?;
            (&scoped.0, &scoped.1)
        };
        let most = options.most_bytes as f64;
        let excess = |content: &Packed| (content.first.len() + content.slices.len()) as f64 / most;
        let source = Source { recording: self.heap.recording(), about: &self.heap.about() };
        let (content, _) = contents(source, read, slices, &mut self.names, &options, excess)
            .map_err(|error| NoAnswer::Unreadable(error.to_string()))?;
        Ok(content)
    }
}

/// The scope of a part, and the part in words.
pub(crate) fn scope(
    heap: &HeapRecording,
    whole: &HeapRead,
    names: &mut Names<'_>,
    part: &Part,
) -> Result<(Scope, Vec<String>), NoAnswer> {
    let mut scope = Scope { from_nanos: part.from_nanos, ..Scope::default() };
    let mut words = Vec::new();
    scope.to_nanos = part.to_nanos.unwrap_or(u64::MAX);
    if let Some(wanted) = &part.thread {
        let threads = heap.threads();
        let is_wanted = |name: &str, number: u32| name == wanted || number.to_string() == *wanted;
        let found: Vec<u32> = (0..)
            .zip(&threads)
            .filter(|(_, thread)| is_wanted(&shown(&thread.name), thread.kernel_thread))
            .map(|(index, _)| index)
            .collect();
        if found.is_empty() {
            return Err(NoAnswer::NotThere(format!("there is no thread {wanted}")));
        }
        scope.threads = Some(found);
        words.push(format!("thread={wanted}"));
    }
    if let Some((from, to)) = part.sizes {
        scope.sizes = from..=to;
        words.push(format!("size={from}..{to}"));
    }
    let patterns = |text: &Option<String>| text.iter().map(|text| Pattern::new(text)).collect::<Vec<_>>();
    let (functions, modules) = (patterns(&part.function), patterns(&part.module));
    if !functions.is_empty() || !modules.is_empty() {
        scope.stacks = Some(stacks_with(names, &functions, &modules));
    }
    words.extend(part.function.iter().map(|text| format!("function={text}")));
    words.extend(part.module.iter().map(|text| format!("module={text}")));
    if !part.below.is_empty() {
        let (below, path) = stacks_below(whole, names, &part.below)
            .ok_or_else(|| NoAnswer::NotThere("there are no such calls in the recording".into()))?;
        let both = scope.stacks.take().map(|list| list.iter().zip(&below).map(|(&a, &b)| a && b).collect());
        scope.stacks = Some(both.unwrap_or(below));
        words.push(format!("below {}", path.join(" › ")));
    }
    Ok((scope, words))
}

/// The stacks that go through the calls of these keys, from `main` inwards, and what these calls are called.
fn stacks_below(whole: &HeapRead, names: &mut Names<'_>, keys: &[u32]) -> Option<(Vec<bool>, Vec<String>)> {
    let askers = Askers::new(&whole.profile, names);
    let frames = Frames::new(&whole.profile, names, &askers, 0.0, usize::MAX);
    let key_of = |node: usize| match frames.nodes[node].callee {
        Callee::Function(id) => {
            let function = names.function(id);
            let module = function.module.and_then(|module| names.stacks().modules().get(module as usize));
            Some(key(&function.name, module.map_or("", |module| &module.path)))
        }
        _ => None,
    };
    let mut path = Vec::new();
    let mut at = 0;
    for &wanted in keys {
        let depth = frames.nodes[at].depth + 1;
        let mut inside = at + 1..frames.nodes.len();
        let is_inside = |node: usize| frames.nodes[node].depth >= depth;
        at = inside
            .by_ref()
            .take_while(|&node| is_inside(node))
            .find(|&node| frames.nodes[node].depth == depth && key_of(node) == Some(wanted))?;
        if let Callee::Function(id) = frames.nodes[at].callee {
            path.push(names.function(id).name.to_string());
        }
    }
    let depth = frames.nodes[at].depth;
    let end = (at + 1..frames.nodes.len()).find(|&node| frames.nodes[node].depth <= depth);
    let inside = at as u32..end.unwrap_or(frames.nodes.len()) as u32;
    let is_below = |end: &Option<u32>| end.is_some_and(|end| inside.contains(&end));
    let below = frames.ends.iter().map(is_below).collect();
    Some((below, path))
}

/// What names a function in an address, in all versions of a recording: the page counts the same from the same texts.
pub(crate) fn key(name: &str, module_path: &str) -> u32 {
    let text = [shown(name), "\0".into(), shown(module_path)];
    let units = text.iter().flat_map(|part| part.encode_utf16());
    let hash = units.fold(2_166_136_261_u32, |hash, unit| (hash ^ u32::from(unit)).wrapping_mul(16_777_619));
    hash ^ (hash >> 13)
}
