#include "experiment/expand.h"

#include "base/hash.h"
#include "experiment/trace_int.h"

#include <stdlib.h>
#include <string.h>

/*
 * Requests that end in the same place and have nothing but a rest behind it form a chain: each goes
 * on in the next, as far as that one's rest reaches. What a request holds behind the place is a
 * stack of parts, each from its start to the start of the part above it: what comes later in the
 * file lies deeper. Parts never change, so requests share them.
 */
struct part {
    uint32_t start; /* position in the prompt */
    uint32_t owner; /* request whose own tokens these are, or that has whole blocks there */
    uint32_t below; /* part, KG_NONE at the bottom */
};

struct kg_expand {
    const struct kg_trace *t;
    uint64_t seed;
    uint32_t vocab;
    uint32_t *cont; /* [n] */
    uint32_t *top;  /* [n] highest part of the rest of the prompt */
    struct part *parts;
    uint32_t n_parts;
};

/* Where somebody may go on from: a full block at a place. */
struct end {
    uint64_t id;
    uint32_t at;   /* first token behind the block */
    uint32_t next; /* the first later request that has it and goes on, KG_NONE */
    uint32_t n_behind;
    uint64_t behind[KG_EXPAND_MAX_BEHIND]; /* different full blocks that follow it */
};

/* Tokens of one content: offset `from` of block `id` on, over its followers. */
struct span {
    uint64_t id;
    uint32_t from, n, block;
    const uint32_t *literal; /* instead */
};

/* --- continuations --- */

static int by_id(const void *a, const void *b)
{
    const struct end *p = a, *q = b;

    if (p->id != q->id) {
        return p->id < q->id ? -1 : 1;
    }
    return p->at < q->at ? -1 : p->at > q->at;
}

/* Last full block of a request; 0 when it has none. */
static int end_of(const struct kg_trace *t, const struct kg_trace_req *q, struct end *e)
{
    if (q->n_tokens > 0 || q->n_named < q->block || q->block == 0) {
        return 0;
    }
    for (uint32_t k = q->n_pieces; k-- > 0;) {
        const struct kg_trace_piece *p = &t->pieces[q->pieces_at + k];
        if (p->at < q->n_named) {
            uint32_t n = q->n_named - p->at < p->n ? q->n_named - p->at : p->n;
            *e = (struct end){.id = p->id + n / q->block - 1, .at = p->at + n, .next = KG_NONE};
            return n % q->block == 0 && n > 0;
        }
    }
    return 0;
}

/* First entry with (id, at) not below the given. */
static size_t lower(const struct end *ends, size_t n, uint64_t id, uint32_t at)
{
    size_t lo = 0;

    while (n > 0) {
        size_t half = n / 2;
        const struct end *e = &ends[lo + half];
        if (e->id < id || (e->id == id && e->at < at)) {
            lo += half + 1;
            n -= half + 1;
        } else {
            n = half;
        }
    }
    return lo;
}

/* Block `id` follows the end somewhere. */
static void note_behind(struct end *e, uint64_t id)
{
    for (uint32_t k = 0; k < e->n_behind; k++) {
        if (e->behind[k] == id) {
            return;
        }
    }
    if (e->n_behind < KG_EXPAND_MAX_BEHIND) {
        e->behind[e->n_behind++] = id;
    }
}

/* The full block of request q at token `at`; 0 when it has none there. */
static int block_at(const struct kg_trace *t, const struct kg_trace_req *q, uint32_t k, uint32_t at,
                    uint64_t *id)
{
    const struct kg_trace_piece *p = &t->pieces[q->pieces_at + k];

    if (at >= p->at + p->n && k + 1 < q->n_pieces) {
        p++;
    }
    *id = p->id + (at - p->at) / q->block;
    return at + q->block <= q->n_named;
}

/* Request i has the blocks of its pieces: whoever ends in one of them goes on in i, unless `count`
 * only asks what follows. */
static void offer(const struct kg_trace *t, uint32_t i, int count, struct end *ends, size_t n)
{
    const struct kg_trace_req *q = &t->reqs[i];

    for (uint32_t k = 0; k < q->n_pieces && q->block > 0; k++) {
        const struct kg_trace_piece *p = &t->pieces[q->pieces_at + k];
        uint64_t blocks = p->n / q->block;
        for (size_t e = lower(ends, n, p->id, 0); e < n && ends[e].id < p->id + blocks; e++) {
            uint64_t end = p->at + (ends[e].id - p->id + 1) * q->block;
            uint64_t id;
            if (ends[e].at != end || end >= q->n_prompt) {
                continue;
            }
            if (!count) {
                ends[e].next = i;
            } else if (block_at(t, q, k, (uint32_t)end, &id)) {
                note_behind(&ends[e], id);
            }
        }
    }
}

