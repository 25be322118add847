//! Encodes captured stacks in the wire formats, into a buffer of the caller.

use core::ffi::c_int;
use core::slice;

use cairn_capture::{FoldRecursion, Stack};
use cairn_format::{AbsoluteAddress, CountingSink, Frame, Sink, SliceSink, WordSize};
use cairn_wire::cbf::{self, CaptureLimit, CbfDialect};
use cairn_wire::lws::{self, LwsEncodeErrorKind};

use crate::capture::{
    CAIRN_ERROR_ARGUMENT, CAIRN_ERROR_BUFFER, CAIRN_ERROR_FORMAT, CAIRN_ERROR_STACK, CairnStackId, known,
};
use crate::versioned;

/// Selects the frames of a stack to encode. Fill it with zeros, set type_size, then the fields that
/// you need: zeros mean the whole stack.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CairnPick {
    /// Size of this struct.
    pub type_size: usize,
    /// Number of innermost frames to leave out, without a mark: those of your own hook.
    pub skip_innermost: u32,
    /// Number of outermost frames to leave out, without a mark, if there are more than these.
    pub drop_outermost: u32,
    /// Maximum number of entries, 0 for all. The others are replaced by one entry with their
    /// number.
    pub limit: u32,
    /// Number of entries within the limit that are taken from the outer end; those between are left
    /// out.
    pub keep_outermost: u32,
    /// Nonzero: rounds of recursion, of up to eight functions, are stored once and counted.
    pub fold_recursion: u32,
    /// Zero.
    pub reserved: [u32; 7],
}

const _: () = assert!(size_of::<CairnPick>() == 56);

/// Maximum functions in a round of recursion that is folded.
const FOLDED_ROUND: usize = 8;

impl CairnPick {
    const ALL: Self = Self {
        type_size: size_of::<Self>(),
        skip_innermost: 0,
        drop_outermost: 0,
        limit: 0,
        keep_outermost: 0,
        fold_recursion: 0,
        reserved: [0; 7],
    };

    /// Reads the struct of any version. Fields that the caller does not know are zero; fields that
    /// this library does not know must be zero.
    ///
    /// # Safety
    ///
    /// `pick` is null or points to as many bytes as its first field states.
    unsafe fn read(pick: *const Self) -> Result<Self, c_int> {
        if pick.is_null() {
            return Ok(Self::ALL);
        }
        // SAFETY: the caller promises that `pick` is null or points to as many bytes as it says;
        // the struct is made of numbers.
        let known = unsafe { versioned::take(pick, Self::ALL) };
        known.filter(|known| known.reserved == [0; 7]).ok_or(CAIRN_ERROR_ARGUMENT)
    }
}

/// Encodes a stack in the Compact Backtrace Format into buffer. Returns the bytes used, or a
/// negative CAIRN_ERROR_... With a null buffer it returns the bytes needed. pick may be null for
/// the whole stack. A stack whose end could not be reached is marked as truncated.
///
/// It may be called in a signal handler.
///
/// # Safety
///
/// `pick` is null or valid; `buffer` is null or has `size_bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairn_stack_encode_cbf(
    stack: CairnStackId,
    pick: *const CairnPick,
    buffer: *mut u8,
    size_bytes: usize,
) -> isize {
    // SAFETY: the caller promises that `pick` is null or valid; `buffer` is null or has
    // `size_bytes` bytes.
    let encoded = unsafe { with_frames(stack, pick) }.and_then(|(stack, pick)| {
        // SAFETY: the caller promises that `pick` is null or valid; `buffer` is null or has
        // `size_bytes` bytes.
        unsafe { into_buffer(buffer, size_bytes, |sink| encode_cbf(stack, &pick, sink)) }
    });
    encoded.unwrap_or_else(|error| error as isize)
}

/// Encodes a stack and the size of an allocation as a compressed backtrace of libwebsockets. Writes
/// it into buffer and returns the bytes used, or a negative CAIRN_ERROR_... With a null buffer it
/// returns the bytes needed. pick may be null for the whole stack.
///
/// A blob holds up to 31 addresses, the innermost ones of those picked, and no marks. 296 bytes
/// hold every blob.
///
/// It may be called in a signal handler.
///
/// # Safety
///
/// `pick` is null or valid; `buffer` is null or has `size_bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairn_stack_encode_lws(
    stack: CairnStackId,
    pick: *const CairnPick,
    allocation_size_bytes: u64,
    buffer: *mut u8,
    size_bytes: usize,
) -> isize {
    // SAFETY: the caller promises that `pick` is null or valid; `buffer` is null or has
    // `size_bytes` bytes.
    let encoded = unsafe { with_frames(stack, pick) }.and_then(|(stack, pick)| {
        let encode = |sink: &mut dyn Sink| encode_lws(stack, &pick, allocation_size_bytes, sink);
        // SAFETY: the caller promises that `pick` is null or valid; `buffer` is null or has
        // `size_bytes` bytes.
        unsafe { into_buffer(buffer, size_bytes, encode) }
    });
    encoded.unwrap_or_else(|error| error as isize)
}

