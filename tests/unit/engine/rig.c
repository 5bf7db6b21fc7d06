#include "rig.h"

#include "engine/index_policy.h"

#include "doubles.h"
#include "script.h"

#include "engine/builtin/builtin.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const struct kg_plugin *double_find(uint32_t kind, const char *name)
{
    static const struct kg_plugin *const all[] = {
        &double_spec_fake_host, &double_spec_fake_model, &double_sched_lifo, &double_pool_shuffle,
        &kg_builtin_spec_off,   &kg_builtin_tier_mem,    &double_tier_fake};

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        if (all[i]->kind == kind && strcmp(all[i]->name, name) == 0) {
            return all[i];
        }
    }
    return NULL;
}

const struct kg_plugin *rig_find(uint32_t kind, const char *name)
{
    static const char *const kinds[] = {"", "pool", "sched", "spec", "comm", "exec", "tier"};
    const struct kg_plugin *p = double_find(kind, name);
    const char *moved = getenv("KEDGE_TEST_PLUGINS"); /* a build that lies elsewhere by now */
    const char *dir = moved != NULL ? moved : RIG_PLUGIN_DIR;
    char path[600];

    if (p != NULL) {
        return p;
    }
    (void)snprintf(path, sizeof(path), "%s/%s-%s/%s-%s.so", dir, kinds[kind], name, kinds[kind],
                   name);
    if (access(path, R_OK) != 0) /* a build for tests only */
        (void)snprintf(path, sizeof(path), "%s/../tests/conformance/exec/%s-%s.so", dir,
                       kinds[kind], name);
    void *so = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (so == NULL) {
        print_error("%s\n", dlerror());
        return NULL;
    }
    kg_plugin_entry_fn *entry;
    *(void **)&entry = dlsym(so, KG_PLUGIN_SYMBOL);
    return entry != NULL ? entry() : NULL;
}

/* --- host --- */

static void *host_alloc(void *ctx, size_t bytes, size_t align)
{
    struct rig_part *part = ctx;
    size_t a = align < 16 ? 16 : align;
    void *p = aligned_alloc(a, (bytes + a - 1) / a * a);

    assert_true(bytes > 0);
    if (p != NULL) {
        memset(p, 0xa5, bytes < 1 << 20 ? bytes : 1 << 20); /* nobody may count on zeroes */
        part->held += bytes;
    }
    return p;
}

static void host_free(void *ctx, void *p, size_t bytes)
{
    struct rig_part *part = ctx;

    if (p != NULL) {
        assert_true(part->held >= bytes);
        part->held -= bytes;
        free(p);
    }
}

static void host_log(void *ctx, uint32_t level, const char *fmt, ...)
{
    (void)ctx;
    (void)level;
    (void)fmt;
}

static uint64_t host_now(void *ctx)
{
    (void)ctx;
    return 0;
}

/* One option from text; the rig's own small parser. */
static void set_option(const struct kg_opt *o, const char *text, uint8_t *conf)
{
    double v = strtod(text, NULL);
    uint32_t u32 = (uint32_t)v;
    uint64_t u64 = strtoull(text, NULL, 10);

    switch (o->type) {
    case KG_OPT_U64:
        memcpy(conf + o->offset, &u64, sizeof(u64));
        break;
    case KG_OPT_F64:
        memcpy(conf + o->offset, &v, sizeof(v));
        break;
    case KG_OPT_BOOL:
        u32 = strcmp(text, "yes") == 0;
        memcpy(conf + o->offset, &u32, sizeof(u32));
        break;
    case KG_OPT_ENUM: {
        u32 = 0;
        for (const char *c = o->choices; c != NULL; c = strchr(c, '|')) {
            c += *c == '|';
            size_t n = strcspn(c, "|");
            if (strlen(text) == n && strncmp(c, text, n) == 0) {
                break;
            }
            u32++;
        }
        memcpy(conf + o->offset, &u32, sizeof(u32));
        break;
    }
    case KG_OPT_U32:
        memcpy(conf + o->offset, &u32, sizeof(u32));
        break;
    case KG_OPT_STR:
        memcpy(conf + o->offset, &text, sizeof(text));
        break;
    default:
        fail_msg("option %s has a type the rig does not know", o->name);
    }
}

