#include "experiment/results.h"

#include <math.h>
#include <stdlib.h>

/* Sums over the requests of one replica. */
struct share {
    uint64_t n, ok, refused;
    uint64_t prompt, output, hit_page, reused, lost; /* tokens of ok requests */
    uint64_t expected;        /* reuse the router hoped for, the same requests */
    struct kg_quantiles ttft; /* ms */
    double busy;              /* share of the time in steps */
};

/* Largest over mean of what replicas did: 1 is even, their number all on one. */
struct imbalance {
    double requests, computed, busy; /* computed: prompt tokens not reused */
};

static uint64_t computed(const struct share *s)
{
    return s->prompt - s->reused;
}

static void add_row(struct share *s, const struct kg_replay_row *row)
{
    s->n++;
    s->refused += row->outcome == KG_OUTCOME_REFUSED;
    if (row->outcome == KG_OUTCOME_OK) {
        s->ok++;
        s->prompt += row->n_prompt;
        s->output += row->n_output;
        s->hit_page += row->hit_page;
        s->reused += row->reused;
        s->lost += row->lost;
        s->expected += row->expected;
    }
}

static double uneven(double most, double sum, uint32_t n)
{
    return sum > 0 ? most * n / sum : NAN;
}

static struct imbalance find_imbalance(const struct share *shares, uint32_t n)
{
    struct imbalance most = {0, 0, 0}, sum = {0, 0, 0};

    for (uint32_t k = 0; k < n; k++) {
        const struct share *s = &shares[k];
        sum.requests += (double)s->n;
        sum.computed += (double)computed(s);
        sum.busy += s->busy;
        most.requests = fmax(most.requests, (double)s->n);
        most.computed = fmax(most.computed, (double)computed(s));
        most.busy = fmax(most.busy, s->busy);
    }
    return (struct imbalance){uneven(most.requests, sum.requests, n),
                              uneven(most.computed, sum.computed, n),
                              uneven(most.busy, sum.busy, n)};
}

/* One per replica; the caller frees. NULL without memory. */
static struct share *make_shares(const struct kg_replay_result *result)
{
    struct share *shares = calloc(result->n_replicas, sizeof(*shares));
    double *ttft = malloc(((size_t)result->n + 1) * sizeof(*ttft));

    for (uint32_t i = 0; shares != NULL && i < result->n; i++) {
        add_row(&shares[result->rows[i].replica], &result->rows[i]);
    }
    for (uint32_t k = 0; shares != NULL && ttft != NULL && k < result->n_replicas; k++) {
        uint64_t n = 0;
        for (uint32_t i = 0; i < result->n; i++) {
            const struct kg_replay_row *row = &result->rows[i];
            if (row->replica == k && row->outcome == KG_OUTCOME_OK && row->first_ns != UINT64_MAX) {
                ttft[n++] = (double)(row->first_ns - row->arrival_ns) / 1e6;
            }
        }
        shares[k].ttft = kg_quantiles_of(ttft, n);
        shares[k].busy = result->duration_ns > 0
                             ? (double)result->shares[k].step_ns_sum / (double)result->duration_ns
                             : 0;
    }
    if (ttft == NULL) {
        free(shares);
        shares = NULL;
    }
    free(ttft);
    return shares;
}

#define ULL(v) ((unsigned long long)(v))

