// Random calls whose functions throw, catch and clean up; each of these moments is checked.

#include <cstdint>

struct state {
    uint64_t random;
    int64_t checks_left;
    void (*check)(void);
};

namespace {

uint32_t next(state *s) {
    s->random = s->random * 0x5851f42d4c957f2d + 0x14057b7ef767814f;
    return static_cast<uint32_t>(s->random >> 33);
}

void check(state *s) {
    if (s->checks_left-- > 0) s->check();
}

// Its destructor runs while an exception passes.
struct guard {
    state *s;
    ~guard() {
        if (next(s) % 3 == 0) check(s);
    }
};

struct error {
    uint32_t depth;
};

void step(state *s, uint32_t depth);

__attribute__((noinline)) void with_array(state *s, uint32_t depth) {
    volatile uint64_t words[100];
    words[depth % 100] = depth;
    guard g{s};
    step(s, depth);
    words[0] = words[depth % 100];
}

__attribute__((noinline)) void with_variable_array(state *s, uint32_t depth) {
    volatile char *bytes = static_cast<char *>(__builtin_alloca(16 + next(s) % 300));
    bytes[0] = 1;
    guard g{s};
    step(s, depth);
    bytes[1] = 2;
}

__attribute__((noinline)) void with_handler(state *s, uint32_t depth) {
    guard g{s};
    try {
        step(s, depth);
    } catch (const error &caught) {
        check(s);
        if (caught.depth > depth + 3) throw;
    }
    check(s);
}

void step(state *s, uint32_t depth) {
    uint32_t random = next(s);
    if (depth == 0) {
        check(s);
        if (random % 2) throw error{0};
        return;
    }
    if (random % 11 == 0) throw error{depth + random % 8};
    switch (random % 3) {
    case 0: with_array(s, depth - 1); break;
    case 1: with_variable_array(s, depth - 1); break;
    default: with_handler(s, depth - 1);
    }
}

} // namespace

extern "C" __declspec(dllexport) void random_throws(state *s, uint32_t depth) {
    while (s->checks_left > 0) {
        try {
            with_array(s, depth);
        } catch (const error &) {
            check(s);
        }
    }
}
