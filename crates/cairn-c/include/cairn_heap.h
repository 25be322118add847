/*
 * cairn_heap.h: heap blocks that say who allocated them, in memory, on a server and on a device.
 *
 *     struct cairn_annotated_options options = { .type_size = sizeof options, .malloc_function = malloc, .free_function = free };
 *     cairn_annotated_configure(&options);
 *     void *block = cairn_annotated_malloc(100);
 *
 * docs/book/reference/annotate.md tells how to use it. This file is written by `cargo xtask header`; edit the sources of cairn-heap instead.
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

/* A block was given out; the program does not have it yet. */
#define CAIRN_EVENT_ALLOCATED UINT32_C(1)

/* A block is about to be given back; its content is as the program left it. */
#define CAIRN_EVENT_FREEING UINT32_C(2)

/* A block has another size, and mostly another address. */
#define CAIRN_EVENT_MOVED UINT32_C(3)

/* There is no memory, or the limit was met. */
#define CAIRN_EVENT_REFUSED UINT32_C(4)

/* The guard behind a block was overwritten. Noticed when the block is freed or resized. */
#define CAIRN_EVENT_OVERFLOWED UINT32_C(5)

/* A block was freed that had been freed before. */
#define CAIRN_EVENT_FREED_TWICE UINT32_C(6)

/* One event of the heap, for observer_function. */
struct cairn_annotated_event {
    /* The size of this struct. */
    size_t type_size;
    /* One of CAIRN_EVENT_... */
    uint32_t kind;
    /* Overflowed: how many bytes of the guard are wrong, up to the last one. Else 0. */
    uint32_t overflow_bytes;
    /* The block; null for a refusal. */
    void *block;
    /* Moved: where the block was. Else null. */
    void *from;
    /* How many bytes the program asked for; 0 where it is not known. */
    size_t size;
};

/*
 * Who allocates a block, for the functions whose names end with _at. Fill it with zeros, then set
 * type_size and what is known. With zeros alone they do what the functions without _at do.
 */
struct cairn_annotated_call {
    /* The size of this struct. */
    size_t type_size;
    /* The return addresses to record, innermost first; or null. */
    const size_t *frames;
    /* How many frames there are. */
    size_t frame_count;
    /*
     * Without frames: the return address to begin with, as __builtin_return_address(0) in a
     * function that wraps the allocation; 0 for that of this very call.
     */
    size_t pc;
    /*
     * With pc: the frame pointer of the function that pc lies in; 0 if there is none. For
     * walk_function.
     */
    size_t fp;
    /*
     * Layout of libwebsockets: bits of the program's own, written behind the size. The other layouts
     * leave them out.
     */
    uint64_t user_bits;
    /* How many of them; at most 64. */
    uint32_t user_bit_count;
};

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
     * Writes the return addresses of the present stack, innermost first, at most as many as
     * its last argument says, and returns how many. It is called from inside of cairn, so what it finds up to the return address of
     * the annotated call is left out. Where that address is not among what it finds, it is all
     * that is recorded. Null, and no walk_function: captured by cairn where that is built in, else
     * the return address of the call alone.
     */
    size_t (*capture_function)(size_t *, size_t);
    /*
     * Called before the lists are changed, for a few instructions: interrupts off. Null for a
     * lock. Required by a library for a processor without compare-and-swap, where the counters
     * need it as well.
     */
    size_t (*enter_function)(void);
    /* Called after it, with what enter_function returned. */
    void (*leave_function)(size_t);
    /*
     * In place of capture_function: gets the return address of the annotated call and the frame
     * pointer of the function that it lies in, and writes the return addresses further out, at
     * most as many as its last argument says, and returns how many. cairn_frame_pointer_walk does this for code with frame
     * pointers.
     */
    size_t (*walk_function)(size_t, size_t, size_t *, size_t);
    /*
     * Called for every event, in the thread where it happens, with observer_context. It may
     * allocate and free, and is called for that, too. Null for none.
     */
    void (*observer_function)(const struct cairn_annotated_event *, void *);
    /* The last argument of observer_function. */
    void *observer_context;
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

/* As malloc. The recorded stack begins at the caller. */
void *cairn_annotated_malloc(size_t size);

/* As calloc. */
void *cairn_annotated_calloc(size_t count, size_t size);

/* As memalign: alignment is a power of two. */
void *cairn_annotated_memalign(size_t alignment, size_t size);

/* As realloc; a size of 0 frees the block and returns null. */
void *cairn_annotated_realloc(void *block, size_t size);

/*
 * As malloc, by the caller that call says. Null also when call is not usable: a type_size that
 * cannot be, more than 64 bits, frames that are not aligned.
 */
void *cairn_annotated_malloc_at(size_t size, const struct cairn_annotated_call *call);

/* As calloc, by the caller that call says. */
void *cairn_annotated_calloc_at(size_t count, size_t size, const struct cairn_annotated_call *call);

/* As memalign, by the caller that call says. */
void *cairn_annotated_memalign_at(size_t alignment, size_t size, const struct cairn_annotated_call *call);

/* As realloc, by the caller that call says; null and nothing has changed when call is not usable. */
void *cairn_annotated_realloc_at(void *block, size_t size, const struct cairn_annotated_call *call);

/*
 * Walks frame pointers, for walk_function: from fp, the frame pointer of a function that called
 * the allocation, up to stack_end, the end of its stack, its highest address. Writes the return
 * addresses that it finds, innermost first, at most room, and says how many. It ends at whatever
 * is no frame: 0, an address outside of the stack or not aligned, one that is not above the frame
 * before. The frames are those of the compiler's convention: GCC's and LLVM's on x86, AArch64 and
 * RISC-V, LLVM's on Arm.
 */
size_t cairn_frame_pointer_walk(size_t fp, size_t stack_end, size_t *addresses, size_t room);

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
 * As cairn_lws_generate, with user_bit_count bits of the program's own behind the size; at most
 * 64.
 */
size_t cairn_lws_generate_with(size_t size, const size_t *addresses, size_t count, size_t alignment, uint64_t user_bits, uint32_t user_bit_count, uint8_t *blob, size_t room, size_t *blob_bytes);

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
 * Reads the bits of the program's own behind the size of a block, of which there are bit_count.
 * Returns 0, or CAIRN_HEAP_ERROR_ARGUMENT when the block has fewer, or its blob gave up or
 * was overwritten.
 */
int cairn_lws_user_bits(const void *user, uint32_t bit_count, uint64_t *bits);

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