static void put_share(struct kg_buf *b, const struct kg_replay_result *r, uint32_t k,
                      const struct share *s)
{
    const struct kg_engine_stats *e = &r->shares[k].stats;

    (void)kg_buf_printf(b,
                        "%s{\"requests\":%llu,\"ok\":%llu,\"refused\":%llu,\"tokens\":{"
                        "\"prompt\":%llu,\"output\":%llu,\"hit_page\":%llu,\"hit_state\":%llu,"
                        "\"reused\":%llu,\"lost\":%llu,\"expected\":%llu},\"ttft_ms\":{",
                        k > 0 ? "," : "", ULL(s->n), ULL(s->ok), ULL(s->refused), ULL(s->prompt),
                        ULL(s->output), ULL(s->hit_page), ULL(s->reused), ULL(s->reused),
                        ULL(s->lost), ULL(s->expected));
    kg_buf_key_f64(b, "mean", s->ttft.mean);
    kg_buf_key_f64(b, "p50", s->ttft.p50);
    kg_buf_key_f64(b, "p99", s->ttft.p99);
    (void)kg_buf_puts(b, "}");
    kg_buf_key_f64(b, "busy", s->busy);
    (void)kg_buf_printf(b,
                        ",\"steps\":%llu,\"evictions\":{\"pages\":%llu,\"states\":%llu},"
                        "\"preemptions\":%llu,\"bytes\":{",
                        ULL(r->shares[k].n_steps), ULL(e->evicted[KG_PAGE]),
                        ULL(e->evicted[KG_STATE]), ULL(e->preemptions));
    for (uint32_t c = 0; c < KG_N_BYTES; c++) {
        double mean = r->bytes_ns > 0 ? r->shares[k].bytes_sum[c] / (double)r->bytes_ns : 0;
        (void)kg_buf_printf(b, "%s\"%s\":%.0f", c > 0 ? "," : "", kg_results_class_name(c), mean);
    }
    (void)kg_buf_puts(b, "}}");
}

int kg_results_cluster_json(const struct kg_replay_result *result,
                            const struct kg_results_about *about, struct kg_buf *b)
{
    struct share *shares = make_shares(result);

    if (shares == NULL) {
        return KG_ENOMEM;
    }
    struct imbalance u = find_imbalance(shares, result->n_replicas);
    (void)kg_buf_printf(b, ",\"cluster\":{\"replicas\":%u,\"route\":\"%s\",\"imbalance\":{",
                        result->n_replicas, kg_route_name(about->route));
    kg_buf_key_f64(b, "requests", u.requests);
    kg_buf_key_f64(b, "computed_prompt_tokens", u.computed);
    kg_buf_key_f64(b, "busy", u.busy);
    (void)kg_buf_puts(b, "},\"each\":[");
    for (uint32_t k = 0; k < result->n_replicas; k++) {
        put_share(b, result, k, &shares[k]);
    }
    free(shares);
    return kg_buf_puts(b, "]}");
}

static double percent(uint64_t part, uint64_t all)
{
    return all > 0 ? 100.0 * (double)part / (double)all : 0;
}

int kg_results_cluster_text(const struct kg_replay_result *result,
                            const struct kg_results_about *about, struct kg_buf *b)
{
    struct share *shares = make_shares(result);

    if (shares == NULL) {
        return KG_ENOMEM;
    }
    struct imbalance u = find_imbalance(shares, result->n_replicas);
    uint64_t expected = 0, prompt = 0;
    for (uint32_t k = 0; k < result->n_replicas; k++) {
        expected += shares[k].expected;
        prompt += shares[k].prompt;
    }
    if (about->route == KG_ROUTE_PREFIX) {
        (void)kg_buf_printf(b, "router       took %.1f %% of prompt tokens to be reusable\n",
                            percent(expected, prompt));
    }
    (void)kg_buf_printf(b,
                        "replicas     %u, %s; largest of mean: requests %.2f, prompt tokens "
                        "computed %.2f, time in steps %.2f\n",
                        result->n_replicas, kg_route_name(about->route), u.requests, u.computed,
                        u.busy);
    for (uint32_t k = 0; k < result->n_replicas; k++) {
        const struct share *s = &shares[k];
        (void)kg_buf_printf(b,
                            "  %-2u         %llu requests, prompts %llu tokens, %.1f %% reused, "
                            "%.1f %% lost, in steps %.1f %%, ttft mean %.0f, p50 %.0f, p99 %.0f "
                            "ms\n",
                            k, ULL(s->n), ULL(s->prompt), percent(s->reused, s->prompt),
                            percent(s->lost, s->prompt), 100 * s->busy, s->ttft.mean, s->ttft.p50,
                            s->ttft.p99);
    }
    free(shares);
    return b->rc;
}
