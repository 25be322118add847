//! Finds a module's files: the program, its debug file, and files that those refer to.
//!
//! Every file is verified before use: by build id if there is one, else by the stated checksum,
//! size or time. A file that differs is reported and not used, unless the options allow it. Only
//! regular files are opened, and with a sysroot only files below it or below directories that the
//! options name.

use std::ffi::OsStr;
use std::io;
use std::path::{Component, Path, PathBuf, Prefix};

use object::Object;

use crate::elf::debug_object::DebugObject;
use crate::mapped_file::FileBytes;
use crate::{BuildId, Difference, ModuleInfo, ModuleReport, SymbolizerOptions, Unknown, kinds};

/// Searches for one module's files, and reports the results.
pub(crate) struct Locator<'a> {
    pub(crate) options: &'a SymbolizerOptions,
    pub(crate) report: &'a mut ModuleReport,
}

/// The identity that a file must have.
#[derive(Clone, Copy, Debug)]
enum Expected<'a> {
    Anything,
    Build(&'a BuildId),
    Checksum(u32),
}

impl Locator<'_> {
    /// Finds the mapped file, or else the debug file of its build.
    pub(crate) fn program(&mut self, info: &ModuleInfo) -> Result<(PathBuf, FileBytes), Unknown> {
        let opens_recorded = self.opens_recorded(info);
        let mut reason = if opens_recorded || !info.path.has_root() {
            Unknown::NoSuchFile { path: info.path.clone() }
        } else {
            Unknown::NotChecked { path: info.path.clone() }
        };
        for path in self.places_of_program(&info.path, opens_recorded) {
            let bytes = match FileBytes::map(&path) {
                Ok(bytes) => bytes,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => {
                    reason = Unknown::Unreadable { path, problem: error.to_string().into() };
                    continue;
                }
            };
            match self.check_module(&path, &bytes, info) {
                Ok(()) => return Ok((path, bytes)),
                Err(different) => reason = different,
            }
        }
        if let Some(build_id) = &info.build_id {
            let named = self.named_places();
            let symbols: Vec<PathBuf> =
                named.flat_map(|place| kinds::places_of_symbols(place, &info.path, build_id)).collect();
            for path in self.places_of_build(build_id).into_iter().chain(symbols) {
                if let Some(bytes) = self.accept(&path, Expected::Build(build_id)) {
                    return Ok((path, bytes));
                }
            }
            #[cfg(all(feature = "debuginfod", target_os = "linux"))]
            if self.options.debuginfod
                && let Some(path) = crate::debuginfod::fetch(build_id, crate::debuginfod::FileRole::Program)
                && let Some(bytes) = self.accept(&path, Expected::Build(build_id))
            {
                return Ok((path, bytes));
            }
        }
        Err(reason)
    }

    /// Finds the debug file of a program without debug information.
    pub(crate) fn debug_file(&mut self, program: &DebugObject) -> Option<DebugObject> {
        let object = program.object().ok()?;
        let build_id = object.build_id().ok().flatten().map(BuildId::new);
        if let Some(build_id) = &build_id {
            for path in self.places_of_build(build_id) {
                if let Some(found) = self.debug_object(&path, Expected::Build(build_id)) {
                    return Some(found);
                }
            }
        }
        if let Ok(Some((name, checksum))) = object.gnu_debuglink() {
            let expected = build_id.as_ref().map_or(Expected::Checksum(checksum), Expected::Build);
            for path in self.places_of_link(program.path(), &path_of(name)) {
                if let Some(found) = self.debug_object(&path, expected) {
                    return Some(found);
                }
            }
        }
        #[cfg(all(feature = "debuginfod", target_os = "linux"))]
        if let (Some(build_id), true) = (&build_id, self.options.debuginfod)
            && let Some(path) = crate::debuginfod::fetch(build_id, crate::debuginfod::FileRole::DebugInfo)
        {
            return self.debug_object(&path, Expected::Build(build_id));
        }
        None
    }

    /// Finds the supplement that dwz extracted from several debug files.
    pub(crate) fn supplement(&mut self, debug: &DebugObject) -> Option<DebugObject> {
        let object = debug.object().ok()?;
        let (name, build_id) = object.gnu_debugaltlink().ok().flatten()?;
        let build_id = BuildId::new(build_id);
        let mut places = self.places_of_build(&build_id);
        let name = path_of(name);
        if is_here(&name) {
            places.extend(self.in_root(&name));
        } else if let Some(directory) = debug.path().canonicalize().ok().as_deref().and_then(Path::parent) {
            places.push(directory.join(&name));
        }
        places.iter().find_map(|path| self.debug_object(path, Expected::Build(&build_id)))
    }

    /// Finds the package of split files, beside the program or beside its debug file.
    pub(crate) fn package(&mut self, beside: &[&Path]) -> Option<DebugObject> {
        beside.iter().find_map(|path| {
            let mut name = path.file_name()?.to_owned();
            name.push(".dwp");
            // Packages have no build id; each unit's id is checked instead.
            self.debug_object(&path.with_file_name(name), Expected::Anything)
        })
    }

    /// Finds a split file at its stated path, or beside the program.
    pub(crate) fn split(
        &mut self,
        program: &Path,
        directory: Option<&str>,
        name: &str,
    ) -> Option<DebugObject> {
        let stated = Path::new(directory.unwrap_or_default()).join(name);
        let mut places: Vec<PathBuf> = self.mapped(&stated).into_iter().collect();
        if is_here(&stated) {
            places.extend(self.in_root(&stated));
        }
        if let (Some(own), Some(file)) = (program.parent(), Path::new(name).file_name()) {
            places.push(own.join(file));
        }
        places.iter().find_map(|path| self.debug_object(path, Expected::Anything))
    }

    fn debug_object(&mut self, path: &Path, expected: Expected<'_>) -> Option<DebugObject> {
        let bytes = self.accept(path, expected)?;
        match DebugObject::parse(path, bytes, self.options.max_unpacked_bytes) {
            Ok(object) => Some(object),
            Err(problem) => {
                self.refuse(path, Unknown::Unreadable { path: path.to_owned(), problem });
                None
            }
        }
    }

    /// Maps a file if it exists and has the expected identity.
    fn accept(&mut self, path: &Path, expected: Expected<'_>) -> Option<FileBytes> {
        if !self.is_allowed(path) {
            return None;
        }
        let bytes = match FileBytes::map(path) {
            Ok(bytes) => bytes,
            Err(error) => {
                if error.kind() != io::ErrorKind::NotFound {
                    let problem = error.to_string().into();
                    self.refuse(path, Unknown::Unreadable { path: path.to_owned(), problem });
                }
                return None;
            }
        };
        let difference = match expected {
            Expected::Anything => None,
            Expected::Build(expected) => {
                let found = build_id_of(&bytes);
                (!is_of_build(&bytes, found.as_ref(), expected))
                    .then(|| Difference::BuildId { expected: expected.clone(), found })
            }
            Expected::Checksum(expected) => {
                let found = checksum(&bytes);
                (found != expected).then_some(Difference::Checksum { expected, found })
            }
        };
        self.judge(path, difference).ok()?;
        Some(bytes)
    }

    fn check_module(&mut self, path: &Path, bytes: &[u8], info: &ModuleInfo) -> Result<(), Unknown> {
        let difference = if let Some(expected) = &info.build_id {
            let found = build_id_of(bytes);
            (!is_of_build(bytes, found.as_ref(), expected))
                .then(|| Difference::BuildId { expected: expected.clone(), found })
        } else {
            let size = info
                .size_bytes
                .filter(|&expected| expected != bytes.len() as u64)
                .map(|expected| Difference::Size { expected, found: bytes.len() as u64 });
            let modified = || {
                let found = std::fs::metadata(path).and_then(|metadata| metadata.modified()).ok()?;
                // Archives and some file systems store whole seconds only.
                let seconds = |time: std::time::SystemTime| {
                    time.duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_secs())
                };
                (seconds(found) != seconds(info.modified?)).then_some(Difference::Modified)
            };
            size.or_else(modified)
        };
        self.judge(path, difference)
    }

    /// Records a difference; fails if the difference excludes the file.
    pub(crate) fn judge(&mut self, path: &Path, difference: Option<Difference>) -> Result<(), Unknown> {
        let Some(difference) = difference else { return Ok(()) };
        let reason = Unknown::DifferentBuild { path: path.to_owned(), difference };
        if self.options.allow_mismatch {
            self.report.mismatched.push((path.to_owned(), reason));
            return Ok(());
        }
        self.refuse(path, reason.clone());
        Err(reason)
    }

    fn refuse(&mut self, path: &Path, reason: Unknown) {
        let refusal = (path.to_owned(), reason);
        if !self.report.refused.contains(&refusal) {
            self.report.refused.push(refusal);
        }
    }

    /// Reports whether the recorded path itself may be opened.
    ///
    /// With a sysroot, that is a path below a directory that the user named.
    fn opens_recorded(&self, info: &ModuleInfo) -> bool {
        let options = self.options;
        !options.only_checked_paths
            || options.allow_mismatch
            || options.sysroot.is_some()
            || info.build_id.is_some()
    }

    fn places_of_program(&self, recorded: &Path, opens_recorded: bool) -> Vec<PathBuf> {
        // Linux appends this to the name of a deleted or replaced file; the checks decide if this
        // is it.
        let text = recorded.to_str().and_then(|text| text.strip_suffix(" (deleted)"));
        let recorded = text.map_or(recorded, Path::new);
        let mut places: Vec<PathBuf> = self.mapped(recorded).into_iter().collect();
        if is_here(recorded) && opens_recorded {
            places.extend(self.in_root(recorded));
        }
        let relative = recorded.strip_prefix("/").unwrap_or(recorded);
        for directory in &self.options.symbol_dirs {
            if is_plain(relative) {
                places.push(directory.join(relative));
            }
            places.extend(recorded.file_name().map(|name| directory.join(name)));
            places.extend(kinds::windows_file_name(recorded).map(|name| directory.join(name)));
        }
        places
    }

    /// Returns the directories in which files of other systems are searched by name.
    pub(crate) fn named_places(&self) -> impl Iterator<Item = &Path> {
        self.options.symbol_dirs.iter().chain(&self.options.debug_dirs).map(PathBuf::as_path)
    }

    /// Lists the possible paths of a build's debug file.
    fn places_of_build(&self, build_id: &BuildId) -> Vec<PathBuf> {
        let text = build_id.to_string();
        if text.len() < 4 {
            return Vec::new();
        }
        let (first, rest) = text.split_at(2);
        let name = format!(".build-id/{first}/{rest}.debug");
        let mut places: Vec<PathBuf> = self.debug_dirs().map(|directory| directory.join(&name)).collect();
        places.extend(self.options.symbol_dirs.iter().map(|directory| directory.join(&name)));
        places.extend(self.vdso_images());
        places
    }

    /// Lists vdso images, which some kernel packages install with their modules.
    fn vdso_images(&self) -> Vec<PathBuf> {
        let Some(modules) = self.in_root(Path::new("/lib/modules")) else { return Vec::new() };
        let Ok(kernels) = std::fs::read_dir(modules) else { return Vec::new() };
        let images = kernels.filter_map(Result::ok).flat_map(|kernel| {
            ["vdso64.so", "vdso32.so", "vdso.so"].map(|name| kernel.path().join("vdso").join(name))
        });
        images.filter(|path| path.is_file()).collect()
    }

    /// Lists the paths for a program's debug link, which must be a plain file name.
    fn places_of_link(&self, program: &Path, name: &Path) -> Vec<PathBuf> {
        if name.components().count() != 1 || !is_plain(name) {
            return Vec::new();
        }
        let own = program.canonicalize().unwrap_or_else(|_| program.to_owned());
        let Some(directory) = own.parent() else { return Vec::new() };
        let mut places = vec![directory.join(name), directory.join(".debug").join(name)];
        // Below a sysroot, the debug directory repeats the path on the target.
        let target = match &self.options.sysroot {
            Some(root) => {
                root.canonicalize().ok().and_then(|root| Some(directory.strip_prefix(root).ok()?.to_owned()))
            }
            None => directory.strip_prefix("/").ok().map(Path::to_owned),
        };
        for debug in self.debug_dirs() {
            places.extend(target.iter().map(|target| debug.join(target).join(name)));
            places.push(debug.join(name));
        }
        // A program whose link names itself is not its own debug file.
        places.retain(|place| *place != own);
        places
    }

    fn debug_dirs(&self) -> impl Iterator<Item = PathBuf> {
        let system = self.in_root(Path::new(SYSTEM_DEBUG_DIR));
        self.options.debug_dirs.iter().cloned().chain(system)
    }

    /// Maps a recorded path by the options' path table.
    fn mapped(&self, recorded: &Path) -> Option<PathBuf> {
        let maps = self.options.path_maps.iter();
        let fitting = maps.filter_map(|(from, to)| Some((from, to, recorded.strip_prefix(from).ok()?)));
        let (_, to, rest) = fitting.max_by_key(|(from, ..)| from.components().count())?;
        is_plain(rest).then(|| if rest.as_os_str().is_empty() { to.clone() } else { to.join(rest) })
    }

    /// Resolves an absolute path below the sysroot, with its links.
    ///
    /// Without a sysroot, returns the path unchanged.
    fn in_root(&self, path: &Path) -> Option<PathBuf> {
        match &self.options.sysroot {
            Some(root) => resolve_in_root(root, path),
            None => Some(path.to_owned()),
        }
    }

    /// Reports whether a path may be opened: with a sysroot, links must stay inside the named
    /// directories.
    pub(crate) fn is_allowed(&self, path: &Path) -> bool {
        let Some(sysroot) = &self.options.sysroot else { return true };
        let Ok(real) = path.canonicalize() else { return false };
        let options = self.options;
        let roots = [sysroot].into_iter().chain(&options.debug_dirs).chain(&options.symbol_dirs);
        let roots = roots.chain(options.path_maps.iter().map(|(_, to)| to)).chain(&options.cache_dir);
        roots.filter_map(|root| root.canonicalize().ok()).any(|root| real.starts_with(root))
    }
}

