#include "check.h"
#include "engine/index_policy.h"

#include <string.h>

/* Bytes with a unit people read: "256 MiB", "48.5 KiB". */
static void put_bytes(struct kg_buf *b, uint64_t n)
{
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
    double v = (double)n;
    size_t i = 0;

    while (v >= 1024 && i < 4) {
        v /= 1024;
        i++;
    }
    (void)kg_buf_printf(b, v == (double)(uint64_t)v ? "%.0f %s" : "%.1f %s", v, units[i]);
}

static void put_line(struct kg_buf *b, const char *name)
{
    (void)kg_buf_printf(b, "%-12s ", name);
}

static void text_model(const struct kg_check *k, struct kg_buf *b)
{
    const struct kg_exec_desc *d = &k->stack->desc;
    const char *path = k->stack->conf->model_path;

    put_line(b, "model");
    (void)kg_buf_printf(b, "%s, %u layers (%u KDA, %u MLA), vocabulary %u, context %u tokens\n",
                        d->family, d->n_layers, d->n_kda_layers, d->n_mla_layers, d->vocab,
                        k->context);
    put_line(b, "");
    (void)kg_buf_printf(b, "%s, weights ", path[0] != '\0' ? path : "no checkpoint");
    put_bytes(b, d->weight_bytes);
    (void)kg_buf_puts(b, ", scratch ");
    put_bytes(b, d->scratch_bytes);
    (void)kg_buf_putc(b, '\n');
}

static void text_compute(const struct kg_check *k, struct kg_buf *b)
{
    const struct kg_exec_desc *d = &k->stack->desc;

    put_line(b, "compute");
    (void)kg_buf_printf(b, "%s%s%s\n", d->kernels, d->math[0] != '\0' ? ", math " : "", d->math);
    put_line(b, "promise");
    (void)kg_buf_printf(b,
                        "bits independent of batch: %s, of prefill chunks: %s, of the path: %s\n",
                        (d->caps & KG_EXEC_CAP_INVARIANT_BATCH) != 0 ? "yes" : "no",
                        (d->caps & KG_EXEC_CAP_INVARIANT_CHUNK) != 0 ? "yes" : "no",
                        (d->caps & KG_EXEC_CAP_INVARIANT_PATH) != 0 ? "yes" : "no");
}

static void text_plugins(const struct kg_check *k, struct kg_buf *b)
{
    for (uint32_t kind = KG_KIND_POOL; kind < KG_PLUGIN_KINDS; kind++) {
        const struct kg_choice *c = kg_config_choice(k->config, kind);
        const struct kg_plugin *p = c->ref.plugin;
        if (p == NULL)
            continue;
        put_line(b, kg_plugin_kind_name(kind));
        (void)kg_buf_printf(b, "%s %s: %s", p->name, p->version, p->summary);
        if (kind == KG_KIND_COMM && k->stack->conf->tp == 1)
            (void)kg_buf_puts(b, " (one rank: not called)");
        (void)kg_buf_puts(b, "\n");
        put_line(b, "");
        (void)kg_buf_puts(b, "can ");
        uint64_t caps = kg_plugin_caps_of(p, c->conf);
        if (caps != 0)
            kg_plugin_caps(kind, caps, b);
        else
            (void)kg_buf_puts(b, "nothing beyond its kind");
        (void)kg_buf_putc(b, '\n');
    }
}

