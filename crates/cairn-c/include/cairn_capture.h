/*
 * cairn_capture.h: call stacks from anywhere, in malloc and in signal handlers too.
 *
 *     cairn_stack_print(cairn_capture(), 2);
 *
 * docs/book/reference/c-api.md tells how to use it. This file is written by `cargo xtask header`; edit the sources of cairn-c instead.
 */
#ifndef CAIRN_CAPTURE_H
#define CAIRN_CAPTURE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * The number of a call stack of this process. Equal stacks have equal numbers, as long as the
 * process lives.
 */
typedef uint32_t cairn_stack_id;

/* The stack without frames. */
#define CAIRN_STACK_EMPTY UINT32_C(0)

/* There was no room to store the stack. Such losses are counted, see cairn_statistics. */
#define CAIRN_STACK_LOST UINT32_C(0xffffffff)

/* An argument is invalid: a null pointer, a wrong type_size, a reserved field that is not zero. */
#define CAIRN_ERROR_ARGUMENT (-1)

/* The number is not one of a stack of this process, or the stack was lost. */
#define CAIRN_ERROR_STACK (-2)

/* The buffer is too small. Call with a null pointer to get the size. */
#define CAIRN_ERROR_BUFFER (-3)

/* The format cannot hold this stack: in an lws blob, an address or a size of 64 bits. */
#define CAIRN_ERROR_FORMAT (-4)

/* Writing to the file descriptor failed. */
#define CAIRN_ERROR_WRITE (-5)

/* The address is that of the instruction that was interrupted, or was about to run. */
#define CAIRN_FRAME_PROGRAM_COUNTER UINT32_C(1)

/* The address is where a call returns to; the call itself lies before it, so look up address - 1. */
#define CAIRN_FRAME_RETURN_ADDRESS UINT32_C(2)

/* The address is where an asynchronous task continues. */
#define CAIRN_FRAME_ASYNC_RESUME_POINT UINT32_C(3)

/* The outermost frame was reached: the whole stack is known. */
#define CAIRN_STOP_END_OF_STACK UINT32_C(0)

/* There are more frames than the limit (1048575). The innermost ones are known. */
#define CAIRN_STOP_LIMIT UINT32_C(1)

/* There is no unwind information for the code at the address. */
#define CAIRN_STOP_NO_UNWIND_INFO UINT32_C(2)

/* The unwind tables for the address are malformed. */
#define CAIRN_STOP_BAD_UNWIND_INFO UINT32_C(3)

/* The tables need a register whose value is not known; the address is its DWARF number. */
#define CAIRN_STOP_UNKNOWN_REGISTER UINT32_C(4)

/* Memory at the address could not be read. */
#define CAIRN_STOP_UNREADABLE_MEMORY UINT32_C(5)

/* A frame pointer leads outside the stack, to the address. */
#define CAIRN_STOP_OUTSIDE_STACK UINT32_C(6)

/* The caller of the code at the address is not above it on the stack: the stack is damaged. */
#define CAIRN_STOP_NO_PROGRESS UINT32_C(7)

/* There is no such stack: it was lost, or the number is not one of a stack of this process. */
#define CAIRN_STOP_NO_STACK UINT32_C(8)

/* A reason that this version of the header does not name. */
#define CAIRN_STOP_OTHER UINT32_C(9)

/* One entry of a stack. */
struct cairn_frame {
    /* One of CAIRN_FRAME_... */
    uint32_t kind;
    /* Zero. */
    uint32_t reserved;
    /* The address, as the processor sees it. */
    uint64_t address;
};

/* The reason why a stack ends at its outermost frame. */
struct cairn_stop {
    /* One of CAIRN_STOP_... */
    uint32_t kind;
    /* Zero. */
    uint32_t reserved;
    /* The address that belongs to the kind, or zero. */
    uint64_t address;
};

