/*
 * A CUDA driver and an NCCL of host memory, in one library: ranks are threads or processes, a
 * communicator has a thread that does what it is told, in order. What a test wants to go wrong is
 * written into the plan, which the library exports as `fake_nccl_plan`, beside fake_driver_plan.
 */
#ifndef KEDGE_TESTS_CONFORMANCE_COMM_FAKE_NCCL_H
#define KEDGE_TESTS_CONFORMANCE_COMM_FAKE_NCCL_H

#include "fake_plan.h"

#define FAKE_RANKS FAKE_DEVICES

struct fake_plan {
    _Atomic int version;   /* what ncclGetVersion says */
    _Atomic int one_gpu;   /* all devices are the same */
    _Atomic int no_window; /* a window is registered with success and without a window */

    /* By rank; those of calls hold for the next call and are then 0. */
    _Atomic int call_error[FAKE_RANKS];  /* what a collective returns */
    _Atomic int async_error[FAKE_RANKS]; /* what comes of it later */
    _Atomic int init_error[FAKE_RANKS];  /* what ncclCommInitRankConfig returns */
    _Atomic int init_hangs[FAKE_RANKS];  /* the rank never joins its communicators */
    _Atomic int abort_hangs[FAKE_RANKS];
    _Atomic int finalize_hangs[FAKE_RANKS];

    /* What is there and was not given back. */
    _Atomic int comms, allocations;
    _Atomic int windows; /* registered ever */
};

#endif
