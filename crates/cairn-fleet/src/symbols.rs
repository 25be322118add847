//! Names that are found after the samples: `cairn fleet symbols`.
//!
//! A debug file names each place of its build once, whichever process it came from. From the names
//! follow the shapes of stacks: process by process in the order of arrival, and the first process
//! that has a stack decides, as it does when files with their symbols are added.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::path::{Path, PathBuf};

use arrow::array::{Array as _, AsArray as _, BinaryArray, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Int64Type};
use cairn_analysis::units::counted;
use cairn_format::{Hexadecimal, ModuleOffset};
use cairn_store::block::{Frame, Line, Module, ModuleId, Place};
use cairn_store::{FoundNames, Store};
use cairn_symbols::{Lookup, Symbolizer, SymbolizerOptions};
use clap::{Args, Subcommand};
use object::Object as _;

use crate::add::{GENERATED, INTERPRETED, line_of};
use crate::commands::{Written, complain, session_of};
use crate::error::FleetError;
use crate::session::Session;
use crate::shapes;

/// Name code whose debug files come later
#[derive(Args)]
pub(crate) struct Symbols {
    #[command(subcommand)]
    action: SymbolsAction,
}

#[derive(Subcommand)]
enum SymbolsAction {
    Missing(Missing),
    Add(AddSymbols),
}

/// List modules with code that has no name, those behind most memory first
#[derive(Args)]
struct Missing {
    /// The directory of the store
    store: String,

    #[command(flatten)]
    form: Written,
}

/// Name the code of all modules that these files are of, by build id
#[derive(Args)]
struct AddSymbols {
    /// The directory of the store
    store: String,

    /// Programs, libraries and debug files, and directories with such files
    #[arg(required = true)]
    files: Vec<PathBuf>,
}

impl Symbols {
    /// Does it; returns the exit code.
    pub(crate) async fn run(self) -> Result<u8, FleetError> {
        match self.action {
            SymbolsAction::Missing(Missing { store, form }) => {
                form.write(&session_of(&store).await?.run(&missing()).await?)?;
                Ok(0)
            }
            SymbolsAction::Add(AddSymbols { store, files }) => {
                let mut index = FileIndex::default();
                for path in &files {
                    // A file that was named must be there; those of directories are as they are.
                    path.metadata().map_err(|error| FleetError::file(path, error))?;
                    index.scan(path);
                }
                if index.files.is_empty() {
                    return Err(FleetError::new("none of these files is an ELF file with a build id"));
                }
                let done = add(&store, &index, Extent::All).await?;
                complain(&done);
                Ok(0)
            }
        }
    }
}

/// The part of a store that is named.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Extent {
    /// All code of modules that have a file, and the shapes of all stacks in it.
    All,
    /// Code that has no name yet, and stacks without a shape.
    Unnamed,
}

/// The number of things that were named.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Done {
    modules: usize,
    frames: usize,
    stacks: usize,
}

impl Done {
    /// True when something was written.
    pub(crate) const fn has_changed(self) -> bool {
        self.frames > 0 || self.stacks > 0
    }
}

impl std::fmt::Display for Done {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { modules, frames, stacks } = *self;
        let count = |number: usize, word: &str| counted(number as u64, word);
        write!(
            formatter,
            "{} with symbols; {} named, {} with another shape",
            count(modules, "module"),
            count(frames, "frame"),
            count(stacks, "stack")
        )
    }
}

/// Files by the build that they are of.
#[derive(Clone, Debug, Default)]
pub(crate) struct FileIndex {
    files: BTreeMap<Vec<u8>, Vec<PathBuf>>,
    /// Files that were looked into, with their length and time.
    seen: HashMap<PathBuf, (u64, Option<std::time::SystemTime>)>,
}

/// Directories in directories that are searched; 32, because a link can lead back.
const MOST_LEVELS: usize = 32;

impl FileIndex {
    /// Adds a file, or the files of a directory. Those that are no ELF files are left out.
    pub(crate) fn scan(&mut self, path: &Path) {
        self.scan_level(path, MOST_LEVELS);
    }

