//! The table by which frames get their owners: one row a rule, each with its reason.
//!
//! Rows are searched in order and the first match decides, so a special row is above a general
//! one. Names are plain names (see [`plain_name`](super::plain_name)); for Rust they are paths, as
//! `alloc::vec::Vec<T,A>::push`, without a leading `<` or `&`.
//!
//! heaptrack hides `operator new` and what is outside of `main`, memray the evaluation loop of
//! CPython, the Firefox Profiler nothing by default. The rows are the union, and what allocated in
//! front of user code in recordings of real programs.

use super::OwnerKind;
use super::OwnerKind::{Allocator, Interpreter, Library, Runtime, StandardLibrary, Wrapper};

/// The property of a frame that a rule compares.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Matches {
    /// The whole plain name.
    Name,
    /// The beginning of the plain name.
    NameStart,
    /// The beginning of a Rust path.
    RustStart,
    /// A part of a Rust name.
    RustPart,
}

/// A rule about functions.
#[derive(Clone, Copy, Debug)]
pub(super) struct FunctionRule {
    pub(super) matches: Matches,
    pub(super) owner: OwnerKind,
    /// Name of the owner: a language or library.
    pub(super) name: &'static str,
    pub(super) patterns: &'static [&'static str],
    /// Why the row is here.
    #[cfg_attr(not(test), expect(dead_code, reason = "read by people, and by a test that each row has one"))]
    pub(super) reason: &'static str,
}

const fn row(
    matches: Matches,
    owner: OwnerKind,
    name: &'static str,
    patterns: &'static [&'static str],
    reason: &'static str,
) -> FunctionRule {
    FunctionRule { matches, owner, name, patterns, reason }
}

use Matches::{Name, NameStart, RustPart, RustStart};

