//! The answers as text.

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::time::Instant;

use cairn_analysis::heap::{Cost, Entry, Group, LineId, Names, Position, Questions};
use cairn_format::recording::PcKind;
use cairn_memory::heap::{
    Block, BlockLayout, ChunkState, Damage, GlibcHeap, Holder, Near, NearPlace, SizeCount,
};
use cairn_memory::image::FileState;
use cairn_wire::heapprof;

use super::USUAL_ENTRIES;
use super::answers::{Answers, ThreadAnswer, Where};
use crate::commands::heap_text::{
    bytes, count, counted, file_name, list_name, name_and_place, name_columns, percent, width,
};
use crate::commands::options::ListOptions;
use crate::output::{Palette, printable};

/// Callers of an entry, before the middle of the stack is left out.
const MOST_CALLERS: usize = 12;

pub(super) struct CorePrinter<'a, 'q, 'n, W> {
    output: &'a mut W,
    answers: &'a Answers,
    questions: &'a mut Questions<'q>,
    /// With all frames.
    names: &'a mut Names<'n>,
    palette: Palette,
    width: usize,
    most: usize,
    list: ListOptions,
}

pub(super) const fn layout_name(layout: BlockLayout) -> &'static str {
    match layout {
        BlockLayout::Lws => "lws",
        BlockLayout::Heapprof => "heapprof",
        BlockLayout::Cairn => "cairn",
    }
}

/// The name of a signal of Linux.
fn signal_name(signal: u32) -> &'static str {
    match signal {
        3 => " (SIGQUIT)",
        4 => " (SIGILL)",
        5 => " (SIGTRAP)",
        6 => " (SIGABRT)",
        7 => " (SIGBUS)",
        8 => " (SIGFPE)",
        9 => " (SIGKILL)",
        11 => " (SIGSEGV)",
        19 => " (SIGSTOP)",
        31 => " (SIGSYS)",
        _ => "",
    }
}

impl<'a, 'q, 'n, W: Write> CorePrinter<'a, 'q, 'n, W> {
    pub(super) fn new(
        output: &'a mut W,
        answers: &'a Answers,
        questions: &'a mut Questions<'q>,
        names: &'a mut Names<'n>,
        list: ListOptions,
    ) -> Self {
        let most = list.most_entries(USUAL_ENTRIES);
        Self { output, answers, questions, names, palette: Palette::of_stdout(), width: width(), most, list }
    }

    pub(super) fn head(&mut self, started: Instant) -> io::Result<()> {
        let about = &self.answers.about;
        write!(self.output, "{}", about.kind)?;
        let program = if about.command_line.is_empty() { &about.name } else { &about.command_line };
        if !program.is_empty() {
            write!(self.output, " of {}", printable(program))?;
        }
        if let Some(process) = about.process {
            write!(self.output, ", process {process}")?;
        }
        if let Some(machine) = about.machine {
            write!(self.output, ", {machine}")?;
        }
        let modules = self.answers.modules.len() as u64;
        let threads = self.answers.threads.len() as u64;
        writeln!(
            self.output,
            ": {} of memory, {}, {}",
            bytes(self.answers.dumped_bytes),
            counted(threads, "thread"),
            counted(modules, "module")
        )?;
        if let Some(signal) = about.signal.filter(|&signal| signal != 0) {
            write!(self.output, "stopped by signal {signal}{}", signal_name(signal))?;
            if let Some(address) = about.fault_address {
                write!(self.output, " at {address:#x}")?;
            }
            writeln!(self.output)?;
        }
        let annotated = &self.answers.annotated;
        let searched = bytes(annotated.scanned_bytes());
        let seconds = started.elapsed().as_secs_f64();
        let dim = self.palette.dim;
        if annotated.blocks().is_empty() {
            writeln!(self.output, "no annotated blocks {dim}({searched} searched, {seconds:.2} s){dim:#}")?;
        } else {
            let number = counted(annotated.blocks().len() as u64, "annotated block");
            write!(self.output, "{number}, {}", bytes(annotated.live_bytes()))?;
            for layout in [BlockLayout::Lws, BlockLayout::Heapprof, BlockLayout::Cairn] {
                let of = annotated.blocks().iter().filter(|block| block.layout == Some(layout)).count();
                if of > 0 {
                    write!(self.output, ", {} {}", count(of as u64), layout_name(layout))?;
                }
            }
            if annotated.freed_count() > 0 {
                write!(self.output, "; {} freed and not overwritten yet", count(annotated.freed_count()))?;
            }
            writeln!(self.output, " {dim}({searched} searched, {seconds:.2} s){dim:#}")?;
        }
        Ok(())
    }

