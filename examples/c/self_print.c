/* Prints its own stack, twice: as cairn does, and as a program does that used backtrace() of the C library before.
 *
 *     cc -g self_print.c $(pkg-config --cflags --libs cairn) && ./a.out
 */
#include <cairn_capture.h>
#include <stdio.h>

static __attribute__((noinline)) int inner(void) {
    void *addresses[64];
    int count = cairn_backtrace(addresses, 64);
    printf("%d addresses, innermost %p\n", count, addresses[0]);
    fflush(stdout);
    return cairn_stack_print(cairn_capture(), 1);
}

__attribute__((noinline)) int outer(void) {
    return inner() * 2;
}

int main(void) {
    return outer();
}
