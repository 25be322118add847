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

/* The number of a call stack of this process: equal stacks have equal numbers, for as long as the process lives. */
typedef uint32_t cairn_stack_id;

/* The stack without frames. */
#define CAIRN_STACK_EMPTY UINT32_C(0)

/* There was no room to keep the stack. Such losses are counted, see cairn_statistics. */
#define CAIRN_STACK_LOST UINT32_C(0xffffffff)

/* An argument is not what it must be: a null pointer, a type_size that cannot be, a reserved field that is not zero. */
#define CAIRN_ERROR_ARGUMENT (-1)

/* The number is not one of a stack of this process, or the stack was lost. */
#define CAIRN_ERROR_STACK (-2)

/* The buffer is too small. Call with a null pointer to learn the size. */
#define CAIRN_ERROR_BUFFER (-3)

/* The format cannot hold this stack: in an lws blob, an address or a size of 64 bits. */
#define CAIRN_ERROR_FORMAT (-4)

/* The file descriptor takes no more. */
#define CAIRN_ERROR_WRITE (-5)

/* The address is that of the instruction that was interrupted, or was about to run. */
#define CAIRN_FRAME_PROGRAM_COUNTER UINT32_C(1)

/* The address is where a call returns to; the call itself lies before it, so look up address - 1. */
#define CAIRN_FRAME_RETURN_ADDRESS UINT32_C(2)

/* The address is where an asynchronous task continues. */
#define CAIRN_FRAME_ASYNC_RESUME_POINT UINT32_C(3)

/* The outermost frame was reached: the whole stack is known. */
#define CAIRN_STOP_END_OF_STACK UINT32_C(0)

/* There are more frames than are kept (1048575). The innermost ones are known. */
#define CAIRN_STOP_LIMIT UINT32_C(1)

/* Nothing says who called the code at the address. */
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

/* Why a stack ends where it ends. */
struct cairn_stop {
    /* One of CAIRN_STOP_... */
    uint32_t kind;
    /* Zero. */
    uint32_t reserved;
    /* What the kind says of it, or zero. */
    uint64_t address;
};

/* What the captures of this process cost so far, and what they lost. */
struct cairn_statistics {
    /* Set it to the size of this struct before the call; the fields of a newer library are then left out. */
    size_t type_size;
    /* Captures for which there was no room, or that came while two others of the same thread were under way. */
    uint64_t lost;
    /* Bytes of memory that hold all stacks, without what each thread caches. */
    uint64_t memory_bytes;
};

/*
 * The call stack of the caller, whose own frame is the innermost.
 *
 * Call it from anywhere: in malloc, in a signal handler, in a thread that is about to end. It does not allocate, takes
 * no lock, and leaves errno alone.
 */
cairn_stack_id cairn_capture(void);

/*
 * The call stack of the code that a signal interrupted: its innermost frame is the interrupted instruction, and nothing
 * of the handler is in it. ucontext is the third argument of a handler installed with SA_SIGINFO.
 *
 * It works after a stack overflow too, when the handler runs on its own stack (SA_ONSTACK).
 */
cairn_stack_id cairn_capture_interrupted(const void *ucontext);

/*
 * Copies the frames of a stack, innermost first, and returns how many it has; no more than capacity are written. stop,
 * where it is not null, is told why the stack ends where it ends.
 */
size_t cairn_stack_frames(cairn_stack_id stack, struct cairn_frame *frames, size_t capacity, struct cairn_stop *stop);

/*
 * Writes a stack as text into a file descriptor, a line for each frame: its address, its module, and the address in
 * there as addr2line takes it. Recursion is folded. Returns 0 or a negative CAIRN_ERROR_...
 *
 *     #0  0x000055f2b4a0716c /usr/bin/prog+0x116c
 *     #1  0x00007f0f7f2461ca /lib/x86_64-linux-gnu/libc.so.6+0x271ca
 *
 * It may be called in a signal handler.
 */
int cairn_stack_print(cairn_stack_id stack, int descriptor);

/*
 * What backtrace() of the C library does: fills buffer with the addresses of the caller's stack, innermost first, and
 * returns how many there are, at most size. Unlike that one it may be called in malloc and in signal handlers.
 */
