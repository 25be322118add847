//! Owners of frames, as a table of cases.

use super::*;
use crate::heap::Module;

/// The owners in a program at `/home/me/app/app`, or of another program.
fn attribution(program: &str, modules: &[&str], rules: FoldRules) -> Attribution {
    let mut stacks = Stacks::new();
    for path in [program].iter().chain(modules) {
        stacks.add_module(Module { path: (*path).to_owned(), build_id: Vec::new() });
    }
    Attribution::new(&stacks, rules.into())
}

fn facts<'a>(function: &'a str, file: &'a str, module: u32) -> FrameFacts<'a> {
    let file = Some(file).filter(|file| !file.is_empty());
    FrameFacts { function, is_named: true, raw_name: None, file, module: Some(module) }
}

fn owner_text(verdict: &Verdict) -> String {
    match &*verdict.owner.name {
        "" => verdict.owner.kind.word().to_owned(),
        name => format!("{} {name}", verdict.owner.kind.word()),
    }
}

#[test]
fn frames_of_a_users_program_have_their_owners() {
    let attribution = attribution("/home/me/app/app", &[], FoldRules::default());
    let registry = "/home/me/.cargo/registry/src/index.crates.io-6f17d22bba15001f";
    let rustc = "/rustc/f8297e351a40c1439a467bbbb6879088047f50b3/library";
    let cases = [
        ("shop::report_month", "src/main.cpp", "mine"),
        ("main", "", "mine"),
        ("malloc", "", "allocator C"),
        ("operator new(unsigned long)", "", "allocator C++"),
        ("std::vector<shop::Order>::push_back(shop::Order const&)", "", "standard-library C++"),
        ("shop::Order::Order()", "/usr/include/c++/12/bits/stl_construct.h", "standard-library C++"),
        (
            "std::__new_allocator<int>::allocate(unsigned long)",
            "/usr/include/c++/12/bits/new_allocator.h",
            "allocator C++",
        ),
        (
            "boost::container::vector<int>::push_back(int)",
            "/usr/include/boost/container/vector.hpp",
            "library boost",
        ),
        ("boost::container::vector<int>::push_back(int)", "", "library Boost containers"),
        ("nlohmann::basic_json<>::parse()", "/usr/include/nlohmann/json.hpp", "library nlohmann"),
        ("helper", "/usr/include/x86_64-linux-gnu/bits/stdio2.h", "standard-library C"),
        ("absl::container_internal::raw_hash_set<X>::resize()", "", "library Abseil"),
        ("inflate_block", "/home/me/app/third_party/zlib/inflate.c", "library zlib"),
        ("parse", "build/_deps/yaml-cpp-src/src/parse.cpp", "library yaml-cpp"),
        ("g_malloc0", "", "wrapper GLib"),
        ("xmalloc.constprop.0", "", "wrapper C"),
        ("talloc_named_const", "", "wrapper talloc"),
        ("CRYPTO_zalloc", "", "wrapper OpenSSL"),
        ("sqlite3DbMallocRawNN", "sqlite3.c", "wrapper SQLite"),
        ("__libc_start_main_impl", "", "runtime C"),
        ("_GLOBAL__sub_I_main.cpp", "", "mine"),
        ("alloc::vec::Vec<T,A>::push", &format!("{rustc}/alloc/src/vec/mod.rs"), "standard-library Rust"),
        ("<alloc::vec::Vec<T,A> as core::iter::Extend<T>>::extend", "", "standard-library Rust"),
        ("<T as alloc::string::ToString>::to_string", "", "standard-library Rust"),
        ("<shop::Order as core::clone::Clone>::clone", "", "mine"),
        ("<&shop::Order as core::fmt::Debug>::fmt", "", "mine"),
        ("<alloc::raw_vec::RawVec<u8>>::grow_one", "", "allocator Rust"),
        ("<shop::Counting as core::alloc::global::GlobalAlloc>::alloc", "src/main.rs", "allocator Rust"),
        (
            "serde_json::de::from_str",
            &format!("{registry}/serde_json-1.0.140/src/de.rs"),
            "library serde_json",
        ),
        ("parse_any", &format!("{registry}/encoding_rs-0.8.35/src/lib.rs"), "library encoding_rs"),
        ("<serde_json::Value as core::clone::Clone>::clone", "", "library serde_json"),
        (
            "hashbrown::raw::RawTable<T>::reserve",
            "/rust/deps/hashbrown-0.15.2/src/raw/mod.rs",
            "standard-library Rust",
        ),
        ("shop::load::{{closure}}", "src/load.rs", "mine"),
        ("std::rt::lang_start::{{closure}}", "", "runtime Rust"),
        ("runtime.mallocgc", "", "runtime Go"),
        ("load", "/home/me/app/load.py", "mine"),
        ("decode", "/usr/lib/python3.11/json/decoder.py", "standard-library Python"),
        ("read_csv", "/home/me/.venv/lib/python3.11/site-packages/pandas/io/parsers.py", "library pandas"),
        ("_find_and_load", "<frozen importlib._bootstrap>", "runtime Python"),
        ("LazyCompile:*render /home/me/app/node_modules/react/index.js:3:4", "", "library react"),
        ("LazyCompile:~go /home/me/app/main.js:3:4", "", "mine"),
        ("Builtin:ArrayPush", "", "interpreter V8"),
        ("", "", "mine"),
    ];
    for (function, file, expected) in cases {
        let verdict = attribution.verdict(&facts(function, file, 0));
        assert_eq!(owner_text(&verdict), expected, "{function} in {file:?}");
        let is_folded =
            verdict.owner.kind >= OwnerKind::StandardLibrary || &*verdict.owner.name == "Boost containers";
        assert_eq!(verdict.is_folded, is_folded, "{function}");
    }
}

