/* Fields of a request that do not touch its prompt: sampling, limits, forms of the answer. */
#include "serve/call.h"

#include "base/hash.h"

#include <stdlib.h>
#include <string.h>

int kg_call_no_memory(struct kg_api_error *err)
{
    (void)kg_api_fail(err, 500, "out_of_memory", "", "the server is out of memory");
    return KG_ENOMEM;
}

void kg_api_init(struct kg_api *api, const struct kg_server_conf *conf, const struct kg_tok *tok,
                 const struct kg_chat *chat, const char *model_name, uint32_t max_tokens,
                 uint32_t vocab)
{
    uint32_t eos;

    *api = (struct kg_api){
        .conf = conf,
        .tok = tok,
        .chat = chat,
        .model_name = model_name,
        .max_tokens = max_tokens,
        .vocab = vocab < kg_tok_n_vocab(tok) ? vocab : kg_tok_n_vocab(tok),
    };
    if (chat != NULL)
        api->n_stop_ids = (uint32_t)kg_chat_stop_ids(chat, api->stop_ids);
    else if (kg_tok_control(tok, "[EOS]", &eos) == KG_OK)
        api->stop_ids[api->n_stop_ids++] = eos;
}

/* How a field we do not support may still look: as if it had not been given. */
enum harmless {
    WHEN_NULL,  /* only null */
    WHEN_FALSE, /* false */
    WHEN_EMPTY, /* {} or [] or "" */
    WHEN_ONE,   /* the number 1 */
    WHEN_TEXT,  /* {"type": "text"} or ["text"] */
};

struct unsupported {
    const char *name;
    enum harmless when;
    const char *instead; /* what to do, or NULL */
};

static const struct unsupported both_refuse[] = {
    {"best_of", WHEN_ONE, "use n"},
    {"logit_bias", WHEN_EMPTY, NULL},
    {"use_beam_search", WHEN_FALSE, NULL},
    {"length_penalty", WHEN_ONE, NULL},
    {"prompt_logprobs", WHEN_NULL, "use echo with logprobs in /v1/completions"},
    {"allowed_token_ids", WHEN_EMPTY, NULL},
    {"bad_words", WHEN_EMPTY, NULL},
    {"truncate_prompt_tokens", WHEN_NULL, NULL},
    {"structured_outputs", WHEN_EMPTY, NULL},
    {"guided_json", WHEN_NULL, NULL},
    {"guided_regex", WHEN_NULL, NULL},
    {"guided_choice", WHEN_NULL, NULL},
    {"guided_grammar", WHEN_NULL, NULL},
    {"structural_tag", WHEN_NULL, NULL},
    {"logits_processors", WHEN_EMPTY, NULL},
    {"kv_transfer_params", WHEN_EMPTY, NULL},
    {"prompt_embeds", WHEN_EMPTY, NULL},
    {"response_format", WHEN_TEXT, "only {\"type\": \"text\"} is"},
    {NULL, WHEN_NULL, NULL},
};

static const struct unsupported completion_refuse[] = {
    {"suffix", WHEN_EMPTY, NULL},
    {NULL, WHEN_NULL, NULL},
};

static const struct unsupported chat_refuse[] = {
    {"functions", WHEN_EMPTY, "use tools"},
    {"function_call", WHEN_NULL, "use tool_choice"},
    {"modalities", WHEN_TEXT, "only [\"text\"] is"},
    {"audio", WHEN_NULL, NULL},
    {"prediction", WHEN_NULL, NULL},
    {"web_search_options", WHEN_NULL, NULL},
    {"chat_template", WHEN_EMPTY, "the format of the model is built in"},
    {"continue_final_message", WHEN_FALSE, NULL},
    {"documents", WHEN_EMPTY, NULL},
    {"echo", WHEN_FALSE, "use /v1/completions"},
    {"thinking_token_budget", WHEN_NULL, NULL},
    {NULL, WHEN_NULL, NULL},
};

static bool is_harmless(const json_t *v, enum harmless when)
{
    const json_t *type;

    switch (when) {
    case WHEN_FALSE:
        return json_is_false(v);
    case WHEN_EMPTY:
        return (json_is_object(v) && json_object_size(v) == 0) ||
               (json_is_array(v) && json_array_size(v) == 0) ||
               (json_is_string(v) && json_string_length(v) == 0);
    case WHEN_ONE:
        return json_is_number(v) && json_number_value(v) == 1.0;
    case WHEN_TEXT:
        type = json_is_array(v) && json_array_size(v) == 1 ? json_array_get(v, 0)
                                                           : json_object_get(v, "type");
        return json_is_string(type) && strcmp(json_string_value(type), "text") == 0;
    default:
        return false;
    }
}

