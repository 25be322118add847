//! Evidence for owners: the path of a source file, the path of a module, and the form of a name.

use super::rules::{
    self, BUNDLED_LIBRARIES, FunctionRule, HOSTS, LIBRARY_DIRECTORIES, MODULES, Matches, RUST_CRATES,
    RUST_STANDARD_CRATES, SYSTEM_DIRECTORIES,
};
use super::{FrameFacts, Owner, OwnerKind};
use crate::names::is_of_windows;

/// The rule for the crates of Rust's own library, which is below all others.
pub(super) const RUST_STANDARD: FunctionRule = FunctionRule {
    matches: Matches::RustStart,
    owner: OwnerKind::StandardLibrary,
    name: "Rust",
    patterns: RUST_STANDARD_CRATES,
    reason: "vectors, strings, maps and iterators: the caller chose to use them",
};

/// The owner that a module alone suggests; `program` is the program's path.
pub(super) fn of_module(path: &str, program: &str, is_program: bool) -> Owner {
    let path = path.strip_suffix(" (deleted)").unwrap_or(path);
    let file = last_part(path);
    if is_program && let Some(host) = host(file) {
        return Owner::of(OwnerKind::Interpreter, host);
    }
    let starts = |rule: &&rules::ModuleRule| rule.starts.iter().any(|start| file.starts_with(start));
    if let Some(rule) = MODULES.iter().find(starts) {
        return Owner::of(rule.owner, rule.name);
    }
    if is_program {
        return Owner::mine();
    }
    if let Some(owner) = of_python_directory(path) {
        return owner;
    }
    if let Some(library) = library_directory(path, Some(program)) {
        return Owner::library(library);
    }
    if path.starts_with('[') || path.starts_with("//anon") || path.starts_with("/memfd:") || path.is_empty() {
        return Owner::of(OwnerKind::Unknown, "");
    }
    if SYSTEM_DIRECTORIES.iter().any(|start| path.starts_with(start)) || path.starts_with("/usr/local/lib") {
        return Owner::library(library_name(file));
    }
    // The user's build puts its libraries beside the program.
    Owner::mine()
}

/// True for a program of the distribution that runs no code of others.
pub(super) fn is_distributed(path: &str) -> bool {
    host(last_part(path)).is_none() && SYSTEM_DIRECTORIES.iter().any(|start| path.starts_with(start))
}

/// The interpreter that a program of this file name is: `python3.11`.
fn host(file: &str) -> Option<&'static str> {
    let is_version =
        |rest: &str| rest.chars().all(|c| c.is_ascii_digit() || matches!(c, '.' | '-' | 'd' | 't'));
    let is = |program: &&str| file.strip_prefix(*program).is_some_and(is_version);
    HOSTS.iter().find(|host| host.programs.iter().any(is)).map(|host| host.name)
}

/// `sqlite3` of `libsqlite3.so.0.8.6`.
fn library_name(file: &str) -> &str {
    let name = file.strip_prefix("lib").unwrap_or(file);
    let end = [".so", ".cpython-", ".abi3", ".node"].iter().filter_map(|mark| name.find(mark)).min();
    match end {
        Some(end) if end > 0 => &name[..end],
        _ => name,
    }
}

/// The owner of a source file of an interpreted language; `None` for other files.
pub(super) fn of_script(file: &str) -> Option<Owner> {
    if file.starts_with("<frozen importlib") || file == "<frozen runpy>" || file.ends_with("/runpy.py") {
        return Some(Owner::of(OwnerKind::Runtime, "Python"));
    }
    if file.starts_with("<frozen ") || file.starts_with("<__array_function__") {
        return Some(Owner::of(OwnerKind::StandardLibrary, "Python"));
    }
    if file.starts_with("node:") {
        return Some(Owner::of(OwnerKind::Runtime, "node"));
    }
    let is_typed = matches!(file, "<string>" | "<stdin>")
        || file.starts_with("<ipython-")
        || file.starts_with("<python-input");
    if is_typed {
        return Some(Owner::mine());
    }
    let extension = last_part(file).rsplit_once('.').map_or("", |(_, extension)| extension);
    match extension {
        "py" | "pyx" | "pxd" => Some(of_python_directory(file).unwrap_or_else(Owner::mine)),
        "js" | "mjs" | "cjs" | "ts" | "rb" | "php" | "lua" => {
            Some(library_directory(file, None).map_or_else(Owner::mine, Owner::library))
        }
        _ => None,
    }
}