/// Rules by the name of the function, which come before those by file.
#[rustfmt::skip] // A table is read by rows: a pattern a line would be a thousand lines.
pub(super) const FUNCTIONS: &[FunctionRule] = &[
    row(Name, Allocator, "C", &[
        "malloc", "calloc", "realloc", "reallocarray", "memalign", "posix_memalign", "aligned_alloc",
        "valloc", "pvalloc", "free", "cfree", "__libc_malloc", "__libc_calloc", "__libc_realloc",
        "__libc_memalign", "__GI___libc_malloc", "__interceptor_malloc", "mmap", "mmap64", "__mmap",
        "__mmap64", "mremap", "brk", "sbrk",
    ], "the C library's entry points are where every stack ends"),
    row(Name, Allocator, "C", &[
        "strdup", "strndup", "wcsdup", "__strdup", "__strndup", "__GI___strdup", "__wcsdup", "asprintf",
        "vasprintf", "__asprintf", "__vasprintf_internal", "__vasprintf_chk", "__asprintf_chk",
        "getline", "getdelim", "_IO_getdelim", "__getdelim",
    ], "the caller owns the block that these return, exactly as after malloc"),
    row(NameStart, Allocator, "C++", &["operator new", "operator delete"],
        "heaptrack hides these too: a new-expression's function is the answer"),
    row(NameStart, Allocator, "C++", &[
        "std::allocator::", "std::allocator_traits::", "std::__1::allocator::", "std::__1::allocator_traits::",
        "std::__new_allocator::", "__gnu_cxx::new_allocator::", "__gnu_cxx::malloc_allocator::", "std::pmr::",
        "std::__allocate_guarded", "std::get_temporary_buffer",
    ], "the allocator of a container is an argument, not a decision"),
    row(Name, Allocator, "jemalloc, mimalloc, tcmalloc", &[
        "je_malloc", "je_calloc", "je_realloc", "je_mallocx", "je_rallocx", "je_aligned_alloc", "je_posix_memalign",
        "mallocx", "rallocx", "mi_malloc", "mi_calloc", "mi_realloc", "mi_zalloc", "mi_new", "mi_heap_malloc",
        "tc_malloc", "tc_calloc", "tc_realloc", "tc_new", "tc_newarray",
    ], "linked into the program under their own names"),
    row(RustStart, Allocator, "Rust", &[
        "__rust_alloc", "__rust_realloc", "__rdl_alloc", "__rdl_realloc", "__rg_alloc", "__rg_realloc",
        "__rustc::__rust_alloc", "__rustc::__rust_realloc", "__rustc::__rdl_alloc", "__rustc::__rdl_realloc",
        "__rustc::__rg_alloc", "__rustc::__rg_realloc", "alloc::alloc::", "alloc::raw_vec::", "std::alloc::",
        "std::sys::alloc::", "core::alloc::", "hashbrown::alloc::",
    ], "Rust's way from Box, Vec and String to the allocator"),
    row(RustPart, Allocator, "Rust", &[
        " as core::alloc::global::GlobalAlloc>::", " as core::alloc::GlobalAlloc>::", " as core::alloc::Allocator>::",
        " as allocator_api2::",
    ], "a program's own allocator is an allocator by its trait"),
    row(RustStart, Runtime, "Rust", &[
        "std::rt::", "std::sys::backtrace::__rust_begin_short_backtrace",
        "std::sys_common::backtrace::__rust_begin_short_backtrace", "std::sys::thread::",
        "std::sys::pal::unix::thread::", "std::panicking::", "std::panic::", "std::thread::", "core::panic::",
        "core::ops::function::", "__rustc::rust_begin_unwind", "__rust_try",
    ], "leads from the kernel to main, to a thread's closure, or to a panic"),
    row(Name, Runtime, "C", &[
        "_start", "__libc_start_main", "__libc_start_main_impl", "__libc_start_main_alias_2",
        "__libc_start_call_main", "__libc_csu_init", "call_init", "_dl_init", "_dl_start", "_dl_start_user",
        "start_thread", "__pthread_start", "clone", "clone3", "__clone", "__clone3", "__GI___clone3",
        "execute_native_thread_routine", "__cxa_thread_atexit", "__run_exit_handlers", "exit",
        "__do_global_ctors_aux", "frame_dummy", "__do_global_dtors_aux", "_fini", "_init",
    ], "leads to main, to a thread's function, or away from it; heaptrack stops there"),
    row(NameStart, Runtime, "C++", &[
        "__cxa_", "_Unwind_", "__gxx_personality",
    ], "the compiler's own functions: exceptions and guards; constructors of globals are their program's"),
    row(Name, Wrapper, "GLib", &[
        "g_malloc", "g_malloc0", "g_malloc_n", "g_malloc0_n", "g_calloc", "g_realloc", "g_realloc_n",
        "g_try_malloc", "g_try_malloc0", "g_try_malloc_n", "g_try_realloc", "g_aligned_alloc", "g_slice_alloc",
        "g_slice_alloc0", "g_slice_copy", "g_memdup", "g_memdup2", "g_strdup", "g_strndup", "g_strconcat",
        "g_strjoin", "g_strjoinv", "g_strdup_printf", "g_strdup_vprintf", "g_strdupv", "g_strsplit",
        "g_vasprintf", "standard_malloc", "standard_calloc",
    ], "GLib's names for malloc and strdup"),
    row(NameStart, Wrapper, "talloc", &["talloc_", "_talloc_", "__talloc"], "Samba's hierarchical allocator"),
    row(Name, Wrapper, "APR", &[
        "apr_palloc", "apr_palloc_debug", "apr_pcalloc", "apr_pstrdup", "apr_pstrndup", "apr_pmemdup",
        "apr_psprintf", "apr_pvsprintf", "apr_pstrcat", "apr_allocator_alloc", "allocator_alloc",
        "apr_pool_create_ex",
    ], "the pools of Apache's runtime and of Subversion"),
    row(Name, Wrapper, "OpenSSL", &[
        "CRYPTO_malloc", "CRYPTO_zalloc", "CRYPTO_calloc", "CRYPTO_realloc", "CRYPTO_clear_realloc",
        "CRYPTO_strdup", "CRYPTO_strndup", "CRYPTO_memdup", "CRYPTO_secure_malloc", "CRYPTO_secure_zalloc",
        "CRYPTO_aligned_alloc", "OPENSSL_malloc", "OPENSSL_zalloc",
    ], "every byte of libcrypto and libssl flows through these"),
    row(Name, Wrapper, "SQLite", &[
        "sqlite3_malloc", "sqlite3_malloc64", "sqlite3_realloc", "sqlite3_realloc64", "sqlite3Malloc",
        "sqlite3MallocZero", "sqlite3Realloc", "sqlite3MemMalloc", "sqlite3MemRealloc", "sqlite3DbMallocRaw",
        "sqlite3DbMallocRawNN", "sqlite3DbMallocZero", "sqlite3DbRealloc", "sqlite3DbReallocOrFree",
        "sqlite3DbStrDup", "sqlite3DbStrNDup", "sqlite3DbSpanDup", "sqlite3PageMalloc", "mallocWithAlarm",
        "dbMallocRawFinish", "dbReallocFinish", "pcache1Alloc", "sqlite3_mprintf", "sqlite3_vmprintf",
    ], "SQLite's layers over malloc: configuration, alarm, lookaside"),
    row(Name, Wrapper, "libxml2", &[
        "xmlMallocLoc", "xmlMemMalloc", "xmlMemRealloc", "xmlStrdup", "xmlStrndup", "xmlMemStrdupLoc",
        "xmlCharStrdup",
    ], "libxml2's names for malloc and strdup"),
    row(Name, Wrapper, "C", &[
        "xmalloc", "xcalloc", "xrealloc", "xstrdup", "xstrndup", "xmemdup", "xzalloc", "xmallocz", "xmallocarray",
        "xreallocarray", "xnmalloc", "xnrealloc", "x2realloc", "x2nrealloc", "xcharalloc", "xasprintf", "xvasprintf",
        "ximalloc", "xicalloc", "xirealloc", "checked_malloc", "safe_malloc", "safe_calloc", "safe_realloc",
        "emalloc", "erealloc", "estrdup",
    ], "names that hundreds of C programs give to malloc or exit; gnulib's among them"),
    row(Name, Wrapper, "gnulib", &[
        "xpalloc", "ximemdup", "ximemdup0", "xmemdup0", "xizalloc", "xireallocarray", "xstrcat", "xconcat", "concat",
        "reconcat", "file_name_concat", "mfile_name_concat", "dir_name", "mdir_name", "xgetcwd", "quotearg_n_options",
        "quotearg_alloc_mem", "readlinebuffer", "readlinebuffer_delim",
    ], "gnulib's and libiberty's strings, compiled into most GNU programs"),
    row(Name, Wrapper, "flex", &[
        "yyensure_buffer_stack", "yy_create_buffer", "yy_scan_buffer", "yy_scan_bytes", "yy_scan_string",
        "yy_get_next_buffer", "yyalloc", "yyrealloc",
    ], "the buffers of every generated scanner: yylex and its caller say which one"),
    row(Name, Wrapper, "C", &[
        "_obstack_begin", "_obstack_begin_1", "_obstack_newchunk", "rpl_obstack_begin", "rpl_obstack_begin_1",
        "rpl_obstack_newchunk", "_objalloc_alloc", "objalloc_create",
    ], "obstacks and objalloc of the C library and of binutils: chunks for anything"),
    row(NameStart, Wrapper, "libxml2", &["xmlBufCreate", "xmlBufGrow", "xmlBufResize", "xmlBufAdd", "xmlBufferCreate",
        "xmlBufferGrow", "xmlBufferResize", "xmlBufferAdd", "xmlStrncat", "xmlStrcat", "xmlStrsub"],
        "libxml2's strings and buffers"),
    row(Name, Wrapper, "FFmpeg", &[
        "av_malloc", "av_mallocz", "av_calloc", "av_malloc_array", "av_mallocz_array", "av_realloc", "av_realloc_f",
        "av_realloc_array", "av_reallocp", "av_reallocp_array", "av_strdup", "av_strndup", "av_memdup",
        "av_fast_malloc", "av_fast_mallocz", "av_fast_realloc", "av_fast_padded_malloc", "av_buffer_alloc",
        "av_buffer_allocz", "av_buffer_create", "av_buffer_realloc", "av_buffer_pool_get", "av_asprintf",
    ], "libavutil's names for malloc, strdup and counted buffers"),
    row(NameStart, Wrapper, "FFmpeg", &["av_bprint_", "av_dynarray"], "libavutil's strings and arrays"),
    row(Name, Wrapper, "Lua", &[
        "l_alloc", "luaM_malloc_", "luaM_realloc_", "luaM_saferealloc_", "luaM_growaux_", "luaM_shrinkvector_",
        "luaM_toobig", "luaC_newobj", "lj_alloc_malloc", "lj_alloc_realloc", "lj_mem_realloc", "lj_mem_newgco",
    ], "all memory of Lua's states flows through these, in programs that embed it too"),
    row(Name, Wrapper, "Perl", &[
        "Perl_safesysmalloc", "Perl_safesyscalloc", "Perl_safesysrealloc", "Perl_safesysfree", "Perl_savepv",
        "Perl_savepvn", "Perl_more_bodies", "S_more_sv",
    ], "Perl's names for malloc and strdup"),
    row(NameStart, Wrapper, "curl", &[
        "Curl_dyn_", "Curl_saferealloc", "Curl_memdup", "Curl_strdup", "curl_maprintf", "curl_mvaprintf", "curl_dbg_",
    ], "curl's dynamic strings, printf and names for malloc"),
    row(Name, Wrapper, "ImageMagick", &[
        "AcquireMagickMemory", "AcquireQuantumMemory", "AcquireCriticalMemory", "AcquireAlignedMemory",
        "AcquireVirtualMemory", "ResizeMagickMemory", "ResizeQuantumMemory", "AcquireString", "CloneString",
        "ConstantString", "ConcatenateString", "AcquireMagickInfo", "MagickMalloc", "MagickRealloc",
    ], "ImageMagick's names for malloc, realloc and strdup"),
    row(NameStart, Wrapper, "ICU", &["uprv_malloc", "uprv_realloc", "uprv_calloc", "icu::UMemory::operator"],
        "ICU's names for malloc; a version may follow"),
    row(NameStart, Library, "GLib containers", &[
        "g_array_", "g_ptr_array_", "g_byte_array_", "g_string_", "g_list_", "g_slist_", "g_queue_", "g_hash_table_",
        "g_bytes_new", "g_sequence_", "g_strjoin", "g_strbuf", "g_array_maybe_expand", "g_ptr_array_maybe_expand",
    ], "strings, lists, arrays and hash tables: the caller chose to use them"),
    row(NameStart, Allocator, "CPython", &[
        "_PyMem_", "PyMem_", "PyObject_Malloc", "PyObject_Calloc", "PyObject_Realloc", "_PyObject_Malloc",
        "_PyObject_Calloc", "_PyObject_Realloc", "_PyObject_GC_", "PyObject_GC_", "_PyObject_New", "PyType_GenericAlloc",
        "_PyType_AllocNoTrack", "gc_alloc", "pymalloc_alloc", "new_arena", "allocate_from_new_pool", "_PyObject_Arena",
        "_PyMem", "_PyUnicode_New", "PyObject_Init",
    ], "CPython's layers from objects to malloc"),
    row(NameStart, Interpreter, "CPython", &[
        "_PyEval_", "PyEval_", "_PyFunction_Vectorcall", "_PyObject_Vectorcall", "PyObject_Vectorcall",
        "_PyObject_Call", "PyObject_Call", "_PyVectorcall_", "PyVectorcall_", "_PyObject_MakeTpCall", "Py_RunMain",
        "Py_BytesMain", "pymain_", "_PyRun_", "PyRun_", "run_mod", "run_eval_code_obj", "pyrun_",
    ], "memray hides the evaluation loop and what calls through it"),
    row(Name, Interpreter, "CPython", &[
        "call_function", "cfunction_vectorcall_NOARGS", "cfunction_vectorcall_O", "cfunction_vectorcall_FASTCALL",
        "method_vectorcall", "slot_tp_call", "slot_tp_init", "slot_tp_new", "type_call", "wrap_call", "wrapper_call",
        "wrapperdescr_call", "instancemethod_call", "classmethoddescr_call", "cmpwrapper_call", "methoddescr_call",
        "function_code_fastcall", "fast_function", "do_call_core", "trace_call_function", "weakref_call", "proxy_call",
    ], "the list of memray"),
    row(Name, Allocator, "V8", &[
        "v8::internal::AllocWithRetry", "v8::internal::AllocAtLeastWithRetry", "v8::internal::AlignedAllocWithRetry", "v8::base::Malloc", "v8::base::Calloc",
        "v8::internal::Malloced::operator new", "v8::internal::Zone::Expand", "v8::internal::Zone::NewExpand",
        "v8::internal::AccountingAllocator::AllocateSegment", "node::NodeArrayBufferAllocator::Allocate",
        "node::UncheckedMalloc", "node::Malloc", "node::Realloc", "node::UncheckedRealloc",
    ], "V8's and node's names for malloc"),
    row(NameStart, Interpreter, "V8", &["v8::internal::", "v8::base::", "v8::platform::", "Builtins_", "v8::"],
        "the engine between a script and memory"),
    row(NameStart, Allocator, "Swift", &[
        "swift_allocObject", "_swift_allocObject", "swift_slowAlloc", "swift::swift_slowAlloc", "swift_bufferAllocate",
        "swift_initStackObject", "swift_allocBox", "swift_slowAllocTyped",
    ], "Swift's way from a class or box to malloc"),
    row(NameStart, StandardLibrary, "Swift", &[
        "Swift.", "generic specialization <", "protocol witness for Swift.", "static Swift.", "swift_retain",
        "swift_release", "swift_once", "swift_get", "swift_task", "swift_dynamicCast", "swift::",
    ], "the Swift module and its runtime"),
    row(NameStart, Runtime, "Go", &[
        "runtime.", "_cgo_", "x_cgo_", "crosscall2", "crosscall_amd64", "cgocall", "threadentry", "runtime/cgo.",
        "_rt0_", "internal/runtime/",
    ], "Go's scheduler and the bridge to C"),
    row(NameStart, StandardLibrary, "C++", &["std::", "__gnu_cxx::", "__gnu_debug::", "__cxxabiv1::", "__gnu_internal::"],
        "containers, strings, streams and function objects: the caller chose to use them"),
    row(NameStart, Library, "Boost containers", &[
        "boost::container::", "boost::unordered::", "boost::unordered_map::", "boost::unordered_set::",
        "boost::multi_index::", "boost::circular_buffer::", "boost::shared_ptr::", "boost::make_shared",
        "boost::intrusive::", "boost::movelib::", "boost::detail::sp_",
    ], "they replace those of the standard library"),
    row(NameStart, Library, "boost", &["boost::"], "instances of its templates are compiled into the program"),
    row(NameStart, Library, "Abseil", &["absl::"], "linked into the program, from sources or from its package"),
    row(NameStart, Library, "folly", &["folly::"], "linked into the program, from sources or from its package"),
    row(NameStart, Library, "Qt", &[
        "QArrayData::", "QTypedArrayData::", "QArrayDataPointer::", "QVector::", "QList::", "QListData::", "QHash::",
        "QHashData::", "QHashPrivate::", "QMap::", "QMapData::", "QMapNode::", "QMapDataBase::", "QString::",
        "QByteArray::", "QSharedPointer::", "QtSharedPointer::", "QtPrivate::", "QSharedDataPointer::", "QStringBuilder::",
        "QVarLengthArray::", "QCache::", "QMultiHash::", "QMultiMap::", "QSet::", "QVariant::", "QFlatMap::", "QStringList::",
    ], "Qt's containers are templates; its widgets are in its own libraries"),
    row(NameStart, Library, "Eigen", &["Eigen::"], "templates in headers"),
    row(NameStart, Library, "fmt", &["fmt::"], "templates in headers"),
    row(NameStart, Library, "nlohmann json", &["nlohmann::"], "templates in headers"),
    row(NameStart, Library, "RapidJSON", &["rapidjson::"], "templates in headers"),
    row(NameStart, Library, "spdlog", &["spdlog::"], "templates in headers"),
    row(NameStart, Library, "protobuf", &["google::protobuf::"], "linked into the program beside generated code"),
    row(NameStart, Library, "gRPC", &["grpc::", "grpc_core::", "grpc_"], "linked into the program beside generated code"),
    row(NameStart, Library, "oneTBB", &["tbb::"], "templates in headers, and its scheduler"),
    row(NameStart, Library, "phmap", &["phmap::", "robin_hood::", "tsl::", "ankerl::"], "hash tables in headers"),
    row(NameStart, Library, "LLVM ADT", &[
        "llvm::SmallVectorBase::", "llvm::SmallVectorImpl::", "llvm::SmallVectorTemplateBase::", "llvm::SmallVector::",
        "llvm::DenseMap::", "llvm::DenseMapBase::", "llvm::SmallDenseMap::", "llvm::StringMap::", "llvm::StringMapImpl::",
        "llvm::StringMapEntry::", "llvm::BumpPtrAllocatorImpl::", "llvm::AllocatorBase::", "llvm::MallocAllocator::",
        "llvm::FoldingSetBase::", "llvm::SmallPtrSetImplBase::", "llvm::allocate_buffer", "llvm::safe_malloc",
        "llvm::BitVector::", "llvm::SpecificBumpPtrAllocator::", "llvm::UniqueVector::", "llvm::SmallString::",
    ], "LLVM's containers and arenas: the pass that fills them is the answer"),
];

