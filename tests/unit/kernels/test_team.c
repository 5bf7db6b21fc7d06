#include "kit.h"

#include <stdatomic.h>
#include <time.h>

#define MOST 1000

struct count {
    atomic_uint times[MOST];
    atomic_uint bad_member;
    uint32_t members;
};

static void count_task(void *arg, uint32_t task, uint32_t member)
{
    struct count *c = arg;

    atomic_fetch_add(&c->times[task], 1);
    if (member >= c->members)
        atomic_store(&c->bad_member, 1);
}

static void every_task_runs_once_before_run_returns(void **state)
{
    static struct count c;

    (void)state;
    for (uint32_t threads = 1; threads <= 5; threads += 2) {
        struct kg_team *team;

        assert_int_equal(kg_team_create(threads, &team, NULL), KG_OK);
        assert_int_equal(kg_team_size(team), threads);
        c.members = threads;
        for (uint32_t round = 0; round < 200; round++) {
            uint32_t n = round * 37 % MOST;

            memset(c.times, 0, sizeof(c.times));
            kg_team_run(team, count_task, &c, n);
            for (uint32_t i = 0; i < MOST; i++)
                assert_int_equal(c.times[i], i < n);
        }
        assert_int_equal(c.bad_member, 0);
        kg_team_destroy(team);
    }
}

static void slow_task(void *arg, uint32_t task, uint32_t member)
{
    struct timespec t = {.tv_nsec = task % 3 == 0 ? 2000000 : 1000};

    (void)nanosleep(&t, NULL);
    count_task(arg, task, member);
}

/* Members that sleep, and a caller that waits for a task as long as if its member was put aside:
 * what is wary afterwards waits in the other way, for the same. */
static void slow_rounds_and_sleeping_members_are_waited_for(void **state)
{
    static struct count c = {.members = 3};
    const struct timespec pause = {.tv_nsec = 1500000};
    struct kg_team *team;

    (void)state;
    assert_int_equal(kg_team_create(3, &team, NULL), KG_OK);
    for (uint32_t round = 0; round < 60; round++) {
        uint32_t n = 2 + round % 7;

        memset(c.times, 0, sizeof(c.times));
        kg_team_run(team, round % 4 == 0 ? slow_task : count_task, &c, n);
        for (uint32_t i = 0; i < n; i++)
            assert_int_equal(c.times[i], 1);
        if (round % 5 == 0)
            (void)nanosleep(&pause, NULL);
    }
    assert_int_equal(c.bad_member, 0);
    kg_team_destroy(team);
}

static void no_team_runs_on_the_caller(void **state)
{
    static struct count c = {.members = 1};

    (void)state;
    assert_int_equal(kg_team_size(NULL), 1);
    kg_team_run(NULL, count_task, &c, 10);
    assert_int_equal(c.times[9], 1);
    assert_int_equal(c.bad_member, 0);
    kg_team_destroy(NULL);
}

static void idle_team_can_be_destroyed_and_bad_sizes_are_refused(void **state)
{
    struct kg_team *team = NULL;
    struct kg_error err = {0};

    (void)state;
    assert_int_equal(kg_team_create(4, &team, &err), KG_OK);
    kg_team_destroy(team);
    team = NULL;
    assert_int_equal(kg_team_create(0, &team, &err), KG_EINVAL);
    assert_int_equal(kg_team_create(KG_TEAM_MAX + 1, &team, &err), KG_EINVAL);
    assert_non_null(strstr(err.text, "257"));
    assert_null(team);
}

static void tables_state_what_they_are(void **state)
{
    (void)state;
    for (EACH_TABLE(t)) {
        assert_int_equal(t.k->size, sizeof(struct kg_kernels));
        assert_int_equal(t.k->state_dtype, t.k->math == KG_MATH_FAST ? KG_BF16 : KG_F32);
        /* every operation is there: no NULL from the first pointer to the end of the table */
        void *fn;
        for (size_t at = offsetof(struct kg_kernels, product); at < sizeof(*t.k);
             at += sizeof(fn)) {
            memcpy(&fn, (const char *)t.k + at, sizeof(fn));
            assert_non_null(fn);
        }
    }
    assert_ptr_equal(kg_kernels_cpu(KG_MATH_FAST, KG_ISA_REF), kg_kernels_ref(KG_MATH_FAST));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_task_runs_once_before_run_returns),
        cmocka_unit_test(slow_rounds_and_sleeping_members_are_waited_for),
        cmocka_unit_test(no_team_runs_on_the_caller),
        cmocka_unit_test(idle_team_can_be_destroyed_and_bad_sizes_are_refused),
        cmocka_unit_test(tables_state_what_they_are),
    };

    return cmocka_run_group_tests(tests, say_skipped, NULL);
}
