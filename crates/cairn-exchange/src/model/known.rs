//! Stacks and samples of a profile that is read: each is added once.

use std::collections::HashMap;

use crate::error::ExchangeError;
use crate::inflate::Budget;
use crate::model::profile::{Profile, Sample, Stack};

/// Bytes per stack: in the list, in the map, and in the tables of the questions.
pub(crate) const STACK_BYTES: usize = 72;

/// The places of stacks and samples in a profile.
#[derive(Debug, Default)]
pub(crate) struct Known {
    stacks: HashMap<Stack, u32>,
    samples: HashMap<Option<u32>, usize>,
}

impl Known {
    /// The index of a stack, which is added if it is new.
    pub(crate) fn stack(
        &mut self,
        profile: &mut Profile,
        stack: Stack,
        budget: &mut Budget,
    ) -> Result<u32, ExchangeError> {
        if let Some(&known) = self.stacks.get(&stack) {
            return Ok(known);
        }
        budget.keep(STACK_BYTES)?;
        let index = profile.stacks.len() as u32;
        profile.stacks.push(stack);
        self.stacks.insert(stack, index);
        Ok(index)
    }

    /// The values of a stack, 0 at first. A new sample takes `entry_bytes` beside its values.
    pub(crate) fn values<'p>(
        &mut self,
        profile: &'p mut Profile,
        stack: Option<u32>,
        entry_bytes: usize,
        budget: &mut Budget,
    ) -> Result<&'p mut [u64], ExchangeError> {
        let index = match self.samples.get(&stack) {
            Some(&known) => known,
            None => {
                let width = profile.columns.len();
                budget.keep(width.saturating_mul(8).saturating_add(entry_bytes))?;
                profile.samples.push(Sample { stack, values: vec![0; width] });
                self.samples.insert(stack, profile.samples.len() - 1);
                profile.samples.len() - 1
            }
        };
        Ok(&mut profile.samples[index].values)
    }
}
