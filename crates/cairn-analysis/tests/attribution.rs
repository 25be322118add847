//! Which frames name rows and which are folded, on stacks that are written out.

use std::collections::HashMap;

use cairn_analysis::heap::{
    Address, Aggregator, Cost, Diff, Direction, FoldRules, Folding, Group, HeapProfile, Module, NO_FRAMES,
    Namer, Names, OwnerKind, Questions, Sampling, Scope, Stacks, Suppressions, TreeLimits,
    find_common_wrappers, stacks_in_focus,
};
use cairn_format::recording::PcKind;
use cairn_symbols::SourceFrame;

/// A program whose stacks are texts.
///
/// They have frames from the outermost inwards, `function@module` or `function@module:file`; a
/// frame behind `+` is inlined into the one before it.
struct Program {
    stacks: Stacks,
    names: Vec<Vec<SourceFrame>>,
    known: HashMap<(u32, String), u32>,
    profile: HeapProfile,
}

impl Namer for Program {
    fn name(&self, _stacks: &Stacks, addresses: &[&Address]) -> Vec<Vec<SourceFrame>> {
        addresses.iter().map(|address| self.names[address.absolute as usize].clone()).collect()
    }
}

/// Modules by their short names in stacks; the first one is the program.
fn path_of(module: &str) -> String {
    match module {
        "app" => "/home/me/app/app".into(),
        "python" => "/usr/bin/python3.11".into(),
        "jq" => "/usr/bin/jq".into(),
        "numpy" => "/home/me/venv/lib/python3.11/site-packages/numpy/core/_m.so".into(),
        "stdlib" => "/usr/lib/libstdc++.so.6".into(),
        "ld" => "/lib64/ld-linux-x86-64.so.2".into(),
        library => format!("/usr/lib/{library}.so.6"),
    }
}

impl Program {
    /// The stacks, each with the number and the size of its allocations.
    fn new(rows: &[(&str, u64, u64)]) -> Self {
        let mut program = Self {
            stacks: Stacks::new(),
            names: Vec::new(),
            known: HashMap::new(),
            profile: Aggregator::new(1, 1, Scope::default(), Sampling::All).finish(0),
        };
        let stacks: Vec<u32> = rows.iter().map(|(stack, ..)| program.stack(stack)).collect();
        let mut heap = Aggregator::new(program.stacks.len(), 1, Scope::default(), Sampling::All);
        let mut object = 0;
        for (stack, &(_, count, size)) in stacks.into_iter().zip(rows) {
            for _ in 0..count {
                heap.allocated(object, stack, 0, size, u64::from(object));
                object += 1;
            }
        }
        program.profile = heap.finish(1_000_000);
        program
    }

    fn stack(&mut self, text: &str) -> u32 {
        text.split_whitespace().fold(NO_FRAMES, |parent, call| {
            match self.known.get(&(parent, call.to_owned())) {
                Some(&known) => known,
                None => {
                    let address = self.address(call);
                    let stack = self.stacks.add_stack(parent, address).expect("both are there");
                    self.known.insert((parent, call.to_owned()), stack);
                    stack
                }
            }
        })
    }

    fn address(&mut self, call: &str) -> u32 {
        let mut frames: Vec<SourceFrame> = Vec::new();
        let mut module = 0;
        for text in call.split('+') {
            let (function, place) = text.split_once('@').expect("function@module");
            let (name, file) = place.split_once(':').map_or((place, None), |(name, file)| (name, Some(file)));
            let path = path_of(name);
            let found = self.stacks.modules().iter().position(|module| module.path == path);
            module = found.map_or_else(
                || self.stacks.add_module(Module { path, build_id: Vec::new() }),
                |found| found as u32,
            );
            let mut frame = SourceFrame::default();
            frame.function = (!function.is_empty()).then(|| function.replace('~', " ").into());
            frame.file = file.map(Into::into);
            frames.insert(0, frame);
        }
        if frames[0].function.is_none() {
            frames.clear();
        }
        self.names.push(frames);
        let absolute = self.names.len() as u64 - 1;
        let module = Some((module, absolute));
        self.stacks.add_address(Address { kind: PcKind::ReturnAddress, absolute, stated: absolute, module })
    }

