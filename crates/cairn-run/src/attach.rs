//! Puts the library into a process that runs already, and ends its work there.
//!
//! `docs/book/reference/heap.md` describes the steps and why they are safe. The caller stops the
//! threads and reads their stacks; the addresses on them decide which thread can be used
//! ([`Target::forbids`]).

use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use object::read::elf::{ElfFile64, ProgramHeader};
use object::{Object, ObjectSymbol};

use crate::inject::{self, Borrowed, Keeper, Places, Recovery};
use crate::{Obstacle, Program};

/// A reason why a process cannot be attached to. The text has the remedy.
#[derive(Debug)]
#[non_exhaustive]
pub enum AttachError {
    /// There is no such process, or it has ended.
    NoSuchProcess {
        /// The process id.
        process: u32,
    },
    /// Its program cannot be recorded at all.
    Program(Obstacle),
    /// A property of the process makes it unsafe or impossible.
    Refused {
        /// The process.
        process: u32,
        /// The cause and the remedy.
        reason: String,
    },
    /// The process is not attached to.
    NotAttached {
        /// The process.
        process: u32,
    },
    /// The process cannot be attached to at this moment, because another thread of it is in the
    /// way. Try again.
    Busy {
        /// The process.
        process: u32,
        /// The obstacle.
        reason: String,
    },
    /// The process ended, or executed another program, during the attempt.
    Ended {
        /// The process.
        process: u32,
    },
    /// The kernel refused, or the call inside the process failed. The process goes on as it was.
    Failed {
        /// The process.
        process: u32,
        /// The attempted step.
        tried: &'static str,
        /// The cause.
        reason: String,
    },
}

impl fmt::Display for AttachError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuchProcess { process } => write!(f, "there is no process {process}"),
            Self::Program(obstacle) => obstacle.fmt(f),
            Self::Refused { process, reason } => write!(f, "process {process}: {reason}"),
            Self::NotAttached { process } => write!(
                f,
                "process {process}: is not attached to; a recording from the start is paused with `cairn heap ctl`"
            ),
            Self::Busy { process, reason } => {
                write!(f, "process {process}: is busy: {reason}; try again later")
            }
            Self::Ended { process } => write!(f, "process {process}: has ended, or become another program"),
            Self::Failed { process, tried, reason } => {
                write!(f, "process {process}: {tried} failed: {reason}; it goes on as it was")
            }
        }
    }
}

impl std::error::Error for AttachError {}

/// A process that can be attached to.
#[derive(Debug)]
pub struct Target {
    process: u32,
    program: Program,
    dlopen: u64,
    dlsym: u64,
    dlerror: u64,
    errno: u64,
    places: Places,
    /// The loaded library, if it is loaded and its file can be read.
    own: Option<OwnPlaces>,
    /// Code of the C library that may hold its locks.
    locked: Vec<(u64, u64)>,
    maps: Vec<Map>,
}

/// Addresses of the library that must be found without the loader.
#[derive(Clone, Copy, Debug)]
struct OwnPlaces {
    release: u64,
    shared: u64,
}

/// The words at the symbol `cairn_shared` of the library.
mod shared {
    /// Distance of a thread's word from the thread pointer.
    pub(super) const THREAD_WORD: u64 = 0;
    /// Nonzero when ended recordings have left memory.
    pub(super) const HAS_MEMORY: u64 = 8;
    /// Functions that change modules.
    pub(super) const WORKER: u64 = 16;
    /// Stack pointer to set after a fault under the loader's lock.
    pub(super) const RECOVERY: u64 = 24;
    /// Address of the stack that was given to a thread for calls, and its size behind it.
    pub(super) const STACK: u64 = 32;
    pub(super) const STACK_BYTES: u64 = 40;
}

#[derive(Clone, Debug)]
struct Map {
    start: u64,
    end: u64,
    offset: u64,
    is_code: bool,
    is_writable: bool,
    is_shared: bool,
    path: PathBuf,
}

