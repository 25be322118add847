// Three small functions; the compiler puts two of them into the third.
#include <cstdio>

namespace map {

struct City {
    int x, y;
};

static inline int distance(int from, int to) { return from < to ? to - from : from - to; }

static inline int walk(const City &from, const City &to) { return distance(from.x, to.x) + distance(from.y, to.y); }

__attribute__((noinline)) int round_trip(const City *cities, int count) {
    int blocks = 0;
    for (int stop = 0; stop < count; stop++)
        blocks += walk(cities[stop], cities[(stop + 1) % count]);
    return blocks;
}

} // namespace map

int main() {
    const map::City cities[] = {{0, 0}, {3, 4}, {6, 0}};
    return map::round_trip(cities, 3) == 0;
}
