#include "model/forward.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define HUGE_PAGE ((size_t)2 << 20)

static void *alloc_aligned(const struct kg_host *host, uint64_t bytes, size_t align)
{
    void *p = NULL;

    if (bytes == 0 || bytes > SIZE_MAX - align)
        return NULL;
    if (host != NULL)
        return host->alloc(host->ctx, (size_t)bytes, align);
    return posix_memalign(&p, align, (size_t)bytes) == 0 ? p : NULL;
}

void *kg_model_alloc(const struct kg_host *host, uint64_t bytes)
{
    return alloc_aligned(host, bytes, KG_MODEL_ALIGN);
}

void *kg_model_alloc_weights(const struct kg_host *host, uint64_t bytes)
{
    void *p;

    if (bytes < 2 * HUGE_PAGE)
        return kg_model_alloc(host, bytes);
    p = alloc_aligned(host, bytes, HUGE_PAGE);
    /* A wish: without it the same bytes are read, only slower. */
    if (p != NULL)
        (void)madvise(p, (size_t)(bytes / HUGE_PAGE * HUGE_PAGE), MADV_HUGEPAGE);
    return p;
}

void kg_model_free(const struct kg_host *host, void *p, uint64_t bytes)
{
    if (p == NULL)
        return;
    if (host != NULL)
        host->free(host->ctx, p, (size_t)bytes);
    else
        free(p);
}

void *kg_model_take(const struct kg_model *m, uint64_t bytes)
{
    if (m->memory == NULL)
        return kg_model_alloc(m->host, bytes);
    return kg_memory_alloc(m->memory, m->host, bytes, KG_MODEL_ALIGN);
}

void kg_model_give(const struct kg_model *m, void *p, uint64_t bytes)
{
    if (m->memory == NULL)
        kg_model_free(m->host, p, bytes);
    else
        kg_memory_free(m->memory, m->host, p, bytes);
}

static int check_config(const struct kg_model_config *c, struct kg_error *err)
{
    if (c->n_kda_layers == 0 || c->n_mla_layers == 0)
        return kg_fail(err, KG_EINVAL,
                       "%u KDA and %u MLA layers: this backend needs at least one of each",
                       c->n_kda_layers, c->n_mla_layers);
    if (c->conv_taps != 4)
        return kg_fail(err, KG_EINVAL, "short_conv_kernel_size %u: the kernels do 4", c->conv_taps);
    if (c->kda_dim > 512)
        return kg_fail(err, KG_EINVAL, "linear_attn head_dim %u: the kernels do at most 512",
                       c->kda_dim);
    if ((uint64_t)c->kv_lora + c->rope_dim > KG_MLA_MAX)
        return kg_fail(err, KG_EINVAL, "kv_lora_rank %u and rope %u: the kernels do at most %u",
                       c->kv_lora, c->rope_dim, KG_MLA_MAX);
    if (c->n_experts > 0 && !c->renormalize)
        return kg_fail(err, KG_EINVAL, "moe_renormalize false: the kernels always renormalize");
    if (c->block_layers != 0 && (c->n_layers - 1) / c->block_layers + 2 > KG_MIX_MAX)
        return kg_fail(err, KG_EINVAL,
                       "attn_res_block_size %u in %u layers: the kernels mix at most %u sources",
                       c->block_layers, c->n_layers, KG_MIX_MAX);
    return KG_OK;
}

static void set_sizes(struct kg_model *m)
{
    const struct kg_model_config *c = m->c;
    uint64_t elem = kg_dtype_bytes(m->k->state_dtype);
    uint64_t recurrent = (uint64_t)c->kda_heads * c->kda_dim * c->kda_dim * sizeof(float);
    uint64_t conv = (uint64_t)3 * 3 * kg_kda_width(c) * elem;

    m->sizes.record_bytes = (uint64_t)(c->kv_lora + c->rope_dim) * elem;
    m->sizes.token_bytes = m->sizes.record_bytes * c->n_mla_layers;
    m->sizes.recurrent_bytes = recurrent * c->n_kda_layers;
    m->sizes.conv_offset = recurrent;
    m->sizes.state_part_bytes =
        (recurrent + conv + KG_MODEL_ALIGN - 1) / KG_MODEL_ALIGN * KG_MODEL_ALIGN;
}

