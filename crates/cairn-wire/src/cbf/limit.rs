//! The capture limit: both ends of a stack that is too deep, and a mark for what lies between.

use core::fmt;
use core::iter::{Copied, FusedIterator};
use core::slice;

use cairn_format::Frame;

/// How much of a stack to keep. The default is Swift's: 64 entries, none dropped, 16 at the outer
/// end.
///
/// ```text
/// frames   a b c d e f g h i j          limit 6, offset 1, top 2
/// result     b c d [4 omitted] i j      6 entries, the mark being one of them
/// ```
///
/// A stack that fits is retained whole, with no mark. With a `top` of 0 the mark is
/// [`Frame::Truncated`] in the last place. `top` is at most `limit - 1`, as the mark needs a place
/// too; with a `limit` of 0 nothing is retained.
///
/// The numbers count entries. An [`Frame::Omitted`] in the input is one entry and counts as one
/// where it is itself left out, as in Swift: limit while capturing, not a stack that was limited
/// before.
///
/// Three ways, one rule: [`slice`](Self::slice) for frames in memory,
/// [`known_length`](Self::known_length) when the depth is known before,
/// [`streaming`](Self::streaming) (or a [`TailRing`] to push into) when it is not.
///
/// ```
/// use cairn_wire::cbf::CaptureLimit;
/// use cairn_format::{AbsoluteAddress, Frame};
///
/// let stack: Vec<Frame> = (1..=9).map(|n| Frame::ReturnAddress(AbsoluteAddress::new(n))).collect();
/// let limit = CaptureLimit { limit: 4, offset: 1, top: 2 };
/// let retained: Vec<Frame> = limit.slice(&stack).collect();
/// assert_eq!(retained, [stack[1], Frame::Omitted(5), stack[7], stack[8]]);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CaptureLimit {
    /// The most entries to keep, the mark included.
    pub limit: usize,
    /// Number of innermost frames to drop first, without a mark. They are the frames of the
    /// capturing code itself.
    pub offset: usize,
    /// Number of outermost frames to retain when the stack is too deep.
    pub top: usize,
}

impl Default for CaptureLimit {
    fn default() -> Self {
        Self { limit: 64, offset: 0, top: 16 }
    }
}

impl CaptureLimit {
    /// Returns the frames retained at the outer end; the ring of [`streaming`](Self::streaming)
    /// must hold as many.
    #[must_use]
    pub const fn ring_frames(self) -> usize {
        let most = self.limit.saturating_sub(1);
        if self.top < most { self.top } else { most }
    }

    /// Returns the frames retained before the mark.
    const fn head_frames(self) -> usize {
        self.limit.saturating_sub(1) - self.ring_frames()
    }

