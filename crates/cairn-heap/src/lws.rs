//! The layout of libwebsockets, as raw functions: for a custom allocator that is instrumented line
//! by line, as libwebsockets' document describes. `docs/book/reference/annotate.md` in the
//! repository maps its names to these.
//!
//! ```
//! use core::ptr;
//! use cairn_heap::lws;
//!
//! // malloc
//! let (size, stack) = (7520, [0x406651, 0x406852, 0x406c1b, 0x406294]);
//! let mut blob = [0; lws::BLOB_BYTES];
//! let generated = lws::generate(&stack, size, 16, |_| (), &mut blob);
//! let mut memory = vec![0_u128; (generated.prefix_bytes() + size).div_ceil(16)];
//! let origin = memory.as_mut_ptr().cast::<u8>();
//! let mut live = lws::Owner::new();
//! // SAFETY: fresh memory of that size, and a list that is used here alone.
//! let user = unsafe { lws::adjust(&raw mut live, origin, &generated) };
//! assert_eq!(user as usize % 16, 0);
//!
//! // A report.
//! // SAFETY: the block above, and no other code uses the list.
//! let lines = unsafe { lws::live(&raw const live) }.map(|block| {
//!     let mut line = Vec::new();
//!     block.write_line(&mut lws::line_sink(|bytes| line.extend_from_slice(bytes))).unwrap();
//!     String::from_utf8(line).unwrap()
//! });
//! assert_eq!(lines.collect::<Vec<_>>(), ["~m#IF0BmUQugNCkgCnkhdAYpQa6wAAV\n"]);
//!
//! // free
//! // SAFETY: the block above, which is used no more.
//! let trimmed = unsafe { lws::trim(&raw mut live, user, 16) };
//! assert_eq!(trimmed.origin, origin);
//! assert!(live.is_empty());
//! ```
//!
//! # Locking
//!
//! [`adjust`], [`trim`] and [`live`] change or read a list, which the caller has to lock meanwhile.
//! [`generate`] and [`parse`] use no shared data. [`Heap`](crate::Heap) locks its lists itself.

use core::marker::PhantomData;
use core::{ptr, slice};

use cairn_format::{AbsoluteAddress, Sink, SinkFull, SliceSink, WordSize};
use cairn_wire::bits::BitWriter;
use cairn_wire::lws::{
    self as format, Backtrace, Blob, GIVE_UP_BLOB, LwsEncodeError, LwsEncoder, LwsError, log_line,
};

/// Room for any blob without many fields of the caller.
pub const BLOB_BYTES: usize = format::BLOB_BUFFER_BYTES;

const WORD_BYTES: usize = size_of::<usize>();
const NODE_BYTES: usize = size_of::<Node>();

/// Links of a live block in its list, in front of the user's bytes.
#[repr(C)]
#[derive(Debug)]
pub struct Node {
    previous: *mut Node,
    next: *mut Node,
    owner: *mut Owner,
}

/// A list of live blocks, oldest first. The fields have the order of libwebsockets, so that a
/// debugger's scripts for it work.
#[repr(C)]
#[derive(Debug)]
pub struct Owner {
    tail: *mut Node,
    head: *mut Node,
    count: usize,
}

const _: () = assert!(NODE_BYTES == 3 * WORD_BYTES && size_of::<Owner>() == 3 * WORD_BYTES);

impl Owner {
    /// Returns an empty list.
    #[must_use]
    pub const fn new() -> Self {
        Self { tail: ptr::null_mut(), head: ptr::null_mut(), count: 0 }
    }

    /// Returns the number of blocks.
    #[must_use]
    pub const fn count(&self) -> usize {
        self.count
    }

    /// Returns true for an empty list.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }
}

impl Default for Owner {
    fn default() -> Self {
        Self::new()
    }
}

/// The prefix of a block.
#[derive(Clone, Copy, Debug)]
pub struct Generated<'b> {
    blob: &'b [u8],
    prefix_bytes: usize,
}