/// Returns what `/proc/PID/maps` lists.
fn maps_of(process: u32) -> io::Result<Vec<Map>> {
    let text = fs::read(format!("/proc/{process}/maps"))?;
    let parse = |line: &[u8]| {
        let path = line.iter().position(|byte| *byte == b'/').map_or(&b""[..], |at| &line[at..]);
        let words = String::from_utf8_lossy(line).into_owned();
        let mut words = words.split_ascii_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let rights = words.next()?.to_owned();
        let number = |text| u64::from_str_radix(text, 16).ok();
        Some(Map {
            start: number(start)?,
            end: number(end)?,
            offset: number(words.next()?)?,
            is_code: rights.contains('x'),
            is_writable: rights.contains('w'),
            is_shared: rights.ends_with('s'),
            path: OsStr::from_bytes(path).into(),
        })
    };
    Ok(text.split(|byte| *byte == b'\n').filter_map(parse).collect())
}

/// Returns a path of a process as seen from here.
fn outside(process: u32, path: &Path) -> PathBuf {
    Path::new(&format!("/proc/{process}/root")).join(path.strip_prefix("/").unwrap_or(path))
}

fn status_field(status: &str, name: &str) -> Option<String> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.strip_prefix(':')?.trim().to_owned())
}

/// Returns whether a process is gone, or about to be.
fn has_ended(process: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{process}/status"));
    !is_left_by_first_thread(process)
        && status.map_or(true, |status| {
            status_field(&status, "State").is_none_or(|state| state.starts_with(['Z', 'X']))
        })
}

/// Returns whether threads remain after the main thread has exited. Such a process appears to be
/// gone.
fn is_left_by_first_thread(process: u32) -> bool {
    let mut others =
        fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().filter_map(Result::ok);
    let goes_on = |thread: fs::DirEntry| {
        let status = fs::read_to_string(thread.path().join("status")).unwrap_or_default();
        status_field(&status, "State").is_some_and(|state| !state.starts_with(['Z', 'X']))
    };
    others.any(goes_on)
}

/// The names that the C library's allocator consists of. The code between the first and the last of
/// them is the allocator.
const ALLOCATOR: [&str; 14] = [
    "malloc",
    "free",
    "calloc",
    "realloc",
    "memalign",
    "aligned_alloc",
    "posix_memalign",
    "valloc",
    "pvalloc",
    "malloc_trim",
    "malloc_usable_size",
    "mallinfo",
    "malloc_stats",
    "malloc_info",
];

/// Functions of the C library that hold locks which loading a library needs. The locks guard the
/// list of modules, threads and their stacks.
const LOCKING: [&str; 8] = [
    "dl_iterate_phdr",
    "fork",
    "_Fork",
    "vfork",
    "pthread_create",
    "pthread_exit",
    "pthread_getattr_np",
    "pthread_setattr_default_np",
];

impl Target {
    /// Checks whether the process can be attached to. Changes nothing.
    ///
    /// # Errors
    ///
    /// The reason why it cannot.
    pub fn inspect(process: u32) -> Result<Self, AttachError> {
        // A process that ends meanwhile is refused in many ways, and none states the reason.
        Self::look_at(process).map_err(|error| match has_ended(process) {
            true => AttachError::NoSuchProcess { process },
            false => error,
        })
    }

