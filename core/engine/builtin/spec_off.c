/* No speculation: block 0, cap 0, every length 0. */
#include "engine/builtin/builtin.h"

#include <kedge/spec.h>

struct kg_spec {
    const struct kg_host *host;
};

static int open_off(const struct kg_host *host, const void *conf, uint32_t max_seqs, uint32_t block,
                    struct kg_spec **spec, struct kg_error *err)
{
    (void)conf;
    (void)max_seqs;
    (void)block;
    struct kg_spec *s = host->alloc(host->ctx, sizeof(*s), 0);
    if (s == NULL) {
        return kg_fail(err, KG_ENOMEM, "spec-off: no memory for %zu bytes", sizeof(*s));
    }
    s->host = host;
    *spec = s;
    return KG_OK;
}

static void close_off(struct kg_spec *spec)
{
    if (spec != NULL) {
        spec->host->free(spec->host->ctx, spec, sizeof(*spec));
    }
}

static uint32_t none(const struct kg_spec *spec)
{
    (void)spec;
    return 0;
}

static void choose(struct kg_spec *spec, const struct kg_spec_view *view, uint32_t *lengths)
{
    (void)spec;
    for (uint32_t i = 0; i < view->n_seqs; i++) {
        lengths[i] = 0;
    }
}

static void observe(struct kg_spec *spec, const struct kg_spec_seen *seen, uint32_t n,
                    uint64_t step_ns)
{
    (void)spec;
    (void)seen;
    (void)n;
    (void)step_ns;
}

static int check(const struct kg_spec *spec, struct kg_error *err)
{
    (void)spec;
    (void)err;
    return KG_OK;
}

static const struct kg_spec_ops ops = {
    .size = sizeof(ops),
    .open = open_off,
    .close = close_off,
    .block = none,
    .cap = none,
    .choose = choose,
    .observe = observe,
    .check = check,
};

const struct kg_plugin kg_builtin_spec_off = {
    .magic = KG_ABI_MAGIC,
    .kind = KG_KIND_SPEC,
    .size = sizeof(kg_builtin_spec_off),
    .major = KG_SPEC_MAJOR,
    .minor = KG_SPEC_MINOR,
    .name = "off",
    .version = KG_VERSION,
    .summary = "no speculation",
    .ops = &ops,
};
