/*
 * The BBC micro:bit: a Cortex-M0, whose instruction set (ARMv6-M) has no compare-and-swap.
 *
 * GCC's Thumb code has no chain of frame pointers, so stacks come from the compiler's unwind
 * tables, read by libgcc.
 */
#include "board.h"

#include <cairn_heap.h>
#include <unwind.h>

extern uint32_t stack_top[], data_start[], data_end[], data_load[], bss_start[], bss_end[];

#define REGISTER(address) (*(volatile uint32_t *)(address))
#define UART 0x40002000u
#define SYSTICK 0xe000e010u

void board_print(const char *bytes, size_t count) {
    for (size_t i = 0; i < count; i++) {
        REGISTER(UART + 0x11c) = 0;
        REGISTER(UART + 0x51c) = (uint8_t)bytes[i];
        while (!REGISTER(UART + 0x11c)) {
        }
    }
}

size_t board_enter(void) {
    uint32_t mask;
    __asm__ volatile("mrs %0, primask\n\tcpsid i" : "=r"(mask) : : "memory");
    return mask;
}

void board_leave(size_t mask) {
    __asm__ volatile("msr primask, %0" : : "r"(mask) : "memory");
}

void board_start_interrupts(void) {
    REGISTER(SYSTICK + 4) = 3000;
    REGISTER(SYSTICK + 8) = 0;
    REGISTER(SYSTICK) = 7;
}

void board_stop_interrupts(void) {
    REGISTER(SYSTICK) = 0;
}

struct frames {
    size_t addresses[16];
    size_t count;
    /* The first frame is that of the function that asks. */
    int is_inside;
};

static _Unwind_Reason_Code add_frame(struct _Unwind_Context *context, void *argument) {
    struct frames *frames = argument;
    if (!frames->is_inside && frames->count < 16)
        frames->addresses[frames->count++] = _Unwind_GetIP(context);
    frames->is_inside = 0;
    return frames->count < 16 ? _URC_NO_REASON : _URC_END_OF_STACK;
}

__attribute__((noinline)) void *board_malloc(size_t size) {
    struct frames frames = { .is_inside = 1 };
    _Unwind_Backtrace(add_frame, &frames);
    struct cairn_annotated_call call = {
        .type_size = sizeof call,
        .frames = frames.addresses,
        .frame_count = frames.count,
    };
    return cairn_annotated_malloc_at(size, &call);
}

/* Allocations of interrupts: by their return address alone. */
size_t board_walk(size_t pc, size_t fp, size_t *addresses, size_t room) {
    (void)pc;
    (void)fp;
    (void)addresses;
    (void)room;
    return 0;
}

/* Ends the run: a call of the debugger that qemu answers. */
static _Noreturn void end(int is_success) {
    register uint32_t operation __asm__("r0") = 0x18;
    register uint32_t reason __asm__("r1") = is_success ? 0x20026 : 0x20023;
    __asm__ volatile("bkpt 0xab" : : "r"(operation), "r"(reason) : "memory");
    for (;;) {
    }
}

static void fault(void) {
    board_print("fault\n", 6);
    end(0);
}

/* For libgcc. */
_Noreturn void abort(void) {
    board_print("abort\n", 6);
    end(0);
}

/* The first code. */
void reset(void);

void reset(void) {
    for (uint32_t *to = data_start, *from = data_load; to < data_end;)
        *to++ = *from++;
    for (uint32_t *to = bss_start; to < bss_end;)
        *to++ = 0;
    REGISTER(UART + 0x500) = 4;
    REGISTER(UART + 8) = 1;
    int result = device_main();
    if (result != 0) {
        char text[] = "failed 0\n";
        text[7] = (char)('0' + result);
        board_print(text, sizeof text - 1);
    }
    end(result == 0);
}

/* What the processor reads when it starts: its stack, where to go, and all exceptions. */
__attribute__((section(".vectors"), used)) static void *const VECTORS[16] = {
    stack_top, reset, fault, fault, 0, 0, 0, 0, 0, 0, 0, fault, 0, 0, fault, on_interrupt,
};
