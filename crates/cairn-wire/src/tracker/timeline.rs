//! Follows loads and unloads: intervals of modules, and stacks resolved at their place in the file.
//!
//! The crate has no memory of its own, so the caller lends slots, one for each *load* of a module.
//! Running out of them is an error, and [`Reader::count_loads`] returns the number beforehand.
//! (The other way, scanning the recording again from the start for each stack, needs no slots and
//! quadratic time.)
//!
//! The loaded modules are the nodes of two search trees, whose links are fields of the slots: one
//! by address, for loads and stacks, and one by path, for unloads. Empty modules are in the second
//! one alone: they contain no address, and nothing needs to step over them.
//!
//! A load, an unload or an address takes the logarithm of the number of loaded modules. Only in the
//! [reference's way](Timeline::like_reference) a load is compared with all of them.

use core::cmp::Ordering;
use core::fmt;

use super::{
    path::{CharWidth, ModulePath},
    reader::{Event, Reader, StackAddresses, TrackerReadErrorKind},
    tree::{self, Link, NONE, Nodes},
};
use cairn_format::{AbsoluteAddress, Frame, ModuleOffset};

/// A place in the recording.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EventPlace {
    /// Where the event starts: bytes from the start of the recording. The order of truth.
    pub offset: usize,
    /// When that was by the clock on the wall.
    pub timestamp_nanos: u64,
}

/// One load of a module: from `loaded` on, and up to `unloaded`, it was at `base`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ModuleSlot<'a> {
    /// The file it was loaded from.
    pub path: ModulePath<'a>,
    /// Its first byte.
    pub base: AbsoluteAddress,
    /// How many bytes it takes. An empty module contains no address and overlaps no module.
    pub size_bytes: u32,
    /// The event that loaded it.
    pub loaded: EventPlace,
    /// The event from which on it is gone: an unload, or a load that overlaps it. `None`: it stayed
    /// to the end.
    pub unloaded: Option<EventPlace>,
    /// Where addresses are taken for this module's: its own range, except in the reference's eyes.
    range: Range,
    /// Which one it is among modules whose ranges begin at the same address.
    rank: usize,
    by_address: Link,
    by_path: Link,
}

impl ModuleSlot<'_> {
    /// A slot to lend: `[ModuleSlot::EMPTY; 64]`, or
    /// `vec![ModuleSlot::EMPTY; reader.count_loads()]`.
    pub const EMPTY: Self = Self {
        path: ModulePath::new(&[], CharWidth::Two),
        base: AbsoluteAddress::new(0),
        size_bytes: 0,
        loaded: EventPlace { offset: 0, timestamp_nanos: 0 },
        unloaded: None,
        range: Range { first: 0, size_bytes: 0 },
        rank: 0,
        by_address: Link::EMPTY,
        by_path: Link::EMPTY,
    };

    /// Orders by address, and by time of loading where both begin at the same address.
    fn order(&self, other: &Self) -> Ordering {
        (self.range.first, self.rank).cmp(&(other.range.first, other.rank))
    }

    /// By path, and by address among those of one path.
    fn order_by_path(&self, other: &Self) -> Ordering {
        self.path.cmp(&other.path).then_with(|| self.order(other))
    }
}

/// Slots as the nodes of the tree by address.
struct ByAddress<'t, 'a>(&'t mut [ModuleSlot<'a>]);

/// Slots as the nodes of the tree by path.
struct ByPath<'t, 'a>(&'t mut [ModuleSlot<'a>]);

impl Nodes for ByAddress<'_, '_> {
    fn link(&self, index: usize) -> Link {
        self.0.get(index).map_or(Link::EMPTY, |slot| slot.by_address)
    }

    fn set_link(&mut self, index: usize, link: Link) {
        if let Some(slot) = self.0.get_mut(index) {
            slot.by_address = link;
        }
    }

    fn order(&self, one: usize, other: usize) -> Ordering {
        compare(self.0, one, other, ModuleSlot::order)
    }
}

impl Nodes for ByPath<'_, '_> {
    fn link(&self, index: usize) -> Link {
        self.0.get(index).map_or(Link::EMPTY, |slot| slot.by_path)
    }

    fn set_link(&mut self, index: usize, link: Link) {
        if let Some(slot) = self.0.get_mut(index) {
            slot.by_path = link;
        }
    }

    fn order(&self, one: usize, other: usize) -> Ordering {
        compare(self.0, one, other, ModuleSlot::order_by_path)
    }
}

