/*
 * Stop strings over a byte stream: one matcher per string, one step per byte, so the point of the
 * match never depends on how the text was cut.
 */
#ifndef KEDGE_TEXT_STOP_H
#define KEDGE_TEXT_STOP_H

#include "text/detok.h"

struct kg_stop_string {
    uint32_t n;     /* bytes */
    uint32_t state; /* bytes of the text's end that are a beginning of it */
    char *text;     /* [n] */
    uint32_t
        *back; /* [n] longest beginning that is also an end of text[0..i] (Knuth-Morris-Pratt) */
};

struct kg_stop_gate {
    struct kg_stop_string *strings; /* [n_strings] */
    size_t n_strings;
    struct kg_text held; /* the end of the text that may still become a stop string */
    int matched;         /* index of the string that ended the text, -1 before */
    bool keep;           /* output the match itself */
};

/* KG_EINVAL for a bad list (err says which), KG_ENOMEM. */
int KG_CHECKED kg_stop_open(struct kg_stop_gate *gate, const struct kg_span *stops, size_t n,
                            bool keep, struct kg_error *err);
void kg_stop_close(struct kg_stop_gate *gate);

/*
 * Takes n bytes and appends to *out what is certain. Returns 0, or 1 when a stop string is
 * complete; the rest is then ignored. KG_ENOMEM.
 */
int KG_CHECKED kg_stop_push(struct kg_stop_gate *gate, const char *text, size_t n,
                            struct kg_text *out);

/*
 * This piece of text has ended without a match: what was held is output. A later push begins a new
 * piece; no match spans the two. KG_ENOMEM.
 */
int KG_CHECKED kg_stop_finish(struct kg_stop_gate *gate, struct kg_text *out);

#endif
