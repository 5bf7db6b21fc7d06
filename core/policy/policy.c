/* The script of both threads: reading, reloading, running hooks, counting. */
#include "policy/policy.h"

#include "base/clock.h"
#include "base/metrics.h"
#include "policy/script.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* What one thread has. */
struct side {
    struct kg_script *script;
    struct kg_keys *rates, *counts;
};

enum loop_cell {
    CELL_ARRIVE_CALLS,
    CELL_ARRIVE_REJECTED,
    CELL_ARRIVE_ERRORS,
    CELL_ARRIVE_BUDGET,
    CELL_RELOADS,
    CELL_RELOADS_FAILED,
    CELL_LOOP_RESTARTS,
    CELL_LOOP_EVICTED,
    N_LOOP_CELLS,
};

enum engine_cell {
    CELL_ADMIT_CALLS,
    CELL_ADMIT_DEFERRED,
    CELL_ADMIT_REJECTED,
    CELL_ADMIT_ERRORS,
    CELL_ADMIT_BUDGET,
    CELL_ADMIT_SKIPPED,
    CELL_WINDOW_CALLS,
    CELL_WINDOW_ERRORS,
    CELL_WINDOW_BUDGET,
    CELL_WINDOW_SKIPPED,
    CELL_ENGINE_RESTARTS,
    CELL_ENGINE_EVICTED,
    N_ENGINE_CELLS,
};

struct kg_policy {
    struct kg_policy_conf conf; /* path is owned */
    struct side loop, engine;
    struct kg_script *_Atomic next;      /* for the engine to take; NULL when there is none */
    uint64_t step_instructions, step_ns; /* left of this step; step_ns without meaning when the
                                          * step has no wall time */
    struct kg_cell loop_cells[N_LOOP_CELLS], engine_cells[N_ENGINE_CELLS];
};

/* --- reading --- */

static int read_script(const char *path, char *text, size_t *n, struct kg_error *err)
{
    FILE *f = fopen(path, "rbe");

    if (f == NULL)
        return kg_fail(err, KG_EIO, "cannot open the policy script %s: %s", path, strerror(errno));
    *n = fread(text, 1, KG_POLICY_SCRIPT_BYTES + 1, f);
    int bad = ferror(f);
    (void)fclose(f);
    if (bad)
        return kg_fail(err, KG_EIO, "cannot read the policy script %s", path);
    if (*n > KG_POLICY_SCRIPT_BYTES)
        return kg_fail(err, KG_EINVAL, "the policy script %s has more than %d bytes", path,
                       KG_POLICY_SCRIPT_BYTES);
    return KG_OK;
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash != NULL ? slash + 1 : path;
}

static bool is_timed(const struct kg_policy *p)
{
    return p->conf.arrive_ns != 0;
}

static int open_once(const struct kg_policy *p, const char *text, size_t n,
                     struct kg_script **script, struct kg_error *err)
{
    const struct kg_script_budget budget = {p->conf.instructions, UINT64_MAX};
    int rc = kg_script_open(base_name(p->conf.path), text, n, is_timed(p), script, err);

    if (rc != KG_OK)
        return rc;
    rc = kg_script_try(*script, budget, p->conf.arrive_ns, err);
    if (rc != KG_OK)
        kg_script_close(*script);
    return rc;
}

/* One state of the text, loaded and tried. On a busy machine the time may have gone to somebody
 * else: a good script is not refused for that. */
static int open_tried(const struct kg_policy *p, const char *text, size_t n,
                      struct kg_script **script, struct kg_error *err)
{
    struct kg_error why = {0};
    int rc = open_once(p, text, n, script, &why);

    for (int again = 0; rc != KG_OK && why.rc == KG_ELIMIT && again < 2; again++)
        rc = open_once(p, text, n, script, &why);
    return rc == KG_OK ? rc : kg_fail(err, rc, "%s", why.text);
}

/* Both states of the file as it is now, or none. */
static int open_both(const struct kg_policy *p, struct kg_script *both[2], struct kg_error *err)
{
    char *text = malloc(KG_POLICY_SCRIPT_BYTES + 1);
    size_t n = 0;

    if (text == NULL)
        return kg_fail(err, KG_ENOMEM, "out of memory");
    int rc = read_script(p->conf.path, text, &n, err);
    if (rc == KG_OK)
        rc = open_tried(p, text, n, &both[0], err);
    if (rc == KG_OK) {
        rc = open_tried(p, text, n, &both[1], err);
        if (rc != KG_OK)
            kg_script_close(both[0]);
    }
    free(text);
    return rc;
}

