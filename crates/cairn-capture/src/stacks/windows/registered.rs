//! Function tables of code that JIT compilers make.
//!
//! A program passes them to the system (`RtlAddFunctionTable`, `RtlInstallFunctionTableCallback`),
//! which finds them behind a lock. So the program passes them here as well, before it runs the
//! code.

use core::ffi::c_void;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use cairn_format::AbsoluteAddress;
use cairn_unwind::pdata::{FunctionTable, PeImage, PeMachine};

/// A table: the address of its entries, their number, the code that they describe. Or a function
/// that finds entries.
struct Registered {
    /// The address of the entries, or what the program names the function by.
    key: AtomicU64,
    count: AtomicU32,
    /// Low half of the length of the code, which entries cannot exceed.
    length: AtomicU32,
    base: AtomicU64,
    /// The function, and what it is called with; null for a table.
    find: AtomicPtr<c_void>,
    context: AtomicPtr<c_void>,
}

/// Finds the entry of the function table for an address, as the system calls it.
///
/// It gets the address and the context that it was passed with, and returns null where no entry is.
pub type FindFunction = unsafe extern "system" fn(address: u64, context: *mut c_void) -> *const c_void;

/// Most tables at once; 4096, because each look-up of generated code searches all.
const MAX_TABLES: usize = 4096;

static TABLES: [Registered; MAX_TABLES] = [const {
    Registered {
        key: AtomicU64::new(FREE),
        count: AtomicU32::new(0),
        length: AtomicU32::new(0),
        base: AtomicU64::new(0),
        find: AtomicPtr::new(ptr::null_mut()),
        context: AtomicPtr::new(ptr::null_mut()),
    }
}; MAX_TABLES];
/// Number of places that were ever used.
static USED: AtomicU32 = AtomicU32::new(0);

/// Values in place of a key.
const FREE: u64 = 0;
const WRITING: u64 = 1;

/// Takes in a function table, as `RtlAddFunctionTable` does.
///
/// The program passes the same arguments to both.
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
    is_within && add(entries, count, base, length, (ptr::null_mut(), ptr::null_mut()))
}

/// Takes in a function that finds entries, as `RtlInstallFunctionTableCallback` does.
///
/// The program passes the same arguments to both.
/// `identifier` is the base with its two lowest bits set. The entries that it finds and their
/// unwind data lie within `length` bytes from `base` on; stacks end at code for which it finds
/// others. False when there is no room.
///
/// # Safety
///
/// - The bytes from `base` on are readable, and entries and unwind data do not change, until
///   [`remove_function_table`] was called and no thread runs the code.
/// - The function may run wherever a capture does: in a signal handler or an allocator, and on
///   several threads at once. So it takes no lock and allocates nothing. For an address in these
///   bytes it returns null or the address of an entry, and entries stay where they are.
pub unsafe fn add_function_table_callback(
    identifier: u64,
    base: u64,
    length: u32,
    find: FindFunction,
    context: *mut c_void,
) -> bool {
    identifier == base | 3 && add(identifier, 1, base, length, (find as *mut c_void, context))
}

fn add(key: u64, count: u32, base: u64, length: u32, (find, context): (*mut c_void, *mut c_void)) -> bool {
    if key <= WRITING {
        return false;
    }
    for (index, table) in TABLES.iter().enumerate() {
        if table.key.compare_exchange(FREE, WRITING, Ordering::Acquire, Ordering::Relaxed).is_err() {
            continue;
        }
        table.count.store(count, Ordering::Relaxed);
        table.length.store(length, Ordering::Relaxed);
        table.base.store(base, Ordering::Relaxed);
        table.find.store(find, Ordering::Relaxed);
        table.context.store(context, Ordering::Relaxed);
        table.key.store(key, Ordering::Release);
        USED.fetch_max(index as u32 + 1, Ordering::Release);
        return true;
    }
    false
}

/// Forgets a function table by its address, or a function by its identifier.
///
/// The program passes the same to `RtlDeleteFunctionTable` afterwards.
/// Call it inside of [`while_unloading`](crate::while_unloading), so that other code may be made at
/// the same addresses.
pub fn remove_function_table(key: u64) {
    let used = USED.load(Ordering::Acquire) as usize;
    for table in TABLES.iter().take(used) {
        let _ = table.key.compare_exchange(key, FREE, Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// The table for the code at `address`, which lies in no module.
pub(crate) fn table<'a>(address: u64) -> Option<FunctionTable<'a>> {
    let used = USED.load(Ordering::Acquire) as usize;
    TABLES.iter().take(used).find_map(|table| {
        let key = table.key.load(Ordering::Acquire);
        let (base, length) = (table.base.load(Ordering::Relaxed), table.length.load(Ordering::Relaxed));
        let covers = key > WRITING && address.checked_sub(base)? < u64::from(length);
        if !covers {
            return None;
        }
        let count = table.count.load(Ordering::Relaxed);
        let entries = match table.find.load(Ordering::Relaxed) {
            find if find.is_null() => key,
            find => {
                // SAFETY: `add_function_table_callback` alone stores one here, of this type.
                let find = unsafe { core::mem::transmute::<*mut c_void, FindFunction>(find) };
                // SAFETY: the function may run here, as `add_function_table_callback` requires, and
                // gets its own context.
                let entry = unsafe { find(address, table.context.load(Ordering::Relaxed)) };
                entry as u64
            }
        };
        // SAFETY: `add_function_table` promises that these bytes are readable as long as the code
        // may be on a stack.
        let bytes = unsafe { core::slice::from_raw_parts(base as *const u8, length as usize) };
        let place = u32::try_from(entries.checked_sub(base)?).ok().filter(|&place| place < length)?;
        let image = PeImage::loaded(AbsoluteAddress::new(base), bytes);
        Some(FunctionTable::new(image, PeMachine::X64, place, count))
    })
}
