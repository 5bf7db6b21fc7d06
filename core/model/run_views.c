#include "model/run.h"

static uint32_t mla_views(const struct kg_exec *e, struct kg_view *v)
{
    const struct kg_model_config *c = kg_model_local(e->model);
    uint32_t n = 0;

    for (uint32_t l = 0; l < c->n_layers; l++) {
        if (c->layer_kind[l] != KG_LAYER_MLA)
            continue;
        v[n] = (struct kg_view){
            .name = "mla",
            .kind = KG_PAGE,
            .layer = l,
            .dtype = e->kernels->state_dtype,
            .offset = (uint64_t)n * e->arena.layout.page_tokens * e->sizes.record_bytes,
            .token_stride = e->sizes.record_bytes,
            .n = (uint64_t)c->kv_lora + c->rope_dim,
        };
        n++;
    }
    return n;
}

/* The drafter's records, by draft layer. */
static uint32_t draft_views(const struct kg_exec *e, struct kg_view *v)
{
    const struct kg_model_config *c;
    uint64_t page_tokens = e->arena.layout.page_tokens;

    if (e->draft.ckpt == NULL)
        return 0;
    c = &e->draft.ckpt->config.net;
    for (uint32_t l = 0; l < c->n_layers; l++) {
        v[l] = (struct kg_view){
            .name = "draft",
            .kind = KG_PAGE,
            .layer = l,
            .dtype = e->kernels->state_dtype,
            .offset = page_tokens * (e->sizes.token_bytes + l * e->draft.sizes.record_bytes),
            .token_stride = e->draft.sizes.record_bytes,
            .n = (uint64_t)c->kv_lora + c->rope_dim,
        };
    }
    return c->n_layers;
}

static void kda_views(const struct kg_exec *e, struct kg_view *v)
{
    const struct kg_model_config *c = kg_model_local(e->model);
    const struct kg_pool_layout *layout = &e->arena.layout;
    uint32_t part = 0;

    for (uint32_t l = 0; l < c->n_layers; l++) {
        if (c->layer_kind[l] != KG_LAYER_KDA)
            continue;
        v[0] = (struct kg_view){
            .name = "recurrent",
            .kind = KG_STATE,
            .layer = l,
            .dtype = KG_F32,
            .entry = part / layout->parts_per_slot,
            .offset = part % layout->parts_per_slot * e->sizes.state_part_bytes,
            .n = (uint64_t)c->kda_heads * c->kda_dim * c->kda_dim,
        };
        v[1] = v[0];
        v[1].name = "conv";
        v[1].dtype = e->kernels->state_dtype;
        v[1].offset += e->sizes.conv_offset;
        v[1].n = (uint64_t)3 * 3 * kg_kda_width(c);
        v += 2;
        part++;
    }
}

int kg_run_views_open(struct kg_exec *e, struct kg_error *err)
{
    const struct kg_model_config *c = kg_model_local(e->model);
    uint32_t n = c->n_mla_layers + 2 * c->n_kda_layers;
    struct kg_view *at;

    if (e->draft.ckpt != NULL)
        n += e->draft.ckpt->config.net.n_layers;

    e->views = e->host->alloc(e->host->ctx, n * sizeof(*e->views), 64);
    if (e->views == NULL)
        return kg_fail(err, KG_ENOMEM, "no memory for %u views", n);
    e->n_views = n;
    at = e->views + mla_views(e, e->views);
    at += draft_views(e, at);
    kda_views(e, at);
    return KG_OK;
}
