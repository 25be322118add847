//! Makes the table: who holds memory and who makes it grow, at one moment and since another.

use std::collections::HashMap;

use cairn_analysis::attribution::OwnerKind;
use cairn_analysis::heap::slices::{SliceEntry, Slices};
use cairn_analysis::heap::{
    About, Cost, Folding, Group, HeapProfile, LOST_STACK, Namer, Names, Position, Questions, Stacks, Sums,
    counted_stacks,
};
use cairn_analysis::source::HeapFilter;
use cairn_web::shown;
use clap::ValueEnum;

use crate::commands::heap_text::name_and_place;

/// The group that a row sums.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum, Debug)]
pub(super) enum By {
    /// The function that asked for the memory
    Function,
    /// The line that asked for it
    Line,
    /// The whole stack
    Stack,
    /// The module of the function
    Module,
    /// The thread that asked for it
    Thread,
}

impl By {
    pub(super) const ALL: [Self; 5] = [Self::Function, Self::Line, Self::Stack, Self::Module, Self::Thread];

    pub(super) const fn title(self) -> &'static str {
        match self {
            Self::Function => "FUNCTION",
            Self::Line => "LINE",
            Self::Stack => "STACK",
            Self::Module => "MODULE",
            Self::Thread => "THREAD",
        }
    }

    pub(super) fn step(self, by: usize) -> Self {
        let place = Self::ALL.iter().position(|one| *one == self).unwrap_or(0);
        Self::ALL[(place + by) % Self::ALL.len()]
    }
}

/// A column that rows are ordered by.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum, Debug)]
pub(super) enum Column {
    /// Bytes that live
    Live,
    /// Growth of these since the update before
    Growth,
    /// Growth of these since the zero point
    Since,
    /// Allocations in a second
    Rate,
    /// Bytes of all allocations
    Total,
    /// Allocations that were freed before their thread allocated again
    Temporary,
    /// The name
    Name,
}

impl Column {
    pub(super) const ALL: [Self; 7] =
        [Self::Live, Self::Growth, Self::Since, Self::Rate, Self::Total, Self::Temporary, Self::Name];

    pub(super) fn step(self, by: usize) -> Self {
        let place = Self::ALL.iter().position(|one| *one == self).unwrap_or(0);
        Self::ALL[(place + by) % Self::ALL.len()]
    }
}

/// A row. Its texts are fit to be shown.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Row {
    /// The same at every update.
    pub(super) key: String,
    pub(super) name: String,
    /// File, line and module.
    pub(super) place: String,
    /// None for rows of modules and threads.
    pub(super) owner: Option<OwnerKind>,
    pub(super) live_bytes: u64,
    pub(super) growth_bytes: i128,
    pub(super) since_bytes: i128,
    /// Allocations in a second.
    pub(super) rate: f64,
    pub(super) total_bytes: u64,
    pub(super) temporary: u64,
    /// The stacks that are in it, the most expensive first.
    stacks: Vec<(u32, Position)>,
}

/// Live bytes and allocations at an earlier moment, to compare with.
pub(super) struct Counts {
    stacks: Vec<(u64, u64)>,
    lost: (u64, u64),
    /// By number.
    threads: HashMap<u32, (u64, u64)>,
    pub(super) total: (u64, u64),
    pub(super) nanos: u64,
}

const fn count(sums: &Sums) -> (u64, u64) {
    (sums.live_bytes, sums.allocations)
}

impl Counts {
    pub(super) fn of(profile: &HeapProfile, about: &About) -> Self {
        let threads = about.threads.iter().zip(&profile.threads);
        Self {
            stacks: profile.stacks.iter().map(count).collect(),
            lost: count(&profile.lost_stack),
            threads: threads.map(|(thread, sums)| (thread.number, count(sums))).collect(),
            total: count(&profile.totals),
            nanos: profile.end_nanos,
        }
    }

