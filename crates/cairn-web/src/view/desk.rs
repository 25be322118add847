//! One heap that is viewed: opened, read and named by a thread of its own, which answers one
//! request after the other.
//!
//! Names are found once and cached, and they borrow the recording's tables: so everything stays on
//! the stack of one thread, and a recording that grows is read again by beginning a turn of a loop
//! anew.
//!
//! ```text
//!                                    +-- grows: update --> answer, answer, ... --> due? --+
//!   requests --> | queue of 8 | -->  |      ^                                             |
//!                                    |      +---------------------------------------------+--> ended --+
//!                                    +-- ended: open, read --> answer, answer, ... <-------------------+
//! ```

use std::collections::BTreeSet;
use std::fs::Metadata;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use cairn_analysis::heap::slices::{SliceOptions, Slices};
use cairn_analysis::heap::{
    Address, Folding, HeapRead, LiveHeap, Module, ModuleNames, Namer, Names, NoNames, Pattern, Scope, Stacks,
    ThreadName,
};
use cairn_analysis::source::{
    HeapFilter, HeapSource, ReadDetail, SourceError, SourceHeap, SourceNames, SourceOptions, TimeSpan,
};
use cairn_symbols::SourceFrame;
use tokio::sync::oneshot;

use super::catalogue::is_growing;
use crate::content::Packed;
use crate::frames::{Askers, Callee, Frames};
use crate::{PageOptions, PageSubject, contents, shown};

/// Requests that wait for one recording.
const MOST_WAITING: usize = 8;
/// Answers in the cache: the whole, and some parts of it.
const MOST_CACHED: usize = 4;
/// Time without a request after which a recording is closed.
const IDLE: Duration = Duration::from_secs(600);
/// Interval between updates while a large recording is read.
const SHOWN_EVERY: Duration = Duration::from_millis(300);
/// Least interval between updates of a recording that grows, ...
const LEAST_PACE: Duration = Duration::from_millis(900);
/// ... and that interval as a multiple of the time that an update takes.
const REST: u32 = 3;
/// A browser takes more than an e-mail.
const MOST_BYTES: usize = 48 << 20;

/// How recordings are opened and named.
#[derive(Clone, Debug)]
pub(crate) struct Naming {
    pub(crate) source: SourceOptions,
    pub(crate) folding: Folding,
    /// Calls that an answer holds, at most.
    pub(crate) most_calls: usize,
    /// The programs that would be named faster with an index.
    pub(crate) without_index: Arc<Mutex<BTreeSet<PathBuf>>>,
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

impl Part {
    /// The stretch of time.
    pub(crate) fn span(&self) -> TimeSpan {
        TimeSpan { from_nanos: self.from_nanos, to_nanos: self.to_nanos.unwrap_or(u64::MAX) }
    }
}

/// A request for the content of a recording.
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
    /// The part is not in the recording.
    NotThere(String),
    /// The recording cannot be read.
    Unreadable(String),
    /// Too many wait already.
    Busy,
}

/// A request, and the channel for its answer.
type Request = (Asked, oneshot::Sender<Result<Answer, NoAnswer>>);

/// The way to the thread.
#[derive(Clone)]
pub(crate) struct Desk {
    requests: SyncSender<Request>,
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

/// Opens a heap as it is at this moment, that of a program that still runs included.
pub(crate) fn open(path: &Path, naming: &Naming) -> Result<HeapSource, String> {
    HeapSource::open(path, &naming.source).map_err(|error| error.to_string())
}

/// An error with the name of its file.
fn named(path: &Path, error: &dyn std::fmt::Display) -> String {
    let (text, path) = (error.to_string(), path.display().to_string());
    if text.contains(&path) { text } else { format!("{path}: {text}") }
}

/// Names that outlast one reading of a recording that grows.
#[derive(Default)]
pub(crate) struct CachedNames {
    modules: Vec<Module>,
    names: Option<Noting>,
}

impl CachedNames {
    /// Names for these stacks; the same as before where no module came.
    pub(crate) fn of(&mut self, stacks: &Stacks, naming: &Naming) -> &dyn Namer {
        let Some(options) = &naming.source.symbols else { return &NoNames };
        let is_known = matches!(&self.names, Some(Noting { names: NotedNames::Modules(_), .. }));
        if !is_known || self.modules != stacks.modules() {
            self.modules = stacks.modules().to_vec();
            let names = NotedNames::Modules(ModuleNames::of(stacks, options.clone()));
            self.names = Some(Noting { names, without_index: Arc::clone(&naming.without_index) });
        }
        self.namer()
    }

