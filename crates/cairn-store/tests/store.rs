//! Stores: blocks that are given once, twice, in no order, and by many at once; maintenance beside.

mod support;

use std::collections::BTreeMap;

use cairn_store::{Appended, Block, Store, StoreError, Table, day_of};
use support::{DAY_MS, NOON_MS, block, count, rows, scratch};

fn path(directory: &tempfile::TempDir) -> String {
    directory.path().join("store").display().to_string()
}

#[tokio::test]
async fn blocks_are_stored_once_and_in_order() {
    let directory = scratch();
    let mut store = Store::create(&path(&directory)).await.unwrap();
    let blocks: Vec<_> = (1..=3).map(|number| block("a", number, 10, NOON_MS)).collect();
    assert_eq!(store.append(&blocks[1..2]).await.unwrap(), [Appended::Gap { expected: 1 }]);
    assert_eq!(store.append(&blocks[..2]).await.unwrap(), [Appended::Stored; 2]);
    assert_eq!(
        store.append(&blocks).await.unwrap(),
        [Appended::Duplicate, Appended::Duplicate, Appended::Stored]
    );
    let mut store = Store::open(&path(&directory)).await.unwrap();
    assert_eq!(store.append(&blocks).await.unwrap(), [Appended::Duplicate; 3]);
    let expected: BTreeMap<_, _> = (1..=3).map(|number| (("a".to_owned(), number), 10)).collect();
    assert_eq!(rows(&store).await, expected);
    // Rows that the blocks have in common are there once.
    assert_eq!(count(&store, Table::Stack).await, 10);
    assert_eq!(count(&store, Table::Frame).await, 10);
    assert_eq!(count(&store, Table::Module).await, 1);
}

/// The numbers of senders are in checkpoints, in commits behind these, and in those of others.
#[tokio::test]
async fn numbers_are_found_in_checkpoints_and_commits() {
    let directory = scratch();
    let (mut one, mut two) =
        (Store::create(&path(&directory)).await.unwrap(), Store::open(&path(&directory)).await.unwrap());
    const SENDERS: usize = 9;
    let name = |sender: usize| format!("sender-{sender}");
    for number in 1..=5 {
        for sender in 0..SENDERS {
            let store = if (sender as i64 + number) % 2 == 0 { &mut one } else { &mut two };
            let given = [block(&name(sender), number, 2, NOON_MS)];
            assert_eq!(store.append(&given).await.unwrap(), [Appended::Stored], "{sender} {number}");
        }
    }
    let log = directory.path().join("store/sample/_delta_log");
    let files = std::fs::read_dir(log).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
    assert!(files.into_iter().any(|name| name.ends_with(".checkpoint.parquet")));
    let mut opened = Store::open(&path(&directory)).await.unwrap();
    for store in [&mut one, &mut two, &mut opened] {
        for sender in 0..SENDERS {
            let given = [4, 5, 7].map(|number| block(&name(sender), number, 2, NOON_MS));
            let expected = [Appended::Duplicate, Appended::Duplicate, Appended::Gap { expected: 6 }];
            assert_eq!(store.append(&given).await.unwrap(), expected, "{sender}");
        }
    }
    let given: Vec<_> = (0..SENDERS).map(|sender| block(&name(sender), 6, 2, NOON_MS)).collect();
    assert_eq!(opened.append(&given).await.unwrap(), [Appended::Stored; SENDERS]);
    assert_eq!(one.append(&given).await.unwrap(), [Appended::Duplicate; SENDERS]);
}

/// A sender need not repeat the places of its stacks as frames: they follow from the stacks.
#[tokio::test]
async fn places_of_stacks_become_frames_whether_they_have_names_or_not() {
    let directory = scratch();
    let mut store = Store::create(&path(&directory)).await.unwrap();
    let mut unnamed = block("a", 1, 3, NOON_MS);
    unnamed.frames.truncate(1);
    assert_eq!(store.append(&[unnamed]).await.unwrap(), [Appended::Stored]);
    assert_eq!(count(&store, Table::Frame).await, 3);
    // Known places with names are news, and without names they are not, for a new store as well.
    let mut store = Store::open(&path(&directory)).await.unwrap();
    assert_eq!(store.append(&[block("a", 2, 3, NOON_MS)]).await.unwrap(), [Appended::Stored]);
    assert_eq!(count(&store, Table::Frame).await, 3 + 2);
    for mut store in [store, Store::open(&path(&directory)).await.unwrap()] {
        let sender = format!("b{}", count(&store, Table::Block).await);
        let mut again = block(&sender, 1, 4, NOON_MS);
        again.frames.clear();
        let before = count(&store, Table::Frame).await;
        assert_eq!(store.append(&[again]).await.unwrap(), [Appended::Stored]);
        let news = u64::from(sender == "b2");
        assert_eq!(count(&store, Table::Frame).await, before + news, "{sender}");
    }
}