    /// Before anything was allocated.
    pub(super) fn nothing() -> Self {
        Self { stacks: Vec::new(), lost: (0, 0), threads: HashMap::new(), total: (0, 0), nanos: 0 }
    }

    fn stack(&self, stack: u32) -> (u64, u64) {
        match stack {
            LOST_STACK => self.lost,
            _ => self.stacks.get(stack as usize).copied().unwrap_or_default(),
        }
    }

    fn thread(&self, number: u32) -> (u64, u64) {
        self.threads.get(&number).copied().unwrap_or_default()
    }
}

/// The data of the table.
pub(super) struct TableSource<'a> {
    pub(super) profile: &'a HeapProfile,
    pub(super) about: &'a About,
    pub(super) stacks: &'a Stacks,
    pub(super) namer: &'a dyn Namer,
    pub(super) folding: Folding,
    /// Only stacks that match are counted.
    pub(super) filters: &'a [HeapFilter],
    /// The update before.
    pub(super) before: &'a Counts,
    pub(super) zero: &'a Counts,
    /// Time since the update before.
    pub(super) seconds: f64,
}

/// The rows that the user asked for.
#[derive(Clone, Debug)]
pub(super) struct Wish {
    pub(super) by: By,
    pub(super) column: Column,
    pub(super) is_reversed: bool,
    /// Only rows with this in their names; in lower case.
    pub(super) search: String,
    /// Only rows that hold at least this part of the live memory, from 0 to 1.
    pub(super) least_share: f64,
    /// The row whose stack is wanted.
    pub(super) chosen: Option<String>,
}

/// The answer.
#[derive(Default)]
pub(super) struct Table {
    pub(super) rows: Vec<Row>,
    /// Most expensive stack of the chosen row.
    pub(super) stack: Option<ChosenStack>,
}

/// A stack of a row.
pub(super) struct ChosenStack {
    /// Innermost frame first, folded ones left out.
    pub(super) frames: Vec<String>,
    /// How many frames are left out.
    pub(super) folded: usize,
    /// How many other stacks the row has.
    pub(super) others: usize,
}

/// The stacks that match the filters and the focus; `None` where all do.
fn stacks_of(filters: &[HeapFilter], names: &mut Names<'_>) -> Option<Vec<bool>> {
    let (mut functions, mut modules) = (Vec::new(), Vec::new());
    for filter in filters {
        match filter {
            HeapFilter::Function(pattern) => functions.push(pattern.clone()),
            HeapFilter::Module(pattern) => modules.push(pattern.clone()),
            // The sums are of such blocks already.
            HeapFilter::Thread(_) | HeapFilter::Size(_) => {}
        }
    }
    counted_stacks(names, &functions, &modules)
}

/// Rows of stacks that show callers.
const WITH_CALLERS: usize = 100;
/// Callers of each.
const CALLERS: usize = 5;

