//! Any bytes as a core file or a minidump: what can be read is, in order and without overlaps, and
//! every question about it has an answer.
#![no_main]

use std::path::Path;

use cairn_analysis::heap::CoreStacks;
use cairn_memory::heap::{Annotated, FindOptions, GlibcHeap, Reachability, References};
use cairn_memory::image::{Image, OpenOptions};
use cairn_memory::process::ThreadSource;
use cairn_memory::python::PythonFrames;

const LIMIT: u32 = 200;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let mut options = OpenOptions::default();
    // Paths in the input must lead nowhere.
    options.root = "/nonexistent".into();
    let image = match Image::from_bytes(input.to_vec(), Path::new("input"), &options) {
        Ok(image) => image,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    assert!(image.pieces().is_sorted_by(|one, next| one.range.end <= next.range.start));
    assert!(image.modules().is_sorted_by_key(|module| module.range.start));
    for finding in image.findings() {
        assert!(!finding.to_string().is_empty());
    }
    let found = Annotated::find(&image, &FindOptions::default());
    // A header has 16 bytes at least, and segments may share the bytes of the file.
    assert!(found.blocks().len() as u64 <= image.dumped_bytes() / 4 + 1);
    assert!(found.blocks().is_sorted_by_key(|block| block.user_address));
    for block in found.blocks().iter().take(10) {
        assert!(found.near(block.user_address).is_some());
    }
    let _ = found.damage(&image);
    let heap = GlibcHeap::find(&image);
    if let Some(heap) = &heap {
        let _ =
            (heap.sizes(), heap.blocks(), heap.damage().iter().map(ToString::to_string).collect::<Vec<_>>());
    }
    let reach = Reachability::find(&image, found.blocks(), heap.as_ref());
    assert!(reach.leaked().count() + reach.indirectly_leaked().count() <= found.blocks().len());
    let _ = References::find(&image, 0, u64::MAX, 10);
    let python = PythonFrames::find(&image);
    let mut stacks = Vec::new();
    for thread in ThreadSource::threads(&image).iter().take(10) {
        let Ok(registers) = &thread.registers else { continue };
        let stack = image.stack(registers, LIMIT);
        assert!(stack.frames.len() <= LIMIT as usize);
        let mixed = python.merge(&image, thread, stack, LIMIT);
        assert!(mixed.frames.len() <= LIMIT as usize);
        stacks.push(mixed.frames);
    }
    let stacks = CoreStacks::new(&image, found.stacks(), &stacks, python.codes());
    let _ = stacks.profile(found.blocks());
});
