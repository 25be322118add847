//! The C++ programs: compiled when a benchmark starts, so that their flags are part of the
//! benchmark.

use std::env;
use std::ffi::{CStr, CString, c_int, c_void};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::capture::fixed::Job;

/// Runs a job at a depth; what it is given to run first prepares the captures on its thread.
pub(crate) type RunFixedStack = extern "C" fn(*mut Job, c_int, extern "C" fn()) -> c_int;

/// Returns a file below `fixtures/programs`.
pub(crate) fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/programs").join(name)
}

/// Returns a directory for what is built; it stays, as the build directory does.
pub(crate) fn build_directory() -> Result<PathBuf, String> {
    let program = env::current_exe().map_err(|error| format!("this program: {error}"))?;
    let directory = program.with_file_name("bench-programs");
    fs::create_dir_all(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    Ok(directory)
}

/// Compiles a program below `fixtures/programs` and returns its path.
pub(crate) fn build(name: &str) -> Result<PathBuf, String> {
    let source = source(name);
    let program = build_directory()?.join(source.file_stem().unwrap_or_default());
    let compiler = if name.ends_with(".cpp") { "c++" } else { "cc" };
    let mut command = Command::new(compiler);
    command.args(["-O2", "-g", "-pthread", "-fno-builtin-malloc", "-o"]).arg(&program).arg(&source);
    let status = command.status().map_err(|error| format!("{compiler}: {error}"))?;
    if status.success() { Ok(program) } else { Err(format!("{compiler} {name}: {status}")) }
}

/// fixed_stack.cpp, compiled and loaded.
pub(crate) struct FixedStack {
    /// `run_fixed_stack`.
    pub(crate) fixed: RunFixedStack,
    /// `run_moving_stack`.
    pub(crate) moving: RunFixedStack,
    /// `run_new_sites`.
    pub(crate) new_sites: RunFixedStack,
}

/// Compiles fixed_stack.cpp with these flags and loads it.
pub(crate) fn load_fixed_stack(flags: &[&str]) -> Result<FixedStack, String> {
    let library = build_directory()?.join(format!("fixed_stack{}.so", flags.concat()));
    let mut compiler = Command::new("c++");
    compiler.args(["-O2", "-fPIC", "-shared", "-o"]).arg(&library).args(flags).arg(source("fixed_stack.cpp"));
    let status = compiler.status().map_err(|error| format!("c++: {error}"))?;
    if !status.success() {
        return Err(format!("c++ {}: {status}", flags.join(" ")));
    }
    let path = CString::new(library.to_string_lossy().as_bytes()).map_err(|error| error.to_string())?;
    // SAFETY: a library without constructors.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if handle.is_null() {
        return Err(format!("{}: not loaded", library.display()));
    }
    let function = |name: &CStr| {
        // SAFETY: a handle from dlopen, and a name.
        let address: *mut c_void = unsafe { libc::dlsym(handle, name.as_ptr()) };
        if address.is_null() {
            return Err(format!("{}: no {}", library.display(), name.to_string_lossy()));
        }
        // SAFETY: the type that fixed_stack.cpp gives to all three.
        Ok(unsafe { std::mem::transmute::<*mut c_void, RunFixedStack>(address) })
    };
    Ok(FixedStack {
        fixed: function(c"run_fixed_stack")?,
        moving: function(c"run_moving_stack")?,
        new_sites: function(c"run_new_sites")?,
    })
}
