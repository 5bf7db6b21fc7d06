#include "engine/chain.h"

#include <string.h>

struct sip {
    uint64_t v[4];
};

static uint64_t rotl(uint64_t x, unsigned n)
{
    return x << n | x >> (64 - n);
}

static void rounds(struct sip *s, int n)
{
    uint64_t a = s->v[0], b = s->v[1], c = s->v[2], d = s->v[3];

    while (n-- > 0) {
        a += b;
        c += d;
        b = rotl(b, 13) ^ a;
        d = rotl(d, 16) ^ c;
        a = rotl(a, 32);
        c += b;
        a += d;
        b = rotl(b, 17) ^ c;
        d = rotl(d, 21) ^ a;
        c = rotl(c, 32);
    }
    *s = (struct sip){{a, b, c, d}};
}

static struct sip begin(const uint64_t key[2])
{
    return (struct sip){
        {key[0] ^ UINT64_C(0x736f6d6570736575), key[1] ^ UINT64_C(0x646f72616e646f6d) ^ 0xee,
         key[0] ^ UINT64_C(0x6c7967656e657261), key[1] ^ UINT64_C(0x7465646279746573)}};
}

static void word(struct sip *s, uint64_t m)
{
    s->v[3] ^= m;
    rounds(s, 2);
    s->v[0] ^= m;
}

/* All whole words of n bytes; returns what is behind them, in the low bytes of a word. */
static uint64_t words(struct sip *s, const void *bytes, size_t n)
{
    const unsigned char *p = bytes;
    uint64_t m = 0;

    for (; n >= 8; n -= 8, p += 8) {
        memcpy(&m, p, 8); /* little-endian machines only, as everywhere here */
        word(s, m);
    }
    m = 0;
    memcpy(&m, p, n);
    return m;
}

static struct kg_chain end(struct sip *s, uint64_t rest, uint64_t n_bytes)
{
    struct kg_chain out;

    word(s, rest | n_bytes << 56);
    s->v[2] ^= 0xee;
    rounds(s, 4);
    out.w[0] = s->v[0] ^ s->v[1] ^ s->v[2] ^ s->v[3];
    s->v[1] ^= 0xdd;
    rounds(s, 4);
    out.w[1] = s->v[0] ^ s->v[1] ^ s->v[2] ^ s->v[3];
    return out;
}

struct kg_chain kg_siphash128(const uint64_t key[2], const void *bytes, size_t n)
{
    struct sip s = begin(key);
    uint64_t rest = words(&s, bytes, n);

    return end(&s, rest, n);
}

struct kg_chain kg_chain_start(const uint64_t key[2], uint64_t salt)
{
    return kg_siphash128(key, &salt, sizeof(salt));
}

struct kg_chain kg_chain_next(const uint64_t key[2], const struct kg_chain *before,
                              const uint32_t *tokens, uint32_t n)
{
    struct sip s = begin(key);

    word(&s, before->w[0]);
    word(&s, before->w[1]);
    uint64_t rest = words(&s, tokens, n * sizeof(*tokens));
    return end(&s, rest, sizeof(*before) + n * sizeof(*tokens));
}
