//! Measures the formats on real stacks, against peers in the same run.
//!
//! ```text
//! cargo xtask bench formats
//! ```
//!
//! `benchmarks/README.md` explains the figures; `benchmarks/record/` keeps them with the machine
//! and the command.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program whose output is its purpose")]

mod against;
mod annotate;
mod capture;
mod code_size;
mod core;
mod corpus;
mod first_lines;
mod fleet;
mod fleet_ingestion;
mod formats;
mod heap;
mod heap_report;
mod instructions;
mod lws_reference;
mod machine;
mod measure;
mod mutate;
mod plain_cbf;
mod python;
mod recorder;
mod recording;
mod records;
mod report;
#[path = "../../crates/cairn-recording/tests/support/spool.rs"]
mod spool;
mod symbols;
mod traces;

use std::env;
use std::path::Path;
use std::process::ExitCode;

const HELP: &str = "\
Usage: cargo xtask bench COMMAND

  against CAIRN [ROUNDS [WORK...]]  whole programs under an older build of cairn and under this one, as Markdown
  annotate [ROUNDS]            what annotated blocks cost, beside heapprof.so (CAIRN_PEER_HEAPPROF_SO), as Markdown
  capture [PART...] [PROGRAM...]
                               ns per captured stack against peers, as Markdown; parts and programs: `capture list`
  symbols PROGRAM...           names for addresses of these programs, against llvm-symbolizer and addr2line
  core CAIRN [GIB [FILE...]]   blocks found in memory images a second, whole answers, and blocks found where none are
  first-lines [--cairn FILE] [PROGRAM...]
                               how often cairn and heaptrack name the expected function first, on real programs
  fleet CAIRN-FLEET [HOSTS [SEED]]
                               a store of made-up hosts: making, merging and asking it, bytes a row, leaks found
  formats                      ns and bytes per frame of every format on the corpus, as Markdown
  heap [ROUNDS [WORK...]]      whole programs under cairn heap and heaptrack, as Markdown
  python [ROUNDS [WORK...]]    Python programs under cairn heap, memray and heaptrack, as Markdown; CAIRN_BENCH_PYTHON
                               names the interpreter
  recording [MILLIONS]         bytes and ns per event of recordings: packing, opening, reading, as Markdown
  recording window [MILLIONS]  time and memory for a second out of a recording of this many millions of marks
  recording mutate THOUSANDS   opens and reads this many thousands of damaged recordings; it must end
  instructions                 instructions per frame of the CBF and lws loops, counted by valgrind's callgrind
  report                       heap events added up a second, on 100 million synthesized ones
  report CAIRN HEAPTRACK       `cairn report` against heaptrack_print on recordings of the same run
  code-size                    text bytes of the encoders for embedded use
  loop CASE PASSES             run one case PASSES times (for a profiler); `loop list 0` names the cases
  marks                        ns and bytes of recorded marks and heap events against the bare capture
  modules                      what the ways to learn of loaded modules cost
  traces DIRECTORY             bytes per frame of CBF over full traces
  pack-corpus TRACES OUTPUT    cut the corpus out of full traces

CAIRN_PEER_LWS_SO=/path/to/library.so adds libwebsockets' C code to the run; see benchmarks/README.md.
";

