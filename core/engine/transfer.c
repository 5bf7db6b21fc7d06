#include "engine/transfer.h"

#include <stdlib.h>
#include <string.h>

/* The same bytes on both sides, as offsets into what read gives and write takes. */
struct pair {
    uint32_t kind;
    uint64_t from, to;               /* bytes inside a unit */
    uint64_t from_stride, to_stride; /* bytes from token to token */
    uint64_t bytes;                  /* per token, or of the part */
};

struct kg_transfer {
    struct kg_side from, to;
    uint64_t bytes[2][KG_N_KINDS]; /* natural, of a unit on each side */
    struct pair *pairs;
    uint32_t n_pairs;
    unsigned char *in, *out; /* a unit of either side */
};

static uint64_t natural(const struct kg_side *s, const struct kg_exec_desc *d, uint32_t kind)
{
    return kind == KG_PAGE ? s->layout->page_tokens * d->token_bytes
                           : d->n_state_parts * d->state_part_bytes;
}

/* read gives the entries one after the other, each with its natural bytes. */
static uint64_t offset_of(const struct kg_side *s, const struct kg_exec_desc *d,
                          const struct kg_view *v)
{
    return (uint64_t)v->entry * s->layout->parts_per_slot * d->state_part_bytes + v->offset;
}

static const struct kg_view *find(const struct kg_view *views, uint32_t n, const struct kg_view *v)
{
    for (uint32_t i = 0; i < n; i++) {
        if (views[i].kind == v->kind && views[i].layer == v->layer &&
            strcmp(views[i].name, v->name) == 0) {
            return &views[i];
        }
    }
    return NULL;
}

static int views_of(const struct kg_side *s, const struct kg_view **v, uint32_t *n,
                    struct kg_exec_desc *d, struct kg_error *err)
{
    s->ops->describe(s->exec, d);
    if (!(d->caps & KG_EXEC_CAP_VIEWS) || s->ops->views(s->exec, v, n) != KG_OK) {
        return kg_fail(err, KG_EINVAL, "transfer: the backend of %s does not say what lies where",
                       d->family);
    }
    return KG_OK;
}

/* Last byte of a view inside a unit, and whether it lies within. */
static int fits(const struct kg_side *s, const struct kg_exec_desc *d, const struct kg_view *v,
                uint64_t bytes)
{
    uint64_t end = offset_of(s, d, v) + bytes;

    if (v->kind == KG_PAGE) {
        end += (s->layout->page_tokens - 1) * v->token_stride;
    }
    return v->kind < KG_N_KINDS && end <= natural(s, d, v->kind);
}

static int match(struct kg_transfer *t, struct kg_error *err)
{
    const struct kg_view *a, *b;
    struct kg_exec_desc da = {0}, db = {0};
    uint32_t n_a, n_b;

    int rc = views_of(&t->from, &a, &n_a, &da, err);
    if (rc == KG_OK) {
        rc = views_of(&t->to, &b, &n_b, &db, err);
    }
    if (rc != KG_OK) {
        return rc;
    }
    if (n_a != n_b) {
        return kg_fail(err, KG_EINVAL, "transfer: %u spans here, %u there", n_a, n_b);
    }
    t->pairs = calloc(n_a + 1, sizeof(*t->pairs));
    if (t->pairs == NULL) {
        return kg_fail(err, KG_ENOMEM, "transfer: out of memory");
    }
    for (uint32_t i = 0; i < n_a; i++) {
        const struct kg_view *v = &a[i], *w = find(b, n_b, v);
        if (w == NULL || w->dtype != v->dtype || w->n != v->n) {
            return kg_fail(err, KG_EINVAL, "transfer: %s of layer %u is not the same on both sides",
                           v->name, v->layer);
        }
        uint64_t bytes = v->n * kg_dtype_bytes(v->dtype);
        if (!fits(&t->from, &da, v, bytes) || !fits(&t->to, &db, w, bytes)) {
            return kg_fail(err, KG_EINVAL, "transfer: %s of layer %u lies outside its unit",
                           v->name, v->layer);
        }
        t->pairs[t->n_pairs++] = (struct pair){.kind = v->kind,
                                               .from = offset_of(&t->from, &da, v),
                                               .to = offset_of(&t->to, &db, w),
                                               .from_stride = v->token_stride,
                                               .to_stride = w->token_stride,
                                               .bytes = bytes};
    }
    for (uint32_t k = 0; k < KG_N_KINDS; k++) {
        t->bytes[0][k] = natural(&t->from, &da, k);
        t->bytes[1][k] = natural(&t->to, &db, k);
    }
    return KG_OK;
}