/// Containers are folded like the standard library that they replace.
///
/// The names are those of rows of [`FUNCTIONS`].
pub(super) const FOLDED_LIBRARIES: &[&str] =
    &["Boost containers", "GLib containers", "LLVM ADT", "phmap", "Qt"];

/// Crates of Rust's own library, by the first part of a path.
pub(super) const RUST_STANDARD_CRATES: &[&str] = &[
    "std",
    "core",
    "alloc",
    "hashbrown",
    "proc_macro",
    "std_detect",
    "panic_unwind",
    "compiler_builtins",
    "addr2line",
    "gimli",
    "rustc_demangle",
    "miniz_oxide",
];

/// Crates that many programs use.
///
/// Without line tables, the first part of a Rust path is all that is known. Crates that are not
/// here count as the program's.
#[rustfmt::skip] // As above.
pub(super) const RUST_CRATES: &[&str] = &[
    "actix_codec", "actix_http", "actix_rt", "actix_server", "actix_web", "ahash", "aho_corasick", "anyhow", "arc_swap",
    "arrayvec", "arrow", "async_trait", "axum", "axum_core", "base64", "bincode", "bit_set", "bitflags", "bstr", "byteorder", "bytes", "cc",
    "cfg_if", "chrono", "clap", "clap_builder", "clap_lex", "crossbeam", "crossbeam_channel", "crossbeam_deque",
    "crossbeam_epoch", "crossbeam_utils", "csv", "csv_core", "dashmap", "diesel", "either", "encoding_rs", "encoding_rs_io", "env_logger", "flate2",
    "fnv", "form_urlencoded", "futures", "futures_channel", "futures_core", "futures_executor", "futures_util",
    "getrandom", "h2", "hex", "http", "http_body", "httparse", "hyper", "hyper_util", "idna", "indexmap", "itertools",
    "itoa", "lazy_static", "lexopt", "libc", "lock_api", "log", "matchit", "memchr", "memmap2", "mio", "ndarray", "nom", "num_bigint",
    "num_cpus", "num_traits", "once_cell", "openssl", "ordered_float", "parking_lot", "parking_lot_core", "pcre2", "percent_encoding",
    "pest", "petgraph", "pin_project", "polars", "proc_macro2", "prost", "quick_xml", "quote", "rand", "rand_core",
    "rayon", "rayon_core", "regex", "regex_automata", "regex_syntax", "reqwest", "ring", "rustix", "rustls", "ryu", "same_file", "semver",
    "serde", "serde_core", "serde_json", "serde_urlencoded", "serde_yaml", "sha2", "signal_hook", "slab", "smallvec", "socket2",
    "sqlx", "sqlx_core", "strsim", "syn", "tempfile", "termcolor", "textwrap", "thiserror", "thread_local", "time",
    "tinyvec", "tokio", "tokio_rustls", "tokio_util", "toml", "toml_edit", "tonic", "tower", "tower_http",
    "tower_layer", "tower_service", "tracing", "tracing_core", "tracing_subscriber", "unicode_normalization", "url",
    "uuid", "walkdir", "want", "webpki", "winnow", "zerocopy", "zstd", "zstd_safe",
];