static int refuse_unsupported(const json_t *root, const struct unsupported *rows,
                              struct kg_api_error *err)
{
    for (; rows->name != NULL; rows++) {
        const json_t *v = kg_json_get(root, rows->name);
        if (v == NULL || is_harmless(v, rows->when))
            continue;
        return kg_api_fail(err, 400, "unsupported_parameter", rows->name,
                           "%s is not supported by this server%s%s", rows->name,
                           rows->instead != NULL ? "; " : "",
                           rows->instead != NULL ? rows->instead : "");
    }
    return KG_OK;
}

/* One more stop string; its bytes go to stop_bytes, spans are set when all are there. */
static int add_stop(const struct kg_api *api, const json_t *v, const char *where,
                    struct kg_call *call, struct kg_api_error *err)
{
    char what[80];

    if (!json_is_string(v))
        return kg_api_refuse(err, where, "%s must be a string, not %s", where,
                             kg_json_describe(v, what, sizeof(what)));
    if (json_string_length(v) > api->conf->max_stop_bytes)
        return kg_api_refuse(err, where, "%s has %zu bytes, at most %u are taken", where,
                             json_string_length(v), api->conf->max_stop_bytes);
    if (json_string_length(v) == 0)
        return KG_OK; /* no text can be held back for it: as if it were not there */
    if (kg_text_add(&call->stop_bytes, json_string_value(v), json_string_length(v)) != KG_OK)
        return kg_call_no_memory(err);
    call->stops[call->n_stops++].n = json_string_length(v);
    return KG_OK;
}

static int read_stops(const struct kg_api *api, const json_t *root, struct kg_call *call,
                      struct kg_api_error *err)
{
    const json_t *v = kg_json_get(root, "stop");
    char what[80], where[32];
    size_t n, at = 0;
    int rc = KG_OK;

    if (v == NULL)
        return KG_OK;
    if (!json_is_string(v) && !json_is_array(v))
        return kg_api_refuse(err, "stop", "stop must be a string or an array of strings, not %s",
                             kg_json_describe(v, what, sizeof(what)));
    n = json_is_array(v) ? json_array_size(v) : 1;
    if (n > api->conf->max_stop || n > KG_STOP_MAX)
        return kg_api_refuse(err, "stop", "stop has %zu strings, at most %u are taken", n,
                             api->conf->max_stop);
    for (size_t i = 0; i < n && rc == KG_OK; i++) {
        if (json_is_array(v))
            (void)snprintf(where, sizeof(where), "stop[%zu]", i);
        else
            (void)snprintf(where, sizeof(where), "stop");
        rc = add_stop(api, json_is_array(v) ? json_array_get(v, i) : v, where, call, err);
    }
    for (uint32_t i = 0; rc == KG_OK && i < call->n_stops; i++) {
        call->stops[i].p = call->stop_bytes.v + at;
        at += call->stops[i].n;
    }
    return rc;
}

/* The request's stop ids, and the model's unless ignore_eos. */
static int read_stop_ids(const struct kg_api *api, const json_t *root, struct kg_call *call,
                         struct kg_api_error *err)
{
    struct kg_sampling *s = &call->sampling;
    const json_t *list = NULL;
    struct kg_ids ids = {0};
    uint32_t n_model = s->ignore_eos ? 0 : api->n_stop_ids;
    int rc = kg_json_array(root, "", "stop_token_ids", &list, err);

    if (rc == KG_OK && list != NULL)
        rc = kg_call_ids(api, list, "stop_token_ids", &ids, err);
    if (rc == KG_OK && ids.n + n_model > KG_MAX_STOP_IDS)
        rc =
            kg_api_refuse(err, "stop_token_ids", "stop_token_ids has %zu ids, at most %u are taken",
                          ids.n, KG_MAX_STOP_IDS - n_model);
    if (rc == KG_OK) {
        memcpy(s->stop_ids, api->stop_ids, n_model * sizeof(s->stop_ids[0]));
        if (ids.n > 0)
            memcpy(s->stop_ids + n_model, ids.v, ids.n * sizeof(s->stop_ids[0]));
        s->n_stop_ids = n_model + (uint32_t)ids.n;
    }
    kg_ids_free(&ids);
    return rc;
}

static int read_logprobs(const json_t *root, struct kg_call *call, struct kg_api_error *err)
{
    struct kg_sampling *s = &call->sampling;
    uint32_t top = UINT32_MAX;
    int rc;

    if (call->endpoint == KG_EP_COMPLETIONS) {
        if (json_is_false(kg_json_get(root, "logprobs")))
            return KG_OK;
        rc = kg_json_u32(root, "", "logprobs", 0, KG_MAX_LOGPROBS, &top, err);
        if (rc != KG_OK)
            return rc;
        call->logprobs = top != UINT32_MAX;
    } else {
        rc = kg_json_bool(root, "", "logprobs", &call->logprobs, err);
        if (rc == KG_OK)
            rc = kg_json_u32(root, "", "top_logprobs", 0, KG_MAX_LOGPROBS, &top, err);
        if (rc != KG_OK)
            return rc;
        if (top != UINT32_MAX && top > 0 && !call->logprobs)
            return kg_api_refuse(err, "top_logprobs", "top_logprobs needs logprobs = true");
    }
    s->want_logprob = call->logprobs;
    s->n_logprobs = call->logprobs && top != UINT32_MAX ? top : 0;
    return KG_OK;
}

