//! XNU packing: the conformance vectors and properties.

mod support;

use cairn_format::{AbsoluteAddress, SliceSink};
use cairn_wire::xnu::{OutOfReach, PackCapacity, PackErrorKind, Packer, Packing, unpack, unpack_lenient};
use proptest::prelude::*;
use serde_json::Value;
use support::mutate::assert_changes_are_noticed;
use support::{cases, hex, hex_field, name, number, numbers, text, to_hex};

const FILE: &str = "xnu_backtrace.json";

fn addresses(case: &Value) -> Vec<AbsoluteAddress> {
    numbers(&case["addresses"]).into_iter().map(AbsoluteAddress::new).collect()
}

fn packing(case: &Value) -> Packing {
    match text(case, "packing") {
        "none" => Packing::None,
        "kern_offset_32" => {
            Packing::KernelOffset32 { kernel_base: AbsoluteAddress::new(number(&case["kernel_base"])) }
        }
        other => panic!("{}: unknown packing {other}", name(case)),
    }
}

#[test]
fn vectors_have_a_test_for_every_group() {
    for case in cases(FILE, None) {
        // The walks read memory rather than a format; they are checked where walking lives.
        let group = text(&case, "group");
        assert!(["pack", "unpack", "user-walk", "kernel-walk"].contains(&group), "{}: {group}", name(&case));
    }
}

// Failed with: unnoticed changes of `kernel_base` and of addresses that do not fit.
#[test]
fn xnu_vectors_hold_and_every_field_is_judged() {
    let unjudged = [
        ("pack/addresses/*", 31, "input: an address that does not fit into the buffer"),
        ("pack/addresses[]", 13, "input: the same"),
        ("pack/kernel_base", 10, "input: of whole words, or with no room for an address"),
        ("pack/untouched_byte", 14, "input: a full buffer has no such byte"),
    ];
    assert_changes_are_noticed(&cases(FILE, Some("pack")), check_pack, &unjudged);
    let unjudged = [
        ("unpack/kernel_base", 5, "input: of whole words, or with no room for an address"),
        ("unpack/packed_hex", 8, "input: bytes behind the last slot or the last whole entry"),
        ("unpack/slots", 6, "input: more than there are entries"),
    ];
    assert_changes_are_noticed(&cases(FILE, Some("unpack")), check_unpack, &unjudged);
}

fn check_pack(case: &Value) {
    {
        let case_name = name(case);
        let (stack, packing) = (addresses(case), packing(case));
        let out_of_reach: Vec<usize> = match &case["out_of_reach"] {
            Value::Null => Vec::new(),
            list => numbers(list).into_iter().map(|index| index as usize).collect(),
        };
        if let Packing::KernelOffset32 { kernel_base } = packing {
            let distance =
                |address: &AbsoluteAddress| address.value().wrapping_sub(kernel_base.value()) as i64;
            let is_far = |index: &usize| i32::try_from(distance(&stack[*index])).is_err();
            assert!((0..stack.len()).filter(is_far).eq(out_of_reach.iter().copied()), "{case_name}");
        }
        let untouched = hex_field(case, "untouched_byte")[0];
        let blank = vec![untouched; number(&case["buffer_bytes"]) as usize];
        let returned_size = number(&case["returned_size"]) as usize;
        let width = packing.entry_bytes();

        let x86_64 = match &case["out_of_reach_address"] {
            Value::Null => OutOfReach::Error,
            address => OutOfReach::Sentinel(AbsoluteAddress::new(number(address))),
        };
        let mut variants = vec![(x86_64, text(case, "buffer_hex"))];
        if let Some(buffer_hex) = case["buffer_hex_arm64_release"].as_str() {
            variants.push((OutOfReach::KeepLow32, buffer_hex));
        }
        for (policy, expected) in variants {
            let packer = Packer::new(packing).out_of_reach(policy);
            let mut buffer = blank.clone();
            let packed = packer.capacity(PackCapacity::Xnu).pack(stack.iter().copied(), &mut buffer).unwrap();
            assert_eq!(to_hex(&buffer), expected, "{case_name}");
            assert_eq!(packed.size_bytes, returned_size, "{case_name}");
            assert_eq!(packed.count * width, returned_size, "{case_name}");

            // The same bytes, but every written entry counted.
            let mut exact_buffer = blank.clone();
            let exact = packer.pack(stack.iter().copied(), &mut exact_buffer).unwrap();
            assert_eq!(exact_buffer, buffer, "{case_name}");
            assert_eq!(exact.count, stack.len().min(blank.len() / width), "{case_name}");
            assert_eq!(exact.size_bytes, exact.count * width, "{case_name}");
            assert_eq!(exact.truncated, exact.count < stack.len(), "{case_name}");
        }

        let refused = Packer::new(packing).pack(stack.iter().copied(), &mut blank.clone());
        match out_of_reach.first() {
            None => assert!(refused.is_ok(), "{case_name}"),
            Some(&index) => {
                let error = refused.unwrap_err();
                assert_eq!(error.kind, PackErrorKind::OutOfReach(stack[index]), "{case_name}");
                assert_eq!(error.offset, index * width, "{case_name}");
            }
        }
    }
}

