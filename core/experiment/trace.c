/* The store behind trace.h: arrays that grow, names, the order of requests. */
#include "experiment/trace.h"

#include "base/hash.h"
#include "experiment/trace_int.h"

#include <stdlib.h>
#include <string.h>

/* What one trace may name: a file of hostile size ends in an error, not in swap. */
#define MAX_REQS ((size_t)1 << 24)
#define MAX_ITEMS ((size_t)1 << 28)

static const char *const format_words[] = {"native",   "mooncake", "agentic", "azure",
                                           "servegen", "aiperf",   "bailian"};

int kg_trace_format_parse(const char *word, uint32_t *format)
{
    for (uint32_t i = 0; i < sizeof(format_words) / sizeof(format_words[0]); i++) {
        if (strcmp(word, format_words[i]) == 0) {
            *format = i;
            return KG_OK;
        }
    }
    return KG_EINVAL;
}

/* Makes *cap >= n + more elements of `size` bytes. */
static int grow(struct kg_error *err, void *array, size_t *cap, size_t n, size_t more, size_t size,
                size_t most, const char *what)
{
    void **p = array;

    if (n + more <= *cap) {
        return KG_OK;
    }
    if (more > most || n + more > most) {
        return kg_fail(err, KG_EINVAL, "the trace has more than %zu %s", most, what);
    }
    size_t want = *cap < 64 ? 64 : *cap * 2;
    want = want < n + more ? n + more : want;
    void *q = realloc(*p, want * size);
    if (q == NULL) {
        return kg_fail(err, KG_ENOMEM, "no memory for %zu %s", want, what);
    }
    *p = q;
    *cap = want;
    return KG_OK;
}

/* --- names --- */

static size_t name_hash(const char *s)
{
    return (size_t)kg_hash_bytes(s, strlen(s), 1);
}

/* Place of a name, or the empty place where it would go. */
static size_t name_place(const struct kg_reader *r, const char *name)
{
    const struct kg_names *m = &r->names;
    size_t at = name_hash(name) & m->mask;

    while (m->slots[at] != KG_NONE && strcmp(kg_trace_name(r->t, m->slots[at]), name) != 0) {
        at = (at + 1) & m->mask;
    }
    return at;
}

static int names_grow(struct kg_reader *r)
{
    struct kg_names old = r->names;
    size_t places = old.slots == NULL ? 1024 : 2 * (old.mask + 1);

    if (old.slots != NULL && old.n * 2 < old.mask) {
        return KG_OK;
    }
    r->names.slots = malloc(places * sizeof(uint32_t));
    if (r->names.slots == NULL) {
        r->names = old;
        return kg_fail(r->err, KG_ENOMEM, "no memory for %zu names", places);
    }
    r->names.mask = places - 1;
    memset(r->names.slots, 0xff, places * sizeof(uint32_t));
    for (size_t i = 0; old.slots != NULL && i <= old.mask; i++) {
        if (old.slots[i] != KG_NONE) {
            r->names.slots[name_place(r, kg_trace_name(r->t, old.slots[i]))] = old.slots[i];
        }
    }
    free(old.slots);
    return KG_OK;
}

uint32_t kg_trace_find(const struct kg_reader *r, const char *name)
{
    return r->names.slots == NULL ? KG_NONE : r->names.slots[name_place(r, name)];
}

/* --- requests --- */

struct kg_trace_req kg_trace_blank(const struct kg_reader *r)
{
    const struct kg_trace *t = r->t;

    return (struct kg_trace_req){
        .cancel_ns = KG_TRACE_NEVER,
        .line = kg_lines_number(r->lines),
        .pieces_at = t->n_pieces,
        .tokens_at = t->n_tokens,
        .bounds_at = t->n_bounds,
        .after = KG_NONE,
        .cont = KG_NONE,
    };
}

int kg_trace_text(struct kg_reader *r, const char *s, size_t n, size_t *at)
{
    struct kg_trace *t = r->t;

    int rc =
        grow(r->err, &t->text, &t->cap_text, t->n_text, n + 1, 1, MAX_ITEMS * 16, "bytes of text");
    if (rc == KG_OK) {
        memcpy(t->text + t->n_text, s, n);
        t->text[t->n_text + n] = '\0';
        *at = t->n_text;
        t->n_text += n + 1;
    }
    return rc;
}

int kg_trace_tenant(struct kg_reader *r, struct kg_trace_req *q, const char *name)
{
    q->tenant = kg_hash_bytes(name, strlen(name), 0) | 1; /* 0 is nobody */
    return kg_trace_text(r, name, strlen(name), &q->tenant_at);
}