/// A rule about modules: the beginning of the file's name.
#[derive(Clone, Copy, Debug)]
pub(super) struct ModuleRule {
    pub(super) owner: OwnerKind,
    pub(super) name: &'static str,
    pub(super) starts: &'static [&'static str],
    #[cfg_attr(not(test), expect(dead_code, reason = "read by people, and by a test that each row has one"))]
    pub(super) reason: &'static str,
}

const fn module(
    owner: OwnerKind,
    name: &'static str,
    starts: &'static [&'static str],
    reason: &'static str,
) -> ModuleRule {
    ModuleRule { owner, name, starts, reason }
}

/// Rules by the file name of the module, below those by function and source file.
#[rustfmt::skip] // As above.
pub(super) const MODULES: &[ModuleRule] = &[
    module(StandardLibrary, "C", &[
        "libc.so", "libc-2.", "libpthread.so", "libpthread-2.", "libm.so", "libm-2.", "libdl.so", "libdl-2.", "librt.so",
        "libresolv.so", "libnss_", "libcrypt.so", "libutil.so", "libnsl.so", "libanl.so", "ld-musl-", "libc.musl-",
    ], "fopen or getaddrinfo allocate on behalf of their caller"),
    module(Runtime, "C", &["ld-linux", "ld-2.", "ld.so", "libgcc_s.so", "libatomic.so", "[vdso]", "linux-vdso", "[vsyscall]"],
        "the loader and the compiler's helpers"),
    module(Runtime, "cairn", &["libcairn"], "the recorder itself"),
    module(StandardLibrary, "C++", &["libstdc++.so", "libc++.so", "libc++abi.so", "libsupc++.so"],
        "explicit instances of std::string and the streams are here"),
    module(Allocator, "allocator", &["libjemalloc", "libmimalloc", "libtcmalloc", "libtbbmalloc", "libsnmalloc", "libhoard",
        "librpmalloc", "libasan", "liblsan"], "replacements of malloc"),
    module(StandardLibrary, "Swift", &["libswiftCore", "libswift_Concurrency", "libswiftGlibc", "libswift"],
        "Swift's standard library and runtime"),
    module(StandardLibrary, "Rust", &["libstd-"], "Rust's standard library, where it is linked dynamically"),
    module(Runtime, "OpenMP", &["libgomp.so", "libomp.so", "libiomp5"], "starts threads for loops"),
    module(Interpreter, "CPython", &["libpython"], "the interpreter, built as a library"),
    module(Interpreter, "V8", &["libnode.so", "libv8"], "the engine, built as a library"),
    module(Interpreter, "JVM", &["libjvm.so", "libjava.so", "libzip.so", "libjli.so", "libnio.so", "libnet.so"],
        "the virtual machine and its own native methods"),
    module(Interpreter, "Ruby", &["libruby"], "the interpreter, built as a library"),
    module(Interpreter, "Perl", &["libperl"], "the interpreter, built as a library"),
    module(Interpreter, "Lua", &["liblua", "libluajit"], "the interpreter, built as a library"),
    module(Interpreter, "PHP", &["libphp"], "the interpreter, built as a library"),
    module(Interpreter, ".NET", &["libcoreclr.so", "libclrjit.so", "libmono"], "the virtual machine"),
    module(Interpreter, "Guile", &["libguile"], "the interpreter, built as a library"),
];

