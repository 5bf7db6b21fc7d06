#include "stack.h"

#include "stack_ranks.h"
#include "swap.h"

#include <kedge/sched.h>
#include <kedge/spec.h>
#include <stdlib.h>
#include <string.h>

/* A word that names no level is said and left out: a log level must not keep a server down. */
static void set_log_levels(struct kg_stack *s)
{
    char *text = strdup(s->conf->log_modules);
    char *rest = text;
    char *word;

    while (text != NULL && (word = strsep(&rest, ",")) != NULL) {
        char *eq = strchr(word, '=');
        uint32_t level;
        if (word[0] == '\0')
            continue;
        if (eq != NULL)
            *eq = '\0';
        if (eq == NULL || kg_log_level_parse(eq + 1, &level) != KG_OK ||
            kg_log_set_level(&s->log, word, level) != KG_OK)
            kg_log_line(&s->log, KG_LOG_WARN, "config", "[log] modules: wanted module=level",
                        "found=%s", kg_log_quote(word, strlen(word)).text);
    }
    free(text);
}

int kg_stack_host(struct kg_stack *s, const struct kg_plugin *p, const char *arm,
                  struct kg_instance **host, struct kg_error *err)
{
    struct kg_instance *made;
    struct kg_buf labels;
    char prefix[32];

    int rc = kg_instance_create(p, &s->log, &s->clock, s->conf->engine.debug, &made);
    if (rc != KG_OK)
        return kg_fail(err, rc, "%s-%s: out of memory", kg_plugin_kind_name(p->kind), p->name);
    kg_buf_init(&labels, 256);
    (void)kg_metrics_label(&labels, "plugin", p->name);
    if (arm != NULL)
        (void)kg_metrics_label(&labels, "arm", arm);
    (void)snprintf(prefix, sizeof(prefix), "kedge:%s_", kg_plugin_kind_name(p->kind));
    rc = kg_metrics_add_plugin(s->metrics, prefix, p->metrics, made->host.cells,
                               kg_buf_cstr(&labels), err);
    kg_buf_fini(&labels);
    if (rc == KG_OK)
        *host = made;
    else
        kg_instance_destroy(made);
    return rc;
}

/* Host services of the chosen plugin of a kind. */
static int make_host(struct kg_stack *s, uint32_t kind, struct kg_error *err)
{
    return kg_stack_host(s, kg_config_choice(s->config, kind)->ref.plugin, NULL, &s->hosts[kind],
                         err);
}

const struct kg_choice *kg_stack_spec(const struct kg_stack *s, uint32_t arm)
{
    return s->conf->arms.n > 0 ? kg_config_arm_choice(s->config, arm)
                               : kg_config_choice(s->config, KG_KIND_SPEC);
}

uint32_t kg_stack_block(const struct kg_stack *s)
{
    uint32_t most = 0;

    for (uint32_t i = 0; i < s->n_specs; i++) {
        uint32_t block = s->arms[i].spec_ops->block(s->arms[i].spec);
        most = block > most ? block : most;
    }
    return most;
}

/* Hosts of the speculations, and the rules of the arms. */
static int make_arms(struct kg_stack *s, struct kg_error *err)
{
    const struct kg_arms_conf *c = &s->conf->arms;
    uint32_t n = c->n > 0 ? c->n : 1;

    for (uint32_t i = 0; i < n; i++) {
        const struct kg_plugin *p = kg_stack_spec(s, i)->ref.plugin;
        s->arms[i] = s->conf->arm_rules[i];
        s->arms[i].spec_caps = p->caps;
        int rc = kg_stack_host(s, p, c->n > 0 ? c->arms[i].name : NULL, &s->spec_hosts[i], err);
        if (rc != KG_OK)
            return rc;
    }
    return KG_OK;
}

static uint64_t exec_now(void *ctx)
{
    const struct kg_stack *s = ctx;

    return s->parts.exec_ops->now(s->parts.exec);
}

/* Draft rows per sequence the backend must have room for, where the plugin cannot be asked: one
 * that needs a drafter is opened after the backend, which knows the drafter's block. */
#define MAX_DRAFTS 16

static int open_spec(struct kg_stack *s, uint32_t i, struct kg_error *err)
{
    const struct kg_choice *spec = kg_stack_spec(s, i);
    struct kg_engine_arm *a = &s->arms[i];

    a->spec_ops = spec->ref.plugin->ops;
    return a->spec_ops->open(&s->spec_hosts[i]->host, spec->conf, s->conf->engine.max_seqs,
                             s->desc.draft_block, &a->spec, err);
}

