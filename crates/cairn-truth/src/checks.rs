//! The functions that programs call: each captures, walks with libgcc, and compares.

use std::ffi::c_void;
use std::mem::MaybeUninit;

use cairn_capture::{Stack, StackId, StopReason, capture, capture_interrupted};
use cairn_format::{AbsoluteAddress, Frame, WordSize};
use cairn_unwind::{AddressRange, FnMemory, FramePointerWalk};

use crate::libgcc;
use crate::report::{Counter, add, count, store_wrong};

/// Compares the caller's stack by verified capture. The hook in malloc, and the most frequent
/// check.
#[unsafe(no_mangle)]
pub extern "C" fn truth_check() {
    compare_with_callers(capture(), Counter::Stacks);
}

/// Compares the caller's stack by verified capture, and by a walk of full rows from the registers.
#[unsafe(no_mangle)]
pub extern "C" fn truth_check_all() {
    compare_with_callers(capture(), Counter::Stacks);
    let mut context = MaybeUninit::<libc::ucontext_t>::uninit();
    // SAFETY: getcontext fills the context with the registers of this function, which does not
    // return before the capture.
    let stack = unsafe {
        getcontext(context.as_mut_ptr());
        capture_interrupted(context.as_ptr())
    };
    compare_with_callers(stack, Counter::OtherWalks);
}

/// Compares the walk of frame pointers with the truth, up to the frame that returns to `last`. It
/// begins at the caller's own (`__builtin_frame_address(0)`). The C library outside of it has no
/// frame pointers.
#[unsafe(no_mangle)]
pub extern "C" fn truth_check_frame_pointers(frame_pointer: u64, last: u64) {
    let memory = FnMemory(|address: AbsoluteAddress, into: &mut [u8]| {
        // SAFETY: the walk reads only records between the caller's frame and the frame of `last`,
        // which are on this thread's live stack.
        unsafe { into.copy_from_slice(std::slice::from_raw_parts(address.value() as *const u8, into.len())) };
        Some(())
    });
    let stack = AddressRange::new(
        AbsoluteAddress::new(frame_pointer),
        AbsoluteAddress::new(frame_pointer + (1 << 20)),
    );
    let mut records = FramePointerWalk::new(memory, frame_pointer, stack, WordSize::Bits64)
        .map(|record| record.return_address.value());
    let mut expected = records.next();
    let mut is_right = false;
    let mut has_begun = false;
    libgcc::walk(&mut |pc| {
        has_begun |= Some(pc) == expected;
        if !has_begun {
            return true;
        }
        is_right = Some(pc) == expected;
        expected = records.next();
        is_right && pc != last
    });
    add(Counter::OtherWalks, 1);
    add(Counter::Wrong, u64::from(!is_right));
}

/// Compares a signal handler's own stack, and the interrupted one from its context.
///
/// # Safety
///
/// - `context` is the third argument of the handler that calls this.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn truth_check_interrupted(context: *const c_void) {
    add(Counter::InHandlers, 1);
    compare_with_callers(capture(), Counter::Stacks);
    let context: *const libc::ucontext_t = context.cast();
    // SAFETY: the caller promises the context that its handler received, which is valid until the
    // handler returns.
    let (stack, pc) = unsafe {
        (capture_interrupted(context), (*context).uc_mcontext.gregs[libc::REG_RIP as usize] as u64)
    };
    let mut is_inside = false;
    compare(stack, Counter::OtherWalks, &mut |_, true_pc| {
        is_inside |= true_pc == pc;
        is_inside
    });
}

/// The number of the caller's stack; for programs that compare numbers themselves.
#[unsafe(no_mangle)]
pub extern "C" fn truth_stack_number() -> u32 {
    let id = capture().id();
    add(Counter::Lost, u64::from(id == StackId::LOST));
    id.number()
}

/// The return address of frame number `index` of a stack, counted from the innermost; 0 beyond its
/// end.
#[unsafe(no_mangle)]
pub extern "C" fn truth_frame(number: u32, index: usize) -> u64 {
    pcs(stack_of(number)).nth(index).unwrap_or(0)
}

