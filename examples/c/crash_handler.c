/* Writes the stack of a crash and goes on to die of it. The handler has a stack of its own: after a stack overflow there
 * is none other left.
 *
 *     cc -g crash_handler.c $(pkg-config --cflags --libs cairn) && ./a.out overflow
 */
#include <cairn_capture.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void on_crash(int signal, siginfo_t *info, void *ucontext) {
    static const char what[] = "crashed:\n";
    (void)info;
    if (write(2, what, sizeof what - 1) > 0) {
        cairn_stack_print(cairn_capture_interrupted(ucontext), 2);
    }
    /* SA_RESETHAND has put the default back, which ends the process with this signal. */
    raise(signal);
}

static void install(void) {
    static char own_stack[64 * 1024];
    stack_t stack;
    struct sigaction action;
    memset(&stack, 0, sizeof stack);
    stack.ss_sp = own_stack;
    stack.ss_size = sizeof own_stack;
    sigaltstack(&stack, NULL);
    memset(&action, 0, sizeof action);
    action.sa_sigaction = on_crash;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESETHAND;
    sigaction(SIGSEGV, &action, NULL);
    sigaction(SIGBUS, &action, NULL);
}

static int *volatile nowhere;

__attribute__((noinline)) int write_to_nowhere(void) {
    *nowhere = 1;
    return *nowhere + 1;
}

/* Without end: that is its purpose. The condition is never false, which the compiler need not know. */
__attribute__((noinline)) int recurse(int depth) {
    volatile char frame[256];
    frame[depth % 256] = 1;
    return nowhere == NULL ? recurse(depth + 1) + frame[depth % 256] : 0;
}

int main(int argument_count, char **arguments) {
    install();
    if (argument_count > 1 && strcmp(arguments[1], "overflow") == 0) {
        return recurse(0) + 1;
    }
    return write_to_nowhere() + 1;
}
