//! The modules that the loader has loaded.

use core::ffi::{c_int, c_void};

use crate::next::{Dynamic, Module};

const PT_LOAD: u32 = 1;
pub(crate) const PT_DYNAMIC: u32 = 2;

/// One module of the loader's list.
pub(crate) struct Loaded<'a> {
    pub(crate) bias: u64,
    headers: &'a [libc::Elf64_Phdr],
}

/// Modules that are collected in one walk of the loader's list; 32, for a small stack.
const MODULES_AT_ONCE: usize = 32;

/// A part of the loader's list.
struct Listed {
    found: [(u64, *const libc::Elf64_Phdr, u16); MODULES_AT_ONCE],
    count: usize,
    skip: usize,
}

/// Calls `look` with each module. The caller holds the loader's lock, so that the list does not
/// change. The lock of the list itself is held for moments only: a thread that forks meanwhile
/// leaves it locked in its child.
pub(crate) fn each_module(mut look: impl FnMut(&Loaded<'_>)) {
    /// # Safety
    ///
    /// `information` is the loader's, and `listed` points to a [`Listed`] that nobody else uses.
    unsafe extern "C" fn visit(information: *mut libc::dl_phdr_info, _: usize, listed: *mut c_void) -> c_int {
        // SAFETY: the caller promises both.
        let (information, listed) = unsafe { (&*information, &mut *listed.cast::<Listed>()) };
        if listed.skip > 0 {
            listed.skip -= 1;
            return 0;
        }
        let Some(place) = listed.found.get_mut(listed.count) else { return 1 };
        *place = (information.dlpi_addr, information.dlpi_phdr, information.dlpi_phnum);
        listed.count += 1;
        0
    }
    let mut first = 0;
    loop {
        let mut listed =
            Listed { found: [(0, core::ptr::null(), 0); MODULES_AT_ONCE], count: 0, skip: first };
        // SAFETY: the callback takes a `Listed`, which is passed here and lives longer than the
        // call.
        unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut listed).cast()) };
        for &(bias, headers, count) in listed.found.iter().take(listed.count) {
            if !headers.is_null() {
                // SAFETY: the headers of a loaded module, which does not go while the loader's lock
                // is held.
                let headers = unsafe { core::slice::from_raw_parts(headers, count.into()) };
                look(&Loaded { bias, headers });
            }
        }
        if listed.count < MODULES_AT_ONCE {
            return;
        }
        first += listed.count;
    }
}

/// Calls `look` with each module that has a dynamic section, as [`each_module`] does.
pub(crate) fn each_linked_module(mut look: impl FnMut(&Module)) {
    each_module(|loaded| {
        if let Some(module) = loaded.linked() {
            look(&module);
        }
    });
}

/// Calls `look` with each module that has a dynamic section, under the lock of the loader's list.
///
/// No module is unmapped meanwhile. The caller need not hold the loader's own lock.
pub(crate) fn each_listed_module<F: FnMut(&Module)>(mut look: F) {
    /// # Safety
    ///
    /// `information` is the loader's, and `look` points to an `F` that nobody else uses.
    unsafe extern "C" fn visit<F: FnMut(&Module)>(
        information: *mut libc::dl_phdr_info,
        _: usize,
        look: *mut c_void,
    ) -> c_int {
        // SAFETY: the caller promises both.
        let (information, look) = unsafe { (&*information, &mut *look.cast::<F>()) };
        // SAFETY: the headers of a loaded module.
        let headers =
            unsafe { core::slice::from_raw_parts(information.dlpi_phdr, information.dlpi_phnum.into()) };
        if let Some(module) = (Loaded { bias: information.dlpi_addr, headers }).linked() {
            look(&module);
        }
        0
    }
    // SAFETY: the callback takes an `F`, which is passed here and lives longer than the call.
    unsafe { libc::dl_iterate_phdr(Some(visit::<F>), (&raw mut look).cast()) };
}

impl Loaded<'_> {
    /// Its tables for the loader; `None` without a dynamic section.
    fn linked(&self) -> Option<Module> {
        let dynamic = self.header(PT_DYNAMIC)?;
        let section = self.bias.wrapping_add(dynamic.p_vaddr) as *const Dynamic;
        // SAFETY: the dynamic section of a module that is loaded with that bias.
        Some(unsafe { Module::at(self.bias, section) })
    }

    pub(crate) fn header(&self, kind: u32) -> Option<&libc::Elf64_Phdr> {
        self.headers.iter().find(|header| header.p_type == kind)
    }

    pub(crate) fn segment_of(&self, address: u64) -> Option<&libc::Elf64_Phdr> {
        self.headers.iter().find(|header| {
            let start = self.bias.wrapping_add(header.p_vaddr);
            header.p_type == PT_LOAD && (start..start.wrapping_add(header.p_memsz)).contains(&address)
        })
    }

    pub(crate) fn contains(&self, address: u64) -> bool {
        self.segment_of(address).is_some()
    }
}
