//! One file per subcommand: arguments, help text, and `run`.

pub(crate) mod completions;
mod core;
mod debugger;
mod decode;
mod diff;
mod export;
mod family;
mod flame;
mod fleet;
mod fold_options;
mod folding_text;
#[cfg_attr(windows, path = "heap_windows.rs")]
#[cfg_attr(not(any(target_os = "linux", windows)), path = "heap_elsewhere.rs")]
mod heap;
mod heap_input;
mod heap_text;
mod index_later;
mod input_file;
mod man;
mod options;
mod pack;
mod perf_maps;
mod play;
mod processes;
mod report;
#[cfg_attr(not(target_os = "linux"), path = "snapshot_elsewhere.rs")]
mod snapshot;
mod symbol_options;
pub(crate) mod symbolize;
mod target;
mod top;
#[cfg_attr(not(target_os = "linux"), path = "unseen_elsewhere.rs")]
mod unseen;
mod view;

use std::io;

use crate::output::Outcome;

pub(crate) use heap_input::parse_size;

/// The subcommands.
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    Heap(heap::HeapCommand),
    Top(Box<top::Top>),
    Report(report::ReportCommand),
    Diff(diff::DiffCommand),
    Flame(flame::FlameCommand),
    View(view::ViewCommand),
    Export(export::Export),
    Fleet(fleet::FleetCommand),
    Play(play::Play),
    Pack(pack::Pack),
    Snapshot(snapshot::Snapshot),
    Core(Box<core::Core>),
    Debugger(debugger::Debugger),
    Symbolize(symbolize::Symbolize),
    Decode(decode::Decode),
    Completions(completions::Completions),
    Man(man::ManCommand),
}

impl Command {
    pub(crate) fn run(self) -> io::Result<Outcome> {
        match self {
            Self::Heap(heap) => heap.run(),
            Self::Decode(decode) => decode.run(),
            Self::Symbolize(symbolize) => symbolize.run(),
            Self::Pack(pack) => pack.run(),
            Self::Play(play) => play.run(),
            Self::Snapshot(snapshot) => snapshot.run(),
            Self::Core(core) => core.run(),
            Self::Debugger(debugger) => debugger.run(),
            Self::Top(top) => top.run(),
            Self::Report(report) => report.run(),
            Self::Diff(diff) => diff.run(),
            Self::Flame(flame) => flame.run(),
            Self::View(view) => view.run(),
            Self::Export(export) => export.run(),
            Self::Fleet(fleet) => fleet.run(),
            Self::Completions(completions) => completions.run(),
            Self::Man(man) => man.run(),
        }
    }
}
