//! The state that all threads share, and the functions that change all of it.
//!
//! [`process`] is the only way to the one instance. It is called where a capture enters and where
//! the public API starts; all other code receives a reference as an argument.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use cairn_unwind::{CALL_BYTES, Machine};

use crate::stacks::arch::{Native, Rule};
use crate::stacks::generated::{self, Evidence};
use crate::stacks::module_state::ModuleState;
use crate::stacks::modules::{self, identity_at, rule_of};
use crate::stacks::pc_kind::PcKind;
use crate::stacks::pcs::Pcs;
use crate::stacks::tree::{Tree, TreeFull};
use crate::stacks::{own_memory, own_pieces, thread};

/// The stacks and addresses of this process.
pub(crate) struct Process {
    pub(crate) tree: Tree,
    pub(crate) pcs: Pcs,
    pub(crate) module_state: ModuleState,
    /// Captures in a row without a record after which a thread follows its stack.
    follow_after: AtomicU32,
    /// Captures for which there was no room.
    lost: AtomicU32,
    /// Captures that the hot path could not answer.
    whole_walks: AtomicU64,
}

/// Captures in a row without a record after which a thread follows its stack.
///
/// 16, because programs whose stacks return seldom miss records more than a few times in a row.
/// Captures that a record
/// answers in between are weighed against them; see `ThreadState::note_missed`.
const FOLLOW_AFTER: u32 = 16;

static PROCESS: Process = Process {
    tree: Tree::new(),
    pcs: Pcs::new(),
    module_state: ModuleState::new(),
    follow_after: AtomicU32::new(FOLLOW_AFTER),
    lost: AtomicU32::new(0),
    whole_walks: AtomicU64::new(0),
};

/// The state of this process.
#[inline(always)]
pub(crate) fn process() -> &'static Process {
    &PROCESS
}

impl Process {
    /// The number of an address, which is added if it is new. `None` when there is no memory left.
    pub(crate) fn number(&self, pc: u64, kind: PcKind) -> Option<u32> {
        let rule = || match kind {
            PcKind::ReturnAddress => rule_of(pc),
            _ => Rule::NEEDS_FULL_EVALUATION,
        };
        if self.module_state.is_unloading() {
            let identity = identity_at(pc, kind, &self.module_state);
            return self.pcs.number_during_unload(pc, kind, rule, identity);
        }
        let add = || self.pcs.add(pc, kind, rule(), identity_at(pc, kind, &self.module_state), 0);
        self.pcs.number(pc, kind).or_else(add)
    }

    /// The rule that a return address got with its number; `None` for one without a number.
    pub(crate) fn rule_of_number(&self, pc: u64) -> Option<Rule> {
        let number = self.pcs.number(pc, PcKind::ReturnAddress)?;
        Some(self.pcs.entries().get(number as usize)?.rule())
    }

    /// Decides whether a call returns to `address`.
    ///
    /// It is executable then, and a call instruction is in front of it.
    ///
    /// The proof is remembered with the number of the address, and remains: code in front of a
    /// return address may change while its frame is live, and the frame does not.
    pub(crate) fn is_return_address(&self, address: u64) -> bool {
        if self.pcs.is_proven(address) {
            return true;
        }
        let mut code = [0; CALL_BYTES];
        if !Native::ends_with_call(read_before(address, &mut code))
            || !self.is_executable(address, Evidence::Call)
        {
            return false;
        }
        if !self.module_state.is_unloading()
            && let Some(number) = self.number(address, PcKind::ReturnAddress)
        {
            self.pcs.set_proven(number);
        }
        true
    }

    /// True when `address` lies in a module, or in executable memory outside of all.
    pub(crate) fn is_executable(&self, address: u64, evidence: Evidence) -> bool {
        modules::is_in_module(address) || self.is_generated(address, evidence)
    }

    /// True when `address` lies in executable memory that belongs to no module.
    pub(crate) fn is_generated(&self, address: u64, evidence: Evidence) -> bool {
        !modules::is_in_module(address)
            // Stacks that were cut where this memory begins are cached with their end.
            && generated::is_executable(address, evidence, || self.module_state.invalidate())
    }

    /// The node of the stack with these pc numbers, outermost first.
    ///
    /// # Errors
    ///
    /// [`TreeFull`] when memory ran out.
    pub(crate) fn intern(
        &self,
        numbers: impl ExactSizeIterator<Item = u32> + Clone,
    ) -> Result<u32, TreeFull> {
        self.tree.descend(0, numbers)
    }

    /// See [`follow_after`].
    pub(crate) fn follow_after(&self) -> u32 {
        self.follow_after.load(Ordering::Relaxed)
    }

    /// Counts a capture that was lost.
    pub(crate) fn count_lost(&self) {
        self.lost.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a whole walk.
    pub(crate) fn count_whole_walk(&self) {
        self.whole_walks.fetch_add(1, Ordering::Relaxed);
    }

    /// The counts so far: of lost captures and of whole walks.
    pub(crate) fn counts(&self) -> (u32, u64) {
        (self.lost.load(Ordering::Relaxed), self.whole_walks.load(Ordering::Relaxed))
    }

    /// Bytes of memory that hold all stacks.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.tree.memory_bytes() + self.pcs.memory_bytes()
    }
}

