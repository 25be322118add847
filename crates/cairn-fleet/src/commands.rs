//! The arguments of `cairn fleet`, and what each command does.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::RecordBatch;
use cairn_analysis::attribution::Folding;
use cairn_analysis::heap::{Cost, Direction, FlameOptions, Questions, Scope, TreeLimits};
use cairn_analysis::source::{HeapSource, ReadDetail, SourceOptions, parse_time};
use cairn_analysis::units::{bytes, counted};
use cairn_files::{Existing, NewFile};
use cairn_store::{Appended, Id, Store, day_of, now_ms};
use clap::{Args, Parser, Subcommand};

use crate::add::{Labels, block_of_file, content_of};
use crate::answer::{self, Form};
use crate::cluster::client::On;
use crate::cluster::executor::Executor;
use crate::cluster::key::MakeKey;
use crate::cluster::scheduler::Scheduler;
use crate::doubts::Doubts;
use crate::error::FleetError;
use crate::generate::Generate;
use crate::questions::{self, Measure, Rows, Selection};
use crate::selected_heap::SelectedHeap;
use crate::serve::Serve;
use crate::session::Session;
use crate::symbols::Symbols;
use crate::view::ViewSelection;

/// Store heap profiles of many machines, and ask all of them at once
///
/// A store is a directory. `init` makes one, `add` puts recordings into it, and the questions are
/// asked of all of them: what leaks, what grew from one version to the next, and since when.
#[derive(Parser)]
#[command(name = "cairn fleet", bin_name = "cairn fleet", version, after_help = EXAMPLES)]
pub(crate) struct Fleet {
    #[command(subcommand)]
    command: Action,
}

const EXAMPLES: &str = "\
Examples:
  cairn fleet init fleet
  cairn fleet add fleet web.*.cairn --label service=web --label version=1.5 --label region=eu
  cairn fleet growth fleet --from 1.4 --to 1.5
  cairn fleet introduced fleet 5f1d9f0c2a44
  cairn fleet leaks fleet --since 7d --by service
  cairn fleet flame fleet --where \"service = 'web' and region = 'eu'\" -o eu.svg
  cairn fleet sql fleet 'select service, sum(live_bytes) as bytes from samples group by service'
  cairn fleet leaks fleet --on df://scheduler:50050 --cluster-key key.pem

Exit codes: 0 success; 1 the store or a file cannot be read or written; 2 invalid arguments;
3 the store has a problem that `check` found.";

#[derive(Subcommand)]
enum Action {
    /// Make an empty store in a new or empty directory
    Init(Place),
    Add(Add),
    Serve(Serve),
    Symbols(Symbols),
    Top(Top),
    Leaks(Leaks),
    Growth(Growth),
    Introduced(Introduced),
    Flame(Flame),
    View(ViewSelection),
    Sql(Sql),
    /// Merge small files into larger ones
    Compact(Place),
    Expire(Expire),
    /// Compare the files of the store with its logs
    Check(Place),
    Scheduler(Scheduler),
    Executor(Executor),
    Key(MakeKey),
    #[command(hide = true)]
    Generate(Generate),
}

#[derive(Args)]
struct Place {
    /// The directory of the store
    store: String,
}

/// Add recordings, core files, and files of heaptrack, pprof and other tools
///
/// A file that was added before is not added again, whatever its labels, unless it is of another
/// host.
#[derive(Args)]
struct Add {
    /// The directory of the store
    store: String,

    /// Files of any kind that cairn opens
    #[arg(required = true)]
    files: Vec<PathBuf>,

    /// A label of these files: service=NAME, version=NAME, host=NAME, or a key of your own, as
    /// region=eu. Questions choose by them. The service is the program's name unless it is given
    #[arg(long = "label", value_name = "KEY=VALUE")]
    labels: Vec<String>,

