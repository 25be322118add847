//! XNU packing: whole words, and 32-bit distances from a kernel base (for which the low addresses
//! stand in).

use cairn_format::AbsoluteAddress;
use cairn_wire::xnu::{Packer, Packing, unpack};

use super::{CAIRN, Inputs, LOW, REAL, fold, used};
use crate::corpus::Stacks;
use crate::measure::{Case, Unit};
use crate::records::Records;

/// All low addresses are within 2 GiB of it.
const KERNEL_BASE: AbsoluteAddress = AbsoluteAddress::new(0x4000_0000);

pub(crate) fn add<'a>(inputs: &'a Inputs, cases: &mut Vec<Case<'a>>) {
    let words = ("XNU pack words", "XNU unpack words", REAL, &inputs.real, Packing::None);
    let offset = Packing::KernelOffset32 { kernel_base: KERNEL_BASE };
    let offsets = ("XNU pack offsets", "XNU unpack offsets", LOW, &inputs.low, offset);
    for (pack_name, unpack_name, input, stacks, packing) in [words, offsets] {
        let mut records = Records::default();
        for stack in stacks.iter() {
            records.push(|sink| {
                Packer::new(packing)
                    .encode(stack.addresses.iter().copied(), sink)
                    .expect("addresses in reach");
            });
        }
        for (stack, record) in stacks.iter().zip(records.iter()) {
            let unpacked = unpack(record, packing).expect("whole entries");
            assert!(unpacked.eq(stack.addresses.iter().copied()), "XNU packing does not round-trip");
        }
        let bytes = records.bytes();
        let case = |operation, pass| Case {
            operation,
            implementation: CAIRN,
            input,
            unit: Unit::Frame,
            units: stacks.frames(),
            bytes,
            pass,
        };
        cases.push(case(pack_name, Box::new(move || pack_all(stacks, packing))));
        cases.push(case(unpack_name, Box::new(move || unpack_all(&records, packing))));
    }
}

fn pack_all(stacks: &Stacks, packing: Packing) -> u64 {
    let mut buffer = [0; 8 * 512];
    let mut written = 0;
    for stack in stacks.iter() {
        let addresses = stack.addresses.iter().copied();
        let packed = Packer::new(packing).pack(addresses, &mut buffer).expect("addresses in reach");
        written += used(&buffer[..packed.size_bytes]);
    }
    written
}

fn unpack_all(records: &Records, packing: Packing) -> u64 {
    let addresses = records.iter().flat_map(|record| unpack(record, packing).expect("whole entries"));
    addresses.fold(0, |checksum, address| fold(checksum, address.value()))
}
