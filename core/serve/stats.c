/* /metrics and /health. Names are vLLM's where the meaning is the same, else kedge's own. */
#include "base/clock.h"
#include "serve/split.h"

#include <string.h>

static const struct kg_metric_row rows[KG_N_SERVE_CELLS + 1] = {
    [KG_SC_SUCCESS_STOP] = {"vllm:request_success_total", KG_COUNTER,
                            "Sequences that ended, by reason.", 0},
    [KG_SC_SUCCESS_LENGTH] = {"vllm:request_success_total", KG_COUNTER,
                              "Sequences that ended, by reason.", 0},
    [KG_SC_SUCCESS_ABORT] = {"vllm:request_success_total", KG_COUNTER,
                             "Sequences that ended, by reason.", 0},
    [KG_SC_SUCCESS_ERROR] = {"vllm:request_success_total", KG_COUNTER,
                             "Sequences that ended, by reason.", 0},
    [KG_SC_HTTP_2XX] = {"kedge:http_responses_total", KG_COUNTER, "Answers, by class.", 0},
    [KG_SC_HTTP_4XX] = {"kedge:http_responses_total", KG_COUNTER, "Answers, by class.", 0},
    [KG_SC_HTTP_5XX] = {"kedge:http_responses_total", KG_COUNTER, "Answers, by class.", 0},
    [KG_SC_HTTP_GONE] = {"kedge:http_responses_total", KG_COUNTER, "Answers, by class.", 0},
    [KG_SC_SENT_BYTES] = {"kedge:http_sent_bytes_total", KG_COUNTER,
                          "Bytes of answers, heads included.", 0},
    [KG_SC_PAUSED] = {"kedge:http_slow_readers_total", KG_COUNTER,
                      "Times a request was paused because its client did not read.", 0},
    [KG_SC_SLOW_CUT] = {"kedge:http_slow_readers_cut_total", KG_COUNTER,
                        "Streams cut because too much of them was unread.", 0},
    [KG_SC_PREPARED_APART] = {"kedge:prepared_apart_total", KG_COUNTER,
                              "Bodies parsed and tokenised on a preparation thread.", 0},
    [KG_N_SERVE_CELLS] = {0},
};

/* Label that tells cells of one name apart; NULL for none. */
static const char *const cell_labels[KG_N_SERVE_CELLS] = {
    [KG_SC_SUCCESS_STOP] = "finished_reason=\"stop\"",
    [KG_SC_SUCCESS_LENGTH] = "finished_reason=\"length\"",
    [KG_SC_SUCCESS_ABORT] = "finished_reason=\"abort\"",
    [KG_SC_SUCCESS_ERROR] = "finished_reason=\"error\"",
    [KG_SC_HTTP_2XX] = "status=\"2xx\"",
    [KG_SC_HTTP_4XX] = "status=\"4xx\"",
    [KG_SC_HTTP_5XX] = "status=\"5xx\"",
    [KG_SC_HTTP_GONE] = "status=\"gone\"",
};

static const double latency_s[] = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,
                                   0.25,  0.5,   0.75, 1,    2.5,  5,    7.5,  10,
                                   20,    40,    80,   160,  640,  2560};
static const double gap_s[] = {0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15,
                               0.2,    0.3,   0.4,    0.5,   0.75, 1,     2.5,  5,     10,  20};
static const double tokens_n[] = {1,     2,      5,      10,     20,     50,    100,
                                  200,   500,    1000,   2000,   5000,   10000, 20000,
                                  50000, 100000, 200000, 500000, 1000000};
static const double small_n[] = {1, 2, 5, 10, 20, 50, 100};
static const double zero_n[] = {0, 1, 2, 5, 10, 20, 50, 100};

#define BOUNDS(x) x, sizeof(x) / sizeof((x)[0])