/* --- life --- */

static int open_side(struct side *side, uint64_t seed)
{
    side->rates = calloc(1, sizeof(*side->rates));
    side->counts = calloc(1, sizeof(*side->counts));
    if (side->rates == NULL || side->counts == NULL)
        return KG_ENOMEM;
    side->rates->seed = side->counts->seed = seed;
    return KG_OK;
}

static void close_side(struct side *side)
{
    kg_script_close(side->script);
    free(side->rates);
    free(side->counts);
}

int kg_policy_create(const struct kg_policy_conf *conf, struct kg_policy **policy,
                     struct kg_error *err)
{
    struct kg_policy *p = calloc(1, sizeof(*p));
    struct kg_script *both[2];

    if (p != NULL) {
        p->conf = *conf;
        p->conf.path = strdup(conf->path);
    }
    if (p == NULL || p->conf.path == NULL || open_side(&p->loop, conf->seed) != KG_OK ||
        open_side(&p->engine, conf->seed) != KG_OK) {
        kg_policy_destroy(p);
        return kg_fail(err, KG_ENOMEM, "out of memory");
    }
    int rc = open_both(p, both, err);
    if (rc != KG_OK) {
        kg_policy_destroy(p);
        return rc;
    }
    p->loop.script = both[0];
    p->engine.script = both[1];
    (void)kg_policy_step(p);
    *policy = p;
    return KG_OK;
}

void kg_policy_destroy(struct kg_policy *p)
{
    if (p == NULL)
        return;
    kg_script_close(atomic_load(&p->next));
    close_side(&p->loop);
    close_side(&p->engine);
    free((char *)(uintptr_t)p->conf.path);
    free(p);
}

int kg_policy_reload(struct kg_policy *p, struct kg_error *err)
{
    struct kg_script *both[2];
    int rc = open_both(p, both, err);

    if (rc != KG_OK) {
        kg_add(&p->loop_cells[CELL_RELOADS_FAILED], 1);
        return rc;
    }
    kg_script_close(p->loop.script);
    p->loop.script = both[0];
    /* What the engine did not take yet never ran there: it is ours to close. */
    kg_script_close(atomic_exchange(&p->next, both[1]));
    kg_add(&p->loop_cells[CELL_RELOADS], 1);
    return KG_OK;
}

bool kg_policy_has(const struct kg_policy *p, enum kg_policy_hook hook)
{
    return kg_script_has(hook == KG_HOOK_ARRIVE ? p->loop.script : p->engine.script, hook);
}

/* --- running --- */

static void complain(const struct kg_policy *p, const char *hook, const struct kg_error *err)
{
    char line[sizeof(err->text) + 32];

    if (p->conf.log == NULL)
        return;
    (void)snprintf(line, sizeof(line), "%s: %s", hook, err->text);
    p->conf.log(p->conf.log_ctx, line, true);
}

/* Runs a call on a side; on failure says so in the log and counts into cells[0] (errors) or
 * cells[1] (budget). True when *call->out is the answer. */
static bool run(const struct kg_policy *p, struct side *side, const struct kg_script_call *call,
                uint64_t now_ns, const char *name, struct kg_cell cells[2],
                struct kg_cell *restarts)
{
    struct kg_error err = {0};

    side->script->world = (struct kg_script_world){
        .rates = side->rates,
        .counts = side->counts,
        .now_ns = now_ns,
        .log = side == &p->engine && p->conf.log_in_step ? p->conf.log_in_step : p->conf.log,
        .log_ctx = p->conf.log_ctx};
    enum kg_script_end end = kg_script_run(side->script, call, &err);
    if (end == KG_END_OK)
        return true;
    kg_add(&cells[end == KG_END_BUDGET], 1);
    complain(p, name, &err);
    /* A script may have filled its state with what it keeps; then only a fresh one helps. */
    bool full = end == KG_END_MEMORY || side->script->used_bytes > KG_POLICY_STATE_BYTES / 2;
    if (full) {
        (void)lua_gc(side->script->lua, LUA_GCCOLLECT);
        if (side->script->used_bytes > KG_POLICY_STATE_BYTES / 2 &&
            kg_script_restart(&side->script, is_timed(p)) == KG_OK)
            kg_add(restarts, 1);
    }
    return false;
}

