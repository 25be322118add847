//! Modules that come and go at one address: every stack is of the one that lay there when it was
//! captured.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod support;

use std::ffi::{CStr, CString, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use cairn_format::recording::{EndReason, PcKind};
use cairn_recorder::{Options, mark, modules, start, stop};
use support::{Mark, Module, Spool, fresh_path};

const SOURCE: &str = "
    #include <stdlib.h>
    int needs_the_c_library(const char *text) { return atoi(text); }
    long pass_on(long (*callback)(void)) { return callback() + 1; }
    static const char *volatile name = NAME;
    const char *module_name(void) { return name; }
";

/// A directory for what is compiled here.
fn directory() -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("modules");
    std::fs::create_dir_all(&directory).unwrap();
    directory
}

/// Compiles a library; equal ones but for their name, and so for their build id.
fn library(name: &str) -> PathBuf {
    let source = directory().join("module.c");
    std::fs::write(&source, SOURCE).unwrap();
    let path = directory().join(format!("{name}.so"));
    let mut command = Command::new("cc");
    command.args(["-shared", "-fPIC", "-O1", "-Wl,--build-id", &format!("-DNAME=\"{name}\"")]);
    assert!(command.arg(&source).arg("-o").arg(&path).status().expect("a C compiler").success());
    path
}

type PassOn = extern "C" fn(extern "C" fn() -> i64) -> i64;

struct Loaded {
    handle: *mut c_void,
    pass_on: PassOn,
}

impl Loaded {
    fn new(path: &Path, open: impl FnOnce(&CStr) -> *mut c_void) -> Self {
        let path = CString::new(path.as_os_str().as_bytes()).unwrap();
        let handle = open(&path);
        assert!(!handle.is_null(), "{path:?}");
        // SAFETY: the library has a function of this name and type.
        let pass_on =
            unsafe { std::mem::transmute::<*mut c_void, PassOn>(libc::dlsym(handle, c"pass_on".as_ptr())) };
        Self { handle, pass_on }
    }

    fn open(path: &Path) -> Self {
        // SAFETY: a library without constructors.
        Self::new(path, |path| unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) })
    }

    fn address(&self) -> u64 {
        self.pass_on as usize as u64
    }

    fn close(self) {
        // SAFETY: nothing of it is used any more.
        assert_eq!(modules::while_unloading(|| unsafe { libc::dlclose(self.handle) }), 0);
    }
}

extern "C" fn through_module() -> i64 {
    mark("through");
    0
}

extern "C" fn beside_the_other() -> i64 {
    mark("beside");
    0
}

extern "C" fn through_nothing() -> i64 {
    mark("generated code");
    0
}

/// Code that no module covers, at that page: calls its argument.
fn generate_code_at(address: u64) -> PassOn {
    const PUSH_MOVE_CALL_POP_RETURN: [u8; 8] = [0x55, 0x48, 0x89, 0xe5, 0xff, 0xd7, 0x5d, 0xc3];
    let page = (address & !0xfff) as *mut c_void;
    // SAFETY: nothing lies there, and the code follows the calling convention.
    unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        let protection = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
        let at = libc::mmap(page, 4096, protection, flags, -1, 0);
        assert_eq!(at, page);
        at.cast::<[u8; 8]>().write(PUSH_MOVE_CALL_POP_RETURN);
        std::mem::transmute::<*mut c_void, PassOn>(at)
    }
}

fn remove_code(address: u64) {
    // SAFETY: what `generate_code_at` mapped.
    assert_eq!(unsafe { libc::munmap((address & !0xfff) as *mut c_void, 4096) }, 0);
}