/// A program that runs the code of others: its own functions are never the user's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Host {
    /// File names of the program; a version may follow.
    pub(super) programs: &'static [&'static str],
    /// The interpreter.
    pub(super) name: &'static str,
    #[cfg_attr(not(test), expect(dead_code, reason = "read by people, and by a test that each row has one"))]
    pub(super) reason: &'static str,
}

/// Programs whose users write scripts, not the program.
pub(super) const HOSTS: &[Host] = &[
    Host {
        programs: &["python", "pypy", "ipython"],
        name: "CPython",
        reason: "scripts and extension modules are the user's",
    },
    Host { programs: &["node", "nodejs"], name: "V8", reason: "scripts and addons are the user's" },
    Host { programs: &["java", "javac"], name: "JVM", reason: "classes and JNI libraries are the user's" },
    Host { programs: &["ruby"], name: "Ruby", reason: "scripts and gems are the user's" },
    Host { programs: &["perl"], name: "Perl", reason: "scripts and XS modules are the user's" },
    Host {
        programs: &["php", "php-fpm", "php-cgi"],
        name: "PHP",
        reason: "scripts and extensions are the user's",
    },
    Host { programs: &["lua", "luajit"], name: "Lua", reason: "scripts and C modules are the user's" },
    Host {
        programs: &["dotnet", "mono"],
        name: ".NET",
        reason: "assemblies and native libraries are the user's",
    },
    Host { programs: &["R", "Rscript"], name: "R", reason: "scripts and packages are the user's" },
    Host { programs: &["guile"], name: "Guile", reason: "scripts are the user's" },
    Host { programs: &["beam.smp", "erl"], name: "BEAM", reason: "modules and NIFs are the user's" },
];