fn compare<'a>(
    slots: &[ModuleSlot<'a>],
    one: usize,
    other: usize,
    by: fn(&ModuleSlot<'a>, &ModuleSlot<'a>) -> Ordering,
) -> Ordering {
    match (slots.get(one), slots.get(other)) {
        (Some(one), Some(other)) => by(one, other),
        // Indices of nodes are always those of slots.
        _ => one.cmp(&other),
    }
}

/// A range of addresses that may end at the top of the address space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Range {
    first: u64,
    size_bytes: u32,
}

impl Range {
    const fn contains(self, address: u64) -> bool {
        match address.checked_sub(self.first) {
            Some(offset) => offset < self.size_bytes as u64,
            None => false,
        }
    }

    /// Returns whether an address is in both. Empty ranges share none.
    const fn overlaps(self, other: Self) -> bool {
        if self.size_bytes == 0 || other.size_bytes == 0 {
            return false;
        }
        self.contains(other.first) || other.contains(self.first)
    }

    /// Returns whether the reference's player takes the two for the same key of its map. It
    /// compares the last address of one with the first of the other, where the "last" of an empty
    /// range lies before its first.
    const fn is_same_key(self, other: Self) -> bool {
        self.last() >= other.first && other.last() >= self.first
    }

    const fn last(self) -> u64 {
        self.first.wrapping_add(self.size_bytes as u64).wrapping_sub(1)
    }
}

/// Follows a recording event by event.
#[derive(Debug)]
pub struct Timeline<'s, 'a> {
    reader: Reader<'a>,
    slots: &'s mut [ModuleSlot<'a>],
    used: usize,
    /// The roots of the two trees.
    by_address: usize,
    by_path: usize,
    like_reference: bool,
    failed: bool,
}

/// One event of the recording and what it did.
#[derive(Clone, Debug)]
pub struct Step<'t, 'a> {
    /// Where and when it was.
    pub place: EventPlace,
    /// Its change to the modules, or its stack.
    pub change: Change<'t, 'a>,
    /// Its anomaly, if any.
    pub finding: Option<Finding>,
}

/// Effect of an event.
#[derive(Clone, Debug)]
pub enum Change<'t, 'a> {
    /// A module was loaded; its index in [`Timeline::modules`].
    Loaded(usize),
    /// A module was unloaded; its index in [`Timeline::modules`].
    Unloaded(usize),
    /// An unload of a path that is not loaded changed nothing.
    Ignored,
    /// A stack was taken.
    Stack(ResolvedStack<'t, 'a>),
}

/// Anomalies of an event that is well-formed in itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Finding {
    /// The same module was loaded at the same place without an unload between. Usual at the start
    /// of a recording, where modules are listed both as they come and as they are there. The
    /// earlier interval ends here.
    ListedAgain,
    /// Number of other modules that were still loaded at this address; their unloads were missed.
    /// Their intervals end here.
    Overlapped(usize),
    /// The path of an unload is not that of a loaded module, by exact comparison.
    UnknownPath,
}

