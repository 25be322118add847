//! Finds the functions that the program would have called: the next definition of a name after this
//! library in the loader's order.
//!
//! `dlsym(RTLD_NEXT)` returns the same, but takes the loader's lock, and may allocate. So the
//! tables of the loaded modules are read in place, as the loader itself does: nothing but loads
//! from memory that stays. This is done once, at the first call of any hook, when the program has
//! one thread and has loaded nothing by itself yet.

use core::ffi::{CStr, c_char, c_void};
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

/// The loader's entry of a module: the part that is documented in `link.h`.
#[repr(C)]
pub(crate) struct LinkMap {
    /// Difference between an address in memory and in the file.
    bias: u64,
    name: *const c_char,
    dynamic: *const Dynamic,
    next: *const LinkMap,
    previous: *const LinkMap,
}

#[repr(C)]
struct LoaderDebug {
    version: i32,
    first: *const LinkMap,
}

#[repr(C)]
pub(crate) struct Dynamic {
    pub(crate) tag: i64,
    pub(crate) value: u64,
}

#[repr(C)]
pub(crate) struct Symbol {
    pub(crate) name: u32,
    info: u8,
    other: u8,
    section: u16,
    pub(crate) value: u64,
    size: u64,
}

const _: () = assert!(size_of::<Symbol>() == 24);

unsafe extern "C" {
    /// The loader's list of modules.
    #[link_name = "_r_debug"]
    static LOADER_DEBUG: LoaderDebug;
    /// This library's own dynamic section, by the linker.
    #[link_name = "_DYNAMIC"]
    static OWN_DYNAMIC: Dynamic;
}

const DT_NULL: i64 = 0;
const DT_HASH: i64 = 4;
const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_GNU_HASH: i64 = 0x6fff_fef5;
const DT_VERSYM: i64 = 0x6fff_fff0;

/// A version that is not the default one of its name.
const HIDDEN: u16 = 0x8000;
const TYPE_OBJECT: u8 = 1;
const TYPE_FUNCTION: u8 = 2;
const TYPE_INDIRECT: u8 = 10;

/// The tables of one module.
#[derive(Clone, Copy)]
pub(crate) struct Module {
    pub(crate) bias: u64,
    pub(crate) symbols: *const Symbol,
    pub(crate) strings: *const u8,
    gnu_hash: *const u32,
    hash: *const u32,
    versions: *const u16,
}

impl Module {
    /// # Safety
    ///
    /// `map` is an entry of the loader's list.
    unsafe fn of(map: &LinkMap) -> Self {
        // SAFETY: the caller promises that `map` is an entry of the loader's list.
        unsafe { Self::at(map.bias, map.dynamic) }
    }

    /// # Safety
    ///
    /// `dynamic` is the dynamic section of a module that is loaded with that bias.
    pub(crate) unsafe fn at(bias: u64, dynamic: *const Dynamic) -> Self {
        let mut module = Self {
            bias,
            symbols: ptr::null(),
            strings: ptr::null(),
            gnu_hash: ptr::null(),
            hash: ptr::null(),
            versions: ptr::null(),
        };
        let mut entry = dynamic;
        // SAFETY: a dynamic section ends with a null entry.
        while let Some(Dynamic { tag, value }) = unsafe { entry.as_ref() }
            && *tag != DT_NULL
        {
            // The loader has relocated these values, except in the kernel's own module.
            let address = if *value < bias { value + bias } else { *value } as *const u8;
            match *tag {
                DT_SYMTAB => module.symbols = address.cast(),
                DT_STRTAB => module.strings = address,
                DT_GNU_HASH => module.gnu_hash = address.cast(),
                DT_HASH => module.hash = address.cast(),
                DT_VERSYM => module.versions = address.cast(),
                _ => {}
            }
            // SAFETY: not the last one.
            entry = unsafe { entry.add(1) };
        }
        module
    }

