//! Columns of numbers, as the bytes of summaries have them: numbers of one kind beside each other
//! compress best.

use cairn_recording::{Put, Take};

pub(super) fn numbers<const N: usize>(take: &mut Take<'_>) -> Option<[u64; N]> {
    let mut numbers = [0; N];
    for number in &mut numbers {
        *number = take.number()?;
    }
    Some(numbers)
}

/// A column of numbers.
pub(super) fn put_column(into: &mut Vec<u8>, values: impl Iterator<Item = u64>) {
    let mut column = Vec::new();
    values.for_each(|value| column.put_number(value));
    into.put_bytes(&column);
}

/// Writes each number less the one before, modulo 2^64, as a signed number: for values that
/// wander.
pub(super) fn put_steps(into: &mut Vec<u8>, values: impl Iterator<Item = u64>) {
    let mut before = 0_u64;
    let mut column = Vec::new();
    for value in values {
        column.put_signed(value.wrapping_sub(before).cast_signed());
        before = value;
    }
    into.put_bytes(&column);
}

/// Columns of as many numbers each, which end together.
pub(super) struct Columns<'a, const N: usize>([Take<'a>; N]);

impl<'a, const N: usize> Columns<'a, N> {
    pub(super) fn new(take: &mut Take<'a>) -> Option<Self> {
        let mut columns = [Take::default(); N];
        for column in &mut columns {
            *column = Take::new(take.column()?);
        }
        Some(Self(columns))
    }

    pub(super) fn row(&mut self) -> Option<[u64; N]> {
        let mut row = [0; N];
        for (number, column) in row.iter_mut().zip(&mut self.0) {
            *number = column.number()?;
        }
        Some(row)
    }

    /// A row of steps, added to the row before.
    pub(super) fn step(&mut self, row: &mut [u64; N]) -> Option<()> {
        for (number, column) in row.iter_mut().zip(&mut self.0) {
            *number = number.wrapping_add_signed(column.signed()?);
        }
        Some(())
    }

    pub(super) fn end(&self) -> Option<()> {
        self.0.iter().all(Take::is_empty).then_some(())
    }
}

/// | count of rows | how many others are in front of each |
pub(super) fn put_places(into: &mut Vec<u8>, rows: impl Iterator<Item = usize> + Clone) {
    into.put_number(rows.clone().count() as u64);
    let mut next = 0;
    put_column(
        into,
        rows.map(|row| {
            let left_out = row - next;
            next = row + 1;
            left_out as u64
        }),
    );
}