    pub(super) fn overview(&mut self, heap_is_asked_for: bool) -> io::Result<()> {
        self.crash()?;
        self.damage()?;
        if !self.answers.annotated.blocks().is_empty() {
            self.list(Group::Stack, "Who holds the memory")?;
            self.list(Group::Function, "Functions")?;
        }
        if heap_is_asked_for || self.answers.annotated.blocks().is_empty() {
            self.heap()?;
        }
        Ok(())
    }

    fn heading(&mut self, text: &str) -> io::Result<()> {
        let strong = self.palette.strong();
        writeln!(self.output, "\n{strong}{text}{strong:#}")
    }

    /// Prints where the program ended: the innermost frames of its first thread.
    fn crash(&mut self) -> io::Result<()> {
        const SHOWN: usize = 5;
        let Some(thread) = self.answers.threads.first() else { return Ok(()) };
        if thread.frames.is_empty() || self.answers.about.kind == "process" {
            return Ok(());
        }
        self.heading(&format!("Thread {} was in", thread.thread.id))?;
        self.frames_of(thread, SHOWN)?;
        if thread.frames.len() > SHOWN {
            let dim = self.palette.dim;
            writeln!(self.output, "  {dim}… {} more frames: --stacks{dim:#}", thread.frames.len() - SHOWN)?;
        }
        Ok(())
    }

    fn frames_of(&mut self, thread: &ThreadAnswer, most: usize) -> io::Result<()> {
        self.names.find_stacks([thread.stack]);
        let addresses: Vec<u32> = self.names.stacks().addresses_of(thread.stack).take(most).collect();
        for (number, address) in addresses.into_iter().enumerate() {
            let found = self.names.stacks().address(address).copied();
            let gap = found.and_then(|found| self.answers.gap(&found));
            let place = match found {
                Some(found) if found.kind == PcKind::Interpreted => "Python".to_owned(),
                found => format!("{:#018x}", found.map_or(0, |found| found.absolute)),
            };
            let lines: Vec<LineId> = self.names.at_address(address).to_vec();
            for (index, line) in lines.iter().enumerate() {
                let dim = self.palette.dim;
                if index == 0 {
                    write!(self.output, "  {:<4}{dim}{place:18}{dim:#}  ", format!("#{number}"))?;
                } else {
                    write!(self.output, "{:26}", "")?;
                }
                let inlined = if index + 1 < lines.len() { " (inlined)" } else { "" };
                let behind = gap.map_or_else(|| inlined.to_owned(), |gap| format!("  ({gap})"));
                let text = line_text(self.names, *line, 26 + behind.len(), self.list.full);
                self.write_line(&text, &behind)?;
            }
        }
        Ok(())
    }

    fn write_line(&mut self, (name, place): &(String, String), behind: &str) -> io::Result<()> {
        let Palette { function, dim, .. } = self.palette;
        writeln!(self.output, "{function}{name}{function:#}{dim}{place}{dim:#}{behind}")
    }

    pub(super) fn threads(&mut self) -> io::Result<()> {
        let answers = self.answers;
        for thread in &answers.threads {
            let of = &thread.thread;
            let name =
                if of.name.is_empty() { String::new() } else { format!(" \"{}\"", printable(&of.name)) };
            let signal = of
                .signal
                .map(|signal| format!(", signal {signal}{}", signal_name(signal)))
                .unwrap_or_default();
            self.heading(&format!("thread {}{name}{signal}", of.id))?;
            let digits = self.answers.machine.word_size.bytes() * 2 + 2;
            let columns = (self.width.saturating_sub(2) / (digits + 10)).clamp(1, 4);
            for row in of.registers.chunks(columns) {
                let cells = row.iter().map(|(name, value)| format!("{name:>7} {value:#0digits$x}"));
                writeln!(self.output, "  {}", cells.collect::<Vec<_>>().join("  "))?;
            }
            self.frames_of(thread, usize::MAX)?;
            match &thread.stop {
                Some(stop) => writeln!(self.output, "      {stop}")?,
                None if of.walk.is_none() => {
                    writeln!(
                        self.output,
                        "      stacks of this machine cannot be walked here; registers only"
                    )?;
                }
                None => writeln!(self.output, "      its stack could not be walked")?,
            }
            for note in &thread.notes {
                writeln!(self.output, "      {note}")?;
            }
        }
        Ok(())
    }

