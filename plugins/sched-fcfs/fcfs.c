/*
 * sched-fcfs: continuous batching with chunked prefill, first come first served.
 *
 * A step's rows go to decoding requests first (one row each plus the drafts the core allows), then
 * to prefills that began, by admission, then to new requests by arrival. A request the core cannot
 * admit now does not stop those behind it, `look_past` of them; the core keeps that fair through
 * max_wait_ms. When not all decoding requests fit a step, the next step goes on behind the last
 * one that ran. With `prompts = first` a step has prompts only while there are any.
 */
#include <kedge/sched.h>

struct fcfs_conf {
    uint32_t look_past, prompts; /* prompts: 0 mixed, 1 first */
};

struct kg_sched {
    const struct kg_host *host;
    struct fcfs_conf conf;
    uint64_t turn; /* arrival number of the last decoding request that ran in a full step, or 0 */
};

static const struct kg_opt options[] = {
    {"look_past", KG_OPT_U32, 0, offsetof(struct fcfs_conf, look_past), "32", 0, 65536, NULL,
     "Waiting requests asked about behind one that must wait for memory; 0 keeps strict order of "
     "arrival. Unit: requests."},
    {"prompts", KG_OPT_ENUM, 0, offsetof(struct fcfs_conf, prompts), "mixed", 0, 0, "mixed|first",
     "mixed: prompts share steps with decoding requests. first: a step with prompts has nothing "
     "else, decoding waits; time to first token before time per token."},
    {0},
};

static int open_fcfs(const struct kg_host *host, const void *conf, uint32_t max_requests,
                     struct kg_sched **sched, struct kg_error *err)
{
    (void)max_requests;
    struct kg_sched *s = host->alloc(host->ctx, sizeof(*s), 0);
    if (s == NULL) {
        return kg_fail(err, KG_ENOMEM, "sched-fcfs: no memory for %zu bytes", sizeof(*s));
    }
    *s = (struct kg_sched){.host = host, .conf = *(const struct fcfs_conf *)conf};
    *sched = s;
    return KG_OK;
}

static void close_fcfs(struct kg_sched *s)
{
    if (s != NULL) {
        s->host->free(s->host->ctx, s, sizeof(*s));
    }
}

static void add(struct kg_sched *s, const struct kg_sched_req *req)
{
    (void)s;
    (void)req;
}

static void remove_req(struct kg_sched *s, uint32_t index)
{
    (void)s;
    (void)index;
}

static void served(struct kg_sched *s, uint32_t index, uint32_t n_prefill, uint32_t n_output)
{
    (void)s;
    (void)index;
    (void)n_prefill;
    (void)n_output;
}

/* A plan being filled. */
struct plan {
    const struct kg_sched_view *view;
    struct kg_sched_item *items;
    uint32_t n, max;
    uint32_t rows; /* left */
};

static void push(struct plan *p, uint32_t index, uint32_t n_tokens)
{
    p->items[p->n++] = (struct kg_sched_item){index, n_tokens};
}

static void push_prefill(struct plan *p, const struct kg_sched_req *q, uint32_t computed)
{
    uint32_t n = q->n_prompt - computed;

    n = n < p->view->prefill_chunk ? n : p->view->prefill_chunk;
    n = n < p->rows ? n : p->rows;
    p->rows -= n;
    push(p, q->index, n);
}

/* Decoding requests by admission, from the one behind the last of a full step. */
static void plan_decode(struct kg_sched *s, struct plan *p)
{
    const struct kg_sched_view *v = p->view;
    uint32_t start = 0, n_runnable = 0;

    for (uint32_t i = 0; i < v->n_running; i++) {
        n_runnable += v->running[i].decoding && !v->running[i].paused;
        if (v->running[i].id == s->turn) {
            start = i + 1;
        }
    }
    int full = (uint64_t)n_runnable * v->decode_rows > p->rows;
    if (!full) {
        start = 0;
    }
    s->turn = 0;
    for (uint32_t k = 0; k < v->n_running && p->n < p->max && p->rows >= v->decode_rows; k++) {
        uint32_t i = start + k < v->n_running ? start + k : start + k - v->n_running;
        const struct kg_sched_req *q = &v->running[i];
        if (q->decoding && !q->paused) {
            p->rows -= v->decode_rows;
            push(p, q->index, 1);
            s->turn = full ? q->id : 0;
        }
    }
}

static void plan_prefill(struct plan *p)
{
    const struct kg_sched_view *v = p->view;

    for (uint32_t i = 0; i < v->n_running && p->n < p->max && p->rows > 0; i++) {
        if (!v->running[i].decoding && !v->running[i].paused) {
            push_prefill(p, &v->running[i], v->running[i].n_computed);
        }
    }
}

static void plan_waiting(const struct kg_sched *s, struct plan *p)
{
    const struct kg_sched_view *v = p->view;
    uint32_t slots = v->n_slots, passed = 0;

    for (uint32_t i = 0; i < v->n_waiting && slots > 0 && p->n < p->max && p->rows > 0; i++) {
        const struct kg_sched_req q = v->waiting[i];
        uint32_t computed = 0;
        if (q.paused) {
            continue;
        }
        enum kg_admit a = v->admit(v->ctx, q.index, &computed);
        if (a == KG_ADMIT_YES) {
            slots--;
            push_prefill(p, &q, computed);
        } else if (a == KG_ADMIT_LATER && passed++ == s->conf.look_past) {
            break;
        }
    }
}

static int plan(struct kg_sched *s, const struct kg_sched_view *view, struct kg_sched_item *items,
                uint32_t max_items)
{
    struct plan p = {view, items, 0, max_items, view->step_tokens};

    if (s->conf.prompts == 0) {
        plan_decode(s, &p);
    }
    plan_prefill(&p);
    plan_waiting(s, &p);
    if (s->conf.prompts == 1 && p.n == 0) {
        plan_decode(s, &p);
    }
    return (int)p.n;
}

static int check(const struct kg_sched *s, struct kg_error *err)
{
    (void)s;
    (void)err;
    return KG_OK;
}

static const struct kg_sched_ops ops = {
    .size = sizeof(ops),
    .open = open_fcfs,
    .close = close_fcfs,
    .add = add,
    .remove = remove_req,
    .served = served,
    .plan = plan,
    .check = check,
};

static const struct kg_plugin plugin = {
    .magic = KG_ABI_MAGIC,
    .kind = KG_KIND_SCHED,
    .size = sizeof(plugin),
    .major = KG_SCHED_MAJOR,
    .minor = KG_SCHED_MINOR,
    .name = "fcfs",
    .version = KG_VERSION,
    .summary = "continuous batching with chunked prefill, first come first served",
    .opts = options,
    .conf_size = sizeof(struct fcfs_conf),
    .ops = &ops,
};

KG_EXPORT kg_plugin_entry_fn kg_plugin_entry;

const struct kg_plugin *kg_plugin_entry(void)
{
    return &plugin;
}
