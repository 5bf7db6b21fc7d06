/* sched-lifo: the youngest runs and is admitted first; the opposite of what the engine's ladder
 * assumes, and legal. With `bad` its plans break one rule each, now and then. */
#include "doubles.h"

#include <kedge/sched.h>
#include <string.h>

enum {
    BAD_NONE,
    BAD_TWICE,
    BAD_ROWS,
    BAD_UNKNOWN,
    BAD_EMPTY,
    BAD_NEGATIVE,
    BAD_ZERO,
    BAD_WAITING,
    BAD_SUM,
    BAD_LONG,
    ASKS_PAUSED,  /* legal: the core says later */
    IGNORES_HITS, /* plans the whole prompt of whom it admits */
};

struct lifo_conf {
    uint32_t bad;
};

struct kg_sched {
    const struct kg_host *host;
    struct lifo_conf conf;
    uint64_t n_plans;
    uint32_t max_requests;
    uint8_t *known; /* [max_requests] */
    uint32_t broken;
};

static const struct kg_opt options[] = {
    {"bad", KG_OPT_U32, 0, offsetof(struct lifo_conf, bad), "0", 0, 11, NULL,
     "Rule that every third plan breaks, 0 for none. Unit: none."},
    {0},
};

static int open_lifo(const struct kg_host *host, const void *conf, uint32_t max_requests,
                     struct kg_sched **sched, struct kg_error *err)
{
    struct kg_sched *s = host->alloc(host->ctx, sizeof(*s), 0);
    uint8_t *known = host->alloc(host->ctx, max_requests, 0);
    if (s == NULL || known == NULL) {
        return kg_fail(err, KG_ENOMEM, "no memory");
    }
    memset(known, 0, max_requests);
    *s = (struct kg_sched){.host = host, .max_requests = max_requests, .known = known};
    s->conf = *(const struct lifo_conf *)conf;
    *sched = s;
    return KG_OK;
}

static void close_lifo(struct kg_sched *s)
{
    if (s != NULL) {
        s->host->free(s->host->ctx, s->known, s->max_requests);
        s->host->free(s->host->ctx, s, sizeof(*s));
    }
}

static void add(struct kg_sched *s, const struct kg_sched_req *req)
{
    s->broken |= req->index >= s->max_requests || s->known[req->index];
    s->known[req->index] = 1;
}

static void remove_req(struct kg_sched *s, uint32_t index)
{
    s->broken |= index >= s->max_requests || !s->known[index];
    s->known[index] = 0;
}

static void served(struct kg_sched *s, uint32_t index, uint32_t n_prefill, uint32_t n_output)
{
    s->broken |= index >= s->max_requests || !s->known[index] || n_prefill + n_output == 0;
}

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static int good_plan(const struct kg_sched_view *v, struct kg_sched_item *items, uint32_t max,
                     uint32_t bad)
{
    uint32_t n = 0, rows = v->step_tokens, slots = v->n_slots;

    for (uint32_t i = v->n_waiting; i-- > 0 && slots > 0 && n < max && rows > 0;) {
        const struct kg_sched_req q = v->waiting[i];
        uint32_t computed = 0;
        if ((q.paused && bad != ASKS_PAUSED) ||
            v->admit(v->ctx, q.index, &computed) != KG_ADMIT_YES) {
            continue;
        }
        computed = bad == IGNORES_HITS ? 0 : computed;
        uint32_t k = least(least(q.n_prompt - computed, v->prefill_chunk), rows);
        items[n++] = (struct kg_sched_item){q.index, k};
        rows -= k;
        slots--;
    }
    for (uint32_t i = v->n_running; i-- > 0 && n < max && rows > 0;) {
        const struct kg_sched_req *q = &v->running[i];
        if (q->paused || (q->decoding && rows < v->decode_rows)) {
            continue;
        }
        uint32_t k = least(least(q->n_prompt - q->n_computed, v->prefill_chunk), rows);
        items[n++] = (struct kg_sched_item){q->index, q->decoding ? 1 : k};
        rows -= q->decoding ? v->decode_rows : k;
    }
    return (int)n;
}

static int plan(struct kg_sched *s, const struct kg_sched_view *v, struct kg_sched_item *items,
                uint32_t max)
{
    int n = good_plan(v, items, max, s->conf.bad);

    if (s->conf.bad == BAD_NONE || s->conf.bad >= ASKS_PAUSED || s->n_plans++ % 3 != 0) {
        return n;
    }
    switch (s->conf.bad) {
    case BAD_TWICE:
        if (n > 0 && (uint32_t)n < max) {
            items[n] = items[0];
            n++;
        }
        return n;
    case BAD_ROWS:
        if (n > 0) {
            items[0].n_tokens = v->step_tokens + 1;
        }
        return n;
    case BAD_UNKNOWN:
        items[0] = (struct kg_sched_item){s->max_requests, 1};
        return 1;
    case BAD_EMPTY:
        return 0;
    case BAD_NEGATIVE:
        return KG_EINVAL;
    case BAD_ZERO:
        if (n > 0) {
            items[0].n_tokens = 0;
        }
        return n;
    case BAD_SUM: /* each line is legal, together they are too many */
        for (n = 0; (uint32_t)n < v->n_running && (uint32_t)n < max; n++) {
            const struct kg_sched_req *q = &v->running[n];
            uint32_t k = least(q->n_prompt - q->n_computed, v->prefill_chunk);
            items[n] = (struct kg_sched_item){q->index, q->decoding ? 1 : k};
        }
        return n;
    case BAD_LONG: /* more tokens than the prompt has left */
        for (int i = 0; i < n; i++) {
            for (uint32_t j = 0; j < v->n_running; j++) {
                const struct kg_sched_req *q = &v->running[j];
                if (q->index == items[i].index && !q->decoding &&
                    items[i].n_tokens == q->n_prompt - q->n_computed) {
                    items[i].n_tokens++;
                    return n;
                }
            }
        }
        return n;
    default: /* somebody who was not admitted */
        for (uint32_t i = 0; i < v->n_waiting; i++) {
            items[0] = (struct kg_sched_item){v->waiting[i].index, 1};
        }
        return v->n_waiting > 0 ? 1 : n;
    }
}

static int check(const struct kg_sched *s, struct kg_error *err)
{
    return s->broken ? kg_fail(err, KG_EINVAL, "add, remove or served do not match") : KG_OK;
}

static const struct kg_sched_ops ops = {
    .size = sizeof(ops),
    .open = open_lifo,
    .close = close_lifo,
    .add = add,
    .remove = remove_req,
    .served = served,
    .plan = plan,
    .check = check,
};

const struct kg_plugin double_sched_lifo = {
    .magic = KG_ABI_MAGIC,
    .kind = KG_KIND_SCHED,
    .size = sizeof(double_sched_lifo),
    .major = KG_SCHED_MAJOR,
    .minor = KG_SCHED_MINOR,
    .name = "lifo",
    .version = "test",
    .summary = "youngest first",
    .opts = options,
    .conf_size = sizeof(struct lifo_conf),
    .ops = &ops,
};
