//! The board: how it starts, its UART, its end, and where a stack lies.

use core::arch::{asm, naked_asm};
use core::panic::PanicInfo;
use core::ptr;

unsafe extern "C" {
    #[link_name = "_stack_top"]
    static STACK_TOP: u32;
    #[link_name = "_data_start"]
    static mut DATA_START: u32;
    #[link_name = "_data_end"]
    static mut DATA_END: u32;
    #[link_name = "_data_load"]
    static DATA_LOAD: u32;
    #[link_name = "_bss_start"]
    static mut BSS_START: u32;
    #[link_name = "_bss_end"]
    static mut BSS_END: u32;
}

/// Vector table that the processor reads at its start: stack and entry point; all faults end the
/// run.
#[repr(C)]
struct Vectors {
    stack: *const u32,
    handlers: [unsafe extern "C" fn() -> !; 15],
}

// SAFETY: never written.
unsafe impl Sync for Vectors {}

#[used]
#[unsafe(link_section = ".vectors")]
static VECTORS: Vectors = Vectors {
    stack: &raw const STACK_TOP,
    handlers: [
        reset, fault, fault, fault, fault, fault, fault, fault, fault, fault, fault, fault, fault, fault,
        fault,
    ],
};

/// The first code: no frame further out, so no frame pointer.
///
/// # Safety
///
/// - Only the processor calls it, at reset.
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn reset() -> ! {
    naked_asm!("movs r7, #0", "bl {start}", "udf #0", start = sym start)
}

extern "C" fn start() -> ! {
    // SAFETY: memory that the linker laid out for this; nothing else runs.
    unsafe {
        let data = (&raw const DATA_END).addr() - (&raw const DATA_START).addr();
        ptr::copy_nonoverlapping(&raw const DATA_LOAD, &raw mut DATA_START, data / 4);
        let zeros = (&raw const BSS_END).addr() - (&raw const BSS_START).addr();
        ptr::write_bytes((&raw mut BSS_START).cast::<u8>(), 0, zeros);
        // The UART: on, to send.
        UART.add(CONTROL).write_volatile(1);
    }
    crate::main();
    exit(true)
}

extern "C" fn fault() -> ! {
    print(b"fault\n");
    exit(false)
}

#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    print(b"panic\n");
    exit(false)
}

/// The registers of the first UART, as words.
const UART: *mut u32 = 0x4000_4000 as *mut u32;
const DATA: usize = 0;
const STATE: usize = 1;
const CONTROL: usize = 2;
const IS_FULL: u32 = 1;

/// Sends bytes, and waits until they are on their way.
pub(crate) fn print(bytes: &[u8]) {
    for byte in bytes {
        // SAFETY: the UART's registers.
        unsafe {
            while UART.add(STATE).read_volatile() & IS_FULL != 0 {}
            UART.add(DATA).write_volatile((*byte).into());
        }
    }
}

/// Ends the run: a call of the debugger that qemu answers.
fn exit(is_success: bool) -> ! {
    const SYS_EXIT: u32 = 0x18;
    const APPLICATION_EXIT: u32 = 0x2_0026;
    const RUN_TIME_ERROR: u32 = 0x2_0023;
    let reason = if is_success { APPLICATION_EXIT } else { RUN_TIME_ERROR };
    // SAFETY: the convention of semihosting.
    unsafe { asm!("bkpt 0xab", in("r0") SYS_EXIT, in("r1") reason) };
    loop {}
}

/// Critical section of cairn-heap on a processor without compare-and-swap (`thumbv6m`). It disables
/// interrupts and restores their state.
#[cfg(not(feature = "plain"))]
struct InterruptsOff;

#[cfg(not(feature = "plain"))]
critical_section::set_impl!(InterruptsOff);

// SAFETY: with one core, nothing else runs while interrupts are off; sections that are nested leave
// them off.
#[cfg(not(feature = "plain"))]
unsafe impl critical_section::Impl for InterruptsOff {
    unsafe fn acquire() -> critical_section::RawRestoreState {
        let mask: u32;
        // SAFETY: reads a register, and disables interrupts.
        unsafe { asm!("mrs {}, primask", "cpsid i", out(reg) mask) };
        mask
    }

    unsafe fn release(mask: critical_section::RawRestoreState) {
        // SAFETY: as it was before.
        unsafe { asm!("msr primask, {}", in(reg) mask) };
    }
}

/// Stacks by frame pointers. Register 7 points to the caller's register 7, and the return address
/// follows it.
#[cfg(not(feature = "plain"))]
pub(crate) struct FramePointers;

#[cfg(not(feature = "plain"))]
impl cairn_heap::CallStack for FramePointers {
    #[inline(always)]
    fn addresses(&self, into: &mut [usize]) -> usize {
        let (mut frame, bottom): (usize, usize);
        // SAFETY: reads two registers.
        unsafe { asm!("mov {}, r7", "mov {}, sp", out(reg) frame, out(reg) bottom, options(nomem, nostack)) };
        let top = (&raw const STACK_TOP).addr();
        let (mut bottom, mut count) = (bottom, 0);
        for place in into {
            // Frames lie in the stack, each further out than the one before: whatever is there,
            // this ends.
            if frame < bottom || frame > top - 8 || frame % 4 != 0 {
                break;
            }
            // SAFETY: inside of the stack.
            let (outer, return_address) =
                unsafe { ((frame as *const usize).read(), (frame as *const usize).add(1).read()) };
            // The lowest bit says which instruction set, not where.
            *place = return_address & !1;
            count += 1;
            bottom = frame + 8;
            frame = outer;
        }
        count
    }
}