    fn look_at(process: u32) -> Result<Self, AttachError> {
        let status = fs::read_to_string(format!("/proc/{process}/status"))
            .map_err(|_| AttachError::NoSuchProcess { process })?;
        let refused = |reason: String| AttachError::Refused { process, reason };
        let field = |name| status_field(&status, name).unwrap_or_default();
        if field("State").starts_with(['Z', 'X']) {
            if is_left_by_first_thread(process) {
                return Err(refused(
                    "its main thread has exited and others go on; the kernel shows too little of them under that number; \
                     start it under `cairn heap`"
                        .to_owned(),
                ));
            }
            return Err(AttachError::NoSuchProcess { process });
        }
        if process == std::process::id() {
            return Err(refused("that is this command itself".to_owned()));
        }
        if field("Tgid") != process.to_string() {
            return Err(refused(format!("a thread of process {}; give that number", field("Tgid"))));
        }
        // Threads of the kernel are children of process 2. Any other process without memory is
        // about to end.
        let has_memory = status.contains("VmSize");
        let is_of_kernel = field("Kthread") == "1" || !has_memory && (process == 2 || field("PPid") == "2");
        if !has_memory && !is_of_kernel {
            return Err(AttachError::NoSuchProcess { process });
        }
        if is_of_kernel {
            return Err(refused("a thread of the kernel; it has no memory of its own".to_owned()));
        }
        // SAFETY: the call takes no argument and cannot fail.
        let user = unsafe { libc::geteuid() };
        if !field("Uid").split_ascii_whitespace().all(|word| word == user.to_string()) {
            let owner = field("Uid").split_ascii_whitespace().next().unwrap_or_default().to_owned();
            return Err(refused(format!(
                "belongs to the user of number {owner}, who could not read the library or write the recording; run cairn as \
                 that user: sudo -u '#{owner}' cairn heap --attach {process}"
            )));
        }
        if field("TracerPid") != "0" {
            let reason =
                format!("traced by process {}, a debugger or strace; end that first", field("TracerPid"));
            return Err(AttachError::Busy { process, reason });
        }
        if field("State").starts_with(['T', 't']) {
            return Err(refused(format!("is stopped; let it go on first: kill -CONT {process}")));
        }
        if field("Seccomp") != "0" && !field("Seccomp").is_empty() {
            return Err(refused(
                "has locked itself in (seccomp): system calls for recording might end it; start it under `cairn heap`, \
                 which records until it does that"
                    .to_owned(),
            ));
        }
        if field("x86_Thread_features").contains("shstk") {
            return Err(refused(
                "runs with a shadow stack, which forbids calling functions from outside; start it under `cairn heap`"
                    .to_owned(),
            ));
        }
        let program = Program::find(format!("/proc/{process}/exe").as_ref())
            .map_err(|_| refused(format!("its program cannot be read: {}", permission_advice())))?;
        program.inspect().map_err(AttachError::Program)?;
        let maps = maps_of(process).map_err(|_| refused(permission_advice().to_owned()))?;
        if maps.is_empty() {
            return Err(refused(permission_advice().to_owned()));
        }
        let mut target = Self::from_libraries(process, program, maps).map_err(refused)?;
        target.find_own();
        Ok(target)
    }

