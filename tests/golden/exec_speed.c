/*
 * Speed of exec-cpu, not a test: prefill of 512 tokens in one step, and decode of 1..32 sequences
 * from a context of 256 tokens, one row and one greedy pick each. Two figures: the best step by
 * the wall clock, and, with one thread, the mean by the thread's CPU time, which other processes
 * disturb little.
 * Usage: exec_speed [threads] [model folder below tests/]
 */
#include "exec_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#define PROMPT 512
#define CONTEXT 256
#define STEPS 24 /* decoded in one measurement */
#define SEQS 32
#define PAGE 64

struct runner {
    uint32_t tokens[PROMPT + 1], pages[PROMPT / PAGE + 1];
    struct kg_sampling sampling;
    struct kg_seq seq;
};

static struct runner runners[SEQS];

struct timing {
    uint64_t wall_ns; /* of the best step */
    double cpu_ns;    /* of a step, mean */
};

static uint64_t cpu_now(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void begin(struct xrig *x, struct runner *r, uint32_t slot)
{
    for (uint32_t i = 0; i <= PROMPT; i++)
        r->tokens[i] = (i * 7919 + slot * 31) % 3800;
    if (r->seq.tokens == NULL) {
        r->seq.state = xrig_take(x, KG_STATE);
        for (uint32_t i = 0; i <= PROMPT / PAGE; i++)
            r->pages[i] = xrig_take(x, KG_PAGE);
    }
    r->seq = (struct kg_seq){.slot = slot,
                             .flags = KG_SEQ_RESET | KG_SEQ_SAMPLE,
                             .tokens = r->tokens,
                             .pages = r->pages,
                             .n_pages = PROMPT / PAGE + 1,
                             .state = r->seq.state,
                             .state_src = KG_STATE_ZERO,
                             .history = r->tokens,
                             .sampling = &r->sampling,
                             .left = PROMPT};
}

static void first_step(struct xrig *x, struct runner *r, uint32_t n, struct kg_result *result)
{
    r->seq.n_rows = r->seq.n_history = r->seq.output_start = n;
    xrig_step(x, &r->seq, 1, result);
}

static void continue_with(struct runner *r, uint32_t token)
{
    r->seq.flags = KG_SEQ_SAMPLE;
    r->seq.past += r->seq.n_rows;
    r->seq.n_rows = 1;
    r->tokens[r->seq.past] = token;
    r->seq.tokens = r->tokens + r->seq.past;
    r->seq.n_pages = 0;
    r->seq.state_src = KG_STATE_KEEP;
}

static struct timing prefill(struct xrig *x)
{
    struct timing t = {.wall_ns = UINT64_MAX};

    for (uint32_t i = 0; i < 6; i++) {
        struct kg_result r;
        uint64_t cpu;
        begin(x, &runners[0], 0);
        cpu = cpu_now();
        first_step(x, &runners[0], PROMPT, &r);
        t.cpu_ns += (double)(cpu_now() - cpu) / 6;
        t.wall_ns = r.step_ns < t.wall_ns ? r.step_ns : t.wall_ns;
    }
    return t;
}

static struct timing decode(struct xrig *x, uint32_t n)
{
    struct timing t = {.wall_ns = UINT64_MAX};
    struct kg_seq seqs[SEQS];
    struct kg_result r;

    for (uint32_t i = 0; i < n; i++) {
        begin(x, &runners[i], i);
        first_step(x, &runners[i], CONTEXT, &r);
        continue_with(&runners[i], r.seqs[0].tokens[0]);
    }
    for (uint32_t step = 0; step < STEPS; step++) {
        uint64_t cpu = cpu_now();
        for (uint32_t i = 0; i < n; i++)
            seqs[i] = runners[i].seq;
        xrig_step(x, seqs, n, &r);
        t.cpu_ns += (double)(cpu_now() - cpu) / STEPS;
        t.wall_ns = r.step_ns < t.wall_ns ? r.step_ns : t.wall_ns;
        for (uint32_t i = 0; i < n; i++)
            continue_with(&runners[i], r.seqs[i].tokens[0]);
    }
    return t;
}

static void report(const char *what, uint32_t rows, uint32_t threads, struct timing t)
{
    printf("  %-22s best %6.0f tokens/s (%.0f us a step)", what, rows * 1e9 / (double)t.wall_ns,
           (double)t.wall_ns / 1e3);
    if (threads == 1)
        printf(", by CPU time %6.0f tokens/s", rows * 1e9 / t.cpu_ns);
    printf("\n");
}

int main(int argc, char **argv)
{
    static const char *maths[] = {"exact", "fast"};
    static const uint32_t batches[] = {1, 4, 16, 32};
    struct xrig_options o = {.model = argc > 2 ? argv[2] : "models/k3-tiny",
                             .threads = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 2,
                             .page_tokens = PAGE,
                             .max_seqs = SEQS,
                             .max_rows = PROMPT,
                             .n_pages = 512,
                             .n_states = 64};

    for (o.math = 0; o.math < 2; o.math++) {
        struct xrig x;
        memset(runners, 0, sizeof(runners));
        xrig_open(&x, &o);
        printf("%s, %s, %s\n", o.model, maths[o.math], x.desc.kernels);
        report("prefill of 512", PROMPT, o.threads, prefill(&x));
        for (size_t i = 0; i < 4; i++) {
            char what[32];
            (void)snprintf(what, sizeof(what), "decode, %u sequences", batches[i]);
            report(what, batches[i], o.threads, decode(&x, batches[i]));
        }
        xrig_close(&x);
    }
    return 0;
}