    /// Limits frames that are in memory.
    pub fn slice(self, frames: &[Frame]) -> KnownLength<Copied<slice::Iter<'_, Frame>>> {
        self.known_length(frames.iter().copied(), frames.len() as u64)
    }

    /// Limits `frames`; there are `depth` of them before any are dropped. Needs no memory, and
    /// steps over the frames between with [`Iterator::nth`].
    ///
    /// When `frames` end sooner than promised, so does the result; frames beyond `depth` are not
    /// looked at.
    pub fn known_length<I>(self, frames: I, depth: u64) -> KnownLength<I::IntoIter>
    where
        I: IntoIterator<Item = Frame>,
    {
        let depth = depth.saturating_sub(self.offset as u64);
        let limit = self.limit as u64;
        let fits = depth <= limit;
        let gap = if fits { 0 } else { (depth - limit).saturating_add(1) };
        let tail = if fits { 0 } else { self.ring_frames() };
        KnownLength {
            frames: frames.into_iter(),
            skip: self.offset as u64,
            // The result fits: it is at most `limit`, a `usize`.
            head: if fits { depth as usize } else { self.head_frames() },
            mark: match (self.limit, gap, tail) {
                (0, ..) | (_, 0, _) => None,
                (_, _, 0) => Some(Frame::Truncated),
                _ => Some(Frame::Omitted(gap)),
            },
            gap,
            tail,
        }
    }

    /// Limits `frames` of unknown number, with `ring` as the only memory. With a `top` of 0 it
    /// stops reading as soon as it is known that the stack is too deep.
    ///
    /// # Errors
    ///
    /// [`RingTooSmall`] when `ring` holds fewer than [`ring_frames`](Self::ring_frames).
    ///
    /// ```
    /// use cairn_wire::cbf::{CaptureLimit, RingTooSmall};
    /// use cairn_format::{AbsoluteAddress, Frame};
    ///
    /// let unwinder = (1..=100).map(|n| Frame::ReturnAddress(AbsoluteAddress::new(n)));
    /// let mut ring = [Frame::Truncated; 16];
    /// let retained = CaptureLimit::default().streaming(unwinder, &mut ring)?;
    /// assert_eq!(retained.count(), 64);
    /// # Ok::<(), RingTooSmall>(())
    /// ```
    pub fn streaming<I>(
        self,
        frames: I,
        ring: &mut [Frame],
    ) -> Result<Streaming<'_, I::IntoIter>, RingTooSmall>
    where
        I: IntoIterator<Item = Frame>,
    {
        Ok(Streaming { frames: Some(frames.into_iter()), tail: self.ring(ring)?.finish() })
    }

    /// Returns the same for frames that are pushed, by an unwinder that calls back.
    ///
    /// # Errors
    ///
    /// [`RingTooSmall`] when `ring` holds fewer than [`ring_frames`](Self::ring_frames).
    pub fn ring(self, ring: &mut [Frame]) -> Result<TailRing<'_>, RingTooSmall> {
        let found = ring.len();
        let needed = self.ring_frames();
        let ring = ring.get_mut(..needed).ok_or(RingTooSmall { needed, found })?;
        Ok(TailRing {
            ring,
            oldest: 0,
            filled: 0,
            skip: self.offset,
            head: self.head_frames(),
            has_room_for_mark: self.limit > 0,
            held: None,
            overwritten: 0,
        })
    }
}

/// The caller's ring is too small for the outer end of the stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RingTooSmall {
    /// Frames it must hold.
    pub needed: usize,
    /// Frames it holds.
    pub found: usize,
}

impl fmt::Display for RingTooSmall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the ring holds {} frames, but the capture limit keeps {} at the end",
            self.found, self.needed
        )
    }
}

impl core::error::Error for RingTooSmall {}

/// Limits frames whose number is known. Made by [`CaptureLimit::known_length`].
#[derive(Clone, Debug)]
pub struct KnownLength<I> {
    frames: I,
    /// Frames to drop before the next one is read.
    skip: u64,
    /// Frames to yield before the mark.
    head: usize,
    mark: Option<Frame>,
    /// Frames that the mark represents.
    gap: u64,
    /// Frames to yield after the mark.
    tail: usize,
}

impl<I: Iterator<Item = Frame>> KnownLength<I> {
    fn read(&mut self) -> Option<Frame> {
        while self.skip > 0 {
            let step = usize::try_from(self.skip).unwrap_or(usize::MAX);
            self.frames.nth(step - 1)?;
            self.skip -= step as u64;
        }
        self.frames.next()
    }
}

impl<I: Iterator<Item = Frame>> Iterator for KnownLength<I> {
    type Item = Frame;

    fn next(&mut self) -> Option<Frame> {
        if self.head > 0 {
            self.head -= 1;
            return self.read();
        }
        if let Some(mark) = self.mark.take() {
            self.skip = self.skip.saturating_add(self.gap);
            return Some(mark);
        }
        self.tail = self.tail.checked_sub(1)?;
        self.read()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let most = self.head.saturating_add(self.tail).saturating_add(usize::from(self.mark.is_some()));
        (0, Some(most))
    }
}

/// Limits frames as they come, with a ring for the outer end as the only memory. Made by
/// [`CaptureLimit::ring`].
///
/// Each frame pushed may give one frame that is settled; [`finish`](Self::finish) gives the rest.
///
/// ```
/// use cairn_wire::cbf::{CaptureLimit, CbfDialect, CbfEncoder};
/// use cairn_format::{AbsoluteAddress, Frame, SliceSink, WordSize};
///
/// let mut buffer = [0; 64];
/// let mut encoder = CbfEncoder::new(SliceSink::new(&mut buffer), WordSize::Bits32, CbfDialect::Strict)?;
/// let mut memory = [Frame::Truncated; 2];
/// let mut ring = CaptureLimit { limit: 4, offset: 0, top: 2 }.ring(&mut memory)?;
/// for address in 1..=9 {
///     if let Some(frame) = ring.push(Frame::ReturnAddress(AbsoluteAddress::new(address))) {
///         encoder.push(frame)?;
///     }
/// }
/// for frame in ring.finish() {
///     encoder.push(frame)?;
/// }
/// assert_eq!(encoder.finish()?.written(), [0x01, 0x28, 1, 0x45, 0x20, 7, 0x20, 1, 0x00]);
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct TailRing<'r> {
    ring: &'r mut [Frame],
    /// Index of the oldest frame in the ring.
    oldest: usize,
    filled: usize,
    /// Frames still to be dropped.
    skip: usize,
    /// Frames still to be passed through.
    head: usize,
    has_room_for_mark: bool,
    /// The frame whose place the mark takes if the stack turns out too deep.
    held: Option<Frame>,
    /// Frames left out besides `held`.
    overwritten: u64,
}

