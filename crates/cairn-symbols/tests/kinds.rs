//! Compares PE, PDB, Mach-O, Breakpad and JIT files with llvm-symbolizer, at every address of a
//! program.

use std::path::PathBuf;

use cairn_format::StatedAddress;
use cairn_symbols::{
    AnsweredBy, BuildId, Lookup, ModuleInfo, Resolution, SourceFrame, Symbolizer, SymbolizerOptions,
};

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/symbol-kinds").join(name)
}

/// A frame, as one side prints it.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Frame {
    name: String,
    file: String,
    line: u32,
    column: u32,
}

impl Frame {
    fn ours(frame: &SourceFrame) -> Self {
        Self {
            name: frame.function.as_deref().unwrap_or_default().to_owned(),
            file: frame.file.as_deref().unwrap_or_default().to_owned(),
            line: frame.line.unwrap_or(0),
            column: frame.column.unwrap_or(0),
        }
    }

    /// llvm-symbolizer prints a column with line 0; cairn has no column for code without a line.
    fn truth(text: &str) -> Self {
        let (name, place) = text.rsplit_once('@').unwrap();
        let mut place = place.rsplitn(3, ':');
        let (column, line) = (place.next().unwrap().parse().unwrap(), place.next().unwrap().parse().unwrap());
        let column = if line == 0 { 0 } else { column };
        Self { name: name.to_owned(), file: place.next().unwrap().to_owned(), line, column }
    }
}

/// Compares the answers at every address of the truth.
///
/// `same` first removes known and explained differences from both; its first argument says if the
/// answer covers one byte only. Addresses unknown to llvm-symbolizer must be unknown here.
#[track_caller]
fn check(file: &str, truth: &str, offset: u64, same: impl Fn(bool, &mut Vec<Frame>, &mut Vec<Frame>)) {
    let mut symbolizer = Symbolizer::new(SymbolizerOptions::new());
    let module = symbolizer.add_file(fixture(file)).unwrap();
    let truth = std::fs::read_to_string(fixture(truth)).unwrap();
    let (mut compared, mut wrong) = (0, String::new());
    for line in truth.lines() {
        let (range, answer) = line.split_once(' ').unwrap();
        let (first, last) = range.split_once('-').unwrap();
        let number = |text| u64::from_str_radix(text, 16).unwrap();
        for address in number(first)..=number(last) {
            let resolution = symbolizer.resolve(module, Lookup::stated(StatedAddress::new(address - offset)));
            let mut ours: Vec<Frame> = resolution.frames().iter().map(Frame::ours).collect();
            let mut theirs: Vec<Frame> = answer.split(" < ").map(Frame::truth).collect();
            if theirs[0] == Frame::truth("@:0:0") {
                theirs.clear();
            }
            same(first == last, &mut ours, &mut theirs);
            compared += 1;
            if ours != theirs {
                wrong += &format!("{address:#x}\n  ours   {ours:?}\n  theirs {theirs:?}\n");
            }
        }
    }
    assert!(compared > 200, "only {compared} addresses in the truth");
    assert!(wrong.is_empty(), "{file}\n{wrong}");
}

/// Between functions, llvm-symbolizer names the preceding symbol, or gives a line without a name.
/// cairn names that symbol in code sections; of a PDB, with the last line.
fn between_functions(ours: &mut Vec<Frame>, theirs: &mut Vec<Frame>) {
    let is_nobodys =
        theirs.is_empty() || matches!(&**theirs, [one] if one.file.is_empty() || one.name.is_empty());
    let may_be_named = ours.iter().zip(&*theirs).all(|(ours, theirs)| ours.name == theirs.name);
    if is_nobodys && may_be_named && ours.len() <= theirs.len() {
        theirs.clone_from(ours);
    }
}

