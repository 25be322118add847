/* A small store: everything it allocates comes from store_alloc. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *store_alloc(size_t size) {
    void *memory = malloc(size);
    if (memory == NULL)
        abort();
    return memory;
}

struct entry {
    struct entry *next;
    char *key, *value;
};

static char *copy(const char *text) {
    return strcpy(store_alloc(strlen(text) + 1), text);
}

static struct entry *put(struct entry *list, const char *key, const char *value) {
    struct entry *entry = store_alloc(sizeof *entry);
    *entry = (struct entry){list, copy(key), copy(value)};
    return entry;
}

int main(void) {
    struct entry *list = NULL;
    char key[32];
    for (int number = 0; number < 1000; number++) {
        snprintf(key, sizeof key, "user:%d", number);
        list = put(list, key, "a value that is stored with each of the keys");
    }
    printf("%s\n", list->key);
    return 0;
}
