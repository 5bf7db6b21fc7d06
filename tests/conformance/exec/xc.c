#include "xc.h"

#include <stdlib.h>
#include <string.h>

const char *xc_name, *xc_options, *xc_model;
const char *xc_draft;
uint32_t xc_sample;
const struct kg_plugin *xc_plugin;

/* --- units --- */

static void change(struct xc *x, uint32_t kind, uint32_t id, uint32_t slot)
{
    struct kg_table_change c = {kind, id, slot};

    assert_int_equal(x->ops->apply(x->exec, NULL, 0, &c, 1), KG_OK);
    x->slot_of[kind][id] = slot;
}

uint32_t xc_take(struct xc *x, uint32_t kind)
{
    uint32_t n = kind == KG_PAGE ? XC_PAGES : XC_STATES, id = 0, slot = 0;

    while (id < n && x->slot_of[kind][id] != KG_NONE) {
        id++;
    }
    while (slot <= n && x->busy[kind][slot]) {
        slot++;
    }
    assert_true(id < n && slot <= n);
    x->busy[kind][slot] = 1;
    change(x, kind, id, slot);
    return id;
}

void xc_give(struct xc *x, uint32_t kind, uint32_t id)
{
    assert_int_equal(x->ops->poison(x->exec, kind, id), KG_OK);
    x->busy[kind][x->slot_of[kind][id]] = 0;
    change(x, kind, id, KG_NONE);
}

void xc_shuffle(struct xc *x)
{
    struct kg_move moves[2 * XC_PAGES];
    struct kg_table_change changes[2 * XC_PAGES];
    uint32_t n = 0;

    for (uint32_t kind = 0; kind < KG_N_KINDS; kind++) {
        uint32_t units = kind == KG_PAGE ? XC_PAGES : XC_STATES, hole = units;
        while (x->busy[kind][hole]) {
            hole--;
        }
        for (uint32_t id = 0; id < units; id++) { /* each into the hole, leaving the next hole */
            uint32_t from = x->slot_of[kind][id];
            if (from == KG_NONE) {
                continue;
            }
            moves[n] = (struct kg_move){kind, from, hole, id};
            changes[n++] = (struct kg_table_change){kind, id, hole};
            x->busy[kind][from] = 0;
            x->busy[kind][hole] = 1;
            x->slot_of[kind][id] = hole;
            hole = from;
        }
    }
    assert_true(n > 0);
    assert_int_equal(x->ops->apply(x->exec, moves, n, changes, n), KG_OK);
}

uint8_t *xc_read(struct xc *x, uint32_t kind, uint32_t id)
{
    uint8_t *p = malloc(x->natural[kind]);

    assert_non_null(p);
    assert_int_equal(x->ops->read(x->exec, kind, id, p, x->natural[kind]), KG_OK);
    return p;
}

/* --- open --- */

static void make_layout(struct xc *x)
{
    uint32_t page = 8, a = x->desc.page_tokens_align;
    uint32_t slots[KG_N_KINDS] = {XC_PAGES + 1, XC_STATES + 1};
    struct kg_pool_layout *l = &x->layout;

    page = (page + a - 1) / a * a;
    x->natural[KG_PAGE] = page * x->desc.token_bytes;
    x->natural[KG_STATE] = x->desc.n_state_parts * x->desc.state_part_bytes;
    *l = (struct kg_pool_layout){.size = sizeof(*l),
                                 .page_tokens = page,
                                 .slots_per_state = 1,
                                 .parts_per_slot = x->desc.n_state_parts};
    for (uint32_t k = 0; k < KG_N_KINDS; k++) {
        uint64_t stride = (x->natural[k] + x->desc.align - 1) / x->desc.align * x->desc.align;
        l->base[k] = l->arena_bytes;
        l->stride[k] = l->unit_bytes[k] = stride + x->desc.align; /* padded, as a pool may do */
        l->max_slots[k] = slots[k];
        l->max_units[k] = slots[k] - 1;
        l->arena_bytes += slots[k] * l->stride[k];
    }
}

