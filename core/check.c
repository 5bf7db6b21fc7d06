#include "check.h"

#include <kedge/spec.h>
#include <kedge/tier.h>
#include <string.h>

/* Of the plugin, or for one that may take its place. */
uint64_t kg_check_draft_rows(const struct kg_check *k)
{
    const struct kg_engine_conf *e = &k->stack->conf->engine;
    uint32_t block = kg_stack_block(k->stack), most = e->max_draft;

    most = k->stack->desc.caps & KG_EXEC_CAP_VERIFY ? most : 0;
    most = most < k->stack->desc.max_draft ? most : k->stack->desc.max_draft;
    most = most < e->step_tokens - 1 ? most : e->step_tokens - 1;
    return block > most ? block : most;
}

int kg_check_fits(const struct kg_check *k, struct kg_pool *pool, uint64_t pages, uint64_t states)
{
    const struct kg_pool_ops *ops = k->stack->parts.pool_ops;
    static const uint32_t nothing[KG_N_KINDS] = {0, 0};
    struct kg_shortage shortage;
    uint32_t grant;

    if (pages >= KG_NONE || states >= KG_NONE)
        return 0;
    const uint32_t need[KG_N_KINDS] = {[KG_PAGE] = (uint32_t)pages, [KG_STATE] = (uint32_t)states};
    if (ops->grant_open(pool, need, nothing, &grant, &shortage) != KG_OK)
        return 0;
    ops->grant_close(pool, grant);
    return 1;
}

/* Whether n requests of `tokens` tokens, draft rows included, hold memory at once: the pool's own
 * answer to a grant. */
static int fits(const struct kg_check *k, struct kg_pool *pool, uint64_t n, uint64_t tokens)
{
    uint64_t rows = tokens + kg_check_draft_rows(k);

    return kg_check_fits(k, pool, n * ((rows + k->layout.page_tokens - 1) / k->layout.page_tokens),
                         n);
}

/* The largest value up to `most` for which it still fits; requests or tokens are searched. */
static uint32_t search(const struct kg_check *k, struct kg_pool *pool, uint32_t most,
                       uint32_t tokens)
{
    uint32_t lo = 0;
    uint32_t hi = most;

    while (lo < hi) {
        uint32_t mid = lo + (hi - lo + 1) / 2;
        int ok = tokens != 0 ? fits(k, pool, mid, tokens) : fits(k, pool, 1, mid);
        if (ok)
            lo = mid;
        else
            hi = mid - 1;
    }
    return lo;
}

static void warn_config(struct kg_check *k)
{
    (void)kg_buf_puts(&k->warnings, kg_config_warnings(k->config));
}

/* The length a request commonly has, as a share of the longest: index into fits. */
#define TYPICAL 2

static void warn_padding(struct kg_check *k, const char *kind, uint64_t natural, uint64_t takes)
{
    if (takes - natural <= takes / 20)
        return;
    (void)kg_buf_printf(&k->warnings, "a %s of %llu bytes takes %llu: %.0f %% of it is padding\n",
                        kind, (unsigned long long)natural, (unsigned long long)takes,
                        100.0 * (double)(takes - natural) / (double)takes);
}

static void warn_memory(struct kg_check *k)
{
    const struct kg_engine_conf *e = &k->stack->conf->engine;
    struct kg_buf *w = &k->warnings;

    if (k->max_tokens < k->context)
        (void)kg_buf_printf(w,
                            "[memory] bytes = %llu: a request can hold %u tokens, not the %u the "
                            "model allows; longer ones are refused\n",
                            (unsigned long long)e->arena_bytes, k->max_tokens, k->context);
    if (k->fits[TYPICAL].requests < e->max_seqs && k->fits[TYPICAL].tokens != 0)
        (void)kg_buf_printf(w,
                            "[engine] max_seqs = %u: only %u requests of %u tokens fit at once, "
                            "others wait or are preempted\n",
                            e->max_seqs, k->fits[TYPICAL].requests, k->fits[TYPICAL].tokens);
    if (k->layout.page_tokens != e->page_tokens)
        (void)kg_buf_printf(w, "[memory] page_tokens = %u: the pool uses %u\n", e->page_tokens,
                            k->layout.page_tokens);
    if (e->prefix && k->context <= k->layout.page_tokens)
        (void)kg_buf_printf(w,
                            "[prefix] enabled: a request has %u tokens at most and a page %u, so "
                            "nothing is ever reused; lower [memory] page_tokens\n",
                            k->context, k->layout.page_tokens);
    warn_padding(k, "page", k->page_bytes, k->layout.unit_bytes[KG_PAGE]);
    warn_padding(k, "state", k->state_bytes, k->layout.unit_bytes[KG_STATE]);
    if (k->bytes.padding > k->bytes.arena / 20)
        (void)kg_buf_printf(w, "%.1f %% of the memory is a rest that no unit can use\n",
                            100.0 * (double)k->bytes.padding / (double)k->bytes.arena);
}

