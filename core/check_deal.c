/* What each rank holds, in the backend's words: it dealt the weights, or stands for ranks that
 * would. */
#include "check.h"

#include <string.h>

#define IND "             " /* below the names of check_print.c */

int kg_check_deal(struct kg_check *k, struct kg_error *err)
{
    const struct kg_exec_ops *ops = k->stack->parts.exec_ops;
    int rc;

    k->dealt = (struct kg_dealt){.size = sizeof(k->dealt)};
    if (!KG_HAS(ops, struct kg_exec_ops, dealt))
        return KG_OK;
    rc = ops->dealt(k->stack->parts.exec, &k->dealt);
    if (rc != KG_OK)
        k->dealt = (struct kg_dealt){.size = sizeof(k->dealt)};
    if (rc == KG_OK || rc == KG_ENOENT)
        return KG_OK;
    return kg_fail(err, rc, "how the model lies on its ranks could not be told: %s",
                   rc == KG_ENOMEM ? "out of memory" : "the backend refused");
}

/* Processes of ours; else ranks the backend stands for. */
static int is_group(const struct kg_check *k)
{
    return k->stack->group != NULL;
}

/* What bits do not depend on, within a number of ranks. */
struct promise {
    int batch, chunk, path;
    int every_rank; /* 1: sums are added in rank order, so also not on the run or on the rank */
};

static struct promise promise_of(const struct kg_check *k)
{
    const struct kg_choice *comm = kg_config_choice(k->config, KG_KIND_COMM);
    int fixed = !is_group(k) ||
                (kg_plugin_caps_of(comm->ref.plugin, comm->conf) & KG_COMM_CAP_FIXED_ORDER) != 0;
    uint64_t caps = k->stack->desc.caps;

    return (struct promise){fixed && (caps & KG_EXEC_CAP_INVARIANT_BATCH) != 0,
                            fixed && (caps & KG_EXEC_CAP_INVARIANT_CHUNK) != 0,
                            fixed && (caps & KG_EXEC_CAP_INVARIANT_PATH) != 0, fixed};
}

static void text_promise(const struct kg_check *k, struct kg_buf *b)
{
    const struct promise p = promise_of(k);

    if (!is_group(k))
        return;
    if (!p.every_rank) {
        (void)kg_buf_printf(b,
                            IND "comm-%s adds ranks in no fixed order: bits may differ from run "
                                "to run\n",
                            kg_config_choice(k->config, KG_KIND_COMM)->ref.plugin->name);
        return;
    }
    (void)kg_buf_printf(b,
                        IND "within %u ranks bits are independent of batch: %s, of prefill "
                            "chunks: %s, of the path: %s;\n" IND
                            "between numbers of ranks, and of blocks, they differ\n",
                        k->dealt.ranks, p.batch ? "yes" : "no", p.chunk ? "yes" : "no",
                        p.path ? "yes" : "no");
}

static void text_rows(const struct kg_dealt *d, struct kg_buf *b)
{
    (void)kg_buf_printf(b, IND "%-22s %8s %9s %9s %9s %9s %7s %5s\n", "what", "of all", "each",
                        "the last", "padding", "in all", "shares", "idle");
    for (uint32_t i = 0; i < d->n_rows; i++) {
        const struct kg_dealt_row *r = &d->rows[i];
        (void)kg_buf_printf(b, IND "%-22s %8llu %9llu %9llu %9llu %9llu %7u %5u\n", r->what,
                            (unsigned long long)r->n, (unsigned long long)r->each,
                            (unsigned long long)r->last, (unsigned long long)r->last_zero,
                            (unsigned long long)r->all_zero, r->ranks, r->idle);
    }
}

static void text_padding(const struct kg_dealt *d, struct kg_buf *b)
{
    if (d->first_weights > 0)
        (void)kg_buf_printf(
            b,
            IND "weights %llu bytes on the first rank, %llu on the last, of which "
                "%llu are padding; %llu on all\n",
            (unsigned long long)d->first_weights, (unsigned long long)d->last_weights,
            (unsigned long long)d->last_weights_zero, (unsigned long long)d->all_weights_zero);
    (void)kg_buf_printf(b,
                        IND "a state %llu bytes on each rank, on the last %llu are padding, on all "
                            "%llu; a page is whole on each\n",
                        (unsigned long long)d->state_bytes, (unsigned long long)d->last_state_zero,
                        (unsigned long long)d->all_state_zero);
}

static uint32_t most_idle(const struct kg_dealt *d)
{
    uint32_t most = 0;

    for (uint32_t i = 0; i < d->n_rows; i++)
        most = d->rows[i].idle > most ? d->rows[i].idle : most;
    return most;
}

