//! Whatever the bytes: events cover the recording without a gap up to the error, intervals are
//! well-formed, addresses lie in the modules they are said to lie in, and strict reading, salvage,
//! guess and writer agree.
#![no_main]

use cairn_format::SliceSink;
use cairn_wire::tracker::{Change, ModuleSlot, Reader, Timeline, TrackerLayout, TrackerRecord, Writer};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((&choice, recording)) = data.split_first() else { return };
    let layouts = [
        TrackerLayout::WINDOWS_64,
        TrackerLayout::WINDOWS_32,
        TrackerLayout::OTHER_64,
        TrackerLayout::OTHER_32,
    ];
    let layout = layouts[usize::from(choice % 4)];
    let reader = Reader::new(recording, layout);

    let mut error = None;
    let records: Vec<TrackerRecord<'_>> = reader.clone().salvage(&mut error).collect();
    let strict = reader.clone().collect::<Result<Vec<_>, _>>();
    assert_eq!(strict.is_ok(), error.is_none());
    assert!(TrackerLayout::guess(recording).whole || error.is_some());

    // The writer refuses what the player has no room for; everything else comes out as it was.
    for (index, record) in records.iter().enumerate() {
        let stop = error.map_or(recording.len(), |error| error.offset);
        let end = records.get(index + 1).map_or(stop, |next| next.offset);
        let bytes = &recording[record.offset..end];
        let mut copy = vec![0; bytes.len()];
        let mut writer = Writer::new(SliceSink::new(&mut copy), layout);
        if writer.record(record).is_ok() {
            assert_eq!(writer.into_sink().written(), bytes);
        }
    }

    for like_reference in [false, true] {
        let reader = if like_reference { reader.clone().like_reference() } else { reader.clone() };
        let mut slots = vec![ModuleSlot::EMPTY; reader.count_loads()];
        let mut timeline = Timeline::new(reader.clone(), &mut slots);
        if like_reference {
            timeline = timeline.like_reference();
        }
        let mut places = Vec::new();
        let mut steps = 0;
        while let Some(Ok(step)) = timeline.step() {
            steps += 1;
            if let Change::Stack(stack) = step.change {
                places.extend(
                    stack.frames().filter_map(|frame| Some((step.place, frame.address, frame.place?))),
                );
            }
        }
        assert_eq!(steps, reader.map_while(Result::ok).count());
        for (when, address, place) in places {
            let module = &timeline.modules()[place.module];
            assert!(module.loaded.offset < when.offset);
            assert!(module.unloaded.is_none_or(|end| when.offset < end.offset));
            assert_eq!(module.base.value().wrapping_add(place.offset.value()), address.value());
            assert!(like_reference || place.offset.value() < module.size_bytes.into());
        }
    }
});