static int find_continuations(struct kg_expand *x, struct kg_error *err)
{
    const struct kg_trace *t = x->t;
    struct end *ends = calloc((size_t)t->n + 1, sizeof(*ends)), e;
    size_t n = 0, kept = 0;

    if (ends == NULL) {
        return kg_fail(err, KG_ENOMEM, "no memory for %u continuations", t->n);
    }
    for (uint32_t i = 0; i < t->n; i++) {
        n += (size_t)end_of(t, &t->reqs[i], &ends[n]);
    }
    qsort(ends, n, sizeof(*ends), by_id);
    for (size_t k = 0; k < n; k++) {
        if (kept == 0 || by_id(&ends[kept - 1], &ends[k]) != 0) {
            ends[kept++] = ends[k];
        }
    }
    for (uint32_t i = 0; i < t->n; i++) {
        offer(t, i, 1, ends, kept);
    }
    for (uint32_t i = t->n; i-- > 0;) { /* backwards: `next` is always the first later one */
        x->cont[i] = t->reqs[i].cont;
        if (x->cont[i] == KG_NONE && end_of(t, &t->reqs[i], &e)) {
            const struct end *own = &ends[lower(ends, kept, e.id, e.at)];
            x->cont[i] = own->n_behind < KG_EXPAND_MAX_BEHIND ? own->next : KG_NONE;
        }
        offer(t, i, 0, ends, kept);
    }
    free(ends);
    return KG_OK;
}

static uint32_t push(struct kg_expand *x, uint32_t start, uint32_t owner, uint32_t below)
{
    x->parts[x->n_parts] = (struct part){start, owner, below};
    return x->n_parts++;
}

/* c goes on from r with nothing but a rest of its own. */
static int same_end(const struct kg_expand *x, uint32_t r, uint32_t c)
{
    return x->t->reqs[c].n_tokens == 0 && x->t->reqs[c].n_named == x->t->reqs[r].n_named;
}

/* Parts of all requests; a chain's stack is built once along the chain, from its end. */
static void stack_parts(struct kg_expand *x)
{
    for (uint32_t i = x->t->n; i-- > 0;) {
        const struct kg_trace_req *q = &x->t->reqs[i];
        uint32_t c = x->cont[i], top = KG_NONE, reach = q->n_named;
        if (c != KG_NONE) {
            reach = x->t->reqs[c].n_prompt;
            top = same_end(x, i, c) ? x->top[c] : push(x, q->n_named, c, KG_NONE);
            while (top != KG_NONE && x->parts[top].start >= q->n_prompt) {
                top = x->parts[top].below;
            }
        }
        x->top[i] = q->n_prompt > reach ? push(x, reach, i, top) : top;
    }
}

/* Literal prompts: the next turn goes on from this one if it begins with the same tokens. */
static void link_literal(struct kg_expand *x)
{
    const struct kg_trace *t = x->t;

    for (uint32_t i = t->n; i-- > 0;) {
        const struct kg_trace_req *q = &t->reqs[i];
        if (q->after == KG_NONE || q->n_tokens == 0) {
            continue;
        }
        const struct kg_trace_req *p = &t->reqs[q->after];
        if (p->n_tokens > 0 && p->n_tokens < q->n_tokens &&
            memcmp(t->tokens + p->tokens_at, t->tokens + q->tokens_at,
                   p->n_tokens * sizeof(uint32_t)) == 0) {
            x->cont[q->after] = i;
        }
    }
}

int kg_expand_create(const struct kg_trace *trace, uint64_t seed, uint32_t vocab,
                     struct kg_expand **expand, struct kg_error *err)
{
    struct kg_expand *x = calloc(1, sizeof(*x));

    if (x == NULL) {
        return kg_fail(err, KG_ENOMEM, "out of memory");
    }
    x->t = trace;
    x->cont = calloc((size_t)trace->n + 1, sizeof(*x->cont));
    x->top = calloc((size_t)trace->n + 1, sizeof(*x->top));
    x->parts = calloc(2 * (size_t)trace->n + 1, sizeof(*x->parts));
    if (x->cont == NULL || x->top == NULL || x->parts == NULL) {
        kg_expand_destroy(x);
        return kg_fail(err, KG_ENOMEM, "no memory for %u continuations", trace->n);
    }
    x->seed = kg_hash_mix(seed + UINT64_C(0x746f6b656e));
    x->vocab = vocab;
    int rc = find_continuations(x, err);
    if (rc != KG_OK) {
        kg_expand_destroy(x);
        return rc;
    }
    link_literal(x);
    stack_parts(x);
    *expand = x;
    return KG_OK;
}

void kg_expand_destroy(struct kg_expand *expand)
{
    if (expand != NULL) {
        free(expand->cont);
        free(expand->top);
        free(expand->parts);
        free(expand);
    }
}

uint32_t kg_expand_cont(const struct kg_expand *expand, uint32_t i)
{
    return expand->cont[i];
}

/* --- tokens --- */

