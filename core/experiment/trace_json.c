/* JSON lines: fields with their ranges, and the formats that are one request a line. */
#include "experiment/trace_int.h"

#include "base/hash.h"

#include <math.h>
#include <string.h>

#define TEN_YEARS_NS 3.2e17
#define NS_PER_MS 1e6
#define NS_PER_S 1e9

/* --- fields --- */

int kg_tj_line(struct kg_reader *r, const char *text, size_t n, json_t **root)
{
    json_error_t e;
    json_t *o = json_loadb(text, n, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &e);

    if (o == NULL) {
        return KG_BAD(r, "column %d: %.100s", e.column, e.text);
    }
    if (!json_is_object(o)) {
        json_decref(o);
        return KG_BAD(r, "%s", "wanted a JSON object");
    }
    *root = o;
    return KG_OK;
}

int kg_tj_lines(struct kg_reader *r, const char *const *known,
                int (*read)(struct kg_reader *r, const json_t *o, void *ctx), void *ctx)
{
    const char *text;
    size_t n;
    int rc = 1;

    while (rc > 0 && !kg_trace_full(r) && (rc = kg_lines_next(r->lines, &text, &n, r->err)) > 0) {
        json_t *o = NULL;
        rc = kg_tj_line(r, text, n, &o);
        if (rc == KG_OK && known != NULL) {
            kg_tj_unknown(r, o, known);
        }
        if (rc == KG_OK) {
            rc = read(r, o, ctx);
        }
        json_decref(o);
        rc = rc == KG_OK ? 1 : rc;
    }
    return rc < 0 ? rc : KG_OK;
}

static const json_t *field(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);

    return json_is_null(v) ? NULL : v;
}

static const char *type_name(const json_t *v)
{
    static const char *const names[] = {"an object", "an array", "a string", "an integer",
                                        "a number",  "true",     "false",    "null"};

    return names[json_typeof(v)];
}

int kg_tj_u64(struct kg_reader *r, const json_t *o, const char *key, uint64_t lo, uint64_t hi,
              uint64_t *v)
{
    const json_t *f = field(o, key);

    if (f == NULL) {
        return 0;
    }
    double d = json_number_value(f);
    if (!json_is_number(f) || d < 0 || d != floor(d) || d > 9e18) {
        return KG_BAD(r, "%s: wanted an integer %llu .. %llu, found %s", key,
                      (unsigned long long)lo, (unsigned long long)hi,
                      json_is_number(f) ? "another number" : type_name(f));
    }
    uint64_t u = json_is_integer(f) ? (uint64_t)json_integer_value(f) : (uint64_t)d;
    if (u < lo || u > hi) {
        return KG_BAD(r, "%s: wanted an integer %llu .. %llu, found %llu", key,
                      (unsigned long long)lo, (unsigned long long)hi, (unsigned long long)u);
    }
    *v = u;
    return 1;
}

int kg_tj_need(struct kg_reader *r, const json_t *o, const char *key, uint64_t lo, uint64_t hi,
               uint64_t *v)
{
    int rc = kg_tj_u64(r, o, key, lo, hi, v);

    if (rc == 0) {
        return KG_BAD(r, "%s: missing", key);
    }
    return rc < 0 ? rc : KG_OK;
}

int kg_tj_time(struct kg_reader *r, const json_t *o, const char *key, double unit_ns, uint64_t *ns)
{
    const json_t *f = field(o, key);

    if (f == NULL) {
        return 0;
    }
    double v = json_number_value(f) * unit_ns;
    if (!json_is_number(f) || !(v >= 0 && v <= TEN_YEARS_NS)) {
        return KG_BAD(r, "%s: wanted a time from 0 to ten years, found %s", key,
                      json_is_number(f) ? "another number" : type_name(f));
    }
    *ns = kg_trace_ns(v, 1);
    return 1;
}

