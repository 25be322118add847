/* Annotated blocks from C: through the heap, and line by line in an allocator of one's own. Ends with 0 if all is well. */
#include <cairn_heap.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition) do { if (!(condition)) { fprintf(stderr, "line %d: %s\n", __LINE__, #condition); exit(1); } } while (0)

static size_t captured(size_t *addresses, size_t room) {
    size_t count = room < 3 ? room : 3;
    for (size_t i = 0; i < count; i++)
        addresses[i] = 0x401000 + i * 16;
    return count;
}

static int lines;
static char text[100000];

static void put(const char *bytes, size_t count, void *context) {
    CHECK(context == &lines);
    strncat(text, bytes, count);
    lines += count > 0 && bytes[count - 1] == '\n';
}

static void through_the_heap(uint32_t layout, size_t (*capture)(size_t *, size_t)) {
    static size_t pool[1 << 16];
    struct cairn_annotated_options options;
    memset(&options, 0, sizeof options);
    CHECK(cairn_annotated_configure(&options) == CAIRN_HEAP_ERROR_ARGUMENT);
    options.type_size = sizeof options;
    CHECK(cairn_annotated_configure(&options) == CAIRN_HEAP_ERROR_ARGUMENT);
    options.layout = layout;
    options.malloc_function = malloc;
    options.free_function = free;
    options.realloc_function = realloc;
    options.capture_function = capture;
    CHECK(cairn_annotated_configure(&options) == 0);

    char *blocks[100];
    for (int i = 0; i < 100; i++) {
        blocks[i] = i % 3 == 0 ? cairn_annotated_malloc(i)
            : i % 3 == 1 ? cairn_annotated_calloc(i, 1) : cairn_annotated_memalign(64, i);
        CHECK(blocks[i] && (i % 3 != 2 || (size_t)blocks[i] % 64 == 0));
        memset(blocks[i], i, i);
        CHECK(cairn_annotated_usable_size(blocks[i]) == (size_t)i);
    }
    for (int i = 0; i < 100; i++) {
        blocks[i] = cairn_annotated_realloc(blocks[i], 200 + i);
        for (int k = 0; k < i; k++)
            CHECK(blocks[i][k] == (char)i);
    }
    struct cairn_annotated_counters counters = { .type_size = sizeof counters };
    CHECK(cairn_annotated_counters(&counters) == 0);
    CHECK(counters.live_blocks == 100 && counters.live_bytes == 100 * 200 + 99 * 50 && counters.overflowed == 0);

    lines = 0;
    text[0] = 0;
    if (layout == CAIRN_LAYOUT_LWS) {
        CHECK(cairn_annotated_lines(put, &lines) == 0 && lines == 100);
    } else {
        /* A copy of a block elsewhere is none in the layout of cairn. */
        memcpy(pool, blocks[0] - 16, 100);
        CHECK(cairn_annotated_lines_in(pool, sizeof pool, put, &lines) == 0 && lines == 0);
        size_t before = layout == CAIRN_LAYOUT_CAIRN ? 128 : 200;
        CHECK(cairn_annotated_lines_in(blocks[7] - before, before, put, &lines) == 0 && lines >= 1);
    }
    CHECK(strncmp(text, "~m#", 3) == 0);
    cairn_annotated_free(NULL);
    void *other = malloc(10);
    cairn_annotated_free(other);
    for (int i = 0; i < 100; i++)
        cairn_annotated_free(blocks[i]);
    CHECK(cairn_annotated_realloc(cairn_annotated_malloc(1), 0) == NULL);
    CHECK(cairn_annotated_counters(&counters) == 0);
    CHECK(counters.live_blocks == 0 && counters.live_bytes == 0 && counters.foreign >= 1);
    CHECK(cairn_annotated_malloc((size_t)-1) == NULL && cairn_annotated_calloc((size_t)-1, 2) == NULL);
}

/*
 * The stack begins at the caller, wherever it comes from.
 *
 * Failed with: `lies_in(stack[0], plain)`, because the address that capture_here found was one of
 * cairn itself, and there was no other way to hand over a stack.
 */
static size_t capture_here(size_t *addresses, size_t room) {
    CHECK(room >= 2);
    addresses[0] = (size_t)__builtin_return_address(0);
    addresses[1] = 0x1234;
    return 2;
}

