//! Writes the pages that the tests in `tests/browser` look at, into a directory: `cargo xtask page` runs it.

#![allow(clippy::print_stdout, reason = "it tells what it writes")]

#[path = "../tests/support/programs.rs"]
mod programs;

use std::path::Path;

use cairn_web::{PageOptions, page};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = std::env::args().nth(1).ok_or("name the directory to write to")?;
    std::fs::create_dir_all(&directory)?;
    write(&directory, "ordinary", &programs::ordinary(), &PageOptions::default())?;
    write(&directory, "hostile", &programs::hostile(), &PageOptions::default())?;
    let large = programs::large(200_000);
    write(&directory, "large", &large, &PageOptions::default())?;
    let mut small = PageOptions::default();
    small.most_bytes = 600_000;
    write(&directory, "pruned", &large, &small)
}

fn write(
    directory: &str,
    name: &str,
    made: &programs::Made,
    options: &PageOptions,
) -> Result<(), Box<dyn std::error::Error>> {
    let (read, slices) = made.read_sliced();
    let page = page(&made.heap, &read, &slices, &mut made.names(), options)?;
    let path = Path::new(directory).join(format!("{name}.html"));
    std::fs::write(&path, &page.html)?;
    println!(
        "{}: {} bytes, {} calls, {} slices, least share {}, {} stacks put together",
        path.display(),
        page.html.len(),
        page.calls,
        page.slices,
        page.least_share,
        page.stacks_put_together
    );
    Ok(())
}