    /// Returns the address of the function `name`, if the module exports it.
    ///
    /// # Safety
    ///
    /// The tables are a loaded module's.
    unsafe fn find(&self, name: &CStr) -> Option<*mut c_void> {
        if self.symbols.is_null() || self.strings.is_null() {
            return None;
        }
        let mut hidden = None;
        let mut meet = |index: u32| {
            // SAFETY: the index is from the module's hash table.
            let symbol = unsafe { &*self.symbols.add(index as usize) };
            let kind = symbol.info & 15;
            if symbol.section == 0 || !matches!(kind, 0 | TYPE_FUNCTION | TYPE_INDIRECT) {
                return None;
            }
            // SAFETY: names are offsets into the string table, where each ends with a NUL.
            if unsafe { CStr::from_ptr(self.strings.add(symbol.name as usize).cast()) } != name {
                return None;
            }
            // An address in another module (see `attach`) is a value that wraps.
            let address = self.bias.wrapping_add(symbol.value) as *mut c_void;
            // SAFETY: one version for each symbol.
            let is_hidden =
                !self.versions.is_null() && unsafe { *self.versions.add(index as usize) } & HIDDEN != 0;
            if is_hidden {
                hidden = Some((address, kind));
                return None;
            }
            Some((address, kind))
        };
        // SAFETY: the caller promises that the tables are a loaded module's.
        let found = unsafe {
            if !self.gnu_hash.is_null() {
                gnu_candidates(self.gnu_hash, name, &mut meet)
            } else if !self.hash.is_null() {
                candidates(self.hash, name, &mut meet)
            } else {
                None
            }
        };
        let (address, kind) = found.or(hidden)?;
        if kind == TYPE_INDIRECT {
            // SAFETY: such a symbol's value is a function that answers with the address. On AArch64
            // its arguments describe the processor.
            let resolve: unsafe extern "C" fn(u64, *const c_void) -> *mut c_void =
                unsafe { core::mem::transmute(address) };
            // SAFETY: as the loader does. On a processor without special features, it is the plain
            // one, which always works.
            return Some(unsafe { resolve(0, ptr::null()) });
        }
        Some(address)
    }

    /// Returns address and size of the function or variable `name`, if the module exports it.
    ///
    /// # Safety
    ///
    /// The tables are a loaded module's.
    pub(crate) unsafe fn exported(&self, name: &CStr) -> Option<(u64, u64)> {
        if self.symbols.is_null() || self.strings.is_null() || self.gnu_hash.is_null() {
            return None;
        }
        let mut meet = |index: u32| {
            // SAFETY: the index is from the module's hash table, and names end with a NUL.
            unsafe {
                let symbol = &*self.symbols.add(index as usize);
                let is_plain = symbol.section != 0 && matches!(symbol.info & 15, TYPE_OBJECT | TYPE_FUNCTION);
                let has_name = || CStr::from_ptr(self.strings.add(symbol.name as usize).cast()) == name;
                (is_plain && has_name()).then(|| (self.bias.wrapping_add(symbol.value), symbol.size))
            }
        };
        // SAFETY: the caller promises that the tables are a loaded module's.
        unsafe { gnu_candidates(self.gnu_hash, name, &mut meet) }
    }

    /// Returns the symbol table entry of the function `name`, if its default version is exported.
    ///
    /// # Safety
    ///
    /// The tables are a loaded module's.
    pub(crate) unsafe fn definition(&self, name: &CStr) -> Option<*const Symbol> {
        if self.symbols.is_null() || self.strings.is_null() || self.gnu_hash.is_null() {
            return None;
        }
        let mut meet = |index: u32| {
            // SAFETY: the index is from the module's hash table, and names end with a NUL.
            unsafe {
                let place = self.symbols.add(index as usize);
                let is_hidden = !self.versions.is_null() && *self.versions.add(index as usize) & HIDDEN != 0;
                let is_function = (*place).section != 0 && (*place).info & 15 == TYPE_FUNCTION;
                let has_name = || CStr::from_ptr(self.strings.add((*place).name as usize).cast()) == name;
                (is_function && !is_hidden && has_name()).then_some(place)
            }
        };
        // SAFETY: the caller promises that the tables are a loaded module's.
        unsafe { gnu_candidates(self.gnu_hash, name, &mut meet) }
    }