    fn scan_level(&mut self, path: &Path, levels: usize) {
        let Ok(facts) = path.metadata() else { return };
        if facts.is_dir() {
            let Some(levels) = levels.checked_sub(1) else { return };
            let Ok(entries) = std::fs::read_dir(path) else { return };
            let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
            paths.sort_unstable();
            paths.iter().for_each(|path| self.scan_level(path, levels));
            return;
        }
        let state = (facts.len(), facts.modified().ok());
        if !facts.is_file() || self.seen.insert(path.to_owned(), state) == Some(state) {
            return;
        }
        if let Some(build_id) = build_id_of(path) {
            let files = self.files.entry(build_id).or_default();
            if !files.iter().any(|known| known == path) {
                files.push(path.to_owned());
            }
        }
    }
}

/// The build id of an ELF file.
fn build_id_of(path: &Path) -> Option<Vec<u8>> {
    let file = object::ReadCache::new(File::open(path).ok()?);
    let object = object::File::parse(&file).ok()?;
    let is_elf = object.format() == object::BinaryFormat::Elf;
    object.build_id().ok().flatten().filter(|id| is_elf && !id.is_empty()).map(<[u8]>::to_vec)
}

/// The query of `missing`: each stack counts once for a module, however many of its frames are
/// there.
fn missing() -> String {
    format!(
        "with unnamed as (select module, \"offset\" from frame \
           where \"offset\" >= 0 and coalesce(array_length(lines), 0) = 0), \
         counts as (select module, count(*) as frames from unnamed group by module), \
         last as (select process, max(t_end) as t_end from sample group by process), \
         live as (select s.stack_id as stack_id, sum(s.live_bytes) as bytes from sample s \
           join last l on s.process = l.process and s.t_end = l.t_end group by s.stack_id), \
         places as (select stack_id, unnest(frames) as place from stack), \
         behind as (select distinct p.stack_id as stack_id, u.module as module from places p join unnamed u \
           on u.module = p.place['module'] and u.\"offset\" = p.place['offset']), \
         held as (select b.module as module, sum(l.bytes) as bytes from behind b \
           join live l on l.stack_id = b.stack_id group by b.module) \
         select m.path as path, case when m.has_build_id then encode(m.module, 'hex') else '' end as build_id, \
           c.frames as frames, coalesce(h.bytes, 0) as bytes \
         from module m join counts c on c.module = m.module left join held h on h.module = m.module \
         where m.path <> '' and m.path <> '{GENERATED}' and not starts_with(m.path, '{INTERPRETED}') \
         order by bytes desc, path, build_id"
    )
}

/// Names the code of a store by files, and finds the shapes that follow.
pub(crate) async fn add(place: &str, index: &FileIndex, extent: Extent) -> Result<Done, FleetError> {
    let mut store = Store::open(place).await?;
    let session = Session::open(&store).await?;
    let modules = with_files(modules_of(&session, extent).await?, index);
    if modules.is_empty() {
        return Ok(Done::default());
    }
    let mut found = FoundNames::default();
    for (module, files) in &modules {
        let known = places_of(&session, &module.id, extent).await?;
        let (id, files) = (module.id.clone(), files.clone());
        let frames = tokio::task::spawn_blocking(move || named(&id, &known, &files))
            .await
            .map_err(|error| FleetError::new(format!("{}: {error}", module.path)))?;
        found.frames.extend(frames);
    }
    let mut done = Done { modules: modules.len(), frames: found.frames.len(), stacks: 0 };
    if !found.frames.is_empty() {
        // Shapes follow from all names, so that these come first.
        store.put_names(&found).await?;
    }
    let session = Session::open(&store).await?;
    let ids: Vec<ModuleId> = modules.iter().map(|(module, _)| module.id.clone()).collect();
    let named: HashSet<Place> = found.frames.into_iter().map(|frame| frame.place).collect();
    let mut found = shapes::of_modules(&session, &ids, extent, &named).await?;
    done.stacks = found.stacks.len();
    found.modules = modules
        .into_iter()
        .map(|(module, _)| module)
        .filter(|module| !module.has_names)
        .map(|module| Module { has_names: true, ..module })
        .collect();
    if !found.stacks.is_empty() || !found.modules.is_empty() {
        store.put_names(&found).await?;
    }
    Ok(done)
}

