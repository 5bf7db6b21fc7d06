#include "serve/arms.h"

#include "base/hash.h"

#include <math.h>
#include <string.h>
#include <xxhash.h>

int kg_arms_field_parse(const char *text, enum kg_arms_field *field, const char **header)
{
    static const char *const words[] = {"user", "tenant", "request"};

    for (uint32_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        if (strcmp(text, words[i]) == 0) {
            *field = (enum kg_arms_field)i;
            *header = NULL;
            return KG_OK;
        }
    }
    if (strncmp(text, "header:", 7) != 0 || text[7] == '\0')
        return KG_EINVAL;
    for (const char *p = text + 7; *p != '\0'; p++) {
        if (*p <= ' ' || *p > '~' || strchr("()<>@,;:\\\"/[]?={}", *p) != NULL)
            return KG_EINVAL;
    }
    *field = KG_ARMS_HEADER;
    *header = text + 7;
    return KG_OK;
}

uint64_t kg_arms_key(const void *bytes, size_t n, uint64_t seed)
{
    uint64_t h = XXH3_64bits_withSeed(bytes, n, seed);

    return h != 0 ? h : 1;
}

/* When the arm's clock rings for this key: exponential with the rate `share`. */
static double ring_time(const struct kg_serve_arm *arm, uint64_t key)
{
    uint64_t h = kg_hash_mix(key ^ XXH3_64bits_withSeed(arm->name, strlen(arm->name), 0));
    double u = ((double)(h >> 11) + 0.5) * 0x1p-53; /* inside 0 .. 1 */

    return -log(u) / arm->share;
}

uint32_t kg_arms_pick(const struct kg_serve_arm *arms, uint32_t n, uint64_t key)
{
    uint32_t best = 0;
    double first = INFINITY;

    for (uint32_t i = 0; i < n; i++) {
        double t = arms[i].share > 0 ? ring_time(&arms[i], key) : INFINITY;
        if (t < first) {
            first = t;
            best = i;
        }
    }
    return best;
}

uint32_t kg_arms_find(const struct kg_serve_arm *arms, uint32_t n, const char *name, size_t len)
{
    uint32_t i = 0;

    while (i < n && (strlen(arms[i].name) != len || memcmp(arms[i].name, name, len) != 0))
        i++;
    return i;
}

int kg_arms_check_shares(const struct kg_serve_arm *arms, uint32_t n, struct kg_error *err)
{
    double sum = 0;

    for (uint32_t i = 0; i < n; i++) {
        if (!(arms[i].share >= 0 && arms[i].share <= 100))
            return kg_fail(err, KG_ECONFIG, "the share of %s is %g, wanted 0 .. 100", arms[i].name,
                           arms[i].share);
        sum += arms[i].share;
    }
    if (!(fabs(sum - 100) <= KG_ARMS_SHARE_SLACK))
        return kg_fail(err, KG_ECONFIG, "the shares add up to %.10g, wanted 100", sum);
    return KG_OK;
}
