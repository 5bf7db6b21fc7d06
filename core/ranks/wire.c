#include "ranks/wire.h"

#include "base/hash.h"

#include <string.h>

/* A sequence without its pointers; its arrays follow: tokens, pages, orders, history, sampling. */
struct wire_seq {
    uint64_t id;
    uint32_t slot, epoch, flags, past, n_rows, n_draft, n_pages, state, state_src, n_orders;
    uint32_t n_history, output_start, left, force_accept;
    uint32_t has_history, has_sampling;
};

struct wire_batch {
    uint64_t step;
    uint32_t n_seqs, n_rows;
};

static size_t padded(size_t bytes)
{
    return (bytes + 7) / 8 * 8;
}

int kg_wire_put(struct kg_buf *b, const void *p, size_t bytes)
{
    static const char zero[8];

    int rc = bytes > 0 ? kg_buf_add(b, p, bytes) : KG_OK;
    if (rc == KG_OK && bytes % 8 != 0)
        rc = kg_buf_add(b, zero, 8 - bytes % 8);
    return rc;
}

static int put_seq(struct kg_buf *b, const struct kg_seq *s)
{
    const struct wire_seq w = {.id = s->id,
                               .slot = s->slot,
                               .epoch = s->epoch,
                               .flags = s->flags,
                               .past = s->past,
                               .n_rows = s->n_rows,
                               .n_draft = s->n_draft,
                               .n_pages = s->n_pages,
                               .state = s->state,
                               .state_src = s->state_src,
                               .n_orders = s->n_orders,
                               .n_history = s->history != NULL ? s->n_history : 0,
                               .output_start = s->output_start,
                               .left = s->left,
                               .force_accept = s->force_accept,
                               .has_history = s->history != NULL,
                               .has_sampling = s->sampling != NULL};

    int rc = kg_wire_put(b, &w, sizeof(w));
    if (rc == KG_OK)
        rc = kg_wire_put(b, s->tokens, sizeof(*s->tokens) * w.n_rows);
    if (rc == KG_OK)
        rc = kg_wire_put(b, s->pages, sizeof(*s->pages) * w.n_pages);
    if (rc == KG_OK)
        rc = kg_wire_put(b, s->orders, sizeof(*s->orders) * w.n_orders);
    if (rc == KG_OK)
        rc = kg_wire_put(b, s->history, sizeof(*s->history) * w.n_history);
    if (rc == KG_OK && w.has_sampling)
        rc = kg_wire_put(b, s->sampling, sizeof(*s->sampling));
    return rc;
}

int kg_wire_put_batch(struct kg_buf *b, const struct kg_batch *batch)
{
    const struct wire_batch w = {batch->step, batch->n_seqs, batch->n_rows};

    int rc = kg_wire_put(b, &w, sizeof(w));
    for (uint32_t i = 0; i < batch->n_seqs && rc == KG_OK; i++)
        rc = put_seq(b, &batch->seqs[i]);
    return rc;
}

/* What is still to be read. */
struct cursor {
    const char *p;
    size_t left;
    int bad;
};

static const void *take(struct cursor *c, size_t n, size_t one)
{
    const char *p = c->p;

    if (c->bad || n > c->left / one || padded(n * one) > c->left) {
        c->bad = 1;
        return NULL;
    }
    c->p += padded(n * one);
    c->left -= padded(n * one);
    return p;
}

static void get_seq(struct cursor *c, struct kg_seq *s)
{
    const struct wire_seq *w = take(c, 1, sizeof(*w));

    if (w == NULL)
        return;
    *s = (struct kg_seq){.slot = w->slot,
                         .epoch = w->epoch,
                         .id = w->id,
                         .flags = w->flags,
                         .past = w->past,
                         .n_rows = w->n_rows,
                         .n_draft = w->n_draft,
                         .n_pages = w->n_pages,
                         .state = w->state,
                         .state_src = w->state_src,
                         .n_orders = w->n_orders,
                         .n_history = w->n_history,
                         .output_start = w->output_start,
                         .left = w->left,
                         .force_accept = w->force_accept};
    s->tokens = take(c, w->n_rows, sizeof(*s->tokens));
    s->pages = take(c, w->n_pages, sizeof(*s->pages));
    s->orders = take(c, w->n_orders, sizeof(*s->orders));
    s->history = take(c, w->n_history, sizeof(*s->history));
    if (!w->has_history)
        s->history = NULL;
    if (w->has_sampling)
        s->sampling = take(c, 1, sizeof(*s->sampling));
}

int kg_wire_get_batch(const void *p, size_t bytes, struct kg_wire_batch *out)
{
    struct cursor c = {p, bytes, 0};
    const struct wire_batch *w = take(&c, 1, sizeof(*w));

    if (w == NULL || w->n_seqs > out->max_seqs)
        return KG_EINVAL;
    for (uint32_t i = 0; i < w->n_seqs && !c.bad; i++)
        get_seq(&c, &out->seqs[i]);
    if (c.bad || c.left != 0)
        return KG_EINVAL;
    out->batch = (struct kg_batch){.size = sizeof(out->batch),
                                   .step = w->step,
                                   .seqs = out->seqs,
                                   .n_seqs = w->n_seqs,
                                   .n_rows = w->n_rows};
    return KG_OK;
}

int kg_wire_get_pair(const void *p, size_t bytes, size_t a, size_t b,
                     const struct kg_wire_pair **pair, const void **first, const void **second)
{
    struct cursor c = {p, bytes, 0};
    const struct kg_wire_pair *w = take(&c, 1, sizeof(*w));

    if (w == NULL)
        return KG_EINVAL;
    const void *x = take(&c, w->n, a), *y = take(&c, w->m, b);
    if (c.bad || c.left != 0)
        return KG_EINVAL;
    *pair = w;
    *first = x;
    *second = y;
    return KG_OK;
}

uint64_t kg_wire_sum_result(const struct kg_result *result, uint64_t chain)
{
    chain = kg_hash_mix(chain ^ result->step) + result->n_seqs;
    for (uint32_t i = 0; i < result->n_seqs; i++) {
        const struct kg_seq_result *s = &result->seqs[i];
        const uint32_t said[] = {s->slot, s->epoch, s->flags, s->past, s->n_accepted, s->n_tokens};
        chain = kg_hash_bytes(said, sizeof(said), chain ^ s->id);
        if ((s->flags & KG_RES_NAN) == 0 && s->n_tokens > 0)
            chain = kg_hash_bytes(s->tokens, s->n_tokens * sizeof(*s->tokens), chain);
    }
    return chain;
}
