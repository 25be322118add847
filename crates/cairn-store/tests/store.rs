//! Stores: blocks that are given once, twice, in no order, and by many at once; maintenance beside.

mod support;

use std::collections::BTreeMap;

use cairn_store::{Appended, Store, StoreError, Table, day_of};
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

#[tokio::test]
async fn block_that_contradicts_itself_is_refused() {
    let directory = scratch();
    let mut store = Store::create(&path(&directory)).await.unwrap();
    let mut wrong = block("a", 1, 2, NOON_MS);
    wrong.stacks[0].frames[0].1 += 1;
    assert!(matches!(store.append(&[wrong]).await, Err(StoreError::Block { .. })));
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

/// Four writers give the same blocks, each in an order of its own, while maintenance runs twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn racing_writers_and_maintenance_lose_and_double_nothing() {
    const SENDERS: usize = 8;
    const BLOCKS: i64 = 5;
    let directory = scratch();
    let place = path(&directory);
    Store::create(&place).await.unwrap();
    let mut tasks = Vec::new();
    for writer in 0..4 {
        let place = place.clone();
        tasks.push(tokio::spawn(async move {
            let mut store = Store::open(&place).await.unwrap();
            let mut random = fastrand::Rng::with_seed(writer);
            let mut next = [1; SENDERS];
            while next.iter().any(|&number| number <= BLOCKS) {
                let sender = random.usize(..SENDERS);
                if next[sender] > BLOCKS {
                    continue;
                }
                // A writer repeats what it has given before.
                let number = random.i64(1..=next[sender]);
                let given = block(&format!("sender-{sender}"), number, 20, NOON_MS);
                match store.append(&[given]).await.unwrap()[..] {
                    [Appended::Stored | Appended::Duplicate] => next[sender] = next[sender].max(number + 1),
                    ref other => panic!("{other:?}"),
                }
            }
        }));
    }
    for _ in 0..2 {
        let place = place.clone();
        tasks.push(tokio::spawn(async move {
            let store = Store::open(&place).await.unwrap();
            for _ in 0..6 {
                match store.compact().await {
                    Ok(_) | Err(StoreError::Raced { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    let store = Store::open(&place).await.unwrap();
    let expected: BTreeMap<_, _> = (0..SENDERS)
        .flat_map(|sender| (1..=BLOCKS).map(move |number| ((format!("sender-{sender}"), number), 20)))
        .collect();
    assert_eq!(rows(&store).await, expected);
    store.compact().await.unwrap();
    assert_eq!(rows(&store).await, expected);
    assert_eq!(store.files(Table::Sample).await.unwrap().len(), 1);
    assert_eq!(count(&store, Table::Stack).await, 20);
    for table in store.check().await.unwrap() {
        assert_eq!(table.problems, Vec::<String>::new());
    }
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