/// Limits the address space that stacks take from now on.
///
/// Call it before the program limits its address space to `limit_bytes`, or locks all of its
/// memory. Fewer new stacks fit afterwards. Safe wherever a capture is.
pub fn take_less_room(limit_bytes: u64) {
    /// Divisors of the limit: the largest parts that the two tables may take.
    const TREE_SHARE: u64 = 16;
    const PCS_SHARE: u64 = 32;
    let share = |of: u64| usize::try_from(limit_bytes / of).unwrap_or(usize::MAX);
    process().tree.shrink(share(TREE_SHARE));
    process().pcs.shrink(share(PCS_SHARE));
}

/// Sets after how many captures in a row without a record a thread follows its stack. For tests,
/// which make threads follow as often as possible; it changes no answer.
#[doc(hidden)]
pub fn follow_after(captures: u32) {
    process().follow_after.store(captures, Ordering::Relaxed);
}

/// Forgets all stacks and unmaps their memory. Numbers start from the beginning again.
///
/// A recorder calls it when it leaves a process that continues to run. Each later visit brings new
/// stacks, of modules that were loaded meanwhile, and without this call the table would grow with
/// each visit. Modules may be unloaded between two visits without [`while_unloading`].
///
/// # Safety
///
/// - No other thread runs before it returns, and none was stopped inside a capture or another
///   function of this crate.
/// - No [`StackId`](crate::StackId), frame or [`StackCursor`](crate::StackCursor) from before is
///   used afterwards.
pub unsafe fn forget_stacks() {
    let process = process();
    process.module_state.invalidate();
    // SAFETY: the caller promises that no other thread runs or was stopped in this crate, and that
    // nothing refers to the tables.
    unsafe {
        thread::forget_all();
        process.tree.release();
        process.pcs.release();
        own_pieces::drop_released_entries();
    }
}

/// Copies the bytes in front of an address, as many as `into` holds.
///
/// Fewer where the memory begins with the address's page.
fn read_before(address: u64, into: &mut [u8]) -> &[u8] {
    let from = address.wrapping_sub(into.len() as u64);
    if own_memory::read_bytes(from, into) == into.len() {
        return into;
    }
    let in_page = (address % own_memory::PAGE_BYTES) as usize;
    let Some(into) = into.get_mut(..in_page) else { return &[] };
    if own_memory::read_bytes(address - in_page as u64, into) == in_page { into } else { &[] }
}

/// Runs `unload`, which may unload modules, and invalidates everything that was learned of them.
///
/// Wrap every call of `dlclose` in this; a program that interposes `dlclose` wraps them all. Other
/// modules may be loaded to the same addresses at once. Captures in other threads continue
/// meanwhile, without caches.
///
/// ```no_run
/// # let handle = std::ptr::null_mut();
/// // SAFETY: a handle from dlopen that is not used any more.
/// let status = cairn_capture::while_unloading(|| unsafe { libc::dlclose(handle) });
/// ```
pub fn while_unloading<R>(unload: impl FnOnce() -> R) -> R {
    let process = process();
    process.module_state.begin_unload();
    let result = unload();
    process.pcs.forget_unloaded();
    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    crate::stacks::python::forget_unloaded();
    #[cfg(target_arch = "x86_64")]
    crate::stacks::runtimes::forget_unloaded();
    process.module_state.end_unload();
    result
}

/// Forgets what was learned of a module that the loader is about to unmap.
///
/// For the loader's notification of an unload, where the module is still mapped and none of its
/// code runs any more. A load of the same file at the same addresses gets new frames then.
#[cfg(windows)]
pub fn forget_module(start: cairn_format::AbsoluteAddress, end: cairn_format::AbsoluteAddress) {
    let process = process();
    process.module_state.begin_unload();
    process.pcs.forget_within(start.value(), end.value());
    process.module_state.end_unload();
}

#[cfg(target_os = "linux")]
/// Takes over, in a forked child, the memory of the parent's other threads, and ends their unloads.
///
/// Captures in a child work without it. But each new thread then takes new memory; and if another
/// thread of the parent was unloading a module at the moment of the fork, all captures of the child
/// are whole walks. Nothing in this crate holds a lock, so nothing has to be done before a fork, or
/// in the parent. A `vfork` child must not call it.
///
/// ```
/// extern "C" fn in_child() {
///     // SAFETY: called in a child of `fork`, before it can have started a thread.
///     unsafe { cairn_capture::after_fork_in_child() };
/// }
/// // SAFETY: registers a function that lives as long as the program.
/// unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
/// ```
///
/// # Safety
///
/// - The calling thread is the only one of its process, and the process shares its memory with no
///   other one.
#[cfg(target_os = "linux")]
pub unsafe fn after_fork_in_child() {
    let process = process();
    // If this thread itself unloads a module around the fork, `end_unload` finds no unload in
    // progress, and accepts that.
    if process.module_state.is_unloading() {
        process.pcs.forget_unloaded();
        process.module_state.end_all_unloads();
    }
    modules::after_fork_in_child();
    // SAFETY: the caller promises that this thread is the only one with access to this memory.
    unsafe { thread::take_over_after_fork() };
}
