/* The stack of another thread: a signal stops it for a moment, and its handler hands over the number of the stack that it
 * interrupted.
 *
 *     cc -g paused_thread.c $(pkg-config --cflags --libs cairn) -pthread && ./a.out
 */
#include <cairn_capture.h>
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <string.h>
#include <time.h>

static volatile cairn_stack_id answer;
static sem_t answered, asleep;

static void on_question(int signal, siginfo_t *info, void *ucontext) {
    int saved = errno;
    (void)signal;
    (void)info;
    answer = cairn_capture_interrupted(ucontext);
    sem_post(&answered);
    errno = saved;
}

/* What another thread is doing at this moment. The numbers mean the same in all threads. */
static cairn_stack_id stack_of(pthread_t thread) {
    pthread_kill(thread, SIGUSR1);
    while (sem_wait(&answered) != 0) {
    }
    return answer;
}

__attribute__((noinline)) int wait_for_work(void) {
    struct timespec a_second = {1, 0};
    sem_post(&asleep);
    for (;;) {
        nanosleep(&a_second, NULL);
    }
    return 0;
}

static void *worker(void *unused) {
    wait_for_work();
    return unused;
}

int main(void) {
    struct sigaction action;
    pthread_t thread;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = on_question;
    action.sa_flags = SA_SIGINFO | SA_RESTART;
    sigaction(SIGUSR1, &action, NULL);
    sem_init(&answered, 0, 0);
    sem_init(&asleep, 0, 0);
    pthread_create(&thread, NULL, worker, NULL);
    sem_wait(&asleep);
    return cairn_stack_print(stack_of(thread), 1);
}
