/* How many requests of one length memory holds, how a static split would have to be cut, and what
 * is said of a trace. */
#include "check.h"
#include "engine/index_policy.h"

#include <math.h>

/* A split whose kinds run out more than this far apart is named. */
#define UNBALANCED 0.10
/* The same where no length was given: the length is a guess then. */
#define UNBALANCED_GUESS 0.25
/* A share of the repeated tokens that states at an interval may lose. */
#define LOST_MUCH 0.10

static uint64_t requests_granted(const struct kg_check *k, struct kg_pool *pool,
                                 const struct kg_check_size *s)
{
    uint64_t lo = 0, hi = (uint64_t)(s->load + 2);

    while (lo < hi) {
        uint64_t mid = lo + (hi - lo + 1) / 2;
        if (kg_check_fits(k, pool, mid * s->pages, mid * s->states))
            lo = mid;
        else
            hi = mid - 1;
    }
    return lo;
}

void kg_check_size(const struct kg_check *k, struct kg_pool *pool, uint32_t tokens, uint32_t states,
                   struct kg_check_size *s)
{
    const struct kg_pool_layout *l = &k->layout;
    uint64_t rows = tokens + kg_check_draft_rows(k);
    double budget = (double)(k->bytes.arena - k->bytes.padding);

    *s = (struct kg_check_size){.tokens = tokens, .states = states};
    s->pages = (rows + l->page_tokens - 1) / l->page_tokens;
    s->bytes[KG_PAGE] = s->pages * l->unit_bytes[KG_PAGE];
    s->bytes[KG_STATE] = states * l->unit_bytes[KG_STATE];
    s->by_kind[KG_PAGE] = l->max_units[KG_PAGE] / (double)s->pages;
    s->by_kind[KG_STATE] = l->max_units[KG_STATE] / (double)states;
    s->load = budget / (double)(s->bytes[KG_PAGE] + s->bytes[KG_STATE]);
    if ((l->caps & KG_POOL_CAP_SHARED) == 0)
        s->load = fmin(s->by_kind[KG_PAGE], s->by_kind[KG_STATE]);
    s->requests = requests_granted(k, pool, s);
    s->ratio = (double)s->bytes[KG_STATE] / (double)s->bytes[KG_PAGE];
    s->balanced_states =
        (uint64_t)(budget / (double)(s->bytes[KG_PAGE] + s->bytes[KG_STATE])) * states;
}

void kg_check_size_warn(struct kg_check *k, const struct kg_check_size *s, int guessed)
{
    double pages = s->by_kind[KG_PAGE], states = s->by_kind[KG_STATE];
    uint32_t starved = pages < states ? KG_PAGE : KG_STATE, idle = KG_STATE - starved + KG_PAGE;
    double share = 1 - fmin(pages, states) / fmax(pages, states);

    if ((k->layout.caps & KG_POOL_CAP_SHARED) != 0 ||
        share < (guessed ? UNBALANCED_GUESS : UNBALANCED))
        return;
    (void)kg_buf_printf(&k->warnings,
                        "[pool-%s]: with requests of %u tokens the %ss run out at %.0f requests "
                        "with %.0f %% of the "
                        "%ss unused; ratio = %.3g (states = %llu) would be balanced, pool = "
                        "unified needs no ratio\n",
                        kg_config_choice(k->config, KG_KIND_POOL)->ref.plugin->name, s->tokens,
                        kg_kind_name(starved), floor(fmin(pages, states)), 100 * share,
                        kg_kind_name(idle), s->ratio, (unsigned long long)s->balanced_states);
}

static double percent(uint64_t part, uint64_t whole)
{
    return whole > 0 ? 100 * (double)part / (double)whole : 0;
}

void kg_check_trace_warn(struct kg_check *k)
{
    const struct kg_check_trace *t = &k->trace;
    const struct kg_engine_conf *e = &k->stack->conf->engine;

    if (!e->prefix && t->repeated > 0)
        (void)kg_buf_printf(&k->warnings,
                            "[prefix] enabled = no: %.1f %% of the trace's prompt tokens were seen "
                            "before\n",
                            percent(t->repeated, t->prompt));
    if (!e->prefix || e->checkpoint != KG_CKPT_INTERVAL ||
        (double)t->lost <= LOST_MUCH * (double)t->repeated)
        return;
    (void)kg_buf_printf(
        &k->warnings,
        "[prefix] interval = %u: %.1f %% of the prompt tokens the trace repeats lie "
        "behind the last state and are computed again; interval = %u would lose "
        "%.1f %%, checkpoint = auto follows the prompts\n",
        e->interval, percent(t->lost, t->repeated), t->better,
        percent(t->better_lost, t->repeated));
}

void kg_check_trace_text(const struct kg_check *k, struct kg_buf *b)
{
    const struct kg_check_trace *t = &k->trace;

    if (t->n == 0)
        return;
    (void)kg_buf_printf(
        b,
        "%-12s %u requests, %llu prompt tokens; %.1f %% of them were seen before, in "
        "%u requests, %.0f a request\n",
        "trace", t->n, (unsigned long long)t->prompt, percent(t->repeated, t->prompt),
        t->n_repeating, t->n_repeating > 0 ? (double)t->repeated / t->n_repeating : 0);
}

void kg_check_trace_json(const struct kg_check *k, struct kg_buf *b)
{
    const struct kg_check_trace *t = &k->trace;

    if (t->n == 0)
        return;
    (void)kg_buf_printf(
        b,
        ",\"trace\":{\"requests\":%u,\"prompt_tokens\":%llu,\"repeated_tokens\":%llu,"
        "\"repeating_requests\":%u,\"lost_by_interval\":%llu,\"better_interval\":%u,"
        "\"lost_by_better\":%llu}",
        t->n, (unsigned long long)t->prompt, (unsigned long long)t->repeated, t->n_repeating,
        (unsigned long long)t->lost, t->better, (unsigned long long)t->better_lost);
}
