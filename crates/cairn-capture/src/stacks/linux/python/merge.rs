//! Puts Python frames into a native stack.
//!
//! Each call of the evaluation function has a mark in its own stack frame ([`super::chain`]). The
//! native frame around the address of a mark is the one that runs the Python frames of that mark:
//!
//! ```text
//!   native frames, by stack pointer      marks      merged, innermost first
//!   0x7f00..0x7f40  malloc's caller                 malloc's caller
//!   0x7f40..0x80c0  evaluation           0x7f88     inner(), outer(), evaluation
//!   0x80c0..0x8100  list.sort                       list.sort
//!   0x8100..0x8280  evaluation           0x8148     <module>, evaluation
//! ```
//!
//! No symbol is needed, and an evaluation function that the compiler has split is no special case.
//!
//! Most captures find their answer in a cache of the thread, by the native stack and a hash of the
//! list of frames. The hash has 64 bits over the numbers of code objects, offsets of instructions
//! and addresses of marks; the stack pointer of the innermost frame is part of it too, so that
//! equal keys mean equal distances of all marks. Otherwise the native stack is stepped over again,
//! to learn where each of its frames lies.

use core::sync::atomic::Ordering;

use cairn_unwind::python::ChainKind;

use super::chain::{self, Followed, Link};
use super::codes::{CodeNumber, NameRoom, NoCode};
use super::memory::{Direct, Guarded, Words};
use super::room::Room;
use super::{Access, CODES, Interpreter, ThreadState, count_unread, interpreters};
use crate::CallSite;
use crate::stacks::arch::Rule;
use crate::stacks::index::MIX;
use crate::stacks::pc_kind::PcKind;
use crate::stacks::process::Process;
use crate::stacks::thread::ThreadBlock;
use crate::stacks::walk::{self, Start};

/// Merged stacks that a thread remembers; a power of two. 8192 take 128 KiB, and most programs have
/// fewer that recur.
const REMEMBERED: usize = 1 << 13;
/// Code objects whose numbers a thread remembers; a power of two.
const REMEMBERED_CODES: usize = 1 << 8;

/// The words of the code of marks are several ones, or also those of frames.
const SEVERAL_WORDS: u64 = u64::MAX;

/// The instruction of a frame that has not begun.
const NOT_BEGUN: u32 = u32::MAX;

/// The Python frames that a thread remembers. All-zero bytes know nothing.
pub(crate) struct PythonThread {
    /// [`super::codes::Codes::generation`] for which `known` and `codes` are right.
    generation: u64,
    /// The list as it was just read, innermost first.
    links: Room<Link>,
    /// The list of the last capture, outermost first, and what is known of each entry.
    known_links: Room<Link>,
    known: Room<KnownLink>,
    known_count: usize,
    /// The word of the code of all marks, or [`SEVERAL_WORDS`].
    ///
    /// 0 while there was none.
    mark_word: u64,
    codes: [(u64, u32); REMEMBERED_CODES],
    merged: [MergedStack; REMEMBERED],
    natives: Room<NativeFrame>,
    numbers: Room<u32>,
    /// Native frames among `numbers` that run Python frames, innermost first.
    runners: Room<Runner>,
    names: NameRoom,
}

/// Facts of an entry of the list, and the hash of it and all entries outside of it.
#[derive(Clone, Copy)]
struct KnownLink {
    /// The address of a frame as stacks have it; 0 for what is not shown.
    address: u64,
    hash: u64,
    /// For a mark: where it was placed last. Nothing outside of it has changed since, if the native
    /// stack is the same from there on.
    placed: PlacedMark,
}

/// The native frame that runs the Python frames of a mark, and the merged stack up to that frame.
/// Zeros are a mark that was not placed yet.
#[derive(Clone, Copy, PartialEq, Eq)]
struct PlacedMark {
    sp: u64,
    native: u32,
    merged: u32,
}

impl PlacedMark {
    const NOWHERE: Self = Self { sp: 0, native: 0, merged: 0 };
}

#[derive(Clone, Copy)]
struct MergedStack {
    hash: u64,
    native: u32,
    node: u32,
}

/// A frame of the native stack, by its pc number and its stack pointer.
#[derive(Clone, Copy)]
struct NativeFrame {
    sp: u64,
    /// The native stack up to this frame; 0 where that is not known.
    node: u32,
    number: u32,
    /// True for the reason why the stack ends, which has no place.
    is_end: bool,
}

