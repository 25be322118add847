//! Heaps in the formats of other tools as blocks.

use std::collections::BTreeMap;

use cairn_exchange::import::Imported;
use cairn_store::{Block, Id};

use super::block::{MOST_SAMPLES, MOST_STACKS};
use super::clock::{MOST_SLICE_MS, Moments, check as check_moment};
use super::labels::{self, MOST_TEXT_BYTES};
use super::refusal::Refusal;
use crate::add::{Labels, block_of_heap};

/// Bytes of a profile of another tool; 8 MiB: reading one takes up to 64 times its size.
pub(crate) const MOST_PROFILE_BYTES: u64 = 8 << 20;

/// The circumstances of a heap that the request states.
pub(crate) struct Origin {
    /// The beginning of the sender's name: the interface.
    pub(crate) interface: &'static str,
    pub(crate) labels: Labels,
    /// A hash of all that identifies the process.
    pub(crate) process: Id,
    /// A hash of all that was sent.
    pub(crate) content: Id,
    /// Begin and end, where the request has them.
    pub(crate) slice: Option<(i64, i64)>,
    pub(crate) received_ms: i64,
}

impl Origin {
    /// Makes the block of a heap. The same bytes make the same block.
    pub(crate) fn block(self, heap: Imported) -> Result<Block, Refusal> {
        let Self { interface, labels, process, content, slice, received_ms } = self;
        for text in [&labels.service, &labels.version, &labels.host].into_iter().flatten() {
            labels::check_text("service, version, host", text, MOST_TEXT_BYTES)?;
        }
        labels::check(&labels.others)?;
        let mut block =
            block_of_heap(heap, content, &labels).map_err(|error| Refusal::wrong(error.to_string()))?;
        for (what, found, most) in
            [("samples", block.samples.len(), MOST_SAMPLES), ("stacks", block.stacks.len(), MOST_STACKS)]
        {
            if found > most {
                return Err(Refusal::too_large(what, found as u64, most as u64));
            }
        }
        check_names(&block)?;
        let (end_ms, slice_ms) = match (slice, block.samples.first()) {
            (Some((from_ms, until_ms)), _) => (until_ms, until_ms - from_ms),
            (None, Some(sample)) => (sample.end_ms, sample.slice_ms),
            (None, None) => (received_ms, 1),
        };
        check_moment("the end of the profile", end_ms)?;
        let slice_ms = slice_ms.clamp(1, MOST_SLICE_MS);
        let mut moments =
            Moments { end_ms, started_ms: end_ms - slice_ms, ended_ms: block.process.ended_ms, offset_ms: 0 };
        moments.correct(None, received_ms);
        for sample in &mut block.samples {
            (sample.end_ms, sample.slice_ms) = (moments.end_ms, slice_ms);
        }
        block.process.id = process;
        block.process.started_ms = moments.started_ms;
        block.process.ended_ms = moments.ended_ms;
        block.process.clock_offset_ms = moments.offset_ms;
        block.sender = format!("{interface}:{content}");
        Ok(block)
    }
}

/// Refuses names that are too long for a table.
fn check_names(block: &Block) -> Result<(), Refusal> {
    for line in block.frames.iter().flat_map(|frame| &frame.lines) {
        for text in [&line.function, &line.file].into_iter().flatten() {
            labels::check_length("a function or file", text, labels::MOST_NAME_BYTES)?;
        }
    }
    block
        .modules
        .iter()
        .try_for_each(|module| labels::check_length("a module's path", &module.path, labels::MOST_NAME_BYTES))
}

/// Sorts the names of another tool into labels. `known` gives the names of service, version, host.
pub(crate) fn labels_of(
    named: impl IntoIterator<Item = (String, String)>,
    known: impl Fn(&str) -> Option<KnownLabel>,
) -> Labels {
    let mut labels = Labels::default();
    let mut others = BTreeMap::new();
    for (name, value) in named.into_iter().filter(|(_, value)| !value.is_empty()) {
        let place = match known(&name) {
            Some(KnownLabel::Service) => &mut labels.service,
            Some(KnownLabel::Version) => &mut labels.version,
            Some(KnownLabel::Host) => &mut labels.host,
            Some(KnownLabel::Ignored) => continue,
            None => {
                others.insert(labels::as_key(&name), value);
                continue;
            }
        };
        *place = Some(value);
    }
    labels.others = others;
    labels
}

/// A name that is no label of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum KnownLabel {
    Service,
    Version,
    Host,
    Ignored,
}
