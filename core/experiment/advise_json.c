/* The report of kedge advise for programs; core/docs/advise.md names the fields. */
#include "experiment/advise_report.h"

#include "experiment/results.h"

#include <string.h>

_Static_assert(KG_AB_N_BYTES == KG_N_BYTES, "the classes of a summary");

static void put_sets(struct kg_buf *b, const struct kg_advise_row *row)
{
    (void)kg_buf_puts(b, ",\"set\":[");
    for (uint32_t i = 0; i < row->n_sets; i++) {
        (void)kg_buf_puts(b, i > 0 ? "," : "");
        (void)kg_buf_json_str(b, row->sets[i], strlen(row->sets[i]));
    }
    (void)kg_buf_putc(b, ']');
}

static void put_figures(struct kg_buf *b, const struct kg_advise_figures *g)
{
    (void)kg_buf_printf(b, ",\"figures\":{\"requests\":%u,\"ok\":%u,\"refused\":%u,\"failed\":%u",
                        g->n, g->n_ok, g->n_refused, g->n_failed);
    kg_buf_key_f64(b, "ttft_mean_ms", g->ttft_ms);
    kg_buf_key_f64(b, "ttft_p50_ms", g->ttft_p50_ms);
    kg_buf_key_f64(b, "ttft_p99_ms", g->ttft_p99_ms);
    kg_buf_key_f64(b, "tpot_mean_ms", g->tpot_ms);
    kg_buf_key_f64(b, "e2e_mean_ms", g->e2e_ms);
    kg_buf_key_f64(b, "queue_mean_ms", g->queue_ms);
    kg_buf_key_f64(b, "good_share", g->good_share);
    kg_buf_key_f64(b, "prompt_tokens", g->prompt);
    kg_buf_key_f64(b, "reused_tokens", g->reused);
    kg_buf_key_f64(b, "lost_tokens", g->lost);
    kg_buf_key_f64(b, "preemptions", g->preempted);
    kg_buf_key_f64(b, "verified", g->verified);
    kg_buf_key_f64(b, "accepted", g->accepted);
    kg_buf_key_f64(b, "arena_bytes", g->arena);
    (void)kg_buf_puts(b, ",\"bytes_mean\":{");
    for (uint32_t k = 0; k < KG_AB_N_BYTES; k++) {
        (void)kg_buf_printf(b, "%s\"%s\":%.0f", k > 0 ? "," : "", kg_results_class_name(k),
                            g->bytes_mean[k]);
    }
    (void)kg_buf_puts(b, "}}");
}

static void put_gain(struct kg_buf *b, const char *key, const struct kg_advise_gain *g)
{
    (void)kg_buf_printf(b, ",\"%s\":{\"pairs\":%u,\"windows\":%u", key, g->n, g->n_windows);
    kg_buf_key_f64(b, "a", g->a);
    kg_buf_key_f64(b, "b", g->b);
    kg_buf_key_f64(b, "change", g->rel);
    kg_buf_key_f64(b, "lo", g->lo);
    kg_buf_key_f64(b, "hi", g->hi);
    kg_buf_key_bool(b, "tested", g->is_tested);
    kg_buf_key_bool(b, "better", g->is_better);
    kg_buf_key_bool(b, "worse", g->is_worse);
    (void)kg_buf_putc(b, '}');
}

static void put_guide(struct kg_buf *b, const struct kg_advise_report *r)
{
    const struct kg_guide *g = &r->guide;
    const struct kg_guide_in *in = &r->guide_in;

    if (!r->has_guide) {
        (void)kg_buf_puts(b, ",\"guide\":null");
        kg_buf_key_str(b, "guide_note", r->guide_note);
        return;
    }
    (void)kg_buf_printf(b, ",\"guide\":{\"requests\":%.0f,\"repeating\":%.0f", in->n,
                        in->n_repeating);
    kg_buf_key_f64(b, "prompt_tokens", in->prompt_tokens);
    kg_buf_key_f64(b, "repeated_tokens", in->repeated_tokens);
    kg_buf_key_f64(b, "again_tokens", in->again_tokens);
    kg_buf_key_f64(b, "state_bytes", in->state_bytes);
    kg_buf_key_f64(b, "token_bytes", in->token_bytes);
    kg_buf_key_f64(b, "state_tokens", g->state_tokens);
    kg_buf_key_f64(b, "state_ms", g->state_ms);
    kg_buf_key_f64(b, "token_us", g->token_us);
    kg_buf_key_f64(b, "shared_tokens", g->shared_tokens);
    kg_buf_key_f64(b, "kept_tokens", g->kept_tokens);
    kg_buf_key_f64(b, "interval", g->interval);
    kg_buf_key_f64(b, "interval_lost", g->interval_lost);
    kg_buf_key_f64(b, "least_interval", in->least);
    kg_buf_key_bool(b, "interval_is_long", g->interval_is_long);
    (void)kg_buf_putc(b, '}');
}