/// The stack has no Python frames, or they cannot be read.
struct NotMerged;

/// Returns the stack `native` with the Python frames of this thread, or `native` itself.
///
/// # Safety
///
/// - `native` is the stack of `site`, a live frame of this thread that was captured just now;
///   nothing has written the memory from there up since.
/// - The caller has acquired `block`, and uses neither its state nor its rooms; `thread` is the
///   block's.
#[inline(never)]
pub(crate) unsafe fn with_python_frames(
    process: &Process,
    block: &ThreadBlock,
    thread: &mut PythonThread,
    native: u32,
    site: CallSite,
) -> u32 {
    if process.module_state.is_unloading() {
        return native;
    }
    for interpreter in interpreters() {
        if interpreter.is_refused.load(Ordering::Relaxed) {
            continue;
        }
        let Some(state) = interpreter.state_of_this_thread() else { continue };
        let stack = NativeStack { process, block, native, site };
        // SAFETY: the caller promises the same of these arguments.
        return match unsafe { merged(interpreter, state, thread, stack) } {
            Ok(node) => node,
            Err(NotMerged) => {
                count_unread();
                native
            }
        };
    }
    native
}

/// Most native frames inside of the last one that is known to run Python frames.
///
/// 4,096, because the thousand calls that Python allows by default take up to four native frames
/// each. A merge of them takes some 40 microseconds. Code that recurses deeper, as the encoder of
/// `json` for nested lists, has a new stack at each call: its stacks stay without Python frames,
/// and are counted.
const MOST_NATIVES: usize = 4096;

/// The end of a replay.
enum Replay {
    Placed(PlacedNatives),
    /// There are more native frames than [`MOST_NATIVES`].
    TooDeep,
    /// A step takes more than a plain rule.
    NeedsWalk,
}

/// The native stack that frames are put into.
#[derive(Clone, Copy)]
struct NativeStack<'a> {
    process: &'a Process,
    block: &'a ThreadBlock,
    native: u32,
    site: CallSite,
}

/// # Safety
///
/// - As for [`with_python_frames`].
#[inline(always)]
unsafe fn merged(
    interpreter: &Interpreter,
    state: ThreadState,
    thread: &mut PythonThread,
    stack: NativeStack<'_>,
) -> Result<u32, NotMerged> {
    if state.access == Access::Unknown {
        return Err(NotMerged);
    }
    let hash = if state.access == Access::Direct && interpreter.is_trusted.load(Ordering::Relaxed) {
        // SAFETY: this thread has the interpreter's lock, so its own frames and their code objects
        // stay as they are until this function returns.
        let memory = unsafe { Direct::new() };
        match thread.follow_list(interpreter, state, memory)? {
            Some(hash) => Some(hash),
            None => thread.read_list(interpreter, state, &memory)?,
        }
    } else {
        thread.read_guarded(interpreter, state)?
    };
    let Some(hash) = hash else { return Ok(stack.native) };
    // Where there are no marks, the native frames alone decide.
    let is_placed = interpreter.layout.chain != ChainKind::Objects;
    let hash = mix(hash, if is_placed { stack.site.sp } else { 0 });
    let place = ((hash ^ u64::from(stack.native)).wrapping_mul(MIX) >> 32) as usize % REMEMBERED;
    let known = thread.merged[place];
    if known.hash == hash && known.native == stack.native {
        return Ok(known.node);
    }
    let (process, native) = (stack.process, stack.native);
    // SAFETY: the caller promises a live stack and an acquired block.
    let natives = unsafe { thread.place_natives(stack) }.ok_or(NotMerged)?;
    let node = thread.assemble(interpreter, process, natives).ok_or(NotMerged)?;
    thread.merged[place] = MergedStack { hash, native, node };
    Ok(node)
}

impl PythonThread {
    /// Forgets all stacks, because they get other numbers.
    pub(crate) fn forget(&mut self) {
        self.known_count = 0;
        self.merged.fill(MergedStack { hash: 0, native: 0, node: 0 });
    }

    #[cold]
    #[inline(never)]
    fn read_guarded(
        &mut self,
        interpreter: &Interpreter,
        state: ThreadState,
    ) -> Result<Option<u64>, NotMerged> {
        let hash = self.read_list(interpreter, state, &Guarded)?;
        if hash.is_some() {
            interpreter.is_trusted.store(true, Ordering::Relaxed);
        }
        Ok(hash)
    }