/// The modules that have a file, each with its files.
fn with_files(modules: Vec<Module>, index: &FileIndex) -> Vec<(Module, Vec<PathBuf>)> {
    let files = |module: Module| {
        let files = index.files.get(&*module.id)?.clone();
        Some((module, files))
    };
    modules.into_iter().filter_map(files).collect()
}

/// The modules of a store that have a build id.
async fn modules_of(session: &Session, extent: Extent) -> Result<Vec<Module>, FleetError> {
    // Stacks without a shape may be of modules that have names.
    let condition = match extent {
        Extent::All => "true",
        Extent::Unnamed => {
            "module in (select module from frame where coalesce(array_length(lines), 0) = 0) \
             or (select count(*) from stack where shape_id is null) > 0"
        }
    };
    let query = format!(
        "select module, path, symbols = 'have' from module where has_build_id and ({condition}) order by module"
    );
    let mut modules = Vec::new();
    for batch in session.run(&query).await? {
        let (ids, paths) = (binary(&batch, 0)?, cast(batch.column(1), &DataType::Utf8)?);
        let has_names = batch.column(2).as_boolean();
        for row in 0..batch.num_rows() {
            modules.push(Module {
                id: ids.value(row).into(),
                path: paths.as_string::<i32>().value(row).to_owned(),
                has_build_id: true,
                has_names: has_names.value(row),
            });
        }
    }
    Ok(modules)
}

pub(crate) fn binary(batch: &RecordBatch, column: usize) -> Result<BinaryArray, FleetError> {
    Ok(cast(batch.column(column), &DataType::Binary)?.as_binary::<i32>().clone())
}

/// How much is known of a place: a function, a file, and the calls inlined there.
type Rank = (bool, bool, usize);

/// The places of a module, and how much is known of each.
async fn places_of(session: &Session, module: &[u8], extent: Extent) -> Result<Vec<(i64, Rank)>, FleetError> {
    let condition = match extent {
        Extent::All => "true",
        Extent::Unnamed => "coalesce(array_length(lines), 0) = 0",
    };
    let query = format!(
        "select \"offset\", lines from frame where module = X'{}' and \"offset\" >= 0 and {condition} \
         order by \"offset\"",
        Hexadecimal(module)
    );
    let mut places = Vec::new();
    for batch in session.run(&query).await? {
        let offsets = batch.column(0).as_primitive::<Int64Type>();
        let lists = batch.column(1).as_list::<i32>();
        for row in 0..batch.num_rows() {
            let lines = lists.value(row);
            let lines = lines.as_struct();
            let has = |column: usize| lines.column(column).null_count() < lines.len();
            places.push((offsets.value(row), (has(0), has(1), lines.len())));
        }
    }
    Ok(places)
}

fn rank(lines: &[Line]) -> Rank {
    let has_function = lines.iter().any(|line| line.function.is_some());
    (has_function, lines.iter().any(|line| line.file.is_some()), lines.len())
}

/// Returns the places with better names in the files than in the store.
fn named(module: &ModuleId, known: &[(i64, Rank)], files: &[PathBuf]) -> Vec<Frame> {
    let mut best: BTreeMap<i64, (Rank, Vec<Line>)> = BTreeMap::new();
    for path in files {
        let mut symbolizer = Symbolizer::new(SymbolizerOptions::new().indexes_in_background(false));
        let file = match symbolizer.add_file(path) {
            Ok(file) => file,
            Err(error) => {
                complain(&error);
                continue;
            }
        };
        let offset = |&(offset, _): &(i64, Rank)| ModuleOffset::new(u64::try_from(offset).unwrap_or(0));
        let lookups: Vec<_> =
            known.iter().map(|place| (file, Lookup::program_counter(offset(place)))).collect();
        let answers = symbolizer.resolve_many(&lookups);
        for (&(offset, before), answer) in known.iter().zip(answers.iter()) {
            let lines: Vec<Line> = answer.frames().iter().filter_map(line_of).collect();
            let rank = rank(&lines);
            if rank > best.get(&offset).map_or(before, |(rank, _)| *rank) {
                best.insert(offset, (rank, lines));
            }
        }
    }
    let frame = |(offset, (_, lines))| Frame { place: (module.clone(), offset), lines };
    best.into_iter().map(frame).collect()
}
