//! Writes the pages that the tests in `tests/browser` open, into a directory: `cargo xtask page`
//! runs it.

#![allow(clippy::print_stdout, reason = "it prints the files that it writes")]

#[path = "../tests/support/programs.rs"]
mod programs;

use std::path::Path;

use cairn_analysis::heap::slices::Slices;
use cairn_analysis::heap::{About, HeapProfile, HeapRead, Sums};
use cairn_web::{PageOptions, PageSubject, Times, page};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = std::env::args().nth(1).ok_or("name the directory to write to")?;
    std::fs::create_dir_all(&directory)?;
    write(&directory, "ordinary", &programs::ordinary(), &PageOptions::default())?;
    write(&directory, "owned", &programs::owned(), &PageOptions::default())?;
    write(&directory, "hostile", &programs::hostile(), &PageOptions::default())?;
    let large = programs::large(200_000);
    write(&directory, "large", &large, &PageOptions::default())?;
    let mut small = PageOptions::default();
    small.most_bytes = 600_000;
    write(&directory, "pruned", &large, &small)?;
    write_imported(&directory, &programs::ordinary())
}

/// Pages of files of other tools: sums without times, and allocations without frees.
fn write_imported(directory: &str, made: &programs::Made) -> Result<(), Box<dyn std::error::Error>> {
    let (read, slices) = made.read_sliced();
    let about = About { command: vec!["imported".to_owned()], ..About::default() };
    let of_sums = |rows: &[Sums]| HeapProfile::of_sums(rows.to_vec(), read.profile.end_nanos);
    let sums = HeapRead::of_sums(of_sums(&read.profile.stacks), 0, Vec::new());
    let only_allocations = |sums: &Sums| Sums {
        allocations: sums.allocations,
        allocated_bytes: sums.allocated_bytes,
        ..Sums::default()
    };
    let rows: Vec<Sums> = read.profile.stacks.iter().map(only_allocations).collect();
    let mut allocations = HeapRead::of_sums(of_sums(&rows), 0, Vec::new());
    allocations.profile.timeline = read.profile.timeline.clone();
    let mut of_time = Slices::default();
    (of_time.count, of_time.slice_nanos) = (slices.count, slices.slice_nanos);
    of_time.stacks = slices.stacks;
    for entry in &mut of_time.stacks {
        (entry.grown_bytes, entry.leaked_bytes, entry.temporary) = (0, 0, 0);
    }
    let pages = [
        ("sums", sums, Slices::default(), Times::None),
        ("allocations", allocations, of_time, Times::Allocations),
    ];
    for (name, read, slices, times) in pages {
        let subject = PageSubject::of(&about, made.heap.stacks(), times);
        let page = page(subject, &read, &slices, &mut made.names(), &PageOptions::default())?;
        std::fs::write(Path::new(directory).join(format!("{name}.html")), page.html)?;
    }
    Ok(())
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
        "{}: {} bytes, {} calls, {} slices, least share {}, {} stacks merged",
        path.display(),
        page.html.len(),
        page.calls,
        page.slices,
        page.least_share,
        page.stacks_put_together
    );
    Ok(())
}
