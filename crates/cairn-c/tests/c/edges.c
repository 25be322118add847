/* What the API answers to arguments that are wrong, old, new or at a limit. */
#include <assert.h>
#include <cairn_capture.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

static struct cairn_frame frames[70000];

static void numbers_that_are_no_stack(void) {
    cairn_stack_id numbers[] = {CAIRN_STACK_LOST, 0x7ffffff0, 0x80000000, 12345678};
    for (int index = 0; index < 4; index++) {
        struct cairn_stop stop;
        uint8_t byte;
        assert(cairn_stack_frames(numbers[index], frames, 10, &stop) == 0);
        assert(stop.kind == CAIRN_STOP_NO_STACK && stop.reserved == 0 && stop.address == 0);
        assert(cairn_stack_print(numbers[index], 1) == CAIRN_ERROR_STACK);
        assert(cairn_stack_encode_cbf(numbers[index], NULL, &byte, 1) == CAIRN_ERROR_STACK);
        assert(cairn_stack_encode_lws(numbers[index], NULL, 1, &byte, 1) == CAIRN_ERROR_STACK);
    }
    assert(cairn_capture_interrupted(NULL) == CAIRN_STACK_LOST);
}

static void every_small_number_is_survived(void) {
    for (cairn_stack_id number = 0; number < 70000; number += 1 + number / 500) {
        assert(cairn_stack_frames(number, frames, 70000, NULL) <= 1048575);
    }
}

static void the_empty_stack_is_one(void) {
    struct cairn_stop stop;
    uint8_t buffer[8];
    assert(cairn_stack_frames(CAIRN_STACK_EMPTY, NULL, 0, &stop) == 0 && stop.kind == CAIRN_STOP_END_OF_STACK);
    assert(cairn_stack_encode_cbf(CAIRN_STACK_EMPTY, NULL, buffer, 8) == 2);
    assert(cairn_stack_print(CAIRN_STACK_EMPTY, -1) == 0);
}

static void no_more_is_written_than_there_is_room_for(void) {
    cairn_stack_id stack = cairn_capture();
    memset(frames, 0xee, sizeof frames);
    size_t count = cairn_stack_frames(stack, frames, 2, NULL);
    assert(count > 2 && frames[1].kind == CAIRN_FRAME_RETURN_ADDRESS && frames[2].kind == 0xeeeeeeee);
    assert(cairn_stack_frames(stack, NULL, 100, NULL) == count);

    void *addresses[3] = {NULL, NULL, NULL};
    assert(cairn_backtrace(addresses, 2) == 2 && addresses[1] != NULL && addresses[2] == NULL);
    assert(cairn_backtrace(addresses, 0) == 0 && cairn_backtrace(addresses, -5) == 0);
    assert(cairn_backtrace(NULL, 5) == 0);

    uint8_t buffer[300];
    memset(buffer, 0xee, sizeof buffer);
    ptrdiff_t size = cairn_stack_encode_lws(stack, NULL, 77, NULL, 0);
    assert(size > 4 && cairn_stack_encode_lws(stack, NULL, 77, buffer, (size_t)size) == size);
    assert(buffer[size] == 0xee);
    assert(cairn_stack_encode_lws(stack, NULL, 77, buffer, (size_t)size - 1) == CAIRN_ERROR_BUFFER);
    assert(cairn_stack_encode_lws(stack, NULL, UINT64_MAX, buffer, 300) == CAIRN_ERROR_FORMAT);
}

static void descriptors_fail_without_touching_errno(void) {
    errno = 77;
    assert(cairn_stack_print(cairn_capture(), -1) == CAIRN_ERROR_WRITE && errno == 77);
    int full = open("/dev/full", O_WRONLY);
    errno = 78;
    assert(cairn_stack_print(cairn_capture(), full) == CAIRN_ERROR_WRITE && errno == 78);
    close(full);
}

static void structs_of_other_versions(void) {
    struct {
        struct cairn_statistics known;
        uint64_t newer;
    } newer;
    memset(&newer, 0xee, sizeof newer);
    newer.known.type_size = sizeof newer;
    assert(cairn_statistics(&newer.known) == 0 && newer.newer == 0 && newer.known.lost == 0);
    assert(newer.known.type_size == sizeof newer);

    struct cairn_statistics older;
    memset(&older, 0xee, sizeof older);
    older.type_size = offsetof(struct cairn_statistics, memory_bytes);
    assert(cairn_statistics(&older) == 0 && older.lost == 0 && older.memory_bytes == 0xeeeeeeeeeeeeeeeeu);
    older.type_size = 3;
    assert(cairn_statistics(&older) == CAIRN_ERROR_ARGUMENT && cairn_statistics(NULL) == CAIRN_ERROR_ARGUMENT);

    struct {
        struct cairn_pick known;
        uint64_t newer;
    } pick;
    cairn_stack_id stack = cairn_capture();
    ptrdiff_t whole = cairn_stack_encode_cbf(stack, NULL, NULL, 0);
    memset(&pick, 0, sizeof pick);
    pick.known.type_size = sizeof pick;
    assert(cairn_stack_encode_cbf(stack, &pick.known, NULL, 0) == whole);
    pick.newer = 1;
    assert(cairn_stack_encode_cbf(stack, &pick.known, NULL, 0) == CAIRN_ERROR_ARGUMENT);
    pick.known.type_size = sizeof pick.known;
    assert(cairn_stack_encode_cbf(stack, &pick.known, NULL, 0) == whole);
    pick.known.reserved[6] = 1;
    assert(cairn_stack_encode_cbf(stack, &pick.known, NULL, 0) == CAIRN_ERROR_ARGUMENT);
    pick.known.type_size = offsetof(struct cairn_pick, skip_innermost) + 4;
    pick.known.skip_innermost = 1;
    pick.known.limit = 1;
    assert(cairn_stack_encode_cbf(stack, &pick.known, NULL, 0) < whole);
    pick.known.type_size = 0;
    assert(cairn_stack_encode_cbf(stack, &pick.known, NULL, 0) == CAIRN_ERROR_ARGUMENT);
}

