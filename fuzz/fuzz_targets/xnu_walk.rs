//! Walks over any memory: no panic, no endless loop, and the corrected walks record what the kernel
//! records.
//!
//! The input is `| options: u8 | room: u8 | fp: u16 | memory |`; the memory lies at 0x7000.

#![no_main]

use cairn_format::{AbsoluteAddress, WordSize};
use cairn_unwind::xnu::{KernelWalk, OutOfReach, Packing, Quirks, UserWalk, Validity};
use cairn_unwind::{AddressRange, FramePointerWalk, OneModule, Registers, SliceMemory, Walk, x86_64::X86_64};
use libfuzzer_sys::fuzz_target;

const BASE: u64 = 0x7000;

fuzz_target!(|input: &[u8]| {
    let Some((&[options, room, low, high], bytes)) = input.split_first_chunk::<4>() else { return };
    let at = AbsoluteAddress::new;
    let memory = SliceMemory::new(at(BASE), bytes);
    let stack = AddressRange::new(at(BASE), at(BASE + bytes.len() as u64));
    let fp = BASE.wrapping_add(u64::from(u16::from_le_bytes([low, high]))).wrapping_sub(16);
    let word_size = if options & 1 != 0 { WordSize::Bits32 } else { WordSize::Bits64 };
    let validity = if options & 2 != 0 { Validity::Arm64 } else { Validity::X86_64 };

    let mut walk = UserWalk::new(1, fp, word_size, validity);
    walk.start_frame = (options & 4 != 0).then(|| at(fp));
    let mut addresses = vec![at(0); usize::from(room)];
    let corrected = walk.run(&memory, &mut addresses);
    let recorded = addresses[..corrected.count].to_vec();
    if let Some(follow_up) = walk.run_async(&memory, &corrected, &mut addresses) {
        assert!(follow_up.count <= usize::from(room));
    }
    walk.quirks = Quirks::Xnu;
    let xnu = walk.run(&memory, &mut addresses);
    assert_eq!(addresses[..xnu.count], recorded);
    assert!(xnu.truncated || !corrected.truncated);
    assert!(corrected.next_frame.is_none() || corrected.next_frame == xnu.next_frame);

    let mut kernel = KernelWalk::new(fp, stack);
    let cut = kernel.run(&memory, &mut addresses);
    let mut packed = vec![0; usize::from(room) * 8];
    let packed_cut = kernel
        .run_packed(&memory, Packing::None, OutOfReach::Error, &mut packed)
        .expect("words reach everywhere");
    assert_eq!((packed_cut.count, packed_cut.truncated), (cut.count * 8, cut.truncated));
    kernel.quirks = Quirks::Xnu;
    let packing = Packing::KernelOffset32 { kernel_base: at(BASE) };
    for out_of_reach in [OutOfReach::Error, OutOfReach::KeepLow32, OutOfReach::Sentinel(at(BASE))] {
        let _ = kernel.run_packed(&memory, packing, out_of_reach, &mut packed);
    }

    let mut records = FramePointerWalk::new(memory, fp, stack, word_size);
    let count = records.by_ref().count();
    assert!(count <= bytes.len() / 8 && records.stop_reason().is_some());

    let program = OneModule::new(AddressRange::ALL, None);
    let mut walk = Walk::new(Registers::<X86_64>::new(0x1000, BASE, fp), memory, program).with_stack(stack);
    assert!(walk.by_ref().count() <= bytes.len() / 8 + 1 && walk.stop_reason().is_some());
});