/// Strips parameters. llvm-symbolizer prints those of a PDB only if it has the mangled name; cairn
/// always prints them. The two use different words for anonymous items.
fn bare(name: &str) -> String {
    let name = name.replace("(anonymous namespace)", "{}").replace("`anonymous namespace'", "{}");
    name.split('(').next().unwrap().to_owned()
}

/// If two lines begin at one address, the first has no code. llvm-symbolizer shows it there, and
/// the second behind it; cairn shows the second at both.
fn lines_without_code(one_byte: bool, ours: &[Frame], theirs: &mut [Frame]) {
    if let (Some(ours), Some(theirs), true) = (ours.last(), theirs.last_mut(), one_byte)
        && (theirs.line + 1..=theirs.line + 2).contains(&ours.line)
    {
        theirs.line = ours.line;
    }
}

fn without_parameters(ours: &mut [Frame], theirs: &mut [Frame]) {
    for frame in ours.iter_mut().chain(theirs) {
        frame.name = bare(&frame.name);
    }
}

/// Breakpad's text has no columns, and its writer normalizes paths.
fn without_columns(frames: &mut [Frame]) {
    for frame in frames {
        frame.column = 0;
        frame.file = frame.file.replace("/./", "/");
    }
}

#[test]
fn macho_agrees_with_llvm_symbolizer() {
    for file in ["macho/macho-x86_64", "macho/macho-arm64"] {
        check(file, &format!("{file}.truth"), 0, |_, ours, theirs| between_functions(ours, theirs));
    }
}

#[test]
fn pe_dwarf_agrees_with_llvm_symbolizer() {
    check("mingw/mingw.exe", "mingw/mingw.exe.truth", 0, |_, ours, theirs| {
        // It takes the outermost name from any symbol at the address.
        for frame in theirs.iter_mut().filter(|frame| frame.name == "___crt_xt_end__") {
            frame.name = "shapes::area(int, int)".to_owned();
        }
        // Two names each, with two underscores and with three.
        for frame in ours.iter_mut().chain(&mut *theirs).filter(|frame| frame.name.ends_with("TOR_LIST__")) {
            frame.name = frame.name.trim_start_matches('_').to_owned();
        }
        between_functions(ours, theirs);
    });
}

#[cfg(feature = "pdb")]
#[test]
fn pe_pdb_agrees_with_llvm_symbolizer() {
    for file in ["pdb/program.exe", "pdb/program32.exe"] {
        check(file, &format!("{file}.truth"), 0, |one_byte, ours, theirs| {
            without_parameters(ours, theirs);
            lines_without_code(one_byte, ours, theirs);
            between_functions(ours, theirs);
        });
    }
}

// Failed with: "nothing is known of this part of the module" for the first four; the DWARF hid the
// PDB. llvm-symbolizer names all of them, those of the last three without lines.
#[cfg(feature = "pdb")]
#[test]
fn pe_with_dwarf_and_pdb_answers_from_both() {
    let mut symbolizer = Symbolizer::new(SymbolizerOptions::new());
    let module = symbolizer.add_file(fixture("mixed/mixed.dll")).unwrap();
    let expected = [
        (0x1_8000_1004, "foo_func_1(int) at /build/foo.c:1", AnsweredBy::Pdb, Some(0x1_8000_1000)),
        (0x1_8000_1014, "foo_func_2(int) at /build/foo.c:2", AnsweredBy::Pdb, Some(0x1_8000_1010)),
        (0x1_8000_1024, "foo_func_2(int) at /build/foo.c:3", AnsweredBy::Pdb, Some(0x1_8000_1010)),
        (0x1_8000_1044, "public_func", AnsweredBy::Pdb, Some(0x1_8000_1040)),
        (0x1_8000_1054, "bar_func at /build/bar.c:4", AnsweredBy::Dwarf, None),
        (0x1_8000_1084, "entry at /build/bar.c:5", AnsweredBy::Dwarf, Some(0x1_8000_1080)),
    ];
    for (address, answer, source, start) in expected {
        assert_eq!(ask(&symbolizer, module, address), answer, "{address:#x}");
        let resolution = symbolizer.resolve(module, Lookup::stated(StatedAddress::new(address)));
        assert_eq!(resolution.answered_by(), Some(source), "{address:#x}");
        // The PDB counts from the base, the answer as the file does. Only exports state more.
        assert_eq!(resolution.function_start(), start.map(StatedAddress::new), "{address:#x}");
    }
    let used: Vec<_> = symbolizer
        .module_report(module)
        .used
        .iter()
        .map(|path| path.file_name().unwrap().to_str().unwrap().to_owned())
        .collect();
    assert_eq!(used, ["mixed.dll", "mixed.pdb"]);
    // Without the PDB, only the file's own facts.
    let directory = Directory::new("mixed", &[("mixed/mixed.dll", "mixed.dll")]);
    let mut alone = Symbolizer::new(SymbolizerOptions::new());
    let module = alone.add_file(directory.0.join("mixed.dll")).unwrap();
    assert_eq!(ask(&alone, module, 0x1_8000_1024), "nothing is known of this part of the module");
    assert_eq!(ask(&alone, module, 0x1_8000_1054), "bar_func at /build/bar.c:4");
}

