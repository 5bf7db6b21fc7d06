/*
 * Step time from a table. The file is text, one `key value...` a line, '#' begins a comment:
 *
 *     kedge-cost 1               first line
 *     name WORD                  printed with results
 *     rows N NS                  a step of N rows in all, empty context; N rises, NS never falls
 *     decode_context_ns X        per decoding sequence and token of its context
 *     prefill_context_ns X       per prompt row and token before it
 *     state_copy_ns X            per state copied or checkpoint written
 *     move_mib_ns X              per MiB of units that changed place
 *     draft_ns X                 per step that drafted
 *
 *     step = rows(R) + decode_context_ns * sum(context) + prefill_context_ns * sum(row's context)
 *            + state_copy_ns * copies + move_mib_ns * MiB + draft_ns
 *
 * rows(R) is linear between the points; below the first it is the first, and a table that does not
 * reach the configured step_tokens is refused. So the step time never falls when anything rises.
 */
#ifndef KEDGE_EXEC_SIM_COST_H
#define KEDGE_EXEC_SIM_COST_H

#include <kedge/types.h>

#define SIM_COST_POINTS 64

struct sim_cost {
    char name[64];
    uint32_t n;
    uint32_t rows[SIM_COST_POINTS];
    double ns[SIM_COST_POINTS];
    double decode_context_ns, prefill_context_ns, state_copy_ns, move_mib_ns, draft_ns;
};

/* What a step carries. */
struct sim_work {
    uint64_t rows;
    double decode_context;  /* tokens, over decoding sequences */
    double prefill_context; /* tokens, over prompt rows */
    double moved_mib;
    uint32_t copies, drafted;
};

/* Reads and checks a table. KG_ENOENT, KG_EIO, KG_ECONFIG with file, line and key. */
int sim_cost_read(const char *path, struct sim_cost *cost, struct kg_error *err);
/* Nanoseconds of a step. */
uint64_t sim_cost_step(const struct sim_cost *cost, const struct sim_work *work);
/* Rounded, 0 below it. Files may name times that no integer holds, and lines that cross go on below
 * zero: eleven days at most, so that a clock that adds them up stays whole. */
uint64_t sim_whole_ns(double ns);

#endif
