#include "exec_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include <cmocka.h>

uint32_t xrig_is_full(void)
{
    const char *v = getenv("KEDGE_FULL");

    return v != NULL && v[0] == '1';
}

void xreq_prompts(struct xreq *reqs, uint32_t n, float temperature)
{
    char path[512];
    json_t *doc;

    (void)snprintf(path, sizeof(path), "%s/golden/prompts.json", TEST_ROOT);
    doc = json_load_file(path, 0, NULL);
    assert_int_equal(json_array_size(doc), 4);
    memset(reqs, 0, n * sizeof(*reqs));
    for (uint32_t i = 0; i < n; i++) {
        const json_t *ids = json_object_get(json_array_get(doc, i % 4), "ids");
        uint32_t have = (uint32_t)json_array_size(ids),
                 len = 3 + i * 37 % (xrig_is_full() ? 148 : 90);
        uint32_t at = have > len ? i * 13 % (have - len) : 0;
        for (uint32_t j = 0; j < len && at + j < have; j++)
            reqs[i].tokens[reqs[i].n++] = (uint32_t)json_integer_value(json_array_get(ids, at + j));
        reqs[i].n_prompt = reqs[i].n;
        reqs[i].n_max = reqs[i].n + (xrig_is_full() ? 24 : 8) + i % 5;
        reqs[i].sampling.temperature = temperature;
        reqs[i].sampling.seed = 1000 + i;
        reqs[i].sampling.top_p = i % 3 == 0 ? 0.9f : 1.0f;
        reqs[i].sampling.repetition_penalty = i % 4 == 0 ? 1.2f : 1.0f;
        reqs[i].sampling.frequency_penalty = i % 5 == 1 ? 0.7f : 0.0f;
        reqs[i].sampling.presence_penalty = i % 5 == 1 ? 0.4f : 0.0f;
        reqs[i].sampling.min_tokens = i % 6;
    }
    json_decref(doc);
}

uint64_t xrig_hash(const float *row, uint32_t n)
{
    uint64_t h = 0x243f6a8885a308d3ull;

    for (uint32_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &row[i], sizeof(bits));
        h = (h ^ bits) * 0x9e3779b97f4a7c15ull;
        h ^= h >> 29;
    }
    return h;
}

static void start(struct xrig *x, struct xreq *r, uint32_t slot)
{
    r->running = 1;
    r->reset = 1;
    r->slot = slot;
    r->state = xrig_take(x, KG_STATE);
    if (r->past == 0) {
        r->n_pages = 0;
        r->n_shared = 0;
        r->state_src = KG_STATE_ZERO;
    }
    if (r->order_at > 0 && !r->ordered)
        r->order_unit = xrig_take(x, KG_STATE);
}

void xreq_release(struct xrig *x, struct xreq *r)
{
    if (r->running) {
        x->ops->drop(x->exec, &r->slot, 1);
        xrig_give(x, KG_STATE, r->state);
        if (r->order_at > 0 && !r->ordered)
            xrig_give(x, KG_STATE, r->order_unit);
    }
    r->running = 0;
}

static void give_pages(struct xrig *x, struct xreq *r)
{
    for (uint32_t i = r->n_shared; i < r->n_pages; i++)
        xrig_give(x, KG_PAGE, r->pages[i]);
    r->n_pages = 0;
}

/* The rows of one request in the coming step. */
static void plan(struct xrig *x, struct xreq *r, const struct xrun *how, uint32_t room,
                 struct kg_order *order, struct kg_seq *s)
{
    uint32_t n = r->n - r->past, had = r->n_pages, tokens = x->layout.page_tokens;