    /// Divide each recording into slices of this length, so that `leaks` sees what grew within it.
    /// Files without times have one slice
    #[arg(long, value_name = "TIME", value_parser = parse_age)]
    slice: Option<i64>,
}

/// Which samples are asked.
#[derive(Args)]
pub(crate) struct Chosen {
    /// The directory of the store
    pub(crate) store: String,

    /// Only samples for which this holds: SQL on service, version, host, day and labels
    #[arg(long = "where", value_name = "CONDITION")]
    condition: Option<String>,

    /// Only slices that ended within this time: 7d, 12h, 30m
    #[arg(long, value_name = "TIME", value_parser = parse_age)]
    since: Option<i64>,

    #[command(flatten)]
    pub(crate) on: On,
}

/// Which samples are asked, and how the answer is written.
#[derive(Args)]
struct Asked {
    #[command(flatten)]
    chosen: Chosen,

    /// Rows of the answer
    #[arg(long, value_name = "N", default_value_t = 20)]
    limit: usize,

    #[command(flatten)]
    form: Written,
}

/// How an answer is written.
#[derive(Args)]
pub(crate) struct Written {
    /// The form of the answer
    #[arg(long, value_name = "FORM", default_value = "text")]
    format: Form,

    /// Write the answer to this file
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// List the stacks that hold or allocate most
#[derive(Args)]
struct Top {
    #[command(flatten)]
    asked: Asked,

    /// The measure
    #[arg(long, value_name = "MEASURE", default_value = "live")]
    by: Measure,
}

/// List what grew from the first to the last slice of each process, or what ended processes left
#[derive(Args)]
struct Leaks {
    #[command(flatten)]
    asked: Asked,

    /// The rows of the answer
    #[arg(long, value_name = "ROWS", default_value = "stack")]
    by: Rows,
}

/// List the stacks that hold more in one version than in another, per process
#[derive(Args)]
struct Growth {
    #[command(flatten)]
    asked: Asked,

    /// The version before
    #[arg(long, value_name = "VERSION")]
    from: String,

    /// The version after
    #[arg(long, value_name = "VERSION")]
    to: String,
}

/// Show how much each version holds in a stack, and which one introduced it
#[derive(Args)]
struct Introduced {
    #[command(flatten)]
    asked: Asked,

    /// The shape, as `growth`, `leaks` and `top` list it; its first digits suffice
    shape: String,
}

/// Draw a selection as a flame graph
#[derive(Args)]
struct Flame {
    #[command(flatten)]
    chosen: Chosen,

    /// The measure of widths
    #[arg(long, value_name = "MEASURE", default_value = "live")]
    by: Measure,

    /// The picture
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,

    /// Replace the picture if it exists
    #[arg(long)]
    force: bool,
}

/// Run a query
///
/// Tables: samples (with a column for each label), process, stack, shape, frame, module, block.
/// Functions: flame(condition, column) and inclusive(condition, column).
#[derive(Args)]
struct Sql {
    /// The directory of the store
    store: String,

    /// The query
    query: String,

    #[command(flatten)]
    on: On,

    #[command(flatten)]
    form: Written,
}

/// Remove the samples of old days, and files that nothing names
#[derive(Args)]
struct Expire {
    /// The directory of the store
    store: String,

    /// Remove the samples of days that ended longer ago: 90d
    #[arg(long, value_name = "TIME", value_parser = parse_age)]
    older: i64,

