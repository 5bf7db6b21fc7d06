/* Opening, units and time of exec-null; the step is in step.c. */
#include "null.h"
#include "script.h"
#include <string.h>
#include <time.h>

#define LOGITS_LIMIT_BYTES (64ull << 20) /* above it the logits copy is not offered */

static const struct kg_opt options[] = {
    {"clock", KG_OPT_ENUM, 0, offsetof(struct null_conf, clock), "virtual", 0, 0, "virtual|real",
     "Whether a step takes its cost in virtual time (at once) or in real time."},
    {"check", KG_OPT_BOOL, 0, offsetof(struct null_conf, check), "yes", 0, 0, NULL,
     "Prove in each step that pages and states hold what the sequence wrote: O(context)."},
    {"async", KG_OPT_BOOL, 0, offsetof(struct null_conf, async), "no", 0, 0, NULL,
     "Run the step in wait instead of submit, as a device would."},
    {"vocab", KG_OPT_U32, 0, offsetof(struct null_conf, vocab), "1024", 2, 1u << 24, NULL,
     "Size of the scripted vocabulary. Unit: tokens."},
    {"max_context", KG_OPT_U32, 0, offsetof(struct null_conf, max_context), "4096", 2, 1u << 24,
     NULL, "Longest sequence. Unit: tokens."},
    {"n_state_parts", KG_OPT_U32, 0, offsetof(struct null_conf, n_state_parts), "4", 1, 4096, NULL,
     "Parts of a state (layers with recurrent state). Unit: parts."},
    {"draft_block", KG_OPT_U32, 0, offsetof(struct null_conf, draft_block), "0", 0, 64, NULL,
     "Longest draft of the scripted drafter, 0 for no drafter. Unit: tokens."},
    {"page_tokens_align", KG_OPT_U32, 0, offsetof(struct null_conf, page_tokens_align), "1", 1,
     4096, NULL, "The page size is a multiple of this. Unit: tokens."},
    {"base_ns", KG_OPT_U64, 0, offsetof(struct null_conf, base_ns), "0", 0, 1e15, NULL,
     "Fixed cost of a step. Unit: ns."},
    {"per_row_ns", KG_OPT_U64, 0, offsetof(struct null_conf, per_row_ns), "0", 0, 1e12, NULL,
     "Cost of each row of a step. Unit: ns."},
    {"token_bytes", KG_OPT_U64, 0, offsetof(struct null_conf, token_bytes), "16", 8, 1e9, NULL,
     "Size of one token in a page. Unit: bytes."},
    {"state_part_bytes", KG_OPT_U64, 0, offsetof(struct null_conf, state_part_bytes), "64", 16,
     1e12, NULL, "Size of one part of a state. Unit: bytes."},
    {"accept", KG_OPT_F64, 0, offsetof(struct null_conf, accept), "0.7", 0, 1, NULL,
     "Probability that a drafted token is the scripted one. Unit: none."},
    {0},
};