#[cfg(feature = "pdb")]
#[test]
fn pdb_alone_counts_from_the_base() {
    check("pdb/program.pdb", "pdb/program.exe.truth", 0x1_4000_0000, |one_byte, ours, theirs| {
        without_parameters(ours, theirs);
        lines_without_code(one_byte, ours, theirs);
        between_functions(ours, theirs);
    });
}

#[test]
fn breakpad_agrees_with_llvm_symbolizer() {
    for (file, truth, base) in [
        ("breakpad/libprogram.so.sym", "breakpad/libprogram.so.truth", 0),
        ("breakpad/macho-x86_64.sym", "macho/macho-x86_64.truth", 0x1_0000_0000),
        ("breakpad/program.sym", "pdb/program.exe.truth", 0x1_4000_0000),
    ] {
        check(file, truth, base, |one_byte, ours, theirs| {
            // Its writer also names the linker's sections.
            ours.retain(|frame| !frame.name.starts_with("<.plt ELF section in "));
            without_parameters(ours, theirs);
            lines_without_code(one_byte, ours, theirs);
            without_columns(ours);
            without_columns(theirs);
            between_functions(ours, theirs);
        });
    }
}

/// Formats the answer for a stated address as `name at file:line < …`, or the reason.
fn ask(symbolizer: &Symbolizer, module: cairn_symbols::ModuleId, address: u64) -> String {
    let resolution: Resolution = symbolizer.resolve(module, Lookup::stated(StatedAddress::new(address)));
    match resolution.reason() {
        Some(reason) => reason.to_string(),
        None => resolution.frames().iter().map(ToString::to_string).collect::<Vec<_>>().join(" < "),
    }
}

#[track_caller]
fn check_one(file: &str, address: u64, expected: &str) {
    let mut symbolizer = Symbolizer::new(SymbolizerOptions::new());
    let module = symbolizer.add_file(fixture(file)).unwrap();
    assert_eq!(ask(&symbolizer, module, address), expected, "{file}");
}

#[cfg(not(feature = "pdb"))]
#[test]
fn pdb_is_refused_without_the_feature() {
    let error = Symbolizer::new(SymbolizerOptions::new()).add_file(fixture("pdb/program.pdb")).unwrap_err();
    assert!(error.to_string().contains("enable the feature `pdb`"), "{error}");
}

#[test]
fn perf_maps_and_jitdumps_name_process_addresses() {
    check_one("jit/perf-4242.map", 0x7f56_71fc_5b80, "JS:^fib /build/fib.js:1:13");
    check_one("jit/perf-4242.map", 0x7f56_71fc_5c7f, "JS:^fib /build/fib.js:1:13");
    check_one("jit/perf-4242.map", 0x7f56_71fc_5c80, "the address is outside of the module's code");
    check_one("jit/node.dump", 0x7f29_027c_5c00, "JS:*fib /build/fib.js:1:13");
}

