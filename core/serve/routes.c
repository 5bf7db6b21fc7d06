/* Which path is what: checks before the body, the small answers, counting and the access log. */
#include "base/clock.h"
#include "serve/split.h"

#include <string.h>

enum route {
    ROUTE_MODELS,
    ROUTE_HEALTH,
    ROUTE_VERSION,
    ROUTE_METRICS,
    ROUTE_COMPLETIONS,
    ROUTE_CHAT,
    ROUTE_TOKENIZE,
    ROUTE_DETOKENIZE,
    ROUTE_PLUGINS,
    ROUTE_ARMS,
    ROUTE_RELOAD,
    ROUTE_LIVE,
    ROUTE_PAGE,
    N_ROUTES,
};

enum access { ANYBODY, WITH_KEY, ADMIN };

static const struct {
    const char *path;
    bool get, post, body; /* methods; a POST has a JSON body */
    enum access access;
} routes[N_ROUTES] = {
    [ROUTE_MODELS] = {"/v1/models", true, false, false, WITH_KEY},
    [ROUTE_HEALTH] = {"/health", true, false, false, ANYBODY},
    [ROUTE_VERSION] = {"/version", true, false, false, ANYBODY},
    [ROUTE_METRICS] = {"/metrics", true, false, false, ANYBODY},
    [ROUTE_COMPLETIONS] = {"/v1/completions", false, true, true, WITH_KEY},
    [ROUTE_CHAT] = {"/v1/chat/completions", false, true, true, WITH_KEY},
    [ROUTE_TOKENIZE] = {"/tokenize", false, true, true, WITH_KEY},
    [ROUTE_DETOKENIZE] = {"/detokenize", false, true, true, WITH_KEY},
    [ROUTE_PLUGINS] = {"/admin/plugins", true, true, true, ADMIN},
    [ROUTE_ARMS] = {"/admin/arms", true, true, true, ADMIN},
    [ROUTE_RELOAD] = {"/admin/reload", false, true, false, ADMIN},
    [ROUTE_LIVE] = {"/admin/live", true, false, false, ADMIN},
    [ROUTE_PAGE] = {"/", true, false, false, ANYBODY},
};

/* The route of a path; N_ROUTES when there is none. /v1/models/NAME is a model of its own. */
static enum route find_route(const struct kg_serve *s, struct kg_span path)
{
    static const char models[] = "/v1/models/";
    size_t n = sizeof(models) - 1;

    for (uint32_t i = 0; i < N_ROUTES; i++) {
        if (kg_span_is(path, routes[i].path))
            return (enum route)i;
    }
    if (path.n > n && memcmp(path.p, models, n) == 0 &&
        kg_span_is((struct kg_span){path.p + n, path.n - n}, s->parts.model_name))
        return ROUTE_MODELS;
    return N_ROUTES;
}

/* Takes as long for a wrong key as for a right one of the same length. */
static bool same_secret(const char *want, struct kg_span got)
{
    size_t n = strlen(want);
    unsigned char diff = got.n != n;

    for (size_t i = 0; i < n; i++)
        diff |= (unsigned char)(want[i] ^ (i < got.n ? got.p[i] : 0));
    return diff == 0;
}

static bool key_is_good(const struct kg_serve *s, const struct kg_http_head *head)
{
    struct kg_span v = kg_http_header_get(head, "authorization");

    if (s->parts.conf->api_key[0] == '\0')
        return true;
    if (v.p == NULL || v.n < 7 || !kg_span_is_nocase((struct kg_span){v.p, 7}, "bearer "))
        return false;
    v.p += 7;
    v.n -= 7;
    while (v.n > 0 && v.p[0] == ' ') {
        v.p++;
        v.n--;
    }
    return same_secret(s->parts.conf->api_key, v);
}

/* "application/json", with or without parameters; a missing type is taken for it where a web page
 * cannot do harm by leaving it out. */
static bool is_json(const struct kg_http_head *head, enum access access)
{
    struct kg_span v = kg_http_header_get(head, "content-type");
    size_t n = 0;

    if (v.p == NULL)
        return access != ADMIN;
    while (n < v.n && v.p[n] != ';' && v.p[n] != ' ')
        n++;
    v.n = n;
    return kg_span_is_nocase(v, "application/json");
}

static int refuse_method(enum route r, struct kg_api_error *err)
{
    bool get = routes[r].get, post = routes[r].post;
    const char *takes = get && post ? "GET and POST" : post ? "POST" : "GET";

    err->header = get && post ? "Allow: GET, HEAD, POST\r\n"
                  : post      ? "Allow: POST\r\n"
                              : "Allow: GET, HEAD\r\n";
    return kg_api_fail(err, 405, "method_not_allowed", "", "%s takes %s", routes[r].path, takes);
}

