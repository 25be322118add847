//! A program whose modules come and go while it is recorded: what `cairn play` has to tell apart.
//!
//! `host DIRECTORY RECORDING` loads `libfoo测试.so` and `libbar.so` from the directory
//! (`modules/build.sh` makes them), calls through both, and then lets the same addresses be, one
//! after the other,
//!
//! ```text
//!   foo -> nothing -> code without a file, as a JIT compiler makes it -> qux        and foo comes back elsewhere
//! ```
//!
//! with a marked stack at each stage. `cairn play RECORDING` shows each stack with the modules of
//! its time, and `cairn play --modules RECORDING` what was where.

use std::error::Error;
use std::ffi::{CStr, CString, OsStr, c_char, c_void};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use cairn_recorder::{EndReason, MarkValue, Options, mark, mark_value, modules, start, stop};

type Callback = extern "C" fn(*const c_char);
type Function = extern "C" fn(Callback, *const c_char);
type Bar = extern "C" fn(Function, Callback, *const c_char);

/// Marks the place that calls it.
extern "C" fn mark_here(text: *const c_char) {
    // SAFETY: the modules hand on what this program gave them.
    let text = unsafe { CStr::from_ptr(text) };
    mark(&text.to_string_lossy());
}

/// A loaded module.
struct Module(*mut c_void);

impl Module {
    fn load(directory: &Path, name: &str) -> Result<Self, Box<dyn Error>> {
        let path = CString::new(directory.join(name).as_os_str().as_bytes())?;
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

    fn symbol(&self, name: &CStr) -> Result<*mut c_void, Box<dyn Error>> {
        // SAFETY: the handle is open.
        let address = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        if address.is_null() {
            Err(format!("no function {}", name.to_string_lossy()).into())
        } else {
            Ok(address)
        }
    }

    fn function(&self, name: &CStr) -> Result<Function, Box<dyn Error>> {
        // SAFETY: the modules' sources say that their functions are of this type.
        Ok(unsafe { std::mem::transmute::<*mut c_void, Function>(self.symbol(name)?) })
    }

    /// Address of its first byte.
    fn base(&self, name: &CStr) -> Result<usize, Box<dyn Error>> {
        // SAFETY: zeros are a value of it, and the call writes one.
        unsafe {
            let mut found: libc::Dl_info = std::mem::zeroed();
            libc::dladdr(self.symbol(name)?, &raw mut found);
            Ok(found.dli_fbase as usize)
        }
    }

    fn unload(self) {
        // The recorder writes what is gone, before anything else can take its place.
        modules::while_unloading(|| {
            // SAFETY: none of its functions runs, and none is called any more.
            unsafe { libc::dlclose(self.0) };
        });
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    let [directory, recording] = arguments.as_slice() else {
        return Err("usage: host DIRECTORY RECORDING".into());
    };
    start(&Options::new(OsStr::new(recording).as_bytes()))?;
    play_the_cast(Path::new(directory))?;
    mark_value("stages", MarkValue::Integer(5));
    stop(EndReason::Stopped);
    Ok(())
}

/// Returns all stages. Prints where foo was, and whether qux came to lie there.
#[inline(never)]
fn play_the_cast(directory: &Path) -> Result<(), Box<dyn Error>> {
    let mut out = io::stdout().lock();
    let bar = Module::load(directory, "libbar.so")?;
    let foo_module = Module::load(directory, "libfoo测试.so")?;
    // SAFETY: bar's source says that the function is of this type.
    let call_bar = unsafe { std::mem::transmute::<*mut c_void, Bar>(bar.symbol(c"bar")?) };

    call_bar(foo_module.function(c"foo测试")?, mark_here, c"foo through bar".as_ptr());
    let place = foo_module.base(c"foo测试")?;
    writeln!(out, "foo {place:#x}")?;

    foo_module.unload();
    mark("foo is gone");

    #[cfg(target_arch = "x86_64")]
    code_without_a_file(place, call_bar)?;

    let qux = Module::load(directory, "libqux.so")?;
    call_bar(qux.function(c"qux")?, mark_here, c"qux through bar".as_ptr());
    writeln!(out, "qux {:#x}", qux.base(c"qux")?)?;

    let foo_again = Module::load(directory, "libfoo测试.so")?;
    call_bar(foo_again.function(c"foo测试")?, mark_here, c"foo again".as_ptr());
    writeln!(out, "foo {:#x}", foo_again.base(c"foo测试")?)?;

    foo_again.unload();
    qux.unload();
    bar.unload();
    Ok(())
}

/// Calls through a page of machine code that belongs to no module and lies where foo was.
#[cfg(target_arch = "x86_64")]
fn code_without_a_file(place: usize, call_bar: Bar) -> Result<(), Box<dyn Error>> {
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
    // SAFETY: a new page of this size; the code keeps the calling convention of `Function`.
    let code = unsafe {
        std::ptr::copy_nonoverlapping(CODE.as_ptr(), page.cast(), CODE.len());
        std::mem::transmute::<*mut c_void, Function>(page)
    };
    call_bar(code, mark_here, c"no module".as_ptr());
    modules::while_unloading(|| {
        // SAFETY: the code does not run any more, and nobody keeps its address.
        unsafe { libc::munmap(page, 4096) };
    });
    Ok(())
}
