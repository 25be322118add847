//! How the shared library is linked.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("windows") {
        return;
    }
    // Programs ask for the library by this name; it changes when the API breaks.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcairn.so.0");
    // A signal handler may be inside it at any time, and every thread has a pointer of its: it
    // never leaves a process.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,now");
}
