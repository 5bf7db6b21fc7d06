/* Routes: turns, load, and the longest reusable beginning against a model that keeps whole prompts.
 */
#include "experiment/route.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PAGE 4
#define ALL(n) ((UINT64_C(1) << (n)) - 1)

static struct kg_router *make(uint32_t kind, uint32_t n, uint32_t max_pages, uint32_t slack)
{
    const struct kg_route_conf conf = {
        .kind = kind, .n_replicas = n, .page_tokens = PAGE, .max_pages = max_pages, .slack = slack};
    struct kg_router *r;
    struct kg_error err;

    assert_int_equal(kg_router_create(&conf, &r, &err), KG_OK);
    return r;
}

static uint32_t send_to(struct kg_router *r, const uint32_t *tokens, uint32_t n, uint64_t tenant,
                        uint64_t open)
{
    const struct kg_route_req req = {.tokens = tokens, .n_prompt = n, .tenant = tenant};
    uint32_t k = UINT32_MAX;

    assert_int_equal(kg_router_choose(r, &req, open, &k), KG_OK);
    return k;
}

static void count_up(uint32_t *tokens, uint32_t n, uint32_t from)
{
    for (uint32_t i = 0; i < n; i++) {
        tokens[i] = from + i;
    }
}

static void words_are_read_and_others_refused(void **state)
{
    uint32_t kind = 9;

    (void)state;
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(kg_route_parse(kg_route_name(i), &kind), KG_OK);
        assert_int_equal(kind, i);
    }
    assert_int_equal(kg_route_parse("random", &kind), KG_EINVAL);
    assert_int_equal(kind, 2);
}

static void round_robin_takes_turns_and_steps_over_closed_ones(void **state)
{
    struct kg_router *r = make(KG_ROUTE_ROUND_ROBIN, 3, 1, 0);
    const uint32_t t[1] = {1};

    (void)state;
    for (uint32_t i = 0; i < 6; i++) {
        assert_int_equal(send_to(r, t, 1, 0, ALL(3)), i % 3);
    }
    assert_int_equal(send_to(r, t, 1, 0, 6), 1);
    assert_int_equal(send_to(r, t, 1, 0, ALL(3)), 2);
    kg_router_destroy(r);
}

static void least_load_counts_what_is_under_way(void **state)
{
    struct kg_router *r = make(KG_ROUTE_LEAST_LOAD, 3, 1, 0);
    const uint32_t t[1] = {1};

    (void)state;
    for (uint32_t i = 0; i < 3; i++) { /* none was ever used: by number */
        assert_int_equal(send_to(r, t, 1, 0, ALL(3)), i);
    }
    kg_router_done(r, 1);
    assert_int_equal(send_to(r, t, 1, 0, ALL(3)), 1);
    assert_int_equal(send_to(r, t, 1, 0, ALL(3)), 0); /* all equal: the one waiting longest */
    kg_router_done(r, 2);
    kg_router_done(r, 2); /* once too often is not less than none */
    assert_int_equal(send_to(r, t, 1, 0, ALL(3)), 2);
    assert_int_equal(send_to(r, t, 1, 0, 1), 0); /* the only one that is open */
    kg_router_destroy(r);
}

static void a_turn_goes_where_its_conversation_is(void **state)
{
    struct kg_router *r = make(KG_ROUTE_PREFIX, 4, 1000, 100);
    uint32_t t[40];

    (void)state;
    for (uint32_t i = 0; i < 4; i++) { /* nothing known: by load */
        count_up(t, 20, 1000 * i);
        assert_int_equal(send_to(r, t, 20, 0, ALL(4)), i);
        assert_int_equal(kg_router_expected(r), 0);
    }
    for (uint32_t i = 4; i-- > 0;) {
        count_up(t, 40, 1000 * i);
        assert_int_equal(send_to(r, t, 40, 0, ALL(4)), i);
        assert_int_equal(kg_router_expected(r), 16); /* the state at (20 - 1) / 4 pages */
    }
    count_up(t, 40, 2000);
    assert_int_not_equal(send_to(r, t, 40, 0, ALL(4) & ~UINT64_C(4)), 2);
    assert_int_equal(kg_router_expected(r), 0);
    kg_router_destroy(r);
}

