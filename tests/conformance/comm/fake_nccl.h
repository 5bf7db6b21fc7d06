/*
 * A CUDA driver and an NCCL of host memory, in one library: ranks are threads or processes, a
 * communicator has a thread that does what it is told, in order. What a test wants to go wrong is
 * written into the plan, which the library exports as `fake_nccl_plan`.
 */
#ifndef KEDGE_TESTS_CONFORMANCE_COMM_FAKE_NCCL_H
#define KEDGE_TESTS_CONFORMANCE_COMM_FAKE_NCCL_H

#include <stdatomic.h>

#define FAKE_RANKS 8

struct fake_plan {
    _Atomic int version;     /* what ncclGetVersion says */
    _Atomic int devices;     /* what cuDeviceGetCount says */
    _Atomic int init_result; /* what cuInit says */
    _Atomic int one_gpu;     /* all devices are the same */
    _Atomic int no_window;   /* a window is registered with success and without a window */
    _Atomic int capturing;   /* all streams are being captured */
    _Atomic int cuda_fails;  /* the n-th call that takes something from the driver fails; 0: none */
    _Atomic int cuda_rank;   /* of the device with this ordinal */

    /* By rank; those of calls hold for the next call and are then 0. */
    _Atomic int call_error[FAKE_RANKS];  /* what a collective returns */
    _Atomic int async_error[FAKE_RANKS]; /* what comes of it later */
    _Atomic int stuck[FAKE_RANKS];       /* it never ends, but by an abort */
    _Atomic int init_error[FAKE_RANKS];  /* what ncclCommInitRankConfig returns */
    _Atomic int init_hangs[FAKE_RANKS];  /* the rank never joins its communicators */
    _Atomic int abort_hangs[FAKE_RANKS];
    _Atomic int finalize_hangs[FAKE_RANKS];

    /* What is there and was not given back. */
    _Atomic int comms, streams, events, allocations, contexts;
    _Atomic int windows; /* registered ever */
};

#endif
