/*
 * Speculation behind long prompts, on the real model with its trained drafter: wide windows on 1, 4
 * and 16 sequences give the tokens of plain decoding, and far beyond the lengths the drafter was
 * trained on what spec-confidence expects is what comes.
 */
#include "config.h"
#include "exec_rig.h"
#include "stack.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#define DRAFTER "model.draft=" TEST_ROOT "/models/k3-tiny-dspark "
#define FREE "engine.cost=" TEST_ROOT "/golden/free.cost "
#define MOST_PROMPT 8192
#define MOST_OUT 32
#define REQUESTS 16

/* Text of all domains, over and over. */
static uint32_t text[MOST_PROMPT];

struct out {
    uint32_t tokens[REQUESTS][MOST_OUT], n[REQUESTS];
    uint64_t verified, accepted, expected_um; /* as the drafter said */
    uint64_t learned_milli, looked;           /* as the policy expected; drafts of lookups */
};

static int is_full(void)
{
    return getenv("KEDGE_FULL") != NULL;
}

static void read_text(void)
{
    static const char *const domains[] = {"fiction", "code", "json"};
    json_t *root = json_load_file(TEST_ROOT "/golden/domains.json", 0, NULL);
    uint32_t n = 0;

    assert_non_null(root);
    for (uint32_t round = 0; n < MOST_PROMPT; round++) {
        const json_t *list = json_object_get(root, domains[round % 3]);
        const json_t *ids = json_array_get(list, round / 3 % json_array_size(list));
        for (size_t k = 0; k < json_array_size(ids) && n < MOST_PROMPT; k++)
            text[n++] = (uint32_t)json_integer_value(json_array_get(ids, k));
    }
    json_decref(root);
}

static struct kg_stack *open_stack(struct kg_config **config, const char *sets, uint32_t batch)
{
    char words[1024], *rest = words, *word;
    struct kg_stack *stack = NULL;
    struct kg_error err = {0};

    (void)snprintf(words, sizeof(words),
                   "model.path=" TEST_ROOT "/models/k3-tiny plugins.dir=" PLUGIN_DIR
                   " exec-cpu.threads=1 memory.bytes=128m engine.step_tokens=256 log.level=error "
                   "plugins.pool=unified engine.max_seqs=%u %s",
                   batch, sets);
    assert_int_equal(kg_config_create(config), KG_OK);
    while ((word = strsep(&rest, " ")) != NULL) {
        if (word[0] != '\0')
            (void)kg_config_set(*config, word);
    }
    if (kg_config_finish(*config) != KG_OK)
        fail_msg("%s", kg_config_errors(*config));
    if (kg_stack_open(*config, &stack, &err) < 0 || kg_stack_engine(stack, &err) < 0)
        fail_msg("%s", err.text);
    return stack;
}

static void take(const struct kg_event *e, struct out *o, uint32_t *done)
{
    uint32_t i = (uint32_t)e->id - 1;

    for (uint32_t k = 0; e->type == KG_EVENT_TOKENS && k < e->n; k++)
        o->tokens[i][o->n[i]++] = e->tokens[k];
    if (e->type == KG_EVENT_DONE) {
        assert_true(e->finish <= KG_FINISH_LENGTH);
        o->verified += e->n_verified;
        o->accepted += e->n_accepted;
        for (uint32_t j = 0; j < KG_SPEC_POSITIONS; j++)
            o->expected_um += e->spec.expected_um[j];
        (*done)++;
    }
}

/* The first n requests: the prompt, with a last token and a seed of their own. */
static void run(const char *sets, uint32_t batch, uint32_t n_prompt, uint32_t n, uint32_t n_out,
                struct out *o)
{
    static uint32_t prompt[MOST_PROMPT];
    struct kg_config *config = NULL;
    struct kg_stack *stack = open_stack(&config, sets, batch);
    struct kg_error err = {0};
    struct kg_event e;
    uint32_t done = 0;

    memset(o, 0, sizeof(*o));
    memcpy(prompt, text, n_prompt * sizeof(*text));
    for (uint32_t i = 0; i < n; i++) {
        prompt[n_prompt - 1] = 100 + i;
        struct kg_request q = {
            .id = i + 1,
            .tokens = prompt,
            .n_prompt = n_prompt,
            .max_tokens = n_out,
            .sampling = {.temperature = i % 4 == 3 ? 0.0f : 0.8f, .seed = 7 + i}};
        if (kg_engine_submit(stack->engine, &q, &err) < 0)
            fail_msg("%s", err.text);
    }
    while (done < n) {
        if (kg_engine_step(stack->engine, &err) < 0)
            fail_msg("%s", err.text);
        while (kg_engine_next(stack->engine, &e) == KG_OK)
            take(&e, o, &done);
    }
    if (strstr(sets, "spec=confidence") != NULL) {
        o->learned_milli = stack->spec_hosts[0]->host.cells[5].v; /* expected_millitokens */
        o->looked = stack->spec_hosts[0]->host.cells[12].v;       /* lookup_tokens */
    }
    kg_stack_close(stack);
    kg_config_destroy(config);
}

