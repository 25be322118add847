//! What the program calls in place of the C library.
//!
//! | module | functions | what for |
//! |---|---|---|
//! | [`heap`] | `malloc` and its family | the events |
//! | `allocators` | `operator new`, `mallocx`, `mi_malloc`, `tc_malloc` … | with the feature of that name: allocators whose functions do not come to `malloc` |
//! | [`loader`] | `dlopen`, `dlmopen`, `dlsym`, `dlvsym`, `dlclose` | which code lay where, and when |
//! | [`mapping`] | `mmap`, `munmap`, `mremap`, `brk`, `sbrk` | on request: what the program maps itself |
//! | [`pools`] | `cairn_heap_alloc`, `cairn_heap_free` | blocks of the program's own allocators |
//! | [`exec`] | `exec` and its family, `posix_spawn` | recording goes on in the program that takes the place |
//! | [`sandbox`] | `prctl`, `syscall`; `setrlimit`, `prlimit`, `mlockall` | the end of recording before system calls become deadly; less address space |

#[cfg(feature = "allocators")]
pub mod allocators;
pub mod exec;
pub mod heap;
pub mod loader;
pub mod mapping;
pub mod pools;
pub mod sandbox;
