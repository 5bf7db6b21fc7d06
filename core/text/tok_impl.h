/*
 * Inside of the tokenizer, shared by its four files: tokenizer.c (the public calls), tok_load.c
 * (files to tables), tok_split.c (text to pieces), tok_bpe.c (a piece to ids).
 */
#ifndef KEDGE_TEXT_TOK_IMPL_H
#define KEDGE_TEXT_TOK_IMPL_H

#define PCRE2_CODE_UNIT_WIDTH 8

#include "text/tokenizer.h"
#include <pcre2.h>
#include <string.h>

#define KG_TOK_MAX_BYTES 4096u       /* of one token, one control name */
#define KG_TOK_MAX_VOCAB (1u << 24)  /* ids */
#define KG_TOK_MAX_CONTROLS 65536u   /* ids behind the ranks */
#define KG_TOK_MAX_FILE (256u << 20) /* bytes of one file */

/*
 * Open addressing, linear probing, at most half full. A slot is the upper half of the hash in the
 * upper 32 bits and id + 1 in the lower, 0 when empty.
 */
struct kg_tok_map {
    uint64_t *slots; /* [mask + 1] */
    uint64_t mask;
};

struct kg_tok {
    uint32_t n_ranks;
    uint32_t n_vocab;
    uint32_t max_len;      /* bytes of the longest text token */
    char *blob;            /* bytes of all ids, one after another */
    uint32_t *off;         /* [n_vocab + 1] where each id starts in blob */
    bool *special;         /* [n_vocab - n_ranks] */
    struct kg_tok_map map; /* text tokens */
    struct kg_tok_map controls;
    uint32_t max_control_len;
    uint32_t byte_id[256];   /* id of each single byte */
    bool control_first[256]; /* a control name begins with this byte */
    pcre2_code *pattern;
};

/* One part of a piece while it is being joined; parts of a long piece form a list. */
struct kg_tok_part {
    uint32_t start; /* byte offset in the piece */
    uint32_t id;
    uint32_t join; /* id of this part joined with the next, KG_NONE if that is no token */
    uint32_t prev, next;
};

struct kg_tok_scratch {
    pcre2_match_data *match;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
    struct kg_tok_part *parts; /* [n_parts] */
    uint64_t *heap;            /* [3 * n_parts] join << 32 | start */
    size_t n_parts;
};

/* Hash of n bytes; the tables are private and loaded from the checkpoint, so it has no seed. */
static inline uint64_t kg_tok_hash(const char *p, size_t n)
{
    const uint64_t k = 0x9e3779b97f4a7c15ull;
    uint64_t h = n * k;
    uint64_t w;
    for (; n > 8; p += 8, n -= 8) {
        memcpy(&w, p, 8);
        h = (h ^ w) * k;
        h ^= h >> 29;
    }
    if (n >= 4) {
        uint32_t lo, hi;
        memcpy(&lo, p, 4);
        memcpy(&hi, p + n - 4, 4);
        w = (uint64_t)hi << 32 | lo;
    } else if (n > 0) {
        w = (uint64_t)(uint8_t)p[0] | (uint64_t)(uint8_t)p[n / 2] << 8 |
            (uint64_t)(uint8_t)p[n - 1] << 16;
    } else {
        w = 0;
    }
    h = (h ^ w) * k;
    h ^= h >> 32;
    h *= 0xd6e8feb86659fd93ull;
    return h ^ h >> 32;
}

/* Id of the bytes p[0..n) in the map, KG_NONE if absent. */
static inline uint32_t kg_tok_find(const struct kg_tok *tok, const struct kg_tok_map *map,
                                   const char *p, size_t n)
{
    uint64_t h = kg_tok_hash(p, n);
    for (uint64_t i = h & map->mask;; i = (i + 1) & map->mask) {
        uint64_t s = map->slots[i];
        if (s == 0) {
            return KG_NONE;
        }
        if (s >> 32 == h >> 32) {
            uint32_t id = (uint32_t)s - 1;
            uint32_t at = tok->off[id];
            if (tok->off[id + 1] - at == n && memcmp(tok->blob + at, p, n) == 0) {
                return id;
            }
        }
    }
}

/* Fills every table but the pattern from the folder's files. See kg_tok_open. */
int kg_tok_load(struct kg_tok *tok, const char *dir, struct kg_error *err);

/* The part of it that reads the lines of tiktoken.model, here already in memory; `path` names them
 * in errors. Tables of an all-zero tok; free them with kg_tok_close also after an error. */
int kg_tok_ranks(struct kg_tok *tok, const char *path, const struct kg_text *file,
                 struct kg_error *err);

/* Compiles the split pattern. KG_ECONFIG (pcre2 without Unicode), KG_ENOMEM. */
int kg_tok_pattern(struct kg_tok *tok, struct kg_error *err);

/* Bytes of the first piece of the well-formed UTF-8 text[0..n), n > 0: 1..n. */
size_t kg_tok_piece(const struct kg_tok *tok, struct kg_tok_scratch *scratch, const char *text,
                    size_t n);

/*
 * Where the cutting rule (before any splitting) ends the first part of text[0..n): whole
 * characters, at most 400,000 of them counted from the last such cut, no run of more than 25,000
 * space or non-space ones. A byte that is not UTF-8 counts as a non-space character.
 */
struct kg_tok_cutter {
    uint32_t chars; /* since the last 400,000 cut */
    uint32_t run;   /* length of the current run */
    bool space;     /* kind of the current run */
};
size_t kg_tok_cut(struct kg_tok_cutter *cutter, const char *text, size_t n);

/* Appends the ids of one piece. KG_ENOMEM. */
int kg_tok_bpe(const struct kg_tok *tok, struct kg_tok_scratch *scratch, const char *piece,
               size_t n, struct kg_ids *out);

#endif
