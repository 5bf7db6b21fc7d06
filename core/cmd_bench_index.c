/*
 * kedge bench index: the prefix index alone, filled with long prompts that share a beginning, with
 * a state every few thousand tokens. Measures match, insertion, begin and end of a path, choice of
 * a victim; and, for comparison, a plain compare of the same tokens. Then an admission in an
 * engine.
 */
#include "base/clock.h"
#include "base/num.h"
#include "base/rng.h"
#include "bench_step.h"
#include "cmd.h"
#include "engine/index.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK_PAGES 32u
#define STATE_PAGES 64u /* pages between two states */
#define N_PROBES 32u    /* prompts that are matched, in turn */
#define N_ROUNDS 20u

struct bench {
    uint64_t n_pages, page, n_tokens, shared;
    uint32_t chain; /* pages of a prompt */
    uint32_t n_prompts, n_states;
    uint32_t *tokens; /* [n_tokens] of one prompt */
    uint32_t *probe;  /* [N_PROBES][n_tokens] */
    uint32_t *copy;   /* the same, elsewhere */
    uint32_t *pages, *out;
    uint32_t next_page, next_state;
    struct kg_index *ix;
    volatile uint64_t sink;
};

/* Medians and sums, ns. */
struct figures {
    double match, match_max, compare, miss, path, fresh, insert, victim, page_victim;
};

