/* /admin: plugins in exchange for others, rules read again. */
#include "serve/serve_impl.h"

#include <string.h>

static void fail(struct kg_http_req *req, int status, const char *code, const char *param,
                 const char *text)
{
    struct kg_api_error err = {0};

    (void)kg_api_fail(&err, status, code, param, "%s", text);
    kg_http_reply_error(req, &err);
}

static void reply_json(struct kg_http_req *req, struct kg_buf *b)
{
    struct kg_api_error err = {0};

    if (b->rc == KG_OK) {
        kg_http_reply(req, 200, "application/json", NULL, b->data, b->len);
    } else {
        (void)kg_call_no_memory(&err);
        kg_http_reply_error(req, &err);
    }
    kg_buf_fini(b);
}

/* What is active and what could be. */
static void reply_plugins(struct kg_serve *s, struct kg_http_req *req)
{
    const struct kg_serve_admin *a = s->parts.admin;
    struct kg_error err = {0};
    struct kg_buf b;

    kg_buf_init(&b, 1 << 20);
    if (a->write(a->ctx, &b, &err) == KG_OK) {
        reply_json(req, &b);
        return;
    }
    kg_buf_fini(&b);
    fail(req, 500, "admin_failed", "", err.text);
}

static bool has_admin(const struct kg_serve *s, struct kg_http_req *req)
{
    if (s->parts.admin == NULL)
        fail(req, 404, "not_found", "", "plugins of this server cannot be changed");
    return s->parts.admin != NULL;
}

void kg_admin_list(struct kg_serve *s, struct kg_http_req *req)
{
    if (has_admin(s, req))
        reply_plugins(s, req);
}

/* The names in the body; NULL for a kind that is to stay. */
static int read_names(const json_t *root, struct kg_swap_names *names, struct kg_api_error *err)
{
    const char *key;
    const json_t *value;

    json_object_foreach((json_t *)(uintptr_t)root, key, value)
    {
        if (strcmp(key, "sched") != 0 && strcmp(key, "spec") != 0 && strcmp(key, "arm") != 0)
            return kg_api_refuse(err, key, "%.60s: only sched and spec can be changed", key);
    }
    int rc = kg_json_str(root, "", "sched", &names->sched, err);
    if (rc == KG_OK)
        rc = kg_json_str(root, "", "spec", &names->spec, err);
    if (rc == KG_OK)
        rc = kg_json_str(root, "", "arm", &names->arm, err);
    if (rc == KG_OK && names->sched == NULL && names->spec == NULL)
        rc = kg_api_refuse(err, "", "expected {\"sched\": NAME} or {\"spec\": NAME} or both");
    return rc;
}

/* The client left; the change goes on. */
static void on_gone(void *self)
{
    struct kg_serve *s = self;

    s->admin_req = NULL;
}

static void change(struct kg_serve *s, struct kg_http_req *req, const struct kg_swap_names *names)
{
    const struct kg_serve_admin *a = s->parts.admin;
    const char *field = "";
    struct kg_error err = {0};
    struct kg_api_error why = {0};
    int rc = a->swap(a->ctx, names, &field, &err);

    if (rc == 0) {
        reply_plugins(s, req);
    } else if (rc == 1) {
        s->admin_req = req;
        kg_http_req_own(req, (struct kg_http_owner){s, on_gone, NULL});
    } else if (rc == KG_EAGAIN) {
        fail(req, 503, "busy", "", err.text);
    } else if (rc == KG_ENOMEM) {
        (void)kg_call_no_memory(&why);
        kg_http_reply_error(req, &why);
    } else {
        const char *word = strcmp(field, "sched") == 0  ? names->sched
                           : strcmp(field, "spec") == 0 ? names->spec
                                                        : names->arm;
        (void)kg_api_refuse(&why, field, "%s%s%.60s: %s", field, word != NULL ? " = " : "",
                            word != NULL ? word : "", err.text);
        kg_http_reply_error(req, &why);
    }
}

void kg_admin_change(struct kg_serve *s, struct kg_http_req *req)
{
    struct kg_swap_names names = {0};
    struct kg_api_error err = {0};
    json_t *root = NULL;
    struct kg_buf body;

    if (!has_admin(s, req))
        return;
    kg_http_take_body(req, &body);
    int rc = kg_json_load_once(kg_buf_cstr(&body), body.len, s->parts.conf->max_json_depth, 1024,
                               &root, &err);
    if (rc == KG_OK)
        rc = read_names(root, &names, &err);
    if (rc == KG_OK)
        change(s, req, &names);
    else
        kg_http_reply_error(req, &err);
    json_decref(root);
    kg_http_free_body(s->http, &body);
}

void kg_admin_swapped(struct kg_serve *s)
{
    const struct kg_serve_admin *a = s->parts.admin;
    struct kg_http_req *req = s->admin_req;

    if (a == NULL)
        return;
    a->swapped(a->ctx);
    kg_log_line(s->parts.log, KG_LOG_INFO, "serve", "plugins changed", "id=%s",
                req != NULL ? kg_log_quote(kg_http_req_id(req), strlen(kg_http_req_id(req))).text
                            : "-");
    s->admin_req = NULL;
    if (req != NULL)
        reply_plugins(s, req);
}

void kg_admin_reload(struct kg_serve *s, struct kg_http_req *req)
{
    struct kg_error err = {0};
    struct kg_buf b;
    int rc = kg_serve_reload(s, &err);

    if (rc == KG_ENOENT && s->reqlog == NULL) {
        fail(req, 404, "no_policy", "", "there is no [lua] script to read again");
    } else if (rc != KG_OK && rc != KG_ENOENT) {
        fail(req, 409, "reload_failed", "", err.text);
    } else {
        kg_buf_init(&b, 0);
        (void)kg_buf_printf(&b, "{%s%s%s}\n", rc == KG_OK ? "\"policy\":\"reloaded\"" : "",
                            rc == KG_OK && s->reqlog != NULL ? "," : "",
                            s->reqlog != NULL ? "\"request_log\":\"reopening\"" : "");
        reply_json(req, &b);
    }
}

/* --- who may --- */

bool kg_admin_is_local(const struct kg_http_req *req)
{
    static const char *const passed_on[] = {"forwarded", "x-forwarded-for", "x-real-ip", "via"};
    const char *peer = kg_http_req_peer(req);

    if (strncmp(peer, "127.", 4) != 0 && strncmp(peer, "[::1]:", 6) != 0 &&
        strncmp(peer, "[::ffff:127.", 12) != 0)
        return false;
    for (size_t i = 0; i < sizeof(passed_on) / sizeof(passed_on[0]); i++) {
        if (kg_http_header_get(kg_http_req_head(req), passed_on[i]).p != NULL)
            return false;
    }
    return true;
}

int kg_admin_allowed(const struct kg_serve *s, struct kg_http_req *req, bool key_is_good,
                     struct kg_api_error *err)
{
    bool has_key = s->parts.conf->api_key[0] != '\0';

    /* A page in the operator's browser could ask, too, and from this machine. */
    if (kg_http_header_get(kg_http_req_head(req), "origin").p != NULL)
        return kg_api_fail(err, 403, "forbidden", "", "/admin does not answer to web pages");
    if ((has_key && key_is_good) || kg_admin_is_local(req))
        return KG_OK;
    if (has_key)
        return kg_api_fail(err, 401, "invalid_api_key", "",
                           "/admin needs the API key; send Authorization: Bearer KEY");
    return kg_api_fail(err, 403, "forbidden", "",
                       "/admin answers to this machine alone; with [server] api_key set, to "
                       "whoever sends the key");
}
