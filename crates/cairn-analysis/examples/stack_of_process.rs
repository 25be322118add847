//! Prints the stacks of all threads of a process: `stack_of_process PID`.
//!
//! ```text
//! thread 4711 (worker)
//!   0  0x7f3a5c8d2e4c  clock_nanosleep  libc.so.6+0xd2e4c
//!   1  0x7f3a5c8d7a13  nanosleep  libc.so.6+0xd7a13
//!   2  0x55d01a2b31c9  work at worker.c:12  worker+0x11c9
//!   end of stack
//! ```
//!
//! Names are looked up after the process goes on again.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program of the command line")]

use std::collections::HashMap;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use cairn_format::{AbsoluteAddress, StatedAddress};
use cairn_memory::process::{self, StoppedProcess, Thread, ThreadSource, ThreadStack};
use cairn_symbols::{Lookup, ModuleId, Symbolizer, SymbolizerOptions};
use cairn_unwind::FoundBy;

const MAX_FRAMES: u32 = 100_000;

/// One thread with its stack, or why it has none.
struct Found {
    thread: Thread,
    stack: Option<ThreadStack>,
    /// For each frame where it lies, as far as a module covers it.
    places: Vec<Option<Place>>,
}

struct Place {
    module: String,
    stated: StatedAddress,
    file: Option<PathBuf>,
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let (Some(Ok(process)), None) = (arguments.next().map(|text| text.parse()), arguments.next()) else {
        eprintln!("usage: stack_of_process PID");
        return ExitCode::from(2);
    };
    let found = match process::while_stopped(process, look) {
        Ok(found) => found,
        Err(error) => {
            eprintln!("stack_of_process: {error}");
            return ExitCode::FAILURE;
        }
    };
    match print(&found) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            eprintln!("stack_of_process: {error}");
            ExitCode::FAILURE
        }
        _ => ExitCode::SUCCESS,
    }
}

/// Collects everything that requires the process to be stopped.
fn look(process: &StoppedProcess) -> Vec<Found> {
    let mut files = HashMap::new();
    let mut place = |address: AbsoluteAddress| {
        let module = process.modules().module_at(address)?;
        let file = files.entry(module.range().start).or_insert_with(|| process.modules().file_of(module));
        let name = module.name().rsplit(|&byte| byte == b'/').next().unwrap_or_default();
        Some(Place {
            module: String::from_utf8_lossy(name).into_owned(),
            stated: module.stated_address(address),
            file: file.clone(),
        })
    };
    let mut find = |thread: &Thread| {
        let stack = thread.registers.as_ref().ok().map(|registers| process.stack(registers, MAX_FRAMES));
        let frames = stack.iter().flat_map(|stack| &stack.frames);
        let places = frames.map(|found| found.frame.lookup_address().and_then(&mut place)).collect();
        Found { thread: thread.clone(), stack, places }
    };
    process.threads().iter().map(&mut find).collect()
}

fn print(threads: &[Found]) -> io::Result<()> {
    let mut out = io::BufWriter::new(io::stdout().lock());
    let mut symbolizer = Symbolizer::new(SymbolizerOptions::new());
    let mut files: HashMap<&PathBuf, Option<ModuleId>> = HashMap::new();
    for Found { thread, stack, places } in threads {
        writeln!(out, "thread {} ({})", thread.id, thread.name.escape_debug())?;
        match (&thread.registers, stack) {
            (Err(reason), _) => writeln!(out, "  {reason}")?,
            (_, None) => {}
            (_, Some(stack)) => {
                for (number, (found, place)) in stack.frames.iter().zip(places).enumerate() {
                    let address = found.frame.address().unwrap_or_default().value();
                    write!(out, "{number:3}  {address:#014x}")?;
                    if let Some(place) = place {
                        let file = place.file.as_ref().and_then(|file| {
                            *files.entry(file).or_insert_with(|| symbolizer.add_file(file).ok())
                        });
                        let answer = file.map(|file| symbolizer.resolve(file, Lookup::stated(place.stated)));
                        let frames = answer.iter().flat_map(|answer| answer.frames());
                        let names: Vec<String> = frames.map(ToString::to_string).collect();
                        let name = if names.is_empty() { "??".to_owned() } else { names.join(", in ") };
                        write!(out, "  {name}  {}+{}", place.module.escape_debug(), place.stated)?;
                    }
                    if found.found_by == FoundBy::FramePointer {
                        write!(out, "  (by frame pointer)")?;
                    }
                    writeln!(out)?;
                }
                writeln!(out, "     {}", stack.stop)?;
            }
        }
    }
    out.flush()
}
