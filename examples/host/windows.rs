//! Modules and code of the demo by the functions of Windows.
//!
//! The recorder observes the loader by itself, so that nothing here calls it.

use std::error::Error;
use std::ffi::{CStr, c_char, c_void};
use std::io;
use std::os::windows::ffi::OsStrExt;
use std::path::Path;

use crate::Function;

#[link(name = "kernel32")]
unsafe extern "system" {
    fn LoadLibraryW(path: *const u16) -> *mut c_void;
    fn FreeLibrary(module: *mut c_void) -> i32;
    fn GetProcAddress(module: *mut c_void, name: *const c_char) -> *mut c_void;
    fn VirtualAlloc(address: *mut c_void, bytes: usize, kind: u32, protection: u32) -> *mut c_void;
    fn VirtualFree(address: *mut c_void, bytes: usize, kind: u32) -> i32;
}

/// A loaded module.
pub(crate) struct Module(*mut c_void);

impl Module {
    pub(crate) fn load(directory: &Path, name: &str) -> Result<Self, Box<dyn Error>> {
        let path = directory.join(format!("{name}.dll"));
        let path: Vec<u16> = path.as_os_str().encode_wide().chain([0]).collect();
        // SAFETY: the modules of this demo do nothing when they are loaded.
        let handle = unsafe { LoadLibraryW(path.as_ptr()) };
        if handle.is_null() { Err(io::Error::last_os_error().into()) } else { Ok(Self(handle)) }
    }

    pub(crate) fn symbol(&self, name: &CStr) -> Result<*mut c_void, Box<dyn Error>> {
        // SAFETY: the module is loaded.
        let address = unsafe { GetProcAddress(self.0, name.as_ptr()) };
        if address.is_null() {
            Err(format!("no function {}", name.to_string_lossy()).into())
        } else {
            Ok(address)
        }
    }

    pub(crate) fn function(&self, name: &CStr) -> Result<Function, Box<dyn Error>> {
        // SAFETY: the modules' sources say that their functions are of this type.
        Ok(unsafe { std::mem::transmute::<*mut c_void, Function>(self.symbol(name)?) })
    }

    /// Address of its first byte, which is its handle.
    #[allow(clippy::unnecessary_wraps, reason = "the same function of Linux can fail")]
    pub(crate) fn base(&self, _name: &CStr) -> Result<usize, Box<dyn Error>> {
        Ok(self.0 as usize)
    }

    pub(crate) fn unload(self) {
        // SAFETY: none of its functions runs, and none is called any more.
        unsafe { FreeLibrary(self.0) };
    }
}

/// Takes a page of machine code at `place`, which belongs to no module.
///
/// The code calls its first argument with its second one.
pub(crate) fn map_code(place: usize) -> Result<*mut c_void, Box<dyn Error>> {
    const CODE: &[u8] = &[
        0x55, // push rbp
        0x48, 0x89, 0xe5, // mov rbp, rsp
        0x48, 0x83, 0xec, 0x20, // sub rsp, 32
        0x48, 0x89, 0xc8, // mov rax, rcx
        0x48, 0x89, 0xd1, // mov rcx, rdx
        0xff, 0xd0, // call rax
        0x48, 0x89, 0xec, // mov rsp, rbp
        0x5d, // pop rbp
        0xc3, // ret
    ];
    /// Reserve and commit; pages that can be read, written and executed.
    const TAKE: u32 = 0x3000;
    const READ_WRITE_EXECUTE: u32 = 0x40;
    // SAFETY: the call takes only what is free.
    let page = unsafe { VirtualAlloc(place as *mut c_void, 4096, TAKE, READ_WRITE_EXECUTE) };
    if page.is_null() {
        return Err(io::Error::last_os_error().into());
    }
    // SAFETY: a new page of this size.
    unsafe { std::ptr::copy_nonoverlapping(CODE.as_ptr(), page.cast(), CODE.len()) };
    Ok(page)
}

/// Releases the page.
pub(crate) fn unmap_code(page: *mut c_void) {
    const RELEASE: u32 = 0x8000;
    // SAFETY: the code does not run any more, and nobody keeps its address.
    unsafe { VirtualFree(page, 0, RELEASE) };
}
