/*
 * A slower home for pages and states, addressed by chain key (hash of all tokens up to a page or
 * state boundary, salted) and exact length in tokens. The core moves bytes through exec.read and
 * exec.write; a tier only keeps them. It may lose what it kept at any time, but for what is held.
 *
 * Engine thread only. put, has, get, drop and hold are called in a step: they allocate nothing.
 */
#ifndef KEDGE_TIER_H
#define KEDGE_TIER_H

#include <kedge/abi.h>
#include <kedge/host.h>

#define KG_TIER_MAJOR 2
#define KG_TIER_MINOR 0

struct kg_tier; /* one instance; private to the plugin */

/* Names one stored unit. */
struct kg_tier_key {
    uint64_t chain[2]; /* 128-bit hash of salt and tokens 0..length-1 */
    uint32_t length;   /* tokens */
    uint32_t kind;     /* enum kg_kind */
};

/* What the core will bring. */
struct kg_tier_geom {
    size_t size;                     /* sizeof(struct kg_tier_geom) */
    uint64_t unit_bytes[KG_N_KINDS]; /* bytes a unit counts for, > 0 */
    uint64_t copy_bytes[KG_N_KINDS]; /* bytes put and get copy, > 0, at most unit_bytes; fewer only
                                        where the backend's units hold nothing (NO_BYTES) */
};

struct kg_tier_ops {
    size_t size; /* sizeof(struct kg_tier_ops) as compiled */

    /* Takes all memory it will need. KG_ENOMEM, KG_EINVAL for a geometry that cannot be. */
    int (*open)(const struct kg_host *host, const void *conf, const struct kg_tier_geom *geom,
                struct kg_tier **tier, struct kg_error *err);
    void (*close)(struct kg_tier *tier); /* NULL is allowed */
    /* Keeps a copy. KG_EAGAIN when there is no room and nothing may be dropped. A second put of a
     * key replaces the bytes. */
    int (*put)(struct kg_tier *tier, const struct kg_tier_key *key, const void *bytes);
    /* 1 when the key is there, else 0. */
    int (*has)(const struct kg_tier *tier, const struct kg_tier_key *key);
    /* Copies the bytes out; KG_ENOENT when the key is gone. Any other failure counts as a miss too:
     * the caller drops the key. The caller checks the bytes, so a tier need not. */
    int (*get)(struct kg_tier *tier, const struct kg_tier_key *key, void *bytes);
    /* Forgets a key, held or not; one that is not there is ignored. */
    void (*drop)(struct kg_tier *tier, const struct kg_tier_key *key);
    /* on = 1: the key will be read soon and may not be dropped to make room; holds nest. KG_ENOENT
     * when it is not there. on = 0 ends one hold, or does nothing when there is none; where the
     * order of use decides what is dropped, the key was used then. */
    int (*hold)(struct kg_tier *tier, const struct kg_tier_key *key, uint32_t on);
    /* Bytes kept and bytes it may keep. */
    void (*bytes)(const struct kg_tier *tier, uint64_t *used, uint64_t *limit);
    /* Self-check. KG_OK or KG_EINVAL with text. */
    int (*check)(const struct kg_tier *tier, struct kg_error *err);
};

#endif