/// Lines equal those of llvm-symbolizer for the same code in an ELF library, from the function's
/// start.
#[test]
fn jitdump_of_llvm_has_lines() {
    let bytes = std::fs::read(fixture("jit/llvm.dump")).unwrap();
    let name = b"_ZN6shapes12_GLOBAL__N_16hiddenEi\0";
    let at = bytes.windows(name.len()).position(|window| window == name).unwrap();
    let start = u64::from_le_bytes(bytes[at - 24..at - 16].try_into().unwrap());
    for (offset, line) in [(0, 33), (1, 34), (12, 34), (13, 35), (31, 35)] {
        let expected = format!("shapes::(anonymous namespace)::hidden(int) at /build/program.cpp:{line}");
        check_one("jit/llvm.dump", start + offset, &expected);
    }
}

#[test]
fn pe_without_debug_info_has_function_starts() {
    let mut symbolizer = Symbolizer::new(SymbolizerOptions::new());
    let module = symbolizer.add_file(fixture("mingw/stripped.exe")).unwrap();
    let resolution = symbolizer.resolve(module, Lookup::stated(StatedAddress::new(0x1_4000_1025)));
    assert_eq!(resolution.function_start(), Some(StatedAddress::new(0x1_4000_101f)));
    assert_eq!(ask(&symbolizer, module, 0x1_4000_8000), "the address is outside of the module's code");
}

/// Copies fixtures into a directory that is removed at the end.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str, files: &[(&str, &str)]) -> Self {
        let path = std::env::temp_dir().join(format!("cairn-kinds-{name}-{}", std::process::id()));
        for (from, to) in files {
            let to = path.join(to);
            std::fs::create_dir_all(to.parent().unwrap()).unwrap();
            std::fs::copy(fixture(from), to).unwrap();
        }
        Self(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(feature = "pdb")]
#[test]
fn pdb_of_another_build_is_refused_unless_allowed() {
    let directory =
        Directory::new("pdb", &[("pdb/program.exe", "program.exe"), ("pdb/program32.pdb", "program.pdb")]);
    let mut strict = Symbolizer::new(SymbolizerOptions::new());
    let module = strict.add_file(directory.0.join("program.exe")).unwrap();
    let answer = ask(&strict, module, 0x1_4000_1015);
    assert!(answer.contains("program.pdb is of a different build: its build id is "), "{answer}");
    let mut lenient = Symbolizer::new(SymbolizerOptions::new().allow_mismatch(true));
    let module = lenient.add_file(directory.0.join("program.exe")).unwrap();
    assert!(ask(&lenient, module, 0x1_4000_1015).contains("program.cpp"));
}

#[cfg(feature = "pdb")]
#[test]
fn pdb_is_found_in_symbol_server_layout() {
    let pdb = std::fs::read(fixture("breakpad/program.sym")).unwrap();
    let id = std::str::from_utf8(&pdb).unwrap().split(' ').nth(3).unwrap().to_owned();
    let place = format!("server/program.pdb/{id}/program.pdb");
    let directory =
        Directory::new("server", &[("pdb/program.exe", "program.exe"), ("pdb/program.pdb", &place)]);
    let options = SymbolizerOptions::new().debug_dir(directory.0.join("server"));
    let mut symbolizer = Symbolizer::new(options);
    let module = symbolizer.add_file(directory.0.join("program.exe")).unwrap();
    assert_eq!(ask(&symbolizer, module, 0x1_4000_1015), "shapes::area(int, int) at /build/program.cpp:13");
    assert_eq!(symbolizer.module_report(module).used.len(), 2);
}