static int by_double(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Prompt number i: the shared beginning, then its own. */
static void fill_prompt(const struct bench *b, uint32_t i, uint32_t *tokens)
{
    struct kg_rng r;

    kg_rng_seed(&r, 1);
    for (uint64_t k = 0; k < b->n_tokens; k++) {
        if (k == b->shared) {
            kg_rng_seed(&r, i + 2);
        }
        tokens[k] = (uint32_t)kg_rng_below(&r, 160000);
    }
}

/* Computes one prompt as a request would: chunk by chunk, with states on the way. */
static void insert_prompt(struct bench *b, uint32_t i, double *ns, uint64_t *n)
{
    struct kg_index_path path = {0};
    struct kg_index_match m;
    uint32_t page = (uint32_t)b->page;

    fill_prompt(b, i, b->tokens);
    kg_index_match(b->ix, 0, b->tokens, (uint32_t)b->n_tokens, &m);
    (void)kg_index_open(b->ix, &m, 0, 1, 1, &path);
    kg_index_release(b->ix, &path);
    for (uint32_t at = path.n_tokens / page; at < b->chain; at += CHUNK_PAGES) {
        uint32_t k = b->chain - at < CHUNK_PAGES ? b->chain - at : CHUNK_PAGES;
        for (uint32_t j = 0; j < k; j++) {
            b->pages[j] = b->next_page++;
        }
        uint64_t t = kg_now_ns();
        (void)kg_index_append(b->ix, &path, b->tokens + (size_t)at * page, b->pages, k, b->out,
                              NULL);
        *ns += (double)(kg_now_ns() - t);
        *n += k;
        if ((at + k) % STATE_PAGES == 0 && b->next_state < b->n_states) {
            (void)kg_index_donate(b->ix, &path, b->tokens, (at + k) * page, b->next_state++, 0);
        }
    }
    kg_index_close(b->ix, &path);
}

static void measure_match(struct bench *b, struct figures *f)
{
    double ns[N_ROUNDS * N_PROBES];
    struct kg_index_match m;
    uint32_t k = 0;

    for (uint32_t i = 0; i < N_PROBES; i++) {
        uint32_t *p = b->probe + (size_t)i * b->n_tokens;
        fill_prompt(b, (uint32_t)(i * 7919ull % b->n_prompts), p);
        memcpy(b->copy + (size_t)i * b->n_tokens, p, b->n_tokens * sizeof(*p));
    }
    for (uint32_t r = 0; r < N_ROUNDS * N_PROBES; r++) {
        const uint32_t *p = b->probe + (size_t)(r % N_PROBES) * b->n_tokens;
        uint64_t t = kg_now_ns();
        kg_index_match(b->ix, 0, p, (uint32_t)b->n_tokens, &m);
        ns[k++] = (double)(kg_now_ns() - t);
        b->sink += m.page_tokens;
    }
    qsort(ns, k, sizeof(*ns), by_double);
    f->match = ns[k / 2];
    f->match_max = ns[k - 1];
    for (k = 0; k < N_ROUNDS * N_PROBES; k++) {
        size_t at = (size_t)(k % N_PROBES) * b->n_tokens;
        uint64_t t = kg_now_ns();
        b->sink += (uint64_t)memcmp(b->probe + at, b->copy + at, b->n_tokens * 4);
        ns[k] = (double)(kg_now_ns() - t);
    }
    qsort(ns, k, sizeof(*ns), by_double);
    f->compare = ns[k / 2];
}

static void measure_path(struct bench *b, struct figures *f)
{
    uint64_t t_path = 0, t_fresh = 0, t_miss = 0;
    struct kg_index_match m;

    for (uint32_t r = 0; r < N_ROUNDS * N_PROBES; r++) {
        const uint32_t *p = b->probe + (size_t)(r % N_PROBES) * b->n_tokens;
        struct kg_index_path path = {0};
        kg_index_match(b->ix, 0, p, (uint32_t)b->n_tokens, &m);
        uint64_t t = kg_now_ns();
        b->sink += (uint64_t)kg_index_is_fresh(b->ix, &m);
        uint64_t u = kg_now_ns();
        (void)kg_index_open(b->ix, &m, 0, 1, 0, &path);
        kg_index_close(b->ix, &path);
        t_path += kg_now_ns() - u;
        t_fresh += u - t;
        t = kg_now_ns();
        kg_index_match(b->ix, r + 1, p, (uint32_t)b->n_tokens, &m); /* another salt */
        t_miss += kg_now_ns() - t;
    }
    f->path = (double)t_path / (N_ROUNDS * N_PROBES);
    f->fresh = (double)t_fresh / (N_ROUNDS * N_PROBES);
    f->miss = (double)t_miss / (N_ROUNDS * N_PROBES);
}

static void measure_evict(struct bench *b, struct figures *f)
{
    uint32_t want[KG_N_KINDS] = {CHUNK_PAGES, 1};
    struct kg_index_victim v;
    uint64_t t_state = 0, t_page = 0, n_states = 0, n_pages = 0;

    for (uint32_t i = 0; i < 100000; i++) {
        uint64_t t = kg_now_ns();
        if (kg_index_evict(b->ix, want, b->out, CHUNK_PAGES, &v) != KG_OK) {
            break;
        }
        uint64_t ns = kg_now_ns() - t;
        t_page += v.n_pages > 0 ? ns : 0;
        t_state += v.state != KG_NONE ? ns : 0;
        n_pages += v.n_pages;
        n_states += v.state != KG_NONE;
    }
    f->victim = n_states > 0 ? (double)t_state / (double)n_states : 0;
    f->page_victim = n_pages > 0 ? (double)t_page / (double)n_pages : 0;
}

static void print(const struct bench *b, const struct figures *f, const struct kg_bench_admit *a,
                  int json)
{
    struct kg_index_stats s;

    kg_index_stats(b->ix, &s);
    if (json) {
        (void)printf("{\"pages\":%u,\"page_tokens\":%llu,\"prompt_tokens\":%llu,\"match_us\":%.2f,"
                     "\"match_max_us\":%.2f,\"compare_us\":%.2f,\"miss_us\":%.3f,\"path_us\":%.3f,"
                     "\"fresh_us\":%.3f,\"insert_ns_page\":%.1f,\"evict_state_ns\":%.1f,"
                     "\"evict_page_ns\":%.1f,\"admit_running\":%u,\"admit_tokens\":%u,"
                     "\"admit_us\":%.3f,\"admit_step_us\":%.3f}\n",
                     b->next_page, (unsigned long long)b->page, (unsigned long long)b->n_tokens,
                     f->match / 1e3, f->match_max / 1e3, f->compare / 1e3, f->miss / 1e3,
                     f->path / 1e3, f->fresh / 1e3, f->insert, f->victim, f->page_victim,
                     a->n_running, a->n_tokens, a->more_ns / 1e3, a->step_ns / 1e3);
        return;
    }
    (void)printf("prefix index: %u pages of %llu tokens in %u prompts of %llu, %u states\n",
                 b->next_page, (unsigned long long)b->page, b->n_prompts,
                 (unsigned long long)b->n_tokens, b->next_state);
    (void)printf("match, whole prompt     %10.2f us   median; slowest %.2f\n", f->match / 1e3,
                 f->match_max / 1e3);
    (void)printf("  compare alone         %10.2f us   the same tokens, one memcmp\n",
                 f->compare / 1e3);
    (void)printf("  ns per page           %10.1f\n", f->match / b->chain);
    (void)printf("match, nothing known    %10.3f us\n", f->miss / 1e3);
    (void)printf("match still fresh       %10.3f us\n", f->fresh / 1e3);
    (void)printf("path opened and closed  %10.3f us\n", f->path / 1e3);
    (void)printf("insert                  %10.1f ns per page, in chunks of %u\n", f->insert,
                 CHUNK_PAGES);
    (void)printf("evict a state           %10.1f ns\n", f->victim);
    (void)printf("evict a page            %10.1f ns, in runs of up to %u\n", f->page_victim,
                 CHUNK_PAGES);
    (void)printf("pages left %u, ghosts %u\n", s.cached[KG_PAGE], s.n_ghost_pages);
    (void)printf("one request more, of %u tokens, admitted, computed and ended in a step with %u "
                 "running: %.1f us, %.0f ns per page; the step without it %.1f us\n",
                 a->n_tokens, a->n_running, a->more_ns / 1e3, a->more_ns / a->n_pages,
                 a->step_ns / 1e3);
}

static int run(struct bench *b, struct figures *f, struct kg_error *err)
{
    struct kg_index_conf conf = {.page_tokens = (uint32_t)b->page,
                                 .max_units = {(uint32_t)b->n_pages, b->n_states},
                                 .unit_bytes = {b->page * 27648, 56171520},
                                 .ghost_bytes = 64 << 20,
                                 .seed = 1};
    size_t bytes = b->n_tokens * sizeof(uint32_t);
    double ns = 0;
    uint64_t n = 0;

    b->tokens = malloc(bytes);
    b->probe = malloc(N_PROBES * bytes);
    b->copy = malloc(N_PROBES * bytes);
    b->pages = malloc(CHUNK_PAGES * sizeof(uint32_t));
    b->out = malloc(CHUNK_PAGES * sizeof(uint32_t));
    if (b->tokens == NULL || b->probe == NULL || b->copy == NULL || b->pages == NULL ||
        b->out == NULL) {
        return kg_fail(err, KG_ENOMEM, "no memory for prompts of %llu tokens",
                       (unsigned long long)b->n_tokens);
    }
    int rc = kg_index_create(&conf, &b->ix, err);
    if (rc != KG_OK) {
        return rc;
    }
    while (b->next_page + b->chain <= b->n_pages) {
        insert_prompt(b, b->n_prompts++, &ns, &n);
    }
    f->insert = ns / (double)n;
    measure_match(b, f);
    measure_path(b, f);
    rc = kg_index_check(b->ix, err);
    measure_evict(b, f);
    return rc == KG_OK ? kg_index_check(b->ix, err) : rc;
}

static int number(const char *flag, const char *text, uint64_t lo, uint64_t hi, uint64_t *v)
{
    if (kg_num_u64(text, v) == KG_OK && *v >= lo && *v <= hi) {
        return 1;
    }
    (void)fprintf(stderr, "kedge: %s \"%.60s\": wanted %llu .. %llu\n", flag, text,
                  (unsigned long long)lo, (unsigned long long)hi);
    return 0;
}

int kg_cmd_bench_index(int argc, char **argv)
{
    const char *pages = "1000000", *page = "64", *tokens = "100000", *shared = "8192";
    const struct kg_cmd_flag flags[] = {
        {"--pages", "N", "pages in the index (1000000)", &pages, NULL},
        {"--page-tokens", "N", "tokens of a page (64)", &page, NULL},
        {"--tokens", "N", "tokens of a prompt (100000)", &tokens, NULL},
        {"--shared", "N", "of those, common to all prompts (8192)", &shared, NULL},
        {0},
    };
    struct kg_cmd_line line;
    struct bench b = {0};
    struct figures f = {0};
    struct kg_bench_admit admit = {0};
    struct kg_error err = {0};

    int rc = kg_cmd_parse(&line, argc, argv, "kedge bench index [--pages N] [--tokens N]",
                          "Measures the prefix index alone.", flags, 0);
    if (rc >= 0) {
        return rc;
    }
    if (!number("--pages", pages, 1000, 8000000, &b.n_pages) ||
        !number("--page-tokens", page, 1, 4096, &b.page) ||
        !number("--tokens", tokens, 2 * b.page, 4000000, &b.n_tokens) ||
        !number("--shared", shared, 0, b.n_tokens, &b.shared)) {
        return KG_EXIT_USAGE;
    }
    b.chain = (uint32_t)(b.n_tokens / b.page);
    b.n_states = (uint32_t)(b.n_pages / STATE_PAGES + 1);
    if (b.chain >= b.n_pages) {
        (void)fputs("kedge: --pages must hold more than one prompt\n", stderr);
        return KG_EXIT_USAGE;
    }
    rc = run(&b, &f, &err);
    if (rc == KG_OK) {
        rc = kg_bench_admit(&line, &admit, &err);
    }
    if (rc == KG_OK) {
        print(&b, &f, &admit, line.json);
    }
    kg_index_destroy(b.ix);
    free(b.tokens);
    free(b.probe);
    free(b.copy);
    free(b.pages);
    free(b.out);
    return rc == KG_OK ? KG_EXIT_OK : kg_cmd_fail(&err);
}
