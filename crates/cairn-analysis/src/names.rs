//! Names for the addresses of recorded modules, and what became of the search for each module's symbols.
//!
//! Sits between what was recorded and the [`Symbolizer`]: asks for each distinct place once, remembers the answers, and
//! tells per module what was missing or refused, so that whoever prints can say it once and not at every frame.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use cairn_format::StatedAddress;
use cairn_symbols::{
    BuildId, Lookup, ModuleId, ModuleInfo, ModuleReport, Place, Resolution, Symbolizer, SymbolizerOptions,
};

/// Answers that are remembered. A large program's recording meets some hundred thousand places; beyond, the oldest half
/// of what is known is not worth the bookkeeping, and all of it is forgotten.
const MAX_REMEMBERED: usize = 1 << 20;

/// One file of a recording: equal ones are opened once, however often they were loaded.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ModuleKey {
    /// Its path on the machine of the recording.
    pub path: PathBuf,
    /// The id of its build; empty when it has none.
    pub build_id: Vec<u8>,
    /// Size of the file, where that is recorded.
    pub size_bytes: Option<u64>,
}

/// Names places in modules.
///
/// ```no_run
/// use cairn_analysis::names::{ModuleKey, Names};
/// use cairn_analysis::symbols::{AddressKind, Lookup, Place, SymbolizerOptions};
/// use cairn_analysis::format::StatedAddress;
///
/// let mut names = Names::new(SymbolizerOptions::new());
/// let key = ModuleKey { path: "/usr/bin/app".into(), build_id: vec![0x1d, 0x46], size_bytes: None };
/// let place = Place::Stated(StatedAddress::new(0x1234));
/// let lookup = Lookup { place, kind: AddressKind::ReturnAddress };
/// for frame in names.resolve(&key, lookup).frames() {
///     println!("{frame}");
/// }
/// ```
#[derive(Debug)]
pub struct Names {
    symbolizer: Symbolizer,
    modules: HashMap<ModuleKey, ModuleId>,
    /// In the order in which they were first asked for.
    order: Vec<ModuleKey>,
    answers: HashMap<(ModuleId, Lookup), Resolution>,
}

impl Names {
    /// Names by files that are searched for as `options` say.
    #[must_use]
    pub fn new(options: SymbolizerOptions) -> Self {
        Self {
            symbolizer: Symbolizer::new(options),
            modules: HashMap::new(),
            order: Vec::new(),
            answers: HashMap::new(),
        }
    }

    /// The name of one place.
    pub fn resolve(&mut self, key: &ModuleKey, lookup: Lookup) -> &Resolution {
        let module = self.module(key);
        self.make_room();
        let symbolizer = &self.symbolizer;
        self.answers.entry((module, lookup)).or_insert_with(|| symbolizer.resolve(module, lookup))
    }

    /// Finds the names of many places at once, which is faster than one after the other; [`resolve`](Self::resolve)
    /// then answers from memory.
    pub fn prepare<'a>(&mut self, places: impl IntoIterator<Item = (&'a ModuleKey, Lookup)>) {
        self.make_room();
        let places = places.into_iter().map(|(key, lookup)| (self.module(key), lookup));
        let places: Vec<_> = places.collect();
        let mut unknown: Vec<_> =
            places.into_iter().filter(|place| !self.answers.contains_key(place)).collect();
        unknown.sort_unstable();
        unknown.dedup();
        if unknown.is_empty() {
            return;
        }
        let found = self.symbolizer.resolve_many(&unknown);
        self.answers.extend(unknown.into_iter().zip(found.iter().cloned()));
    }

    /// Every module that was asked for, in that order, and what became of the search for its symbols.
    pub fn reports(&self) -> impl Iterator<Item = (&ModuleKey, ModuleReport)> {
        self.order
            .iter()
            .filter_map(|key| Some((key, self.symbolizer.module_report(*self.modules.get(key)?))))
    }

    fn module(&mut self, key: &ModuleKey) -> ModuleId {
        if let Some(&known) = self.modules.get(key) {
            return known;
        }
        let mut info = ModuleInfo::new(&key.path);
        if !key.build_id.is_empty() {
            info = info.with_build_id(BuildId::new(&key.build_id));
        }
        if let Some(size_bytes) = key.size_bytes {
            info = info.with_size_bytes(size_bytes);
        }
        let module = self.symbolizer.add_module(info);
        self.modules.insert(key.clone(), module);
        self.order.push(key.clone());
        module
    }

    fn make_room(&mut self) {
        if self.answers.len() > MAX_REMEMBERED {
            self.answers.clear();
        }
    }
}

/// A place that is stated as the file counts.
#[must_use]
pub(crate) const fn stated(address: u64) -> Place {
    Place::Stated(StatedAddress::new(address))
}

/// The last part of a path of either kind of system: recordings come from Windows too.
///
/// ```
/// use cairn_analysis::names::file_name;
/// assert_eq!(file_name("/usr/lib/libc.so.6"), "libc.so.6");
/// assert_eq!(file_name(r"C:\app\测试.dll"), "测试.dll");
/// assert_eq!(file_name("[vdso]"), "[vdso]");
/// ```
#[must_use]
pub fn file_name(path: &str) -> &str {
    let is_windows = path.as_bytes().get(1) == Some(&b':') || path.starts_with(r"\\");
    let is_border = |c: char| c == '/' || is_windows && c == '\\';
    path.rsplit(is_border).next().filter(|name| !name.is_empty()).unwrap_or(path)
}

/// Same for a path as bytes, which need not be text.
#[must_use]
pub fn file_name_of(path: &Path) -> String {
    file_name(&path.to_string_lossy()).to_owned()
}