    /// Names for a heap in a file of any kind.
    pub(crate) fn of_source(&mut self, source: &HeapSource, naming: &Naming) -> &dyn Namer {
        if let SourceHeap::Recording(heap) = source.heap() {
            return self.of(heap.stacks(), naming);
        }
        let names = NotedNames::Source(source.symbols());
        self.names = Some(Noting { names, without_index: Arc::clone(&naming.without_index) });
        self.namer()
    }

    fn namer(&self) -> &dyn Namer {
        match &self.names {
            Some(names) => names,
            None => &NoNames,
        }
    }
}

/// Notes the files that an index would have made faster.
struct Noting {
    names: NotedNames,
    without_index: Arc<Mutex<BTreeSet<PathBuf>>>,
}

enum NotedNames {
    Modules(ModuleNames),
    Source(SourceNames),
}

impl Namer for Noting {
    fn name(&self, stacks: &Stacks, addresses: &[&Address]) -> Vec<Vec<SourceFrame>> {
        let (named, missed) = match &self.names {
            NotedNames::Modules(names) => (names.name(stacks, addresses), names.without_index()),
            NotedNames::Source(names) => (names.name(stacks, addresses), names.without_index()),
        };
        if let Ok(mut programs) = self.without_index.lock() {
            programs.extend(missed);
        }
        named
    }
}

/// Facts that differ when a file was written, except through a mapping, or replaced.
fn stamp(path: &Path) -> Option<(u64, u64, SystemTime)> {
    let facts = std::fs::metadata(path).ok()?;
    Some((number_of(&facts), facts.len(), facts.modified().ok()?))
}

#[cfg(unix)]
fn number_of(file: &Metadata) -> u64 {
    std::os::unix::fs::MetadataExt::ino(file)
}

/// A file that replaces another was made later.
#[cfg(windows)]
fn number_of(file: &Metadata) -> u64 {
    std::os::windows::fs::MetadataExt::creation_time(file)
}

struct CachedAnswer {
    part: Part,
    first: Bytes,
    slices: Bytes,
}

fn serve(path: &Path, naming: &Naming, queue: &Receiver<Request>) {
    let mut names = CachedNames::default();
    let mut waiting = None;
    let mut version = 0;
    while let Some(request) = waiting.take().or_else(|| queue.recv_timeout(IDLE).ok()) {
        version += 1;
        let next = if is_growing(path) {
            follow(path, naming, &mut names, &mut version, queue, request)
        } else {
            answer_from_file(path, naming, &mut names, version, queue, request)
        };
        match next {
            Some(next) => waiting = Some(next),
            None => return,
        }
    }
}

/// Answers from a file that no program writes, until another file replaces it.
///
/// Returns the request that found the replacement.
fn answer_from_file(
    path: &Path,
    naming: &Naming,
    cached_names: &mut CachedNames,
    version: u64,
    queue: &Receiver<Request>,
    first: Request,
) -> Option<Request> {
    let seen = stamp(path);
    let source = match open(path, naming) {
        Ok(source) => source,
        Err(why) => return refuse(queue, first, &why),
    };
    let namer = cached_names.of_source(&source, naming);
    let mut names = source.names(namer, naming.folding.clone());
    let (mut whole, mut answers) = (None, Answers::new(version));
    let mut waiting = first;
    loop {
        answers.reply(waiting, |part| {
            let whole = match &whole {
                Some(whole) => whole,
                None => whole.insert(read(&source, Scope::default())?),
            };
            part_of(&source, whole, &mut names, part, naming)
        });
        waiting = queue.recv_timeout(IDLE).ok()?;
        if stamp(path) != seen {
            return Some(waiting);
        }
    }
}

/// Answers from a recording that grows, from what there is at the time, until it has ended.
fn follow(
    path: &Path,
    naming: &Naming,
    cached_names: &mut CachedNames,
    version: &mut u64,
    queue: &Receiver<Request>,
    first: Request,
) -> Option<Request> {
    let slices = SliceOptions::default();
    let mut live = match LiveHeap::open_sliced(path, &slices) {
        Ok(live) => live,
        Err(error) => return refuse(queue, first, &named(path, &error)),
    };
    let mut request = Some(first);
    let mut names_of_parts = CachedNames::default();
    // The first update is news, whatever it finds.
    let mut is_known = false;
    loop {
        let began = Instant::now();
        let updated = match live.catch_up(SHOWN_EVERY) {
            Ok(updated) => updated,
            Err(error) => {
                let waiting = request.or_else(|| queue.recv_timeout(IDLE).ok())?;
                return refuse(queue, waiting, &named(path, &error));
            }
        };
        if updated.is_new && is_known {
            *version += 1;
        }
        is_known = true;
        // Reading goes on at once, with or without a request, until it is up to date.
        let asked = match request.take() {
            None if updated.is_behind => match queue.try_recv() {
                Ok(asked) => Some(asked),
                Err(TryRecvError::Empty) => continue,
                Err(TryRecvError::Disconnected) => return None,
            },
            None => queue.recv_timeout(IDLE).ok(),
            asked => asked,
        };
        let mut waiting = asked?;
        let stacks = live.stacks();
        let mut names = Names::new(&stacks, cached_names.of(&stacks, naming), naming.folding.clone());
        let (mut whole, mut answers) = (None, Answers::new(*version));
        let mut worked = began.elapsed();
        loop {
            let asked = Instant::now();
            answers.reply(waiting, |part| {
                if *part != Part::default() {
                    // Parts are read as a whole: what is added up while it grows is all of it.
                    let source = open(path, naming).map_err(NoAnswer::Unreadable)?;
                    let namer = names_of_parts.of_source(&source, naming);
                    let mut names = source.names(namer, naming.folding.clone());
                    return part_of(&source, &read(&source, Scope::default())?, &mut names, part, naming);
                }
                let (read, slices) =
                    whole.get_or_insert_with(|| (live.snapshot(), live.slices().unwrap_or_default()));
                let mut subject = PageSubject::recorded(live.recording(), &live.about());
                subject.behind_nanos = updated.behind_nanos;
                packed(&subject, read, slices, &mut names, &page_options(naming))
            });
            if updated.is_behind {
                break;
            }
            worked += asked.elapsed();
            waiting = queue.recv_timeout(IDLE).ok()?;
            // Caps reading at a quarter of wall time.
            if began.elapsed() >= LEAST_PACE.max(worked * REST) {
                request = Some(waiting);
                break;
            }
        }
        if updated.has_ended {
            *version += 1;
            return request.or_else(|| queue.recv_timeout(IDLE).ok());
        }
    }
}

/// Says why there is no answer; gives the next request.
fn refuse(queue: &Receiver<Request>, request: Request, why: &str) -> Option<Request> {
    let _ = request.1.send(Err(NoAnswer::Unreadable(why.to_owned())));
    queue.recv_timeout(IDLE).ok()
}

/// The answers since the last update of the recording.
struct Answers {
    version: u64,
    cache: Vec<CachedAnswer>,
}

impl Answers {
    fn new(version: u64) -> Self {
        Self { version, cache: Vec::new() }
    }

