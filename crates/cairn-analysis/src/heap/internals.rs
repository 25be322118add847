//! Which functions are the allocator's, or come before `main`: they say nothing about why memory
//! was asked for.

/// The role of a function in the answer to where memory goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// It may be the answer.
    Ordinary,
    /// It hands memory through: `malloc`, `operator new`, `std::allocator`, a vector's growth,
    /// `xmalloc`.
    Allocator,
    /// It leads to `main` or to a thread's function.
    Startup,
}

/// The role of a function with this readable name.
///
/// ```
/// use cairn_analysis::heap::{Role, role_of};
/// assert_eq!(role_of("std::vector<int, std::allocator<int> >::push_back(int const&)"), Role::Ordinary);
/// assert_eq!(role_of("std::__new_allocator<int>::allocate(unsigned long, void const*)"), Role::Allocator);
/// assert_eq!(role_of("<alloc::raw_vec::RawVec<u8>>::grow_one"), Role::Allocator);
/// assert_eq!(role_of("__libc_start_call_main"), Role::Startup);
/// ```
#[must_use]
pub fn role_of(name: &str) -> Role {
    let rust = name.trim_start_matches('<').trim_start_matches('&');
    if starts_with_any(rust, RUST_ALLOCATOR) {
        return Role::Allocator;
    }
    if starts_with_any(rust, RUST_STARTUP) {
        return Role::Startup;
    }
    let plain = plain_name(name);
    if is_inside_cpp_library(&plain) {
        return Role::Allocator;
    }
    if ALLOCATOR.binary_search(&&*plain).is_ok() || starts_with_any(&plain, ALLOCATOR_PREFIXES) {
        return Role::Allocator;
    }
    if STARTUP.binary_search(&&*plain).is_ok() { Role::Startup } else { Role::Ordinary }
}

/// True for internals of the C++ standard library: names that begin with an underscore.
///
/// Programs may not have such names. All others are the interface that a programmer calls:
/// `std::vector::push_back`, not its implementation.
fn is_inside_cpp_library(plain: &str) -> bool {
    let Some(mut inner) = plain.strip_prefix("std::").or_else(|| plain.strip_prefix("__gnu_cxx::")) else {
        return false;
    };
    for inline_namespace in ["__cxx11::", "__1::", "__2::", "_V2::"] {
        inner = inner.strip_prefix(inline_namespace).unwrap_or(inner);
    }
    inner.starts_with('_') || inner.rsplit("::").next().is_some_and(|last| last.starts_with('_'))
}

fn starts_with_any(name: &str, prefixes: &[&str]) -> bool {
    prefixes.iter().any(|prefix| name.starts_with(prefix))
}

/// A name without template arguments, parameters and return type: `std::vector::push_back`.
///
/// ```
/// use cairn_analysis::heap::plain_name;
/// assert_eq!(plain_name("int* std::find<int*, char (*)(int)>(int*, int) const"), "std::find");
/// assert_eq!(plain_name("operator new[](unsigned long)"), "operator new[]");
/// assert_eq!(plain_name("(anonymous namespace)::load(char const*)"), "(anonymous namespace)::load");
/// ```
#[must_use]
pub fn plain_name(name: &str) -> String {
    let mut plain = String::with_capacity(name.len());
    let mut depth = 0_u32;
    let mut rest = name;
    while let Some(c) = rest.chars().next() {
        let is_start_of_part = plain.is_empty() || plain.ends_with([':', ' ', '*', '&']);
        if depth == 0 && is_start_of_part && rest.starts_with("operator") {
            let taken = operator_length(rest);
            plain.push_str(&rest[..taken]);
            rest = &rest[taken..];
            continue;
        }
        if depth == 0 && is_start_of_part && rest.starts_with(ANONYMOUS) {
            plain.push_str(ANONYMOUS);
            rest = &rest[ANONYMOUS.len()..];
            continue;
        }
        rest = &rest[c.len_utf8()..];
        match c {
            '<' => depth += 1,
            '>' => depth = depth.saturating_sub(1),
            '(' if depth == 0 => break,
            _ if depth == 0 => plain.push(c),
            _ => {}
        }
    }
    plain.truncate(plain.trim_end().len());
    // Text in front of the last space is a return type, except in operators, which have a space
    // themselves.
    let start = match plain.find("operator") {
        Some(operator) => plain[..operator].rfind(' '),
        None => plain.replace(ANONYMOUS, ANONYMOUS_WITHOUT_SPACE).rfind(' '),
    };
    match start {
        Some(space) => plain.split_off(space + 1).trim_start_matches(['*', '&']).to_owned(),
        None => plain,
    }
}

