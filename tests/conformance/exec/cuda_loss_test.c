/*
 * exec-cuda when the device has too little memory or is lost. The plugin is part of the program, so
 * the emulator can be asked how much is left and told when to fail. cuda_loss_test MODEL
 * [DRAFTER].
 */
#include "xc.h"

#include "tests/emu/emu.h"

#include <stdlib.h>
#include <string.h>

#define UNLIMITED (2ull << 30)
#define STEPS 7 /* memory limits tried between nothing and enough */

const struct kg_plugin *kg_plugin_entry(void);

static int try_open(struct xc *x, struct kg_error *err)
{
    struct kg_exec_open args = {.size = sizeof(args),
                                .model_path = xc_model,
                                .draft_path = xc_draft,
                                .world = 1,
                                .max_seqs = XC_SEQS,
                                .max_rows = XC_ROWS,
                                .max_context = XC_CONTEXT,
                                .max_draft = XC_DRAFT};

    memset(x, 0, sizeof(*x));
    rig_part_open(&x->part, xc_plugin, xc_options, 1);
    x->ops = xc_plugin->ops;
    return x->ops->open(&x->part.host, x->part.conf, &args, &x->exec, err);
}

static void limit(unsigned long long bytes)
{
    kg_emu_set_device(1, 9, 0, bytes);
}

static void says_what_did_not_fit(int rc, const struct kg_error *err)
{
    assert_int_equal(rc, KG_ENOMEM);
    if (strstr(err->text, "memory for ") == NULL && strstr(err->text, "memory of ") == NULL)
        fail_msg("\"%s\" does not say what for", err->text);
}

/* What an instance takes to open, and with units bound; and the layout it was bound to. */
static void measure(unsigned long long *open_bytes, unsigned long long *all_bytes,
                    struct kg_pool_layout *layout)
{
    struct xc x;
    struct kg_error err = {0};

    limit(UNLIMITED);
    assert_int_equal(try_open(&x, &err), KG_OK);
    *open_bytes = kg_emu_bytes();
    xc_close(&x);
    xc_open(&x);
    *all_bytes = kg_emu_bytes();
    *layout = x.layout;
    xc_close(&x);
    assert_int_equal(kg_emu_bytes(), 0);
    assert_true(*open_bytes > 0 && *all_bytes > *open_bytes);
}

static void open_without_the_memory_says_so_and_leaves_nothing(void **state)
{
    (void)state;
    unsigned long long need, all;
    struct kg_pool_layout layout;
    struct xc x;

    measure(&need, &all, &layout);
    for (unsigned long long i = 0; i <= STEPS; i++) {
        struct kg_error err = {0};
        limit(i == STEPS ? need - 1 : need / STEPS * i + 1);
        int rc = try_open(&x, &err);
        says_what_did_not_fit(rc, &err);
        assert_null(x.exec);
        rig_part_closed(&x.part);
        assert_int_equal(kg_emu_bytes(), 0);
    }
    limit(UNLIMITED);
}

static void bind_without_the_memory_says_so_and_close_leaves_nothing(void **state)
{
    (void)state;
    unsigned long long need, all;
    struct kg_pool_layout layout;
    struct xc x;

    measure(&need, &all, &layout);
    for (unsigned long long i = 0; i <= STEPS; i++) {
        struct kg_error err = {0};
        limit(i == STEPS ? all - 1 : need + (all - need) / STEPS * i);
        assert_int_equal(try_open(&x, &err), KG_OK);
        int rc = x.ops->bind(x.exec, &layout, &err);
        says_what_did_not_fit(rc, &err);
        xc_close(&x);
        assert_int_equal(kg_emu_bytes(), 0);
    }
    limit(all); /* what was measured is enough */
    xc_open(&x);
    xc_close(&x);
    limit(UNLIMITED);
}

static void lost(struct xc *x, struct xseq *s)
{
    struct kg_error err = {0};

    assert_int_equal(xc_run(x, &s, 1, &err), KG_EDEVICE);
    assert_true(strlen(err.text) > 0);
}

/* In the middle of a prefill, then of a recorded step that is launched again. */
static void a_device_lost_in_a_step_is_told_by_every_later_call(void **state)
{
    (void)state;
    for (uint32_t decoding = 0; decoding < 2; decoding++) {
        struct kg_error err = {0};
        struct xc x;
        struct xseq s;
        uint8_t bytes[64] = {0};
        xc_open(&x);
        xseq_init(&x, &s, 0, 9, 3);
        if (decoding)
            xc_generate(&x, &s, 64, 4);
        unsigned long long before = kg_emu_launches();
        kg_emu_lose_after(5);
        s.rows = s.n - s.past;
        lost(&x, &s);
        assert_int_equal(kg_emu_launches(), before + 5); /* nothing runs behind the failure */
        assert_non_null(strstr(kg_emu_fault(), "the device is lost"));
        lost(&x, &s);
        assert_int_equal(x.ops->read(x.exec, KG_STATE, s.state, bytes, sizeof(bytes)), KG_EINVAL);
        uint8_t *state_bytes = malloc(x.natural[KG_STATE]);
        assert_non_null(state_bytes);
        assert_int_equal(x.ops->read(x.exec, KG_STATE, s.state, state_bytes, x.natural[KG_STATE]),
                         KG_EDEVICE);
        free(state_bytes);
        xc_close(&x);
        kg_emu_lose_after(0);
        int rc = try_open(&x, &err); /* a device that stays lost opens no more */
        assert_true(rc < 0);
        assert_true(strlen(err.text) > 0);
        rig_part_closed(&x.part);
        kg_emu_reset();
    }
}

/* Within a draft: an error, and so is all that follows. */
static void a_device_lost_in_a_draft_is_told_by_every_later_call(void **state)
{
    float survival[XC_DRAFT];
    struct xc x;
    struct xseq s;

    (void)state;
    if (xc_draft == NULL)
        return;
    for (uint32_t after = 1; after < 60; after += 29) { /* in the block, in a head */
        xc_open(&x);
        xseq_init(&x, &s, 0, 9, 3);
        xc_generate(&x, &s, 64, 2);
        struct kg_draft d = {.slot = 0, .n = XC_DRAFT, .survival = survival};
        assert_int_equal(x.ops->draft(x.exec, &d, 1), KG_OK);
        assert_int_equal(d.n, XC_DRAFT);
        d.n = XC_DRAFT;
        kg_emu_lose_after(after);
        assert_int_equal(x.ops->draft(x.exec, &d, 1), KG_EDEVICE);
        assert_int_equal(x.ops->draft(x.exec, &d, 1), KG_EDEVICE);
        s.rows = 1;
        lost(&x, &s);
        xc_close(&x);
        kg_emu_lose_after(0);
        kg_emu_reset();
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(open_without_the_memory_says_so_and_leaves_nothing),
        cmocka_unit_test(bind_without_the_memory_says_so_and_close_leaves_nothing),
        cmocka_unit_test(a_device_lost_in_a_step_is_told_by_every_later_call),
        cmocka_unit_test(a_device_lost_in_a_draft_is_told_by_every_later_call),
    };

    if (argc < 2)
        return 2;
    xc_plugin = kg_plugin_entry();
    xc_name = xc_plugin->name;
    xc_options = "math=exact threads=1 stage_mib=1";
    xc_model = argv[1];
    xc_draft = argc > 2 ? argv[2] : NULL;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