    pub(super) fn modules(&mut self) -> io::Result<()> {
        self.heading("Modules")?;
        let answers = self.answers;
        for module in &answers.modules {
            let state = match &module.file {
                FileState::Same(_) => "",
                FileState::Different(_) => "  the file here is of a different build",
                FileState::Missing => "  no such file here",
                _ => "  its build is not known",
            };
            let path = module.path.to_string_lossy();
            let path = if path.is_empty() { "(no name)".into() } else { path };
            writeln!(
                self.output,
                "  {}-{}  {}{state}",
                module.range.start,
                module.range.end,
                printable(&path)
            )?;
        }
        Ok(())
    }

    fn damage(&mut self) -> io::Result<()> {
        let answers = self.answers;
        let of_heap = answers.heap.as_ref().map_or(&[][..], GlibcHeap::damage);
        let all = answers.damage.len() + of_heap.len();
        if all == 0 {
            return Ok(());
        }
        self.heading(&format!("Damage: {all}"))?;
        for damage in answers.damage.iter().take(self.most) {
            writeln!(self.output, "  {}", DamageText(damage))?;
            self.who_allocated(damage.block(), "    ")?;
        }
        for damage in of_heap.iter().take(self.most) {
            writeln!(self.output, "  {damage}")?;
            if let Some((block, gap)) = GlibcHeap::blame(damage, answers.annotated.blocks()) {
                writeln!(
                    self.output,
                    "    {gap} bytes behind the end of the block at {:#x}",
                    block.user_address
                )?;
                self.who_allocated(&block, "    ")?;
            }
        }
        let shown = answers.damage.len().min(self.most) + of_heap.len().min(self.most);
        self.more(all - shown)
    }

    fn more(&mut self, left_out: usize) -> io::Result<()> {
        if left_out > 0 {
            let dim = self.palette.dim;
            writeln!(self.output, "  {dim}… {} more: -n or --full{dim:#}", count(left_out as u64))?;
        }
        Ok(())
    }

    /// The stack that allocated a block.
    fn who_allocated(&mut self, block: &Block, indent: &str) -> io::Result<()> {
        if block.layout.is_none() {
            return Ok(());
        }
        let stack = self.answers.stacks.numbers.get(block.stack as usize).copied().unwrap_or(0);
        let dim = self.palette.dim;
        if stack == 0 {
            return writeln!(self.output, "{indent}{dim}who allocated it is not known{dim:#}");
        }
        let asker = self.questions.names_mut().askers(&[stack]).first().copied();
        self.stack(stack, asker.unwrap_or(Position { stack, inlined: 0 }), indent)
    }

    /// The frames of a stack from the one that asked outwards, a line each.
    fn stack(&mut self, stack: u32, asker: Position, indent: &str) -> io::Result<()> {
        let frames = self.questions.frames(stack, asker);
        let cut = !self.list.full && frames.len() > MOST_CALLERS;
        let dim = self.palette.dim;
        for (index, line) in frames.iter().enumerate() {
            if cut && index == MOST_CALLERS - 1 {
                writeln!(self.output, "{indent}{dim}… {} frames …{dim:#}", frames.len() - MOST_CALLERS)?;
            }
            if cut && (MOST_CALLERS - 1..frames.len() - 1).contains(&index) {
                continue;
            }
            let text = line_text(self.questions.names(), *line, indent.len(), self.list.full);
            write!(self.output, "{indent}")?;
            self.write_line(&text, "")?;
        }
        Ok(())
    }

