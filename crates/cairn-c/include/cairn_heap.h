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

/* An argument is invalid, such as a null pointer that is required. */
#define CAIRN_HEAP_ERROR_ARGUMENT (-1)

/* A block was allocated; the program does not have it yet. */
#define CAIRN_EVENT_ALLOCATED UINT32_C(1)

/* A block is about to be freed; its contents are unchanged. */
#define CAIRN_EVENT_FREEING UINT32_C(2)

/* A block was resized, and usually moved. */
#define CAIRN_EVENT_MOVED UINT32_C(3)

/* An allocation failed for want of memory, or for the limit. */
#define CAIRN_EVENT_REFUSED UINT32_C(4)

/* The guard behind a block was overwritten. Noticed when the block is freed or resized. */
#define CAIRN_EVENT_OVERFLOWED UINT32_C(5)

/* A block was freed a second time. */
#define CAIRN_EVENT_FREED_TWICE UINT32_C(6)

/* One event of the heap, for observer_function. */
struct cairn_annotated_event {
    /* The size of this struct. */
    size_t type_size;
    /* One of CAIRN_EVENT_... */
    uint32_t kind;
    /* Overflowed: bytes from the start of the guard to its last wrong byte. Else 0. */
    uint32_t overflow_bytes;
    /* The block; null for a failed allocation. */
    void *block;
    /* Moved: the previous address. Else null. */
    void *from;
    /* The requested size in bytes; 0 if it is unknown. */
    size_t size;
};

/*
 * The caller that allocates a block, for the functions whose names end with _at. Fill it with
 * zeros, then set type_size and the known fields. With zeros alone they do the same as the
 * functions without _at.
 */
struct cairn_annotated_call {
    /* The size of this struct. */
    size_t type_size;
    /* The return addresses to record, innermost first; or null. */
    const size_t *frames;
    /* Number of frames. */
    size_t frame_count;
    /*
     * Without frames: the return address to begin with, or 0 for that of this call itself. A
     * function that wraps the allocation passes __builtin_return_address(0).
     */
    size_t pc;
    /*
     * With pc: the frame pointer of the function that pc lies in; 0 if there is none. For
     * walk_function.
     */
    size_t fp;
    /*
     * Layout of libwebsockets: bits of the program, written behind the size. The other layouts
     * ignore them.
     */
    uint64_t user_bits;
    /* Number of these bits; at most 64. */
    uint32_t user_bit_count;
};

/*
 * Layout of annotations, and source of memory. Fill it with zeros, then set type_size, layout,
 * malloc_function, free_function, and the fields that differ from their defaults.
 */
struct cairn_annotated_options {
    /* The size of this struct. */
    size_t type_size;
    /* One of CAIRN_LAYOUT_...; 0 for cairn's. */
    uint32_t layout;
    /* heapprof: number of callers (up to 97); 0 for 16. */
    uint32_t callers;
    /* Number of innermost frames to leave out of stacks. */
    uint32_t pre;
    /* Number of outermost frames to leave out of stacks. */
    uint32_t post;
    /* cairn: nonzero for no guard behind the blocks. */
    uint32_t has_no_guards;
    /* cairn: nonzero to store stacks in front of the blocks even if they have numbers. */
    uint32_t is_inline;
    /* Alignment of memory from malloc_function; 0 for two pointers. */
    size_t alignment;
    /* Limit of the bytes in use; 0 for no limit. */
    size_t limit_bytes;
    /* Allocates as malloc does: an RTOS's heap, dlmalloc, the C library's own. */
    void *(*malloc_function)(size_t);
    /* Frees as free does. */
    void (*free_function)(void *);
    /* Resizes as realloc does, or null. */
    void *(*realloc_function)(void *, size_t);
    /*
     * Allocates as memalign does (alignment, size), or null. With null, more bytes are requested,
     * and aligned here.
     */
    void *(*memalign_function)(size_t, size_t);
    /*
     * Writes the return addresses of the present stack, innermost first, and returns their number.
     * It writes at most as many as its last argument allows. It is called from inside of cairn, so
     * the frames up to the return address of the annotated call are left out. If that address is
     * not among them, it is recorded alone. Null, without a walk_function: cairn captures the
     * stack if that is built in, else the return address of the call is recorded alone.
     */
    size_t (*capture_function)(size_t *, size_t);
    /*
     * Called before the lists are changed, for a few instructions: disables interrupts. Null for a
     * lock. Required by a library for a processor without compare-and-swap, where the counters
     * need it as well.
     */
    size_t (*enter_function)(void);
    /* Called after the change, with the result of enter_function. */
    void (*leave_function)(size_t);
    /*
     * Walks the stack in place of capture_function. It takes the return address of the annotated
     * call and the frame pointer of the function around it, writes the return addresses further
     * out, at most as many as its last argument allows, and returns their number.
     * cairn_frame_pointer_walk does this for code with frame pointers.
     */
    size_t (*walk_function)(size_t, size_t, size_t *, size_t);
    /*
     * Called for every event, in its thread, with observer_context. It may allocate and free, and
     * is called for that as well. Null for none.
     */
    void (*observer_function)(const struct cairn_annotated_event *, void *);
    /* The last argument of observer_function. */
    void *observer_context;
};