int cairn_backtrace(void **buffer, int size);

/* Fills statistics, whose type_size the caller has set. Returns 0 or CAIRN_ERROR_ARGUMENT. */
int cairn_statistics(struct cairn_statistics *statistics);

/* The version of the library, such as "0.1.0". The string lives as long as the process. */
const char *cairn_version(void);

/* Which frames of a stack are encoded. Zero all of it, set type_size, then what you need: zeroes mean the whole stack. */
struct cairn_pick {
    /* Size of this struct. */
    size_t type_size;
    /* So many innermost frames are left out, without a mark: those of your own hook. */
    uint32_t skip_innermost;
    /* So many outermost frames are left out, without a mark, if there are more than these. */
    uint32_t drop_outermost;
    /* The most entries to keep, 0 for all. What is left out is replaced by one entry that tells how many. */
    uint32_t limit;
    /* Of the limit, so many are taken from the outer end, and what lies between is left out. */
    uint32_t keep_outermost;
    /* Not 0: rounds of recursion, of up to eight functions, are kept once and counted. */
    uint32_t fold_recursion;
    /* Zero. */
    uint32_t reserved[7];
};

/*
 * Encodes a stack in the Compact Backtrace Format into buffer and returns the bytes used, or a negative CAIRN_ERROR_...
 * With a null buffer it returns the bytes needed. pick may be null for the whole stack. A stack whose end could not be
 * reached is marked as truncated.
 *
 * It may be called in a signal handler.
 */
ptrdiff_t cairn_stack_encode_cbf(cairn_stack_id stack, const struct cairn_pick *pick, uint8_t *buffer, size_t size_bytes);

/*
 * Encodes a stack and the size of an allocation as a compressed backtrace of libwebsockets into buffer and returns the
 * bytes used, or a negative CAIRN_ERROR_... With a null buffer it returns the bytes needed. pick may be null for the
 * whole stack.
 *
 * A blob holds up to 31 addresses, the innermost ones of those picked, and no marks. 296 bytes hold every blob.
 *
 * It may be called in a signal handler.
 */
ptrdiff_t cairn_stack_encode_lws(cairn_stack_id stack, const struct cairn_pick *pick, uint64_t allocation_size_bytes, uint8_t *buffer, size_t size_bytes);

/* A recording is under way already, or being started by another thread. */
#define CAIRN_ERROR_STARTED (-6)

/* The file cannot be made, or there is a file of that name that may not be overwritten. */
#define CAIRN_ERROR_FILE (-7)

/* There is no room: the disk is full, or a limit of the process too low. */
#define CAIRN_ERROR_ROOM (-8)

/* Nothing is recorded in this process. */
#define CAIRN_ERROR_NOT_STARTED (-9)

/* How to record. Fill it with zeros, then set type_size and what shall be otherwise than by default. */
struct cairn_recording_options {
    /* The size of this struct. */
    size_t type_size;
    /*
     * Where the recording goes. %p stands for the process id, %e for the program's name; where such a file is already, .1, .2 and
     * so on are tried. Null for memory without a file, which ring_bytes or ring_nanos must be set for.
     */
    const char *path;
    /* Not 0 to keep only the last events, so many bytes of them (1 MiB to 1 GiB), as a flight recorder does. */
    uint64_t ring_bytes;
    /* Not 0 to end the recording when its file is so large. */
    uint64_t limit_bytes;
    /* Names of environment variables to keep, separated by commas; null for none. */
    const char *environment;
    /* Not 0 for a recording of its own for each forked child that marks something. */
    uint32_t follows_children;
    /* Not 0 to begin paused. */
    uint32_t is_paused;
    /* Not 0 to keep only events of the last so many nanoseconds, and no more than ring_bytes of them, or 64 MiB where that is 0. */
    uint64_t ring_nanos;
};

/*
 * Begins to record; null stands for a file PROGRAM.PID.cairn in the working directory, or where the environment variable
 * CAIRN_RECORDING says. Returns 0 or a negative CAIRN_ERROR_...; the program goes on unrecorded then.
 *
 * It need not be called: the first mark starts a recording as with null.
 */