/* What position p of request c's own prompt holds, as it stands in the file; s->n at most. */
static void named(const struct kg_trace *t, uint32_t c, uint32_t p, struct span *s)
{
    const struct kg_trace_req *q = &t->reqs[c];
    uint32_t lo = 0, n = q->n_pieces;

    if (q->n_tokens > 0) {
        uint32_t left = q->n_tokens - p;
        s->literal = t->tokens + q->tokens_at + p;
        s->n = s->n < left ? s->n : left;
        return;
    }
    while (n > 1) { /* the last piece that begins at or before p */
        uint32_t half = n / 2;
        if (t->pieces[q->pieces_at + lo + half].at <= p) {
            lo += half;
            n -= half;
        } else {
            n = half;
        }
    }
    const struct kg_trace_piece *piece = &t->pieces[q->pieces_at + lo];
    uint32_t left = piece->at + piece->n - p;
    *s = (struct span){piece->id, p - piece->at, s->n < left ? s->n : left, q->block, NULL};
}

/* The request that holds position p of the rest behind the end that r and c share; s->n is cut to
 * its part. */
static uint32_t part_owner(const struct kg_expand *x, uint32_t c, uint32_t p, struct span *s)
{
    uint32_t top = x->top[c];

    while (top != KG_NONE && x->parts[top].start > p) {
        uint32_t left = x->parts[top].start - p;
        s->n = s->n < left ? s->n : left;
        top = x->parts[top].below;
    }
    return top != KG_NONE ? x->parts[top].owner : c;
}

/*
 * What position p of request r holds: its own blocks while they are whole, then what the request
 * it goes on in holds there, which may itself be resolved. Behind the prompt and behind all
 * continuations: the request's own answer. Fills one span of s->n tokens or less; returns 1 when a
 * continuation gave it.
 */
static int resolve(const struct kg_expand *x, uint32_t r, uint32_t p, struct span *s)
{
    const struct kg_trace_req *reqs = x->t->reqs;
    uint32_t cur = r, own = 0;

    while (!own && p >= reqs[cur].n_named) { /* each round ends in more whole blocks */
        uint32_t c = x->cont[cur];
        if (c == KG_NONE || p >= reqs[c].n_prompt) {
            break;
        }
        uint32_t left = reqs[c].n_prompt - p;
        s->n = s->n < left ? s->n : left;
        if (same_end(x, cur, c)) {
            uint32_t o = part_owner(x, c, p, s);
            own = reqs[o].n_named == reqs[cur].n_named;
            c = o;
        }
        cur = c;
    }
    const struct kg_trace_req *q = &reqs[cur];
    if (p < q->n_prompt) {
        if (p < q->n_named) {
            s->n = s->n < q->n_named - p ? s->n : q->n_named - p;
        }
        named(x->t, cur, p, s);
    } else {
        *s = (struct span){KG_ID_ANSWER(r), p - q->n_prompt, s->n, UINT32_MAX, NULL};
    }
    return cur != r;
}

/* Token `offset` of a block: a hash of seed, id and offset, scaled to the vocabulary. */
static void fill(const struct kg_expand *x, const struct span *s, uint32_t *tokens)
{
    uint64_t id = s->id + s->from / s->block;
    uint32_t offset = s->from % s->block;
    uint64_t key = kg_hash_mix(x->seed ^ kg_hash_mix(id));

    for (uint32_t k = 0; k < s->n; k++) {
        uint64_t h = kg_hash_mix(key + (offset + 1) * UINT64_C(0x9e3779b97f4a7c15));
        tokens[k] = (uint32_t)(((h >> 32) * x->vocab) >> 32);
        if (++offset == s->block) {
            offset = 0;
            key = kg_hash_mix(x->seed ^ kg_hash_mix(++id));
        }
    }
}

/* Positions [p, end) of request r; returns how many a continuation gave. */
static uint64_t expand_range(const struct kg_expand *x, uint32_t r, uint32_t p, uint32_t end,
                             uint32_t *tokens)
{
    uint64_t resolved = 0;

    while (p < end) {
        struct span s = {.n = end - p};
        int from_cont = resolve(x, r, p, &s);
        resolved += from_cont ? s.n : 0;
        if (tokens != NULL) {
            if (s.literal != NULL) {
                memcpy(tokens, s.literal, s.n * sizeof(*tokens));
            } else {
                fill(x, &s, tokens);
            }
            tokens += s.n;
        }
        p += s.n;
    }
    return resolved;
}

void kg_expand_prompt(const struct kg_expand *expand, uint32_t i, uint32_t *tokens)
{
    (void)expand_range(expand, i, 0, expand->t->reqs[i].n_prompt, tokens);
}

void kg_expand_answer(const struct kg_expand *expand, uint32_t i, uint32_t *tokens)
{
    const struct kg_trace_req *q = &expand->t->reqs[i];

    (void)expand_range(expand, i, q->n_prompt, q->n_prompt + q->n_output, tokens);
}

void kg_expand_shares(const struct kg_expand *expand, struct kg_expand_share *share)
{
    const struct kg_trace *t = expand->t;

    *share = (struct kg_expand_share){0};
    for (uint32_t i = 0; i < t->n; i++) {
        const struct kg_trace_req *q = &t->reqs[i];
        share->tail_tokens += q->n_prompt - q->n_named;
        share->tail_resolved += expand_range(expand, i, q->n_named, q->n_prompt, NULL);
        share->answer_tokens += q->n_output;
        share->answer_resolved +=
            expand_range(expand, i, q->n_prompt, q->n_prompt + q->n_output, NULL);
    }
}
