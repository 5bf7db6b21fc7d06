#include "swap.h"

#include <kedge/sched.h>
#include <kedge/spec.h>
#include <stdlib.h>
#include <string.h>

#define MAX_SPARES 64

/* A plugin that is active or was once; a speculation, in one arm. */
struct spare {
    struct kg_choice choice;
    struct kg_instance *host;
    bool is_first; /* the configured one: its host is the stack's */
    uint32_t arm;
};

struct kg_swapper {
    struct kg_stack *stack;
    struct kg_config *config;
    struct spare spares[MAX_SPARES];
    uint32_t n_spares;
    const struct spare *sched, *specs[KG_MAX_ARMS]; /* active; without arms the first */
    const struct spare *coming_sched, *coming_spec; /* of the swap under way; NULL: stays */
    struct kg_engine_swap swap, opened;             /* the engine's copy; what it was given */
    bool under_way;
};

static const struct spare *add_first(struct kg_swapper *w, const struct kg_choice *choice,
                                     struct kg_instance *host, uint32_t arm)
{
    struct spare *s = &w->spares[w->n_spares++];

    *s = (struct spare){*choice, host, true, arm};
    return s;
}

int kg_swapper_open(struct kg_stack *stack, struct kg_config *config, struct kg_error *err)
{
    struct kg_swapper *w = calloc(1, sizeof(*w));

    if (w == NULL)
        return kg_fail(err, KG_ENOMEM, "out of memory");
    w->stack = stack;
    w->config = config;
    w->sched =
        add_first(w, kg_config_choice(config, KG_KIND_SCHED), stack->hosts[KG_KIND_SCHED], 0);
    for (uint32_t i = 0; i < stack->n_specs; i++)
        w->specs[i] = add_first(w, kg_stack_spec(stack, i), stack->spec_hosts[i], i);
    stack->swapper = w;
    return KG_OK;
}

static void close_both(struct kg_engine_swap *swap)
{
    if (swap->sched_ops != NULL)
        swap->sched_ops->close(swap->sched);
    if (swap->spec_ops != NULL)
        swap->spec_ops->close(swap->spec);
    *swap = (struct kg_engine_swap){0};
}

void kg_swapper_close(struct kg_swapper *w)
{
    if (w == NULL)
        return;
    /* The stack closed what it knew, the old ones, whether the engine took the new or not. */
    if (w->under_way)
        close_both(&w->opened);
    for (uint32_t i = 0; i < w->n_spares; i++) {
        if (!w->spares[i].is_first)
            kg_instance_destroy(w->spares[i].host);
    }
    free(w);
}

/* The plugin of a name: known, or loaded now. A word with a slash would be a path, and who may
 * change plugins may not bring code along. */
static int find(struct kg_swapper *w, uint32_t kind, uint32_t arm, const char *word,
                struct spare **out, struct kg_error *err)
{
    const struct kg_arms_conf *arms = &w->stack->conf->arms;
    bool in_arm = kind == KG_KIND_SPEC && arms->n > 0;
    struct kg_choice choice = {0};

    if (word[0] == '\0' || strspn(word, "abcdefghijklmnopqrstuvwxyz0123456789_-") != strlen(word))
        return kg_fail(err, KG_EINVAL, "wanted the name of a plugin");
    for (uint32_t i = 0; i < w->n_spares; i++) {
        const struct kg_plugin *p = w->spares[i].choice.ref.plugin;
        if (p != NULL && p->kind == kind && w->spares[i].arm == arm && strcmp(p->name, word) == 0) {
            *out = &w->spares[i];
            return KG_OK;
        }
    }
    int rc = in_arm ? kg_config_arm_plugin(w->config, arm, word, &choice, err)
                    : kg_config_plugin(w->config, kind, word, &choice, err);
    if (rc != KG_OK)
        return rc;
    if (w->n_spares == MAX_SPARES)
        return kg_fail(err, KG_ELIMIT, "more than %d plugins were active since the start",
                       MAX_SPARES);
    struct spare *s = &w->spares[w->n_spares];
    rc = kg_stack_host(w->stack, choice.ref.plugin, in_arm ? arms->arms[arm].name : NULL, &s->host,
                       err);
    if (rc != KG_OK)
        return rc;
    s->choice = choice;
    s->is_first = false;
    s->arm = arm;
    w->n_spares++;
    *out = s;
    return KG_OK;
}

