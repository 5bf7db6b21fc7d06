/*
 * The script: what exec-null answers in place of a model. All of it is a function of the tokens a
 * sequence holds (and of its seed when it samples), so a request's output cannot depend on the
 * batch, the chunks, preemption or moves. Tests hold their own copy of these four rules:
 *
 *   h(0)   = 0x6b65646765
 *   h(k+1) = mix(h(k) + (token[k] + 1) * 0x9e3779b97f4a7c15)
 *   token at position p = mix(h(p) ^ noise) mod vocab, noise = 0 when greedy,
 *                         else mix(seed + p)
 *   a token that is a stop id while fewer than min_tokens are out gives way to the next id that
 *   is none
 *
 * mix is the finaliser of splitmix64. The last 8 bytes a token has in its page (the first 8 of
 * token_bytes) are h(p+1); each part i of a state holds h(length) + i, then the length.
 */
#ifndef KEDGE_EXEC_NULL_SCRIPT_H
#define KEDGE_EXEC_NULL_SCRIPT_H

#include <kedge/exec.h>

#define SCRIPT_START 0x6b65646765ull

static inline uint64_t script_mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

/* h(k+1) from h(k) and token k. */
static inline uint64_t script_next(uint64_t h, uint32_t token)
{
    return script_mix(h + ((uint64_t)token + 1) * 0x9e3779b97f4a7c15ull);
}

static inline int script_is_stop(const struct kg_sampling *s, uint32_t token)
{
    for (uint32_t i = 0; i < s->n_stop_ids; i++) {
        if (s->stop_ids[i] == token) {
            return 1;
        }
    }
    return 0;
}

/* The token at position `pos` after tokens with hash h; n_out output tokens came before it. */
static inline uint32_t script_token(uint64_t h, const struct kg_sampling *s, uint32_t pos,
                                    uint32_t n_out, uint32_t vocab)
{
    uint64_t noise = s->temperature > 0.0f ? script_mix(s->seed + pos) : 0;
    uint32_t token = (uint32_t)(script_mix(h ^ noise) % vocab);

    for (uint32_t i = 0; n_out < s->min_tokens && i <= s->n_stop_ids; i++) {
        if (!script_is_stop(s, token)) {
            break;
        }
        token = (token + 1) % vocab;
    }
    return token;
}

#endif
