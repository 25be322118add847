//! Compares captures with libgcc's stacks at the same call, below random calls of C functions whose
//! frames differ in size and layout. Stacks often leave words behind where others have theirs.

#[path = "support/libgcc.rs"]
mod libgcc;

use std::ffi::{CString, c_void};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use cairn_capture::{StopReason, capture, follow_after, statistics};
use libgcc::by_libgcc;

/// Held by each test, because the statistics count the captures of the whole process.
static ALONE: Mutex<()> = Mutex::new(());
/// Stacks that were compared.
static COMPARED: AtomicU64 = AtomicU64::new(0);

/// The C program's `struct state`.
#[repr(C)]
struct State {
    random: u64,
    checks_left: i64,
    check: extern "C" fn(),
}

type RandomCalls = unsafe extern "C" fn(*mut State, u32);

extern "C" fn check() {
    let stack = capture();
    let found: Vec<u64> = stack.frames().filter_map(|frame| Some(frame.address()?.value())).collect();
    let truth = by_libgcc();
    // Inside of the callers libgcc finds by_libgcc and check, and the capture finds check.
    assert_eq!(found[1..], truth[2..], "found {found:x?}, truth {truth:x?}");
    assert_eq!(stack.stop_reason(), StopReason::EndOfStack);
    COMPARED.fetch_add(1, Relaxed);
}

/// Compiles the C program with these options, and loads two functions.
fn load(name: &str, options: &[&str]) -> [RandomCalls; 2] {
    // The first is this processor's compiler also where the tests run in an emulator.
    let compilers: &[&str] =
        if cfg!(target_arch = "aarch64") { &["aarch64-linux-gnu-gcc", "cc"] } else { &["cc"] };
    let source = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/support/random_calls.c");
    let library = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("random_calls_{name}.so"));
    let compiled = compilers.iter().any(|compiler| {
        let mut command = Command::new(compiler);
        // Without a stack protector, whose words would make frames of one size.
        command.args(["-O2", "-shared", "-fPIC", "-fno-stack-protector", "-fno-optimize-sibling-calls"]);
        command.args(options).arg(&source).arg("-o").arg(&library);
        command.status().is_ok_and(|status| status.success())
    });
    assert!(compiled, "no compiler of {compilers:?} has compiled {}; install one", source.display());
    let path = CString::new(library.into_os_string().into_encoded_bytes()).unwrap();
    // SAFETY: the library runs no code when it is loaded, and it exports the functions with this
    // type.
    unsafe {
        let handle = libc::dlopen(path.as_ptr(), libc::RTLD_NOW);
        assert!(!handle.is_null());
        [c"random_calls", c"hidden_calls"].map(|name| {
            let function = libc::dlsym(handle, name.as_ptr());
            assert!(!function.is_null());
            std::mem::transmute::<*mut c_void, RandomCalls>(function)
        })
    }
}

/// Compares stacks of the program that is compiled with `options`, on each path of the engine.
fn compare(name: &str, options: &[&str]) {
    const DEFAULT: u32 = 16;
    let _alone = ALONE.lock();
    let [random_calls, hidden_calls] = load(name, options);
    let (walks, compared) = (statistics().whole_walks, COMPARED.load(Relaxed));
    // By records alone, by following as often as possible, and as programs do.
    for (seed, captures) in (1..).zip([u32::MAX, 1, DEFAULT]) {
        follow_after(captures);
        for depth in [3, 9, 16, 30, 150] {
            let random = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed) + u64::from(depth);
            let mut state = State { random, checks_left: 1700, check };
            // SAFETY: the state outlives the call, and has the layout of the C program's.
            unsafe { random_calls(&raw mut state, depth) };
        }
        // With some inner frames in the record of the stack, or in a shadow.
        for depth in [1, 4, 20] {
            let mut state = State { random: 0, checks_left: 0, check };
            // SAFETY: as above.
            unsafe { hidden_calls(&raw mut state, depth) };
        }
    }
    follow_after(DEFAULT);
    let compared = COMPARED.load(Relaxed) - compared;
    assert!(compared >= 20_000, "{compared}");
    assert_eq!(statistics().whole_walks, walks, "the hot path captured all");
}

#[test]
fn stacks_without_frame_pointers_equal_libgcc() {
    compare("omit", &["-fomit-frame-pointer"]);
}

#[test]
fn stacks_with_frame_pointers_equal_libgcc() {
    compare("frame_pointer", &["-fno-omit-frame-pointer"]);
}

#[test]
#[cfg(target_arch = "aarch64")]
fn stacks_with_signed_return_addresses_equal_libgcc() {
    compare("signed", &["-mbranch-protection=standard"]);
}