void kg_policy_arrive(struct kg_policy *p, const struct kg_policy_arrive *req,
                      const struct kg_policy_load *load, struct kg_policy_arrived *out)
{
    struct kg_script_call call = kg_call_arrive;
    struct kg_cell *c = p->loop_cells;

    *out = (struct kg_policy_arrived){0};
    if (!kg_policy_has(p, KG_HOOK_ARRIVE))
        return;
    call.req = req;
    call.view = load;
    call.out = out;
    kg_add(&c[CELL_ARRIVE_CALLS], 1);
    p->loop.script->budget = (struct kg_script_budget){
        p->conf.instructions,
        p->conf.arrive_ns != 0 ? kg_now_ns() + p->conf.arrive_ns : UINT64_MAX};
    bool good = run(p, &p->loop, &call, load->now_ns, "arrive", &c[CELL_ARRIVE_ERRORS],
                    &c[CELL_LOOP_RESTARTS]);
    if (!good) {
        *out = (struct kg_policy_arrived){0};
        if (!p->conf.admit_on_error) {
            out->reject = 503;
            (void)snprintf(out->reason, sizeof(out->reason),
                           "the admission policy failed; try again later");
        }
    }
    if (out->reject != 0)
        kg_add(&c[CELL_ARRIVE_REJECTED], 1);
    kg_set(&c[CELL_LOOP_EVICTED], p->loop.rates->evicted + p->loop.counts->evicted);
}

int kg_policy_step(struct kg_policy *p)
{
    int swapped = 0;

    if (atomic_load_explicit(&p->next, memory_order_relaxed) != NULL) {
        struct kg_script *next = atomic_exchange(&p->next, NULL);
        kg_script_close(p->engine.script);
        p->engine.script = next;
        swapped = 1;
    }
    p->step_instructions = p->conf.instructions;
    p->step_ns = p->conf.step_ns;
    return swapped;
}

bool kg_policy_spent(const struct kg_policy *p)
{
    /* A call needs room for one look at the budget. */
    return p->step_instructions <= 20 || (p->conf.step_ns != 0 && p->step_ns == 0);
}

/* An engine call within what is left of the step. cells: errors, budget, skipped. */
static bool run_in_step(struct kg_policy *p, const struct kg_script_call *call, uint64_t now_ns,
                        const char *name, struct kg_cell cells[3])
{
    bool timed = p->conf.step_ns != 0;
    uint64_t start = timed ? kg_now_ns() : 0;

    if (kg_policy_spent(p)) {
        kg_add(&cells[2], 1);
        return false;
    }
    p->engine.script->budget =
        (struct kg_script_budget){p->step_instructions, timed ? start + p->step_ns : UINT64_MAX};
    struct kg_script *before = p->engine.script;
    bool good =
        run(p, &p->engine, call, now_ns, name, cells, &p->engine_cells[CELL_ENGINE_RESTARTS]);
    p->step_instructions = p->engine.script == before ? before->budget.instructions : 0;
    if (timed) {
        uint64_t took = kg_now_ns() - start;
        p->step_ns = took < p->step_ns ? p->step_ns - took : 0;
    }
    kg_set(&p->engine_cells[CELL_ENGINE_EVICTED],
           p->engine.rates->evicted + p->engine.counts->evicted);
    return good;
}

bool kg_policy_admit(struct kg_policy *p, const struct kg_policy_admit *req,
                     struct kg_policy_admitted *out)
{
    struct kg_script_call call = kg_call_admit;
    struct kg_cell *c = p->engine_cells;

    if (!kg_policy_has(p, KG_HOOK_ADMIT))
        return false;
    call.req = call.view = req;
    call.out = out;
    kg_add(&c[CELL_ADMIT_CALLS], 1);
    if (!run_in_step(p, &call, req->now_ns, "admit", &c[CELL_ADMIT_ERRORS]))
        return false;
    if (out->verdict == KG_VERDICT_DEFER)
        kg_add(&c[CELL_ADMIT_DEFERRED], 1);
    else if (out->verdict == KG_VERDICT_REJECT)
        kg_add(&c[CELL_ADMIT_REJECTED], 1);
    return true;
}

