//! An export that is imported again has the same data for every stack.

use std::collections::{BTreeMap, BTreeSet};

use cairn_analysis::heap::{Folding, Names, Questions, Scope};
use cairn_exchange::import::{Imported, Kind, Times};
use cairn_exchange::target::LiveBlock;
use cairn_exchange::{Profile, Target};
use cairn_format::{AbsoluteAddress, SliceSink};
use cairn_wire::tracker::{self, TrackerLayout};
use proptest::prelude::*;

use crate::subject::{ExportedFrame, by_stack, converted, export, profile_of, recorded, written_image};

/// Builds the profile of an imported file.
fn asked(file: &Imported, scope: &Scope) -> Profile {
    let read = file.read(scope).expect("it was just written");
    assert_eq!(read.unmatched_frees, 0);
    let folding = Folding::none();
    let mut questions = Questions::new(&read.sums, Names::new(file.stacks(), file, folding));
    Profile::of_heap(&mut questions).0
}

fn without_control(name: &str) -> String {
    name.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// heaptrack defines temporary differently.
fn without_temporary(
    mut exported: BTreeMap<Vec<ExportedFrame>, Vec<u64>>,
) -> BTreeMap<Vec<ExportedFrame>, Vec<u64>> {
    exported.values_mut().for_each(|sums| sums.truncate(6));
    exported
}

/// In the year 2023.
const STARTED: u64 = 1_700_000_000_000_000_000;

fn events() -> impl Strategy<Value = Vec<(usize, u64, u32)>> {
    let size = prop_oneof![2 => 1_u64..100_000, 1 => Just(0), 1 => Just(64)];
    // At least one allocation: Firefox's format cannot represent an empty heap.
    let first = (any::<usize>(), 1_u64..100, 0_u32..2);
    (first, prop::collection::vec((any::<usize>(), size, 0_u32..2), 0..120)).prop_map(|(first, mut rest)| {
        rest.insert(0, first);
        rest
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn round_trip_of_pprof(shape in prop::collection::vec((any::<usize>(), any::<usize>()), 0..30), events in events()) {
        let heap = recorded(&shape, &events);
        let before = profile_of(&heap);
        let file = Imported::from_bytes(export(Target::Pprof, &heap)).unwrap();
        prop_assert_eq!(file.kind(), Kind::Pprof);
        let exact = |name: &str| name.to_owned();
        prop_assert_eq!(by_stack(file.profile(), exact), by_stack(&before, exact));
        prop_assert_eq!(&file.profile().title, &before.title);
        prop_assert_eq!(&file.profile().modules, &before.modules);
        let columns = |profile: &Profile| -> Vec<_> {
            profile.columns.iter().map(|column| (column.name.clone(), column.unit)).collect()
        };
        prop_assert_eq!(columns(file.profile()), columns(&before));
        prop_assert_eq!(by_stack(&asked(&file, &Scope::default()), exact), by_stack(&before, exact));
    }

    #[test]
    fn round_trip_of_heaptrack(shape in prop::collection::vec((any::<usize>(), any::<usize>()), 0..30), events in events()) {
        let heap = recorded(&shape, &events);
        let before = profile_of(&heap);
        let file = Imported::from_bytes(export(Target::Heaptrack, &heap)).unwrap();
        prop_assert_eq!(file.kind(), Kind::Heaptrack);
        let exported = |profile: &Profile| without_temporary(by_stack(profile, without_control));
        prop_assert_eq!(exported(&asked(&file, &Scope::default())), exported(&before));
        prop_assert_eq!(&file.profile().title, &before.title);
    }

    #[test]
    fn round_trip_of_firefox(shape in prop::collection::vec((any::<usize>(), any::<usize>()), 0..30), events in events()) {
        let heap = recorded(&shape, &events);
        let before = profile_of(&heap);
        let file = Imported::from_bytes(export(Target::Firefox, &heap)).unwrap();
        prop_assert_eq!(file.kind(), Kind::Firefox);
        // All allocations are on one thread there, so temporary blocks differ.
        let exported = |profile: &Profile| without_temporary(by_stack(profile, str::to_owned));
        prop_assert_eq!(exported(&asked(&file, &Scope::default())), exported(&before));
        prop_assert_eq!(&file.profile().title, &before.title);
        let modules: BTreeSet<&str> = file.profile().modules.iter().map(|module| &*module.path).collect();
        prop_assert!(modules.iter().all(|name| before.modules.iter().any(|module| module.name() == *name)));
        prop_assert!(file.notes().is_empty() && file.findings().is_empty());
    }

    #[test]
    fn round_trip_of_heaptrack_through_firefox(shape in prop::collection::vec((any::<usize>(), any::<usize>()), 0..30), events in events()) {
        let heap = recorded(&shape, &events);
        // heaptrack frees classes, not blocks: which equal block was freed, and so what is
        // temporary, differs.
        let exported = |file: &Imported| without_temporary(by_stack(&asked(file, &Scope::default()), without_control));
        for (from, to) in [(Target::Heaptrack, Target::Firefox), (Target::Firefox, Target::Heaptrack)] {
            let first = Imported::from_bytes(export(from, &heap)).unwrap();
            prop_assert_eq!(first.times(), Times::All);
            let second = Imported::from_bytes(converted(&first, to).unwrap()).unwrap();
            prop_assert_eq!(exported(&second), exported(&first));
        }
    }

    #[test]
    fn imported_slices_add_up(shape in prop::collection::vec((any::<usize>(), any::<usize>()), 0..30), events in events()) {
        let heap = recorded(&shape, &events);
        for target in [Target::Heaptrack, Target::Firefox] {
            let file = Imported::from_bytes(export(target, &heap)).unwrap();
            let (read, slices) = file.read_sliced(&Scope::default(), 16).unwrap();
            let sum = slices.stacks.iter().fold((0, 0, 0), |(blocks, bytes, held), entry| {
                (blocks + entry.allocations, bytes + entry.allocated_bytes, held + entry.grown_bytes)
            });
            let totals = read.sums.totals;
            prop_assert_eq!(sum, (totals.allocations, totals.allocated_bytes, totals.live_bytes.cast_signed()));
            prop_assert!(slices.count <= 16);
        }
    }

    #[test]
    fn round_trip_of_image_blocks(blocks in prop::collection::vec((0_usize..30, 0_u64..5000), 1..80), shape in prop::collection::vec((any::<usize>(), any::<usize>()), 0..30)) {
        let heap = recorded(&shape, &[]);
        let count = heap.stacks().len() as u32;
        let blocks: Vec<LiveBlock> = blocks.iter().map(|&(stack, size_bytes)| LiveBlock { stack: stack as u32 % count, size_bytes }).collect();
        for target in [Target::Heaptrack, Target::Firefox] {
            let (bytes, before) = written_image(&heap, &blocks, target);
            let after = asked(&Imported::from_bytes(bytes).unwrap(), &Scope::default());
            let exported = |profile: &Profile| without_temporary(by_stack(profile, without_control));
            prop_assert_eq!(exported(&after), exported(&before));
        }
    }

    #[test]
    fn round_trip_of_tracker(stacks in prop::collection::vec((prop::collection::vec(0_u64..12, 0..20), 0_u64..1000), 1..60)) {
        let mut buffer = vec![0; 1 << 16];
        let mut writer = tracker::Writer::new(SliceSink::new(&mut buffer), TrackerLayout::WINDOWS_64);
        let base = 0x7ff6_0000_0000;
        writer.module_loaded(STARTED, r"C:\app.exe", AbsoluteAddress::new(base), 0x100).unwrap();
        let mut before: BTreeMap<Vec<u64>, u64> = BTreeMap::new();
        for (frames, nanos) in &stacks {
            let addresses = frames.iter().map(|frame| base + 0x10 + frame * 0x20);
            writer.stack(STARTED + nanos, addresses.clone().map(AbsoluteAddress::new)).unwrap();
            *before.entry(addresses.collect()).or_default() += 1;
        }
        let file = writer.into_sink().into_written().to_vec();
        let file = Imported::from_bytes(file).unwrap();
        prop_assert_eq!(file.kind(), Kind::Tracker);
        let after = asked(&file, &Scope::default());
        let allocations = after.column("alloc_objects").unwrap();
        prop_assert_eq!(after.total(allocations), stacks.len() as u64);
        let mut exported: BTreeMap<Vec<u64>, u64> = BTreeMap::new();
        for sample in &after.samples {
            let names = after.lines_of(sample.stack).map(|(line, _)| after.function_name(line));
            let place = |name: &str| match name.strip_prefix("app.exe+0x") {
                Some(digits) => base + u64::from_str_radix(digits, 16).unwrap(),
                None => u64::from_str_radix(name.trim_start_matches("0x"), 16).unwrap_or(0),
            };
            *exported.entry(names.map(place).filter(|&place| place > 0).collect()).or_default() += sample.values[allocations];
        }
        prop_assert_eq!(exported, before);
        let early = Scope { to_nanos: 499, ..Scope::default() };
        let count = stacks.iter().filter(|(_, nanos)| *nanos < 500).count() as u64;
        prop_assert_eq!(file.read(&early).unwrap().sums.totals.allocations, count);
    }
}

#[test]
fn scopes_select_heaptrack_events_and_pprof_stacks() {
    let shape = [(0, 0), (2, 1), (2, 2)];
    let heap = recorded(&shape, &[(2, 100, 0), (3, 10, 0), (4, 1, 0), (0, 0, 0)]);
    let heaptrack = Imported::from_bytes(export(Target::Heaptrack, &heap)).unwrap();
    let total = |scope: Scope| heaptrack.read(&scope).unwrap().sums.totals.allocated_bytes;
    assert_eq!(total(Scope::default()), 111);
    assert_eq!(total(Scope { sizes: 5..=50, ..Scope::default() }), 10);
    assert_eq!(total(Scope { to_nanos: 2_500_000, ..Scope::default() }), 110);

    let pprof = Imported::from_bytes(export(Target::Pprof, &heap)).unwrap();
    for file in [&pprof, &heaptrack] {
        let mut stacks = vec![false; file.stacks().len()];
        *stacks.last_mut().unwrap() = true;
        let scope = Scope { stacks: Some(stacks), ..Scope::default() };
        assert_eq!(file.read(&scope).unwrap().sums.totals.allocations, 1);
    }
    let refused = pprof.read(&Scope { from_nanos: 1, ..Scope::default() }).unwrap_err().to_string();
    assert!(refused.contains("sums alone"), "{refused}");
}