#[tokio::test]
async fn block_that_contradicts_itself_is_refused() {
    let directory = scratch();
    let mut store = Store::create(&path(&directory)).await.unwrap();
    let mut wrong = block("a", 1, 2, NOON_MS);
    wrong.samples[0].alloc_bytes = -1;
    assert!(matches!(store.append(&[wrong]).await, Err(StoreError::Block { .. })));
    assert!(rows(&store).await.is_empty());
}

#[tokio::test]
async fn store_is_made_in_an_empty_directory_only() {
    let directory = scratch();
    let place = path(&directory);
    assert!(matches!(Store::open(&place).await, Err(StoreError::NoStore { .. })));
    std::fs::create_dir(&place).unwrap();
    assert!(matches!(Store::open(&place).await, Err(StoreError::NoStore { .. })));
    std::fs::write(format!("{place}/file"), "").unwrap();
    assert!(matches!(Store::create(&place).await, Err(StoreError::Occupied { .. })));
    std::fs::remove_file(format!("{place}/file")).unwrap();
    Store::create(&place).await.unwrap();
    assert!(matches!(Store::create(&place).await, Err(StoreError::Occupied { .. })));
    std::fs::write(format!("{place}/cairn-store.json"), r#"{"cairn-store": 99}"#).unwrap();
    assert!(matches!(Store::open(&place).await, Err(StoreError::Layout { found: 99, .. })));
    std::fs::write(format!("{place}/cairn-store.json"), "{").unwrap();
    assert!(matches!(Store::open(&place).await, Err(StoreError::Damaged { .. })));
}

/// Four writers give the same blocks, each in an order of its own, while two compact and two
/// expire. `CAIRN_KILL_RUNS=200` makes it long.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn racing_writers_and_maintenance_lose_and_double_nothing() {
    let runs: u64 = std::env::var("CAIRN_KILL_RUNS").ok().and_then(|runs| runs.parse().ok()).unwrap_or(1);
    for run in 0..runs {
        race(run).await;
    }
}

const SENDERS: usize = 6;
const BLOCKS: i64 = 4;

/// The first block of each sender is of a day that expires.
fn racing_block(sender: usize, number: i64) -> Block {
    let moment = if number == 1 { NOON_MS - DAY_MS } else { NOON_MS };
    block(&format!("sender-{sender}"), number, 20, moment)
}

async fn write_all(place: String, seed: u64) {
    let mut store = Store::open(&place).await.unwrap();
    let mut random = fastrand::Rng::with_seed(seed);
    let mut next = [1; SENDERS];
    while next.iter().any(|&number| number <= BLOCKS) {
        let sender = random.usize(..SENDERS);
        if next[sender] > BLOCKS {
            continue;
        }
        // A writer repeats what it has given before.
        let number = random.i64(1..=next[sender]);
        match store.append(&[racing_block(sender, number)]).await.unwrap()[..] {
            [Appended::Stored | Appended::Duplicate] => next[sender] = next[sender].max(number + 1),
            ref other => panic!("{other:?}"),
        }
    }
}

async fn maintain(place: String, compacts: bool, mut random: fastrand::Rng) {
    let store = Store::open(&place).await.unwrap();
    for _ in 0..4 {
        let result = match compacts {
            true => store.compact().await.map(drop),
            false => store.expire(&day_of(NOON_MS)).await.map(drop),
        };
        match result {
            Ok(()) | Err(StoreError::Raced { .. }) => {}
            Err(error) => panic!("{error}"),
        }
        tokio::time::sleep(std::time::Duration::from_millis(random.u64(0..30))).await;
    }
}