    fn questions(&self, folding: Folding) -> Questions<'_> {
        Questions::new(&self.profile, Names::new(&self.stacks, self, folding))
    }

    /// The rows by bytes, and how many frames each one's first stack leaves out.
    fn rows(&self, folding: Folding) -> Vec<(String, usize)> {
        let mut questions = self.questions(folding);
        let entries = questions.top(Group::Function, Cost::Allocated);
        let row = |entry: &cairn_analysis::heap::Entry| {
            let (stack, asker) = entry.stacks[0];
            let left_out = questions.left_out(stack, asker);
            (questions.names().function_of(entry.line).name.to_string(), left_out)
        };
        entries.iter().map(row).collect()
    }
}

const START: &str = "_start@app __libc_start_main_impl@libc";

#[test]
fn rows_are_the_users_innermost_frames() {
    let program = Program::new(&[
        (
            &format!("{START} main@app load@app+std::vector<int>::push_back(int)@app operator~new@stdlib"),
            1,
            9,
        ),
        (&format!("{START} main@app sqlite3_exec@libsqlite3 sqlite3Malloc@libsqlite3"), 1, 8),
        ("_dl_start_user@ld call_init@ld @stdlib", 1, 7),
        ("clone3@libc start_thread@libc work@app fopen@libc", 1, 6),
        ("start@libfoo helper@libfoo g_malloc@libglib-2.0", 1, 5),
    ]);
    let rows = program.rows(Folding::default());
    // A function without a name is a place in its module.
    let rows: Vec<(&str, usize)> =
        rows.iter().map(|(name, left_out)| (name.split('+').next().unwrap_or(name), *left_out)).collect();
    let expected = [("load", 4), ("main", 4), ("libstdc", 2), ("work", 3), ("helper", 1)];
    assert_eq!(rows, expected);
    let unfolded = program.rows(Folding::none());
    assert_eq!(unfolded[0], ("operator new".into(), 0));
    assert_eq!(unfolded[1], ("sqlite3Malloc".into(), 0));
}

#[test]
fn trees_show_libraries_that_rows_pass_over() {
    let program = Program::new(&[(
        &format!("{START} main@app query@app sqlite3_exec@libsqlite3 sqlite3Parse@libsqlite3 malloc@libc"),
        1,
        8,
    )]);
    let mut questions = program.questions(Folding::default());
    let mut names = |direction| -> Vec<String> {
        let tree = questions.tree(direction, Cost::Allocated, TreeLimits::NONE);
        let line = |node: usize| tree.nodes[node].line.expect("only the root has none");
        let lines: Vec<_> = tree.in_order().map(line).collect();
        lines.into_iter().map(|line| questions.names().function_of(line).name.to_string()).collect()
    };
    assert_eq!(names(Direction::FromMain), ["main", "query", "sqlite3_exec", "sqlite3Parse"]);
    assert_eq!(names(Direction::FromAllocations), ["query", "main"]);
    assert_eq!(questions.folded(Cost::Allocated), "main;query;sqlite3_exec;sqlite3Parse 8\n");
}

#[test]
fn scripts_replace_the_frames_of_their_interpreter() {
    let native =
        "_start@python __libc_start_main_impl@libc Py_BytesMain@python _PyEval_EvalFrameDefault@python";
    let without = Program::new(&[(&format!("{native} list_append@python _PyMem_RawMalloc@python"), 1, 8)]);
    assert_eq!(without.rows(Folding::default()), [("list_append".to_owned(), 3)]);

    let scripts = "<module>@python:/home/me/job.py load@python:/home/me/job.py";
    let with = Program::new(&[
        (&format!("{native} {scripts} list_append@python _PyMem_RawMalloc@python"), 1, 9),
        (
            &format!(
                "{native} {scripts} decode@python:/usr/lib/python3.11/json/decoder.py list_append@python"
            ),
            1,
            8,
        ),
        (&format!("{native} {scripts} array_add@numpy malloc@libc"), 1, 7),
        (&format!("{native} get@python:/v/lib/python3.11/site-packages/requests/api.py malloc@libc"), 1, 6),
    ]);
    let mut questions = with.questions(Folding::default());
    let entries = questions.top(Group::Function, Cost::Allocated);
    let name = |questions: &Questions<'_>, line| questions.names().function_of(line).name.to_string();
    assert_eq!(name(&questions, entries[0].line), "load");
    assert_eq!(entries[0].sums.allocated_bytes, 24);
    assert_eq!(name(&questions, entries[1].line), "get", "a library, where nothing is the user's");
    let (stack, asker) = entries[0].stacks[0];
    let frames = questions.frames(stack, asker);
    let frames: Vec<String> = frames.into_iter().map(|line| name(&questions, line)).collect();
    assert_eq!(frames, ["load", "<module>"], "the interpreter is folded");
}

