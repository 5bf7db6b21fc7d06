/*
 * Which drafts would have been right. A file of profiles, text, '#' begins a comment:
 *
 *     kedge-acceptance 1          first line
 *     domain NAME                 begins a profile; at most 32
 *     survive P1 P2 ...           chance that drafts 0..k are all accepted; falling, 1 .. 64 of
 * them insight R                   0..1: how much of a window's fate the drafter's confidence sees
 *     noise S                     error of the confidence told, standard deviation in logits
 *     pinned L                    instead of survive: every window emits L tokens on average, the
 * next lower or higher whole number, all requests alike (benchmarks do so)
 *
 * The first profile is that of requests without a domain, or with an unknown one. At each position
 * of a request one number is drawn, from its seed, the run's and the position alone: so every
 * policy meets the same luck, and drafts 0..k are right with exactly P(k+1), whatever is verified.
 * The draw is a normal variable R z + sqrt(1 - R^2) e: accepted are the drafts whose quantile of P
 * it stays below. The confidence told is the chance given z, which is calibrated, then moved by the
 * noise.
 */
#ifndef KEDGE_EXEC_SIM_ACCEPT_H
#define KEDGE_EXEC_SIM_ACCEPT_H

#include <kedge/types.h>

#define SIM_DOMAINS 32
#define SIM_SURVIVE 64
#define SIM_DOMAIN_NAME 24

struct sim_domain {
    char name[SIM_DOMAIN_NAME];
    uint32_t n;
    double survive[SIM_SURVIVE];  /* [n] */
    double quantile[SIM_SURVIVE]; /* [n] of the normal distribution */
    double insight, noise;
    double pinned; /* tokens a window, 0: by survive */
};

struct sim_acceptance {
    uint32_t n;
    struct sim_domain domains[SIM_DOMAINS];
};

/* Reads and checks a file. KG_ENOENT, KG_EIO, KG_ECONFIG with file and line. */
int sim_acceptance_read(const char *path, struct sim_acceptance *a, struct kg_error *err);
/* A profile of draft k + 1 right with p, given all before: what [exec-sim] accept says. */
void sim_acceptance_plain(struct sim_acceptance *a, double p);
/* The domain of a name, the first if there is none such. */
uint32_t sim_acceptance_find(const struct sim_acceptance *a, const char *name);
/* Drafts 0 .. result - 1 of n are right after `position` tokens of output of a seed's request;
 * survival[n] is what the drafter tells, NULL: not wanted. */
uint32_t sim_acceptance_draw(const struct sim_domain *d, uint64_t seed, uint32_t position,
                             uint32_t n, float *survival);
/* A normal variable of a stream of a seed. */
double sim_gauss(uint64_t seed, uint64_t stream);

#endif
