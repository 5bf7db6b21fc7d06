/* Arms of a server, compared by clients: data whose truth is known, and the log as it is read. */
#include "experiment/ab.h"

#include "base/rng.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define MAX_CLIENTS 2000u
#define MAX_ROWS 40000u

struct side {
    struct kg_ab_run run;
    uint32_t *clients;
    uint32_t n, n_clients;
};

static double normal(struct kg_rng *r)
{
    double u = 1 - kg_rng_f64(r), v = kg_rng_f64(r);

    return sqrt(-2 * log(u)) * cos(2 * acos(-1.0) * v);
}

/*
 * Clients whose number of requests is spread widely (a Pareto law cut at 200), whose requests are
 * slower or faster by a factor of the client (lognormal, `client_sd`) and of the request (0.3), and
 * longer or shorter in output the same way; times `slow`.
 */
static void make(struct side *s, uint32_t n_clients, double client_sd, double slow, uint64_t seed)
{
    struct kg_rng rng;

    kg_rng_seed(&rng, seed);
    *s = (struct side){.n_clients = n_clients};
    s->run.rows = calloc(MAX_ROWS, sizeof(*s->run.rows));
    s->clients = calloc(MAX_ROWS, sizeof(*s->clients));
    assert_true(s->run.rows != NULL && s->clients != NULL && n_clients <= MAX_CLIENTS);
    for (uint32_t c = 0; c < n_clients; c++) {
        double own = exp(client_sd * normal(&rng)), hits = kg_rng_f64(&rng);
        double want = pow(1 - kg_rng_f64(&rng), -1 / 1.5);
        uint32_t n = want < 200 ? (uint32_t)want : 200;
        for (uint32_t i = 0; i < n && s->n < MAX_ROWS; i++) {
            struct kg_ab_row *row = &s->run.rows[s->n];
            double t = 100 * own * exp(0.3 * normal(&rng)) * slow;
            *row = (struct kg_ab_row){.ok = 1, .n_prompt = 100, .n_output = 11};
            row->v[KG_AB_TTFT] = t;
            row->v[KG_AB_TPOT] = t / 10 * exp(0.1 * normal(&rng));
            row->v[KG_AB_E2E] = 2 * t;
            row->v[KG_AB_QUEUE] = 0;
            row->v[KG_AB_GOOD] = t < 200;
            row->v[KG_AB_REUSED] = kg_rng_f64(&rng) < hits ? 64 : 0;
            s->clients[s->n++] = c;
        }
    }
}

static void drop(struct side *s)
{
    free(s->run.rows);
    free(s->clients);
}

static struct kg_ab_conf conf_of(const struct side *a, const struct side *b)
{
    return (struct kg_ab_conf){.runs = {&a->run, &b->run},
                               .n_repeats = 1,
                               .n_draws = 400,
                               .n_comparisons = 1,
                               .alpha = 0.01,
                               .least = 0.01,
                               .seed = 7,
                               .clients = {a->clients, b->clients},
                               .n_of = {a->n, b->n},
                               .n_clients = {a->n_clients, b->n_clients}};
}

static struct kg_ab_result compare(const struct kg_ab_conf *conf)
{
    struct kg_ab_result r;
    struct kg_error err = {0};

    assert_int_equal(kg_ab_compare(conf, &r, &err), KG_OK);
    return r;
}

static uint32_t n_different(const struct kg_ab_result *r)
{
    uint32_t n = 0;

    for (uint32_t m = 0; m < KG_AB_N_FIGURES; m++) {
        n += r->figures[m].is_different;
    }
    return n;
}

/* One comparison of made-up arms. */
static struct kg_ab_result run(uint32_t n_clients, double client_sd, double slow, uint64_t seed,
                               int alone)
{
    struct side a, b;

    make(&a, n_clients, client_sd, 1, 2 * seed);
    make(&b, n_clients, client_sd, slow, 2 * seed + 1);
    for (uint32_t i = 0; alone && i < a.n; i++) {
        a.clients[i] = i;
    }
    for (uint32_t i = 0; alone && i < b.n; i++) {
        b.clients[i] = i;
    }
    a.n_clients = alone ? a.n : a.n_clients;
    b.n_clients = alone ? b.n : b.n_clients;
    struct kg_ab_conf conf = conf_of(&a, &b);
    struct kg_ab_result r = compare(&conf);
    drop(&a);
    drop(&b);
    return r;
}

static uint32_t rounds(uint32_t n, uint32_t full)
{
    const char *s = getenv("KEDGE_FULL");

    return s != NULL && s[0] == '1' ? full : n;
}

