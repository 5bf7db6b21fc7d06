/*
 * Sessions whose turns list only what is new: a prompt is everything said before in the session,
 * answers included, then the turn's own blocks. A turn follows the one before it after `delay`.
 */
#include "experiment/trace_int.h"

#include <stdlib.h>
#include <string.h>

#define NS_PER_MS 1e6

static const char *const known[] = {"session_id",    "timestamp", "delay", "input_length",
                                    "output_length", "hash_ids",  "block", NULL};

/* The last request of each session: a small map from name to request. The sessions' names lie in
 * the text store of the trace. */
struct last {
    size_t name_at;
    uint32_t req, turn;
};

struct sessions {
    struct last *rows; /* [mask + 1]; req KG_NONE: empty */
    size_t mask, n;
};

static size_t find(const struct kg_reader *r, const struct sessions *m, const char *name)
{
    size_t at = (size_t)kg_hash_bytes(name, strlen(name), 2) & m->mask;

    while (m->rows[at].req != KG_NONE && strcmp(r->t->text + m->rows[at].name_at, name) != 0) {
        at = (at + 1) & m->mask;
    }
    return at;
}

static int grow(struct kg_reader *r, struct sessions *m)
{
    struct sessions old = *m;
    size_t places = old.rows == NULL ? 256 : 2 * (old.mask + 1);

    if (old.rows != NULL && old.n * 2 < old.mask) {
        return KG_OK;
    }
    m->rows = malloc(places * sizeof(*m->rows));
    if (m->rows == NULL) {
        m->rows = old.rows;
        return kg_fail(r->err, KG_ENOMEM, "no memory for %zu sessions", places);
    }
    m->mask = places - 1;
    for (size_t i = 0; i < places; i++) {
        m->rows[i].req = KG_NONE;
    }
    for (size_t i = 0; old.rows != NULL && i <= old.mask; i++) {
        if (old.rows[i].req != KG_NONE) {
            m->rows[find(r, m, r->t->text + old.rows[i].name_at)] = old.rows[i];
        }
    }
    free(old.rows);
    return KG_OK;
}

/* All of the turn before and its answer, as pieces of this one. */
static int repeat(struct kg_reader *r, struct kg_trace_req *q, uint32_t before)
{
    uint32_t n_pieces = r->t->reqs[before].n_pieces, n_output = r->t->reqs[before].n_output;
    int rc = KG_OK;

    for (uint32_t i = 0; rc == KG_OK && i < n_pieces; i++) {
        struct kg_trace_piece p = r->t->pieces[r->t->reqs[before].pieces_at + i];
        rc = kg_trace_piece(r, q, p.id, p.n);
    }
    if (rc == KG_OK) {
        rc = kg_trace_piece(r, q, KG_ID_ANSWER(before), n_output);
    }
    q->n_prompt = r->t->reqs[before].n_prompt + n_output;
    return rc;
}

/* The turn's own blocks; the last one may be cut. */
static int read_blocks(struct kg_reader *r, struct kg_trace_req *q, const json_t *ids,
                       uint64_t length, uint32_t block)
{
    size_t n = json_array_size(ids);
    uint32_t left = kg_trace_scaled(r, length);

    if (n != (length + block - 1) / block) {
        return KG_BAD(r, "hash_ids: %zu ids, %llu tokens need %llu of %u", n,
                      (unsigned long long)length,
                      (unsigned long long)((length + block - 1) / block), block);
    }
    q->n_prompt += left;
    for (size_t i = 0; i < n && left > 0; i++) {
        const json_t *e = json_array_get(ids, i);
        json_int_t id = json_integer_value(e);
        uint32_t k = left < q->block ? left : q->block;
        if (!json_is_integer(e) || id < 0 || (uint64_t)id >= KG_ID_LIMIT) {
            return KG_BAD(r, "hash_ids[%zu]: wanted an integer 0 .. 2^62 - 1", i);
        }
        left -= k;
        int rc = k == q->block ? kg_trace_blocks(r, q, (uint64_t)id, 1)
                               : kg_trace_piece(r, q, (uint64_t)id, k);
        if (rc != KG_OK) {
            return rc;
        }
    }
    return kg_trace_piece(r, q, KG_ID_PROMPT(r->t->n), left); /* length 0 raised to 1 */
}

