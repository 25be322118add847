/* A pool of fixed blocks that tells cairn what it gives out, so that reports show who holds its blocks, and not only the one
 * large block of malloc that they all lie in.
 *
 *     cc -g pool.c -o pool && cairn heap ./pool
 *
 * Nothing of cairn is linked: both functions are there when `cairn heap` runs the program, and null otherwise. A program that
 * is linked with libcairn includes <cairn_capture.h> in place of the two declarations.
 */
#include <stdio.h>
#include <stdlib.h>

__attribute__((weak)) void cairn_heap_alloc(const void *address, size_t size);
__attribute__((weak)) void cairn_heap_free(const void *address);

enum { BLOCK_BYTES = 48, BLOCKS = 1000 };

union block {
    union block *next;
    char bytes[BLOCK_BYTES];
};

struct pool {
    union block *free;
    /* Behind the list: no block of the pool has the address of the block of malloc, and each address has one owner. */
    union block blocks[BLOCKS];
};

static struct pool *pool_new(void) {
    struct pool *pool = malloc(sizeof *pool);
    if (!pool)
        abort();
    pool->free = NULL;
    for (int i = BLOCKS; i-- > 0;) {
        pool->blocks[i].next = pool->free;
        pool->free = &pool->blocks[i];
    }
    return pool;
}

__attribute__((noinline)) static void *pool_take(struct pool *pool, size_t size) {
    union block *block = pool->free;
    if (!block || size > BLOCK_BYTES)
        return NULL;
    pool->free = block->next;
    /* After the block is taken. */
    if (cairn_heap_alloc)
        cairn_heap_alloc(block, size);
    return block;
}

__attribute__((noinline)) static void pool_give_back(struct pool *pool, void *taken) {
    union block *block = taken;
    /* Before anybody can take it again. */
    if (cairn_heap_free)
        cairn_heap_free(block);
    block->next = pool->free;
    pool->free = block;
}

__attribute__((noinline)) static void serve_requests(struct pool *pool) {
    for (int i = 0; i < 5000; i++)
        pool_give_back(pool, pool_take(pool, 40));
}

__attribute__((noinline)) static void remember_sessions(struct pool *pool) {
    for (int i = 0; i < 300; i++)
        if (!pool_take(pool, 24))
            abort();
}

int main(void) {
    struct pool *pool = pool_new();
    serve_requests(pool);
    remember_sessions(pool);
    puts("300 sessions remain");
    free(pool);
    return 0;
}
