/* Walks by frame pointers: whole, in pieces, packed, interrupted, through a copy function, and into the async frames that
   Swift's compiler lays out. Built with frame pointers. */
#define _GNU_SOURCE
#include <assert.h>
#include <cairn_capture.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#define ROOM 64
static uint64_t whole[ROOM], user[ROOM];
static size_t whole_count, user_count;
static struct cairn_walk_info whole_info, user_info;

static struct cairn_walk_control control_of(uint64_t frame, int64_t offset) {
    struct cairn_walk_control control;
    memset(&control, 0, sizeof control);
    control.type_size = sizeof control;
    control.frame_address = frame;
    control.address_offset = offset;
    return control;
}

static struct cairn_walk_info fresh(void) {
    struct cairn_walk_info info;
    memset(&info, 0xee, sizeof info);
    info.type_size = sizeof info;
    return info;
}

#define IN(function, address) ((address) - (uint64_t)(uintptr_t)(function) < 600)

static void outer(void (*inside)(void));
static void middle(void (*inside)(void));

__attribute__((noinline)) static void take_whole(void) {
    whole_info = user_info = fresh();
    whole_count = cairn_walk(whole, ROOM, NULL, &whole_info);
    user_count = cairn_walk_user(user, ROOM, NULL, &user_info);
}

static void a_walk_is_the_chain_of_callers(void) {
    outer(take_whole);
    assert(whole_count >= 3 && whole_info.type_size == sizeof whole_info);
    assert(IN(take_whole, whole[0]) && IN(middle, whole[1]) && IN(outer, whole[2]));
    assert(IN(a_walk_is_the_chain_of_callers, whole[3]));
    assert(whole_info.flags & CAIRN_WALK_INFO_64_BIT);
    /* The user walk begins with the pc itself. */
    assert(user_count >= whole_count && IN(take_whole, user[0]) && user[0] > whole[0]);
    assert(memcmp(user + 1, whole + 1, (whole_count - 1) * sizeof *whole) == 0);
    assert(user_count == ROOM || user[user_count] == 0);
    assert(user_info.async_frame_address == 0);
    assert(user_info.error == 0 && !(user_info.flags & CAIRN_WALK_INFO_TRUNCATED));
}

static uint64_t pieces[ROOM];
static size_t piece_count;

__attribute__((noinline)) static void take_pieces(void) {
    /* One address at a time, each walk from where the one before had no more room. */
    struct cairn_walk_control control = control_of(0, 0);
    struct cairn_walk_info info = fresh();
    piece_count = cairn_walk_user(pieces, 1, NULL, &info);
    while (info.next_frame_address != 0) {
        assert(info.flags & CAIRN_WALK_INFO_TRUNCATED && info.stop.kind == CAIRN_STOP_LIMIT);
        control.frame_address = info.next_frame_address;
        size_t more = cairn_walk_user(pieces + piece_count, 1, &control, &info);
        if (more == 0) {
            /* The C library has no frame pointers: behind main the register holds anything. A walk from the start
               sees that it leads down; one from a given frame may go anywhere, and finds nothing there. */
            assert(info.error == EFAULT && info.next_frame_address == 0);
            break;
        }
        assert(more == 1 && piece_count < ROOM - 1);
        piece_count += more;
    }
    take_whole();
}

static void a_walk_goes_on_where_the_buffer_was_full(void) {
    outer(take_pieces);
    /* Behind the first two, the frames of take_whole and take_pieces, both have the same callers. */
    assert(piece_count == user_count - 1);
    assert(memcmp(pieces + 1, user + 2, (piece_count - 1) * sizeof *pieces) == 0);
}

static uint64_t skipped[ROOM];
static size_t skipped_count;

__attribute__((noinline)) static void take_skipped(void) {
    struct cairn_walk_control control = control_of((uint64_t)(uintptr_t)__builtin_frame_address(0), -1);
    skipped_count = cairn_walk(skipped, ROOM, &control, NULL);
}

static void a_walk_starts_at_a_frame_and_adds_an_offset(void) {
    outer(take_skipped);
    outer(take_whole);
    /* Without take_skipped itself; and one lower. */
    assert(skipped_count == whole_count - 1 && skipped[0] == whole[1] - 1 && skipped[1] == whole[2] - 1);
}

