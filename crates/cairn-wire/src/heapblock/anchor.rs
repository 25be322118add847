//! A landmark in memory: what an annotated heap says of itself.

use core::fmt;

use super::ByteOrder;

/// Size of an anchor.
pub const ANCHOR_BYTES: usize = 72;

/// The first bytes of an anchor, which lies at a multiple of 8. A search takes them as a hint only:
/// the text is also in the code that writes it, and [`Anchor::parse`] distinguishes the two.
pub const ANCHOR_MAGIC: [u8; 16] = *b"cairn annotates\n";

const VERSION: u32 = 1;
const CHECK_OFFSET: usize = 68;

/// Which annotation the blocks of a heap have.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u32)]
pub enum BlockLayout {
    /// [`lws::metadata`](crate::lws::metadata).
    Lws = 1,
    /// [`heapprof`](crate::heapprof).
    Heapprof = 2,
    /// [`heapblock`](crate::heapblock).
    Cairn = 3,
}

/// Describes an annotated heap; a search of a memory image finds it by [`ANCHOR_MAGIC`].
///
/// ```text
///    0 magic, 16 bytes        32 parameter 64                          56 stack table's address 64
///   16 version 32 = 1         40 first list's address 64               64 zero 32
///   20 layout 32              48 lists 32                              68 check 32
///   24 own address 64         52 bytes from one list to the next 32
/// ```
///
/// Numbers have the machine's byte order and these widths on every machine.
///
/// A list (of the lws layout) is an owner as libwebsockets has it, of three words: last node, first
/// node, count. Each node is `previous, next, owner`, and the blob of the block lies in front of
/// it.
///
/// ```
/// use cairn_wire::heapblock::{Anchor, BlockLayout, ByteOrder};
/// let anchor = Anchor {
///     layout: BlockLayout::Cairn,
///     own_address: 0x5000,
///     parameter: 1,
///     lists_address: 0,
///     list_count: 0,
///     list_stride_bytes: 0,
///     stack_table_address: 0x7f12_0000_0000,
/// };
/// let bytes = anchor.to_bytes(ByteOrder::BigEndian);
/// assert_eq!(Anchor::parse(&bytes, ByteOrder::BigEndian), Ok(anchor));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Anchor {
    /// Which annotation the blocks have.
    pub layout: BlockLayout,
    /// Where the anchor itself lies: elsewhere it is a copy.
    pub own_address: u64,
    /// lws: the alignment that every block has, in bytes. heapprof: the number of callers. cairn: 1
    /// if blocks have guards.
    pub parameter: u64,
    /// lws: where the first list of live blocks is. 0 for none.
    pub lists_address: u64,
    /// lws: how many lists there are.
    pub list_count: u32,
    /// lws: bytes from one list to the next.
    pub list_stride_bytes: u32,
    /// cairn: where the [stack table](super::stack_table)'s head is. 0 for none.
    pub stack_table_address: u64,
}

/// Why bytes are no anchor.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum AnchorError {
    /// There are fewer bytes than an anchor has.
    TooShort,
    /// The first 16 bytes are others.
    NoMagic,
    /// The check does not agree: the text alone, another byte order, or overwritten.
    WrongCheck,
    /// A version that this one does not read.
    UnknownVersion(u32),
    /// A layout that this version does not know.
    UnknownLayout(u32),
}

impl fmt::Display for AnchorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooShort => write!(f, "fewer bytes than the {ANCHOR_BYTES} of a heap's anchor"),
            Self::NoMagic => f.write_str("no heap's anchor: the magic is missing"),
            Self::WrongCheck => f.write_str("no heap's anchor, or a damaged one: its check is wrong"),
            Self::UnknownVersion(version) => {
                write!(
                    f,
                    "a heap's anchor of version {version} (this one reads {VERSION}); use a newer cairn"
                )
            }
            Self::UnknownLayout(layout) => {
                write!(f, "a heap with the unknown layout {layout} (known: 1 to 3); use a newer cairn")
            }
        }
    }
}

impl core::error::Error for AnchorError {}

impl Anchor {
    /// Returns the bytes that stand at [`own_address`](Self::own_address).
    #[must_use]
    pub fn to_bytes(&self, order: ByteOrder) -> [u8; ANCHOR_BYTES] {
        let mut bytes = [0; ANCHOR_BYTES];
        let half = |value: u32| (order.u32_bytes(value), [0; 8], 4);
        let whole = |value: u64| ([0; 4], order.u64_bytes(value), 8);
        let fields = [
            half(VERSION),
            half(self.layout as u32),
            whole(self.own_address),
            whole(self.parameter),
            whole(self.lists_address),
            half(self.list_count),
            half(self.list_stride_bytes),
            whole(self.stack_table_address),
        ];
        let (magic, rest) = bytes.split_at_mut(ANCHOR_MAGIC.len());
        magic.copy_from_slice(&ANCHOR_MAGIC);
        let mut rest = rest.iter_mut();
        for (half, whole, width) in fields {
            let field: &[u8] = if width == 4 { &half } else { &whole };
            rest.by_ref().zip(field).take(width).for_each(|(place, &byte)| *place = byte);
        }
        let check = order.u32_bytes(check(&bytes[..CHECK_OFFSET]));
        bytes[CHECK_OFFSET..].copy_from_slice(&check);
        bytes
    }

    /// Returns what the anchor at the start of `bytes` says. Whether it lies where it says, the
    /// caller compares.
    ///
    /// # Errors
    ///
    /// See [`AnchorError`].
    pub fn parse(bytes: &[u8], order: ByteOrder) -> Result<Self, AnchorError> {
        let bytes: &[u8; ANCHOR_BYTES] = bytes.first_chunk().ok_or(AnchorError::TooShort)?;
        if !bytes.starts_with(&ANCHOR_MAGIC) {
            return Err(AnchorError::NoMagic);
        }
        // All are inside of the array.
        let half = |offset| order.u32_at(bytes, offset).unwrap_or_default();
        let whole = |offset| order.u64_at(bytes, offset).unwrap_or_default();
        if half(CHECK_OFFSET) != check(&bytes[..CHECK_OFFSET]) {
            return Err(AnchorError::WrongCheck);
        }
        if half(16) != VERSION {
            return Err(AnchorError::UnknownVersion(half(16)));
        }
        let layout = match half(20) {
            1 => BlockLayout::Lws,
            2 => BlockLayout::Heapprof,
            3 => BlockLayout::Cairn,
            other => return Err(AnchorError::UnknownLayout(other)),
        };
        Ok(Self {
            layout,
            own_address: whole(24),
            parameter: whole(32),
            lists_address: whole(40),
            list_count: half(48),
            list_stride_bytes: half(52),
            stack_table_address: whole(56),
        })
    }
}

/// FNV-1a of 32 bits.
fn check(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, &byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}
