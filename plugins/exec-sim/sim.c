/* Opening, units and time of exec-sim; the step is in step.c. */
#include "sim.h"
#include <string.h>
#include <time.h>

static const struct kg_opt options[] = {
    {"clock", KG_OPT_ENUM, 0, offsetof(struct sim_conf, clock), "virtual", 0, 0, "virtual|real",
     "Whether a step takes its cost in virtual time (at once) or in real time (for serve)."},
    {"cost", KG_OPT_STR, KG_OPT_PATH, offsetof(struct sim_conf, cost), "", 0, 0, NULL,
     "File with the table of step times. Relative to the folder of the INI file."},
    {"answers", KG_OPT_STR, KG_OPT_PATH, offsetof(struct sim_conf, answers), "", 0, 0, NULL,
     "File with the answers of requests by seed; kedge replay sets it. Empty: a script answers."},
    {"family", KG_OPT_STR, 0, offsetof(struct sim_conf, family), "kimi_k3", 0, 0, NULL,
     "Model family it stands for."},
    {"vocab", KG_OPT_U32, 0, offsetof(struct sim_conf, vocab), "163840", 2, 1u << 24, NULL,
     "Size of the vocabulary. Unit: tokens."},
    {"max_context", KG_OPT_U32, 0, offsetof(struct sim_conf, max_context), "1048576", 2, 1u << 24,
     NULL, "Longest sequence. Unit: tokens."},
    {"token_bytes", KG_OPT_U64, 0, offsetof(struct sim_conf, token_bytes), "27648", 1, 1e9, NULL,
     "One token in a page: all MLA layers, bf16, one rank. Unit: bytes."},
    {"draft_token_bytes", KG_OPT_U64, 0, offsetof(struct sim_conf, draft_token_bytes), "0", 0, 1e9,
     NULL, "The part of token_bytes that belongs to a drafter. Unit: bytes."},
    {"state_part_bytes", KG_OPT_U64, 0, offsetof(struct sim_conf, state_part_bytes), "814080", 1,
     1e12, NULL, "One part of a state (one KDA layer) on one rank. Unit: bytes."},
    {"recurrent_part_bytes", KG_OPT_U64, 0, offsetof(struct sim_conf, recurrent_part_bytes),
     "786432", 0, 1e12, NULL,
     "The recurrent share of a part; the rest is convolution. Unit: bytes."},
    {"n_state_parts", KG_OPT_U32, 0, offsetof(struct sim_conf, n_state_parts), "69", 1, 4096, NULL,
     "Parts of a state. Unit: parts."},
    {"n_mla_layers", KG_OPT_U32, 0, offsetof(struct sim_conf, n_mla_layers), "24", 1, 4096, NULL,
     "Layers with paged attention. Unit: layers."},
    {"page_tokens_align", KG_OPT_U32, 0, offsetof(struct sim_conf, page_tokens_align), "1", 1, 4096,
     NULL, "The page size is a multiple of this. Unit: tokens."},
    {"draft_block", KG_OPT_U32, 0, offsetof(struct sim_conf, draft_block), "0", 0, 64, NULL,
     "Longest draft of the drafter it stands for, 0 for none. Unit: tokens."},
    {"accept", KG_OPT_F64, 0, offsetof(struct sim_conf, accept), "0.7", 0, 1, NULL,
     "Probability that a drafted token is the one that is answered. Unit: none."},
    {0},
};

uint64_t sim_now(const struct kg_exec *x)
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
    if (x->conf.clock == 0 && t_ns > sim_now(x)) {
        atomic_store_explicit(&x->now_ns, t_ns, memory_order_relaxed);
    }
}

static void *take(struct kg_exec *x, size_t n, size_t each)
{
    void *p = NULL;
    size_t bytes;

    if (!__builtin_mul_overflow(n, each, &bytes)) {
        p = x->host->alloc(x->host->ctx, bytes == 0 ? 1 : bytes, 64);
    }
    return p;
}

static void put(struct kg_exec *x, void *p, size_t n, size_t each)
{
    size_t bytes = n * each;

    if (p != NULL) {
        x->host->free(x->host->ctx, p, bytes == 0 ? 1 : bytes);
    }
}

