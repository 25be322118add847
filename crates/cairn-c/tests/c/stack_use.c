/* How much of the stack below its caller a capture touches: a hook in malloc runs on stacks that others made small. */
#include <assert.h>
#include <cairn_capture.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <ucontext.h>

/* SKIPPED has room for the frame of used_by, whose callee begins below. */
enum { PAINTED = 6144, SKIPPED = 128, LIMIT = 1600 };

static ucontext_t *context;
static cairn_stack_id captured;

static void capture_caller(void) { captured = cairn_capture(); }
static void capture_context(void) { captured = cairn_capture_interrupted(context); }

/* Paints the stack below, calls, and searches where the paint is gone. */
static __attribute__((noinline)) unsigned used_by(void (*capture)(void)) {
    volatile uint64_t *top = (volatile uint64_t *)((uintptr_t)__builtin_frame_address(0) - SKIPPED);
    const unsigned words = PAINTED / 8;
    for (unsigned index = 1; index <= words; index++) top[-(long)index] = 0x5ca1ab1e0ddba115;
    capture();
    assert(captured != CAIRN_STACK_LOST);
    unsigned deepest = 0;
    for (unsigned index = 1; index <= words; index++)
        if (top[-(long)index] != 0x5ca1ab1e0ddba115) deepest = index;
    assert(deepest < words);
    return deepest * 8 + SKIPPED;
}

static __attribute__((noinline)) void check(const char *what, void (*capture)(void)) {
    unsigned used = used_by(capture);
    printf("%s: %u\n", what, used);
    assert(used <= LIMIT);
}

static void on_signal(int signal, siginfo_t *info, void *ucontext) {
    (void)signal, (void)info;
    context = ucontext;
    check("whole walk", capture_caller);
    check("whole walk again", capture_caller);
    check("interrupted context", capture_context);
}

static void *in_thread(void *nothing) {
    check("first of a thread", capture_caller);
    for (int round = 0; round < 3; round++) check("again", capture_caller);
    struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO};
    assert(sigaction(SIGUSR1, &action, NULL) == 0 && raise(SIGUSR1) == 0);
    return nothing;
}

static int compare(const void *a, const void *b) {
    static int is_done;
    if (!is_done) {
        is_done = 1;
        check("first below a library", capture_caller);
    }
    return *(const char *)a - *(const char *)b;
}

static ucontext_t maker, coroutine;
static void in_coroutine(void) {
    check("first of a coroutine", capture_caller);
    for (int round = 0; round < 2; round++) check("again", capture_caller);
}

static void run_coroutine(void) {
    static char stack[1 << 16];
    assert(getcontext(&coroutine) == 0);
    coroutine.uc_stack.ss_sp = stack;
    coroutine.uc_stack.ss_size = sizeof stack;
    coroutine.uc_link = &maker;
    makecontext(&coroutine, in_coroutine, 0);
    assert(swapcontext(&maker, &coroutine) == 0);
}

int main(void) {
    check("first of the process", capture_caller);
    char letters[] = "edcba";
    qsort(letters, 5, 1, compare);
    run_coroutine();
    pthread_t thread;
    assert(pthread_create(&thread, NULL, in_thread, NULL) == 0 && pthread_join(thread, NULL) == 0);
    return 0;
}
