#include "base/utf8.h"
#include "text/tok_impl.h"

#define CUT_CHARS 400000
#define CUT_RUN 25000

/*
 * The Kimi split pattern in PCRE2's words. What differs in spelling, not in meaning:
 * - class intersection "letters but not Han" is a look-ahead before each letter; runs of plain
 * ASCII letters are taken in one go before it (no ASCII letter is in both letter classes, so giving
 *   some of such a run back can never help); the groups are atomic, so no run is tried twice;
 * - \p{Han} must say sc: (bare names mean script extensions to PCRE2);
 * - \s is spelled out as Unicode's White_Space: PCRE2's also has U+180E.
 */
#define WS     \
    "\\t-\\r " \
    "\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define NOT_HAN "(?!\\p{sc:Han})"
#define UPPER "(?>[A-Z]++|" NOT_HAN "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}])"
#define LOWER "(?>[a-z]++|" NOT_HAN "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}])"
#define PREFIX "[^\\r\\n\\p{L}\\p{N}]?"
#define SHORT_FORM "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"

static const char pattern_text[] = "[\\p{sc:Han}]++"
                                   "|" PREFIX UPPER "*" LOWER "++" SHORT_FORM "|" PREFIX UPPER
                                   "+" LOWER "*+" SHORT_FORM "|\\p{N}{1,3}"
                                   "| ?[^" WS "\\p{L}\\p{N}]++[\\r\\n]*+"
                                   "|[" WS "]*[\\r\\n]++"
                                   "|[" WS "]+(?![^" WS "])"
                                   "|[" WS "]++";

int kg_tok_pattern(struct kg_tok *tok, struct kg_error *err)
{
    int code;
    PCRE2_SIZE at;
    tok->pattern = pcre2_compile((PCRE2_SPTR)pattern_text, sizeof(pattern_text) - 1,
                                 PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED | PCRE2_NO_UTF_CHECK |
                                     PCRE2_NEVER_BACKSLASH_C,
                                 &code, &at, NULL);
    if (tok->pattern == NULL) {
        PCRE2_UCHAR text[160] = "";
        pcre2_get_error_message(code, text, sizeof(text));
        return kg_fail(err, KG_ECONFIG, "split pattern, offset %zu: %s", (size_t)at, (char *)text);
    }
    /* Without JIT the interpreter gives the same pieces, only slower. */
    (void)pcre2_jit_compile(tok->pattern, PCRE2_JIT_COMPLETE);
    return KG_OK;
}

size_t kg_tok_piece(const struct kg_tok *tok, struct kg_tok_scratch *scratch, const char *text,
                    size_t n)
{
    int rc = pcre2_match(tok->pattern, (PCRE2_SPTR)text, n, 0, PCRE2_NO_UTF_CHECK, scratch->match,
                         scratch->context);
    if (rc > 0) {
        size_t end = pcre2_get_ovector_pointer(scratch->match)[1];
        if (end > 0 && end <= n) {
            return end;
        }
    }
    /* The alternatives cover every character, so this is a limit of the matcher: go on by one. */
    uint32_t cp;
    size_t len = kg_utf8_decode(text, n, &cp);
    return len > 0 ? len : 1;
}

/* Space as the cutting rule means it: White_Space and the four ASCII separators. */
static bool is_space(uint32_t cp)
{
    if (cp < 0x80) {
        return cp == ' ' || (cp >= 0x09 && cp <= 0x0d) || (cp >= 0x1c && cp <= 0x1f);
    }
    return cp == 0x85 || cp == 0xa0 || cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200a) ||
           cp == 0x2028 || cp == 0x2029 || cp == 0x202f || cp == 0x205f || cp == 0x3000;
}

size_t kg_tok_cut(struct kg_tok_cutter *cutter, const char *text, size_t n)
{
    size_t i = 0;
    while (i < n) {
        if (cutter->chars == CUT_CHARS) {
            *cutter = (struct kg_tok_cutter){0};
            return i;
        }
        uint32_t cp = (uint8_t)text[i];
        size_t len = cp < 0x80 ? 1 : kg_utf8_decode(text + i, n - i, &cp);
        bool space = len > 0 && is_space(cp);
        if (space != cutter->space || cutter->run == 0) {
            cutter->space = space;
            cutter->run = 1;
        } else if (cutter->run == CUT_RUN) {
            cutter->run = 0;
            return i;
        } else {
            cutter->run++;
        }
        cutter->chars++;
        i += len > 0 ? len : 1;
    }
    return n;
}