/// A recording of another system has that system's paths, an id, and offsets.
#[cfg(feature = "pdb")]
#[test]
fn foreign_modules_are_named_by_symbol_files() {
    let id_in = |symbols: &str, key: &str| {
        let text = std::fs::read_to_string(fixture(symbols)).unwrap();
        let words: Vec<&str> = text.split_whitespace().collect();
        words[words.iter().position(|word| *word == key).unwrap() + 1].to_owned()
    };
    let (pdb, linux) =
        (id_in("breakpad/program.sym", "x86_64"), id_in("breakpad/libprogram.so.sym", "x86_64"));
    let mac = id_in("breakpad/macho-x86_64.sym", "x86_64");
    let build_id = id_in("breakpad/libprogram.so.sym", "CODE_ID");
    let directory = Directory::new(
        "symbols",
        &[
            ("pdb/program.pdb", &format!("pdbs/program.pdb/{pdb}/program.pdb")),
            ("breakpad/program.sym", &format!("syms/program.pdb/{pdb}/program.sym")),
            ("breakpad/libprogram.so.sym", &format!("syms/libprogram.so/{linux}/libprogram.so.sym")),
            ("breakpad/macho-x86_64.sym", &format!("syms/m/{mac}/m.sym")),
        ],
    );
    let guid = |at: usize| u8::from_str_radix(&pdb[at..at + 2], 16).unwrap();
    let guid = [6, 4, 2, 0, 10, 8, 14, 12, 16, 18, 20, 22, 24, 26, 28, 30].map(guid);
    let stored = [&guid[..], &[1, 0, 0, 0]].concat();
    for (directory_name, path, id, offset, expected) in [
        (
            "pdbs",
            r"C:\app\program.exe",
            BuildId::new(&stored),
            0x1015,
            "shapes::area(int, int) at /build/program.cpp:13",
        ),
        (
            "syms",
            r"C:\app\program.exe",
            BuildId::new(&stored),
            0x1015,
            "shapes::area(int, int) at /build/program.cpp:13",
        ),
        (
            "syms",
            "/usr/lib/libprogram.so",
            BuildId::from_hex(&build_id).unwrap(),
            0x1500,
            "start_here at /build/program.cpp:50",
        ),
        (
            "syms",
            "/Applications/m",
            BuildId::from_hex(&mac[..32]).unwrap(),
            0x470,
            "plain_c at /build/program.cpp:41",
        ),
    ] {
        let options = SymbolizerOptions::new().symbol_dir(directory.0.join(directory_name));
        let mut symbolizer = Symbolizer::new(options);
        let module = symbolizer.add_module(ModuleInfo::new(path).with_build_id(id));
        let offset = cairn_format::ModuleOffset::new(offset);
        let resolution = symbolizer.resolve(module, Lookup::program_counter(offset));
        let answer = resolution.frames().first().map(ToString::to_string);
        assert_eq!(answer.as_deref(), Some(expected), "{path}: {:?}", symbolizer.module_report(module));
    }
}

#[test]
fn dsym_bundle_of_another_build_is_refused() {
    let inside = "macho/macho-arm64.dSYM/Contents/Resources/DWARF/macho-arm64";
    let other = "program.dSYM/Contents/Resources/DWARF/program";
    let directory = Directory::new("dsym", &[("macho/macho-x86_64", "program"), (inside, other)]);
    let mut symbolizer = Symbolizer::new(SymbolizerOptions::new());
    let module = symbolizer.add_file(directory.0.join("program")).unwrap();
    // The program's own symbol table still answers.
    assert_eq!(ask(&symbolizer, module, 0x1_0000_0404), "shapes::area(int, int)");
    let answer = ask(&symbolizer, module, 0x1_0000_0000);
    assert!(answer.contains("is of a different build"), "{answer}");
}

#[test]
fn dsym_bundle_answers_on_its_own() {
    check_one("macho/macho-x86_64.dSYM", 0x1_0000_0470, "plain_c at /build/program.cpp:41");
}

