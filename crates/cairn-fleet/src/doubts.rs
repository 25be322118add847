//! Reasons why the numbers of a selection may be wrong, as its processes state them.
//!
//! Most stores have none, which the table of processes alone shows. Only with some are samples read
//! a second time, to learn which of these processes the selection has.

use arrow::array::{AsArray as _, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Int64Type};

use crate::answer::texts;
use crate::error::FleetError;
use crate::questions::{Selection, doubted_processes, doubts};
use crate::session::Session;

/// Numbers of processes of a selection, by the reason why their sums may be wrong.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Doubts {
    lossy: u64,
    sampled: u64,
    misdated: u64,
    /// The host or the service of a process that lost something, and its words.
    example: Option<(String, String)>,
}

impl Doubts {
    /// Asks the processes of a selection.
    pub(crate) async fn of(session: &Session, selection: &Selection) -> Result<Self, FleetError> {
        let doubted = session.run_here(&doubted_processes()).await?;
        if numbers(&doubted, 0)?.first().is_none_or(|&count| count == 0) {
            return Ok(Self::default());
        }
        let answer = session.run(&doubts(selection)).await?;
        let number = |column: usize| -> Result<u64, FleetError> {
            Ok(numbers(&answer, column)?.first().and_then(|&count| count.try_into().ok()).unwrap_or(0))
        };
        let text = |column: usize| -> Result<String, FleetError> {
            let texts = answer.first().map(|batch| texts(batch, column)).transpose()?.unwrap_or_default();
            Ok(texts.into_iter().next().unwrap_or_default())
        };
        let lossy = number(0)?;
        let example = if lossy > 0 { Some((text(3)?, text(4)?)) } else { None };
        Ok(Self { lossy, sampled: number(1)?, misdated: number(2)?, example })
    }

    /// One sentence for losses, where there are some.
    pub(crate) fn losses(&self) -> Option<String> {
        let (place, remarks) = self.example.as_ref()?;
        Some(format!(
            "{} of the selection lost something, so that sums may be too small; one of them, {place}, says: \
             {remarks} (process.remarks has the words of all)",
            counted_processes(self.lossy)
        ))
    }

    /// A sentence for each other reason.
    pub(crate) fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.sampled > 0 {
            notes.push(format!(
                "{} of the selection recorded samples of their blocks: their sums are estimates \
                 (sample.variance has the errors)",
                counted_processes(self.sampled)
            ));
        }
        if self.misdated > 0 {
            notes.push(format!(
                "{} of the selection had a wrong clock: their slices have the time of receipt \
                 (process.clock_offset_ms has the difference)",
                counted_processes(self.misdated)
            ));
        }
        notes
    }

    /// All sentences, losses first.
    pub(crate) fn sentences(&self) -> Vec<String> {
        self.losses().into_iter().chain(self.notes()).collect()
    }
}

fn counted_processes(count: u64) -> String {
    if count == 1 { "1 process".to_owned() } else { format!("{count} processes") }
}

fn numbers(batches: &[RecordBatch], column: usize) -> Result<Vec<i64>, FleetError> {
    let Some(batch) = batches.first() else { return Ok(Vec::new()) };
    let column = cast(batch.column(column), &DataType::Int64)?;
    Ok(column.as_primitive::<Int64Type>().iter().flatten().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubts_are_silent_without_reason() {
        assert!(Doubts::default().sentences().is_empty());
    }

    #[test]
    fn doubts_name_one_process_that_lost_something() {
        let doubts = Doubts {
            lossy: 1,
            sampled: 2,
            misdated: 0,
            example: Some(("host-1".to_owned(), "5 events were lost".to_owned())),
        };
        let sentences = doubts.sentences();
        assert_eq!(sentences.len(), 2);
        assert!(sentences[0].starts_with("1 process of"), "{sentences:?}");
        assert!(sentences[0].contains("host-1, says: 5 events were lost"), "{sentences:?}");
        assert!(sentences[1].starts_with("2 processes of"), "{sentences:?}");
    }
}