static int read_content(struct kg_reader *r, struct kg_trace_req *q, const json_t *o)
{
    const json_t *ids = NULL;
    uint64_t length, block = r->conf->block != 0 ? r->conf->block : 512;

    int rc = kg_tj_need(r, o, "input_length", 0, KG_TRACE_MAX_TOKENS, &length);
    if (rc == KG_OK) {
        rc = kg_tj_u64(r, o, "block", 1, KG_TRACE_MAX_TOKENS, &block);
    }
    if (rc >= 0) {
        rc = kg_tj_array(r, o, "hash_ids", &ids);
    }
    if (rc < 0) {
        return rc;
    }
    if (block % r->conf->scale != 0) {
        return KG_BAD(r, "block: %llu tokens cannot be divided by the scale %u",
                      (unsigned long long)block, r->conf->scale);
    }
    q->block = (uint32_t)block / r->conf->scale;
    if (ids != NULL) {
        rc = read_blocks(r, q, ids, length, (uint32_t)block);
    } else {
        uint32_t n = kg_trace_scaled(r, length);
        q->n_prompt += n;
        rc = kg_trace_piece(r, q, KG_ID_PROMPT(r->t->n), n);
    }
    q->n_named = q->n_prompt;
    if (rc == KG_OK && q->n_prompt > KG_TRACE_MAX_TOKENS) {
        return KG_BAD(r, "input_length: the session's prompt has grown to %u tokens", q->n_prompt);
    }
    return rc;
}

static int read_turn(struct kg_reader *r, const json_t *o, void *ctx)
{
    struct sessions *m = ctx;
    struct kg_trace_req q;
    char digits[24], name[240];
    const char *session;
    uint64_t output;
    size_t session_at = 0;

    int rc = kg_tj_name(r, o, "session_id", digits, &session);
    if (rc <= 0) {
        return rc < 0 ? rc : KG_BAD(r, "%s", "session_id: missing");
    }
    rc = grow(r, m);
    if (rc == KG_OK) {
        rc = kg_tj_need(r, o, "output_length", 0, KG_TRACE_MAX_TOKENS, &output);
    }
    if (rc != KG_OK) {
        return rc;
    }
    struct last *last = &m->rows[find(r, m, session)];
    q = kg_trace_blank(r);
    q.n_output = kg_trace_scaled(r, output);
    q.block = 1;

    if (last->req != KG_NONE) {
        q.after = last->req;
        rc = repeat(r, &q, last->req);
    } else {
        rc = kg_trace_text(r, session, strlen(session), &session_at);
    }
    rc = rc < 0 ? rc : kg_trace_tenant(r, &q, session);
    rc = rc < 0 ? rc : kg_tj_time(r, o, "timestamp", NS_PER_MS, &q.arrive_ns);
    rc = rc < 0 ? rc : kg_tj_time(r, o, "delay", NS_PER_MS, &q.delay_ns);
    rc = rc < 0 ? rc : read_content(r, &q, o);
    if (rc != KG_OK) {
        return rc;
    }
    uint32_t turn = last->req != KG_NONE ? last->turn + 1 : 0;
    (void)snprintf(name, sizeof(name), "%s.%u", session, turn);
    rc = kg_trace_add(r, &q, name);
    if (rc != KG_OK) {
        return rc;
    }
    if (last->req != KG_NONE) {
        r->t->reqs[last->req].cont = r->t->n - 1;
        session_at = last->name_at;
    } else {
        m->n++;
    }
    *last = (struct last){session_at, r->t->n - 1, turn};
    return KG_OK;
}

int kg_read_aiperf(struct kg_reader *r)
{
    struct sessions m = {0};
    int rc = kg_tj_lines(r, known, read_turn, &m);

    free(m.rows);
    return rc;
}