static void text_memory(const struct kg_check *k, struct kg_buf *b)
{
    const struct kg_pool_layout *l = &k->layout;
    const struct kg_exec_desc *d = &k->stack->desc;

    put_line(b, "memory");
    put_bytes(b, l->arena_bytes);
    (void)kg_buf_printf(b, " (%llu bytes), padding ", (unsigned long long)l->arena_bytes);
    put_bytes(b, k->bytes.padding);
    (void)kg_buf_putc(b, '\n');
    put_line(b, "page");
    (void)kg_buf_printf(b, "%u tokens of %llu bytes = ", l->page_tokens,
                        (unsigned long long)d->token_bytes);
    put_bytes(b, k->page_bytes);
    (void)kg_buf_puts(b, ", takes ");
    put_bytes(b, l->unit_bytes[KG_PAGE]);
    (void)kg_buf_printf(b, "; at most %u\n", l->max_units[KG_PAGE]);
    if (d->draft_token_bytes != 0) {
        put_line(b, "drafter");
        (void)kg_buf_printf(b, "blocks of %u; %llu bytes of each token in a page", d->draft_block,
                            (unsigned long long)d->draft_token_bytes);
        if (d->draft_weight_bytes != 0) {
            (void)kg_buf_puts(b, ", weights ");
            put_bytes(b, d->draft_weight_bytes);
        }
        if (d->draft_q_bytes != 0) {
            (void)kg_buf_puts(b, "; probabilities of drafts, under rejection and block, at most ");
            put_bytes(b, d->draft_q_bytes);
        }
        (void)kg_buf_putc(b, '\n');
    }
    put_line(b, "state");
    (void)kg_buf_printf(b, "%u parts of %llu bytes = ", d->n_state_parts,
                        (unsigned long long)d->state_part_bytes);
    put_bytes(b, k->state_bytes);
    (void)kg_buf_puts(b, ", takes ");
    put_bytes(b, l->unit_bytes[KG_STATE]);
    (void)kg_buf_printf(b, " in %u slot%s; at most %u\n", l->slots_per_state,
                        l->slots_per_state == 1 ? "" : "s", l->max_units[KG_STATE]);
    put_line(b, "fits");
    (void)kg_buf_printf(b, "a request of at most %u tokens; at once", k->max_tokens);
    for (size_t i = 0; i < KG_CHECK_FITS && k->fits[i].tokens != 0; i++)
        (void)kg_buf_printf(b, "%s %u of %u tokens", i == 0 ? "" : ",", k->fits[i].requests,
                            k->fits[i].tokens);
    (void)kg_buf_putc(b, '\n');
}

/* Requests of the length that was asked for. */
static void text_size(const struct kg_check *k, struct kg_buf *b)
{
    const struct kg_check_size *s = &k->size;

    if (s->tokens == 0)
        return;
    put_line(b, "sizing");
    (void)kg_buf_printf(b, "a request of %u tokens takes %llu pages and %u state%s = ", s->tokens,
                        (unsigned long long)s->pages, s->states, s->states == 1 ? "" : "s");
    put_bytes(b, s->bytes[KG_PAGE] + s->bytes[KG_STATE]);
    (void)kg_buf_puts(b, "\n");
    put_line(b, "");
    (void)kg_buf_printf(b, "%llu fit at once (%.3f), %.0f tokens\n",
                        (unsigned long long)s->requests, s->load, s->load * s->tokens);
    put_line(b, "");
    (void)kg_buf_printf(b, "a static split is balanced at ratio = %.4g (states = %llu)\n", s->ratio,
                        (unsigned long long)s->balanced_states);
}

static const char *checkpoint_name(uint32_t policy)
{
    static const char *const names[] = {"off", "interval", "boundary", "branch", "auto"};

    return names[policy < 5 ? policy : 0];
}

/* Tokens whose pages take the bytes of one state: the price of a checkpoint. */
static uint64_t state_price(const struct kg_check *k)
{
    const struct kg_pool_layout *l = &k->layout;

    return l->unit_bytes[KG_STATE] * l->page_tokens / l->unit_bytes[KG_PAGE];
}

static void text_prefix(const struct kg_check *k, struct kg_buf *b)
{
    const struct kg_engine_conf *e = &k->stack->conf->engine;

    if (!e->prefix) {
        (void)kg_buf_puts(b, "reuse off: every request is computed from its first token\n");
        return;
    }
    (void)kg_buf_printf(b, "reuse on, checkpoints: %s", checkpoint_name(e->checkpoint));
    if (e->checkpoint == KG_CKPT_INTERVAL || e->checkpoint == KG_CKPT_AUTO)
        (void)kg_buf_printf(b, " (interval %u tokens)", e->interval);
    (void)kg_buf_printf(b, "; one takes the room of %llu cached tokens\n",
                        (unsigned long long)state_price(k));
}

/* What a draft row costs in memory until it is accepted or dropped. */
static void text_rewind(const struct kg_check *k, struct kg_buf *b)
{
    const struct kg_exec_desc *d = &k->stack->desc;

    if (d->rewind == NULL || d->record_bytes == 0)
        return;
    put_line(b, "");
    (void)kg_buf_printf(b, "rewind = %s: a verified row keeps ", d->rewind);
    put_bytes(b, d->record_bytes);
    (void)kg_buf_puts(b, " until it is committed, in all at most ");
    put_bytes(b, d->rewind_bytes);
    (void)kg_buf_puts(b, "; a snapshot takes ");
    put_bytes(b, k->state_bytes);
    (void)kg_buf_puts(b, " a row\n");
}

