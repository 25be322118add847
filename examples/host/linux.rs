//! Modules and code of the demo by the functions of Linux.

use std::error::Error;
use std::ffi::{CStr, CString, c_void};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use cairn_recorder::modules;

use crate::Function;

/// A loaded module.
pub(crate) struct Module(*mut c_void);

impl Module {
    pub(crate) fn load(directory: &Path, name: &str) -> Result<Self, Box<dyn Error>> {
        let path = CString::new(directory.join(format!("lib{name}.so")).as_os_str().as_bytes())?;
        // SAFETY: the modules of this demo do nothing when they are loaded.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
        if handle.is_null() {
            // SAFETY: after a failure it returns a text.
            let why = unsafe { CStr::from_ptr(libc::dlerror()) };
            return Err(why.to_string_lossy().into_owned().into());
        }
        // So that a module is known that no stack has met yet.
        modules::scan();
        Ok(Self(handle))
    }

    pub(crate) fn symbol(&self, name: &CStr) -> Result<*mut c_void, Box<dyn Error>> {
        // SAFETY: the handle is open.
        let address = unsafe { libc::dlsym(self.0, name.as_ptr()) };
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

    /// Address of its first byte.
    pub(crate) fn base(&self, name: &CStr) -> Result<usize, Box<dyn Error>> {
        // SAFETY: zeros are a value of it, and the call writes one.
        unsafe {
            let mut found: libc::Dl_info = std::mem::zeroed();
            libc::dladdr(self.symbol(name)?, &raw mut found);
            Ok(found.dli_fbase as usize)
        }
    }

    pub(crate) fn unload(self) {
        // The recorder writes what is gone, before anything else can take its place.
        modules::while_unloading(|| {
            // SAFETY: none of its functions runs, and none is called any more.
            unsafe { libc::dlclose(self.0) };
        });
    }
}

/// Maps a page of machine code at `place`, which belongs to no module.
///
/// The code calls its first argument with its second one.
#[cfg(target_arch = "x86_64")]
pub(crate) fn map_code(place: usize) -> Result<*mut c_void, Box<dyn Error>> {
    const CODE: &[u8] = &[
        0x55, // push rbp
        0x48, 0x89, 0xe5, // mov rbp, rsp
        0x48, 0x89, 0xf8, // mov rax, rdi
        0x48, 0x89, 0xf7, // mov rdi, rsi
        0xff, 0xd0, // call rax
        0x5d, // pop rbp
        0xc3, // ret
    ];
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    let protection = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
    // SAFETY: the flags let it take only what is free.
    let page = unsafe { libc::mmap(place as *mut c_void, 4096, protection, flags, -1, 0) };
    if page == libc::MAP_FAILED {
        return Err(io::Error::last_os_error().into());
    }
    // SAFETY: a new page of this size.
    unsafe { std::ptr::copy_nonoverlapping(CODE.as_ptr(), page.cast(), CODE.len()) };
    Ok(page)
}

/// Unmaps the page.
#[cfg(target_arch = "x86_64")]
pub(crate) fn unmap_code(page: *mut c_void) {
    modules::while_unloading(|| {
        // SAFETY: the code does not run any more, and nobody keeps its address.
        unsafe { libc::munmap(page, 4096) };
    });
}