fn check_unpack(case: &Value) {
    {
        let case_name = name(case);
        let packed = hex(text(case, "packed_hex"));
        let slots = number(&case["slots"]) as usize;
        let packing = packing(case);
        let lenient: Vec<_> = unpack_lenient(&packed, packing).take(slots).collect();
        assert_eq!(lenient, addresses(case), "{case_name}");
        match unpack(&packed, packing) {
            Ok(strict) => {
                assert_eq!(packed.len() % packing.entry_bytes(), 0, "{case_name}");
                assert_eq!(strict.take(slots).collect::<Vec<_>>(), lenient, "{case_name}");
            }
            Err(error) => {
                assert_ne!(packed.len() % packing.entry_bytes(), 0, "{case_name}");
                assert_eq!(
                    error.offset,
                    packed.len() / packing.entry_bytes() * packing.entry_bytes(),
                    "{case_name}"
                );
            }
        }
    }
}

#[test]
fn xnu_errors_state_fault_and_offset() {
    let packing = Packing::KernelOffset32 { kernel_base: AbsoluteAddress::new(0x1000) };
    let stack = [0x1004, 0x8000_1000].map(AbsoluteAddress::new);
    let error = Packer::new(packing).pack(stack, &mut [0; 64]).unwrap_err();
    assert_eq!(error.to_string(), "0x80001000 is out of reach of the kernel base for the entry at byte 4");
    let mut buffer = [0; 4];
    let error = Packer::new(packing).encode([stack[0]; 2], &mut SliceSink::new(&mut buffer)).unwrap_err();
    assert_eq!(error.to_string(), "the output is full at byte 4");
    assert_eq!(buffer, [4, 0, 0, 0]);
    let error = unpack(&[0; 6], packing).unwrap_err();
    assert_eq!(error.to_string(), "the packed backtrace ends inside the entry at byte 4");
}

fn any_packing() -> impl Strategy<Value = Packing> {
    prop_oneof![
        Just(Packing::None),
        any::<u64>().prop_map(|base| Packing::KernelOffset32 { kernel_base: AbsoluteAddress::new(base) }),
    ]
}

proptest! {
    #[test]
    fn xnu_round_trips_stacks_in_reach(
        base: u64,
        distances in prop::collection::vec(any::<i32>(), 0..40),
        room in 0_usize..400,
    ) {
        let kernel_base = AbsoluteAddress::new(base);
        let stack: Vec<_> = distances
            .iter()
            .map(|&distance| AbsoluteAddress::new(base.wrapping_add_signed(distance.into())))
            .collect();
        for packing in [Packing::None, Packing::KernelOffset32 { kernel_base }] {
            let mut buffer = vec![0xee; room];
            let packed = Packer::new(packing).pack(stack.iter().copied(), &mut buffer).unwrap();
            prop_assert_eq!(packed.count, stack.len().min(room / packing.entry_bytes()));
            let (written, untouched) = buffer.split_at(packed.size_bytes);
            prop_assert!(unpack(written, packing).unwrap().eq(stack[..packed.count].iter().copied()));
            prop_assert!(untouched.iter().all(|&byte| byte == 0xee));

            let mut whole = vec![0; 400];
            let mut sink = SliceSink::new(&mut whole);
            let size = Packer::new(packing).encode(stack.iter().copied(), &mut sink).unwrap();
            prop_assert_eq!(size, sink.written().len());
            prop_assert!(sink.written().starts_with(written));

            let counted = Packer::new(packing).capacity(PackCapacity::Xnu).pack(stack.iter().copied(), &mut buffer);
            prop_assert!(counted.unwrap().size_bytes < room.max(1));
        }
    }

    #[test]
    fn xnu_unpacks_any_bytes(packing in any_packing(), bytes in prop::collection::vec(any::<u8>(), 0..100)) {
        let lenient = unpack_lenient(&bytes, packing);
        prop_assert_eq!(lenient.len() * packing.entry_bytes() + lenient.trailing_bytes().len(), bytes.len());
        if let Ok(strict) = unpack(&bytes, packing) {
            prop_assert!(strict.eq(lenient));
        }
    }
}
