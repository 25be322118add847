//! Resolves each byte of code in small programs with every kind of debug information.
//!
//! The expected answers are in `fixtures/symbols/expected`; `CAIRN_UPDATE_GOLDENS=1` rewrites them.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use cairn_format::{ModuleOffset, StatedAddress};
use cairn_symbols::{
    BuildId, Difference, Lookup, ModuleId, ModuleInfo, Resolution, Symbolizer, SymbolizerOptions, Unknown,
};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/symbols").canonicalize().unwrap()
}

/// Returns all answers of a module, by ranges of addresses: these programs fit into two pages.
fn all_answers(symbolizer: &Symbolizer, module: ModuleId) -> String {
    let lookups: Vec<(ModuleId, Lookup)> =
        (0..0x2000).map(|offset| (module, Lookup::program_counter(ModuleOffset::new(offset)))).collect();
    let answers = symbolizer.resolve_many(&lookups);
    let mut text = String::new();
    let mut last: Option<&Resolution> = None;
    for (offset, answer) in answers.iter().enumerate() {
        if last != Some(answer) {
            writeln!(text, "{offset:#x}").unwrap();
            for frame in answer.frames() {
                let column = frame.column.map(|column| format!(":{column}")).unwrap_or_default();
                let inlined = if frame.inlined { " inlined" } else { "" };
                writeln!(text, "  {frame}{column}{inlined}").unwrap();
            }
            answer.reason().iter().for_each(|reason| writeln!(text, "  unknown: {reason}").unwrap());
        }
        last = Some(answer);
    }
    text
}

fn check(name: &str, options: SymbolizerOptions, golden: &str) {
    let path = fixtures().join("bin").join(name);
    let mut symbolizer = Symbolizer::new(options);
    let module = symbolizer.add_file(&path).unwrap();
    let found = all_answers(&symbolizer, module);
    let golden = fixtures().join("expected").join(golden);
    if std::env::var_os("CAIRN_UPDATE_GOLDENS").is_some() {
        fs::write(&golden, &found).unwrap();
    }
    let expected = fs::read_to_string(&golden).unwrap();
    assert!(
        found == expected,
        "{name}: answers differ from {}; CAIRN_UPDATE_GOLDENS=1 rewrites them\n{found}",
        golden.display()
    );
}

#[test]
fn dwarf_4() {
    check("dwarf4", SymbolizerOptions::new(), "dwarf4.txt");
}

#[test]
fn dwarf_5_plain_and_compressed_answer_the_same() {
    for name in ["dwarf5", "dwarf5-zlib", "dwarf5-zstd", "dwarf5-gnu-zlib"] {
        check(name, SymbolizerOptions::new(), "dwarf5.txt");
    }
}

#[test]
fn split_files_are_found_beside_the_program() {
    check("split4", SymbolizerOptions::new(), "split4.txt");
    check("split5", SymbolizerOptions::new(), "split5.txt");
}

#[test]
fn split_packages_are_read() {
    check("packaged/split4", SymbolizerOptions::new(), "split4.txt");
    check("packaged/split-clang", SymbolizerOptions::new(), "split-clang.txt");
}

#[test]
fn missing_split_file_leaves_lines_and_symbols() {
    let directory = scratch("no-split");
    let program = directory.join("split5");
    fs::copy(fixtures().join("bin/split5"), &program).unwrap();
    let mut symbolizer = Symbolizer::new(SymbolizerOptions::new());
    let module = symbolizer.add_file(&program).unwrap();
    let answers = all_answers(&symbolizer, module);
    assert!(answers.contains("  outer at /fixture/inlined.c:"), "{answers}");
    assert!(!answers.contains("inlined\n"), "{answers}");
}

#[test]
fn dwz_supplement_is_found_beside_the_program() {
    check("dwz-a", SymbolizerOptions::new(), "dwarf4.txt");
    check("dwz-b", SymbolizerOptions::new(), "dwarf4.txt");
}

#[test]
fn debug_file_is_found_by_build_id() {
    check("stripped", SymbolizerOptions::new().debug_dir(fixtures().join("debug")), "dwarf5.txt");
}

#[test]
fn stripped_program_has_function_starts() {
    check("stripped", SymbolizerOptions::new(), "stripped.txt");
}

#[test]
fn debug_file_is_found_by_debug_link() {
    check("linked/program", SymbolizerOptions::new(), "linked.txt");
}

#[test]
fn symbol_tables_answer_plain_and_packed() {
    check("symbols", SymbolizerOptions::new(), "symbols.txt");
    check("mini", SymbolizerOptions::new(), "symbols.txt");
}

