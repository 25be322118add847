//! Reads names from standard input, one a line, and prints their readable forms, as `c++filt` does;
//! with `--short` as lists show them.

use std::io::{self, BufRead, BufWriter, Write};

use cairn_symbols::demangle::readable;
use cairn_symbols::shorten::shorten_without_parameters;

fn main() -> io::Result<()> {
    let is_short = std::env::args().any(|argument| argument == "--short");
    let mut output = BufWriter::new(io::stdout());
    for line in io::stdin().lock().lines() {
        let line = line?;
        let name = readable(&line);
        if is_short {
            writeln!(output, "{}", shorten_without_parameters(&name))?;
        } else {
            writeln!(output, "{name}")?;
        }
    }
    output.flush()
}