void rig_part_open(struct rig_part *part, const struct kg_plugin *plugin, const char *opts,
                   uint32_t debug)
{
    memset(part, 0, sizeof(*part));
    part->plugin = plugin;
    part->host = (struct kg_host){.size = sizeof(part->host),
                                  .ctx = part,
                                  .alloc = host_alloc,
                                  .free = host_free,
                                  .log = host_log,
                                  .now_ns = host_now,
                                  .cells = part->cells,
                                  .debug = debug};
    assert_true(plugin->conf_size <= sizeof(part->conf));
    for (const struct kg_opt *o = plugin->opts; o != NULL && o->name != NULL; o++) {
        set_option(o, o->def, part->conf);
    }
    (void)snprintf(part->text, sizeof(part->text), "%s", opts != NULL ? opts : "");
    for (char *save, *word = strtok_r(part->text, " ", &save); word != NULL;
         word = strtok_r(NULL, " ", &save)) {
        char *value = strchr(word, '=');
        const struct kg_opt *o = plugin->opts;
        assert_non_null(value);
        *value++ = 0;
        while (o != NULL && o->name != NULL && strcmp(o->name, word) != 0) {
            o++;
        }
        if (o == NULL || o->name == NULL) {
            fail_msg("%s has no option %s", plugin->name, word);
        }
        set_option(o, value, part->conf);
    }
}

void rig_part_closed(const struct rig_part *part)
{
    assert_int_equal(part->held, 0);
}

/* --- open and close --- */

static uint32_t or (uint32_t v, uint32_t def)
{
    return v != 0 ? v : def;
}

static void open_exec(struct rig *rig, const struct rig_conf *c)
{
    const struct kg_plugin *p = rig_find(KG_KIND_EXEC, "null");
    struct kg_error err = {0};

    assert_non_null(p);
    rig_part_open(&rig->exec_part, p, c->exec_opts, 1);
    struct kg_exec_open args = {.size = sizeof(args),
                                .model_path = "",
                                .world = 1,
                                .max_seqs = or (c->max_seqs, 8),
                                .max_rows = or (c->step_tokens, 64),
                                .max_context = c->max_context,
                                .max_draft = or (c->max_draft, 8)};
    rig->parts.exec_ops = p->ops;
    int rc = rig->parts.exec_ops->open(&rig->exec_part.host, rig->exec_part.conf, &args, &rig->exec,
                                       &err);
    if (rc != KG_OK) {
        fail_msg("exec-null: %s", err.text);
    }
    if (c->wrap != NULL) {
        rig->parts.exec_ops = c->wrap(rig->parts.exec_ops);
    }
    rig->parts.exec = rig->exec;
}

static void open_policies(struct rig *rig, const struct rig_conf *c, uint32_t draft_block)
{
    struct kg_error err = {0};
    const struct kg_plugin *p = rig_find(KG_KIND_SCHED, c->sched != NULL ? c->sched : "fcfs");

    assert_non_null(p);
    rig_part_open(&rig->sched_part, p, c->sched_opts, 1);
    rig->parts.sched_ops = p->ops;
    assert_int_equal(rig->parts.sched_ops->open(&rig->sched_part.host, rig->sched_part.conf,
                                                or (c->max_requests, 64), &rig->parts.sched, &err),
                     KG_OK);
    if (c->spec != NULL) {
        p = rig_find(KG_KIND_SPEC, c->spec);
        assert_non_null(p);
        rig_part_open(&rig->spec_part, p, c->spec_opts, 1);
        rig->parts.spec_ops = p->ops;
        rig->parts.spec_caps = p->caps;
        assert_int_equal(rig->parts.spec_ops->open(&rig->spec_part.host, rig->spec_part.conf,
                                                   or (c->max_seqs, 8), draft_block,
                                                   &rig->parts.spec, &err),
                         KG_OK);
    }
}