    fn list(&mut self, group: Group, heading: &str) -> io::Result<()> {
        let entries = self.questions.top(group, Cost::Leaked);
        let whole = self.questions.profile().totals.live_bytes;
        self.heading(heading)?;
        let shown = self.list.shown(USUAL_ENTRIES, &entries, whole, |entry| entry.sums.live_bytes);
        let left_out = entries.len() - shown.len();
        for entry in shown {
            self.numbers(entry, whole)?;
            if let (Group::Stack, Some(&(stack, asker))) = (group, entry.stacks.first()) {
                writeln!(self.output)?;
                self.stack(stack, asker, "      ")?;
            } else {
                let text = line_text(self.questions.names(), entry.line, 38, self.list.full);
                write!(self.output, "  ")?;
                self.write_line(&text, "")?;
            }
        }
        self.more(left_out)
    }

    fn numbers(&mut self, entry: &Entry, whole: u64) -> io::Result<()> {
        let share = if whole == 0 { 0.0 } else { entry.sums.live_bytes as f64 / whole as f64 };
        let strong = self.palette.strong();
        let blocks = counted(entry.sums.live_blocks, "block");
        let (amount, share) = (bytes(entry.sums.live_bytes), percent(share));
        write!(self.output, "  {strong}{amount:>10}{strong:#}  {share:>6} %  {blocks:>14}")
    }

    /// Prints the answer about each address.
    pub(super) fn places(&mut self) -> io::Result<()> {
        let answers = self.answers;
        for place in &answers.places {
            let address = place.address;
            self.heading(&format!("{address:#x}"))?;
            if let Some(near) = &place.near {
                writeln!(self.output, "  {}", NearText(near))?;
                self.who_allocated(&near.block, "    ")?;
            }
            if let Some((chunk, user, length)) = &place.chunk {
                let state = state_name(chunk.state);
                let offset = address.wrapping_sub(*user) as i64;
                let where_to = match offset {
                    0.. => format!("{offset} bytes into its {length}"),
                    _ => format!("{} bytes in front of its {length}, in malloc's own header", -offset),
                };
                if answers.annotated.blocks().is_empty() || place.near.is_none() {
                    writeln!(self.output, "  in the heap block at {user:#x}, {state}: {where_to}")?;
                } else {
                    writeln!(self.output, "  in malloc's block at {user:#x}, {state}: {where_to}")?;
                }
            }
            let what = where_text(answers, &place.what);
            if place.chunk.is_none() || !matches!(place.what, Where::Heap) {
                writeln!(self.output, "  {what}")?;
            }
            if let Some(word) = place.word {
                writeln!(self.output, "  it holds {word:#x}")?;
            }
            let chance = answers.damage.iter().filter(|damage| {
                place.near.is_some_and(|near| damage.block().user_address == near.block.user_address)
            });
            for damage in chance {
                writeln!(self.output, "  damaged: {}", DamageText(damage))?;
            }
        }
        Ok(())
    }

    pub(super) fn references(&mut self) -> io::Result<()> {
        let answers = self.answers;
        for references in &answers.references {
            let (start, end) = (references.start, references.end);
            self.heading(&format!("Pointers to {start:#x}, {} bytes", end - start))?;
            if references.found.is_empty() {
                writeln!(self.output, "  nothing that the image has")?;
            }
            for (reference, near, what) in references.found.iter().take(self.most) {
                let into = reference.value.wrapping_sub(start);
                let into = if into == 0 { String::new() } else { format!(" (to byte {into})") };
                match reference.holder {
                    Holder::Register { thread, name } => {
                        writeln!(self.output, "  register {name} of thread {thread}{into}")?;
                    }
                    Holder::Memory(at) => match near {
                        Some(Near { block, place: NearPlace::Inside(offset) }) => {
                            writeln!(
                                self.output,
                                "  {at:#x}, byte {offset} of the block at {:#x} of {} bytes{into}",
                                block.user_address, block.size_bytes
                            )?;
                            self.who_allocated(block, "      ")?;
                        }
                        Some(near) => writeln!(
                            self.output,
                            "  {at:#x}, in the annotation of the block at {:#x}{into}",
                            near.block.user_address
                        )?,
                        None => writeln!(self.output, "  {at:#x}, {}{into}", where_text(answers, what))?,
                    },
                }
            }
            let more = references.found.len().saturating_sub(self.most) as u64 + references.more;
            self.more(more as usize)?;
        }
        Ok(())
    }

