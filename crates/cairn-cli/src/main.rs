//! The `cairn` command: parses arguments, runs one subcommand, prints its error, sets the exit
//! code.

#![forbid(unsafe_code)]
#![cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "what `cairn heap` on Linux alone uses"))]

mod commands;
mod new_file;
mod output;

use std::process::ExitCode;

use clap::{ColorChoice, Parser};

/// Heap profiler and call-stack toolkit for native programs.
///
/// cairn records where a program's memory goes without recompiling it, and reads call stacks from
/// recordings, core files and logs, on any machine and at any later time.
#[derive(Parser)]
#[cfg_attr(windows, command(bin_name = "cairn"))]
#[command(name = "cairn", version, after_help = after_help(), max_term_width = 100)]
struct Cairn {
    #[command(subcommand)]
    command: commands::Command,

    /// Colour the output; `auto` obeys the terminal, NO_COLOR and CLICOLOR_FORCE
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto", display_order = 900)]
    color: ColorChoice,

    /// Unpack compressed input to at most this size, as 4GiB. Applies to cores, profiles and debug
    /// information [default: a multiple of the packed size]
    #[arg(long, global = true, value_name = "SIZE", value_parser = commands::parse_size, display_order = 901)]
    max_unpacked: Option<u64>,
}

const EXAMPLES: &str = "\
Examples:
  cairn heap ./program arguments          record where a program's memory goes; print a summary
  cairn top 4711                          show the functions that hold the memory of process 4711
  cairn report program.4711.cairn         print the full report
  cairn flame -o mem.svg program.4711.cairn
  cairn diff before.cairn after.cairn     show what grew
  cairn view program.4711.cairn           explore a recording in a browser, also while it grows
  cairn play app.cairn                    print a recording, event by event
  cairn snapshot 4711                     print the stacks of a running process
  cairn core core.4711                    find out who allocated the blocks in a core file
  cairn symbolize -e app 0x1234           print the function, file and line of an address
  cairn decode --totals -e app.elf < log  sum up the allocations in a device's log";

fn after_help() -> String {
    format!("{EXAMPLES}\n\n{}", output::EXIT_CODES)
}

#[cfg(target_os = "linux")]
#[global_allocator]
static ALLOCATOR: cairn_run::Outliving = cairn_run::Outliving;

/// Reports invalid arguments and exits. They may contain names that must not reach a terminal
/// unescaped, and clap's message mixes them with colours: so the arguments are escaped and parsed
/// again, and that error is printed.
fn refuse(error: clap::Error) -> ! {
    let given = commands::symbolize::by_name(std::env::args_os());
    let printable: Vec<_> = given.iter().map(|argument| output::printable_argument(argument)).collect();
    if printable != given {
        if let Err(again) = Cairn::try_parse_from(&printable)
            && again.kind() == error.kind()
        {
            again.exit();
        }
        let text = error.render().to_string();
        text.lines().for_each(|line| output::complain(&line));
        std::process::exit(error.exit_code());
    }
    error.exit()
}

#[cfg(not(windows))]
fn main() -> ExitCode {
    run()
}

/// Runs in a thread, because the main thread of Windows has 1 MiB of stack. Limits of recursion, as
/// for names, assume the 8 MiB that other systems have.
#[cfg(windows)]
fn main() -> ExitCode {
    const STACK_BYTES: usize = 8 << 20;
    /// As of a panic in the main thread.
    const PANICKED: u8 = 101;
    match std::thread::Builder::new().name("main".to_owned()).stack_size(STACK_BYTES).spawn(run) {
        Ok(thread) => thread.join().unwrap_or(ExitCode::from(PANICKED)),
        Err(_) => run(),
    }
}

fn run() -> ExitCode {
    commands::completions::answer_script();
    let cairn = match Cairn::try_parse_from(commands::symbolize::by_name(std::env::args_os())) {
        Ok(cairn) => cairn,
        Err(error) => refuse(error),
    };
    output::choose_color(cairn.color);
    output::choose_max_unpacked(cairn.max_unpacked);
    match cairn.command.run() {
        Ok(outcome) => outcome.into(),
        Err(error) if output::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            output::complain(&error);
            output::outcome_of_error(&error).into()
        }
    }
}
