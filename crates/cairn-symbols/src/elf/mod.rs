//! ELF files: sections, symbol tables, unwind tables, and the source that answers from all of them.
//!
//! | module | task |
//! |---|---|
//! | `source` | answers for an address: debug information, then symbol tables, then function starts |
//! | `debug_object` | maps one file and inflates its compressed sections; also for PE and Mach-O |
//! | `symbol_table` | finds functions by `.symtab` and `.dynsym` |
//! | `data_symbols` | finds variables and linker symbols by address |
//! | `mini_debug` | unpacks `.gnu_debugdata`, the symbols inside stripped programs |
//! | `unwind_starts` | finds where functions begin in files without symbols |
//! | `sections` | finds a section's address by its name |

pub(crate) mod data_symbols;
pub(crate) mod debug_object;
pub(crate) mod mini_debug;
mod sections;
mod source;
pub(crate) mod symbol_table;
pub(crate) mod unwind_starts;

pub use sections::Section;
pub(crate) use source::ElfSource;