    fn reply(&mut self, (asked, reply): Request, make: impl FnOnce(&Part) -> Result<Packed, NoAnswer>) {
        // A client that has gone does not wait for an answer.
        if !reply.is_closed() {
            let _ = reply.send(self.answer(&asked, make));
        }
    }

    fn answer(
        &mut self,
        asked: &Asked,
        make: impl FnOnce(&Part) -> Result<Packed, NoAnswer>,
    ) -> Result<Answer, NoAnswer> {
        if asked.known == Some(self.version) {
            return Err(NoAnswer::Unchanged);
        }
        let of = |cached: &CachedAnswer, version| Answer {
            version,
            first: cached.first.clone(),
            slices: cached.slices.clone(),
        };
        if let Some(cached) = self.cache.iter().find(|cached| cached.part == asked.part) {
            return Ok(of(cached, self.version));
        }
        let Packed { first, slices } = make(&asked.part)?;
        if self.cache.len() >= MOST_CACHED {
            self.cache.remove(0);
        }
        let cached = CachedAnswer { part: asked.part.clone(), first: first.into(), slices: slices.into() };
        let answer = of(&cached, self.version);
        self.cache.push(cached);
        Ok(answer)
    }
}

fn page_options(naming: &Naming) -> PageOptions {
    PageOptions { most_bytes: MOST_BYTES, most_calls: naming.most_calls, ..PageOptions::default() }
}

fn read(source: &HeapSource, scope: Scope) -> Result<(HeapRead, Slices), NoAnswer> {
    let most_slices = PageOptions::default().most_slices;
    source.read_sliced(scope, most_slices).map_err(|error| refused(&error))
}

/// Reads all of a heap, without slices of time.
pub(crate) fn read_whole(source: &HeapSource, scope: Scope) -> Result<HeapRead, NoAnswer> {
    source.read(scope, ReadDetail::Whole).map_err(|error| refused(&error))
}

fn refused(error: &SourceError) -> NoAnswer {
    let text = error.to_string();
    if error.is_of_question() { NoAnswer::NotThere(text) } else { NoAnswer::Unreadable(text) }
}

/// The content of a part of a recording.
fn part_of(
    source: &HeapSource,
    whole: &(HeapRead, Slices),
    names: &mut Names<'_>,
    part: &Part,
    naming: &Naming,
) -> Result<Packed, NoAnswer> {
    let mut options = page_options(naming);
    let subject = PageSubject::from(source);
    if *part == Part::default() {
        return packed(&subject, &whole.0, &whole.1, names, &options);
    }
    (options.scope, options.filters) = scope(source, &whole.0, names, part)?;
    let (read, slices) = read(source, options.scope.clone())?;
    packed(&subject, &read, &slices, names, &options)
}

fn packed(
    subject: &PageSubject,
    read: &HeapRead,
    slices: &Slices,
    names: &mut Names<'_>,
    options: &PageOptions,
) -> Result<Packed, NoAnswer> {
    let most = options.most_bytes as f64;
    let excess = |content: &Packed| (content.first.len() + content.slices.len()) as f64 / most;
    let packed = contents(subject, read, slices, names, options, excess);
    packed.map(|(content, _)| content).map_err(|error| NoAnswer::Unreadable(error.to_string()))
}

/// The scope of a part, and the part in words.
pub(crate) fn scope(
    source: &HeapSource,
    whole: &HeapRead,
    names: &mut Names<'_>,
    part: &Part,
) -> Result<(Scope, Vec<String>), NoAnswer> {
    let span = part.span();
    let (mut filters, mut words) = (Vec::new(), Vec::new());
    if let Some(wanted) = &part.thread {
        filters.extend(threads_shown_as(&source.about().threads, wanted).map(HeapFilter::Thread));
        if filters.is_empty() {
            return Err(NoAnswer::NotThere(format!("there is no thread {wanted}")));
        }
        words.push(format!("thread={wanted}"));
    }
    if let Some((from, to)) = part.sizes {
        filters.push(HeapFilter::Size(from..=to));
        words.push(format!("size={from}..{to}"));
    }
    filters.extend(part.function.iter().map(|text| HeapFilter::Function(Pattern::new(text))));
    filters.extend(part.module.iter().map(|text| HeapFilter::Module(Pattern::new(text))));
    let mut scope = source.scope(&filters, span, names).map_err(|error| refused(&error))?;
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

/// Returns the names of the threads that a page shows by this name or number.
///
/// A page shows no character that moves others.
fn threads_shown_as<'t>(threads: &'t [ThreadName], wanted: &'t str) -> impl Iterator<Item = String> + 't {
    let is_wanted = move |name: &&String| shown(name) == wanted;
    let names = threads.iter().flat_map(|thread| std::iter::once(&thread.name).chain(&thread.earlier_names));
    let numbers = threads.iter().map(|thread| thread.kernel_thread.to_string());
    names.filter(is_wanted).cloned().chain(numbers.filter(move |number| *number == wanted))
}

/// Returns the stacks that go through the calls of these keys, and the names of these calls.
///
/// The keys are in order from `main` inwards.
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

/// Hashes a function to the key that addresses use, in all versions of a recording.
///
/// The page computes the same from the same texts.
pub(crate) fn key(name: &str, module_path: &str) -> u32 {
    let text = [shown(name), "\0".into(), shown(module_path)];
    let units = text.iter().flat_map(|part| part.encode_utf16());
    let hash = units.fold(2_166_136_261_u32, |hash, unit| (hash ^ u32::from(unit)).wrapping_mul(16_777_619));
    hash ^ (hash >> 13)
}