/* The info byte, 20 frames of one function, its caller's. */
__attribute__((noinline)) static cairn_stack_id deep(int depth) {
    cairn_stack_id stack = depth == 0 ? cairn_capture() : deep(depth - 1);
    __asm__ volatile("" ::: "memory");
    return stack;
}

static void picks_choose_frames(void) {
    uint8_t buffer[512];
    cairn_stack_id stack = deep(200);
    size_t depth = cairn_stack_frames(stack, frames, 70000, NULL);
    assert(depth > 202);
    struct cairn_pick pick;
    memset(&pick, 0, sizeof pick);
    pick.type_size = sizeof pick;

    /* All but the innermost and all but it: one absolute address each, with info byte and end. */
    pick.drop_outermost = (uint32_t)depth - 1;
    ptrdiff_t size = cairn_stack_encode_cbf(stack, &pick, buffer, sizeof buffer);
    assert(size > 3 && size <= 11 && (buffer[1] & 0xf0) == 0x20 && buffer[size - 1] == 0);
    pick.drop_outermost = 0;
    pick.skip_innermost = (uint32_t)depth - 1;
    size = cairn_stack_encode_cbf(stack, &pick, buffer, sizeof buffer);
    assert(size > 3 && size <= 11 && (buffer[1] & 0xf0) == 0x20);
    pick.skip_innermost = (uint32_t)depth;
    assert(cairn_stack_encode_cbf(stack, &pick, buffer, sizeof buffer) == 2);

    /* A mark where frames were left out: "omit" with a number of one byte. */
    pick.skip_innermost = 0;
    pick.limit = 2;
    pick.keep_outermost = 1;
    size = cairn_stack_encode_cbf(stack, &pick, buffer, sizeof buffer);
    assert(size > 4 && buffer[1] == 0x60 && buffer[2] == depth - 1);
    /* With the outer end left out, it is "truncated" instead. */
    pick.keep_outermost = 0;
    size = cairn_stack_encode_cbf(stack, &pick, buffer, sizeof buffer);
    assert(size > 4 && buffer[size - 1] == 1);

    /* Of 201 frames two are left: the one that calls cairn_capture, and one that calls itself; 199 are counted. */
    pick.limit = 0;
    pick.fold_recursion = 1;
    size = cairn_stack_encode_cbf(stack, &pick, buffer, sizeof buffer);
    int found = 0;
    for (ptrdiff_t at = 1; at + 1 < size; at++) {
        found |= buffer[at] == 0x60 && buffer[at + 1] == 199;
    }
    assert(found);
}

static void a_deep_stack_is_whole(void) {
    struct cairn_stop stop;
    cairn_stack_id stack = deep(66000);
    assert(cairn_stack_frames(stack, frames, 70000, &stop) > 66000 && stop.kind == CAIRN_STOP_END_OF_STACK);
}

static void *a_stack_that_is_too_deep_is_cut_and_says_so(void *nothing) {
    struct cairn_stop stop;
    cairn_stack_id stack = deep(1050000);
    assert(cairn_stack_frames(stack, frames, 70000, &stop) == 1048575 && stop.kind == CAIRN_STOP_LIMIT);
    uint8_t buffer[1024];
    struct cairn_pick pick;
    memset(&pick, 0, sizeof pick);
    pick.type_size = sizeof pick;
    pick.fold_recursion = 1;
    ptrdiff_t size = cairn_stack_encode_cbf(stack, &pick, buffer, sizeof buffer);
    assert(size > 10 && buffer[size - 1] == 1);
    return nothing;
}

static void in_a_thread_of_128_mib(void *(*run)(void *)) {
    pthread_attr_t large;
    pthread_t thread;
    assert(pthread_attr_init(&large) == 0 && pthread_attr_setstacksize(&large, 128 << 20) == 0);
    assert(pthread_create(&thread, &large, run, NULL) == 0 && pthread_join(thread, NULL) == 0);
}

int main(void) {
    a_deep_stack_is_whole();
    in_a_thread_of_128_mib(a_stack_that_is_too_deep_is_cut_and_says_so);
    numbers_that_are_no_stack();
    the_empty_stack_is_one();
    no_more_is_written_than_there_is_room_for();
    descriptors_fail_without_touching_errno();
    structs_of_other_versions();
    picks_choose_frames();
    every_small_number_is_survived();
    return 0;
}
