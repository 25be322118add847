//! The conformance vectors of the two older layouts: what this crate puts in front of a block is
//! what their references do.

use std::path::PathBuf;

use cairn_heap::{BlockLayout, Global, Heap, Options, blocks, lws};
use serde_json::Value;

fn cases(file: &str) -> Vec<Value> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/vectors").join(file);
    let mut document: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let Value::Array(cases) = document["cases"].take() else { panic!("{file} has no cases") };
    assert!(!cases.is_empty());
    cases
}

fn number(value: &Value) -> usize {
    match value {
        Value::String(text) => usize::from_str_radix(text.trim_start_matches("0x"), 16).unwrap(),
        number => number.as_u64().unwrap() as usize,
    }
}

fn numbers(value: &Value) -> Vec<usize> {
    value.as_array().unwrap().iter().map(number).collect()
}

fn hex(digits: &str) -> Vec<u8> {
    (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap()).collect()
}

const WORD_BITS: u64 = usize::BITS as u64;

/// Memory as an allocator gives it: aligned to 16, filled with a byte.
struct Memory(Vec<u128>);

impl Memory {
    fn new(bytes: usize, fill: u8) -> Self {
        Self(vec![u128::from_ne_bytes([fill; 16]); bytes.div_ceil(16) + 1])
    }

    fn start(&mut self) -> *mut u8 {
        self.0.as_mut_ptr().cast()
    }

    fn bytes(&self, range: std::ops::Range<usize>) -> Vec<u8> {
        let all: Vec<u8> = self.0.iter().flat_map(|word| word.to_ne_bytes()).collect();
        all[range].to_vec()
    }
}

#[test]
fn lws_metadata_is_laid_out_as_in_libwebsockets() {
    let mut checked = 0;
    for case in cases("lws_backtrace.json") {
        let id = &case["id"];
        let is_layout = case["group"] == "memory-layout" && case["word_bits"] == WORD_BITS;
        let is_capacity = case["group"] == "capacity" && WORD_BITS == 64;
        let is_encode = case["group"] == "encode" && case["blob_hex"].is_string();
        if !is_layout && !is_capacity && !is_encode {
            continue;
        }
        checked += 1;
        let addresses = numbers(&case["addresses"]);
        let size = number(&case["alloc_size"]);
        let mut buffer = vec![0; case["buffer_bytes"].as_u64().unwrap_or(lws::BLOB_BYTES as u64) as usize];
        let generated = lws::generate(&addresses, size, size_of::<usize>(), |_| (), &mut buffer);
        if let Some(blob) = case["blob_hex"].as_str() {
            assert_eq!(generated.blob(), hex(blob), "{id}");
            let key = if WORD_BITS == 64 { "prefix_bytes_64bit" } else { "prefix_bytes_32bit" };
            assert_eq!(generated.prefix_bytes(), number(&case[key]), "{id}");
        }
        if !is_layout {
            continue;
        }
        let image = hex(case["memory_hex"].as_str().unwrap());
        let fill = hex(case["fill_byte_before_blob"].as_str().unwrap())[0];
        let mut memory = Memory::new(generated.prefix_bytes() + size, fill);
        let origin = memory.start();
        let mut live = lws::Owner::new();
        // SAFETY: memory of that size, a list of our own.
        let user = unsafe { lws::adjust(&raw mut live, origin, &generated) };
        let (user_offset, node_offset) =
            (number(&case["user_pointer_offset"]), number(&case["list_node_offset"]));
        assert_eq!(user.addr() - origin.addr(), user_offset, "{id}");
        // Pad and blob; the node's pointers are zeroed in the image.
        assert_eq!(memory.bytes(0..node_offset), image[..node_offset], "{id}");

        // SAFETY: the block from above.
        let backtrace = unsafe { lws::parse(user) }.unwrap();
        assert_eq!(backtrace.allocation_size_bytes, size as u64, "{id}");
        assert!(backtrace.addresses.iter().map(|address| address.value() as usize).eq(addresses), "{id}");
        // SAFETY: as above.
        let trimmed = unsafe { lws::trim(&raw mut live, user, size_of::<usize>()) };
        assert_eq!(trimmed.origin, origin, "{id}");
        assert_eq!(trimmed.blob.addr() - origin.addr(), number(&case["blob_offset"]), "{id}");
        assert_eq!(trimmed.blob_bytes, number(&case["blob_bytes_without_length"]) + 2, "{id}");
        assert!(live.is_empty());
    }
    assert!(checked > 30, "only {checked} cases");
}