/// Directories of the distribution.
///
/// Below these nothing is the user's own build. A program from here is a different matter: then
/// its libraries are as much the answer as it is.
pub(super) const SYSTEM_DIRECTORIES: &[&str] = &[
    "/usr/bin/",
    "/usr/sbin/",
    "/usr/lib/",
    "/usr/lib32/",
    "/usr/lib64/",
    "/usr/libx32/",
    "/usr/libexec/",
    "/usr/games/",
    "/bin/",
    "/sbin/",
    "/lib/",
    "/lib32/",
    "/lib64/",
    "/libx32/",
    "/snap/",
    "/nix/store/",
    "/gnu/store/",
    "/app/lib/",
];

/// Directories in front of a library's name, in paths of sources and of modules.
///
/// The text behind them up to the next `/` is the library.
pub(super) const LIBRARY_DIRECTORIES: &[(&str, &str)] = &[
    ("/site-packages/", "installed by pip"),
    ("/dist-packages/", "installed by Debian's packages of Python"),
    ("/node_modules/", "installed by npm"),
    ("/third_party/", "the usual name for the sources of others"),
    ("/third-party/", "the usual name for the sources of others"),
    ("/thirdparty/", "the usual name for the sources of others"),
    ("/3rdparty/", "the usual name for the sources of others"),
    ("/vendor/", "cargo vendor, go mod vendor, and by hand"),
    ("/_deps/", "CMake's FetchContent"),
    ("/subprojects/", "Meson's wraps"),
    ("/deps/", "the usual name for the sources of others"),
    ("/extern/", "the usual name for the sources of others"),
    ("/external/", "the usual name for the sources of others"),
    ("/externals/", "the usual name for the sources of others"),
    ("/pkg/mod/", "Go's module cache"),
    ("/.cargo/git/checkouts/", "crates from git"),
    ("/vcpkg_installed/", "vcpkg"),
    ("/.conan/data/", "Conan 1"),
    ("/.conan2/p/", "Conan 2"),
    ("/gems/", "installed by RubyGems"),
];