/// The owner of a Python file or extension module, where its directory says so.
fn of_python_directory(path: &str) -> Option<Owner> {
    let installed = ["/site-packages/", "/dist-packages/"];
    if let Some(library) = installed.iter().find_map(|part| behind(path, part)) {
        return Some(Owner::library(library_name(library.trim_end_matches(".libs").trim_end_matches(".py"))));
    }
    // `lib/python3.11/json/decoder.py`, also where pyenv or the user installed it.
    let at = path.find("/lib/python3")?;
    let version = &path[at + "/lib/python3".len()..];
    let end = version.find('/')?;
    let is_version = version[..end].chars().all(|c| c.is_ascii_digit() || matches!(c, '.' | 't'));
    is_version.then(|| Owner::of(OwnerKind::StandardLibrary, "Python"))
}

/// The owner of a name as JIT compilers write them into perf maps; `None` for all others.
pub(super) fn of_jit_name(name: &str) -> Option<Owner> {
    // CPython: `py::function:/path/file.py`.
    if let Some(rest) = name.strip_prefix("py::") {
        let file = rest.split_once(':').map_or("", |(_, file)| file);
        return Some(of_script(file).unwrap_or_else(Owner::mine));
    }
    // V8: `LazyCompile:*name /path/file.js:12:3`, and its own code.
    for tag in ["Builtin:", "BytecodeHandler:", "Stub:", "RegExp:"] {
        if name.starts_with(tag) {
            return Some(Owner::of(OwnerKind::Interpreter, "V8"));
        }
    }
    for tag in ["LazyCompile:", "Function:", "JS:", "Script:", "Eval:"] {
        if let Some(rest) = name.strip_prefix(tag) {
            let place = rest.split_once(' ').map_or("", |(_, place)| place);
            let file = place.split(':').next().unwrap_or("");
            let is_own = place.starts_with("node:") || rest.contains(" node:");
            return Some(match library_directory(file, None) {
                _ if is_own => Owner::of(OwnerKind::Runtime, "node"),
                Some(library) => Owner::library(library),
                None => Owner::mine(),
            });
        }
    }
    None
}

/// The owner that a source file in a directory of a tool chain or package manager has.
///
/// `main` is the source file of the program's `main`.
pub(super) fn of_source(file: &str, main: Option<&str>) -> Option<Owner> {
    let standard = |language: &str| Some(Owner::of(OwnerKind::StandardLibrary, language));
    // `/rustc/HASH/library/alloc/src/…`, or below a tool chain with the sources; `/rust/deps` are
    // the crates that it was built with.
    let is_rust = (file.starts_with("/rustc/") && file.contains("/library/"))
        || file.starts_with("/rust/deps/")
        || file.starts_with("library/std/")
        || file.contains("/lib/rustlib/src/rust/library/");
    if is_rust {
        return standard("Rust");
    }
    if let Some(behind_registry) = behind_from(file, super::packages::REGISTRY) {
        // `index.crates.io-HASH/NAME-VERSION/…`
        let name = behind_registry.split('/').nth(1).unwrap_or("");
        return Some(Owner::library(without_version(name)));
    }
    if file.contains("/include/c++/") || file.contains("libstdc++-v3/") || file.contains("/libcxx/include/") {
        return standard("C++");
    }
    if file.contains("/lib/gcc/") || file.contains("/lib/clang/") {
        return Some(Owner::of(OwnerKind::Runtime, "C"));
    }
    if file.contains("/go/src/runtime/")
        || file.contains("/lib/go/src/")
        || file.contains("/usr/local/go/src/")
    {
        return standard("Go");
    }
    if let Some(library) = library_directory(file, main) {
        return Some(Owner::library(library));
    }
    let headers = ["/usr/include/", "/usr/local/include/", "/opt/homebrew/include/"];
    let rest = headers.iter().find_map(|start| file.strip_prefix(start))?;
    let rest = match rest.split_once('/') {
        // Debian's directory of one processor.
        Some((triplet, rest)) if triplet.contains("-linux-gnu") => rest,
        _ => rest,
    };
    let first = rest.split(['/', '.']).next().unwrap_or(rest);
    let is_c =
        !rest.contains('/') || matches!(first, "bits" | "sys" | "gnu" | "asm" | "linux" | "netinet" | "arpa");
    if is_c && !rest.contains(".hpp") { standard("C") } else { Some(Owner::library(first)) }
}

