/* Reads messages and counts those that have a subject. Each message without one is lost. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct message {
    char *subject;
    char *body;
};

static char *copy_text(const char *text) {
    size_t bytes = strlen(text) + 1;
    return memcpy(malloc(bytes), text, bytes);
}

static struct message *parse_message(const char *line) {
    struct message *message = malloc(sizeof *message);
    const char *separator = strchr(line, '|');
    message->body = copy_text(separator ? separator + 1 : line);
    message->subject = NULL;
    if (separator == NULL || separator == line)
        return NULL; /* the leak: the message and its body stay allocated */
    message->subject = copy_text(line);
    return message;
}

static void free_message(struct message *message) {
    free(message->subject);
    free(message->body);
    free(message);
}

static int read_inbox(int count) {
    int accepted = 0;
    for (int number = 0; number < count; number++) {
        char line[64];
        snprintf(line, sizeof line, "%s|text of message %d", number % 10 ? "Hello" : "", number);
        struct message *message = parse_message(line);
        if (message != NULL) {
            accepted++;
            free_message(message);
        }
    }
    return accepted;
}

int main(void) {
    char line[32];
    int bytes = snprintf(line, sizeof line, "%d messages\n", read_inbox(20000));
    return write(STDOUT_FILENO, line, bytes) != bytes;
}