const ANONYMOUS: &str = "(anonymous namespace)";
const ANONYMOUS_WITHOUT_SPACE: &str = "(anonymous_namespace)";

/// The length of `operator` and what it is the operator of, at the start of `name`.
fn operator_length(name: &str) -> usize {
    const WORD: usize = "operator".len();
    let after = &name[WORD..];
    for words in
        [" new[]", " delete[]", " new", " delete", "()", "<=>", "<<", ">>", "->", "<=", ">=", "<", ">"]
    {
        if after.starts_with(words) {
            return WORD + words.len();
        }
    }
    WORD
}

/// Beginnings behind which the name continues as the list says.
///
/// A leading `<` of Rust's paths is ignored.
const RUST_ALLOCATOR: &[&str] = &[
    "__rust_alloc",
    "__rust_realloc",
    "__rdl_alloc",
    "__rdl_realloc",
    "__rustc::__rust_alloc",
    "__rustc::__rust_realloc",
    "__rustc::__rdl_alloc",
    "__rustc::__rdl_realloc",
    "__rg_alloc",
    "alloc::alloc::",
    "alloc::raw_vec::",
    "std::alloc::System",
    "std::sys::alloc::",
    "core::alloc::",
    "alloc::boxed::Box<T>::new",
    "alloc::boxed::Box<T,A>::new",
    "alloc::boxed::Box<T,A>::try_new",
    "hashbrown::raw::",
    "alloc::collections::btree::node::",
    "hashbrown::alloc::",
];

const RUST_STARTUP: &[&str] = &[
    "std::rt::",
    "std::sys::backtrace::__rust_begin_short_backtrace",
    "std::sys_common::backtrace::__rust_begin_short_backtrace",
    "std::sys::thread::",
    "std::sys::pal::unix::thread::",
    "std::panicking::",
    "std::panic::catch_unwind",
    "std::thread::Builder::spawn_unchecked",
    "std::thread::lifecycle::",
    "core::panic::unwind_safe::AssertUnwindSafe",
    "core::ops::function::FnOnce::call_once",
    "core::ops::function::impls::",
];

/// Plain names that begin so.
const ALLOCATOR_PREFIXES: &[&str] = &[
    "_PyMem_",
    "PyMem_",
    "PyObject_Malloc",
    "PyObject_Calloc",
    "PyObject_Realloc",
    "_PyObject_Malloc",
    "_PyObject_Calloc",
    "_PyObject_Realloc",
    "__gnu_cxx::malloc_allocator::",
    "__gnu_cxx::new_allocator::",
    "operator new",
    "std::__1::allocator::",
    "std::__1::allocator_traits::",
    "std::allocator::",
    "std::allocator_traits::",
    "std::pmr::",
];

