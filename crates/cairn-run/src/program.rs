//! Finds the file of a command, and checks whether a library can be loaded into it.
//!
//! All answers here come before the program starts, from its file alone. Wrappers of other
//! profilers start first, and then wait for a library that never comes.

use std::env;
use std::ffi::{CString, OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use object::elf::{
    DT_NEEDED, EM_AARCH64, EM_X86_64, ET_DYN, ET_EXEC, FileHeader64, PT_INTERP, SHT_DYNSYM, SHT_SYMTAB,
    STT_FUNC,
};
use object::read::elf::{Dyn, ElfFile64, FileHeader, ProgramHeader, SectionHeader, Sym};
use object::{Endianness, Object, ReadCache, ReadRef, StringTable};

use crate::Obstacle;

/// A program that was found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Program {
    path: PathBuf,
    /// The name as the caller gave it: the first argument that the program gets.
    name: OsString,
}

/// The processor that this crate is built for, as ELF files name it and as people do.
pub(crate) const OWN_MACHINE: (u16, &str) =
    if cfg!(target_arch = "aarch64") { (EM_AARCH64.0, "AArch64") } else { (EM_X86_64.0, "x86-64") };

/// Maximum depth of scripts that are interpreted by scripts, as in the kernel.
const MAX_SCRIPTS: usize = 5;

impl Program {
    /// Finds `name`, as the shell does. With a slash in it, it is a path; otherwise it is searched
    /// in `PATH`.
    ///
    /// # Errors
    ///
    /// [`Obstacle::NotFound`], and [`Obstacle::NotExecutable`] when there are only files that may
    /// not be run.
    pub fn find(name: &OsStr) -> Result<Self, Obstacle> {
        let found = |path: PathBuf| Self { path, name: name.to_owned() };
        if name.as_bytes().contains(&b'/') {
            let path = PathBuf::from(name);
            return match runnable(&path) {
                Ok(()) => Ok(found(path)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    Err(Obstacle::NotFound { name: path })
                }
                Err(error) => Err(Obstacle::NotExecutable { path, reason: error.to_string() }),
            };
        }
        let mut refused = None;
        let directories = env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/bin:/usr/bin".into());
        for directory in env::split_paths(&directories).filter(|_| !name.is_empty()) {
            let path = if directory.as_os_str().is_empty() {
                Path::new(".").join(name)
            } else {
                directory.join(name)
            };
            match runnable(&path) {
                Ok(()) => return Ok(found(path)),
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    refused = Some(Obstacle::NotExecutable { path, reason: error.to_string() });
                }
                Err(_) => {}
            }
        }
        Err(refused.unwrap_or_else(|| Obstacle::NotFound { name: name.into() }))
    }

    /// Returns the program's file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the name as the caller gave it.
    #[must_use]
    pub fn name(&self) -> &OsStr {
        &self.name
    }

    /// Returns whether the program can be recorded. For a script, the interpreter is examined; for
    /// `/usr/bin/env`, the program that it starts.
    ///
    /// # Errors
    ///
    /// The [`Obstacle`].
    pub fn inspect(&self) -> Result<(), Obstacle> {
        let mut path = self.path.clone();
        for _ in 0..MAX_SCRIPTS {
            let unreadable = |source| Obstacle::Unreadable { path: path.clone(), source };
            let start = start_of(&path).map_err(unreadable)?;
            if start.starts_with(b"\x7fELF") {
                return inspect_file(&path, &start);
            }
            path = match interpreter(&start) {
                Some(interpreter) => interpreter,
                // It is neither: the shell would interpret it, and so does `Start`.
                None => PathBuf::from("/bin/sh"),
            };
            if let Err(error) = runnable(&path) {
                let reason = format!("its interpreter {}: {error}", path.display());
                return Err(Obstacle::NotExecutable { path: self.path.clone(), reason });
            }
        }
        let reason = "too many scripts that are interpreted by scripts".to_owned();
        Err(Obstacle::NotExecutable { path: self.path.clone(), reason })
    }
}

impl Program {
    /// Returns the GNU build id in the program's file, if there is one.
    #[must_use]
    pub fn build_id(&self) -> Option<Vec<u8>> {
        let file = ReadCache::new(File::open(&self.path).ok()?);
        let parsed = ElfFile64::<Endianness, _>::parse(&file).ok()?;
        parsed.build_id().ok().flatten().map(<[u8]>::to_vec)
    }

