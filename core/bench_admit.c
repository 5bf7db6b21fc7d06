/*
 * kedge bench index, its last line: what one more request costs an engine in which 256 run. A step
 * with and a step without, in turns, so that what the machine does meanwhile meets both alike; the
 * request is admitted, computed and ended in one step, in memory full of what others left, so that
 * something has to go for it.
 */
#include "base/clock.h"
#include "bench_step.h"

#include <stdlib.h>

#define N_RUNNING 256u
#define N_PROMPT 2048u   /* tokens of the request */
#define N_ANSWER 4096u   /* tokens the others may have: more than there are steps */
#define WARM_STEPS 2200u /* fill the memory */
#define N_PAIRS 400u

struct admit {
    struct kg_stack *stack;
    uint32_t prompt[N_PROMPT];
    uint64_t next_id;
    double without[N_PAIRS], with[N_PAIRS];
};

static int submit(struct admit *a, uint32_t n_prompt, uint32_t max_tokens, struct kg_error *err)
{
    uint64_t id = a->next_id++;

    for (uint32_t i = 0; i < n_prompt; i++) {
        a->prompt[i] = (uint32_t)((id >> (i % 32)) & 1);
    }
    const struct kg_request q = {
        .id = id, .tokens = a->prompt, .n_prompt = n_prompt, .max_tokens = max_tokens};
    return kg_engine_submit(a->stack->engine, &q, err);
}

/* One step and its events; *ns its own time. */
static int step(struct admit *a, double *ns, struct kg_error *err)
{
    struct kg_engine *e = a->stack->engine;
    struct kg_engine_stats before, after;
    struct kg_event ev;

    kg_engine_stats(e, &before);
    int rc = kg_engine_step(e, err);
    if (rc < 0) {
        return rc;
    }
    while (kg_engine_next(e, &ev) == KG_OK) {
        if (ev.type == KG_EVENT_DONE && ev.finish != KG_FINISH_LENGTH) {
            return kg_fail(err, KG_ECONFIG, "a request ended with %u: %.120s", ev.finish, ev.text);
        }
    }
    kg_engine_stats(e, &after);
    *ns = (double)(after.overhead_ns_sum - before.overhead_ns_sum);
    return KG_OK;
}

static int fill(struct admit *a, struct kg_error *err)
{
    struct kg_engine_stats s;
    int rc = KG_OK;
    double ns;

    a->next_id = 1;
    for (uint32_t i = 0; rc == KG_OK && i < N_RUNNING; i++) {
        rc = submit(a, 16, N_ANSWER, err);
    }
    for (uint32_t i = 0; rc == KG_OK && i < WARM_STEPS; i++) {
        rc = i < N_RUNNING / 4 ? KG_OK : submit(a, N_PROMPT, 1, err);
        rc = rc == KG_OK ? step(a, &ns, err) : rc;
    }
    kg_engine_stats(a->stack->engine, &s);
    if (rc == KG_OK && (s.n_running != N_RUNNING || s.evicted[KG_PAGE] == 0)) {
        return kg_fail(err, KG_ECONFIG, "%u requests run, %llu pages were evicted", s.n_running,
                       (unsigned long long)s.evicted[KG_PAGE]);
    }
    return rc;
}

static int measure(struct admit *a, struct kg_error *err)
{
    int rc = fill(a, err);

    for (uint32_t i = 0; rc == KG_OK && i < N_PAIRS; i++) {
        rc = step(a, &a->without[i], err);
        rc = rc == KG_OK ? submit(a, N_PROMPT, 1, err) : rc;
        rc = rc == KG_OK ? step(a, &a->with[i], err) : rc;
    }
    return rc;
}

int kg_bench_admit(const struct kg_cmd_line *line, struct kg_bench_admit *out, struct kg_error *err)
{
    struct kg_cmd_line whole = *line;
    struct kg_bench_step b = {.line = &whole};
    struct kg_config *config = NULL;
    struct admit *a = calloc(1, sizeof(*a));

    if (a == NULL) {
        return kg_fail(err, KG_ENOMEM, "no memory for a bench");
    }
    whole.sets[0] = "engine.prefill_chunk=2048"; /* all of it in one step */
    whole.n_sets = 1;
    int rc = kg_bench_step_config(&b, N_RUNNING + 1, 16 + N_ANSWER + 64, N_RUNNING + N_PROMPT + 1,
                                  &config);
    rc = rc < 0 ? KG_OK : kg_fail(err, KG_ECONFIG, "the bench's own configuration is wrong");
    if (rc == KG_OK) {
        rc = kg_stack_open(config, &a->stack, err);
    }
    if (rc == KG_OK) {
        rc = kg_stack_engine(a->stack, err);
    }
    if (rc == KG_OK) {
        rc = measure(a, err);
    }
    if (rc == KG_OK) {
        out->n_running = N_RUNNING;
        out->n_pages = N_PROMPT / kg_engine_layout(a->stack->engine)->page_tokens;
        out->n_tokens = N_PROMPT;
        out->step_ns = kg_bench_median(a->without, N_PAIRS);
        out->more_ns = kg_bench_median(a->with, N_PAIRS) - out->step_ns;
    }
    kg_stack_close(a->stack);
    kg_config_destroy(config);
    free(a);
    return rc;
}
