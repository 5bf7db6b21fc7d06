/* Messages between ranks: their sizes are the backend's word, the algorithm the collectives', the
 * time a table's. */
#include "check.h"

#include <string.h>

#define A_STEP 8u /* kinds of messages of one step */

/* Asks who decides, then who measured. */
static void price(const struct kg_check *k, struct kg_check_message *row)
{
    const struct kg_choice *c = kg_config_choice(k->config, KG_KIND_COMM);
    const struct kg_comm_ops *ops = c->ref.plugin->ops;
    const struct kg_message *m = &row->m;

    row->bytes = m->count * kg_dtype_bytes(m->dtype);
    if (m->op == KG_COMM_REDUCE_SCATTER)
        row->bytes *= m->ranks; /* it gives a block for each rank */
    if (KG_HAS(ops, struct kg_comm_ops, choose)) {
        row->algorithm = ops->choose(c->conf, m->ranks, m->op, m->dtype, m->count);
        row->plugin = row->algorithm != NULL ? c->ref.plugin->name : NULL;
    }
    if (row->algorithm == NULL && m->us > 0) {
        row->algorithm = m->how;
        row->us = m->us;
        row->reckoned = 1;
        return;
    }
    if (row->algorithm == NULL && k->stack->group != NULL)
        row->plugin = c->ref.plugin->name; /* it has no word, but it will do it */
    row->basis = kg_comm_times_find(&k->times, &row->plugin, &row->algorithm, m->op, m->ranks,
                                    row->bytes, &row->us);
}

static void add_step(struct kg_check *k, const char *name, uint32_t rows, uint32_t samples)
{
    const struct kg_exec_ops *ops = k->stack->parts.exec_ops;
    struct kg_message m[A_STEP];

    uint32_t n = ops->messages(k->stack->parts.exec, rows, samples, m, A_STEP);
    for (uint32_t i = 0; i < n && i < A_STEP && k->n_messages < KG_CHECK_MESSAGES; i++) {
        struct kg_check_message *row = &k->messages[k->n_messages++];
        *row = (struct kg_check_message){.step = name, .rows = rows, .m = m[i]};
        price(k, row);
    }
}

int kg_check_comm(struct kg_check *k, struct kg_error *err)
{
    static const uint32_t batches[] = {1, 8, 32};
    const struct kg_engine_conf *e = &k->stack->conf->engine;
    const char *path = k->stack->conf->comm_times;
    uint32_t chunk = e->prefill_chunk < e->step_tokens ? e->prefill_chunk : e->step_tokens;

    int rc = path[0] != '\0' ? kg_comm_times_read(path, &k->times, err) : KG_OK;
    if (rc != KG_OK || !KG_HAS(k->stack->parts.exec_ops, struct kg_exec_ops, messages))
        return rc;
    for (size_t i = 0; i < sizeof(batches) / sizeof(batches[0]); i++) {
        if (batches[i] <= e->max_seqs && batches[i] <= e->step_tokens)
            add_step(k, "decode", batches[i], batches[i]);
    }
    add_step(k, "prefill", chunk, 1);
    return KG_OK;
}

static const char *basis_name(const struct kg_check_message *r)
{
    static const char *const names[] = {[KG_COMM_NOT_MEASURED] = "not measured",
                                        [KG_COMM_MEASURED] = "measured",
                                        [KG_COMM_BETWEEN] = "between sizes",
                                        [KG_COMM_BEYOND] = "beyond sizes"};

    return r->reckoned ? "the backend's" : names[r->basis];
}

static int is_priced(const struct kg_check_message *r)
{
    return r->reckoned || r->basis != KG_COMM_NOT_MEASURED;
}

void kg_check_comm_text(const struct kg_check *k, struct kg_buf *b)
{
    if (k->n_messages == 0)
        return;
    (void)kg_buf_printf(b, "%-12s what a rank of %u gives in a step; times: ", "messages",
                        k->messages[0].m.ranks);
    if (k->times.n > 0)
        (void)kg_buf_printf(b, "%s (%s)\n", k->stack->conf->comm_times, k->times.about);
    else
        (void)kg_buf_puts(b, k->messages[0].reckoned ? "what the backend reckons with\n"
                                                     : "[parallel] comm_times names no file\n");
    (void)kg_buf_printf(b, "%-12s %-13s %-17s %6s %10s  %-25s %9s %10s  %s\n", "", "step",
                        "message", "calls", "bytes", "algorithm", "us each", "us a step",
                        "time is");
    for (uint32_t i = 0; i < k->n_messages; i++) {
        const struct kg_check_message *r = &k->messages[i];
        char step[32], name[40], what[40], each[24] = "-", all[24] = "-";
        (void)snprintf(step, sizeof(step), "%s %u", r->step, r->rows);
        (void)snprintf(what, sizeof(what), "%.12s %s", r->m.what,
                       r->m.op == KG_COMM_ALL_REDUCE ? "sum" : kg_comm_op_name(r->m.op));
        (void)snprintf(name, sizeof(name), "%s%s%s",
                       r->reckoned ? ""
                       : r->plugin ? r->plugin
                                   : "-",
                       r->reckoned || r->plugin == NULL || r->algorithm == NULL ? "" : " ",
                       r->algorithm != NULL ? r->algorithm : "");
        if (is_priced(r)) {
            (void)snprintf(each, sizeof(each), "%.2f", r->us);
            (void)snprintf(all, sizeof(all), "%.1f", r->us * r->m.times);
        }
        (void)kg_buf_printf(b, "%-12s %-13s %-17s %6u %10llu  %-25s %9s %10s  %s\n", "", step, what,
                            r->m.times, (unsigned long long)r->bytes, name, each, all,
                            basis_name(r));
    }
}

void kg_check_comm_json(const struct kg_check *k, struct kg_buf *b)
{
    (void)kg_buf_puts(b, ",\"messages\":[");
    for (uint32_t i = 0; i < k->n_messages; i++) {
        const struct kg_check_message *r = &k->messages[i];
        (void)kg_buf_printf(b,
                            "%s{\"step\":\"%s\",\"rows\":%u,\"what\":\"%s\",\"op\":\"%s\","
                            "\"ranks\":%u,\"calls\":%u,\"bytes\":%llu",
                            i > 0 ? "," : "", r->step, r->rows, r->m.what, kg_comm_op_name(r->m.op),
                            r->m.ranks, r->m.times, (unsigned long long)r->bytes);
        if (!r->reckoned && r->plugin != NULL)
            (void)kg_buf_printf(b, ",\"plugin\":\"%s\"", r->plugin);
        if (r->algorithm != NULL)
            (void)kg_buf_printf(b, ",\"algorithm\":\"%s\"", r->algorithm);
        if (is_priced(r))
            kg_buf_key_f64(b, "us", r->us);
        (void)kg_buf_printf(b, ",\"time\":\"%s\"}", basis_name(r));
    }
    (void)kg_buf_putc(b, ']');
}
