//! Links by the script beside this file.

fn main() {
    println!("cargo::rerun-if-changed=device.x");
    println!("cargo::rustc-link-arg=-T{}/device.x", env!("CARGO_MANIFEST_DIR"));
}