fn fleet_of(program: &str, hosts: &str, seed: &str) -> Result<(), String> {
    let hosts = hosts.parse().map_err(|_| format!("{hosts}: not a number of hosts"))?;
    let seed = seed.parse().map_err(|_| format!("{seed}: not a seed"))?;
    fleet::run(program, hosts, seed)
}

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match words.as_slice() {
        ["annotate"] => annotate::run(5),
        ["annotate", rounds] => match rounds.parse() {
            Ok(rounds) => annotate::run(rounds),
            Err(error) => Err(format!("{rounds}: {error}")),
        },
        ["capture", parts @ ..] => capture::run(parts),
        ["capture-new-sites", rest @ ..] => capture::run_new_sites(rest),
        ["capture-loop", rest @ ..] => capture::run_loop(rest),
        ["symbols", programs @ ..] => symbols::run(programs).map_err(|error| error.to_string()),
        ["symbols-run", rest @ ..] => symbols::answer(rest).map_err(|error| error.to_string()),
        ["core", cairn] => core::run(cairn, 2, &[]),
        ["core", cairn, gibibytes, more @ ..] => gibibytes
            .parse()
            .map_err(|_| format!("{gibibytes}: not a number of gibibytes"))
            .and_then(|gibibytes| core::run(cairn, gibibytes, more)),
        ["first-lines", programs @ ..] => first_lines::run(programs),
        ["fleet", program] => fleet::run(program, 10_000, 1),
        ["fleet", program, hosts] => fleet_of(program, hosts, "1"),
        ["fleet", program, hosts, seed] => fleet_of(program, hosts, seed),
        ["formats"] => report::formats(),
        ["against", older] => against::run(older, 5, &[]),
        ["against", older, rounds, works @ ..] => rounds
            .parse()
            .map_err(|_| format!("{rounds}: not a number of rounds"))
            .and_then(|rounds| against::run(older, rounds, works)),
        ["heap"] => heap::run(5, &[]),
        ["heap", rounds, works @ ..] => rounds
            .parse()
            .map_err(|_| format!("{rounds}: not a number of rounds"))
            .and_then(|rounds| heap::run(rounds, works)),
        ["recording"] => recording::run(10),
        ["python"] => python::run(5, &[]),
        ["python", rounds, works @ ..] => match rounds.parse() {
            Ok(rounds) => python::run(rounds, works),
            Err(_) => Err(format!("{rounds}: not a number of rounds")),
        },
        ["recording", "window"] => recording::run_window(17),
        ["recording", "window", millions] => millions
            .parse()
            .map_err(|_| format!("{millions}: not a number of millions"))
            .and_then(recording::run_window),
        ["recording", "window-row", name, path] => recording::window_row(name, Path::new(path)),
        ["recording", "mutate", thousands] => thousands
            .parse()
            .map_err(|_| format!("{thousands}: not a number of thousands"))
            .and_then(mutate::run),
        ["recording", millions] => millions
            .parse()
            .map_err(|_| format!("{millions}: not a number of millions"))
            .and_then(recording::run),
        ["instructions"] => report::instructions(),
        ["marks"] => recorder::run(),
        ["modules"] => recorder::modules::run(),
        ["marks-child", drained, threads] => recorder::run_child(drained, threads),
        ["marks-loop", case, rounds] => recorder::run_loop(case, rounds),
        ["marks-long"] => recorder::run_long(),
        ["report", recordings @ ..] => heap_report::run(recordings),
        ["code-size"] => code_size::run(),
        ["loop", case, passes] => run_loop(case, passes),
        ["traces", directory] => report::traces(Path::new(directory)),
        ["pack-corpus", traces, output] => traces::pack_corpus(Path::new(traces), Path::new(output)),
        ["help" | "--help" | "-h"] => {
            print!("{HELP}");
            Ok(())
        }
        _ => {
            eprint!("{HELP}");
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cairn-benches: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs one case without a clock.
fn run_loop(id: &str, passes: &str) -> Result<(), String> {
    let passes: u32 = passes.parse().map_err(|_| format!("{passes}: not a number of passes"))?;
    let inputs = formats::Inputs::load()?;
    if id == "list" {
        formats::cases(&inputs).iter().for_each(|case| println!("{}", case.id()));
        return Ok(());
    }
    let mut cases = formats::cases_of_format(&inputs, id);
    let case = cases.iter_mut().find(|case| case.id() == id);
    let case = case.ok_or_else(|| format!("{id}: no such case; `loop list 0` names them"))?;
    let mut checksum = 0_u64;
    for _ in 0..passes {
        checksum = checksum.wrapping_add((case.pass)());
    }
    println!("{id}: {passes} passes over {} {}s, checksum {checksum:#x}", case.units, case.unit.name());
    Ok(())
}
