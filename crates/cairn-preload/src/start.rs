//! Starts everything at the first call of a hook: finds the real functions, reads the options,
//! cleans the environment, begins to record.
//!
//! Usually that is a call of malloc by the loader itself, before any constructor, when the C
//! library is not initialised: nothing of it is used here. The constructor at the end is for
//! programs that never allocate.

use core::ffi::{CStr, c_char};
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

use crate::environment::{self, OwnVariables, ProcessArguments};
use crate::options::Options;
use crate::recorder;
use crate::text::Text;
use crate::{at_fork, next, python, system};

static HAS_BEGUN: AtomicBool = AtomicBool::new(false);
/// Number of the process that began to record; 0 for none.
static PROCESS: AtomicU32 = AtomicU32::new(0);
static WITH_CHILDREN: AtomicBool = AtomicBool::new(false);
/// True when mappings are recorded as well.
static WITH_MAPPINGS: AtomicBool = AtomicBool::new(false);
/// The text of `CAIRN_HEAP=...` in the kernel's own array; with children to record, a copy, because
/// some programs overwrite that array with their title.
static OPTIONS: AtomicPtr<c_char> = AtomicPtr::new(ptr::null_mut());
/// The program's name, for its forked children; null when they are not recorded.
static NAME: AtomicPtr<c_char> = AtomicPtr::new(ptr::null_mut());

/// Starts once; a call from another thread or a signal handler meanwhile returns at once.
#[cold]
pub(crate) extern "C" fn begin() {
    next::resolve();
    if !HAS_BEGUN.swap(true, Ordering::AcqRel) {
        let errno = system::errno();
        begin_once();
        system::set_errno(errno);
    }
}

fn begin_once() {
    // SAFETY: the program has not begun, or this library was loaded by hand and the next line finds
    // nothing.
    let found = unsafe { ProcessArguments::find() };
    let environment = found.as_ref().map_or_else(environment::current, |found| found.environment);
    let name = found.as_ref().map_or(&b"program"[..], ProcessArguments::program_name);
    // SAFETY: the environment is an array of texts; what the kernel wrote stays.
    let text = unsafe { environment::options(environment) }.filter(|_| !system::has_raised_rights());
    let options = match Options::parse(text.unwrap_or_default()) {
        Ok(options) => options,
        Err(word) => {
            complain(&[b"CAIRN_HEAP: \"", word, b"\" is not an option; nothing is recorded"]);
            Options { is_off: true, ..Options::new() }
        }
    };
    if let Some(text) = text {
        // SAFETY: the name of the variable is in front of its value.
        let whole = unsafe { text.as_ptr().sub(b"CAIRN_HEAP=".len()) };
        OPTIONS.store(whole.cast_mut().cast(), Ordering::Relaxed);
    }
    // A program with more rights than its caller must not write where the caller directs it.
    if !options.is_off && !system::has_raised_rights() {
        // Before the modules are listed; the only thread waits for no lock.
        cairn_capture::prepare_modules();
        match record(&options, name, recorder::start, Voice::Any) {
            Ok(()) => {
                if options.with_children {
                    follow_children(name);
                }
                PROCESS.store(system::process_id(), Ordering::Relaxed);
                WITH_CHILDREN.store(options.with_children, Ordering::Relaxed);
                WITH_MAPPINGS.store(options.with_mappings, Ordering::Relaxed);
                python::set_wanted(options.with_python);
            }
            Err(()) => WITH_CHILDREN.store(false, Ordering::Relaxed),
        }
    }
    // With children to record, the variables stay: `system` and `popen` pass the environment on.
    if !WITH_CHILDREN.load(Ordering::Relaxed) {
        // SAFETY: the program has not begun.
        unsafe { environment::remove_own(environment, next::own_path()) };
    }
}

