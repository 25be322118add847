//! Records: whole stacks as short lists of comparisons, and the tables in which a thread finds
//! them.

use cairn_unwind::Machine;

use crate::stacks::arch::Native;
use crate::stacks::pcs::NUMBER_BITS;
use crate::stacks::thread::shadow::SHADOWS;

/// The hash tables of one thread, with `COUNT` entries each, and `FURTHER` further checks.
#[repr(C)]
pub(crate) struct HashTables<const COUNT: usize, const FURTHER: usize> {
    /// The stack words that distinguish the stacks of each call site; see `engine::record_key`.
    /// They come first, to share a page with the hot fields of the thread's state.
    pub(super) discriminators: [[Discriminator; 2]; COUNT],
    pub(super) records: [Record; COUNT],
    pub(super) pc_sets: [PcSet; COUNT],
    /// The further checks of long records.
    pub(super) further_checks: [FurtherChecks; FURTHER],
}

/// Entries in each table of a new thread: 512 records take 32 KiB and hold the stacks of most
/// threads.
pub(super) const FIRST_COUNT: usize = 1 << 9;
/// Replaced entries after which a thread gets large tables. A compiler uses thousands of stacks at
/// any time, and walking one costs twenty times as much as a record.
pub(super) const MANY_REPLACED: u32 = 8 * FIRST_COUNT as u32;
/// Entries in each large table.
pub(super) const LARGE_COUNT: usize = 8 * FIRST_COUNT;
/// Long records in the tables of a new thread; 64, which take a page of 4 KiB.
pub(super) const FIRST_FURTHER: usize = 1 << 6;
/// Long records in large tables.
pub(super) const LARGE_FURTHER: usize = LARGE_COUNT;

/// Bits of a code address in user space that are not always zero: on AArch64 the lowest two are.
pub(crate) const PC_BITS: u32 = 47;
/// Bits of an address hash that distinguish the addresses of one set; the others select the set.
pub(crate) const PC_TAG_BITS: u32 = PC_BITS - FIRST_COUNT.ilog2();
const _: () = assert!(NUMBER_BITS + PC_TAG_BITS == u64::BITS);

/// A whole stack as a list of comparisons, in one cache line. If all of them hold,
/// [`node`](Self::node) is the answer.
///
/// The record compares the innermost frames one by one. They end at the *join*, a frame of a
/// shadow, which covers the rest of the stack. Where a frame's place depends on a frame pointer,
/// the words that hold that frame pointer are compared as well.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
pub(crate) struct Record {
    /// `| return address into the innermost frame: 48 | LONG: 1 | height of the join: 15 |`
    pc_and_height: u64,
    /// `| node of the answer: 32 | slot of the innermost frame: 32 |`; see [`place`].
    leaf: u64,
    /// `| node of the join: 32 | slot of the join: 29 | DEPENDS_ON_FPS: 1 | shadow number: 2 |`.
    /// Slots are multiples of 8.
    join: u64,
    /// Unused checks repeat [a word that is compared anyway](RecordChecks::neutral), so that their
    /// number is constant. With `DEPENDS_ON_FPS` the last one is an [`FpCheck`].
    checks: [WordCheck; RECORD_CHECKS],
}

/// Stack words that one record compares: as many as fill its cache line.
pub(crate) const RECORD_CHECKS: usize = 5;
/// Stack words that a long record compares besides: as many as fill another cache line.
pub(crate) const FURTHER_CHECKS: usize = 7;

/// The second cache line of a long record. Few records are long, so that several of them share one
/// line, which belongs to the last one that was written.
#[repr(C, align(64))]
pub(crate) struct FurtherChecks {
    /// The index of the record, above 0.
    owner: u64,
    /// Unused checks are [neutral](RecordChecks::neutral).
    checks: [WordCheck; FURTHER_CHECKS],
}

impl FurtherChecks {
    /// The checks, if they belong to the record of this index.
    #[inline(always)]
    pub(super) fn of(&self, owner: usize) -> Option<&[WordCheck; FURTHER_CHECKS]> {
        (self.owner == owner as u64 + 1).then_some(&self.checks)
    }