/// Whole plain names, in order.
const ALLOCATOR: &[&str] = &[
    "__GI___libc_malloc",
    "__GI___strdup",
    "__interceptor_malloc",
    "__libc_calloc",
    "__libc_malloc",
    "__libc_memalign",
    "__libc_realloc",
    "__strdup",
    "__strndup",
    "__vasprintf_internal",
    "aligned_alloc",
    "asprintf",
    "calloc",
    "g_calloc",
    "g_malloc",
    "g_malloc0",
    "g_malloc0_n",
    "g_malloc_n",
    "g_memdup",
    "g_memdup2",
    "g_realloc",
    "g_realloc_n",
    "g_slice_alloc",
    "g_slice_alloc0",
    "g_strdup",
    "g_strndup",
    "g_try_malloc",
    "je_calloc",
    "je_malloc",
    "je_realloc",
    "malloc",
    "memalign",
    "mi_calloc",
    "mi_malloc",
    "mi_realloc",
    "posix_memalign",
    "pvalloc",
    "realloc",
    "reallocarray",
    "sqlite3DbMallocRaw",
    "sqlite3DbMallocRawNN",
    "sqlite3DbMallocZero",
    "sqlite3DbRealloc",
    "sqlite3Malloc",
    "sqlite3MallocZero",
    "sqlite3MemMalloc",
    "sqlite3MemRealloc",
    "sqlite3Realloc",
    "sqlite3_malloc",
    "sqlite3_malloc64",
    "strdup",
    "strndup",
    "tc_malloc",
    "valloc",
    "vasprintf",
    "xcalloc",
    "xmalloc",
    "xmemdup",
    "xrealloc",
    "xstrdup",
    "xzalloc",
];

/// Whole plain names, in order.
const STARTUP: &[&str] = &[
    "__GI___clone3",
    "__clone",
    "__clone3",
    "__libc_start_call_main",
    "__libc_start_main",
    "__libc_start_main_alias_2",
    "__libc_start_main_impl",
    "__pthread_start",
    "_dl_init",
    "_dl_start",
    "_dl_start_user",
    "_start",
    "call_init",
    "clone",
    "clone3",
    "execute_native_thread_routine",
    "start_thread",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lists_are_sorted() {
        assert!(ALLOCATOR.is_sorted());
        assert!(STARTUP.is_sorted());
    }

    #[test]
    fn functions_have_their_roles() {
        let cases: &[(&str, Role)] = &[
            ("malloc", Role::Allocator),
            ("operator new(unsigned long)", Role::Allocator),
            ("operator new[](unsigned long, std::align_val_t)", Role::Allocator),
            ("__rust_alloc", Role::Allocator),
            ("<alloc::alloc::Global as core::alloc::Allocator>::allocate", Role::Allocator),
            ("alloc::raw_vec::RawVecInner<A>::try_allocate_in", Role::Allocator),
            (
                "std::_Rb_tree_node<std::pair<int const, S> >* std::_Rb_tree<int, S>::_M_create_node<std::piecewise_construct_t const&>(std::piecewise_construct_t const&)",
                Role::Allocator,
            ),
            ("std::_Rb_tree<int, S>::_M_emplace_hint_unique<int>(int)", Role::Allocator),
            ("std::__cxx11::basic_string<char>::_M_construct(unsigned long, char)", Role::Allocator),
            ("std::__cxx11::basic_string<char>::basic_string(unsigned long, char)", Role::Ordinary),
            ("std::__1::vector<int>::push_back(int&&)", Role::Ordinary),
            ("alloc::vec::Vec<T,A>::push", Role::Ordinary),
            ("my_malloc_wrapper", Role::Ordinary),
            ("mallopt", Role::Ordinary),
            ("main", Role::Ordinary),
            ("std::rt::lang_start::{{closure}}", Role::Startup),
            ("_start", Role::Startup),
            ("", Role::Ordinary),
        ];
        for (name, role) in cases {
            assert_eq!(role_of(name), *role, "{name}");
        }
    }

    #[test]
    fn plain_names_survive_malformed_names() {
        let cases = [
            ("bool operator< <int>(A<int> const&, A<int> const&)", "operator<"),
            ("Foo::operator()(int) const", "Foo::operator()"),
            ("std::ostream& operator<<(std::ostream&, int)", "operator<<"),
            ("a<<<<<<b", "a"),
            (">>>", ""),
            ("operator", "operator"),
            ("ünï<x>::çödé(y)", "ünï::çödé"),
        ];
        for (name, plain) in cases {
            assert_eq!(plain_name(name), plain, "{name}");
        }
    }
}
