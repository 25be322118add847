/* The library as a program on Windows uses it: windows RECORDING. Prints what it counted. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <windows.h>

#include <cairn_capture.h>

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
            exit(1); \
        } \
    } while (0)

static char pool[1 << 16];
static size_t used;

/* An allocator of the program, whose callers the recording must name. */
__attribute__((noinline)) void *pool_allocate(size_t size) {
    void *block = pool + used;
    used += size;
    cairn_heap_alloc(block, size);
    return block;
}

__attribute__((noinline)) void *make_header(void) {
    void *block = pool_allocate(16);
    memset(block, 1, 16);
    return block;
}

__attribute__((noinline)) void *make_body(size_t size) {
    void *block = pool_allocate(size);
    memset(block, 2, size);
    return block;
}

__attribute__((noinline)) void work(int times) {
    cairn_mark("begin", 0);
    for (int i = 0; i < times; i++) {
        void *header = make_header();
        make_body(100);
        cairn_heap_free(header);
    }
    cairn_mark_integer("times", 0, times);
    cairn_mark_value("half", 0, times / 2.0);
}

/* Paths are UTF-8, which the arguments of `main` are not on Windows. */
int wmain(int count, wchar_t **arguments) {
    static char path[4096];
    CHECK(count == 2);
    CHECK(WideCharToMultiByte(CP_UTF8, 0, arguments[1], -1, path, sizeof path, NULL, NULL) > 0);
    CHECK(cairn_capture() != CAIRN_STACK_EMPTY);
    struct cairn_recording_options options = {.type_size = sizeof options, .path = path};
    CHECK(cairn_recording_start(&options) == 0);
    work(100);
    cairn_recording_stop();
    printf("%zu\n", used);
    return 0;
}
