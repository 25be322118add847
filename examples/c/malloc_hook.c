/* Who asks for how much memory: a library to preload, which counts the bytes that each call stack has asked malloc for.
 *
 *     cc -shared -fPIC -O2 malloc_hook.c -o malloc_hook.so $(pkg-config --cflags --libs cairn)
 *     LD_PRELOAD=./malloc_hook.so program
 */
#include <cairn_capture.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { SLOTS = 1 << 16, SHOWN = 3 };

/* A hash table that only grows: a slot belongs to the first stack that claims it. */
static struct {
    _Atomic(cairn_stack_id) stack;
    atomic_ullong bytes, calls;
} table[SLOTS];

void *__libc_malloc(size_t bytes);

void *malloc(size_t bytes) {
    /* Its innermost frame is this function; nothing in the call comes back to malloc. */
    cairn_stack_id stack = cairn_capture();
    for (uint32_t at = stack * 2654435761u, tries = 0; tries < 64; at++, tries++) {
        cairn_stack_id owner = CAIRN_STACK_EMPTY;
        if (atomic_compare_exchange_strong(&table[at % SLOTS].stack, &owner, stack) || owner == stack) {
            atomic_fetch_add(&table[at % SLOTS].bytes, bytes);
            atomic_fetch_add(&table[at % SLOTS].calls, 1);
            break;
        }
    }
    return __libc_malloc(bytes);
}

__attribute__((destructor)) static void report(void) {
    for (int shown = 0; shown < SHOWN; shown++) {
        int largest = 0;
        for (int at = 1; at < SLOTS; at++) {
            if (table[at].bytes > table[largest].bytes) {
                largest = at;
            }
        }
        if (table[largest].bytes == 0) {
            return;
        }
        char line[80];
        int length = snprintf(line, sizeof line, "%llu bytes in %llu calls of malloc\n",
                              (unsigned long long)table[largest].bytes, (unsigned long long)table[largest].calls);
        if (write(2, line, (size_t)length) != length) {
            return;
        }
        cairn_stack_print(table[largest].stack, 2);
        table[largest].bytes = 0;
    }
}
