//! The C++ programs: compiled when a benchmark starts, so that their flags are part of the benchmark.

use std::env;
use std::ffi::{CString, c_int, c_void};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::capture::fixed::Job;

/// `run_fixed_stack` of fixed_stack.cpp.
pub(crate) type RunFixedStack = extern "C" fn(*mut Job, c_int, extern "C" fn()) -> c_int;

/// A file below `fixtures/programs`.
pub(crate) fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/programs").join(name)
}

/// A directory for what is built; it stays, as the build directory does.
pub(crate) fn build_directory() -> Result<PathBuf, String> {
    let program = env::current_exe().map_err(|error| format!("this program: {error}"))?;
    let directory = program.with_file_name("bench-programs");
    fs::create_dir_all(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    Ok(directory)
}

/// Compiles fixed_stack.cpp with these flags and loads it.
pub(crate) fn load_fixed_stack(flags: &[&str]) -> Result<RunFixedStack, String> {
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
    // SAFETY: a handle from dlopen, and a name.
    let function: *mut c_void = unsafe { libc::dlsym(handle, c"run_fixed_stack".as_ptr()) };
    if function.is_null() {
        return Err(format!("{}: no run_fixed_stack", library.display()));
    }
    // SAFETY: the type that fixed_stack.cpp gives it.
    Ok(unsafe { std::mem::transmute::<*mut c_void, RunFixedStack>(function) })
}