/* Draft rows of a sequence for all speculations; those that are HOST only are open then. */
static int find_max_draft(struct kg_stack *s, uint32_t *max_draft, struct kg_error *err)
{
    uint32_t n = s->conf->arms.n > 0 ? s->conf->arms.n : 1;

    for (uint32_t i = 0; i < n; i++) {
        uint32_t most = 0;
        if ((s->arms[i].spec_caps & KG_SPEC_CAP_MODEL) != 0) {
            most = MAX_DRAFTS; /* opened when the drafter's block is known */
        } else if ((s->arms[i].spec_caps & KG_SPEC_CAP_HOST) != 0) {
            int rc = open_spec(s, i, err);
            if (rc != KG_OK)
                return rc;
            most = s->arms[i].spec_ops->block(s->arms[i].spec);
        }
        *max_draft = most > *max_draft ? most : *max_draft;
    }
    return KG_OK;
}

static int open_exec(struct kg_stack *s, struct kg_error *err)
{
    const struct kg_choice *choice = kg_config_choice(s->config, KG_KIND_EXEC);
    const struct kg_plugin *p = choice->ref.plugin;
    uint32_t max_draft = 0;

    int rc = find_max_draft(s, &max_draft, err);
    if (rc != KG_OK)
        return rc;
    if (max_draft < s->conf->engine.max_draft)
        max_draft = s->conf->engine.max_draft;
    struct kg_exec_open args = {
        .size = sizeof(args),
        .model_path = s->conf->model_path,
        .draft_path = s->conf->draft_path[0] != '\0' ? s->conf->draft_path : NULL,
        .world = 1,
        .max_seqs = s->conf->engine.max_seqs,
        .max_rows = s->conf->engine.step_tokens,
        .max_context = s->conf->engine.max_context,
        .max_draft = max_draft,
    };

    if (args.draft_path != NULL && (p->caps & KG_EXEC_CAP_DRAFT) == 0)
        return kg_fail(err, KG_ECONFIG, "[model] draft is set, but exec-%s cannot run a drafter",
                       p->name);
    s->parts.exec_ops = p->ops;
    rc = kg_stack_ranks_open(s, &args, err);
    if (rc != KG_OK)
        return rc;
    struct kg_error mine = {0};
    mine.rc = s->parts.exec_ops->open(&s->hosts[KG_KIND_EXEC]->host, choice->conf, &args,
                                      &s->parts.exec, &mine);
    rc = kg_stack_ranks_meet(s, &mine, err);
    if (rc != KG_OK)
        return rc;
    s->desc.size = sizeof(s->desc);
    s->parts.exec_ops->describe(s->parts.exec, &s->desc);
    s->clock = (struct kg_clock){exec_now, s};
    return KG_OK;
}

/* Where an arm names its speculation, for messages. */
static void name_spec(const struct kg_stack *s, uint32_t i, char text[80])
{
    if (s->conf->arms.n > 0)
        (void)snprintf(text, 80, "[arm %s]", s->conf->arms.arms[i].name);
    else
        (void)snprintf(text, 80, "[plugins]");
}

/* Opens what is not open yet, if the backend can serve it. */
static int open_specs(struct kg_stack *s, struct kg_error *err)
{
    uint32_t n = s->conf->arms.n > 0 ? s->conf->arms.n : 1;
    char where[80];

    for (uint32_t i = 0; i < n; i++) {
        const struct kg_plugin *p = kg_stack_spec(s, i)->ref.plugin;
        name_spec(s, i, where);
        if ((p->caps & (KG_SPEC_CAP_HOST | KG_SPEC_CAP_MODEL)) != 0 &&
            (s->desc.caps & KG_EXEC_CAP_VERIFY) == 0)
            return kg_fail(err, KG_ECONFIG,
                           "%s spec = %s, but exec-%s cannot verify drafts: set spec = off", where,
                           p->name, kg_config_choice(s->config, KG_KIND_EXEC)->ref.plugin->name);
        if ((p->caps & KG_SPEC_CAP_MODEL) != 0 && s->desc.draft_block == 0)
            return kg_fail(err, KG_ECONFIG,
                           "%s spec = %s needs a drafter: set [model] draft, or draft_block of a "
                           "simulated backend",
                           where, p->name);
        int rc = s->arms[i].spec == NULL ? open_spec(s, i, err) : KG_OK;
        if (rc != KG_OK)
            return rc;
    }
    s->n_specs = n;
    if (s->conf->arms.n > 0) {
        s->parts.arms = s->arms;
        s->parts.n_arms = n;
    } else {
        s->parts.spec_ops = s->arms[0].spec_ops;
        s->parts.spec = s->arms[0].spec;
        s->parts.spec_caps = s->arms[0].spec_caps;
    }
    return KG_OK;
}

static int open_policies(struct kg_stack *s, struct kg_error *err)
{
    const struct kg_choice *sched = kg_config_choice(s->config, KG_KIND_SCHED);
    const struct kg_choice *pool = kg_config_choice(s->config, KG_KIND_POOL);

    s->parts.pool_ops = pool->ref.plugin->ops;
    s->parts.pool_caps = pool->ref.plugin->caps;
    s->parts.pool_host = &s->hosts[KG_KIND_POOL]->host;
    s->parts.pool_conf = pool->conf;
    s->parts.sched_ops = sched->ref.plugin->ops;
    int rc = s->parts.sched_ops->open(&s->hosts[KG_KIND_SCHED]->host, sched->conf,
                                      s->conf->engine.max_requests, &s->parts.sched, err);
    return rc == KG_OK ? open_specs(s, err) : rc;
}

