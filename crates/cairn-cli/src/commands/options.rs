//! Options that mean the same in every command: `--by`, `--cost`, `--limit`, `--full`, `--at`,
//! `--from`, `--to`, `-o`.

use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use cairn_analysis::heap::{Cost, Group};
use cairn_analysis::source::{HeapSource, Question, TimePoint, TimeSpan};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};

use super::heap_input::failed;
use crate::new_file::Output;
use crate::output::{Guarded, Palette, colored_stdout};

/// A view of a heap.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum, Debug)]
pub(crate) enum ViewName {
    /// Functions that asked for memory
    Function,
    /// Lines that asked for memory
    Line,
    /// Modules that asked for memory
    Module,
    /// Whole stacks
    Stack,
    /// A tree from main inwards
    Tree,
    /// A tree from the allocations outwards
    Callers,
    /// Threads
    Thread,
    /// Sizes of blocks
    Size,
    /// How long blocks lived
    Lifetime,
    /// Memory over time
    Time,
}

impl ViewName {
    /// True when it needs sums of stacks alone.
    pub(crate) const fn is_by_stack(self) -> bool {
        matches!(self, Self::Function | Self::Line | Self::Module | Self::Stack | Self::Tree | Self::Callers)
    }

    /// The question that not every kind of file can answer, if it asks one.
    pub(crate) const fn question(self) -> Option<Question> {
        match self {
            Self::Thread => Some(Question::Threads),
            Self::Size => Some(Question::Sizes),
            Self::Lifetime => Some(Question::Lifetimes),
            Self::Time => Some(Question::Times),
            _ => None,
        }
    }

    /// The group of a list; functions, where it is another view.
    pub(crate) const fn group(self) -> Group {
        match self {
            Self::Line => Group::Line,
            Self::Module => Group::Module,
            Self::Stack => Group::Stack,
            _ => Group::Function,
        }
    }
}

/// Parses those of the views that a command has.
pub(crate) fn views(views: &'static [ViewName]) -> impl TypedValueParser<Value = ViewName> {
    let values = views.iter().filter_map(ValueEnum::to_possible_value);
    PossibleValuesParser::new(values).try_map(|name| ViewName::from_str(&name, false))
}

/// A cost by name.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum CostName {
    /// Bytes at the moment at which the program held most
    Peak,
    /// Bytes that were not freed
    #[value(alias = "leak", alias = "leaks", alias = "live")]
    Leaked,
    /// Bytes of all allocations
    Allocated,
    /// Number of allocations
    Count,
    /// Number of allocations freed before their thread allocated again
    Temporary,
}

impl CostName {
    pub(crate) const fn cost(self) -> Cost {
        match self {
            Self::Peak => Cost::Peak,
            Self::Leaked => Cost::Leaked,
            Self::Allocated => Cost::Allocated,
            Self::Count => Cost::Count,
            Self::Temporary => Cost::Temporary,
        }
    }
}

/// The cost that was asked for, which the heap must be able to answer; else the usual one.
pub(crate) fn cost_of(source: &HeapSource, asked: Option<CostName>, span: TimeSpan) -> io::Result<Cost> {
    let Some(asked) = asked.map(CostName::cost) else { return Ok(source.usual_cost(span)) };
    source.check(Question::Cost(asked)).map_err(failed)?;
    Ok(asked)
}

/// A moment, or a stretch of time.
#[derive(Args, Default)]
pub(crate) struct TimeOptions {
    /// Show the heap as it was at this time, as 1.5s, 200ms, or peak
    #[arg(long, value_name = "TIME", conflicts_with_all = ["from", "to", "between"])]
    at: Option<TimePoint>,

    /// Count only what was allocated from this time on
    #[arg(long, value_name = "TIME", conflicts_with = "between")]
    from: Option<TimePoint>,

    /// Count only what was allocated up to this time; what was still alive then counts as leaked
    #[arg(long, value_name = "TIME", conflicts_with = "between")]
    to: Option<TimePoint>,

    /// --from and --to, as they were called
    #[arg(long, hide = true, num_args = 2, value_names = ["FROM", "TO"])]
    between: Option<Vec<TimePoint>>,
}

impl TimeOptions {
    /// True when any of the options is given.
    pub(crate) fn is_given(&self) -> bool {
        self.at.is_some() || self.from.is_some() || self.to.is_some() || self.between.is_some()
    }

    /// The span of a heap that the options name.
    pub(crate) fn span(&self, source: &HeapSource) -> io::Result<TimeSpan> {
        let (from, to) = match self.between.as_deref() {
            Some(&[from, to]) => (Some(from), Some(to)),
            _ => (self.from, self.to),
        };
        source.span(self.at, from, to).map_err(failed)
    }
}

/// Options for the output of an answer.
#[derive(Args)]
pub(crate) struct OutputOptions {
    /// Where to write it; - for standard output, which is the default
    #[arg(short, long, value_name = "FILE", default_value = "-", hide_default_value = true)]
    pub(crate) output: PathBuf,

    /// Replace a file that is there
    #[arg(long)]
    pub(crate) force: bool,
}

/// Text on its way to standard output or to a file.
pub(crate) enum TextOutput {
    Stdout(BufWriter<Guarded<io::Stdout>>),
    File(Box<Output>),
}

