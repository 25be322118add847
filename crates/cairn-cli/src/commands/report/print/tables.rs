//! Tables of a report: threads, sizes, lifetimes, resident memory.

use std::io::{self, Write};

use cairn_analysis::heap::{
    Amount, Cost, Lifetimes, Sums, lifetime_class, lifetime_class_range, size_class_range,
};
use cairn_recording::HEAP_TIME_QUANTUM_NANOS;

use super::{FRAMES, NUMBERS, ReportPrinter};
use crate::commands::heap_text::{bar, bytes, count, counted, duration, percent};
use crate::output::printable;

impl<W: Write> ReportPrinter<'_, '_, W> {
    /// All threads.
    pub(in super::super) fn threads(&mut self) -> io::Result<()> {
        self.head()?;
        let rows = self.thread_rows();
        self.table("thread", &rows, self.asked.limits.entries)?;
        self.notes()
    }

    fn thread_rows(&self) -> Vec<(String, Sums)> {
        const MOST_NAMES: usize = 3;
        let threads = &self.asked.about.threads;
        let process = self.asked.about.process;
        let main = threads.iter().find(|thread| thread.kernel_thread == process);
        let main_name = main.map(|main| main.earlier_names.first().unwrap_or(&main.name));
        let name = |thread: &cairn_analysis::heap::ThreadName| {
            let name = printable(&thread.name).into_owned();
            let name = format!("{} {name}", thread.kernel_thread).trim_end().to_owned();
            // A thread has the name of the one that made it at first, which says nothing of it.
            let earlier = thread.earlier_names.iter().filter(|name| Some(*name) != main_name);
            let earlier: Vec<_> = earlier.map(|name| printable(name)).collect();
            match earlier.split_at_checked(MOST_NAMES) {
                _ if earlier.is_empty() => name,
                Some((first, more)) if !more.is_empty() => {
                    format!("{name} (before: {}, and {} more)", first.join(", "), more.len())
                }
                _ => format!("{name} (before: {})", earlier.join(", ")),
            }
        };
        let mut rows: Vec<(String, Sums)> = threads
            .iter()
            .zip(&self.questions.profile().threads)
            .filter(|(_, sums)| !sums.is_empty())
            .map(|(thread, sums)| (name(thread), *sums))
            .collect();
        rows.sort_by_key(|(_, sums)| std::cmp::Reverse(self.asked.cost.of(sums)));
        rows
    }

    /// Prints the parts of resident memory at its peak, and the stacks that mapped most.
    pub(super) fn resident_section(&mut self) -> io::Result<()> {
        let Some(resident) = &self.asked.read.resident else { return Ok(()) };
        let sample = resident.sample;
        self.heading(&format!(
            "Resident memory, at most {} in the samples, after {}",
            bytes(sample.resident_bytes),
            duration(sample.nanos)
        ))?;
        let mut row = |value: u64, what: &str| writeln!(self.output, "  {:>12}  {what}", bytes(value));
        row(resident.held_bytes, "in blocks that the program held then")?;
        if resident.mapped_bytes > 0 {
            row(resident.mapped_bytes, "mapped by the program itself, as far as it is used")?;
        }
        let what = if resident.mapped_bytes > 0 {
            "the rest: program and libraries, stacks, and free memory of the allocator"
        } else {
            "the rest: program, libraries, stacks, mappings (see --mmap), free memory of malloc"
        };
        row(resident.rest_bytes(), what)?;
        match sample.own_bytes {
            Some(own) => row(own, "beside that, of cairn: the recording, its tables, its library")?,
            None => writeln!(
                self.output,
                "  {:>12}  cairn's own is part of the rest, it is not known how much",
                ""
            )?,
        }
        let faults = counted(sample.page_faults, "page fault");
        let threads = counted(sample.threads.into(), "thread");
        let dim = self.palette.dim;
        writeln!(self.output, "{dim}  {:>12}  {faults} until then, {threads}{dim:#}", "")?;
        self.mappings()?;
        writeln!(self.output)
    }

    /// Prints the stacks that mapped most.
    fn mappings(&mut self) -> io::Result<()> {
        let Some(resident) = &self.asked.read.resident else { return Ok(()) };
        let whole = Amount { value: resident.mapped_bytes, blocks: 0 };
        for &(stack, value) in resident.mapped_by_stack.iter().take(self.asked.limits.entries) {
            let share = percent(Amount { value, blocks: 0 }.share_of(whole));
            write!(self.output, " {share:>5} % {:>10} {:>12} ", bytes(value), "mapped by")?;
            let position = self.questions.names_mut().askers(&[stack]).first().copied();
            let frames = position.map(|position| self.questions.frames(stack, position)).unwrap_or_default();
            match frames.first() {
                Some(&line) => self.frame(line, NUMBERS)?,
                None => writeln!(self.output, "an unknown stack")?,
            }
            for &caller in frames.iter().skip(1).take(if self.full { usize::MAX } else { FRAMES }) {
                let dim = self.palette.dim;
                write!(self.output, "{:NUMBERS$}{dim}← {dim:#}", "")?;
                self.frame(caller, NUMBERS + 2)?;
            }
        }
        Ok(())
    }

