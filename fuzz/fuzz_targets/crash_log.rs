//! Any text is read or refused as a crash log; gathered lines are the lines that were given.
#![no_main]

use cairn_logs::crash_log::{CrashLogError, Gathered, GatheredText, ObjectGatherer, is_crash_log, read};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let is_known = is_crash_log(data);
    match read(data) {
        Ok(log) => {
            let images = log.images_by_address();
            for thread in &log.threads {
                for frame in thread.frames.iter().filter_map(|frame| frame.frame) {
                    if let Some((image, offset)) = images.find(frame) {
                        let base = image.base.expect("an image with a base").value();
                        let address = frame.address().expect("a frame with an address").value();
                        assert_eq!(base + offset.value(), address);
                    }
                }
                assert!(log.stack(thread).frame_count() <= thread.frames.len() as u64);
            }
            assert_eq!(log.image_map().is_some(), log.images.is_some());
        }
        Err(CrashLogError::OtherKind { .. }) => assert!(!is_known, "it is of one kind"),
        Err(_) => {}
    }

    // No line is lost, and each is given back with its number.
    let mut gatherer = ObjectGatherer::new();
    let mut back = Vec::new();
    let lines: Vec<_> = (1..).zip(data.split(|&byte| byte == b'\n')).collect();
    for &(number, line) in &lines {
        match gatherer.add(number, line, true) {
            Gathered::Other => back.push((number, line.to_vec())),
            Gathered::Part => {}
            Gathered::Whole | Gathered::Broken => back.extend(lines_of(gatherer.take())),
        }
    }
    back.extend(lines_of(gatherer.take()));
    let given: Vec<_> = lines.into_iter().map(|(number, line)| (number, line.to_vec())).collect();
    assert_eq!(back, given);
});

fn lines_of(text: Option<GatheredText>) -> Vec<(u64, Vec<u8>)> {
    let lines = text.iter().flat_map(GatheredText::lines);
    lines.map(|(number, line, _)| (number, line.to_vec())).collect()
}