static uint8_t packed[ROOM * 8];

__attribute__((noinline)) static void take_packed(void) {
    uint64_t again[ROOM];
    struct cairn_walk_control control = control_of((uint64_t)(uintptr_t)__builtin_frame_address(0), 0);
    struct cairn_walk_info info = fresh();
    size_t count = cairn_walk(whole, 2, &control, NULL);
    assert(count == 2);
    for (uint32_t packing = CAIRN_PACK_NONE; packing <= CAIRN_PACK_OFFSET_32; packing++) {
        size_t width = packing == CAIRN_PACK_NONE ? 8 : 4;
        control.packing_base = (uint64_t)(uintptr_t)outer;
        memset(packed, 0xee, sizeof packed);
        ptrdiff_t size = cairn_walk_packed(packing, packed, 2 * width, &control, &info);
        assert(size == (ptrdiff_t)(2 * width) && info.flags & CAIRN_WALK_INFO_TRUNCATED && packed[size] == 0xee);
        assert(cairn_walk_unpack(packing, control.packing_base, packed, (size_t)size, again, ROOM) == 2);
        assert(memcmp(again, whole, 2 * sizeof *again) == 0);
        assert(cairn_walk_unpack(packing, control.packing_base, packed, (size_t)size, again, 1) == 1);
        assert(cairn_walk_unpack(packing, 0, packed, (size_t)size - 1, again, ROOM) == CAIRN_ERROR_FORMAT);
        /* An entry that does not fit is neither written nor counted. */
        memset(packed, 0xee, sizeof packed);
        assert(cairn_walk_packed(packing, packed, width + 1, &control, NULL) == (ptrdiff_t)width);
        assert(packed[width] == 0xee);
    }
    control.packing_base = 1;
    assert(cairn_walk_packed(CAIRN_PACK_OFFSET_32, packed, sizeof packed, &control, NULL) == CAIRN_ERROR_FORMAT);
    assert(cairn_walk_packed(7, packed, sizeof packed, &control, NULL) == CAIRN_ERROR_ARGUMENT);
    assert(cairn_walk_packed(CAIRN_PACK_NONE, NULL, 100, NULL, NULL) == 0);
}

static void on_signal(int number, siginfo_t *information, void *context) {
    (void)number, (void)information;
    struct cairn_walk_control control = control_of(0, 0);
    control.context = context;
    errno = 77;
    user_count = cairn_walk_user(user, ROOM, &control, &user_info);
    whole_count = cairn_walk(whole, ROOM, &control, &whole_info);
    assert(errno == 77);
}

static volatile int spins;
__attribute__((noinline)) static void interrupted(void) {
    /* To itself, and delivered before the call returns; the kernel's entry has no frame. */
    pthread_kill(pthread_self(), SIGUSR1);
    spins++;
}

static void a_handler_walks_what_it_interrupted(void) {
    static char other_stack[1 << 16];
    stack_t stack = {.ss_sp = other_stack, .ss_size = sizeof other_stack};
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    assert(sigaltstack(&stack, NULL) == 0 && sigaction(SIGUSR1, &action, NULL) == 0);
    outer(interrupted);
    /* The C library's function has no frame pointer of its own, so the chain goes on in its caller. */
    size_t at = 1;
    while (at < user_count && !IN(middle, user[at])) at++;
    assert(at < user_count && IN(outer, user[at + 1]) && user_info.error == 0);
    /* Both begin with the interrupted pc, which lies in the C library. */
    assert(whole[0] == user[0] && !IN(interrupted, user[0]) && !IN(on_signal, user[0]));
    assert(whole[1] == user[1]);
    stack.ss_flags = SS_DISABLE;
    assert(sigaltstack(&stack, NULL) == 0);
}

/* As Swift's compiler lays out the frame of an async function: bit 60 of the saved frame pointer is set, and the async
   context lies just below. async_call(function, context) calls the function. */