#[test]
fn stacks_name_the_module_of_their_time() {
    let (b, d, unused) = (library("b"), library("d"), library("unused"));
    let (other, beside) = (library("namespace"), library("beside"));
    let path = fresh_path("modules");
    start(&Options::new(path.as_os_str().as_bytes())).unwrap();

    let loaded = Loaded::open(&b);
    let place = loaded.address();
    (loaded.pass_on)(through_module);
    loaded.close();
    mark("gap");
    let loaded = Loaded::open(&d);
    assert_eq!(loaded.address(), place, "the second library takes the place of the first");
    (loaded.pass_on)(through_module);
    loaded.close();
    mark("gap");
    generate_code_at(place)(through_nothing);
    let loaded = Loaded::open(&b);
    assert_ne!(loaded.address(), place, "its place is taken");
    (loaded.pass_on)(through_module);
    loaded.close();
    remove_code(place);
    // Replaced on the disk while it is loaded, and deleted.
    let loaded = Loaded::open(&b);
    assert_eq!(loaded.address(), place);
    std::fs::remove_file(&b).unwrap();
    std::fs::copy(&d, &b).unwrap();
    (loaded.pass_on)(through_module);
    loaded.close();
    // Never on a stack.
    Loaded::open(&unused).close();
    // In a namespace of its own, with its own C library.
    // SAFETY: a library without constructors.
    let apart = Loaded::new(&other, |path| unsafe { dlmopen(-1, path.as_ptr(), libc::RTLD_NOW) });
    modules::scan();
    (apart.pass_on)(through_module);
    // Two threads load and unload at once, and take each other's places.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..100 {
                let again = Loaded::open(&beside);
                (again.pass_on)(beside_the_other);
                again.close();
            }
        });
        for _ in 0..100 {
            let again = Loaded::open(&d);
            (again.pass_on)(through_module);
            again.close();
        }
    });
    stop(EndReason::Stopped);

    let spool = Spool::open(&path);
    spool.check();
    let name = |module: &Module| Path::new(&module.path).file_stem().unwrap().to_string_lossy().into_owned();
    // The frame that is not of this program, the C library or the loader.
    let through = |mark: &Mark| {
        let frames = spool.stack(mark.stack);
        let found = frames.iter().find_map(|(_, address, module)| {
            let module = &spool.modules[module];
            let is_ours = ["b", "d", "unused", "namespace", "beside"].contains(&name(module).as_str());
            assert!(module.start <= *address && *address < module.end);
            is_ours.then(|| (name(module), module.start, module.loaded, module.unloaded))
        });
        let (name, start, loaded, unloaded) = found?;
        assert!(loaded <= mark.counter, "{name} was loaded after its stack");
        assert!(
            unloaded.is_none_or(|unloaded| mark.counter < unloaded),
            "{name} was unloaded before its stack"
        );
        Some((name, start))
    };
    let marks: Vec<&Mark> = spool.marks.iter().filter(|mark| mark.text == "through").collect();
    let names: Vec<(String, u64)> = marks.iter().filter_map(|mark| through(mark)).collect();
    let order: Vec<&str> = names.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(order[..5], ["b", "d", "b", "b", "namespace"]);
    assert_eq!(order[5..], ["d"; 100]);
    let beside: Vec<(String, u64)> =
        spool.marks.iter().filter(|mark| mark.text == "beside").filter_map(through).collect();
    assert!(beside.len() == 100 && beside.iter().all(|(name, _)| name == "beside"));
    assert!(names[0].1 == names[1].1 && names[0].1 == names[3].1 && names[0].1 != names[2].1);

    // Generated code is in no module and has no tables, and its address is unchanged.
    let generated = spool.marks.iter().find(|mark| mark.text == "generated code").unwrap();
    let page = place & !0xfff;
    let frame = spool
        .stack(generated.stack)
        .into_iter()
        .find(|(_, address, _)| (page..page + 4096).contains(address));
    let (kind, _, module) = frame.expect("the generated code is on the stack");
    assert_eq!((kind, module), (PcKind::ReturnWithoutTables, 0));

    // One entry for each load, all of them ended but the last ones.
    let loads =
        |wanted: &str| spool.modules.values().filter(|module| name(module) == wanted).collect::<Vec<_>>();
    let loaded: Vec<_> =
        loads("d").iter().map(|load| (load.loaded, load.unloaded, load.start, load.end)).collect();
    assert_eq!((loads("b").len(), loads("d").len(), loads("unused").len()), (3, 101, 1), "{loaded:x?}");
    assert!(
        [loads("b"), loads("d"), loads("unused")].concat().iter().all(|module| module.unloaded.is_some())
    );
    assert!(loads("namespace")[0].unloaded.is_none());
    // Two C libraries: one for each namespace.
    assert_eq!(spool.modules.values().filter(|module| module.path.contains("libc.so")).count(), 2);
    // The build id is that of what was in memory, not of what took its path.
    let ids = |wanted: &str| loads(wanted).iter().map(|module| module.build_id.clone()).collect::<Vec<_>>();
    let (b_ids, d_ids) = (ids("b"), ids("d"));
    assert!(
        !b_ids[0].is_empty()
            && b_ids.iter().all(|id| *id == b_ids[0])
            && d_ids.iter().all(|id| *id == d_ids[0])
    );
    assert_ne!(b_ids[0], d_ids[0]);
    std::fs::remove_file(&path).unwrap();
}

unsafe extern "C" {
    fn dlmopen(namespace: libc::c_long, path: *const libc::c_char, flags: i32) -> *mut c_void;
}
