/* Serves requests until its standard input ends. Each request leaves a session behind, which nobody frees. Prints a line when it
 * has served the first thousand. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct session {
    struct session *next;
    char name[240];
};

static struct session *sessions;
static char *volatile current_page;

static void open_session(int request) {
    struct session *session = malloc(sizeof *session);
    snprintf(session->name, sizeof session->name, "user %d", request);
    session->next = sessions;
    sessions = session;
}

static void answer(int request) {
    char *page = malloc(4096);
    memset(page, request, 4096);
    current_page = page;
    free(page);
}

int main(void) {
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    for (int request = 0; poll(&input, 1, 1) == 0; request++) {
        for (int part = 0; part < 100; part++)
            answer(part);
        open_session(request);
        if (request == 1000 && write(STDOUT_FILENO, "ready\n", 6) != 6)
            return 1;
    }
    return 0;
}