static const struct {
    const char *name, *doc;
    const double *bounds;
    size_t n;
} histo_rows[KG_N_SERVE_HISTOS] = {
    [KG_SH_TTFT] = {"vllm:time_to_first_token_seconds",
                    "From the first byte of a request to its first tokens.", BOUNDS(latency_s)},
    [KG_SH_ITL] = {"vllm:inter_token_latency_seconds",
                   "Between two batches of tokens of one sequence.", BOUNDS(gap_s)},
    [KG_SH_TPOT] = {"vllm:request_time_per_output_token_seconds",
                    "Mean time per output token after the first, per sequence.", BOUNDS(gap_s)},
    [KG_SH_E2E] = {"vllm:e2e_request_latency_seconds", "From arrival in the engine to the end.",
                   BOUNDS(latency_s)},
    [KG_SH_QUEUE] = {"vllm:request_queue_time_seconds", "From arrival to admission.",
                     BOUNDS(latency_s)},
    [KG_SH_INFERENCE] = {"vllm:request_inference_time_seconds", "From admission to the end.",
                         BOUNDS(latency_s)},
    [KG_SH_PREFILL] = {"vllm:request_prefill_time_seconds", "From admission to the first token.",
                       BOUNDS(latency_s)},
    [KG_SH_DECODE] = {"vllm:request_decode_time_seconds", "From the first token to the end.",
                      BOUNDS(latency_s)},
    [KG_SH_PROMPT_TOKENS] = {"vllm:request_prompt_tokens", "Prompt tokens of a sequence.",
                             BOUNDS(tokens_n)},
    [KG_SH_OUTPUT_TOKENS] = {"vllm:request_generation_tokens", "Output tokens of a sequence.",
                             BOUNDS(tokens_n)},
    [KG_SH_MAX_TOKENS] = {"vllm:request_params_max_tokens", "max_tokens of a sequence.",
                          BOUNDS(tokens_n)},
    [KG_SH_N] = {"vllm:request_params_n", "n of a request.", BOUNDS(small_n)},
    [KG_SH_PREEMPTIONS] = {"vllm:request_num_preemptions", "Preemptions of a sequence.",
                           BOUNDS(zero_n)},
};

static int add_cells(struct kg_serve *s, struct kg_error *err)
{
    for (uint32_t i = 0; i < KG_N_SERVE_CELLS; i++) {
        struct kg_metric_row one[2] = {rows[i], {0}};
        char labels[400];
        int rc;
        (void)snprintf(labels, sizeof(labels), "%s%s%s", s->model_label,
                       cell_labels[i] != NULL ? "," : "",
                       cell_labels[i] != NULL ? cell_labels[i] : "");
        rc = kg_metrics_add(s->own_metrics, one, &s->cells[i], labels, err);
        if (rc != KG_OK)
            return rc;
    }
    return KG_OK;
}

int kg_stats_open(struct kg_serve *s, struct kg_error *err)
{
    struct kg_buf label;
    int rc = kg_metrics_create(&s->own_metrics);

    if (rc != KG_OK)
        return kg_fail(err, rc, "out of memory");
    kg_buf_init(&label, sizeof(s->model_label) - 1);
    (void)kg_metrics_label(&label, "model_name", s->parts.model_name);
    (void)kg_metrics_label(&label, "engine", "0");
    (void)snprintf(s->model_label, sizeof(s->model_label), "%s", kg_buf_cstr(&label));
    kg_buf_fini(&label);
    rc = add_cells(s, err);
    for (uint32_t i = 0; rc == KG_OK && i < KG_N_SERVE_HISTOS; i++) {
        rc = kg_histo_init(&s->histos[i], histo_rows[i].bounds, (uint32_t)histo_rows[i].n);
        if (rc != KG_OK)
            return kg_fail(err, rc, "out of memory");
        rc = kg_metrics_add_histo(s->own_metrics, histo_rows[i].name, histo_rows[i].doc,
                                  &s->histos[i], s->model_label, err);
    }
    return rc == KG_OK ? kg_split_open(s, err) : rc;
}

void kg_stats_close(struct kg_serve *s)
{
    kg_metrics_destroy(s->own_metrics);
    for (uint32_t i = 0; i < KG_N_SERVE_HISTOS; i++)
        kg_histo_fini(&s->histos[i]);
    kg_split_close(s);
}

static double seconds(uint64_t from, uint64_t to)
{
    return to > from ? (double)(to - from) / 1e9 : 0;
}

