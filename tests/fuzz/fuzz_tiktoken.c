/* Any bytes as tiktoken.model: refused with a text, or a table whose ids are the bytes again. */
#include "text/tok_impl.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

/* What was read must encode any text so that decoding gives it back. */
static void round_trip(struct kg_tok *tok, const char *text, size_t n)
{
    struct kg_tok_scratch *scratch = kg_tok_scratch_new(tok);
    struct kg_text back = {0};
    struct kg_ids ids = {0};

    if (scratch != NULL && kg_tok_encode(tok, scratch, KG_TOK_PLAIN, text, n, &ids) == KG_OK &&
        kg_tok_decode(tok, ids.v, ids.n, &back) == KG_OK &&
        (back.n != n || (n > 0 && memcmp(back.v, text, n) != 0))) {
        abort();
    }
    kg_ids_free(&ids);
    kg_text_free(&back);
    kg_tok_scratch_free(scratch);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct kg_tok *tok = calloc(1, sizeof(*tok));
    struct kg_text file = {0};
    struct kg_error err = {0};

    if (tok == NULL || kg_text_add(&file, (const char *)data, n) != KG_OK) {
        kg_text_free(&file);
        free(tok);
        return 0;
    }
    int rc = kg_tok_ranks(tok, "input", &file, &err);
    if (rc != KG_OK && err.text[0] == '\0') {
        abort();
    }
    if (rc == KG_OK) {
        tok->n_vocab = tok->n_ranks;
        if (kg_tok_pattern(tok, &err) == KG_OK) {
            round_trip(tok, file.v, n < 512 ? n : 512);
        }
    }
    kg_text_free(&file);
    kg_tok_close(tok);
    return 0;
}