void rig_open(struct rig *rig, const struct rig_conf *c)
{
    struct kg_exec_desc desc;
    struct kg_error err = {0};
    char opts[200];

    memset(rig, 0, sizeof(*rig));
    rig->outs = calloc(RIG_IDS, sizeof(*rig->outs));
    assert_non_null(rig->outs);
    open_exec(rig, c);
    rig->parts.exec_ops->describe(rig->exec, &desc);
    rig->vocab = desc.vocab;
    open_policies(rig, c, desc.draft_block);
    const char *pool = c->pool != NULL ? c->pool : "unified";
    const struct kg_plugin *p = rig_find(KG_KIND_POOL, pool);
    assert_non_null(p);
    uint32_t n_states = or (c->n_states, or (c->max_seqs, 8)), n_pages = or (c->n_pages, 64);
    (void)snprintf(opts, sizeof(opts), "%s", c->pool_opts != NULL ? c->pool_opts : "");
    if (c->pool_opts == NULL && strcmp(pool, "split") == 0) {
        (void)snprintf(opts, sizeof(opts), "states=%u", n_states);
    } else if (c->pool_opts == NULL && strcmp(pool, "shuffle") == 0) {
        (void)snprintf(opts, sizeof(opts), "states=%u pages=%u", n_states, n_pages);
    }
    rig_part_open(&rig->pool_part, p, opts, 1);
    rig->parts.pool_ops = p->ops;
    rig->parts.pool_caps = p->caps;
    rig->parts.pool_host = &rig->pool_part.host;
    rig->parts.pool_conf = rig->pool_part.conf;
    uint32_t page_tokens = or (c->page_tokens, 8);
    struct kg_engine_conf conf = {
        .max_seqs = or (c->max_seqs, 8),
        .max_requests = or (c->max_requests, 64),
        .step_tokens = or (c->step_tokens, 64),
        .prefill_chunk = or (c->prefill_chunk, 16),
        .max_context = c->max_context,
        .page_tokens = page_tokens,
        .arena_bytes = n_pages * (uint64_t)page_tokens * desc.token_bytes +
                       n_states * desc.state_part_bytes * desc.n_state_parts,
        .lifetime = c->lifetime,
        .quantile = c->quantile,
        .max_wait_ms = c->max_wait_ms,
        .queue_timeout_ms = c->queue_timeout_ms,
        .cost = c->cost,
        .cost_table = c->cost_table,
        .prefix = !c->no_prefix,
        .tier_step_bytes = c->tier_step_bytes == RIG_NO_BYTES ? 0
                           : c->tier_step_bytes != 0          ? c->tier_step_bytes
                                                              : 1 << 20,
        .checkpoint = or (c->checkpoint, KG_CKPT_AUTO + 1) - 1,
        .interval = or (c->interval, 16),
        .max_draft = c->keep_draft,
        .ghost_bytes = c->ghost_bytes != 0 ? c->ghost_bytes : 65536,
        .debug = !c->no_debug,
        .test = c->test,
    };
    rig->parts.policy = c->policy;
    rig->parts.arms = c->arms;
    rig->parts.n_arms = c->n_arms;
    if (c->tier != NULL) {
        p = rig_find(KG_KIND_TIER, c->tier);
        assert_non_null(p);
        rig_part_open(&rig->tier_part, p, c->tier_opts, 1);
        rig->parts.tier_ops = p->ops;
        rig->parts.tier_host = &rig->tier_part.host;
        rig->parts.tier_conf = rig->tier_part.conf;
    }
    if (kg_engine_create(&rig->parts, &conf, &rig->engine, &err) != KG_OK) {
        fail_msg("engine: %s", err.text);
    }
}

void rig_close(struct rig *rig)
{
    kg_engine_destroy(rig->engine);
    if (rig->parts.spec_ops != NULL) {
        rig->parts.spec_ops->close(rig->parts.spec);
    }
    rig->parts.sched_ops->close(rig->parts.sched);
    rig->parts.exec_ops->close(rig->exec);
    rig_part_closed(&rig->exec_part);
    rig_part_closed(&rig->pool_part);
    rig_part_closed(&rig->sched_part);
    rig_part_closed(&rig->spec_part);
    rig_part_closed(&rig->tier_part);
    free(rig->outs);
}

/* --- requests --- */

void rig_prompt(uint32_t *tokens, uint32_t n, uint64_t seed, uint32_t vocab)
{
    for (uint32_t i = 0; i < n; i++) {
        tokens[i] = (uint32_t)(truth_mix(seed * 0x9e3779b97f4a7c15ull + i) % vocab);
    }
}

