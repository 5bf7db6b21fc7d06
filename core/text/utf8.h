/*
 * UTF-8 by the Unicode standard's table of well-formed sequences: no surrogates, no overlong forms,
 * nothing above U+10FFFF. One reader for whole strings, one for bytes that trickle in.
 */
#ifndef KG_TEXT_UTF8_H
#define KG_TEXT_UTF8_H

#include "text/text.h"

/* Length 1..4 of the well-formed character at p[0..n), its code point in *cp; 0 if ill-formed. */
static inline size_t kg_utf8_char(const uint8_t *p, size_t n, uint32_t *cp)
{
    uint32_t a = p[0];
    if (a < 0x80) {
        *cp = a;
        return 1;
    }
    if (a < 0xc2 || a > 0xf4 || n < 2 || (p[1] & 0xc0) != 0x80) {
        return 0;
    }
    if (a < 0xe0) {
        *cp = (a & 0x1f) << 6 | (p[1] & 0x3fu);
        return 2;
    }
    if (n < 3 || (p[2] & 0xc0) != 0x80) {
        return 0;
    }
    if (a < 0xf0) {
        *cp = (a & 0x0f) << 12 | (p[1] & 0x3fu) << 6 | (p[2] & 0x3fu);
        return *cp < 0x800 || (*cp >= 0xd800 && *cp < 0xe000) ? 0 : 3;
    }
    if (n < 4 || (p[3] & 0xc0) != 0x80) {
        return 0;
    }
    *cp = (a & 0x07) << 18 | (p[1] & 0x3fu) << 12 | (p[2] & 0x3fu) << 6 | (p[3] & 0x3fu);
    return *cp < 0x10000 || *cp > 0x10ffff ? 0 : 4;
}

/* Writes the UTF-8 of cp to out[4], returns its length. Surrogates and too large become U+FFFD. */
size_t kg_utf8_put(uint32_t cp, char out[4]);

/* The unfinished character of a byte stream. Starts as {0}. */
struct kg_utf8_gate {
    uint8_t part[4]; /* [n] bytes of a character that may still become whole */
    uint8_t n;
    uint8_t need; /* bytes of the whole character, 0 while n is 0 */
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
