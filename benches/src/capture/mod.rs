//! Measures the cost of a captured stack, against peers in the same run.
//!
//! - [`fixed`]: one unchanging stack of a given depth, captured again and again;
//! - [`at_malloc`]: the stacks of real programs, at every allocation;
//! - [`counters`]: the same programs, and how their captures were answered;
//! - [`slow`]: where nothing is known yet;
//! - [`room`]: memory of a thread, and stack below the caller;
//! - [`instructions`]: the fixed stacks, counted by callgrind.

mod at_malloc;
mod counters;
mod fixed;
mod instructions;
mod programs;
mod room;
mod rust_stack;
mod slow;

use crate::machine;

/// A part takes the programs that were chosen, none for all. Only two parts run such programs.
type Part = (&'static str, fn(&[&str]) -> Result<(), String>, &'static str);

const PARTS: &[Part] = &[
    ("fixed", |_| fixed::run(), "ns per capture of a fixed stack"),
    ("at-malloc", at_malloc::run, "ns per capture at every malloc of real programs"),
    ("counters", counters::run, "how captures at every malloc are answered"),
    ("slow", |_| slow::run(), "ns where nothing is known: new code, moved stacks"),
    ("room", |_| room::run(), "memory and stack that captures take"),
    ("instructions", |_| instructions::run(), "instructions per capture of a fixed stack"),
];

/// Runs the named parts, or all, on the named programs, or all.
pub(crate) fn run(names: &[&str]) -> Result<(), String> {
    if names == ["list"] {
        PARTS.iter().for_each(|(name, _, what)| println!("{name:<14} {what}"));
        println!("\nprograms of at-malloc and counters: {}", at_malloc::PROGRAMS.join(", "));
        return Ok(());
    }
    let (parts, programs): (Vec<&str>, Vec<&str>) =
        names.iter().partition(|name| PARTS.iter().any(|(part, ..)| part == *name));
    if let Some(unknown) = programs.iter().find(|name| !at_malloc::PROGRAMS.contains(name)) {
        return Err(format!("{unknown}: no such part and no such program; `capture list` names them"));
    }
    println!("{}", machine::description());
    for (name, part, what) in PARTS {
        if parts.is_empty() || parts.contains(name) {
            println!("## {what}\n");
            part(&programs)?;
            println!();
        }
    }
    Ok(())
}

/// `capture-new-sites UNWINDER`: the part of `slow` that needs a fresh process.
pub(crate) fn run_new_sites(arguments: &[&str]) -> Result<(), String> {
    let [unwinder] = arguments else { return Err("usage: capture-new-sites UNWINDER".to_owned()) };
    slow::print_new_sites(unwinder)
}

/// `capture-loop PROGRAM DEPTH UNWINDER CALLS`: one fixed stack. Runs without a clock, for
/// callgrind.
pub(crate) fn run_loop(arguments: &[&str]) -> Result<(), String> {
    let [program, depth, unwinder, calls] = arguments else {
        return Err("usage: capture-loop PROGRAM DEPTH UNWINDER CALLS".to_owned());
    };
    let number = |text: &str| text.parse::<u32>().map_err(|_| format!("{text}: not a number"));
    fixed::run_one(program, number(depth)?, unwinder, number(calls)?)
}