static int read_stream(const json_t *root, struct kg_call *call, struct kg_api_error *err)
{
    const json_t *opts = NULL;
    int rc = kg_json_bool(root, "", "stream", &call->stream, err);

    if (rc == KG_OK)
        rc = kg_json_object(root, "", "stream_options", &opts, err);
    if (rc != KG_OK || opts == NULL)
        return rc;
    if (!call->stream)
        return kg_api_refuse(err, "stream_options", "stream_options needs stream = true");
    rc = kg_json_bool(opts, "stream_options", "include_usage", &call->include_usage, err);
    if (rc == KG_OK)
        rc = kg_json_bool(opts, "stream_options", "continuous_usage_stats", &call->continuous_usage,
                          err);
    call->continuous_usage = call->continuous_usage && call->include_usage;
    return rc;
}

static int read_numbers(const json_t *root, struct kg_call *call, struct kg_api_error *err)
{
    struct kg_sampling *s = &call->sampling;
    const json_t *top_k = kg_json_get(root, "top_k");
    int64_t seed = 0;
    int rc;

    s->temperature = 1.0f;
    rc = kg_json_f32(root, "", "temperature", 0, 100, &s->temperature, err);
    if (rc == KG_OK)
        rc = kg_json_f32(root, "", "top_p", 0, 1, &s->top_p, err);
    if (rc == KG_OK && s->top_p == 0.0f && kg_json_get(root, "top_p") != NULL)
        s->top_k = 1; /* a nucleus of nothing still holds the likeliest token */
    if (rc == KG_OK)
        rc = kg_json_f32(root, "", "min_p", 0, 1, &s->min_p, err);
    if (rc == KG_OK)
        rc = kg_json_f32(root, "", "frequency_penalty", -2, 2, &s->frequency_penalty, err);
    if (rc == KG_OK)
        rc = kg_json_f32(root, "", "presence_penalty", -2, 2, &s->presence_penalty, err);
    if (rc == KG_OK)
        rc = kg_json_f32(root, "", "repetition_penalty", 0.01, 100, &s->repetition_penalty, err);
    if (rc == KG_OK && !(json_is_integer(top_k) && json_integer_value(top_k) == -1)) {
        uint32_t k = 0; /* -1 and 0 both mean: off */
        rc = kg_json_u32(root, "", "top_k", 0, UINT32_MAX, &k, err);
        s->top_k = k > 0 && s->top_k == 0 ? k : s->top_k;
    }
    if (rc == KG_OK)
        rc = kg_json_i64(root, "", "seed", &seed, err);
    call->has_seed = kg_json_get(root, "seed") != NULL;
    s->seed = (uint64_t)seed;
    return rc;
}

static int read_flags(const json_t *root, struct kg_call *call, struct kg_api_error *err)
{
    bool ignore_eos = false, parallel = true, add_special = true, spaces = true;
    int rc;

    call->include_reasoning = true;
    call->skip_special = true;
    rc = kg_json_bool(root, "", "ignore_eos", &ignore_eos, err);
    if (rc == KG_OK)
        rc = kg_json_bool(root, "", "skip_special_tokens", &call->skip_special, err);
    if (rc == KG_OK)
        rc = kg_json_bool(root, "", "include_stop_str_in_output", &call->keep_stop, err);
    if (rc == KG_OK)
        rc = kg_json_bool(root, "", "return_token_ids", &call->return_token_ids, err);
    if (rc == KG_OK)
        rc = kg_json_bool(root, "", "return_tokens_as_token_ids", &call->tokens_as_ids, err);
    if (rc == KG_OK)
        rc = kg_json_bool(root, "", "add_special_tokens", &add_special, err);
    if (rc == KG_OK)
        rc = kg_json_bool(root, "", "spaces_between_special_tokens", &spaces, err);
    if (rc == KG_OK && call->endpoint == KG_EP_COMPLETIONS)
        rc = kg_json_bool(root, "", "echo", &call->echo, err);
    if (rc == KG_OK && call->endpoint == KG_EP_CHAT) {
        rc = kg_json_bool(root, "", "include_reasoning", &call->include_reasoning, err);
        if (rc == KG_OK)
            rc = kg_json_bool(root, "", "parallel_tool_calls", &parallel, err);
    }
    call->sampling.ignore_eos = ignore_eos;
    call->one_call = !parallel;
    return rc;
}

