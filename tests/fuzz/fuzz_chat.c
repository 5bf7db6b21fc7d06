/* Any bytes as a chat request: refused with a reason or rendered, with and without its raw text. */
#include "text/chat.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static struct kg_tok *tok;
static struct kg_tok_scratch *scratch;
static struct kg_chat *chat;

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
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (tok == NULL) {
        open_once();
    }
    json_t *request = json_loadb((const char *)data, n, 0, NULL);
    for (int with_raw = 0; with_raw < 2 && request != NULL; with_raw++) {
        struct kg_chat_prompt out = {0};
        struct kg_error err = {0};
        struct kg_span raw = {with_raw ? (const char *)data : NULL, with_raw ? n : 0};
        int rc = kg_chat_render(chat, scratch, request, raw, &out, &err);
        if (rc != KG_OK && (rc != KG_EINVAL || err.rc != rc || err.text[0] == '\0')) {
            abort();
        }
        for (size_t i = 0; rc == KG_OK && i < out.boundaries.n; i++) {
            if (out.boundaries.v[i] > out.ids.n ||
                out.ids.v[out.boundaries.v[i] - 1] != kg_chat_stop_id(chat)) {
                abort();
            }
        }
        kg_chat_prompt_free(&out);
    }
    json_decref(request);
    return 0;
}