impl TableSource<'_> {
    pub(super) fn table(&self, wish: &Wish) -> Table {
        let mut names = Names::new(self.stacks, self.namer, self.folding.clone());
        let counted = stacks_of(self.filters, &mut names);
        let filtered = counted.map(|counted| self.profile.of_stacks(&counted));
        let mut questions = Questions::new(filtered.as_ref().unwrap_or(self.profile), names);
        let mut rows = match wish.by {
            By::Thread => self.threads(),
            By::Function => self.rows(&questions, Group::Function),
            By::Line => self.rows(&questions, Group::Line),
            By::Module => self.rows(&questions, Group::Module),
            By::Stack => self.rows(&questions, Group::Stack),
        };
        if !wish.search.is_empty() {
            rows.retain(|row| {
                row.name.to_lowercase().contains(&wish.search)
                    || row.place.to_lowercase().contains(&wish.search)
            });
        }
        if wish.least_share > 0.0 {
            let least = questions.profile().totals.live_bytes as f64 * wish.least_share;
            rows.retain(|row| row.live_bytes as f64 >= least);
        }
        sort(&mut rows, wish.column);
        if wish.is_reversed {
            rows.reverse();
        }
        if wish.by == By::Stack {
            for row in rows.iter_mut().take(WITH_CALLERS) {
                add_callers(row, &mut questions);
            }
        }
        let chosen = wish.chosen.as_ref().and_then(|key| rows.iter().find(|row| row.key == *key));
        let stack = chosen.and_then(|row| {
            let &(stack, asker) = row.stacks.first()?;
            let lines = questions.frames(stack, asker);
            let text = |(name, place): (String, String)| format!("{}{}", shown(&name), shown(&place));
            let frames = lines.iter().map(|&line| text(name_and_place(questions.names(), line))).collect();
            let folded = questions.left_out(stack, asker);
            Some(ChosenStack { frames, folded, others: row.stacks.len() - 1 })
        });
        Table { rows, stack }
    }

    fn rows(&self, questions: &Questions<'_>, group: Group) -> Vec<Row> {
        // Threads that never allocated since the recording began have no row.
        let entries = questions.top(group, Cost::Count);
        entries.into_iter().map(|entry| self.row(questions, group, entry)).collect()
    }

    fn row(&self, questions: &Questions<'_>, group: Group, mut entry: cairn_analysis::heap::Entry) -> Row {
        let names = questions.names();
        let (name, place) = name_and_place(names, entry.line);
        let (name, place) = match group {
            Group::Function => (name, module_of(&place)),
            Group::Line | Group::Stack => (name, place),
            Group::Module => {
                let path = names.module_path(entry.line).to_owned();
                let module = names.module_name(entry.line);
                let module = if module.is_empty() { "[no module]" } else { module };
                (shown(module).into_owned(), format!("  {}", shown(&path)))
            }
        };
        // The most expensive line of one function may change from one read to the next.
        let key = match group {
            Group::Function | Group::Module => name.clone(),
            Group::Line => format!("{name}{place}"),
            Group::Stack => entry.stacks.first().map_or_else(String::new, |(stack, _)| stack.to_string()),
        };
        entry.stacks.sort_by_key(|&(stack, _)| (std::cmp::Reverse(questions.sums(stack).live_bytes), stack));
        let add =
            |sum: (u64, u64), one: (u64, u64)| (sum.0.saturating_add(one.0), sum.1.saturating_add(one.1));
        let at =
            |counts: &Counts| entry.stacks.iter().map(|&(stack, _)| counts.stack(stack)).fold((0, 0), add);
        let (before, zero) = (at(self.before), at(self.zero));
        let owner = (group != Group::Module).then(|| names.owner_kind(entry.line));
        let row = self.row_of(
            key,
            (shown(&name).into_owned(), shown(&place).into_owned()),
            &entry.sums,
            before,
            zero,
            entry.stacks,
        );
        Row { owner, ..row }
    }

    fn row_of(
        &self,
        key: String,
        (name, place): (String, String),
        sums: &Sums,
        before: (u64, u64),
        zero: (u64, u64),
        stacks: Vec<(u32, Position)>,
    ) -> Row {
        let grown = |since: (u64, u64)| i128::from(sums.live_bytes) - i128::from(since.0);
        Row {
            key,
            name,
            place,
            owner: None,
            live_bytes: sums.live_bytes,
            growth_bytes: grown(before),
            since_bytes: grown(zero),
            rate: rate(sums.allocations.saturating_sub(before.1), self.seconds),
            total_bytes: sums.allocated_bytes,
            temporary: sums.temporary,
            stacks,
        }
    }

    fn threads(&self) -> Vec<Row> {
        // The memory of a thread that comes from some stacks alone is not known.
        if !self.filters.iter().all(HeapFilter::is_of_blocks) {
            return Vec::new();
        }
        let threads = self.about.threads.iter().zip(&self.profile.threads);
        let threads = threads.filter(|(thread, sums)| thread.kernel_thread != 0 || sums.allocations > 0);
        threads
            .map(|(thread, sums)| {
                let name = match thread.name.as_str() {
                    "" => format!("thread {}", thread.kernel_thread),
                    name => shown(name).into_owned(),
                };
                let place = format!("  {}", thread.kernel_thread);
                let (before, zero) = (self.before.thread(thread.number), self.zero.thread(thread.number));
                self.row_of(thread.number.to_string(), (name, place), sums, before, zero, Vec::new())
            })
            .collect()
    }
}

