//! Prints its own stack.
fn main() {
    cairn_capture::capture().write_text(1).expect("standard output takes text");
}
