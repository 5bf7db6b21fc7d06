/*
 * What the fake devices share: the start of a CUDA driver, contexts, the lives of streams and their
 * events. A fake says with its own streams how work is done.
 */
#ifndef KEDGE_TESTS_CONFORMANCE_COMM_FAKE_DRIVER_H
#define KEDGE_TESTS_CONFORMANCE_COMM_FAKE_DRIVER_H

#include "fake_plan.h"

#include <cuda.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#define FAKE __attribute__((visibility("default")))
/* Of each thread, in memory that a race detector sees the end of. */
#define FAKE_THREAD _Thread_local __attribute__((tls_model("initial-exec")))

FAKE extern struct fake_driver_plan fake_driver_plan;

/* First in the stream of a fake. */
struct CUstream_st {
    atomic_uint refs; /* the caller's, of events recorded in it, and what the fake adds */
    _Atomic uint64_t given, done; /* operations */
    pthread_mutex_t lock;
};

/* The device whose context is current in this thread, -1 for none. */
int fake_current(void);
/* Asked by every call that takes or changes something: this is the one that fails. */
int fake_fails(void);
/* Notes that p was taken on the current device; returns it. */
void *fake_taken(void *p);

/* A zeroed stream of `bytes` with one reference; NULL when the plan says that it fails. */
void *fake_stream_new(size_t bytes);
/* The last one frees. NULL: nothing. */
void fake_stream_unref(struct CUstream_st *s);

/* Of each fake: called before anybody is told how far the stream of an event is (NULL: an event
 * that was never recorded); an error is the answer of the query. */
CUresult fake_look(struct CUstream_st *s);

#endif