int cairn_recording_start(const struct cairn_recording_options *options);

/*
 * Marks this moment in the recording with a text and the caller's stack, of which the skip innermost frames are hidden. Call it
 * from anywhere: in malloc, in a signal handler, in a static constructor. Texts are cut at 4096 bytes; null is an empty one.
 */
void cairn_mark(const char *text, uint32_t skip);

/* As cairn_mark, with a number. */
void cairn_mark_value(const char *text, uint32_t skip, double value);

/* As cairn_mark, with a whole number. */
void cairn_mark_integer(const char *text, uint32_t skip, int64_t value);

/*
 * Marks this moment with the stack that a signal interrupted, as cairn_capture_interrupted finds it. For crash handlers: what was
 * recorded before is safe already, and this is when the function returns.
 */
void cairn_mark_from_context(const void *ucontext, const char *text);

/*
 * Notes that an allocator of the program's own, a pool or an arena, has given out size bytes at address. Blocks of malloc are
 * noted by cairn heap. Nothing happens when nothing is recorded.
 */
void cairn_heap_alloc(const void *address, size_t size);

/* Notes that such a block is about to be taken back. Call it before the block can be given out again. */
void cairn_heap_free(const void *address);

/*
 * Waits until everything recorded so far is on the disk, to survive a power cut; the end of the program needs no flush. Returns 0 or
 * a negative CAIRN_ERROR_...
 */
int cairn_recording_flush(void);

/*
 * Writes what is recorded so far into a new file at path, as a recording of its own: of a ring, where last_nanos is not 0, about the
 * last so many nanoseconds. It may be called in a signal handler. Returns 0 or a negative CAIRN_ERROR_...
 */
int cairn_recording_dump(const char *path, uint64_t last_nanos);

/* Records no marks and blocks until cairn_recording_resume. */
void cairn_recording_pause(void);

/* Records again after cairn_recording_pause. */
void cairn_recording_resume(void);

/* Ends the recording. Nothing is lost without it. Not for signal handlers. */
void cairn_recording_stop(void);

/*
 * Notes which modules are loaded at present. Modules are noted by themselves when they are first on a stack, and when some module is
 * closed; this notes also those that never are. Not for signal handlers.
 */
void cairn_recording_scan_modules(void);

/*
 * Calls unload(argument), which may unload modules by other ways than dlclose, and forgets what captures learned of
 * them, so that no stack is mistaken for another when a new module takes their addresses. Captures in other threads go on
 * meanwhile.
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
 * In cairn_walk_control: Darwin's faults at the end of the buffer are repeated. A stack that ends where the buffer ends is then
 * reported as truncated.
 */
#define CAIRN_WALK_AS_XNU UINT32_C(8)

/* In cairn_walk_info: the frames have 64 bits. */
#define CAIRN_WALK_INFO_64_BIT UINT32_C(1)

/* In cairn_walk_info: the stack goes on beyond what was recorded, or could not be followed. */
#define CAIRN_WALK_INFO_TRUNCATED UINT32_C(2)

/* Addresses are packed as they are, in 8 bytes each, little-endian. */
#define CAIRN_PACK_NONE UINT32_C(0)

/* Addresses are packed as signed distances from packing_base, in 4 bytes each, little-endian. */
#define CAIRN_PACK_OFFSET_32 UINT32_C(1)

/*
 * Where a walk starts, what it adds, and whose memory it reads. Zero all of it, set type_size, then what you need: zeroes mean this
 * thread, from the caller of the function.
 */
struct cairn_walk_control {
    /* Size of this struct. */
    size_t type_size;
    /* CAIRN_WALK_... flags. */
    uint32_t flags;
    /* Zero. */
    uint32_t reserved;
    /*
     * Not 0: the first frame record, in place of the caller's. To leave out frames, to go on at next_frame_address, or to follow
     * async_frame_address.
     */
    uint64_t frame_address;
    /* Added to each address that is recorded; 1 for async frames, so that looking up address - 1 finds the resume point. */
    int64_t address_offset;
    /* Not null: the third argument of a signal handler of this thread; the walk starts where the signal interrupted it. */
    const void *context;
    /*
     * Not null: reads the memory of the thread that is walked, in place of this process's: copies as many bytes as its last
     * argument says from the address into the buffer, and returns 0 or an errno. Its first argument is copy_context. Only for cairn_walk_user.
     */
    int (*copy_function)(void *, void *, uint64_t, size_t);
    /* Handed to copy_function. */
    void *copy_context;
    /* With copy_function: the pc of the thread that is walked; it is recorded first. */
    uint64_t pc;
    /* With copy_function: the frame pointer of the thread that is walked. */
    uint64_t frame_pointer;
    /* With copy_function: the bits of an address that are no pointer authentication code; 0 for all. */
    uint64_t address_mask;
    /* What packed distances count from. */
    uint64_t packing_base;
};

