/*
 * cairn_heap.h: heap blocks that say who allocated them, in memory, on a server and on a device.
 *
 *     struct cairn_annotated_options options = { .type_size = sizeof options, .malloc_function = malloc, .free_function = free };
 *     cairn_annotated_configure(&options);
 *     void *block = cairn_annotated_malloc(100);
 *
 * docs/annotate.md tells how to use it. This file is written by `cargo xtask header`; edit the sources of cairn-heap instead.
 */
#ifndef CAIRN_HEAP_H
#define CAIRN_HEAP_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The layout of libwebsockets: a compressed stack and a list of all blocks. */
#define CAIRN_LAYOUT_LWS UINT32_C(1)

/* The layout of heapprof: addresses between two magic words. */
#define CAIRN_LAYOUT_HEAPPROF UINT32_C(2)

/* The layout of cairn: 16 bytes, and a guard behind the block. */
#define CAIRN_LAYOUT_CAIRN UINT32_C(3)

/* An argument is null where it must not be, or makes no sense. */
#define CAIRN_HEAP_ERROR_ARGUMENT (-1)

/*
 * How to annotate, and where memory comes from. Fill it with zeros, then set type_size, layout, malloc_function, free_function,
 * and what shall be otherwise than by default.
 */
struct cairn_annotated_options {
    /* The size of this struct. */
    size_t type_size;
    /* One of CAIRN_LAYOUT_...; 0 for cairn's. */
    uint32_t layout;
    /* heapprof: how many callers (up to 97); 0 for 16. */
    uint32_t callers;
    /* How many innermost frames to leave out of stacks. */
    uint32_t pre;
    /* How many outermost frames to leave out of stacks. */
    uint32_t post;
    /* cairn: not 0 for no guard behind the blocks. */
    uint32_t has_no_guards;
    /* cairn: not 0 to keep stacks in front of the blocks even where they have numbers. */
    uint32_t is_inline;
    /* The alignment of what malloc_function returns; 0 for two pointers. */
    size_t alignment;
    /* Refuse what would bring the bytes in use above this; 0 for no limit. */
    size_t limit_bytes;
    /* As malloc: an RTOS's heap, dlmalloc, the C library's own. */
    void *(*malloc_function)(size_t);
    /* As free. */
    void (*free_function)(void *);
    /* As realloc, or null. */
    void *(*realloc_function)(void *, size_t);
    /* As memalign (alignment, size), or null: then more is asked for, and aligned here. */
    void *(*memalign_function)(size_t, size_t);
    /*
     * Writes return addresses of the caller's caller, innermost first, at most so many, and says how many. Null: captured by cairn
     * where that is built in, else none.
     */
    size_t (*capture_function)(size_t *, size_t);
    /* Called before the lists are changed, for a few instructions: interrupts off. Null for a lock. */
    size_t (*enter_function)(void);
    /* Called after it, with what enter_function returned. */
    void (*leave_function)(size_t);
};

/* What there is and was. Fill in type_size. */
struct cairn_annotated_counters {
    /* The size of this struct. */
    size_t type_size;
    /* Blocks in use. */
    size_t live_blocks;
    /* Bytes in use, as asked for. */
    size_t live_bytes;
    /* The most bytes in use. */
    size_t peak_bytes;
    /* Blocks given out since the start. */
    size_t allocations;
    /* Requests that were refused. */
    size_t refused;
    /* Frees of what is no block of the heap. */
    size_t foreign;
    /* Blocks freed twice. */
    size_t freed_twice;
    /* Blocks behind whose end somebody wrote. */
    size_t overflowed;
};

/* A list of live blocks in the layout of libwebsockets; zeros are an empty one. Nodes are three pointers: previous, next, owner. */
struct cairn_lws_owner {
    /* The last node. */
    void *tail;
    /* The first node. */
    void *head;
    /* How many there are. */
    size_t count;
};

/*
 * Says where memory comes from and how to annotate it; before the first block. Until then nothing is given out. Returns 0 or
 * CAIRN_HEAP_ERROR_ARGUMENT.
 */
