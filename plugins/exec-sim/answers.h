/*
 * The answers a replay wants: a file in the byte order of the machine,
 *
 *     8 bytes "KGANSW01", uint64 n, uint64 start[n + 1], uint32 token[start[n]]
 *     8 bytes "KGANSW02", the same, and char domain[n][24], padded with zeros
 *
 * A request whose sampling.seed is s (1 .. n) answers tokens start[s - 1] .. start[s] - 1 in order.
 * All other requests, and positions behind an answer, follow the script.
 */
#ifndef KEDGE_EXEC_SIM_ANSWERS_H
#define KEDGE_EXEC_SIM_ANSWERS_H

#include <kedge/types.h>

#define SIM_ANSWER_DOMAIN 24

struct sim_answers {
    const void *map; /* of the file; NULL for none */
    size_t bytes;
    uint64_t n;
    const uint64_t *start; /* [n + 1] */
    const uint32_t *tokens;
    const char *domains; /* [n][SIM_ANSWER_DOMAIN] or NULL: acceptance profiles by name */
};

/* Maps a file and checks it: tokens below vocab. KG_ENOENT, KG_EIO, KG_ECONFIG. */
int sim_answers_open(const char *path, uint32_t vocab, struct sim_answers *a, struct kg_error *err);
void sim_answers_close(struct sim_answers *a);
/* The answer of a seed, *n tokens; NULL when there is none. */
const uint32_t *sim_answers_find(const struct sim_answers *a, uint64_t seed, uint32_t *n);
/* The domain of a seed, "" where there is none. */
const char *sim_answers_domain(const struct sim_answers *a, uint64_t seed);

#endif
