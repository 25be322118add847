//! Blocks: samples of one process that a sender gives at once, with all that they point to.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;

use crate::{Id, StoreError};

/// Samples of one process, with the stacks, shapes, frames and modules that they point to.
///
/// A block is stored once, however often it is given: the sender numbers its blocks from 1 on, and
/// a store takes them in order.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Block {
    /// The name of the sender; a process has one of its own.
    pub sender: String,
    /// The number of the block, from 1 on.
    pub number: i64,
    /// A hash of what it was made from.
    pub content: Id,
    /// The process.
    pub process: Process,
    /// Its samples.
    pub samples: Vec<Sample>,
    /// The stacks that were not in an earlier block.
    pub stacks: Vec<Stack>,
    /// The shapes of these.
    pub shapes: Vec<Shape>,
    /// The lines of code at places of these; places without a name need not be here.
    pub frames: Vec<Frame>,
    /// The modules of these.
    pub modules: Vec<Module>,
}

impl Block {
    /// Refuses a block that contradicts itself.
    ///
    /// # Errors
    ///
    /// [`StoreError::Block`] with the contradiction.
    pub fn check(&self) -> Result<(), StoreError> {
        let refused = |why: String| Err(StoreError::Block { why });
        if self.sender.is_empty() || self.number < 1 {
            return refused("it has no sender and number".to_owned());
        }
        if self.samples.iter().any(|sample| sample.counters().iter().any(|&count| count < 0)) {
            return refused("a count is below 0".to_owned());
        }
        Ok(())
    }
}

/// A process.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Process {
    /// Its identifier.
    pub id: Id,
    /// The service that it belongs to.
    pub service: String,
    /// The version of that service.
    pub version: String,
    /// The machine that it ran on.
    pub host: String,
    /// The build id of its program; empty when that is not known.
    pub build_id: Vec<u8>,
    /// Its command line.
    pub command: String,
    /// More about it, as region and environment.
    pub labels: BTreeMap<String, String>,
    /// When it began, in milliseconds since 1970.
    pub started_ms: i64,
    /// When it ended; `None` while it runs, and when that is not known.
    pub ended_ms: Option<i64>,
    /// The file or the interface that it came by.
    pub source: String,
    /// By how much its clock was wrong, in milliseconds; moments are by time of receipt then.
    pub clock_offset_ms: i64,
    /// Mean bytes between two samples; `None` when every allocation was counted.
    pub sample_bytes: Option<i64>,
    /// Remarks for readers, as that events were lost.
    pub remarks: String,
}

/// The memory of a stack in a slice of time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sample {
    /// The end of the slice, in milliseconds since 1970.
    pub end_ms: i64,
    /// Its length in milliseconds.
    pub slice_ms: i64,
    /// The stack.
    pub stack: Id,
    /// Bytes alive at the end.
    pub live_bytes: i64,
    /// Blocks alive at the end.
    pub live_blocks: i64,
    /// Bytes that were allocated in the slice.
    pub alloc_bytes: i64,
    /// Blocks that were allocated in the slice.
    pub alloc_blocks: i64,
    /// Bytes that were freed in the slice.
    pub freed_bytes: i64,
    /// Blocks that were freed in the slice.
    pub freed_blocks: i64,
    /// Blocks that were freed before their thread allocated another one.
    pub temporary: i64,
    /// Bytes at the process's peak.
    pub peak_bytes: i64,
    /// Blocks at the process's peak.
    pub peak_blocks: i64,
    /// The variance of `live_bytes`, in bytes squared; `None` when it is exact.
    pub variance: Option<i64>,
}

impl Sample {
    /// Returns the counters, in the order of [`COUNTERS`](crate::COUNTERS).
    #[must_use]
    pub const fn counters(&self) -> [i64; 9] {
        [
            self.live_bytes,
            self.live_blocks,
            self.alloc_bytes,
            self.alloc_blocks,
            self.freed_bytes,
            self.freed_blocks,
            self.temporary,
            self.peak_bytes,
            self.peak_blocks,
        ]
    }
}

/// A module's build id, or its [`Id::of_module`]. All copies share the bytes: a stack has one a
/// frame.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct ModuleId(Arc<[u8]>);

impl ModuleId {
    /// The identifier of a module with this build id; of its path where there is none.
    #[must_use]
    pub fn of(build_id: &[u8], path: &str) -> Self {
        match build_id {
            [] => Id::of_module(path).bytes().as_slice().into(),
            build_id => build_id.into(),
        }
    }
}

impl From<&[u8]> for ModuleId {
    fn from(bytes: &[u8]) -> Self {
        Self(bytes.into())
    }
}

impl Deref for ModuleId {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

/// A module, and an offset in it.
///
/// A return address has the offset of its call. The offset is below 0 where a stack is cut.
pub type Place = (ModuleId, i64);

/// A stack.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stack {
    pub(crate) id: Id,
    frames: Vec<Place>,
    /// Its shape, once the names of its frames are known.
    pub shape: Option<Id>,
}

impl Stack {
    /// A stack of these frames, the innermost first.
    #[must_use]
    pub fn new(frames: Vec<Place>, shape: Option<Id>) -> Self {
        let id = Id::of_stack(frames.iter().map(|(module, offset)| (&**module, *offset)));
        Self { id, frames, shape }
    }

    /// Its identifier: [`Id::of_stack`] of its frames.
    #[must_use]
    pub const fn id(&self) -> Id {
        self.id
    }

    /// Its frames, the innermost first.
    #[must_use]
    pub fn frames(&self) -> &[Place] {
        &self.frames
    }
}

/// The part of a stack that is the same in another build.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Shape {
    /// Its identifier: [`Id::of_shape`].
    pub id: Id,
    /// Its frames, the innermost first.
    pub frames: Vec<ShapeFrame>,
}

impl Shape {
    /// A shape of these frames, the innermost first.
    #[must_use]
    pub fn new(frames: Vec<ShapeFrame>) -> Self {
        let compared = frames
            .iter()
            .map(|frame| (frame.function.as_deref(), frame.module.as_str(), frame.file.as_deref()));
        Self { id: Id::of_shape(compared), frames }
    }
}

/// The properties of a frame that two builds compare.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ShapeFrame {
    /// Its function, where it is known.
    pub function: Option<String>,
    /// Its module, without a version.
    pub module: String,
    /// The last part of its source file's path.
    pub file: Option<String>,
}

/// The lines of code at a place.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Frame {
    /// The place.
    pub place: Place,
    /// The lines, the innermost inlined call first; none when no name was found.
    pub lines: Vec<Line>,
}

/// A line of code.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Line {
    /// The function.
    pub function: Option<String>,
    /// The source file.
    pub file: Option<String>,
    /// The line in it.
    pub line: Option<i64>,
    /// Whether the next one has it inlined.
    pub is_inlined: bool,
}

/// A file with code.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Module {
    /// Its build id, or its [`Id::of_module`].
    pub id: ModuleId,
    /// Its path on the machine that it ran on.
    pub path: String,
    /// Whether `id` is a build id.
    pub has_build_id: bool,
    /// Whether names of its functions were found.
    pub has_names: bool,
}