void kg_stats_done(struct kg_serve *s, const struct kg_event *e, const char *finish)
{
    struct kg_histo *h = s->histos;
    enum kg_serve_cell cell = KG_SC_SUCCESS_STOP;

    if (e->finish == KG_FINISH_CANCELLED)
        cell = KG_SC_SUCCESS_ABORT;
    else if (e->finish > KG_FINISH_CANCELLED)
        cell = KG_SC_SUCCESS_ERROR;
    else if (e->finish == KG_FINISH_LENGTH)
        cell = KG_SC_SUCCESS_LENGTH;
    kg_add(&s->cells[cell], 1);
    if (finish == NULL || e->finish > KG_FINISH_CALLER)
        return;
    kg_histo_observe(&h[KG_SH_PROMPT_TOKENS], e->n_prompt);
    kg_histo_observe(&h[KG_SH_OUTPUT_TOKENS], e->n_output);
    kg_histo_observe(&h[KG_SH_PREEMPTIONS], e->n_preempted);
    kg_histo_observe(&h[KG_SH_E2E], seconds(e->arrival_ns, e->done_ns));
    if (e->admitted_ns == 0)
        return;
    kg_histo_observe(&h[KG_SH_QUEUE], seconds(e->arrival_ns, e->admitted_ns));
    kg_histo_observe(&h[KG_SH_INFERENCE], seconds(e->admitted_ns, e->done_ns));
    if (e->first_ns == 0)
        return;
    kg_histo_observe(&h[KG_SH_PREFILL], seconds(e->admitted_ns, e->first_ns));
    kg_histo_observe(&h[KG_SH_DECODE], seconds(e->first_ns, e->done_ns));
    if (e->n_output > 1)
        kg_histo_observe(&h[KG_SH_TPOT], seconds(e->first_ns, e->done_ns) / (e->n_output - 1));
}

/* One family of one sample with the model's labels. */
static void put(struct kg_serve *s, struct kg_buf *b, const char *name, char type, const char *doc,
                double v)
{
    (void)kg_metrics_family(b, name, type, doc);
    (void)kg_metrics_sample(b, name, s->model_label, v);
}

static void put_engine(struct kg_serve *s, struct kg_buf *b, const struct kg_engine_stats *st)
{
    double used = st->bytes.arena == 0
                      ? 0
                      : (double)(st->bytes.live[KG_PAGE] + st->bytes.live[KG_STATE]) /
                            (double)st->bytes.arena;

    put(s, b, "vllm:num_requests_running", KG_GAUGE, "Sequences that hold memory.", st->n_running);
    put(s, b, "vllm:num_requests_waiting", KG_GAUGE, "Sequences that wait for memory.",
        st->n_waiting);
    put(s, b, "vllm:kv_cache_usage_perc", KG_GAUGE,
        "Share of the arena that requests hold, pages and states, 0 to 1.", used);
    put(s, b, "vllm:num_preemptions_total", KG_COUNTER, "Preemptions.", (double)st->preemptions);
    put(s, b, "vllm:prompt_tokens_total", KG_COUNTER, "Prompt tokens computed.",
        (double)st->prompt_tokens);
    put(s, b, "vllm:generation_tokens_total", KG_COUNTER, "Output tokens.",
        (double)st->output_tokens);
    put(s, b, "vllm:prompt_tokens_cached_total", KG_COUNTER,
        "Prompt tokens taken from the prefix cache.", (double)st->cached_tokens);
    put(s, b, "vllm:spec_decode_num_draft_tokens_total", KG_COUNTER, "Tokens drafted.",
        (double)st->drafted);
    put(s, b, "vllm:spec_decode_num_accepted_tokens_total", KG_COUNTER, "Drafted tokens accepted.",
        (double)st->accepted);
    put(s, b, "vllm:corrupted_requests_total", KG_COUNTER, "Rows that were not finite.",
        (double)st->nan_rows);
    put(s, b, "kedge:verified_tokens_total", KG_COUNTER, "Drafted tokens verified.",
        (double)st->verified);
    put(s, b, "kedge:engine_steps_total", KG_COUNTER, "Engine steps.", (double)st->steps);
    put(s, b, "kedge:engine_step_seconds_total", KG_COUNTER, "Time of steps inside the backend.",
        (double)st->step_ns_sum / 1e9);
    put(s, b, "kedge:engine_overhead_seconds_total", KG_COUNTER,
        "Time of steps outside the backend.", (double)st->overhead_ns_sum / 1e9);
    put(s, b, "kedge:batch_sequences", KG_GAUGE, "Sequences of the last step.", st->n_seqs_step);
    put(s, b, "kedge:moves_total", KG_COUNTER, "Units the pool moved.", (double)st->moves);
    put(s, b, "kedge:moved_bytes_total", KG_COUNTER, "Bytes the pool moved.",
        (double)st->moved_bytes);
    put(s, b, "kedge:idle_moves_total", KG_COUNTER, "Units the pool moved while nothing ran.",
        (double)st->idle_moves);
    put(s, b, "kedge:pictures_total", KG_COUNTER, "Pictures of the engine made for the page at /.",
        (double)st->pictures);
    put(s, b, "kedge:picture_seconds_total", KG_COUNTER,
        "CPU time of the engine's thread that went into them.", (double)st->picture_ns_sum / 1e9);
    put(s, b, "kedge:plans_dropped_total", KG_COUNTER, "Scheduler plans that broke a rule.",
        (double)st->plans_dropped);
}

