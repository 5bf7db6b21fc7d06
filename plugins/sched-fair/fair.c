#include "fair.h"
#include <string.h>

static const struct kg_opt options[] = {
    {"prompt_weight", KG_OPT_F64, 0, offsetof(struct fair_conf, prompt_weight), "1", 0.001, 1000,
     NULL, "What a computed prompt token costs its tenant. Unit: none."},
    {"output_weight", KG_OPT_F64, 0, offsetof(struct fair_conf, output_weight), "2", 0.001, 1000,
     NULL, "What a token of output costs its tenant. Unit: none."},
    {"look_past", KG_OPT_U32, 0, offsetof(struct fair_conf, look_past), "32", 0, 65536, NULL,
     "Waiting requests asked about behind those that must wait for memory. Unit: requests."},
    {0},
};

/* --- life --- */

/* Of zeros. */
static void *take(struct kg_sched *s, size_t n, size_t each)
{
    void *p = kg_host_take(s->host, n, each);

    if (p != NULL) {
        memset(p, 0, n * each);
    }
    return p;
}

static void close_fair(struct kg_sched *s)
{
    if (s == NULL) {
        return;
    }
    kg_host_put(s->host, s->tenants, s->max_tenants, sizeof(*s->tenants));
    kg_host_put(s->host, s->reqs, s->max_requests, sizeof(*s->reqs));
    kg_host_put(s->host, s->map, (size_t)s->map_mask + 1, sizeof(*s->map));
    kg_host_put(s->host, s->items, s->max_requests, sizeof(*s->items));
    kg_host_put(s->host, s->active, s->max_tenants, sizeof(*s->active));
    kg_host_put(s->host, s->order, s->max_requests, sizeof(*s->order));
    s->host->free(s->host->ctx, s, sizeof(*s));
}

static int open_fair(const struct kg_host *host, const void *conf, uint32_t max_requests,
                     struct kg_sched **sched, struct kg_error *err)
{
    struct kg_sched *s = host->alloc(host->ctx, sizeof(*s), 64);
    uint32_t places = 16;

    if (s == NULL) {
        return kg_fail(err, KG_ENOMEM, "sched-fair: no memory for %zu bytes", sizeof(*s));
    }
    *s = (struct kg_sched){.host = host, .conf = *(const struct fair_conf *)conf};
    s->prompt_cost = (uint64_t)(s->conf.prompt_weight * FAIR_UNIT + 0.5);
    s->output_cost = (uint64_t)(s->conf.output_weight * FAIR_UNIT + 0.5);
    s->max_requests = max_requests;
    s->max_tenants = 2 * max_requests + 2;
    while (places < 2 * s->max_tenants) {
        places *= 2;
    }
    s->map_mask = places - 1;
    s->tenants = take(s, s->max_tenants, sizeof(*s->tenants));
    s->reqs = take(s, max_requests, sizeof(*s->reqs));
    s->map = take(s, places, sizeof(*s->map));
    s->items = take(s, max_requests, sizeof(*s->items));
    s->active = take(s, s->max_tenants, sizeof(*s->active));
    s->order = take(s, max_requests, sizeof(*s->order));
    if (s->tenants == NULL || s->reqs == NULL || s->map == NULL || s->items == NULL ||
        s->active == NULL || s->order == NULL) {
        close_fair(s);
        return kg_fail(err, KG_ENOMEM, "sched-fair: no memory for %u requests", max_requests);
    }
    memset(s->map, 0xff, places * sizeof(*s->map));
    *sched = s;
    return KG_OK;
}

/* --- accounts --- */

static void add(struct kg_sched *s, const struct kg_sched_req *req)
{
    s->reqs[req->index] = (struct fair_req){
        .live = 1, .tenant = fair_tenant_join(s, req->tenant), .n_prompt = req->n_prompt};
}

static void remove_req(struct kg_sched *s, uint32_t index)
{
    if (s->reqs[index].live) {
        s->reqs[index].live = 0;
        fair_tenant_leave(s, s->reqs[index].tenant);
    }
}

static void served(struct kg_sched *s, uint32_t index, uint32_t n_prefill, uint32_t n_output)
{
    struct fair_req *r = &s->reqs[index];
    uint32_t left = r->n_prompt - r->n_charged, n = n_prefill < left ? n_prefill : left;

    r->n_charged += n;
    s->tenants[r->tenant].counter += n * s->prompt_cost + n_output * s->output_cost;
}

/* --- a plan --- */

struct plan {
    struct kg_sched *s;
    const struct kg_sched_view *view;
    struct kg_sched_item *out;
    uint32_t n, max, rows; /* rows: left */
    uint32_t slots, later;
};

