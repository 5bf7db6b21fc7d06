/*
 * Multicast objects of the fake driver: which devices are in one and which have bound memory, in a
 * memory file that all ranks share. Its addresses stay closed: whoever touches them is no multimem
 * instruction, and those are plain accesses to the ranks' own addresses here.
 */
#ifndef KEDGE_TESTS_CONFORMANCE_COMM_FAKE_MULTICAST_H
#define KEDGE_TESTS_CONFORMANCE_COMM_FAKE_MULTICAST_H

#include <cuda.h>
#include <stdatomic.h>
#include <stddef.h>

#define FAKE_TEAM_BYTES 4096 /* of the file: no memory is that small */

struct fake_team {
    size_t bytes;
    unsigned all;                  /* a bit for each device it is for */
    _Atomic unsigned added, bound; /* bits of devices */
    _Atomic unsigned busy;         /* kernels that use it */
};

/* What CUmemGenericAllocationHandle is. */
struct fake_handle {
    int fd, device; /* device: where memory was made; -1: elsewhere */
    size_t bytes;
    struct fake_team *team; /* mapped; NULL: memory */
};

/* fake_cuda.c: one more handle; takes the descriptor. */
struct fake_handle *fake_handle_new(int fd, int device, size_t bytes);
/* Counts a rule of the driver that was broken; CUDA_SUCCESS when it was kept. */
CUresult fake_rule(int kept);

/* fake_multicast.c: maps the team of a handle whose file is one; ends that. */
void fake_team_open(struct fake_handle *h);
void fake_team_close(struct fake_handle *h);
/* Of addresses: those of an object begin at p, end at p, may be accessed from now on. Whether they
 * did. */
void fake_team_map(struct fake_team *team, CUdeviceptr p);
int fake_team_unmap(CUdeviceptr p);
int fake_team_access(CUdeviceptr p);
/* The object whose open addresses begin at p, with memory of all devices; else NULL. */
struct fake_team *fake_team_ready(CUdeviceptr p);

#endif