async fn race(run: u64) {
    let directory = scratch();
    let place = path(&directory);
    Store::create(&place).await.unwrap();
    let mut tasks = Vec::new();
    for writer in 0..4 {
        tasks.push(tokio::spawn(write_all(place.clone(), 4 * run + writer)));
    }
    for task in 0..4 {
        let random = fastrand::Rng::with_seed(run ^ task << 32);
        tasks.push(tokio::spawn(maintain(place.clone(), task % 2 == 0, random)));
    }
    for task in tasks {
        task.await.unwrap();
    }
    let store = Store::open(&place).await.unwrap();
    store.expire(&day_of(NOON_MS)).await.unwrap();
    let expected: BTreeMap<_, _> = (0..SENDERS)
        .flat_map(|sender| (2..=BLOCKS).map(move |number| ((format!("sender-{sender}"), number), 20)))
        .collect();
    assert_eq!(rows(&store).await, expected, "run {run}");
    store.compact().await.unwrap();
    assert_eq!(rows(&store).await, expected, "run {run}");
    assert_eq!(store.files(Table::Sample).await.unwrap().len(), 1);
    assert_eq!(count(&store, Table::Stack).await, 20);
    for table in store.check().await.unwrap() {
        assert_eq!(table.problems, Vec::<String>::new());
    }
    // A block of a day that has expired is still a duplicate.
    let mut store = Store::open(&place).await.unwrap();
    assert_eq!(store.append(&[racing_block(0, 1)]).await.unwrap(), [Appended::Duplicate]);
}

#[tokio::test]
async fn merged_rows_are_sorted_and_the_same() {
    let directory = scratch();
    let mut store = Store::create(&path(&directory)).await.unwrap();
    // More rows than one batch of a reader has, and files of different lengths.
    for (sender, count) in [("b", 9000), ("a", 100), ("c", 20_000)] {
        store.append(&[block(sender, 1, count, NOON_MS)]).await.unwrap();
    }
    let before = rows(&store).await;
    let merged = store.compact().await.unwrap();
    assert!(merged.rows >= 29_100, "{merged:?}");
    assert_eq!(rows(&store).await, before);
    assert_eq!(count(&store, Table::Stack).await, 20_000);
    let again = store.compact().await.unwrap();
    assert_eq!(again.files_before, 0, "{again:?}");
}

#[tokio::test]
async fn old_days_expire_and_unnamed_files_are_swept() {
    let directory = scratch();
    let mut store = Store::create(&path(&directory)).await.unwrap();
    for day in 0..3 {
        store.append(&[block(&format!("day-{day}"), 1, 5, NOON_MS + day * DAY_MS)]).await.unwrap();
    }
    let limit = day_of(NOON_MS + DAY_MS);
    assert_eq!(store.expire(&limit).await.unwrap().rows, 5);
    assert_eq!(store.expire(&limit).await.unwrap().rows, 0);
    assert_eq!(rows(&store).await.len(), 2);
    // A block that has expired is still a duplicate.
    let old = block("day-0", 1, 5, NOON_MS);
    assert_eq!(store.append(&[old]).await.unwrap(), [Appended::Duplicate]);
    assert_eq!(store.sweep(3_600_000).await.unwrap().files, 0, "a young file may be a writer's");
    assert_eq!(store.sweep(-1000).await.unwrap().files, 1);
    assert_eq!(rows(&store).await.len(), 2);
}

#[tokio::test]
async fn damaged_files_are_found() {
    let directory = scratch();
    let mut store = Store::create(&path(&directory)).await.unwrap();
    store.append(&[block("a", 1, 50, NOON_MS)]).await.unwrap();
    let file = store.files(Table::Sample).await.unwrap().remove(0).url.to_file_path().unwrap();
    let bytes = std::fs::read(&file).unwrap();
    for damaged in [&bytes[..bytes.len() / 2], &[0; 64][..], b""] {
        std::fs::write(&file, damaged).unwrap();
        let checked = store.check().await.unwrap();
        let samples = checked.iter().find(|table| table.table == Table::Sample).unwrap();
        assert_eq!(samples.problems.len(), 1, "{samples:?}");
    }
    std::fs::remove_file(&file).unwrap();
    let checked = store.check().await.unwrap();
    assert!(checked.iter().any(|table| !table.problems.is_empty()), "{checked:?}");
}