#[test]
fn distributed_programs_are_named_after_their_libraries() {
    let program = Program::new(&[("@jq __libc_start_main_impl@libc @jq jv_parse@libjq malloc@libc", 1, 8)]);
    assert_eq!(program.rows(Folding::default()), [("jv_parse".to_owned(), 3)]);
    // A function with a name says more than a place inside of it, in either file.
    let program =
        Program::new(&[("@jq __libc_start_main_impl@libc @jq jv_parse@libjq @libjq malloc@libc", 1, 8)]);
    assert_eq!(program.rows(Folding::default())[0].0, "jv_parse");
    // Their containers are passed over all the same.
    let program = Program::new(&[(
        "@jq __libc_start_main_impl@libc @jq jv_parse@libjq llvm::SmallVectorBase<int>::grow_pod(int)@libLLVM malloc@libc",
        1,
        8,
    )]);
    assert_eq!(program.rows(Folding::default())[0].0, "jv_parse");
}

/// Nine functions that call one that calls the allocator.
fn nine_callers(wrapper: &str) -> Vec<(String, u64, u64)> {
    (0..9).map(|index| (format!("{START} main@app caller_{index}@app {wrapper}"), 10, 100)).collect()
}

fn of(rows: &[(String, u64, u64)]) -> Program {
    Program::new(&rows.iter().map(|(stack, count, size)| (stack.as_str(), *count, *size)).collect::<Vec<_>>())
}

fn wrappers(program: &Program, folding: Folding) -> Vec<String> {
    let questions = program.questions(folding);
    let names = questions.names();
    names.found_wrappers().iter().map(|found| names.function(found.function).name.to_string()).collect()
}

#[test]
fn wrappers_by_behaviour_need_callers_and_most_bytes() {
    let mut rows = nine_callers("get@app");
    assert_eq!(wrappers(&of(&rows), Folding::default()), ["get"]);
    // A few others that allocate change nothing; as much again does.
    rows.push((format!("{START} main@app other@app"), 5, 100));
    assert_eq!(wrappers(&of(&rows), Folding::default()), ["get"]);
    rows.push((format!("{START} main@app large@app"), 90, 100));
    assert_eq!(wrappers(&of(&rows), Folding::default()), [] as [&str; 0]);
    // A function that calls another one that allocates is not the end.
    let mut rows = nine_callers("get@app");
    rows.push((format!("{START} main@app get@app fill@app"), 30, 100));
    assert_eq!(wrappers(&of(&rows), Folding::default()), [] as [&str; 0]);
    let few: Vec<_> = nine_callers("get@app").into_iter().take(7).collect();
    assert_eq!(wrappers(&of(&few), Folding::default()), [] as [&str; 0]);
    assert_eq!(wrappers(&of(&nine_callers("get@app")), Folding::none()), [] as [&str; 0]);
}

#[test]
fn wrappers_by_name_go_through_layers() {
    let program = of(&nine_callers("pool_alloc@app raw_alloc@app malloc@libc"));
    assert_eq!(wrappers(&program, Folding::default()), ["raw_alloc", "pool_alloc"]);
    let questions = program.questions(Folding::default());
    assert!((questions.share_through_wrappers() - 1.0).abs() < 1e-9, "each byte counts once");
    // One caller, which is no wrapper: then neither is it.
    let lone = Program::new(&[(&format!("{START} main@app load@app alloc_table@app"), 1, 100)]);
    assert_eq!(wrappers(&lone, Folding::default()), [] as [&str; 0]);
    assert_eq!(lone.rows(Folding::default())[0].0, "alloc_table");
    // The user's word goes before what the recording shows.
    let not =
        FoldRules { not_wrappers: vec!["^pool_alloc$".parse().expect("a pattern")], ..FoldRules::default() };
    assert_eq!(program.rows(not.into())[0].0, "pool_alloc");
}