    /// Writes those of `checks` that do not fit into the first line of the record of this index.
    pub(super) fn write(&mut self, owner: usize, record: &Record, checks: &RecordChecks) {
        let further = checks.words().get(record.room()..).unwrap_or(&[]);
        self.owner = owner as u64 + 1;
        self.checks.fill(checks.neutral(record.pc()));
        for (check, word) in self.checks.iter_mut().zip(further) {
            *check = *word;
        }
    }
}

const _: () = assert!(size_of::<FurtherChecks>() == 64);
/// Flag of [`Record::pc_and_height`]: the record has [`FurtherChecks`] as well.
const LONG: u64 = 1 << 15;
/// The greatest height of a join.
pub(crate) const MAX_JOIN_HEIGHT: usize = LONG as usize - 1;
/// Flag of [`Record::join`].
const DEPENDS_ON_FPS: u64 = 4;
/// The bits of [`Record::join`] that number the shadow.
const SHADOW_NUMBER: u64 = SHADOWS as u64 - 1;
const _: () = assert!(SHADOWS.is_power_of_two() && SHADOW_NUMBER < DEPENDS_ON_FPS && DEPENDS_ON_FPS < 8);
const _: () = assert!(size_of::<Record>() == 64);

/// The frame of a shadow at which a record's own frames end.
#[derive(Clone, Copy)]
pub(crate) struct Join {
    /// Number of the shadow.
    pub(crate) shadow: usize,
    pub(crate) height: u16,
    /// Slot and node that the shadow has at that height; see [`place`].
    pub(crate) place: u64,
}

impl Record {
    pub(super) const NONE: Self =
        Self { pc_and_height: 0, leaf: 0, join: 0, checks: [WordCheck(0); RECORD_CHECKS] };

    /// Describes the stack with node `node`, whose innermost frame lies at `slot` and returns to
    /// `pc`. Checks that do not fit into one cache line make it [long](Self::is_long).
    pub(crate) fn new(
        pc: u64,
        slot: u32,
        node: u32,
        join: Join,
        checks: &RecordChecks,
        fp_check: Option<FpCheck>,
    ) -> Self {
        let flag = if fp_check.is_some() { DEPENDS_ON_FPS } else { 0 };
        let mut record = Self {
            pc_and_height: pc << 16 | u64::from(join.height),
            leaf: place(slot, node),
            join: join.place | flag | join.shadow as u64,
            checks: [checks.neutral(pc); RECORD_CHECKS],
        };
        let room = record.room();
        for (check, word) in record.checks[..room].iter_mut().zip(checks.words()) {
            *check = *word;
        }
        if checks.words().len() > room {
            record.pc_and_height |= LONG;
        }
        if let Some(fp_check) = fp_check {
            record.checks[RECORD_CHECKS - 1] = WordCheck(fp_check.0);
        }
        record
    }

    /// The number of checks of words in the first line.
    fn room(&self) -> usize {
        // The frame pointer's check takes the last place.
        if self.join & DEPENDS_ON_FPS != 0 { RECORD_CHECKS - 1 } else { RECORD_CHECKS }
    }

    /// True for a record with [`FurtherChecks`].
    #[inline(always)]
    pub(crate) fn is_long(&self) -> bool {
        self.pc_and_height & LONG != 0
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.leaf == 0
    }

    /// The return address into the innermost frame.
    #[inline(always)]
    pub(crate) fn pc(&self) -> u64 {
        self.pc_and_height >> 16
    }

    /// The slot of the innermost frame.
    #[inline(always)]
    pub(crate) fn slot(&self) -> u32 {
        self.leaf as u32
    }

    /// The node of the innermost frame, which is the answer; 0 for an empty record.
    #[inline(always)]
    pub(crate) fn node(&self) -> u32 {
        (self.leaf >> 32) as u32
    }

    /// True for a record of a frame with this return address in this slot.
    #[inline(always)]
    pub(crate) fn is_for(&self, pc: u64, slot: u32) -> bool {
        self.pc() == pc && self.slot() == slot
    }

    /// The number of the shadow that covers the outer frames.
    #[inline(always)]
    pub(crate) fn shadow(&self) -> usize {
        (self.join & SHADOW_NUMBER) as usize
    }

    /// Binds the record to another shadow that has the same join.
    pub(crate) fn set_shadow(&mut self, number: usize) {
        self.join = self.join & !SHADOW_NUMBER | number as u64;
    }

