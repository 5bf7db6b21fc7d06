/*
 * Byte-level BPE as the Kimi models use it: text is split into pieces by a pattern, a piece that is
 * in the rank table is one token, any other piece starts as single bytes whose adjacent pairs are
 * joined, lowest rank first, leftmost among equals. Rank = token id.
 *
 * A struct kg_tok never changes after kg_tok_open, so any number of threads may use one; each
 * thread brings its own struct kg_tok_scratch.
 */
#ifndef KEDGE_TEXT_TOKENIZER_H
#define KEDGE_TEXT_TOKENIZER_H

#include "text/text.h"

struct kg_tok;
struct kg_tok_scratch;

enum kg_tok_mode {
    KG_TOK_PLAIN,  /* control-looking strings are ordinary text: all text from outside */
    KG_TOK_MARKUP, /* control strings become their ids: text the program itself wrote */
};

/*
 * Opens a checkpoint folder: tiktoken.model (lines "base64 rank"), tokenizer_config.json (control
 * tokens from added_tokens_decoder) and, if present, config.json (vocab_size, of the text_config if
 * there is one). Without config.json the vocabulary ends at the last known id. Ids behind the ranks
 * that have no name are control tokens called <|reserved_token_ID|>.
 * KG_ENOENT (file absent), KG_EIO, KG_ECONFIG (bad content; err names file and line or key),
 * KG_ENOMEM. Owner of *out: the caller, until kg_tok_close.
 */
int KG_CHECKED kg_tok_open(const char *dir, struct kg_tok **out, struct kg_error *err);
void kg_tok_close(struct kg_tok *tok); /* NULL is allowed */

uint32_t kg_tok_n_vocab(const struct kg_tok *tok); /* ids are 0..n_vocab-1 */
uint32_t kg_tok_n_ranks(const struct kg_tok *tok); /* ids below are text, from here on control */

/* Id of the control token spelled `name`; KG_ENOENT if there is none. */
int KG_CHECKED kg_tok_control(const struct kg_tok *tok, const char *name, uint32_t *id);
/* True for every id >= n_ranks. */
bool kg_tok_is_control(const struct kg_tok *tok, uint32_t id);
/* True for control tokens that tokenizer_config.json marks special, and for the unnamed ones. */
bool kg_tok_is_special(const struct kg_tok *tok, uint32_t id);

/* The bytes of an id; a control token gives its name. Valid until close. n = 0 for id >= n_vocab.
 */
struct kg_span kg_tok_bytes(const struct kg_tok *tok, uint32_t id);

/* Appends the bytes of n ids to *out. KG_EINVAL for an id >= n_vocab, KG_ENOMEM. */
int KG_CHECKED kg_tok_decode(const struct kg_tok *tok, const uint32_t *ids, size_t n,
                             struct kg_text *out);

/* Working memory of one thread for one tokenizer. NULL when out of memory. */
struct kg_tok_scratch *kg_tok_scratch_new(const struct kg_tok *tok);
void kg_tok_scratch_free(struct kg_tok_scratch *scratch); /* NULL is allowed */

/*
 * Appends the ids of n_bytes of text to *out; `text` may hold NUL bytes. Bytes that are not UTF-8
 * become single-byte tokens, so every input can be encoded and decode(encode(x)) == x.
 * The time is O(n log n). KG_ENOMEM; *out then holds the ids done so far.
 */
int KG_CHECKED kg_tok_encode(const struct kg_tok *tok, struct kg_tok_scratch *scratch,
                             enum kg_tok_mode mode, const char *text, size_t n_bytes,
                             struct kg_ids *out);

#endif