/* What a walk found beside the addresses. Set type_size before the call; the fields of a newer library are then left out. */
struct cairn_walk_info {
    /* Size of this struct. */
    size_t type_size;
    /* CAIRN_WALK_INFO_... flags. */
    uint32_t flags;
    /* 0, 14 (EFAULT) where a frame pointer or memory could not be followed, or 22 (EINVAL) for a control that is not valid. */
    int error;
    /* Why the walk ended. */
    struct cairn_stop stop;
    /* Where to go on when the buffer was full: the next frame_address. Otherwise 0. */
    uint64_t next_frame_address;
    /*
     * The index of the recorded address that the async stack takes the place of, with all behind it. It counts where
     * async_frame_address is not 0.
     */
    uint64_t async_start_index;
    /* The first async frame, to be walked with address_offset 1; 0 when there is none. */
    uint64_t async_frame_address;
};

/*
 * Fills addresses with the return addresses of this thread by frame pointers, innermost first, and returns how many there are, at
 * most capacity: backtrace of Darwin's backtrace(9). The first is where this function returns to; the one next to a zero
 * frame pointer, in the outermost frame, is not recorded. control and info may be null.
 *
 * It may be called in malloc and in signal handlers. The program must be built with frame pointers (-fno-omit-frame-pointer).
 */
size_t cairn_walk(uint64_t *addresses, size_t capacity, const struct cairn_walk_control *control, struct cairn_walk_info *info);

/*
 * As cairn_walk, with the addresses packed into buffer: backtrace_packed of Darwin's backtrace(9). packing is one of CAIRN_PACK_...
 * Returns how many bytes are used, CAIRN_ERROR_ARGUMENT, or CAIRN_ERROR_FORMAT for an address out of reach of packing_base.
 */
ptrdiff_t cairn_walk_packed(uint32_t packing, uint8_t *buffer, size_t size_bytes, const struct cairn_walk_control *control, struct cairn_walk_info *info);

/*
 * Reads what cairn_walk_packed has written: backtrace_unpack of Darwin's backtrace(9). packing and packing_base must be those that it
 * was written with. Returns how many addresses are in addresses, at most capacity, or CAIRN_ERROR_FORMAT where the bytes end
 * within one, or CAIRN_ERROR_ARGUMENT.
 */
ptrdiff_t cairn_walk_unpack(uint32_t packing, uint64_t packing_base, const uint8_t *packed, size_t size_bytes, uint64_t *addresses, size_t capacity);

/*
 * Fills addresses with a stack by frame pointers, innermost first, and returns how many there are, at most capacity: backtrace_user of
 * Darwin's backtrace(9). It walks this thread, from where the caller called this function, or with a copy_function whatever that reads,
 * from the pc and frame_pointer of the control. The pc comes first, unless frame_address is set. The slot behind the last address is set
 * to zero if there is one.
 *
 * It may be called in malloc and in signal handlers. A copy_function must be safe there as well.
 */
size_t cairn_walk_user(uint64_t *addresses, size_t capacity, const struct cairn_walk_control *control, struct cairn_walk_info *info);

/*
 * As cairn_backtrace, and says in info, which may be null, whether the stack goes on: CAIRN_WALK_INFO_TRUNCATED is set when there was
 * no room for more, and when it could not be followed to its end. The stack is found by unwind tables, so next_frame_address is 0.
 */
int cairn_backtrace_info(void **buffer, int size, struct cairn_walk_info *info);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* CAIRN_CAPTURE_H */
