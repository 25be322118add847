//! Reads the stack table as rows while other threads capture: every stack appears, parents first.

use std::collections::HashMap;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};

use cairn_capture::{FrameId, Stack, StackCursor, StackId, StackRow, capture};
use cairn_format::Frame;

/// A stack for each path.
#[inline(never)]
fn descend(path: u32, depth: u32) -> Stack {
    let stack = match (depth, path % 3) {
        (0, _) => capture(),
        (_, 0) => descend(path / 3, depth - 1),
        (_, 1) => black_box(descend as fn(u32, u32) -> Stack)(path / 3, depth - 1),
        _ => black_box(descend(path / 3, black_box(depth - 1))),
    };
    black_box(stack)
}

fn frames_by_rows(rows: &HashMap<StackId, StackRow>, mut id: StackId) -> Vec<Frame> {
    let mut frames = Vec::new();
    while id != StackId::EMPTY {
        let row = rows[&id];
        frames.push(row.frame.unwrap());
        id = row.parent;
    }
    frames
}

#[test]
fn rows_read_during_captures_contain_every_stack() {
    const PATHS: u32 = 3_u32.pow(6);
    let is_done = AtomicBool::new(false);
    let (rows, ids) = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let (mut cursor, mut rows) = (StackCursor::START, HashMap::new());
            loop {
                let is_last = is_done.load(Ordering::Acquire);
                while let Some(row) = cursor.next_row() {
                    assert!(
                        row.parent < row.id
                            && (row.parent == StackId::EMPTY || rows.contains_key(&row.parent))
                    );
                    assert_eq!(rows.insert(row.id, row), None);
                }
                if is_last {
                    return rows;
                }
            }
        });
        let capture_all = |step: u32| {
            move || (0..PATHS).map(|path| descend(path * step % PATHS, 6).id()).collect::<Vec<_>>()
        };
        let threads: Vec<_> = [1, 2, 5].map(|step| scope.spawn(capture_all(step))).into_iter().collect();
        let ids: Vec<StackId> = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
        is_done.store(true, Ordering::Release);
        (reader.join().unwrap(), ids)
    });
    let mut frame_ids: HashMap<FrameId, Frame> = HashMap::new();
    for id in ids {
        assert_eq!(rows[&id], id.row().unwrap());
        assert_eq!(frames_by_rows(&rows, id), Stack::from_id(id).frames().collect::<Vec<_>>());
        let row = rows[&id];
        assert_eq!(*frame_ids.entry(row.frame_id).or_insert(row.frame.unwrap()), row.frame.unwrap());
    }
    assert!(rows.len() > PATHS as usize);
}