    /// Reads what has changed in the list since the last capture, and returns its hash.
    ///
    /// `None` when the list has to be read as a whole.
    #[inline(always)]
    fn follow_list(
        &mut self,
        interpreter: &Interpreter,
        state: ThreadState,
        memory: Direct,
    ) -> Result<Option<u64>, NotMerged> {
        // The list is this thread's own and does not change meanwhile: the generation counts all
        // code that was freed before.
        if CODES.generation() != self.generation || matches!(self.mark_word, 0 | SEVERAL_WORDS) {
            return Ok(None);
        }
        let known = self.known_links.all(self.known_count);
        let followed = chain::follow(&interpreter.layout, state.address, memory, known, &mut self.links);
        let Some(followed) = followed else { return Ok(None) };
        let count = followed.common + followed.added;
        if followed.same < count || count < self.known_count {
            self.renew(interpreter, followed, memory)?;
        }
        Ok(self.known.all(count).last().map(|known| known.hash))
    }

    /// Looks up the entries that have changed.
    fn renew(
        &mut self,
        interpreter: &Interpreter,
        followed: Followed,
        memory: Direct,
    ) -> Result<(), NotMerged> {
        let Followed { same, common, added } = followed;
        self.known_count = 0;
        for index in same..common {
            let frame = self.known_links.all(common).get(index).ok_or(NotMerged)?.frame;
            let link = chain::read_again(&interpreter.layout, frame, &memory).map_err(|_| NotMerged)?;
            self.learn(interpreter, index, link, &memory)?;
        }
        for index in 0..added {
            let &link = self.links.all(added).get(added - 1 - index).ok_or(NotMerged)?;
            self.learn(interpreter, common + index, link, &memory)?;
        }
        self.known_count = common + added;
        Ok(())
    }

    /// Reads the list, and returns its hash; `None` when it is empty. Only what differs from the
    /// last list is looked up.
    #[inline(never)]
    fn read_list(
        &mut self,
        interpreter: &Interpreter,
        state: ThreadState,
        memory: &impl Words,
    ) -> Result<Option<u64>, NotMerged> {
        let count = chain::read(&interpreter.layout, state.address, memory, &mut self.links);
        let count = count.map_err(|_| NotMerged)?;
        if count == 0 {
            return Ok(None);
        }
        // The list is read before: a code object in it that took the place of another one did so
        // before this.
        let generation = CODES.generation();
        if generation != self.generation {
            self.generation = generation;
            self.known_count = 0;
            self.codes.fill((0, 0));
        }
        let same = self.links.all(count).iter().rev().zip(self.known_links.all(self.known_count));
        let same = same.take_while(|(link, known)| link == known).count();
        // Whatever fails below leaves no entry that is half right.
        self.known_count = 0;
        for index in same..count {
            let Some(&link) = self.links.all(count).get(count - 1 - index) else { return Err(NotMerged) };
            self.learn(interpreter, index, link, memory)?;
        }
        self.known_count = count;
        Ok(self.known.all(count).last().map(|known| known.hash))
    }

    /// Notes whether the word of its code tells a mark from a frame.
    #[inline(always)]
    fn note_kind(&mut self, index: usize, link: Link) {
        let is_same = link.code_word == self.mark_word;
        if link.is_mark() != is_same {
            // The outermost entry of a list is a mark, so that no frame is known before the first.
            let is_first = self.mark_word == 0 && index == 0 && link.is_mark();
            self.mark_word = if is_first { link.code_word } else { SEVERAL_WORDS };
        }
    }

    /// Looks up an entry of the list. All entries outside of it are known.
    #[inline(always)]
    fn learn(
        &mut self,
        interpreter: &Interpreter,
        index: usize,
        link: Link,
        memory: &impl Words,
    ) -> Result<(), NotMerged> {
        let outer = index.checked_sub(1).and_then(|outer| self.known.all(index).get(outer));
        let hash = outer.map_or(0, |known| known.hash);
        let address = if link.is_mark() { 0 } else { self.address_of(interpreter, link, memory)? };
        let hash = match (link.is_mark(), address) {
            (true, _) => mix(hash, link.place | 1 << 63),
            (false, 0) => hash,
            (false, address) => mix(hash, address),
        };
        if link.frame != 0 {
            self.note_kind(index, link);
        }
        self.known_links.put(index, link).ok_or(NotMerged)?;
        self.known.put(index, KnownLink { address, hash, placed: PlacedMark::NOWHERE }).ok_or(NotMerged)
    }

