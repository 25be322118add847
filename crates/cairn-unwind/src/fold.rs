//! Folds recursion: replaces repeated rounds of the same frames by one round and a count.

use cairn_format::Frame;

/// Folds rounds of up to `P` frames that repeat directly, in memory for `P` frames.
///
/// ```text
///   main f g f g f g f g end   ->   main f g Omitted(6) end
/// ```
///
/// Only complete rounds are folded; the frames of an incomplete round are returned one by one.
/// Mutual recursion of more than `P` functions is not folded. The frames and the counts add up to
/// the number of input frames.
///
/// ```
/// use cairn_format::{AbsoluteAddress, Frame};
/// use cairn_unwind::FoldRecursion;
///
/// let frame = |address: u64| Frame::ReturnAddress(AbsoluteAddress::new(address));
/// let stack = [1, 2, 3, 2, 3, 2, 3, 9].map(frame);
/// let folded: Vec<Frame> = FoldRecursion::<_, 4>::new(stack.into_iter()).collect();
/// assert_eq!(folded, [frame(1), frame(2), frame(3), Frame::Omitted(4), frame(9)]);
/// ```
#[derive(Clone, Debug)]
pub struct FoldRecursion<I, const P: usize> {
    frames: I,
    /// The last frames returned since the last fold, newest at `length - 1`.
    recent: [Frame; P],
    length: usize,
    /// The frames of an incomplete round: `replay[replayed..replay_end]` are returned next.
    replay: [Frame; P],
    replayed: usize,
    replay_end: usize,
    /// The frame that ended the last round, which is compared next.
    pending: Option<Frame>,
}

impl<I: Iterator<Item = Frame>, const P: usize> FoldRecursion<I, P> {
    /// The frames of `frames`, folded.
    pub fn new(frames: I) -> Self {
        let empty = [Frame::Truncated; P];
        Self { frames, recent: empty, length: 0, replay: empty, replayed: 0, replay_end: 0, pending: None }
    }

    /// Stores a returned frame, and drops the oldest one when there is no room.
    fn remember(&mut self, frame: Frame) {
        if self.length == P {
            self.recent.rotate_left(1.min(P));
            self.length = self.length.saturating_sub(1);
        }
        if let Some(slot) = self.recent.get_mut(self.length) {
            *slot = frame;
            self.length += 1;
        }
    }

    /// The next frame of an incomplete round.
    fn next_of_replay(&mut self) -> Option<Frame> {
        let rest = self.replay.get(self.replayed..self.replay_end)?;
        let frame = *rest.first()?;
        self.replayed += 1;
        self.remember(frame);
        Some(frame)
    }

    /// Counts the frames, from `first` on, that repeat `recent[start..length]` in complete rounds.
    /// The frames of the last, incomplete round are left in `replay`, and the frame that ended it
    /// is pending.
    fn count_folded(&mut self, first: Frame, start: usize) -> u64 {
        let round = self.recent.get(start..self.length).unwrap_or_default();
        let (mut rounds, mut place) = (0_u64, 0);
        let mut frame = Some(first);
        while frame.is_some() && frame == round.get(place).copied() {
            place += 1;
            if place == round.len() {
                (rounds, place) = (rounds + 1, 0);
            }
            frame = self.frames.next();
        }
        self.pending = frame;
        self.replay = [Frame::Truncated; P];
        for (to, from) in self.replay.iter_mut().zip(round.iter().take(place)) {
            *to = *from;
        }
        (self.replayed, self.replay_end) = (0, place);
        rounds * round.len() as u64
    }
}

impl<I: Iterator<Item = Frame>, const P: usize> Iterator for FoldRecursion<I, P> {
    type Item = Frame;

    fn next(&mut self) -> Option<Frame> {
        if let Some(frame) = self.next_of_replay() {
            return Some(frame);
        }
        let frame = match self.pending.take() {
            Some(frame) => frame,
            None => self.frames.next()?,
        };
        if frame.address().is_none() {
            self.length = 0;
            return Some(frame);
        }
        let known = self.recent.get(..self.length).unwrap_or_default();
        let Some(start) = known.iter().rposition(|&earlier| earlier == frame) else {
            self.remember(frame);
            return Some(frame);
        };
        match self.count_folded(frame, start) {
            0 => self.next_of_replay(),
            folded => {
                // The following frames are compared with each other only: a fold inside a fold
                // could not be undone.
                self.length = 0;
                Some(Frame::Omitted(folded))
            }
        }
    }
}