    /// The height of the join in the shadow.
    #[inline(always)]
    pub(crate) fn join_height(&self) -> u32 {
        (self.pc_and_height & (LONG - 1)) as u32
    }

    /// Slot and node that the shadow must have at the join; see [`place`].
    #[inline(always)]
    pub(crate) fn join_place(&self) -> u64 {
        self.join & !(SHADOW_NUMBER | DEPENDS_ON_FPS)
    }

    /// The comparisons that every record has.
    #[inline(always)]
    pub(crate) fn word_checks(&self) -> impl Iterator<Item = WordCheck> {
        let [checks @ .., _] = self.checks;
        checks.into_iter()
    }

    /// The last comparison.
    #[inline(always)]
    pub(crate) fn last_check(&self) -> LastCheck {
        let [.., last] = self.checks;
        if self.join & DEPENDS_ON_FPS != 0 { LastCheck::Fps(FpCheck(last.0)) } else { LastCheck::Word(last) }
    }
}

/// The stack words that a record compares, while it is being made.
pub(crate) struct RecordChecks {
    words: [WordCheck; RECORD_CHECKS + FURTHER_CHECKS],
    count: usize,
}

/// A record has no place for a further check.
pub(crate) struct ChecksFull;

impl RecordChecks {
    pub(crate) const NONE: Self = Self { words: [WordCheck(0); _], count: 0 };

    /// Adds a check. The last place remains free for the check of a frame pointer.
    pub(crate) fn push(&mut self, check: WordCheck) -> Result<(), ChecksFull> {
        if self.count == self.words.len() - 1 {
            return Err(ChecksFull);
        }
        self.words[self.count] = check;
        self.count += 1;
        Ok(())
    }

    fn words(&self) -> &[WordCheck] {
        &self.words[..self.count]
    }

    /// A check that holds for each stack for which the others hold. `pc` is the innermost return
    /// address.
    ///
    /// Where calls push, it compares that return address again. Elsewhere that is in a register,
    /// and the first check is repeated.
    fn neutral(&self, pc: u64) -> WordCheck {
        if Native::CALL_PUSHES { WordCheck::new(0, pc) } else { self.words[0] }
    }
}

/// The last comparison of a record.
pub(crate) enum LastCheck {
    /// When no frame of the record depends on a frame pointer.
    Word(WordCheck),
    /// When one does.
    Fps(FpCheck),
}

/// One stack word and its expected value. The bits: `| value: 48 | distance in words above the
/// innermost frame's slot: 16 |`.
///
/// Where return addresses are signed, the highest bit of the distance is `WHOLE`: the word is no
/// return address, and all of its bits are compared.
#[derive(Clone, Copy)]
pub(crate) struct WordCheck(u64);

/// Flag of a [`WordCheck`].
const WHOLE: u64 = 1 << 15;

/// The greatest distance of a [`WordCheck`].
pub(crate) const MAX_WORDS_ABOVE: u16 =
    if Native::SIGNS_RETURN_ADDRESSES { WHOLE as u16 - 1 } else { u16::MAX };

impl WordCheck {
    /// Expects the return address `value` at `words_above` words above the innermost slot. `value`
    /// has 48 bits.
    #[inline]
    pub(crate) fn new(words_above: u16, value: u64) -> Self {
        Self(value << 16 | u64::from(words_above))
    }

    /// Expects the frame pointer `value`, as [`new`](Self::new) does a return address.
    #[inline]
    pub(crate) fn of_fp(words_above: u16, value: u64) -> Self {
        let flag = if Native::SIGNS_RETURN_ADDRESSES { WHOLE } else { 0 };
        Self(value << 16 | flag | u64::from(words_above))
    }

    #[inline(always)]
    pub(crate) fn words_above(self) -> u64 {
        self.0 & u64::from(MAX_WORDS_ABOVE)
    }

    /// Zero when `word`, which was loaded at that distance, is the expected one. The mask has the
    /// bits of an address without signature.
    #[inline(always)]
    pub(crate) fn difference(self, word: u64, address_mask: u64) -> u64 {
        let difference = word ^ self.value();
        if Native::SIGNS_RETURN_ADDRESSES {
            // A mask instead of a branch, as there are checks of both kinds.
            let is_whole = u64::from(self.0 & WHOLE != 0).wrapping_neg();
            return difference & (is_whole | address_mask);
        }
        difference
    }

