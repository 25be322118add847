//! Called by the loader: starts the recording.
//!
//! `cairn` starts the program suspended, makes the [exchange](crate::exchange) and loads this
//! library in a thread of its own. The loader calls [`DllMain`] in that thread; the program's first
//! instruction follows. Without an exchange, when anything else loads the library, nothing happens.

use core::ffi::c_void;
use core::fmt::{self, Write};

use cairn_recorder::{Options, StartError, recording_path, start};

use crate::calls::program_path;
use crate::exchange::{Answer, Exchange};
use crate::patch::PatchError;
use crate::{children, hooks, mappings, nesting, patch};

const PROCESS_ATTACH: u32 = 1;

/// Called by the loader. Ends of threads and of the process are the recorder's affair.
///
/// # Safety
///
/// None is necessary: a type of the loader.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn DllMain(module: *mut c_void, reason: u32, _reserved: *mut c_void) -> i32 {
    if reason == PROCESS_ATTACH
        && let Some(exchange) = Exchange::open()
    {
        begin(exchange, module);
    }
    1
}

/// Hooks the heap and starts the recording; answers what has happened.
fn begin(mut exchange: Exchange, own: *mut c_void) {
    let requests = exchange.requests();
    let mut path = Text::<PATH_BYTES>::new();
    let is_filled = exchange.path().is_some_and(|pattern| fill(pattern, &mut path).is_ok());
    let outcome = if !is_filled {
        Err(Reason::Path)
    } else if !nesting::take_word() {
        Err(Reason::Start(StartError::ThreadStorage))
    } else {
        nesting::outermost(|| {
            if requests.children {
                children::prepare(exchange.run());
            }
            if requests.mappings {
                mappings::prepare(own);
            }
            let (children, mappings) = (children::all(), mappings::all());
            let children = children.iter().filter(|_| requests.children);
            let mappings = mappings.iter().filter(|_| requests.mappings);
            patch::install(hooks::all().iter().chain(children).chain(mappings)).map_err(Reason::Patch)?;
            start(&Options::new(path.bytes())).map_err(Reason::Start)
        })
    };
    match outcome {
        // Unmapping the section is no event of the program.
        Ok(()) => nesting::outermost(|| {
            let path = recording_path().map_or(&b""[..], core::ffi::CStr::to_bytes);
            exchange.answer(Answer::Recording, path);
            if requests.children {
                exchange.retain();
            }
        }),
        Err(reason) => {
            let mut text = Text::<512>::new();
            let _ = write!(text, "{reason}");
            exchange.answer(Answer::Refused, text.bytes());
        }
    }
}

/// Maximum bytes of the recording's path; more than the recorder takes.
const PATH_BYTES: usize = 8192;

/// Fills `%n` into the pattern of a path: the program's name, without `.exe`.
///
/// The other fields remain, which are the recorder's.
fn fill(pattern: &[u8], path: &mut Text<PATH_BYTES>) -> fmt::Result {
    let mut rest = pattern;
    while let Some((&byte, behind)) = rest.split_first() {
        rest = behind;
        match (byte, behind.first()) {
            (b'%', Some(b'n')) => {
                rest = behind.get(1..).unwrap_or_default();
                push_program_name(path)?;
            }
            (b'%', Some(&field)) => {
                rest = behind.get(1..).unwrap_or_default();
                path.push(&[byte, field])?;
            }
            _ => path.push(&[byte])?,
        }
    }
    Ok(())
}

/// Appends the program's name as WTF-8. Percent signs are doubled, because they are no fields.
fn push_program_name(path: &mut Text<PATH_BYTES>) -> fmt::Result {
    let mut units = [0_u16; 1024];
    let program = program_path(&mut units);
    let name = program.rsplit(|&unit| unit == u16::from(b'\\')).next().unwrap_or_default();
    let end = name.iter().rposition(|&unit| unit == u16::from(b'.')).filter(|&end| end > 0);
    for character in
        char::decode_utf16(name.get(..end.unwrap_or(name.len())).unwrap_or_default().iter().copied())
    {
        match character {
            Ok('%') => path.push(b"%%")?,
            Ok(character) => path.write_char(character)?,
            Err(half) => {
                let half = half.unpaired_surrogate();
                path.push(&[0xed, 0x80 | (half >> 6 & 0x3f) as u8, 0x80 | (half & 0x3f) as u8])?;
            }
        }
    }
    Ok(())
}

/// Reason why nothing is recorded.
enum Reason {
    Path,
    Patch(PatchError),
    Start(StartError),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path => f.write_str("the recording's path is too long"),
            Self::Start(error) => write!(f, "{error}"),
            Self::Patch(PatchError::Missing(library, name)) => {
                let [library, name] = [library.name(), name].map(|name| name.to_str().unwrap_or_default());
                write!(f, "{library} has no function {name}")
            }
            Self::Patch(PatchError::Fixed(library, name, at, bytes)) => {
                let [library, name] = [library.name(), name].map(|name| name.to_str().unwrap_or_default());
                write!(f, "{name} in {library} cannot be hooked: unknown instruction at byte {at} (")?;
                for (index, byte) in bytes.iter().enumerate() {
                    write!(f, "{}{byte:02x}", if index == 0 { "" } else { " " })?;
                }
                f.write_str("); another tool may have hooked it already")
            }
            Self::Patch(PatchError::TooMany) => f.write_str("there are too many hooks"),
            Self::Patch(PatchError::Protected(status)) => write!(
                f,
                "the system refuses to change code in this process (status {status:#010x}); its policy may forbid it"
            ),
        }
    }
}

/// A text of limited length.
struct Text<const BYTES: usize> {
    bytes: [u8; BYTES],
    used: usize,
}

impl<const BYTES: usize> Text<BYTES> {
    const fn new() -> Self {
        Self { bytes: [0; BYTES], used: 0 }
    }

    fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.used).unwrap_or_default()
    }

    fn push(&mut self, bytes: &[u8]) -> fmt::Result {
        let end = self.used + bytes.len();
        self.bytes.get_mut(self.used..end).ok_or(fmt::Error)?.copy_from_slice(bytes);
        self.used = end;
        Ok(())
    }
}

impl<const BYTES: usize> Write for Text<BYTES> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.push(text.as_bytes())
    }
}
