//! Called by the loader: starts the recording.
//!
//! `cairn` starts the program suspended, makes the [exchange](crate::exchange) and loads this
//! library in a thread of its own. The loader calls [`DllMain`] in that thread; the program's first
//! instruction follows. Without an exchange, when anything else loads the library, nothing happens.

use core::ffi::c_void;
use core::fmt::{self, Write};

use cairn_recorder::{Options, StartError, recording_path, start};

use crate::exchange::{Answer, Exchange};
use crate::patch::PatchError;
use crate::{hooks, nesting, patch};

const PROCESS_ATTACH: u32 = 1;

/// Called by the loader. Ends of threads and of the process are the recorder's affair.
///
/// # Safety
///
/// None is necessary: a type of the loader.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn DllMain(_module: *mut c_void, reason: u32, _reserved: *mut c_void) -> i32 {
    if reason == PROCESS_ATTACH
        && let Some(exchange) = Exchange::open()
    {
        begin(exchange);
    }
    1
}

/// Hooks the heap and starts the recording; answers what has happened.
fn begin(exchange: Exchange) {
    let outcome = match exchange.path() {
        None => Err(Reason::Path),
        Some(_) if !nesting::take_word() => Err(Reason::Start(StartError::ThreadStorage)),
        Some(path) => nesting::outermost(|| {
            patch::install(&hooks::all()).map_err(Reason::Patch)?;
            start(&Options::new(path)).map_err(Reason::Start)
        }),
    };
    match outcome {
        Ok(()) => {
            let path = recording_path().map_or(&b""[..], core::ffi::CStr::to_bytes);
            exchange.answer(Answer::Recording, path);
        }
        Err(reason) => {
            let mut text = Text { bytes: [0; 512], used: 0 };
            let _ = write!(text, "{reason}");
            exchange.answer(Answer::Refused, text.bytes.get(..text.used).unwrap_or_default());
        }
    }
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
            Self::Patch(PatchError::Missing(name)) => {
                write!(f, "ntdll has no function {}", name.to_str().unwrap_or_default())
            }
            Self::Patch(PatchError::Fixed(name, at, bytes)) => {
                let name = name.to_str().unwrap_or_default();
                write!(f, "{name} in ntdll cannot be hooked: unknown instruction at byte {at} (")?;
                for (index, byte) in bytes.iter().enumerate() {
                    write!(f, "{}{byte:02x}", if index == 0 { "" } else { " " })?;
                }
                f.write_str("); another tool may have hooked it already")
            }
            Self::Patch(PatchError::Protected(status)) => write!(
                f,
                "the system refuses to change code in this process (status {status:#010x}); its policy may forbid it"
            ),
        }
    }
}

/// A text of limited length.
struct Text {
    bytes: [u8; 512],
    used: usize,
}

impl Write for Text {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let end = self.used + text.len();
        self.bytes.get_mut(self.used..end).ok_or(fmt::Error)?.copy_from_slice(text.as_bytes());
        self.used = end;
        Ok(())
    }
}
