//! Opens a process as an image: its threads are stopped during inspection, and nothing is written.

use std::path::PathBuf;

use cairn_format::WordSize;
use cairn_wire::heapblock::ByteOrder;

use super::registers::ImageThread;
use super::{About, Backing, Image, ImageError, Machine, OpenOptions, Parts, Piece};
use crate::process::{self, ProcessMemory, ThreadSource, parse_mappings};

pub(super) fn look<R: Send>(number: u32, look: impl FnOnce(&Image) -> R + Send) -> Result<R, ImageError> {
    process::while_stopped(number, |stopped| {
        let view = stopped
            .threads()
            .iter()
            .find(|thread| thread.registers.is_ok())
            .map_or(number, |thread| thread.id);
        // Readable while the threads are stopped; without it there are no mappings.
        let maps = std::fs::read(format!("/proc/{view}/maps")).unwrap_or_default();
        let mappings = parse_mappings(&maps);
        let writable = writable_of(&maps);
        let pieces = mappings.iter().filter(|mapping| mapping.is_readable && !is_device(&mapping.name));
        let pieces = pieces.map(|mapping| Piece {
            range: mapping.range,
            is_writable: writable.binary_search(&mapping.range.start.value()).is_ok(),
            is_from_file: false,
            backing: Backing::Process,
        });
        let threads = stopped.threads().iter().filter_map(|thread| {
            let registers = thread.registers.as_ref().ok()?;
            let mut found = ImageThread::of_walk(thread.id, thread.name.clone(), *registers);
            found.thread_pointer = thread.thread_pointer;
            Some(found)
        });
        let command = std::fs::read(format!("/proc/{number}/cmdline")).unwrap_or_default();
        let command_line = String::from_utf8_lossy(&command).trim_end_matches('\0').replace('\0', " ");
        let name = stopped.threads().first().map(|thread| thread.name.clone()).unwrap_or_default();
        let machine = if cfg!(target_arch = "x86_64") { "x86-64" } else { "AArch64" };
        let parts = Parts {
            pieces: pieces.collect(),
            process: Some(ProcessMemory::of(view)),
            mappings,
            threads: threads.collect(),
            ..Parts::new(
                Machine { word_size: WordSize::Bits64, byte_order: ByteOrder::LittleEndian },
                About {
                    kind: "process",
                    machine: Some(machine),
                    process: Some(number),
                    name,
                    command_line,
                    ..About::default()
                },
                Vec::new(),
            )
        };
        let options =
            OpenOptions { root: PathBuf::from(format!("/proc/{view}/root")), ..OpenOptions::default() };
        look(&Image::assemble(parts, &options))
    })
    .map_err(ImageError::Process)
}

/// Detects devices, because reading one can have side effects.
fn is_device(name: &[u8]) -> bool {
    name.starts_with(b"/dev/") && !name.starts_with(b"/dev/shm/") && !name.starts_with(b"/dev/zero")
        || name == b"[vvar]"
        || name == b"[vsyscall]"
}

/// Returns the starts of writable mappings, in ascending order, like the kernel's list.
fn writable_of(maps: &[u8]) -> Vec<u64> {
    let start = |line: &[u8]| {
        let text = std::str::from_utf8(line.get(..line.iter().position(|&byte| byte == b' ')?)?).ok()?;
        let rights = line.get(text.len() + 1..)?.get(..4)?;
        let (start, _) = text.split_once('-')?;
        (rights.get(1) == Some(&b'w')).then(|| u64::from_str_radix(start, 16).ok())?
    };
    let mut starts: Vec<u64> = maps.split(|&byte| byte == b'\n').filter_map(start).collect();
    starts.sort_unstable();
    starts
}