impl<'s, 'a> Timeline<'s, 'a> {
    /// Creates a timeline at the start of the recording, which puts the modules into `slots`.
    pub fn new(reader: Reader<'a>, slots: &'s mut [ModuleSlot<'a>]) -> Self {
        Self { reader, slots, used: 0, by_address: NONE, by_path: NONE, like_reference: false, failed: false }
    }

    /// Resolves as the reference's player does. A module loaded over another takes over the other's
    /// range and not its own, so that [`ModulePlace::offset`] may be meaningless (it wraps). Only
    /// the lowest of several others gives way.
    #[must_use]
    pub fn like_reference(self) -> Self {
        Self { like_reference: true, ..self }
    }

    /// Returns all loads so far, in the order of the recording.
    #[must_use]
    pub fn modules(&self) -> &[ModuleSlot<'a>] {
        self.slots.get(..self.used).unwrap_or_default()
    }

    /// Returns what the next event did; `None` at the end of the recording and after an error.
    ///
    /// # Errors
    ///
    /// [`TimelineError`] when the event cannot be read, or when it loads a module and no slot is
    /// left.
    pub fn step(&mut self) -> Option<Result<Step<'_, 'a>, TimelineError>> {
        if self.failed {
            return None;
        }
        let record = match self.reader.next()? {
            Ok(record) => record,
            Err(error) => return Some(Err(self.fail(error.offset, TimelineErrorKind::Read(error.kind)))),
        };
        let place = EventPlace { offset: record.offset, timestamp_nanos: record.timestamp_nanos };
        let (change, finding) = match record.event {
            Event::Stack(addresses) => {
                let modules = LoadedModules { slots: self.slots, root: self.by_address };
                (Change::Stack(ResolvedStack { addresses, modules }), None)
            }
            Event::ModuleUnloaded { path } => match self.unload(path, place) {
                Some(module) => (Change::Unloaded(module), None),
                None => (Change::Ignored, Some(Finding::UnknownPath)),
            },
            Event::ModuleLoaded { path, base, size_bytes } => {
                let range = Range { first: base.value(), size_bytes };
                let loaded = place;
                let slot = ModuleSlot { path, base, size_bytes, loaded, range, ..ModuleSlot::EMPTY };
                let Some(finding) = self.load(slot) else {
                    return Some(Err(self.fail(place.offset, TimelineErrorKind::OutOfSlots)));
                };
                (Change::Loaded(self.used.saturating_sub(1)), finding)
            }
        };
        Some(Ok(Step { place, change, finding }))
    }

    /// Takes a slot for the module and makes room where it lies; `None` when there is no slot.
    fn load(&mut self, mut module: ModuleSlot<'a>) -> Option<Option<Finding>> {
        if self.used == self.slots.len() {
            return None;
        }
        let index = self.used;
        module.rank = index;
        let finding = if self.like_reference {
            self.replace_first_overlapped(&mut module)
        } else {
            self.unload_overlapped(&module)
        };
        *self.slots.get_mut(index)? = module;
        self.used += 1;
        if self.is_by_address(&module) {
            self.by_address = tree::insert(&mut ByAddress(self.slots), self.by_address, index);
        }
        self.by_path = tree::insert(&mut ByPath(self.slots), self.by_path, index);
        Some(finding)
    }

    /// Returns whether the module is in the tree by address. The reference compares a load with
    /// empty modules, too.
    const fn is_by_address(&self, module: &ModuleSlot<'_>) -> bool {
        module.range.size_bytes != 0 || self.like_reference
    }

    /// Ends the intervals of all modules that the new one overlaps.
    fn unload_overlapped(&mut self, module: &ModuleSlot<'a>) -> Option<Finding> {
        let mut finding = None;
        // Modules in the tree share no address: one may begin before this one, and the others begin
        // within it.
        while let Some((index, other)) = self.first_overlapped(module.range) {
            finding = match finding {
                None if is_same_module(other, module) => Some(Finding::ListedAgain),
                Some(Finding::Overlapped(count)) => Some(Finding::Overlapped(count + 1)),
                _ => Some(Finding::Overlapped(1)),
            };
            self.end(index, module.loaded);
        }
        finding
    }

    fn first_overlapped(&self, range: Range) -> Option<(usize, &ModuleSlot<'a>)> {
        <[_; 2]>::from(self.loaded_modules().around(|other| other.range.first <= range.first))
            .into_iter()
            .flatten()
            .find(|(_, other)| other.range.overlaps(range))
    }

    /// Replaces the lowest overlapping module, as the reference does; the new one takes its range.
    fn replace_first_overlapped(&mut self, module: &mut ModuleSlot<'a>) -> Option<Finding> {
        let modules = self.loaded_modules();
        let (_, mut next) = modules.around(|_| false);
        while let Some((index, other)) = next {
            if other.range.is_same_key(module.range) {
                let again = is_same_module(other, module);
                (module.range, module.rank) = (other.range, other.rank);
                self.end(index, module.loaded);
                return Some(if again { Finding::ListedAgain } else { Finding::Overlapped(1) });
            }
            (_, next) = modules.around(|module| module.order(other) != Ordering::Greater);
        }
        None
    }

    /// Ends the interval of the lowest module with exactly this path; its index.
    fn unload(&mut self, path: ModulePath<'a>, place: EventPlace) -> Option<usize> {
        let link = |index: usize| self.slots.get(index).map_or(Link::EMPTY, |slot| slot.by_path);
        let is_before = |index: usize| self.slots.get(index).is_some_and(|slot| slot.path < path);
        let index = tree::around(link, self.by_path, is_before).1?;
        if self.slots.get(index)?.path != path {
            return None;
        }
        self.end(index, place);
        Some(index)
    }

    fn loaded_modules(&self) -> LoadedModules<'_, 'a> {
        LoadedModules { slots: self.slots, root: self.by_address }
    }

    /// Takes the module out of the trees of loaded ones and notes when that was.
    fn end(&mut self, index: usize, place: EventPlace) {
        let Some(slot) = self.slots.get_mut(index) else { return };
        slot.unloaded = Some(place);
        let slot = *slot;
        if self.is_by_address(&slot) {
            self.by_address = tree::remove(&mut ByAddress(self.slots), self.by_address, index);
        }
        self.by_path = tree::remove(&mut ByPath(self.slots), self.by_path, index);
    }

    #[cold]
    fn fail(&mut self, offset: usize, kind: TimelineErrorKind) -> TimelineError {
        self.failed = true;
        TimelineError { offset, kind }
    }
}

fn is_same_module(one: &ModuleSlot<'_>, other: &ModuleSlot<'_>) -> bool {
    one.path == other.path && one.base == other.base && one.size_bytes == other.size_bytes
}

/// The modules that are loaded at one place of the recording.
#[derive(Clone, Copy, Debug)]
struct LoadedModules<'t, 'a> {
    slots: &'t [ModuleSlot<'a>],
    /// Root of the tree by address.
    root: usize,
}