extern void async_call(void (*function)(void), const void *context);
extern const char async_returns[];
#if defined __x86_64__
__asm__(".text\n.type async_call, %function\nasync_call:\n.cfi_startproc\n"
        "btsq $60, %rbp\n pushq %rbp\n pushq %rsi\n leaq 8(%rsp), %rbp\n subq $8, %rsp\n"
        ".cfi_def_cfa_offset 32\n"
        "call *%rdi\n"
        ".hidden async_returns\nasync_returns:\n"
        "addq $16, %rsp\n popq %rbp\n.cfi_def_cfa_offset 8\n btrq $60, %rbp\n ret\n.cfi_endproc\n");
#else
__asm__(".text\n.type async_call, %function\nasync_call:\n.cfi_startproc\n"
        "orr x29, x29, #0x1000000000000000\n sub sp, sp, #32\n stp x29, x30, [sp, #16]\n str x1, [sp, #8]\n"
        "add x29, sp, #16\n.cfi_def_cfa_offset 32\n.cfi_offset x30, -8\n"
        "blr x0\n"
        ".hidden async_returns\nasync_returns:\n"
        "ldp x29, x30, [sp, #16]\n add sp, sp, #32\n.cfi_def_cfa_offset 0\n"
        "and x29, x29, #0xefffffffffffffff\n ret\n.cfi_endproc\n");
#endif

/* Async contexts: where the parent's is, and where it resumes. They lie in any order. */
static struct context {
    const void *parent;
    uint64_t resume;
} contexts[3];

__attribute__((noinline)) static void in_async(void) { async_call(take_whole, &contexts[2]); }

static void async_frames_branch_off_and_are_followed(void) {
    contexts[2] = (struct context){&contexts[0], 0x111000};
    contexts[0] = (struct context){&contexts[1], 0x222000};
    contexts[1] = (struct context){NULL, 0x333000};
    outer(in_async);
    /* take_whole <- async_call <- in_async, where the async stack takes over. */
    assert(IN(take_whole, user[0]) && user[1] == (uint64_t)(uintptr_t)async_returns && IN(in_async, user[2]));
    assert(user_info.async_start_index == 2);
    assert(user_info.async_frame_address == (uint64_t)(uintptr_t)&contexts[2]);
    assert(IN(middle, user[3]) && IN(outer, user[4]));

    struct cairn_walk_control control = control_of(user_info.async_frame_address, 1);
    struct cairn_walk_info info = fresh();
    size_t count = cairn_walk_user(user + 2, ROOM - 2, &control, &info);
    assert(count == 3 && user[2] == 0x111001 && user[3] == 0x222001 && user[4] == 0x333001 && user[5] == 0);
    assert(info.error == 0 && info.stop.kind == CAIRN_STOP_END_OF_STACK && !(info.flags & CAIRN_WALK_INFO_TRUNCATED));
}

struct copied {
    const uint8_t *bytes;
    uint64_t start;
    size_t size;
    int calls;
};

static int copy_bytes(void *context, void *into, uint64_t from, size_t length) {
    struct copied *copied = context;
    copied->calls++;
    if (from < copied->start || from - copied->start > copied->size || length > copied->size - (from - copied->start))
        return EFAULT;
    memcpy(into, copied->bytes + (from - copied->start), length);
    return 0;
}

static void another_memory_is_read_by_the_callers_function(void) {
    const uint32_t narrow[] = {0x7010, 0x1010, 0, 0, 0x9000, 0x1020};
    struct copied copied = {(const uint8_t *)narrow, 0x7000, sizeof narrow, 0};
    struct cairn_walk_control control = control_of(0, 4);
    struct cairn_walk_info info = fresh();
    control.copy_function = copy_bytes;
    control.copy_context = &copied;
    control.flags = CAIRN_WALK_32_BIT | CAIRN_WALK_ARM64;
    control.pc = 0x1000;
    control.frame_pointer = 0x7000;
    size_t count = cairn_walk_user(user, ROOM, &control, &info);
    /* The frame at 0x9000 is not there. */
    assert(count == 3 && user[0] == 0x1004 && user[1] == 0x1014 && user[2] == 0x1024 && copied.calls == 3);
    assert(info.error == EFAULT && info.flags == CAIRN_WALK_INFO_TRUNCATED);
    assert(info.stop.kind == CAIRN_STOP_UNREADABLE_MEMORY && info.stop.address == 0x9000);
    /* Own memory takes no copy function, and the kind of another machine needs one. */
    assert(cairn_walk(user, ROOM, &control, &info) == 0 && info.error == EINVAL);
    control.copy_function = NULL;
    assert(cairn_walk_user(user, ROOM, &control, &info) == 0 && info.error == EINVAL);
    control.flags = 1u << 30;
    assert(cairn_walk_user(user, ROOM, &control, &info) == 0 && info.error == EINVAL);
    control.flags = 0;
    control.type_size = 3;
    assert(cairn_walk_user(user, ROOM, &control, &info) == 0 && info.error == EINVAL);
}

