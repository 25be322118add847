//! Putting the library into a process that runs already, and ending its work there.
//!
//! What is done and why it is safe: `docs/heap.md`. Who calls this stops the threads and looks at their stacks; what lies on
//! them decides which thread can be used ([`Target::forbids`]).

use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use object::read::elf::{ElfFile64, ProgramHeader};
use object::{Object, ObjectSymbol};

use crate::inject::{self, Borrowed, Places};
use crate::{Obstacle, Program};

/// Why a process cannot be attached to. The text says what helps.
#[derive(Debug)]
#[non_exhaustive]
pub enum AttachError {
    /// There is no such process, or it has ended.
    NoSuchProcess {
        /// The number.
        process: u32,
    },
    /// Its program cannot be recorded at all.
    Program(Obstacle),
    /// Something about it makes it unsafe or impossible.
    Refused {
        /// The process.
        process: u32,
        /// What is the matter, and what helps.
        reason: String,
    },
    /// The kernel refused, or the call inside the process failed. The process goes on as it was.
    Failed {
        /// The process.
        process: u32,
        /// What was tried.
        tried: &'static str,
        /// Why it failed.
        reason: String,
    },
}

impl fmt::Display for AttachError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuchProcess { process } => write!(f, "there is no process {process}"),
            Self::Program(obstacle) => obstacle.fmt(f),
            Self::Refused { process, reason } => write!(f, "process {process}: {reason}"),
            Self::Failed { process, tried, reason } => {
                write!(f, "process {process}: {tried} failed: {reason}; it goes on as it was")
            }
        }
    }
}

impl std::error::Error for AttachError {}

/// A process that was found fit.
#[derive(Debug)]
pub struct Target {
    process: u32,
    program: Program,
    dlopen: u64,
    dlsym: u64,
    dlerror: u64,
    errno: u64,
    places: Places,
    /// Code of the C library that holds its locks.
    locked: Vec<(u64, u64)>,
    maps: Vec<Map>,
}

#[derive(Clone, Debug)]
struct Map {
    start: u64,
    end: u64,
    offset: u64,
    is_code: bool,
    is_shared: bool,
    path: PathBuf,
}

/// What `/proc/PID/maps` lists.
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
            is_shared: rights.ends_with('s'),
            path: OsStr::from_bytes(path).into(),
        })
    };
    Ok(text.split(|byte| *byte == b'\n').filter_map(parse).collect())
}

fn status_field(status: &str, name: &str) -> Option<String> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.strip_prefix(':')?.trim().to_owned())
}

/// Whether a process is gone, or about to be.
fn has_ended(process: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{process}/status"));
    !is_left_by_first_thread(process)
        && status.map_or(true, |status| {
            status_field(&status, "State").is_none_or(|state| state.starts_with(['Z', 'X']))
        })
}

/// Whether other threads go on in a process whose first one has ended, which makes it look as if it were gone.
fn is_left_by_first_thread(process: u32) -> bool {
    let mut others =
        fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().filter_map(Result::ok);
    let goes_on = |thread: fs::DirEntry| {
        let status = fs::read_to_string(thread.path().join("status")).unwrap_or_default();
        status_field(&status, "State").is_some_and(|state| !state.starts_with(['Z', 'X']))
    };
    others.any(goes_on)
}

/// The names that the C library's allocator consists of. What lies between the first and the last of them is the allocator.
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

