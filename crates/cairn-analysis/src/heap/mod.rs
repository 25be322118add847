//! From the heap events of a recording to "where does the memory go?".
//!
//! [`Aggregator`] adds up events in one pass; what it returns, a [`HeapProfile`], knows stacks as numbers.

mod aggregate;
mod brief;
mod classes;
#[cfg(target_os = "linux")]
mod core_stacks;
mod cost;
mod diff;
mod diff_tree;
mod flame;
mod fold;
mod internals;
mod kept;
mod live;
mod names;
mod patterns;
mod questions;
mod recorded;
mod resident;
mod sampling;
pub mod schema;
pub mod slices;
mod stacks;
mod sums;
mod timeline;
mod tree;
mod unfreed;

pub use aggregate::{Aggregator, HeapProfile, LOST_STACK, Odd, Scope};
pub use classes::{
    LIFETIME_CLASSES, Lifetimes, SIZE_CLASSES, lifetime_class, lifetime_class_range, size_class,
    size_class_range,
};
#[cfg(target_os = "linux")]
pub use core_stacks::CoreStacks;
pub use cost::{Amount, Cost};
pub use diff::{Diff, DiffEntry, DiffFrame};
pub use diff_tree::{DiffNode, DiffTree};
pub use flame::{FlameOptions, folded_name};
pub use internals::{Role, plain_name, role_of};
pub use live::{LiveHeap, Update};
pub use names::{Folding, Function, FunctionId, Line, LineId, Namer, Names, NoNames, Position};
pub use patterns::{BadSuppression, Pattern, Suppressed, Suppressions, stacks_with};
pub use questions::{Asker, Entry, Group, Questions};
pub use recorded::{About, HeapRead, HeapRecording, Kept, MOST_MARKS, MarkTold, ModuleNames, ThreadName};
pub use resident::{Resident, UsageSample};
pub use sampling::{Errors, Sampling};
pub use stacks::{Address, Module, NO_FRAMES, Stacks};
pub use sums::Sums;
pub use timeline::{Bin, MAX_BINS, Timeline};
pub use tree::{Direction, Tree, TreeLimits, TreeNode};
pub use unfreed::Unfreed;