/// Returns the module of a text like `  file:line [module]`.
fn module_of(place: &str) -> String {
    place.rfind(" [").map_or_else(String::new, |start| format!(" {}", &place[start..]))
}

pub(super) fn rate(allocations: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { allocations as f64 / seconds } else { 0.0 }
}

fn sort(rows: &mut [Row], column: Column) {
    rows.sort_by(|a, b| {
        let by_value = match column {
            Column::Live => b.live_bytes.cmp(&a.live_bytes),
            Column::Growth => b.growth_bytes.cmp(&a.growth_bytes),
            Column::Since => b.since_bytes.cmp(&a.since_bytes),
            Column::Rate => b.rate.total_cmp(&a.rate),
            Column::Total => b.total_bytes.cmp(&a.total_bytes),
            Column::Temporary => b.temporary.cmp(&a.temporary),
            Column::Name => std::cmp::Ordering::Equal,
        };
        by_value.then_with(|| (&a.name, &a.place, &a.key).cmp(&(&b.name, &b.place, &b.key)))
    });
}

fn add_callers(row: &mut Row, questions: &mut Questions<'_>) {
    let Some(&(stack, asker)) = row.stacks.first() else { return };
    let lines = questions.frames(stack, asker);
    let names = questions.names();
    for line in lines.iter().skip(1).take(CALLERS) {
        row.name.push_str(" ← ");
        row.name.push_str(&shown(&names.function_of(*line).name));
    }
    if lines.len() > CALLERS + 1 {
        row.name.push_str(" ← …");
    }
    let folded = questions.left_out(stack, asker);
    if folded > 0 {
        row.name.push_str(&format!(" ({folded} folded)"));
    }
}

/// The sums as they were at the end of a slice.
pub(super) fn profile_at(whole: &HeapProfile, slices: &Slices, slice: usize) -> HeapProfile {
    let mut profile = whole.clone();
    let sampling = profile.sampling;
    let empty = |rows: &mut Vec<Sums>| rows.iter_mut().for_each(|row| *row = Sums::default());
    empty(&mut profile.stacks);
    empty(&mut profile.threads);
    profile.lost_stack = Sums::default();
    profile.totals = Sums::default();
    let add = |sums: &mut Sums, entry: &SliceEntry| {
        sums.allocations = sums.allocations.saturating_add(entry.allocations);
        sums.allocated_bytes = sums.allocated_bytes.saturating_add(entry.allocated_bytes);
        sums.live_bytes = sums.live_bytes.wrapping_add_signed(entry.grown_bytes);
        sums.temporary = sums.temporary.saturating_add(entry.temporary);
    };
    let is_before = |entry: &&SliceEntry| entry.slice as usize <= slice;
    for entry in slices.stacks.iter().filter(is_before) {
        let row = match entry.row {
            LOST_STACK => Some(&mut profile.lost_stack),
            row => profile.stacks.get_mut(row as usize),
        };
        if let Some(row) = row {
            add(row, entry);
        }
        add(&mut profile.totals, entry);
    }
    for entry in slices.threads.iter().filter(is_before) {
        if let Some(row) = profile.threads.get_mut(entry.row as usize) {
            add(row, entry);
        }
    }
    let all = profile.stacks.iter_mut().chain(&mut profile.threads);
    for sums in all.chain([&mut profile.lost_stack, &mut profile.totals]) {
        sums.allocations = sampling.blocks(sums.allocations);
    }
    profile.end_nanos = whole.end_nanos.min((slice as u64 + 1).saturating_mul(slices.slice_nanos));
    profile.live_bytes_of_all = profile.totals.live_bytes;
    profile
}