static int open_sched(struct kg_swapper *w, const struct spare *s, struct kg_error *err)
{
    const struct kg_sched_ops *ops = s->choice.ref.plugin->ops;
    int rc = ops->open(&s->host->host, s->choice.conf, w->stack->conf->engine.max_requests,
                       &w->opened.sched, err);

    if (rc == KG_OK)
        w->opened.sched_ops = ops;
    return rc;
}

static int open_spec(struct kg_swapper *w, const struct spare *s, struct kg_error *err)
{
    const struct kg_spec_ops *ops = s->choice.ref.plugin->ops;
    uint64_t caps = s->choice.ref.plugin->caps;

    if ((caps & (KG_SPEC_CAP_HOST | KG_SPEC_CAP_MODEL)) != 0 &&
        (w->stack->desc.caps & KG_EXEC_CAP_VERIFY) == 0)
        return kg_fail(err, KG_ECONFIG, "this backend cannot verify drafts");
    if ((caps & KG_SPEC_CAP_MODEL) != 0 && w->stack->desc.draft_block == 0)
        return kg_fail(err, KG_ECONFIG,
                       "it needs a drafter, and none was loaded at start ([model] draft)");
    int rc = ops->open(&s->host->host, s->choice.conf, w->stack->conf->engine.max_seqs,
                       w->stack->desc.draft_block, &w->opened.spec, err);
    if (rc == KG_OK) {
        w->opened.spec_ops = ops;
        w->opened.spec_caps = caps;
    }
    return rc;
}

/* Finds and opens the plugin of one kind, unless it is active. */
static int prepare(struct kg_swapper *w, uint32_t kind, uint32_t arm, const char *word,
                   const struct spare **coming, struct kg_error *err)
{
    struct spare *s = NULL;

    *coming = NULL;
    if (word == NULL)
        return KG_OK;
    int rc = find(w, kind, arm, word, &s, err);
    if (rc != KG_OK || s == (kind == KG_KIND_SCHED ? w->sched : w->specs[arm]))
        return rc;
    rc = kind == KG_KIND_SCHED ? open_sched(w, s, err) : open_spec(w, s, err);
    if (rc == KG_OK)
        *coming = s;
    return rc;
}

/* The arm a speculation is for. */
static int find_arm(const struct kg_swapper *w, const char *name, const char *spec, uint32_t *arm,
                    struct kg_error *err)
{
    const struct kg_arms_conf *c = &w->stack->conf->arms;

    *arm = 0;
    if (name == NULL && (c->n == 0 || spec == NULL))
        return KG_OK;
    if (c->n == 0)
        return kg_fail(err, KG_EINVAL, "this server has no arms");
    if (name == NULL)
        return kg_fail(err, KG_EINVAL, "each arm has a speculation of its own: say which arm");
    if (spec == NULL)
        return kg_fail(err, KG_EINVAL, "goes with spec alone");
    *arm = kg_arms_find(c->arms, c->n, name, strlen(name));
    return *arm < c->n ? KG_OK : kg_fail(err, KG_EINVAL, "there is no such arm");
}

int kg_swapper_swap(struct kg_swapper *w, const struct kg_swap_names *names, const char **field,
                    struct kg_error *err)
{
    uint32_t arm = 0;

    if (w->under_way) {
        *field = "";
        return kg_fail(err, KG_EAGAIN, "another change of plugins is under way");
    }
    w->opened = (struct kg_engine_swap){0};
    *field = "arm";
    int rc = find_arm(w, names->arm, names->spec, &arm, err);
    w->opened.arm = arm;
    if (rc == KG_OK) {
        *field = "sched";
        rc = prepare(w, KG_KIND_SCHED, 0, names->sched, &w->coming_sched, err);
    }
    if (rc == KG_OK) {
        *field = "spec";
        rc = prepare(w, KG_KIND_SPEC, arm, names->spec, &w->coming_spec, err);
    }
    if (rc == KG_OK && w->coming_sched == NULL && w->coming_spec == NULL)
        return 0;
    w->swap = w->opened;
    if (rc == KG_OK)
        rc = kg_engine_swap(w->stack->engine, &w->swap, err);
    if (rc != KG_OK) {
        close_both(&w->opened);
        return rc;
    }
    w->under_way = true;
    return 1;
}