#[test]
fn universal_file_selects_the_recorded_program() {
    let symbols = |name| std::fs::read_to_string(fixture(name)).unwrap();
    let x86_64 = symbols("breakpad/macho-x86_64.sym").split(' ').nth(3).unwrap()[..32].to_owned();
    let directory = Directory::new(
        "fat",
        &[
            ("macho/universal", "universal"),
            (
                "macho/macho-x86_64.dSYM/Contents/Resources/DWARF/macho-x86_64",
                "universal.dSYM/Contents/Resources/DWARF/universal",
            ),
        ],
    );
    let mut symbolizer = Symbolizer::new(SymbolizerOptions::new());
    let info = ModuleInfo::new(directory.0.join("universal"));
    let module = symbolizer.add_module(info.with_build_id(BuildId::from_hex(&x86_64).unwrap()));
    assert_eq!(ask(&symbolizer, module, 0x1_0000_0470), "plain_c at /build/program.cpp:41");
}

#[test]
fn files_with_a_false_magic_are_refused() {
    let directory = Directory::new("broken", &[]);
    std::fs::create_dir_all(&directory.0).unwrap();
    for (name, content) in [
        ("x.exe", &b"MZ nothing"[..]),
        ("x.pdb", b"Microsoft C/C++ MSF 7.00\r\n\x1aDS\0\0\0 nothing"),
        ("x.macho", b"\xcf\xfa\xed\xfe nothing"),
        ("x.fat", b"\xca\xfe\xba\xbe\0\0\0\x02 nothing"),
        ("x.sym", b"MODULE nothing"),
        ("x.dump", b"DTiJ nothing"),
        ("perf-1.map", b"nothing"),
    ] {
        let path = directory.0.join(name);
        std::fs::write(&path, content).unwrap();
        let error = Symbolizer::new(SymbolizerOptions::new()).add_file(&path).unwrap_err().to_string();
        assert!(error.contains(name) && error.contains("cannot read symbols: "), "{error}");
    }
}

/// Truncated or corrupted anywhere, a file gives answers or reasons. The seed is fixed, to
/// reproduce.
#[test]
fn damaged_files_give_answers_or_reasons() {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = move |bound: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % bound
    };
    for (file, first) in [
        ("pdb/program.exe", 0x1_4000_1000),
        ("pdb/program.pdb", 0x1000),
        ("mingw/mingw.exe", 0x1_4000_1000),
        ("macho/universal", 0x1_0000_0400),
        ("macho/macho-x86_64.dSYM/Contents/Resources/DWARF/macho-x86_64", 0x1_0000_0400),
        ("breakpad/program.sym", 0x1000),
        ("jit/llvm.dump", 0x7f00_0000_0000),
        ("jit/perf-4242.map", 0x7f56_71fc_5b80),
    ] {
        let whole = std::fs::read(fixture(file)).unwrap();
        for round in 0..60 {
            let mut bytes = whole.clone();
            if round % 3 == 0 {
                bytes.truncate(random(whole.len()));
            }
            for _ in 0..random(12) {
                let at = random(bytes.len().max(1));
                // Headers decide most, and are a small part.
                let at = if random(2) == 0 { at % 1024 } else { at };
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = [0, 1, 0x7f, 0x80, 0xff, byte.wrapping_add(1), random(256) as u8][random(7)];
                }
            }
            let mut symbolizer = Symbolizer::new(SymbolizerOptions::new().threads(1));
            let name = std::path::Path::new("/nonexistent").join(fixture(file).file_name().unwrap());
            let Ok(module) = symbolizer.add_image(ModuleInfo::new(name), bytes) else { continue };
            for step in 0..24 {
                let address = StatedAddress::new(first + step * 13);
                let resolution = symbolizer.resolve(module, Lookup::stated(address));
                assert_eq!(
                    resolution.frames().is_empty(),
                    resolution.reason().is_some(),
                    "{file}, round {round}"
                );
            }
        }
    }
}
