/*
 * Token ids to text, while they arrive. What comes out is always whole UTF-8 characters: bytes of a
 * character that is not complete yet are held back, bytes that can never become one turn into
 * U+FFFD (one per maximal ill-formed run, as browsers do). Text that may be the beginning of a stop
 * string is held back too. How the ids are cut into pushes never changes the text.
 */
#ifndef KEDGE_TEXT_DETOK_H
#define KEDGE_TEXT_DETOK_H

#include "text/tokenizer.h"

#define KG_STOP_MAX 16         /* stop strings of one output */
#define KG_STOP_MAX_BYTES 4096 /* of one stop string */

struct kg_detok;

struct kg_detok_opts {
    const struct kg_span *stops; /* [n_stops], copied; each 1..KG_STOP_MAX_BYTES bytes */
    size_t n_stops;              /* <= KG_STOP_MAX */
    bool keep_stop;              /* the matched stop string itself is part of the output */
    bool show_special;           /* special tokens are spelled out instead of dropped */
};

/* opts may be NULL (no stop strings). KG_EINVAL for a bad stop list, KG_ENOMEM. */
int KG_CHECKED kg_detok_new(const struct kg_tok *tok, const struct kg_detok_opts *opts,
                            struct kg_detok **out, struct kg_error *err);
void kg_detok_free(struct kg_detok *detok); /* NULL is allowed */

/*
 * Takes n ids and appends the text that is now certain to *out. Returns 0, or 1 when a stop string
 * is complete: *used is then the number of ids of this call up to and including the one that
 * completed it; the rest is not looked at and later pushes do nothing (return 1, used 0). Otherwise
 * *used = n. Of two stop strings that end at the same byte the longer one counts; else the one that
 * ends first. KG_ENOMEM.
 */
int KG_CHECKED kg_detok_push(struct kg_detok *detok, const uint32_t *ids, size_t n,
                             struct kg_text *out, size_t *used);

/* The ids have ended: appends what was held back. Afterwards pushes do nothing. KG_ENOMEM. */
int KG_CHECKED kg_detok_finish(struct kg_detok *detok, struct kg_text *out);

#endif
