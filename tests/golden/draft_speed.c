/*
 * Not a test: what a draft costs beside the step it is for, on exec-cpu, in CPU time of one thread:
 * the least of many rounds. Of a window half is accepted. usage: draft_speed [CONTEXT [MATH]], MATH
 * 0 exact, 1 fast
 */
#include "exec_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#define ROUNDS 24
#define SEQS 32
#define PAGE 64
#define PAGES 16 /* of a sequence */

struct cost {
    double draft_ms, step_ms;
};

struct seq {
    uint32_t past, state, n_sent;
    uint32_t pages[PAGES];
};

static uint32_t prompt[PAGE * PAGES];
static struct seq seqs[SEQS];

static double cpu_ms(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

/* Computes the prompts; last[i]: the token each is answered with. */
static void begin(struct xrig *x, uint32_t n, uint32_t context, uint32_t *last)
{
    static const struct kg_sampling greedy = {.temperature = 0};
    struct kg_result result;

    for (uint32_t i = 0; i < n; i++) {
        struct seq *q = &seqs[i];
        struct kg_seq s = {.slot = i,
                           .id = i + 1,
                           .flags = KG_SEQ_RESET | KG_SEQ_SAMPLE,
                           .n_rows = context,
                           .tokens = prompt,
                           .pages = q->pages,
                           .n_pages = PAGES,
                           .state_src = KG_STATE_ZERO,
                           .history = prompt,
                           .n_history = context,
                           .output_start = context,
                           .sampling = &greedy,
                           .left = 1000,
                           .force_accept = KG_NONE};
        for (uint32_t j = 0; j < PAGES; j++)
            q->pages[j] = xrig_take(x, KG_PAGE);
        s.state = q->state = xrig_take(x, KG_STATE);
        xrig_step(x, &s, 1, &result);
        q->past = context;
        last[i] = result.seqs[0].tokens[0];
    }
}

static void end(struct xrig *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        x->ops->drop(x->exec, &i, 1);
        for (uint32_t j = 0; j < PAGES; j++)
            xrig_give(x, KG_PAGE, seqs[i].pages[j]);
        xrig_give(x, KG_STATE, seqs[i].state);
    }
}

/* One round: drafts, unless there are none, then the step that verifies them. */
static void run_round(struct xrig *x, uint32_t n, uint32_t n_draft, uint32_t *last,
                      struct cost *least)
{
    static struct kg_draft drafts[SEQS];
    static struct kg_seq batch[SEQS];
    static uint32_t rows[SEQS][8];
    struct kg_result result;
    double t0 = cpu_ms(), t1;

    for (uint32_t i = 0; i < n; i++)
        drafts[i] = (struct kg_draft){.slot = i, .n = n_draft};
    if (n_draft > 0)
        assert_int_equal(x->ops->draft(x->exec, drafts, n), KG_OK);
    t1 = cpu_ms();
    least->draft_ms = t1 - t0 < least->draft_ms ? t1 - t0 : least->draft_ms;
    for (uint32_t i = 0; i < n; i++) {
        rows[i][0] = last[i];
        batch[i] = (struct kg_seq){.slot = i,
                                   .id = i + 1,
                                   .flags = KG_SEQ_SAMPLE,
                                   .past = seqs[i].past,
                                   .n_rows = 1 + n_draft,
                                   .n_draft = n_draft,
                                   .tokens = rows[i],
                                   .state = seqs[i].state,
                                   .state_src = KG_STATE_KEEP,
                                   .left = 1000,
                                   .force_accept = n_draft / 2};
    }
    t0 = cpu_ms();
    xrig_step(x, batch, n, &result);
    t1 = cpu_ms();
    least->step_ms = t1 - t0 < least->step_ms ? t1 - t0 : least->step_ms;
    for (uint32_t i = 0; i < n; i++) {
        seqs[i].past = result.seqs[i].past;
        last[i] = result.seqs[i].tokens[result.seqs[i].n_tokens - 1];
    }
}

static struct cost measure(struct xrig *x, uint32_t n, uint32_t n_draft, uint32_t context)
{
    struct cost least = {1e9, 1e9};
    uint32_t last[SEQS];

    begin(x, n, context, last);
    for (int k = 0; k < ROUNDS; k++)
        run_round(x, n, n_draft, last, &least);
    end(x, n);
    return least;
}

int main(int argc, char **argv)
{
    static const uint32_t batches[] = {1, 4, 16, 32}, lengths[] = {0, 1, 3, 7};
    uint32_t context = argc > 1 ? (uint32_t)atoi(argv[1]) : 256;
    struct xrig_options o = {.model = "models/k3-tiny",
                             .math = argc > 2 ? (uint32_t)atoi(argv[2]) : 0,
                             .threads = 1,
                             .page_tokens = PAGE,
                             .max_seqs = SEQS,
                             .max_rows = 512,
                             .n_pages = SEQS * PAGES,
                             .n_states = SEQS,
                             .max_draft = 7};
    struct xrig plain, x;

    if (context == 0 || context > PAGE * PAGES - 300)
        return 1;
    for (uint32_t i = 0; i < context; i++)
        prompt[i] = i * 7919 % 3800;
    xrig_open(&plain, &o);
    o.draft = "models/k3-tiny-dspark";
    xrig_open(&x, &o);
    (void)printf("context %u, %s, %s, CPU ms\n%5s %9s | %9s %9s %9s %9s | %8s %8s %8s\n", context,
                 x.desc.kernels, x.desc.math, "batch", "no drafter", "step", "+1 row", "+3 rows",
                 "+7 rows", "draft 1", "draft 3", "draft 7");
    for (size_t i = 0; i < sizeof(batches) / sizeof(batches[0]); i++) {
        struct cost bare = measure(&plain, batches[i], 0, context), c[4];
        for (size_t k = 0; k < 4; k++)
            c[k] = measure(&x, batches[i], lengths[k], context);
        (void)printf("%5u %10.2f | %9.2f %9.2f %9.2f %9.2f | %8.2f %8.2f %8.2f\n", batches[i],
                     bare.step_ms, c[0].step_ms, c[1].step_ms, c[2].step_ms, c[3].step_ms,
                     c[1].draft_ms, c[2].draft_ms, c[3].draft_ms);
    }
    xrig_close(&plain);
    xrig_close(&x);
    return 0;
}
