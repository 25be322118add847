//! From the heap events of a recording to "where does the memory go?".
//!
//! [`Aggregator`] adds up events in one pass; it returns a [`HeapProfile`], which knows stacks as
//! numbers.

mod about;
mod aggregate;
mod blocks;
mod classes;
mod core_stacks;
mod cost;
mod diff;
mod diff_tree;
mod flame;
mod heap_read;
mod live;
mod module_names;
mod names;
mod patterns;
mod questions;
mod recorded;
mod recording_fold;
mod recording_stacks;
mod resident;
mod sampling;
pub mod schema;
pub mod slices;
mod stacks;
mod summary;
mod sums;
mod timeline;
mod tree;
mod unfreed;

pub use crate::attribution::wrappers::FoundWrapper;
pub use crate::attribution::{FoldRules, Folding, Owner, OwnerKind};
pub use about::{About, ThreadName};
pub use aggregate::{Aggregator, Anomalies, HeapProfile, LOST_STACK, Scope};
pub use classes::{
    LIFETIME_CLASSES, Lifetimes, SIZE_CLASSES, lifetime_class, lifetime_class_range, size_class,
    size_class_range,
};
pub use core_stacks::CoreStacks;
pub use cost::{Amount, Cost};
pub use diff::{Diff, DiffEntry, DiffFrame, shapes};
pub use diff_tree::{DiffNode, DiffTree};
pub use flame::{FlameOptions, folded_name};
pub use heap_read::{HeapMark, HeapRead, MOST_MARKS};
pub use live::{LiveFilter, LiveHeap, Update};
pub use module_names::ModuleNames;
pub use names::{Function, FunctionId, Line, LineId, Namer, Names, NoNames, Position, find_common_wrappers};
pub use patterns::{
    BadSuppression, Pattern, Suppressed, Suppressions, counted_stacks, stacks_in_focus, stacks_with,
};
pub use questions::{Asker, Entry, Group, Questions};
pub use recorded::HeapRecording;
pub(crate) use recording_stacks::generated_names;
pub use resident::{Resident, UsageSample};
pub use sampling::{Errors, Sampling};
pub use stacks::{Address, InterpretedCode, Module, NO_FRAMES, Stacks};
pub use summary::{SummarySize, WrittenSummary};
pub use sums::Sums;
pub use timeline::{Bin, MAX_BINS, Timeline};
pub use tree::{Direction, Tree, TreeLimits, TreeNode};
pub use unfreed::Unfreed;
