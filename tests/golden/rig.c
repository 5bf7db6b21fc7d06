#include "rig.h"

#include "rig_ranks.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void deal_units(struct rig *r)
{
    uint32_t n_pages = RIG_SEQS * r->pages_per_seq;

    for (uint32_t i = 0; i < n_pages; i++) {
        r->pages[i] = (i * 7) % n_pages;
        r->page_table[i] = n_pages - 1 - i;
    }
    for (uint32_t i = 0; i < RIG_STATES; i++)
        r->state_table[i] = (i + 5) % RIG_STATES;
}

static uint32_t coprime_pages(uint32_t n)
{
    while (RIG_SEQS * n % 7 == 0)
        n++;
    return n;
}

static int rig_units(struct rig *r, uint32_t max_tokens)
{
    struct kg_pool_layout *l = &r->units.layout;
    uint32_t n_pages;

    r->pages_per_seq = coprime_pages((max_tokens + r->page_tokens - 1) / r->page_tokens);
    n_pages = RIG_SEQS * r->pages_per_seq;
    l->page_tokens = r->page_tokens;
    l->slots_per_state = 1;
    l->parts_per_slot = r->ckpt->config.n_kda_layers;
    l->stride[KG_STATE] = r->sizes.state_part_bytes * l->parts_per_slot;
    l->stride[KG_PAGE] =
        ((r->sizes.token_bytes + r->draft_sizes.token_bytes) * r->page_tokens + 63) / 64 * 64;
    l->base[KG_PAGE] = l->stride[KG_STATE] * RIG_STATES;
    l->arena_bytes = l->base[KG_PAGE] + l->stride[KG_PAGE] * n_pages;
    r->units.arena = aligned_alloc(64, l->arena_bytes);
    r->page_table = calloc(n_pages, sizeof(uint32_t));
    r->pages = calloc(n_pages, sizeof(uint32_t));
    r->state_table = calloc(RIG_STATES, sizeof(uint32_t));
    if (r->units.arena == NULL || r->page_table == NULL || r->pages == NULL ||
        r->state_table == NULL)
        return 0;
    memset(r->units.arena, 0xff, l->arena_bytes); /* NaN: nothing unwritten may be read */
    deal_units(r);
    r->units.table[KG_PAGE] = r->page_table;
    r->units.table[KG_STATE] = r->state_table;
    return 1;
}

static int open_drafter(struct rig *r, const struct rig_options *o, struct kg_error *err)
{
    struct kg_drafter_args args = {.kernels = r->k,
                                   .team = r->team,
                                   .target = r->model,
                                   .ckpt = r->draft_ckpt,
                                   .max_rows = o->max_rows,
                                   .max_seqs = RIG_SEQS};

    if (kg_drafter_open(&args, &r->drafter, err) < 0)
        return 0;
    kg_drafter_sizes(r->drafter, &r->draft_sizes);
    return 1;
}

const float *rig_draft_record(const struct rig *r, uint32_t seq, uint32_t layer, uint32_t token)
{
    uint32_t page = r->pages[(size_t)seq * r->pages_per_seq + token / r->page_tokens];
    const uint8_t *at = r->units.arena + r->units.layout.base[KG_PAGE] +
                        r->page_table[page] * r->units.layout.stride[KG_PAGE];

    at += r->page_tokens * (r->sizes.token_bytes + layer * r->draft_sizes.record_bytes);
    at += token % r->page_tokens * r->draft_sizes.record_bytes;
    return (const float *)(const void *)at;
}

int rig_open(struct rig *r, const struct rig_options *o)
{
    return o->world > 1 ? rig_ranks_open(r, o) : rig_open_rank(r, o, NULL, NULL, 0);
}

int rig_open_rank(struct rig *r, const struct rig_options *o, const struct kg_comm_ops *ops,
                  struct kg_comm *comm, uint32_t rank)
{
    struct kg_model_args args = {.max_rows = o->max_rows,
                                 .max_seqs = RIG_SEQS,
                                 .max_orders = 8,
                                 .deal = {rank, o->world, o->ep, o->idle},
                                 .sp_rows = o->sp_rows,
                                 .comm_ops = ops,
                                 .comm = comm};
    struct kg_error err = {0};