int kg_tj_name(struct kg_reader *r, const json_t *o, const char *key, char digits[24],
               const char **text)
{
    const json_t *f = field(o, key);

    if (f == NULL) {
        return 0;
    }
    if (json_is_integer(f)) {
        (void)snprintf(digits, 24, "%lld", (long long)json_integer_value(f));
        *text = digits;
        return 1;
    }
    if (!json_is_string(f) || json_string_length(f) == 0 || json_string_length(f) > 200) {
        return KG_BAD(r, "%s: wanted a string of 1 .. 200 bytes or an integer, found %s", key,
                      type_name(f));
    }
    *text = json_string_value(f);
    return 1;
}

int kg_tj_array(struct kg_reader *r, const json_t *o, const char *key, const json_t **array)
{
    const json_t *f = field(o, key);

    if (f == NULL) {
        return 0;
    }
    if (!json_is_array(f)) {
        return KG_BAD(r, "%s: wanted an array, found %s", key, type_name(f));
    }
    *array = f;
    return 1;
}

void kg_tj_unknown(struct kg_reader *r, const json_t *o, const char *const *known)
{
    const char *key;
    json_t *v;

    if (r->t->unknown[0] != '\0') {
        return;
    }
    json_object_foreach((json_t *)(uintptr_t)o, key, v)
    {
        size_t i = 0;
        while (known[i] != NULL && strcmp(known[i], key) != 0) {
            i++;
        }
        if (known[i] == NULL) {
            (void)snprintf(r->t->unknown, sizeof(r->t->unknown), "%.60s", key);
            r->t->unknown_line = kg_lines_number(r->lines);
            return;
        }
    }
}

/* Element i of an integer array. */
static int element(struct kg_reader *r, const json_t *a, const char *key, size_t i, uint64_t hi,
                   uint64_t *v)
{
    const json_t *e = json_array_get(a, i);

    if (!json_is_integer(e) || json_integer_value(e) < 0 || (uint64_t)json_integer_value(e) > hi) {
        return KG_BAD(r, "%s[%zu]: wanted an integer 0 .. %llu, found %s", key, i,
                      (unsigned long long)hi, json_is_integer(e) ? "another" : type_name(e));
    }
    *v = (uint64_t)json_integer_value(e);
    return KG_OK;
}

/* --- native, mooncake, bailian --- */

/* What differs between the formats. */
struct dialect {
    const char *id, *after;
    double time_unit;
    uint32_t block;
};

static int read_ids(struct kg_reader *r, struct kg_trace_req *q, const json_t *ids, uint64_t length,
                    uint32_t block)
{
    uint64_t full = length / block, n = json_array_size(ids), id;

    if (block % r->conf->scale != 0) {
        return KG_BAD(r, "block: %u tokens cannot be divided by the scale %u", block,
                      r->conf->scale);
    }
    if (n != full && n != full + (length % block != 0)) {
        return KG_BAD(r,
                      "hash_ids: %llu ids; %llu tokens are %llu full blocks of %u and a rest of "
                      "%llu",
                      (unsigned long long)n, (unsigned long long)length, (unsigned long long)full,
                      block, (unsigned long long)(length % block));
    }
    q->block = block / r->conf->scale;
    q->n_named = (uint32_t)full * q->block;
    for (size_t i = 0; i < n; i++) {
        int rc = element(r, ids, "hash_ids", i, KG_ID_LIMIT - 1, &id);
        if (rc == KG_OK) {
            rc = kg_trace_blocks(r, q, id, 1);
        }
        if (rc != KG_OK) {
            return rc;
        }
    }
    uint32_t have = n > 0 ? q->block * (uint32_t)n : 0;
    if (have <= q->n_prompt) {
        return kg_trace_piece(r, q, KG_ID_TAIL(r->t->n), q->n_prompt - have);
    }
    struct kg_trace_piece *last = &r->t->pieces[q->pieces_at + q->n_pieces - 1];
    last->n -= have - q->n_prompt; /* less than a block too much */
    q->n_pieces -= last->n == 0;
    return KG_OK;
}