    #[inline(always)]
    pub(crate) fn value(self) -> u64 {
        self.0 >> 16
    }
}

/// The expected frame pointers of a record. The bits: `| value of the register in the innermost
/// frame, or 0: 48 | source of the join's: 16 |`.
///
/// The source is the distance of the word that holds the frame pointer of the join's frame, or
/// [`FP_IN_REGISTER`].
#[derive(Clone, Copy)]
pub(crate) struct FpCheck(u64);

/// The source of a frame pointer that no frame of the record has saved.
pub(crate) const FP_IN_REGISTER: u16 = u16::MAX;

impl FpCheck {
    #[inline]
    pub(crate) fn new(source_of_join: u16, in_register: u64) -> Self {
        Self(in_register << 16 | u64::from(source_of_join))
    }

    /// The distance of the word that holds the join's frame pointer; `None` while that is in the
    /// register.
    #[inline(always)]
    pub(crate) fn join_words_above(self) -> Option<u64> {
        let source = self.0 & 0xffff;
        (source != u64::from(FP_IN_REGISTER)).then_some(source)
    }

    /// The expected value of the register in the innermost frame; 0 if that does not matter.
    #[inline(always)]
    pub(crate) fn in_register(self) -> u64 {
        self.0 >> 16
    }
}

/// Combines slot and node in one number, so that one comparison covers both. The lowest three bits
/// are zero.
#[inline(always)]
pub(crate) fn place(slot: u32, node: u32) -> u64 {
    u64::from(node) << 32 | u64::from(slot)
}

/// The stack word that distinguishes two stacks of one call site. The bits: `| inverted upper half
/// of an address: 16 | words above sp: 16 |`.
///
/// In other stacks of the call site that word may belong to another frame and hold arbitrary data,
/// which would make a new key for each capture. So the discriminator remembers the upper half of
/// the return address that was seen there, and ignores words with another one. The half is inverted
/// so that zero means "none".
#[derive(Clone, Copy)]
pub(crate) struct Discriminator(u32);

impl Discriminator {
    /// The word `bytes_above` sp, where `return_address` was seen. `None` if the distance does not
    /// fit.
    pub(crate) fn new(bytes_above: u32, return_address: u64) -> Option<Self> {
        let words_above = u16::try_from(bytes_above / 8).ok()?;
        Some(Self(u32::from(!((return_address >> 32) as u16)) << 16 | u32::from(words_above)))
    }

    #[inline(always)]
    pub(crate) fn is_none(self) -> bool {
        self.0 == 0
    }

    #[inline(always)]
    pub(crate) fn bytes_above(self) -> u64 {
        u64::from(self.0 & 0xffff) * 8
    }

    /// The part of a record's key: `word`, if it can be an address in the same code; otherwise 0.
    #[inline(always)]
    pub(crate) fn key_part(self, word: u64) -> u64 {
        // A mask instead of a branch, which would be mispredicted.
        word & u64::from(word >> 32 == u64::from(!self.0 >> 16)).wrapping_neg()
    }
}

/// One set of the two-way cache from code addresses to their numbers and rules.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct PcSet {
    /// `| tag of the address: 38 | number: 26 |`; 0 for an empty way.
    pub(crate) ways: [u64; 2],
    pub(crate) rules: [u32; 2],
}

impl PcSet {
    pub(super) const NONE: Self = Self { ways: [0; 2], rules: [0; 2] };
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec::Vec;

    const PC: u64 = 0x7fff_1234_5678;

    fn record(fp_check: Option<FpCheck>) -> Record {
        record_of(&words(1), fp_check)
    }

    /// Checks of `count` words: the one at distance 9 and those above it.
    fn words(count: u16) -> RecordChecks {
        let mut checks = RecordChecks::NONE;
        for words_above in 9..9 + count {
            assert!(checks.push(WordCheck::new(words_above, 0x5555_0000_1111)).is_ok());
        }
        checks
    }

    fn record_of(checks: &RecordChecks, fp_check: Option<FpCheck>) -> Record {
        let join = Join { shadow: 3, height: 700, place: place(0xffff_fff8, 0x8000_0001) };
        Record::new(PC, 0xff00_0010, 0x1234_5678, join, checks, fp_check)
    }

