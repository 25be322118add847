//! The functions that the program calls in place of the C library's.
//!
//! | module | functions | purpose |
//! |---|---|---|
//! | [`heap`] | `malloc` and its family | heap events |
//! | `allocators` | `operator new`, `mallocx`, `mi_malloc`, `tc_malloc` … | with the feature of that name: allocators whose functions bypass `malloc` |
//! | [`loader`] | `dlopen`, `dlmopen`, `dlsym`, `dlvsym`, `dlclose` | load addresses of code, over time |
//! | [`mapping`] | `mmap`, `munmap`, `mremap`, `brk`, `sbrk` | on request: the program's own mappings |
//! | [`pools`] | `cairn_heap_alloc`, `cairn_heap_free` | blocks of the program's own allocators |
//! | `python` | the allocators of Python's objects | blocks that `malloc` does not see |
//! | `crate::runtimes` | `__register_frame`, `__deregister_frame` | unwind tables of code that the program makes |
//! | [`exec`] | `exec` and its family, `posix_spawn` | recording continues in the next program |
//! | [`sandbox`] | `prctl`, `syscall`; `setrlimit`, `prlimit`, `mlockall` | ends recording before a sandbox; limits the recorder's memory |

#[cfg(feature = "allocators")]
pub mod allocators;
pub mod exec;
pub mod heap;
pub mod loader;
pub mod mapping;
pub mod pools;
#[cfg(target_arch = "x86_64")]
pub(crate) mod python;
pub mod sandbox;