int kg_trace_add(struct kg_reader *r, struct kg_trace_req *q, const char *name)
{
    struct kg_trace *t = r->t;
    char digits[24];
    int rc = names_grow(r);

    if (rc == KG_OK) {
        rc = grow(r->err, &t->reqs, &t->cap_reqs, t->n, 1, sizeof(*t->reqs), MAX_REQS, "requests");
    }
    if (rc != KG_OK) {
        return rc;
    }
    if (name == NULL) {
        (void)snprintf(digits, sizeof(digits), "%u", t->n + 1);
        name = digits;
    }
    size_t place = name_place(r, name);
    if (r->names.slots[place] != KG_NONE) {
        return KG_BAD(r, "id: \"%.60s\" was used on line %llu already", name,
                      (unsigned long long)t->reqs[r->names.slots[place]].line);
    }
    rc = kg_trace_text(r, name, strlen(name), &q->name_at);
    if (rc == KG_OK) {
        r->names.slots[place] = t->n;
        r->names.n++;
        t->reqs[t->n++] = *q;
    }
    return rc;
}

static uint32_t covered(const struct kg_trace *t, const struct kg_trace_req *q)
{
    if (q->n_pieces == 0)
        return 0;
    const struct kg_trace_piece *last = &t->pieces[q->pieces_at + q->n_pieces - 1];
    return last->at + last->n;
}

int kg_trace_piece(struct kg_reader *r, struct kg_trace_req *q, uint64_t id, uint32_t n)
{
    struct kg_trace *t = r->t;
    uint32_t at = covered(t, q);
    int rc = grow(r->err, &t->pieces, &t->cap_pieces, t->n_pieces, 1, sizeof(*t->pieces), MAX_ITEMS,
                  "runs of blocks");

    if (rc == KG_OK && n > 0) {
        t->pieces[t->n_pieces++] = (struct kg_trace_piece){id, at, n};
        q->n_pieces++;
    }
    return rc;
}

int kg_trace_blocks(struct kg_reader *r, struct kg_trace_req *q, uint64_t id, uint64_t count)
{
    uint32_t at = covered(r->t, q);

    if (count > (2 * (uint64_t)KG_TRACE_MAX_TOKENS - at) / q->block) {
        return KG_BAD(r, "%llu blocks of %u tokens are longer than any prompt may be",
                      (unsigned long long)count, q->block);
    }
    if (q->n_pieces > 0) {
        struct kg_trace_piece *p = r->t->pieces + q->pieces_at + q->n_pieces - 1;
        if (p->n % q->block == 0 && p->id + p->n / q->block == id) {
            p->n += (uint32_t)count * q->block;
            return KG_OK;
        }
    }
    return kg_trace_piece(r, q, id, (uint32_t)count * q->block);
}

int kg_trace_bound(struct kg_reader *r, struct kg_trace_req *q, uint32_t position)
{
    struct kg_trace *t = r->t;
    int rc = grow(r->err, &t->bounds, &t->cap_bounds, t->n_bounds, 1, sizeof(*t->bounds), MAX_ITEMS,
                  "boundaries");

    if (rc == KG_OK) {
        t->bounds[t->n_bounds++] = position;
        q->n_bounds++;
    }
    return rc;
}

int kg_trace_literal(struct kg_reader *r, struct kg_trace_req *q, size_t n)
{
    struct kg_trace *t = r->t;
    int rc = grow(r->err, &t->tokens, &t->cap_tokens, t->n_tokens, n, sizeof(*t->tokens), MAX_ITEMS,
                  "tokens");

    if (rc == KG_OK) {
        q->tokens_at = t->n_tokens;
        q->n_tokens = (uint32_t)n;
        t->n_tokens += n;
    }
    return rc;
}

int kg_trace_full(const struct kg_reader *r)
{
    return r->conf->limit != 0 && r->t->n >= r->conf->limit;
}

uint32_t kg_trace_scaled(struct kg_reader *r, uint64_t n)
{
    if (n == 0) {
        r->t->n_raised++;
    }
    n /= r->conf->scale;
    return n > 0 ? (uint32_t)n : 1;
}

uint64_t kg_trace_ns(double v, double unit_ns)
{
    return (uint64_t)(v * unit_ns + 0.5);
}

/* --- reading --- */

/* Open-loop traces whose lines are out of order are sorted by arrival, equal times by line. With
 * `after` the file's order is kept: it says which turn follows which. */