/// Directories of the names of libraries, which programs carry along in their own sources.
///
/// A program's own part that uses a library is named after it, too (`src/curl/`, `src/lua/`), so
/// only names are here that are rarely used for that.
#[rustfmt::skip] // As above.
pub(super) const BUNDLED_LIBRARIES: &[&str] = &[
    "abseil-cpp", "boringssl", "bzip2", "c-ares", "cJSON", "expat", "freetype", "freetype2", "googletest", "harfbuzz",
    "hiredis", "jemalloc", "jsoncpp", "libexpat", "libjpeg-turbo", "libpng", "libuv", "linenoise", "mbedtls", "mimalloc",
    "nghttp2", "oniguruma", "pugixml", "rapidjson", "simdjson", "tinyxml2", "xxhash", "yaml-cpp", "zlib", "zlib-ng",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attribution_rows_have_patterns_and_reasons() {
        for row in FUNCTIONS {
            assert!(!row.patterns.is_empty() && row.reason.len() > 10, "{row:?}");
            assert!(row.patterns.iter().all(|pattern| !pattern.is_empty()), "{row:?}");
        }
        assert!(MODULES.iter().all(|row| !row.starts.is_empty() && row.reason.len() > 10));
        assert!(HOSTS.iter().all(|row| !row.programs.is_empty() && row.reason.len() > 10));
        assert!(LIBRARY_DIRECTORIES.iter().all(|(part, reason)| part.ends_with('/') && reason.len() > 2));
        assert!(SYSTEM_DIRECTORIES.iter().all(|start| start.starts_with('/') && start.ends_with('/')));
        for name in FOLDED_LIBRARIES {
            assert!(FUNCTIONS.iter().any(|row| row.name == *name), "{name} has no row");
        }
        assert!(RUST_CRATES.is_sorted());
    }
}