static void close_sim(struct kg_exec *x)
{
    if (x == NULL) {
        return;
    }
    const struct kg_host *host = x->host;
    sim_answers_close(&x->answers);
    put(x, x->slots, x->max_seqs, sizeof(*x->slots));
    put(x, x->drafts, x->max_seqs * ((size_t)x->max_draft + 1), sizeof(uint32_t));
    put(x, x->histories, (size_t)x->max_seqs * x->max_context, sizeof(uint32_t));
    put(x, x->results, x->max_seqs, sizeof(*x->results));
    put(x, x->out_tokens, x->max_seqs * ((size_t)x->max_draft + 1), sizeof(uint32_t));
    put(x, x->logprobs, x->n_logprobs, sizeof(*x->logprobs));
    put(x, x->state_length, x->layout.max_units[KG_STATE], sizeof(uint32_t));
    for (uint32_t k = 0; k < KG_N_KINDS; k++) {
        put(x, x->table[k], x->n_table[k], sizeof(uint32_t));
    }
    host->free(host->ctx, x, sizeof(*x));
}

/* Arrays by slot. `histories` is touched only for requests that echo their prompt. */
static int alloc_open(struct kg_exec *x)
{
    size_t out = (size_t)x->max_draft + 1;

    x->n_logprobs = (x->max_seqs * out + x->max_rows) * (KG_MAX_LOGPROBS + 1);
    x->slots = take(x, x->max_seqs, sizeof(*x->slots));
    x->drafts = take(x, x->max_seqs * out, sizeof(uint32_t));
    x->histories = take(x, (size_t)x->max_seqs * x->max_context, sizeof(uint32_t));
    x->results = take(x, x->max_seqs, sizeof(*x->results));
    x->out_tokens = take(x, x->max_seqs * out, sizeof(uint32_t));
    x->logprobs = take(x, x->n_logprobs, sizeof(*x->logprobs));
    if (x->slots == NULL || x->drafts == NULL || x->histories == NULL || x->results == NULL ||
        x->out_tokens == NULL || x->logprobs == NULL) {
        return KG_ENOMEM;
    }
    memset(x->slots, 0, x->max_seqs * sizeof(*x->slots));
    for (uint32_t i = 0; i < x->max_seqs; i++) {
        x->slots[i].drafts = x->drafts + i * out;
        x->slots[i].history = x->histories + (size_t)i * x->max_context;
    }
    return KG_OK;
}

/* Everything open can find wrong before memory is taken; reads the cost table. */
static int check_open(const struct sim_conf *c, const struct kg_exec_open *args,
                      struct sim_cost *cost, struct kg_error *err)
{
    if (args->max_seqs == 0 || args->max_rows == 0) {
        return kg_fail(err, KG_ECONFIG, "exec-sim: max_seqs %u and max_rows %u must be above 0",
                       args->max_seqs, args->max_rows);
    }
    if (args->world != 1) {
        return kg_fail(err, KG_ECONFIG,
                       "exec-sim runs on one rank: the table stands for a group, not for %u ranks",
                       args->world);
    }
    if (c->recurrent_part_bytes > c->state_part_bytes || c->draft_token_bytes > c->token_bytes) {
        return kg_fail(err, KG_ECONFIG,
                       "exec-sim: recurrent_part_bytes and draft_token_bytes are parts of "
                       "state_part_bytes and token_bytes");
    }
    if (c->cost[0] == '\0') {
        return kg_fail(err, KG_ECONFIG, "[exec-sim] cost: name the file with the step times");
    }
    int rc = sim_cost_read(c->cost, cost, err);
    if (rc == KG_OK && args->max_rows > cost->rows[cost->n - 1]) {
        return kg_fail(err, KG_ECONFIG,
                       "%s: the table ends at %u rows, [engine] step_tokens is %u; nothing is "
                       "guessed beyond it",
                       c->cost, cost->rows[cost->n - 1], args->max_rows);
    }
    return rc;
}

static int open_sim(const struct kg_host *host, const void *conf, const struct kg_exec_open *args,
                    struct kg_exec **exec, struct kg_error *err)
{
    const struct sim_conf *c = conf;
    struct sim_cost cost;

    int rc = check_open(c, args, &cost, err);
    if (rc != KG_OK) {
        return rc;
    }
    struct kg_exec *x = host->alloc(host->ctx, sizeof(*x), 64);
    if (x == NULL) {
        return kg_fail(err, KG_ENOMEM, "exec-sim: no memory for %zu bytes", sizeof(*x));
    }
    memset(x, 0, sizeof(*x));
    x->host = host;
    x->conf = *c;
    x->cost = cost;
    x->max_seqs = args->max_seqs;
    x->max_rows = args->max_rows;
    x->max_context = c->max_context;
    if (args->max_context != 0 && args->max_context < c->max_context) {
        x->max_context = args->max_context;
    }
    x->max_draft = args->max_draft > c->draft_block ? args->max_draft : c->draft_block;
    x->caps = KG_EXEC_CAP_INVARIANT_BATCH | KG_EXEC_CAP_INVARIANT_CHUNK |
              KG_EXEC_CAP_INVARIANT_PATH | KG_EXEC_CAP_VERIFY | KG_EXEC_CAP_NO_BYTES;
    x->caps |= c->draft_block > 0 ? KG_EXEC_CAP_DRAFT : 0;
    x->caps |= c->clock == 0 ? KG_EXEC_CAP_VIRTUAL : KG_EXEC_CAP_ASYNC;
    if (alloc_open(x) != KG_OK) {
        close_sim(x);
        return kg_fail(err, KG_ENOMEM, "exec-sim: no memory for %u sequences of %u tokens",
                       args->max_seqs, c->max_context);
    }
    *exec = x;
    return KG_OK;
}