static int read_literal(struct kg_reader *r, struct kg_trace_req *q, const json_t *ids,
                        uint64_t length)
{
    uint64_t v;

    if (r->conf->scale != 1) {
        return KG_BAD(r, "token_ids: literal tokens cannot be scaled by %u", r->conf->scale);
    }
    if (json_array_size(ids) != length) {
        return KG_BAD(r, "token_ids: %zu tokens, input_length says %llu", json_array_size(ids),
                      (unsigned long long)length);
    }
    int rc = kg_trace_literal(r, q, length);
    for (size_t i = 0; rc == KG_OK && i < length; i++) {
        rc = element(r, ids, "token_ids", i, UINT32_MAX - 1, &v);
        if (rc == KG_OK) {
            r->t->tokens[q->tokens_at + i] = (uint32_t)v;
        }
    }
    q->n_named = q->n_prompt;
    return rc;
}

static int read_prompt_text(struct kg_reader *r, struct kg_trace_req *q, const json_t *text)
{
    if (!json_is_string(text) || json_string_length(text) == 0) {
        return KG_BAD(r, "prompt: wanted a string that is not empty, found %s", type_name(text));
    }
    if (r->conf->scale != 1) {
        return KG_BAD(r, "prompt: text cannot be scaled by %u", r->conf->scale);
    }
    if (json_string_length(text) > 8 * (size_t)KG_TRACE_MAX_TOKENS) {
        return KG_BAD(r, "prompt: %zu bytes are too long", json_string_length(text));
    }
    q->n_text = (uint32_t)json_string_length(text);
    q->n_prompt = q->n_named = 0; /* the tokenizer says */
    return kg_trace_text(r, json_string_value(text), q->n_text, &q->prompt_at);
}

static int read_content(struct kg_reader *r, struct kg_trace_req *q, const json_t *o,
                        const struct dialect *d)
{
    const json_t *ids = NULL, *tokens = NULL, *text = field(o, "prompt");
    uint64_t length = 0, block = r->conf->block != 0 ? r->conf->block : d->block;
    int has_ids = kg_tj_array(r, o, "hash_ids", &ids);
    int has_tokens = kg_tj_array(r, o, "token_ids", &tokens);
    int rc = kg_tj_u64(r, o, "block", 1, KG_TRACE_MAX_TOKENS, &block);

    if (has_ids < 0 || has_tokens < 0 || rc < 0) {
        return KG_EINVAL;
    }
    if (has_ids + has_tokens + (text != NULL) > 1) {
        return KG_BAD(r, "%s", "hash_ids, token_ids and prompt: only one of them may be given");
    }
    rc = kg_tj_u64(r, o, "input_length", 0, KG_TRACE_MAX_TOKENS, &length);
    if (rc < 0) {
        return rc;
    }
    if (rc == 0 && has_tokens) {
        length = json_array_size(tokens);
    } else if (rc == 0 && text == NULL) {
        return KG_BAD(r, "%s", "input_length: missing");
    }
    if (text != NULL) {
        return read_prompt_text(r, q, text);
    }
    if (length == 0 && has_tokens) {
        return KG_BAD(r, "%s", "token_ids: an empty prompt");
    }
    if (length > KG_TRACE_MAX_TOKENS) {
        return KG_BAD(r, "input_length: at most %u", KG_TRACE_MAX_TOKENS);
    }
    q->n_prompt = q->n_named = kg_trace_scaled(r, length);
    q->block = KG_TRACE_MAX_TOKENS;
    if (has_tokens) {
        return read_literal(r, q, tokens, length);
    }
    if (has_ids) {
        return read_ids(r, q, ids, length, (uint32_t)block);
    }
    return kg_trace_piece(r, q, KG_ID_PROMPT(r->t->n), q->n_prompt);
}

/* Message ends; rounded down by the scale, those that fall together become one. */
static int read_bounds(struct kg_reader *r, struct kg_trace_req *q, const json_t *o)
{
    const json_t *a = NULL;
    uint64_t v, before = 0;
    uint32_t last = 0;
    int rc = kg_tj_array(r, o, "boundaries", &a);

    for (size_t i = 0; rc == 1 && i < json_array_size(a); i++) {
        rc = element(r, a, "boundaries", i, KG_TRACE_MAX_TOKENS, &v);
        if (rc != KG_OK) {
            return rc;
        }
        if (v == 0 || (i > 0 && v <= before)) {
            return KG_BAD(r, "boundaries[%zu]: %llu does not rise", i, (unsigned long long)v);
        }
        before = v;
        uint32_t at = (uint32_t)(v / r->conf->scale);
        if (q->n_text == 0 && at > q->n_prompt) {
            return KG_BAD(r, "boundaries[%zu]: %llu is behind the prompt", i,
                          (unsigned long long)v);
        }
        if (at > last) {
            rc = kg_trace_bound(r, q, at);
            last = at;
        }
        rc = rc == KG_OK ? 1 : rc;
    }
    return rc < 0 ? rc : KG_OK;
}