    /// Delete files that no commit names and that are older than this
    #[arg(long, value_name = "TIME", value_parser = parse_age, default_value = "7d")]
    unnamed_older: i64,
}

/// Reads a time in milliseconds: `7d`, or what other commands take.
fn parse_age(text: &str) -> Result<i64, String> {
    const DAY_MS: i64 = 86_400_000;
    let days = text.strip_suffix('d').and_then(|days| days.parse::<i64>().ok());
    let millis = match days {
        Some(days) => days.checked_mul(DAY_MS),
        None => i64::try_from(parse_time(text)? / 1_000_000).ok(),
    };
    millis.filter(|&millis| millis >= 0).ok_or_else(|| format!("{text}: a time is 7d, 12h, 30min or 10s"))
}

/// Writes a message to standard error.
pub(crate) fn complain(message: &dyn std::fmt::Display) {
    let _ = writeln!(io::stderr(), "cairn fleet: {message}");
}

impl Fleet {
    /// Does it; returns the exit code.
    pub(crate) async fn run(self) -> Result<u8, FleetError> {
        match self.command {
            Action::Init(place) => {
                Store::create(&place.store).await?;
                Ok(0)
            }
            Action::Add(add) => add.run().await,
            Action::Serve(serve) => serve.run().await,
            Action::Symbols(symbols) => symbols.run().await,
            Action::Top(top) => {
                let Top { asked, by } = top;
                asked.answer(|selection, limit| questions::top(selection, by, limit)).await
            }
            Action::Leaks(leaks) => {
                let Leaks { asked, by } = leaks;
                asked.answer(|selection, limit| questions::leaks(selection, by, limit)).await
            }
            Action::Growth(growth) => {
                let Growth { asked, from, to } = growth;
                let session = session_on(&asked.chosen.store, &asked.chosen.on).await?;
                check_versions(&session, [&from, &to]).await?;
                let query = questions::growth(&asked.chosen.selection(), &from, &to, asked.limit);
                asked.write(&session, &session.run(&query).await?).await
            }
            Action::Introduced(introduced) => introduced.run().await,
            Action::Flame(flame) => flame.run().await,
            Action::View(view) => view.run().await,
            Action::Sql(sql) => {
                let session = session_on(&sql.store, &sql.on).await?;
                sql.form.write(&session.run(&sql.query).await?)?;
                Ok(0)
            }
            Action::Compact(place) => compact(&place.store).await,
            Action::Expire(expire) => expire.run().await,
            Action::Check(place) => check(&place.store).await,
            Action::Scheduler(scheduler) => scheduler.run().await,
            Action::Executor(executor) => executor.run().await,
            Action::Key(key) => key.run(),
            Action::Generate(generate) => generate.run().await,
        }
    }
}

impl Add {
    async fn run(self) -> Result<u8, FleetError> {
        let labels = Labels::of(&self.labels)?;
        if self.slice == Some(0) {
            return Err(FleetError::usage("--slice: a slice has a millisecond or more"));
        }
        let slice_ms = self.slice.map(|millis| millis.unsigned_abs());
        let mut store = Store::open(&self.store).await?;
        for path in &self.files {
            let content = content_of(path, &labels)?;
            if store.has_file(content).await? {
                complain(&format_args!("{}: is in the store already", path.display()));
                continue;
            }
            // Reading and naming take long, and belong to no task of the engine.
            let (of_file, of_labels) = (path.clone(), labels.clone());
            let block =
                tokio::task::spawn_blocking(move || block_of_file(&of_file, content, &of_labels, slice_ms))
                    .await
                    .map_err(|error| FleetError::file(path, error))??;
            let (stacks, service, version) =
                (block.stacks.len() as u64, block.process.service.clone(), block.process.version.clone());
            let result = store.append(&[block]).await?;
            match result.first() {
                Some(Appended::Stored) => complain(&format_args!(
                    "{}: {} of {service} {version}",
                    path.display(),
                    counted(stacks, "stack")
                )),
                _ => complain(&format_args!("{}: is in the store already", path.display())),
            }
        }
        Ok(0)
    }
}

/// Opens a store for questions.
pub(crate) async fn session_of(store: &str) -> Result<Session, FleetError> {
    Session::open(&Store::open(store).await?).await
}

/// Opens a store for questions that a cluster may answer.
pub(crate) async fn session_on(store: &str, on: &On) -> Result<Session, FleetError> {
    Session::open_on(&Store::open(store).await?, on).await
}

impl Chosen {
    pub(crate) fn selection(&self) -> Selection {
        Selection { condition: self.condition.clone(), since_ms: self.since.map(|age| now_ms() - age) }
    }