static void wild_frames_end_a_walk(void) {
    uint64_t wild[] = {8, 0x1000, 0xdeadbeef000, 0x7fffffffeff8, UINT64_MAX - 7};
    for (size_t index = 0; index < sizeof wild / sizeof *wild; index++) {
        struct cairn_walk_control control = control_of(wild[index], 0);
        struct cairn_walk_info info = fresh();
        assert(cairn_walk_user(user, ROOM, &control, &info) == 0 && info.error == EFAULT);
        assert(info.flags & CAIRN_WALK_INFO_TRUNCATED);
        assert(cairn_walk(user, ROOM, &control, &info) == 0 && info.error == EFAULT);
    }
    /* A frame that is its own caller. */
    uint64_t circle[2] = {(uint64_t)(uintptr_t)circle, 0x1234};
    struct cairn_walk_control control = control_of(circle[0], 0);
    assert(cairn_walk_user(user, ROOM, &control, NULL) == 1 && user[0] == 0x1234);
    assert(cairn_walk_user(NULL, ROOM, NULL, NULL) == 0 && cairn_walk(NULL, ROOM, NULL, NULL) == 0);
}

__attribute__((noinline)) static void take_backtrace(void) {
    void *addresses[ROOM], *few[2];
    struct cairn_walk_info info = fresh();
    int count = cairn_backtrace_info(addresses, ROOM, &info);
    assert(count > 3 && info.flags == CAIRN_WALK_INFO_64_BIT && info.stop.kind == CAIRN_STOP_END_OF_STACK);
    assert(IN(take_backtrace, (uint64_t)(uintptr_t)addresses[0]) && IN(middle, (uint64_t)(uintptr_t)addresses[1]));
    assert(cairn_backtrace_info(few, 2, &info) == 2 && few[1] == addresses[1]);
    assert(info.flags & CAIRN_WALK_INFO_TRUNCATED && info.stop.kind == CAIRN_STOP_LIMIT);
    /* As many as there are: nothing is missing. */
    assert(cairn_backtrace_info(addresses, count, &info) == count && info.flags == CAIRN_WALK_INFO_64_BIT);
    assert(cairn_backtrace_info(NULL, 5, &info) == 0 && info.flags & CAIRN_WALK_INFO_TRUNCATED);
    assert(cairn_backtrace_info(addresses, ROOM, NULL) == count);
}

__attribute__((noinline)) static void middle(void (*inside)(void)) {
    inside();
    __asm__ volatile("");
}
__attribute__((noinline)) static void outer(void (*inside)(void)) {
    middle(inside);
    __asm__ volatile("");
}

static void *all(void *unused) {
    (void)unused;
    a_walk_is_the_chain_of_callers();
    a_walk_goes_on_where_the_buffer_was_full();
    a_walk_starts_at_a_frame_and_adds_an_offset();
    outer(take_packed);
    async_frames_branch_off_and_are_followed();
    another_memory_is_read_by_the_callers_function();
    wild_frames_end_a_walk();
    outer(take_backtrace);
    a_handler_walks_what_it_interrupted();
    return NULL;
}

int main(void) {
    all(NULL);
    pthread_t thread;
    assert(pthread_create(&thread, NULL, all, NULL) == 0 && pthread_join(thread, NULL) == 0);
    return 0;
}
