//! Linux with glibc: its system calls, its loader, its thread-local storage.

pub(crate) mod build_id;
pub(crate) mod module_list;
pub(crate) mod os;
pub(crate) mod process_facts;
pub(crate) mod thread_word;
