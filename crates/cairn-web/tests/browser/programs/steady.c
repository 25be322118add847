// Allocates at a steady pace, so that a page can follow it: steady STEPS MILLISECONDS BYTES [extra].
// With a fourth argument, a further function allocates as well.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void *kept[1 << 16];
static int count;

__attribute__((noinline)) static void keep(void *block, size_t bytes) {
    memset(block, 1, bytes);
    kept[count++ % (1 << 16)] = block;
}

__attribute__((noinline)) void load_document(size_t bytes) {
    keep(malloc(bytes), bytes); // the line that a source view shows
}

__attribute__((noinline)) void parse_document(size_t bytes) {
    void *scratch = malloc(bytes * 2);
    __asm__ volatile("" : : "r"(scratch) : "memory"); // a compiler leaves out what is not used
    free(scratch);
    load_document(bytes);
}

__attribute__((noinline)) void only_sometimes(size_t bytes) {
    keep(malloc(bytes * 3), bytes * 3);
}

int main(int arguments, char **words) {
    if (arguments < 4) return 2;
    long steps = atol(words[1]), millis = atol(words[2]);
    size_t bytes = (size_t)atol(words[3]);
    for (long step = 0; step < steps; step++) {
        parse_document(bytes);
        if (arguments > 4) only_sometimes(bytes);
        struct timespec pause = {millis / 1000, millis % 1000 * 1000000};
        nanosleep(&pause, NULL);
    }
    puts("done");
    return 0;
}
