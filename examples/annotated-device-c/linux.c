/*
 * A Linux program of a processor that cairn captures no stacks on: 32-bit x86. The interrupt is a
 * signal.
 *
 * The program has frame pointers, so cairn walks the stack.
 */
#include "board.h"

#include <cairn_heap.h>
#include <signal.h>
#include <sys/time.h>
#include <unistd.h>

static size_t stack_end;

void board_print(const char *bytes, size_t count) {
    while (count > 0) {
        ssize_t written = write(1, bytes, count);
        if (written <= 0)
            _exit(9);
        bytes += written;
        count -= (size_t)written;
    }
}

size_t board_enter(void) {
    sigset_t alarm, before;
    sigemptyset(&alarm);
    sigaddset(&alarm, SIGALRM);
    sigprocmask(SIG_BLOCK, &alarm, &before);
    return (size_t)sigismember(&before, SIGALRM);
}

void board_leave(size_t was_blocked) {
    sigset_t alarm;
    sigemptyset(&alarm);
    sigaddset(&alarm, SIGALRM);
    if (!was_blocked)
        sigprocmask(SIG_UNBLOCK, &alarm, 0);
}

static void on_alarm(int signal) {
    (void)signal;
    on_interrupt();
}

static void set_timer(long microseconds) {
    struct itimerval timer = { { 0, microseconds }, { 0, microseconds } };
    setitimer(ITIMER_REAL, &timer, 0);
}

void board_start_interrupts(void) {
    struct sigaction action = { .sa_handler = on_alarm };
    sigaction(SIGALRM, &action, 0);
    set_timer(200);
}

void board_stop_interrupts(void) {
    set_timer(0);
}

size_t board_walk(size_t pc, size_t fp, size_t *addresses, size_t room) {
    (void)pc;
    return cairn_frame_pointer_walk(fp, stack_end, addresses, room);
}

int main(void) {
    stack_end = (size_t)__builtin_frame_address(0) + 2 * sizeof(size_t);
    return device_main();
}