/// Directory in which distributions install debug files.
const SYSTEM_DEBUG_DIR: &str = "/usr/lib/debug";

/// Resolves a path as a process with the root directory `root` would.
///
/// Absolute links restart at `root`, and `..` stays inside. `None` for a cycle of links.
fn resolve_in_root(root: &Path, path: &Path) -> Option<PathBuf> {
    let mut todo: Vec<std::ffi::OsString> =
        path.components().rev().map(|part| part.as_os_str().to_owned()).collect();
    let mut inside = PathBuf::new();
    let mut links = 0;
    while let Some(part) = todo.pop() {
        match Path::new(&part).components().next() {
            Some(Component::RootDir | Component::Prefix(_)) => inside.clear(),
            Some(Component::ParentDir) => {
                inside.pop();
            }
            Some(Component::Normal(name)) => {
                let next = inside.join(name);
                match std::fs::read_link(root.join(&next)) {
                    Ok(target) => {
                        links += 1;
                        if links > MAX_LINKS {
                            return None;
                        }
                        todo.extend(target.components().rev().map(|part| part.as_os_str().to_owned()));
                    }
                    Err(_) => inside = next,
                }
            }
            Some(Component::CurDir) | None => {}
        }
    }
    Some(root.join(inside))
}

/// Maximum links to follow; 40, like Linux.
const MAX_LINKS: u32 = 40;