/* As an unwinder does it: frames of its own, those of cairn, then the program's. */
static size_t outer_pc;
static size_t capture_all(size_t *addresses, size_t room) {
    size_t found[] = { 0x111, (size_t)__builtin_return_address(0), 0x222, outer_pc, 0x333 };
    CHECK(room >= 5);
    memcpy(addresses, found, sizeof found);
    return 5;
}

static size_t walked_pc, walked_fp;
static size_t walk(size_t pc, size_t fp, size_t *addresses, size_t room) {
    CHECK(room >= 2);
    walked_pc = pc;
    walked_fp = fp;
    addresses[0] = 0x444;
    addresses[1] = 0x555;
    return 2;
}

static size_t stack_end;
static size_t walk_frame_pointers(size_t pc, size_t fp, size_t *addresses, size_t room) {
    (void)pc;
    return cairn_frame_pointer_walk(fp, stack_end, addresses, room);
}

static void configure(size_t (*capture)(size_t *, size_t), size_t (*walker)(size_t, size_t, size_t *, size_t)) {
    struct cairn_annotated_options options;
    memset(&options, 0, sizeof options);
    options.type_size = sizeof options;
    options.layout = CAIRN_LAYOUT_LWS;
    options.malloc_function = malloc;
    options.free_function = free;
    options.capture_function = capture;
    options.walk_function = walker;
    CHECK(cairn_annotated_configure(&options) == 0);
}

static size_t stack[40];

static int stack_of(void *block) {
    int depth = cairn_lws_parse(block, stack, 40, NULL);
    cairn_annotated_free(block);
    return depth;
}

static int lies_in(size_t address, void *(*function)(size_t)) {
    return address > (size_t)function && address < (size_t)function + 200;
}

__attribute__((noinline)) static void *plain(size_t size) {
    void *block = cairn_annotated_malloc(size);
    __asm__ volatile("");
    return block;
}

__attribute__((noinline)) static void *moved(size_t size) {
    void *block = cairn_annotated_realloc(cairn_annotated_memalign(64, 1), size);
    __asm__ volatile("");
    return block;
}

__attribute__((noinline)) static void *with_zeros(size_t size) {
    struct cairn_annotated_call call = { .type_size = sizeof call };
    void *block = cairn_annotated_realloc_at(cairn_annotated_memalign_at(64, 1, &call), size, &call);
    __asm__ volatile("");
    return block;
}

__attribute__((noinline)) static void *wrapped_inner(size_t size) {
    struct cairn_annotated_call call = {
        .type_size = sizeof call,
        .pc = (size_t)__builtin_return_address(0),
        .fp = 0x666,
    };
    void *block = cairn_annotated_calloc_at(1, size, &call);
    __asm__ volatile("");
    return block;
}

__attribute__((noinline)) static void *wrapped(size_t size) {
    void *block = wrapped_inner(size);
    __asm__ volatile("");
    return block;
}

__attribute__((noinline, optimize("no-omit-frame-pointer"))) static void *with_frame_pointer(size_t size) {
    void *block = plain(size);
    __asm__ volatile("");
    return block;
}

__attribute__((noinline, optimize("no-omit-frame-pointer"))) static void *outermost(size_t size) {
    stack_end = (size_t)__builtin_frame_address(0) + 2 * sizeof(size_t);
    void *block = with_frame_pointer(size);
    __asm__ volatile("");
    return block;
}