bool kg_policy_window(struct kg_policy *p, const struct kg_policy_class *req,
                      struct kg_policy_window *out)
{
    struct kg_script_call call = kg_call_window;
    struct kg_cell *c = p->engine_cells;
    struct kg_policy_window answer;

    if (!kg_policy_has(p, KG_HOOK_WINDOW))
        return false;
    call.req = call.view = req;
    call.out = &answer;
    kg_add(&c[CELL_WINDOW_CALLS], 1);
    if (!run_in_step(p, &call, req->now_ns, "window", &c[CELL_WINDOW_ERRORS]))
        return false;
    answer.length = answer.length < req->block ? answer.length : req->block;
    *out = answer;
    return true;
}

/* --- counters --- */

/* One counter; rows of one family stand together. */
struct row {
    const char *name, *doc, *labels;
    bool engine;
    int cell;
};

#define CALLS "kedge:policy_calls_total", "Calls of the policy script, by hook."
#define REFUSED "kedge:policy_rejected_total", "Requests the policy refused, by hook."
#define ERRORS                   \
    "kedge:policy_errors_total", \
        "Calls that raised, ran out of memory, or gave no valid answer, by hook."
#define BUDGET "kedge:policy_budget_ends_total", "Calls ended for want of budget, by hook."
#define SKIPPED                   \
    "kedge:policy_skipped_total", \
        "Calls not made because the budget of the step was spent, by hook."
#define RELOADS "kedge:policy_reloads_total", "Reloads of the policy script, by result."
#define RESTARTS \
    "kedge:policy_restarts_total", "Lua states started again for want of memory, by thread."
#define EVICTED                        \
    "kedge:policy_keys_evicted_total", \
        "Keys of kg.rate and kg.count that gave way to others, by thread."

static const struct row rows[] = {
    {CALLS, "hook=\"arrive\"", false, CELL_ARRIVE_CALLS},
    {CALLS, "hook=\"admit\"", true, CELL_ADMIT_CALLS},
    {CALLS, "hook=\"window\"", true, CELL_WINDOW_CALLS},
    {REFUSED, "hook=\"arrive\"", false, CELL_ARRIVE_REJECTED},
    {REFUSED, "hook=\"admit\"", true, CELL_ADMIT_REJECTED},
    {"kedge:policy_deferred_total", "Times admit put a request off.", "", true,
     CELL_ADMIT_DEFERRED},
    {ERRORS, "hook=\"arrive\"", false, CELL_ARRIVE_ERRORS},
    {ERRORS, "hook=\"admit\"", true, CELL_ADMIT_ERRORS},
    {ERRORS, "hook=\"window\"", true, CELL_WINDOW_ERRORS},
    {BUDGET, "hook=\"arrive\"", false, CELL_ARRIVE_BUDGET},
    {BUDGET, "hook=\"admit\"", true, CELL_ADMIT_BUDGET},
    {BUDGET, "hook=\"window\"", true, CELL_WINDOW_BUDGET},
    {SKIPPED, "hook=\"admit\"", true, CELL_ADMIT_SKIPPED},
    {SKIPPED, "hook=\"window\"", true, CELL_WINDOW_SKIPPED},
    {RELOADS, "result=\"ok\"", false, CELL_RELOADS},
    {RELOADS, "result=\"failed\"", false, CELL_RELOADS_FAILED},
    {RESTARTS, "thread=\"loop\"", false, CELL_LOOP_RESTARTS},
    {RESTARTS, "thread=\"engine\"", true, CELL_ENGINE_RESTARTS},
    {EVICTED, "thread=\"loop\"", false, CELL_LOOP_EVICTED},
    {EVICTED, "thread=\"engine\"", true, CELL_ENGINE_EVICTED},
};

int kg_policy_metrics(struct kg_policy *p, struct kg_metrics *metrics, struct kg_error *err)
{
    int rc = KG_OK;

    for (size_t i = 0; rc == KG_OK && i < sizeof(rows) / sizeof(rows[0]); i++) {
        const struct row *r = &rows[i];
        const struct kg_metric_row one[2] = {{r->name, KG_COUNTER, r->doc, 0}, {0}};
        rc = kg_metrics_add(metrics, one,
                            r->engine ? &p->engine_cells[r->cell] : &p->loop_cells[r->cell],
                            r->labels, err);
    }
    return rc;
}