static int by_arrival(const void *a, const void *b)
{
    const struct kg_trace_req *p = a, *q = b;

    if (p->arrive_ns != q->arrive_ns) {
        return p->arrive_ns < q->arrive_ns ? -1 : 1;
    }
    return p->line < q->line ? -1 : p->line > q->line;
}

static void sort(struct kg_trace *t)
{
    int linked = 0, falls = 0;

    for (uint32_t i = 0; i < t->n; i++) {
        linked |= t->reqs[i].after != KG_NONE;
        falls |= i > 0 && t->reqs[i].arrive_ns < t->reqs[i - 1].arrive_ns;
    }
    if (falls && !linked) {
        qsort(t->reqs, t->n, sizeof(*t->reqs), by_arrival);
    }
}

static int read_all(struct kg_reader *r)
{
    switch (r->conf->format) {
    case KG_TRACE_AGENTIC:
        return kg_read_agentic(r);
    case KG_TRACE_AZURE:
        return kg_read_azure(r);
    case KG_TRACE_SERVEGEN:
        return kg_read_servegen(r);
    case KG_TRACE_AIPERF:
        return kg_read_aiperf(r);
    default:
        return kg_read_json(r);
    }
}

static int read_lines(struct kg_lines *lines, const struct kg_trace_conf *conf,
                      struct kg_trace **trace, struct kg_error *err)
{
    struct kg_reader r = {.lines = lines, .conf = conf, .err = err};

    r.t = calloc(1, sizeof(*r.t));
    if (r.t == NULL) {
        return kg_fail(err, KG_ENOMEM, "out of memory");
    }
    size_t zero;
    int rc = kg_trace_text(&r, "", 0, &zero); /* offset 0 is the empty text */
    kg_rng_seed(&r.rng, conf->seed ^ UINT64_C(0x74726163));
    if (rc == KG_OK) {
        rc = read_all(&r);
    }
    free(r.names.slots);
    if (rc == KG_OK && r.t->n == 0) {
        rc = kg_fail(err, KG_EINVAL, "%s: no requests%s", kg_lines_name(lines),
                     r.t->n_dropped > 0 ? " left after --max-input" : "");
    }
    if (rc != KG_OK) {
        kg_trace_free(r.t);
        return rc;
    }
    sort(r.t);
    *trace = r.t;
    return KG_OK;
}

static int check_conf(const struct kg_trace_conf *c, struct kg_error *err)
{
    if (c->scale == 0 || c->scale > 1u << 20 || c->block > KG_TRACE_MAX_TOKENS) {
        return kg_fail(err, KG_EINVAL, "scale %u, block %u: out of range", c->scale, c->block);
    }
    return KG_OK;
}

int kg_trace_read(const char *path, const struct kg_trace_conf *conf, struct kg_trace **trace,
                  struct kg_error *err)
{
    struct kg_lines *lines = NULL;
    int rc = check_conf(conf, err);

    if (rc == KG_OK) {
        rc = kg_lines_open(path, &lines, err);
    }
    if (rc == KG_OK) {
        rc = read_lines(lines, conf, trace, err);
    }
    kg_lines_close(lines);
    return rc;
}

int kg_trace_read_mem(const char *name, const void *data, size_t n,
                      const struct kg_trace_conf *conf, struct kg_trace **trace,
                      struct kg_error *err)
{
    struct kg_lines *lines = NULL;
    int rc = check_conf(conf, err);

    if (rc == KG_OK) {
        rc = kg_lines_open_mem(name, data, n, &lines, err);
    }
    if (rc == KG_OK) {
        rc = read_lines(lines, conf, trace, err);
    }
    kg_lines_close(lines);
    return rc;
}

void kg_trace_free(struct kg_trace *trace)
{
    if (trace != NULL) {
        free(trace->reqs);
        free(trace->pieces);
        free(trace->tokens);
        free(trace->bounds);
        free(trace->text);
        free(trace);
    }
}

int kg_trace_set_tokens(struct kg_trace *trace, uint32_t i, const uint32_t *tokens, uint32_t n)
{
    struct kg_trace_req *q = &trace->reqs[i];
    int rc = grow(NULL, &trace->tokens, &trace->cap_tokens, trace->n_tokens, n,
                  sizeof(*trace->tokens), MAX_ITEMS, "tokens");

    if (rc == KG_OK) {
        memcpy(trace->tokens + trace->n_tokens, tokens, n * sizeof(*tokens));
        q->tokens_at = trace->n_tokens;
        q->n_tokens = q->n_prompt = q->n_named = n;
        q->n_text = 0;
        trace->n_tokens += n;
    }
    return rc;
}