    pub(crate) fn title(&self) -> String {
        self.condition.clone().unwrap_or_else(|| self.store.clone())
    }
}

impl Asked {
    async fn answer(self, question: impl FnOnce(&Selection, usize) -> String) -> Result<u8, FleetError> {
        let session = session_on(&self.chosen.store, &self.chosen.on).await?;
        let batches = session.run(&question(&self.chosen.selection(), self.limit)).await?;
        self.write(&session, &batches).await
    }

    /// Writes an answer, and to standard error why it may be wrong.
    async fn write(&self, session: &Session, batches: &[RecordBatch]) -> Result<u8, FleetError> {
        self.form.write(batches)?;
        say_doubts(&Doubts::of(session, &self.chosen.selection()).await?);
        Ok(0)
    }
}

/// Writes to standard error why an answer may be wrong.
pub(crate) fn say_doubts(doubts: &Doubts) {
    for sentence in doubts.sentences() {
        complain(&format_args!("note: {sentence}"));
    }
}

impl Written {
    pub(crate) fn write(&self, batches: &[RecordBatch]) -> Result<(), FleetError> {
        if self.format != Form::Parquet && batches.iter().all(|batch| batch.num_rows() == 0) {
            complain(&"the answer has no rows");
        }
        match &self.output {
            Some(path) => {
                let failed = |error: io::Error| FleetError::file(path, error);
                let mut file = NewFile::create(path).map_err(failed)?;
                answer::write(batches, self.format, file.file_mut())?;
                file.commit(Existing::Replace).map_err(failed)
            }
            None if self.format == Form::Parquet => {
                Err(FleetError::usage("--format parquet: give the file with --output"))
            }
            None => {
                let mut text = Vec::new();
                answer::write(batches, self.format, &mut text)?;
                match io::stdout().write_all(&text) {
                    // The reader has seen enough.
                    Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
                    result => result.map_err(|error| FleetError::new(format!("the output: {error}"))),
                }
            }
        }
    }
}

impl Introduced {
    async fn run(self) -> Result<u8, FleetError> {
        let session = session_on(&self.asked.chosen.store, &self.asked.chosen.on).await?;
        let shape = self.shape_in(&session).await?;
        let batches = session.run(&questions::introduced(&self.asked.chosen.selection(), shape)).await?;
        self.asked.write(&session, &questions::with_verdict(&batches)?).await
    }

