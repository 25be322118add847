/* malloc and free in pairs, below DEPTH frames: `annotate_churn DEPTH PAIRS`. Prints ns a pair, and bytes a block. */
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define RETAINED 4096

static void *retained[RETAINED];
static unsigned long long state = 88172645463325252ull;

static unsigned next(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state >> 11;
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e9 + time.tv_nsec;
}

__attribute__((noinline)) static int pairs(int count) {
    for (int i = 0; i < count; i++) {
        unsigned place = next() % RETAINED;
        free(retained[place]);
        char *block = malloc(16 + next() % 500);
        block[0] = 1;
        retained[place] = block;
    }
    return count;
}

__attribute__((noinline)) static int below(int depth, int count) {
    int result = depth > 0 ? below(depth - 1, count) : pairs(count);
    __asm__ volatile("" ::"r"(result)); /* no tail call: every frame stays */
    return result;
}

int main(int argc, char **argv) {
    int depth = argc > 1 ? atoi(argv[1]) : 0, count = argc > 2 ? atoi(argv[2]) : 0;
    below(depth, RETAINED * 4);
    double began = now();
    below(depth, count);
    double ended = now();
    size_t before = mallinfo2().uordblks, bytes = 0;
    for (int i = 0; i < 20000; i++) {
        size_t size = 1 + next() % 400;
        char *block = malloc(size);
        block[0] = 1;
        bytes += size;
    }
    printf("%.2f %.2f\n", (ended - began) / (count ? count : 1), (double)(mallinfo2().uordblks - before - bytes) / 20000);
    return 0;
}
