#include "serve/page.h"

#include "base/clock.h"
#include "serve/serve_impl.h"
#include "serve/split.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MOST_DONE 128u               /* sequences that ended, kept for the page */
#define ASK_NS (UINT64_C(200000000)) /* between two pictures, whoever looks */
#define ULL(v) ((unsigned long long)(v))

/* A sequence that ended. Times of the backend's clock. */
struct done {
    uint64_t serial;
    const char *arm; /* "" without arms */
    uint32_t n_prompt, n_output, hit_page, hit_state, n_preempted, verified, accepted, finish;
    double queue_ms, ttft_ms, tpot_ms, e2e_ms; /* NAN: there was none */
};

struct kg_page {
    struct done done[MOST_DONE]; /* serial % MOST_DONE */
    uint64_t n_done;
    uint64_t asked_ns; /* monotonic */
    struct kg_picture picture;
};

int kg_page_open(struct kg_serve *s)
{
    s->page = calloc(1, sizeof(*s->page));
    return s->page != NULL ? KG_OK : KG_ENOMEM;
}

void kg_page_close(struct kg_serve *s)
{
    free(s->page);
}

/* ms from one time of an event to another; NAN when either did not happen. */
static double ms_between(uint64_t from, uint64_t to)
{
    return from == 0 || to < from ? (double)NAN : (double)(to - from) / 1e6;
}

void kg_page_done(struct kg_serve *s, const struct kg_event *e, const char *arm)
{
    struct done *d = &s->page->done[s->page->n_done % MOST_DONE];

    *d = (struct done){.serial = s->page->n_done++,
                       .arm = arm,
                       .n_prompt = e->n_prompt,
                       .n_output = e->n_output,
                       .hit_page = e->n_cached + e->n_lost,
                       .hit_state = e->n_cached,
                       .n_preempted = e->n_preempted,
                       .verified = e->n_verified,
                       .accepted = e->n_accepted,
                       .finish = e->finish,
                       .queue_ms = ms_between(e->arrival_ns, e->admitted_ns),
                       .ttft_ms = ms_between(e->arrival_ns, e->first_ns),
                       .e2e_ms = ms_between(e->arrival_ns, e->done_ns),
                       .tpot_ms = NAN};
    if (e->n_output > 1)
        d->tpot_ms = ms_between(e->first_ns, e->done_ns) / (e->n_output - 1);
}

/* --- who may --- */

/* "localhost" or an address of the loopback net, with or without a port. */
static bool is_loopback_name(struct kg_span host)
{
    size_t n = host.n;

    while (n > 0 && host.p[n - 1] >= '0' && host.p[n - 1] <= '9')
        n--;
    if (n > 0 && host.p[n - 1] == ':')
        host.n = n - 1;
    if (kg_span_is_nocase(host, "localhost") || kg_span_is(host, "[::1]"))
        return true;
    if (host.n < 4 || memcmp(host.p, "127.", 4) != 0)
        return false;
    for (size_t i = 4; i < host.n; i++) {
        if ((host.p[i] < '0' || host.p[i] > '9') && host.p[i] != '.')
            return false; /* 127.example.com is a name */
    }
    return true;
}

int kg_page_allowed(const struct kg_serve *s, struct kg_http_req *req, bool key_is_good,
                    struct kg_api_error *err)
{
    struct kg_span host = kg_http_header_get(kg_http_req_head(req), "host");

    if ((s->parts.conf->api_key[0] != '\0' && key_is_good) || host.p == NULL ||
        is_loopback_name(host))
        return KG_OK;
    return kg_api_fail(err, 403, "forbidden", "",
                       "without the key /admin/live answers to http://127.0.0.1 and "
                       "http://localhost alone, not to other names of this machine");
}

/* --- the numbers --- */

static void put_f64(struct kg_buf *b, const char *before, double v)
{
    (void)kg_buf_puts(b, before);
    (void)kg_buf_json_f64(b, v);
}

static void put_u64(struct kg_buf *b, const char *before, uint64_t v)
{
    (void)kg_buf_printf(b, "%s%llu", before, ULL(v));
}