    /// The address of a frame as stacks have it; 0 for a frame that is not shown.
    #[inline(always)]
    fn address_of(
        &mut self,
        interpreter: &Interpreter,
        link: Link,
        memory: &impl Words,
    ) -> Result<u64, NotMerged> {
        let place = (link.code >> 4) as usize % REMEMBERED_CODES;
        let number = match self.codes[place] {
            (code, number) if code == link.code => number,
            _ => {
                let number = number_of(interpreter, link.code, memory, &mut self.names)?;
                self.codes[place] = (link.code, number);
                number
            }
        };
        Ok(if number == NOT_SHOWN {
            0
        } else {
            u64::from(number) << 32 | u64::from(offset_of(interpreter, link))
        })
    }

    /// Finds where the frames of the native stack lie.
    ///
    /// They are taken from the innermost one outwards, up to one that runs a mark of the list that
    /// was placed before.
    ///
    /// # Safety
    ///
    /// - As for [`with_python_frames`].
    unsafe fn place_natives(&mut self, stack: NativeStack<'_>) -> Option<PlacedNatives> {
        // SAFETY: the caller promises a live stack that was captured just now.
        match unsafe { self.replay(stack.process, stack.native, stack.site) } {
            Replay::Placed(placed) => return Some(placed),
            Replay::TooDeep => return None,
            Replay::NeedsWalk => {}
        }
        // SAFETY: the caller promises an acquired block.
        let count = unsafe { self.walk(stack) }?;
        Some(PlacedNatives { count, end: 0, outer: 0, base: 0 })
    }

    /// Steps over the frames of `native` as the capture did. `None` at a frame whose step takes
    /// more than a plain rule.
    ///
    /// # Safety
    ///
    /// - As for [`with_python_frames`].
    unsafe fn replay(&mut self, process: &Process, native: u32, site: CallSite) -> Replay {
        // SAFETY: the caller's promise.
        unsafe { self.replay_plain(process, native, site) }.unwrap_or(Replay::NeedsWalk)
    }

    /// # Safety
    ///
    /// - As for [`with_python_frames`].
    unsafe fn replay_plain(&mut self, process: &Process, native: u32, site: CallSite) -> Option<Replay> {
        let (words, entries) = (process.tree.words(), process.pcs.entries());
        let known = self.known.all(self.known_count);
        // The marks that were placed before, from the inner end outwards, as the stack pointer
        // rises.
        let mut placed = (0..known.len()).rev().filter_map(|at| {
            let placed = known.get(at)?.placed;
            (placed != PlacedMark::NOWHERE).then_some((at, placed))
        });
        let mut candidate = placed.next();
        let (mut node, mut frame, mut count) = (native, site, 0);
        while node != 0 {
            while candidate.is_some_and(|(_, mark)| mark.sp < frame.sp) {
                candidate = placed.next();
            }
            if let Some((at, mark)) = candidate
                && (mark.native, mark.sp) == (node, frame.sp)
            {
                let placed = PlacedNatives { count, end: mark.sp, outer: at + 1, base: mark.merged };
                return Some(Replay::Placed(placed));
            }
            if count == MOST_NATIVES {
                return Some(Replay::TooDeep);
            }
            let number = words.pc(node);
            let entry = entries.get(number as usize)?;
            let is_end = entry.is_end();
            if !is_end && entry.pc() != frame.pc {
                return None;
            }
            self.natives.put(count, NativeFrame { sp: frame.sp, node, number, is_end })?;
            count += 1;
            node = words.parent(node);
            if !is_end && node != 0 {
                // SAFETY: the frame is live: the innermost one by the caller's promise, further
                // ones because they are the callers of live frames. The rule is the one of its pc.
                frame = unsafe { plain_step(entry.rule(), frame) }?;
            }
        }
        Some(Replay::Placed(PlacedNatives { count, end: 0, outer: 0, base: 0 }))
    }