static uint32_t class_of(const struct kg_sched_req *q)
{
    return q->priority < FAIR_CLASSES ? q->priority : FAIR_CLASSES - 1;
}

static struct fair_tenant *tenant_of(struct kg_sched *s, uint32_t index)
{
    return &s->tenants[s->reqs[index].tenant];
}

/* The tenant's part in this plan begins. */
static void touch(struct kg_sched *s, struct fair_tenant *t)
{
    if (t->stamp != s->n_plans) {
        t->stamp = s->n_plans;
        t->planned = 0;
        memset(t->head, 0xff, sizeof(t->head));
        s->active[s->n_active++] = (uint32_t)(t - s->tenants);
    }
}

static void list(struct plan *p, const struct kg_sched_req *q, uint32_t waiting)
{
    struct kg_sched *s = p->s;
    struct fair_tenant *t = tenant_of(s, q->index);
    uint32_t c = class_of(q), at = s->n_items++;

    touch(s, t);
    s->items[at] = (struct fair_item){*q, waiting, KG_NONE};
    if (t->head[c] == KG_NONE) {
        t->head[c] = at;
    } else {
        s->items[t->tail[c]].next = at;
    }
    t->tail[c] = at;
}

static void push(struct plan *p, uint32_t index, uint32_t n_tokens, uint64_t cost)
{
    p->out[p->n++] = (struct kg_sched_item){index, n_tokens};
    tenant_of(p->s, index)->planned += cost;
}

/* Whether decoding request a goes before b: class, tenant's counter, who ran longest ago. */
static int goes_first(struct kg_sched *s, const struct kg_sched_view *v, uint32_t a, uint32_t b)
{
    const struct kg_sched_req *p = &v->running[a], *q = &v->running[b];
    uint32_t cp = class_of(p), cq = class_of(q);
    uint64_t tp = tenant_of(s, p->index)->counter, tq = tenant_of(s, q->index)->counter;
    uint64_t rp = s->reqs[p->index].last_run, rq = s->reqs[q->index].last_run;

    if (cp != cq) {
        return cp > cq;
    }
    if (tp != tq) {
        return tp < tq;
    }
    return rp != rq ? rp < rq : a < b;
}

static void sift(struct kg_sched *s, const struct kg_sched_view *v, uint32_t *o, uint32_t i,
                 uint32_t n)
{
    for (uint32_t k; (k = 2 * i + 1) < n; i = k) {
        k += k + 1 < n && goes_first(s, v, o[k + 1], o[k]);
        if (!goes_first(s, v, o[k], o[i])) {
            return;
        }
        uint32_t keep = o[i];
        o[i] = o[k];
        o[k] = keep;
    }
}

/* Decoding requests: all of them if they fit, else off the top of a heap. */
static void plan_decode(struct plan *p)
{
    const struct kg_sched_view *v = p->view;
    struct kg_sched *s = p->s;
    uint32_t n = 0;

    for (uint32_t i = 0; i < v->n_running; i++) {
        if (v->running[i].decoding && !v->running[i].paused) {
            s->order[n++] = i;
        }
    }
    int all = (uint64_t)n * v->decode_rows <= p->rows && n <= p->max;
    for (uint32_t i = n / 2; !all && i-- > 0;) {
        sift(s, v, s->order, i, n);
    }
    for (uint32_t k = 0; n > 0 && p->n < p->max && p->rows >= v->decode_rows; k++) {
        uint32_t i = s->order[all ? k : 0];
        touch(s, tenant_of(s, v->running[i].index));
        push(p, v->running[i].index, 1, s->output_cost);
        s->reqs[v->running[i].index].last_run = s->n_plans;
        p->rows -= v->decode_rows;
        if (all ? k + 1 == n : --n == 0) {
            break;
        }
        if (!all) {
            s->order[0] = s->order[n];
            sift(s, v, s->order, 0, n);
        }
    }
}

/* Prompts under way, by admission, then waiting requests, by arrival: each into its tenant's list.
 * An admitted prompt counts against its tenant until it is computed and charged. */
static void list_prompts(struct plan *p)
{
    const struct kg_sched_view *v = p->view;

    for (uint32_t i = 0; i < v->n_running; i++) {
        const struct kg_sched_req *q = &v->running[i];
        if (!q->decoding && !q->paused) {
            list(p, q, 0);
            tenant_of(p->s, q->index)->planned += (q->n_prompt - q->n_computed) * p->s->prompt_cost;
        }
    }
    for (uint32_t i = 0; p->slots > 0 && i < v->n_waiting; i++) {
        if (!v->waiting[i].paused) {
            list(p, &v->waiting[i], 1);
        }
    }
}