static void describe(const struct kg_exec *x, struct kg_exec_desc *d)
{
    const struct sim_conf *c = &x->conf;

    *d = (struct kg_exec_desc){
        .size = sizeof(*d),
        .caps = x->caps,
        .token_bytes = c->token_bytes,
        .draft_token_bytes = c->draft_token_bytes,
        .state_part_bytes = c->state_part_bytes,
        .recurrent_bytes = c->n_state_parts * c->recurrent_part_bytes,
        .n_state_parts = c->n_state_parts,
        .page_tokens_align = c->page_tokens_align,
        .align = 256,
        .n_layers = c->n_mla_layers + c->n_state_parts,
        .n_mla_layers = c->n_mla_layers,
        .n_kda_layers = c->n_state_parts,
        .vocab = c->vocab,
        .max_context = x->max_context,
        .max_orders = 4,
        .draft_block = c->draft_block,
        .max_draft = x->max_draft,
        .family = c->family,
        .kernels = x->cost.name,
        .math = "",
    };
}

static int bind_sim(struct kg_exec *x, const struct kg_pool_layout *l, struct kg_error *err)
{
    if (x->bound || l->size < sizeof(*l)) {
        return kg_fail(err, KG_EINVAL, "exec-sim: bound twice, or a layout of %zu bytes", l->size);
    }
    if (l->page_tokens == 0 || l->page_tokens % x->conf.page_tokens_align != 0 ||
        l->slots_per_state == 0 ||
        (uint64_t)l->slots_per_state * l->parts_per_slot < x->conf.n_state_parts ||
        l->stride[KG_PAGE] < l->page_tokens * x->conf.token_bytes ||
        l->stride[KG_STATE] < l->parts_per_slot * x->conf.state_part_bytes) {
        return kg_fail(err, KG_EINVAL,
                       "exec-sim: the layout cannot hold a page of %u tokens or a state of %u "
                       "parts in %u entries",
                       l->page_tokens, x->conf.n_state_parts, l->slots_per_state);
    }
    if (x->conf.answers[0] != '\0') {
        int rc = sim_answers_open(x->conf.answers, x->conf.vocab, &x->answers, err);
        if (rc != KG_OK) {
            return rc;
        }
    }
    x->layout = *l;
    x->n_entry[KG_PAGE] = 1;
    x->n_entry[KG_STATE] = l->slots_per_state;
    x->max_pages = (x->max_context + x->max_draft) / l->page_tokens + 1;
    x->state_length = take(x, l->max_units[KG_STATE], sizeof(uint32_t));
    for (uint32_t k = 0; k < KG_N_KINDS; k++) {
        uint64_t n = (uint64_t)l->max_units[k] * x->n_entry[k];
        x->n_table[k] = n < UINT32_MAX ? (uint32_t)n : 0;
        x->table[k] = take(x, x->n_table[k], sizeof(uint32_t));
        if (x->table[k] != NULL) {
            memset(x->table[k], 0xff, x->n_table[k] * sizeof(uint32_t));
        }
    }
    if (x->state_length == NULL || x->table[0] == NULL || x->table[1] == NULL) {
        return kg_fail(err, KG_ENOMEM, "exec-sim: no memory for a table of %u pages",
                       l->max_units[KG_PAGE]);
    }
    memset(x->state_length, 0xff, l->max_units[KG_STATE] * sizeof(uint32_t));
    x->bound = 1;
    return KG_OK;
}