    /// Calls `meet` with each symbol that the module exports.
    ///
    /// # Safety
    ///
    /// The tables are a loaded module's.
    pub(crate) unsafe fn each_definition(&self, mut meet: impl FnMut(&'static CStr, &Symbol)) {
        if self.symbols.is_null() || self.strings.is_null() || self.gnu_hash.is_null() {
            return;
        }
        // SAFETY: as in `gnu_candidates`, all chains in place of one.
        unsafe {
            let (bucket_count, first, filter_count) =
                (*self.gnu_hash, *self.gnu_hash.add(1), *self.gnu_hash.add(2));
            let buckets = self.gnu_hash.add(4 + 2 * filter_count as usize);
            let chains = buckets.add(bucket_count as usize);
            for bucket in 0..bucket_count as usize {
                let mut index = *buckets.add(bucket);
                while index >= first && index != 0 {
                    let symbol = &*self.symbols.add(index as usize);
                    meet(CStr::from_ptr(self.strings.add(symbol.name as usize).cast()), symbol);
                    if *chains.add((index - first) as usize) & 1 != 0 {
                        break;
                    }
                    index += 1;
                }
            }
        }
    }
}

/// Calls `meet` with each symbol of this hash in the GNU hash table, until it returns something.
///
/// # Safety
///
/// `table` is the GNU hash table of a loaded module.
unsafe fn gnu_candidates<T>(
    table: *const u32,
    name: &CStr,
    meet: &mut impl FnMut(u32) -> Option<T>,
) -> Option<T> {
    let hash = name
        .to_bytes()
        .iter()
        .fold(5381_u32, |hash, byte| hash.wrapping_mul(33).wrapping_add(u32::from(*byte)));
    // SAFETY: four words, the filter (64 bits each), the buckets, the chains.
    unsafe {
        let (bucket_count, first, filter_count) = (*table, *table.add(1), *table.add(2));
        if bucket_count == 0 {
            return None;
        }
        let buckets = table.add(4 + 2 * filter_count as usize);
        let chains = buckets.add(bucket_count as usize);
        let mut index = *buckets.add((hash % bucket_count) as usize);
        if index < first {
            return None;
        }
        loop {
            let entry = *chains.add((index - first) as usize);
            if entry | 1 == hash | 1
                && let Some(found) = meet(index)
            {
                return Some(found);
            }
            if entry & 1 != 0 {
                return None;
            }
            index += 1;
        }
    }
}

/// Does the same with the older hash table.
///
/// # Safety
///
/// `table` is the ELF hash table of a loaded module.
unsafe fn candidates<T>(
    table: *const u32,
    name: &CStr,
    meet: &mut impl FnMut(u32) -> Option<T>,
) -> Option<T> {
    let hash = name.to_bytes().iter().fold(0_u32, |hash, byte| {
        let hash = (hash << 4).wrapping_add(u32::from(*byte));
        let high = hash & 0xf000_0000;
        (hash ^ high >> 24) & !high
    });
    // SAFETY: two counts, the buckets, the chains; index 0 ends a chain.
    unsafe {
        let (bucket_count, chain_count) = (*table, *table.add(1));
        if bucket_count == 0 {
            return None;
        }
        let mut index = *table.add(2 + (hash % bucket_count) as usize);
        while index != 0 && index < chain_count {
            if let Some(found) = meet(index) {
                return Some(found);
            }
            index = *table.add(2 + bucket_count as usize + index as usize);
        }
    }
    None
}

/// Result of [`own_map`], which searches once. It does so in the constructor or before it, when the
/// list cannot change.
static OWN_MAP: AtomicPtr<LinkMap> = AtomicPtr::new(ptr::null_mut());

/// Returns this library's entry in the loader's list.
fn own_map() -> Option<&'static LinkMap> {
    // SAFETY: null, or the entry of this library, which is never unloaded.
    if let Some(map) = unsafe { OWN_MAP.load(Ordering::Acquire).as_ref() } {
        return Some(map);
    }
    let map = maps(None).find(|map| map.dynamic == &raw const OWN_DYNAMIC)?;
    OWN_MAP.store(ptr::from_ref(map).cast_mut(), Ordering::Release);
    Some(map)
}

