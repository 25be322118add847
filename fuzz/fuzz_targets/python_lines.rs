//! Any line table ends, and what it says of an offset does not depend on bytes behind its entry.
#![no_main]

use cairn_wire::python_lines::{LineTableFormat, line_at};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((head, table)) = data.split_first_chunk::<4>() else { return };
    let (first_line, offset) = (u32::from(head[0]) << 8, u32::from(head[1]) << 4 | u32::from(head[2] & 15));
    for format in [LineTableFormat::Python38, LineTableFormat::Python310, LineTableFormat::Python311] {
        let line = line_at(format, first_line, table, offset);
        // A table that is cut answers as the whole one, or not at all.
        let cut = table.get(..usize::from(head[3])).unwrap_or(table);
        let of_cut = line_at(format, first_line, cut, offset);
        let may_go_on = format == LineTableFormat::Python38;
        assert!(may_go_on || of_cut.is_none() || of_cut == line, "{format:?}: {of_cut:?}, {line:?}");
    }
});