static void put_engine(const struct kg_serve *s, struct kg_buf *b, const struct kg_engine_stats *st)
{
    (void)kg_buf_printf(b,
                        ",\"queue\":{\"waiting\":%u,\"running\":%u,\"batch\":%u,\"live\":%u,"
                        "\"paused\":%u}",
                        st->n_waiting, st->n_running, st->n_seqs_step, s->n_live, s->n_paused);
    put_u64(b, ",\"engine\":{\"steps\":", st->steps);
    put_f64(b, ",\"step_s\":", (double)st->step_ns_sum / 1e9);
    put_f64(b, ",\"overhead_s\":", (double)st->overhead_ns_sum / 1e9);
    put_f64(b, ",\"draft_s\":", (double)st->draft_ns_sum / 1e9);
    put_f64(b, ",\"commit_s\":", (double)st->commit_ns_sum / 1e9);
    put_u64(b, ",\"preemptions\":", st->preemptions);
    put_u64(b, ",\"moves\":", st->moves);
    put_u64(b, ",\"moved_bytes\":", st->moved_bytes);
    put_u64(b, ",\"plans_dropped\":", st->plans_dropped);
    put_u64(b, ",\"nan_rows\":", st->nan_rows);
    put_u64(b, ",\"short_page\":", st->n_short[KG_PAGE]);
    put_u64(b, ",\"short_state\":", st->n_short[KG_STATE]);
    put_u64(b, "},\"tokens\":{\"prompt\":", st->prompt_tokens);
    put_u64(b, ",\"output\":", st->output_tokens);
    put_u64(b, ",\"queried\":", st->queried_tokens);
    put_u64(b, ",\"cached\":", st->cached_tokens);
    put_u64(b, ",\"lost\":", st->lost_tokens);
    put_u64(b, ",\"ghost\":", st->ghost_tokens);
    put_u64(b, ",\"reused\":", st->reused_tokens);
    put_u64(b, "},\"checkpoints\":{\"written\":", st->ckpt_written);
    put_u64(b, ",\"unused\":", st->ckpt_unused);
    put_u64(b, ",\"skipped\":", st->ckpt_skipped);
    put_u64(b, ",\"pruned\":", st->ckpt_pruned);
    (void)kg_buf_putc(b, '}');
}

static void put_kind(const struct kg_serve *s, struct kg_buf *b, const struct kg_engine_stats *st,
                     uint32_t kind)
{
    const struct kg_pool_layout *l = kg_engine_layout(s->parts.engine);

    (void)kg_buf_printf(b,
                        "{\"bytes\":%llu,\"most\":%u,\"used\":%u,\"cached\":%u,\"evictable\":%u,"
                        "\"evicted\":%llu}",
                        ULL(l->unit_bytes[kind]), l->max_units[kind], st->n_used[kind],
                        st->n_cached[kind], st->n_evictable[kind], ULL(st->evicted[kind]));
}

/* Names of the classes, in the order of kg_picture_class. */
static const char *const class_names[KG_N_PICTURE_CLASSES] = {
    "live_page", "live_state", "cached_page", "cached_state", "pinned", "holes", "gap", "padding"};

static void put_pool(const struct kg_serve *s, struct kg_buf *b, const struct kg_engine_stats *st)
{
    const struct kg_pool_bytes *p = &st->bytes;
    const uint64_t bytes[KG_N_PICTURE_CLASSES] = {p->live[KG_PAGE],
                                                  p->live[KG_STATE],
                                                  p->cached[KG_PAGE],
                                                  p->cached[KG_STATE],
                                                  p->pinned,
                                                  p->holes,
                                                  p->gap,
                                                  p->padding};

    (void)kg_buf_printf(
        b,
        ",\"pool\":{\"arena\":%llu,\"promised\":%llu,\"page_tokens\":%u,\"page\":", ULL(p->arena),
        ULL(p->promised), kg_engine_layout(s->parts.engine)->page_tokens);
    put_kind(s, b, st, KG_PAGE);
    (void)kg_buf_puts(b, ",\"state\":");
    put_kind(s, b, st, KG_STATE);
    for (uint32_t i = 0; i < KG_N_PICTURE_CLASSES; i++)
        (void)kg_buf_printf(b, "%s\"%s\":%llu", i == 0 ? ",\"bytes\":{" : ",", class_names[i],
                            ULL(bytes[i]));
    (void)kg_buf_puts(b, "}}");
}

/* Runs of equal bins that are not empty: first bin, bins, bytes in each. */
static void put_bins(struct kg_buf *b, const uint64_t *bins, uint32_t n)
{
    const char *comma = "";
    uint32_t end;

    for (uint32_t i = 0; i < n; i = end) {
        end = i + 1;
        while (end < n && bins[end] == bins[i])
            end++;
        if (bins[i] == 0)
            continue;
        (void)kg_buf_printf(b, "%s%u,%u,%llu", comma, i, end - i, ULL(bins[i]));
        comma = ",";
    }
}

static void put_arm(struct kg_buf *b, const char *arm)
{
    if (arm[0] == '\0')
        return;
    (void)kg_buf_puts(b, ",\"arm\":");
    (void)kg_buf_json_str(b, arm, strlen(arm));
}