impl Generated<'_> {
    /// Returns the bytes to allocate beyond the user's: a multiple of the alignment.
    #[must_use]
    pub const fn prefix_bytes(&self) -> usize {
        self.prefix_bytes
    }

    /// Returns the blob: backtrace, size, the caller's fields, length.
    #[must_use]
    pub const fn blob(&self) -> &[u8] {
        self.blob
    }
}

/// Compresses a stack, innermost first (at most 31 addresses of it), and a size. `alignment` is
/// that of the allocator's blocks: a power of two, at least a word. `user_fields` may append fields
/// of the program.
///
/// As in libwebsockets, a blob must be shorter than `buffer`; one that is not, or cannot be
/// written, is replaced by the blob that marks a failure.
pub fn generate<'b>(
    addresses: &[usize],
    size: usize,
    alignment: usize,
    user_fields: impl FnOnce(&mut BitWriter<SliceSink<'_>>),
    buffer: &'b mut [u8],
) -> Generated<'b> {
    let addresses = addresses.get(..format::MAX_DEPTH).unwrap_or(addresses);
    let usable_bytes = buffer.len().saturating_sub(1);
    let usable = buffer.get_mut(..usable_bytes).unwrap_or_default();
    let blob = match encode(addresses, size, user_fields, usable) {
        Ok((bytes, _)) => buffer.get(..bytes).unwrap_or_default(),
        Err(_) => &GIVE_UP_BLOB,
    };
    Generated { blob, prefix_bytes: prefix_bytes(blob.len(), alignment) }
}