/* The engine opens it, when it knows the sizes. */
static int open_tier(struct kg_stack *s, struct kg_error *err)
{
    const struct kg_choice *tier = kg_config_choice(s->config, KG_KIND_TIER);

    s->parts.tier_ops = tier->ref.plugin->ops;
    s->parts.tier_conf = tier->conf;
    int rc = make_host(s, KG_KIND_TIER, err);
    if (rc == KG_OK)
        s->parts.tier_host = &s->hosts[KG_KIND_TIER]->host;
    return rc;
}

int kg_stack_open(const struct kg_config *config, struct kg_stack **stack, struct kg_error *err)
{
    static const uint32_t kinds[] = {KG_KIND_EXEC, KG_KIND_POOL, KG_KIND_SCHED, KG_KIND_COMM};
    struct kg_stack *s = calloc(1, sizeof(*s));

    if (s == NULL)
        return kg_fail(err, KG_ENOMEM, "out of memory");
    s->config = config;
    s->conf = kg_config_conf(config);
    kg_log_init(&s->log, 2, s->conf->log_level);
    set_log_levels(s);
    s->clock = kg_clock_monotonic();
    int rc = kg_metrics_create(&s->metrics);
    if (rc != KG_OK)
        (void)kg_fail(err, rc, "out of memory");
    for (size_t i = 0; rc == KG_OK && i < sizeof(kinds) / sizeof(kinds[0]) - (s->conf->tp == 1);
         i++)
        rc = make_host(s, kinds[i], err);
    if (rc == KG_OK)
        rc = make_arms(s, err);
    if (rc == KG_OK && kg_config_choice(config, KG_KIND_TIER)->ref.plugin != NULL)
        rc = open_tier(s, err);
    if (rc == KG_OK)
        rc = open_exec(s, err);
    if (rc == KG_OK)
        rc = open_policies(s, err);
    if (rc == KG_OK)
        rc = kg_hooks_open(s->conf, (s->desc.caps & KG_EXEC_CAP_VIRTUAL) == 0, &s->log, s->metrics,
                           &s->hooks, err);
    if (rc == KG_OK && s->hooks != NULL)
        s->parts.policy = &s->hooks->engine;
    if (rc != KG_OK) {
        kg_stack_close(s);
        return rc;
    }
    *stack = s;
    return KG_OK;
}

int kg_stack_pool(struct kg_stack *stack, struct kg_pool **pool, struct kg_pool_layout *layout,
                  struct kg_error *err)
{
    const struct kg_exec_desc *d = &stack->desc;
    const struct kg_engine_conf *e = &stack->conf->engine;
    const struct kg_pool_geom geom = {
        .size = sizeof(geom),
        .arena_bytes = e->arena_bytes,
        .token_bytes = d->token_bytes,
        .state_part_bytes = d->state_part_bytes,
        .n_state_parts = d->n_state_parts,
        .page_tokens = e->page_tokens,
        .page_tokens_align = d->page_tokens_align,
        .align = d->align,
        .max_seqs = e->max_seqs,
    };

    layout->size = sizeof(*layout);
    return stack->parts.pool_ops->open(stack->parts.pool_host, stack->parts.pool_conf, &geom, pool,
                                       layout, err);
}

int kg_stack_engine(struct kg_stack *stack, struct kg_error *err)
{
    return kg_engine_create(&stack->parts, &stack->conf->engine, &stack->engine, err);
}

void kg_stack_close(struct kg_stack *stack)
{
    if (stack == NULL)
        return;
    kg_engine_destroy(stack->engine);
    kg_hooks_close(stack->hooks);
    for (uint32_t i = 0; i < KG_MAX_ARMS; i++) {
        if (stack->arms[i].spec != NULL)
            stack->arms[i].spec_ops->close(stack->arms[i].spec);
    }
    if (stack->parts.sched != NULL)
        stack->parts.sched_ops->close(stack->parts.sched);
    kg_swapper_close(stack->swapper);
    stack->clock = kg_clock_monotonic();
    kg_stack_ranks_stop(stack);
    if (stack->parts.exec != NULL)
        stack->parts.exec_ops->close(stack->parts.exec);
    kg_stack_ranks_close(stack);
    for (uint32_t kind = 0; kind < KG_PLUGIN_KINDS; kind++)
        kg_instance_destroy(stack->hosts[kind]);
    for (uint32_t i = 0; i < KG_MAX_ARMS; i++)
        kg_instance_destroy(stack->spec_hosts[i]);
    kg_metrics_destroy(stack->metrics);
    free(stack);
}
