/* Any bytes as a trace: the first byte picks format and scale, the rest is the file. */
#include "experiment/expand.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

/* What a reader promises of every request. */
static void check(const struct kg_trace *t)
{
    for (uint32_t i = 0; i < t->n; i++) {
        const struct kg_trace_req *q = &t->reqs[i];
        uint32_t at = 0;
        for (uint32_t k = 0; k < q->n_pieces; k++) {
            const struct kg_trace_piece *p = &t->pieces[q->pieces_at + k];
            if (p->at != at || p->n == 0) {
                abort();
            }
            at += p->n;
        }
        if (q->n_text == 0 && (q->n_prompt == 0 || (at != q->n_prompt && q->n_tokens == 0))) {
            abort();
        }
        if (q->n_output == 0 || q->n_named > q->n_prompt ||
            (q->after != KG_NONE && q->after >= i)) {
            abort();
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (n == 0) {
        return 0;
    }
    const struct kg_trace_conf conf = {
        .format = data[0] % 7, .scale = data[0] & 64 ? 4 : 1, .limit = 1000};
    struct kg_trace *t = NULL;
    struct kg_expand *x = NULL;
    struct kg_error err;

    if (kg_trace_read_mem("input", data + 1, n - 1, &conf, &t, &err) != KG_OK) {
        return 0;
    }
    check(t);
    uint64_t tokens = 0;
    for (uint32_t i = 0; i < t->n; i++) {
        if (t->reqs[i].n_text > 0) {
            kg_trace_free(t);
            return 0;
        }
        tokens += t->reqs[i].n_prompt + (uint64_t)t->reqs[i].n_output;
    }
    if (kg_expand_create(t, 1, 1000, &x, &err) == KG_OK && tokens < 1000000) {
        uint32_t *out = malloc(tokens * sizeof(*out));
        for (uint32_t i = 0; out != NULL && i < t->n; i++) {
            kg_expand_prompt(x, i, out);
            kg_expand_answer(x, i, out);
        }
        free(out);
    }
    kg_expand_destroy(x);
    kg_trace_free(t);
    return 0;
}
