//! Names addresses in recorded modules, and reports the search for each module's symbols.
//!
//! Caches the answers of a [`Symbolizer`], so that each distinct address is resolved once. Missing
//! and refused files are reported per module, so that a printer can mention each once.

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

use cairn_symbols::{
    BuildId, Lookup, ModuleId, ModuleInfo, ModuleReport, Resolution, SourceFrame, Symbolizer,
    SymbolizerOptions, Unknown,
};

/// Maximum cached answers; 1 Mi. Recordings of large programs have some hundred thousand distinct
/// addresses. Beyond the maximum, the cache is cleared, because evicting part of it costs more.
const MAX_REMEMBERED: usize = 1 << 20;

/// Identifies a file of a recording; equal files are opened once, however often they were loaded.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ModuleKey {
    /// Path on the recorded machine.
    pub path: PathBuf,
    /// Build id; empty if it has none.
    pub build_id: Vec<u8>,
    /// Size of the file, if recorded.
    pub size_bytes: Option<u64>,
}

/// Names addresses in modules.
///
/// ```no_run
/// use cairn_analysis::names::{ModuleKey, AddressNames};
/// use cairn_symbols::{AddressKind, Lookup, Place, SymbolizerOptions};
/// use cairn_format::StatedAddress;
///
/// let mut names = AddressNames::new(SymbolizerOptions::new());
/// let key = ModuleKey { path: "/usr/bin/app".into(), build_id: vec![0x1d, 0x46], size_bytes: None };
/// let place = Place::Stated(StatedAddress::new(0x1234));
/// let lookup = Lookup { place, kind: AddressKind::ReturnAddress };
/// for frame in names.resolve(&key, lookup).frames() {
///     println!("{frame}");
/// }
/// ```
#[derive(Debug)]
pub struct AddressNames {
    symbolizer: Symbolizer,
    modules: HashMap<ModuleKey, ModuleId>,
    /// In order of first use.
    order: Vec<ModuleKey>,
    answers: HashMap<(ModuleId, Lookup), Resolution>,
}

impl AddressNames {
    /// Creates a cache over a symbolizer with these options.
    #[must_use]
    pub fn new(options: SymbolizerOptions) -> Self {
        Self {
            symbolizer: Symbolizer::new(options),
            modules: HashMap::new(),
            order: Vec::new(),
            answers: HashMap::new(),
        }
    }

    /// Resolves one address.
    pub fn resolve(&mut self, key: &ModuleKey, lookup: Lookup) -> &Resolution {
        let module = self.module(key);
        self.make_room();
        let symbolizer = &self.symbolizer;
        self.answers.entry((module, lookup)).or_insert_with(|| symbolizer.resolve(module, lookup))
    }

    /// Resolves many addresses at once, which is faster; [`resolve`](Self::resolve) then uses the
    /// cache.
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

    /// Returns the report of every requested module, in order of first use.
    pub fn reports(&self) -> impl Iterator<Item = (&ModuleKey, ModuleReport)> {
        self.order
            .iter()
            .filter_map(|key| Some((key, self.symbolizer.module_report(*self.modules.get(key)?))))
    }

    /// Returns the local programs that an index would speed up; see [`Symbolizer::without_index`].
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

    /// Falls back to the PDB file of a module's name.
    ///
    /// Windows programs are often archived without their files, and PDB files without an id.
    fn symbols_alone(&mut self, path: &Path, module: ModuleId) -> ModuleId {
        let missing = self.symbolizer.module_report(module).missing;
        // On Windows the recorded path is one of this system.
        if !matches!(missing, Some(Unknown::NoSuchFile { .. } | Unknown::NotChecked { .. })) {
            return module;
        }
        let alone = self.symbolizer.add_module(ModuleInfo::new(path_here(path).with_extension("pdb")));
        if self.symbolizer.module_report(alone).missing.is_none() { alone } else { module }
    }

    fn make_room(&mut self) {
        if self.answers.len() > MAX_REMEMBERED {
            self.answers.clear();
        }
    }
}

/// Returns the frames of an answer, without those where only a function's start is known.
///
/// Such a name says less than module and offset.
#[must_use]
pub fn named_frames(resolution: &Resolution) -> &[SourceFrame] {
    match resolution.frames() {
        [only] if only.raw_name.is_none() && only.file.is_none() => &[],
        frames => frames,
    }
}

/// Returns the frames of a mark, without the recorder's functions that were inlined there.
///
/// A mark is about the program.
#[must_use]
pub fn without_recorder(frames: &[SourceFrame]) -> &[SourceFrame] {
    let is_recorders =
        |frame: &&SourceFrame| frame.inlined && frame.file.as_deref().is_some_and(is_source_of_recorder);
    let count = frames.iter().take_while(is_recorders).count();
    frames.get(count..).unwrap_or_default()
}

/// Detects `cairn-recorder-0.1.0/src/marks.rs`, also in folders of `src`, in any build directory.
fn is_source_of_recorder(file: &str) -> bool {
    let mut parts = file.rsplit(['/', '\\']).skip(1);
    let is_crate = |part: &str| part.starts_with("cairn-recorder") || part.starts_with("cairn-capture");
    parts.any(|part| part == "src") && parts.next().is_some_and(is_crate)
}

/// Converts the separators of a Windows path, for its last component and for path maps.
///
/// The result stays relative, so it is only opened below directories in the options.
fn path_here(path: &Path) -> PathBuf {
    match path.to_str() {
        Some(text) if cfg!(unix) && is_of_windows(text) => PathBuf::from(text.replace('\\', "/")),
        _ => path.to_owned(),
    }
}

/// True for a path that begins with a drive or a server.
pub(crate) fn is_of_windows(path: &str) -> bool {
    path.as_bytes().get(1) == Some(&b':') || path.starts_with(r"\\")
}

/// Returns a path with slashes, as rules about files are written.
pub(crate) fn with_slashes(path: &str) -> Cow<'_, str> {
    if is_of_windows(path) && path.contains('\\') { path.replace('\\', "/").into() } else { path.into() }
}

/// Returns the last component of a Unix or Windows path.
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

/// Returns the last component of a path that need not be text.
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
    fn names_omit_inlined_recorder_functions() {
        let own = [
            frame("/home/me/.cargo/registry/src/x/cairn-capture-0.1.0/src/stacks/entry.rs", true),
            frame("/build/crates/cairn-recorder/src/marks.rs", true),
        ];
        let program = [frame("/build/app/src/marks.rs", true), frame("/build/app/src/main.rs", false)];
        let all: Vec<_> = own.iter().chain(&program).cloned().collect();
        assert_eq!(without_recorder(&all), program);
        assert_eq!(without_recorder(&program), program);
        // A recorder frame with an address of its own is shown.
        let not_inlined = [frame("/build/crates/cairn-recorder/src/marks.rs", false)];
        assert_eq!(without_recorder(&not_inlined), not_inlined);
    }
}
