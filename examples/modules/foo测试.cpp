// foo测试: a module whose file, source and function have names that are not ASCII. Each call goes through three functions,
// of which the compiler is asked to inline one.

using Callback = void (*)(const char *text);

namespace 测试 {

static inline __attribute__((always_inline)) void inner(Callback callback, const char *text) {
    callback(text);
    asm volatile("" ::: "memory"); // the call above is no tail call
}

__attribute__((noinline)) void middle(Callback callback, const char *text) {
    inner(callback, text);
    asm volatile("" ::: "memory");
}

} // namespace 测试

extern "C" void foo测试(Callback callback, const char *text) {
    测试::middle(callback, text);
    asm volatile("" ::: "memory");
}