/* Which promise holds for the output under speculation. */
static const char *accept_promise(uint32_t accept)
{
    switch (accept) {
    case KG_ACCEPT_REJECTION:
        return "rejection: greedy output equals plain decoding, sampled output in distribution "
               "only";
    case KG_ACCEPT_BLOCK:
        return "block: greedy output equals plain decoding, sampled output in distribution only";
    default:
        return "coupling: output equals plain decoding, bit for bit";
    }
}

static void text_tier(const struct kg_check *k, struct kg_buf *b)
{
    const struct kg_plugin *p = kg_config_choice(k->config, KG_KIND_TIER)->ref.plugin;

    if (p == NULL || !k->stack->conf->engine.prefix) {
        (void)kg_buf_puts(b, "off: what memory has no room for is forgotten\n");
        return;
    }
    (void)kg_buf_printf(b, "%s, ", p->name);
    put_bytes(b, k->tier_bytes);
    (void)kg_buf_puts(b, ": what is evicted is kept there; a step copies at most ");
    put_bytes(b, k->stack->conf->engine.tier_step_bytes);
    (void)kg_buf_puts(b, " each way\n");
}

static void text_rules(const struct kg_check *k, struct kg_buf *b)
{
    static const char *const lifetimes[] = {"prompt", "max", "expected"};
    const struct kg_engine_conf *e = &k->stack->conf->engine;

    put_line(b, "engine");
    (void)kg_buf_printf(b,
                        "%u requests run, %u in all; %u rows a step, %u of one prompt; admission "
                        "reserves: %s\n",
                        e->max_seqs, e->max_requests, e->step_tokens, e->prefill_chunk,
                        lifetimes[e->lifetime < 3 ? e->lifetime : 0]);
    if (k->stack->hooks != NULL) {
        char hooks[64];
        kg_hooks_list(k->stack->hooks, hooks, sizeof(hooks));
        put_line(b, "policy");
        (void)kg_buf_printf(b, "%s, hooks: %s\n", k->stack->conf->lua_script, hooks);
    }
    put_line(b, "speculation");
    if (k->stack->conf->arms.n > 0)
        (void)kg_buf_puts(b, "by arm, see below\n");
    else if (kg_stack_block(k->stack) == 0)
        (void)kg_buf_puts(b, "off\n");
    else
        (void)kg_buf_printf(b, "up to %u drafts, accepted by %s\n", kg_stack_block(k->stack),
                            accept_promise(e->accept));
    text_rewind(k, b);
    put_line(b, "prefix");
    text_prefix(k, b);
    put_line(b, "tier");
    text_tier(k, b);
    put_line(b, "parallel");
    if (k->stack->conf->tp == 1)
        (void)kg_buf_puts(b, "one rank\n");
    else
        (void)kg_buf_printf(b, "%u ranks, a process each, through comm-%s\n", k->stack->conf->tp,
                            kg_config_choice(k->stack->config, KG_KIND_COMM)->ref.plugin->name);
}

/* What the arms get and what they override. */
static void text_arms(const struct kg_check *k, struct kg_buf *b)
{
    const struct kg_arms_conf *arms = &k->stack->conf->arms;

    if (arms->n == 0)
        return;
    put_line(b, "arms");
    (void)kg_buf_printf(b, "split by %s, seed %llu; prefixes %s\n", arms->field,
                        (unsigned long long)arms->seed,
                        arms->share_cache ? "shared by all arms" : "kept apart by arm");
    for (uint32_t i = 0; i < arms->n; i++) {
        const struct kg_engine_arm *a = &k->stack->arms[i];
        const char *own = arms->arms[i].overrides;
        uint32_t block = a->spec_ops->block(a->spec);
        put_line(b, "");
        (void)kg_buf_printf(b, "%s, %g %%: %s; spec %s", arms->arms[i].name, arms->arms[i].share,
                            own[0] != '\0' ? own : "overrides nothing",
                            kg_stack_spec(k->stack, i)->ref.plugin->name);
        if (block > 0)
            (void)kg_buf_printf(b, " with up to %u drafts, accepted by %s", block,
                                accept_promise(a->accept));
        (void)kg_buf_putc(b, '\n');
    }
}

static void put_warnings(const struct kg_check *k, struct kg_buf *b)
{
    const char *text = kg_buf_cstr(&k->warnings);

    while (*text != '\0') {
        size_t n = strcspn(text, "\n");
        (void)kg_buf_printf(b, "warning: %.*s\n", (int)n, text);
        text += n + (text[n] == '\n');
    }
}

