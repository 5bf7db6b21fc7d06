/*
 * A CUDA driver of host memory that runs comm-symmem's kernels in the emulator: allocations are
 * memory files, handles travel as their descriptors, a stream is a thread. Exported as
 * `fake_cuda_plan`; ranks are threads (plan shared) or processes.
 */
#ifndef KEDGE_TESTS_CONFORMANCE_COMM_FAKE_CUDA_H
#define KEDGE_TESTS_CONFORMANCE_COMM_FAKE_CUDA_H

#include <stdatomic.h>

#define FAKE_DEVICES 8
#define FAKE_GRANULARITY (2u << 20)

struct fake_cuda_plan {
    _Atomic int devices;
    _Atomic int init_result;
    _Atomic int no_vmm;    /* devices cannot share memory by descriptor */
    _Atomic int capturing; /* all streams are being captured */
    _Atomic int fails;     /* the n-th call that takes or changes something fails; 0: none */
    _Atomic int fail_rank; /* of the device with this ordinal */
    _Atomic int stuck[FAKE_DEVICES]; /* the next launch on this device never begins, but when told
                                        to leave */
    /* What is there and was not given back. */
    _Atomic int handles, maps, ranges, hosts, modules, streams, events, contexts;
    _Atomic int faults; /* calls that break a rule of the driver */
};

#endif