static void put_rows(struct kg_buf *b, const struct kg_advise_report *r)
{
    (void)kg_buf_puts(b, ",\"candidates\":[");
    for (uint32_t i = 0; i < r->n_rows; i++) {
        const struct kg_advise_row *row = &r->rows[i];
        (void)kg_buf_puts(b, i > 0 ? ",{" : "{");
        kg_buf_key_str(b, "label", row->label);
        put_sets(b, row);
        if (row->why[0] != '\0') {
            (void)kg_buf_puts(b, ",\"gain\":null");
            kg_buf_key_str(b, "cannot_run", row->why);
        } else {
            kg_buf_key_f64(b, "gain", row->gain);
            put_figures(b, &row->figures);
        }
        (void)kg_buf_putc(b, '}');
    }
    (void)kg_buf_putc(b, ']');
}

static void put_finals(struct kg_buf *b, const struct kg_advise_report *r)
{
    (void)kg_buf_puts(b, ",\"confirmed\":[");
    for (uint32_t i = 0; i < r->n_finals; i++) {
        const struct kg_advise_final *f = &r->finals[i];
        const struct kg_advise_row *row = &r->rows[f->row];
        (void)kg_buf_puts(b, i > 0 ? ",{" : "{");
        kg_buf_key_str(b, "label", row->label);
        put_sets(b, row);
        if (f->why[0] != '\0') {
            kg_buf_key_str(b, "cannot_judge", f->why);
        } else {
            put_gain(b, "held_out", &f->gain);
            put_gain(b, "all", &f->whole);
            put_figures(b, &f->figures);
        }
        (void)kg_buf_putc(b, '}');
    }
    (void)kg_buf_putc(b, ']');
}

static void put_recommended(struct kg_buf *b, const struct kg_advise_report *r)
{
    struct kg_buf ini, why;
    uint32_t n = 0;

    if (r->recommended == KG_NONE) {
        (void)kg_buf_puts(b, ",\"recommended\":null");
        return;
    }
    const struct kg_advise_final *f = &r->finals[r->recommended];
    const struct kg_advise_row *row = &r->rows[f->row];
    kg_buf_init(&ini, 0);
    (void)kg_advise_ini(row->sets, row->n_sets, "", &ini);
    (void)kg_buf_puts(b, ",\"recommended\":{");
    kg_buf_key_str(b, "label", row->label);
    put_sets(b, row);
    kg_buf_key_str(b, "ini", kg_buf_cstr(&ini));
    put_gain(b, "gain", &f->gain);
    kg_buf_init(&why, 0);
    (void)kg_advise_reason(r, &why);
    (void)kg_buf_puts(b, ",\"why\":[");
    for (const char *s = kg_buf_cstr(&why); *s != '\0'; n++) {
        size_t len = strcspn(s, "\n"), mark = strlen("  - ");
        mark = mark < len ? mark : len; /* a line may be cut when memory ran out */
        (void)kg_buf_puts(b, n > 0 ? "," : "");
        (void)kg_buf_json_str(b, s + mark, len - mark);
        s += len + (s[len] == '\n');
    }
    (void)kg_buf_puts(b, "]");
    kg_buf_key_str(b, "check", r->check);
    (void)kg_buf_putc(b, '}');
    if (ini.rc != KG_OK || why.rc != KG_OK) {
        b->rc = KG_ENOMEM;
    }
    kg_buf_fini(&why);
    kg_buf_fini(&ini);
}

int kg_advise_json(const struct kg_advise_report *r, struct kg_buf *b)
{
    (void)kg_buf_putc(b, '{');
    kg_buf_key_str(b, "config", r->conf);
    kg_buf_key_str(b, "trace", r->trace);
    kg_buf_key_str(b, "objective", kg_advise_objective_name(r->objective));
    (void)kg_buf_printf(b, ",\"seed\":%llu,\"requests\":%u,\"picked_on\":%u",
                        (unsigned long long)r->seed, r->n, r->n_pick);
    kg_buf_key_f64(b, "load", r->load);
    kg_buf_key_f64(b, "stretch", r->stretch);
    kg_buf_key_f64(b, "least", r->least);
    kg_buf_key_f64(b, "ttft_slo_ms", r->ttft_slo_ms);
    kg_buf_key_f64(b, "tpot_slo_ms", r->tpot_slo_ms);
    put_guide(b, r);
    (void)kg_buf_puts(b, ",\"base\":{\"label\":\"as it is\"");
    put_figures(b, &r->base);
    (void)kg_buf_putc(b, '}');
    put_rows(b, r);
    put_finals(b, r);
    put_recommended(b, r);
    return kg_buf_puts(b, "}\n");
}
