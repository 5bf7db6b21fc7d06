#include "stack_ranks.h"

#include "base/clock.h"
#include "base/hash.h"
#include "ranks/ranks.h"

#include <stdlib.h>
#include <string.h>

#define TAPE_BYTES (UINT64_C(4) << 20)
#define CHANNELS 2

/* What a rank opens its part of the model with; the same on all but for rank and comm. */
struct kg_stack_ranks {
    struct kg_ranks *ranks; /* rank 0 */
    struct kg_comm *comm;
    struct kg_exec_open args;
};

static int open_comm(struct kg_stack *s, struct kg_boot *boot, struct kg_comm **comm,
                     struct kg_error *err)
{
    const struct kg_choice *c = kg_config_choice(s->config, KG_KIND_COMM);
    const struct kg_comm_ops *ops = c->ref.plugin->ops;
    uint64_t caps = kg_config_choice(s->config, KG_KIND_EXEC)->ref.plugin->caps;
    const struct kg_comm_open args = {.size = sizeof(args),
                                      .rank = boot->rank,
                                      .world = boot->world,
                                      .boot = &boot->ops,
                                      .symm_bytes = s->conf->symm_bytes,
                                      .n_channels = CHANNELS,
                                      .device = boot->rank,
                                      .timeout_ns = s->conf->rank_timeout_ms * KG_NS_PER_MS,
                                      .memory = caps & KG_EXEC_CAP_CUDA ? KG_COMM_CAP_CUDA
                                                                        : KG_COMM_CAP_HOST};

    return ops->open(&s->hosts[KG_KIND_COMM]->host, c->conf, &args, comm, err);
}

/* Sizes that must be equal everywhere, or the ranks do not hold parts of one model. */
static uint64_t sizes_of(const struct kg_exec_ops *ops, const struct kg_exec *exec)
{
    struct kg_exec_desc d = {.size = sizeof(d)};

    ops->describe(exec, &d);
    const uint64_t said[] = {d.token_bytes,   d.draft_token_bytes, d.state_part_bytes, d.caps,
                             d.n_state_parts, d.page_tokens_align, d.n_layers,         d.vocab,
                             d.max_context,   d.max_orders,        d.draft_block,      d.max_draft};
    return kg_hash_bytes(said, sizeof(said), 0);
}

/* A rank above 0, in its own process: the stack is a copy of rank 0's as it was at the fork. */
static int be_rank(void *ctx, uint32_t rank, struct kg_boot *boot, struct kg_tape *tape)
{
    struct kg_stack *s = ctx;
    const struct kg_choice *exec = kg_config_choice(s->config, KG_KIND_EXEC);
    const struct kg_exec_ops *ops = exec->ref.plugin->ops;
    const struct kg_comm_ops *comm_ops = kg_config_choice(s->config, KG_KIND_COMM)->ref.plugin->ops;
    struct kg_exec_open args = s->group->args;
    struct kg_error mine = {0}, err = {0};
    struct kg_exec *x = NULL;
    int status = 1;

    args.rank = rank;
    mine.rc = open_comm(s, boot, &args.comm, &mine);
    if (mine.rc == KG_OK)
        mine.rc = ops->open(&s->hosts[KG_KIND_EXEC]->host, exec->conf, &args, &x, &mine);
    if (mine.rc != KG_OK && args.comm != NULL)
        comm_ops->abort(args.comm);
    if (kg_ranks_meet(boot, &mine, x != NULL ? sizes_of(ops, x) : 0, &err) == KG_OK) {
        memset(&err, 0, sizeof(err));
        status = kg_follow(tape, rank, ops, x, args.max_seqs, &err);
        if (status != 0)
            kg_log_line(&s->log, KG_LOG_ERROR, "ranks", "a rank gives up", "%s", err.text);
    }
    ops->close(x);
    comm_ops->close(args.comm);
    return status;
}

int kg_stack_ranks_open(struct kg_stack *s, struct kg_exec_open *args, struct kg_error *err)
{
    const struct kg_ranks_args group = {.world = s->conf->tp,
                                        .tape_bytes = TAPE_BYTES,
                                        .timeout_ns = s->conf->rank_timeout_ms * KG_NS_PER_MS,
                                        .follow = be_rank,
                                        .ctx = s,
                                        .log = &s->log};

    if (s->conf->tp == 1)
        return KG_OK;
    s->group = calloc(1, sizeof(*s->group));
    if (s->group == NULL)
        return kg_fail(err, KG_ENOMEM, "out of memory");
    args->world = s->conf->tp;
    args->ep = s->conf->ep;
    args->sp_rows = s->conf->sp_rows;
    args->allow_idle_rank = s->conf->allow_idle_rank;
    args->comm_ops = kg_config_choice(s->config, KG_KIND_COMM)->ref.plugin->ops;
    s->group->args = *args;
    int rc = kg_ranks_start(&group, &s->group->ranks, err);
    if (rc != KG_OK)
        return rc;
    struct kg_error mine = {0};
    rc = open_comm(s, kg_ranks_boot(s->group->ranks), &s->group->comm, &mine);
    args->comm = s->group->comm;
    return rc == KG_OK ? rc : kg_stack_ranks_meet(s, &mine, err);
}

static int well(void *ctx, struct kg_error *err)
{
    return kg_ranks_well(ctx, err);
}

int kg_stack_ranks_meet(struct kg_stack *s, const struct kg_error *mine, struct kg_error *err)
{
    struct kg_stack_ranks *g = s->group;

    if (g == NULL) {
        if (mine->rc != KG_OK)
            *err = *mine;
        return mine->rc;
    }
    if (mine->rc != KG_OK && g->comm != NULL)
        g->args.comm_ops->abort(g->comm);
    int rc =
        kg_ranks_meet(kg_ranks_boot(g->ranks), mine,
                      s->parts.exec != NULL ? sizes_of(s->parts.exec_ops, s->parts.exec) : 0, err);
    if (rc == KG_EDEVICE)
        (void)kg_ranks_killed(g->ranks, err); /* names it, where it did not end by itself */
    if (rc == KG_OK)
        rc = kg_ranks_watch(g->ranks, g->args.comm_ops, g->comm, err);
    if (rc == KG_OK)
        rc = kg_lead_open(g->ranks, s->parts.exec_ops, s->parts.exec, g->args.max_seqs,
                          &s->parts.exec_ops, &s->parts.exec, err);
    if (rc == KG_OK) {
        s->parts.well = well;
        s->parts.well_ctx = g->ranks;
    }
    return rc;
}

void kg_stack_ranks_stop(struct kg_stack *s)
{
    if (s->group == NULL)
        return;
    int bad = kg_ranks_stop(s->group->ranks);
    s->group->ranks = NULL;
    if (bad != 0)
        kg_log_line(&s->log, KG_LOG_WARN, "ranks", "ranks did not end by themselves", "n=%d", bad);
}

void kg_stack_ranks_close(struct kg_stack *s)
{
    if (s->group == NULL)
        return;
    if (s->group->comm != NULL)
        s->group->args.comm_ops->close(s->group->comm);
    free(s->group);
    s->group = NULL;
}