static void stacks_begin_at_the_caller(void) {
    void *(*functions[])(size_t) = { plain, moved, with_zeros };
    for (int i = 0; i < 3; i++) {
        configure(capture_here, NULL);
        CHECK(stack_of(functions[i](10)) == 1 && lies_in(stack[0], functions[i]));
        outer_pc = stack[0];
        configure(capture_all, NULL);
        CHECK(stack_of(functions[i](10)) >= 1 && lies_in(stack[0], functions[i]));
        configure(NULL, walk);
        CHECK(stack_of(functions[i](10)) == 3 && lies_in(stack[0], functions[i]));
        CHECK(stack[1] == 0x444 && stack[2] == 0x555 && walked_pc == stack[0]);
        configure(NULL, NULL);
        CHECK(stack_of(functions[i](10)) >= 3 && lies_in(stack[0], functions[i]));
    }
    configure(capture_here, NULL);
    CHECK(stack_of(plain(10)) == 1);
    outer_pc = stack[0];
    configure(capture_all, NULL);
    CHECK(stack_of(plain(10)) == 2 && stack[0] == outer_pc && stack[1] == 0x333);

    /* A wrapper says who called it. */
    configure(NULL, walk);
    CHECK(stack_of(wrapped(10)) == 3 && lies_in(stack[0], wrapped) && walked_fp == 0x666);
    configure(capture_here, NULL);
    CHECK(stack_of(wrapped(10)) == 1 && lies_in(stack[0], wrapped));
    configure(NULL, NULL);
    CHECK(stack_of(wrapped(10)) >= 2 && lies_in(stack[0], wrapped));

    configure(NULL, walk_frame_pointers);
    CHECK(stack_of(outermost(10)) >= 2 && lies_in(stack[0], plain));
    CHECK(lies_in(stack[1], with_frame_pointer) || lies_in(stack[1], outermost));
    CHECK(cairn_frame_pointer_walk(0, stack_end, stack, 40) == 0);
    CHECK(cairn_frame_pointer_walk(stack_end, stack_end, stack, 40) == 0);
    CHECK(cairn_frame_pointer_walk(stack_end + 3, stack_end, stack, 40) == 0);
}

/* Frames as an array, and bits of the program's own. Failed with: no such functions. */
static void the_caller_says_who_it_is(void) {
    const size_t frames[] = { 0x406651, 0x406852, 0x406c1b };
    struct cairn_annotated_call call = {
        .type_size = sizeof call,
        .frames = frames,
        .frame_count = 3,
        .user_bits = UINT64_C(0xfedcba9876543210),
        .user_bit_count = 64,
    };
    uint64_t bits = 0;
    configure(capture_here, NULL);
    void *block = cairn_annotated_malloc_at(100, &call);
    CHECK(cairn_lws_user_bits(block, 64, &bits) == 0 && bits == call.user_bits);
    CHECK(cairn_annotated_usable_size(block) == 100);
    call.user_bit_count = 5;
    call.frame_count = 2;
    block = cairn_annotated_realloc_at(block, 2000, &call);
    CHECK(cairn_lws_user_bits(block, 5, &bits) == 0 && bits == 0x10);
    CHECK(cairn_lws_user_bits(block, 64, &bits) == CAIRN_HEAP_ERROR_ARGUMENT);
    lines = 0;
    text[0] = 0;
    CHECK(cairn_annotated_lines(put, &lines) == 0 && lines == 1);
    CHECK(stack_of(block) == 2 && stack[0] == frames[0] && stack[1] == frames[1]);
    call.frame_count = 0;
    CHECK(stack_of(cairn_annotated_malloc_at(1, &call)) == 0);
    call.user_bit_count = 65;
    CHECK(cairn_annotated_malloc_at(1, &call) == NULL);
    call.user_bit_count = 0;
    call.type_size = 8;
    CHECK(cairn_annotated_malloc_at(1, &call) == NULL && cairn_annotated_memalign_at(64, 1, &call) == NULL);
    CHECK(cairn_annotated_calloc_at((size_t)-1, 2, NULL) == NULL);

    uint8_t blob[128];
    size_t blob_bytes;
    struct cairn_lws_owner live = { 0, 0, 0 };
    size_t more = cairn_lws_generate_with(7520, frames, 3, 16, 21, 6, blob, sizeof blob, &blob_bytes);
    CHECK(more > 0 && cairn_lws_generate_with(1, frames, 3, 16, 0, 65, blob, sizeof blob, &blob_bytes) == 0);
    block = cairn_lws_adjust(&live, malloc(more + 7520), more, blob, blob_bytes);
    CHECK(cairn_lws_user_bits(block, 6, &bits) == 0 && bits == 21);
    free(cairn_lws_trim(&live, block, 16, NULL, NULL));
}

/* The events of a heap, in order. Failed with: no such option. */
static struct cairn_annotated_event events[16];
static int event_count;

static void observe(const struct cairn_annotated_event *event, void *context) {
    CHECK(context == &event_count && event->type_size == sizeof *event && event_count < 16);
    events[event_count++] = *event;
}

static int is_event(int index, uint32_t kind, const void *block, size_t size) {
    return events[index].kind == kind && events[index].block == block && events[index].size == size;
}

