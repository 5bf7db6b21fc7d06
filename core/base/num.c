#include "base/num.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static int is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Digits at s into *v; the first byte behind them, NULL without digits; *over when too large. */
static const char *digits(const char *s, uint64_t *v, int *over)
{
    uint64_t x = 0;

    *over = 0;
    if (!is_digit(*s))
        return NULL;
    for (; is_digit(*s); s++) {
        uint64_t d = (uint64_t)(*s - '0');
        if (x > (UINT64_MAX - d) / 10)
            *over = 1;
        x = x * 10 + d;
    }
    *v = x;
    return s;
}

int kg_num_u64(const char *s, uint64_t *v)
{
    uint64_t x;
    int over;
    const char *end = digits(s, &x, &over);

    if (end == NULL || *end != '\0')
        return KG_EINVAL;
    if (over)
        return KG_ELIMIT;
    *v = x;
    return KG_OK;
}

int kg_num_u64_suffix(const char *s, uint64_t *v)
{
    static const char letters[] = "kKmMgGtT";
    uint64_t x;
    int over;
    const char *end = digits(s, &x, &over);
    unsigned shift = 0;

    if (end == NULL)
        return KG_EINVAL;
    if (*end != '\0') {
        const char *at = strchr(letters, *end);
        if (at == NULL || end[1] != '\0')
            return KG_EINVAL;
        shift = (unsigned)((at - letters) / 2 + 1) * 10;
    }
    if (over || x > UINT64_MAX >> shift)
        return KG_ELIMIT;
    *v = x << shift;
    return KG_OK;
}

/* Past the digits; whether there was one. */
static bool skip_digits(const char **p)
{
    const char *start = *p;

    while (is_digit(**p))
        (*p)++;
    return *p != start;
}

int kg_num_f64(const char *s, double *v)
{
    const char *p = s;

    if (*p == '-' || *p == '+')
        p++;
    bool good = skip_digits(&p);
    if (good && *p == '.') {
        p++;
        good = skip_digits(&p);
    }
    if (good && (*p == 'e' || *p == 'E')) {
        p++;
        if (*p == '-' || *p == '+')
            p++;
        good = skip_digits(&p);
    }
    if (!good || *p != '\0')
        return KG_EINVAL;
    double x = strtod(s, NULL);
    if (!isfinite(x))
        return KG_ELIMIT;
    *v = x;
    return KG_OK;
}

int kg_num_bool(const char *s, uint32_t *v)
{
    static const char *const words[] = {"no", "yes", "off", "on", "false", "true", "0", "1"};

    for (uint32_t i = 0; i < 8; i++) {
        if (strcasecmp(s, words[i]) == 0) {
            *v = i & 1;
            return KG_OK;
        }
    }
    return KG_EINVAL;
}
