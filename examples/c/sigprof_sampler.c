/* A sampling profiler: every few milliseconds of processor time a signal notes which stack it interrupted.
 *
 *     cc -g -O2 sigprof_sampler.c $(pkg-config --cflags --libs cairn) && ./a.out
 */
#include <cairn_capture.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>

enum { MAX_SAMPLES = 10000, WANTED_SAMPLES = 50 };

static cairn_stack_id samples[MAX_SAMPLES];
static volatile sig_atomic_t sample_count;

/* Runs on whatever the program was doing: a number and a count is all that it leaves behind. */
static void on_tick(int signal, siginfo_t *info, void *ucontext) {
    (void)signal;
    (void)info;
    if (sample_count < MAX_SAMPLES) {
        samples[sample_count] = cairn_capture_interrupted(ucontext);
        sample_count = sample_count + 1;
    }
}

static int by_number(const void *left, const void *right) {
    cairn_stack_id a = *(const cairn_stack_id *)left, b = *(const cairn_stack_id *)right;
    return (a > b) - (a < b);
}

/* Something to find. */
static volatile unsigned long work;

__attribute__((noinline)) void spin(void) {
    for (int i = 0; i < 1000000; i++) {
        work += (unsigned long)i;
    }
}

int main(void) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = on_tick;
    action.sa_flags = SA_SIGINFO | SA_RESTART;
    sigaction(SIGPROF, &action, NULL);
    struct itimerval every = {{0, 1000}, {0, 1000}}, never = {{0, 0}, {0, 0}};
    setitimer(ITIMER_PROF, &every, NULL);
    while (sample_count < WANTED_SAMPLES) {
        spin();
    }
    setitimer(ITIMER_PROF, &never, NULL);

    /* Equal stacks have equal numbers: sort the numbers, count neighbours. */
    int count = sample_count, best = 0, best_at = 0;
    qsort(samples, (size_t)count, sizeof samples[0], by_number);
    for (int at = 0, from = 0; at < count; at++) {
        if (samples[at] != samples[from]) {
            from = at;
        }
        if (at - from + 1 > best) {
            best = at - from + 1;
            best_at = at;
        }
    }
    printf("%d samples, %d of them on this stack:\n", count, best);
    fflush(stdout);
    return cairn_stack_print(samples[best_at], 1);
}
