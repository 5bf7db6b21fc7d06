/*
 * Arms of a server: which of them a request belongs to. A field of the request is hashed with a
 * configured seed, and the hash alone chooses: one client stays in one arm, in every process and
 * after a restart.
 *
 * Each arm draws an exponential time from the hash, divided by its share; the earliest wins
 * (weighted rendezvous hashing). A key leaves an arm only for one whose share grew against that
 * arm's, so a change of shares moves few keys: with two arms exactly the change, with more at most
 * 2 d / (1 + d), d being the sum of what was gained, which no rule without memory can better.
 */
#ifndef KEDGE_SERVE_ARMS_H
#define KEDGE_SERVE_ARMS_H

#include "engine/engine.h"

struct kg_serve_arm {
    const char *name;       /* at most 31 of a-z 0-9 _ - */
    double share;           /* percent of the keys; all together 100 */
    const char *class_name; /* class of its requests for the policy, "" for none */
    const char *overrides;  /* for people: "checkpoint = off, drafts = 4"; "" for nothing */
};

/* [arms] and the [arm NAME] sections, as far as they are the server's. */
struct kg_arms_conf {
    const char *field; /* see kg_arms_field */
    uint64_t seed;
    uint32_t share_cache; /* 1: arms find each other's prefixes */
    uint32_t n;           /* 0: no arms */
    struct kg_serve_arm arms[KG_MAX_ARMS];
};

enum kg_arms_field {
    KG_ARMS_USER = 0,    /* the body's `user` */
    KG_ARMS_TENANT = 1,  /* as [server] tenant_header says */
    KG_ARMS_REQUEST = 2, /* the request's id: every request by itself */
    KG_ARMS_HEADER = 3,  /* header:NAME, *header is NAME */
};

#define KG_ARMS_SHARE_SLACK 1e-6 /* shares may miss 100 by so much */

/* "user", "tenant", "request" or "header:NAME". KG_EINVAL: none of them. */
KG_CHECKED int kg_arms_field_parse(const char *text, enum kg_arms_field *field,
                                   const char **header);
/* Hash of a field's n bytes, the same on every machine; never 0. */
uint64_t kg_arms_key(const void *bytes, size_t n, uint64_t seed);
/* The arm of a key; arms whose share is 0 are nobody's. n >= 1, some share above 0. Names count,
 * not places. */
uint32_t kg_arms_pick(const struct kg_serve_arm *arms, uint32_t n, uint64_t key);
/* Index of a name, n when there is none. */
uint32_t kg_arms_find(const struct kg_serve_arm *arms, uint32_t n, const char *name, size_t len);
/* Whether every share lies in 0 .. 100 and all add up to 100; KG_ECONFIG with the sum. */
KG_CHECKED int kg_arms_check_shares(const struct kg_serve_arm *arms, uint32_t n,
                                    struct kg_error *err);

#endif