uint64_t null_now(const struct kg_exec *x)
{
    if (x->conf.clock == 0) {
        return atomic_load_explicit(&((struct kg_exec *)(uintptr_t)x)->now_ns,
                                    memory_order_relaxed);
    }
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

static void advance(struct kg_exec *x, uint64_t t_ns)
{
    if (x->conf.clock == 0 && t_ns > null_now(x)) {
        atomic_store_explicit(&x->now_ns, t_ns, memory_order_relaxed);
    }
}

uint64_t null_cost(const struct kg_exec *x, uint32_t rows)
{
    return x->conf.base_ns + (uint64_t)rows * x->conf.per_row_ns;
}

static size_t n_slot_tokens(const struct kg_exec *x)
{
    return (size_t)x->max_context + x->max_draft + 1;
}

static void close_null(struct kg_exec *x)
{
    if (x == NULL) {
        return;
    }
    const struct kg_host *host = x->host;
    kg_host_put(x->host, x->slots, x->max_seqs, sizeof(*x->slots));
    kg_host_put(x->host, x->slot_tokens, x->max_seqs * n_slot_tokens(x), sizeof(uint32_t));
    kg_host_put(x->host, x->slot_drafts, x->max_seqs * ((size_t)x->max_draft + 1),
                sizeof(uint32_t));
    kg_host_put(x->host, x->slot_pages, (size_t)x->max_seqs * x->max_pages, sizeof(uint32_t));
    kg_host_put(x->host, x->results, x->max_seqs, sizeof(*x->results));
    kg_host_put(x->host, x->out_tokens, x->max_seqs * ((size_t)x->max_draft + 1), sizeof(uint32_t));
    kg_host_put(x->host, x->row_hash, (size_t)x->max_rows + 1, sizeof(uint64_t));
    kg_host_put(x->host, x->logprobs, x->n_logprobs_max, sizeof(*x->logprobs));
    kg_host_put(x->host, x->logits, (size_t)x->max_rows * x->conf.vocab, sizeof(float));
    kg_host_put(x->host, x->views, 1 + 2 * (size_t)x->conf.n_state_parts, sizeof(*x->views));
    kg_host_put(x->host, x->arena, x->layout.arena_bytes, 1);
    for (uint32_t k = 0; k < KG_N_KINDS; k++) {
        kg_host_put(x->host, x->table[k], x->n_table[k], sizeof(uint32_t));
    }
    host->free(host->ctx, x, sizeof(*x));
}

static int alloc_open(struct kg_exec *x)
{
    size_t out = (size_t)x->max_draft + 1;

    x->n_logprobs_max = (x->max_seqs * out + x->max_rows) * (KG_MAX_LOGPROBS + 1);
    x->slots = kg_host_take(x->host, x->max_seqs, sizeof(*x->slots));
    x->slot_tokens = kg_host_take(x->host, x->max_seqs * n_slot_tokens(x), sizeof(uint32_t));
    x->slot_drafts = kg_host_take(x->host, x->max_seqs * out, sizeof(uint32_t));
    x->results = kg_host_take(x->host, x->max_seqs, sizeof(*x->results));
    x->out_tokens = kg_host_take(x->host, x->max_seqs * out, sizeof(uint32_t));
    x->row_hash = kg_host_take(x->host, (size_t)x->max_rows + 1, sizeof(uint64_t));
    x->logprobs = kg_host_take(x->host, x->n_logprobs_max, sizeof(*x->logprobs));
    x->views = kg_host_take(x->host, 1 + 2 * (size_t)x->conf.n_state_parts, sizeof(*x->views));
    if (x->caps & KG_EXEC_CAP_LOGITS) {
        x->logits = kg_host_take(x->host, (size_t)x->max_rows * x->conf.vocab, sizeof(float));
    }
    if (x->slots == NULL || x->slot_tokens == NULL || x->slot_drafts == NULL ||
        x->results == NULL || x->out_tokens == NULL || x->row_hash == NULL || x->logprobs == NULL ||
        x->views == NULL || ((x->caps & KG_EXEC_CAP_LOGITS) && x->logits == NULL)) {
        return KG_ENOMEM;
    }
    memset(x->slots, 0, x->max_seqs * sizeof(*x->slots));
    for (uint32_t i = 0; i < x->max_seqs; i++) {
        x->slots[i].tokens = x->slot_tokens + i * n_slot_tokens(x);
        x->slots[i].drafts = x->slot_drafts + i * out;
    }
    return KG_OK;
}

static int open_null(const struct kg_host *host, const void *conf, const struct kg_exec_open *args,
                     struct kg_exec **exec, struct kg_error *err)
{
    const struct null_conf *c = conf;

    if (args->max_seqs == 0 || args->max_rows == 0) {
        return kg_fail(err, KG_ECONFIG, "exec-null: max_seqs %u and max_rows %u must be above 0",
                       args->max_seqs, args->max_rows);
    }
    if (c->state_part_bytes % 8 != 0 || c->token_bytes % 8 != 0) {
        return kg_fail(
            err, KG_ECONFIG,
            "exec-null: token_bytes %llu and state_part_bytes %llu must be multiples of 8",
            (unsigned long long)c->token_bytes, (unsigned long long)c->state_part_bytes);
    }
    struct kg_exec *x = host->alloc(host->ctx, sizeof(*x), 64);
    if (x == NULL) {
        return kg_fail(err, KG_ENOMEM, "exec-null: no memory for %zu bytes", sizeof(*x));
    }
    memset(x, 0, sizeof(*x));
    x->host = host;
    x->conf = *c;
    x->max_seqs = args->max_seqs;
    x->max_rows = args->max_rows;
    x->max_context = c->max_context;
    if (args->max_context != 0 && args->max_context < c->max_context) {
        x->max_context = args->max_context;
    }
    x->max_draft = args->max_draft > c->draft_block ? args->max_draft : c->draft_block;
    x->caps = KG_EXEC_CAP_INVARIANT_BATCH | KG_EXEC_CAP_INVARIANT_CHUNK |
              KG_EXEC_CAP_INVARIANT_PATH | KG_EXEC_CAP_VERIFY | KG_EXEC_CAP_VIEWS;
    x->caps |= c->draft_block > 0 ? KG_EXEC_CAP_DRAFT : 0;
    x->caps |= c->async ? KG_EXEC_CAP_ASYNC : 0;
    x->caps |= c->clock == 0 ? KG_EXEC_CAP_VIRTUAL : 0;
    if ((uint64_t)x->max_rows * c->vocab * sizeof(float) <= LOGITS_LIMIT_BYTES) {
        x->caps |= KG_EXEC_CAP_LOGITS;
    }
    if (alloc_open(x) != KG_OK) {
        close_null(x);
        return kg_fail(err, KG_ENOMEM, "exec-null: no memory for %u sequences of %u tokens",
                       args->max_seqs, c->max_context);
    }
    if (args->world > 1) {
        x->caps |= KG_EXEC_CAP_RANKS;
        x->comm_ops = args->comm_ops;
        x->comm = args->comm;
        int rc = x->comm_ops->seal(x->comm, err);
        if (rc != KG_OK) {
            close_null(x);
            return rc;
        }
    }
    *exec = x;
    return KG_OK;
}

static void describe(const struct kg_exec *x, struct kg_exec_desc *d)
{
    *d = (struct kg_exec_desc){
        .size = sizeof(*d),
        .caps = x->caps,
        .token_bytes = x->conf.token_bytes,
        .state_part_bytes = x->conf.state_part_bytes,
        .recurrent_bytes = x->conf.n_state_parts * (x->conf.state_part_bytes / 2),
        .n_state_parts = x->conf.n_state_parts,
        .page_tokens_align = x->conf.page_tokens_align,
        .align = 8,
        .n_layers = x->conf.n_state_parts + 1,
        .n_mla_layers = 1,
        .n_kda_layers = x->conf.n_state_parts,
        .vocab = x->conf.vocab,
        .max_context = x->max_context,
        .max_orders = 4,
        .draft_block = x->conf.draft_block,
        .max_draft = x->max_draft,
        .family = "scripted",
        .kernels = "none",
        .math = "",
    };
}

static void fill_views(struct kg_exec *x)
{
    uint64_t half = x->conf.state_part_bytes / 2;

    x->views[0] = (struct kg_view){.name = "mla",
                                   .kind = KG_PAGE,
                                   .dtype = KG_U8,
                                   .token_stride = x->conf.token_bytes,
                                   .n = x->conf.token_bytes};
    for (uint32_t i = 0; i < x->conf.n_state_parts; i++) {
        uint64_t at = (i % x->layout.parts_per_slot) * x->conf.state_part_bytes;
        struct kg_view v = {.name = "recurrent",
                            .kind = KG_STATE,
                            .layer = i + 1,
                            .dtype = KG_U8,
                            .entry = i / x->layout.parts_per_slot,
                            .offset = at,
                            .n = half};
        x->views[1 + 2 * i] = v;
        v.name = "conv";
        v.offset = at + half;
        v.n = x->conf.state_part_bytes - half;
        x->views[2 + 2 * i] = v;
    }
    x->n_views = 1 + 2 * x->conf.n_state_parts;
}

static int bind_null(struct kg_exec *x, const struct kg_pool_layout *l, struct kg_error *err)
{
    if (x->bound || l->size < sizeof(*l)) {
        return kg_fail(err, KG_EINVAL, "exec-null: bound twice, or a layout of %zu bytes", l->size);
    }
    if (l->page_tokens == 0 || l->page_tokens % x->conf.page_tokens_align != 0 ||
        l->slots_per_state == 0 ||
        (uint64_t)l->slots_per_state * l->parts_per_slot < x->conf.n_state_parts ||
        l->stride[KG_PAGE] < l->page_tokens * x->conf.token_bytes ||
        l->stride[KG_STATE] < l->parts_per_slot * x->conf.state_part_bytes) {
        return kg_fail(err, KG_EINVAL,
                       "exec-null: the layout cannot hold a page of %u tokens or a state of %u "
                       "parts in %u entries",
                       l->page_tokens, x->conf.n_state_parts, l->slots_per_state);
    }
    x->layout = *l;
    x->n_entry[KG_PAGE] = 1;
    x->n_entry[KG_STATE] = l->slots_per_state;
    x->max_pages = (x->max_context + x->max_draft) / l->page_tokens + 1;
    x->slot_pages = kg_host_take(x->host, (size_t)x->max_seqs * x->max_pages, sizeof(uint32_t));
    x->arena = kg_host_take(x->host, l->arena_bytes, 1);
    for (uint32_t k = 0; k < KG_N_KINDS; k++) {
        uint64_t n = (uint64_t)l->max_units[k] * x->n_entry[k];
        x->n_table[k] = n < UINT32_MAX ? (uint32_t)n : 0;
        x->table[k] = kg_host_take(x->host, x->n_table[k], sizeof(uint32_t));
        if (x->table[k] != NULL) {
            memset(x->table[k], 0xff, x->n_table[k] * sizeof(uint32_t));
        }
    }
    if (x->slot_pages == NULL || x->arena == NULL || x->table[0] == NULL || x->table[1] == NULL) {
        return kg_fail(err, KG_ENOMEM, "exec-null: no memory for an arena of %llu bytes",
                       (unsigned long long)l->arena_bytes);
    }
    if (x->conf.check) {
        memset(x->arena, 0xff, l->arena_bytes);
    }
    for (uint32_t i = 0; i < x->max_seqs; i++) {
        x->slots[i].pages = x->slot_pages + (size_t)i * x->max_pages;
    }
    fill_views(x);
    x->bound = 1;
    return KG_OK;
}

uint8_t *null_entry(const struct kg_exec *x, uint32_t kind, uint32_t entry)
{
    if (entry >= x->n_table[kind] || x->table[kind][entry] == KG_NONE) {
        return NULL;
    }
    return x->arena + x->layout.base[kind] +
           (uint64_t)x->table[kind][entry] * x->layout.stride[kind];
}

int null_unit_mapped(const struct kg_exec *x, uint32_t kind, uint32_t id)
{
    if (kind >= KG_N_KINDS || id >= x->layout.max_units[kind]) {
        return 0;
    }
    for (uint32_t i = 0; i < x->n_entry[kind]; i++) {
        if (x->table[kind][id * x->n_entry[kind] + i] == KG_NONE) {
            return 0;
        }
    }
    return 1;
}

static int apply(struct kg_exec *x, const struct kg_move *moves, uint32_t n_moves,
                 const struct kg_table_change *changes, uint32_t n_changes)
{
    for (uint32_t i = 0; i < n_moves; i++) {
        const struct kg_move *m = &moves[i];
        if (m->kind >= KG_N_KINDS || m->from >= x->layout.max_slots[m->kind] ||
            m->to >= x->layout.max_slots[m->kind] || m->from == m->to) {
            return KG_EINVAL;
        }
        uint8_t *base = x->arena + x->layout.base[m->kind];
        uint64_t stride = x->layout.stride[m->kind];
        memcpy(base + m->to * stride, base + m->from * stride, stride);
    }
    for (uint32_t i = 0; i < n_changes; i++) {
        const struct kg_table_change *c = &changes[i];
        if (c->kind >= KG_N_KINDS || c->entry >= x->n_table[c->kind] ||
            (c->slot != KG_NONE && c->slot >= x->layout.max_slots[c->kind])) {
            return KG_EINVAL;
        }
        x->table[c->kind][c->entry] = c->slot;
    }
    return KG_OK;
}

int null_copy(struct kg_exec *x, uint32_t kind, uint32_t dst, uint32_t src)
{
    if (!null_unit_mapped(x, kind, dst) || !null_unit_mapped(x, kind, src)) {
        return KG_EINVAL;
    }
    for (uint32_t i = 0; i < x->n_entry[kind] && dst != src; i++) {
        memcpy(null_entry(x, kind, dst * x->n_entry[kind] + i),
               null_entry(x, kind, src * x->n_entry[kind] + i), x->layout.stride[kind]);
    }
    return KG_OK;
}

static int fill(struct kg_exec *x, uint32_t kind, uint32_t id, int byte)
{
    if (!null_unit_mapped(x, kind, id)) {
        return KG_EINVAL;
    }
    for (uint32_t i = 0; i < x->n_entry[kind]; i++) {
        memset(null_entry(x, kind, id * x->n_entry[kind] + i), byte, x->layout.stride[kind]);
    }
    return KG_OK;
}

int null_zero(struct kg_exec *x, uint32_t kind, uint32_t id)
{
    return fill(x, kind, id, 0);
}

int null_poison(struct kg_exec *x, uint32_t kind, uint32_t id)
{
    return fill(x, kind, id, 0xff);
}

/* Copies a unit's natural bytes out of (to_host) or into its entries. */
static int transfer(struct kg_exec *x, uint32_t kind, uint32_t id, uint8_t *host, uint64_t n,
                    int to_host)
{
    if (!null_unit_mapped(x, kind, id)) {
        return KG_EINVAL;
    }
    uint64_t part =
        kind == KG_PAGE ? x->layout.page_tokens * x->conf.token_bytes : x->conf.state_part_bytes;
    uint32_t n_parts = kind == KG_PAGE ? 1 : x->conf.n_state_parts;
    uint32_t per = kind == KG_PAGE ? 1 : x->layout.parts_per_slot;
    if (n != part * n_parts) {
        return KG_EINVAL;
    }
    for (uint32_t i = 0; i < n_parts; i++) {
        uint8_t *at = null_entry(x, kind, id * x->n_entry[kind] + i / per) + (i % per) * part;
        if (to_host) {
            memcpy(host + i * part, at, part);
        } else {
            memcpy(at, host + i * part, part);
        }
    }
    return KG_OK;
}

static int read_unit(struct kg_exec *x, uint32_t kind, uint32_t id, void *dst, uint64_t n)
{
    return transfer(x, kind, id, dst, n, 1);
}

static int write_unit(struct kg_exec *x, uint32_t kind, uint32_t id, const void *src, uint64_t n)
{
    return transfer(x, kind, id, (uint8_t *)(uintptr_t)src, n, 0);
}

static int profile(struct kg_exec *x, uint32_t n_seqs, uint32_t rows, uint32_t context,
                   uint64_t *step_ns)
{
    if (!x->bound || n_seqs == 0 || rows < n_seqs || rows > x->max_rows ||
        context > x->max_context) {
        return KG_EINVAL;
    }
    *step_ns = null_cost(x, rows);
    return KG_OK;
}

/* The scripted drafter takes no time. */
static int profile_draft(struct kg_exec *x, uint32_t n_seqs, uint32_t n_tokens, uint32_t context,
                         uint64_t *ns)
{
    if (!x->bound || n_seqs == 0 || n_seqs > x->max_seqs || n_tokens == 0 ||
        n_tokens > x->conf.draft_block || context > x->max_context) {
        return KG_EINVAL;
    }
    *ns = 0;
    return KG_OK;
}

static int views(const struct kg_exec *x, const struct kg_view **out, uint32_t *n)
{
    if (!x->bound) {
        return KG_EINVAL;
    }
    *out = x->views;
    *n = x->n_views;
    return KG_OK;
}

static const struct kg_exec_ops ops = {
    .size = sizeof(ops),
    .open = open_null,
    .close = close_null,
    .describe = describe,
    .bind = bind_null,
    .apply = apply,
    .submit = null_submit,
    .wait = null_wait,
    .drop = null_drop,
    .copy = null_copy,
    .zero = null_zero,
    .poison = null_poison,
    .read = read_unit,
    .write = write_unit,
    .profile = profile,
    .now = null_now,
    .draft = null_draft,
    .advance = advance,
    .views = views,
    .profile_draft = profile_draft,
};

static const struct kg_plugin plugin = {
    .magic = KG_ABI_MAGIC,
    .kind = KG_KIND_EXEC,
    .size = sizeof(plugin),
    .major = KG_EXEC_MAJOR,
    .minor = KG_EXEC_MINOR,
    .name = "null",
    .version = KG_VERSION,
    .summary = "scripted tokens, no computation; checks the engine's use of pages and states",
    .caps = KG_EXEC_CAP_INVARIANT_BATCH | KG_EXEC_CAP_INVARIANT_CHUNK | KG_EXEC_CAP_INVARIANT_PATH |
            KG_EXEC_CAP_ASYNC | KG_EXEC_CAP_DRAFT | KG_EXEC_CAP_VERIFY | KG_EXEC_CAP_LOGITS |
            KG_EXEC_CAP_VIRTUAL | KG_EXEC_CAP_VIEWS | KG_EXEC_CAP_RANKS,
    .opts = options,
    .conf_size = sizeof(struct null_conf),
    .ops = &ops,
};

KG_EXPORT kg_plugin_entry_fn kg_plugin_entry;

const struct kg_plugin *kg_plugin_entry(void)
{
    return &plugin;
}