/// A loaded module and its index, if there is one.
type Loaded<'t, 'a> = Option<(usize, &'t ModuleSlot<'a>)>;

impl<'t, 'a> LoadedModules<'t, 'a> {
    fn link(&self, index: usize) -> Link {
        self.slots.get(index).map_or(Link::EMPTY, |slot| slot.by_address)
    }

    /// Returns the highest of those for which this holds, from the lowest on, and the one above it.
    fn around(&self, holds: impl Fn(&ModuleSlot<'a>) -> bool) -> (Loaded<'t, 'a>, Loaded<'t, 'a>) {
        let holds = |index: usize| self.slots.get(index).is_some_and(&holds);
        let (below, above) = tree::around(|index| self.link(index), self.root, holds);
        let with_index = |index: usize| Some((index, self.slots.get(index)?));
        (below.and_then(with_index), above.and_then(with_index))
    }

    /// Returns the one that contains this address.
    fn find(&self, address: AbsoluteAddress) -> Option<ModulePlace> {
        // Ranges that are not empty do not overlap, so the nearest of them is the only candidate.
        // (Empty ones are here in the reference's way alone.)
        let (mut below, _) = self.around(|module| module.range.first <= address.value());
        while let Some((_, empty)) = below.filter(|(_, module)| module.range.size_bytes == 0) {
            (below, _) = self.around(|module| module.order(empty) == Ordering::Less);
        }
        let (module, slot) = below?;
        let offset = ModuleOffset::new(address.value().wrapping_sub(slot.base.value()));
        slot.range.contains(address.value()).then_some(ModulePlace { module, offset })
    }
}

/// A stack and the modules that were loaded when it was taken.
#[derive(Clone, Debug)]
pub struct ResolvedStack<'t, 'a> {
    addresses: StackAddresses<'a>,
    modules: LoadedModules<'t, 'a>,
}

impl<'t, 'a> ResolvedStack<'t, 'a> {
    /// Returns the addresses as recorded, innermost first.
    #[must_use]
    pub fn addresses(&self) -> StackAddresses<'a> {
        self.addresses.clone()
    }

    /// Returns the addresses and where they were, innermost first.
    pub fn frames(&self) -> impl ExactSizeIterator<Item = ResolvedFrame> + use<'t, 'a> {
        let modules = self.modules;
        self.addresses().map(move |address| ResolvedFrame { address, place: modules.find(address) })
    }
}

/// A return address and where it was when the stack was taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ResolvedFrame {
    /// The address as recorded.
    pub address: AbsoluteAddress,
    /// The module it was in; `None` when it was in none.
    pub place: Option<ModulePlace>,
}

impl ResolvedFrame {
    /// Returns the address as a frame.
    #[must_use]
    pub const fn frame(self) -> Frame {
        Frame::ReturnAddress(self.address)
    }
}

/// A place in a module.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ModulePlace {
    /// Index of the module in [`Timeline::modules`]: it identifies the load and the file.
    pub module: usize,
    /// Distance from its base.
    pub offset: ModuleOffset,
}

/// Why a timeline cannot go on, and at which event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TimelineError {
    /// Where the event starts: bytes from the start of the recording.
    pub offset: usize,
    /// Kind of the fault.
    pub kind: TimelineErrorKind,
}

/// Kinds of [`TimelineError`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum TimelineErrorKind {
    /// The event cannot be read.
    Read(TrackerReadErrorKind),
    /// The event loads a module, and all slots are taken. [`Reader::count_loads`] returns the
    /// number needed.
    OutOfSlots,
}

impl fmt::Display for TimelineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            TimelineErrorKind::Read(kind) => write!(f, "{kind}")?,
            TimelineErrorKind::OutOfSlots => f.write_str("no slot is left for the module that is loaded")?,
        }
        write!(f, " at byte {}", self.offset)
    }
}

impl core::error::Error for TimelineError {}