/// Reports whether a path has a root, and lies on this machine.
///
/// Opening `\\server\share` on Windows would give that server a proof of the user's password.
pub(crate) fn is_here(path: &Path) -> bool {
    let is_drive = match path.components().next() {
        Some(Component::Prefix(prefix)) => {
            matches!(prefix.kind(), Prefix::Disk(_) | Prefix::VerbatimDisk(_))
        }
        _ => true,
    };
    is_drive && path.has_root()
}

/// Reports whether a relative path stays below the directory that it is joined to.
fn is_plain(path: &Path) -> bool {
    path.components().all(|part| matches!(part, Component::Normal(_)))
}

#[cfg(unix)]
fn path_of(bytes: &[u8]) -> PathBuf {
    use std::os::unix::ffi::OsStrExt;
    PathBuf::from(OsStr::from_bytes(bytes))
}

#[cfg(not(unix))]
fn path_of(bytes: &[u8]) -> PathBuf {
    PathBuf::from(OsStr::new(&*String::from_utf8_lossy(bytes)))
}

/// Reports whether the file, or a program in it, has this id.
fn is_of_build(bytes: &[u8], found: Option<&BuildId>, expected: &BuildId) -> bool {
    found == Some(expected) || kinds::holds_build(bytes, expected)
}

/// Returns the build id of a file of any kind; `None` if it has none, or is of an unknown kind.
pub(crate) fn build_id_of(bytes: &[u8]) -> Option<BuildId> {
    let object = object::File::parse(bytes).ok()?;
    if let Ok(Some(id)) = object.build_id() {
        return Some(BuildId::new(id));
    }
    if let Ok(Some(id)) = object.mach_uuid() {
        return Some(BuildId::new(&id));
    }
    let Some(pdb) = object.pdb_info().ok().flatten() else { return id_of_headers(&object) };
    let mut id = pdb.guid().to_vec();
    id.extend(pdb.age().to_le_bytes());
    Some(BuildId::new(&id))
}

