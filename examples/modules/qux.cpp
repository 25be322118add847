// qux: as large as foo, so that it comes to lie where foo was.

using Callback = void (*)(const char *text);

__attribute__((noinline)) static void deeper(Callback callback, const char *text) {
    callback(text);
    asm volatile("" ::: "memory"); // the call above is no tail call
}

extern "C" void qux(Callback callback, const char *text) {
    deeper(callback, text);
    asm volatile("" ::: "memory");
}