impl Target {
    /// Looks whether the process can be attached to. Nothing is changed.
    ///
    /// # Errors
    ///
    /// Why it cannot.
    pub fn inspect(process: u32) -> Result<Self, AttachError> {
        // One that ends meanwhile is refused in many ways, none of which is the reason.
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
                    "its first thread has ended and others go on, of which the kernel shows too little under that number; \
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
        // Threads of the kernel are children of the one that is process 2; what else has no memory is about to end.
        let has_memory = status.contains("VmSize");
        let is_of_kernel = field("Kthread") == "1" || !has_memory && (process == 2 || field("PPid") == "2");
        if !has_memory && !is_of_kernel {
            return Err(AttachError::NoSuchProcess { process });
        }
        if is_of_kernel {
            return Err(refused("a thread of the kernel; it has no memory of its own".to_owned()));
        }
        // SAFETY: takes nothing and cannot fail.
        let user = unsafe { libc::geteuid() };
        if !field("Uid").split_ascii_whitespace().all(|word| word == user.to_string()) {
            let owner = field("Uid").split_ascii_whitespace().next().unwrap_or_default().to_owned();
            return Err(refused(format!(
                "belongs to the user of number {owner}, who could not read the library or write the recording; run cairn as \
                 that user: sudo -u '#{owner}' cairn heap --attach {process}"
            )));
        }
        if field("TracerPid") != "0" {
            return Err(refused(format!(
                "traced by process {}, a debugger or strace; end that first",
                field("TracerPid")
            )));
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
        let mut target = Self {
            process,
            program,
            dlopen: 0,
            dlsym: 0,
            dlerror: 0,
            errno: 0,
            places: Places { system_call: 0, trap: 0 },
            locked: Vec::new(),
            maps,
        };
        target.find_library().map_err(refused)?;
        Ok(target)
    }

    /// Looks up what is needed of the C library.
    fn find_library(&mut self) -> Result<(), String> {
        let is_library = |map: &&Map| map.path.file_name() == Some(OsStr::new("libc.so.6"));
        let map = self.maps.iter().find(is_library).cloned().ok_or(
            "glibc is not among its libraries (or its file was replaced since the start: then start it again)",
        )?;
        let path = self.outside(&map.path);
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
        let start = self
            .maps
            .iter()
            .find(|other| other.path == map.path && other.offset == 0)
            .ok_or("libc.so.6 is mapped in no known way")?;
        let bias = start.start.wrapping_sub(first);
        // The file may have been replaced by another of the same name: what is in memory has the same first bytes.
        let mut head = vec![0; 4096.min(bytes.len())];
        let count = inject::read_memory(self.process as i32, start.start, &mut head)
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
        self.dlopen = find("dlopen")?;
        self.dlsym = find("dlsym")?;
        self.dlerror = find("dlerror")?;
        self.errno = find("__errno_location")?;
        let (mut low, mut high) = (u64::MAX, 0);
        for symbol in symbols.iter().filter(|symbol| ALLOCATOR.contains(&symbol.0)) {
            low = low.min(symbol.1);
            high = high.max(symbol.1 + symbol.2);
        }
        // Functions without a name in the table lie around: up to the next one that has a name.
        let before =
            symbols.iter().map(|symbol| symbol.1 + symbol.2).filter(|end| *end <= low).max().unwrap_or(0);
        let behind =
            symbols.iter().map(|symbol| symbol.1).filter(|start| *start >= high).min().unwrap_or(u64::MAX);
        self.locked.push((bias.wrapping_add(before), bias.wrapping_add(behind)));
        for name in ["dl_iterate_phdr", "fork", "_Fork"] {
            if let Some(symbol) = symbols.iter().find(|symbol| symbol.0 == name) {
                let start = bias.wrapping_add(symbol.1);
                self.locked.push((start, start + symbol.2));
            }
        }
        let code = self
            .maps
            .iter()
            .find(|other| other.path == map.path && other.is_code)
            .ok_or("libc.so.6 has no code")?;
        let mut text = vec![0; (code.end - code.start) as usize];
        let count = inject::read_memory(self.process as i32, code.start, &mut text)
            .map_err(|_| permission_advice().to_owned())?;
        text.truncate(count);
        let place = |wanted: &[u8]| {
            text.windows(wanted.len())
                .position(|part| part == wanted)
                .map(|at| code.start + at as u64)
                .ok_or("its C library has no system calls")
        };
        self.places = Places { system_call: place(&[0x0f, 0x05])?, trap: place(&[0xcc])? };
        Ok(())
    }

    /// A path of the process as seen from here.
    fn outside(&self, path: &Path) -> PathBuf {
        Path::new(&format!("/proc/{}/root", self.process)).join(path.strip_prefix("/").unwrap_or(path))
    }

    /// The file of the program that it runs.
    #[must_use]
    pub const fn program(&self) -> &Program {
        &self.program
    }

    /// Whether a thread with this address on its stack may hold a lock that loading a library needs, or is in code that must not
    /// be called again.
    #[must_use]
    pub fn forbids(&self, address: u64) -> bool {
        if self.locked.iter().any(|(start, end)| (*start..*end).contains(&address)) {
            return true;
        }
        self.is_in(address, &["ld-linux", "libcairn_preload", "libjemalloc", "libtcmalloc", "libmimalloc"])
    }

    /// Whether an address is in the loader: whoever has it on the stack holds its lock.
    #[must_use]
    pub fn is_loader(&self, address: u64) -> bool {
        self.is_in(address, &["ld-linux"])
    }

    fn is_in(&self, address: u64, names: &[&str]) -> bool {
        let map = self.maps.iter().find(|map| (map.start..map.end).contains(&address));
        let name = map.and_then(|map| map.path.file_name()).unwrap_or_default().to_string_lossy();
        names.iter().any(|part| name.starts_with(part))
    }

    /// The path of the library inside the process, where it is there.
    #[must_use]
    pub fn loaded_library(&self) -> Option<PathBuf> {
        let is_ours = |map: &&Map| {
            map.path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("libcairn_preload"))
        };
        self.maps.iter().find(is_ours).map(|map| map.path.clone())
    }

