//! Leaks that every program has, because its libraries never free them: held back by default.
//!
//! Each row is memory that a library allocates once, or once a thread or locale, and keeps on
//! purpose until the process ends. heaptrack has nine names of functions for it; those are here,
//! with what glibc, libstdc++, GLib and Rust's library keep besides.

/// A known leak.
#[derive(Clone, Copy, Debug)]
pub struct KnownLeak {
    /// Its name in reports.
    pub name: &'static str,
    /// Beginnings of the file name of the module; any module where there are none.
    pub(crate) modules: &'static [&'static str],
    /// Texts in the name of a function; any function of the innermost frame's module where there
    /// are none.
    pub(crate) functions: &'static [&'static str],
    /// The loader calls the module: a constructor of the library.
    pub(crate) is_constructor: bool,
    /// Why it is no leak of the program.
    pub reason: &'static str,
}

const fn row(
    name: &'static str,
    modules: &'static [&'static str],
    functions: &'static [&'static str],
    reason: &'static str,
) -> KnownLeak {
    KnownLeak { name, modules, functions, is_constructor: false, reason }
}

/// File names of the loader.
pub(crate) const LOADER: &[&str] = &["ld-linux", "ld-2.", "ld.so", "ld-musl-"];
const LIBC: &[&str] = &["libc.so", "libc-2.", "libc.musl-"];
/// The second one is that of copies in Python's wheels: `libstdc++-a1b2c3d4.so.6.0.30`.
const LIBSTDCXX: &[&str] = &["libstdc++.so", "libstdc++-"];

/// The table. The first row that matches counts.
pub const KNOWN_LEAKS: &[KnownLeak] = &[
    KnownLeak {
        name: "libstdc++'s emergency pool",
        modules: LIBSTDCXX,
        functions: &[],
        is_constructor: true,
        reason: "its constructor reserves 72 KiB for exceptions that are thrown when memory is short",
    },
    row(
        "libstdc++'s emergency pool",
        &[],
        &["(anonymous namespace)::pool::pool", "_GLOBAL__sub_I_eh_alloc.cc"],
        "the same, linked statically",
    ),
    row(
        "thread stacks",
        &[],
        &["_dl_allocate_tls", "allocate_dtv", "__pthread_create", "allocate_stack"],
        "glibc caches the stacks and thread-local storage of threads that ended",
    ),
    row("the loader", LOADER, &[], "_dl_new_object and others: names and tables of loaded libraries"),
    row(
        "the loader",
        LIBC,
        &["dl_open_worker", "_dlerror_run", "_dl_new_object", "__libc_dlopen"],
        "the same, in the C library",
    ),
    row(
        "stdio buffers",
        &[],
        &["_IO_file_doallocate", "_IO_wfile_doallocate"],
        "the buffers of stdin, stdout and stderr live as long as the process",
    ),
    row(
        "locale",
        &[],
        &["_nl_load_locale", "_nl_find_locale", "_nl_intern_locale", "_nl_make_l10nflist", "_nl_C_"],
        "glibc keeps a locale that was loaded once",
    ),
    row("locale", LIBC, &["setlocale", "newlocale"], "the names of the process's locale"),
    row(
        "locale",
        LIBSTDCXX,
        &["std::locale::"],
        "the classic locale is constructed once and never destroyed",
    ),
    row("iconv", &[], &["__gconv_", "__wcsmbs_load_conv", "gconv_"], "tables of character sets, loaded once"),
    row(
        "name service",
        &[],
        &["__nss_", "nss_parse_", "nss_module", "__res_context", "__res_vinit", "__resolv_conf"],
        "tables of nsswitch.conf and resolv.conf, read once",
    ),
    row(
        "name service",
        LIBC,
        &["getpw", "getgr", "getserv", "gethost", "getaliasent"],
        "the static result of functions that are not reentrant",
    ),
    row("time zone", &[], &["tzset_internal", "__tzfile_read", "__tzstring"], "the rules of TZ, read once"),
    row(
        "message catalogs",
        LIBC,
        &["textdomain", "set_binding_values", "_nl_load_domain", "dcigettext", "_nl_find_domain"],
        "gettext keeps the catalogs that it loaded",
    ),
    row("exit handlers", &[], &["__new_exitfn"], "blocks of 32 atexit functions"),
    row(
        "environment",
        LIBC,
        &["__add_to_environ", "setenv", "putenv"],
        "POSIX lets no one free an old environment",
    ),
    row(
        "GLib's types and quarks",
        &["libglib-", "libgobject-"],
        &[
            "g_main_context_new",
            "g_thread_self",
            "g_quark_",
            "g_intern_",
            "g_type_",
            "type_node_",
            "gobject_init",
            "g_private_get",
            "g_once_init",
            "g_get_prgname",
            "g_get_user_",
            "g_get_charset",
            "g_get_language_names",
        ],
        "GLib registers types and strings for the life of the process",
    ),
    row("OpenMP's threads", &["libgomp.so"], &[], "the pool of threads waits for the next loop"),
    row(
        "Rust's standard output",
        &[],
        &["std::io::stdio::"],
        "the buffer of stdout lives as long as the process",
    ),
    row(
        "Rust's main thread",
        &[],
        &["std::rt::init", "std::rt::lang_start_internal", "std::thread::main_thread"],
        "the handle of the main thread, and of its signal stack",
    ),
];

impl KnownLeak {
    /// True for a frame of this function and module.
    pub(crate) fn matches(&self, function: &str, module: &str, is_innermost: bool) -> bool {
        let of_module = self.modules.is_empty() || is_one_of(module, self.modules);
        of_module
            && match self.functions {
                [] => is_innermost,
                functions => functions.iter().any(|text| function.contains(text)),
            }
    }
}

/// True when a file name begins with one of these.
pub(crate) fn is_one_of(module: &str, starts: &[&str]) -> bool {
    starts.iter().any(|start| module.starts_with(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_leaks_have_a_reason_and_a_condition() {
        for leak in KNOWN_LEAKS {
            assert!(leak.reason.len() > 10, "{leak:?}");
            assert!(!leak.modules.is_empty() || !leak.functions.is_empty(), "{leak:?}");
        }
    }
}