void kg_swapper_done(struct kg_swapper *w)
{
    struct kg_engine_parts *p = &w->stack->parts;
    uint32_t arm = w->opened.arm;

    if (!w->under_way)
        return;
    close_both(&w->swap); /* the engine left the old ones there */
    if (w->coming_sched != NULL) {
        w->sched = w->coming_sched;
        p->sched_ops = w->opened.sched_ops;
        p->sched = w->opened.sched;
    }
    if (w->coming_spec != NULL) {
        w->specs[arm] = w->coming_spec;
        w->stack->arms[arm].spec_ops = w->opened.spec_ops;
        w->stack->arms[arm].spec = w->opened.spec;
        w->stack->arms[arm].spec_caps = w->opened.spec_caps;
    }
    w->under_way = false;
}

/* --- what is there --- */

struct listing {
    struct kg_buf *b;
    bool more;
};

static void list_one(void *ctx, uint32_t kind, const char *name, const struct kg_plugin_ref *ref,
                     const struct kg_error *err)
{
    struct listing *l = ctx;

    (void)kind;
    (void)kg_buf_puts(l->b, l->more ? ",{" : "{");
    l->more = true;
    kg_buf_key_str(l->b, "name", name);
    if (ref != NULL) {
        kg_buf_key_str(l->b, "version", ref->plugin->version);
        kg_buf_key_str(l->b, "summary", ref->plugin->summary);
    } else {
        kg_buf_key_str(l->b, "refused", err->text);
    }
    (void)kg_buf_putc(l->b, '}');
}

static const char *active_name(const struct kg_swapper *w, uint32_t kind)
{
    const struct kg_choice *c = kind == KG_KIND_SCHED  ? &w->sched->choice
                                : kind == KG_KIND_SPEC ? &w->specs[0]->choice
                                                       : kg_config_choice(w->config, kind);

    return c->ref.plugin != NULL ? c->ref.plugin->name : NULL;
}

/* The speculations of the arms, instead of the one. */
static void put_arm_specs(const struct kg_swapper *w, struct kg_buf *b)
{
    const struct kg_arms_conf *arms = &w->stack->conf->arms;

    (void)kg_buf_puts(b, ",\"spec\":{");
    for (uint32_t i = 0; i < arms->n; i++) {
        kg_buf_key_str(b, arms->arms[i].name, w->specs[i]->choice.ref.plugin->name);
    }
    (void)kg_buf_putc(b, '}');
}

int kg_swapper_write(const struct kg_swapper *w, struct kg_buf *b, struct kg_error *err)
{
    static const uint32_t kinds[] = {KG_KIND_SCHED, KG_KIND_SPEC};
    int rc = KG_OK;

    (void)kg_buf_puts(b, "{\"active\":{");
    for (uint32_t kind = KG_KIND_POOL; kind < KG_PLUGIN_KINDS; kind++) {
        if (active_name(w, kind) == NULL)
            continue;
        if (kind == KG_KIND_SPEC && w->stack->conf->arms.n > 0) {
            put_arm_specs(w, b);
            continue;
        }
        kg_buf_key_str(b, kg_plugin_kind_name(kind), active_name(w, kind));
    }
    (void)kg_buf_putc(b, '}');
    for (size_t i = 0; rc == KG_OK && i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        struct listing l = {.b = b};
        (void)kg_buf_printf(b, ",\"%s\":[", kg_plugin_kind_name(kinds[i]));
        rc = kg_plugin_scan_kind(kg_config_plugin_dir(w->config), kinds[i], list_one, &l, err);
        (void)kg_buf_putc(b, ']');
    }
    (void)kg_buf_puts(b, "}\n");
    return rc;
}
