//! Shapes of stacks whose frames have been named since they were stored.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use arrow::array::{Array as _, AsArray as _, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Int64Type};
use cairn_analysis::attribution::Folding;
use cairn_analysis::heap::{Questions, Scope, shapes};
use cairn_analysis::source::{HeapSource, ReadDetail, SourceOptions};
use cairn_store::block::{ModuleId, Place, Shape, ShapeFrame, Stack};
use cairn_store::{FoundNames, Id};

use crate::add::shape_frame;
use crate::error::FleetError;
use crate::questions::{Selection, ids};
use crate::selected_heap::SelectedHeap;
use crate::session::Session;
use crate::symbols::{Extent, binary};

/// A stack of the store, and its shape.
struct KnownStack {
    frames: Vec<Place>,
    shape: Option<Id>,
}

/// Finds the shapes of stacks that have frames in some modules; returns those that are new.
///
/// `named` are the places that were named just now.
pub(crate) async fn of_modules(
    session: &Session,
    modules: &[ModuleId],
    extent: Extent,
    named: &HashSet<Place>,
) -> Result<FoundNames, FleetError> {
    let mut wanted = stacks_in(session, modules).await?;
    if extent == Extent::Unnamed {
        wanted.retain(|_, stack| {
            stack.shape.is_none() || stack.frames.iter().any(|place| named.contains(place))
        });
    }
    let mut found: BTreeMap<Id, Shape> = BTreeMap::new();
    let mut changed = BTreeMap::new();
    for (process, build_id, stacks) in processes_of(session).await? {
        if wanted.is_empty() {
            break;
        }
        if !stacks.iter().any(|stack| wanted.contains_key(stack)) {
            continue;
        }
        for (id, frames) in shapes_of_process(session, process, &build_id).await? {
            let Some(KnownStack { frames: places, shape: before }) = wanted.remove(&id) else { continue };
            let shape = Shape::new(frames);
            if before != Some(shape.id) {
                changed.insert(id, Stack::new(places, Some(shape.id)));
                found.insert(shape.id, shape);
            }
        }
    }
    Ok(FoundNames {
        shapes: found.into_values().collect(),
        stacks: changed.into_values().collect(),
        ..FoundNames::default()
    })
}

/// The stacks that have frames in some modules.
async fn stacks_in(session: &Session, modules: &[ModuleId]) -> Result<HashMap<Id, KnownStack>, FleetError> {
    let query = format!(
        "with places as (select stack_id, unnest(frames) as place from stack), \
         wanted as (select distinct stack_id from places where place['module'] in ({})) \
         select s.stack_id, s.frames, s.shape_id from stack s join wanted w on w.stack_id = s.stack_id",
        ids(modules.iter().map(|id| &**id))
    );
    let mut stacks = HashMap::new();
    for batch in session.run(&query).await? {
        let (ids, shapes) = (binary(&batch, 0)?, binary(&batch, 2)?);
        let frames = frames_of(&batch, 1)?;
        for (row, frames) in frames.into_iter().enumerate() {
            let shape = if shapes.is_valid(row) { id_of(shapes.value(row)) } else { None };
            if let Some(id) = id_of(ids.value(row)) {
                stacks.insert(id, KnownStack { frames, shape });
            }
        }
    }
    Ok(stacks)
}

fn id_of(bytes: &[u8]) -> Option<Id> {
    bytes.try_into().ok().map(Id::new)
}

/// Lists of frames of a column.
fn frames_of(batch: &RecordBatch, column: usize) -> Result<Vec<Vec<Place>>, FleetError> {
    let lists = batch.column(column).as_list::<i32>();
    let list = |row: usize| {
        let list = lists.value(row);
        let frames = list.as_struct();
        let modules = cast(frames.column(0), &DataType::Binary)?;
        let (modules, offsets) = (modules.as_binary::<i32>(), frames.column(1).as_primitive::<Int64Type>());
        Ok((0..frames.len()).map(|frame| (modules.value(frame).into(), offsets.value(frame))).collect())
    };
    (0..batch.num_rows()).map(list).collect()
}

/// The processes in the order of their arrival, with the build id of the program and the stacks.
async fn processes_of(session: &Session) -> Result<Vec<(Id, Vec<u8>, BTreeSet<Id>)>, FleetError> {
    let mut stacks: HashMap<Id, BTreeSet<Id>> = HashMap::new();
    for batch in session.run("select distinct process, stack_id from sample").await? {
        let (processes, ids) = (binary(&batch, 0)?, binary(&batch, 1)?);
        for row in 0..batch.num_rows() {
            if let (Some(process), Some(stack)) = (id_of(processes.value(row)), id_of(ids.value(row))) {
                stacks.entry(process).or_default().insert(stack);
            }
        }
    }
    let mut processes = Vec::new();
    let query = "select p.process, p.build_id from process p \
                 join (select process, min(revision) as came from process_rows group by process) f \
                   on f.process = p.process \
                 order by f.came, p.process";
    for batch in session.run(query).await? {
        let (ids, builds) = (binary(&batch, 0)?, binary(&batch, 1)?);
        for row in 0..batch.num_rows() {
            let Some(process) = id_of(ids.value(row)) else { continue };
            let stacks = stacks.remove(&process).unwrap_or_default();
            processes.push((process, builds.value(row).to_vec(), stacks));
        }
    }
    Ok(processes)
}

/// The shapes of all stacks of a process. They depend on each other: a function that all memory of
/// a program flows through is a wrapper of the allocator.
async fn shapes_of_process(
    session: &Session,
    process: Id,
    build_id: &[u8],
) -> Result<Vec<(Id, Vec<ShapeFrame>)>, FleetError> {
    let selection = Selection { condition: Some(format!("process = X'{process}'")), since_ms: None };
    let mut heap = SelectedHeap::read(session, &selection, String::new()).await?;
    heap.set_program(build_id);
    let ids = heap.ids().clone();
    let shapes = tokio::task::spawn_blocking(move || -> Result<_, FleetError> {
        let source = HeapSource::of_import(Path::new(""), Arc::new(heap), &SourceOptions::default());
        let symbols = source.symbols();
        let read = source.read(Scope::default(), ReadDetail::Stacks).map_err(FleetError::source)?;
        let mut questions = Questions::new(&read.profile, source.names(&symbols, Folding::default()));
        Ok(shapes(&mut questions, |sums| !sums.is_empty()))
    });
    let shapes = shapes.await.map_err(|error| FleetError::new(error.to_string()))??;
    let shape = |(stack, frames): (u32, Vec<cairn_analysis::heap::DiffFrame>)| {
        let frames: Vec<ShapeFrame> = frames.into_iter().map(shape_frame).collect();
        (!frames.is_empty()).then_some((*ids.get(&stack)?, frames))
    };
    Ok(shapes.into_iter().filter_map(shape).collect())
}
