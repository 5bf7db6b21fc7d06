/*
 * A plugin that is right but for one thing: built once per refusal of the loader with
 * -DBAD_<thing> and -DNAME="<thing>", and once without for the plugin that must load.
 * Kind spec, because it has an optional op tied to a capability bit.
 */
#include <kedge/spec.h>

struct kg_spec {
    int unused;
};

struct conf {
    uint32_t count, size;
    uint32_t mode;
};

#ifdef BAD_UNRESOLVED
int no_such_function(void);
#endif

static int open_it(const struct kg_host *host, const void *conf, uint32_t max_seqs, uint32_t block,
                   struct kg_spec **spec, struct kg_error *err)
{
    (void)host;
    (void)conf;
    (void)max_seqs;
    (void)block;
    (void)spec;
    (void)err;
#ifdef BAD_UNRESOLVED
    return no_such_function();
#else
    return kg_fail(err, KG_EDEVICE, "the loader must not open a plugin");
#endif
}

static void close_it(struct kg_spec *spec)
{
    (void)spec;
}

static uint32_t none(const struct kg_spec *spec)
{
    (void)spec;
    return 0;
}

__attribute__((unused)) static void choose(struct kg_spec *spec, const struct kg_spec_view *view,
                                           uint32_t *lengths)
{
    (void)spec;
    (void)view;
    (void)lengths;
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

__attribute__((unused)) static int draft(struct kg_spec *spec, const struct kg_spec_view *view,
                                         uint32_t *tokens, uint32_t stride, uint32_t *counts)
{
    (void)spec;
    (void)view;
    (void)tokens;
    (void)stride;
    (void)counts;
    return 0;
}

__attribute__((unused)) static const struct kg_spec_ops ops = {
#ifdef BAD_SHORT_OPS
    .size = offsetof(struct kg_spec_ops, check),
#else
    .size = sizeof(ops),
#endif
    .open = open_it,
    .close = close_it,
    .block = none,
    .cap = none,
#ifndef BAD_MISSING_OP
    .choose = choose,
#endif
    .observe = observe,
    .check = check,
#ifndef BAD_CAP_WITHOUT_OP
    .draft = draft,
#endif
};

static const struct kg_opt options[] = {
    {.name = "count",
     .type = KG_OPT_U32,
     .offset = offsetof(struct conf, count),
     .def = "4",
     .min = 1,
     .max = 8,
     .doc = "How many. Unit: things."},
    {
#ifdef BAD_OPT_NAME
        .name = "Size!",
#elif defined(BAD_OPT_TWICE)
        .name = "count",
#else
        .name = "size",
#endif
#ifdef BAD_OPT_TYPE
        .type = 99,
#else
        .type = KG_OPT_U32,
#endif
#ifdef BAD_OPT_FLAGS
        .flags = 0x80,
#endif
#ifdef BAD_OPT_OFFSET
        .offset = sizeof(struct conf),
#elif defined(BAD_OPT_ALIGN)
        .offset = 2,
#else
        .offset = offsetof(struct conf, size),
#endif
#ifdef BAD_OPT_DEFAULT
        .def = "17",
#elif !defined(BAD_OPT_NO_DEFAULT)
        .def = "16",
#endif
#ifdef BAD_OPT_RANGE
        .min = 16,
        .max = 1,
#else
        .min = 1,
        .max = 16,
#endif
#ifndef BAD_OPT_DOC
        .doc = "How large. Unit: bytes.",
#endif
    },
    {.name = "mode",
     .type = KG_OPT_ENUM,
     .offset = offsetof(struct conf, mode),
     .def = "slow",
#ifndef BAD_OPT_CHOICES
     .choices = "slow|fast",
#endif
     .doc = "How."},
    {0},
};

static const struct kg_metric metrics[] = {
    {"calls_total", KG_COUNTER, "Calls."},
#ifdef BAD_METRIC_NAME
    {"Used-Bytes", KG_GAUGE, "Bytes used."},
#elif defined(BAD_METRIC_TYPE)
    {"used_bytes", 'x', "Bytes used."},
#elif defined(BAD_METRIC_TOTAL)
    {"used_total", KG_GAUGE, "Bytes used."},
#elif defined(BAD_METRIC_DOC)
    {"used_bytes", KG_GAUGE, ""},
#elif defined(BAD_METRIC_TWICE)
    {"calls_total", KG_COUNTER, "Calls."},
#endif
    {0},
};

static const struct kg_plugin plugin = {
#ifdef BAD_MAGIC
    .magic = 0x12345678,
#else
    .magic = KG_ABI_MAGIC,
#endif
#ifdef BAD_KIND
    .kind = KG_KIND_POOL,
#else
    .kind = KG_KIND_SPEC,
#endif
#ifdef BAD_SIZE
    .size = sizeof(plugin) - 8,
#else
    .size = sizeof(plugin),
#endif
#ifdef BAD_MAJOR
    .major = KG_SPEC_MAJOR + 1,
#else
    .major = KG_SPEC_MAJOR,
#endif
#if defined(BAD_NEEDS_MINOR) || defined(GOOD_NEWER)
    .minor = KG_SPEC_MINOR + 1,
#else
    .minor = KG_SPEC_MINOR,
#endif
#if defined(BAD_NEEDS_MINOR) || defined(BAD_NEEDS_ABOVE)
    .needs_minor = KG_SPEC_MINOR + 1,
#endif
#ifdef BAD_RESERVED
    .reserved = 7,
#endif
#ifdef BAD_NAME
    .name = "other",
#else
    .name = NAME,
#endif
#ifndef BAD_VERSION
    .version = "1",
#endif
#ifndef BAD_SUMMARY
    .summary = "a fixture",
#endif
#ifdef BAD_OP_WITHOUT_CAP
    .caps = 0,
#elif defined(BAD_CAPS) || defined(GOOD_NEWER)
    .caps = KG_SPEC_CAP_HOST | 1ull << 40,
#elif defined(BAD_TWO_CAPS)
    .caps = KG_SPEC_CAP_HOST | KG_SPEC_CAP_MODEL,
#else
    .caps = KG_SPEC_CAP_HOST,
#endif
    .opts = options,
#ifdef BAD_CONF_SIZE
    .conf_size = 1ull << 40,
#else
    .conf_size = sizeof(struct conf),
#endif
    .metrics = metrics,
#ifndef BAD_OPS
    .ops = &ops,
#endif
};

#ifdef BAD_SYMBOL
#define kg_plugin_entry some_other_entry
#endif

KG_EXPORT const struct kg_plugin *kg_plugin_entry(void);
KG_EXPORT const struct kg_plugin *kg_plugin_entry(void)
{
#ifdef BAD_NULL
    (void)plugin;
    return NULL;
#else
    return &plugin;
#endif
}
