/* Records from a constructor on, and dies of a signal. The test reads the recording. */
#include <assert.h>
#include <cairn_capture.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

__attribute__((constructor)) static void before_main(void) { cairn_mark("constructor", 0); }

__attribute__((noinline)) static void inner(void) { cairn_mark_value("number", 1, -2.5); }
__attribute__((noinline)) static void outer(void) { inner(); }

static void on_crash(int number, siginfo_t *information, void *context) {
    (void)information;
    cairn_mark("handler", 0);
    cairn_mark_from_context(context, "crash");
    signal(number, SIG_DFL);
}

static volatile int *volatile nowhere;
__attribute__((noinline)) static void crash(void) { *nowhere = 1; }

int main(void) {
    struct cairn_recording_options options;
    memset(&options, 0, sizeof options);
    assert(cairn_recording_start(&options) == CAIRN_ERROR_ARGUMENT);
    options.type_size = sizeof options;
    assert(cairn_recording_start(&options) == CAIRN_ERROR_ARGUMENT || cairn_recording_start(&options) == CAIRN_ERROR_STARTED);
    assert(cairn_recording_start(NULL) == CAIRN_ERROR_STARTED);

    errno = 77;
    cairn_mark(NULL, 0);
    outer();
    cairn_mark_integer("whole", 70, -7);
    static char pool[256];
    void *first = (void *)(((uintptr_t)pool + 15) & ~(uintptr_t)15), *second = (char *)first + 112;
    cairn_heap_alloc(first, 100);
    cairn_heap_alloc(second, 50);
    cairn_heap_free(second);
    cairn_heap_free(NULL);
    cairn_recording_pause();
    cairn_mark("paused", 0);
    cairn_recording_resume();
    cairn_recording_scan_modules();
    assert(cairn_recording_dump("/no/such/directory/x", 0) == CAIRN_ERROR_FILE);
    assert(cairn_recording_dump(NULL, 0) == CAIRN_ERROR_FILE);
    assert(cairn_recording_flush() == 0);
    assert(errno == 77);

    pid_t child = fork();
    if (child == 0) {
        cairn_mark("child", 0);
        _exit(0);
    }
    int status;
    assert(waitpid(child, &status, 0) == child && status == 0);

    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = on_crash;
    action.sa_flags = SA_SIGINFO;
    assert(sigaction(SIGSEGV, &action, NULL) == 0);
    crash();
    return 0;
}