static void put_labelled(struct kg_serve *s, struct kg_buf *b, const char *name, const char *label,
                         const char *value, double v)
{
    char labels[400];

    (void)snprintf(labels, sizeof(labels), "%s,%s=\"%s\"", s->model_label, label, value);
    (void)kg_metrics_sample(b, name, labels, v);
}

/* One family over the positions of a window that were ever verified. */
static void put_positions(struct kg_serve *s, struct kg_buf *b, const char *name, const char *doc,
                          const struct kg_spec_count *c, const uint64_t *values, double unit)
{
    (void)kg_metrics_family(b, name, KG_COUNTER, doc);
    for (uint32_t j = 0; j < KG_SPEC_POSITIONS && (j == 0 || c->verified[j] > 0); j++) {
        char position[16];
        (void)snprintf(position, sizeof(position), "%u", j);
        put_labelled(s, b, name, "position", position, (double)values[j] * unit);
    }
}

/* Speculation: what came of windows, by position, and what it took. */
static void put_spec(struct kg_serve *s, struct kg_buf *b, const struct kg_engine_stats *st)
{
    const struct kg_spec_count *c = &st->spec;

    put(s, b, "vllm:spec_decode_num_drafts_total", KG_COUNTER, "Windows of drafts verified.",
        (double)c->rounds);
    put_positions(s, b, "vllm:spec_decode_num_accepted_tokens_per_pos_total",
                  "Drafted tokens accepted, by position in the window.", c, c->accepted, 1.0);
    put_positions(s, b, "kedge:spec_verified_tokens_per_pos_total",
                  "Drafted tokens verified, by position in the window.", c, c->verified, 1.0);
    put_positions(s, b, "kedge:spec_expected_tokens_per_pos_total",
                  "Acceptances the drafter expected of those verified, by position.", c,
                  c->expected_um, 1e-6);
    put(s, b, "kedge:draft_seconds_total", KG_COUNTER, "Time of steps that went into drafting.",
        (double)st->draft_ns_sum / 1e9);
    put(s, b, "kedge:commit_seconds_total", KG_COUNTER,
        "Time of steps that went into bringing states to the last accepted row.",
        (double)st->commit_ns_sum / 1e9);
}

static void put_kinds(struct kg_serve *s, struct kg_buf *b, const char *name, char type,
                      const char *doc, double pages, double states)
{
    (void)kg_metrics_family(b, name, type, doc);
    put_labelled(s, b, name, "kind", "page", pages);
    put_labelled(s, b, name, "kind", "state", states);
}