/* Memory and losses of the captures of this process. */
struct cairn_statistics {
    /*
     * Set it to the size of this struct before the call; the fields of a newer library are then
     * left out.
     */
    size_t type_size;
    /* Captures for which there was no room, or that interrupted two others of the same thread. */
    uint64_t lost;
    /* Bytes of memory that hold all stacks, without the threads' caches. */
    uint64_t memory_bytes;
};

/*
 * Captures the call stack of the caller, whose own frame is the innermost.
 *
 * Call it from anywhere: in malloc, in a signal handler, in a thread that is about to end. It does
 * not allocate, takes no lock, and preserves errno.
 */
cairn_stack_id cairn_capture(void);

/*
 * Captures the call stack of the code that a signal interrupted. The innermost frame is the
 * interrupted instruction; the handler's own frames are not included. ucontext is the third
 * argument of a handler installed with SA_SIGINFO.
 *
 * It works after a stack overflow too, when the handler runs on its own stack (SA_ONSTACK).
 */
cairn_stack_id cairn_capture_interrupted(const void *ucontext);

/*
 * Copies the frames of a stack, innermost first, and returns how many it has. At most capacity
 * frames are written. stop, if it is not null, gets the reason why the stack ends.
 */
size_t cairn_stack_frames(cairn_stack_id stack, struct cairn_frame *frames, size_t capacity, struct cairn_stop *stop);

/*
 * Writes a stack as text into a file descriptor, one line for each frame. A line has the address,
 * the module, and the address in the module as addr2line takes it. Recursion is folded. Returns 0
 * or a negative CAIRN_ERROR_...
 *
 *     #0  0x000055f2b4a0716c /usr/bin/prog+0x116c
 *     #1  0x00007f0f7f2461ca /lib/x86_64-linux-gnu/libc.so.6+0x271ca
 *
 * It may be called in a signal handler.
 */
int cairn_stack_print(cairn_stack_id stack, int descriptor);

/*
 * Does the same as backtrace() of the C library. It fills buffer with the addresses of the
 * caller's stack, innermost first, and returns their number, at most size. Unlike backtrace() it
 * may be called in malloc and in signal handlers.
 */
int cairn_backtrace(void **buffer, int size);

/* Fills statistics, whose type_size the caller has set. Returns 0 or CAIRN_ERROR_ARGUMENT. */
int cairn_statistics(struct cairn_statistics *statistics);

/* Returns the version of the library, such as "0.1.0". The string lives as long as the process. */
const char *cairn_version(void);

/*
 * Selects the frames of a stack to encode. Fill it with zeros, set type_size, then the fields that
 * you need: zeros mean the whole stack.
 */
struct cairn_pick {
    /* Size of this struct. */
    size_t type_size;
    /* Number of innermost frames to leave out, without a mark: those of your own hook. */
    uint32_t skip_innermost;
    /* Number of outermost frames to leave out, without a mark, if there are more than these. */
    uint32_t drop_outermost;
    /*
     * Maximum number of entries, 0 for all. The others are replaced by one entry with their
     * number.
     */
    uint32_t limit;
    /*
     * Number of entries within the limit that are taken from the outer end; those between are left
     * out.
     */
    uint32_t keep_outermost;
    /* Nonzero: rounds of recursion, of up to eight functions, are stored once and counted. */
    uint32_t fold_recursion;
    /* Zero. */
    uint32_t reserved[7];
};

/*
 * Encodes a stack in the Compact Backtrace Format into buffer. Returns the bytes used, or a
 * negative CAIRN_ERROR_... With a null buffer it returns the bytes needed. pick may be null for
 * the whole stack. A stack whose end could not be reached is marked as truncated.
 *
 * It may be called in a signal handler.
 */
ptrdiff_t cairn_stack_encode_cbf(cairn_stack_id stack, const struct cairn_pick *pick, uint8_t *buffer, size_t size_bytes);

