/*
 * A request that goes on at another engine, with other page sizes, other pools and states cut
 * otherwise, gives the bits of the logits and the tokens of one that was never moved. First backend
 * to backend at any length, the middle of a page included; then from one engine's cache to
 * another's.
 */
#include "config.h"
#include "engine/test.h"
#include "engine/transfer.h"
#include "exec_rig.h"
#include "stack.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* --- backend to backend --- */

static struct kg_side side_of(struct xrig *x)
{
    return (struct kg_side){x->ops, x->exec, &x->layout};
}

/* r computed up to `at` and a state there, on a: the rest on b. `truth` was never moved. */
static void go_on(struct xrig *a, struct xrig *b, struct xreq *r, const struct xreq *truth,
                  uint32_t at)
{
    static struct xreq far;
    const struct xrun how = {.batch = 1};
    const struct kg_side from = side_of(a), to = side_of(b);
    struct kg_transfer *t;
    struct kg_error err = {0};
    uint32_t n = (at + b->layout.page_tokens - 1) / b->layout.page_tokens;

    far = (struct xreq){.n_prompt = truth->n_prompt,
                        .n_max = truth->n_max,
                        .n = at + 1 > truth->n_prompt ? at + 1 : truth->n_prompt,
                        .past = at,
                        .n_pages = n,
                        .sampling = truth->sampling};
    memcpy(far.tokens, truth->tokens, far.n * sizeof(far.tokens[0]));
    for (uint32_t i = 0; i < n; i++)
        far.pages[i] = xrig_take(b, KG_PAGE);
    far.state_src = xrig_take(b, KG_STATE);
    xrig_apply(b, 0);
    for (uint32_t i = 0; i < n; i++) /* what is not written may not be read */
        assert_int_equal(b->ops->poison(b->exec, KG_PAGE, far.pages[i]), KG_OK);
    if (kg_transfer_open(&from, &to, &t, &err) != KG_OK ||
        kg_transfer_state(t, r->order_unit, far.state_src, &err) != KG_OK ||
        kg_transfer_pages(t, 0, at, r->pages, far.pages, &err) != KG_OK)
        fail_msg("%s", err.text);
    kg_transfer_close(t);
    uint32_t source = far.state_src;
    xrun(b, &far, 1, &how);
    xrig_give(b, KG_STATE, source);
    assert_int_equal(far.n, truth->n);
    assert_memory_equal(far.tokens, truth->tokens, truth->n * sizeof(truth->tokens[0]));
    for (uint32_t i = at; i + 1 < truth->n; i++)
        assert_int_equal(far.bits[i], truth->bits[i]);
}

static void a_request_goes_on_at_another_backend_at_any_length(void **state) /* V64 */
{
    const struct xrig_options oa = {
        .model = "models/k3-tiny", .threads = 2, .page_tokens = 16, .max_seqs = 2, .max_rows = 256};
    struct xrig_options ob = oa;
    static struct xreq truth, r;
    const struct xrun how = {.batch = 1};
    uint32_t step = xrig_is_full() ? 1 : 13, n_moved = 0;
    struct xrig a, b;

    (void)state;
    ob.page_tokens = 64;
    ob.parts_per_slot = 1;
    xrig_open(&a, &oa);
    xrig_open(&b, &ob);
    xreq_prompts(&truth, 1, 0.8f);
    while (truth.n_prompt < 90) /* a longer one, of its own tokens */
        truth.tokens[truth.n_prompt] = truth.tokens[truth.n_prompt / 2] + 1, truth.n_prompt++;
    truth.n = truth.n_prompt;
    truth.n_max = truth.n + 50;
    r = truth;
    xrun(&a, &truth, 1, &how);
    for (uint32_t at = 1; at + 2 < truth.n; at += step) {
        struct xreq part = r;
        part.order_at = at;
        part.n_max = at + 2 > part.n_prompt ? at + 2 : part.n_prompt + 1;
        xrun(&a, &part, 1, &how);
        assert_int_equal(part.ordered, 1);
        go_on(&a, &b, &part, &truth, at);
        for (uint32_t i = 0; i < part.n_pages; i++)
            xrig_give(&a, KG_PAGE, part.pages[i]);
        xrig_give(&a, KG_STATE, part.order_unit);
        n_moved++;
    }
    print_message("  %u lengths of %u tokens\n", n_moved, truth.n);
    xrig_close(&a);
    xrig_close(&b);
}

/* --- engine to engine --- */

#define TOKENS 512u
#define N_PROMPT 150u
#define N_OUTPUT 120u

struct node {
    struct kg_config *config;
    struct kg_stack *stack;
    struct kg_engine *engine;
    struct kg_engine_test test;
    uint64_t bits[TOKENS];
    uint32_t tokens[TOKENS], n, n_cached, n_rows;
};

static void see_result(void *ctx, const struct kg_seq *seq, const struct kg_seq_result *res)
{
    struct node *d = ctx;
    uint32_t vocab = d->stack->desc.vocab;

    for (uint32_t j = 0; j < seq->n_rows; j++, d->n_rows++)
        d->bits[seq->past + j] = xrig_hash(res->logits + (size_t)j * vocab, vocab);
}