/* Takes the next prompt: highest class, then the tenant that got least; KG_NONE when none is left.
 * A prompt under way does not count against its own turn. */
static uint32_t next_prompt(struct plan *p)
{
    struct kg_sched *s = p->s;
    struct fair_tenant *best = NULL;
    uint32_t best_class = 0;
    uint64_t best_key = 0;

    for (uint32_t i = 0; i < s->n_active; i++) {
        struct fair_tenant *t = &s->tenants[s->active[i]];
        for (uint32_t c = FAIR_CLASSES; c-- > best_class;) {
            if (t->head[c] == KG_NONE) {
                continue;
            }
            const struct fair_item *it = &s->items[t->head[c]];
            uint64_t own =
                it->waiting ? 0 : (it->row.n_prompt - it->row.n_computed) * s->prompt_cost;
            uint64_t key = t->counter + t->planned - own;
            if (best == NULL || c > best_class || key < best_key) {
                best = t;
                best_class = c;
                best_key = key;
            }
            break;
        }
    }
    if (best == NULL) {
        return KG_NONE;
    }
    uint32_t at = best->head[best_class];
    best->head[best_class] = s->items[at].next;
    return at;
}

/* A prompt's rows into the plan. */
static void push_prompt(struct plan *p, const struct kg_sched_req *q, uint32_t computed,
                        uint32_t waiting)
{
    uint32_t left = q->n_prompt - computed, n = left;

    n = n < p->view->prefill_chunk ? n : p->view->prefill_chunk;
    n = n < p->rows ? n : p->rows;
    p->rows -= n;
    push(p, q->index, n, waiting ? left * p->s->prompt_cost : 0);
}

/* Asks the core about a waiting request; its rows follow when it may run. */
static enum kg_admit ask(struct plan *p, const struct kg_sched_req *q)
{
    const struct kg_sched_req row = *q;
    uint32_t computed = 0;

    p->s->reqs[row.index].last_ask = p->s->n_plans;
    enum kg_admit a = p->view->admit(p->view->ctx, row.index, &computed);
    if (a == KG_ADMIT_YES) {
        p->slots--;
        push_prompt(p, &row, computed, 1);
    }
    p->later += a == KG_ADMIT_LATER; /* NEVER: the request is gone */
    return a;
}

/* Waiting requests by age, as long as the core says yes. Only when nobody could be admitted in
 * turn: then it may be the rule of age that stands in the way. */
static void ask_by_age(struct plan *p)
{
    const struct kg_sched_view *v = p->view;

    for (uint32_t i = 0; i < v->n_waiting && p->slots > 0 && p->rows > 0 && p->n < p->max; i++) {
        const struct kg_sched_req *q = &v->waiting[i];
        if (q->index >= p->s->max_requests || q->paused ||
            p->s->reqs[q->index].last_ask == p->s->n_plans) {
            continue;
        }
        if (ask(p, q) == KG_ADMIT_LATER) {
            break;
        }
    }
}

static void plan_prompts(struct plan *p)
{
    uint32_t at, n_slots = p->slots;

    while (p->rows > 0 && p->n < p->max && (at = next_prompt(p)) != KG_NONE) {
        const struct fair_item *it = &p->s->items[at];
        if (!it->waiting) {
            push_prompt(p, &it->row, it->row.n_computed, 0);
        } else if (p->slots > 0 && p->later <= p->s->conf.look_past) {
            (void)ask(p, &it->row);
        }
    }
    if (p->later > 0 && p->slots == n_slots) {
        ask_by_age(p);
    }
}

static int plan(struct kg_sched *s, const struct kg_sched_view *view, struct kg_sched_item *items,
                uint32_t max_items)
{
    struct plan p = {s, view, items, 0, max_items, view->step_tokens, view->n_slots, 0};

    s->n_plans++;
    s->n_items = s->n_active = 0;
    plan_decode(&p);
    if (p.rows > 0 && p.n < p.max) {
        list_prompts(&p);
        plan_prompts(&p);
    }
    return (int)p.n;
}

static int check(const struct kg_sched *s, struct kg_error *err)
{
    return fair_tenants_check(s, err);
}

static const struct kg_sched_ops ops = {
    .size = sizeof(ops),
    .open = open_fair,
    .close = close_fair,
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
    .name = "fair",
    .version = KG_VERSION,
    .summary = "continuous batching, service shared between tenants by virtual token counters",
    .caps = KG_SCHED_CAP_PRIORITY | KG_SCHED_CAP_FAIR,
    .opts = options,
    .conf_size = sizeof(struct fair_conf),
    .ops = &ops,
};

KG_EXPORT kg_plugin_entry_fn kg_plugin_entry;

const struct kg_plugin *kg_plugin_entry(void)
{
    return &plugin;
}