/* The prefix cache: what was asked, found, lost and why. */
static void put_prefix(struct kg_serve *s, struct kg_buf *b, const struct kg_engine_stats *st)
{
    static const char ckpt[] = "kedge:checkpoints_total";

    put(s, b, "vllm:prefix_cache_queries_total", KG_COUNTER, "Prompt tokens looked up.",
        (double)st->queried_tokens);
    put(s, b, "vllm:prefix_cache_hits_total", KG_COUNTER, "Prompt tokens found and reused.",
        (double)st->cached_tokens);
    put(s, b, "kedge:prefix_lost_tokens_total", KG_COUNTER,
        "Prompt tokens whose pages were cached, lost for want of a state.",
        (double)st->lost_tokens);
    put(s, b, "kedge:prefix_ghost_tokens_total", KG_COUNTER,
        "Prompt tokens seen before whose memory was gone.", (double)st->ghost_tokens);
    put(s, b, "kedge:prefix_reused_tokens_total", KG_COUNTER,
        "Tokens not computed again, resumptions after preemption included.",
        (double)st->reused_tokens);
    put(s, b, "kedge:prefix_ghost_bytes", KG_GAUGE, "Host memory of ghosts.",
        (double)st->ghost_bytes);
    (void)kg_metrics_family(b, ckpt, KG_COUNTER, "Checkpoints wanted, by what became of them.");
    put_labelled(s, b, ckpt, "outcome", "written", (double)st->ckpt_written);
    put_labelled(s, b, ckpt, "outcome", "unused", (double)st->ckpt_unused);
    put_labelled(s, b, ckpt, "outcome", "skipped", (double)st->ckpt_skipped);
    put_labelled(s, b, ckpt, "outcome", "pruned", (double)st->ckpt_pruned);
    put(s, b, "kedge:states_taken_over_total", KG_COUNTER,
        "Cached states a request went on in, for want of room for a copy.", (double)st->taken_over);
    put_kinds(s, b, "kedge:evicted_units_total", KG_COUNTER, "Cached units given up, by kind.",
              (double)st->evicted[KG_PAGE], (double)st->evicted[KG_STATE]);
    put_kinds(s, b, "kedge:units_cached", KG_GAUGE, "Units the prefix cache owns, by kind.",
              st->n_cached[KG_PAGE], st->n_cached[KG_STATE]);
    put_kinds(s, b, "kedge:units_evictable", KG_GAUGE, "Of those, in use by nobody.",
              st->n_evictable[KG_PAGE], st->n_evictable[KG_STATE]);
    put_kinds(s, b, "kedge:admission_short_total", KG_COUNTER,
              "Times a request had to wait for memory, by the kind that was short.",
              (double)st->n_short[KG_PAGE], (double)st->n_short[KG_STATE]);
}

/* The second home of what memory had no room for. */
static void put_tier(struct kg_serve *s, struct kg_buf *b, const struct kg_engine_stats *st)
{
    put_kinds(s, b, "kedge:tier_stored_units_total", KG_COUNTER,
              "Evicted units copied to the tier, by kind.", (double)st->tier_stored[KG_PAGE],
              (double)st->tier_stored[KG_STATE]);
    put_kinds(s, b, "kedge:tier_had_units_total", KG_COUNTER,
              "Evicted units that were in the tier already, by kind.",
              (double)st->tier_had[KG_PAGE], (double)st->tier_had[KG_STATE]);
    put_kinds(s, b, "kedge:tier_skipped_units_total", KG_COUNTER,
              "Evicted units the tier did not get: no room, or the step's share used up; by kind.",
              (double)st->tier_skipped[KG_PAGE], (double)st->tier_skipped[KG_STATE]);
    put_kinds(s, b, "kedge:tier_loaded_units_total", KG_COUNTER,
              "Units copied back from the tier, by kind.", (double)st->tier_loaded[KG_PAGE],
              (double)st->tier_loaded[KG_STATE]);
    put(s, b, "kedge:tier_failed_total", KG_COUNTER,
        "Copies that did not arrive as they were put; the request goes on without the tier.",
        (double)st->tier_failed);
    put(s, b, "kedge:tier_fallbacks_total", KG_COUNTER,
        "Requests that began again without the tier for that.", (double)st->tier_fallbacks);
    put(s, b, "kedge:tier_reused_tokens_total", KG_COUNTER,
        "Reused tokens that memory alone would not have given.", (double)st->tier_tokens);
    put(s, b, "kedge:tier_bytes", KG_GAUGE, "Bytes the tier keeps.", (double)st->tier_bytes);
    put(s, b, "kedge:tier_limit_bytes", KG_GAUGE, "Bytes the tier may keep; 0: there is none.",
        (double)st->tier_limit);
}

