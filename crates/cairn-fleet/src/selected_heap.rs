//! A selection of a store as a heap that the commands for one recording can show.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use arrow::array::{Array as _, AsArray as _, BinaryArray, Int64Array, ListArray, RecordBatch, StringArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Int64Type, Schema};
use cairn_analysis::heap::slices::Slices;
use cairn_analysis::heap::{
    About, Address, Cost, HeapProfile, HeapRead, InterpretedCode, Module, NO_FRAMES, Namer, Scope, Stacks,
    Sums,
};
use cairn_analysis::source::{ImportError, ImportedHeap, Question, Times};
use cairn_format::recording::{LineTableFormat, PcKind};
use cairn_store::Id;
use cairn_store::block::{ModuleId, Place};
use cairn_symbols::SourceFrame;

use crate::add::{GENERATED, INTERPRETED};
use crate::doubts::Doubts;
use crate::error::FleetError;
use crate::questions::{self, Selection, stacks};
use crate::session::Session;

/// The sums of a selection, by stack.
#[derive(Clone, Debug)]
pub(crate) struct SelectedHeap {
    title: String,
    stacks: Stacks,
    sums: Vec<Sums>,
    lost: Sums,
    /// By address.
    lines: Vec<Vec<SourceFrame>>,
    /// The identifiers of stacks, by their number here.
    ids: HashMap<u32, Id>,
    notes: Vec<String>,
    findings: Vec<String>,
}

impl SelectedHeap {
    /// Reads a selection.
    pub(crate) async fn read(
        session: &Session,
        selection: &Selection,
        title: String,
    ) -> Result<Self, FleetError> {
        let sums = session.run(&stacks(selection, &session.frames_of("by_stack"))).await?;
        let mut builder = Builder::new(names_of(session, &sums).await?, modules_of(session).await?);
        for batch in &sums {
            builder.add(batch)?;
        }
        Ok(builder.finish(title))
    }

    /// States why its sums may be wrong.
    pub(crate) fn set_doubts(&mut self, doubts: &Doubts) {
        self.notes = doubts.notes();
        self.findings = doubts.losses().into_iter().collect();
    }

    /// Says which module is the program.
    pub(crate) fn set_program(&mut self, build_id: &[u8]) {
        let modules = self.stacks.modules();
        let program = modules.iter().position(|module| !build_id.is_empty() && module.build_id == build_id);
        if let Some(program) = program.and_then(|program| u32::try_from(program).ok()) {
            self.stacks.set_program(program);
        }
    }

    /// The identifiers of stacks, by their number here.
    pub(crate) const fn ids(&self) -> &HashMap<u32, Id> {
        &self.ids
    }
}

/// The frames of [`stacks`] without repeats, as a table.
fn places_of(sums: &[RecordBatch]) -> Result<RecordBatch, FleetError> {
    let mut places: BTreeSet<Place> = BTreeSet::new();
    for batch in sums {
        let Some(frames) = batch.column_by_name("frames") else { continue };
        let frames = frames.as_list::<i32>().values().as_struct().clone();
        let modules = cast(frames.column(0), &DataType::Binary)?;
        let (modules, offsets) = (modules.as_binary::<i32>(), frames.column(1).as_primitive::<Int64Type>());
        places.extend((0..frames.len()).map(|frame| (modules.value(frame).into(), offsets.value(frame))));
    }
    let modules = BinaryArray::from_iter_values(places.iter().map(|(module, _)| &**module));
    let offsets = Int64Array::from_iter_values(places.iter().map(|(_, offset)| *offset));
    let schema = Schema::new(vec![
        Field::new("module", DataType::Binary, false),
        Field::new("offset", DataType::Int64, false),
    ]);
    Ok(RecordBatch::try_new(Arc::new(schema), vec![Arc::new(modules), Arc::new(offsets)])?)
}

/// The lines of code of the frames of [`stacks`].
async fn names_of(
    session: &Session,
    sums: &[RecordBatch],
) -> Result<HashMap<Place, Vec<SourceFrame>>, FleetError> {
    let places = places_of(sums)?;
    let query = format!(
        "select f.module, f.\"offset\", f.lines from frame f \
         join wanted w on w.module = f.module and w.\"offset\" = f.\"offset\"{}",
        of_modules(&places)
    );
    let mut names = HashMap::new();
    for batch in session.run_with(places, &query).await? {
        let modules = binary(&batch, 0)?;
        let offsets = batch.column(1).as_primitive::<Int64Type>();
        let lists = batch.column(2).as_list::<i32>();
        // The lines of all rows, one behind the other.
        let lines = lists.values().as_struct();
        let (functions, files) =
            (cast(lines.column(0), &DataType::Utf8)?, cast(lines.column(1), &DataType::Utf8)?);
        let (functions, files) = (functions.as_string::<i32>(), files.as_string::<i32>());
        let numbers = lines.column(2).as_primitive::<Int64Type>();
        let text = |texts: &StringArray, at: usize| texts.is_valid(at).then(|| Arc::from(texts.value(at)));
        for row in 0..batch.num_rows() {
            let frame = |at: usize| {
                let mut frame = SourceFrame::default();
                frame.function = text(functions, at);
                frame.file = text(files, at);
                frame.line = numbers.is_valid(at).then(|| u32::try_from(numbers.value(at)).ok()).flatten();
                frame.inlined = lines.column(3).as_boolean().value(at);
                frame
            };
            let frames = range_of(lists, row).map(frame).collect();
            names.insert((modules.value(row).into(), offsets.value(row)), frames);
        }
    }
    Ok(names)
}

