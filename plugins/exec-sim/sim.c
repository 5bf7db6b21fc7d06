/* Opening, units and time of exec-sim; the step is in step.c. */
#include "sim.h"
#include <math.h>
#include <string.h>
#include <time.h>

static const struct kg_opt options[] = {
    {"clock", KG_OPT_ENUM, 0, offsetof(struct sim_conf, clock), "virtual", 0, 0, "virtual|real",
     "Whether a step takes its cost in virtual time (at once) or in real time (for serve)."},
    {"cost", KG_OPT_STR, KG_OPT_PATH, offsetof(struct sim_conf, cost), "", 0, 0, NULL,
     "File with the table of step times, or a surface that kedge check --write-cost wrote of "
     "another backend. Relative to the folder of the INI file. Either this or tables."},
    {"tables", KG_OPT_STR, KG_OPT_PATH, offsetof(struct sim_conf, tables), "", 0, 0, NULL,
     "File with measured kernel times of a system, from which steps are composed."},
    {"stack", KG_OPT_STR, KG_OPT_PATH, offsetof(struct sim_conf, stack), "", 0, 0, NULL,
     "With tables: file with what an engine's release makes of the kernels. Empty: the kernels one "
     "after the other."},
    {"system", KG_OPT_STR, 0, offsetof(struct sim_conf, system), "", 0, 0, NULL,
     "With tables: the system they must be of. Empty: any."},
    {"model", KG_OPT_STR, 0, offsetof(struct sim_conf, model), "kimi_k3", 0, 0, NULL,
     "With tables: shape of the transformer: kimi_k3, kimi_linear, kimi_k2, deepseek_v3, "
     "minimax_m2, qwen35_397b."},
    {"tp", KG_OPT_U32, 0, offsetof(struct sim_conf, tp), "8", 1, 1024, NULL,
     "With tables: ranks that share heads and projections. Unit: ranks."},
    {"ep", KG_OPT_U32, 0, offsetof(struct sim_conf, ep), "1", 1, 1024, NULL,
     "With tables: ranks the experts are dealt to whole; 1: each is split over tp. Unit: ranks."},
    {"pp", KG_OPT_U32, 0, offsetof(struct sim_conf, pp), "1", 1, 128, NULL,
     "With tables: stages, run one after the other. Unit: stages."},
    {"dcp", KG_OPT_U32, 0, offsetof(struct sim_conf, dcp), "1", 1, 1024, NULL,
     "With tables: ranks the cache of full attention is dealt to. Unit: ranks."},
    {"dp", KG_OPT_U32, 0, offsetof(struct sim_conf, dp), "1", 1, 1024, NULL,
     "With tables: groups of tp ranks that share experts and split sequences. Unit: groups."},
    {"kv", KG_OPT_ENUM, 0, offsetof(struct sim_conf, fp8_kv), "bf16", 0, 0, "bf16|fp8",
     "With tables: type of the cache of full attention."},
    {"expert_bytes", KG_OPT_F64, 0, offsetof(struct sim_conf, expert_bytes), "0", 0, 8, NULL,
     "With tables: a weight of a routed expert; 0: as the model was published. Unit: bytes."},
    {"weight_bytes", KG_OPT_F64, 0, offsetof(struct sim_conf, weight_bytes), "0", 0, 8, NULL,
     "With tables: any other weight; 0: as the model was published. Unit: bytes."},
    {"acceptance", KG_OPT_STR, KG_OPT_PATH, offsetof(struct sim_conf, acceptance), "", 0, 0, NULL,
     "File with profiles of which drafts are right, by domain. Empty: accept."},
    {"domain", KG_OPT_STR, 0, offsetof(struct sim_conf, domain), "", 0, 0, NULL,
     "Profile of requests that name none. Empty: the first of the file."},
    {"explain", KG_OPT_STR, KG_OPT_PATH, offsetof(struct sim_conf, explain), "", 0, 0, NULL,
     "File written at the end: what the steps were made of. kedge replay --explain sets it."},
    {"answers", KG_OPT_STR, KG_OPT_PATH, offsetof(struct sim_conf, answers), "", 0, 0, NULL,
     "File with the answers of requests by seed; kedge replay sets it. Empty: a script answers."},
    {"family", KG_OPT_STR, 0, offsetof(struct sim_conf, family), "kimi_k3", 0, 0, NULL,
     "Model family it stands for."},
    {"vocab", KG_OPT_U32, 0, offsetof(struct sim_conf, vocab), "163840", 2, 1u << 24, NULL,
     "Size of the vocabulary. Unit: tokens."},
    {"max_context", KG_OPT_U32, 0, offsetof(struct sim_conf, max_context), "1048576", 2, 1u << 24,
     NULL, "Longest sequence. Unit: tokens."},
    {"token_bytes", KG_OPT_U64, 0, offsetof(struct sim_conf, token_bytes), "0", 0, 1e9, NULL,
     "One token in a page: all MLA layers, one rank. 0: of model and layout. Unit: bytes."},
    {"draft_token_bytes", KG_OPT_U64, 0, offsetof(struct sim_conf, draft_token_bytes), "0", 0, 1e9,
     NULL, "The part of token_bytes that belongs to a drafter. Unit: bytes."},
    {"state_part_bytes", KG_OPT_U64, 0, offsetof(struct sim_conf, state_part_bytes), "0", 0, 1e12,
     NULL, "One part of a state (one KDA layer) on one rank. 0: of model and layout. Unit: bytes."},
    {"recurrent_part_bytes", KG_OPT_U64, 0, offsetof(struct sim_conf, recurrent_part_bytes), "0", 0,
     1e12, NULL,
     "The recurrent share of a part; the rest is convolution. Taken of the model with "
     "state_part_bytes 0. Unit: bytes."},
    {"n_state_parts", KG_OPT_U32, 0, offsetof(struct sim_conf, n_state_parts), "0", 0, 4096, NULL,
     "Parts of a state. 0: of model and layout. Unit: parts."},
    {"n_mla_layers", KG_OPT_U32, 0, offsetof(struct sim_conf, n_mla_layers), "0", 0, 4096, NULL,
     "Layers with paged attention. 0: of the model. Unit: layers."},
    {"page_tokens_align", KG_OPT_U32, 0, offsetof(struct sim_conf, page_tokens_align), "1", 1, 4096,
     NULL, "The page size is a multiple of this. Unit: tokens."},
    {"draft_block", KG_OPT_U32, 0, offsetof(struct sim_conf, draft_block), "0", 0, 64, NULL,
     "Longest draft of the drafter it stands for, 0 for none. Unit: tokens."},
    {"accept", KG_OPT_F64, 0, offsetof(struct sim_conf, accept), "0.7", 0, 1, NULL,
     "Probability that a drafted token is the one that is answered. Unit: none."},
    {"seed", KG_OPT_U64, 0, offsetof(struct sim_conf, seed), "1", 0, 9e15, NULL,
     "Of the luck of drafts, of the noise of confidence and of jitter. kedge replay sets it to its "
     "own. Unit: none."},
    {"jitter", KG_OPT_F64, 0, offsetof(struct sim_conf, jitter), "0", 0, 100, NULL,
     "Standard deviation of a step's time round what the table says, drawn from the seed step by "
     "step; assumed, not measured. Unit: percent."},
    {"to_host_gb_s", KG_OPT_F64, 0, offsetof(struct sim_conf, to_host_gb_s), "50", 0, 1e6, NULL,
     "Rate of copies of units to the host (tiers); they come before the next step. 0: they take no "
     "time. Unit: GB/s."},
    {"from_host_gb_s", KG_OPT_F64, 0, offsetof(struct sim_conf, from_host_gb_s), "50", 0, 1e6, NULL,
     "The same from the host. Unit: GB/s."},
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

static void close_sim(struct kg_exec *x)
{
    if (x == NULL) {
        return;
    }
    const struct kg_host *host = x->host;
    if (x->conf.explain[0] != '\0' && x->timing.n_steps > 0) {
        struct kg_error err = {0};
        if (sim_timing_explain(&x->timing, x->conf.explain, &err) != KG_OK) {
            host->log(host->ctx, KG_LOG_WARN, "exec-sim: %s", err.text);
        }
    }
    sim_timing_close(&x->timing);
    sim_answers_close(&x->answers);
    kg_host_put(x->host, x->slots, x->max_seqs, sizeof(*x->slots));
    kg_host_put(x->host, x->drafts, x->max_seqs * ((size_t)x->max_draft + 1), sizeof(uint32_t));
    kg_host_put(x->host, x->histories, (size_t)x->max_seqs * x->max_context, sizeof(uint32_t));
    kg_host_put(x->host, x->results, x->max_seqs, sizeof(*x->results));
    kg_host_put(x->host, x->out_tokens, x->max_seqs * ((size_t)x->max_draft + 1), sizeof(uint32_t));
    kg_host_put(x->host, x->logprobs, x->n_logprobs, sizeof(*x->logprobs));
    kg_host_put(x->host, x->state_length, x->layout.max_units[KG_STATE], sizeof(uint32_t));
    for (uint32_t k = 0; k < KG_N_KINDS; k++) {
        kg_host_put(x->host, x->table[k], x->n_table[k], sizeof(uint32_t));
    }
    host->free(host->ctx, x, sizeof(*x));
}

/* Arrays by slot. `histories` is touched only for requests that echo their prompt. */
static int alloc_open(struct kg_exec *x)
{
    size_t out = (size_t)x->max_draft + 1;

    x->n_logprobs = (x->max_seqs * out + x->max_rows) * (KG_MAX_LOGPROBS + 1);
    x->slots = kg_host_take(x->host, x->max_seqs, sizeof(*x->slots));
    x->drafts = kg_host_take(x->host, x->max_seqs * out, sizeof(uint32_t));
    x->histories = kg_host_take(x->host, (size_t)x->max_seqs * x->max_context, sizeof(uint32_t));
    x->results = kg_host_take(x->host, x->max_seqs, sizeof(*x->results));
    x->out_tokens = kg_host_take(x->host, x->max_seqs * out, sizeof(uint32_t));
    x->logprobs = kg_host_take(x->host, x->n_logprobs, sizeof(*x->logprobs));
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

/* Sizes that were not given are those of the model as it lies on one rank. */
static int fill_sizes(struct sim_conf *c, struct kg_error *err)
{
    const struct sim_shape *s = sim_shape_find(c->model);

    if (s == NULL) {
        return kg_fail(err, KG_ECONFIG, "[exec-sim] model: no shape \"%s\" is known", c->model);
    }
    double heads = s->linear_heads / c->tp, layers = s->mla_layers + s->gqa_layers;
    double token = s->mla_layers * 576 * (c->fp8_kv ? 1 : 2) / c->dcp;
    double kv = s->gqa_kv > c->tp ? s->gqa_kv / c->tp : 1;
    token += s->gqa_layers * 2 * kv * s->gqa_dim * (c->fp8_kv ? 1 : 2);
    if (c->token_bytes == 0) {
        c->token_bytes = (uint64_t)ceil(token / c->pp);
    }
    if (c->n_mla_layers == 0) {
        c->n_mla_layers = (uint32_t)layers;
    }
    if (c->n_state_parts == 0) {
        c->n_state_parts = s->linear_layers > 0 ? (uint32_t)ceil(s->linear_layers / c->pp) : 1;
    }
    if (c->state_part_bytes == 0) { /* S in 32 bits, three inputs of a convolution 4 wide in 16; a
                                       model without states is given small ones */
        double width = ceil(heads) * s->linear_dim;
        c->recurrent_part_bytes =
            s->linear_layers > 0 ? (uint64_t)(width * s->linear_dim * 4) : 1 << 20;
        c->state_part_bytes = c->recurrent_part_bytes + (uint64_t)(width * 3 * 3 * 2);
    }
    return KG_OK;
}

/* Everything open can find wrong before memory is taken; reads the files. */
static int check_open(struct kg_exec *x, const struct kg_exec_open *args, struct kg_error *err)
{
    const struct sim_conf *c = &x->conf;

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
    const struct sim_timing_conf timing = {.cost = c->cost,
                                           .tables = c->tables,
                                           .stack = c->stack,
                                           .model = c->model,
                                           .system = c->system,
                                           .layout = {c->tp, c->ep, c->pp, c->dcp, c->dp,
                                                      c->fp8_kv ? "fp8" : "bfloat16",
                                                      c->expert_bytes, c->weight_bytes},
                                           .max_rows = args->max_rows};
    int rc = sim_timing_open(&x->timing, &timing, err);
    sim_acceptance_plain(&x->acceptance, c->accept);
    if (rc == KG_OK && c->acceptance[0] != '\0') {
        rc = sim_acceptance_read(c->acceptance, &x->acceptance, err);
    }
    return rc;
}

static int open_sim(const struct kg_host *host, const void *conf, const struct kg_exec_open *args,
                    struct kg_exec **exec, struct kg_error *err)
{
    struct kg_exec *x = host->alloc(host->ctx, sizeof(*x), 64);

    if (x == NULL) {
        return kg_fail(err, KG_ENOMEM, "exec-sim: no memory for %zu bytes", sizeof(*x));
    }
    memset(x, 0, sizeof(*x));
    x->host = host;
    x->conf = *(const struct sim_conf *)conf;
    const struct sim_conf *c = &x->conf;
    int rc = fill_sizes(&x->conf, err);
    if (rc == KG_OK) {
        rc = check_open(x, args, err);
    }
    if (rc != KG_OK) {
        close_sim(x);
        return rc;
    }
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
        .kernels = x->timing.name,
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
    x->state_length = kg_host_take(x->host, l->max_units[KG_STATE], sizeof(uint32_t));
    for (uint32_t k = 0; k < KG_N_KINDS; k++) {
        uint64_t n = (uint64_t)l->max_units[k] * x->n_entry[k];
        x->n_table[k] = n < UINT32_MAX ? (uint32_t)n : 0;
        x->table[k] = kg_host_take(x->host, x->n_table[k], sizeof(uint32_t));
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

/* Bytes that leave or enter at so many GB/s: the next step begins after them. */
static void take_time(struct kg_exec *x, uint64_t bytes, double gb_s)
{
    x->host_ns += gb_s > 0 ? (double)bytes / gb_s : 0;
}

/* Units hold nothing. What is written of dst is what a tier brings back: the length a state stands
 * for in its first four bytes, then zeros, no more than a line of a cache. */
static int read_unit(struct kg_exec *x, uint32_t kind, uint32_t id, void *dst, uint64_t n)
{
    if (!sim_unit_mapped(x, kind, id) || n != natural(x, kind)) {
        return KG_EINVAL;
    }
    memset(dst, 0, n < 64 ? n : 64);
    take_time(x, n, x->conf.to_host_gb_s);
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
    take_time(x, n, x->conf.from_host_gb_s);
    return set_length(x, kind, id, length);
}

static int profile(struct kg_exec *x, uint32_t n_seqs, uint32_t rows, uint32_t context,
                   uint64_t *step_ns)
{
    if (!x->bound || n_seqs == 0 || rows < n_seqs || rows > x->max_rows ||
        context > x->max_context) {
        return KG_EINVAL;
    }
    struct sim_load w = {0};
    if (rows > n_seqs * (1 + x->max_draft)) { /* longer than a window: prompts */
        double each = (double)rows / n_seqs;
        w.prompts = w.samples = n_seqs;
        w.prompt_rows = rows;
        w.pairs = rows * (context + (each - 1) / 2);
        w.prompt_us = n_seqs * sim_timing_prompt(&x->timing, context, each);
    } else {
        w.seqs = n_seqs;
        w.rows = w.samples = rows;
        w.context = (double)n_seqs * context;
    }
    *step_ns = sim_timing_guess(&x->timing, &w);
    return KG_OK;
}

static int profile_draft(struct kg_exec *x, uint32_t n_seqs, uint32_t n_tokens, uint32_t context,
                         uint64_t *ns)
{
    if (!x->bound || n_seqs == 0 || n_seqs > x->max_seqs || n_tokens == 0 ||
        n_tokens > x->conf.draft_block || context > x->max_context) {
        return KG_EINVAL;
    }
    const struct sim_load w = {
        .seqs = n_seqs, .context = (double)n_seqs * context, .drafts = (double)n_seqs * n_tokens};
    *ns = sim_timing_guess(&x->timing, &w);
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
    .messages = sim_messages,
    .dealt = sim_dealt,
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
