/* What of NCCL may be used, by the version that was found at run time. */
#ifndef KEDGE_COMM_NCCL_GATES_H
#define KEDGE_COMM_NCCL_GATES_H

#include <stddef.h>
#include <stdint.h>

enum nccl_feature {
    NCCL_PLAIN,          /* collectives on a communicator that does not block */
    NCCL_AVERAGE_ONE,    /* averages on a group of one */
    NCCL_GRAPHS_FAR,     /* graphs with collectives of several machines */
    NCCL_WINDOWS,        /* symmetric windows */
    NCCL_WINDOWS_OF_TWO, /* the same in a group of two */
    NCCL_WINDOWS_IN_ONE, /* several windows in one allocation */
    NCCL_N_FEATURES,
};

/* One gate. Versions are as ncclGetVersion gives them: 10000 * major + 100 * minor + patch. */
struct nccl_gate {
    const char *name;
    int from;        /* the first version that may */
    const char *why; /* what the versions before it do */
};

/* NULL for a number that is no feature. */
const struct nccl_gate *nccl_gate(enum nccl_feature feature);

/* Whether `version` may do it; a version below 2.0 or above 2.99 may do nothing. */
int nccl_allows(int version, enum nccl_feature feature);

/* "2.28.9"; n bytes, at most n - 1 written. */
void nccl_version_text(int version, char *text, size_t n);

/* The features this version may not use, "a, b"; "nothing" for none. Cut at n - 1 bytes. */
void nccl_gates_text(int version, char *text, size_t n);

#endif