/*
 * Encodes a stack and the size of an allocation as a compressed backtrace of libwebsockets. Writes
 * it into buffer and returns the bytes used, or a negative CAIRN_ERROR_... With a null buffer it
 * returns the bytes needed. pick may be null for the whole stack.
 *
 * A blob holds up to 31 addresses, the innermost ones of those picked, and no marks. 296 bytes
 * hold every blob.
 *
 * It may be called in a signal handler.
 */
ptrdiff_t cairn_stack_encode_lws(cairn_stack_id stack, const struct cairn_pick *pick, uint64_t allocation_size_bytes, uint8_t *buffer, size_t size_bytes);

/* A recording is under way already, or being started by another thread. */
#define CAIRN_ERROR_STARTED (-6)

/* The file cannot be made, or a file of that name exists. */
#define CAIRN_ERROR_FILE (-7)

/* There is no room: the disk is full, or a limit of the process too low. */
#define CAIRN_ERROR_ROOM (-8)

/* Nothing is recorded in this process. */
#define CAIRN_ERROR_NOT_STARTED (-9)

/*
 * Options of a recording. Fill it with zeros, then set type_size and the fields that differ from
 * their defaults.
 */
struct cairn_recording_options {
    /* The size of this struct. */
    size_t type_size;
    /*
     * Path of the file, in UTF-8 on Windows. %p is replaced with the process id, %e with the
     * program's name; if the file exists, .1, .2 and so on are appended. Null to record into
     * memory, which requires ring_bytes or ring_nanos.
     */
    const char *path;
    /*
     * Nonzero to keep only the last events, as a flight recorder does: their bytes (1 MiB to 1
     * GiB).
     */
    uint64_t ring_bytes;
    /* Nonzero to end the recording at this size of its file. */
    uint64_t limit_bytes;
    /* Names of environment variables to store, separated by commas; null for none. */
    const char *environment;
    /* Nonzero for a recording of its own for each forked child that marks something. */
    uint32_t follows_children;
    /* Nonzero to begin paused. */
    uint32_t is_paused;
    /*
     * Nonzero to keep only the events of the last ring_nanos nanoseconds. They take at most
     * ring_bytes, or 64 MiB if that is 0.
     */
    uint64_t ring_nanos;
};

/*
 * Begins to record. Null selects the path in the environment variable CAIRN_RECORDING, or else
 * PROGRAM.PID.cairn in the working directory. Returns 0, or a negative CAIRN_ERROR_... and the
 * program continues unrecorded.
 *
 * The call is optional: the first mark starts a recording as with null.
 */
int cairn_recording_start(const struct cairn_recording_options *options);

/*
 * Marks this moment in the recording with a text and the caller's stack. The skip innermost frames
 * are hidden. Call it from anywhere: in malloc, in a signal handler, in a static constructor.
 * Texts are cut at 4096 bytes; null is an empty one.
 */
void cairn_mark(const char *text, uint32_t skip);

/* Marks this moment as cairn_mark does, with a number. */
void cairn_mark_value(const char *text, uint32_t skip, double value);

/* Marks this moment as cairn_mark does, with a whole number. */
void cairn_mark_integer(const char *text, uint32_t skip, int64_t value);

/*
 * Marks this moment with the stack that a signal interrupted, as cairn_capture_interrupted finds
 * it. For crash handlers: earlier events are safe already, and this one when the function returns.
 */
void cairn_mark_from_context(const void *ucontext, const char *text);

/*
 * Records that an allocator of the program, a pool or an arena, has allocated size bytes at
 * address. Blocks of malloc are recorded by cairn heap. Does nothing without a recording.
 */
void cairn_heap_alloc(const void *address, size_t size);

/* Records that such a block is about to be freed. Call it before the block can be allocated again. */
void cairn_heap_free(const void *address);

/*
 * Waits until all recorded events are on the disk, to survive a power failure. The end of the
 * program needs no flush. Returns 0 or a negative CAIRN_ERROR_...
 */
int cairn_recording_flush(void);