#[test]
fn stacks_are_snipped_as_in_libwebsockets() {
    let mut checked = 0;
    for case in cases("lws_backtrace.json").iter().filter(|case| case["group"] == "capture-trim") {
        let mut options = Options::new(BlockLayout::Lws);
        (options.pre, options.post) = (number(&case["pre"]), number(&case["post"]));
        let heap: Heap<_, 1> = Heap::new(Global(std::alloc::System), options);
        let user = heap.allocate(5, 1, false, numbers(&case["unwound"]).as_slice());
        // SAFETY: the block from above.
        let backtrace = unsafe { lws::parse(user) }.unwrap();
        let stored: Vec<usize> = backtrace.addresses.iter().map(|address| address.value() as usize).collect();
        assert_eq!(stored, numbers(&case["addresses"]), "{}", case["id"]);
        // SAFETY: the same.
        unsafe { heap.release(user, 1) };
        checked += 1;
    }
    assert!(checked >= 5, "only {checked} cases");
}

/// The blocks of every little-endian image of this word size, found where it lies.
#[test]
fn heapprof_images_are_walked() {
    let mut found_blocks = 0;
    for case in cases("heapprof.json") {
        let is_native = case["word_bits"] == WORD_BITS && case["endian"] == "little";
        if !is_native || !cfg!(target_endian = "little") || case["robust_alignment"].is_number() {
            continue;
        }
        let id = &case["id"];
        let image = match case["memory_file"].as_str() {
            Some(file) => std::fs::read(
                PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/vectors").join(file),
            )
            .unwrap(),
            None => hex(case["memory_hex"].as_str().unwrap()),
        };
        let expected = match &case["robust_blocks"] {
            Value::String(_) => &case["reference_blocks"],
            list => list,
        };
        let expected = expected.as_array().unwrap();
        // SAFETY: bytes of ours.
        let blocks: Vec<_> = unsafe { blocks::heapprof_blocks(image.as_ptr(), image.len()) }.collect();
        assert_eq!(blocks.len(), expected.len(), "{id}");
        for (block, expected) in blocks.iter().zip(expected) {
            let callers: Vec<usize> =
                numbers(&expected["callers"]).into_iter().filter(|caller| *caller != 0).collect();
            let mut addresses = [0; 97];
            let count = block.addresses(|_, _| 0, &mut addresses);
            assert_eq!(block.size_bytes(), number(&expected["size"]), "{id}");
            assert_eq!(addresses[..count], callers, "{id}");
            let words = numbers(&expected["callers"]).len() + 3;
            let user = number(&expected["offset"]) + (words * size_of::<usize>()).next_multiple_of(8);
            assert_eq!(block.user_address() - image.as_ptr().addr(), user, "{id}");
            found_blocks += 1;
        }
    }
    assert!(WORD_BITS != 64 || found_blocks > 20, "only {found_blocks} blocks");
}

/// A heap of the reference, read back: the same sizes and callers allocated here give the same
/// bytes.
#[test]
fn heapprof_blocks_are_written_as_by_the_reference() {
    let mut checked = 0;
    for case in cases("heapprof.json") {
        let note = case["note"].as_str().unwrap_or_default();
        if case["word_bits"] != WORD_BITS || case["endian"] != "little" || !note.contains("three live blocks")
        {
            continue;
        }
        let image = hex(case["memory_hex"].as_str().unwrap());
        for expected in case["reference_blocks"].as_array().unwrap() {
            let callers = numbers(&expected["callers"]);
            let (size, offset) = (number(&expected["size"]), number(&expected["offset"]));
            let mut options = Options::new(BlockLayout::Heapprof);
            options.callers = callers.len();
            let heap: Heap<_, 1> = Heap::new(Global(std::alloc::System), options);
            let user = heap.allocate(size, 1, false, callers.as_slice());
            let bytes = (callers.len() + 3) * size_of::<usize>();
            // SAFETY: the block's own header.
            let header =
                unsafe { std::slice::from_raw_parts(user.sub(bytes.next_multiple_of(8)), bytes) }.to_vec();
            assert_eq!(header, image[offset..offset + bytes], "{}", case["id"]);
            // SAFETY: the block from above.
            unsafe { heap.release(user, 1) };
            checked += 1;
        }
    }
    assert!(checked >= 3, "only {checked} blocks");
}
