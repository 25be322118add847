// A program whose function, file, thread and own name try to be more than text.
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>

#define EVIL "\"<img src=x onerror=globalThis.broken=1>\""

// A function of that name: void *evil(size_t).
__asm__(".text\n.globl " EVIL "\n.type " EVIL ", @function\n" EVIL ":\n"
        ".cfi_startproc\n\tsubq $8, %rsp\n\t.cfi_def_cfa_offset 16\n\tcall malloc@PLT\n\taddq $8, %rsp\n"
        "\t.cfi_def_cfa_offset 8\n\tret\n.cfi_endproc\n.size " EVIL ", .-" EVIL "\n");

#line 77 "/src/<img src=x onerror=globalThis.broken=1>.c"
__attribute__((noinline)) static void *markup(void) {
    void *(*evil)(size_t);
    __asm__("leaq " EVIL "(%%rip), %0" : "=r"(evil));
    void *block = evil(123456);
    __asm__ volatile("" ::: "memory");
    return block;
}

int main(void) {
    prctl(PR_SET_NAME, "<b>bold</b>\x1b[2J");
    void *volatile kept[20];
    struct timespec pause = {0, 5000000};
    for (int i = 0; i < 20; i++) {
        kept[i] = markup();
        nanosleep(&pause, NULL);
    }
    return kept[19] == NULL;
}
