/*
 * exec-cuda over the emulator against exec-cpu, both exact: the same steps, the same bits of
 * tokens, logits, states and pages. cuda_same_test MODEL; with KG_EMU_MEMORY set to too little,
 * cuda_same_test MODEL short: open or bind says what did not fit and leaves nothing behind.
 */
#include "xc.h"

#include <stdlib.h>
#include <string.h>

#ifdef XC_ON_DEVICE
#define DEVICE "cuda"
#else
#define DEVICE "cuda-emu"
#endif
#define N_SEQS 3
#define STEPS 14

struct pair {
    struct xc x[2]; /* the device, the host */
    struct xseq s[2][N_SEQS];
    uint64_t random;
};

static uint32_t below(struct pair *p, uint32_t n)
{
    p->random = p->random * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(p->random >> 33) % n;
}

static void open_one(struct xc *x, const char *name, const char *options)
{
    xc_name = name;
    xc_options = options;
    xc_open(x);
}

static void same_unit(struct pair *p, uint32_t kind, uint32_t a, uint32_t b)
{
    uint8_t *m = xc_read(&p->x[0], kind, a), *n = xc_read(&p->x[1], kind, b);

    if (kind == KG_STATE)
        assert_memory_equal(m, n, p->x[0].natural[kind]);
    free(m);
    free(n);
}

/* What the next step of sequence i is: on both sides the same. */
static void choose(struct pair *p, uint32_t i, uint32_t drafts[2][XC_DRAFT])
{
    struct xseq *a = &p->s[0][i];
    uint32_t left = a->n - a->past, rows = left, n_draft = 0, force = KG_NONE;

    if (left > 1) { /* a prompt, in chunks */
        rows = 1 + below(p, left < 11 ? left : 11);
    } else if (below(p, 2) == 0) { /* a window, of which 0 to all are accepted */
        n_draft = 1 + below(p, XC_DRAFT);
        rows = 1 + n_draft;
        force = below(p, n_draft + 1);
    }
    uint32_t token = below(p, 100), order = rows > 2 && n_draft == 0 ? 1 + below(p, rows) : 0;
    for (uint32_t side = 0; side < 2; side++) {
        struct xseq *s = &p->s[side][i];
        s->rows = rows;
        s->n_draft = n_draft;
        s->force = force;
        s->flags = KG_SEQ_LOGITS;
        for (uint32_t k = 0; k < n_draft; k++)
            drafts[side][k] = token + k;
        s->drafts = drafts[side];
        s->n_orders = 0;
        if (order > 0) {
            s->orders[0] = (struct kg_order){s->past + order, xc_take(&p->x[side], KG_STATE)};
            s->n_orders = 1;
        }
    }
}

static void compare(struct pair *p, uint32_t i, uint32_t rows)
{
    const struct xseq *a = &p->s[0][i], *b = &p->s[1][i];
    uint64_t vocab = p->x[0].desc.vocab;

    assert_int_equal(a->n, b->n);
    assert_int_equal(a->past, b->past);
    assert_int_equal(a->res.n_accepted, b->res.n_accepted);
    assert_memory_equal(a->tokens, b->tokens, a->n * sizeof(uint32_t));
    assert_non_null(a->res.logits);
    assert_memory_equal(a->res.logits, b->res.logits, rows * vocab * sizeof(float));
    same_unit(p, KG_STATE, a->state, b->state);
}

static void random_steps_give_the_bits_of_the_host(void **state)
{
    (void)state;
    struct pair *p = calloc(1, sizeof(*p));
    struct kg_error err = {0};
    assert_non_null(p);
    p->random = 7;
    open_one(&p->x[0], DEVICE, "math=exact threads=1");
    open_one(&p->x[1], "cpu", "math=exact threads=1");
    for (uint32_t i = 0; i < N_SEQS; i++)
        for (uint32_t side = 0; side < 2; side++)
            xseq_init(&p->x[side], &p->s[side][i], i, 9 + 7 * i, 40 + i);
    for (uint32_t t = 0; t < STEPS; t++) {
        uint32_t drafts[N_SEQS][2][XC_DRAFT], order[N_SEQS][2], rows[N_SEQS];
        for (uint32_t i = 0; i < N_SEQS; i++) {
            choose(p, i, drafts[i]);
            rows[i] = p->s[0][i].rows;
            for (uint32_t side = 0; side < 2; side++)
                order[i][side] =
                    p->s[side][i].n_orders > 0 ? p->s[side][i].orders[0].unit : KG_NONE;
        }
        for (uint32_t side = 0; side < 2; side++) {
            struct xseq *all[N_SEQS] = {&p->s[side][0], &p->s[side][1], &p->s[side][2]};
            if (xc_run(&p->x[side], all, N_SEQS, &err) != KG_OK)
                fail_msg("%s: %s", side == 0 ? "device" : "host", err.text);
        }
        for (uint32_t i = 0; i < N_SEQS; i++) {
            compare(p, i, rows[i]);
            if (order[i][0] == KG_NONE)
                continue;
            same_unit(p, KG_STATE, order[i][0], order[i][1]);
            for (uint32_t side = 0; side < 2; side++)
                xc_give(&p->x[side], KG_STATE, order[i][side]);
        }
        if (t % 4 == 3)
            xc_shuffle(&p->x[0]); /* of the device only: bits may not depend on it */
    }
    xc_close(&p->x[0]);
    xc_close(&p->x[1]);
    free(p);
}

static void too_little_memory_is_refused_and_nothing_stays(void **state)
{
    const struct kg_plugin *plugin = rig_find(KG_KIND_EXEC, DEVICE);
    struct kg_exec_open args = {.size = sizeof(args),
                                .model_path = xc_model,
                                .world = 1,
                                .max_seqs = XC_SEQS,
                                .max_rows = XC_ROWS,
                                .max_context = XC_CONTEXT};
    struct kg_error err = {0};
    struct kg_exec *e = NULL;
    struct rig_part part;

    (void)state;
    assert_non_null(plugin);
    const struct kg_exec_ops *ops = plugin->ops;
    rig_part_open(&part, plugin, "threads=1 stage_mib=1", 1);
    assert_int_equal(ops->open(&part.host, part.conf, &args, &e, &err), KG_ENOMEM);
    assert_null(e);
    assert_non_null(strstr(err.text, "bytes"));
    rig_part_closed(&part);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest same[] = {cmocka_unit_test(random_steps_give_the_bits_of_the_host)};
    const struct CMUnitTest little[] = {
        cmocka_unit_test(too_little_memory_is_refused_and_nothing_stays)};

#ifdef XC_ON_DEVICE /* a build for machines with a GPU takes no arguments */
    static char *device[] = {"gpu_same_test", XC_ON_DEVICE};

    if (argc < 2) {
        argc = 2;
        argv = device;
    }
#endif
    if (argc < 2)
        return 2;
    xc_model = argv[1];
    if (argc > 2)
        return cmocka_run_group_tests(little, NULL, NULL);
    xc_name = DEVICE;
    xc_options = "threads=1";
    if (xc_is_absent())
        return 77;
    return cmocka_run_group_tests(same, NULL, NULL);
}