    memset(r, 0, sizeof(*r));
    r->world = 1;
    r->others[0] = r;
    r->spoil = o->spoil;
    r->k = kg_kernels_cpu(o->math, o->isa);
    r->page_tokens = o->page_tokens;
    if (kg_ckpt_open(o->model, &r->ckpt, &err) < 0 ||
        kg_team_create(o->threads, &r->team, &err) < 0)
        goto failed;
    args.kernels = r->k;
    args.team = r->team;
    args.ckpt = r->ckpt;
    if (o->draft != NULL) {
        if (kg_draft_ckpt_open(o->draft, &r->ckpt->config, o->model, &r->draft_ckpt, &err) < 0)
            goto failed;
        if (o->change != NULL)
            o->change(&r->draft_ckpt->config);
        args.draft = &r->draft_ckpt->config;
    }
    if (kg_model_open(&args, &r->model, &err) < 0)
        goto failed;
    kg_model_sizes(r->model, &r->sizes);
    if (o->draft != NULL && !open_drafter(r, o, &err))
        goto failed;
    if (rig_units(r, o->max_tokens))
        return 1;

failed:
    printf("%s: %s\n", o->model, err.text);
    rig_close(r);
    return 0;
}

void rig_close(struct rig *r)
{
    if (r->ranks != NULL) {
        rig_ranks_close(r);
        return;
    }
    kg_drafter_close(r->drafter);
    kg_model_close(r->model);
    kg_draft_ckpt_close(r->draft_ckpt);
    kg_team_destroy(r->team);
    kg_ckpt_close(r->ckpt);
    free(r->units.arena);
    free(r->page_table);
    free(r->pages);
    free(r->state_table);
    memset(r, 0, sizeof(*r));
}

void rig_rows(struct rig *r, uint32_t seq, const uint32_t *tokens, uint32_t n, uint32_t n_logits,
              const struct kg_order *orders, uint32_t n_orders)
{
    uint32_t *out_rows = calloc(n_logits + 1, sizeof(uint32_t));
    struct kg_forward_seq s = {.n_rows = n,
                               .past = r->past[seq],
                               .pages = r->pages + (size_t)seq * r->pages_per_seq,
                               .state = seq,
                               .state_src = r->past[seq] == 0 ? KG_STATE_ZERO : KG_STATE_KEEP,
                               .orders = orders,
                               .n_orders = n_orders};
    struct kg_forward f = {.units = &r->units,
                           .tokens = tokens,
                           .seqs = &s,
                           .out_rows = out_rows,
                           .n_rows = n,
                           .n_seqs = 1,
                           .n_out = n_logits,
                           .n_logits = n_logits};

    assert_non_null(out_rows);
    for (uint32_t i = 0; i < n_logits; i++)
        out_rows[i] = n - n_logits + i;
    if (r->ranks != NULL)
        rig_ranks_forward(r, &f);
    else
        kg_model_forward(r->model, &f);
    if (r->drafter != NULL) {
        float *features = kg_model_features(r->model);
        if (r->spoil != NULL)
            r->spoil(features, n, (size_t)r->draft_ckpt->config.n_taps * r->ckpt->config.hidden);
        kg_drafter_inject(r->drafter, &r->units, features, &s, &n, 1);
    }
    r->past[seq] += n;
    free(out_rows);
}

static float load_element(const struct rig *r, const uint8_t *at, uint64_t i)
{
    uint16_t half;
    float x;

    if (r->k->state_dtype == KG_F32) {
        memcpy(&x, at + i * 4, 4);
        return x;
    }
    memcpy(&half, at + i * 2, 2);
    return kg_f32_from_bf16(half);
}

