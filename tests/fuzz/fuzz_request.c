/* Any bytes as the body of each endpoint: refused with a status and a text in UTF-8, or prepared
 * within the limits. The first byte picks the endpoint. */
#include "base/utf8.h"
#include "serve/call.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static struct kg_tok *tok;
static struct kg_tok_scratch *scratch;
static struct kg_chat *chat;
static struct kg_server_conf conf;
static struct kg_api api;

/* A limit that refuses everything would make a target that tries nothing: plain bodies pass. */
static void try_plain_bodies(void)
{
    static const char *const bodies[4] = {
        [KG_EP_COMPLETIONS] = "{\"prompt\":\"a\"}",
        [KG_EP_CHAT] = "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}",
        [KG_EP_TOKENIZE] = "{\"prompt\":\"a\"}",
        [KG_EP_DETOKENIZE] = "{\"tokens\":[5]}",
    };

    for (int i = 0; i < 4; i++) {
        struct kg_call call = {0};
        struct kg_api_error err = {0};
        struct kg_span body = {bodies[i], strlen(bodies[i])};
        if (kg_call_prepare(&api, scratch, (enum kg_endpoint)i, body, &call, &err) != KG_OK) {
            (void)fprintf(stderr, "endpoint %d refuses a plain body: %s\n", i, err.message);
            exit(1);
        }
        kg_call_free(&call);
    }
}

static void open_once(void)
{
    struct kg_error err = {0};
    const char *root = getenv("KEDGE_ROOT");
    char dir[4096];

    (void)snprintf(dir, sizeof(dir), "%s/tests/models/k3-tiny", root != NULL ? root : ".");
    if (kg_tok_open(dir, &tok, &err) != KG_OK || kg_chat_open(tok, &chat, &err) != KG_OK) {
        (void)fprintf(stderr, "%s (run in the source tree)\n", err.text);
        exit(1);
    }
    scratch = kg_tok_scratch_new(tok);
    conf = (struct kg_server_conf){
        .max_json_depth = 64,
        .max_json_values = 20000,
        .max_n = 8,
        .max_prompts = 8,
        .max_sequences = 16,
        .max_messages = 64,
        .max_tools = 16,
        .max_stop = 4,
        .max_stop_bytes = 64,
    };
    kg_api_init(&api, &conf, tok, chat, "m", 1000, 4096);
    try_plain_bodies();
}

static void check_call(const struct kg_call *call)
{
    if (call->endpoint == KG_EP_TOKENIZE || call->endpoint == KG_EP_DETOKENIZE) {
        if (call->reply.len == 0 ||
            kg_utf8_valid(call->reply.data, call->reply.len) != call->reply.len)
            abort();
        return;
    }
    if (call->n_prompts == 0 || call->n_prompts > 8 || call->n == 0 || call->n > 8 ||
        call->n_prompts * call->n > 16 || call->n_stops > 4 ||
        call->sampling.n_stop_ids > KG_MAX_STOP_IDS || call->sampling.n_logprobs > KG_MAX_LOGPROBS)
        abort();
    for (uint32_t i = 0; i < call->n_prompts; i++) {
        const struct kg_prompt *p = &call->prompts[i];
        if (p->ids.n == 0 || p->max_tokens == 0 || p->ids.n + p->max_tokens > 1000)
            abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct kg_call call = {0};
    struct kg_api_error err = {0};
    int rc;

    if (tok == NULL)
        open_once();
    if (n == 0)
        return 0;
    rc = kg_call_prepare(&api, scratch, (enum kg_endpoint)(data[0] % 4),
                         (struct kg_span){(const char *)data + 1, n - 1}, &call, &err);
    if (rc == KG_OK)
        check_call(&call);
    else if (err.status < 400 || err.status > 599 || err.message[0] == '\0' ||
             kg_utf8_valid(err.message, strlen(err.message)) != strlen(err.message) ||
             kg_utf8_valid(err.param, strlen(err.param)) != strlen(err.param))
        abort();
    kg_call_free(&call);
    return 0;
}