/// The crate of a Rust function without a source file, where many programs use it.
pub(super) fn of_crate(name: &str) -> Option<Owner> {
    let first = first_crate(rust_path(name))?;
    RUST_CRATES.binary_search(&first).is_ok().then(|| Owner::library(first))
}

pub(super) fn is_rust_standard(path: &str) -> bool {
    first_crate(path).is_some_and(|first| RUST_STANDARD_CRATES.contains(&first))
}

fn first_crate(path: &str) -> Option<&str> {
    let (first, _) = path.split_once("::")?;
    first.chars().all(|c| c.is_alphanumeric() || c == '_').then_some(first)
}

/// The path that decides about a Rust name.
///
/// It is `a::b` of `<a::b as c::d>::e`, and `c::d` of `<T as c::d>::e`.
pub(super) fn rust_path(name: &str) -> &str {
    let Some(inner) = name.strip_prefix('<') else { return name };
    let of_type = inner.trim_start_matches(['&', '*', '(', '[', '<']);
    let of_type =
        ["mut ", "const ", "dyn "].iter().fold(of_type, |rest, word| rest.strip_prefix(word).unwrap_or(rest));
    // A parameter or a primitive type has no crate.
    let end = of_type.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(of_type.len());
    match of_type[end..].starts_with("::") {
        true => of_type,
        false => inner.split_once(" as ").map_or(of_type, |(_, of_trait)| of_trait),
    }
}

/// Whether the linkage name or the source file is Rust's; `None` where neither says so.
pub(super) fn is_rust(frame: &FrameFacts<'_>) -> Option<bool> {
    let is_legacy = |raw: &str| {
        // `_ZN3foo3bar17h0123456789abcdefE`, and `.llvm.123` behind it.
        let raw = raw.split_once('.').map_or(raw, |(raw, _)| raw);
        let hash = raw.strip_suffix('E').and_then(|raw| raw.get(raw.len().checked_sub(19)?..));
        hash.and_then(|hash| hash.strip_prefix("17h"))
            .is_some_and(|hash| hash.bytes().all(|byte| byte.is_ascii_hexdigit()))
    };
    if frame.file.is_some_and(|file| file.ends_with(".rs")) || frame.function.starts_with('<') {
        return Some(true);
    }
    match frame.raw_name {
        Some(raw) if raw.starts_with("_R") || is_legacy(raw) => Some(true),
        Some(raw) if raw.starts_with("_Z") => Some(false),
        // Entry points such as `__rust_alloc` have no mangled name.
        _ => frame.file.map(|_| false),
    }
}

/// A name without what compilers append to copies of a function, and without a symbol's version.
pub(super) fn without_clone(name: &str) -> &str {
    let name = name.split_once('@').map_or(name, |(name, _)| name);
    let marks = [".part.", ".constprop.", ".isra.", ".cold", ".llvm.", ".lto_priv.", ".localalias"];
    // Few names have a dot, and a search for each mark would cost more than the rest of a report.
    let is_mark = |at: &usize| marks.iter().any(|mark| name[*at..].starts_with(mark));
    let end = name.match_indices('.').map(|(at, _)| at).find(is_mark);
    end.map_or(name, |end| &name[..end])
}

/// The library in whose directory a file is: behind `vendor/`, or named `zlib/`.
///
/// A library whose sources hold `main` is the program itself: users, too, have a `vendor/`.
fn library_directory<'p>(path: &'p str, main: Option<&str>) -> Option<&'p str> {
    let holds_main = |end: usize| main.is_some_and(|main| is_below(main, &path[..end]));
    let behind_parts = LIBRARY_DIRECTORIES.iter().find_map(|(part, _)| {
        // A compiler may have been called in the directory above.
        let rest = path.strip_prefix(&part[1..]).or_else(|| behind_from(path, part))?;
        let library = first_part(rest);
        (!holds_main(path.len() - rest.len() + library.len())).then_some(library)
    });
    let of_itself = || {
        BUNDLED_LIBRARIES.iter().find_map(|library| {
            let at = path.rfind(&format!("/{library}/"))? + 1;
            (main.is_some() && !holds_main(at + library.len())).then_some(*library)
        })
    };
    let found = behind_parts.or_else(of_itself)?;
    let name = found.strip_suffix("-src").unwrap_or(found);
    Some(without_version(name))
}