int cairn_annotated_configure(const struct cairn_annotated_options *options);

/* As malloc. */
void *cairn_annotated_malloc(size_t size);

/* As calloc. */
void *cairn_annotated_calloc(size_t count, size_t size);

/* As memalign: alignment is a power of two. */
void *cairn_annotated_memalign(size_t alignment, size_t size);

/* As realloc; a size of 0 frees the block and returns null. */
void *cairn_annotated_realloc(void *block, size_t size);

/* As free. What malloc_function gave out past this heap goes to free_function as it is. */
void cairn_annotated_free(void *block);

/* The size that was asked for; 0 for what is no block of this heap. */
size_t cairn_annotated_usable_size(const void *block);

/* What there is and was. Returns 0 or CAIRN_HEAP_ERROR_ARGUMENT. */
int cairn_annotated_counters(struct cairn_annotated_counters *counters);

/*
 * Calls put with a line ~m#... for each live block of the layout of libwebsockets, line end included, oldest first. put gets context
 * as it is, and must not allocate. Of other layouts, cairn_annotated_lines_in finds the blocks in the memory of the heap.
 */
int cairn_annotated_lines(void (*put)(const char *, size_t, void *), void *context);

/*
 * As cairn_annotated_lines, for each live block of the layout of cairn or heapprof in these bytes of memory, in the order of
 * addresses. Nobody may allocate or free meanwhile.
 */
int cairn_annotated_lines_in(const void *memory, size_t bytes, void (*put)(const char *, size_t, void *), void *context);

/*
 * Compresses a stack and a size into blob, and returns how many bytes to allocate more than size: a multiple of alignment, which is
 * a power of two and at least that of a pointer. As lws_alloc_metadata_gen, with the addresses given. A blob that does not fit into
 * one byte less than room says that it gave up. 0 for wrong arguments.
 */
size_t cairn_lws_generate(size_t size, const size_t *addresses, size_t count, size_t alignment, uint8_t *blob, size_t room, size_t *blob_bytes);

/*
 * Puts a blob to the start of an allocation of prefix_bytes and more, and the block on the list; returns the user's address. As
 * _lws_alloc_metadata_adjust. The caller sees to it that nobody else uses the list meanwhile.
 */
void *cairn_lws_adjust(struct cairn_lws_owner *owner, void *origin, size_t prefix_bytes, const uint8_t *blob, size_t blob_bytes);

/*
 * Takes a block off its list and returns the start of the underlying allocation, to be freed. blob and blob_bytes, if not null, tell
 * where its blob is. As _lws_alloc_metadata_trim. The caller sees to it that nobody else uses the list meanwhile.
 */
void *cairn_lws_trim(struct cairn_lws_owner *owner, void *user, size_t alignment, const uint8_t **blob, size_t *blob_bytes);

/*
 * Writes the return addresses of a block, innermost first, and its size, if that is not null. As lws_alloc_metadata_parse. Returns
 * how many addresses, or CAIRN_HEAP_ERROR_ARGUMENT for a blob that gave up or was overwritten.
 */
int cairn_lws_parse(const void *user, size_t *addresses, size_t room, size_t *size);

/*
 * Calls visit with each block of a list, oldest first: the user's address, the blob, its length, context. As
 * _lws_alloc_metadata_dump. The caller sees to it that nobody else uses the list meanwhile.
 */
void cairn_lws_dump(const struct cairn_lws_owner *owner, void (*visit)(const void *, const uint8_t *, size_t, void *), void *context);

/*
 * Writes a blob as a text ~m#... that ends with a NUL, for a log; as lws_alloc_metadata_dump_stdout prints it. Returns its length
 * without the NUL, or CAIRN_HEAP_ERROR_ARGUMENT when there is no room.
 */
int cairn_lws_line(const uint8_t *blob, size_t blob_bytes, char *line, size_t room);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* CAIRN_HEAP_H */
