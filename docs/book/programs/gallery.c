/* Makes thumbnails of photos. `all` loads every photo before the first one is scaled; `each` loads one at a time. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PHOTOS = 40, PHOTO_BYTES = 512 * 1024, THUMBNAIL_BYTES = 8 * 1024 };

static char *load_photo(int number) {
    char *pixels = malloc(PHOTO_BYTES);
    memset(pixels, number, PHOTO_BYTES);
    return pixels;
}

static char *scale_photo(const char *pixels) {
    char *thumbnail = malloc(THUMBNAIL_BYTES);
    memcpy(thumbnail, pixels, THUMBNAIL_BYTES);
    return thumbnail;
}

static void scale_all(char **thumbnails) {
    char *photos[PHOTOS];
    for (int number = 0; number < PHOTOS; number++)
        photos[number] = load_photo(number);
    for (int number = 0; number < PHOTOS; number++) {
        thumbnails[number] = scale_photo(photos[number]);
        free(photos[number]);
    }
}

static void scale_each(char **thumbnails) {
    for (int number = 0; number < PHOTOS; number++) {
        char *photo = load_photo(number);
        thumbnails[number] = scale_photo(photo);
        free(photo);
    }
}

int main(int count, char **arguments) {
    char *thumbnails[PHOTOS];
    int all = count < 2 || strcmp(arguments[1], "each") != 0;
    (all ? scale_all : scale_each)(thumbnails);
    for (int number = 0; number < PHOTOS; number++)
        free(thumbnails[number]);
    return 0;
}
