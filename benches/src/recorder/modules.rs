//! Measures the ways to detect loaded and unloaded modules.

use std::ffi::{CString, c_void};
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use cairn_capture::LoadedModule;
use cairn_format::AbsoluteAddress;
use cairn_recorder::modules;

const ROUNDS: usize = 201;

pub(crate) fn run() -> Result<(), String> {
    let directory = std::env::temp_dir().join(format!("cairn-bench-modules-{}", std::process::id()));
    std::fs::create_dir_all(&directory).map_err(|error| error.to_string())?;
    let result = run_in(&directory);
    let _ = std::fs::remove_dir_all(&directory);
    result
}

fn run_in(directory: &Path) -> Result<(), String> {
    let audit = compile(
        directory,
        "audit",
        "#define _GNU_SOURCE\n#include <link.h>\nunsigned la_version(unsigned version) { return version; }\n\
         unsigned la_objopen(struct link_map *map, Lmid_t id, uintptr_t *cookie) { (void)map; (void)id; (void)cookie; return 0; }\n",
    )?;
    let plugin = compile(directory, "plugin", "int plugin(void) { return 1; }\n")?;
    let spool = directory.join("modules.cairn");

    println!("| what | median |\n|---|---:|");
    let address = AbsoluteAddress::new(run as *const () as u64);
    let print = |what: &str, nanos: f64| println!("| {what} | {} |", text(nanos));
    print("`dl_iterate_phdr`, the counters of its first call", median(|| iterate(stop)));
    print("`dl_iterate_phdr`, all modules", median(|| iterate(go_on)));
    print("`_dl_find_object` of one address", median(|| _ = black_box(LoadedModule::start_at(address))));
    print("the same with identity, bias and name", median(|| _ = black_box(LoadedModule::at(address))));
    print("reading `/proc/self/maps`", median(|| drop(black_box(std::fs::read("/proc/self/maps")))));
    let pair = || {
        let handle = open(&plugin);
        // SAFETY: opened a moment ago.
        unsafe { libc::dlclose(handle) };
    };
    let wrapped = || {
        let handle = open(&plugin);
        // SAFETY: as above.
        modules::while_unloading(|| unsafe { libc::dlclose(handle) });
    };
    print("`dlopen` and `dlclose`, nobody follows", median(pair));
    super::begin(&spool, "stored")?;
    print("the same, `dlclose` wrapped, a recording under way", median(wrapped));
    print("`modules::scan` when nothing has changed", median(modules::scan));
    let (plain, audited) = starts(&audit)?;
    print("start and end of this program (lowest)", plain);
    print("the same under an rtld-audit library that does nothing (lowest)", audited);
    Ok(())
}

fn text(nanos: f64) -> String {
    if nanos < 10_000.0 { format!("{nanos:.0} ns") } else { format!("{:.1} us", nanos / 1000.0) }
}

fn compile(directory: &Path, name: &str, source: &str) -> Result<PathBuf, String> {
    let (from, to) = (directory.join(format!("{name}.c")), directory.join(format!("{name}.so")));
    std::fs::write(&from, source).map_err(|error| error.to_string())?;
    let status = Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&to).arg(&from).status();
    if status.is_ok_and(|status| status.success()) { Ok(to) } else { Err("cc".to_owned()) }
}

fn open(path: &Path) -> *mut c_void {
    let path = CString::new(path.as_os_str().as_encoded_bytes()).expect("a path");
    // SAFETY: a library without constructors.
    unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) }
}

type OnModule = unsafe extern "C" fn(*mut libc::dl_phdr_info, usize, *mut c_void) -> i32;

fn iterate(callback: OnModule) {
    // SAFETY: the callbacks look at what they are given only.
    unsafe { libc::dl_iterate_phdr(Some(callback), std::ptr::null_mut()) };
}

/// # Safety
///
/// - `info` is valid during the call.
unsafe extern "C" fn stop(info: *mut libc::dl_phdr_info, _: usize, _: *mut c_void) -> i32 {
    // SAFETY: the caller promises a valid `info`.
    black_box(unsafe { (*info).dlpi_adds + (*info).dlpi_subs });
    1
}

/// # Safety
///
/// - `info` is valid during the call.
unsafe extern "C" fn go_on(info: *mut libc::dl_phdr_info, _: usize, _: *mut c_void) -> i32 {
    // SAFETY: the caller promises a valid `info`.
    black_box(unsafe { (*info).dlpi_addr });
    0
}

/// Nanoseconds of one call, averaged over enough calls that the clock does not matter.
fn median(mut work: impl FnMut()) -> f64 {
    let mut calls = 1_u32;
    let mut time = |calls: u32| {
        let start = Instant::now();
        (0..calls).for_each(|_| work());
        start.elapsed().as_nanos() as f64
    };
    while time(calls) < 50_000.0 {
        calls *= 2;
    }
    super::median((0..ROUNDS).map(|_| time(calls) / f64::from(calls)).collect())
}

/// Without and with the audit library, in turn.
fn starts(audit: &Path) -> Result<(f64, f64), String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let time = |audit: Option<&Path>| -> Result<f64, String> {
        let mut command = Command::new(&program);
        command.arg("help").stdout(Stdio::null());
        if let Some(library) = audit {
            command.env("LD_AUDIT", library);
        }
        let start = Instant::now();
        command.status().map_err(|error| error.to_string())?;
        Ok(start.elapsed().as_nanos() as f64)
    };
    let (mut plain, mut audited) = (Vec::new(), Vec::new());
    for _ in 0..51 {
        plain.push(time(None)?);
        audited.push(time(Some(audit))?);
    }
    // Whole processes: on a busy machine the lowest of many is what they take.
    let lowest = |nanos: Vec<f64>| nanos.into_iter().fold(f64::MAX, f64::min);
    Ok((lowest(plain), lowest(audited)))
}