static void v47_wide_windows_behind_long_prompts_on_1_4_and_16_sequences(void **state)
{
    static const uint32_t batches[] = {1, 4, 16};
    static struct out plain, got;
    uint32_t n_prompt = is_full() ? MOST_PROMPT : 1100;

    (void)state;
    run("plugins.spec=off", 16, n_prompt, REQUESTS, 20, &plain);
    for (uint32_t b = 0; b < 3; b++) {
        uint32_t n = batches[b] == 1 ? 4 : REQUESTS;
        run(DRAFTER "plugins.spec=dspark", batches[b], n_prompt, n, 20, &got);
        print_message("%u prompt tokens, %u sequences: %llu of %llu drafts accepted\n", n_prompt,
                      batches[b], (unsigned long long)got.accepted,
                      (unsigned long long)got.verified);
        for (uint32_t i = 0; i < n; i++) {
            assert_int_equal(got.n[i], plain.n[i]);
            assert_memory_equal(got.tokens[i], plain.tokens[i], got.n[i] * sizeof(uint32_t));
        }
        assert_true(got.verified >= 7 * n && got.accepted > 0); /* whole blocks */
    }
}

/* The drafter saw 640 tokens at most. */
static void v48_far_behind_the_trained_length_what_is_expected_is_what_comes(void **state)
{
    static struct out near, far;
    uint32_t n_prompt = is_full() ? 6000 : 2500;
    const char *sets = DRAFTER FREE "plugins.spec=confidence spec-confidence.lookup=no";

    (void)state;
    run(sets, 4, 250, REQUESTS, MOST_OUT, &near);
    run(sets, 4, n_prompt, REQUESTS, MOST_OUT, &far);
    const struct out *both[] = {&near, &far};
    for (uint32_t k = 0; k < 2; k++) {
        const struct out *o = both[k];
        print_message("behind %u tokens: %llu of %llu drafts accepted; the drafter said %.0f, the "
                      "policy %.0f\n",
                      k == 0 ? 250 : n_prompt, (unsigned long long)o->accepted,
                      (unsigned long long)o->verified, (double)o->expected_um * 1e-6,
                      (double)o->learned_milli * 1e-3);
        assert_true(o->verified > 50);
    }
    double expected = (double)far.learned_milli * 1e-3, came = (double)far.accepted;
    assert_true((double)far.expected_um * 1e-6 > 2 * came); /* the cliff is there */
    assert_true(expected < 1.35 * came && came < 1.35 * expected);
}

/* A text that repeats itself: some sequences take lookups and others the drafter, in one step. */
static void lookups_beside_drafts_of_the_drafter_change_no_token(void **state)
{
    static struct out plain, got;
    const char *sets[] = {
        DRAFTER FREE "plugins.spec=confidence",
        DRAFTER FREE "plugins.spec=confidence spec-confidence.rule=stop exec-cpu.rewind=snapshot"};

    (void)state;
    for (uint32_t i = 60; i < 600; i++)
        text[i] = text[i - 60];
    run("plugins.spec=off", 4, 600, REQUESTS, MOST_OUT, &plain);
    for (uint32_t k = 0; k < 2; k++) {
        run(sets[k], 4, 600, REQUESTS, MOST_OUT, &got);
        print_message("%llu drafts of lookups among %llu, %llu accepted\n",
                      (unsigned long long)got.looked, (unsigned long long)got.verified,
                      (unsigned long long)got.accepted);
        assert_memory_equal(got.n, plain.n, sizeof(got.n));
        assert_memory_equal(got.tokens, plain.tokens, sizeof(got.tokens));
        assert_true(got.looked > 20 && got.verified > got.looked + 20);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(v47_wide_windows_behind_long_prompts_on_1_4_and_16_sequences),
        cmocka_unit_test(v48_far_behind_the_trained_length_what_is_expected_is_what_comes),
        cmocka_unit_test(lookups_beside_drafts_of_the_drafter_change_no_token),
    };

    read_text();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