    pub(super) fn thread_section(&mut self) -> io::Result<()> {
        let rows = self.thread_rows();
        if rows.len() < 2 {
            return Ok(());
        }
        self.heading("Threads")?;
        self.table("thread", &rows, self.asked.limits.entries)
    }

    /// All classes of sizes.
    pub(in super::super) fn sizes(&mut self) -> io::Result<()> {
        self.head()?;
        let rows = self.size_rows();
        self.table("size", &rows, usize::MAX)?;
        self.notes()
    }

    fn size_rows(&self) -> Vec<(String, Sums)> {
        let sizes = self.questions.profile().sizes.iter().enumerate();
        sizes.filter(|(_, sums)| !sums.is_empty()).map(|(class, sums)| (size_range(class), *sums)).collect()
    }

    pub(super) fn size_section(&mut self) -> io::Result<()> {
        let rows = self.size_rows();
        if rows.is_empty() {
            return Ok(());
        }
        self.heading("Sizes of blocks, up to")?;
        let whole = rows.iter().map(|(_, sums)| sums.allocations).max().unwrap_or(0).max(1);
        let dim = self.palette.dim;
        for (range, sums) in &rows {
            let bar = bar(sums.allocations as f64 / whole as f64, self.width.saturating_sub(50).min(50));
            let value = bytes(sums.allocated_bytes);
            writeln!(
                self.output,
                "  {range:>16} {:>14} × {value:>10} {dim}{bar}{dim:#}",
                count(sums.allocations)
            )?;
        }
        writeln!(self.output)
    }

    fn table(&mut self, what: &str, rows: &[(String, Sums)], most: usize) -> io::Result<()> {
        let dim = self.palette.dim;
        let (unfreed, _) = self.words(Cost::Leaked);
        let columns = ["peak", unfreed, "allocated", "calls", "temporary"];
        let [peak, leaked, allocated, calls, temporary] = columns;
        writeln!(
            self.output,
            "{dim}{peak:>12} {leaked:>12} {allocated:>12} {calls:>14} {temporary:>14}  {what}{dim:#}"
        )?;
        for (name, sums) in rows.iter().take(most) {
            let (peak, live, all) =
                (bytes(sums.peak_bytes), bytes(sums.live_bytes), bytes(sums.allocated_bytes));
            let (calls, temporary) = (count(sums.allocations), count(sums.temporary));
            writeln!(self.output, "{peak:>12} {live:>12} {all:>12} {calls:>14} {temporary:>14}  {name}")?;
        }
        if rows.len() > most {
            writeln!(self.output, "{dim}and {} more{dim:#}", count((rows.len() - most) as u64))?;
        }
        writeln!(self.output)
    }

    /// How long blocks lived.
    pub(in super::super) fn lifetimes(&mut self) -> io::Result<()> {
        self.head()?;
        self.heading("How long the blocks lived that were freed")?;
        let lifetimes = &self.questions.profile().lifetimes;
        let whole = lifetimes.iter().map(|lifetime| lifetime.blocks).max().unwrap_or(0).max(1);
        let dim = self.palette.dim;
        // Shorter lifetimes are one class: times are not known that precisely.
        let shortest = lifetime_class(HEAP_TIME_QUANTUM_NANOS) + 1;
        let mut rows = vec![Lifetimes::default()];
        for lifetime in lifetimes.iter().take(shortest) {
            rows[0].blocks += lifetime.blocks;
            rows[0].bytes = rows[0].bytes.wrapping_add(lifetime.bytes);
        }
        rows.extend(lifetimes.iter().skip(shortest));
        let whole = rows.iter().map(|row| row.blocks).max().unwrap_or(0).max(whole);
        for (row, lifetime) in rows.iter().enumerate().filter(|(_, lifetime)| lifetime.blocks > 0) {
            let (word, class) = if row == 0 { ("under", shortest) } else { ("from", shortest + row - 1) };
            let (from, _) = lifetime_class_range(class);
            let bar = bar(lifetime.blocks as f64 / whole as f64, self.width.saturating_sub(50).min(50));
            let (blocks, value) = (count(lifetime.blocks), bytes(lifetime.bytes));
            writeln!(
                self.output,
                "  {word:<5}{:>10} {blocks:>14} × {value:>10} {dim}{bar}{dim:#}",
                duration(from)
            )?;
        }
        writeln!(self.output)?;
        self.notes()
    }
}

/// The largest size of a class; the smallest one is a byte above that of the class before.
fn size_range(class: usize) -> String {
    bytes(size_class_range(class).1).replace(".0", "")
}