static void equal_arms_show_no_difference(void **state)
{
    uint32_t n = rounds(20, 200), different = 0, inside = 0;
    const uint32_t mean = KG_AB_FIG_TIMES + 3 * KG_AB_TTFT + 1;

    (void)state;
    for (uint32_t seed = 1; seed <= n; seed++) {
        struct kg_ab_result r = run(300, 0.5, 1, seed, 0);
        assert_true(r.n_tested > 8 && r.n_clients[0] == 300 && r.n_blocks < 300);
        different += n_different(&r) > 0;
        inside += r.figures[mean].lo <= 0 && 0 <= r.figures[mean].hi;
    }
    print_message("%u of %u pairs of equal arms differ; 95 %% of the mean held 0 in %u\n",
                  different, n, inside);
    assert_true(different <= (n == 20 ? 1 : 6));
    assert_true(inside >= n * 85 / 100);
}

static void requests_drawn_one_by_one_would_claim_too_much(void **state)
{
    uint32_t different = 0;

    (void)state;
    for (uint32_t seed = 1; seed <= 20; seed++) {
        struct kg_ab_result r = run(300, 0.5, 1, seed, 1);
        different += n_different(&r) > 0;
    }
    print_message("%u of 20 with every request a client of its own\n", different);
    assert_true(different >= 6); /* that is why clients are drawn */
}

static void a_slow_arm_is_found(void **state)
{
    uint32_t found = 0, small = 0;

    (void)state;
    for (uint32_t seed = 1; seed <= 10; seed++) {
        struct kg_ab_result r = run(1000, 0.2, 1.15, seed, 0);
        const struct kg_ab_figure *f = &r.figures[KG_AB_FIG_TIMES + 3 * KG_AB_TTFT];
        found += f->is_different && f->diff > 0;
        struct kg_buf words;
        kg_buf_init(&words, 0);
        (void)kg_ab_verdict(&r, "a", "b", &words);
        assert_true(strstr(kg_buf_cstr(&words), "b is faster") == NULL);
        assert_true(!f->is_different || strstr(kg_buf_cstr(&words), "b is slower") != NULL);
        kg_buf_fini(&words);
        r = run(1000, 0.02, 1.05, seed, 0);
        small += r.figures[KG_AB_FIG_TIMES + 3 * KG_AB_TTFT].is_different;
    }
    print_message("15 %% beside clients that differ by 20 %%: %u of 10; 5 %% beside 2 %%: %u\n",
                  found, small);
    assert_true(found == 10 && small >= 8);
}

static void too_few_clients_are_said_to_be(void **state)
{
    struct kg_ab_result r = run(9, 0.1, 3, 3, 0);
    struct kg_buf words;

    (void)state;
    assert_int_equal(r.n_tested, 0);
    kg_buf_init(&words, 0);
    (void)kg_ab_verdict(&r, "a", "b", &words);
    assert_non_null(strstr(kg_buf_cstr(&words), "Cannot tell: 9 and 9 clients"));
    kg_buf_fini(&words);
    /* many requests of one client are no evidence */
    struct side a, b;
    make(&a, 40, 0.1, 1, 1);
    make(&b, 40, 0.1, 2, 2);
    for (uint32_t i = 0; i < 3000; i++) {
        a.run.rows[a.n] = a.run.rows[0];
        a.clients[a.n++] = 0;
    }
    struct kg_ab_conf conf = conf_of(&a, &b);
    r = compare(&conf);
    assert_true(r.n_blocks == 1 && r.n_tested == 0);
    drop(&a);
    drop(&b);
}

static void equal_data_give_equal_reports_and_bad_ones_none(void **state)
{
    struct kg_ab_result r = run(100, 0.3, 1.1, 5, 0), again = run(100, 0.3, 1.1, 5, 0);
    struct side a, b;
    struct kg_error err;

    (void)state;
    for (uint32_t m = 0; m < KG_AB_N_FIGURES; m++) {
        assert_memory_equal(&r.figures[m].lo, &again.figures[m].lo, sizeof(double));
    }
    assert_true(isnan(r.throughput.a) && isnan(r.goodput.rel));
    make(&a, 20, 0.1, 1, 1);
    make(&b, 20, 0.1, 1, 2);
    struct kg_ab_conf conf = conf_of(&a, &b);
    conf.n_of[1] = 0;
    assert_int_equal(kg_ab_compare(&conf, &r, &err), KG_EINVAL);
    conf = conf_of(&a, &b);
    conf.n_clients[0] = 19;
    assert_int_equal(kg_ab_compare(&conf, &r, &err), KG_EINVAL);
    drop(&a);
    drop(&b);
}

