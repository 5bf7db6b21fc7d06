/*
 * Policies that decide, and rules of acceptance, on the real model with its trained drafter: under
 * coupling the bits of plain decoding whatever is decided, under the other rules those bits when
 * greedy and otherwise the distribution.
 */
#include "config.h"
#include "spec_rig.h"
#include "stack.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <math.h>

#define DRAFTER "model.draft=" TEST_ROOT "/models/k3-tiny-dspark plugins.pool=unified "
#define CHEAP "engine.cost=" TEST_ROOT "/golden/cheap.cost "

static struct spec_run truth, work;

static const struct spec_way plain = {
    "plain", "plugins.pool=unified plugins.spec=off prefix.enabled=no", .batch = 1};

static uint32_t n_reqs(void)
{
    return xrig_is_full() ? SPEC_REQS : 6;
}

static void check(const struct spec_way *w, float temperature)
{
    static float made = -1.0f;

    if (made < 0 || made != temperature) {
        made = temperature;
        spec_requests(&truth, n_reqs(), temperature);
        spec_go(&plain, "exact", &truth, NULL, n_reqs());
    }
    memset(&work, 0, sizeof(work));
    for (uint32_t i = 0; i < n_reqs(); i++) {
        struct xreq *r = &work.reqs[i];
        r->n = r->n_prompt = truth.reqs[i].n_prompt;
        r->n_max = truth.reqs[i].n_max;
        r->sampling = truth.reqs[i].sampling;
        memcpy(r->tokens, truth.reqs[i].tokens, r->n * sizeof(uint32_t));
    }
    spec_go(w, "exact", &work, NULL, n_reqs());
    spec_equal(w, &work, &truth, n_reqs());
    assert_true(work.n_verified > 10 && work.n_accepted > 0);
}

static void v45_spec_confidence_changes_no_bit_whatever_it_decides(void **state)
{
    static const struct spec_way ways[] = {
        {"budget", DRAFTER CHEAP "plugins.spec=confidence", .batch = 6},
        {"stop", DRAFTER CHEAP "plugins.spec=confidence spec-confidence.rule=stop", .batch = 3},
        {"no surface, preempted", DRAFTER "plugins.spec=confidence", .batch = 6, .preempt = 6},
        {"tries again each step",
         DRAFTER CHEAP "plugins.spec=confidence spec-confidence.retry=1 "
                       "spec-confidence.min_gain=0.15",
         .batch = 4, .relocate = 2},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
        check(&ways[i], 0.8f);
        assert_true(i == 2 || work.n_verified < work.n_drafted); /* it did trim */
    }
}

static void greedy_output_is_plain_decoding_under_every_rule(void **state)
{
    static const struct spec_way ways[] = {
        {"rejection", DRAFTER "plugins.spec=dspark spec.accept=rejection", .batch = 6},
        {"block", DRAFTER "plugins.spec=dspark spec.accept=block", .batch = 6, .preempt = 7},
        {"block, trimmed", DRAFTER CHEAP "plugins.spec=confidence spec.accept=block", .batch = 6},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++)
        check(&ways[i], 0.0f);
}

/* --- distribution ------------------------------------------------------------------------------
 */

#define VOCAB 4096
#define OUTPUT 4

struct counts {
    uint32_t at[OUTPUT][VOCAB]; /* tokens at each place of the output */
    uint64_t verified, accepted;
};

static uint32_t n_samples(void)
{
    return xrig_is_full() ? 20000 : 300;
}

