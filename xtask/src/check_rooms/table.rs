//! The table of rooms: what ARCHITECTURE.md draws, in a form that can be checked.
//!
//! A new edge is a decision about the whole house. Change this table, the drawing and the crate
//! table of ARCHITECTURE.md together, and say in the commit why the room needs it.

/// Dependencies that one crate may use, and attributes that its source must declare.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Room {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    /// Crates of the workspace that it may depend on.
    pub(crate) uses: Allowed,
    /// More crates of the workspace, only as optional dependencies behind features off by default.
    pub(crate) uses_behind: &'static [Behind],
    /// Crates from elsewhere that it may depend on.
    pub(crate) outside: Allowed,
    /// Crates that it must not depend on although `outside` would let them in.
    pub(crate) never: &'static [&'static str],
    pub(crate) standard_library: StandardLibrary,
    pub(crate) unsafe_code: UnsafeCode,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Part of the product; has a line in ARCHITECTURE.md's table.
    Product,
    /// Helps tests; in a product crate it is a dev-dependency only.
    ForTests,
    /// A tool of the workspace (chores, benchmarks); nothing depends on it.
    Tool,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Allowed {
    Any,
    Only(&'static [&'static str]),
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Behind {
    pub(crate) feature: &'static str,
    pub(crate) dependency: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StandardLibrary {
    /// `#![no_std]`, and neither std nor alloc by the back door.
    Never,
    /// `#![cfg_attr(not(feature = "std"), no_std)]` with `std` off by default (or `Never`).
    NotByDefault,
    Free,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UnsafeCode {
    /// `#![forbid(unsafe_code)]`.
    Never,
    /// `#![deny(unsafe_code)]`, lifted in the files of these names alone (or `Never`).
    OnlyIn(&'static [&'static str]),
    Free,
}

/// A room with everything forbidden; the entries below open what they need.
const CLOSED: Room = Room {
    name: "",
    kind: Kind::Product,
    uses: Allowed::Only(&[]),
    uses_behind: &[],
    outside: Allowed::Only(&[]),
    never: &[],
    standard_library: StandardLibrary::Free,
    unsafe_code: UnsafeCode::Never,
};

/// Every crate that may exist in this workspace.
pub(crate) const ROOMS: &[Room] = &[
    Room { name: "cairn-format", standard_library: StandardLibrary::Never, ..CLOSED },
    Room {
        name: "cairn-wire",
        uses: Allowed::Only(&["cairn-format"]),
        standard_library: StandardLibrary::Never,
        ..CLOSED
    },
    Room {
        name: "cairn-unwind",
        // The walk with XNU's rules writes XNU's packed form.
        uses: Allowed::Only(&["cairn-format", "cairn-wire"]),
        standard_library: StandardLibrary::Never,
        ..CLOSED
    },
    Room {
        name: "cairn-capture",
        uses: Allowed::Only(&["cairn-format", "cairn-unwind"]),
        outside: Allowed::Only(&["libc"]),
        standard_library: StandardLibrary::Never,
        unsafe_code: UnsafeCode::Free,
        ..CLOSED
    },
    Room {
        name: "cairn-recorder",
        uses: Allowed::Only(&["cairn-format", "cairn-capture"]),
        outside: Allowed::Only(&["libc"]),
        standard_library: StandardLibrary::Never,
        unsafe_code: UnsafeCode::Free,
        ..CLOSED
    },
    Room {
        name: "cairn-heap",
        uses: Allowed::Only(&["cairn-format", "cairn-wire", "cairn-capture", "cairn-unwind"]),
        // On processors without compare-and-swap alone: the program's critical section, and atomics
        // made of it.
        outside: Allowed::Only(&["critical-section", "portable-atomic"]),
        standard_library: StandardLibrary::NotByDefault,
        unsafe_code: UnsafeCode::Free,
        ..CLOSED
    },
    // Whether it is `no_std`, or uses std with the library's own allocator, is its own decision;
    // that nothing of it reaches the program's malloc is seen in the symbols of the built library,
    // not in an attribute.
    Room {
        name: "cairn-preload",
        uses: Allowed::Only(&["cairn-format", "cairn-wire", "cairn-capture", "cairn-recorder", "cairn-heap"]),
        outside: Allowed::Only(&["libc"]),
        unsafe_code: UnsafeCode::Free,
        ..CLOSED
    },
    // The same on Windows, where no allocator of the program is in reach of `no_std` code.
    Room {
        name: "cairn-hooks-windows",
        uses: Allowed::Only(&["cairn-recorder"]),
        unsafe_code: UnsafeCode::Free,
        ..CLOSED
    },
    // System calls relative to an open directory, by rustix, so that no unsafe code is needed for
    // them.
    Room { name: "cairn-files", outside: Allowed::Only(&["rustix"]), ..CLOSED },
    // Starts programs, and waits for them: std changes the state that the program inherits.
    Room {
        name: "cairn-run",
        uses: Allowed::Only(&["cairn-files"]),
        outside: Allowed::Only(&["libc", "object"]),
        unsafe_code: UnsafeCode::Free,
        ..CLOSED
    },
    Room {
        name: "cairn-symbols",
        uses: Allowed::Only(&["cairn-files", "cairn-format"]),
        outside: Allowed::Any,
        // Debug files come over the network, but only with the feature `debuginfod`.
        never: COMMAND_AND_SERVERS,
        unsafe_code: UnsafeCode::OnlyIn(&["mapped_file.rs"]),
        ..CLOSED
    },
    Room {
        name: "cairn-recording",
        uses: Allowed::Only(&["cairn-files", "cairn-format"]),
        outside: Allowed::Only(&["crc32fast", "libc", "zstd"]),
        unsafe_code: UnsafeCode::OnlyIn(&["mapped_file.rs"]),
        ..CLOSED
    },
    Room {
        name: "cairn-memory",
        uses: Allowed::Only(&["cairn-files", "cairn-format", "cairn-unwind", "cairn-wire"]),
        outside: Allowed::Only(&["flate2", "libc", "lz4_flex", "memchr", "memmap2", "object", "zstd"]),
        // Tracing a process: docs/design/0001-system-calls-of-tracing.md.
        unsafe_code: UnsafeCode::OnlyIn(&["mapped_file.rs", "ptrace.rs"]),
        ..CLOSED
    },
    Room {
        name: "cairn-logs",
        uses: Allowed::Only(&["cairn-format", "cairn-wire"]),
        outside: Allowed::Only(&["memchr", "serde", "serde_json"]),
        ..CLOSED
    },
    Room {
        name: "cairn-analysis",
        uses: Allowed::Only(&[
            "cairn-format",
            "cairn-memory",
            "cairn-recording",
            "cairn-symbols",
            "cairn-unwind",
            "cairn-wire",
        ]),
        outside: Allowed::Any,
        never: COMMAND_AND_NETWORK,
        ..CLOSED
    },
    Room {
        name: "cairn-exchange",
        uses: Allowed::Only(&[
            "cairn-analysis",
            "cairn-format",
            "cairn-recording",
            "cairn-symbols",
            "cairn-wire",
        ]),
        outside: Allowed::Any,
        never: COMMAND_AND_NETWORK,
        ..CLOSED
    },
    Room {
        name: "cairn-web",
        uses: Allowed::Only(&["cairn-analysis", "cairn-format", "cairn-recording", "cairn-symbols"]),
        outside: Allowed::Any,
        never: COMMAND,
        ..CLOSED
    },
    // Tables of many machines: no query engine, so that a gateway stays small.
    Room { name: "cairn-store", outside: Allowed::Any, never: STORE_NEVER, ..CLOSED },
    Room {
        name: "cairn-fleet",
        uses: Allowed::Only(&[
            "cairn-analysis",
            "cairn-exchange",
            "cairn-files",
            "cairn-format",
            "cairn-store",
            "cairn-symbols",
            "cairn-web",
        ]),
        outside: Allowed::Any,
        ..CLOSED
    },
    // The command may use every room that works offline, and no crate from inside the watched
    // program.
    Room {
        name: "cairn-cli",
        uses: Allowed::Only(&[
            "cairn-analysis",
            "cairn-exchange",
            "cairn-files",
            "cairn-format",
            "cairn-logs",
            "cairn-memory",
            "cairn-recording",
            "cairn-run",
            "cairn-symbols",
            "cairn-web",
            "cairn-wire",
        ]),
        outside: Allowed::Any,
        ..CLOSED
    },
    Room {
        name: "cairn-c",
        // The formats for their encoders: a stack leaves a program in C as bytes.
        uses: Allowed::Only(&["cairn-format", "cairn-wire", "cairn-capture", "cairn-recorder", "cairn-heap"]),
        outside: Allowed::Only(&["libc"]),
        uses_behind: &[Behind { feature: "analysis", dependency: "cairn-analysis" }],
        unsafe_code: UnsafeCode::Free,
        ..CLOSED
    },
    Room {
        name: "cairn-testkit",
        kind: Kind::ForTests,
        uses: Allowed::Only(&["cairn-format"]),
        outside: Allowed::Any,
        ..CLOSED
    },
    // Loads into other programs, compares with libgcc, and drives both; nothing of it is shipped.
    Room {
        name: "cairn-truth",
        kind: Kind::Tool,
        uses: Allowed::Only(&["cairn-format", "cairn-wire", "cairn-unwind", "cairn-capture"]),
        outside: Allowed::Only(&["libc"]),
        unsafe_code: UnsafeCode::Free,
        ..CLOSED
    },
    // Code that cairn-benches and its preloaded library share: cairn and its peers.
    Room {
        name: "cairn-bench-unwinders",
        kind: Kind::ForTests,
        uses: Allowed::Any,
        outside: Allowed::Any,
        unsafe_code: UnsafeCode::Free,
        ..CLOSED
    },
    Room {
        name: "cairn-bench-malloc-hook",
        kind: Kind::Tool,
        uses: Allowed::Any,
        outside: Allowed::Any,
        unsafe_code: UnsafeCode::Free,
        ..CLOSED
    },
    Room {
        name: "cairn-benches",
        kind: Kind::Tool,
        uses: Allowed::Any,
        outside: Allowed::Any,
        unsafe_code: UnsafeCode::Free,
        ..CLOSED
    },
    Room {
        name: "cairn-examples",
        kind: Kind::Tool,
        uses: Allowed::Any,
        outside: Allowed::Only(&["libc"]),
        unsafe_code: UnsafeCode::Free,
        ..CLOSED
    },
    // The chores start programs; they link nothing of the product, so that they build when it does
    // not.
    Room {
        name: "xtask",
        kind: Kind::Tool,
        outside: Allowed::Only(&[
            "anstyle-svg",
            "proc-macro2",
            "public-api",
            "pulldown-cmark",
            "rustix",
            "serde_json",
            "syn",
        ]),
        ..CLOSED
    },
];

/// Arguments are the command's affair.
const COMMAND: &[&str] = &["clap", "clap_complete", "clap_derive", "lexopt", "pico-args"];

/// And queries are the fleet's.
const STORE_NEVER: &[&str] = &["clap", "datafusion", "ballista"];

/// And requests are the page's.
const COMMAND_AND_NETWORK: &[&str] = &[
    "clap",
    "clap_complete",
    "clap_derive",
    "lexopt",
    "pico-args",
    "axum",
    "hyper",
    "reqwest",
    "tiny_http",
    "ureq",
];

/// The same without the client of debuginfod servers.
const COMMAND_AND_SERVERS: &[&str] =
    &["clap", "clap_complete", "clap_derive", "lexopt", "pico-args", "axum", "hyper", "reqwest", "tiny_http"];
