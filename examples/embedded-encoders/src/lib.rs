//! Two C functions for a small device, which turn a captured stack into bytes to store or to print.
//!
//! No std, no allocator, no formatting, no panic that can be reached. `cargo xtask bench code-size`
//! builds this for several processors and reports how many bytes of machine code it comes to.
//!
//! ```c
//! size_t cairn_cbf_encode(const uintptr_t *addresses, size_t count, uint8_t *buffer, size_t capacity);
//! size_t cairn_lws_encode(const uintptr_t *addresses, size_t count, uint64_t allocation_size_bytes,
//!                         uint8_t *buffer, size_t capacity);
//! ```

#![no_std]

use core::panic::PanicInfo;
use core::slice;

use cairn_format::{AbsoluteAddress, Frame, SliceSink, WordSize};
use cairn_wire::cbf::{CbfDialect, CbfEncoder};
use cairn_wire::lws;

/// Nothing here panics; the language requires a handler nevertheless.
#[panic_handler]
fn panic(_info: &PanicInfo<'_>) -> ! {
    loop {}
}

/// Writes `count` return addresses, innermost first, as one Compact Backtrace Format record.
/// Answers the number of bytes, or 0 when they do not fit.
///
/// # Safety
///
/// - `addresses` points to `count` words, `buffer` to `capacity` bytes; the two do not overlap.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairn_cbf_encode(
    addresses: *const usize,
    count: usize,
    buffer: *mut u8,
    capacity: usize,
) -> usize {
    // SAFETY: the caller vouches for both.
    let (addresses, buffer) =
        unsafe { (slice::from_raw_parts(addresses, count), slice::from_raw_parts_mut(buffer, capacity)) };
    cbf(addresses, buffer).unwrap_or(0)
}

/// Writes a libwebsockets blob: up to 31 return addresses, innermost first, and a size. Answers the
/// number of bytes, or 0 when it cannot be written.
///
/// # Safety
///
/// - `addresses` points to `count` words, `buffer` to `capacity` bytes; the two do not overlap.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairn_lws_encode(
    addresses: *const usize,
    count: usize,
    allocation_size_bytes: u64,
    buffer: *mut u8,
    capacity: usize,
) -> usize {
    // SAFETY: the caller vouches for both.
    let (addresses, buffer) =
        unsafe { (slice::from_raw_parts(addresses, count), slice::from_raw_parts_mut(buffer, capacity)) };
    lws_blob(addresses, allocation_size_bytes, buffer).unwrap_or(0)
}

fn cbf(addresses: &[usize], buffer: &mut [u8]) -> Option<usize> {
    let mut encoder = CbfEncoder::new(SliceSink::new(buffer), WordSize::NATIVE, CbfDialect::Strict).ok()?;
    for &address in addresses {
        encoder.push(Frame::ReturnAddress(AbsoluteAddress::new(address as u64))).ok()?;
    }
    Some(encoder.finish().ok()?.written().len())
}

fn lws_blob(addresses: &[usize], allocation_size_bytes: u64, buffer: &mut [u8]) -> Option<usize> {
    let mut encoder = lws::LwsEncoder::new(SliceSink::new(buffer), addresses.len()).ok()?;
    for &address in addresses {
        encoder.address(AbsoluteAddress::new(address as u64)).ok()?;
    }
    Some(encoder.allocation_size(allocation_size_bytes).ok()?.close().ok()?.0)
}