#[test]
fn modules_have_their_owners() {
    let cases = [
        ("/usr/lib/x86_64-linux-gnu/libc.so.6", "standard-library C"),
        ("/lib64/ld-linux-x86-64.so.2", "runtime C"),
        ("/usr/lib/x86_64-linux-gnu/libstdc++.so.6.0.30", "standard-library C++"),
        ("/usr/lib/x86_64-linux-gnu/libsqlite3.so.0.8.6", "library sqlite3"),
        ("/usr/local/lib/libfoo.so", "library foo"),
        ("/usr/lib/x86_64-linux-gnu/libjemalloc.so.2", "allocator allocator"),
        ("/home/me/app/build/libshop.so", "mine"),
        (
            "/home/me/.venv/lib/python3.11/site-packages/numpy/core/_m.cpython-311-x86_64-linux-gnu.so",
            "library numpy",
        ),
        (
            "/home/me/.venv/lib/python3.11/site-packages/_fast.cpython-311-x86_64-linux-gnu.so",
            "library _fast",
        ),
        ("/usr/lib/python3.11/lib-dynload/_json.cpython-311-x86_64-linux-gnu.so", "standard-library Python"),
        ("/usr/lib/libpython3.11.so.1.0", "interpreter CPython"),
        ("[vdso]", "runtime C"),
        ("[anon:v8]", "unknown"),
    ];
    for (path, expected) in cases {
        let verdict = Verdict::of(evidence::of_module(path, "", false));
        assert_eq!(owner_text(&verdict), expected, "{path}");
    }
    for (path, expected) in [
        ("/usr/bin/python3.11", "interpreter CPython"),
        ("/home/me/.pyenv/versions/3.12.1/bin/python3.12", "interpreter CPython"),
        ("/usr/bin/node", "interpreter V8"),
        ("/usr/bin/redis-server", "mine"),
        ("/home/me/pythonizer", "mine"),
        ("/home/me/node_stats", "mine"),
    ] {
        assert_eq!(owner_text(&Verdict::of(evidence::of_module(path, path, true))), expected, "{path}");
    }
}

#[test]
fn libraries_of_distributed_programs_name_rows() {
    let users = attribution("/home/me/app", &["/usr/lib/libjq.so.1"], FoldRules::default());
    let distributed = attribution("/usr/bin/jq", &["/usr/lib/libjq.so.1"], FoldRules::default());
    let host = attribution("/usr/bin/python3.11", &["/usr/lib/libjq.so.1"], FoldRules::default());
    let rank = |attribution: &Attribution| {
        attribution.rank(attribution.verdict(&facts("jv_parse", "", 1)).owner.kind)
    };
    assert_eq!((rank(&users), rank(&distributed), rank(&host)), (1, 0, 1));
}

#[test]
fn users_decide_before_the_tables() {
    let patterns = |texts: &[&str]| texts.iter().map(|text| text.parse().expect(text)).collect();
    let rules = FoldRules {
        hidden: patterns(&["file=generated"]),
        mine: patterns(&["crate=serde_json"]),
        wrappers: patterns(&["^get_block$"]),
        not_wrappers: patterns(&["^xmalloc$"]),
        source_roots: vec!["/home/me/app/".into()],
        ..FoldRules::default()
    };
    let attribution = attribution("/home/me/app/app", &[], rules);
    let verdict = |function, file| attribution.verdict(&facts(function, file, 0));
    assert_eq!(owner_text(&verdict("get_block", "")), "wrapper");
    assert_eq!(owner_text(&verdict("xmalloc", "")), "mine");
    assert!(verdict("xmalloc", "").is_settled && !verdict("xmalloc", "").is_folded);
    assert_eq!(
        owner_text(&verdict("serde_json::from_str", "/x/.cargo/registry/src/i/serde_json-1.0.1/a.rs")),
        "mine"
    );
    assert_eq!(owner_text(&verdict("f", "/home/me/app/src/a.c")), "mine");
    assert_eq!(owner_text(&verdict("f", "/home/me/applet/src/a.c")), "library applet");
    let hidden = verdict("f", "/home/me/app/generated/a.c");
    assert!(hidden.is_hidden && !hidden.is_folded && hidden.owner.kind == OwnerKind::Mine);
}

#[test]
fn internals_fold_nothing() {
    let attribution = Attribution::new(&Stacks::new(), Folding::none());
    let verdict = attribution.verdict(&FrameFacts { module: None, ..facts("malloc", "", 0) });
    assert_eq!(verdict.owner.kind, OwnerKind::Allocator);
    assert_eq!(attribution.rank(verdict.owner.kind), 0);
}

// Failed with: a library's file in a directory of Windows was the program's own.
#[test]
fn rules_about_files_hold_for_paths_of_windows() {
    let file = with_slashes(r"C:\me\.cargo\registry\src\i\serde_json-1.0.1\src\a.rs");
    let attribution = attribution("C:/me/app.exe", &[], FoldRules::default());
    assert_eq!(
        owner_text(&attribution.verdict(&facts("serde_json::from_str", &file, 0))),
        "library serde_json"
    );
    assert_eq!(with_slashes(r"/home/a\b.c"), r"/home/a\b.c", "a name on Linux");
}
