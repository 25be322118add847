/*
 * A device without an operating system, with a heap of 8 KiB; and when memory runs short, it says
 * over its UART who has it.
 *
 *     cargo xtask device cortex-m0 riscv32
 *
 * builds it with cairn's C library for the processor, runs it in qemu and checks what it says. The
 * allocator below knows nothing of annotations; an interrupt allocates at any moment, on processors
 * without compare-and-swap. See docs/book/reference/annotate.md.
 */
#include "board.h"

#include <cairn_heap.h>

#define POOL_BYTES 8192
#define IN_USE 1u

/* Parts: a word with the size of a part and IN_USE, then its bytes. The first part begins so that bytes are aligned to 8. */
static uint32_t pool[POOL_BYTES / 4] __attribute__((aligned(8)));
static const uint32_t FIRST = 1, END = POOL_BYTES / 4 - 1;

static void *pool_malloc(size_t size) {
    uint32_t wanted = 4 + (((uint32_t)size + 3) & ~7u) + 4;
    void *found = 0;
    if (size > POOL_BYTES)
        return 0;
    size_t state = board_enter();
    if (pool[FIRST] == 0)
        pool[FIRST] = (END - FIRST) * 4;
    for (uint32_t at = FIRST; at < END && !found; at += (pool[at] & ~IN_USE) / 4) {
        if (pool[at] & IN_USE)
            continue;
        for (uint32_t next = at + pool[at] / 4; next < END && !(pool[next] & IN_USE); next = at + pool[at] / 4)
            pool[at] += pool[next];
        if (pool[at] < wanted)
            continue;
        if (pool[at] - wanted >= 8) {
            pool[at + wanted / 4] = pool[at] - wanted;
            pool[at] = wanted;
        }
        pool[at] |= IN_USE;
        found = &pool[at + 1];
    }
    board_leave(state);
    return found;
}

static void pool_free(void *block) {
    size_t state = board_enter();
    ((uint32_t *)block)[-1] &= ~IN_USE;
    board_leave(state);
}

/* How often each kind of event came. */
static volatile uint32_t events[7];

static void observe(const struct cairn_annotated_event *event, void *context) {
    size_t state = board_enter();
    ((volatile uint32_t *)context)[event->kind]++;
    board_leave(state);
}

struct connection {
    uint32_t peer;
    uint8_t *packet;
};

__attribute__((noinline)) static uint8_t *read_packet(size_t bytes) {
    uint8_t *packet = board_malloc(bytes);
    for (size_t i = 0; i < bytes; i++)
        packet[i] = 0xee;
    return packet;
}

__attribute__((noinline)) static struct connection *accept(uint32_t peer) {
    struct connection *connection = board_malloc(sizeof *connection);
    connection->peer = peer;
    connection->packet = read_packet(peer * 4);
    return connection;
}

static void close(struct connection *connection) {
    cairn_annotated_free(connection->packet);
    cairn_annotated_free(connection);
}

struct sample {
    struct sample *next;
    uint16_t values[4];
};

__attribute__((noinline)) static struct sample *sample_sensors(void) {
    struct sample *history = 0;
    for (uint16_t tick = 0; tick < 10; tick++) {
        struct sample *sample = board_malloc(sizeof *sample);
        sample->next = history;
        sample->values[0] = tick;
        history = sample;
    }
    return history;
}

/* Enough that some come between any two instructions that matter. */
#define ENOUGH_INTERRUPTS 5000

static volatile uint32_t interrupts, failures;

void on_interrupt(void) {
    uint32_t *block = cairn_annotated_malloc(20);
    if (!block) {
        failures++;
        return;
    }
    *block = interrupts++;
    cairn_annotated_free(block);
}

static void put(const char *bytes, size_t count, void *context) {
    (void)context;
    board_print(bytes, count);
}

static void print_number(const char *name, size_t number) {
    char digits[12];
    size_t at = sizeof digits, length = 0;
    while (name[length])
        length++;
    board_print(name, length);
    digits[--at] = '\n';
    do {
        digits[--at] = (char)('0' + number % 10);
        number /= 10;
    } while (number);
    board_print(digits + at, sizeof digits - at);
}

static struct connection *connections[40];

int device_main(void) {
    struct cairn_annotated_options options = {
        .type_size = sizeof options,
        .layout = LAYOUT,
        .callers = 8,
        .alignment = 8,
        .malloc_function = pool_malloc,
        .free_function = pool_free,
        .walk_function = board_walk,
        .observer_function = observe,
        .observer_context = (void *)events,
    };
    /* Without compare-and-swap there must be a critical section. */
    int is_accepted = cairn_annotated_configure(&options) == 0;
#ifdef NEEDS_CRITICAL_SECTION
    if (is_accepted)
        return 1;
#else
    if (!is_accepted)
        return 2;
#endif
    options.enter_function = board_enter;
    options.leave_function = board_leave;
    if (cairn_annotated_configure(&options) != 0)
        return 3;

    board_start_interrupts();
    for (uint32_t peer = 1; peer <= 40; peer++) {
        connections[peer - 1] = accept(peer);
        /* Half of them are closed again. */
        if (peer % 2 == 0)
            close(connections[peer / 2 - 1]);
    }
    while (interrupts < ENOUGH_INTERRUPTS)
        cairn_annotated_free(board_malloc(interrupts % 50));
    struct sample *history = sample_sensors();
    board_stop_interrupts();

    if (LAYOUT == CAIRN_LAYOUT_LWS)
        cairn_annotated_lines(put, 0);
    else
        cairn_annotated_lines_in(pool, sizeof pool, put, 0);
    struct cairn_annotated_counters counters = { .type_size = sizeof counters };
    cairn_annotated_counters(&counters);
    print_number("blocks ", counters.live_blocks);
    print_number("bytes ", counters.live_bytes);
    print_number("interrupts ", interrupts);
    if (failures || counters.overflowed || counters.foreign || counters.freed_twice || counters.refused)
        return 4;
    if (events[CAIRN_EVENT_ALLOCATED] != counters.allocations
        || events[CAIRN_EVENT_ALLOCATED] - events[CAIRN_EVENT_FREEING] != counters.live_blocks)
        return 5;
    return history->values[0] == 9 ? 0 : 6;
}