static void pages_without_a_state_count_for_nothing(void **state)
{
    struct kg_router *r = make(KG_ROUTE_PREFIX, 2, 1000, 100);
    uint32_t a[24], b[24];

    (void)state;
    count_up(a, 24, 0);
    memcpy(b, a, sizeof(b));
    b[13] = 99; /* three pages in common, no state at their end */
    assert_int_equal(send_to(r, a, 24, 0, ALL(2)), 0);
    assert_int_equal(send_to(r, b, 24, 0, ALL(2)), 1);
    assert_int_equal(kg_router_expected(r), 0);
    b[13] = 98; /* it parts from replica 0 there again: pages only; from 1 as well */
    kg_router_done(r, 0);
    assert_int_equal(send_to(r, b, 24, 0, ALL(2)), 0);
    assert_int_equal(kg_router_expected(r), 0);
    b[13] = 97; /* where two prompts of replica 0 parted a state is taken to stand */
    assert_int_equal(send_to(r, b, 24, 0, ALL(2)), 0);
    assert_int_equal(kg_router_expected(r), 12);
    kg_router_destroy(r);
}

static void a_state_stands_where_a_message_ended(void **state)
{
    struct kg_router *r = make(KG_ROUTE_PREFIX, 2, 1000, 100);
    const uint32_t bounds[] = {2, 9, 22};
    uint32_t a[24], k = 9;

    (void)state;
    count_up(a, 24, 0);
    const struct kg_route_req req = {.tokens = a, .n_prompt = 24, .bounds = bounds, .n_bounds = 3};
    assert_int_equal(kg_router_choose(r, &req, ALL(2), &k), KG_OK);
    assert_int_equal(k, 0);
    a[12] = 77;
    assert_int_equal(send_to(r, a, 24, 0, ALL(2)), 0);
    assert_int_equal(kg_router_expected(r), 8); /* 9 rounded down to pages */
    kg_router_destroy(r);
}

static void a_replica_far_ahead_in_load_does_not_count(void **state)
{
    struct kg_router *r = make(KG_ROUTE_PREFIX, 2, 1000, 2);
    uint32_t a[24];

    (void)state;
    count_up(a, 24, 0);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(send_to(r, a, 24, 0, ALL(2)), 0);
    }
    assert_int_equal(send_to(r, a, 24, 0, ALL(2)), 1); /* three more than the other: too many */
    kg_router_destroy(r);
}

static void tenants_share_nothing(void **state)
{
    struct kg_router *r = make(KG_ROUTE_PREFIX, 2, 1000, 100);
    uint32_t a[24];

    (void)state;
    count_up(a, 24, 0);
    assert_int_equal(send_to(r, a, 24, 5, ALL(2)), 0);
    assert_int_equal(send_to(r, a, 24, 6, ALL(2)), 1);
    assert_int_equal(kg_router_expected(r), 0);
    assert_int_equal(send_to(r, a, 24, 5, ALL(2)), 0);
    assert_int_equal(kg_router_expected(r), 20);
    kg_router_destroy(r);
}

static void what_was_not_seen_for_longest_is_forgotten_first(void **state)
{
    struct kg_router *r = make(KG_ROUTE_PREFIX, 2, 12, 100);
    uint32_t t[24];

    (void)state;
    count_up(t, 24, 0); /* 6 pages each: room for two prompts */
    (void)send_to(r, t, 24, 0, ALL(2));
    count_up(t, 24, 100);
    (void)send_to(r, t, 24, 0, ALL(2));
    count_up(t, 24, 0);
    (void)send_to(r, t, 24, 0, ALL(2));
    assert_int_equal(kg_router_expected(r), 20);
    count_up(t, 12, 200); /* three pages: the tail of the second prompt goes */
    (void)send_to(r, t, 12, 0, ALL(2));
    count_up(t, 24, 0);
    (void)send_to(r, t, 24, 0, ALL(2));
    assert_int_equal(kg_router_expected(r), 20);
    count_up(t, 24, 100);
    (void)send_to(r, t, 24, 0, ALL(2));
    assert_int_equal(kg_router_expected(r), 0); /* its state stood in the tail */
    kg_router_destroy(r);
}

/* --- against whole prompts --- */

#define N_SENT 300
#define LONGEST 40

struct model {
    uint32_t tokens[N_SENT][LONGEST], n[N_SENT], to[N_SENT], parted[N_SENT], bound[N_SENT];
    uint32_t n_sent, load[8], turn[8];
};

static uint32_t common_pages(const uint32_t *a, uint32_t n, const uint32_t *b, uint32_t m)
{
    uint32_t k = 0;

    while (k < n && k < m && a[k] == b[k]) {
        k++;
    }
    return k / PAGE;
}