static void put_requests(const struct kg_serve *s, struct kg_buf *b, const char *before,
                         const struct kg_picture_req *rows, uint32_t n, uint64_t now_ns)
{
    static const char *const states[] = {"waits", "prefill", "decode"};

    (void)kg_buf_puts(b, before);
    for (uint32_t i = 0; i < n; i++) {
        const struct kg_picture_req *r = &rows[i];
        (void)kg_buf_printf(b,
                            "%s{\"n\":%llu,\"state\":\"%s\",\"prompt\":%u,\"output\":%u,"
                            "\"max\":%u,\"computed\":%u,\"pages\":%u,\"hit_page\":%u,"
                            "\"hit_state\":%u,\"preempted\":%u",
                            i > 0 ? "," : "", ULL(r->serial), states[r->state], r->n_prompt,
                            r->n_output, r->max_tokens, r->n_computed, r->n_pages,
                            r->hit_page_tokens, r->hit_state_tokens, r->n_preempted);
        put_f64(b,
                ",\"age_s\":", now_ns > r->arrival_ns ? (double)(now_ns - r->arrival_ns) / 1e9 : 0);
        put_arm(b, kg_split_arm(s, r->arm));
        if (r->paused)
            (void)kg_buf_puts(b, ",\"paused\":true");
        if (r->short_of > 0)
            (void)kg_buf_printf(b, ",\"short_of\":\"%s\"",
                                r->short_of == 1 + KG_PAGE ? "pages" : "states");
        (void)kg_buf_putc(b, '}');
    }
}

/* The engine's last picture; asks for the next one. */
static void put_picture(struct kg_serve *s, struct kg_buf *b)
{
    struct kg_picture *p = &s->page->picture;
    uint64_t now = kg_now_ns(), clock = kg_engine_now(s->parts.engine);

    if (s->page->asked_ns == 0 || now - s->page->asked_ns >= ASK_NS) {
        s->page->asked_ns = now;
        kg_engine_picture_ask(s->parts.engine);
    }
    if (kg_engine_picture(s->parts.engine, p) != KG_OK) {
        (void)kg_buf_puts(b, ",\"picture\":null");
        return;
    }
    put_u64(b, ",\"picture\":{\"serial\":", p->serial);
    put_f64(b, ",\"age_s\":", clock > p->taken_ns ? (double)(clock - p->taken_ns) / 1e9 : 0);
    (void)kg_buf_printf(b,
                        ",\"steps\":[%llu,%llu],\"batch\":{\"decoding\":%u,\"prefilling\":%u,"
                        "\"decode_rows\":%u,\"draft_rows\":%u,\"prefill_rows\":%u},"
                        "\"bin_bytes\":%llu,\"n_bins\":%u,\"bins\":{",
                        ULL(p->first_step), ULL(p->last_step), p->n_decoding, p->n_prefilling,
                        p->decode_rows, p->draft_rows, p->prefill_rows, ULL(p->bin_bytes),
                        p->n_bins);
    for (uint32_t i = 0; i < KG_N_PICTURE_CLASSES; i++) {
        (void)kg_buf_printf(b, "%s\"%s\":[", i > 0 ? "," : "", class_names[i]);
        put_bins(b, p->bins[i], p->n_bins);
        (void)kg_buf_putc(b, ']');
    }
    put_requests(s, b, "},\"running\":[", p->running, p->n_running, p->taken_ns);
    put_requests(s, b, "],\"waiting\":[", p->waiting, p->n_waiting, p->taken_ns);
    (void)kg_buf_puts(b, "]}");
}

static void put_spec(struct kg_buf *b, const struct kg_engine_stats *st)
{
    const struct kg_spec_count *c = &st->spec;

    (void)kg_buf_printf(b,
                        ",\"spec\":{\"drafts\":%llu,\"drafted\":%llu,\"verified\":%llu,"
                        "\"accepted\":%llu,\"positions\":[",
                        ULL(c->rounds), ULL(st->drafted), ULL(st->verified), ULL(st->accepted));
    for (uint32_t j = 0; j < KG_SPEC_POSITIONS && c->verified[j] > 0; j++) {
        (void)kg_buf_printf(b, "%s[%llu,%llu,", j > 0 ? "," : "", ULL(c->verified[j]),
                            ULL(c->accepted[j]));
        put_f64(b, "", (double)c->expected_um[j] * 1e-6);
        (void)kg_buf_putc(b, ']');
    }
    (void)kg_buf_puts(b, "]}");
}

