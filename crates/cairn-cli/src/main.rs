//! The `cairn` command: parses arguments, runs one subcommand, prints its error, sets the exit code.

#![forbid(unsafe_code)]

mod commands;
mod new_file;
mod output;

use std::process::ExitCode;

use clap::{ColorChoice, Parser};

/// Where a program's memory goes, and what its call stacks mean.
///
/// cairn records native programs without recompiling them, and reads what programs and devices leave behind about their
/// call stacks, on any machine and at any later time.
#[derive(Parser)]
#[command(name = "cairn", version, after_help = after_help(), max_term_width = 100)]
struct Cairn {
    #[command(subcommand)]
    command: commands::Command,

    /// When to colour the output; NO_COLOR and CLICOLOR_FORCE are honoured
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto", display_order = 900)]
    color: ColorChoice,

    /// Let compressed input (cores, profiles, debug information) unpack to this much, as 4GiB; what
    /// is usual for its size when it is not given
    #[arg(long, global = true, value_name = "SIZE", value_parser = commands::parse_size, display_order = 901)]
    max_unpacked: Option<u64>,
}

const EXAMPLES: &str = "\
Examples:
  cairn heap ./program arguments          record where a program's memory goes, and say it in short
  cairn top 4711                          who holds the memory of process 4711 now
  cairn report program.4711.cairn         the whole answer
  cairn flame -o mem.svg program.4711.cairn
  cairn diff before.cairn after.cairn     what grew
  cairn view program.4711.cairn           all of it in a browser, also while the program runs
  cairn play app.cairn                    a recording, event by event
  cairn snapshot 4711                     the stacks of a running process
  cairn core core.4711                    who allocated the blocks of a program that crashed
  cairn symbolize -e app 0x1234           the function, file and line of an address
  cairn decode --totals -e app.elf < log  who holds how much memory, from a device's log";

fn after_help() -> String {
    format!("{EXAMPLES}\n\n{}", output::EXIT_CODES)
}

#[cfg(target_os = "linux")]
#[global_allocator]
static ALLOCATOR: cairn_run::Outliving = cairn_run::Outliving;

/// Says why the arguments are not understood. They may hold names of files from strangers, which a
/// terminal must not have as they are, and the complaint mixes them with colours: so the same is
/// complained of again, about arguments without such characters.
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

fn main() -> ExitCode {
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
            ExitCode::from(1)
        }
    }
}
