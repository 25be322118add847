/*
 * qemu's board "virt" with a 32-bit RISC-V, in code for rv32imc: without the A extension there is
 * no compare-and-swap.
 *
 * The program has frame pointers, so cairn walks the stack.
 */
#include "board.h"

#include <cairn_heap.h>

extern char stack_top[];

#define BYTE(address) (*(volatile uint8_t *)(address))
#define REGISTER(address) (*(volatile uint32_t *)(address))
#define UART 0x10000000u
#define TEST_DEVICE 0x100000u
#define TIME_COMPARE 0x2004000u
#define TIME 0x200bff8u

#define INTERRUPTS_ON 8u
#define TIMER_ON 128u

void board_print(const char *bytes, size_t count) {
    for (size_t i = 0; i < count; i++) {
        while (!(BYTE(UART + 5) & 0x20)) {
        }
        BYTE(UART) = (uint8_t)bytes[i];
    }
}

size_t board_enter(void) {
    size_t before;
    __asm__ volatile("csrrci %0, mstatus, 8" : "=r"(before) : : "memory");
    return before & INTERRUPTS_ON;
}

void board_leave(size_t before) {
    __asm__ volatile("csrs mstatus, %0" : : "r"(before) : "memory");
}

static void interrupt_in(uint32_t ticks) {
    uint32_t low = REGISTER(TIME) + ticks;
    REGISTER(TIME_COMPARE + 4) = 0xffffffff;
    REGISTER(TIME_COMPARE) = low;
    REGISTER(TIME_COMPARE + 4) = REGISTER(TIME + 4) + (low < ticks);
}

__attribute__((interrupt, aligned(4))) static void trap(void) {
    uint32_t cause;
    __asm__ volatile("csrr %0, mcause" : "=r"(cause));
    if (cause != 0x80000007) {
        board_print("fault\n", 6);
        REGISTER(TEST_DEVICE) = 0x13333;
    }
    on_interrupt();
    interrupt_in(500);
}

void board_start_interrupts(void) {
    __asm__ volatile("csrw mtvec, %0" : : "r"(trap));
    interrupt_in(500);
    __asm__ volatile("csrs mie, %0" : : "r"(TIMER_ON));
    __asm__ volatile("csrs mstatus, %0" : : "r"(INTERRUPTS_ON) : "memory");
}

void board_stop_interrupts(void) {
    __asm__ volatile("csrc mie, %0" : : "r"(TIMER_ON) : "memory");
}

size_t board_walk(size_t pc, size_t fp, size_t *addresses, size_t room) {
    (void)pc;
    return cairn_frame_pointer_walk(fp, (size_t)stack_top, addresses, room);
}

__attribute__((used)) static void start(void) {
    int result = device_main();
    if (result != 0) {
        char text[] = "failed 0\n";
        text[7] = (char)('0' + result);
        board_print(text, sizeof text - 1);
    }
    REGISTER(TEST_DEVICE) = result == 0 ? 0x5555 : 0x13333;
    for (;;) {
    }
}

/* The first code: a stack, and no frame further out. */
__attribute__((naked, section(".start"), used)) void _start(void) {
    __asm__ volatile(
        ".option push\n.option norelax\nla gp, __global_pointer$\n.option pop\n"
        "la sp, stack_top\nli s0, 0\nli ra, 0\nj start");
}