/// A condition on the modules of places, so that the rows of others are not decoded. Empty where it
/// would be long.
fn of_modules(places: &RecordBatch) -> String {
    const MOST: usize = 100;
    let ids = places.column(0).as_binary::<i32>();
    let ids: BTreeSet<&[u8]> = ids.iter().flatten().collect();
    if ids.len() > MOST {
        return String::new();
    }
    if ids.is_empty() { String::new() } else { format!(" where f.module in ({})", questions::ids(ids)) }
}

/// The places of a row's values among those of all rows.
fn range_of(lists: &ListArray, row: usize) -> std::ops::Range<usize> {
    let offsets = lists.value_offsets();
    let place = |at: usize| usize::try_from(offsets[at]).unwrap_or(0);
    place(row)..place(row + 1)
}

/// Paths of modules, and whether their identifiers are build ids.
async fn modules_of(session: &Session) -> Result<HashMap<ModuleId, Module>, FleetError> {
    let mut modules = HashMap::new();
    for batch in session.run_here("select module, path, has_build_id from module").await? {
        let ids = binary(&batch, 0)?;
        let paths = cast(batch.column(1), &DataType::Utf8)?;
        let has_build_id = batch.column(2).as_boolean();
        for row in 0..batch.num_rows() {
            let id = ids.value(row);
            let build_id = if has_build_id.value(row) { id.to_vec() } else { Vec::new() };
            modules
                .insert(id.into(), Module { path: paths.as_string::<i32>().value(row).to_owned(), build_id });
        }
    }
    Ok(modules)
}

fn binary(batch: &RecordBatch, column: usize) -> Result<BinaryArray, FleetError> {
    Ok(cast(batch.column(column), &DataType::Binary)?.as_binary::<i32>().clone())
}

struct Builder {
    names: HashMap<Place, Vec<SourceFrame>>,
    known_modules: HashMap<ModuleId, Module>,
    stacks: Stacks,
    sums: Vec<Sums>,
    lost: Sums,
    lines: Vec<Vec<SourceFrame>>,
    ids: HashMap<u32, Id>,
    modules: HashMap<ModuleId, u32>,
    addresses: HashMap<Place, u32>,
    nodes: HashMap<(u32, u32), u32>,
}

impl Builder {
    fn new(names: HashMap<Place, Vec<SourceFrame>>, known_modules: HashMap<ModuleId, Module>) -> Self {
        Self {
            names,
            known_modules,
            stacks: Stacks::new(),
            sums: vec![Sums::default()],
            lost: Sums::default(),
            lines: Vec::new(),
            ids: HashMap::new(),
            modules: HashMap::new(),
            addresses: HashMap::new(),
            nodes: HashMap::new(),
        }
    }

    /// Adds rows of [`stacks`].
    fn add(&mut self, batch: &RecordBatch) -> Result<(), FleetError> {
        let column = |name: &str| {
            batch
                .column_by_name(name)
                .ok_or_else(|| FleetError::new(format!("the answer has no column {name}")))
        };
        let number = |name: &str, row: usize| -> Result<u64, FleetError> {
            let column = column(name)?.as_primitive::<Int64Type>();
            Ok(u64::try_from(column.value(row)).unwrap_or(0))
        };
        let lists = column("frames")?.as_list::<i32>();
        let frames = lists.values().as_struct();
        let modules = cast(frames.column(0), &DataType::Binary)?;
        let (modules, offsets) = (modules.as_binary::<i32>(), frames.column(1).as_primitive::<Int64Type>());
        let ids = cast(column("stack_id")?, &DataType::Binary)?;
        let ids = ids.as_binary::<i32>();
        for row in 0..batch.num_rows() {
            let sums = Sums {
                allocations: number("alloc_blocks", row)?,
                allocated_bytes: number("alloc_bytes", row)?,
                live_blocks: number("live_blocks", row)?,
                live_bytes: number("live_bytes", row)?,
                peak_blocks: number("peak_blocks", row)?,
                peak_bytes: number("peak_bytes", row)?,
                temporary: number("temporary", row)?,
            };
            let mut stack = NO_FRAMES;
            for frame in range_of(lists, row).rev() {
                let address = self.address((modules.value(frame).into(), offsets.value(frame)));
                stack = self.node(stack, address);
            }
            match stack {
                NO_FRAMES => self.lost.add(&sums),
                stack => {
                    self.sums[stack as usize].add(&sums);
                    if let Ok(id) = ids.value(row).try_into() {
                        self.ids.insert(stack, Id::new(id));
                    }
                }
            }
        }
        Ok(())
    }