    if (how->chunk != 0 && n > how->chunk)
        n = how->chunk;
    if (n > room)
        n = room;
    while (r->n_pages * tokens < r->past + n)
        r->pages[r->n_pages++] = xrig_take(x, KG_PAGE);
    *s = (struct kg_seq){.slot = r->slot,
                         .epoch = 7,
                         .id = r->slot + 1000,
                         .flags = KG_SEQ_LOGITS | (r->past + n == r->n ? KG_SEQ_SAMPLE : 0),
                         .past = r->past,
                         .n_rows = n,
                         .tokens = r->tokens + r->past,
                         .pages = r->pages + (r->reset ? 0 : had),
                         .n_pages = r->n_pages - (r->reset ? 0 : had),
                         .state = r->state,
                         .state_src = r->reset ? r->state_src : KG_STATE_KEEP,
                         .left = r->n_max - r->n,
                         .force_accept = KG_NONE};
    if (r->reset) {
        s->flags |= KG_SEQ_RESET;
        s->history = r->tokens;
        s->n_history = r->n;
        s->output_start = r->n_prompt;
        s->sampling = &r->sampling;
    }
    if (r->order_at > r->past && r->order_at <= r->past + n && !r->ordered) {
        *order = (struct kg_order){.position = r->order_at, .unit = r->order_unit};
        s->orders = order;
        s->n_orders = 1;
    }
}

static void take_result(struct xrig *x, struct xreq *r, const struct kg_seq *s,
                        const struct kg_seq_result *res)
{
    assert_int_equal(res->flags & KG_RES_NAN, 0);
    assert_int_equal(res->id, s->id);
    assert_int_equal(res->epoch, s->epoch);
    assert_int_equal(res->past, s->past + s->n_rows);
    for (uint32_t j = 0; j < s->n_rows; j++) {
        uint64_t h = xrig_hash(res->logits + (size_t)j * x->desc.vocab, x->desc.vocab);
        if (r->bits[s->past + j] != 0)
            assert_int_equal(h, r->bits[s->past + j]); /* recomputed after a preemption */
        r->bits[s->past + j] = h;
    }
    r->past = res->past;
    r->reset = 0;
    if (s->n_orders > 0)
        r->ordered = 1;
    assert_int_equal(res->n_tokens, s->flags & KG_SEQ_SAMPLE ? 1 : 0);
    if (res->n_tokens > 0)
        r->tokens[r->n++] = res->tokens[0];
}

static void preempt(struct xrig *x, struct xreq *r)
{
    xreq_release(x, r);
    give_pages(x, r);
    r->past = 0;
}

static uint32_t admit(struct xrig *x, struct xreq *reqs, uint32_t n, const struct xrun *how,
                      uint8_t *busy)
{
    uint32_t running = 0, open = 0;

    for (uint32_t i = 0; i < n; i++)
        running += reqs[i].running;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t slot = 0;
        if (reqs[i].n >= reqs[i].n_max)
            continue;
        open++;
        if (reqs[i].running || running >= how->batch)
            continue;
        while (busy[slot])
            slot++;
        busy[slot] = 1;
        start(x, &reqs[i], slot);
        running++;
    }
    return open;
}

static void finish(struct xrig *x, struct xreq *r, uint8_t *busy)
{
    busy[r->slot] = 0;
    xreq_release(x, r);
    if (r->order_at == 0)
        give_pages(x, r); /* else the test resumes on them */
}

void xrun(struct xrig *x, struct xreq *reqs, uint32_t n, const struct xrun *how)
{
    static struct kg_seq seqs[XRIG_REQUESTS];
    struct kg_order orders[XRIG_REQUESTS];
    uint32_t of[XRIG_REQUESTS];
    uint8_t busy[XRIG_REQUESTS] = {0};

    assert_true(n > 0 && n <= XRIG_REQUESTS && how->batch > 0);
    while (admit(x, reqs, n, how, busy) > 0) {
        struct kg_result result;
        uint32_t m = 0, room = 256;
        for (uint32_t i = 0; i < n; i++) {
            if (!reqs[i].running || room == 0)
                continue;
            plan(x, &reqs[i], how, room, &orders[m], &seqs[m]);
            room -= seqs[m].n_rows;
            of[m++] = i;
        }
        xrig_apply(x, how->moves);
        xrig_step(x, seqs, m, &result);
        for (uint32_t i = 0; i < m; i++)
            take_result(x, &reqs[of[i]], &seqs[i], &result.seqs[i]);
        for (uint32_t i = 0; i < n; i++) {
            if (reqs[i].running && reqs[i].n >= reqs[i].n_max)
                finish(x, &reqs[i], busy);
        }
        if (how->preempt != 0 && xrig_random(x) % how->preempt == 0) {
            struct xreq *r = &reqs[xrig_random(x) % n];
            if (r->running && r->order_at == 0) {
                busy[r->slot] = 0;
                preempt(x, r);
            }
        }
    }
}