/// Yields the modules after `map`, or all modules.
fn maps(after: Option<&'static LinkMap>) -> impl Iterator<Item = &'static LinkMap> {
    let first = match after {
        Some(map) => map.next,
        // SAFETY: the loader's, complete before any other code runs.
        None => unsafe { LOADER_DEBUG.first },
    };
    // SAFETY: entries of the list stay while this library is being started.
    core::iter::successors(unsafe { first.as_ref() }, |map| unsafe { map.next.as_ref() })
}

/// Returns true when `pc` is in this library.
pub(crate) fn is_own_code(pc: u64) -> bool {
    unsafe extern "C" {
        /// The first byte of this library in memory, by the linker.
        #[link_name = "__ehdr_start"]
        static START: u8;
        /// The first behind its last one.
        #[link_name = "_end"]
        static END: u8;
    }
    (&raw const START as u64..&raw const END as u64).contains(&pc)
}

/// Returns this library's own tables.
pub(crate) fn own_module() -> Option<Module> {
    // SAFETY: a loaded module.
    own_map().map(|map| unsafe { Module::of(map) })
}

/// Returns true when nothing was loaded after this library. This is so in a program that loads it
/// while running: after a preloaded library comes the C library.
pub(crate) fn is_last() -> bool {
    own_map().is_some_and(|map| map.next.is_null())
}

/// Returns the definition of `name` that the program's calls reach. It has the address, and the
/// entry in a symbol table if it can be found.
pub(crate) fn reached(name: &CStr) -> Option<(*mut c_void, Option<(*const Symbol, u64)>)> {
    let (address, map) = find(name)?;
    // SAFETY: a loaded module.
    let symbol = unsafe { Module::of(map).definition(name) };
    let symbol = symbol.filter(|symbol| {
        // SAFETY: an entry of a loaded module's table.
        map.bias.wrapping_add(unsafe { (**symbol).value }) == address as u64
    });
    Some((address, symbol.map(|symbol| (symbol, map.bias))))
}

/// Returns the address of `name` in the C library itself.
pub(crate) fn library_definition(name: &CStr) -> Option<*mut c_void> {
    let (_, map) = find(c"gnu_get_libc_version")?;
    // SAFETY: a loaded module.
    unsafe { Module::of(map).find(name) }
}

/// `dlsym`.
type LookUp = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;

/// Returns the C library's own `dlsym`, after [`resolve`].
pub(crate) fn library_dlsym() -> Option<LookUp> {
    let address = LIBRARY_DLSYM.load(Ordering::Acquire);
    // SAFETY: null, or a function of that type.
    (!address.is_null()).then(|| unsafe { core::mem::transmute::<*mut c_void, LookUp>(address) })
}

static LIBRARY_DLSYM: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// Returns the path that this library was loaded from.
pub(crate) fn own_path() -> &'static [u8] {
    // SAFETY: the name of an entry is a text that stays.
    own_map().map_or(b"", |map| unsafe { CStr::from_ptr(map.name) }.to_bytes())
}

/// Returns the next definition of `name`.
fn find(name: &CStr) -> Option<(*mut c_void, &'static LinkMap)> {
    // In a program that has loaded this library while running, all other modules come before it.
    let own = own_map();
    let others = maps(None).filter(move |map| own.is_none_or(|own| !ptr::eq(own, *map)));
    maps(own)
        .chain(others)
        // SAFETY: loaded modules.
        .find_map(|map| unsafe { Module::of(map).find(name) }.map(|address| (address, map)))
}

/// Address of a hooked function; null if the C library is too old to have it.
pub(crate) struct Next {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
}