/// Encodes a blob; returns its length, and the bits of its backtrace.
pub(crate) fn encode(
    addresses: &[usize],
    size: usize,
    user_fields: impl FnOnce(&mut BitWriter<SliceSink<'_>>),
    buffer: &mut [u8],
) -> Result<(usize, u64), LwsEncodeError> {
    let mut encoder = LwsEncoder::new(SliceSink::new(buffer), addresses.len())?;
    for address in addresses {
        encoder.address(AbsoluteAddress::new(*address as u64))?;
    }
    let backtrace_bits = encoder.backtrace_bits();
    let mut open = encoder.allocation_size(size as u64)?;
    user_fields(open.user_fields());
    Ok((open.close()?.0, backtrace_bits))
}

/// Pad, blob and node together. At an alignment of one word this is libwebsockets' own arithmetic;
/// at a larger one, the pad at the low end is larger.
const fn prefix_bytes(blob_bytes: usize, alignment: usize) -> usize {
    // A blob has at most 65,535 bytes.
    (blob_bytes.next_multiple_of(WORD_BYTES) + NODE_BYTES).next_multiple_of(alignment)
}

/// Writes the prefix to the start of an allocation and appends the block to its list. Returns the
/// user's address.
///
/// # Safety
///
/// - `origin` is memory of at least `generated.prefix_bytes()`, with the alignment that was
///   generated for.
/// - `owner` is a list that nobody else uses at this moment, and that stays where it is.
pub unsafe fn adjust(owner: *mut Owner, origin: *mut u8, generated: &Generated<'_>) -> *mut u8 {
    // SAFETY: the caller promises that `origin` is memory of at least `generated.prefix_bytes()`,
    // with the alignment that was generated for; `owner` is a list that nobody else uses at this
    // moment, and that stays where it is.
    unsafe {
        let user = origin.add(generated.prefix_bytes);
        write_before(user, generated.blob);
        link(owner, node_of(user));
        user
    }
}

/// Writes the blob in front of the node in front of `user`.
///
/// # Safety
///
/// The bytes in front of `user` have room for blob and node.
pub(crate) unsafe fn write_before(user: *mut u8, blob: &[u8]) {
    // SAFETY: the caller promises room in front of `user`.
    unsafe {
        let place = node_of(user).cast::<u8>().sub(blob.len());
        ptr::copy_nonoverlapping(blob.as_ptr(), place, blob.len());
    }
}

/// # Safety
///
/// `user` is the user address of a block with this layout.
pub(crate) const unsafe fn node_of(user: *mut u8) -> *mut Node {
    // SAFETY: the caller promises the user address of a block, which has a node in front of it.
    unsafe { user.cast::<Node>().sub(1) }
}

/// Returns the word that holds the list of a block, of an address that may be no block.
///
/// # Safety
///
/// The word before `user` may be read.
pub(crate) const unsafe fn owner_of(user: *const u8) -> *mut Owner {
    // SAFETY: the last field of the node.
    unsafe { *user.cast::<*mut Owner>().sub(1) }
}

/// # Safety
///
/// `node` is on no list, `owner` is used by nobody else now.
pub(crate) unsafe fn link(owner: *mut Owner, node: *mut Node) {
    // SAFETY: the caller promises that `node` is on no list, `owner` is used by nobody else now;
    // nodes on a list are in live blocks.
    unsafe {
        let last = (*owner).tail;
        node.write(Node { previous: last, next: ptr::null_mut(), owner });
        match last.as_mut() {
            Some(last) => last.next = node,
            None => (*owner).head = node,
        }
        (*owner).tail = node;
        (*owner).count += 1;
    }
}

/// # Safety
///
/// `node` is on `owner`'s list, which is used by nobody else now.
pub(crate) unsafe fn unlink(owner: *mut Owner, node: *mut Node) {
    // SAFETY: the caller promises that `node` is on `owner`'s list, which is used by nobody else
    // now; nodes on a list are in live blocks.
    unsafe {
        let Node { previous, next, .. } = *node;
        match previous.as_mut() {
            Some(previous) => previous.next = next,
            None => (*owner).head = next,
        }
        match next.as_mut() {
            Some(next) => next.previous = previous,
            None => (*owner).tail = previous,
        }
        (*owner).count = (*owner).count.saturating_sub(1);
        // Marks it as no block for a later free or resize.
        (*node).owner = ptr::null_mut();
    }
}

/// The prefix of a block that is about to be freed.
#[derive(Clone, Copy, Debug)]
pub struct Trimmed {
    /// Address to release to the underlying allocator.
    pub origin: *mut u8,
    /// Address of the blob until then.
    pub blob: *const u8,
    /// Length of the blob; 2 if it marks a failure.
    pub blob_bytes: usize,
}

/// Removes a block from its list; returns the start of the underlying allocation.
///
/// # Safety
///
/// - `user` was returned by [`adjust`] for `owner`, with a prefix for `alignment`.
/// - Nobody else uses the list meanwhile.
pub unsafe fn trim(owner: *mut Owner, user: *mut u8, alignment: usize) -> Trimmed {
    // SAFETY: the caller promises that `user` came from [`adjust`], with `owner`, and was generated
    // for `alignment`; nobody else uses the list at this moment.
    unsafe {
        let node = node_of(user);
        unlink(owner, node);
        let blob = blob_before(node);
        let origin = user.sub(prefix_bytes(blob.len(), alignment));
        Trimmed { origin, blob: blob.as_ptr(), blob_bytes: blob.len() }
    }
}

/// Returns the blob in front of a node; 2 bytes for one that marks a failure.
///
/// # Safety
///
/// `node` is the node of a block.
pub(crate) unsafe fn blob_before<'a>(node: *const Node) -> &'a [u8] {
    // SAFETY: the caller promises the node of a block. The length and as many bytes lie in front of
    // it.
    unsafe {
        let end = node.cast::<u8>();
        let length = u16::from_be_bytes([*end.sub(2), *end.sub(1)]);
        let bytes = usize::from(length).max(GIVE_UP_BLOB.len());
        slice::from_raw_parts(end.sub(bytes), bytes)
    }
}

/// Decodes stack and size of a blob, which may have bits of the program behind them.
pub(crate) fn decode(blob: &[u8]) -> Result<Backtrace, LwsError> {
    Blob::whole(blob)?.decode_leading(WordSize::NATIVE)
}

/// Returns the stack and the size in front of a live block.
///
/// # Errors
///
/// [`LwsError`] for a blob that marks a failure, or was overwritten.
///
/// # Safety
///
/// `user` is the address of a block with this layout.
pub unsafe fn parse(user: *const u8) -> Result<Backtrace, LwsError> {
    // SAFETY: the caller promises that `user` is the address of a block with this layout.
    decode(unsafe { blob_before(node_of(user.cast_mut())) })
}

/// Returns the bits of the program behind the size of a live block, if the blob has that many. See
/// [`UserBits`](crate::UserBits).
///
/// # Safety
///
/// `user` is the address of a block with this layout.
#[must_use]
pub unsafe fn user_bits(user: *const u8, count: u32) -> Option<u64> {
    // SAFETY: the caller promises that `user` is the address of a block with this layout.
    let blob = unsafe { blob_before(node_of(user.cast_mut())) };
    let decoder = Blob::whole(blob).ok()?.decoder(WordSize::NATIVE).ok()?;
    decoder.finish().ok()?.user_fields.field(count)
}

/// Returns the user's size; 0 for a blob that marks a failure.
///
/// # Safety
///
/// `user` is the address of a block with this layout.
pub(crate) unsafe fn size_of_block(user: *const u8) -> usize {
    // SAFETY: the caller promises that `user` is the address of a block with this layout.
    let blob = unsafe { blob_before(node_of(user.cast_mut())) };
    let ending = Blob::whole(blob)
        .and_then(|blob| blob.decoder(WordSize::NATIVE))
        .and_then(|decoder| decoder.finish());
    ending.map_or(0, |ending| ending.allocation_size_bytes as usize)
}

/// Iterates over the blocks of a list, oldest first.
///
/// # Safety
///
/// `owner` is a list that does not change while the iterator or one of its items is used.
pub const unsafe fn live<'a>(owner: *const Owner) -> Live<'a> {
    // SAFETY: the caller promises that `owner` is a list, and nobody changes it for as long as the
    // iterator or one of its items is used.
    Live { next: unsafe { (*owner).head }, list: PhantomData }
}

/// Iterates over the blocks of a list: see [`live`].
#[derive(Clone, Debug)]
pub struct Live<'a> {
    next: *const Node,
    list: PhantomData<&'a Owner>,
}

