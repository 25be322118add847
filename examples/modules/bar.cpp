// bar: calls the function that it is given, so that a stack has frames of two modules.

using Callback = void (*)(const char *text);
using Next = void (*)(Callback callback, const char *text);

struct Bar {
    Next next;

    __attribute__((noinline)) void call(Callback callback, const char *text) const {
        next(callback, text);
        asm volatile("" ::: "memory"); // the call above is no tail call
    }
};

extern "C" void bar(Next next, Callback callback, const char *text) {
    Bar{next}.call(callback, text);
    asm volatile("" ::: "memory");
}