/*
 * Writes all recorded events into a new file at path, as a recording of its own. In a ring, a
 * last_nanos other than 0 selects about the last last_nanos nanoseconds. It may be called in a
 * signal handler. Returns 0 or a negative CAIRN_ERROR_...
 */
int cairn_recording_dump(const char *path, uint64_t last_nanos);

/* Records no marks and blocks until cairn_recording_resume. */
void cairn_recording_pause(void);

/* Records again after cairn_recording_pause. */
void cairn_recording_resume(void);

/* Ends the recording. The call is optional: no event is lost without it. Not for signal handlers. */
void cairn_recording_stop(void);

/*
 * Records which modules are loaded. A module is recorded without this call when it is first on a
 * stack, and when any module is closed; the call records the others as well. Not for signal
 * handlers.
 */
void cairn_recording_scan_modules(void);

/*
 * Calls unload(argument), which may unload modules by other ways than dlclose. Captures then
 * forget these modules, so that no stack is mistaken for another when a new module takes their
 * addresses. Captures in other threads continue meanwhile.
 *
 * dlclose itself needs no such care: the library wraps it.
 */
void cairn_unloading(void (*unload)(void *), void *argument);

/* In cairn_walk_control: frames of 32 bits. Only with a copy function. */
#define CAIRN_WALK_32_BIT UINT32_C(1)

/* In cairn_walk_control: frame pointers are refused as on x86-64, whatever this processor is. */
#define CAIRN_WALK_X86_64 UINT32_C(2)

/* In cairn_walk_control: frame pointers are refused as on arm64, whatever this processor is. */
#define CAIRN_WALK_ARM64 UINT32_C(4)

/*
 * In cairn_walk_control: Darwin's faults at the end of the buffer are repeated. A stack that ends
 * where the buffer ends is then reported as truncated.
 */
#define CAIRN_WALK_AS_XNU UINT32_C(8)

/* In cairn_walk_info: the frames have 64 bits. */
#define CAIRN_WALK_INFO_64_BIT UINT32_C(1)

/* In cairn_walk_info: the stack continues beyond the recorded addresses, or could not be followed. */
#define CAIRN_WALK_INFO_TRUNCATED UINT32_C(2)

/* Addresses are packed as they are, in 8 bytes each, little-endian. */
#define CAIRN_PACK_NONE UINT32_C(0)

/* Addresses are packed as signed distances from packing_base, in 4 bytes each, little-endian. */
#define CAIRN_PACK_OFFSET_32 UINT32_C(1)

/*
 * Start of a walk, memory that it reads, and offset of addresses. Fill it with zeros, set
 * type_size, then the fields that you need: zeros mean this thread, from the caller of the
 * function.
 */
struct cairn_walk_control {
    /* Size of this struct. */
    size_t type_size;
    /* CAIRN_WALK_... flags. */
    uint32_t flags;
    /* Zero. */
    uint32_t reserved;
    /*
     * Nonzero: the first frame record, in place of the caller's. To leave out frames, to continue
     * at next_frame_address, or to follow async_frame_address.
     */
    uint64_t frame_address;
    /*
     * The number to add to each recorded address. It is 1 for async frames, so that looking up
     * address - 1 finds the resume point.
     */
    int64_t address_offset;
    /*
     * The third argument of a signal handler of this thread, or null. If it is not null, the walk
     * starts where the signal interrupted the thread.
     */
    const void *context;
    /*
     * Reads the memory of the walked thread, in place of this process's, if it is not null. It
     * copies as many bytes as its last argument states from the address into the buffer, and
     * returns 0 or an errno. Its first argument is copy_context. Only for cairn_walk_user.
     */
    int (*copy_function)(void *, void *, uint64_t, size_t);
    /* First argument of copy_function. */
    void *copy_context;
    /* With copy_function: the pc of the thread that is walked; it is recorded first. */
    uint64_t pc;
    /* With copy_function: the frame pointer of the thread that is walked. */
    uint64_t frame_pointer;
    /*
     * With copy_function: the bits of an address that are no pointer authentication code; 0 for
     * all.
     */
    uint64_t address_mask;
    /* Base of packed distances. */
    uint64_t packing_base;
};