int kg_model_open(const struct kg_model_args *args, struct kg_model **model, struct kg_error *err)
{
    const struct kg_model_config *c = &args->ckpt->config;
    struct kg_model *m;
    int rc = check_config(c, err);

    if (rc < 0)
        return rc;
    if (args->max_rows == 0 || args->max_seqs == 0)
        return kg_fail(err, KG_EINVAL, "max_rows %u and max_seqs %u must be at least 1",
                       args->max_rows, args->max_seqs);
    m = kg_model_alloc(args->host, sizeof(*m));
    if (m == NULL)
        return kg_fail(err, KG_ENOMEM, "no memory for a model");
    memset(m, 0, sizeof(*m));
    m->host = args->host;
    m->k = args->kernels;
    m->team = args->team;
    m->memory = args->memory;
    m->pack_team = args->memory == NULL ? args->team : args->pack_team;
    m->c = &m->local;
    m->max_rows = args->max_rows;
    m->max_seqs = args->max_seqs;
    m->max_orders = args->max_orders;
    m->max_verify = args->max_verify;
    m->rewind = args->rewind;
    m->draft = args->draft;
    m->sp_rows = args->sp_rows;
    m->n_streams = c->block_layers == 0 ? 1 : (c->n_layers - 1) / c->block_layers + 2;
    rc = kg_model_split(c, &args->deal, &m->split, &m->local, err);
    if (rc != KG_OK) {
        kg_model_free(m->host, m, sizeof(*m));
        return rc;
    }
    set_sizes(m);
    m->layers = kg_model_alloc(m->host, c->n_layers * sizeof(*m->layers));
    if (m->layers == NULL) {
        rc = kg_fail(err, KG_ENOMEM, "no memory for %u layers", c->n_layers);
        goto err_close;
    }
    memset(m->layers, 0, c->n_layers * sizeof(*m->layers));
    rc = kg_model_join(m, args, err); /* first: too little is said before weights are read */
    if (rc == KG_OK)
        rc = kg_model_pack(m, args->ckpt, err);
    if (rc == KG_OK)
        rc = kg_model_scratch(m, err);
    if (rc < 0)
        goto err_close;
    *model = m;
    return KG_OK;

err_close:
    kg_model_close(m);
    return rc;
}

void kg_model_close(struct kg_model *m)
{
    if (m == NULL)
        return;
    kg_model_give(m, m->rewind_mem, m->sizes.rewind_bytes);
    kg_model_give(m, m->scratch_mem, m->scratch_bytes);
    kg_model_give(m, m->weight_mem, m->sizes.weight_bytes);
    kg_model_free(m->host, m->scratch_lists, m->scratch_list_bytes);
    kg_model_free(m->host, m->weight_lists, m->weight_list_bytes);
    kg_model_free(m->host, m->layers, m->c->n_layers * sizeof(*m->layers));
    kg_model_free(m->host, m, sizeof(*m));
}

void kg_model_sizes(const struct kg_model *m, struct kg_model_sizes *sizes)
{
    *sizes = m->sizes;
}

uint8_t *kg_model_state_part(const struct kg_model *m, const struct kg_model_units *u,
                             uint32_t state, uint32_t part)
{
    const struct kg_pool_layout *l = &u->layout;
    size_t entry = (size_t)state * l->slots_per_state + part / l->parts_per_slot;
    uint64_t slot = u->table[KG_STATE][entry];

    return u->arena + l->base[KG_STATE] + slot * l->stride[KG_STATE] +
           part % l->parts_per_slot * m->sizes.state_part_bytes;
}

uint8_t *kg_model_page_block(const struct kg_model *m, const struct kg_model_units *u,
                             uint32_t page, uint32_t index)
{
    const struct kg_pool_layout *l = &u->layout;
    uint64_t slot = u->table[KG_PAGE][page];

    return u->arena + l->base[KG_PAGE] + slot * l->stride[KG_PAGE] +
           (uint64_t)index * l->page_tokens * m->sizes.record_bytes;
}

const float *kg_model_hidden(const struct kg_model *m)
{
    return m->s.hidden;
}

const float *kg_model_logits(const struct kg_model *m)
{
    return m->s.logits;
}

float *kg_model_features(struct kg_model *m)
{
    return m->s.features;
}

void kg_model_set_tap(struct kg_model *m, const struct kg_tap *tap)
{
    if (tap == NULL)
        memset(&m->tap, 0, sizeof(m->tap));
    else
        m->tap = *tap;
}