int xc_is_absent(void)
{
    const struct kg_plugin *p = rig_find(KG_KIND_EXEC, xc_name);
    struct kg_exec_open args = {
        .size = sizeof(args), .model_path = xc_model, .world = 1, .max_seqs = 1, .max_rows = 1};
    struct kg_error err = {0};
    struct kg_exec *e = NULL;
    struct rig_part part;

    if (p == NULL)
        return 0; /* which is a failure of the cases */
    rig_part_open(&part, p, xc_options, 1);
    const struct kg_exec_ops *ops = p->ops;
    int rc = ops->open(&part.host, part.conf, &args, &e, &err);
    if (rc == KG_OK)
        ops->close(e);
    if (rc != KG_ENOENT || strstr(err.text, "no CUDA device") == NULL)
        return 0;
    print_message("skipped: %s\n", err.text);
    return 1;
}

void xc_open(struct xc *x)
{
    const struct kg_plugin *p = xc_plugin != NULL ? xc_plugin : rig_find(KG_KIND_EXEC, xc_name);
    struct kg_error err = {0};

    assert_non_null(p);
    memset(x, 0, sizeof(*x));
    memset(x->slot_of, 0xff, sizeof(x->slot_of));
    rig_part_open(&x->part, p, xc_options, 1);
    x->ops = p->ops;
    struct kg_exec_open args = {.size = sizeof(args),
                                .model_path = xc_model,
                                .draft_path = xc_draft,
                                .world = 1,
                                .max_seqs = XC_SEQS,
                                .max_rows = XC_ROWS,
                                .max_context = XC_CONTEXT,
                                .max_draft = XC_DRAFT};
    if (x->ops->open(&x->part.host, x->part.conf, &args, &x->exec, &err) != KG_OK) {
        fail_msg("exec-%s: %s", xc_name, err.text);
    }
    x->desc.size = sizeof(x->desc);
    x->ops->describe(x->exec, &x->desc);
    assert_int_equal(x->desc.caps & ~p->caps, 0); /* no more than the plugin lists */
    make_layout(x);
    if (x->ops->bind(x->exec, &x->layout, &err) != KG_OK) {
        fail_msg("exec-%s: %s", xc_name, err.text);
    }
}

void xc_close(struct xc *x)
{
    x->ops->close(x->exec);
    rig_part_closed(&x->part);
}

/* --- sequences --- */

void xseq_init(struct xc *x, struct xseq *s, uint32_t slot, uint32_t n_prompt, uint64_t seed)
{
    memset(s, 0, sizeof(*s));
    s->slot = slot;
    s->epoch = 1;
    s->id = 100 + slot;
    s->n = s->n_prompt = n_prompt;
    rig_prompt(s->tokens, n_prompt, seed, x->desc.vocab);
    s->state = xc_take(x, KG_STATE);
    s->state_src = KG_STATE_ZERO;
    s->fresh = 1;
    s->left = XC_CONTEXT;
    s->force = KG_NONE;
}

void xseq_end(struct xc *x, struct xseq *s)
{
    x->ops->drop(x->exec, &s->slot, 1);
    for (uint32_t i = 0; i < s->n_pages; i++) {
        xc_give(x, KG_PAGE, s->pages[i]);
    }
    xc_give(x, KG_STATE, s->state);
}

struct kg_seq xseq_next(struct xc *x, struct xseq *s)
{
    uint32_t page = x->layout.page_tokens;

    while (s->n_pages * page < s->past + s->rows) {
        s->pages[s->n_pages++] = xc_take(x, KG_PAGE);
    }
    const uint32_t *tokens = s->tokens + s->past;
    if (s->n_draft > 0) {
        s->row_tokens[0] = tokens[0];
        for (uint32_t k = 0; k < s->n_draft; k++) {
            s->row_tokens[1 + k] = s->drafts != NULL ? s->drafts[k] : 0;
        }
        tokens = s->row_tokens;
    }
    struct kg_seq q = {.slot = s->slot,
                       .epoch = s->epoch,
                       .id = s->id,
                       .flags = s->flags,
                       .past = s->past,
                       .n_rows = s->rows,
                       .n_draft = s->n_draft,
                       .tokens = tokens,
                       .pages = s->pages + s->n_sent,
                       .n_pages = s->n_pages - s->n_sent,
                       .state = s->state,
                       .state_src = KG_STATE_KEEP,
                       .n_orders = s->n_orders,
                       .orders = s->orders,
                       .left = s->left,
                       .force_accept = s->force};
    if (s->past + s->rows - s->n_draft == s->n) {
        q.flags |= KG_SEQ_SAMPLE;
    }
    if (s->fresh) {
        q.flags |= KG_SEQ_RESET;
        q.state_src = s->state_src;
        q.history = s->tokens;
        q.n_history = s->n;
        q.output_start = s->n_prompt;
        q.sampling = &s->sampling;
    }
    return q;
}