/*
 * Results of a walk other than the addresses. Set type_size before the call; the fields of a newer
 * library are then left out.
 */
struct cairn_walk_info {
    /* Size of this struct. */
    size_t type_size;
    /* CAIRN_WALK_INFO_... flags. */
    uint32_t flags;
    /*
     * 0, 14 (EFAULT) or 22 (EINVAL). 14 means that a frame pointer or memory could not be
     * followed, 22 that the control is not valid.
     */
    int error;
    /* The reason why the walk ended. */
    struct cairn_stop stop;
    /* Where to continue when the buffer was full: the next frame_address. Otherwise 0. */
    uint64_t next_frame_address;
    /*
     * The index of the recorded address that the async stack takes the place of, with all behind
     * it. It counts where async_frame_address is not 0.
     */
    uint64_t async_start_index;
    /* The first async frame, to be walked with address_offset 1; 0 when there is none. */
    uint64_t async_frame_address;
};

/*
 * Fills addresses with the return addresses of this thread, by frame pointers, innermost first.
 * Returns their number, at most capacity. This is backtrace of Darwin's backtrace(9). The first is
 * where this function returns to; the one next to a zero frame pointer, in the outermost frame, is
 * not recorded. control and info may be null.
 *
 * It may be called in malloc and in signal handlers. The program must be built with frame pointers
 * (-fno-omit-frame-pointer).
 */
size_t cairn_walk(uint64_t *addresses, size_t capacity, const struct cairn_walk_control *control, struct cairn_walk_info *info);

/*
 * As cairn_walk, with the addresses packed into buffer: backtrace_packed of Darwin's backtrace(9).
 * packing is one of CAIRN_PACK_... Returns how many bytes are used, CAIRN_ERROR_ARGUMENT, or
 * CAIRN_ERROR_FORMAT for an address out of reach of packing_base.
 */
ptrdiff_t cairn_walk_packed(uint32_t packing, uint8_t *buffer, size_t size_bytes, const struct cairn_walk_control *control, struct cairn_walk_info *info);

/*
 * Reads what cairn_walk_packed has written: backtrace_unpack of Darwin's backtrace(9). packing and
 * packing_base must be those that it was written with. Returns how many addresses are in
 * addresses, at most capacity, or CAIRN_ERROR_FORMAT where the bytes end within one, or
 * CAIRN_ERROR_ARGUMENT.
 */
ptrdiff_t cairn_walk_unpack(uint32_t packing, uint64_t packing_base, const uint8_t *packed, size_t size_bytes, uint64_t *addresses, size_t capacity);

/*
 * Fills addresses with a stack by frame pointers, innermost first. Returns their number, at most
 * capacity. This is backtrace_user of Darwin's backtrace(9). It walks this thread, from where the
 * caller called this function, or with a copy_function whatever that reads, from the pc and
 * frame_pointer of the control. The pc comes first, unless frame_address is set. The slot behind
 * the last address is set to zero if there is one.
 *
 * It may be called in malloc and in signal handlers. A copy_function must be safe there as well.
 */
size_t cairn_walk_user(uint64_t *addresses, size_t capacity, const struct cairn_walk_control *control, struct cairn_walk_info *info);

/*
 * Does the same as cairn_backtrace, and reports in info, which may be null, whether the stack goes
 * on. CAIRN_WALK_INFO_TRUNCATED is set when there was no room for more frames, and when the stack
 * could not be followed to its end. The stack is found by unwind tables, so next_frame_address is
 * 0.
 */
int cairn_backtrace_info(void **buffer, int size, struct cairn_walk_info *info);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* CAIRN_CAPTURE_H */
