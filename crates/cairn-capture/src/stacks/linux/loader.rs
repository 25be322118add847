//! The loader of this process: its interface for debuggers, and its own symbols.
//!
//! Both are read from memory that the kernel and the loader have filled before any other code runs.
//! So nothing has to be imported: a reference to a symbol of a new C library would keep a library
//! with this code from being loaded by an older one, even if the reference is weak.

#![allow(missing_docs, reason = "the fields are those of <link.h>")]

use core::ffi::{CStr, c_char, c_int};
use core::sync::atomic::{AtomicU64, Ordering};

use crate::stacks::own_memory;

/// `struct r_debug_extended` of <link.h>: the modules of one namespace.
#[doc(hidden)]
#[repr(C)]
#[derive(Debug)]
pub struct LoaderNamespace {
    pub version: c_int,
    pub first: *const ListedModule,
    pub breakpoint: u64,
    pub state: c_int,
    pub loader_base: u64,
    /// From version 2 on, which is that of glibc 2.35.
    pub next: *const Self,
}

/// `struct link_map` of <link.h>, as far as it is public.
#[doc(hidden)]
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ListedModule {
    pub bias: u64,
    pub name: *const c_char,
    pub dynamic_section: u64,
    pub next: *const Self,
}

/// Program headers of the program itself, and their bias.
pub(crate) struct ProgramHeaders {
    pub(crate) headers: &'static [libc::Elf64_Phdr],
    pub(crate) bias: u64,
}

/// Returns the program headers of the program, which the kernel states.
pub(crate) fn program_headers() -> Option<ProgramHeaders> {
    // SAFETY: `getauxval` only reads the auxiliary vector, which exists in every process.
    let (start, count) = unsafe { (libc::getauxval(libc::AT_PHDR), libc::getauxval(libc::AT_PHNUM)) };
    if start == 0 {
        return None;
    }
    // SAFETY: the kernel states address and number of the program's headers, which stay mapped.
    let headers = unsafe { core::slice::from_raw_parts(start as *const libc::Elf64_Phdr, count as usize) };
    let own = headers.iter().find(|header| header.p_type == libc::PT_PHDR);
    let bias = match own {
        Some(own) => start.wrapping_sub(own.p_vaddr),
        // The first segment begins with the file, whose first page has the table of headers.
        None => {
            let first = headers.iter().find(|header| header.p_type == libc::PT_LOAD)?;
            (start & !(own_memory::PAGE_BYTES - 1))
                .wrapping_sub(first.p_vaddr & !(own_memory::PAGE_BYTES - 1))
        }
    };
    Some(ProgramHeaders { headers, bias })
}

/// Returns the loader's interface for debuggers, which lists all modules.
///
/// An entry of the program's dynamic section leads there. Static programs have none.
#[doc(hidden)]
#[must_use]
pub fn loader_namespaces() -> Option<&'static LoaderNamespace> {
    const UNKNOWN: u64 = 0;
    const ABSENT: u64 = 1;
    static ADDRESS: AtomicU64 = AtomicU64::new(UNKNOWN);
    let mut address = ADDRESS.load(Ordering::Relaxed);
    if address == UNKNOWN {
        address = interface_for_debuggers().filter(|address| *address != 0).unwrap_or(ABSENT);
        ADDRESS.store(address, Ordering::Relaxed);
    }
    // SAFETY: the structure of the loader, which stays.
    (address != ABSENT).then(|| unsafe { &*(address as *const LoaderNamespace) })
}

fn interface_for_debuggers() -> Option<u64> {
    const DT_DEBUG: u64 = 21;
    let program = program_headers()?;
    let dynamic = program.headers.iter().find(|header| header.p_type == libc::PT_DYNAMIC)?;
    // SAFETY: the dynamic section of the program.
    unsafe { dynamic_entries(program.bias.wrapping_add(dynamic.p_vaddr)) }
        .find_map(|[tag, value]| (tag == DT_DEBUG).then_some(value))
}

/// Yields tags and values.
///
/// # Safety
///
/// `address` is that of a dynamic section in memory, which stays.
unsafe fn dynamic_entries(address: u64) -> impl Iterator<Item = [u64; 2]> {
    let mut entry = address as *const [u64; 2];
    core::iter::from_fn(move || {
        // SAFETY: the section ends with an entry of tag 0, and no entry behind it is read.
        let found = unsafe { *entry };
        // SAFETY: the end of an entry is within the section or at its end.
        entry = unsafe { entry.add(1) };
        (found[0] != 0).then_some(found)
    })
}

/// Returns address and size of a symbol that the loader defines.
pub(crate) fn loader_symbol(name: &CStr) -> Option<(u64, u64)> {
    let base = loader_namespaces()?.loader_base;
    if base == 0 {
        return None;
    }
    // SAFETY: the first page of the loader, which is never unloaded. It begins with the ELF header,
    // and the program headers follow in the same page.
    let headers = unsafe {
        let elf = &*(base as *const libc::Elf64_Ehdr);
        core::slice::from_raw_parts((base + elf.e_phoff) as *const libc::Elf64_Phdr, usize::from(elf.e_phnum))
    };
    let dynamic = headers.iter().find(|header| header.p_type == libc::PT_DYNAMIC)?;
    // SAFETY: the dynamic section of the loader.
    let tables = unsafe { SymbolTables::read(base, base.wrapping_add(dynamic.p_vaddr)) }?;
    // SAFETY: the tables of the loader.
    unsafe { tables.find(name) }
}

