//! `cairn flame`: the heap as a flame graph.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

use cairn_analysis::heap::{Cost, Direction, FlameOptions, TreeLimits};
use clap::Args;

use super::heap_input::{
    HeapInput, Moment, complain_about, nanos_of, open, outcome_of, parse_moment, questions, read_stacks,
    title_of,
};
use super::heap_text::{bytes, count, counted, duration};
use super::report::CostName;
use crate::output::Outcome;

/// Draw where the memory goes: a flame graph as one SVG file, or folded stacks
///
/// The file opens in any browser, from disk: a click zooms, / searches, Esc goes back.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct FlameCommand {
    /// The recording; a heaptrack file or a pprof heap profile will do too
    file: PathBuf,

    /// What widths stand for
    #[arg(long, value_name = "COST", default_value = "peak")]
    cost: CostName,

    /// Where to write it; - for standard output
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    output: PathBuf,

    /// Write folded stacks as text, for speedscope, inferno and flamegraph.pl
    #[arg(long)]
    folded: bool,

    /// Leave out what is narrower than this part of the whole, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 0.05, value_parser = parse_percent)]
    least: f64,

    /// Draw the heap as it was at this time, as 1.5s, 200ms, or peak
    #[arg(long, value_name = "TIME", value_parser = parse_moment)]
    at: Option<Moment>,

    #[command(flatten)]
    input: HeapInput,
}

const EXAMPLES: &str = "\
Examples:
  cairn flame app.4711.cairn -o peak.svg
  cairn flame app.4711.cairn --cost leaked -o leaks.svg
  cairn flame app.4711.cairn --folded | inferno-flamegraph > peak.svg

Exit codes: 0 all went well; 1 the recording cannot be read; 2 the arguments make no sense; 3 parts of it are missing.";

fn parse_percent(text: &str) -> Result<f64, String> {
    let percent: f64 = text.parse().map_err(|_| format!("{text}: not a number"))?;
    if (0.0..=100.0).contains(&percent) { Ok(percent) } else { Err(format!("{text}: percent are 0 to 100")) }
}

impl FlameCommand {
    pub(crate) fn run(self) -> io::Result<Outcome> {
        let heap = open(&self.file)?;
        let to_nanos = match self.at {
            Some(at) => nanos_of(&self.file, &heap, at)?,
            None => u64::MAX,
        };
        let symbols = self.input.symbols(&heap);
        let (text, of_events) = {
            let mut names = self.input.names(&heap, &symbols);
            let scope = self.input.scope(&heap, &mut names, 0, to_nanos)?;
            let answer = read_stacks(&self.file, &heap, scope)?;
            let mut questions = questions(&answer, names);
            let cost = self.cost.cost();
            let text = if self.folded {
                questions.folded(cost)
            } else {
                let limits =
                    TreeLimits { least_share: self.least / 100.0, most_levels: 2000, most_nodes: 200_000 };
                let tree = questions.tree(Direction::FromMain, cost, limits);
                let amount = tree.nodes[0].amount;
                let profile = questions.profile();
                let whole = if cost.is_bytes() {
                    format!("{} in {}", bytes(amount.value), counted(amount.blocks, "block"))
                } else {
                    format!("{} allocations", count(amount.value))
                };
                let what = match cost {
                    Cost::Peak => format!("held at the peak, after {}", duration(profile.peak_nanos)),
                    Cost::Leaked => format!("alive after {}", duration(profile.end_nanos)),
                    Cost::Allocated => "allocated in all".to_owned(),
                    Cost::Count => "by number".to_owned(),
                    Cost::Temporary => "freed before their thread allocated again".to_owned(),
                };
                let options =
                    FlameOptions { title: title_of(&self.file, &heap), subtitle: format!("{whole}, {what}") };
                questions.flame_svg(&tree, &options)
            };
            (text, outcome_of(&answer, Outcome::Done))
        };
        self.write(&text)?;
        let outcome = match complain_about(&self.file, &heap) {
            Outcome::Done => of_events,
            outcome => outcome,
        };
        symbols.finish(&self.input);
        Ok(outcome)
    }

    fn write(&self, text: &str) -> io::Result<()> {
        if self.output.as_os_str() == "-" {
            let mut output = BufWriter::new(io::stdout().lock());
            output.write_all(text.as_bytes())?;
            return output.flush();
        }
        let named =
            |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", self.output.display()));
        let mut file = File::create(&self.output).map_err(named)?;
        file.write_all(text.as_bytes()).map_err(named)
    }
}