#[test]
fn debug_link_to_another_build_is_refused() {
    let path = fixtures().join("bin/other-link/program");
    let ask = |allow| {
        let mut symbolizer = Symbolizer::new(SymbolizerOptions::new().allow_mismatch(allow));
        let module = symbolizer.add_file(&path).unwrap();
        (all_answers(&symbolizer, module), symbolizer.module_report(module))
    };
    let (answers, report) = ask(false);
    assert!(!answers.contains("outer"), "{answers}");
    assert_eq!(report.refused.len(), 1);
    let (refused, reason) = &report.refused[0];
    assert!(refused.ends_with("other-link/program.debug"), "{report:?}");
    let is_checksum =
        matches!(reason, Unknown::DifferentBuild { difference: Difference::Checksum { .. }, .. });
    assert!(is_checksum, "{report:?}");

    let (answers, report) = ask(true);
    assert!(answers.contains("outer"), "{answers}");
    assert_eq!((report.refused.len(), report.mismatched.len()), (0, 1), "{report:?}");
}

fn build_id(name: &str) -> BuildId {
    let bytes = fs::read(fixtures().join("bin").join(name)).unwrap();
    // After the kind and name of the only note.
    let at = bytes.windows(8).position(|window| window == b"\x03\0\0\0GNU\0").unwrap() + 8;
    BuildId::new(&bytes[at..at + 20])
}

#[test]
fn recorded_module_must_be_the_same_build() {
    let path = fixtures().join("bin/dwarf5");
    let ask = |info: ModuleInfo, options: SymbolizerOptions| {
        let mut symbolizer = Symbolizer::new(options);
        let module = symbolizer.add_module(info);
        let answer = symbolizer.resolve(module, Lookup::program_counter(ModuleOffset::new(0x200)));
        (answer.reason().cloned(), symbolizer.module_report(module))
    };
    let here = || ModuleInfo::new(&path);

    let (_, report) = ask(here().with_build_id(build_id("dwarf5")), SymbolizerOptions::new());
    assert_eq!((report.used, report.missing), (vec![path.clone()], None));

    let other = BuildId::new(&[1; 20]);
    let (answer, report) = ask(here().with_build_id(other.clone()), SymbolizerOptions::new());
    let difference = Difference::BuildId { expected: other.clone(), found: Some(build_id("dwarf5")) };
    let reason = Unknown::DifferentBuild { path: path.clone(), difference };
    assert_eq!(answer, Some(reason.clone()));
    assert_eq!(report.missing, Some(reason.clone()));
    assert_eq!(report.refused, [(path.clone(), reason.clone())]);

    let (_, report) = ask(here().with_build_id(other), SymbolizerOptions::new().allow_mismatch(true));
    assert_eq!((report.used, report.mismatched), (vec![path.clone()], vec![(path.clone(), reason)]));

    let size = fs::metadata(&path).unwrap().len();
    let (answer, _) = ask(here().with_size_bytes(size + 1), SymbolizerOptions::new());
    let difference = Difference::Size { expected: size + 1, found: size };
    assert_eq!(answer, Some(Unknown::DifferentBuild { path: path.clone(), difference }));

    let modified = fs::metadata(&path).unwrap().modified().unwrap();
    let (_, report) = ask(here().with_modified(modified), SymbolizerOptions::new());
    assert_eq!(report.missing, None);
    let (answer, _) = ask(here().with_modified(std::time::UNIX_EPOCH), SymbolizerOptions::new());
    assert_eq!(
        answer,
        Some(Unknown::DifferentBuild { path: path.clone(), difference: Difference::Modified })
    );

    let (answer, _) = ask(ModuleInfo::new("/nowhere/program"), SymbolizerOptions::new());
    assert_eq!(answer, Some(Unknown::NoSuchFile { path: "/nowhere/program".into() }));
}

#[test]
fn debug_file_answers_for_a_deleted_program() {
    let options = SymbolizerOptions::new().debug_dir(fixtures().join("debug"));
    let mut symbolizer = Symbolizer::new(options);
    let gone = ModuleInfo::new("/gone/stripped").with_build_id(build_id("stripped"));
    let module = symbolizer.add_module(gone);
    let golden = fs::read_to_string(fixtures().join("expected/dwarf5.txt")).unwrap();
    let lines = |text: &str| text.lines().filter(|line| line.contains(" at ")).map(str::to_owned).collect();
    let (found, expected): (Vec<String>, Vec<String>) =
        (lines(&all_answers(&symbolizer, module)), lines(&golden));
    assert_eq!(found, expected);
}

