//! heaptrack's data file, version 3: lines of text, each a letter and hexadecimal numbers.
//!
//! | line | meaning |
//! |---|---|
//! | `v A 3` | version of heaptrack, version of the format |
//! | `X text` | the command line |
//! | `I size pages` | size of a page, pages of memory |
//! | `s length text` | a text; texts have numbers from 1 |
//! | `i address module [function file line]…` | a place in the code, innermost inlined call first; from 1; 0 is no text; `file` and `line` of the last are left out where they are not known |
//! | `t place caller` | a stack; from 1; caller 0 is none |
//! | `a size stack` | a class of allocations; from 0 |
//! | `+ class`, `- class` | an allocation, a free |
//! | `c milliseconds`, `R pages` | the time from now on, resident memory |

mod read;
mod write;

pub(crate) use read::{Sums, read_events, read_tables, replay};
pub(crate) use write::write;

/// As people call it.
pub(crate) const FORMAT: &str = "heaptrack";