    pub(super) fn leaks(&mut self) -> io::Result<()> {
        let Some(leaks) = &self.answers.leaks else { return Ok(()) };
        let sum =
            |blocks: &[Block]| blocks.iter().fold(0_u64, |sum, block| sum.saturating_add(block.size_bytes));
        let direct = sum(&leaks.direct);
        self.heading(&format!(
            "Leaked: {} in {}",
            bytes(direct),
            counted(leaks.direct.len() as u64, "block")
        ))?;
        let dim = self.palette.dim;
        if !leaks.indirect.is_empty() {
            writeln!(
                self.output,
                "  and {} in {} that only they lead to",
                bytes(sum(&leaks.indirect)),
                counted(leaks.indirect.len() as u64, "block")
            )?;
        }
        writeln!(
            self.output,
            "  {dim}nothing in {} of registers, stacks and data leads to them{dim:#}",
            bytes(leaks.root_bytes)
        )?;
        if self.answers.annotated.blocks().is_empty() {
            let mut blocks = leaks.direct.clone();
            blocks.sort_by_key(|block| std::cmp::Reverse(block.size_bytes));
            let whole = sum(&leaks.direct);
            let shown = self.list.shown(USUAL_ENTRIES, &blocks, whole, |block| block.size_bytes);
            let left_out = blocks.len() - shown.len();
            for block in shown {
                writeln!(self.output, "  {:>10}  {:#x}", bytes(block.size_bytes), block.user_address)?;
            }
            return self.more(left_out);
        }
        let mut by_stack = std::collections::HashMap::<u32, (u64, u64)>::new();
        for block in &leaks.direct {
            let stack = self.answers.stacks.numbers.get(block.stack as usize).copied().unwrap_or(0);
            let entry = by_stack.entry(stack).or_default();
            *entry = (entry.0.saturating_add(block.size_bytes), entry.1 + 1);
        }
        let mut stacks: Vec<(u32, (u64, u64))> = by_stack.into_iter().collect();
        stacks.sort_by_key(|&(stack, (sum, _))| (std::cmp::Reverse(sum), stack));
        let askers =
            self.questions.names_mut().askers(&stacks.iter().map(|stack| stack.0).collect::<Vec<_>>());
        let stacks: Vec<_> = stacks.into_iter().zip(askers).collect();
        let shown =
            self.list.shown(USUAL_ENTRIES, &stacks, sum(&leaks.direct), |((_, (bytes, _)), _)| *bytes);
        let left_out = stacks.len() - shown.len();
        for &((stack, (sum, blocks)), asker) in shown {
            let strong = self.palette.strong();
            writeln!(self.output, "  {strong}{:>10}{strong:#}  {}", bytes(sum), counted(blocks, "block"))?;
            self.stack(stack, asker, "      ")?;
        }
        self.more(left_out)
    }

    fn heap(&mut self) -> io::Result<()> {
        let answers = self.answers;
        let Some(heap) = &answers.heap else {
            self.heading("No heap of glibc's malloc was found")?;
            return writeln!(
                self.output,
                "  The program may have another allocator, or the image does not hold libc's data.\n  With annotated \
                 blocks (cairn heap --annotate) the allocator does not matter."
            );
        };
        let system: u64 = heap.arenas().iter().fold(0, |sum, arena| sum.saturating_add(arena.system_bytes));
        let arenas = counted(heap.arenas().len() as u64, "arena");
        self.heading(&format!("Heap of glibc's malloc: {arenas}, {} from the system", bytes(system)))?;
        let rows = [
            ("in use", ChunkState::InUse),
            ("in use, mapped", ChunkState::Mapped),
            ("free", ChunkState::Free),
            ("in thread caches", ChunkState::ThreadCache),
            ("in fast bins", ChunkState::FastBin),
        ];
        for (name, wanted) in rows {
            let (chunks, sum) = heap.sum(|state| state == wanted);
            if chunks > 0 {
                writeln!(self.output, "  {name:<16} {:>10}  {:>14}", bytes(sum), counted(chunks, "block"))?;
            }
        }
        let top: u64 = heap.arenas().iter().fold(0, |sum, arena| sum.saturating_add(arena.top_bytes));
        writeln!(self.output, "  {:<16} {:>10}", "at the end", bytes(top))?;
        self.sizes(heap)?;
        self.largest(heap)
    }