    #[test]
    fn long_record_compares_every_word() {
        let fp_check = || Some(FpCheck::new(40, 0));
        for (count, fp_check, is_long) in [
            (5, None, false),
            (6, None, true),
            (11, None, true),
            (4, fp_check(), false),
            (5, fp_check(), true),
            (11, fp_check(), true),
        ] {
            let checks = words(count);
            let record = record_of(&checks, fp_check);
            assert_eq!((record.is_long(), record.pc(), record.join_height()), (is_long, PC, 700));
            let mut further = FurtherChecks { owner: 0, checks: [WordCheck(0); FURTHER_CHECKS] };
            further.write(7, &record, &checks);
            assert!(further.of(6).is_none());
            let last = match record.last_check() {
                LastCheck::Word(check) => Some(check),
                LastCheck::Fps(_) => None,
            };
            let all = record.word_checks().chain(last).chain(further.of(7).unwrap().iter().copied());
            // Unused checks repeat one word. Where calls push, it is the word at distance 0.
            let mut used: Vec<u64> = all.map(WordCheck::words_above).filter(|&words| words != 0).collect();
            used.sort_unstable();
            used.dedup();
            assert_eq!(used, (9..9 + u64::from(count)).collect::<Vec<_>>());
        }
    }

    #[test]
    fn checks_leave_a_place_for_the_frame_pointer() {
        let mut checks = RecordChecks::NONE;
        let pushed = (0..99).take_while(|&words| checks.push(WordCheck::new(words, PC)).is_ok()).count();
        assert_eq!(pushed, RECORD_CHECKS + FURTHER_CHECKS - 1);
    }

    #[test]
    fn record_returns_every_packed_field() {
        let record = record(None);
        assert_eq!((record.pc(), record.slot(), record.node()), (PC, 0xff00_0010, 0x1234_5678));
        assert_eq!((record.shadow(), record.join_height()), (3, 700));
        assert_eq!(record.join_place(), place(0xffff_fff8, 0x8000_0001));
        assert!(record.is_for(PC, 0xff00_0010) && !record.is_for(PC, 0xff00_0018));
        let first = record.word_checks().next().unwrap();
        assert_eq!((first.words_above(), first.value()), (9, 0x5555_0000_1111));
        let neutral = words(1).neutral(PC).value();
        assert!(matches!(record.last_check(), LastCheck::Word(check) if check.value() == neutral));
    }

    #[test]
    fn check_ignores_signatures_of_return_addresses_only() {
        let mask = if Native::SIGNS_RETURN_ADDRESSES { (1 << 48) - 1 } else { u64::MAX };
        for (check, is_whole) in
            [(WordCheck::new(9, PC), !Native::SIGNS_RETURN_ADDRESSES), (WordCheck::of_fp(9, PC), true)]
        {
            assert_eq!((check.words_above(), check.difference(PC, mask)), (9, 0));
            assert_ne!(check.difference(PC ^ 8, mask), 0);
            assert_eq!(check.difference(PC | 1 << 60, mask) != 0, is_whole);
        }
    }

    #[test]
    fn record_keeps_its_fields_when_bound_to_another_shadow() {
        let mut record = record(Some(FpCheck::new(FP_IN_REGISTER, 0x7ffd_0000_0010)));
        record.set_shadow(1);
        assert_eq!((record.shadow(), record.join_place()), (1, place(0xffff_fff8, 0x8000_0001)));
        let LastCheck::Fps(check) = record.last_check() else { panic!("the flag is lost") };
        assert_eq!((check.join_words_above(), check.in_register()), (None, 0x7ffd_0000_0010));
        assert_eq!(FpCheck::new(40, 0).join_words_above(), Some(40));
    }

    #[test]
    fn discriminator_ignores_words_of_other_code() {
        let discriminator = Discriminator::new(64, PC).unwrap();
        assert_eq!(discriminator.bytes_above(), 64);
        assert_eq!(discriminator.key_part(PC + 8), PC + 8);
        assert_eq!(discriminator.key_part(0x5555_0000_1111), 0);
        assert!(Discriminator::new(u32::MAX, PC).is_none());
    }
}