#[test]
fn wrappers_are_strings_and_containers_of_anything() {
    let rows = |inner: &str| {
        of(&[("load", 64), ("save", 64)]
            .map(|(caller, size)| (format!("{START} main@app {caller}@app {inner} malloc@libc"), 10, size)))
    };
    for (inner, expected) in [
        ("strbuf_add@app strbuf_grow@app", vec!["strbuf_add", "strbuf_grow"]),
        ("ngx_create_pool@app", vec!["ngx_create_pool"]),
        ("SplitVector<char>::Insert(int)@app", vec!["SplitVector<char>::Insert(int)"]),
        ("SplitVector<char>::RoomFor(int)@app", vec!["SplitVector<char>::RoomFor(int)"]),
        // The name says which data.
        ("parse_string@app", vec![]),
        ("order_list_add@app", vec![]),
        ("OrderList::Add(int)@app", vec![]),
        ("new_order@app", vec![]),
    ] {
        let mut found = wrappers(&rows(inner), Folding::default());
        found.sort();
        assert_eq!(found, expected, "{inner}");
    }
    // Compilers split functions, and inline one part into the other.
    let split = [("load", 64), ("save", 64)].map(|(caller, size)| {
        (format!("{START} main@app {caller}@app list_grow.part.0@app+list_grow@app malloc@libc"), 10, size)
    });
    assert_eq!(wrappers(&of(&split), Folding::default()), ["list_grow", "list_grow.part.0"]);
    // Names of a library's own container, and of allocation alone, need no second caller.
    for inner in ["ngx_list_init", "zcalloc_num", "buffer_append_iovec", "my_asprintf"] {
        let lone = Program::new(&[(&format!("{START} main@app load@app {inner}@app"), 1, 100)]);
        assert_eq!(lone.rows(Folding::default())[0].0, "load", "{inner}");
    }
    // One function calls it: it may be that function's own.
    let lone = Program::new(&[(&format!("{START} main@app load@app make_list@app"), 1, 100)]);
    assert_eq!(wrappers(&lone, Folding::default()), [] as [&str; 0]);
}

#[test]
fn wrappers_by_size_take_it_from_their_callers() {
    // As many bytes are allocated elsewhere: `get` is not where those of the module flow through.
    let program = |size: fn(u64) -> u64, get: fn(u64) -> String| {
        let caller = |index| (format!("{START} main@app caller_{index}@app {}", get(index)), 10, size(index));
        let mut rows: Vec<_> = (0..9).map(caller).collect();
        rows.push((format!("{START} main@app large@app"), 500, 200));
        of(&rows)
    };
    let get = |_| "get@app:get.c".to_owned();
    let none: [&str; 0] = [];
    assert_eq!(wrappers(&program(|index| 10 << index, get), Folding::default()), ["get"]);
    assert_eq!(wrappers(&program(|_| 500, get), Folding::default()), none, "a record of its own");
    // `ga_grow` shows that `ga` is a container.
    let mut rows: Vec<_> = (0..9)
        .map(|index| (format!("{START} main@app caller_{index}@app ga_grow@app"), 10, 10 << index))
        .collect();
    rows.push((format!("{START} main@app name@app ga_concat@app ga_grow@app"), 10, 100));
    rows.push((format!("{START} main@app name@app ga_window@app ga_grow@app"), 10, 100));
    assert_eq!(wrappers(&of(&rows), Folding::default()), ["ga_grow", "ga_concat"]);
    let at_many_places = |index: u64| format!("get@app:get_{}.h", index % 3);
    assert_eq!(wrappers(&program(|index| 10 << index, at_many_places), Folding::default()), none);
    let with_others = |index: u64| match index {
        0 => "get@app helper@app".to_owned(),
        _ => "get@app".to_owned(),
    };
    assert_eq!(wrappers(&program(|index| 10 << index, with_others), Folding::default()), none);
}