    /// Walks the whole stack by full unwind rules.
    ///
    /// # Safety
    ///
    /// - As for [`with_python_frames`].
    #[cold]
    #[inline(never)]
    unsafe fn walk(&mut self, stack: NativeStack<'_>) -> Option<usize> {
        let NativeStack { process, block, site, .. } = stack;
        // SAFETY: the caller has acquired the block and uses neither part; they do not overlap.
        let (memory, walk_room) = unsafe { (block.state().stack_around(site.sp), block.walk_room()) };
        let natives = &mut self.natives;
        let (mut placed, mut is_full) = (0, false);
        let mut place = |sp: u64, is_end: bool| {
            is_full |= natives.put(placed, NativeFrame { sp, node: 0, number: 0, is_end }).is_none();
            placed += 1;
        };
        process.count_whole_walk();
        let count = walk::walk(process, Start::Caller { sp: site.sp }, memory, walk_room, &mut place)?;
        if is_full || placed != count {
            return None;
        }
        for (index, &number) in walk_room.numbers(count).iter().enumerate() {
            let &frame = self.natives.all(count).get(index)?;
            self.natives.put(index, NativeFrame { number, ..frame })?;
        }
        Some(count)
    }

    /// Puts the frames of the list into the native ones, and returns the stack.
    fn assemble(
        &mut self,
        interpreter: &Interpreter,
        process: &Process,
        placed: PlacedNatives,
    ) -> Option<u32> {
        let list = self.known.all(self.known_count).get(placed.outer..)?;
        let links = self.known_links.all(self.known_count).get(placed.outer..)?;
        let natives = self.natives.all(placed.count);
        let mut merging =
            Merging { process, numbers: &mut self.numbers, count: 0, runners: &mut self.runners, runs: 0 };
        // Innermost first: the entries in front of `next` are in the stack, those in front of
        // `searched` wait for their native frame.
        let known = |index: usize| list.len().checked_sub(index + 1).and_then(|at| list.get(at));
        let link = |index: usize| links.len().checked_sub(index + 1).and_then(|at| links.get(at));
        let is_mark = |at: &usize| link(*at).is_some_and(|link| link.is_mark());
        let (mut next, mut searched) = (0, 0);
        for (index, native) in natives.iter().enumerate() {
            if native.is_end {
                // The stack was cut: the native frames of the rest are not known.
                merging.frames((next..list.len()).filter_map(known))?;
                next = list.len();
            }
            let outer = natives.get(index + 1).filter(|outer| !outer.is_end);
            // Nothing lies in the outermost frame of all.
            let end = outer.map_or(placed.end.max(native.sp), |outer| outer.sp);
            while let Some(mark) = (searched..list.len()).find(is_mark) {
                let address = link(mark)?.place;
                let is_below = address < native.sp && address != 0;
                let is_here = match address {
                    0 => interpreter.evaluates(process, native.number),
                    _ => (native.sp..end).contains(&address),
                };
                if is_here {
                    merging.frames((next..mark).filter_map(known))?;
                    merging.runs_here(index, mark)?;
                    next = mark + 1;
                } else if !is_below {
                    break;
                }
                searched = mark + 1;
                if address == 0 {
                    break;
                }
            }
            merging.number(native.number)?;
        }
        merging.frames((next..list.len()).filter_map(known))?;
        let (count, runs) = (merging.count, merging.runs);
        self.intern(process, placed, count, runs)
    }

    /// Adds the merged frames to the tree, and remembers the stacks at which Python frames begin.
    fn intern(&mut self, process: &Process, placed: PlacedNatives, count: usize, runs: usize) -> Option<u32> {
        let (mut node, mut end) = (placed.base, count);
        for run in (0..runs).rev() {
            let runner = *self.runners.all(runs).get(run)?;
            let piece = self.numbers.all(count).get(runner.place..end)?;
            node = process.tree.descend(node, piece.iter().rev().copied()).ok()?;
            end = runner.place;
            let native = *self.natives.all(placed.count).get(runner.native)?;
            let at = self.known_count.checked_sub(runner.mark + 1)?;
            let known = *self.known.all(self.known_count).get(at)?;
            if native.node != 0 {
                let placed = PlacedMark { sp: native.sp, native: native.node, merged: node };
                self.known.put(at, KnownLink { placed, ..known })?;
            }
        }
        let piece = self.numbers.all(count).get(..end)?;
        process.tree.descend(node, piece.iter().rev().copied()).ok()
    }
}

/// The native frames that a merge takes.
#[derive(Clone, Copy)]
struct PlacedNatives {
    /// How many of them were found, from the innermost one outwards.
    count: usize,
    /// The stack pointer of the frame outside of them; 0 when there is none.
    end: u64,
    /// How many entries of the list lie outside of them.
    outer: usize,
    /// The merged stack outside of them.
    base: u32,
}

