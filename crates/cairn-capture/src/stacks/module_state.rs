//! A counter of unloads: what was cached under an earlier value is invalid.

use core::sync::atomic::{AtomicU64, Ordering};

/// Low half: unloads in progress. High half: unloads that ended. Nothing is cached during an
/// unload.
pub(crate) struct ModuleState(AtomicU64);

const ONE_IN_PROGRESS: u64 = 1;
const ONE_ENDED: u64 = 1 << 32;

impl ModuleState {
    pub(crate) const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// The present value. Caches store it, and compare it before each use.
    #[inline(always)]
    pub(crate) fn value(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// True while some thread unloads a module.
    pub(crate) fn is_unloading(&self) -> bool {
        is_unloading(self.value())
    }

    /// Invalidates all caches, as an unload does.
    pub(crate) fn invalidate(&self) {
        let _ = self
            .0
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |state| Some(state.wrapping_add(ONE_ENDED)));
    }

    pub(crate) fn begin_unload(&self) {
        self.0.fetch_add(ONE_IN_PROGRESS, Ordering::SeqCst);
    }

    /// Ends one unload. Without one in progress, as after a fork, only the caches are invalidated.
    pub(crate) fn end_unload(&self) {
        let end = |state: u64| {
            Some((state - u64::from(is_unloading(state)) * ONE_IN_PROGRESS).wrapping_add(ONE_ENDED))
        };
        let _ = self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, end);
    }

    /// Ends all unloads in progress, in a forked child whose other threads do not exist.
    #[cfg(any(test, target_os = "linux"))]
    pub(crate) fn end_all_unloads(&self) {
        let end_all = |state: u64| Some((state & !(ONE_ENDED - 1)).wrapping_add(ONE_ENDED));
        let _ = self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, end_all);
    }
}

/// True for a value that was read while some thread unloaded a module.
pub(crate) const fn is_unloading(value: u64) -> bool {
    value as u32 != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unload_invalidates_caches_and_ends() {
        let state = ModuleState::new();
        let before = state.value();
        state.begin_unload();
        assert!(state.is_unloading());
        state.end_unload();
        assert!(!state.is_unloading() && state.value() != before);
    }

    #[test]
    fn unload_around_a_fork_ends_at_zero_in_the_child() {
        let state = ModuleState::new();
        state.begin_unload();
        state.begin_unload();
        state.end_all_unloads();
        assert!(!state.is_unloading());
        state.end_unload();
        assert!(!state.is_unloading());
    }
}
