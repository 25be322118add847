//! Finds the interpreters of CPython among the modules, and decides whether their frames are read.

use std::fmt;

use cairn_format::AbsoluteAddress;
use cairn_format::recording::InterpreterState;
use cairn_unwind::python::{Layout, TYPE_NAME, ThreadListLayout};
use cairn_unwind::{AddressRange, MemoryReader};

use super::Words;
use super::symbols::ExportedSymbols;
use crate::process::{LoadedModule, Mapping, ThreadSource};

/// Maximum interpreters of a process; 16, because more than one is rare already.
const MAX_INTERPRETERS: usize = 16;
/// Maximum bytes of a module that are searched for its version; 64 MiB.
const MAX_SEARCHED_BYTES: u64 = 64 << 20;

/// An interpreter whose frames are read.
#[derive(Debug)]
pub(super) struct PythonInterpreter {
    pub(super) version: u32,
    pub(super) layout: Layout,
    pub(super) threads: ThreadListLayout,
    pub(super) runtime: u64,
    pub(super) code_type: u64,
    /// The evaluation function, for versions without marks.
    pub(super) evaluation: AddressRange,
    pub(super) module: AddressRange,
}

/// An interpreter whose frames are not read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct PythonRefusal {
    /// The version as CPython's `PY_VERSION_HEX`; 0 if it is not known.
    pub version: u32,
    /// Why its frames are not read.
    pub reason: PythonRefusalReason,
}

/// Why the frames of an interpreter are not read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum PythonRefusalReason {
    /// When no table has this version's offsets.
    UnknownVersion,
    /// When the build has no global lock.
    FreeThreaded,
    /// When it is a debug build.
    DebugBuild,
    /// When the module does not export what leads to the frames.
    NotExported,
    /// When its data are not where its version has them.
    OtherLayout,
    /// When it is not on x86-64.
    OtherProcessor,
}

impl PythonRefusal {
    pub(super) const fn new(version: u32, reason: PythonRefusalReason) -> Self {
        Self { version, reason }
    }
}

impl fmt::Display for PythonRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no Python frames: Python")?;
        if self.version != 0 {
            let part = |shift: u32| self.version >> shift & 0xff;
            write!(f, " {}.{}.{}", part(24), part(16), part(8))?;
        }
        f.write_str(match self.reason {
            PythonRefusalReason::UnknownVersion if self.version == 0 => ": its version is not known",
            PythonRefusalReason::UnknownVersion => ": this version is not supported",
            PythonRefusalReason::FreeThreaded => ": a build without a global lock is not supported",
            PythonRefusalReason::DebugBuild => ": a debug build is not supported",
            PythonRefusalReason::NotExported => ": it does not export what leads to them",
            PythonRefusalReason::OtherLayout => {
                ": its data are not where this version has them, or are not readable"
            }
            PythonRefusalReason::OtherProcessor => ": they are read on x86-64 only",
        })
    }
}

/// Finds the interpreters: each with the addresses of its module.
pub(super) fn find<S: ThreadSource>(
    source: &S,
    is_known_machine: bool,
) -> Vec<(AddressRange, Result<PythonInterpreter, PythonRefusal>)> {
    let words = Words(source.memory());
    let of_module = |module: &LoadedModule| {
        let symbols = ExportedSymbols::of(module, words)?;
        // Exported by every version, and by nothing else.
        symbols.find("Py_GetVersion")?;
        let version = version_of(source, module, &symbols, words).unwrap_or(0);
        let found = match is_known_machine {
            true => examine(version, module, &symbols, words),
            false => Err(PythonRefusalReason::OtherProcessor),
        };
        let found = found.map_err(|reason| PythonRefusal::new(version, reason));
        Some((module.range(), found))
    };
    source.modules().modules().iter().filter_map(of_module).take(MAX_INTERPRETERS).collect()
}

fn examine<M: MemoryReader>(
    version: u32,
    module: &LoadedModule,
    symbols: &ExportedSymbols<'_, M>,
    words: Words<'_, M>,
) -> Result<PythonInterpreter, PythonRefusalReason> {
    let reason = |state: InterpreterState| match state {
        InterpreterState::UnknownVersion => PythonRefusalReason::UnknownVersion,
        InterpreterState::FreeThreaded => PythonRefusalReason::FreeThreaded,
        _ => PythonRefusalReason::OtherLayout,
    };
    let Some(runtime) = symbols.find("_PyRuntime").map(|found| found.start.value()) else {
        // Interpreters before 3.7 have none.
        let is_known = version >> 24 == 3 && Layout::of(version, 0, words.0).is_ok();
        return Err(if is_known {
            PythonRefusalReason::NotExported
        } else {
            PythonRefusalReason::UnknownVersion
        });
    };
    let layout = Layout::of(version, runtime, words.0).map_err(reason)?;
    let threads = ThreadListLayout::of(version, runtime, words.0).map_err(reason)?;
    // Counts references in a debug build alone.
    if symbols.find("_Py_NegativeRefcount").is_some() {
        return Err(PythonRefusalReason::DebugBuild);
    }
    let exported = |name: &str| symbols.find(name).ok_or(PythonRefusalReason::NotExported);
    let code_type = exported("PyCode_Type")?.start.value();
    let evaluation = exported("_PyEval_EvalFrameDefault")?;
    if !is_code_type(code_type, words) {
        return Err(PythonRefusalReason::OtherLayout);
    }
    let module = module.range();
    Ok(PythonInterpreter { version, layout, threads, runtime, code_type, evaluation, module })
}

