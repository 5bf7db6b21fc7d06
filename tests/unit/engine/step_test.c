/* The step on exec-null: outputs follow the script whatever happens around a request. */
#include "rig.h"

static void one_request_follows_the_script_to_its_length(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r, &(struct rig_conf){0});
    assert_int_equal(rig_submit(&r, 1, 37, 20, NULL), KG_OK);
    rig_run(&r, 100);
    assert_int_equal(r.outs[1].end.finish, KG_FINISH_LENGTH);
    assert_int_equal(r.outs[1].end.n_output, 20);
    rig_assert_true(&r, 1);
    rig_assert_empty(&r);
    rig_close(&r);
}

static void many_requests_share_steps_and_units_come_back(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r, &(struct rig_conf){0});
    for (uint32_t id = 1; id <= 40; id++) {
        assert_int_equal(rig_submit(&r, id, 1 + id % 23, 1 + id % 17, NULL), KG_OK);
    }
    rig_run(&r, 1000);
    for (uint32_t id = 1; id <= 40; id++) {
        assert_int_equal(r.outs[id].end.finish, KG_FINISH_LENGTH);
        rig_assert_true(&r, id);
    }
    rig_assert_empty(&r);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_request_follows_the_script_to_its_length),
        cmocka_unit_test(many_requests_share_steps_and_units_come_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
