/*
 * What a test wants to go wrong in the driver of a fake device, and what is not given back to it.
 * Each fake exports it as `fake_driver_plan` beside a plan of its own; ranks are threads (plans
 * shared) or processes.
 */
#ifndef KEDGE_TESTS_CONFORMANCE_COMM_FAKE_PLAN_H
#define KEDGE_TESTS_CONFORMANCE_COMM_FAKE_PLAN_H

#include <stdatomic.h>

#define FAKE_DEVICES 8

struct fake_driver_plan {
    _Atomic int devices;     /* what cuDeviceGetCount says */
    _Atomic int init_result; /* what cuInit says */
    _Atomic int capturing;   /* all streams are being captured */
    _Atomic int fails;       /* the n-th call that takes or changes something fails; 0: none */
    _Atomic int fail_rank;   /* of the device with this ordinal */
    _Atomic int keeps;       /* 1 + the device of a rank that gives nothing back, by design: what it
                                takes is no leak to a sanitizer; 0: none */
    _Atomic int stuck[FAKE_DEVICES]; /* the next kernel of this rank never ends, but when told to */
    /* What is there and was not given back. */
    _Atomic int streams, events, contexts;
};

#endif
