/*
 * Any bytes as text (encoded, decoded, compared) and, in markup mode, as a model's answer: parsed
 * in one push and in pushes of one id, with stop strings; both must say the same.
 */
#include "text/parser.h"

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

/* Everything heard, one text per kind of delta. */
struct heard {
    struct kg_text text[3];
};

static int add(struct kg_text *to, const char *text, size_t n)
{
    return kg_text_add(to, text, n);
}

static int on_reasoning(void *user, const char *text, size_t n)
{
    return add(&((struct heard *)user)->text[0], text, n);
}

static int on_content(void *user, const char *text, size_t n)
{
    return add(&((struct heard *)user)->text[1], text, n);
}

static int on_begin(void *user, uint32_t index, const char *id, const char *name)
{
    (void)index;
    (void)id;
    return add(&((struct heard *)user)->text[2], name, strlen(name));
}

static int on_args(void *user, uint32_t index, const char *json, size_t n)
{
    (void)index;
    return add(&((struct heard *)user)->text[2], json, n);
}

static int on_end(void *user, uint32_t index)
{
    (void)index;
    return add(&((struct heard *)user)->text[2], "\n", 1);
}

static void hear(const struct kg_ids *ids, size_t step, uint8_t how, struct heard *h)
{
    static const struct kg_span stops[] = {{"stop", 4}, {"ab", 2}};
    struct kg_parser_opts opts = {
        .sink = {h, on_reasoning, on_content, on_begin, on_args, on_end},
        .start = (enum kg_chat_start)(how % 3),
        .text = {.stops = stops, .n_stops = how & 4 ? 2 : 0, .keep_stop = (how & 8) != 0},
        .past_end = (how & 16) != 0,
    };
    struct kg_parser *p = NULL;
    if (kg_parser_new(tok, how & 32 ? NULL : chat, &opts, &p, NULL) != KG_OK) {
        abort();
    }
    for (size_t at = 0; at < ids->n; at += step) {
        size_t used, k = ids->n - at < step ? ids->n - at : step;
        int rc = kg_parser_push(p, ids->v + at, k, &used);
        if (rc < 0 || used > k || (rc == 0 && used != k)) {
            abort();
        }
    }
    if (kg_parser_finish(p) != KG_OK) {
        abort();
    }
    kg_parser_free(p);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (tok == NULL) {
        open_once();
    }
    struct kg_ids ids = {0};
    struct kg_text back = {0};
    struct heard a = {0}, b = {0};
    uint8_t how = n > 0 ? data[0] : 0;
    for (int mode = 0; mode < 2; mode++) {
        ids.n = back.n = 0;
        if (kg_tok_encode(tok, scratch, mode ? KG_TOK_MARKUP : KG_TOK_PLAIN, (const char *)data, n,
                          &ids) != KG_OK ||
            kg_tok_decode(tok, ids.v, ids.n, &back) != KG_OK || back.n != n ||
            (n > 0 && memcmp(back.v, data, n) != 0)) {
            abort();
        }
    }
    hear(&ids, ids.n + 1, how, &a);
    hear(&ids, 1, how, &b);
    for (int i = 0; i < 3; i++) {
        if (a.text[i].n != b.text[i].n ||
            (a.text[i].n > 0 && memcmp(a.text[i].v, b.text[i].v, a.text[i].n) != 0)) {
            abort();
        }
        kg_text_free(&a.text[i]);
        kg_text_free(&b.text[i]);
    }
    kg_ids_free(&ids);
    kg_text_free(&back);
    return 0;
}