static void warn_promises(struct kg_check *k)
{
    const uint64_t all =
        KG_EXEC_CAP_INVARIANT_BATCH | KG_EXEC_CAP_INVARIANT_CHUNK | KG_EXEC_CAP_INVARIANT_PATH;
    struct kg_buf *w = &k->warnings;
    uint64_t caps = 0;
    uint32_t accept = KG_ACCEPT_COUPLED;

    for (uint32_t i = 0; i < k->stack->n_specs; i++) {
        uint32_t rule =
            k->stack->conf->arms.n > 0 ? k->stack->arms[i].accept : k->stack->conf->engine.accept;
        caps |= k->stack->arms[i].spec_caps;
        accept = rule != KG_ACCEPT_COUPLED ? rule : accept;
    }
    if ((k->stack->desc.caps & all) != all)
        (void)kg_buf_puts(w, "the backend does not promise equal bits whatever the batch, chunk "
                             "and path: comparisons of outputs rest on less\n");
    if ((k->stack->desc.caps & KG_EXEC_CAP_VIRTUAL) != 0)
        (void)kg_buf_puts(w, "the backend's clock is virtual: good for experiments, kedge serve "
                             "refuses it\n");
    if ((caps & KG_SPEC_CAP_COST) != 0 && strcmp(k->stack->conf->cost, "off") == 0)
        (void)kg_buf_puts(w, "speculation decides better when it knows what a step costs: "
                             "[engine] cost = measured\n");
    if (accept != KG_ACCEPT_COUPLED)
        (void)kg_buf_puts(w, "[spec] accept: at temperature above 0 an answer is equal to plain "
                             "decoding only in distribution; a seed does not repeat it\n");
}

/* What the tier may keep. It is opened as if copies were a byte each: this is about sizes, and the
 * engine's own may be open beside it. */
static int look_at_tier(struct kg_check *k, struct kg_error *err)
{
    const struct kg_engine_parts *p = &k->stack->parts;
    const uint64_t both = k->page_bytes + k->state_bytes;
    const struct kg_tier_geom geom = {
        .size = sizeof(geom), .unit_bytes = {k->page_bytes, k->state_bytes}, .copy_bytes = {1, 1}};
    struct kg_tier *tier = NULL;
    uint64_t used = 0;

    if (p->tier_ops == NULL || !k->stack->conf->engine.prefix)
        return KG_OK;
    int rc = p->tier_ops->open(p->tier_host, p->tier_conf, &geom, &tier, err);
    if (rc != KG_OK)
        return rc;
    p->tier_ops->bytes(tier, &used, &k->tier_bytes);
    p->tier_ops->close(tier);
    if (k->tier_bytes < both)
        (void)kg_buf_printf(&k->warnings,
                            "[tier-%s]: its %llu bytes do not hold a page and a state, %llu: "
                            "nothing ever comes back from it\n",
                            kg_config_choice(k->config, KG_KIND_TIER)->ref.plugin->name,
                            (unsigned long long)k->tier_bytes, (unsigned long long)both);
    return KG_OK;
}

int kg_check_gather(struct kg_check *check, struct kg_config *config, struct kg_stack *stack,
                    uint32_t mean_length, uint32_t states, struct kg_error *err)
{
    static const uint32_t shares[KG_CHECK_FITS] = {1, 4, 16, 64, 256};
    const struct kg_engine_conf *e = &stack->conf->engine;
    const struct kg_exec_desc *d = &stack->desc;
    struct kg_check_size typical = {0};
    struct kg_pool *pool;

    memset(check, 0, sizeof(*check));
    check->config = config;
    check->stack = stack;
    kg_buf_init(&check->warnings, 1 << 20);
    int rc = kg_stack_pool(stack, &pool, &check->layout, err);
    if (rc != KG_OK)
        return rc;
    stack->parts.pool_ops->bytes(pool, &check->bytes);
    check->page_bytes = (uint64_t)check->layout.page_tokens * d->token_bytes;
    check->state_bytes = (uint64_t)d->n_state_parts * d->state_part_bytes;
    check->context = d->max_context;
    if (e->max_context != 0 && e->max_context < check->context)
        check->context = e->max_context;
    check->max_tokens = search(check, pool, check->context, 0);
    for (size_t i = 0; i < KG_CHECK_FITS; i++) {
        uint32_t tokens = check->max_tokens / shares[i];
        if (tokens == 0)
            break;
        check->fits[i].tokens = tokens;
        check->fits[i].requests = search(check, pool, e->max_seqs, tokens);
    }
    if (mean_length > 0)
        kg_check_size(check, pool, mean_length, states, &check->size);
    else if (check->fits[TYPICAL].tokens > 0)
        kg_check_size(check, pool, check->fits[TYPICAL].tokens, states, &typical);
    stack->parts.pool_ops->close(pool);
    warn_config(check);
    warn_memory(check);
    if (mean_length > 0)
        kg_check_size_warn(check, &check->size, 0);
    else if (typical.tokens > 0)
        kg_check_size_warn(check, &typical, 1);
    warn_promises(check);
    rc = kg_check_deal(check, err);
    if (rc == KG_OK)
        rc = kg_check_comm(check, err);
    return rc == KG_OK ? look_at_tier(check, err) : rc;
}

void kg_check_fini(struct kg_check *check)
{
    kg_comm_times_fini(&check->times);
    kg_buf_fini(&check->warnings);
}
