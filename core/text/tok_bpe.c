#include "text/tok_impl.h"

#include <stdlib.h>

/* Up to this many bytes scanning all parts for the lowest join is faster than a heap. */
#define SCAN_BYTES 48

/* Id of the joined bytes [from, to) of the piece, KG_NONE if they are no token. */
static uint32_t join_of(const struct kg_tok *tok, const char *piece, uint32_t from, uint32_t to)
{
    return to - from > tok->max_len ? KG_NONE
                                    : kg_tok_find(tok, &tok->map, piece + from, to - from);
}

static void start_parts(const struct kg_tok *tok, struct kg_tok_part *parts, const char *piece,
                        uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        parts[i].start = i;
        parts[i].id = tok->byte_id[(uint8_t)piece[i]];
        parts[i].join = i + 1 < n ? join_of(tok, piece, i, i + 2) : KG_NONE;
        parts[i].prev = i == 0 ? KG_NONE : i - 1;
        parts[i].next = i + 1;
    }
}

static int join_short(const struct kg_tok *tok, const char *piece, uint32_t n, struct kg_ids *out)
{
    struct kg_tok_part parts[SCAN_BYTES + 1];
    start_parts(tok, parts, piece, n);
    parts[n].start = n;
    uint32_t left = n;
    while (left > 1) {
        uint32_t best = 0;
        for (uint32_t i = 1; i + 1 < left; i++) {
            if (parts[i].join < parts[best].join) {
                best = i;
            }
        }
        struct kg_tok_part *p = &parts[best];
        if (p->join == KG_NONE) {
            break;
        }
        p->id = p->join;
        /* Part `left` is the end mark; it moves along. */
        memmove(p + 1, p + 2, (left - best - 1) * sizeof(*p));
        left--;
        p->join = best + 1 < left ? join_of(tok, piece, p->start, p[2].start) : KG_NONE;
        if (best > 0) {
            p[-1].join = join_of(tok, piece, p[-1].start, p[1].start);
        }
    }
    if (kg_ids_reserve(out, left) != KG_OK) {
        return KG_ENOMEM;
    }
    for (uint32_t i = 0; i < left; i++) {
        out->v[out->n++] = parts[i].id;
    }
    return KG_OK;
}

static void sift_down(uint64_t *heap, size_t n, size_t i)
{
    uint64_t v = heap[i];
    for (;;) {
        size_t c = 2 * i + 1;
        if (c >= n) {
            break;
        }
        if (c + 1 < n && heap[c + 1] < heap[c]) {
            c++;
        }
        if (heap[c] >= v) {
            break;
        }
        heap[i] = heap[c];
        i = c;
    }
    heap[i] = v;
}

static void heap_push(uint64_t *heap, size_t *n, uint64_t v)
{
    size_t i = (*n)++;
    while (i > 0 && heap[(i - 1) / 2] > v) {
        heap[i] = heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    heap[i] = v;
}

static uint64_t heap_pop(uint64_t *heap, size_t *n)
{
    uint64_t top = heap[0];
    heap[0] = heap[--*n];
    if (*n > 0) {
        sift_down(heap, *n, 0);
    }
    return top;
}

static int grow_parts(struct kg_tok_scratch *scratch, size_t n)
{
    if (n <= scratch->n_parts) {
        return KG_OK;
    }
    struct kg_tok_part *parts = malloc(n * sizeof(*parts));
    uint64_t *heap = malloc(3 * n * sizeof(*heap));
    if (parts == NULL || heap == NULL) {
        free(parts);
        free(heap);
        return KG_ENOMEM;
    }
    free(scratch->parts);
    free(scratch->heap);
    scratch->parts = parts;
    scratch->heap = heap;
    scratch->n_parts = n;
    return KG_OK;
}

/* A heap entry is stale when the part it speaks of was joined meanwhile: its join differs then. */
static void join_all(const struct kg_tok *tok, struct kg_tok_scratch *scratch, const char *piece,
                     uint32_t n)
{
    struct kg_tok_part *parts = scratch->parts;
    uint64_t *heap = scratch->heap;
    size_t n_heap = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (parts[i].join != KG_NONE) {
            heap[n_heap++] = (uint64_t)parts[i].join << 32 | i;
        }
    }
    for (size_t i = n_heap / 2; i-- > 0;) {
        sift_down(heap, n_heap, i);
    }
    while (n_heap > 0) {
        uint64_t top = heap_pop(heap, &n_heap);
        uint32_t at = (uint32_t)top;
        struct kg_tok_part *p = &parts[at];
        if (p->join != top >> 32) {
            continue;
        }
        struct kg_tok_part *gone = &parts[p->next];
        p->id = p->join;
        p->next = gone->next;
        gone->join = KG_NONE;
        p->join = KG_NONE;
        if (p->next < n) {
            parts[p->next].prev = at;
            uint32_t after = parts[p->next].next;
            p->join = join_of(tok, piece, at, after);
            if (p->join != KG_NONE) {
                heap_push(heap, &n_heap, (uint64_t)p->join << 32 | at);
            }
        }
        if (p->prev != KG_NONE) {
            struct kg_tok_part *before = &parts[p->prev];
            before->join = join_of(tok, piece, p->prev, p->next);
            if (before->join != KG_NONE) {
                heap_push(heap, &n_heap, (uint64_t)before->join << 32 | p->prev);
            }
        }
    }
}

int kg_tok_bpe(const struct kg_tok *tok, struct kg_tok_scratch *scratch, const char *piece,
               size_t n, struct kg_ids *out)
{
    if (n == 1) {
        return kg_ids_push(out, tok->byte_id[(uint8_t)piece[0]]);
    }
    if (n <= tok->max_len) {
        uint32_t id = kg_tok_find(tok, &tok->map, piece, n);
        if (id != KG_NONE) {
            return kg_ids_push(out, id);
        }
    }
    if (n <= SCAN_BYTES) {
        return join_short(tok, piece, (uint32_t)n, out);
    }
    /* The cutting rule keeps a piece far below 4 GiB. */
    int rc = grow_parts(scratch, n);
    if (rc != KG_OK) {
        return rc;
    }
    start_parts(tok, scratch->parts, piece, (uint32_t)n);
    join_all(tok, scratch, piece, (uint32_t)n);
    for (uint32_t i = 0; i < n && rc == KG_OK; i = scratch->parts[i].next) {
        rc = kg_ids_push(out, scratch->parts[i].id);
    }
    return rc;
}