    /// Finds the one shape that begins with the given digits.
    async fn shape_in(&self, session: &Session) -> Result<Id, FleetError> {
        let digits = &self.shape;
        let mut found = Vec::new();
        for batch in session.run(&questions::shapes_like(digits)?).await? {
            found.extend(answer::texts(&batch, 0)?.iter().filter_map(|text| Id::parse(text)));
        }
        match found.as_slice() {
            [shape] => Ok(*shape),
            [] => Err(FleetError::new(format!("{digits}: the store has no such shape"))),
            _ => Err(FleetError::new(format!("{digits}: several shapes begin so; give more digits"))),
        }
    }
}

impl Flame {
    async fn run(self) -> Result<u8, FleetError> {
        let failed = |error: io::Error| FleetError::file(&self.output, error);
        // An output that cannot be written is refused before minutes of reading.
        let mut file = NewFile::create(&self.output).map_err(failed)?;
        let Chosen { store, on, .. } = &self.chosen;
        let session = session_on(store, on).await?;
        let heap = SelectedHeap::read(&session, &self.chosen.selection(), self.chosen.title()).await?;
        say_doubts(&Doubts::of(&session, &self.chosen.selection()).await?);
        let svg = picture(store, heap, self.by)?;
        file.file_mut().write_all(svg.as_bytes()).map_err(failed)?;
        let existing = if self.force { Existing::Replace } else { Existing::Refuse };
        file.commit(existing).map_err(failed)?;
        Ok(0)
    }
}

/// Refuses a version that no process has: an answer without rows would mean that nothing grew.
async fn check_versions(session: &Session, wanted: [&str; 2]) -> Result<(), FleetError> {
    let mut known = Vec::new();
    for batch in session.run_here("select distinct version from process order by version").await? {
        known.extend(answer::texts(&batch, 0)?);
    }
    match wanted.iter().find(|version| !known.iter().any(|known| known == *version)) {
        None => Ok(()),
        Some(version) => Err(FleetError::new(format!(
            "the store has no version {version}; it has: {}",
            known
                .iter()
                .map(|version| if version.is_empty() { "(none)" } else { version })
                .collect::<Vec<_>>()
                .join(", ")
        ))),
    }
}

/// Draws a selection.
fn picture(store: &str, heap: SelectedHeap, measure: Measure) -> Result<String, FleetError> {
    /// Most frames, so that a browser draws the picture without delay.
    const MOST_FRAMES: usize = 200_000;
    let source = HeapSource::of_import(Path::new(store), Arc::new(heap), &SourceOptions::default());
    let symbols = source.symbols();
    let names = source.names(&symbols, Folding::default());
    let read = source.read(Scope::default(), ReadDetail::Stacks).map_err(FleetError::source)?;
    let mut questions = Questions::new(&read.profile, names);
    let (cost, what) = match measure {
        Measure::Live => (Cost::Leaked, "alive at the end of each process's last slice"),
        Measure::Peak => (Cost::Peak, "at each process's peak"),
        Measure::Allocated => (Cost::Allocated, "allocated"),
    };
    let limits = TreeLimits { least_share: 0.0005, most_levels: 2000, most_nodes: MOST_FRAMES };
    let tree = questions.tree(Direction::FromMain, cost, limits);
    let whole = bytes(tree.nodes[0].amount.value);
    let options = FlameOptions { title: source.title(), subtitle: format!("{whole} {what}") };
    Ok(questions.flame_svg(&tree, &options))
}

async fn compact(place: &str) -> Result<u8, FleetError> {
    let merged = Store::open(place).await?.compact().await?;
    complain(&format_args!(
        "{} of {} merged into {} of {}: {}",
        counted(merged.files_before as u64, "file"),
        bytes(merged.bytes_before),
        merged.files_after,
        bytes(merged.bytes_after),
        counted(merged.rows, "row")
    ));
    Ok(0)
}

async fn check(place: &str) -> Result<u8, FleetError> {
    let mut code = 0;
    for table in Store::open(place).await?.check().await? {
        let mut line = format!(
            "{}: {} in {}, {}",
            table.table.name(),
            counted(table.rows, "row"),
            counted(table.files as u64, "file"),
            bytes(table.bytes)
        );
        if table.unnamed_files > 0 {
            line += &format!(
                "; {} more, {}, in no commit: `expire` deletes old ones",
                counted(table.unnamed_files as u64, "file"),
                bytes(table.unnamed_bytes)
            );
        }
        writeln!(io::stdout(), "{line}").map_err(|error| FleetError::new(error.to_string()))?;
        for problem in &table.problems {
            code = 3;
            complain(&format_args!("{}/{problem}", table.table.name()));
        }
    }
    Ok(code)
}

impl Expire {
    async fn run(self) -> Result<u8, FleetError> {
        let store = Store::open(&self.store).await?;
        let day = day_of(now_ms() - self.older);
        let expired = store.expire(&day).await?;
        let swept = store.sweep(self.unnamed_older).await?;
        complain(&format_args!(
            "{} before {day} removed; {} of {} deleted",
            counted(expired.rows, "row"),
            counted(swept.files as u64, "file"),
            bytes(swept.bytes)
        ));
        Ok(0)
    }
}