static int read_cache(const json_t *root, struct kg_call *call, struct kg_api_error *err)
{
    const char *salt = NULL;
    bool cache = true;
    int rc = kg_json_str(root, "", "cache_salt", &salt, err);

    if (rc == KG_OK && salt != NULL) {
        call->salt = kg_hash_bytes(salt, strlen(salt), 1);
        call->salt += call->salt == 0; /* 0 means none */
    }
    if (rc == KG_OK)
        rc = kg_json_bool(root, "", "cache_prompt", &cache, err);
    call->no_cache = !cache;
    return rc;
}

void kg_call_name(const char *s, size_t n, char name[32])
{
    bool plain = n < 32;

    for (size_t i = 0; plain && i < n; i++)
        plain = s[i] > ' ' && s[i] <= '~';
    if (plain) {
        memcpy(name, s, n);
        name[n] = '\0';
    } else {
        (void)snprintf(name, 32, "#%016llx", (unsigned long long)kg_hash_bytes(s, n, 2));
    }
}

static int read_user(const json_t *root, struct kg_call *call, struct kg_api_error *err)
{
    const char *user = NULL;
    int rc = kg_json_str(root, "", "user", &user, err);

    if (rc == KG_OK && user != NULL)
        kg_call_name(user, strlen(user), call->user);
    return rc;
}

int kg_call_sampling(const struct kg_api *api, const json_t *root, struct kg_call *call,
                     struct kg_api_error *err)
{
    int rc = refuse_unsupported(root, both_refuse, err);

    if (rc == KG_OK)
        rc = refuse_unsupported(
            root, call->endpoint == KG_EP_CHAT ? chat_refuse : completion_refuse, err);
    call->n = 1;
    if (rc == KG_OK)
        rc = kg_json_u32(root, "", "n", 1, api->conf->max_n, &call->n, err);
    if (rc == KG_OK)
        rc = read_user(root, call, err);
    if (rc == KG_OK)
        rc = read_flags(root, call, err);
    if (rc == KG_OK)
        rc = read_numbers(root, call, err);
    if (rc == KG_OK)
        rc = kg_json_u32(root, "", "min_tokens", 0, api->max_tokens, &call->sampling.min_tokens,
                         err);
    if (rc == KG_OK)
        rc = read_logprobs(root, call, err);
    if (rc == KG_OK)
        rc = read_stream(root, call, err);
    if (rc == KG_OK)
        rc = read_stops(api, root, call, err);
    if (rc == KG_OK)
        rc = read_stop_ids(api, root, call, err);
    if (rc == KG_OK)
        rc = read_cache(root, call, err);
    return rc;
}

static int check_model(const struct kg_api *api, const json_t *root, struct kg_api_error *err)
{
    const char *model = NULL;
    int rc = kg_json_str(root, "", "model", &model, err);

    if (rc != KG_OK || model == NULL || model[0] == '\0' || strcmp(model, api->model_name) == 0)
        return rc;
    (void)kg_api_fail(err, 404, "model_not_found", "model",
                      "there is no model \"%.100s\" here; this server has \"%.200s\"", model,
                      api->model_name);
    return KG_EINVAL;
}

int kg_call_prepare(const struct kg_api *api, struct kg_tok_scratch *scratch,
                    enum kg_endpoint endpoint, struct kg_span body, struct kg_call *call,
                    struct kg_api_error *err)
{
    json_t *root = NULL;
    int rc = kg_json_load(body.p, body.n, api->conf->max_json_depth, api->conf->max_json_values,
                          &root, err);

    if (rc != KG_OK)
        return rc;
    call->endpoint = endpoint;
    rc = check_model(api, root, err);
    if (rc == KG_OK && endpoint == KG_EP_DETOKENIZE) {
        rc = kg_call_detokenize(api, root, call, err);
    } else if (rc == KG_OK && endpoint == KG_EP_TOKENIZE) {
        rc = kg_call_tokenize(api, scratch, root, body, call, err);
    } else if (rc == KG_OK) {
        rc = kg_call_sampling(api, root, call, err);
        if (rc == KG_OK)
            rc = kg_call_prompts(api, scratch, root, body, call, err);
    }
    json_decref(root);
    return rc;
}

void kg_call_free(struct kg_call *call)
{
    for (uint32_t i = 0; call->prompts != NULL && i < call->n_prompts; i++) {
        kg_ids_free(&call->prompts[i].ids);
        kg_ids_free(&call->prompts[i].boundaries);
        kg_ids_free(&call->prompts[i].marks);
        kg_text_free(&call->prompts[i].text);
    }
    free(call->prompts);
    kg_text_free(&call->stop_bytes);
    kg_buf_fini(&call->reply);
    *call = (struct kg_call){0};
}
