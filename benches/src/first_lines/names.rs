//! Compares names of functions as different tools print them.
//!
//! Tools differ in parameters, template arguments, return types, clones of the compiler, hashes and
//! closures of rustc. [`plain`] removes these; [`same_function`] compares what remains.

/// Suffixes of copies that compilers make of a function, as `f.isra.0` and `f [clone .cold]`.
const CLONES: &[&str] =
    &[".isra.", ".constprop.", ".part.", ".cold", ".lto_priv.", ".llvm.", "[clone", "[abi:", "@@", "@"];

/// Returns whether both names are of one function.
///
/// One may have outer scopes that the other lacks: debug information names an inlined function
/// `insert`, the symbol table names it `Map::insert`.
pub(crate) fn same_function(name: &str, expected: &str) -> bool {
    let (name, expected) = (plain(name), plain(expected));
    if name.is_empty() || expected.is_empty() {
        return false;
    }
    let ends_with = |long: &str, short: &str| {
        long.strip_suffix(short).is_some_and(|outer| outer.is_empty() || outer.ends_with("::"))
    };
    ends_with(&name, &expected) || ends_with(&expected, &name)
}

/// Returns the qualified name alone, without what tools and compilers add to it.
///
/// That is parameters, arguments of templates, return type, clones, hashes and closures: a closure,
/// also of an `async fn`, is a part of its function.
pub(crate) fn plain(name: &str) -> String {
    let mut name = decoded(name);
    // `<Vec<T> as Extend<T>>::extend` is `Vec::extend`.
    if let Some(rest) = name.strip_prefix('<')
        && let Some(end) = closing(rest)
    {
        let inner = rest[..end].split(" as ").next().unwrap_or_default().to_owned();
        name = format!("{inner}{}", &rest[end + 1..]);
    }
    let without = without_arguments(&name.replace("(anonymous namespace)", "anonymous"));
    let without = without.split('(').next().unwrap_or_default();
    let mut plain = without.trim();
    for clone in CLONES {
        if let Some(at) = plain.find(clone).filter(|at| *at > 0) {
            plain = plain[..at].trim_end();
        }
    }
    if !plain.contains("operator ") {
        plain = plain.rsplit(' ').next().unwrap_or_default();
    }
    let plain = without_hash(plain.trim_start_matches(['*', '&'])).replace("::::", "::");
    let is_closure = |part: &str| part.starts_with("{{closure}}") || part.starts_with("{closure");
    plain.split("::").filter(|part| !part.is_empty() && !is_closure(part)).collect::<Vec<_>>().join("::")
}

/// Replaces the escapes of rustc's older mangling, which some tools leave: `RawVec$LT$T$GT$`.
fn decoded(name: &str) -> String {
    if !name.contains('$') {
        return name.to_owned();
    }
    let escapes = [
        ("_$LT$", "<"),
        ("$LT$", "<"),
        ("$GT$", ">"),
        ("$C$", ","),
        ("$RF$", "&"),
        ("$BP$", "*"),
        ("$u20$", " "),
        ("$u7b$", "{"),
        ("$u7d$", "}"),
        ("..", "::"),
    ];
    escapes.iter().fold(name.to_owned(), |name, (escape, text)| name.replace(escape, text))
}

/// Returns where the `>` is that closes an opened `<`.
fn closing(text: &str) -> Option<usize> {
    let mut depth = 1;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'<' => depth += 1,
            b'>' if at > 0 && text.as_bytes()[at - 1] == b'-' => {}
            b'>' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(at);
        }
    }
    None
}

/// Removes what is in `<` and `>`, except in names of operators.
fn without_arguments(name: &str) -> String {
    let mut plain = String::new();
    let mut rest = name;
    while let Some(at) = rest.find('<') {
        plain += &rest[..at];
        let operator = plain.ends_with("operator") || plain.ends_with("operator<");
        match closing(&rest[at + 1..]) {
            Some(end) if !operator => rest = &rest[at + 1 + end + 1..],
            _ => {
                plain.push('<');
                rest = &rest[at + 1..];
            }
        }
    }
    plain + rest
}

/// Removes `::h` and 16 hexadecimal digits.
fn without_hash(name: &str) -> &str {
    match name.rsplit_once("::h") {
        Some((path, hash)) if hash.len() == 16 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()) => path,
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lose_what_tools_add() {
        let check = |name: &str, expected: &str| assert_eq!(plain(name), expected, "{name}");
        check("zmalloc", "zmalloc");
        check("dictAddRaw.isra.0", "dictAddRaw");
        check("parse(char const*, int) [clone .cold]", "parse");
        check("void clang::Sema::act<int, (Kind)3>(clang::Scope*)", "clang::Sema::act");
        check("std::map<int, std::vector<Order> >::operator[](int&&)", "std::map::operator[]");
        check("operator<<(QDebug, int)", "operator<<");
        check("(anonymous namespace)::Writer::put(int)", "anonymous::Writer::put");
        check("ignore::walk::Worker::run::h0123456789abcdef", "ignore::walk::Worker::run");
        check(
            "alloc::raw_vec::RawVec$LT$T$C$A$GT$::grow_one::h0123456789abcdef",
            "alloc::raw_vec::RawVec::grow_one",
        );
        check("<alloc::vec::Vec<T> as core::iter::Extend<T>>::extend", "alloc::vec::Vec::extend");
        check("gpx::read()::{lambda(int)#1}", "gpx::read");
        check("dufs::server::zip_dir::{{closure}}::{{closure}}", "dufs::server::zip_dir");
        check("dufs::server::zip_dir::{closure#0}", "dufs::server::zip_dir");
        check("operator new(unsigned long)", "operator new");
    }

    #[test]
    fn names_are_compared_at_borders_of_scopes() {
        assert!(same_function("clang::Sema::act(int)", "Sema::act"));
        assert!(same_function("act", "clang::Sema::act"));
        assert!(!same_function("react", "act"));
        assert!(!same_function("0x7f499177c9d9", "jv_mem_alloc"));
        assert!(!same_function("", "main"));
    }
}