/// Returns the address of a symbol that the C library defines.
///
/// The list is read through the kernel: other threads may load and unload. The C library is one of
/// the first modules, and is never unloaded.
pub(crate) fn c_library_symbol(name: &CStr) -> Option<u64> {
    const FIRST_MODULES: usize = 4096;
    // SAFETY: a word that the loader writes whole.
    let mut next = unsafe { (&raw const loader_namespaces()?.first).read_volatile() };
    for _ in 0..FIRST_MODULES {
        let module = read::<ListedModule>(next as u64)?;
        if is_c_library(module.name as u64) {
            // SAFETY: the dynamic section of the C library.
            let tables = unsafe { SymbolTables::read(module.bias, module.dynamic_section) }?;
            // SAFETY: the tables of the C library.
            return unsafe { tables.find(name) }.map(|(address, _)| address);
        }
        next = module.next;
    }
    None
}

/// True for a path that ends in the name of the C library.
fn is_c_library(path: u64) -> bool {
    const NAME: &[u8] = b"/libc.so.6\0";
    let mut text = [0; 512];
    let length = own_memory::read_bytes(path, &mut text);
    let end = text.iter().take(length).position(|byte| *byte == 0);
    end.is_some_and(|end| text.get(..=end).is_some_and(|path| path.ends_with(NAME)))
}

/// Copies a structure of numbers and addresses from memory that may be gone.
pub(crate) fn read<T: Copy>(address: u64) -> Option<T> {
    let mut value = core::mem::MaybeUninit::<T>::zeroed();
    // SAFETY: the bytes are those of `value`, and all are set.
    let bytes = unsafe { core::slice::from_raw_parts_mut(value.as_mut_ptr().cast::<u8>(), size_of::<T>()) };
    // SAFETY: all bytes are set, and any are a value of these structures.
    (own_memory::read_bytes(address, bytes) == bytes.len()).then(|| unsafe { value.assume_init() })
}

/// Names and addresses of the symbols that a module defines.
struct SymbolTables {
    bias: u64,
    symbols: *const libc::Elf64_Sym,
    strings: *const c_char,
    /// `DT_GNU_HASH`.
    hash: *const u32,
}

impl SymbolTables {
    /// # Safety
    ///
    /// `dynamic` is the dynamic section of a module that stays loaded with this bias.
    unsafe fn read(bias: u64, dynamic: u64) -> Option<Self> {
        const DT_STRTAB: u64 = 5;
        const DT_SYMTAB: u64 = 6;
        const DT_GNU_HASH: u64 = 0x6fff_fef5;
        let (mut symbols, mut strings, mut hash) = (0, 0, 0);
        // SAFETY: the caller promises it.
        for [tag, value] in unsafe { dynamic_entries(dynamic) } {
            match tag {
                DT_SYMTAB => symbols = value,
                DT_STRTAB => strings = value,
                DT_GNU_HASH => hash = value,
                _ => {}
            }
        }
        // Loaders relocate these values of their own, or leave them.
        let at = |value: u64| if value < bias { value + bias } else { value };
        (symbols != 0 && strings != 0 && hash != 0).then(|| Self {
            bias,
            symbols: at(symbols) as *const libc::Elf64_Sym,
            strings: at(strings) as *const c_char,
            hash: at(hash) as *const u32,
        })
    }

    /// # Safety
    ///
    /// The tables are those of a loaded module.
    unsafe fn find(&self, name: &CStr) -> Option<(u64, u64)> {
        let step = |hash: u32, byte: &u8| hash.wrapping_mul(33).wrapping_add(u32::from(*byte));
        let hash = name.to_bytes().iter().fold(5381_u32, step);
        // SAFETY: four words, a filter of 64-bit words, the buckets, the chains. The chain of a
        // bucket ends with an odd word.
        unsafe {
            let [buckets, first, filter_words] = [*self.hash, *self.hash.add(1), *self.hash.add(2)];
            if buckets == 0 {
                return None;
            }
            let bucket_table = self.hash.add(4 + 2 * filter_words as usize);
            let chains = bucket_table.add(buckets as usize);
            let start = *bucket_table.add((hash % buckets) as usize);
            if start < first {
                return None;
            }
            for index in start.. {
                let link = *chains.add((index - first) as usize);
                let symbol = &*self.symbols.add(index as usize);
                if link | 1 == hash | 1
                    && symbol.st_shndx != 0
                    && CStr::from_ptr(self.strings.add(symbol.st_name as usize)) == name
                {
                    return Some((self.bias.wrapping_add(symbol.st_value), symbol.st_size));
                }
                if link & 1 != 0 {
                    break;
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loader_lists_the_program_first() {
        let first = loader_namespaces().unwrap().first;
        // SAFETY: the program's entry stays.
        let program = unsafe { &*first };
        assert_eq!(program.bias, program_headers().unwrap().bias);
    }

    #[test]
    fn loader_symbols_are_found_by_name() {
        let (address, bytes) = loader_symbol(c"_r_debug").unwrap();
        assert_eq!(address, core::ptr::from_ref(loader_namespaces().unwrap()) as u64);
        assert!(bytes >= 40, "{bytes}");
        assert_eq!(loader_symbol(c"no_such_symbol"), None);
        // SAFETY: the call searches a symbol by its name.
        let version = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"gnu_get_libc_version".as_ptr()) };
        assert_eq!(c_library_symbol(c"gnu_get_libc_version"), Some(version as u64));
        assert_eq!(c_library_symbol(c"no_such_symbol"), None);
    }
}
