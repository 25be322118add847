//! Draws the modules of a recording over time, as rows and columns.

use super::event::PlayedModule;

/// A module load in a picture.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bar {
    /// Index of the module.
    pub module: usize,
    /// First column of the module.
    pub first: usize,
    /// Last column of the module.
    pub last: usize,
    /// Whether it was loaded within the picture.
    pub begins: bool,
    /// Whether it was unloaded within the picture.
    pub ends: bool,
}

/// Draws the modules between two times in a number of columns, ordered by address, then by time.
///
/// A column shows a module if it was loaded at some time of the column.
///
/// ```
/// use cairn_analysis::player::bars;
/// assert!(bars(&[], (0, 1000), 10).is_empty());
/// ```
#[must_use]
pub fn bars(modules: &[PlayedModule], window: (i64, i64), columns: usize) -> Vec<Bar> {
    let (since, until) = window;
    let columns = columns.max(1);
    let length = (i128::from(until) - i128::from(since)).max(1);
    let column = |nanos: i64| {
        let from_start = (i128::from(nanos) - i128::from(since)).clamp(0, length - 1);
        usize::try_from(from_start * columns as i128 / length).unwrap_or(0).min(columns - 1)
    };
    let is_there = |module: &PlayedModule| {
        module.loaded_nanos < until && module.unloaded_nanos.is_none_or(|unloaded| unloaded > since)
    };
    let mut order: Vec<usize> = (0..modules.len()).collect();
    order.retain(|&module| modules.get(module).is_some_and(is_there));
    order.sort_by_key(|&module| modules.get(module).map(|module| (module.start, module.loaded_nanos)));
    let bar = |module: usize| {
        let PlayedModule { loaded_nanos, unloaded_nanos, .. } = modules.get(module)?;
        let ends = unloaded_nanos.filter(|&unloaded| unloaded < until);
        let first = column(*loaded_nanos);
        Some(Bar {
            module,
            first,
            // A module unloaded at the border of two columns is not in the second.
            last: ends.map_or(columns - 1, |unloaded| column(unloaded.saturating_sub(1))).max(first),
            begins: *loaded_nanos > since,
            ends: ends.is_some(),
        })
    };
    order.into_iter().filter_map(bar).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::ModuleKey;
    use cairn_format::AbsoluteAddress;

    fn module(start: u64, loaded_nanos: i64, unloaded_nanos: Option<i64>) -> PlayedModule {
        PlayedModule {
            file: ModuleKey { path: "m".into(), build_id: Vec::new(), size_bytes: None },
            path: "m".to_owned(),
            start: AbsoluteAddress::new(start),
            end: AbsoluteAddress::new(start + 0x1000),
            bias: None,
            loaded_nanos,
            unloaded_nanos,
        }
    }

    #[test]
    fn bars_cover_the_columns_of_their_modules() {
        let modules =
            [module(0x9000, 0, None), module(0x1000, 500, Some(1000)), module(0x1000, 0, Some(500))];
        let bar = |module, first, last, begins, ends| Bar { module, first, last, begins, ends };
        assert_eq!(
            bars(&modules, (0, 1001), 10),
            [bar(2, 0, 4, false, true), bar(1, 4, 9, true, true), bar(0, 0, 9, false, false)]
        );
        assert_eq!(bars(&modules, (600, 700), 4), [bar(1, 0, 3, false, false), bar(0, 0, 3, false, false)]);
        assert_eq!(bars(&modules, (i64::MIN, i64::MAX), 2).len(), 3);
    }
}