impl<'a> Iterator for Live<'a> {
    type Item = LiveBlock<'a>;

    fn next(&mut self) -> Option<LiveBlock<'a>> {
        if self.next.is_null() {
            return None;
        }
        let node = self.next;
        // SAFETY: by contract of `live`.
        unsafe {
            self.next = (*node).next;
            Some(LiveBlock { user: node.add(1).cast(), blob: blob_before(node) })
        }
    }
}

/// A block on a list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LiveBlock<'a> {
    user: *const u8,
    blob: &'a [u8],
}

impl<'a> LiveBlock<'a> {
    /// Returns the address of the user's bytes.
    #[must_use]
    pub const fn user(&self) -> *const u8 {
        self.user
    }

    /// Returns the compressed backtrace, with its length.
    #[must_use]
    pub const fn blob(&self) -> &'a [u8] {
        self.blob
    }

    /// Returns stack and size.
    ///
    /// # Errors
    ///
    /// As [`parse`].
    pub fn backtrace(&self) -> Result<Backtrace, LwsError> {
        decode(self.blob)
    }

    /// Writes the block as a line of a log, `~m#` and base64, which `cairn decode` reads.
    ///
    /// # Errors
    ///
    /// [`SinkFull`] when the sink is full.
    pub fn write_line(&self, sink: &mut impl Sink) -> Result<(), SinkFull> {
        log_line::write_compressed(self.blob, sink)?;
        sink.put(b"\n")
    }
}

/// Returns a sink that passes each piece to a function that cannot fail, such as a UART that waits.
pub const fn line_sink<F: FnMut(&[u8])>(put: F) -> impl Sink {
    FunctionSink(put)
}

struct FunctionSink<F>(F);

impl<F: FnMut(&[u8])> Sink for FunctionSink<F> {
    fn put(&mut self, bytes: &[u8]) -> Result<(), SinkFull> {
        (self.0)(bytes);
        Ok(())
    }
}