/* Head h of a state, and its channels of the window, from the rank that holds it. */
static void head_state(const struct rig *all, uint32_t state, uint32_t part, uint32_t h,
                       float *matrix, float *window)
{
    const struct kg_model_config *c = &all->ckpt->config;
    uint32_t each = kg_model_local(all->model)->kda_heads, mine = h % each;
    const struct rig *r = all->others[h / each];
    const uint8_t *at = kg_model_state_part(r->model, &r->units, state, part);
    uint32_t dim = c->kda_dim, width = kg_kda_width(kg_model_local(r->model));

    for (uint32_t v = 0; v < dim; v++) {
        for (uint32_t k = 0; k < dim; k++)
            memcpy(&matrix[((size_t)h * dim + v) * dim + k],
                   at + ((size_t)mine * dim * dim + kg_state_at(dim, dim, k, v)) * 4, 4);
    }
    at += r->sizes.conv_offset;
    for (uint32_t i = 0; i < 3; i++) {
        for (uint32_t tap = 0; tap < 3; tap++) {
            for (uint32_t d = 0; d < dim; d++)
                window[((size_t)i * 3 + tap) * kg_kda_width(c) + h * dim + d] =
                    load_element(r, at, ((size_t)tap * 3 + i) * width + mine * dim + d);
        }
    }
}

void rig_state(const struct rig *r, uint32_t state, uint32_t part, float *matrix, float *window)
{
    for (uint32_t h = 0; h < r->ckpt->config.kda_heads; h++)
        head_state(r, state, part, h, matrix, window);
}

void rig_latent(const struct rig *r, uint32_t seq, uint32_t index, uint32_t n, float *c, float *kr)
{
    uint32_t latent = r->ckpt->config.kv_lora, rope = r->ckpt->config.rope_dim;

    for (uint32_t t = 0; t < n; t++) {
        uint32_t page = r->pages[(size_t)seq * r->pages_per_seq + t / r->page_tokens];
        const uint8_t *at = kg_model_page_block(r->model, &r->units, page, index) +
                            t % r->page_tokens * r->sizes.record_bytes;
        for (uint32_t i = 0; i < latent; i++)
            c[(size_t)t * latent + i] = load_element(r, at, i);
        for (uint32_t i = 0; i < rope; i++)
            kr[(size_t)t * rope + i] = load_element(r, at, latent + i);
    }
}

uint32_t rig_index(const struct rig *r, uint32_t layer)
{
    uint32_t n = 0;

    for (uint32_t l = 0; l < layer; l++)
        n += r->ckpt->config.layer_kind[l] == r->ckpt->config.layer_kind[layer];
    return n;
}

struct rig_diff rig_compare(const float *a, const float *b, uint64_t n)
{
    struct rig_diff d = {0};
    double err = 0.0, norm = 0.0, largest = 0.0;

    for (uint64_t i = 0; i < n; i++) {
        double e = fabs((double)a[i] - (double)b[i]);
        if (!(e <= 1e300)) /* NaN included */
            e = 1e300;
        err += e * e;
        norm += (double)b[i] * b[i];
        d.mean += e / (double)n;
        d.max = e > d.max ? e : d.max;
        largest = fabs((double)b[i]) > largest ? fabs((double)b[i]) : largest;
    }
    d.l2 = norm > 0.0 ? sqrt(err / norm) : sqrt(err);
    d.rel = largest > 0.0 ? d.max / largest : d.max;
    return d;
}

static const struct kg_st_tensor *golden(const struct kg_st *st, const char *name, uint32_t dtype,
                                         uint64_t n)
{
    const struct kg_st_tensor *t = kg_st_find(st, name);

    if (t == NULL)
        fail_msg("no tensor %s in the golden file", name);
    else if (t->dtype != dtype || t->bytes != n * 4)
        fail_msg("golden %s has %llu bytes of %s, wanted %llu", name, (unsigned long long)t->bytes,
                 kg_st_dtype_name(t->dtype), (unsigned long long)(n * 4));
    return t;
}

const float *rig_golden(const struct kg_st *st, const char *name, uint64_t n)
{
    return golden(st, name, KG_F32, n)->data;
}

const int32_t *rig_golden_ids(const struct kg_st *st, const char *name, uint64_t n)
{
    return golden(st, name, KG_I32, n)->data;
}

uint32_t *rig_ids(const json_t *object, const char *key, uint32_t *n)
{
    const json_t *list = json_object_get(object, key);
    uint32_t *ids;

    *n = (uint32_t)json_array_size(list);
    ids = calloc(*n + 1, sizeof(uint32_t));
    assert_non_null(ids);
    for (uint32_t i = 0; i < *n; i++)
        ids[i] = (uint32_t)json_integer_value(json_array_get(list, i));
    return ids;
}