int kg_transfer_open(const struct kg_side *from, const struct kg_side *to,
                     struct kg_transfer **transfer, struct kg_error *err)
{
    struct kg_transfer *t = calloc(1, sizeof(*t));

    if (t == NULL) {
        return kg_fail(err, KG_ENOMEM, "transfer: out of memory");
    }
    t->from = *from;
    t->to = *to;
    int rc = match(t, err);
    if (rc == KG_OK) {
        /* Zeroed: a backend without bytes (exec-sim) fills only the beginning. */
        t->in = calloc(1, t->bytes[0][0] > t->bytes[0][1] ? t->bytes[0][0] : t->bytes[0][1]);
        t->out = calloc(1, t->bytes[1][0] > t->bytes[1][1] ? t->bytes[1][0] : t->bytes[1][1]);
        if (t->in == NULL || t->out == NULL) {
            rc = kg_fail(err, KG_ENOMEM, "transfer: no memory for a unit of each side");
        }
    }
    if (rc != KG_OK) {
        kg_transfer_close(t);
        return rc;
    }
    *transfer = t;
    return KG_OK;
}

void kg_transfer_close(struct kg_transfer *t)
{
    if (t != NULL) {
        free(t->pairs);
        free(t->in);
        free(t->out);
        free(t);
    }
}

static int get(struct kg_transfer *t, uint32_t kind, uint32_t id, struct kg_error *err)
{
    int rc = t->from.ops->read(t->from.exec, kind, id, t->in, t->bytes[0][kind]);

    return rc == KG_OK ? rc
                       : kg_fail(err, rc, "transfer: %s %u cannot be read", kg_kind_name(kind), id);
}

static int put(struct kg_transfer *t, uint32_t kind, uint32_t id, struct kg_error *err)
{
    int rc = t->to.ops->write(t->to.exec, kind, id, t->out, t->bytes[1][kind]);

    return rc == KG_OK
               ? rc
               : kg_fail(err, rc, "transfer: %s %u cannot be written", kg_kind_name(kind), id);
}

int kg_transfer_state(struct kg_transfer *t, uint32_t from, uint32_t to, struct kg_error *err)
{
    int rc = get(t, KG_STATE, from, err);

    if (rc != KG_OK) {
        return rc;
    }
    memset(t->out, 0, t->bytes[1][KG_STATE]);
    for (uint32_t i = 0; i < t->n_pairs; i++) {
        const struct pair *p = &t->pairs[i];
        if (p->kind == KG_STATE) {
            memcpy(t->out + p->to, t->in + p->from, p->bytes);
        }
    }
    return put(t, KG_STATE, to, err);
}

/* n tokens from place a of the page that was read to place b of the one that is made. */
static void copy_tokens(struct kg_transfer *t, uint32_t a, uint32_t b, uint32_t n)
{
    for (uint32_t i = 0; i < t->n_pairs; i++) {
        const struct pair *p = &t->pairs[i];
        for (uint32_t k = 0; p->kind == KG_PAGE && k < n; k++) {
            memcpy(t->out + p->to + (b + k) * p->to_stride,
                   t->in + p->from + (a + k) * p->from_stride, p->bytes);
        }
    }
}

int kg_transfer_pages(struct kg_transfer *t, uint32_t first, uint32_t end, const uint32_t *from,
                      const uint32_t *to, struct kg_error *err)
{
    uint32_t pa = t->from.layout->page_tokens, pb = t->to.layout->page_tokens;
    uint32_t at = first, have = KG_NONE;

    if (first % pb != 0) {
        return kg_fail(err, KG_EINVAL, "transfer: token %u is not the first of a page of %u", first,
                       pb);
    }
    while (at < end) { /* one page of the far side at a time */
        uint32_t begin = at, stop = at + pb < end ? at + pb : end;
        memset(t->out, 0, t->bytes[1][KG_PAGE]);
        while (at < stop) {
            uint32_t n = pa - at % pa < stop - at ? pa - at % pa : stop - at;
            int rc = have != at / pa ? get(t, KG_PAGE, from[at / pa], err) : KG_OK;
            if (rc != KG_OK) {
                return rc;
            }
            have = at / pa;
            copy_tokens(t, at % pa, at - begin, n);
            at += n;
        }
        int rc = put(t, KG_PAGE, to[begin / pb], err);
        if (rc != KG_OK) {
            return rc;
        }
    }
    return KG_OK;
}