/* Pages of a prompt replica k has, and of those the most that end in a state, by going through
 * all prompts it was ever sent. */
static void model_match(const struct model *m, const uint32_t *t, uint32_t n, uint32_t k,
                        uint32_t *pages, uint32_t *states)
{
    *pages = *states = 0;
    for (uint32_t i = 0; i < m->n_sent; i++) {
        if (m->to[i] != k) {
            continue;
        }
        uint32_t same = common_pages(t, n, m->tokens[i], m->n[i]);
        const uint32_t at[] = {(m->n[i] - 1) / PAGE, m->parted[i], m->bound[i] / PAGE};
        *pages = same > *pages ? same : *pages;
        for (uint32_t s = 0; s < 3; s++) {
            if (at[s] <= same && at[s] <= (n - 1) / PAGE && at[s] > *states) {
                *states = at[s];
            }
        }
    }
}

static void prefix_agrees_with_a_model_that_keeps_whole_prompts(void **state)
{
    static struct model m;
    enum { REPLICAS = 5, SLACK = 3 };
    struct kg_router *r = make(KG_ROUTE_PREFIX, REPLICAS, 1u << 16, SLACK);
    uint64_t x = 88172645463325252u;

    (void)state;
    for (uint32_t step = 0; step < N_SENT; step++) {
        uint32_t *t = m.tokens[step], pages[REPLICAS], states[REPLICAS], best = 0, low = UINT32_MAX;
        uint32_t most = 0, found = 9;
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        uint32_t from = (uint32_t)(x >> 8) % (step + 1);
        uint32_t keep = step > 0 && from < step ? (uint32_t)(x >> 24) % (m.n[from] + 1) : 0;
        uint32_t n = keep + 1 + (uint32_t)(x >> 40) % 12;
        n = n < LONGEST ? n : LONGEST;
        for (uint32_t i = 0; i < n; i++) {
            t[i] = i < keep ? m.tokens[from][i] : (uint32_t)(x >> (i % 30)) % 3;
        }
        m.bound[step] = (uint32_t)(x >> 50) % (n + 1);
        for (uint32_t k = 0; k < REPLICAS; k++) {
            model_match(&m, t, n, k, &pages[k], &states[k]);
            low = m.load[k] < low ? m.load[k] : low;
        }
        for (uint32_t k = 0; k < REPLICAS; k++) {
            most = m.load[k] <= low + SLACK && states[k] > most ? states[k] : most;
        }
        best = REPLICAS;
        for (uint32_t k = 0; k < REPLICAS; k++) {
            if (m.load[k] <= low + SLACK && states[k] == most &&
                (best == REPLICAS || m.load[k] < m.load[best] ||
                 (m.load[k] == m.load[best] && m.turn[k] < m.turn[best]))) {
                best = k;
            }
        }
        const struct kg_route_req req = {
            .tokens = t, .n_prompt = n, .bounds = &m.bound[step], .n_bounds = 1};
        assert_int_equal(kg_router_choose(r, &req, ALL(REPLICAS), &found), KG_OK);
        assert_int_equal(found, best);
        assert_int_equal(kg_router_expected(r), most * PAGE);
        m.n[step] = n;
        m.to[step] = best;
        m.parted[step] = pages[best];
        m.load[best]++;
        m.turn[best] = ++m.n_sent;
        for (uint32_t k = 0; k < REPLICAS; k++) {
            if ((x >> (52 + k) & 1) != 0 && m.load[k] > 0) {
                m.load[k]--;
                kg_router_done(r, k);
            }
        }
    }
    kg_router_destroy(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words_are_read_and_others_refused),
        cmocka_unit_test(round_robin_takes_turns_and_steps_over_closed_ones),
        cmocka_unit_test(least_load_counts_what_is_under_way),
        cmocka_unit_test(a_turn_goes_where_its_conversation_is),
        cmocka_unit_test(pages_without_a_state_count_for_nothing),
        cmocka_unit_test(a_state_stands_where_a_message_ended),
        cmocka_unit_test(a_replica_far_ahead_in_load_does_not_count),
        cmocka_unit_test(tenants_share_nothing),
        cmocka_unit_test(what_was_not_seen_for_longest_is_forgotten_first),
        cmocka_unit_test(prefix_agrees_with_a_model_that_keeps_whole_prompts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
