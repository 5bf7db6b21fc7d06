/* What exec-null must answer, written again from the rules in its script.h: the tests' truth. */
#ifndef KEDGE_TESTS_UNIT_ENGINE_SCRIPT_H
#define KEDGE_TESTS_UNIT_ENGINE_SCRIPT_H

#include <kedge/exec.h>

static inline uint64_t truth_mix(uint64_t x)
{
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9ull;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebull;
    x ^= x >> 31;
    return x;
}

static inline uint64_t truth_hash(const uint32_t *tokens, uint32_t n)
{
    uint64_t h = 0x6b65646765ull;

    for (uint32_t i = 0; i < n; i++) {
        h = truth_mix(h + (tokens[i] + 1ull) * 0x9e3779b97f4a7c15ull);
    }
    return h;
}

/* The token after `n` tokens of which the prompt is n_prompt long. */
static inline uint32_t truth_next(const uint32_t *tokens, uint32_t n, uint32_t n_prompt,
                                  const struct kg_sampling *s, uint32_t vocab)
{
    uint64_t noise = s->temperature > 0 ? truth_mix(s->seed + n) : 0;
    uint32_t token = (uint32_t)(truth_mix(truth_hash(tokens, n) ^ noise) % vocab);

    for (;;) {
        uint32_t is_stop = 0;
        for (uint32_t i = 0; i < s->n_stop_ids; i++) {
            is_stop |= s->stop_ids[i] == token;
        }
        if (!is_stop || n - n_prompt >= s->min_tokens) {
            return token;
        }
        token = (token + 1) % vocab;
    }
}

#endif