static void put_memory(struct kg_serve *s, struct kg_buf *b, const struct kg_engine_stats *st)
{
    static const char units[] = "kedge:units_used";
    static const char bytes[] = "kedge:arena_bytes";
    const struct kg_pool_bytes *p = &st->bytes;

    (void)kg_metrics_family(b, units, KG_GAUGE, "Units owned, by kind.");
    put_labelled(s, b, units, "kind", "page", st->n_used[KG_PAGE]);
    put_labelled(s, b, units, "kind", "state", st->n_used[KG_STATE]);
    (void)kg_metrics_family(b, bytes, KG_GAUGE, "Bytes of the arena, by class; they add up to it.");
    put_labelled(s, b, bytes, "class", "live_page", (double)p->live[KG_PAGE]);
    put_labelled(s, b, bytes, "class", "live_state", (double)p->live[KG_STATE]);
    put_labelled(s, b, bytes, "class", "cached_page", (double)p->cached[KG_PAGE]);
    put_labelled(s, b, bytes, "class", "cached_state", (double)p->cached[KG_STATE]);
    put_labelled(s, b, bytes, "class", "pinned", (double)p->pinned);
    put_labelled(s, b, bytes, "class", "holes", (double)p->holes);
    put_labelled(s, b, bytes, "class", "gap", (double)p->gap);
    put_labelled(s, b, bytes, "class", "padding", (double)p->padding);
    put(s, b, "kedge:arena_total_bytes", KG_GAUGE, "Bytes of the arena.", (double)p->arena);
    put(s, b, "kedge:promised_bytes", KG_GAUGE, "Bytes promised to requests and not taken yet.",
        (double)p->promised);
}

int kg_stats_write(struct kg_serve *s, struct kg_buf *b)
{
    const struct kg_pool_layout *layout = kg_engine_layout(s->parts.engine);
    struct kg_engine_stats st;
    char labels[420];

    kg_engine_stats(s->parts.engine, &st);
    put_engine(s, b, &st);
    put_spec(s, b, &st);
    put_prefix(s, b, &st);
    put_tier(s, b, &st);
    put_memory(s, b, &st);
    (void)snprintf(labels, sizeof(labels), "%s,block_size=\"%u\",num_gpu_blocks=\"%u\"",
                   s->model_label, layout->page_tokens, layout->max_units[KG_PAGE]);
    (void)kg_metrics_family(b, "vllm:cache_config_info", KG_GAUGE, "Pages as configured.");
    (void)kg_metrics_sample(b, "vllm:cache_config_info", labels, 1);
    put(s, b, "kedge:http_connections", KG_GAUGE, "Connections open.",
        kg_http_n_connections(s->http));
    put(s, b, "kedge:http_requests", KG_GAUGE, "Requests being answered.",
        kg_http_n_requests(s->http));
    put(s, b, "kedge:http_refused_total", KG_COUNTER, "Connections refused for want of room.",
        (double)kg_http_n_refused(s->http));
    put(s, b, "kedge:http_body_bytes", KG_GAUGE, "Request bodies held.",
        (double)kg_http_bodies_bytes(s->http));
    put(s, b, "kedge:sequences_live", KG_GAUGE, "Sequences handed to the engine and not done.",
        s->n_live);
    put(s, b, "kedge:sequences_paused", KG_GAUGE, "Sequences paused for slow readers.",
        s->n_paused);
    put(s, b, "kedge:preparing", KG_GAUGE, "Bodies with a preparation thread.",
        kg_prep_n_tasks(s->prep));
    kg_split_write(s, b);
    (void)kg_metrics_write(s->own_metrics, b);
    if (s->parts.metrics != NULL)
        (void)kg_metrics_write(s->parts.metrics, b);
    return b->rc;
}

bool kg_stats_healthy(struct kg_serve *s, struct kg_api_error *err)
{
    struct kg_engine_stats st;
    uint64_t now = kg_engine_now(s->parts.engine), since, ms;

    if (s->draining) {
        (void)kg_api_fail(err, 503, "shutting_down", "", "the server is shutting down");
        return false;
    }
    kg_engine_stats(s->parts.engine, &st);
    if (st.lost) {
        (void)kg_api_fail(err, 503, "backend_lost", "",
                          "the backend is lost; start the server again");
        return false;
    }
    /* Paused sequences cannot advance; without others there is nothing to wait for. */
    if (s->n_live <= s->n_paused)
        return true;
    since = st.last_progress_ns > s->busy_since_ns ? st.last_progress_ns : s->busy_since_ns;
    ms = now > since ? (now - since) / KG_NS_PER_MS : 0;
    if (ms < s->parts.conf->health_stall_ms)
        return true;
    (void)kg_api_fail(err, 503, "stalled", "",
                      "no request advanced for %llu ms with %u running and %u waiting",
                      (unsigned long long)ms, st.n_running, st.n_waiting);
    return false;
}
