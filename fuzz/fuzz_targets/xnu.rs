//! Whatever the bytes and the base: unpacking gives whole entries, and packing them again gives the
//! same bytes.
#![no_main]

use cairn_format::AbsoluteAddress;
use cairn_wire::xnu::{Packer, Packing, unpack, unpack_lenient};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((base, packed)) = data.split_first_chunk() else { return };
    let kernel_base = AbsoluteAddress::new(u64::from_le_bytes(*base));
    for packing in [Packing::None, Packing::KernelOffset32 { kernel_base }] {
        let lenient = unpack_lenient(packed, packing);
        let whole = packed.len() - lenient.trailing_bytes().len();
        assert_eq!(unpack(packed, packing).is_ok(), lenient.trailing_bytes().is_empty());
        assert_eq!(lenient.len() * packing.entry_bytes(), whole);

        let mut repacked = vec![0; whole];
        let result = Packer::new(packing).pack(lenient, &mut repacked).unwrap();
        assert_eq!(result.size_bytes, whole);
        assert!(!result.truncated);
        assert_eq!(repacked, packed[..whole]);
    }
});