impl Next {
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Self { name, address: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Returns the address; null before [`resolve`], and when there is none.
    #[inline(always)]
    pub(crate) fn address(&self) -> *mut c_void {
        self.address.load(Ordering::Relaxed)
    }

    /// Returns the address if there is one.
    #[inline(always)]
    pub(crate) fn known(&self) -> Option<*mut c_void> {
        Some(self.address()).filter(|address| !address.is_null())
    }

    pub(crate) fn resolve(&self) {
        // The tables of changed modules lead to this library.
        #[cfg(not(feature = "annotate"))]
        if let Some(address) = crate::attach::real_behind(self.name) {
            self.address.store(address, Ordering::Relaxed);
            return;
        }
        if let Some((address, _)) = find(self.name) {
            self.address.store(address, Ordering::Relaxed);
        }
    }
}

macro_rules! nexts {
    ($($field:ident: $name:literal,)*) => {
        /// One word for each hooked function; those of the hot path share a cache line.
        #[repr(C, align(64))]
        pub(crate) struct Nexts { $(pub(crate) $field: Next,)* }

        pub(crate) static NEXT: Nexts = Nexts { $($field: Next::new($name),)* };

        fn resolve_each() { $(NEXT.$field.resolve();)* }
    };
}

nexts! {
    malloc: c"malloc",
    free: c"free",
    calloc: c"calloc",
    realloc: c"realloc",
    malloc_usable_size: c"malloc_usable_size",
    memalign: c"memalign",
    posix_memalign: c"posix_memalign",
    aligned_alloc: c"aligned_alloc",
    valloc: c"valloc",
    pvalloc: c"pvalloc",
    free_sized: c"free_sized",
    free_aligned_sized: c"free_aligned_sized",
    mmap: c"mmap",
    munmap: c"munmap",
    mremap: c"mremap",
    sbrk: c"sbrk",
    brk: c"brk",
    dlopen: c"dlopen",
    dlmopen: c"dlmopen",
    dlclose: c"dlclose",
    dlsym: c"dlsym",
    dlvsym: c"dlvsym",
    execve: c"execve",
    execvpe: c"execvpe",
    fexecve: c"fexecve",
    execveat: c"execveat",
    posix_spawn: c"posix_spawn",
    posix_spawnp: c"posix_spawnp",
    setrlimit: c"setrlimit",
    setrlimit64: c"setrlimit64",
    prlimit: c"prlimit",
    prlimit64: c"prlimit64",
    mlockall: c"mlockall",
    prctl: c"prctl",
    syscall: c"syscall",
    register_frame: c"__register_frame",
    deregister_frame: c"__deregister_frame",
}

/// True when the program's allocator is not the C library's, or when a recorded one calls it.
static IS_FOREIGN: AtomicBool = AtomicBool::new(false);

/// Returns true when the program's allocator may call its own functions by their public names.
#[inline(always)]
pub(crate) fn is_foreign() -> bool {
    IS_FOREIGN.load(Ordering::Relaxed)
}

/// Makes the hooks of the allocator record outermost calls alone from now on.
#[cfg(target_arch = "x86_64")]
pub(crate) fn expect_nesting() {
    IS_FOREIGN.store(true, Ordering::Relaxed);
}

/// True after all functions were looked up.
static IS_RESOLVED: AtomicBool = AtomicBool::new(false);

/// Finds all functions, once. Two threads that do so at once write the same words.
#[cold]
pub(crate) fn resolve() {
    if !IS_RESOLVED.load(Ordering::Acquire) {
        resolve_each();
        let malloc = find(c"malloc").map(|(_, map)| ptr::from_ref(map));
        let library = find(c"gnu_get_libc_version").map(|(_, map)| ptr::from_ref(map));
        IS_FOREIGN.store(malloc != library, Ordering::Relaxed);
        LIBRARY_DLSYM.store(library_definition(c"dlsym").unwrap_or(ptr::null_mut()), Ordering::Release);
        IS_RESOLVED.store(true, Ordering::Release);
    }
}