#[test]
fn wrappers_of_libraries_are_named_after_their_functions() {
    let program = |function: &str| {
        Program::new(&[(
            &format!("{START} main@app unpack@app {function}@app inflate@libz inflateInit@libz malloc@libc"),
            3,
            100,
        )])
    };
    assert_eq!(wrappers(&program("git_inflate"), Folding::default()), ["git_inflate"]);
    assert_eq!(program("git_inflate").rows(Folding::default())[0].0, "unpack");
    assert_eq!(wrappers(&program("unpack_entry"), Folding::default()), [] as [&str; 0]);
    let not = FoldRules { not_wrappers: vec!["^git_".parse().expect("a pattern")], ..FoldRules::default() };
    assert_eq!(program("git_inflate").rows(not.into())[0].0, "git_inflate");
}

#[test]
fn programs_of_the_registry_own_the_package_of_their_main() {
    let registry = "/home/me/.cargo/registry/src/index.crates.io-0123456789abcdef";
    let program = Program::new(&[(
        &format!(
            "{START} rg::main@app:{registry}/rg-14.1.1/src/main.rs rg::search@app:{registry}/rg-14.1.1/src/search.rs \
             memchr::find@app:{registry}/memchr-2.7.4/src/lib.rs malloc@libc"
        ),
        1,
        100,
    )]);
    assert_eq!(program.rows(Folding::default())[0].0, "rg::search");
}

#[test]
fn compared_heaps_share_their_wrappers() {
    let before = of(&nine_callers("get@app"));
    // Only two of the callers ran: too few to find the wrapper in this recording.
    let after: Vec<_> = nine_callers("get@app").into_iter().take(2).collect();
    let after = of(&after);
    let mut names = [&before, &after].map(|program| Names::new(&program.stacks, program, Folding::default()));
    let [names_before, names_after] = &mut names;
    find_common_wrappers((&before.profile, names_before), (&after.profile, names_after));
    let [names_before, names_after] = names;
    let mut before = Questions::new(&before.profile, names_before);
    let mut after = Questions::new(&after.profile, names_after);
    let diff = Diff::of(&mut before, &mut after, Cost::Allocated);
    assert_eq!(diff.entries.len(), 7, "{:?}", diff.entries);
    assert!(diff.entries.iter().all(|entry| entry.frames[0].function.as_deref() != Some("get")));
}

#[test]
fn stacks_in_focus_have_a_frame_that_matches() {
    let program = Program::new(&[
        (&format!("{START} main@app load@app malloc@libc"), 1, 9),
        (&format!("{START} main@app query@app sqlite3_exec@libsqlite3 malloc@libc"), 1, 8),
    ]);
    let focused = |pattern: &str| {
        let rules = FoldRules { focus: vec![pattern.parse().expect("a pattern")], ..FoldRules::default() };
        let folding = Folding::from(rules);
        let mut names = Names::new(&program.stacks, &program, folding.clone());
        let stacks = stacks_in_focus(&mut names).expect("there is a focus");
        let part = program.profile.of_stacks(&stacks);
        let questions = Questions::new(&part, Names::new(&program.stacks, &program, folding));
        let top = questions.top(Group::Function, Cost::Allocated);
        let kinds = top.iter().map(|entry| questions.names().owner_kind(entry.line));
        let names = top.iter().map(|entry| questions.names().function_of(entry.line).name.to_string());
        (names.collect::<Vec<_>>(), kinds.collect::<Vec<_>>())
    };
    assert_eq!(focused("module=sqlite3"), (vec!["sqlite3_exec".to_owned()], vec![OwnerKind::Mine]));
    assert_eq!(focused("crate=sqlite3").0, ["sqlite3_exec"]);
    assert_eq!(focused("^query$").0, ["query"]);
    assert_eq!(focused("^main$").0, ["load", "query"]);
    assert_eq!(focused("nothing").0, [] as [&str; 0]);
    let mut names = Names::new(&program.stacks, &program, Folding::default());
    assert_eq!(stacks_in_focus(&mut names), None);
}

