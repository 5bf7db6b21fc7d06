#include "base/arena.h"

#include <stdlib.h>
#include <string.h>

#define MAX_ALIGN 64

struct kg_arena_block {
    struct kg_arena_block *next;
    size_t size, used; /* bytes of data[] */
    _Alignas(MAX_ALIGN) unsigned char data[];
};

void kg_arena_init(struct kg_arena *a, size_t block_bytes, size_t max_bytes)
{
    *a = (struct kg_arena){.block_bytes = block_bytes != 0 ? block_bytes : 4096,
                           .max_bytes = max_bytes != 0 ? max_bytes : SIZE_MAX};
}

void kg_arena_fini(struct kg_arena *a)
{
    struct kg_arena_block *next;

    for (struct kg_arena_block *b = a->first; b != NULL; b = next) {
        next = b->next;
        free(b);
    }
    a->first = NULL;
    a->last = NULL;
    a->used_bytes = 0;
    a->held_bytes = 0;
}

void kg_arena_reset(struct kg_arena *a)
{
    for (struct kg_arena_block *b = a->first; b != NULL; b = b->next)
        b->used = 0;
    a->last = a->first;
    a->used_bytes = 0;
}

static void *take(struct kg_arena *a, struct kg_arena_block *b, size_t bytes, size_t align)
{
    size_t at = (b->used + align - 1) & ~(align - 1);

    if (at > b->size || bytes > b->size - at)
        return NULL;
    a->used_bytes += at - b->used + bytes;
    b->used = at + bytes;
    return b->data + at;
}

static struct kg_arena_block *grow(struct kg_arena *a, size_t bytes)
{
    size_t size = bytes > a->block_bytes ? bytes : a->block_bytes;

    size = (size + MAX_ALIGN - 1) & ~(size_t)(MAX_ALIGN - 1);
    if (size < bytes || size > SIZE_MAX - sizeof(struct kg_arena_block))
        return NULL;
    if (size + sizeof(struct kg_arena_block) > a->max_bytes - a->held_bytes)
        return NULL;
    struct kg_arena_block *b = aligned_alloc(MAX_ALIGN, size + sizeof(struct kg_arena_block));
    if (b == NULL)
        return NULL;
    a->held_bytes += size + sizeof(struct kg_arena_block);
    b->size = size;
    b->used = 0;
    b->next = NULL;
    if (a->last == NULL) {
        a->first = b;
    } else {
        b->next = a->last->next;
        a->last->next = b;
    }
    return b;
}

void *kg_arena_alloc(struct kg_arena *a, size_t bytes, size_t align)
{
    if (align == 0)
        align = 16;
    if (align > MAX_ALIGN || bytes > SIZE_MAX - MAX_ALIGN)
        return NULL;
    for (struct kg_arena_block *b = a->last; b != NULL; b = b->next) {
        void *p = take(a, b, bytes, align);
        if (p != NULL) {
            a->last = b;
            return p;
        }
    }
    struct kg_arena_block *b = grow(a, bytes);
    if (b == NULL)
        return NULL;
    a->last = b;
    return take(a, b, bytes, align);
}

void *kg_arena_zalloc(struct kg_arena *a, size_t n, size_t size)
{
    if (size != 0 && n > SIZE_MAX / size)
        return NULL;
    void *p = kg_arena_alloc(a, n * size, 0);
    if (p != NULL)
        memset(p, 0, n * size);
    return p;
}

char *kg_arena_strndup(struct kg_arena *a, const char *s, size_t n)
{
    if (n == SIZE_MAX)
        return NULL;
    char *p = kg_arena_alloc(a, n + 1, 1);
    if (p == NULL)
        return NULL;
    memcpy(p, s, n);
    p[n] = '\0';
    return p;
}