static void put_histo(struct kg_buf *b, const char *before, const struct kg_histo *h)
{
    (void)kg_buf_printf(b, "%s{\"bounds\":[", before);
    for (uint32_t i = 0; i < h->n; i++)
        put_f64(b, i > 0 ? "," : "", h->bounds[i]);
    (void)kg_buf_puts(b, "],\"counts\":[");
    for (uint32_t i = 0; i <= h->n; i++)
        put_u64(b, i > 0 ? "," : "", kg_get(&h->cells[i]));
    put_f64(b, "],\"sum\":", atomic_load_explicit(&h->sum, memory_order_relaxed));
    (void)kg_buf_putc(b, '}');
}

static void put_done(const struct kg_page *page, struct kg_buf *b)
{
    static const char *const finishes[] = {"stop",  "length",  "stop",   "cancelled",
                                           "error", "timeout", "refused"};
    uint64_t first = page->n_done > MOST_DONE ? page->n_done - MOST_DONE : 0;

    put_u64(b, ",\"n_finished\":", page->n_done);
    (void)kg_buf_puts(b, ",\"finished\":[");
    for (uint64_t i = first; i < page->n_done; i++) {
        const struct done *d = &page->done[i % MOST_DONE];
        (void)kg_buf_printf(b,
                            "%s{\"n\":%llu,\"finish\":\"%s\",\"prompt\":%u,\"output\":%u,"
                            "\"hit_page\":%u,\"hit_state\":%u,\"preempted\":%u,\"verified\":%u,"
                            "\"accepted\":%u",
                            i > first ? "," : "", ULL(d->serial), finishes[d->finish], d->n_prompt,
                            d->n_output, d->hit_page, d->hit_state, d->n_preempted, d->verified,
                            d->accepted);
        put_arm(b, d->arm);
        put_f64(b, ",\"queue_ms\":", d->queue_ms);
        put_f64(b, ",\"ttft_ms\":", d->ttft_ms);
        put_f64(b, ",\"tpot_ms\":", d->tpot_ms);
        put_f64(b, ",\"e2e_ms\":", d->e2e_ms);
        (void)kg_buf_putc(b, '}');
    }
    (void)kg_buf_putc(b, ']');
}

static void write_live(struct kg_serve *s, struct kg_buf *b)
{
    struct kg_engine_stats st;

    kg_engine_stats(s->parts.engine, &st);
    (void)kg_buf_puts(b, "{\"version\":\"" KG_VERSION "\",\"model\":");
    (void)kg_buf_json_str(b, s->parts.model_name, strlen(s->parts.model_name));
    put_f64(b, ",\"now_s\":", (double)kg_now_ns() / 1e9);
    put_f64(b, ",\"uptime_s\":", (double)(kg_now_ns() - s->start_ns) / 1e9);
    (void)kg_buf_printf(b, ",\"lost\":%s", st.lost ? "true" : "false");
    put_engine(s, b, &st);
    put_pool(s, b, &st);
    put_picture(s, b);
    put_spec(b, &st);
    put_histo(b, ",\"times\":{\"ttft\":", &s->histos[KG_SH_TTFT]);
    put_histo(b, ",\"tpot\":", &s->histos[KG_SH_TPOT]);
    put_histo(b, ",\"itl\":", &s->histos[KG_SH_ITL]);
    put_histo(b, ",\"e2e\":", &s->histos[KG_SH_E2E]);
    put_histo(b, ",\"queue\":", &s->histos[KG_SH_QUEUE]);
    (void)kg_buf_putc(b, '}');
    put_done(s->page, b);
    (void)kg_buf_puts(b, ",\"arms\":");
    kg_split_put(s, b);
    put_u64(b, ",\"cost\":{\"pictures\":", st.pictures);
    put_f64(b, ",\"seconds\":", (double)st.picture_ns_sum / 1e9);
    put_f64(b, ",\"most_s\":", (double)st.picture_ns_max / 1e9);
    (void)kg_buf_puts(b, "}}\n");
}

void kg_page_live(struct kg_serve *s, struct kg_http_req *req)
{
    struct kg_api_error err = {0};
    struct kg_buf b;

    kg_buf_init(&b, 4 << 20);
    write_live(s, &b);
    if (b.rc == KG_OK) {
        kg_http_reply(req, 200, "application/json",
                      "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n", b.data,
                      b.len);
    } else {
        (void)kg_call_no_memory(&err);
        kg_http_reply_error(req, &err);
    }
    kg_buf_fini(&b);
}

void kg_page_get(struct kg_http_req *req)
{
    kg_http_reply(req, 200, "text/html; charset=utf-8", kg_page_headers, kg_page_html,
                  kg_page_html_bytes);
}