static void open_node(struct node *d, const char *sets)
{
    char text[700], *rest = text, *word;
    struct kg_error err = {0};

    memset(d, 0, sizeof(*d));
    assert_int_equal(kg_config_create(&d->config), KG_OK);
    (void)snprintf(text, sizeof(text),
                   "model.path=%s/models/k3-tiny plugins.dir=%s plugins.exec=cpu "
                   "engine.max_seqs=4 memory.bytes=16m exec-cpu.threads=2 log.level=warn "
                   "prefix.checkpoint=interval prefix.interval=64 %s",
                   TEST_ROOT, PLUGIN_DIR, sets);
    while ((word = strsep(&rest, " ")) != NULL)
        (void)kg_config_set(d->config, word);
    if (kg_config_finish(d->config) != KG_OK)
        fail_msg("%s", kg_config_errors(d->config));
    if (kg_stack_open(d->config, &d->stack, &err) < 0)
        fail_msg("%s", err.text);
    struct kg_engine_conf conf = kg_config_conf(d->config)->engine;
    d->test = (struct kg_engine_test){.logits = 1, .on_result = see_result, .ctx = d};
    conf.test = &d->test;
    conf.debug = 1;
    if (kg_engine_create(&d->stack->parts, &conf, &d->engine, &err) < 0)
        fail_msg("%s", err.text);
}

static void close_node(struct node *d)
{
    kg_engine_destroy(d->engine);
    kg_stack_close(d->stack);
    kg_config_destroy(d->config);
}

/* Goes on from tokens[n] until `to` are known. */
static void run_node(struct node *d, const uint32_t *tokens, uint32_t n, uint32_t to)
{
    struct kg_error err = {0};
    struct kg_event e;
    int done = 0;
    const struct kg_request q = {.id = 1,
                                 .tokens = tokens,
                                 .n_prompt = n,
                                 .max_tokens = to - n,
                                 .sampling = {.temperature = 0.8f, .seed = 77}};

    memcpy(d->tokens, tokens, n * sizeof(*tokens));
    d->n = n;
    d->n_rows = 0;
    if (kg_engine_submit(d->engine, &q, &err) < 0)
        fail_msg("%s", err.text);
    while (!done) {
        if (kg_engine_step(d->engine, &err) < 0)
            fail_msg("%s", err.text);
        while (kg_engine_next(d->engine, &e) == KG_OK) {
            if (e.type == KG_EVENT_TOKENS) {
                memcpy(d->tokens + d->n, e.tokens, e.n * sizeof(uint32_t));
                d->n += e.n;
            }
            done |= e.type == KG_EVENT_DONE;
            d->n_cached = e.type == KG_EVENT_DONE ? e.n_cached : d->n_cached;
        }
    }
    assert_int_equal(d->n, to);
}

static void a_request_goes_on_at_another_engine(void **state)
{
    static const char *const pairs[][2] = {
        {"plugins.pool=unified memory.page_tokens=16", "plugins.pool=split memory.page_tokens=64"},
        {"plugins.pool=split memory.page_tokens=64", "plugins.pool=unified memory.page_tokens=16"},
        {"plugins.pool=unified memory.page_tokens=16 prefix.interval=16",
         "plugins.pool=split pool-split.style=uniform memory.page_tokens=16"},
        {"plugins.pool=unified memory.page_tokens=32",
         "plugins.pool=unified memory.page_tokens=64 exec-cpu.threads=1"},
    };
    static struct node truth, a, b;
    uint32_t tokens[TOKENS];

    (void)state;
    open_node(&truth, "plugins.pool=unified memory.page_tokens=32 prefix.enabled=no");
    for (uint32_t i = 0; i < N_PROMPT; i++)
        tokens[i] = (i * 7919u + 13) % truth.stack->desc.vocab;
    run_node(&truth, tokens, N_PROMPT, N_PROMPT + N_OUTPUT);
    for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++) {
        for (uint32_t cut = N_PROMPT + 1; cut < truth.n; cut += 45) {
            struct kg_error err = {0};
            uint32_t copied = 0;
            open_node(&a, pairs[i][0]);
            open_node(&b, pairs[i][1]);
            run_node(&a, tokens, N_PROMPT, cut);
            uint32_t pa = kg_engine_layout(a.engine)->page_tokens;
            uint32_t pb = kg_engine_layout(b.engine)->page_tokens;
            if (pb == 88 && cut <= 176) { /* no whole page of both so early */
                close_node(&a);
                close_node(&b);
                continue;
            }
            int rc = kg_engine_hand_over(a.engine, b.engine, 0, a.tokens, cut, &copied, &err);
            if (rc != KG_OK)
                fail_msg("%s -> %s: %s", pairs[i][0], pairs[i][1], err.text);
            assert_true(copied >= 64 && copied % pa == 0 && copied % pb == 0);
            run_node(&b, a.tokens, cut, truth.n);
            assert_int_equal(b.n_cached, copied);
            assert_int_equal(b.n_rows, truth.n - 1 - copied); /* nothing was computed twice */
            assert_memory_equal(b.tokens, truth.tokens, truth.n * sizeof(uint32_t));
            for (uint32_t k = copied; k + 1 < truth.n; k++)
                assert_int_equal(b.bits[k], truth.bits[k]);
            print_message("  pages of %u -> %u: %u of %u tokens copied, %u rows equal\n", pa, pb,
                          copied, cut, b.n_rows);
            close_node(&a);
            close_node(&b);
        }
    }
    close_node(&truth);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_request_goes_on_at_another_backend_at_any_length),
        cmocka_unit_test(a_request_goes_on_at_another_engine),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