    fn sizes(&mut self, heap: &GlibcHeap) -> io::Result<()> {
        self.heading("Sizes")?;
        let sizes = heap.sizes();
        let (_, in_use) = heap.sum(ChunkState::is_in_use);
        writeln!(
            self.output,
            "  {:>14}  {:>12}  {:>12}  {:>10}     share",
            "room for", "in use", "free", "bytes"
        )?;
        let in_use_bytes = |size: &SizeCount| size.in_use.saturating_mul(size.usable_bytes);
        let shown = self.list.shown(USUAL_ENTRIES, &sizes, in_use, in_use_bytes);
        let left_out = sizes.len() - shown.len();
        for size in shown {
            let sum = size.in_use.saturating_mul(size.usable_bytes);
            let share = if in_use == 0 { 0.0 } else { sum as f64 / in_use as f64 };
            // Half of a heap in one size is a container that grows, or a leak.
            let mark = if share > 0.5 && size.in_use > 100 { "  <- does this grow?" } else { "" };
            writeln!(
                self.output,
                "  {:>14}  {:>12}  {:>12}  {:>10}  {:>6} %{mark}",
                format!("{} B", count(size.usable_bytes)),
                count(size.in_use),
                count(size.free),
                bytes(sum),
                percent(share)
            )?;
        }
        self.more(left_out)
    }

    fn largest(&mut self, heap: &GlibcHeap) -> io::Result<()> {
        let mut chunks: Vec<_> = heap.chunks().iter().filter(|chunk| chunk.state.is_in_use()).collect();
        chunks.sort_by_key(|chunk| (std::cmp::Reverse(chunk.size_bytes), chunk.address));
        self.heading("Largest")?;
        let (_, in_use) = heap.sum(ChunkState::is_in_use);
        let shown = self.list.shown(USUAL_ENTRIES, &chunks, in_use, |chunk| heap.user_part(chunk).1);
        for chunk in shown.into_iter().take(5) {
            let (user, length) = heap.user_part(chunk);
            writeln!(self.output, "  {:>10}  {user:#x}", bytes(length))?;
        }
        Ok(())
    }
}

pub(super) const fn state_name(state: ChunkState) -> &'static str {
    match state {
        ChunkState::InUse => "in use",
        ChunkState::Mapped => "in use, a mapping of its own",
        ChunkState::ThreadCache => "freed, in a thread cache",
        ChunkState::FastBin => "freed, in a fast bin",
        ChunkState::Free => "freed",
    }
}

/// Returns the name of a frame and its source line, behind this many columns.
fn line_text(names: &Names<'_>, line: LineId, used: usize, full: bool) -> (String, String) {
    let (name, place) = name_and_place(names, line);
    let room = name_columns(io::stdout().is_terminal()).map(|columns| columns.saturating_sub(used));
    (if full { name } else { list_name(&name, &place, room) }, place)
}

fn where_text(answers: &Answers, what: &Where) -> String {
    match what {
        Where::Nowhere => "no memory that the image has".to_owned(),
        Where::Module(index, offset) => {
            let path = answers.modules.get(*index).map(|module| module.path.to_string_lossy().into_owned());
            format!("{}+{offset:#x}", printable(file_name(&path.unwrap_or_default())))
        }
        Where::Stack(thread) => format!("on the stack of thread {thread}"),
        Where::Heap => "in the heap".to_owned(),
        Where::Other(name) if name.is_empty() => "in other memory of the program".to_owned(),
        Where::Other(name) => format!("in {}", printable(name)),
    }
}

struct NearText<'a>(&'a Near);

