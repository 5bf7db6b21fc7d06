/*
 * Bytes that trickle in, whole characters out: the streaming side of base/utf8.h.
 */
#ifndef KEDGE_TEXT_UTF8_GATE_H
#define KEDGE_TEXT_UTF8_GATE_H

#include "text/text.h"

/* The unfinished character of a byte stream. Starts as {0}. */
struct kg_utf8_gate {
    char part[4]; /* [n] bytes of a character that may still become whole */
    uint32_t n;   /* 0..3 between calls */
};

/*
 * Takes n bytes, appends to *out every character that is now complete and U+FFFD for every maximal
 * run that can no longer become one. KG_ENOMEM.
 */
int KG_CHECKED kg_utf8_gate_push(struct kg_utf8_gate *gate, const void *bytes, size_t n,
                                 struct kg_text *out);

/* The stream has ended: an unfinished character becomes U+FFFD. KG_ENOMEM. */
int KG_CHECKED kg_utf8_gate_finish(struct kg_utf8_gate *gate, struct kg_text *out);

#endif