/// Returns what identifies a PE file without a PDB: time stamp, size of the image, and checksum.
///
/// `None` where the linker has written neither stamp nor checksum.
fn id_of_headers(object: &object::File<'_>) -> Option<BuildId> {
    use object::LittleEndian as LE;
    use object::read::pe::ImageOptionalHeader;
    let (file, size, checksum) = match object {
        object::File::Pe32(pe) => {
            let header = pe.nt_headers();
            let optional = &header.optional_header;
            (&header.file_header, optional.size_of_image(), optional.check_sum())
        }
        object::File::Pe64(pe) => {
            let header = pe.nt_headers();
            let optional = &header.optional_header;
            (&header.file_header, optional.size_of_image(), optional.check_sum())
        }
        _ => return None,
    };
    let stamp = file.time_date_stamp.get(LE);
    let id = [stamp, size, checksum].map(u32::to_le_bytes).concat();
    (stamp != 0 || checksum != 0).then(|| BuildId::new(&id))
}

/// Computes the checksum of a `.gnu_debuglink`.
fn checksum(bytes: &[u8]) -> u32 {
    let mut checksum = flate2::Crc::new();
    checksum.update(bytes);
    checksum.sum()
}

#[cfg(test)]
mod tests {
    use super::is_here;

    #[test]
    fn recorded_paths_are_of_this_machine() {
        for (path, expected) in [("/usr/lib/a.so", true), ("lib/a.so", false), ("", false)] {
            assert_eq!(is_here(path.as_ref()), expected, "{path}");
        }
        if cfg!(windows) {
            let cases = [
                (r"C:\a.dll", true),
                (r"\\?\C:\a.dll", true),
                (r"C:a.dll", false),
                (r"\\server\share\a.dll", false),
                ("//server/share/a.dll", false),
                (r"\\?\UNC\server\share\a.dll", false),
                (r"\\.\pipe\a", false),
            ];
            for (path, expected) in cases {
                assert_eq!(is_here(path.as_ref()), expected, "{path}");
            }
        }
    }
}