/// Makes forked children record, each to a file of its own.
fn follow_children(name: &[u8]) {
    // SAFETY: null, or the whole text of the variable.
    let text = unsafe { OPTIONS.load(Ordering::Relaxed).as_ref() };
    // SAFETY: as above.
    let text = text.map_or(&b""[..], |text| unsafe { CStr::from_ptr(text) }.to_bytes());
    let Some(memory) = system::map(text.len() + name.len() + 2) else { return };
    // SAFETY: the mapping has room for both, and a zero behind each.
    unsafe {
        ptr::copy_nonoverlapping(text.as_ptr(), memory, text.len());
        let name_place = memory.add(text.len() + 1);
        ptr::copy_nonoverlapping(name.as_ptr(), name_place, name.len());
        OPTIONS.store(memory.cast(), Ordering::Relaxed);
        NAME.store(name_place.cast(), Ordering::Relaxed);
    }
    recorder::set_child_starter(begin_in_child);
}

/// Starts the recording of a forked child at its first event. It runs on the stack of that event,
/// so that large variables are elsewhere.
extern "C" fn begin_in_child() {
    let (text, name) = (OPTIONS.load(Ordering::Relaxed), NAME.load(Ordering::Relaxed));
    if text.is_null() || name.is_null() {
        return;
    }
    // SAFETY: both are copies that stay.
    let (text, name) = unsafe { (CStr::from_ptr(text).to_bytes(), CStr::from_ptr(name).to_bytes()) };
    let text = text.strip_prefix(b"CAIRN_HEAP=").unwrap_or_default();
    if let Ok(options) = Options::parse(text)
        && record(&options, name, recorder::start_in_child, Voice::OnlyToCommand).is_ok()
    {
        PROCESS.store(system::process_id(), Ordering::Relaxed);
    }
}

/// Maximum bytes of a path in the kernel.
const PATH_BYTES: usize = 4096;

/// Memory for the start, which small stacks do not have. All-zero bytes are empty texts.
#[repr(C)]
struct Workspace {
    path: Text<PATH_BYTES>,
    escaped: Text<PATH_BYTES>,
    directory: [u8; PATH_BYTES],
    announcements: Text<PATH_BYTES>,
    line: Text<{ PATH_BYTES + 256 }>,
}

type Begin = fn(&cairn_recorder::Options<'_>) -> Result<(), cairn_recorder::StartError>;

/// Begins to record, and announces the result.
fn record(options: &Options<'_>, name: &[u8], begin: Begin, voice: Voice) -> Result<(), ()> {
    let memory = system::map(size_of::<Workspace>()).ok_or(())?;
    // SAFETY: fresh, zeroed memory of that size, with the alignment of a page.
    let result = record_in(unsafe { &mut *memory.cast::<Workspace>() }, options, name, begin, voice);
    // SAFETY: mapped above; `record_in` has returned, so that nothing refers to it.
    unsafe { system::unmap(memory, size_of::<Workspace>()) };
    result
}

fn record_in(
    room: &mut Workspace,
    options: &Options<'_>,
    name: &[u8],
    begin: Begin,
    voice: Voice,
) -> Result<(), ()> {
    let why = match output_path(&mut room.path, &mut room.directory, options.output, name) {
        Ok(number) => {
            escape(&mut room.escaped, room.path.as_bytes());
            match recorder::begin(room.escaped.as_bytes(), options, begin) {
                Ok(()) => {
                    // The recorder takes the next name if another process has taken this one
                    // meanwhile.
                    let chosen_bytes = room.path.as_bytes().len();
                    if let Some(path) = recorder::recording_path() {
                        room.path.clear();
                        room.path.push(path.to_bytes());
                    }
                    let appended_bytes = room.path.as_bytes().len().saturating_sub(chosen_bytes);
                    let mut numbering = Text::<24>::new();
                    numbering.push_number(number.into());
                    numbering.push(b".");
                    numbering.push_number(appended_bytes as u64);
                    announce(room, options, b"began", numbering.as_bytes(), voice);
                    return Ok(());
                }
                Err(error) => recorder::meaning(error),
            }
        }
        Err(error) => error.meaning(),
    };
    announce(room, options, b"failed", why.as_bytes(), voice);
    Err(())
}

/// Builds the first name of the pattern that no file has, and returns its number. A process has a
/// file for each program that it executes.
fn output_path(
    path: &mut Text<PATH_BYTES>,
    directory: &mut [u8; PATH_BYTES],
    pattern: &[u8],
    name: &[u8],
) -> Result<u32, system::Error> {
    for number in 1..1000 {
        path.clear();
        fill_in(path, directory, pattern, name, number)?;
        path.push(b"\0");
        if path.is_cut() {
            return Err(system::Error(libc::ENAMETOOLONG));
        }
        let is_there = CStr::from_bytes_with_nul(path.as_bytes()).is_ok_and(system::exists);
        path.pop();
        if !is_there {
            return Ok(number);
        }
    }
    Err(system::Error(libc::EEXIST))
}

/// Fills in `pattern`, and makes it absolute: the program may change its directory. With a `number`
/// above 1, the name has that number in it.
fn fill_in(
    path: &mut Text<PATH_BYTES>,
    directory: &mut [u8; PATH_BYTES],
    pattern: &[u8],
    name: &[u8],
    number: u32,
) -> Result<(), system::Error> {
    if !pattern.starts_with(b"/") {
        path.push(system::working_directory(directory)?);
        path.push(b"/");
    }
    let (stem, ending) = match pattern.strip_suffix(b".cairn") {
        Some(stem) => (stem, &b".cairn"[..]),
        None => (pattern, &b""[..]),
    };
    let mut bytes = stem.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'%' => match bytes.next() {
                Some(b'n') => path.push(name),
                Some(b'p') => path.push_number(system::process_id().into()),
                Some(other) => path.push(&[*other]),
                None => path.push(b"%"),
            },
            _ => path.push(&[*byte]),
        }
    }
    if number > 1 {
        path.push(b".");
        path.push_number(number.into());
    }
    path.push(ending);
    Ok(())
}

