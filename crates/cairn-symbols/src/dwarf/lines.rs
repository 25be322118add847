//! The line table of one unit: from an address to file number, line and column.

use std::cell::RefCell;
use std::sync::{Arc, OnceLock};

use gimli::{ColumnType, UnitRef};

use super::cuts::Cuts;
use super::hint::Hint;
use super::units::{Budget, DwarfError, Reader};

/// The line table of one unit.
#[derive(Debug, Default)]
pub(super) struct LineTable {
    rows: Box<[Row]>,
    /// Sorted by begin.
    sequences: Vec<Sequence>,
    /// Paths, built on first use: most files of a C++ unit contain declarations only.
    files: Vec<OnceLock<Option<Arc<str>>>>,
    sequence_hint: Hint,
    row_hint: Hint,
}

/// A line that begins at an address and continues to the next row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) address: u64,
    pub(super) file: u32,
    /// 0 for code without a line.
    pub(super) line: u32,
    /// 0 for the left edge, or for compilers that do not emit columns.
    pub(super) column: u32,
    /// 0 for the first or only basic block of the line.
    pub(super) discriminator: u32,
}

const _: () = assert!(size_of::<Row>() == 24);

/// Rows without a gap.
#[derive(Clone, Copy, Debug)]
struct Sequence {
    begin: u64,
    end: u64,
    first_row: u32,
    after_row: u32,
    /// Largest end of this sequence and all before it.
    largest_end: u64,
}

thread_local! {
    /// Scratch space that the next unit reuses: growing a new table each time costs more than
    /// filling it.
    static ROWS: RefCell<Vec<Row>> = const { RefCell::new(Vec::new()) };
}

/// Maximum rows in the scratch space; 256 Ki, about six megabytes, enough for the largest common
/// units.
const MAX_SCRATCH_ROWS: usize = 1 << 18;

impl LineTable {
    pub(super) fn read(unit: UnitRef<'_, Reader<'_>>, budget: &Budget) -> Result<Self, DwarfError> {
        let mut lines = Self::default();
        let Some(program) = unit.line_program.clone() else { return Ok(lines) };
        let mut retained = ROWS.take();
        retained.clear();
        let mut rows = program.rows();
        let mut first_row = 0;
        while let Some((_, row)) = rows.next_row()? {
            if row.end_sequence() {
                lines.end_sequence(&mut retained, first_row, row.address());
                first_row = retained.len();
                continue;
            }
            let row = Row {
                address: row.address(),
                file: u32::try_from(row.file_index()).unwrap_or(u32::MAX),
                line: row.line().map_or(0, |line| u32::try_from(line.get()).unwrap_or(0)),
                column: match row.column() {
                    ColumnType::LeftEdge => 0,
                    ColumnType::Column(column) => u32::try_from(column.get()).unwrap_or(0),
                },
                discriminator: u32::try_from(row.discriminator()).unwrap_or(0),
            };
            match retained[first_row..].last_mut() {
                // If several rows have one address, the last one applies.
                Some(last) if last.address == row.address => *last = row,
                _ => retained.push(row),
            }
        }
        lines.rows = retained[..first_row].into();
        if retained.capacity() <= MAX_SCRATCH_ROWS {
            ROWS.set(retained);
        }
        lines.sequences.sort_unstable_by_key(|sequence| (sequence.begin, sequence.first_row));
        let mut largest_end = 0;
        for sequence in &mut lines.sequences {
            largest_end = sequence.end.max(largest_end);
            sequence.largest_end = largest_end;
        }
        let header = rows.header();
        // Version 5 counts files from 0, earlier versions from 1.
        let files = header.file_names().len() + 1;
        lines.files.resize_with(files, OnceLock::new);
        budget.keep(&lines.rows);
        budget.keep(&lines.files);
        Ok(lines)
    }

    fn end_sequence(&mut self, rows: &mut Vec<Row>, first_row: usize, end: u64) {
        let begin = rows.get(first_row).map_or(end, |row| row.address);
        if begin < end {
            let (first_row, after_row) = (first_row as u32, rows.len() as u32);
            self.sequences.push(Sequence { begin, end, first_row, after_row, largest_end: 0 });
        } else {
            rows.truncate(first_row);
        }
    }

    /// Finds the row that covers an address.
    pub(super) fn find(&self, address: u64) -> Option<Row> {
        let after = self.sequence_hint.partition_point(&self.sequences, |sequence| sequence.begin <= address);
        let sequence = self.sequences[..after]
            .iter()
            .rev()
            .take_while(|sequence| sequence.largest_end > address)
            .find(|sequence| sequence.end > address)?;
        let rows = self.rows_of(sequence);
        rows.get(self.row_hint.partition_point(rows, |row| row.address <= address).checked_sub(1)?).copied()
    }

    /// Returns a file's whole path: compilation directory, file directory and name, as far as
    /// relative.
    pub(super) fn file(&self, unit: UnitRef<'_, Reader<'_>>, index: u64) -> Option<&str> {
        let slot = self.files.get(usize::try_from(index).ok()?)?;
        slot.get_or_init(|| path_of(unit, index).map(Arc::from)).as_deref()
    }

    /// Returns the bytes that were counted with [`Budget::keep`].
    pub(super) fn retained_bytes(&self) -> u64 {
        (size_of_val(&*self.rows) + size_of_val(&*self.files)) as u64
    }

    /// Iterates over the first and last address of each sequence.
    pub(super) fn sequences(&self) -> impl Iterator<Item = (u64, u64)> {
        self.sequences.iter().map(|sequence| (sequence.begin, sequence.end))
    }

    /// Adds the addresses in a window at which rows begin and end.
    pub(super) fn boundaries(&self, begin: u64, end: u64, out: &mut Cuts) {
        let after = self.sequences.partition_point(|sequence| sequence.begin < end);
        for sequence in self.sequences[..after].iter().rev() {
            if sequence.largest_end <= begin {
                break;
            }
            out.insert(sequence.end);
            let rows = self.rows_of(sequence);
            let rows = &rows[rows.partition_point(|row| row.address < begin)..];
            rows.iter().take_while(|row| row.address < end).for_each(|row| out.insert(row.address));
        }
    }

    fn rows_of(&self, sequence: &Sequence) -> &[Row] {
        &self.rows[sequence.first_row as usize..sequence.after_row as usize]
    }
}

fn path_of(unit: UnitRef<'_, Reader<'_>>, index: u64) -> Option<String> {
    let header = unit.line_program.as_ref()?.header();
    let file = header.file(index)?;
    let mut path = match unit.comp_dir {
        Some(directory) => directory.to_string_lossy().into_owned(),
        None => String::new(),
    };
    // Directory 0 is the compilation directory.
    if file.directory_index() != 0
        && let Some(directory) = file.directory(header)
    {
        push(&mut path, &unit.attr_string(directory).ok()?.to_string_lossy());
    }
    push(&mut path, &unit.attr_string(file.path_name()).ok()?.to_string_lossy());
    (path.len() <= crate::MAX_NAME_BYTES).then_some(path)
}

fn push(path: &mut String, part: &str) {
    let is_drive = part.get(1..3).is_some_and(|colon| colon == ":/" || colon == ":\\");
    if part.starts_with(['/', '\\']) || is_drive {
        path.clear();
    } else if !path.is_empty() {
        let windows = path.starts_with('\\') || path.get(1..3) == Some(":\\");
        let separator = if windows { '\\' } else { '/' };
        if !path.ends_with(separator) {
            path.push(separator);
        }
    }
    path.push_str(part);
}
