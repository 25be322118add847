//! A program that prints its own stack: raw, as any program can at any moment, and with names, as a
//! debugging tool would.
//!
//! `cargo run -p cairn-examples --bin self_print`

#![allow(clippy::print_stdout, reason = "a program that prints")]

mod names;

use names::Names;

fn main() {
    outer();
}

#[inline(never)]
fn outer() {
    inner();
    // Keeps the call above from becoming a jump, which would leave no frame.
    std::hint::black_box(());
}

#[inline(never)]
fn inner() {
    // Three lines to a stack. This prints addresses and modules, and is safe even in a signal
    // handler.
    let stack = cairn_capture::capture();
    stack.write_text(1).expect("standard output is open");
    println!("stack number {}: {}", stack.id().number(), stack.stop_reason());

    // Names cost memory and time; they are for later.
    let names = Names::of_this_program().expect("the program can be read");
    for frame in stack.frames() {
        println!("{}", names.name(frame));
    }
}