void kg_check_text(const struct kg_check *check, struct kg_buf *b)
{
    text_model(check, b);
    text_compute(check, b);
    text_plugins(check, b);
    text_memory(check, b);
    text_size(check, b);
    kg_check_trace_text(check, b);
    text_rules(check, b);
    kg_check_deal_text(check, b);
    kg_check_comm_text(check, b);
    text_arms(check, b);
    put_warnings(check, b);
}

static void json_model(const struct kg_check *k, struct kg_buf *b)
{
    const struct kg_exec_desc *d = &k->stack->desc;

    (void)kg_buf_puts(b, "\"model\":{");
    kg_buf_key_str(b, "path", k->stack->conf->model_path);
    kg_buf_key_str(b, "family", d->family);
    kg_buf_key_u64(b, "layers", d->n_layers);
    kg_buf_key_u64(b, "kda_layers", d->n_kda_layers);
    kg_buf_key_u64(b, "mla_layers", d->n_mla_layers);
    kg_buf_key_u64(b, "vocab", d->vocab);
    kg_buf_key_u64(b, "context_tokens", k->context);
    kg_buf_key_u64(b, "weight_bytes", d->weight_bytes);
    kg_buf_key_u64(b, "draft_weight_bytes", d->draft_weight_bytes);
    kg_buf_key_u64(b, "draft_q_bytes", d->draft_q_bytes);
    kg_buf_key_u64(b, "scratch_bytes", d->scratch_bytes);
    (void)kg_buf_puts(b, "},\"compute\":{");
    kg_buf_key_str(b, "kernels", d->kernels);
    kg_buf_key_str(b, "math", d->math);
    (void)kg_buf_puts(b, "},\"promises\":{");
    kg_buf_key_bool(b, "batch", (d->caps & KG_EXEC_CAP_INVARIANT_BATCH) != 0);
    kg_buf_key_bool(b, "chunk", (d->caps & KG_EXEC_CAP_INVARIANT_CHUNK) != 0);
    kg_buf_key_bool(b, "path", (d->caps & KG_EXEC_CAP_INVARIANT_PATH) != 0);
    if (k->stack->hooks != NULL) {
        char hooks[64];
        kg_hooks_list(k->stack->hooks, hooks, sizeof(hooks));
        (void)kg_buf_puts(b, "},\"policy\":{");
        kg_buf_key_str(b, "script", k->stack->conf->lua_script);
        kg_buf_key_str(b, "hooks", hooks);
    }
    const struct kg_plugin *tier = kg_config_choice(k->config, KG_KIND_TIER)->ref.plugin;
    (void)kg_buf_puts(b, "},\"plugins\":{");
    kg_buf_key_str(b, "tier", tier != NULL ? tier->name : "off");
    for (uint32_t kind = KG_KIND_POOL; kind <= KG_KIND_EXEC; kind++) {
        kg_buf_key_str(b, kg_plugin_kind_name(kind),
                       kg_config_choice(k->config, kind)->ref.plugin->name);
    }
    (void)kg_buf_putc(b, '}');
}

static void json_memory(const struct kg_check *k, struct kg_buf *b)
{
    const struct kg_pool_layout *l = &k->layout;

    (void)kg_buf_printf(b, ",\"memory\":{\"arena_bytes\":%llu", (unsigned long long)l->arena_bytes);
    kg_buf_key_u64(b, "padding_bytes", k->bytes.padding);
    kg_buf_key_u64(b, "page_tokens", l->page_tokens);
    kg_buf_key_u64(b, "token_bytes", k->stack->desc.token_bytes);
    kg_buf_key_u64(b, "draft_token_bytes", k->stack->desc.draft_token_bytes);
    kg_buf_key_u64(b, "page_bytes", k->page_bytes);
    kg_buf_key_u64(b, "page_unit_bytes", l->unit_bytes[KG_PAGE]);
    kg_buf_key_u64(b, "max_pages", l->max_units[KG_PAGE]);
    kg_buf_key_u64(b, "state_bytes", k->state_bytes);
    kg_buf_key_u64(b, "state_unit_bytes", l->unit_bytes[KG_STATE]);
    kg_buf_key_u64(b, "slots_per_state", l->slots_per_state);
    kg_buf_key_u64(b, "max_states", l->max_units[KG_STATE]);
    kg_buf_key_u64(b, "max_request_tokens", k->max_tokens);
    kg_buf_key_u64(b, "verify_row_bytes", k->stack->desc.record_bytes);
    kg_buf_key_u64(b, "verify_bytes", k->stack->desc.rewind_bytes);
    (void)kg_buf_puts(b, ",\"fits\":[");
    for (size_t i = 0; i < KG_CHECK_FITS && k->fits[i].tokens != 0; i++)
        (void)kg_buf_printf(b, "%s{\"tokens\":%u,\"requests\":%u}", i == 0 ? "" : ",",
                            k->fits[i].tokens, k->fits[i].requests);
    (void)kg_buf_puts(b, "]}");
}