    fn node(&mut self, parent: u32, address: u32) -> u32 {
        if let Some(&known) = self.nodes.get(&(parent, address)) {
            return known;
        }
        let Some(node) = self.stacks.add_stack(parent, address) else { return parent };
        self.nodes.insert((parent, address), node);
        self.sums.resize(self.stacks.len(), Sums::default());
        node
    }

    fn address(&mut self, place: Place) -> u32 {
        if let Some(&known) = self.addresses.get(&place) {
            return known;
        }
        let lines = self.names.get(&place).cloned().unwrap_or_default();
        let path = self.known_modules.get(&place.0).map(|module| module.path.as_str()).unwrap_or_default();
        let number = u32::try_from(self.lines.len()).unwrap_or(u32::MAX);
        // The namer finds the lines by this number.
        let stated = u64::from(number);
        let address = if path.starts_with(INTERPRETED)
            && let Some(frame) = lines.first()
        {
            /// The offset of a frame that has not begun; its line is the code's first one.
            const NOT_BEGUN: u64 = u32::MAX as u64;
            self.stacks.add_code(
                number,
                InterpretedCode {
                    file: frame.file.clone().unwrap_or_default(),
                    function: frame.function.clone().unwrap_or_default(),
                    first_line: frame.line.unwrap_or(0),
                    format: LineTableFormat::Python311,
                    line_table: Vec::new(),
                },
            );
            Address { kind: PcKind::Interpreted, absolute: stated << 32 | NOT_BEGUN, stated, module: None }
        } else {
            let is_file = !path.is_empty() && path != GENERATED;
            let (kind, offset) = match (u64::try_from(place.1), u32::try_from(!place.1)) {
                (Ok(offset), _) => (PcKind::ProgramCounter, offset),
                // Where the stack ends: the module is known, and the reason is not stored.
                (Err(_), _) if is_file => (PcKind::NoUnwindInfo, u64::try_from(!place.1).unwrap_or(0)),
                (Err(_), Ok(kind)) => (PcKind::from_number(kind).unwrap_or(PcKind::ProgramCounter), 0),
                (Err(_), Err(_)) => (PcKind::ProgramCounter, 0),
            };
            let module = is_file.then(|| (self.module(&place.0), offset));
            Address { kind, absolute: offset, stated, module }
        };
        self.lines.push(lines);
        let index = self.stacks.add_address(address);
        self.addresses.insert(place, index);
        index
    }

    fn module(&mut self, id: &ModuleId) -> u32 {
        if let Some(&known) = self.modules.get(id) {
            return known;
        }
        let module = self.known_modules.get(id).cloned().unwrap_or_default();
        let index = self.stacks.add_module(module);
        self.modules.insert(id.clone(), index);
        index
    }

    fn finish(self, title: String) -> SelectedHeap {
        let Self { stacks, sums, lost, lines, ids, .. } = self;
        SelectedHeap { title, stacks, sums, lost, lines, ids, notes: Vec::new(), findings: Vec::new() }
    }
}

impl Namer for SelectedHeap {
    fn name(&self, _: &Stacks, addresses: &[&Address]) -> Vec<Vec<SourceFrame>> {
        let lines = |address: &&Address| {
            let at = usize::try_from(address.stated).ok();
            at.and_then(|at| self.lines.get(at)).cloned().unwrap_or_default()
        };
        addresses.iter().map(lines).collect()
    }
}

impl ImportedHeap for SelectedHeap {
    fn format(&self) -> &'static str {
        "selection of a store"
    }

    fn about(&self) -> About {
        About { command: vec![self.title.clone()], ..About::default() }
    }

    fn stacks(&self) -> &Stacks {
        &self.stacks
    }

    fn times(&self) -> Times {
        Times::None
    }

    fn usual_cost(&self) -> Cost {
        Cost::Leaked
    }

    fn refusal(&self, question: Question) -> Option<String> {
        match question {
            Question::Cost(_) => None,
            _ => Some("a selection of a store has sums of stacks alone".to_owned()),
        }
    }

    fn is_named_at_opening(&self) -> bool {
        true
    }

    fn notes(&self) -> &[String] {
        &self.notes
    }

    fn findings(&self) -> &[String] {
        &self.findings
    }

    fn read_scope(&self, scope: &Scope) -> Result<HeapRead, ImportError> {
        let mut sums = self.sums.clone();
        if let Some(counted) = &scope.stacks {
            for (sums, counted) in sums.iter_mut().zip(counted) {
                if !counted {
                    *sums = Sums::default();
                }
            }
        }
        let mut profile = HeapProfile::of_sums(sums, 0);
        profile.lost_stack = self.lost;
        profile.totals.add(&self.lost);
        Ok(HeapRead::of_sums(profile, 0, Vec::new()))
    }

    fn read_scope_sliced(&self, scope: &Scope, _: usize) -> Result<(HeapRead, Slices), ImportError> {
        Ok((self.read_scope(scope)?, Slices::default()))
    }
}