static int on_head(void *ctx, struct kg_http_req *req, struct kg_api_error *err)
{
    struct kg_serve *s = ctx;
    const struct kg_http_head *head = kg_http_req_head(req);
    enum route r = find_route(s, head->path);
    bool get = kg_span_is(head->method, "GET") || kg_span_is(head->method, "HEAD");
    bool post = kg_span_is(head->method, "POST");

    if (r == N_ROUTES)
        return kg_api_fail(err, 404, "not_found", "", "there is nothing at %.*s",
                           (int)(head->path.n > 200 ? 200 : head->path.n), head->path.p);
    if (!(routes[r].get && get) && !(routes[r].post && post))
        return refuse_method(r, err);
    if (routes[r].access == WITH_KEY && !key_is_good(s, head))
        return kg_api_fail(err, 401, "invalid_api_key", "",
                           "the API key is missing or wrong; send Authorization: Bearer KEY");
    if (routes[r].access == ADMIN && kg_admin_allowed(s, req, key_is_good(s, head), err) != KG_OK)
        return err->status;
    if (r == ROUTE_LIVE && kg_page_allowed(s, req, key_is_good(s, head), err) != KG_OK)
        return err->status;
    if (post && routes[r].body && !is_json(head, routes[r].access))
        return kg_api_fail(err, 415, "unsupported_media_type", "",
                           "the body must be application/json, and say so in Content-Type");
    if (post && routes[r].body && !head->chunked && !head->has_length)
        return kg_api_refuse(err, "",
                             "the body is missing: neither Content-Length nor "
                             "Transfer-Encoding: chunked was sent");
    if (s->draining)
        return kg_api_fail(err, 503, "shutting_down", "", "the server is shutting down");
    return KG_OK;
}

static void reply_buf(struct kg_http_req *req, const char *type, struct kg_buf *b)
{
    struct kg_api_error err = {0};

    if (b->rc == KG_OK) {
        kg_http_reply(req, 200, type, NULL, b->data, b->len);
    } else {
        (void)kg_call_no_memory(&err);
        kg_http_reply_error(req, &err);
    }
    kg_buf_fini(b);
}

static void on_request(void *ctx, struct kg_http_req *req)
{
    struct kg_serve *s = ctx;
    enum route r = find_route(s, kg_http_req_head(req)->path);
    struct kg_api_error err = {0};
    struct kg_buf b;

    kg_buf_init(&b, 0);
    switch (r) {
    case ROUTE_COMPLETIONS:
        kg_job_start(s, req, KG_EP_COMPLETIONS);
        return;
    case ROUTE_CHAT:
        kg_job_start(s, req, KG_EP_CHAT);
        return;
    case ROUTE_TOKENIZE:
        kg_job_start(s, req, KG_EP_TOKENIZE);
        return;
    case ROUTE_DETOKENIZE:
        kg_job_start(s, req, KG_EP_DETOKENIZE);
        return;
    case ROUTE_PLUGINS:
        if (kg_span_is(kg_http_req_head(req)->method, "POST"))
            kg_admin_change(s, req);
        else
            kg_admin_list(s, req);
        return;
    case ROUTE_ARMS:
        if (kg_span_is(kg_http_req_head(req)->method, "POST"))
            kg_split_change(s, req);
        else
            kg_split_list(s, req);
        return;
    case ROUTE_RELOAD:
        kg_admin_reload(s, req);
        return;
    case ROUTE_LIVE:
        kg_page_live(s, req);
        return;
    case ROUTE_PAGE:
        kg_page_get(req);
        return;
    case ROUTE_HEALTH:
        if (!kg_stats_healthy(s, &err)) {
            kg_http_reply_error(req, &err);
            return;
        }
        kg_buf_puts(&b, "{\"status\":\"ok\"}\n");
        break;
    case ROUTE_VERSION:
        kg_buf_puts(&b, "{\"version\":\"" KG_VERSION "\",\"server\":\"kedge\"}\n");
        break;
    case ROUTE_METRICS:
        (void)kg_stats_write(s, &b);
        reply_buf(req, "text/plain; version=0.0.4; charset=utf-8", &b);
        return;
    default:
        kg_write_models(&b, s->parts.model_name, s->created, s->api.max_tokens,
                        !kg_span_is(kg_http_req_head(req)->path, routes[ROUTE_MODELS].path));
        break;
    }
    reply_buf(req, "application/json", &b);
}

static void on_answered(void *ctx, struct kg_http_req *req, int status, uint64_t bytes)
{
    struct kg_serve *s = ctx;
    const struct kg_http_head *head = kg_http_req_head(req);
    const char *note = kg_http_req_note(req);
    const char *error = kg_http_req_error(req);
    enum kg_serve_cell cell = status == 499  ? KG_SC_HTTP_GONE
                              : status < 400 ? KG_SC_HTTP_2XX
                              : status < 500 ? KG_SC_HTTP_4XX
                                             : KG_SC_HTTP_5XX;
    uint32_t level = note != NULL || status >= 400 ? KG_LOG_INFO : KG_LOG_DEBUG;

    kg_add(&s->cells[cell], 1);
    kg_add(&s->cells[KG_SC_SENT_BYTES], bytes);
    kg_serve_write_lines(s);
    if (!kg_log_on(s->parts.log, level, "http"))
        return;
    kg_log_record(s->parts.log, level, "http", "request",
                  "id=%s peer=%s method=%s path=%s status=%d bytes=%llu ms=%.1f%s%s%s%s",
                  kg_log_quote(kg_http_req_id(req), strlen(kg_http_req_id(req))).text,
                  kg_http_req_peer(req), kg_log_quote(head->method.p, head->method.n).text,
                  kg_log_quote(head->path.p, head->path.n).text, status, (unsigned long long)bytes,
                  (double)(kg_now_ns() - kg_http_req_start_ns(req)) / 1e6, note != NULL ? " " : "",
                  note != NULL ? note : "", error[0] != '\0' ? " " : "", error);
}

const struct kg_http_ops kg_routes_ops = {
    .head = on_head,
    .request = on_request,
    .answered = on_answered,
};
