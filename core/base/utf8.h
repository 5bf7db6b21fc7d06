/* UTF-8 as RFC 3629 has it: no overlong forms, no surrogates, at most U+10FFFF. */
#ifndef KEDGE_BASE_UTF8_H
#define KEDGE_BASE_UTF8_H

#include <stddef.h>
#include <stdint.h>

/* Decodes one character at s; its length 1..4 and *cp, or 0 when the bytes are broken or cut. */
size_t kg_utf8_decode(const char *s, size_t n, uint32_t *cp);
/* Where kg_utf8_decode answers 0 (n >= 1): bytes one U+FFFD stands for, the longest prefix of a
 * legal character there, at least 1. */
size_t kg_utf8_broken(const char *s, size_t n);
/* Whether the bytes at s are the beginning of a legal character that n cut short. */
int kg_utf8_is_cut(const char *s, size_t n);
/* Bytes of the longest valid prefix; n when all of it is valid. */
size_t kg_utf8_valid(const char *s, size_t n);
/* Writes a character to out[4]; its length, 0 for what is no character. */
size_t kg_utf8_encode(uint32_t cp, char *out);

#endif