/* id, tenant, domain, after. */
static int read_names(struct kg_reader *r, struct kg_trace_req *q, const json_t *o,
                      const struct dialect *d, char digits[24], const char **name)
{
    const char *text;
    char other[24];

    int rc = kg_tj_name(r, o, d->id, digits, name);
    if (rc == 0) {
        *name = NULL;
    }
    if (rc >= 0 && (rc = kg_tj_name(r, o, "tenant", other, &text)) > 0) {
        rc = kg_trace_tenant(r, q, text);
    }
    if (rc >= 0 && (rc = kg_tj_name(r, o, "domain", other, &text)) > 0) {
        rc = kg_trace_text(r, text, strlen(text), &q->domain_at);
    }
    if (rc >= 0 && (rc = kg_tj_name(r, o, d->after, other, &text)) > 0) {
        q->after = kg_trace_find(r, text);
        if (q->after == KG_NONE && r->t->n_dropped == 0 && r->conf->format != KG_TRACE_BAILIAN) {
            return KG_BAD(r, "%s: no request \"%.60s\" before this line", d->after, text);
        }
    }
    return rc < 0 ? rc : KG_OK;
}

static int read_request(struct kg_reader *r, const json_t *o, void *ctx)
{
    const struct dialect *d = ctx;
    struct kg_trace_req q = kg_trace_blank(r);
    char digits[24];
    const char *name = NULL;
    uint64_t n_output = 0;
    int has_parent = r->conf->format != KG_TRACE_BAILIAN && field(o, d->after) != NULL;

    int rc = read_names(r, &q, o, d, digits, &name);
    if (rc == KG_OK) {
        rc = kg_tj_time(r, o, "timestamp", d->time_unit, &q.arrive_ns);
        if (rc == 0 && q.after == KG_NONE) {
            return KG_BAD(r, "%s", "timestamp: missing");
        }
    }
    if (rc >= 0) {
        rc = kg_tj_time(r, o, "delay", NS_PER_MS, &q.delay_ns);
    }
    if (rc >= 0) {
        rc = kg_tj_time(r, o, "cancel_after", NS_PER_MS, &q.cancel_ns);
    }
    if (rc >= 0) {
        rc = kg_tj_need(r, o, "output_length", 0, KG_TRACE_MAX_TOKENS, &n_output);
    }
    if (rc == KG_OK) {
        q.n_output = kg_trace_scaled(r, n_output);
        rc = read_content(r, &q, o, d);
    }
    if (rc == KG_OK) {
        rc = read_bounds(r, &q, o);
    }
    if (rc == KG_OK && r->conf->max_input != 0 &&
        (q.n_prompt > r->conf->max_input || (has_parent && q.after == KG_NONE))) {
        r->t->n_dropped++; /* too long, or the turn before it was left out */
        return KG_OK;
    }
    if (rc == KG_OK && r->conf->horizon_ns != 0 && q.arrive_ns > r->conf->horizon_ns) {
        return KG_OK;
    }
    return rc == KG_OK ? kg_trace_add(r, &q, name) : rc;
}

int kg_read_json(struct kg_reader *r)
{
    static const char *const known[] = {
        "timestamp", "input_length", "output_length", "hash_ids", "block",          "token_ids",
        "prompt",    "id",           "tenant",        "domain",   "after",          "boundaries",
        "delay",     "cancel_after", "chat_id",       "turn",     "parent_chat_id", "type",
        NULL};
    struct dialect native = {"id", "after", NS_PER_MS, 512};
    struct dialect bailian = {"chat_id", "parent_chat_id", NS_PER_S, 16};

    return kg_tj_lines(r, known, read_request,
                       r->conf->format == KG_TRACE_BAILIAN ? &bailian : &native);
}