/// Doubles percent signs, which begin fields of the recorder.
fn escape(escaped: &mut Text<PATH_BYTES>, path: &[u8]) {
    for byte in path {
        escaped.push(if *byte == b'%' { b"%%" } else { core::slice::from_ref(byte) });
    }
}

/// Readers of a failure message.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Voice {
    /// The reader of standard error, if no file for announcements was given.
    Any,
    /// Only the command: descriptor 2 of a running process may be one of its data files.
    OnlyToCommand,
}

/// Appends a line to the file that `cairn heap` reads. The line has what happened, the process,
/// why it failed or else how the name differs from the plain one, and the path, with a NUL at the
/// end.
/// Without such a file, only a failure is reported, on
/// standard error, before the program begins. A file that cannot be written is ignored: the command
/// notices by itself that its program does not record.
fn announce(room: &mut Workspace, options: &Options<'_>, what: &[u8], why: &[u8], voice: Voice) {
    let Workspace { path, announcements: place, line, .. } = room;
    let path = path.as_bytes();
    place.push(options.announce);
    place.push(b"\0");
    for part in [what, b"\t"] {
        line.push(part);
    }
    line.push_number(system::process_id().into());
    for part in [b"\t", why, b"\t", path, b"\0"] {
        line.push(part);
    }
    if !options.announce.is_empty() {
        let appended =
            CStr::from_bytes_with_nul(place.as_bytes()).map(|place| system::append(place, line.as_bytes()));
        if let Ok(Err(system::Error(libc::EFBIG))) = appended {
            announce_by_link(place, line.as_bytes());
        }
    } else if what == b"failed" && voice == Voice::Any {
        complain_in(line, &[path, b": ", why, b"; nothing is recorded, the program runs as it is"]);
    }
}