impl<'r> TailRing<'r> {
    /// Takes the next frame outward; gives it back if it is certain to be retained here.
    pub fn push(&mut self, frame: Frame) -> Option<Frame> {
        if self.skip > 0 {
            self.skip -= 1;
            return None;
        }
        if self.head > 0 {
            self.head -= 1;
            return Some(frame);
        }
        if self.held.is_none() {
            self.held = Some(frame);
        } else if let Some(slot) = self.ring.get_mut(self.filled) {
            *slot = frame;
            self.filled += 1;
        } else {
            self.overwritten = self.overwritten.saturating_add(1);
            if let Some(slot) = self.ring.get_mut(self.oldest) {
                *slot = frame;
                self.oldest = if self.oldest + 1 == self.filled { 0 } else { self.oldest + 1 };
            }
        }
        None
    }

    /// Returns the rest: the mark, or the frame it would have stood for, and the outer end.
    #[must_use]
    pub fn finish(self) -> Tail<'r> {
        Tail { ring: self, mark_given: false }
    }

    /// No frame to come can change the result: it ends in a truncation mark, or is empty.
    const fn is_settled(&self) -> bool {
        self.ring.is_empty() && (self.overwritten > 0 || !self.has_room_for_mark)
    }

    const fn mark(&self) -> Option<Frame> {
        match (self.has_room_for_mark, self.overwritten, self.ring.is_empty()) {
            (false, ..) => None,
            (true, 0, _) => self.held,
            (true, _, true) => Some(Frame::Truncated),
            (true, overwritten, false) => Some(Frame::Omitted(overwritten.saturating_add(1))),
        }
    }
}

/// Frames that a [`TailRing`] held back.
#[derive(Debug)]
pub struct Tail<'r> {
    ring: TailRing<'r>,
    mark_given: bool,
}

impl Iterator for Tail<'_> {
    type Item = Frame;

    fn next(&mut self) -> Option<Frame> {
        if !self.mark_given {
            self.mark_given = true;
            if let Some(mark) = self.ring.mark() {
                return Some(mark);
            }
        }
        // From the oldest to the end of the ring, then from its beginning; `filled` counts down
        // what is left.
        let left = self.ring.filled.checked_sub(1)?;
        let frame = self.ring.ring.get(self.ring.oldest).copied();
        self.ring.filled = left;
        self.ring.oldest =
            if self.ring.oldest + 1 == self.ring.ring.len() { 0 } else { self.ring.oldest + 1 };
        frame
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let mark = !self.mark_given && self.ring.mark().is_some();
        let most = self.ring.filled.saturating_add(usize::from(mark));
        (most, Some(most))
    }
}

impl FusedIterator for Tail<'_> {}

/// Limits an iterator of unknown length. Made by [`CaptureLimit::streaming`].
#[derive(Debug)]
pub struct Streaming<'r, I> {
    /// `None` once it has ended or is of no more interest.
    frames: Option<I>,
    tail: Tail<'r>,
}

impl<I: Iterator<Item = Frame>> Iterator for Streaming<'_, I> {
    type Item = Frame;

    fn next(&mut self) -> Option<Frame> {
        while let Some(frames) = &mut self.frames {
            if self.tail.ring.is_settled() {
                break;
            }
            let Some(frame) = frames.next() else { break };
            if let Some(retained) = self.tail.ring.push(frame) {
                return Some(retained);
            }
        }
        self.frames = None;
        self.tail.next()
    }
}

impl<I: Iterator<Item = Frame>> FusedIterator for Streaming<'_, I> {}