/* --- the log --- */

static void put_row(FILE *f, const char *arm, unsigned key, double at_ms, double ttft_ms,
                    const char *more)
{
    (void)fprintf(f,
                  "{\"id\":\"x\",\"arrival_ms\":%.3f,\"outcome\":\"ok\",\"prompt_tokens\":10,"
                  "\"output_tokens\":5,\"ttft_ms\":%.3f,\"tpot_ms\":1,\"e2e_ms\":%.3f,"
                  "\"queue_ms\":0,\"arm\":\"%s\",\"key\":\"%016x\"%s}\n",
                  at_ms, ttft_ms, ttft_ms + 4, arm, key, more);
}

static void a_log_is_read_whole_and_says_what_is_left_out(void **state)
{
    char path[] = "/tmp/kedge-clients-XXXXXX";
    int fd = mkstemp(path);
    FILE *f = fdopen(fd, "w");
    struct kg_ab_log log;
    struct kg_error err;

    (void)state;
    assert_non_null(f);
    put_row(f, "slow", 7, 1796005253938.5, 20, ",\"share\":50,\"forced\":false");
    put_row(f, "fast", 9, 1796005254038.5, 10, ",\"share\":50,\"forced\":false");
    put_row(f, "fast", 9, 1796005254938.5, 11, ",\"share\":50");
    put_row(f, "fast", 8, 1796005255938.5, 12, ",\"share\":40");
    put_row(f, "fast", 1, 1796005255938.5, 12, ",\"share\":40,\"forced\":true");
    put_row(f, "slow", 9, 1796005253838.5, 30, ",\"share\":50");
    (void)fputs("{\"id\":\"x\",\"outcome\":\"ok\",\"key\":\"0\"}\n{\"torn\n{}\n17\n", f);
    (void)fclose(f);
    assert_int_equal(kg_ab_log_read(path, 0, 0, &log, &err), KG_OK);
    assert_int_equal(log.n, 2);
    assert_string_equal(log.arms[0].name, "fast"); /* by name */
    assert_true(log.arms[0].n == 3 && log.arms[0].n_clients == 2);
    assert_true(log.arms[0].clients[0] == log.arms[0].clients[1]);
    assert_true(log.arms[0].clients[0] != log.arms[0].clients[2]);
    assert_true(log.arms[1].n == 2 && log.arms[1].n_clients == 2);
    assert_true(log.arms[1].run.rows[0].arrival_ms == 100);
    assert_true(log.arms[1].run.rows[1].arrival_ms == 0);
    assert_true(log.arms[0].run.rows[2].v[KG_AB_TTFT] == 12);
    assert_true(log.n_forced == 1 && log.n_armless == 1 && log.n_odd == 3);
    assert_true(log.n_in_both == 1 && log.shares_changed == 1);
    assert_true(fabs(log.span_s - 2.116) < 1e-6);
    kg_ab_log_free(&log);
    f = fopen(path, "w");
    assert_non_null(f);
    (void)fputs("{\"id\":\"x\",\"outcome\":\"ok\",\"key\":\"0\"}\n", f);
    (void)fclose(f);
    assert_int_equal(kg_ab_log_read(path, 0, 0, &log, &err), KG_EINVAL);
    assert_non_null(strstr(err.text, "no request with an arm"));
    kg_ab_log_free(&log);
    f = fopen(path, "w");
    assert_non_null(f);
    for (unsigned i = 0; i <= KG_AB_LOG_ARMS; i++) {
        char name[16];
        (void)snprintf(name, sizeof(name), "arm%u", i);
        put_row(f, name, i, 1, 1, "");
    }
    (void)fclose(f);
    assert_int_equal(kg_ab_log_read(path, 0, 0, &log, &err), KG_EINVAL);
    kg_ab_log_free(&log);
    (void)unlink(path);
    assert_int_equal(kg_ab_log_read(path, 0, 0, &log, &err), KG_ENOENT);
    kg_ab_log_free(&log);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_arms_show_no_difference),
        cmocka_unit_test(requests_drawn_one_by_one_would_claim_too_much),
        cmocka_unit_test(a_slow_arm_is_found),
        cmocka_unit_test(too_few_clients_are_said_to_be),
        cmocka_unit_test(equal_data_give_equal_reports_and_bad_ones_none),
        cmocka_unit_test(a_log_is_read_whole_and_says_what_is_left_out),
    };

    return cmocka_run_group_tests_name("clients", tests, NULL, NULL);
}