    /// Looks up the required functions of the C library and the loader.
    fn from_libraries(process: u32, program: Program, maps: Vec<Map>) -> Result<Self, String> {
        let is_library = |map: &&Map| map.path.file_name() == Some(OsStr::new("libc.so.6"));
        let map = maps.iter().find(is_library).cloned().ok_or(
            "glibc is not among its libraries (or its file was replaced since the start: then start it again)",
        )?;
        let path = outside(process, &map.path);
        let bytes = fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        if !bytes.windows(11).any(|part| part == b"GLIBC_2.35\0") {
            return Err("runs with a glibc before 2.35; start it under `cairn heap`".to_owned());
        }
        let file = ElfFile64::<object::Endianness>::parse(&*bytes)
            .map_err(|error| format!("{}: {error}", path.display()))?;
        let first = file
            .elf_program_headers()
            .iter()
            .find(|header| {
                header.p_type(file.endian()) == object::elf::PT_LOAD && header.p_offset(file.endian()) == 0
            })
            .map_or(0, |header| header.p_vaddr(file.endian()));
        let start = maps
            .iter()
            .find(|other| other.path == map.path && other.offset == 0)
            .ok_or("libc.so.6 is mapped in no known way")?;
        let bias = start.start.wrapping_sub(first);
        // The file may have been replaced by another of the same name: the first bytes in memory
        // are compared with those of the file.
        let mut head = vec![0; 4096.min(bytes.len())];
        let count = inject::read_memory(process as i32, start.start, &mut head)
            .map_err(|_| permission_advice().to_owned())?;
        if count != head.len() || !bytes.starts_with(&head) {
            return Err("its C library was replaced since it was started; start it again".to_owned());
        }
        let symbols: Vec<(&str, u64, u64)> = file
            .dynamic_symbols()
            .filter(|symbol| symbol.kind() == object::SymbolKind::Text && symbol.is_definition())
            .filter_map(|symbol| Some((symbol.name().ok()?, symbol.address(), symbol.size())))
            .collect();
        let find = |name: &str| {
            symbols
                .iter()
                .find(|symbol| symbol.0 == name)
                .map(|symbol| bias.wrapping_add(symbol.1))
                .ok_or_else(|| format!("its C library has no {name}"))
        };
        let mut locked = Vec::new();
        let (mut low, mut high) = (u64::MAX, 0);
        for symbol in symbols.iter().filter(|symbol| ALLOCATOR.contains(&symbol.0)) {
            low = low.min(symbol.1);
            high = high.max(symbol.1 + symbol.2);
        }
        // Functions without a name in the table lie between: each range extends to the next named
        // function.
        let before =
            symbols.iter().map(|symbol| symbol.1 + symbol.2).filter(|end| *end <= low).max().unwrap_or(0);
        let behind =
            symbols.iter().map(|symbol| symbol.1).filter(|start| *start >= high).min().unwrap_or(u64::MAX);
        locked.push((bias.wrapping_add(before), bias.wrapping_add(behind)));
        for name in LOCKING {
            if let Some(symbol) = symbols.iter().find(|symbol| symbol.0 == name) {
                let start = bias.wrapping_add(symbol.1);
                locked.push((start, start + symbol.2));
            }
        }
        // The C library's code comes first, then the loader's.
        let is_loader = |map: &Map| {
            map.path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("ld-linux"))
        };
        let is_code = |other: &&Map| other.is_code && (other.path == map.path || is_loader(other));
        let mut codes: Vec<(u64, Vec<u8>)> = Vec::new();
        for code in maps.iter().filter(is_code) {
            let mut text = vec![0; (code.end - code.start) as usize];
            let count = inject::read_memory(process as i32, code.start, &mut text)
                .map_err(|_| permission_advice().to_owned())?;
            text.truncate(count);
            codes.push((code.start, text));
        }
        let restorer = codes.iter().find_map(|(start, text)| {
            let at = text.windows(inject::RESTORER.len()).position(|part| part == inject::RESTORER)?;
            Some(start + at as u64)
        });
        let keeper = codes.iter().find_map(|(start, text)| Keeper::find(text, *start));
        let (Some(restorer), Some(keeper)) = (restorer, keeper) else {
            return Err("its C library has no place where called functions could return to; start it under \
                        `cairn heap`"
                .to_owned());
        };
        let loader_data =
            maps.iter().filter(|map| is_loader(map) && map.is_writable).map(|map| (map.start, map.end));
        let loader_data: Vec<(u64, u64)> = loader_data.collect();
        let places = Places {
            load_lock: inject::load_lock(process as i32, &loader_data),
            keeper,
            restorer,
            mmap: find("mmap")?,
            munmap: find("munmap")?,
            loader_data,
        };
        let (dlopen, dlsym, dlerror) = (find("dlopen")?, find("dlsym")?, find("dlerror")?);
        let errno = find("__errno_location")?;
        Ok(Self { process, program, dlopen, dlsym, dlerror, errno, places, own: None, locked, maps })
    }

    /// Looks up the library's addresses without the loader, if the library is loaded.
    fn find_own(&mut self) {
        self.own = None;
        let Some(path) = self.loaded_library() else { return };
        let Some(first) = self.maps.iter().find(|map| map.path == path && map.offset == 0) else { return };
        let Ok(bytes) = fs::read(outside(self.process, &path)) else { return };
        let Ok(file) = ElfFile64::<object::Endianness>::parse(&*bytes) else { return };
        let find = |name: &str| {
            let symbol = file.dynamic_symbols().find(|symbol| symbol.name() == Ok(name))?;
            Some(first.start + symbol.address())
        };
        if let (Some(release), Some(shared)) = (find("cairn_release"), find("cairn_shared")) {
            self.own = Some(OwnPlaces { release, shared });
        }
    }

    /// Reads the loaded modules again: the library is among them after the first
    /// [`attach`](Self::attach).
    pub fn look_again(&mut self) {
        if let Ok(maps) = maps_of(self.process) {
            self.maps = maps;
            self.find_own();
        }
    }

    fn own_word(&self, offset: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        let at = self.own?.shared + offset;
        let count = inject::read_memory(self.process as i32, at, &mut bytes).ok()?;
        (count == bytes.len()).then_some(u64::from_le_bytes(bytes))
    }

    /// Returns whether ended recordings have left memory in the process: see
    /// [`release_memory`](Self::release_memory).
    #[must_use]
    pub fn has_left_memory(&self) -> bool {
        [shared::HAS_MEMORY, shared::STACK]
            .into_iter()
            .any(|word| self.own_word(word).is_some_and(|word| word != 0))
    }

    /// Unmaps the memory that ended recordings have left in the process. All of its `threads` are
    /// stopped and traced by the calling thread, and none is inside the library; `caller` is one of
    /// them, with no signal on its way to it.
    ///
    /// # Errors
    ///
    /// When a thread cannot be read, or the call fails; the memory stays then.
    pub fn release_memory(&self, threads: &[u32], caller: u32) -> Result<(), AttachError> {
        let failed = |error: io::Error| self.failure("releasing memory", &error);
        let (Some(own), Some(distance)) = (self.own, self.own_word(shared::THREAD_WORD)) else {
            return Ok(());
        };
        let word = |offset| self.own_word(offset).unwrap_or(0);
        let stack = word(shared::STACK)..word(shared::STACK).saturating_add(word(shared::STACK_BYTES));
        for &thread in threads {
            if stack.contains(&inject::stack_pointer(thread as i32).map_err(failed)?) {
                // The words are left from a call whose `cairn` was killed.
                return Ok(());
            }
        }
        for &thread in threads {
            inject::clear_word(thread as i32, distance).map_err(failed)?;
        }
        Borrowed::call_once(caller as i32, &self.places, own.release).map_err(failed)?;
        Ok(())
    }

    /// Returns the file of the program that the process runs.
    #[must_use]
    pub const fn program(&self) -> &Program {
        &self.program
    }

    /// Returns whether a thread with this address on its stack may block the injection. It may hold
    /// a lock that loading a library needs, or run code that must not be called again.
    #[must_use]
    pub fn forbids(&self, address: u64) -> bool {
        if self.locked.iter().any(|(start, end)| (*start..*end).contains(&address)) {
            return true;
        }
        self.is_in(address, &["ld-linux", "libcairn_preload", "libjemalloc", "libtcmalloc", "libmimalloc"])
    }

    /// Returns whether an address is in the C library or the loader. A thread that has nothing else
    /// on its stack is about to begin or to end.
    #[must_use]
    pub fn is_system_code(&self, address: u64) -> bool {
        self.is_in(address, &["ld-linux", "libc.so"])
    }

    /// Returns whether an address is in the library.
    #[must_use]
    pub fn is_own_code(&self, address: u64) -> bool {
        self.is_in(address, &["libcairn_preload"])
    }

    /// Returns the threads that hold a lock of the loader. All threads are stopped.
    #[must_use]
    pub fn lock_owners(&self) -> Vec<u32> {
        inject::owners(self.process as i32, &self.places.loader_data)
    }

    fn is_in(&self, address: u64, names: &[&str]) -> bool {
        let map = self.maps.iter().find(|map| (map.start..map.end).contains(&address));
        let name = map.and_then(|map| map.path.file_name()).unwrap_or_default().to_string_lossy();
        names.iter().any(|part| name.starts_with(part))
    }

    /// Returns the path of the library inside the process, if it is loaded.
    #[must_use]
    pub fn loaded_library(&self) -> Option<PathBuf> {
        let is_ours = |map: &&Map| {
            map.path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("libcairn_preload"))
        };
        self.maps.iter().find(is_ours).map(|map| map.path.clone())
    }

    /// Lists the files that the process maps shared and writable, by the kernel's links. A
    /// recording is one. The list of mappings has only the name at the time of the mapping, when
    /// the file had none.
    pub fn shared_files(&self) -> impl Iterator<Item = PathBuf> {
        let shared = self.maps.iter().filter(|map| map.is_shared && map.path.is_absolute());
        shared.map(|map| {
            PathBuf::from(format!("/proc/{}/map_files/{:x}-{:x}", self.process, map.start, map.end))
        })
    }

    /// Checks that the process finds the same file as this command under a path.
    ///
    /// # Errors
    ///
    /// When it sees other files.
    pub fn sees(&self, path: &Path) -> Result<(), AttachError> {
        let identity = |path: &Path| fs::metadata(path).ok().map(|data| (data.dev(), data.ino()));
        let here = identity(path);
        if here.is_some() && here == identity(&outside(self.process, path)) {
            return Ok(());
        }
        if !self.is_there() {
            return Err(AttachError::NoSuchProcess { process: self.process });
        }
        Err(AttachError::Refused {
            process: self.process,
            reason: format!(
                "sees other files than this command (a container, or a directory of its own for temporary files): {} is \
                 not there; run cairn inside of it, or choose other places with --output, XDG_CACHE_HOME and TMPDIR",
                path.display()
            ),
        })
    }

    /// Returns whether the process runs: an ended one has no root directory any more.
    fn is_there(&self) -> bool {
        fs::metadata(format!("/proc/{}/root/", self.process)).is_ok()
    }

    /// Returns whether the process runs with the library in it. It does not after its end or after
    /// `exec`.
    #[must_use]
    pub fn has_library(&self) -> bool {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.process));
        // When the first thread has ended, its maps are empty; those of the others are not.
        tasks.is_ok_and(|tasks| {
            tasks.filter_map(Result::ok).any(|task| {
                fs::read(task.path().join("maps"))
                    .is_ok_and(|text| text.windows(16).any(|part| part == b"libcairn_preload"))
            })
        })
    }

    /// Loads the library and starts its recording, in a stopped thread. The calling thread traces
    /// the thread.
    ///
    /// # Errors
    ///
    /// When something fails. The thread is as it was.
    pub fn attach(&self, thread: u32, library: &Path, options: &OsStr) -> Result<(), AttachError> {
        let answer = self.call(thread, library, b"cairn_attach\0", options.as_bytes(), false)?;
        let reason = match answer {
            0 => return Ok(()),
            1 => {
                return Err(AttachError::Refused {
                    process: self.process,
                    reason: "is recorded already".to_owned(),
                });
            }
            2 => "the recording could not be made",
            3 => "the kernel does not let the pages be changed that its calls go through",
            5 => return Err(self.busy("another thread of it is attaching, detaching or loading a module")),
            7 => "its modules could not be changed",
            _ => {
                "none of its calls of the allocator can be bound to the library, or it was started with the library in it"
            }
        };
        Err(AttachError::Failed { process: self.process, tried: "recording", reason: reason.to_owned() })
    }

    /// Ends the recording that [`attach`](Self::attach) began, in a thread that is stopped and
    /// traced as there.
    ///
    /// # Errors
    ///
    /// When something fails, or nothing was attached.
    pub fn detach(&self, thread: u32, library: &Path) -> Result<(), AttachError> {
        match self.call(thread, library, b"cairn_detach\0", b"", true)? {
            0 => Ok(()),
            5 => Err(self.busy("another thread of it is attaching, detaching or loading a module")),
            6 => Err(AttachError::NotAttached { process: self.process }),
            _ => Err(AttachError::Failed {
                process: self.process,
                tried: "detaching",
                reason: "its modules could not all be changed back".to_owned(),
            }),
        }
    }

    fn busy(&self, reason: &str) -> AttachError {
        AttachError::Busy { process: self.process, reason: reason.to_owned() }
    }

    /// Returns the meaning of an error in a step on the process.
    fn failure(&self, tried: &'static str, error: &io::Error) -> AttachError {
        let process = self.process;
        if has_ended(process) || inject::is_gone(error) && !self.has_library() && self.own.is_some() {
            return AttachError::Ended { process };
        }
        if inject::is_late(error) || inject::is_gone(error) {
            return self.busy(&error.to_string());
        }
        AttachError::Failed { process, tried, reason: error.to_string() }
    }

    /// Calls a function of the library, and loads the library before if necessary.
    fn call(
        &self,
        thread: u32,
        library: &Path,
        function: &[u8],
        text: &[u8],
        must_be_there: bool,
    ) -> Result<i32, AttachError> {
        let failed = |tried| move |error: io::Error| self.failure(tried, &error);
        let mut borrowed =
            Borrowed::take(thread as i32, &self.places).map_err(failed("taking one of its threads"))?;
        if let Some(own) = self.own {
            borrowed.note_stack(own.shared + shared::STACK).map_err(failed("preparing the call"))?;
        }
        let mut path = library.as_os_str().as_bytes().to_vec();
        path.push(0);
        let setup = failed("preparing the call");
        let path_at = borrowed.write(0, &path).map_err(setup)?;
        let text_at = borrowed.write(8256, text).map_err(failed("preparing the call"))?;
        let done_at = borrowed.write(8248, &[0; 8]).map_err(failed("preparing the call"))?;
        let errno_at = borrowed.call(self.errno, [0; 3]).map_err(failed("asking for errno"))?;
        let mut errno = [0; 4];
        inject::read_memory(thread as i32, errno_at, &mut errno).map_err(failed("reading errno"))?;
        let result = (|| {
            let no_load = if must_be_there { libc::RTLD_NOLOAD } else { 0 };
            let mode = (libc::RTLD_NOW | libc::RTLD_LOCAL | no_load) as u64;
            let handle =
                borrowed.call(self.dlopen, [path_at, mode, 0]).map_err(failed("loading the library"))?;
            if handle == 0 {
                let error = self.loader_error(&mut borrowed);
                return Err(failed("loading the library")(error));
            }
            let mut look_up = |name: &[u8]| {
                let found = borrowed
                    .write(8192, name)
                    .and_then(|name_at| borrowed.call(self.dlsym, [handle, name_at, 0]))
                    .map_err(failed("looking into the library"))?;
                match found {
                    0 => Err(failed("looking into the library")(self.loader_error(&mut borrowed))),
                    address => Ok(address),
                }
            };
            let entry = look_up(function)?;
            let shared = look_up(b"cairn_shared\0")?;
            let code = look_up(b"cairn_recover\0")?;
            borrowed.note_stack(shared + shared::STACK).map_err(failed("preparing the call"))?;
            borrowed.recovery = Some(Recovery { code, stack_word: shared + shared::RECOVERY });
            let answer = borrowed.call_long(entry, [text_at, text.len() as u64], done_at);
            if answer.is_err() {
                // The call was given up, and with it the task that it had taken.
                let _ = inject::write_memory(thread as i32, shared + shared::WORKER, &[0; 8]);
            }
            answer.map(|answer| answer as i32).map_err(failed("the call of the library"))
        })();
        if borrowed.is_held() {
            let _ = inject::write_memory(thread as i32, errno_at, &errno);
        }
        result
    }

    fn loader_error(&self, borrowed: &mut Borrowed) -> io::Error {
        let text = borrowed.call(self.dlerror, [0; 3]).ok().filter(|at| *at != 0).map(|at| {
            let mut text = [0; 300];
            let count = inject::read_memory(self.process as i32, at, &mut text).unwrap_or(0);
            let end = text.iter().take(count).position(|byte| *byte == 0).unwrap_or(count);
            String::from_utf8_lossy(&text[..end]).into_owned()
        });
        io::Error::other(text.unwrap_or_else(|| "the loader does not say why".to_owned()))
    }

    /// Returns whether a stopped thread, traced by the calling thread, waits in a system call.
    #[must_use]
    pub fn waits(thread: u32) -> bool {
        inject::waits(thread as i32)
    }

    /// Releases a thread that this thread has stopped, with the signal that was on its way to it.
    pub fn release(thread: u32, signal: i32) {
        inject::release(thread as i32, signal);
    }
}

/// Returns the remedy when the kernel does not allow this process to inspect another.
fn permission_advice() -> &'static str {
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    match scope.trim() {
        "1" | "2" => {
            "this machine does not let processes look at others (kernel.yama.ptrace_scope): use sudo, or \
             `sudo sysctl kernel.yama.ptrace_scope=0` until the next start"
        }
        "3" => "no process may be traced on this machine (kernel.yama.ptrace_scope is 3)",
        _ => "no permission to look at it; in a container that takes CAP_SYS_PTRACE",
    }
}
