#include "base/utf8.h"

/* Range of the second byte and number of bytes by first byte; 0 bytes: not a first byte. */
static size_t lead(unsigned char c, unsigned char *lo, unsigned char *hi)
{
    *lo = 0x80;
    *hi = 0xbf;
    if (c < 0x80)
        return 1;
    if (c >= 0xc2 && c <= 0xdf)
        return 2;
    if (c >= 0xe0 && c <= 0xef) {
        if (c == 0xe0)
            *lo = 0xa0; /* overlong below */
        if (c == 0xed)
            *hi = 0x9f; /* surrogates above */
        return 3;
    }
    if (c >= 0xf0 && c <= 0xf4) {
        if (c == 0xf0)
            *lo = 0x90;
        if (c == 0xf4)
            *hi = 0x8f; /* past U+10FFFF above */
        return 4;
    }
    return 0;
}

/* Legal bytes at s of the one character that begins there; *want is its full length or 0. */
static size_t legal(const char *s, size_t n, size_t *want)
{
    unsigned char lo, hi;

    *want = lead((unsigned char)s[0], &lo, &hi);
    if (*want == 0)
        return 0;
    for (size_t i = 1; i < *want; i++) {
        if (i == n || (unsigned char)s[i] < lo || (unsigned char)s[i] > hi)
            return i;
        lo = 0x80;
        hi = 0xbf;
    }
    return *want;
}

size_t kg_utf8_decode(const char *s, size_t n, uint32_t *cp)
{
    static const unsigned char mask[5] = {0, 0x7f, 0x1f, 0x0f, 0x07};
    size_t want;

    if (n == 0 || legal(s, n, &want) != want || want == 0)
        return 0;
    uint32_t v = (unsigned char)s[0] & mask[want];
    for (size_t i = 1; i < want; i++)
        v = v << 6 | ((unsigned char)s[i] & 0x3f);
    *cp = v;
    return want;
}

size_t kg_utf8_broken(const char *s, size_t n)
{
    size_t want;
    size_t got = legal(s, n, &want);

    return got > 0 ? got : 1;
}

int kg_utf8_is_cut(const char *s, size_t n)
{
    size_t want;

    return n > 0 && legal(s, n, &want) == n && want > n;
}

size_t kg_utf8_valid(const char *s, size_t n)
{
    size_t i = 0;

    while (i < n) {
        uint32_t cp;
        size_t len = kg_utf8_decode(s + i, n - i, &cp);
        if (len == 0)
            break;
        i += len;
    }
    return i;
}

size_t kg_utf8_encode(uint32_t cp, char *out)
{
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (char)(0xc0 | cp >> 6);
        out[1] = (char)(0x80 | (cp & 0x3f));
        return 2;
    }
    if (cp > 0x10ffff || (cp >= 0xd800 && cp <= 0xdfff))
        return 0;
    if (cp < 0x10000) {
        out[0] = (char)(0xe0 | cp >> 12);
        out[1] = (char)(0x80 | (cp >> 6 & 0x3f));
        out[2] = (char)(0x80 | (cp & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | cp >> 18);
    out[1] = (char)(0x80 | (cp >> 12 & 0x3f));
    out[2] = (char)(0x80 | (cp >> 6 & 0x3f));
    out[3] = (char)(0x80 | (cp & 0x3f));
    return 4;
}