#[test]
fn sysroot_confines_mapped_paths() {
    let directory = scratch("sysroot");
    let root = directory.join("root");
    fs::create_dir_all(root.join("usr/bin")).unwrap();
    fs::copy(fixtures().join("bin/dwarf5"), root.join("usr/bin/real")).unwrap();
    fs::copy(fixtures().join("bin/dwarf5"), directory.join("outside")).unwrap();
    #[cfg(unix)]
    for (target, name) in [("/usr/bin/real", "inside"), ("../../../outside", "out"), ("ring", "ring")] {
        std::os::unix::fs::symlink(target, root.join("usr/bin").join(name)).unwrap();
    }
    let used = |path: &str, options: SymbolizerOptions| {
        let mut symbolizer = Symbolizer::new(options);
        let module = symbolizer.add_module(ModuleInfo::new(path));
        symbolizer.module_report(module).used
    };
    let sysroot = || SymbolizerOptions::new().sysroot(&root);
    let real = root.join("usr/bin/real");
    assert_eq!(used("/usr/bin/real", sysroot()), std::slice::from_ref(&real));
    if cfg!(unix) {
        assert_eq!(used("/usr/bin/inside", sysroot()), std::slice::from_ref(&real));
    }
    for path in ["/usr/bin/out", "/../outside", "/usr/bin/ring", "usr/bin/real", "/proc/self/exe"] {
        assert_eq!(used(path, sysroot()), Vec::<PathBuf>::new(), "{path}");
    }
    let mapped =
        SymbolizerOptions::new().map_path("/build", root.join("usr")).map_path("/build/x", "/nowhere");
    assert_eq!(used("/build/bin/real", mapped.clone()), std::slice::from_ref(&real));
    assert_eq!(used("/build/../../outside", mapped), Vec::<PathBuf>::new());
    let by_name = SymbolizerOptions::new().symbol_dir(root.join("usr/bin"));
    assert_eq!(used("/elsewhere/real", by_name), [real]);
}

#[cfg(windows)]
#[test]
fn devices_and_directories_are_no_programs() {
    let mut symbolizer = Symbolizer::new(SymbolizerOptions::new());
    let directory = fixtures().join("bin");
    for path in [Path::new("NUL"), Path::new("CON"), &directory] {
        assert!(symbolizer.add_file(path).is_err(), "{}", path.display());
    }
}

#[cfg(unix)]
#[test]
fn only_regular_files_are_opened() {
    let mut symbolizer = Symbolizer::new(SymbolizerOptions::new());
    for path in ["/dev/zero", "/dev/null", "/proc"] {
        assert!(symbolizer.add_file(path).is_err(), "{path}");
    }
    let fifo = scratch("fifo").join("fifo");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let error = symbolizer.add_file(&fifo).unwrap_err();
    assert!(error.to_string().contains("not a regular file"), "{error}");
}

#[test]
fn return_address_is_looked_up_one_byte_before() {
    let mut symbolizer = Symbolizer::new(SymbolizerOptions::new());
    let module = symbolizer.add_file(fixtures().join("bin/dwarf5")).unwrap();
    for offset in 0x1..0x400 {
        let before = symbolizer.resolve(module, Lookup::program_counter(ModuleOffset::new(offset - 1)));
        let offset = ModuleOffset::new(offset);
        assert_eq!(symbolizer.resolve(module, Lookup::return_address(offset)), before);
        let there = symbolizer.resolve(module, Lookup::program_counter(offset));
        assert_eq!(symbolizer.resolve(module, Lookup::async_resume_point(offset)), there);
        let stated = StatedAddress::new(0x40_0000 + offset.value());
        assert_eq!(symbolizer.resolve(module, Lookup::stated(stated)), there);
    }
}

#[test]
fn image_in_memory_answers_like_its_file() {
    let mut symbolizer = Symbolizer::new(SymbolizerOptions::new());
    let bytes = fs::read(fixtures().join("bin/dwarf5")).unwrap();
    let module = symbolizer.add_image(ModuleInfo::new("[vdso]"), bytes).unwrap();
    let golden = fs::read_to_string(fixtures().join("expected/dwarf5.txt")).unwrap();
    assert_eq!(all_answers(&symbolizer, module), golden);
}

/// Creates an empty directory for this test.
fn scratch(name: &str) -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("symbols-{name}"));
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir_all(&directory).unwrap();
    directory
}

// Failed with: the recorded path was opened, and its symbols were taken.
#[test]
fn unchecked_paths_are_opened_only_if_allowed() {
    let program = fixtures().join("bin/dwarf5");
    let missing = |options: SymbolizerOptions, info: ModuleInfo| {
        let mut symbolizer = Symbolizer::new(options.only_checked_paths(true));
        let module = symbolizer.add_module(info);
        symbolizer.module_report(module).missing
    };
    let unchecked = || ModuleInfo::new(&program);
    assert_eq!(
        missing(SymbolizerOptions::new(), unchecked()),
        Some(Unknown::NotChecked { path: program.clone() })
    );
    assert_eq!(missing(SymbolizerOptions::new().allow_mismatch(true), unchecked()), None);
    assert_eq!(missing(SymbolizerOptions::new().symbol_dir(program.parent().unwrap()), unchecked()), None);
    assert_eq!(missing(SymbolizerOptions::new().sysroot("/"), unchecked()), None);
    // The build id is compared: the right one opens the file, a wrong one does not.
    let wrong = unchecked().with_build_id(BuildId::new(&[1; 20]));
    assert!(matches!(missing(SymbolizerOptions::new(), wrong), Some(Unknown::DifferentBuild { .. })));
}