static void json_size(const struct kg_check *k, struct kg_buf *b)
{
    const struct kg_check_size *s = &k->size;

    if (s->tokens == 0)
        return;
    (void)kg_buf_printf(b, ",\"sizing\":{\"tokens\":%u,\"states\":%u", s->tokens, s->states);
    kg_buf_key_u64(b, "pages", s->pages);
    kg_buf_key_u64(b, "page_bytes", s->bytes[KG_PAGE]);
    kg_buf_key_u64(b, "state_bytes", s->bytes[KG_STATE]);
    kg_buf_key_u64(b, "requests", s->requests);
    (void)kg_buf_printf(b, ",\"load\":%.6f,\"capacity_tokens\":%.0f", s->load, s->load * s->tokens);
    (void)kg_buf_printf(b, ",\"balanced_ratio\":%.6g", s->ratio);
    kg_buf_key_u64(b, "balanced_states", s->balanced_states);
    (void)kg_buf_putc(b, '}');
}

static void json_arms(const struct kg_check *k, struct kg_buf *b)
{
    const struct kg_arms_conf *arms = &k->stack->conf->arms;

    if (arms->n == 0)
        return;
    (void)kg_buf_puts(b, ",\"arms\":{");
    kg_buf_key_str(b, "field", arms->field);
    kg_buf_key_u64(b, "seed", arms->seed);
    kg_buf_key_bool(b, "share_cache", arms->share_cache);
    (void)kg_buf_puts(b, ",\"arms\":[");
    for (uint32_t i = 0; i < arms->n; i++) {
        const struct kg_engine_arm *a = &k->stack->arms[i];
        (void)kg_buf_puts(b, i > 0 ? ",{" : "{");
        kg_buf_key_str(b, "name", arms->arms[i].name);
        kg_buf_key_f64(b, "share", arms->arms[i].share);
        kg_buf_key_str(b, "overrides", arms->arms[i].overrides);
        kg_buf_key_str(b, "spec", kg_stack_spec(k->stack, i)->ref.plugin->name);
        kg_buf_key_u64(b, "draft_block", a->spec_ops->block(a->spec));
        (void)kg_buf_putc(b, '}');
    }
    (void)kg_buf_puts(b, "]}");
}

void kg_check_json(const struct kg_check *check, struct kg_buf *b)
{
    const char *text = kg_buf_cstr(&check->warnings);
    const char *comma = "";

    (void)kg_buf_putc(b, '{');
    json_model(check, b);
    json_memory(check, b);
    json_size(check, b);
    kg_check_trace_json(check, b);
    kg_buf_key_u64(b, "draft_block", kg_stack_block(check->stack));
    (void)kg_buf_puts(b, ",\"prefix\":{");
    kg_buf_key_bool(b, "enabled", check->stack->conf->engine.prefix);
    kg_buf_key_str(b, "checkpoint", checkpoint_name(check->stack->conf->engine.checkpoint));
    kg_buf_key_u64(b, "interval", check->stack->conf->engine.interval);
    kg_buf_key_u64(b, "ghost_bytes", check->stack->conf->engine.ghost_bytes);
    kg_buf_key_u64(b, "state_price_tokens", state_price(check));
    (void)kg_buf_printf(b, "},\"ranks\":%u", check->stack->conf->tp);
    kg_check_deal_json(check, b);
    kg_check_comm_json(check, b);
    json_arms(check, b);
    (void)kg_buf_puts(b, ",\"warnings\":[");
    while (*text != '\0') {
        size_t n = strcspn(text, "\n");
        (void)kg_buf_puts(b, comma);
        (void)kg_buf_json_str(b, text, n);
        comma = ",";
        text += n + (text[n] == '\n');
    }
    (void)kg_buf_puts(b, "]}\n");
}
