/*
 * The two growable arrays of this folder: token ids and bytes of text. Both start as {0}, are owned
 * by the caller and are given back with the free call. They never shrink; a caller that reuses one
 * sets n = 0.
 */
#ifndef KEDGE_TEXT_TEXT_H
#define KEDGE_TEXT_TEXT_H

#include <kedge/types.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct kg_ids {
    uint32_t *v; /* [cap], the first n are set; NULL while cap is 0 */
    size_t n;
    size_t cap;
};

struct kg_text {
    char *v;  /* [cap] bytes, the first n are set, v[n] is NUL once anything was added */
    size_t n; /* bytes */
    size_t cap;
};

/* A piece of somebody else's bytes; not NUL-terminated. p may be NULL when n is 0. */
struct kg_span {
    const char *p;
    size_t n;
};

/* Makes room for `more` further ids (bytes). KG_ENOMEM; nothing changes then. */
int KG_CHECKED kg_ids_reserve(struct kg_ids *ids, size_t more);
int KG_CHECKED kg_text_reserve(struct kg_text *text, size_t more);

/* Appends. KG_ENOMEM; nothing changes then. */
int KG_CHECKED kg_ids_push(struct kg_ids *ids, uint32_t id);
int KG_CHECKED kg_text_add(struct kg_text *text, const void *bytes, size_t n);
int KG_CHECKED kg_text_puts(struct kg_text *text, const char *zstr);

/* Frees the storage and sets everything to 0. */
void kg_ids_free(struct kg_ids *ids);
void kg_text_free(struct kg_text *text);

#endif