    /// Files that it has mapped to share what it writes there, by the kernel's links to them: a recording is one. Its name in the
    /// list of mappings is that of the moment when it was made, which is none.
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
        if here.is_some() && here == identity(&self.outside(path)) {
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

    /// Whether the process runs: one that ends has no root directory any more.
    fn is_there(&self) -> bool {
        fs::metadata(format!("/proc/{}/root/", self.process)).is_ok()
    }

    /// Whether the process runs and still has the library in it: not after its end, and not after `exec`.
    #[must_use]
    pub fn has_library(&self) -> bool {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.process));
        // Where the first thread has ended, its maps are empty; those of the others are not.
        tasks.is_ok_and(|tasks| {
            tasks.filter_map(Result::ok).any(|task| {
                fs::read(task.path().join("maps"))
                    .is_ok_and(|text| text.windows(16).any(|part| part == b"libcairn_preload"))
            })
        })
    }

    /// Loads the library and lets it record, in a thread that is stopped and traced by the calling thread.
    ///
    /// # Errors
    ///
    /// When something fails. The thread is as it was.
    pub fn attach(&self, thread: u32, library: &Path, options: &OsStr) -> Result<(), AttachError> {
        let answer = self.call(thread, library, b"cairn_attach\0", options.as_bytes(), false)?;
        let reason = match answer {
            0 => return Ok(()),
            1 => "it is being recorded already",
            2 => "the recording could not be made",
            3 => "the kernel does not let the pages be changed that its calls go through",
            _ => {
                "none of its calls of the allocator can be bound to the library, or it was started with the library in it"
            }
        };
        Err(AttachError::Failed { process: self.process, tried: "recording", reason: reason.to_owned() })
    }

    /// Ends the recording that [`attach`](Self::attach) began, in a thread as there.
    ///
    /// # Errors
    ///
    /// When something fails, or nothing was attached.
    pub fn detach(&self, thread: u32, library: &Path) -> Result<(), AttachError> {
        match self.call(thread, library, b"cairn_detach\0", b"", true)? {
            0 => Ok(()),
            _ => Err(AttachError::Refused {
                process: self.process,
                reason: "is not attached to; a recording from the start is paused with `cairn heap ctl`"
                    .to_owned(),
            }),
        }
    }

    /// Calls a function of the library; loads it before.
    fn call(
        &self,
        thread: u32,
        library: &Path,
        function: &[u8],
        text: &[u8],
        must_be_there: bool,
    ) -> Result<i32, AttachError> {
        let failed = |tried| {
            move |error: io::Error| AttachError::Failed {
                process: self.process,
                tried,
                reason: error.to_string(),
            }
        };
        let mut borrowed =
            Borrowed::take(thread as i32, self.places).map_err(failed("taking one of its threads"))?;
        let mut path = library.as_os_str().as_bytes().to_vec();
        path.push(0);
        let setup = failed("preparing the call");
        let path_at = borrowed.write(0, &path).map_err(setup)?;
        let name_at = borrowed.write(8192, function).map_err(failed("preparing the call"))?;
        let text_at = borrowed.write(8256, text).map_err(failed("preparing the call"))?;
        let errno_at = borrowed.call(self.errno, [0; 3]).map_err(failed("asking for errno"))?;
        let mut errno = [0; 4];
        inject::read_memory(thread as i32, errno_at, &mut errno).map_err(failed("reading errno"))?;
        let result = (|| {
            let no_load = if must_be_there { libc::RTLD_NOLOAD } else { 0 };
            let mode = (libc::RTLD_NOW | libc::RTLD_LOCAL | no_load) as u64;
            let handle =
                borrowed.call(self.dlopen, [path_at, mode, 0]).map_err(failed("loading the library"))?;
            if handle == 0 {
                return Err(failed("loading the library")(self.loader_error(&mut borrowed)));
            }
            let entry = borrowed
                .call(self.dlsym, [handle, name_at, 0])
                .map_err(failed("looking into the library"))?;
            if entry == 0 {
                return Err(failed("looking into the library")(self.loader_error(&mut borrowed)));
            }
            let answer = borrowed
                .call(entry, [text_at, text.len() as u64, 0])
                .map_err(failed("the call of the library"))?;
            Ok(answer as i32)
        })();
        let _ = inject::write_memory(thread as i32, errno_at, &errno);
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

    /// Lets a thread go that this thread has stopped, with a signal that was on its way to it.
    pub fn release(thread: u32, signal: i32) {
        inject::release(thread as i32, signal);
    }
}

/// What to do when the kernel does not allow to look at a process.
fn permission_advice() -> &'static str {
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    match scope.trim() {
        "1" | "2" => {
            "this machine does not let processes look at others (kernel.yama.ptrace_scope): use sudo, or \
             `sudo sysctl kernel.yama.ptrace_scope=0` until the next start"
        }
        "3" => "nobody may look at processes on this machine (kernel.yama.ptrace_scope is 3)",
        _ => "no permission to look at it; in a container that takes CAP_SYS_PTRACE",
    }
}