int xc_run(struct xc *x, struct xseq *const *seqs, uint32_t n, struct kg_error *err)
{
    struct kg_seq q[XC_SEQS];
    struct kg_batch batch = {.size = sizeof(batch), .step = ++x->step, .seqs = q, .n_seqs = n};
    struct kg_result result = {.size = sizeof(result)};

    for (uint32_t i = 0; i < n; i++) {
        q[i] = xseq_next(x, seqs[i]);
        batch.n_rows += q[i].n_rows;
    }
    int rc = x->ops->submit(x->exec, &batch, err);
    if (rc == KG_OK) {
        rc = x->ops->wait(x->exec, &result, err);
    }
    if (rc != KG_OK) {
        return rc;
    }
    assert_int_equal(result.step, x->step);
    assert_int_equal(result.n_seqs, n);
    for (uint32_t i = 0; i < n; i++) {
        struct xseq *s = seqs[i];
        s->res = result.seqs[i];
        assert_int_equal(s->res.id, s->id);
        assert_int_equal(s->res.slot, s->slot);
        assert_int_equal(s->res.epoch, s->epoch);
        if (s->res.flags & KG_RES_NAN) {
            continue;
        }
        for (uint32_t k = 0; k < s->res.n_tokens; k++) {
            s->tokens[s->n++] = s->res.tokens[k];
        }
        s->past = s->res.past;
        s->n_sent = s->n_pages;
        s->fresh = s->n_draft = s->n_orders = s->flags = 0;
    }
    return KG_OK;
}

void xc_one(struct xc *x, struct xseq *s, uint32_t rows)
{
    struct kg_error err = {0};

    s->rows = rows;
    if (xc_run(x, &s, 1, &err) != KG_OK) {
        fail_msg("refused: %s", err.text);
    }
    assert_int_equal(s->res.flags & KG_RES_NAN, 0);
}

void xc_generate(struct xc *x, struct xseq *s, uint32_t chunk, uint32_t n_output)
{
    uint32_t goal = s->n;

    while (s->past < goal) {
        uint32_t rows = goal - s->past < chunk ? goal - s->past : chunk;
        xc_one(x, s, rows);
    }
    while (s->n < s->n_prompt + n_output) {
        xc_one(x, s, 1);
    }
}

/* Bytes of token t in a page, span by span: layers may lie apart. */
static void assert_same_token(const struct xc *x, const uint8_t *p, const uint8_t *q, uint32_t t)
{
    const struct kg_view *v;
    uint32_t n;

    assert_int_equal(x->ops->views(x->exec, &v, &n), KG_OK);
    for (uint32_t i = 0; i < n; i++) {
        if (v[i].kind == KG_PAGE) {
            uint64_t at = v[i].offset + t * v[i].token_stride;
            assert_memory_equal(p + at, q + at, v[i].n * kg_dtype_bytes(v[i].dtype));
        }
    }
}

void xc_assert_same(struct xc *x, const struct xseq *a, const struct xseq *b)
{
    uint32_t page = x->layout.page_tokens;

    assert_int_equal(a->n, b->n);
    assert_int_equal(a->past, b->past);
    assert_memory_equal(a->tokens, b->tokens, a->n * sizeof(uint32_t));
    uint8_t *p = xc_read(x, KG_STATE, a->state), *q = xc_read(x, KG_STATE, b->state);
    assert_memory_equal(p, q, x->natural[KG_STATE]);
    free(p);
    free(q);
    for (uint32_t t = 0; t < a->past && (x->desc.caps & KG_EXEC_CAP_VIEWS); t++) {
        p = xc_read(x, KG_PAGE, a->pages[t / page]);
        q = xc_read(x, KG_PAGE, b->pages[t / page]);
        assert_same_token(x, p, q, t % page); /* rows behind the committed ones are nobody's */
        free(p);
        free(q);
    }
}