/// True for a source file whose owner depends on where the program's `main` is.
pub(super) fn depends_on_main(file: &str) -> bool {
    file.contains(super::packages::REGISTRY)
        || LIBRARY_DIRECTORIES.iter().any(|(part, _)| file.contains(&part[1..]))
        || BUNDLED_LIBRARIES.iter().any(|library| behind_from(file, &format!("/{library}/")).is_some())
}

/// True when the program is the library of this C++ namespace, as `protoc` is protobuf's.
///
/// Its `main` and the function's source file are below the same `…/google/protobuf/`.
pub(super) fn is_namespace_of_program(namespace: &str, file: &str, main: &str) -> bool {
    let directory = format!("/{}/", namespace.trim_end_matches("::").replace("::", "/"));
    let end = main.find(&directory).map(|at| at + directory.len());
    end.is_some_and(|end| file.starts_with(&main[..end]))
}

/// The directory right behind the last `part` in a path.
fn behind<'p>(path: &'p str, part: &str) -> Option<&'p str> {
    behind_from(path, part).map(first_part)
}

fn behind_from<'p>(path: &'p str, part: &str) -> Option<&'p str> {
    path.rfind(part).map(|at| &path[at + part.len()..]).filter(|rest| !rest.is_empty())
}

fn first_part(path: &str) -> &str {
    path.split('/').next().unwrap_or(path)
}

fn last_part(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// `serde_json` of `serde_json-1.0.140`; `v2` of a Go module goes too.
fn without_version(name: &str) -> &str {
    let is_version = |rest: &str| rest.trim_start_matches('v').starts_with(|c: char| c.is_ascii_digit());
    let end = name.match_indices(['-', '@']).find(|(at, _)| is_version(&name[at + 1..])).map(|(at, _)| at);
    end.map_or(name, |end| &name[..end])
}

/// True for a file in a directory or below it. Paths of Windows are compared as Windows does:
/// either separator, and letters of either case.
pub(super) fn is_below(file: &str, root: &str) -> bool {
    let is_windows = is_of_windows(root);
    let is_separator = |c: char| c == '/' || is_windows && c == '\\';
    let root = root.trim_end_matches(is_separator);
    // Compilers write what they were given: a path from their own directory has no root.
    if !file.starts_with('/') && !is_of_windows(file) && (root.starts_with('/') || is_windows) {
        return true;
    }
    let Some((start, rest)) = file.split_at_checked(root.len()) else { return false };
    let is_same = |(a, b): (u8, u8)| {
        a == b
            || is_windows && (a.eq_ignore_ascii_case(&b) || is_separator(a.into()) && is_separator(b.into()))
    };
    start.bytes().zip(root.bytes()).all(is_same) && rest.starts_with(is_separator)
}

/// The name of the directory of a file; the file itself where there is none.
pub(super) fn directory_name(file: &str) -> &str {
    let mut parts = file.rsplit('/');
    let name = parts.next().unwrap_or(file);
    parts.find(|part| !matches!(*part, "" | "src" | "lib" | "include" | "source" | "..")).unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::is_below;

    // Failed with: no file of Windows was below any directory.
    #[test]
    fn files_are_below_directories_of_either_system() {
        let cases = [
            ("/home/me/app/a.c", "/home/me/app/", true),
            ("/home/me/applet/a.c", "/home/me/app", false),
            ("/Home/me/app/a.c", "/home/me/app", false),
            ("src/a.c", "/home/me/app", true),
            (r"C:\app\src\a.cpp", r"C:\app", true),
            ("c:/App/src/a.cpp", r"C:\app\", true),
            (r"C:\applet\a.cpp", r"C:\app", false),
            (r"D:\app\a.cpp", r"C:\app", false),
            (r"\\server\app\a.cpp", r"\\server\app", true),
            (r"src\a.cpp", r"C:\app", true),
            ("C:/app", r"C:\app", false),
            ("/usr/include/a.h", r"C:\app", false),
        ];
        for (file, root, expected) in cases {
            assert_eq!(is_below(file, root), expected, "{file} below {root}");
        }
    }
}
