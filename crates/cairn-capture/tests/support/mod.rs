//! Code that no table covers, as JIT compilers emit it.

use std::ptr;

/// Calls rdi from a frame with a frame pointer.
pub(crate) const WITH_FRAME_POINTER: &[u8] = &[
    0x55, // push rbp
    0x48, 0x89, 0xe5, // mov rbp, rsp
    0xff, 0xd7, // call rdi
    0x5d, // pop rbp
    0xc3, // ret
];

pub(crate) type Stub = unsafe extern "C" fn(extern "C" fn(), u64);

const PAGE_BYTES: usize = 4096;

pub(crate) fn compile(code: &[u8]) -> Stub {
    // SAFETY: the mapping is new, has room for the code, and is filled before it is called; all
    // stubs have this type.
    unsafe {
        let protection = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let pages = libc::mmap(ptr::null_mut(), 3 * PAGE_BYTES, libc::PROT_NONE, flags, -1, 0);
        assert_ne!(pages, libc::MAP_FAILED);
        // The code begins where its memory does: nothing in front of it can be read.
        let page = pages.byte_add(PAGE_BYTES);
        assert_eq!(libc::mprotect(page, PAGE_BYTES, protection), 0);
        ptr::copy_nonoverlapping(code.as_ptr(), page.cast(), code.len());
        std::mem::transmute::<*mut libc::c_void, Stub>(page)
    }
}