#[test]
fn known_leaks_are_the_libraries_own() {
    let program = Program::new(&[
        ("_dl_start_user@ld _dl_init@ld call_init@ld @stdlib", 1, 72_704),
        (&format!("{START} main@app std::runtime_error::what@stdlib @stdlib"), 1, 10),
        (&format!("{START} main@app printf@libc _IO_file_doallocate@libc malloc@libc"), 1, 4096),
        (&format!("{START} main@app dlopen@libc _dl_new_object@ld"), 1, 1200),
        (&format!("{START} main@app setlocale@libc strdup@libc"), 1, 12),
        (&format!("{START} main@app setlocale@app"), 1, 20),
        // The user's own function is inside of the library that calls it.
        (&format!("{START} main@app _dl_open_worker@libc plugin_init@app"), 1, 40),
    ]);
    let mut names = Names::new(&program.stacks, &program, Folding::default());
    let (held_back, rest) = Suppressions::known().apply(&program.profile, &mut names);
    let texts: Vec<(&str, u64)> = held_back.iter().map(|entry| (entry.name.as_str(), entry.bytes)).collect();
    let expected = [
        ("libstdc++'s emergency pool", 72_704),
        ("stdio buffers", 4096),
        ("the loader", 1200),
        ("locale", 12),
    ];
    assert_eq!(texts, expected);
    assert!(held_back.iter().all(|entry| entry.reason.is_some()));
    assert_eq!(rest.totals.live_bytes, 10 + 20 + 40);
    assert_eq!(rest.totals.allocated_bytes, program.profile.totals.allocated_bytes);
}

#[test]
fn allocating_methods_name_the_data_of_their_class() {
    let program = Program::new(&[
        (&format!("{START} main@app Editor::Load(int)@app Document::Allocate(long)@app"), 1, 90),
        (&format!("{START} main@app Editor::Load(int)@app Arena::Allocate(long)@app"), 1, 80),
        (&format!("{START} main@app Editor::Paint()@app ns::Object::operator~new(long)@app"), 1, 70),
    ]);
    let names: Vec<String> = program.rows(Folding::default()).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["Document::Allocate(long)", "Editor::Load(int)", "Editor::Paint()"]);
}

#[test]
fn short_names_of_modules_are_no_data() {
    let row = |caller: &str, inner: &str| format!("{START} main@app {caller}@app {inner}@app");
    let callers = ["mark_node_new", "mark_inline_add", "mark_parser_feed", "mark_render"];
    let rows: Vec<String> = callers.iter().map(|caller| row(caller, "mark_strbuf_widen")).collect();
    let rows: Vec<(&str, u64, u64)> = rows.iter().map(|row| (&**row, 10, 64)).collect();
    let found = Program::new(&rows);
    let names: Vec<String> = found.rows(Folding::default()).into_iter().map(|(name, _)| name).collect();
    assert!(names.iter().all(|name| callers.contains(&&**name)), "{names:?}");
}

#[test]
fn outer_libraries_name_rows_without_own_code() {
    let program = Program::new(&[
        ("clone3@libc start_thread@libc walk_run@libwalk visit_next@libwalk queue_grow@libqueue", 1, 9),
        (&format!("{START} main@app walk_run@libwalk queue_grow@libqueue"), 1, 8),
    ]);
    let names: Vec<String> = program.rows(Folding::default()).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["visit_next", "main"]);
}

#[test]
fn sources_beside_main_are_no_library() {
    let program = |stack: &str| Program::new(&[(&format!("{START} {stack}"), 1, 9)]).rows(Folding::default());
    let protoc = "main@app:/s/src/google/protobuf/main.cc google::protobuf::Parse()@app:/s/src/google/protobuf/parse.cc";
    assert_eq!(program(protoc)[0].0, "google::protobuf::Parse()");
    let user =
        "main@app:/s/src/main.cc google::protobuf::Parse()@app:/s/protobuf/src/google/protobuf/parse.cc";
    assert_eq!(program(user)[0].0, "main");
    let vendor = "main@app:/home/vendor/app/main.c load@app:/home/vendor/app/load.c";
    assert_eq!(program(vendor)[0].0, "load");
    let library = "main@app:/home/vendor/app/main.c inflate@app:/home/vendor/app/deps/zlib/inflate.c";
    assert_eq!(program(library)[0].0, "main");
}