/* Counters of the heap. Set type_size before the call. */
struct cairn_annotated_counters {
    /* The size of this struct. */
    size_t type_size;
    /* Blocks in use. */
    size_t live_blocks;
    /* Bytes in use, by requested sizes. */
    size_t live_bytes;
    /* Peak of the bytes in use. */
    size_t peak_bytes;
    /* Blocks allocated since the start. */
    size_t allocations;
    /* Failed allocations. */
    size_t refused;
    /* Frees of addresses that are no blocks of the heap. */
    size_t foreign;
    /* Blocks freed twice. */
    size_t freed_twice;
    /* Blocks whose guard was overwritten. */
    size_t overflowed;
};

/*
 * A list of live blocks in the layout of libwebsockets; zeros are an empty one. Nodes are three
 * pointers: previous, next, owner.
 */
struct cairn_lws_owner {
    /* The last node. */
    void *tail;
    /* The first node. */
    void *head;
    /* Number of nodes. */
    size_t count;
};

/*
 * Sets the source of memory and the layout, before the first block; all allocations fail until
 * then. Returns 0 or CAIRN_HEAP_ERROR_ARGUMENT.
 */
int cairn_annotated_configure(const struct cairn_annotated_options *options);

/* Allocates as malloc does. The recorded stack begins at the caller. */
void *cairn_annotated_malloc(size_t size);

/* Allocates as calloc does. */
void *cairn_annotated_calloc(size_t count, size_t size);

/* Allocates as memalign does: alignment is a power of two. */
void *cairn_annotated_memalign(size_t alignment, size_t size);

/* Resizes as realloc does; a size of 0 frees the block and returns null. */
void *cairn_annotated_realloc(void *block, size_t size);

/*
 * Allocates as malloc does, with the caller in call. Also returns null for an invalid call: a
 * wrong type_size, more than 64 bits, frames that are not aligned.
 */
void *cairn_annotated_malloc_at(size_t size, const struct cairn_annotated_call *call);

/* Allocates as calloc does, with the caller in call. */
void *cairn_annotated_calloc_at(size_t count, size_t size, const struct cairn_annotated_call *call);

/* Allocates as memalign does, with the caller in call. */
void *cairn_annotated_memalign_at(size_t alignment, size_t size, const struct cairn_annotated_call *call);

/*
 * Resizes as realloc does, with the caller in call. Returns null and changes nothing for an
 * invalid call.
 */
void *cairn_annotated_realloc_at(void *block, size_t size, const struct cairn_annotated_call *call);

/*
 * Walks frame pointers, for walk_function. It begins at fp, the frame pointer of a function that
 * called the allocation, and goes up to stack_end, the highest address of its stack. Writes the
 * return addresses that it finds, innermost first, at most room, and returns their number. It ends
 * at an invalid frame pointer: 0, outside of the stack, not aligned, or not above the frame
 * before. The frames are those of the compiler's convention: GCC's and LLVM's on x86, AArch64 and
 * RISC-V, LLVM's on Arm.
 */
size_t cairn_frame_pointer_walk(size_t fp, size_t stack_end, size_t *addresses, size_t room);

/*
 * Frees as free does. Memory that malloc_function returned outside of this heap is passed to
 * free_function.
 */