/// A native frame that runs Python frames.
#[derive(Clone, Copy)]
struct Runner {
    /// Its place among the merged numbers, innermost first.
    place: usize,
    /// Its index among the native frames.
    native: usize,
    /// Index of its mark, from the inner end of the list.
    mark: usize,
}

/// A stack that is being put together, innermost frame first.
struct Merging<'a> {
    process: &'a Process,
    numbers: &'a mut Room<u32>,
    count: usize,
    runners: &'a mut Room<Runner>,
    runs: usize,
}

impl<'a> Merging<'a> {
    fn number(&mut self, number: u32) -> Option<()> {
        self.numbers.put(self.count, number)?;
        self.count += 1;
        Some(())
    }

    /// Notes that the next number is of the native frame that runs the frames of a mark.
    fn runs_here(&mut self, native: usize, mark: usize) -> Option<()> {
        // Two marks in one frame: the inner one is part of what is remembered for the outer one.
        self.runners.put(self.runs, Runner { place: self.count, native, mark })?;
        self.runs += 1;
        Some(())
    }

    fn frames(&mut self, links: impl Iterator<Item = &'a KnownLink>) -> Option<()> {
        for known in links.filter(|known| known.address != 0) {
            let number = self.process.number(known.address, PcKind::Interpreted)?;
            self.number(number)?;
        }
        Some(())
    }
}

impl Interpreter {
    /// Whether a native frame is a call of the evaluation function, where only that can tell.
    fn evaluates(&self, process: &Process, number: u32) -> bool {
        let (start, bytes) = self.evaluation;
        let pc = process.pcs.entries().get(number as usize).map_or(0, |entry| entry.pc());
        pc.wrapping_sub(1).wrapping_sub(start) < bytes
    }
}

/// Number of code whose frames are not shown.
const NOT_SHOWN: u32 = u32::MAX;

#[cold]
#[inline(never)]
fn number_of(
    interpreter: &Interpreter,
    code: u64,
    memory: &impl Words,
    names: &mut NameRoom,
) -> Result<u32, NotMerged> {
    match CODES.number(code, interpreter.code_type, &interpreter.layout, memory, names) {
        Ok(CodeNumber::Contents(number)) => Ok(number),
        Ok(CodeNumber::Artificial) => Ok(NOT_SHOWN),
        Err(NoCode::Full) => Err(NotMerged),
        Err(NoCode::OtherLayout) => {
            interpreter.is_refused.store(true, Ordering::Relaxed);
            Err(NotMerged)
        }
    }
}

/// The byte offset of a frame's instruction in its code.
#[inline(always)]
fn offset_of(interpreter: &Interpreter, link: Link) -> u32 {
    let offset = match interpreter.layout.chain {
        ChainKind::Objects => (link.place as i32).into(),
        ChainKind::ObjectsAndCFrames => i64::from(link.place as i32) * 2,
        _ => link.place.wrapping_sub(link.code.wrapping_add(interpreter.layout.code_start)) as i64,
    };
    u32::try_from(offset).unwrap_or(NOT_BEGUN)
}

/// Steps to the caller by a plain rule.
///
/// # Safety
///
/// - `frame` is a live frame of this thread, and `rule` is the one of its pc.
unsafe fn plain_step(rule: Rule, frame: CallSite) -> Option<CallSite> {
    let CallSite { sp, fp, .. } = frame;
    if !rule.is_plain() {
        return None;
    }
    let base = if rule.is_from_fp() { fp } else { sp };
    let cfa = base.wrapping_add(rule.cfa_offset());
    if cfa <= sp || !cfa.is_multiple_of(8) {
        return None;
    }
    // SAFETY: the caller promises a live frame and its rule: what the rule reads lies between the
    // frame and its caller's, in the readable part of the stack.
    let word = |address: u64| unsafe { (address as *const u64).read_volatile() };
    let below = rule.slot_below_cfa();
    let fp = if below == 0 { fp } else { word(cfa - below) };
    Some(CallSite { pc: word(cfa - 8), sp: cfa, fp })
}

/// Adds a word to a hash.
#[inline(always)]
fn mix(hash: u64, word: u64) -> u64 {
    let product = u128::from(hash ^ word).wrapping_mul(u128::from(MIX));
    (product as u64) ^ (product >> 64) as u64 ^ hash.rotate_left(32)
}