int rig_submit(struct rig *rig, uint64_t id, uint32_t n_prompt, uint32_t max_tokens,
               const struct kg_sampling *sampling)
{
    struct rig_out *o = &rig->outs[id];
    struct kg_error err = {0};

    assert_true(id > 0 && id < RIG_IDS && n_prompt <= RIG_TOKENS);
    *o = (struct rig_out){.n_prompt = n_prompt, .max_tokens = max_tokens};
    if (sampling != NULL) {
        o->sampling = *sampling;
    }
    uint32_t shared = rig->n_shared < n_prompt ? rig->n_shared : n_prompt;
    rig_prompt(o->tokens, n_prompt, id, rig->vocab);
    if (shared > 0) {
        rig_prompt(o->tokens, shared, 1000000 + id % rig->n_groups, rig->vocab);
    }
    struct kg_request q = {.id = id,
                           .tokens = o->tokens,
                           .n_prompt = n_prompt,
                           .max_tokens = max_tokens,
                           .flags = rig->flags,
                           .salt = rig->salt,
                           .arm = rig->arm,
                           .sampling = o->sampling,
                           .boundaries = &shared,
                           .n_boundaries = shared > 0};
    int rc = kg_engine_submit(rig->engine, &q, &err);
    if (rc == KG_OK) {
        o->submitted = 1;
        rig->n_open++;
    } else {
        assert_int_equal(err.rc, rc);
        assert_true(strlen(err.text) > 0);
    }
    return rc;
}

void rig_pump(struct rig *rig)
{
    struct kg_event ev;

    while (kg_engine_next(rig->engine, &ev) == KG_OK) {
        if (ev.type == KG_EVENT_SWAPPED) {
            assert_int_equal(ev.id, 0);
            rig->n_swapped++;
            continue;
        }
        assert_true(ev.id > 0 && ev.id < RIG_IDS);
        struct rig_out *o = &rig->outs[ev.id];
        assert_true(o->submitted);
        assert_false(o->done); /* DONE is always the last event */
        switch (ev.type) {
        case KG_EVENT_TOKENS:
            assert_true(o->n_output + ev.n <= RIG_TOKENS);
            memcpy(o->tokens + o->n_prompt + o->n_output, ev.tokens, ev.n * sizeof(uint32_t));
            o->n_output += ev.n;
            break;
        case KG_EVENT_ECHO:
            o->n_echo += ev.n;
            break;
        default:
            assert_int_equal(ev.type, KG_EVENT_DONE);
            o->done = 1;
            o->end = ev;
            rig->n_open--;
        }
    }
}

int rig_step(struct rig *rig)
{
    int rc = kg_engine_step(rig->engine, &rig->error);

    rig_pump(rig);
    return rc;
}

uint32_t rig_run(struct rig *rig, uint32_t max_steps)
{
    uint32_t n = 0;

    while (rig->n_open > 0) {
        int rc = rig_step(rig);
        if (rc < 0 || ++n > max_steps) {
            fail_msg("%u requests open after %u steps (%d): %s", rig->n_open, n, rc,
                     rc < 0 ? rig->error.text : "too many");
        }
    }
    return n;
}

void rig_assert_empty(struct rig *rig)
{
    struct kg_engine_stats s;

    (void)rig_step(rig);
    kg_engine_stats(rig->engine, &s);
    for (uint32_t k = 0; k < KG_N_KINDS; k++) { /* what is left is cached, and could go */
        assert_int_equal(s.n_used[k], s.n_cached[k]);
        assert_int_equal(s.n_cached[k], s.n_evictable[k]);
    }
    assert_int_equal(s.n_running, 0);
    assert_int_equal(s.n_waiting, 0);
    assert_int_equal(s.bytes.promised, 0);
    assert_int_equal(s.bytes.live[KG_PAGE] + s.bytes.live[KG_STATE], 0);
}

void rig_assert_true(struct rig *rig, uint64_t id)
{
    struct rig_out *o = &rig->outs[id];

    for (uint32_t i = 0; i < o->n_output; i++) {
        uint32_t want =
            truth_next(o->tokens, o->n_prompt + i, o->n_prompt, &o->sampling, rig->vocab);
        if (o->tokens[o->n_prompt + i] != want) {
            fail_msg("request %llu: output %u is %u, the script says %u (%u preemptions)",
                     (unsigned long long)id, i, o->tokens[o->n_prompt + i], want,
                     o->end.n_preempted);
        }
    }
    if (!o->done) {
        return;
    }
    uint32_t stopped = 0;
    for (uint32_t k = 0; o->n_output > o->sampling.min_tokens && k < o->sampling.n_stop_ids; k++) {
        stopped |= o->tokens[o->n_prompt + o->n_output - 1] == o->sampling.stop_ids[k];
    }
    if (o->end.finish == KG_FINISH_STOP) {
        assert_true(stopped);
    } else if (o->end.finish == KG_FINISH_LENGTH) {
        assert_int_equal(o->n_output, o->max_tokens);
        assert_false(stopped);
    }
}