/// # Safety
///
/// `pick` is null or points to as many bytes as its first field states.
unsafe fn with_frames(stack: CairnStackId, pick: *const CairnPick) -> Result<(Stack, CairnPick), c_int> {
    // SAFETY: the caller promises that `pick` is null or points to as many bytes as its first field
    // states.
    let pick = unsafe { CairnPick::read(pick)? };
    Ok((known(stack).ok_or(CAIRN_ERROR_STACK)?, pick))
}

/// Encodes into the caller's buffer, or counts the bytes if there is none.
///
/// # Safety
///
/// `buffer` is null or has `size_bytes` bytes.
unsafe fn into_buffer(
    buffer: *mut u8,
    size_bytes: usize,
    encode: impl FnOnce(&mut dyn Sink) -> Result<(), c_int>,
) -> Result<isize, c_int> {
    let used = if buffer.is_null() {
        let mut sink = CountingSink::default();
        encode(&mut sink)?;
        sink.count
    } else {
        // No object is larger, and a slice must not be either.
        let size_bytes = size_bytes.min(isize::MAX as usize);
        // SAFETY: the caller promises that `buffer` is null or has `size_bytes` bytes.
        let mut sink = SliceSink::new(unsafe { slice::from_raw_parts_mut(buffer, size_bytes) });
        encode(&mut sink)?;
        sink.written().len()
    };
    Ok(used as isize)
}

fn encode_cbf(stack: Stack, pick: &CairnPick, sink: &mut dyn Sink) -> Result<(), c_int> {
    picked(stack, pick, |frames| {
        cbf::encode(frames, WordSize::NATIVE, CbfDialect::Strict, sink).map_err(|error| match error {
            cbf::CbfEncodeError::SinkFull => CAIRN_ERROR_BUFFER,
            _ => CAIRN_ERROR_FORMAT,
        })
    })
}

fn encode_lws(stack: Stack, pick: &CairnPick, size_bytes: u64, sink: &mut dyn Sink) -> Result<(), c_int> {
    let code = |error: lws::LwsEncodeError| match error.kind {
        LwsEncodeErrorKind::SinkFull => CAIRN_ERROR_BUFFER,
        _ => CAIRN_ERROR_FORMAT,
    };
    // The depth comes first in a blob.
    let depth = picked(stack, pick, |frames| Ok(addresses(frames).count()))?;
    picked(stack, pick, |frames| {
        let mut encoder = lws::LwsEncoder::new(sink, depth).map_err(code)?;
        for address in addresses(frames) {
            encoder.address(address).map_err(code)?;
        }
        encoder.allocation_size(size_bytes).and_then(lws::OpenBlob::close).map(drop).map_err(code)
    })
}

/// Returns the frames that a blob can hold.
fn addresses(frames: &mut dyn Iterator<Item = Frame>) -> impl Iterator<Item = AbsoluteAddress> {
    frames.filter_map(Frame::address).take(lws::MAX_DEPTH)
}

/// Passes the frames that `pick` selects to `encode`.
fn picked<R>(
    stack: Stack,
    pick: &CairnPick,
    encode: impl FnOnce(&mut dyn Iterator<Item = Frame>) -> Result<R, c_int>,
) -> Result<R, c_int> {
    let frames = stack.frames().skip(pick.skip_innermost as usize);
    let (count, post) = (frames.clone().count(), pick.drop_outermost as usize);
    let frames = frames.take(if count > post { count - post } else { count });
    let mark = stack.marked_frames().last().filter(|&last| last == Frame::Truncated);
    if pick.fold_recursion == 0 {
        limited(frames.chain(mark), pick, encode)
    } else {
        limited(FoldRecursion::<_, FOLDED_ROUND>::new(frames).chain(mark), pick, encode)
    }
}

fn limited<R>(
    mut frames: impl Iterator<Item = Frame> + Clone,
    pick: &CairnPick,
    encode: impl FnOnce(&mut dyn Iterator<Item = Frame>) -> Result<R, c_int>,
) -> Result<R, c_int> {
    if pick.limit == 0 {
        return encode(&mut frames);
    }
    let limit = CaptureLimit { limit: pick.limit as usize, offset: 0, top: pick.keep_outermost as usize };
    let depth = frames.clone().count() as u64;
    encode(&mut limit.known_length(frames, depth))
}
