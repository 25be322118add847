/* Functions that call each other at random, from frames of many layouts and sizes. The sizes are
   small multiples of each other, so that frames of different callees often end at the same place:
   words that an earlier stack left behind are then where a capture might look for them. */

#include <stdint.h>

#define alloca __builtin_alloca

#ifdef _WIN32
#define HIDDEN
#else
#define HIDDEN __attribute__((visibility("hidden")))
#endif

struct state {
    uint64_t random;
    int64_t checks_left;
    void (*check)(void);
};

typedef long (*node)(struct state *, unsigned);
enum { NODES = 14 };
extern const node nodes[NODES] HIDDEN;

static inline unsigned below(struct state *s, unsigned limit)
{
    s->random ^= s->random << 13;
    s->random ^= s->random >> 7;
    s->random ^= s->random << 17;
    return (unsigned)(s->random >> 33) % limit;
}

/* Keeps calls apart that the compiler could merge. */
#define BARRIER() __asm__ volatile("" ::: "memory")

#define CHECK(s) (--(s)->checks_left, (s)->check())

/* Several calls of random callees, each with its own return address. */
#define VISIT(s, depth, sum)                                                \
    do {                                                                    \
        if ((s)->checks_left <= 0)                                          \
            return (sum);                                                   \
        if (depth == 0 || below(s, 4) == 0) {                               \
            CHECK(s);                                                       \
            BARRIER();                                                      \
        }                                                                   \
        if (depth == 0)                                                     \
            return (sum);                                                   \
        (sum) += nodes[below(s, NODES)](s, depth - 1);                      \
        BARRIER();                                                          \
        if (below(s, 3) == 0) {                                             \
            (sum) ^= nodes[below(s, NODES)](s, depth - 1) + 1;              \
            BARRIER();                                                      \
        }                                                                   \
        for (unsigned n = below(s, 3); n > 1; n--)                          \
            (sum) += nodes[below(s, 3)](s, depth - 1);                      \
        if (below(s, 4) == 0)                                               \
            CHECK(s);                                                       \
    } while (0)

#define WITH_ARRAY(name, bytes)                                             \
    __attribute__((noinline)) static long name(struct state *s, unsigned depth) \
    {                                                                       \
        volatile char local[bytes];                                         \
        long sum = 0;                                                       \
        local[0] = (char)depth;                                             \
        VISIT(s, depth, sum);                                               \
        return sum + local[0];                                              \
    }

WITH_ARRAY(array_1, 1)
WITH_ARRAY(array_16, 16)
WITH_ARRAY(array_32, 32)
WITH_ARRAY(array_48, 48)
WITH_ARRAY(array_80, 80)
WITH_ARRAY(array_112, 112)
WITH_ARRAY(array_400, 400)
WITH_ARRAY(array_800, 800)
WITH_ARRAY(array_9000, 9000)

__attribute__((noinline)) static long plain(struct state *s, unsigned depth)
{
    long sum = 3;
    VISIT(s, depth, sum);
    return sum;
}

__attribute__((noinline)) static long many_registers(struct state *s, unsigned depth)
{
    long a = below(s, 9), b = below(s, 9), c = below(s, 9), d = below(s, 9), sum = 1;
    VISIT(s, depth, sum);
    return sum + a * b + c * d;
}

__attribute__((noinline)) static long with_alloca(struct state *s, unsigned depth)
{
    volatile char *bytes = alloca(16 + 16 * below(s, 5));
    long sum = 2;
    bytes[0] = (char)depth;
    VISIT(s, depth, sum);
    return sum + bytes[0];
}

/* The stack pointer moves between two calls of the same function. */
__attribute__((noinline)) static long with_two_allocas(struct state *s, unsigned depth)
{
    long sum = 2;
    volatile char *bytes = alloca(32);
    bytes[0] = (char)depth;
    if (depth > 0)
        sum += nodes[below(s, NODES)](s, depth - 1);
    for (unsigned n = below(s, 3); n > 0; n--) {
        bytes = alloca(16 * n);
        bytes[0] = (char)n;
    }
    VISIT(s, depth, sum);
    return sum + bytes[0];
}

/* The last argument is on the stack, below the frame record. */
__attribute__((noinline)) static long by_stack(struct state *s, unsigned depth, long c, long d, long e,
                                               long f, long g, long h, long i, long j)
{
    long sum = c + d + e + f + g + h;
    VISIT(s, depth, sum);
    return sum + i * j;
}

__attribute__((noinline)) static long passes_by_stack(struct state *s, unsigned depth)
{
    long sum = by_stack(s, depth, 1, 2, 3, 4, 5, 6, depth, depth + 1);
    BARRIER();
    return sum + 1;
}

const node nodes[NODES] = {
    plain,     array_16,  array_32,   array_1,        array_48,    array_80,         array_112,
    array_400, array_800, array_9000, many_registers, with_alloca, with_two_allocas, passes_by_stack,
};

void random_calls(struct state *s, unsigned depth)
{
    while (s->checks_left > 0) {
        nodes[below(s, NODES)](s, depth);
        BARRIER();
    }
}

/* Stacks that differ in the frame pointer of one frame alone: its stack pointer, its pc and all inner
   frames are equal. The array of the second stack covers the frames that the first one had there, and
   leaves them as they were. Only the saved frame pointer shows that they are gone. */

__attribute__((noinline)) static long inner(struct state *s, unsigned depth)
{
    long sum = 1;
    if (depth == 0) {
        CHECK(s);
        BARRIER();
        CHECK(s);
        BARRIER();
        return sum;
    }
    sum += inner(s, depth - 1);
    BARRIER();
    return sum;
}

__attribute__((noinline)) static long covering(struct state *s, unsigned depth, unsigned bytes)
{
    char *array = alloca(bytes);
    long sum;
    __asm__ volatile("" : : "r"(array));
    sum = inner(s, depth);
    BARRIER();
    return sum + 1;
}

#define COVERED(name, bytes)                                                \
    __attribute__((noinline)) static long name(struct state *s, unsigned depth) \
    {                                                                       \
        volatile char local[bytes];                                         \
        long sum;                                                           \
        local[0] = (char)depth;                                             \
        sum = covering(s, depth, 16);                                       \
        BARRIER();                                                          \
        return sum + local[0];                                              \
    }

COVERED(covered_16, 16)
COVERED(covered_80, 80)
COVERED(covered_400, 400)
COVERED(covered_800, 800)

void hidden_calls(struct state *s, unsigned depth)
{
    static const node covered[] = { covered_16, covered_80, covered_400, covered_800 };
    for (unsigned n = 0; n < 4; n++) {
        for (unsigned bytes = 16; bytes < 1100; bytes += 16) {
            covered[n](s, depth);
            BARRIER();
            covering(s, depth, bytes);
            BARRIER();
        }
    }
}