impl fmt::Display for NearText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let block = &self.0.block;
        let (at, size) = (block.user_address, block.size_bytes);
        match self.0.place {
            NearPlace::Inside(0) => write!(f, "the start of a block of {size} bytes"),
            NearPlace::Inside(offset) => write!(f, "byte {offset} of the block of {size} bytes at {at:#x}"),
            NearPlace::InAnnotation(before) => {
                write!(
                    f,
                    "{before} bytes in front of the block of {size} bytes at {at:#x}, in its annotation"
                )
            }
            NearPlace::Behind(past) => {
                write!(f, "{past} bytes past the end of the block of {size} bytes at {at:#x}")
            }
        }
    }
}

/// Damage in words.
pub(super) struct DamageText<'a>(pub(super) &'a Damage);

impl fmt::Display for DamageText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Damage::TailOverwritten { block, bytes } => write!(
                f,
                "written {bytes} bytes past the end of the block of {} bytes at {:#x}, allocated by",
                block.size_bytes, block.user_address
            ),
            Damage::HeaderOverwritten { before, user_address, layout } => write!(
                f,
                "the {} header of the block at {user_address:#x} was overwritten; the block of {} bytes at {:#x} ends in \
                 front of it, allocated by",
                layout_name(*layout),
                before.size_bytes,
                before.user_address
            ),
            Damage::Overlap { first, second, bytes } => write!(
                f,
                "the blocks at {:#x} ({} bytes) and {:#x} ({} bytes) share {bytes} bytes; the first was allocated by",
                first.user_address, first.size_bytes, second.user_address, second.size_bytes
            ),
            Damage::PastMemory { block } => write!(
                f,
                "the block at {:#x} of {} bytes goes past the end of its memory; allocated by",
                block.user_address, block.size_bytes
            ),
            other => write!(f, "{other:?}"),
        }
    }
}

/// Prints blocks like heapprof.py.
///
/// Groups them by all of their callers, the largest group first, with names behind the addresses.
pub(super) fn heapprof(output: &mut impl Write, answers: &Answers, names: &mut Names<'_>) -> io::Result<()> {
    let stacks = answers.annotated.stacks();
    let mut sizes: Vec<Vec<u64>> = vec![Vec::new(); stacks.len()];
    let mut total = 0_u128;
    for block in answers.annotated.blocks() {
        total += u128::from(block.size_bytes);
        if let Some(list) = sizes.get_mut(block.stack as usize) {
            list.push(block.size_bytes);
        }
    }
    let callers = |number: usize| {
        stacks.raw(number as u32).iter().map(|frame| frame.address().unwrap_or_default()).collect::<Vec<_>>()
    };
    let mut clusters: Vec<(u128, Vec<_>, Vec<u64>)> = sizes
        .into_iter()
        .enumerate()
        .filter(|(_, sizes)| !sizes.is_empty())
        .map(|(number, sizes)| (sizes.iter().map(|&size| u128::from(size)).sum(), callers(number), sizes))
        .collect();
    clusters.sort_by(|a, b| (b.0, &b.1).cmp(&(a.0, &a.1)));
    names.find_stacks(answers.stacks.numbers.iter().copied());
    let mut by_address = std::collections::HashMap::new();
    for (index, address) in names.stacks().addresses().iter().enumerate() {
        by_address.entry(address.absolute).or_insert(index as u32);
    }
    let mut text = String::new();
    for (sum, callers, sizes) in clusters {
        // All blocks of no bytes are a hundredth of nothing, where the reference stops.
        let share = heapprof::percent(sum, total).unwrap_or(0);
        heapprof::write_cluster(&mut text, share, sum, sizes, callers, |out, address| {
            use std::fmt::Write;
            let lines = by_address.get(&address.value()).map_or(&[][..], |&index| names.at_address(index));
            let Some(&line) = lines.last() else { return out.write_str("??") };
            let source = names.source_line(line);
            write!(out, "{}", printable(&names.function(source.function).name))?;
            match (&source.file, source.line) {
                (Some(file), Some(number)) => write!(out, " {}:{number}", printable(file)),
                _ => Ok(()),
            }
        })
        .expect("text is written to memory");
        output.write_all(text.as_bytes())?;
        text.clear();
    }
    Ok(())
}
