//! A program whose modules come and go while it is recorded: what `cairn play` has to tell apart.
//!
//! `host DIRECTORY RECORDING` loads `libfoo测试.so` and `libbar.so` from the directory, on Windows
//! `foo测试.dll` and `bar.dll` (`modules/build.sh` makes them), calls through both, and then lets the
//! same addresses be, one after the other,
//!
//! ```text
//!   foo -> nothing -> code without a file, as a JIT compiler makes it -> qux        and foo comes back elsewhere
//! ```
//!
//! with a marked stack at each stage. `cairn play RECORDING` shows each stack with the modules of
//! its time, and `cairn play --modules RECORDING` what was where.

use std::error::Error;
use std::ffi::{CStr, c_char, c_void};
use std::io::{self, Write};
use std::path::Path;

use cairn_recorder::{EndReason, MarkValue, Options, mark, mark_value, start, stop};

#[cfg_attr(windows, path = "host/windows.rs")]
#[cfg_attr(not(windows), path = "host/linux.rs")]
mod loader;

use loader::Module;

type Callback = extern "C" fn(*const c_char);
type Function = extern "C" fn(Callback, *const c_char);
type Bar = extern "C" fn(Function, Callback, *const c_char);

/// Marks the place that calls it.
extern "C" fn mark_here(text: *const c_char) {
    // SAFETY: the modules hand on what this program gave them.
    let text = unsafe { CStr::from_ptr(text) };
    mark(&text.to_string_lossy());
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    let [directory, recording] = arguments.as_slice() else {
        return Err("usage: host DIRECTORY RECORDING".into());
    };
    start(&Options::new(recording.as_encoded_bytes()))?;
    play_the_cast(Path::new(directory))?;
    mark_value("stages", MarkValue::Integer(5));
    stop(EndReason::Stopped);
    Ok(())
}

/// Returns all stages. Prints where foo was, and whether qux came to lie there.
#[inline(never)]
fn play_the_cast(directory: &Path) -> Result<(), Box<dyn Error>> {
    let mut out = io::stdout().lock();
    let bar = Module::load(directory, "bar")?;
    let foo_module = Module::load(directory, "foo测试")?;
    // SAFETY: bar's source says that the function is of this type.
    let call_bar = unsafe { std::mem::transmute::<*mut c_void, Bar>(bar.symbol(c"bar")?) };

    call_bar(foo_module.function(c"foo测试")?, mark_here, c"foo through bar".as_ptr());
    let place = foo_module.base(c"foo测试")?;
    writeln!(out, "foo {place:#x}")?;

    foo_module.unload();
    mark("foo is gone");

    #[cfg(target_arch = "x86_64")]
    {
        let page = loader::map_code(place)?;
        // SAFETY: the code keeps the calling convention of `Function`.
        let code = unsafe { std::mem::transmute::<*mut c_void, Function>(page) };
        call_bar(code, mark_here, c"no module".as_ptr());
        loader::unmap_code(page);
    }

    let qux = Module::load(directory, "qux")?;
    call_bar(qux.function(c"qux")?, mark_here, c"qux through bar".as_ptr());
    writeln!(out, "qux {:#x}", qux.base(c"qux")?)?;

    let foo_again = Module::load(directory, "foo测试")?;
    call_bar(foo_again.function(c"foo测试")?, mark_here, c"foo again".as_ptr());
    writeln!(out, "foo {:#x}", foo_again.base(c"foo测试")?)?;

    foo_again.unload();
    qux.unload();
    bar.unload();
    Ok(())
}