/// A type object has its name behind its header.
fn is_code_type<M: MemoryReader>(code_type: u64, words: Words<'_, M>) -> bool {
    let mut name = [0; 5];
    let read = words
        .word(code_type.wrapping_add(TYPE_NAME))
        .and_then(|name_at| words.0.read(AbsoluteAddress::new(name_at), &mut name));
    read.is_some() && &name == b"code\0"
}

/// Returns `PY_VERSION_HEX`; before 3.11 without its last byte.
fn version_of<S: ThreadSource>(
    source: &S,
    module: &LoadedModule,
    symbols: &ExportedSymbols<'_, S::Memory>,
    words: Words<'_, S::Memory>,
) -> Option<u32> {
    if let Some(variable) = symbols.find("Py_Version") {
        return words.word(variable.start.value()).map(|version| version as u32);
    }
    // `Py_GetVersion` has printed the version into a buffer of its own at the interpreter's start.
    let range = module.range();
    let is_data = |mapping: &&Mapping| !mapping.is_executable && range.contains(mapping.range.start);
    let data = source.modules().mappings().iter().filter(is_data);
    let mut found = None;
    let mut left = MAX_SEARCHED_BYTES;
    for mapping in data {
        let end = mapping.range.end.min(range.end).value();
        let bytes = end.saturating_sub(mapping.range.start.value()).min(left);
        left -= bytes;
        for version in versions_in(mapping.range.start, bytes, words.0) {
            if found.is_some_and(|known| known != version) {
                return None;
            }
            found = Some(version);
        }
    }
    found
}

/// Searches memory for texts like `3.10.13 (main, Oct  1 2026, 10:00:00) [GCC 12.2.0]`.
fn versions_in(start: AbsoluteAddress, bytes: u64, memory: &impl MemoryReader) -> Vec<u32> {
    const WINDOW_BYTES: u64 = 1 << 14;
    /// The text up to its bracket.
    const TEXT_BYTES: u64 = 192;
    let mut found = Vec::new();
    let mut at = 0;
    while at < bytes {
        let length = (bytes - at).min(WINDOW_BYTES + TEXT_BYTES);
        let mut window = vec![0; length as usize];
        if let Some(address) = start.checked_add(at)
            && memory.read(address, &mut window).is_some()
        {
            let starts = window.iter().enumerate().take(WINDOW_BYTES as usize);
            let digits = starts.filter(|&(index, byte)| {
                matches!(byte, b'2' | b'3')
                    && index.checked_sub(1).is_none_or(|before| window.get(before) == Some(&0))
            });
            found.extend(digits.filter_map(|(index, _)| version_at(window.get(index..)?)));
        }
        at += WINDOW_BYTES;
    }
    found.dedup();
    found
}

fn version_at(text: &[u8]) -> Option<u32> {
    let end = text.iter().position(|&byte| byte == 0)?;
    let text = std::str::from_utf8(text.get(..end)?).ok()?;
    let (version, rest) = text.split_once(" (")?;
    let (_, compiler) = rest.split_once(')')?;
    compiler.trim_start().starts_with('[').then_some(())?;
    let mut numbers = version.splitn(3, '.');
    let (major, minor) = (numbers.next()?.parse::<u8>().ok()?, numbers.next()?.parse::<u8>().ok()?);
    // `13rc1`, `18+`.
    let micro = numbers.next()?;
    let micro = micro.split(|character: char| !character.is_ascii_digit()).next()?.parse::<u8>().ok()?;
    Some(u32::from(major) << 24 | u32::from(minor) << 16 | u32::from(micro) << 8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_unwind::SliceMemory;

    #[test]
    fn version_texts_are_parsed() {
        let version = |text: &str| version_at(format!("{text}\0").as_bytes());
        assert_eq!(version("3.10.13 (main, Jan  1 2026, 01:02:03) [GCC 12.2.0]"), Some(0x030a_0d00));
        assert_eq!(version("3.8.18 (default, Jan  1 2026, 01:02:03) \n[GCC 12.2.0]"), Some(0x0308_1200));
        assert_eq!(version("2.7.18+ (default, Jan  1 2026, 01:02:03) \n[GCC 12.2.0]"), Some(0x0207_1200));
        for text in
            ["3.10.13", "3.10.13 (main)", "3.10 (main) [GCC]", "3.x.1 (main) [GCC]", "3.300.1 (m) [G]"]
        {
            assert_eq!(version(text), None, "{text}");
        }
    }

    #[test]
    fn version_texts_are_found_at_window_borders() {
        let text = b"\x003.9.18 (main, Jan  1 2026, 01:02:03) [GCC 12.2.0]\0";
        for place in [0, 16_300, 16_383, 16_384, 40_000] {
            let mut bytes = vec![7; 50_000];
            bytes[place..place + text.len()].copy_from_slice(text);
            let start = AbsoluteAddress::new(0x1000);
            let memory = SliceMemory::new(start, &bytes);
            assert_eq!(versions_in(start, 50_000, &memory), [0x0309_1200], "{place}");
        }
    }
}