/// Returns the reason why the stack ends, as a number. It is 0 at the start of its thread, 1 for
/// code without unwind information, 2 at the limit, 3 otherwise.
#[unsafe(no_mangle)]
pub extern "C" fn truth_stop_reason(number: u32) -> u32 {
    match stack_of(number).stop_reason() {
        StopReason::EndOfStack => 0,
        StopReason::NoUnwindInfo { .. } => 1,
        StopReason::Limit => 2,
        _ => 3,
    }
}

/// Counts errors that a program found by itself.
#[unsafe(no_mangle)]
pub extern "C" fn truth_failed(times: u64) {
    add(Counter::Failed, times);
}

/// The number of wrong stacks so far, for programs that stop at the first.
#[unsafe(no_mangle)]
pub extern "C" fn truth_wrong() -> u64 {
    count(Counter::Wrong)
}

/// Returns 1 when the capture's own count of lost stacks is right. For the end of a process that
/// captures only in checks.
#[unsafe(no_mangle)]
pub extern "C" fn truth_lost_are_counted() -> i32 {
    (u64::from(cairn_capture::statistics().lost) == count(Counter::Lost)).into()
}

/// Calls `action`, which unloads modules.
#[unsafe(no_mangle)]
pub extern "C" fn truth_while_unloading(action: extern "C" fn(*mut c_void) -> i32, data: *mut c_void) -> i32 {
    cairn_capture::while_unloading(|| action(data))
}

unsafe extern "C" {
    fn getcontext(context: *mut libc::ucontext_t) -> i32;
}

fn stack_of(number: u32) -> Stack {
    // SAFETY: the id is a transparent `u32`, for which all values are valid; programs pass results
    // of `truth_stack_number`.
    Stack::from_id(unsafe { std::mem::transmute::<u32, StackId>(number) })
}

/// The addresses of a stack's frames, innermost first.
pub(crate) fn pcs(stack: Stack) -> impl Iterator<Item = u64> {
    stack.frames().filter_map(Frame::address).map(AbsoluteAddress::value)
}

/// Compares the frames outside of the function that captured, which is the function that calls
/// this.
#[inline(never)]
pub(crate) fn compare_with_callers(stack: Stack, counter: Counter) {
    // libgcc's frames begin with the walk, `compare`, this function, and the one that captured; the
    // capture begins with the last.
    compare(stack, counter, &mut |index, _| index >= 3);
}

/// Compares `stack` with libgcc's frames from the first one on for which `begins` returns true.
///
/// The first pair is not compared: it is the same function at two places.
#[inline(never)]
fn compare(stack: Stack, counter: Counter, begins: &mut dyn FnMut(usize, u64) -> bool) {
    if stack.id() == StackId::LOST {
        add(Counter::Lost, 1);
        return;
    }
    let mut frames = pcs(stack);
    let mut index = 0;
    let mut compared = 0;
    let mut is_right = true;
    let mut last = 0;
    libgcc::walk(&mut |pc| {
        let begun = begins(index, pc);
        index += 1;
        if begun {
            let found = frames.next();
            is_right = found.is_some_and(|found| found == pc || compared == 0);
            compared += 1;
            last = pc;
        }
        is_right
    });
    if is_right && frames.next().is_some() {
        // libgcc ends silently at code without tables.
        let goes_further = !libgcc::is_covered(last.wrapping_sub(1));
        is_right = goes_further;
        add(Counter::Further, u64::from(goes_further));
    }
    let is_cut = is_right && stack.stop_reason() != StopReason::EndOfStack;
    add(Counter::Cut, u64::from(is_cut));
    add(counter, 1);
    add(Counter::Frames, compared);
    if !is_right || compared == 0 {
        add(Counter::Wrong, 1);
        let mut truth = [0_u64; 600];
        let mut count = 0;
        libgcc::walk(&mut |pc| {
            if let Some(place) = truth.get_mut(count) {
                *place = pc;
            }
            count += 1;
            true
        });
        store_wrong(pcs(stack).take(600), truth.iter().copied().take(count));
    }
}
