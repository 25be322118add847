//! Names for the addresses of recorded modules, and what became of the search for each module's symbols.
//!
//! Sits between what was recorded and the [`Symbolizer`]: asks for each distinct place once, remembers the answers, and
//! tells per module what was missing or refused, so that whoever prints can say it once and not at every frame.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use cairn_symbols::{
    BuildId, Lookup, ModuleId, ModuleInfo, ModuleReport, Resolution, SourceFrame, Symbolizer,
    SymbolizerOptions, Unknown,
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
/// use cairn_symbols::{AddressKind, Lookup, Place, SymbolizerOptions};
/// use cairn_format::StatedAddress;
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

    /// The programs here that would be answered faster from an index, as [`Symbolizer::without_index`] tells.
    #[must_use]
    pub fn without_index(&self) -> Vec<PathBuf> {
        self.symbolizer.without_index()
    }

    fn module(&mut self, key: &ModuleKey) -> ModuleId {
        if let Some(&known) = self.modules.get(key) {
            return known;
        }
        let mut info = ModuleInfo::new(path_here(&key.path));
        if !key.build_id.is_empty() {
            info = info.with_build_id(BuildId::new(&key.build_id));
        }
        if let Some(size_bytes) = key.size_bytes {
            info = info.with_size_bytes(size_bytes);
        }
        let mut module = self.symbolizer.add_module(info);
        if key.build_id.is_empty() && key.path.to_str().is_some_and(is_of_windows) {
            module = self.symbols_alone(&key.path, module);
        }
        self.modules.insert(key.clone(), module);
        self.order.push(key.clone());
        module
    }

    /// Programs from Windows are often kept without their files, and these without an id: then the PDB file of that name is
    /// what there is.
    fn symbols_alone(&mut self, path: &Path, module: ModuleId) -> ModuleId {
        let Some(Unknown::NoSuchFile { .. }) = self.symbolizer.module_report(module).missing else {
            return module;
        };
        let alone = self.symbolizer.add_module(ModuleInfo::new(path_here(path).with_extension("pdb")));
        if self.symbolizer.module_report(alone).missing.is_none() { alone } else { module }
    }

    fn make_room(&mut self) {
        if self.answers.len() > MAX_REMEMBERED {
            self.answers.clear();
        }
    }
}

/// The frames of an answer, without those of which the start of the function is all that is known: a name made of that says
/// less than the place itself.
#[must_use]
pub fn named_frames(resolution: &Resolution) -> &[SourceFrame] {
    match resolution.frames() {
        [only] if only.raw_name.is_none() && only.file.is_none() => &[],
        frames => frames,
    }
}

/// The frames of a marked place without the recorder's own functions, which the compiler puts into the place that calls
/// them: a mark is about the program.
#[must_use]
pub fn without_recorder(frames: &[SourceFrame]) -> &[SourceFrame] {
    let is_recorders =
        |frame: &&SourceFrame| frame.inlined && frame.file.as_deref().is_some_and(is_source_of_recorder);
    let count = frames.iter().take_while(is_recorders).count();
    frames.get(count..).unwrap_or_default()
}

/// `cairn-recorder-0.1.0/src/marks.rs`, wherever it was compiled.
fn is_source_of_recorder(file: &str) -> bool {
    let mut parts = file.rsplit(['/', '\\']).skip(1);
    let is_crate = |part: &str| part.starts_with("cairn-recorder") || part.starts_with("cairn-capture");
    parts.next() == Some("src") && parts.next().is_some_and(is_crate)
}

/// A path from Windows with the separators of this system, so that its last part is found, and path maps fit. It stays a
/// relative one: nothing is opened by it but below directories that were given.
fn path_here(path: &Path) -> PathBuf {
    match path.to_str() {
        Some(text) if cfg!(unix) && is_of_windows(text) => PathBuf::from(text.replace('\\', "/")),
        _ => path.to_owned(),
    }
}

fn is_of_windows(path: &str) -> bool {
    path.as_bytes().get(1) == Some(&b':') || path.starts_with(r"\\")
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
    let is_border = |c: char| c == '/' || c == '\\' && is_of_windows(path);
    path.rsplit(is_border).next().filter(|name| !name.is_empty()).unwrap_or(path)
}

/// Same for a path as bytes, which need not be text.
#[must_use]
pub fn file_name_of(path: &Path) -> String {
    file_name(&path.to_string_lossy()).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(file: &str, inlined: bool) -> SourceFrame {
        let mut frame = SourceFrame::default();
        frame.file = Some(file.into());
        frame.inlined = inlined;
        frame
    }

    #[test]
    fn only_inlined_functions_of_the_recorder_are_left_out() {
        let own = [
            frame("/home/me/.cargo/registry/src/x/cairn-capture-0.1.0/src/entry.rs", true),
            frame("/build/crates/cairn-recorder/src/marks.rs", true),
        ];
        let program = [frame("/build/app/src/marks.rs", true), frame("/build/app/src/main.rs", false)];
        let all: Vec<_> = own.iter().chain(&program).cloned().collect();
        assert_eq!(without_recorder(&all), program);
        assert_eq!(without_recorder(&program), program);
        // A frame of the recorder's that has an address of its own says where that is.
        let not_inlined = [frame("/build/crates/cairn-recorder/src/marks.rs", false)];
        assert_eq!(without_recorder(&not_inlined), not_inlined);
    }
}
