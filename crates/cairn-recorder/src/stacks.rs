//! Writes new stacks into the file: every stack of a capture is in the spool before the capture
//! returns.
//!
//! A thread writes them through any free table log. When all are in use, it stores the first word
//! that is missing as a lower bound, and the next thread that gives a log back, or claims one,
//! writes what is missing. Writing a stack twice is harmless: each record is complete in itself.

use core::sync::atomic::{Ordering, fence};

use cairn_capture::{NewStacks, StackCursor, StackId, StackRow};
use cairn_format::recording::{MAX_TREE_WORDS, PcKind, control};

use crate::interpreters;
use crate::modules;
use crate::os::ErrnoGuard;
use crate::recorder::{self, Recorder};
use crate::tables::TableWriter;

/// Bit of a word of the stack table that names the parent of the words behind it.
const HEAD: u32 = 1 << 31;

/// Writes the frame of a row, and its module, unless they are in the file.
fn publish_frame(tables: &mut TableWriter<'_>, row: &StackRow) {
    let recorder = tables.recorder();
    if recorder.published.has(row.frame_id) {
        return;
    }
    let (kind, address) = row.kind_and_address();
    if kind == PcKind::Interpreted {
        interpreters::publish_code(tables, (address >> 32) as u32);
    }
    let module = modules::number_of(&recorder.modules, row.module, address, tables);
    if tables.append(3, |sink| sink.pc(row.frame_id.number(), kind, address, module)) {
        recorder.published.add(row.frame_id);
    }
}

fn publish_new(tables: &mut TableWriter<'_>, stacks: NewStacks) {
    stacks.rows().for_each(|row| publish_frame(tables, &row));
    let mut first = stacks.first_word();
    let mut words = stacks.words();
    while words.len() > 0 {
        let count = words.len().min(MAX_TREE_WORDS);
        let next = NextWords { words: &mut words, left: count };
        if !tables.append(2 + count.div_ceil(2), |sink| sink.tree_words(first, next)) {
            tables.recorder().spool.word(control::LOST_STACKS).fetch_add(1, Ordering::Relaxed);
            return;
        }
        first += count as u32;
    }
}

/// Writes all stacks whose number is at least `from`.
fn publish_known(tables: &mut TableWriter<'_>, from: u32) {
    let mut cursor = StackCursor::START;
    loop {
        while let Some(row) = cursor.next_row() {
            if row.id.number() >= from {
                publish_row(tables, &row);
            }
        }
        if !cursor.skip_unfinished() {
            break;
        }
    }
}

fn publish_row(tables: &mut TableWriter<'_>, row: &StackRow) {
    publish_frame(tables, row);
    let (number, pc) = (row.id.number(), row.frame_id.number());
    if row.parent.number() == number - 1 && row.parent != StackId::EMPTY {
        tables.append(3, |sink| sink.tree_words(number, [pc].into_iter()));
    } else {
        let head = HEAD | row.parent.number();
        tables.append(3, |sink| sink.tree_words(number - 1, [head, pc].into_iter()));
    }
}

/// Yields the next `left` of many words.
struct NextWords<'a, W> {
    words: &'a mut W,
    left: usize,
}

impl<W: Iterator<Item = u32>> Iterator for NextWords<'_, W> {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        self.left = self.left.checked_sub(1)?;
        self.words.next()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl<W: Iterator<Item = u32>> ExactSizeIterator for NextWords<'_, W> {}

/// Called inside captures; see [`cairn_capture::observe_new_stacks`].
fn on_new_stacks(stacks: NewStacks) {
    // The stacks are in the table already: either this load finds a recorder that is published
    // meanwhile, or `begin` of that recorder finds the stacks.
    fence(Ordering::SeqCst);
    let Some(recorder) = recorder::current() else { return };
    let _errno = ErrnoGuard::new();
    match TableWriter::take(recorder) {
        Some(mut tables) => publish_new(&mut tables, stacks),
        None => recorder.tables.leave_out(stacks.first_word()),
    }
    publish_left_out(recorder);
}

/// Called inside captures; see [`cairn_capture::observe_unread_python_stacks`].
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn on_unread_frames() {
    if let Some(recorder) = recorder::current() {
        recorder.spool.word(control::UNREAD_FRAMES).fetch_add(1, Ordering::Relaxed);
    }
}

/// Writes the stacks for which other threads found no free log. A thread without a log stores the
/// bound before it searches here, and one that gives a log back searches here afterwards: at least
/// one of the two finds the bound.
fn publish_left_out(recorder: &Recorder) {
    loop {
        fence(Ordering::SeqCst);
        if !recorder.tables.has_left_out() {
            return;
        }
        let Some(mut tables) = TableWriter::take(recorder) else { return };
        let first = recorder.tables.take_left_out();
        if first != 0 {
            publish_known(&mut tables, first);
        }
    }
}

/// Writes all known stacks, and observes new ones from here on.
pub(crate) fn begin(recorder: &Recorder) {
    // The observer comes first, so that no stack is missed in between.
    cairn_capture::observe_new_stacks(on_new_stacks);
    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    cairn_capture::observe_unread_python_stacks(on_unread_frames);
    fence(Ordering::SeqCst);
    match TableWriter::take(recorder) {
        Some(mut tables) => {
            interpreters::publish(&mut tables);
            publish_known(&mut tables, 0);
        }
        None => recorder.tables.leave_out(0),
    }
    publish_left_out(recorder);
}
