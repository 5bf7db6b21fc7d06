/*
 * spec-dspark: the backend's drafter at one length, every draft verified. It looks at nothing, not
 * at what drafts are worth and not at what they cost: the baseline a policy that decides must beat.
 */
#include <kedge/spec.h>
#include <string.h>

struct dspark_conf {
    uint32_t length;
};

struct kg_spec {
    const struct kg_host *host;
    uint32_t length; /* tokens drafted and verified each step */
};

static const struct kg_opt options[] = {
    {"length", KG_OPT_U32, KG_OPT_ARM, offsetof(struct dspark_conf, length), "0", 0, 64, NULL,
     "Tokens drafted and verified for each sequence and step; 0 takes the drafter's block. Unit: "
     "tokens."},
    {0},
};

static int open_dspark(const struct kg_host *host, const void *conf, uint32_t max_seqs,
                       uint32_t block, struct kg_spec **spec, struct kg_error *err)
{
    const struct dspark_conf *c = conf;

    (void)max_seqs;
    if (block == 0) {
        return kg_fail(err, KG_ECONFIG,
                       "spec-dspark needs a drafter in the backend: set [model] draft");
    }
    if (c->length > block) {
        return kg_fail(err, KG_ECONFIG, "[spec-dspark] length = %u, the drafter's block has %u",
                       c->length, block);
    }
    struct kg_spec *s = host->alloc(host->ctx, sizeof(*s), 0);
    if (s == NULL) {
        return kg_fail(err, KG_ENOMEM, "spec-dspark: no memory");
    }
    *s = (struct kg_spec){.host = host, .length = c->length == 0 ? block : c->length};
    *spec = s;
    return KG_OK;
}

static void close_dspark(struct kg_spec *s)
{
    if (s != NULL) {
        s->host->free(s->host->ctx, s, sizeof(*s));
    }
}

static uint32_t length_of(const struct kg_spec *s)
{
    return s->length;
}

static void choose(struct kg_spec *s, const struct kg_spec_view *v, uint32_t *lengths)
{
    (void)s;
    for (uint32_t i = 0; i < v->n_seqs; i++) {
        lengths[i] = v->seqs[i].n_drafted;
    }
}

static void observe(struct kg_spec *s, const struct kg_spec_seen *seen, uint32_t n,
                    uint64_t step_ns)
{
    (void)s;
    (void)seen;
    (void)n;
    (void)step_ns;
}

static int check(const struct kg_spec *s, struct kg_error *err)
{
    (void)s;
    (void)err;
    return KG_OK;
}

static const struct kg_spec_ops ops = {
    .size = sizeof(ops),
    .open = open_dspark,
    .close = close_dspark,
    .block = length_of,
    .cap = length_of,
    .choose = choose,
    .observe = observe,
    .check = check,
};

static const struct kg_plugin plugin = {
    .magic = KG_ABI_MAGIC,
    .kind = KG_KIND_SPEC,
    .size = sizeof(plugin),
    .major = KG_SPEC_MAJOR,
    .minor = KG_SPEC_MINOR,
    .name = "dspark",
    .version = KG_VERSION,
    .summary = "the drafter's block at one length, all of it verified",
    .caps = KG_SPEC_CAP_MODEL,
    .opts = options,
    .conf_size = sizeof(struct dspark_conf),
    .ops = &ops,
};

KG_EXPORT kg_plugin_entry_fn kg_plugin_entry;

const struct kg_plugin *kg_plugin_entry(void)
{
    return &plugin;
}
