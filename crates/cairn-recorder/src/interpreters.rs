//! Writes the code of interpreters that is on stacks, and which interpreters there are.

use core::sync::atomic::{AtomicU64, Ordering};

use cairn_format::recording::{InterpreterState, MAX_CODE_LINES_BYTES};

use crate::os::ErrnoGuard;
use crate::recorder;
use crate::tables::TableWriter;

/// Interpreters that were found in this process; 8, twice as many as a capture reads frames of.
///
/// The version, and in the upper half one more than the number of the state; 0 for none.
static FOUND: [AtomicU64; 8] = [const { AtomicU64::new(0) }; 8];

/// Records that an interpreter was found in this process, and whether captures read its frames.
/// `version` is CPython's `PY_VERSION_HEX`.
///
/// Later recordings of this process have it as well.
pub fn note_interpreter(version: u32, state: InterpreterState) {
    let word = u64::from(version) | u64::from(state.number() + 1) << 32;
    let order = Ordering::AcqRel;
    for place in &FOUND {
        match place.compare_exchange(0, word, order, Ordering::Acquire) {
            Ok(_) => break,
            Err(known) if known == word => return,
            Err(_) => {}
        }
    }
    let _errno = ErrnoGuard::new();
    if let Some(mut tables) = recorder::current().and_then(TableWriter::take) {
        write_interpreter(&mut tables, word);
    }
}

/// Writes all interpreters that were found.
pub(crate) fn publish(tables: &mut TableWriter<'_>) {
    for place in &FOUND {
        let word = place.load(Ordering::Acquire);
        if word != 0 {
            write_interpreter(tables, word);
        }
    }
}

fn write_interpreter(tables: &mut TableWriter<'_>, word: u64) {
    let state = (word >> 32) as u32;
    if let Some(state) = state.checked_sub(1).and_then(InterpreterState::from_number) {
        tables.append(2, |sink| sink.interpreter(word as u32, state));
    }
}

/// Writes the code of this number, unless it is in the file.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub(crate) fn publish_code(tables: &mut TableWriter<'_>, number: u32) {
    use cairn_format::recording::Code;

    let published = &tables.recorder().published_codes;
    if published.has(number) {
        return;
    }
    let Some(contents) = cairn_capture::python_code(number) else { return };
    let code = Code {
        number,
        first_line: contents.first_line,
        format: contents.format,
        line_table_bytes: contents.line_table.len() as u32,
        file: contents.file,
        name: contents.name,
    };
    let slots = 4 + (code.file.len() + code.name.len()).div_ceil(8);
    let mut is_written = tables.append(slots, |sink| sink.code(&code));
    let mut offset = 0;
    for part in contents.line_table.chunks(MAX_CODE_LINES_BYTES) {
        let slots = 2 + part.len().div_ceil(8);
        is_written &= tables.append(slots, |sink| sink.code_lines(number, offset, part));
        offset += part.len() as u32;
    }
    if is_written {
        published.add(number);
    }
}

/// Python frames are merged on x86-64 Linux only.
#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
pub(crate) fn publish_code(_tables: &mut TableWriter<'_>, _number: u32) {}

const _: () = assert!(MAX_CODE_LINES_BYTES.is_multiple_of(8));