/// Announces by the target of a symbolic link where no file may grow (`ulimit -f`). A link has no
/// content.
fn announce_by_link(place: &mut Text<PATH_BYTES>, line: &[u8]) {
    // A process has a link for each program that it executes.
    const MOST: u64 = 100;
    place.pop();
    let length = place.as_bytes().len();
    let Ok(text) = CStr::from_bytes_with_nul(line) else { return };
    for number in 0..MOST {
        place.truncate(length);
        place.push(b"-");
        place.push_number(system::process_id().into());
        place.push(b"-");
        place.push_number(number);
        place.push(b"\0");
        let made = CStr::from_bytes_with_nul(place.as_bytes()).map(|place| system::link_text(text, place));
        if !matches!(made, Ok(Err(system::Error(libc::EEXIST)))) {
            return;
        }
    }
}

fn complain(parts: &[&[u8]]) {
    complain_in(&mut Text::new(), parts);
}

fn complain_in(line: &mut Text<{ PATH_BYTES + 256 }>, parts: &[&[u8]]) {
    line.clear();
    line.push(b"cairn: ");
    for part in parts {
        line.push(part);
    }
    line.push(b"\n");
    system::complain(line.as_bytes());
}

/// Returns true when mappings are recorded.
pub(crate) fn with_mappings() -> bool {
    WITH_MAPPINGS.load(Ordering::Relaxed)
}

/// Notes in the recording of this process that it calls `exec`, or that the call has failed.
///
/// A child of `vfork` notes nothing: it has the memory of its parent, and so its recording.
pub(crate) fn note_exec(is_calling: bool) {
    let recorded = PROCESS.load(Ordering::Relaxed);
    if recorded != 0 && system::process_id() == recorded {
        recorder::note_exec(is_calling);
    }
}

/// Returns the variables for the next program of this process.
pub(crate) fn variables_for_exec() -> Option<OwnVariables> {
    let recorded = PROCESS.load(Ordering::Relaxed);
    let follows =
        recorded != 0 && (system::process_id() == recorded || WITH_CHILDREN.load(Ordering::Relaxed));
    follows.then(own_variables)
}

/// Returns the variables for a process that this one starts.
pub(crate) fn variables_for_children() -> Option<OwnVariables> {
    WITH_CHILDREN.load(Ordering::Relaxed).then(own_variables)
}

fn own_variables() -> OwnVariables {
    // A start makes system calls, and each may end a program in a sandbox.
    let is_wanted = !recorder::forbids_system_calls();
    OwnVariables { is_wanted, options: OPTIONS.load(Ordering::Relaxed), library: next::own_path() }
}

/// Parses the options for a running program. From then on hooks may be called: they find that
/// nothing is recorded.
pub(crate) fn prepare_attached(text: &[u8]) -> Result<Attached<'_>, ()> {
    HAS_BEGUN.store(true, Ordering::Release);
    let mut options = Options::parse(text).map_err(|_| ())?;
    let begins_paused = core::mem::replace(&mut options.begins_paused, true);
    WITH_MAPPINGS.store(options.with_mappings, Ordering::Relaxed);
    python::set_wanted(options.with_python);
    Ok(Attached { options, begins_paused })
}

/// Options of an attached recording.
pub(crate) struct Attached<'a> {
    options: Options<'a>,
    pub(crate) begins_paused: bool,
}

impl Attached<'_> {
    /// Begins to record, paused. Processes that the program starts are not recorded.
    pub(crate) fn begin(&self) -> Result<(), ()> {
        record(&self.options, b"program", recorder::start, Voice::OnlyToCommand)
    }
}

/// Runs when the library is loaded. In a running program nothing begins before [`crate::attach`].
extern "C" fn construct() {
    if next::is_last() {
        // The loader holds its lock while it calls this, so that its list can be read.
        next::resolve();
        cairn_capture::prepare_modules();
    } else {
        begin();
        python::find();
        #[cfg(target_arch = "x86_64")]
        crate::runtimes::find();
        // Not on Linux itself, where the wiped memory shows a child that it is one.
        if recorder::needs_fork_hook() {
            at_fork::register(None, None, after_fork_in_child);
        }
    }
}

extern "C" fn after_fork_in_child() {
    // SAFETY: the C library calls it in a child of `fork`, before that returns.
    unsafe { recorder::wipe_in_child() };
}

#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = construct;