static void observers_see_all_events(void) {
    struct cairn_annotated_options options;
    memset(&options, 0, sizeof options);
    options.type_size = sizeof options;
    options.malloc_function = malloc;
    options.free_function = free;
    options.observer_function = observe;
    options.observer_context = &event_count;
    options.limit_bytes = 1 << 20;
    CHECK(cairn_annotated_configure(&options) == 0);

    char *first = cairn_annotated_malloc(13);
    char *second = cairn_annotated_realloc(first, 5000);
    CHECK(cairn_annotated_malloc(2 << 20) == NULL);
    second[5000] = 1;
    cairn_annotated_free(second);
    cairn_annotated_free(NULL);
    CHECK(event_count == 5);
    CHECK(is_event(0, CAIRN_EVENT_ALLOCATED, first, 13));
    CHECK(is_event(1, CAIRN_EVENT_MOVED, second, 5000) && events[1].from == first);
    CHECK(is_event(2, CAIRN_EVENT_REFUSED, NULL, 2 << 20));
    CHECK(is_event(3, CAIRN_EVENT_OVERFLOWED, second, 5000) && events[3].overflow_bytes == 1);
    CHECK(is_event(4, CAIRN_EVENT_FREEING, second, 5000));

    /* A program that was compiled with the first version of the header. */
    options.type_size = offsetof(struct cairn_annotated_options, walk_function);
    CHECK(cairn_annotated_configure(&options) == 0);
    cairn_annotated_free(cairn_annotated_malloc(1));
    CHECK(event_count == 5);
    options.type_size--;
    CHECK(cairn_annotated_configure(&options) == CAIRN_HEAP_ERROR_ARGUMENT);
}

static int seen;

static void visit(const void *user, const uint8_t *blob, size_t blob_bytes, void *context) {
    char line[512];
    CHECK(user && context == &seen);
    CHECK(cairn_lws_line(blob, blob_bytes, line, sizeof line) == (int)strlen(line));
    CHECK(strcmp(line, "~m#IF0BmUQugNCkgCnkhdAYpQa6wAAV") == 0);
    CHECK(cairn_lws_line(blob, blob_bytes, line, 10) == CAIRN_HEAP_ERROR_ARGUMENT);
    seen++;
}

static void line_by_line(void) {
    struct cairn_lws_owner live = { 0, 0, 0 };
    size_t stack[] = { 0x406651, 0x406852, 0x406c1b, 0x406294 }, blob_bytes;
    uint8_t blob[128];
    void *blocks[10];
    for (int i = 0; i < 10; i++) {
        size_t more = cairn_lws_generate(7520, stack, 4, 16, blob, sizeof blob, &blob_bytes);
        CHECK(more == 48 && blob_bytes == 21);
        void *origin = malloc(more + 7520);
        blocks[i] = cairn_lws_adjust(&live, origin, more, blob, blob_bytes);
        CHECK((char *)blocks[i] == (char *)origin + 48);
        memset(blocks[i], 0xff, 7520);
    }
    CHECK(live.count == 10);
    cairn_lws_dump(&live, visit, &seen);
    CHECK(seen == 10);
    size_t addresses[8], size;
    CHECK(cairn_lws_parse(blocks[3], addresses, 8, &size) == 4 && size == 7520 && addresses[2] == 0x406c1b);
    CHECK(cairn_lws_parse(blocks[3], addresses, 2, NULL) == 2);
    for (int i = 0; i < 10; i++) {
        const uint8_t *found;
        free(cairn_lws_trim(&live, blocks[(i + 4) % 10], 16, &found, &blob_bytes));
        CHECK(blob_bytes == 21);
    }
    CHECK(live.count == 0 && !live.head && !live.tail);
    CHECK(cairn_lws_generate(1, stack, 4, 16, blob, 4, &blob_bytes) == 32 && blob_bytes == 2 && !blob[0] && !blob[1]);
    CHECK(cairn_lws_generate(1, stack, 4, 24, blob, sizeof blob, &blob_bytes) == 0);
    CHECK(cairn_lws_generate(1, NULL, 4, 16, blob, sizeof blob, &blob_bytes) == 0);
}

int main(void) {
    for (uint32_t layout = CAIRN_LAYOUT_LWS; layout <= CAIRN_LAYOUT_CAIRN; layout++) {
        through_the_heap(layout, captured);
        through_the_heap(layout, NULL);
    }
    line_by_line();
    stacks_begin_at_the_caller();
    the_caller_says_who_it_is();
    observers_see_all_events();
    return 0;
}
