/*
 * Backends that only say where they compute: exec-device in device memory, exec-cuda, for all its
 * name, in the host's. Whoever opens one has not looked at what it says.
 */
#include <kedge/exec.h>

#ifndef CAPS
#error "CAPS and NAME come from the build"
#endif

static int open_none(const struct kg_host *host, const void *conf, const struct kg_exec_open *args,
                     struct kg_exec **exec, struct kg_error *err)
{
    (void)host, (void)conf, (void)args, (void)exec;
    return kg_fail(err, KG_EINVAL, "exec-" NAME " was opened");
}

static void close_none(struct kg_exec *exec)
{
    (void)exec;
}

static void describe(const struct kg_exec *exec, struct kg_exec_desc *desc)
{
    (void)exec;
    *desc = (struct kg_exec_desc){.size = sizeof(*desc)};
}

static int bind_none(struct kg_exec *e, const struct kg_pool_layout *l, struct kg_error *err)
{
    (void)e, (void)l, (void)err;
    return KG_EINVAL;
}

static int apply(struct kg_exec *e, const struct kg_move *m, uint32_t n,
                 const struct kg_table_change *c, uint32_t k)
{
    (void)e, (void)m, (void)n, (void)c, (void)k;
    return KG_EINVAL;
}

static int submit(struct kg_exec *e, const struct kg_batch *b, struct kg_error *err)
{
    (void)e, (void)b, (void)err;
    return KG_EINVAL;
}

static int wait_none(struct kg_exec *e, struct kg_result *r, struct kg_error *err)
{
    (void)e, (void)r, (void)err;
    return KG_EINVAL;
}

static void drop(struct kg_exec *e, const uint32_t *slots, uint32_t n)
{
    (void)e, (void)slots, (void)n;
}

static int copy(struct kg_exec *e, uint32_t kind, uint32_t dst, uint32_t src)
{
    (void)e, (void)kind, (void)dst, (void)src;
    return KG_EINVAL;
}

static int fill(struct kg_exec *e, uint32_t kind, uint32_t id)
{
    (void)e, (void)kind, (void)id;
    return KG_EINVAL;
}

static int read_none(struct kg_exec *e, uint32_t kind, uint32_t id, void *dst, uint64_t n)
{
    (void)e, (void)kind, (void)id, (void)dst, (void)n;
    return KG_EINVAL;
}

static int write_none(struct kg_exec *e, uint32_t kind, uint32_t id, const void *src, uint64_t n)
{
    (void)e, (void)kind, (void)id, (void)src, (void)n;
    return KG_EINVAL;
}

static int profile(struct kg_exec *e, uint32_t n, uint32_t rows, uint32_t context, uint64_t *ns)
{
    (void)e, (void)n, (void)rows, (void)context, (void)ns;
    return KG_EINVAL;
}

static uint64_t now(const struct kg_exec *e)
{
    (void)e;
    return 0;
}

static const struct kg_exec_ops ops = {
    .size = sizeof(ops),
    .open = open_none,
    .close = close_none,
    .describe = describe,
    .bind = bind_none,
    .apply = apply,
    .submit = submit,
    .wait = wait_none,
    .drop = drop,
    .copy = copy,
    .zero = fill,
    .poison = fill,
    .read = read_none,
    .write = write_none,
    .profile = profile,
    .now = now,
};

static const struct kg_plugin plugin = {
    .magic = KG_ABI_MAGIC,
    .kind = KG_KIND_EXEC,
    .size = sizeof(plugin),
    .major = KG_EXEC_MAJOR,
    .minor = KG_EXEC_MINOR,
    .name = NAME,
    .version = "1",
    .summary = "says where it would compute",
    .caps = CAPS,
    .ops = &ops,
};

KG_EXPORT kg_plugin_entry_fn kg_plugin_entry;

const struct kg_plugin *kg_plugin_entry(void)
{
    return &plugin;
}
