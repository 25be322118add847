//! Counts equal stacks.
//!
//! Two stacks are equal if their frames have the same offsets in the same files, wherever those
//! were loaded. Frames outside of all modules are compared by address.

use std::collections::HashMap;
use std::path::Path;

use cairn_format::recording::PcKind;

use super::event::{Event, StackKey, Tables};

/// The key of a stack: file, offset and kind of each frame.
type Shape = Vec<(Option<u32>, u64, PcKind)>;

/// Counts stacks during playback.
#[derive(Debug, Default)]
pub struct Collapsed {
    groups: Vec<StackGroup>,
    by_shape: HashMap<Shape, usize>,
    by_stack: HashMap<(StackKey, usize), usize>,
    files: HashMap<(std::path::PathBuf, Vec<u8>), u32>,
}

/// A group of equal stacks.
#[derive(Clone, PartialEq, Debug)]
pub struct StackGroup {
    /// The first event with this stack; its frames represent the group.
    pub first: Event,
    /// The number of events.
    pub count: u64,
    /// The time of the last event.
    pub last_nanos: i64,
}

impl Collapsed {
    /// Counts an event; ignores events without a stack.
    pub fn add(&mut self, event: &Event, tables: &dyn Tables) {
        let Some(stack) = event.stack() else { return };
        let key = (stack, event.skip());
        let index = match self.by_stack.get(&key) {
            Some(&index) => index,
            None => {
                let index = self.group(event, tables);
                self.by_stack.insert(key, index);
                index
            }
        };
        if let Some(group) = self.groups.get_mut(index) {
            group.count += 1;
            group.last_nanos = event.nanos;
        }
    }

    /// Returns the groups, most frequent first, then by first occurrence.
    #[must_use]
    pub fn into_groups(self) -> Vec<StackGroup> {
        let mut groups = self.groups;
        groups.sort_by_key(|group| std::cmp::Reverse(group.count));
        groups
    }

    fn group(&mut self, event: &Event, tables: &dyn Tables) -> usize {
        let frames = event.frames(tables);
        let shape =
            frames.iter().map(|frame| match frame.module.and_then(|module| tables.modules().get(module)) {
                Some(module) => {
                    let file = self.file(&module.file.path, &module.file.build_id);
                    (Some(file), module.offset(frame.address).value(), frame.kind)
                }
                None => (None, frame.address.value(), frame.kind),
            });
        let shape: Shape = shape.collect();
        let next = self.groups.len();
        let index = *self.by_shape.entry(shape).or_insert(next);
        if index == next {
            self.groups.push(StackGroup { first: event.clone(), count: 0, last_nanos: event.nanos });
        }
        index
    }

    fn file(&mut self, path: &Path, build_id: &[u8]) -> u32 {
        let next = u32::try_from(self.files.len()).unwrap_or(u32::MAX);
        *self.files.entry((path.to_owned(), build_id.to_owned())).or_insert(next)
    }
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;

    use super::*;
    use crate::player::{Filter, Player};
    use cairn_format::{AbsoluteAddress, SliceSink};
    use cairn_wire::tracker::{TrackerLayout, Writer};

    #[test]
    fn collapse_compares_code_not_addresses() {
        let at = AbsoluteAddress::new;
        let mut buffer = [0; 500];
        let mut writer = Writer::new(SliceSink::new(&mut buffer), TrackerLayout::WINDOWS_64);
        writer.module_loaded(1, "b.dll", at(0x1000), 0x1000).unwrap();
        writer.stack(2, [at(0x1010)]).unwrap();
        writer.module_unloaded(3, "b.dll").unwrap();
        writer.stack(4, [at(0x1010)]).unwrap();
        writer.module_loaded(5, "d.dll", at(0x1000), 0x1000).unwrap();
        writer.stack(6, [at(0x1010)]).unwrap();
        writer.module_loaded(7, "b.dll", at(0x9000), 0x1000).unwrap();
        writer.stack(8, [at(0x9010)]).unwrap();
        let mut player = Player::from_bytes(writer.into_sink().into_written().to_vec()).unwrap();
        let mut collapsed = Collapsed::default();
        let mut sink = |event: &Event, tables: &dyn Tables, _: Option<&mut crate::names::AddressNames>| {
            collapsed.add(event, tables);
            ControlFlow::Continue(())
        };
        player.play(&Filter::default(), None, &mut sink).unwrap();
        let groups: Vec<_> = collapsed
            .into_groups()
            .iter()
            .map(|group| (group.count, group.first.nanos, group.last_nanos))
            .collect();
        assert_eq!(groups, [(2, 1, 7), (1, 3, 3), (1, 5, 5)]);
    }
}
