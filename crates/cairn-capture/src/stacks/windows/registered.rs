//! Function tables of code that JIT compilers make.
//!
//! A program passes them to the system (`RtlAddFunctionTable`), which finds them behind a lock. So
//! the program passes them here as well, before it runs the code.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use cairn_format::AbsoluteAddress;
use cairn_unwind::pdata::{FunctionTable, PeImage, PeMachine};

/// A table: the address of its entries, their number, the code that they describe.
struct Registered {
    entries: AtomicU64,
    count: AtomicU32,
    /// Low half of the length of the code, which entries cannot exceed.
    length: AtomicU32,
    base: AtomicU64,
}

/// Most tables at once; 4096, because each look-up of generated code searches all.
const MAX_TABLES: usize = 4096;

static TABLES: [Registered; MAX_TABLES] = [const {
    Registered {
        entries: AtomicU64::new(FREE),
        count: AtomicU32::new(0),
        length: AtomicU32::new(0),
        base: AtomicU64::new(0),
    }
}; MAX_TABLES];
/// Number of places that were ever used.
static USED: AtomicU32 = AtomicU32::new(0);

/// Values in place of the address of entries.
const FREE: u64 = 0;
const WRITING: u64 = 1;

/// Takes in a function table that the program passes to `RtlAddFunctionTable` with the same
/// arguments.
///
/// `length` are the bytes from `base` on that hold the code, the unwind data and the table. Safe
/// wherever a capture is. False when there is no room, or when the table lies elsewhere: stacks end
/// at that code then.
///
/// # Safety
///
/// - The bytes from `base` on are readable, and the table and its unwind data do not change, until
///   [`remove_function_table`] was called and no thread runs the code.
pub unsafe fn add_function_table(entries: u64, count: u32, base: u64, length: u32) -> bool {
    let is_within = entries.checked_sub(base).is_some_and(|place| place < u64::from(length));
    if !is_within || entries <= WRITING {
        return false;
    }
    for (index, table) in TABLES.iter().enumerate() {
        if table.entries.compare_exchange(FREE, WRITING, Ordering::Acquire, Ordering::Relaxed).is_err() {
            continue;
        }
        table.count.store(count, Ordering::Relaxed);
        table.length.store(length, Ordering::Relaxed);
        table.base.store(base, Ordering::Relaxed);
        table.entries.store(entries, Ordering::Release);
        USED.fetch_max(index as u32 + 1, Ordering::Release);
        return true;
    }
    false
}

/// Forgets a function table that the program is about to pass to `RtlDeleteFunctionTable`.
///
/// Call it inside of [`while_unloading`](crate::while_unloading), so that other code may be made at
/// the same addresses.
pub fn remove_function_table(entries: u64) {
    let used = USED.load(Ordering::Acquire) as usize;
    for table in TABLES.iter().take(used) {
        let _ = table.entries.compare_exchange(entries, FREE, Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// The table for the code at `address`, which lies in no module.
pub(crate) fn table<'a>(address: u64) -> Option<FunctionTable<'a>> {
    let used = USED.load(Ordering::Acquire) as usize;
    TABLES.iter().take(used).find_map(|table| {
        let entries = table.entries.load(Ordering::Acquire);
        let (base, length) = (table.base.load(Ordering::Relaxed), table.length.load(Ordering::Relaxed));
        let covers = entries > WRITING && address.checked_sub(base)? < u64::from(length);
        if !covers {
            return None;
        }
        let count = table.count.load(Ordering::Relaxed);
        // SAFETY: `add_function_table` promises that these bytes are readable as long as the code
        // may be on a stack.
        let bytes = unsafe { core::slice::from_raw_parts(base as *const u8, length as usize) };
        let place = u32::try_from(entries.checked_sub(base)?).ok()?;
        Some(FunctionTable::new(
            PeImage::loaded(AbsoluteAddress::new(base), bytes),
            PeMachine::X64,
            place,
            count,
        ))
    })
}