void cairn_annotated_free(void *block);

/* Returns the requested size; 0 for an address that is no block of this heap. */
size_t cairn_annotated_usable_size(const void *block);

/* Fills counters, whose type_size the caller has set. Returns 0 or CAIRN_HEAP_ERROR_ARGUMENT. */
int cairn_annotated_counters(struct cairn_annotated_counters *counters);

/*
 * Calls put with a line ~m#... for each live block of the layout of libwebsockets, line end
 * included, oldest first. put is passed context, and must not allocate. For other layouts,
 * cairn_annotated_lines_in finds the blocks in the memory of the heap.
 */
int cairn_annotated_lines(void (*put)(const char *, size_t, void *), void *context);

/*
 * Writes the lines of all live blocks of the layout of cairn or heapprof in these bytes of memory.
 * It does the same as cairn_annotated_lines for each block, in the order of addresses. No thread
 * may allocate or free meanwhile.
 */
int cairn_annotated_lines_in(const void *memory, size_t bytes, void (*put)(const char *, size_t, void *), void *context);

/*
 * Compresses a stack and a size into blob, and returns the bytes to allocate beyond size. This is
 * a multiple of alignment, which is a power of two and at least that of a pointer. Corresponds to
 * lws_alloc_metadata_gen, with the addresses as an argument. A blob that does not fit into one
 * byte less than room is replaced by the one that marks a failure. Returns 0 for invalid
 * arguments.
 */
size_t cairn_lws_generate(size_t size, const size_t *addresses, size_t count, size_t alignment, uint8_t *blob, size_t room, size_t *blob_bytes);

/*
 * Does the same as cairn_lws_generate, with user_bit_count bits of the program behind the size.
 * The maximum is 64.
 */
size_t cairn_lws_generate_with(size_t size, const size_t *addresses, size_t count, size_t alignment, uint64_t user_bits, uint32_t user_bit_count, uint8_t *blob, size_t room, size_t *blob_bytes);

/*
 * Writes a blob to the start of an allocation, and appends the block to the list. The allocation
 * has prefix_bytes and more. Returns the user's address. Corresponds to
 * _lws_alloc_metadata_adjust. The caller must lock the list meanwhile.
 */
void *cairn_lws_adjust(struct cairn_lws_owner *owner, void *origin, size_t prefix_bytes, const uint8_t *blob, size_t blob_bytes);

/*
 * Removes a block from its list and returns the start of the underlying allocation, to be freed.
 * Stores the place of its blob in blob and blob_bytes, if these are not null. Corresponds to
 * _lws_alloc_metadata_trim. The caller must lock the list meanwhile.
 */
void *cairn_lws_trim(struct cairn_lws_owner *owner, void *user, size_t alignment, const uint8_t **blob, size_t *blob_bytes);

/*
 * Writes the return addresses of a block, innermost first, and its size, if that is not null.
 * Corresponds to lws_alloc_metadata_parse. Returns the number of addresses, or
 * CAIRN_HEAP_ERROR_ARGUMENT for a blob that marks a failure or was overwritten.
 */
int cairn_lws_parse(const void *user, size_t *addresses, size_t room, size_t *size);

/*
 * Reads bit_count bits of the program behind the size of a block. Returns 0, or
 * CAIRN_HEAP_ERROR_ARGUMENT when the block has fewer, or its blob marks a failure or was
 * overwritten.
 */
int cairn_lws_user_bits(const void *user, uint32_t bit_count, uint64_t *bits);

/*
 * Calls visit with each block of a list, oldest first. Its arguments are the user's address, the
 * blob, its length, and context. Corresponds to _lws_alloc_metadata_dump. The caller must lock the
 * list meanwhile.
 */
void cairn_lws_dump(const struct cairn_lws_owner *owner, void (*visit)(const void *, const uint8_t *, size_t, void *), void *context);

/*
 * Writes a blob as a text ~m#... that ends with a NUL, for a log; as
 * lws_alloc_metadata_dump_stdout prints it. Returns its length without the NUL, or
 * CAIRN_HEAP_ERROR_ARGUMENT when there is no room.
 */
int cairn_lws_line(const uint8_t *blob, size_t blob_bytes, char *line, size_t room);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* CAIRN_HEAP_H */
