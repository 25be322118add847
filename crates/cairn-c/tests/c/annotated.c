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
    return 0;
}
