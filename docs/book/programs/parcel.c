/* Holds parcels, writes past the end of a label, prints a line, and waits for its standard input to end. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct parcel {
    struct parcel *next;
    char label[24];
};

static struct parcel *parcels;
static char *volatile last_label;

static void store_parcel(int number) {
    struct parcel *parcel = malloc(sizeof *parcel);
    parcel->next = parcels;
    snprintf(parcel->label, sizeof parcel->label, "parcel %d", number);
    parcels = parcel;
}

static void print_label(void) {
    static const char text[] = "fragile: this side up"; /* 22 bytes */
    char *label = malloc(20);
    for (size_t at = 0; at < sizeof text; at++)
        label[at] = text[at];
    last_label = label;
}

int main(void) {
    for (int number = 0; number < 1000; number++)
        store_parcel(number);
    print_label();
    if (write(STDOUT_FILENO, "ready\n", 6) != 6)
        return 1;
    return read(STDIN_FILENO, &(char){0}, 1) < 0;
}