static void text_rules(const struct kg_check *k, struct kg_buf *b)
{
    const struct kg_dealt *d = &k->dealt;
    const struct kg_conf *c = k->stack->conf;
    uint32_t on = d->ranks > d->blocks ? d->ranks / d->blocks : 1;

    if (d->blocks > 1)
        (void)kg_buf_printf(b, IND "experts in %u blocks (ep), a block on %u rank%s\n", d->blocks,
                            on, on == 1 ? "" : "s");
    else
        (void)kg_buf_puts(b, IND "experts not in blocks (ep = 1): every rank has a part of each\n");
    if (is_group(k) && c->sp_rows > 0)
        (void)kg_buf_printf(b, IND "sp_rows = %u: steps of so many rows are sequence-parallel\n",
                            c->sp_rows);
    else if (is_group(k))
        (void)kg_buf_puts(b, IND "sp_rows = 0: no step is sequence-parallel\n");
    if (most_idle(d) > 0)
        (void)kg_buf_printf(b,
                            IND "allow_idle_rank = yes: up to %u of the ranks have nothing of a "
                                "row above but padding\n",
                            most_idle(d));
    if (d->symm_bytes > 0)
        (void)kg_buf_printf(b, IND "symm_bytes = %llu, of which %llu are needed\n",
                            (unsigned long long)c->symm_bytes, (unsigned long long)d->symm_bytes);
    (void)kg_buf_printf(b, IND "whole on every rank: %s\n", d->everywhere);
}

void kg_check_deal_text(const struct kg_check *k, struct kg_buf *b)
{
    const struct kg_dealt *d = &k->dealt;

    if (d->ranks < 2)
        return;
    if (!is_group(k))
        (void)kg_buf_printf(b, IND "exec-%s stands for %u ranks, by their shape:\n",
                            kg_config_choice(k->config, KG_KIND_EXEC)->ref.plugin->name, d->ranks);
    text_rows(d, b);
    text_padding(d, b);
    text_rules(k, b);
    text_promise(k, b);
}

static void json_rows(const struct kg_dealt *d, struct kg_buf *b)
{
    (void)kg_buf_puts(b, ",\"parts\":[");
    for (uint32_t i = 0; i < d->n_rows; i++) {
        const struct kg_dealt_row *r = &d->rows[i];
        (void)kg_buf_puts(b, i > 0 ? ",{" : "{");
        kg_buf_key_str(b, "what", r->what);
        kg_buf_key_u64(b, "of_all", r->n);
        kg_buf_key_u64(b, "each", r->each);
        kg_buf_key_u64(b, "last", r->last);
        kg_buf_key_u64(b, "last_padding", r->last_zero);
        kg_buf_key_u64(b, "padding", r->all_zero);
        kg_buf_key_u64(b, "shares", r->ranks);
        kg_buf_key_u64(b, "idle", r->idle);
        (void)kg_buf_putc(b, '}');
    }
    (void)kg_buf_putc(b, ']');
}

void kg_check_deal_json(const struct kg_check *k, struct kg_buf *b)
{
    const struct kg_dealt *d = &k->dealt;
    const struct kg_conf *c = k->stack->conf;
    const struct promise p = promise_of(k);

    if (d->ranks < 2)
        return;
    (void)kg_buf_printf(b, ",\"parallel\":{\"ranks\":%u,\"simulated\":%s,\"ep\":%u", d->ranks,
                        is_group(k) ? "false" : "true", d->blocks);
    kg_buf_key_u64(b, "sp_rows", is_group(k) ? c->sp_rows : 0);
    kg_buf_key_bool(b, "allow_idle_rank", c->allow_idle_rank);
    kg_buf_key_u64(b, "most_idle_ranks", most_idle(d));
    json_rows(d, b);
    kg_buf_key_u64(b, "first_weight_bytes", d->first_weights);
    kg_buf_key_u64(b, "last_weight_bytes", d->last_weights);
    kg_buf_key_u64(b, "last_weight_padding_bytes", d->last_weights_zero);
    kg_buf_key_u64(b, "weight_padding_bytes", d->all_weights_zero);
    kg_buf_key_u64(b, "state_bytes", d->state_bytes);
    kg_buf_key_u64(b, "last_state_padding_bytes", d->last_state_zero);
    kg_buf_key_u64(b, "state_padding_bytes", d->all_state_zero);
    kg_buf_key_u64(b, "symm_bytes", is_group(k) ? c->symm_bytes : 0);
    kg_buf_key_u64(b, "symm_bytes_needed", d->symm_bytes);
    kg_buf_key_str(b, "every_rank", d->everywhere);
    if (is_group(k))
        (void)kg_buf_printf(b,
                            ",\"promises\":{\"batch\":%s,\"chunk\":%s,\"path\":%s,"
                            "\"number_of_ranks\":false}",
                            p.batch ? "true" : "false", p.chunk ? "true" : "false",
                            p.path ? "true" : "false");
    (void)kg_buf_putc(b, '}');
}