impl OutputOptions {
    /// True for standard output.
    pub(crate) fn is_stdout(&self) -> bool {
        self.output == Path::new("-")
    }

    /// Begins a text that may be coloured; `input` is the file that is read.
    pub(crate) fn begin_text(&self, input: &Path) -> io::Result<TextOutput> {
        Ok(if self.is_stdout() {
            TextOutput::Stdout(BufWriter::new(colored_stdout()))
        } else {
            TextOutput::File(Box::new(Output::create(&self.output, self.force, input)?))
        })
    }

    /// Begins a file that is no text for people: a picture, a page, a binary format.
    pub(crate) fn begin_file(&self, input: &Path, what: &str) -> io::Result<Output> {
        begin_file(&self.output, self.force, input, what)
    }
}

/// Begins a file that is no text for people, which `what` names: no terminal gets it.
pub(crate) fn begin_file(path: &Path, force: bool, input: &Path, what: &str) -> io::Result<Output> {
    let output = Output::create(path, force, input)?;
    output.refuse_terminal(what)?;
    Ok(output)
}

impl TextOutput {
    /// Colours for the text: none in a file.
    pub(crate) fn palette(&self) -> Palette {
        match self {
            Self::Stdout(_) => Palette::of_stdout(),
            Self::File(_) => Palette::default(),
        }
    }

    /// Writes the buffered bytes, and gives a file its name.
    pub(crate) fn finish(self) -> io::Result<()> {
        match self {
            Self::Stdout(mut output) => output.flush(),
            Self::File(output) => output.finish().map(drop),
        }
    }
}

impl Write for TextOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Stdout(output) => output.write(bytes),
            Self::File(output) => output.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Stdout(output) => output.flush(),
            Self::File(output) => output.flush(),
        }
    }
}

/// How much of a list or tree is shown.
#[derive(Args, Clone, Copy, Default)]
pub(crate) struct ListOptions {
    /// Entries of each list. With a percent sign, as 1%, only entries of at least this part of the
    /// whole
    #[arg(short = 'n', long, value_name = "COUNT|PERCENT", value_parser = parse_limit, conflicts_with = "full")]
    limit: Option<Limit>,

    /// Show every entry, every stack and every frame
    #[arg(long)]
    pub(crate) full: bool,
}

/// Limit of a list.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Limit {
    /// After this many entries.
    Count(usize),
    /// Before entries that are a smaller part of the whole, from 0 to 1.
    Share(f64),
}

impl ListOptions {
    /// Returns the value of `--limit`.
    pub(crate) fn limit(self) -> Option<Limit> {
        self.limit
    }

    /// True when the user gave `--limit`.
    pub(crate) fn is_limited(self) -> bool {
        self.limit.is_some()
    }

    /// Returns the most entries of a list, `usual` without `--limit` and `--full`.
    pub(crate) fn most_entries(self, usual: usize) -> usize {
        match self.limit {
            _ if self.full => usize::MAX,
            Some(Limit::Count(count)) => count,
            Some(Limit::Share(_)) => usize::MAX,
            None => usual,
        }
    }

    /// Returns the entries of a list that are shown: at most `usual` without `--limit` and
    /// `--full`. A percentage compares the bytes of an entry with those of the whole list.
    pub(crate) fn shown<T>(
        self,
        usual: usize,
        entries: &[T],
        whole_bytes: u64,
        bytes: impl Fn(&T) -> u64,
    ) -> Vec<&T> {
        let least_bytes = self.least_share().unwrap_or(0.0) * whole_bytes as f64;
        let is_shown = |entry: &&T| bytes(entry) as f64 >= least_bytes;
        entries.iter().filter(is_shown).take(self.most_entries(usual)).collect()
    }

    /// Returns the least part of the whole that an entry has to be, from 0 to 1.
    pub(crate) fn least_share(self) -> Option<f64> {
        match self.limit {
            Some(Limit::Share(share)) => Some(share),
            _ => None,
        }
    }
}

/// Parses `20` or `1%`.
pub(crate) fn parse_limit(text: &str) -> Result<Limit, String> {
    match text.strip_suffix('%') {
        Some(number) => parse_percent(number.trim_end()).map(|percent| Limit::Share(percent / 100.0)),
        None => text
            .parse()
            .map(Limit::Count)
            .map_err(|_| format!("{text}: neither a number of entries, as 20, nor a percentage, as 1%")),
    }
}

/// Parses a percentage, with or without its sign.
pub(crate) fn parse_percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).trim_end();
    let percent: f64 = number.parse().map_err(|_| format!("{text}: not a percentage; write 0.5 or 0.5%"))?;
    if (0.0..=100.0).contains(&percent) {
        Ok(percent)
    } else {
        Err(format!("{text}: a percentage is 0 to 100"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_is_a_count_or_a_percentage() {
        assert_eq!(parse_limit("20"), Ok(Limit::Count(20)));
        assert_eq!(parse_limit("1%"), Ok(Limit::Share(0.01)));
        assert_eq!(parse_limit("0.5 %"), Ok(Limit::Share(0.005)));
        for text in ["", "%", "-1", "1.5", "101%", "-1%", "a", "NaN%", "1%%x"] {
            assert!(parse_limit(text).is_err(), "{text}");
        }
    }
}