int sim_unit_mapped(const struct kg_exec *x, uint32_t kind, uint32_t id)
{
    if (kind >= KG_N_KINDS || !x->bound || id >= x->layout.max_units[kind]) {
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
        x->moved_bytes += x->layout.stride[m->kind];
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

/* A state takes over the length of another, or gets one. */
static int set_length(struct kg_exec *x, uint32_t kind, uint32_t id, uint32_t length)
{
    if (!sim_unit_mapped(x, kind, id)) {
        return KG_EINVAL;
    }
    if (kind == KG_STATE) {
        x->state_length[id] = length;
    }
    return KG_OK;
}

static int copy(struct kg_exec *x, uint32_t kind, uint32_t dst, uint32_t src)
{
    if (!sim_unit_mapped(x, kind, src)) {
        return KG_EINVAL;
    }
    return set_length(x, kind, dst, kind == KG_STATE ? x->state_length[src] : 0);
}

static int zero(struct kg_exec *x, uint32_t kind, uint32_t id)
{
    return set_length(x, kind, id, 0);
}

static int poison(struct kg_exec *x, uint32_t kind, uint32_t id)
{
    return set_length(x, kind, id, KG_NONE);
}

static uint64_t natural(const struct kg_exec *x, uint32_t kind)
{
    return kind == KG_PAGE ? x->layout.page_tokens * x->conf.token_bytes
                           : x->conf.n_state_parts * x->conf.state_part_bytes;
}

/* Zeros, but for the length a state stands for in its first four bytes: what a tier brings back. */
static int read_unit(struct kg_exec *x, uint32_t kind, uint32_t id, void *dst, uint64_t n)
{
    if (!sim_unit_mapped(x, kind, id) || n != natural(x, kind)) {
        return KG_EINVAL;
    }
    memset(dst, 0, n);
    if (kind == KG_STATE && n >= sizeof(uint32_t)) {
        memcpy(dst, &x->state_length[id], sizeof(uint32_t));
    }
    return KG_OK;
}

static int write_unit(struct kg_exec *x, uint32_t kind, uint32_t id, const void *src, uint64_t n)
{
    uint32_t length = KG_NONE;

    if (!sim_unit_mapped(x, kind, id) || n != natural(x, kind)) {
        return KG_EINVAL;
    }
    if (n >= sizeof(length)) {
        memcpy(&length, src, sizeof(length));
    }
    return set_length(x, kind, id, length);
}

static int profile(struct kg_exec *x, uint32_t n_seqs, uint32_t rows, uint32_t context,
                   uint64_t *step_ns)
{
    if (!x->bound || n_seqs == 0 || rows < n_seqs || rows > x->max_rows ||
        context > x->max_context) {
        return KG_EINVAL;
    }
    struct sim_work w = {.rows = rows};
    if (rows > n_seqs * (1 + x->max_draft)) { /* longer than a window: prompts */
        w.prefill_context = (double)rows * (context + ((double)rows / n_seqs - 1) / 2);
    } else {
        w.decode_context = (double)n_seqs * context;
    }
    *step_ns = sim_cost_step(&x->cost, &w);
    return KG_OK;
}

static int profile_draft(struct kg_exec *x, uint32_t n_seqs, uint32_t n_tokens, uint32_t context,
                         uint64_t *ns)
{
    if (!x->bound || n_seqs == 0 || n_seqs > x->max_seqs || n_tokens == 0 ||
        n_tokens > x->conf.draft_block || context > x->max_context) {
        return KG_EINVAL;
    }
    *ns = (uint64_t)(x->cost.draft_ns + 0.5);
    return KG_OK;
}

static const struct kg_exec_ops ops = {
    .size = sizeof(ops),
    .open = open_sim,
    .close = close_sim,
    .describe = describe,
    .bind = bind_sim,
    .apply = apply,
    .submit = sim_submit,
    .wait = sim_wait,
    .drop = sim_drop,
    .copy = copy,
    .zero = zero,
    .poison = poison,
    .read = read_unit,
    .write = write_unit,
    .profile = profile,
    .now = sim_now,
    .draft = sim_draft,
    .advance = advance,
    .profile_draft = profile_draft,
};

static const struct kg_plugin plugin = {
    .magic = KG_ABI_MAGIC,
    .kind = KG_KIND_EXEC,
    .size = sizeof(plugin),
    .major = KG_EXEC_MAJOR,
    .minor = KG_EXEC_MINOR,
    .name = "sim",
    .version = KG_VERSION,
    .summary = "takes the time of a real backend from a table, computes and holds nothing",
    .caps = KG_EXEC_CAP_INVARIANT_BATCH | KG_EXEC_CAP_INVARIANT_CHUNK | KG_EXEC_CAP_INVARIANT_PATH |
            KG_EXEC_CAP_ASYNC | KG_EXEC_CAP_DRAFT | KG_EXEC_CAP_VERIFY | KG_EXEC_CAP_VIRTUAL |
            KG_EXEC_CAP_NO_BYTES,
    .opts = options,
    .conf_size = sizeof(struct sim_conf),
    .ops = &ops,
};

KG_EXPORT kg_plugin_entry_fn kg_plugin_entry;

const struct kg_plugin *kg_plugin_entry(void)
{
    return &plugin;
}
