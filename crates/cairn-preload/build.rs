//! How the library is linked.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcairn_preload.so");
    // Every thread and every signal handler may be inside it at any time: it never leaves a
    // process.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // No lazy binding: the first call of a function would go through the loader's lock.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,now");
}