/* Samples of one prompt, each with a seed of its own. */
static void sample(const char *sets, uint64_t seed, struct counts *c)
{
    static const char *const base[] = {("model.path=" TEST_ROOT "/models/k3-tiny"),
                                       ("plugins.dir=" PLUGIN_DIR),
                                       "engine.max_seqs=4", /* more do not pay by the surface */
                                       "exec-cpu.threads=1",
                                       "memory.bytes=64m",
                                       "engine.step_tokens=128",
                                       "engine.prefill_chunk=64",
                                       "log.level=error"};
    struct kg_config *config = NULL;
    struct kg_stack *stack = NULL;
    struct kg_error err = {0};
    struct kg_event e;
    struct xreq prompt[1];
    char words[512], *rest = words, *word;
    uint32_t sent = 0, done = 0, n = n_samples(), places[16384] = {0};

    memset(c, 0, sizeof(*c));
    xreq_prompts(prompt, 1, 1.0f);
    assert_int_equal(kg_config_create(&config), KG_OK);
    for (size_t i = 0; i < sizeof(base) / sizeof(base[0]); i++)
        (void)kg_config_set(config, base[i]);
    (void)snprintf(words, sizeof(words), "%s", sets);
    while ((word = strsep(&rest, " ")) != NULL) {
        if (word[0] != '\0')
            (void)kg_config_set(config, word);
    }
    if (kg_config_finish(config) != KG_OK)
        fail_msg("%s", kg_config_errors(config));
    if (kg_stack_open(config, &stack, &err) < 0 || kg_stack_engine(stack, &err) < 0)
        fail_msg("%s", err.text);
    while (done < n) {
        while (sent < n && sent - done < 32) {
            sent++;
            struct kg_request q = {.id = sent,
                                   .tokens = prompt[0].tokens,
                                   .n_prompt = 24,
                                   .max_tokens = OUTPUT,
                                   .sampling = {.temperature = 0.7f, .seed = seed + sent}};
            if (kg_engine_submit(stack->engine, &q, &err) < 0)
                fail_msg("%s", err.text);
        }
        if (kg_engine_step(stack->engine, &err) < 0)
            fail_msg("%s", err.text);
        while (kg_engine_next(stack->engine, &e) == KG_OK) {
            uint32_t *place = &places[e.id % 16384];
            for (uint32_t k = 0; e.type == KG_EVENT_TOKENS && k < e.n; k++)
                c->at[(*place)++][e.tokens[k]]++;
            if (e.type == KG_EVENT_DONE) {
                assert_true(e.finish <= KG_FINISH_LENGTH);
                c->verified += e.n_verified;
                c->accepted += e.n_accepted;
                *place = 0;
                done++;
            }
        }
    }
    kg_stack_close(stack);
    kg_config_destroy(config);
}

/* Whether two sets of samples differ: chi-square of two samples, in deviations. */
static double difference(const uint32_t *a, const uint32_t *b)
{
    double stat = 0, rare_a = 0, rare_b = 0;
    uint32_t n = 0;

    for (uint32_t v = 0; v < VOCAB; v++) {
        double x = a[v], y = b[v];
        if (x + y >= 16) {
            stat += (x - y) * (x - y) / (x + y);
            n++;
        } else {
            rare_a += x;
            rare_b += y;
        }
    }
    if (rare_a + rare_b >= 16) {
        stat += (rare_a - rare_b) * (rare_a - rare_b) / (rare_a + rare_b);
        n++;
    }
    double dof = n - 1.0;
    return (cbrt(stat / dof) - (1 - 2 / (9 * dof))) / sqrt(2 / (9 * dof));
}

static void sampled_output_has_the_distribution_under_rejection_and_block(void **state)
{
    static const char *const sets[] = {
        DRAFTER "plugins.spec=dspark spec.accept=rejection",
        DRAFTER "plugins.spec=dspark spec.accept=block",
        DRAFTER CHEAP "plugins.spec=confidence spec.accept=rejection",
        DRAFTER CHEAP "plugins.spec=confidence spec.accept=block",
    };
    static struct counts want, got;

    (void)state;
    sample("plugins.pool=unified plugins.spec=off", 1000000, &want);
    for (size_t i = xrig_is_full() ? 0 : 2; i < sizeof(sets) / sizeof(sets[0]); i++) {
        sample(sets[i], 5000000 * (1 + i), &got);
        assert_true(got.accepted > n_samples() / 10);
        for (uint32_t k = 0; k < OUTPUT; k++) {
            double z = difference(want.at[k], got.at[k]);
            print_message("way %zu token %u: z %+.2f, %llu of %llu accepted\n", i, k, z,
                          (unsigned long long)got.accepted, (unsigned long long)got.verified);
            assert_true(z < 4);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(v45_spec_confidence_changes_no_bit_whatever_it_decides),
        cmocka_unit_test(greedy_output_is_plain_decoding_under_every_rule),
        cmocka_unit_test(sampled_output_has_the_distribution_under_rejection_and_block),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
