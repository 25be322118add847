//! Windows: its system calls, its loader, its thread-local storage.
//!
//! Functions of ntdll and kernel32 are declared here by hand (`calls`), so that the watched program
//! gets no further crate. Texts are UTF-16 there and WTF-8 in recordings (`text`).

pub(crate) mod build_id;
pub(crate) mod calls;
pub(crate) mod errors;
pub(crate) mod exits;
pub(crate) mod file;
pub(crate) mod memory;
pub(crate) mod module_list;
pub(crate) mod notifications;
pub(crate) mod os;
pub(crate) mod process_block;
pub(crate) mod process_facts;
pub(crate) mod text;
pub(crate) mod thread_word;

#[cfg(not(target_arch = "x86_64"))]
compile_error!("cairn-recorder supports Windows on x86-64");
