/*
 * A CUDA driver of host memory that runs comm-symmem's kernels in the emulator: allocations are
 * memory files, handles travel as their descriptors, a stream is a thread. Exported as
 * `fake_cuda_plan`, beside fake_driver_plan.
 */
#ifndef KEDGE_TESTS_CONFORMANCE_COMM_FAKE_CUDA_H
#define KEDGE_TESTS_CONFORMANCE_COMM_FAKE_CUDA_H

#include "fake_plan.h"

#define FAKE_GRANULARITY (2u << 20)
#define FAKE_MULTICAST_GRANULARITY (4u << 20)

struct fake_cuda_plan {
    _Atomic int no_vmm;       /* devices cannot share memory by descriptor */
    _Atomic int no_multicast; /* a bit for each device without it */
    _Atomic int no_unbind;    /* taking memory out of a multicast object fails */
    /* What is there and was not given back; bound: memories in multicast objects. */
    _Atomic int handles, maps, ranges, hosts, modules, bound;
    _Atomic int launched[4]; /* kernels: 1 push, 2 staged, 3 multicast */
    _Atomic int faults;      /* calls that break a rule of the driver */
};

#endif
