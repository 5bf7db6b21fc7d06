/*
 * How ranks meet before their collectives plugin has a channel of its own: a socket between each
 * two of them, made before they are started. It carries short messages and descriptors, in order.
 */
#ifndef KEDGE_RANKS_BOOT_H
#define KEDGE_RANKS_BOOT_H

#include <kedge/comm.h>

#define KG_BOOT_MAX_WORLD 64u
#define KG_BOOT_MAX_BYTES 4096u /* of one message; a longer all_gather is KG_ELIMIT */

struct kg_boot {
    struct kg_bootstrap ops; /* ctx is this struct */
    uint32_t rank, world;
    int fds[KG_BOOT_MAX_WORLD]; /* toward each other rank, owned; -1 for itself */
};

/* Makes the sockets of a group: fds[i * world + j] is rank i's end toward rank j, -1 where i == j,
 * all close-on-exec. fds has world * world entries and is the caller's to close. KG_EINVAL for a
 * world of 0 or above the most, KG_EIO when the system has no more descriptors (none stay open). */
int kg_boot_pairs(uint32_t world, int *fds, struct kg_error *err);

/* Closes what is open (>= 0) of n descriptors. */
void kg_boot_close_fds(int *fds, size_t n);

/* Takes over this rank's row of the pairs (`world` descriptors, now owned by *boot) and fills the
 * table. Calls of a rank are made by one thread. A rank whose process is gone is KG_EDEVICE, one
 * that does something else than this one KG_EINVAL, one that does nothing KG_ETIMEOUT. */
void kg_boot_init(struct kg_boot *boot, uint32_t rank, uint32_t world, const int *row);
void kg_boot_close(struct kg_boot *boot);

/* How far a rank came, after calls that may have failed on some ranks and not on others: an
 * all_gather that passes over what was left of them. A rank that is still in such a call gets
 * KG_EDEVICE from it once another one reports. */
int kg_boot_report(struct kg_boot *boot, const void *in, void *out, size_t bytes,
                   uint64_t deadline_ns);

#endif
