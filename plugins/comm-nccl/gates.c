#include "gates.h"

#include <stdio.h>
#include <string.h>

/* From fixes in NCCL's own tree and release notes, and from reports of other engines. */
static const struct nccl_gate gates[NCCL_N_FEATURES] = {
    [NCCL_PLAIN] = {"plain collectives", 22809, "is older than what comm-nccl was written against"},
    [NCCL_AVERAGE_ONE] = {"averages of one rank", 22907, "leaves the last elements as they were"},
    [NCCL_GRAPHS_FAR] = {"graphs across machines", 23004,
                         "deadlocks when a graph with collectives of several machines is replayed"},
    [NCCL_WINDOWS] = {"symmetric windows", 23007,
                      "starts its symmetric kernels before their input is written: sums of small "
                      "messages are wrong and nothing says so"},
    [NCCL_WINDOWS_OF_TWO] = {"symmetric windows of two ranks", 23102,
                             "deadlocks in the first all-gather of two ranks with a window"},
    [NCCL_WINDOWS_IN_ONE] = {"several windows in an allocation", 23102,
                             "delivers the bytes of another rank"},
};

const struct nccl_gate *nccl_gate(enum nccl_feature feature)
{
    return (unsigned int)feature < NCCL_N_FEATURES ? &gates[feature] : NULL;
}

int nccl_allows(int version, enum nccl_feature feature)
{
    const struct nccl_gate *g = nccl_gate(feature);

    return g != NULL && version >= 20000 && version < 30000 && version >= g->from;
}

void nccl_version_text(int version, char *text, size_t n)
{
    (void)snprintf(text, n, "%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
}

void nccl_gates_text(int version, char *text, size_t n)
{
    size_t at = 0;

    if (n == 0)
        return;
    text[0] = '\0';
    for (int f = 0; f < NCCL_N_FEATURES; f++) {
        if (nccl_allows(version, (enum nccl_feature)f))
            continue;
        int k = snprintf(text + at, n - at, "%s%s", at == 0 ? "" : ", ", gates[f].name);
        at = k < 0 || (size_t)k >= n - at ? n - 1 : at + (size_t)k;
    }
    if (at == 0)
        (void)snprintf(text, n, "nothing");
}