    /// Returns whether the loader finds jemalloc, tcmalloc or mimalloc for the program. The
    /// loader's own `--list` answers this; no code of the program runs.
    #[must_use]
    pub fn uses_other_allocator(&self) -> bool {
        const LOADER: &str = if cfg!(target_arch = "aarch64") {
            "/lib/ld-linux-aarch64.so.1"
        } else {
            "/lib64/ld-linux-x86-64.so.2"
        };
        const NAMES: [&str; 3] = ["libjemalloc", "libtcmalloc", "libmimalloc"];
        let listed = std::process::Command::new(LOADER)
            .arg("--list")
            .arg(&self.path)
            .stdin(std::process::Stdio::null())
            .output();
        let preloaded = env::var_os("LD_PRELOAD").unwrap_or_default();
        listed.is_ok_and(|output| {
            let text = String::from_utf8_lossy(&output.stdout).into_owned() + &preloaded.to_string_lossy();
            NAMES.iter().any(|name| text.contains(name))
        })
    }
}

/// Returns whether this user may run the file.
fn runnable(path: &Path) -> io::Result<()> {
    let text = CString::new(path.as_os_str().as_bytes())?;
    if fs::metadata(path)?.is_dir() {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "a directory"));
    }
    // SAFETY: a path with a NUL. The effective user's rights, as `exec` checks them.
    match unsafe { libc::faccessat(libc::AT_FDCWD, text.as_ptr(), libc::X_OK, libc::AT_EACCESS) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns the bytes of a file that the kernel reads for a script.
fn start_of(path: &Path) -> io::Result<Vec<u8>> {
    let mut start = Vec::new();
    File::open(path)?.take(256).read_to_end(&mut start)?;
    Ok(start)
}

/// Returns the interpreter in a script's first line, or behind `env` the program that this starts.
fn interpreter(start: &[u8]) -> Option<PathBuf> {
    let line = start.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let mut words = line.split(|byte| matches!(byte, b' ' | b'\t' | b'\r')).filter(|word| !word.is_empty());
    let first = Path::new(OsStr::from_bytes(words.next()?));
    if first.file_name() == Some(OsStr::new("env")) {
        let is_program = |word: &&[u8]| !word.starts_with(b"-") && !word.contains(&b'=');
        let started = words.find(is_program).and_then(|name| Program::find(OsStr::from_bytes(name)).ok());
        return Some(started.map_or_else(|| first.to_owned(), |program| program.path));
    }
    Some(first.to_owned())
}

fn inspect_file(path: &Path, start: &[u8]) -> Result<(), Obstacle> {
    let refuse = |reason: &str| Obstacle::NotExecutable { path: path.to_owned(), reason: reason.to_owned() };
    let unreadable = |source| Obstacle::Unreadable { path: path.to_owned(), source };
    // Class and byte order, then the machine, lie at the same place in all kinds.
    let (class, order, machine) = match start {
        [_, _, _, _, class, order, _, ..] if start.len() >= 20 => (*class, *order, [start[18], start[19]]),
        _ => return Err(refuse("its ELF header is cut")),
    };
    let machine = if order == 1 { u16::from_le_bytes(machine) } else { u16::from_be_bytes(machine) };
    if class != 2 || machine != OWN_MACHINE.0 {
        return Err(Obstacle::OtherMachine { path: path.to_owned(), machine: machine_name(class, machine) });
    }
    gains_rights(path)?;
    let file = ReadCache::new(File::open(path).map_err(unreadable)?);
    let header: &FileHeader64<Endianness> =
        FileHeader64::parse(&file).map_err(|_| refuse("its ELF header is damaged"))?;
    let endian = header.endian().map_err(|_| refuse("its ELF header is damaged"))?;
    if !matches!(header.e_type(endian), ET_EXEC | ET_DYN) {
        return Err(refuse("an ELF file, but no program"));
    }
    let segments =
        header.program_headers(endian, &file).map_err(|_| refuse("its program headers are damaged"))?;
    let loader = segments
        .iter()
        .find(|segment| segment.p_type(endian) == PT_INTERP)
        .ok_or_else(|| without_loader(path))?;
    let loader = loader.data(endian, &file).map_err(|()| refuse("the name of its loader is damaged"))?;
    let loader = loader.strip_suffix(b"\0").unwrap_or(loader);
    if !loader.rsplit(|byte| *byte == b'/').next().is_some_and(|name| name.starts_with(b"ld-linux")) {
        let loader = String::from_utf8_lossy(loader).into_owned();
        return Err(Obstacle::OtherLoader { path: path.to_owned(), loader });
    }
    if let Some(library) = needed_sanitizer(header, endian, &file) {
        return Err(Obstacle::Sanitizer { path: path.to_owned(), library });
    }
    if has_own_malloc(header, endian, &file) {
        return Err(Obstacle::OwnAllocator { path: path.to_owned() });
    }
    Ok(())
}

/// Returns the obstacle in a program that names no loader.
fn without_loader(path: &Path) -> Obstacle {
    let real = fs::canonicalize(path).unwrap_or_default();
    let is_loader = real.file_name().is_some_and(|name| name.as_bytes().starts_with(b"ld-linux"));
    let path = path.to_owned();
    if is_loader { Obstacle::Loader { path } } else { Obstacle::Static { path } }
}

fn machine_name(class: u8, machine: u16) -> String {
    match (class, machine) {
        (_, 3) => "32-bit x86".to_owned(),
        (1, 62) => "x32 (x86-64 with 32-bit addresses)".to_owned(),
        (_, 40) => "32-bit Arm".to_owned(),
        (_, 62) => "x86-64".to_owned(),
        (_, 183) => "AArch64".to_owned(),
        (_, 243) => "RISC-V".to_owned(),
        (1, number) => format!("a 32-bit processor (number {number})"),
        (_, number) => format!("another processor (number {number})"),
    }
}

/// Returns whether the kernel would run the program with more rights than ours.
fn gains_rights(path: &Path) -> Result<(), Obstacle> {
    let Ok(facts) = fs::metadata(path) else { return Ok(()) };
    // SAFETY: the calls take no argument and cannot fail.
    let (user, group) = unsafe { (libc::geteuid(), libc::getegid()) };
    let by = if facts.mode() & libc::S_ISUID != 0 && facts.uid() != user {
        "set-user-id"
    } else if facts.mode() & (libc::S_ISGID | libc::S_IXGRP) == libc::S_ISGID | libc::S_IXGRP
        && facts.gid() != group
    {
        "set-group-id"
    } else if user != 0 && has_capabilities(path) {
        "file capabilities"
    } else {
        return Ok(());
    };
    Err(Obstacle::GainsRights { path: path.to_owned(), by })
}

fn has_capabilities(path: &Path) -> bool {
    let Ok(text) = CString::new(path.to_owned().into_os_string().into_vec()) else { return false };
    // SAFETY: two texts with a NUL; without a buffer the call asks for the size.
    unsafe { libc::getxattr(text.as_ptr(), c"security.capability".as_ptr(), std::ptr::null_mut(), 0) > 0 }
}

/// Returns the sanitizer's library that the program is linked with, if it must come before ours. A
/// statically linked sanitizer counts as the program's own allocator.
fn needed_sanitizer<'data, R: ReadRef<'data>>(
    header: &FileHeader64<Endianness>,
    endian: Endianness,
    file: R,
) -> Option<String> {
    let sections = header.sections(endian, file).ok()?;
    let (entries, link) = sections.dynamic(endian, file).ok()??;
    let strings = sections.strings(endian, file, link).ok()?;
    let needed = entries.iter().filter(|entry| entry.tag(endian) == DT_NEEDED);
    let names = needed.filter_map(|entry| Some(String::from_utf8_lossy(entry.string(endian, strings).ok()?)));
    let is_clangs = |name: &str| {
        name.starts_with("libclang_rt.")
            && [".asan", ".tsan", ".hwasan"].iter().any(|kind| name.contains(kind))
    };
    let is_sanitizer = |name: &str| {
        ["libasan.so", "libtsan.so", "libhwasan.so"].iter().any(|start| name.starts_with(start))
            || is_clangs(name)
    };
    names.map(|name| name.into_owned()).find(|name| is_sanitizer(name))
}

/// Returns whether the program itself defines `malloc`. All callers then use that definition, or
/// the program's own calls do not reach a library.
fn has_own_malloc<'data, R: ReadRef<'data>>(
    header: &FileHeader64<Endianness>,
    endian: Endianness,
    file: R,
) -> bool {
    let Ok(sections) = header.sections(endian, file) else { return false };
    [SHT_DYNSYM, SHT_SYMTAB].into_iter().any(|kind| {
        let Ok(symbols) = sections.symbols(endian, file, kind) else { return false };
        // All names at once: a compiler has thirty thousand, and reading each alone would take two
        // system calls.
        let names = sections.section(symbols.string_section()).and_then(|section| section.data(endian, file));
        let Ok(names) = names else { return false };
        let strings = StringTable::new(names, 0, names.len() as u64);
        symbols.iter().any(|symbol| {
            symbol.st_type() == STT_FUNC
                && !symbol.is_undefined(endian)
                && symbol.st_bind() != object::elf::STB_LOCAL
                && symbol.name(endian, strings).is_ok_and(|name| name == b"malloc")
        })
    })
}
