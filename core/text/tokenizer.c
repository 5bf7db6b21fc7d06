#include "text/tokenizer.h"

#include "base/utf8.h"
#include "text/tok_impl.h"
#include <stdlib.h>

#define STACK_START (64u << 10) /* bytes of the pattern matcher's own stack */
#define STACK_MAX (16u << 20)

int kg_tok_open(const char *dir, struct kg_tok **out, struct kg_error *err)
{
    struct kg_tok *tok = calloc(1, sizeof(*tok));
    if (tok == NULL) {
        return kg_fail(err, KG_ENOMEM, "tokenizer of %s: out of memory", dir);
    }
    int rc = kg_tok_load(tok, dir, err);
    if (rc == KG_OK) {
        rc = kg_tok_pattern(tok, err);
    }
    if (rc != KG_OK) {
        kg_tok_close(tok);
        return rc;
    }
    *out = tok;
    return KG_OK;
}

void kg_tok_close(struct kg_tok *tok)
{
    if (tok == NULL) {
        return;
    }
    pcre2_code_free(tok->pattern);
    free(tok->blob);
    free(tok->off);
    free(tok->special);
    free(tok->map.slots);
    free(tok->controls.slots);
    free(tok);
}

uint32_t kg_tok_n_vocab(const struct kg_tok *tok)
{
    return tok->n_vocab;
}

uint32_t kg_tok_n_ranks(const struct kg_tok *tok)
{
    return tok->n_ranks;
}

int kg_tok_control(const struct kg_tok *tok, const char *name, uint32_t *id)
{
    uint32_t found = kg_tok_find(tok, &tok->controls, name, strlen(name));
    if (found == KG_NONE) {
        return KG_ENOENT;
    }
    *id = found;
    return KG_OK;
}

bool kg_tok_is_control(const struct kg_tok *tok, uint32_t id)
{
    return id >= tok->n_ranks;
}

bool kg_tok_is_special(const struct kg_tok *tok, uint32_t id)
{
    return id >= tok->n_ranks && (id >= tok->n_vocab || tok->special[id - tok->n_ranks]);
}

struct kg_span kg_tok_bytes(const struct kg_tok *tok, uint32_t id)
{
    if (id >= tok->n_vocab) {
        return (struct kg_span){NULL, 0};
    }
    return (struct kg_span){tok->blob + tok->off[id], tok->off[id + 1] - tok->off[id]};
}

int kg_tok_decode(const struct kg_tok *tok, const uint32_t *ids, size_t n, struct kg_text *out)
{
    for (size_t i = 0; i < n; i++) {
        if (ids[i] >= tok->n_vocab) {
            return KG_EINVAL;
        }
        struct kg_span s = kg_tok_bytes(tok, ids[i]);
        int rc = kg_text_add(out, s.p, s.n);
        if (rc != KG_OK) {
            return rc;
        }
    }
    return KG_OK;
}

struct kg_tok_scratch *kg_tok_scratch_new(const struct kg_tok *tok)
{
    struct kg_tok_scratch *s = calloc(1, sizeof(*s));
    if (s == NULL) {
        return NULL;
    }
    s->match = pcre2_match_data_create_from_pattern(tok->pattern, NULL);
    s->context = pcre2_match_context_create(NULL);
    s->stack = pcre2_jit_stack_create(STACK_START, STACK_MAX, NULL);
    if (s->match == NULL || s->context == NULL) {
        kg_tok_scratch_free(s);
        return NULL;
    }
    /* A pcre2 without JIT has no stack to give; then there is nothing to assign. */
    if (s->stack != NULL) {
        pcre2_jit_stack_assign(s->context, NULL, s->stack);
    }
    return s;
}

void kg_tok_scratch_free(struct kg_tok_scratch *scratch)
{
    if (scratch == NULL) {
        return;
    }
    pcre2_match_data_free(scratch->match);
    pcre2_match_context_free(scratch->context);
    pcre2_jit_stack_free(scratch->stack);
    free(scratch->parts);
    free(scratch->heap);
    free(scratch);
}

/* Well-formed text only. */
static int encode_valid(const struct kg_tok *tok, struct kg_tok_scratch *scratch, const char *text,
                        size_t n, struct kg_ids *out)
{
    while (n > 0) {
        size_t len = kg_tok_piece(tok, scratch, text, n);
        int rc = kg_tok_bpe(tok, scratch, text, len, out);
        if (rc != KG_OK) {
            return rc;
        }
        text += len;
        n -= len;
    }
    return KG_OK;
}

/* Bytes of the longest well-formed beginning of text. */
static size_t valid_run(const char *text, size_t n)
{
    size_t i = 0;
    while (i < n) {
        uint64_t eight;
        if (n - i >= 8 && (memcpy(&eight, text + i, 8), (eight & 0x8080808080808080ull) == 0)) {
            i += 8;
            continue;
        }
        uint32_t cp;
        size_t len = kg_utf8_decode(text + i, n - i, &cp);
        if (len == 0) {
            break;
        }
        i += len;
    }
    return i;
}

static int encode_plain(const struct kg_tok *tok, struct kg_tok_scratch *scratch, const char *text,
                        size_t n, struct kg_ids *out)
{
    int rc = KG_OK;
    while (n > 0 && rc == KG_OK) {
        size_t len = valid_run(text, n);
        if (len > 0) {
            rc = encode_valid(tok, scratch, text, len, out);
        } else {
            rc = kg_ids_push(out, tok->byte_id[(uint8_t)text[0]]);
            len = 1;
        }
        text += len;
        n -= len;
    }
    return rc;
}

/* Id of the longest control name that text begins with, its length in *len; KG_NONE if none. */
static uint32_t control_at(const struct kg_tok *tok, const char *text, size_t n, size_t *len)
{
    if (!tok->control_first[(uint8_t)text[0]]) {
        return KG_NONE;
    }
    for (size_t k = n < tok->max_control_len ? n : tok->max_control_len; k > 0; k--) {
        uint32_t id = kg_tok_find(tok, &tok->controls, text, k);
        if (id != KG_NONE) {
            *len = k;
            return id;
        }
    }
    return KG_NONE;
}

static int encode_markup(const struct kg_tok *tok, struct kg_tok_scratch *scratch, const char *text,
                         size_t n, struct kg_ids *out)
{
    size_t from = 0;
    for (size_t i = 0; i < n;) {
        size_t len = 0;
        uint32_t id = control_at(tok, text + i, n - i, &len);
        if (id == KG_NONE) {
            i++;
            continue;
        }
        int rc = encode_plain(tok, scratch, text + from, i - from, out);
        if (rc == KG_OK) {
            rc = kg_ids_push(out, id);
        }
        if (rc != KG_OK) {
            return rc;
        }
        i += len;
        from = i;
    }
    return encode_plain(tok, scratch, text + from, n - from, out);
}

int kg_tok_encode(const struct kg_tok *tok, struct kg_tok_scratch *scratch, enum kg_tok_mode mode,
                  const char *text, size_t n_bytes, struct kg_ids *out)
{
    struct kg_tok_cutter cutter = {0};
    while (n_bytes > 0) {
        size_t len = kg_tok_cut(&cutter, text, n_bytes);
        int rc = mode == KG_TOK_MARKUP ? encode_markup(tok, scratch, text, len, out)
                                       : encode_plain(tok, scratch, text, len, out);
        if (rc != KG_OK) {
            return rc;
        }
        text += len;
        n_bytes -= len;
    }
    return KG_OK;
}
