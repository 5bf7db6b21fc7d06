/* What a script is given, what it may answer, what is remembered, budgets of a step, reloading. */
#include "base/clock.h"
#include "policy/keys.h"
#include "script_rig.h"

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static void open_script(struct rig *r, const char *script, const struct kg_policy_conf *conf)
{
    if (rig_open(r, script, conf) != KG_OK)
        fail_msg("%s", r->err.text);
}

static struct kg_policy_arrived arrive(struct rig *r, uint64_t now_ns)
{
    struct kg_policy_arrive req = rig_request();
    struct kg_policy_load load = rig_load(now_ns);
    struct kg_policy_arrived out;

    kg_policy_arrive(r->policy, &req, &load, &out);
    return out;
}

/* --- given --- */

static void arrive_sees_every_field_and_no_more(void **state)
{
    static const char script[] =
        "function arrive(req, view)\n"
        "  if req.user ~= 'ann' then return end\n"
        "  local want = {tenant='acme', user='ann', arm='blue', endpoint='chat', stream=false, echo=false,\n"
        "    prompts=1, n=1, prompt_tokens=100, max_tokens=50, priority=0}\n"
        "  local seen = {now_s=2.5, sequences=3, max_sequences=1024, running=2, waiting=1,\n"
        "    arena_bytes=1000000, live_bytes=400000, cached_bytes=100000, promised_bytes=50000}\n"
        "  for k, v in pairs(want) do assert(req[k] == v, k) end\n"
        "  for k in pairs(req) do assert(want[k] ~= nil, k) end\n"
        "  for k, v in pairs(seen) do assert(view[k] == v, k) end\n"
        "  for k in pairs(view) do assert(seen[k] ~= nil, k) end\n"
        "  return {tenant = 'checked'}\n"
        "end\n";
    struct rig r;

    (void)state;
    open_script(&r, script, NULL);
    struct kg_policy_arrived out = arrive(&r, 2500000000);
    if (out.reject != 0)
        fail_msg("%s", r.log[0]);
    assert_string_equal(out.tenant, "checked");
    rig_close(&r);
}

static void admit_sees_every_field_and_no_more(void **state)
{
    static const char script[] =
        "function admit(req, view)\n"
        "  if req.waited_ms ~= 7 then return end\n"
        "  local want = {tenant='acme', class='', arm='green', priority=2, prompt_tokens=100,\n"
        "    max_tokens=50, hit_page_tokens=0, hit_state_tokens=0, waited_ms=7,\n"
        "    need_pages=3, need_states=1, need_bytes=8000}\n"
        "  local seen = {now_s=1, waiting=4, running=6, max_running=64, step_tokens=512,\n"
        "    arena_bytes=1000000, free_bytes=500000, promised_bytes=9000, page_live_bytes=300000,\n"
        "    state_live_bytes=100000, page_cached_bytes=60000, state_cached_bytes=40000,\n"
        "    pages_live=300, states_live=20, pages_cached=60, states_cached=8}\n"
        "  for k, v in pairs(want) do assert(req[k] == v, k) end\n"
        "  for k in pairs(req) do assert(want[k] ~= nil, k) end\n"
        "  for k, v in pairs(seen) do assert(view[k] == v, k) end\n"
        "  for k in pairs(view) do assert(seen[k] ~= nil, k) end\n"
        "  return 'defer', 40\n"
        "end\n"
        "function window(class, view)\n"
        "  if class.verified ~= 200 then return end\n"
        "  local want = {tenant='acme', class='chat', arm='red', sequences=3, context_tokens=4096,\n"
        "    verified=200, accepted=120}\n"
        "  for k, v in pairs(want) do assert(class[k] == v, k) end\n"
        "  for k in pairs(class) do assert(want[k] ~= nil, k) end\n"
        "  assert(view.now_s == 1 and view.block == 7 and view.batch == 12)\n"
        "  return 5\n"
        "end\n";
    struct rig r;
    struct kg_policy_admit req = rig_admit();
    struct kg_policy_class class = rig_class();
    struct kg_policy_admitted out;
    struct kg_policy_window window;

    (void)state;
    open_script(&r, script, NULL);
    if (!kg_policy_admit(r.policy, &req, &out) || !kg_policy_window(r.policy, &class, &window))
        fail_msg("%s", r.log[0]);
    assert_int_equal(out.verdict, KG_VERDICT_DEFER);
    assert_int_equal(out.defer_ms, 40);
    assert_true(window.has_cap && window.length == 5);
    rig_close(&r);
}

/* --- answered --- */

static void answers_of_arrive_mean_what_the_guide_says(void **state)
{
    static const struct {
        const char *body;
        struct kg_policy_arrived want;
    } cases[] = {
        {"return", {0}},
        {"return nil", {0}},
        {"return true", {0}},
        {"return {}", {0}},
        {"return 'reject', 'too many'", {.reject = 429, .reason = "too many"}},
        {"return 'reject', 'go away', 403", {.reject = 403, .reason = "go away"}},
        {"return 'reject', 'busy\\n\\1now', 503.0", {.reject = 503, .reason = "busy  now"}},
        {"return {tenant = 'a', class = 'batch', priority = 7, max_tokens = 9}",
         {.tenant = "a",
          .class_name = "batch",
          .has_priority = true,
          .priority = 7,
          .max_tokens = 9}},
        {"return {priority = 0}", {.has_priority = true}},
        {"return {max_tokens = 8.0}", {.max_tokens = 8}},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct rig r;
        char text[300];
        (void)snprintf(text, sizeof(text), "function arrive(req) do %s end end", cases[i].body);
        open_script(&r, text, NULL);
        struct kg_policy_arrived out = arrive(&r, 0);
        if (memcmp(&out, &cases[i].want, sizeof(out)) != 0)
            fail_msg("%s: %u %s", cases[i].body, out.reject, out.reason);
        rig_close(&r);
    }
}

static void a_long_reason_is_cut_between_characters(void **state)
{
    struct rig r;

    (void)state;
    /* 158 bytes, then a character of two bytes that would pass the limit in its middle. */
    open_script(&r,
                "local s = 'x' for i = 1, 157 do s = s .. 'x' end\n"
                "function arrive() return 'reject', s .. '\\u{e9}' .. s end",
                NULL);
    struct kg_policy_arrived out = arrive(&r, 0);
    assert_int_equal(strlen(out.reason), 158);
    assert_int_equal(out.reason[157], 'x');
    rig_close(&r);
}

static void answers_of_window_are_cut_to_the_block(void **state)
{
    static const struct {
        const char *body;
        bool has_cap, has_set;
        uint32_t length;
    } cases[] = {{"return", false, false, 0},        {"return true", false, false, 0},
                 {"return 0", true, false, 0},       {"return 100", true, false, 7},
                 {"return 'pause'", false, true, 0}, {"return 'set', 3", false, true, 3},
                 {"return 'set', 9", false, true, 7}};

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct rig r;
        char text[300];
        struct kg_policy_class class = rig_class();
        struct kg_policy_window out;
        (void)snprintf(text, sizeof(text), "function window() do %s end end", cases[i].body);
        open_script(&r, text, NULL);
        assert_true(kg_policy_window(r.policy, &class, &out));
        assert_int_equal(out.has_cap, cases[i].has_cap);
        assert_int_equal(out.has_set, cases[i].has_set);
        assert_int_equal(out.length, cases[i].length);
        rig_close(&r);
    }
}

static void a_failing_arrive_is_answered_as_configured(void **state)
{
    static const char script[] = "function arrive(r) if r.user == 'ann' then error('oh') end end";
    struct rig r;
    struct kg_policy_conf conf = rig_conf(&r);

    (void)state;
    open_script(&r, script, NULL);
    struct kg_policy_arrived out = arrive(&r, 0);
    assert_int_equal(out.reject, 503);
    assert_string_equal(r.log[0], "failure arrive: policy.lua:1: oh");
    rig_close(&r);
    conf.admit_on_error = true;
    open_script(&r, script, &conf);
    out = arrive(&r, 0);
    assert_int_equal(out.reject, 0);
    assert_int_equal(r.n_log, 1);
    rig_close(&r);
}

static void hooks_a_script_lacks_are_not_called(void **state)
{
    struct rig r;
    struct kg_policy_admit req = rig_admit();
    struct kg_policy_class class = rig_class();
    struct kg_policy_admitted out;
    struct kg_policy_window window;

    (void)state;
    open_script(&r, "local function arrive() error('never') end", NULL);
    assert_false(kg_policy_has(r.policy, KG_HOOK_ARRIVE));
    assert_false(kg_policy_has(r.policy, KG_HOOK_ADMIT));
    assert_false(kg_policy_admit(r.policy, &req, &out));
    assert_false(kg_policy_window(r.policy, &class, &window));
    assert_int_equal(arrive(&r, 0).reject, 0);
    assert_int_equal(r.n_log, 0);
    rig_close(&r);
}

/* --- remembered --- */

static void a_bucket_refills_by_the_callers_clock_alone(void **state)
{
    struct rig r;

    (void)state;
    /* 2 a second, 4 at once. */
    open_script(&r,
                "function arrive(req)\n"
                "  local ok, wait = kg.rate('t:' .. req.tenant, 2, 4)\n"
                "  if not ok then return 'reject', 'wait ' .. wait end\n"
                "end",
                NULL);
    for (int i = 0; i < 4; i++)
        assert_int_equal(arrive(&r, KG_NS_PER_S).reject, 0);
    struct kg_policy_arrived out = arrive(&r, KG_NS_PER_S);
    assert_int_equal(out.reject, 429);
    assert_string_equal(out.reason, "wait 0.5");
    assert_int_equal(arrive(&r, KG_NS_PER_S + 499 * KG_NS_PER_MS).reject, 429);
    assert_int_equal(arrive(&r, KG_NS_PER_S + 500 * KG_NS_PER_MS).reject, 0);
    assert_int_equal(arrive(&r, KG_NS_PER_S).reject, 429); /* a clock that fell gives nothing */
    for (int i = 0; i < 4; i++)
        assert_int_equal(arrive(&r, 100 * KG_NS_PER_S).reject, 0);
    assert_int_equal(arrive(&r, 100 * KG_NS_PER_S).reject, 429);
    rig_close(&r);
}

static void a_cost_above_the_burst_never_passes(void **state)
{
    static struct kg_keys keys;

    (void)state;
    assert_true(isinf(kg_keys_take(&keys, "k", 1, 0, 10, 100, 101)));
    assert_true(kg_keys_take(&keys, "k", 1, 0, 10, 100, 100) == 0);
    assert_true(kg_keys_take(&keys, "k", 1, 0, 10, 100, 50) == 5);
    assert_true(isinf(kg_keys_take(&keys, "k", 1, 0, 0, 100, 50)));
}

/* Against the plain sum: what passed in a time never exceeds burst + rate * time. */
static void a_bucket_never_lets_more_through_than_it_promised(void **state)
{
    static struct kg_keys keys;
    uint64_t now = 0, seed = 7;
    double passed = 0;

    (void)state;
    for (int i = 0; i < 20000; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        now += (seed >> 33) % 50000000; /* 0..50 ms */
        double cost = (double)((seed >> 50) % 5);
        if (kg_keys_take(&keys, "k", 1, now, 20, 10, cost) == 0)
            passed += cost;
        assert_true(passed <= 10 + 20 * (double)now * 1e-9 + 1e-6);
    }
    assert_true(passed > 0.9 * 20 * (double)now * 1e-9); /* and it is used up */
}

static void keys_are_bounded_and_the_oldest_gives_way(void **state)
{
    static struct kg_keys keys;
    char name[32];

    (void)state;
    for (int i = 0; i < 100000; i++) {
        kg_keys_get(&keys, "kept", 4)->level += 1; /* in use, so it stays */
        int n = snprintf(name, sizeof(name), "k%d", i);
        kg_keys_get(&keys, name, (size_t)n)->level = i;
    }
    assert_true(kg_keys_get(&keys, "kept", 4)->level == 100000);
    assert_true(kg_keys_get(&keys, "k99999", 6)->level == 99999);
    assert_true(kg_keys_get(&keys, "k0", 2)->level == 0); /* came back as new */
    assert_true(keys.evicted > 100000 - KG_KEYS - 2);
}

static void rates_and_counts_survive_a_reload(void **state)
{
    static const char script[] = "function arrive(r)\n"
                                 "  local n = kg.count('all')\n"
                                 "  if not kg.rate('k', 0, 3) then return 'reject', '' .. n end\n"
                                 "end\n"
                                 "function admit() return {lifetime = kg.count('a') > 2 and 'max' "
                                 "or 'prompt'} end\n";
    struct rig r;
    struct kg_policy_admit req = rig_admit();
    struct kg_policy_admitted out;

    (void)state;
    open_script(&r, script, NULL);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(arrive(&r, 0).reject, 0);
        assert_true(kg_policy_admit(r.policy, &req, &out));
        assert_int_equal(out.lifetime, KG_POLICY_LIFETIME_PROMPT);
    }
    assert_int_equal(kg_policy_reload(r.policy, &r.err), KG_OK);
    kg_policy_step(r.policy);
    assert_int_equal(arrive(&r, 0).reject, 0);
    struct kg_policy_arrived fourth = arrive(&r, 0);
    assert_string_equal(fourth.reason, "4"); /* trying the script counted nothing */
    assert_true(kg_policy_admit(r.policy, &req, &out));
    assert_int_equal(out.lifetime, KG_POLICY_LIFETIME_MAX);
    rig_close(&r);
}

static void strings_are_compared_plainly(void **state)
{
    struct rig r;

    (void)state;
    open_script(&r,
                "assert(kg.starts_with('abc', 'ab') and kg.starts_with('abc', ''))\n"
                "assert(not kg.starts_with('abc', 'b') and not kg.starts_with('a', 'ab'))\n"
                "assert(kg.contains('abc', 'bc') and kg.contains('a%d', '%d'))\n"
                "assert(not kg.contains('abc', '.') and not kg.contains('', 'a'))\n"
                "assert(kg.contains('', '') and kg.contains('a\\0b', '\\0b'))\n",
                NULL);
    rig_close(&r);
}

static void log_lines_are_one_line_and_short(void **state)
{
    struct rig r;

    (void)state;
    open_script(&r,
                "function arrive(q) if q.user == 'ann' then kg.log('a\\nb\\0c\\27[31m') end end "
                "kg.log('while loading: dropped')",
                NULL);
    assert_int_equal(r.n_log, 0);
    (void)arrive(&r, 0);
    assert_string_equal(r.log[0], "a b c [31m");
    rig_close(&r);
}

/* --- the budget of a step --- */

static void a_step_has_one_budget_for_all_calls(void **state)
{
    struct rig r;
    struct kg_policy_admit req = rig_admit();
    struct kg_policy_admitted out;
    int n = 0;

    (void)state;
    /* About 40,000 instructions a call: two fit, the third is cut, the fourth not made. */
    open_script(&r, "function admit() for i = 1, 40000 do end return {lifetime = 'max'} end", NULL);
    for (int step = 0; step < 3; step++) {
        kg_policy_step(r.policy);
        for (n = 0; kg_policy_admit(r.policy, &req, &out); n++) {
        }
        assert_int_equal(n, 2);
        assert_true(kg_policy_spent(r.policy));
        assert_int_equal(r.n_log, (unsigned)step + 1);
        assert_false(kg_policy_admit(r.policy, &req, &out));
        assert_int_equal(r.n_log, (unsigned)step + 1); /* not made, so no failure to tell */
    }
    rig_close(&r);
}

static void short_calls_too_use_up_a_step(void **state)
{
    struct rig r;
    struct kg_policy_conf conf = rig_conf(&r);
    struct kg_policy_admit req = rig_admit();
    struct kg_policy_admitted out;
    int n;

    (void)state;
    conf.instructions = 10000;
    open_script(&r, "function admit() end", &conf);
    for (n = 0; n < 100000 && kg_policy_admit(r.policy, &req, &out); n++) {
    }
    assert_in_range(n, 5, 500);
    assert_int_equal(r.n_log, 0);
    rig_close(&r);
}

static void wall_time_ends_a_call_that_instructions_would_not(void **state)
{
    struct rig r;
    struct kg_policy_conf conf = rig_conf(&r);

    (void)state;
    conf.instructions = UINT64_C(1) << 60;
    conf.arrive_ns = conf.step_ns = 2 * KG_NS_PER_MS;
    open_script(&r,
                "function arrive(r) if r.user == 'ann' then while true do end end end\n"
                "function admit(r) if r.waited_ms == 7 then while true do end end end",
                &conf);
    assert_int_equal(arrive(&r, 0).reject, 503);
    assert_non_null(strstr(r.log[0], "budget"));
    struct kg_policy_admit req = rig_admit();
    struct kg_policy_admitted out;
    assert_false(kg_policy_admit(r.policy, &req, &out));
    assert_true(kg_policy_spent(r.policy));
    rig_close(&r);
}

/* --- reloading --- */

static const char says_one[] = "function arrive() return {tenant = 'one'} end\n"
                               "function admit() return 'defer', 1 end\n";
static const char says_two[] = "function arrive() return {tenant = 'two'} end\n"
                               "function admit() return 'defer', 2 end\n";

static uint32_t deferred_ms(struct rig *r)
{
    struct kg_policy_admit req = rig_admit();
    struct kg_policy_admitted out = {0};

    return kg_policy_admit(r->policy, &req, &out) ? out.defer_ms : 0;
}

static void a_good_reload_swaps_both_states(void **state)
{
    struct rig r;

    (void)state;
    open_script(&r, says_one, NULL);
    rig_write(&r, says_two);
    assert_int_equal(kg_policy_reload(r.policy, &r.err), KG_OK);
    assert_string_equal(arrive(&r, 0).tenant, "two");
    assert_int_equal(deferred_ms(&r), 1); /* the step that is under way goes on as it began */
    kg_policy_step(r.policy);
    assert_int_equal(deferred_ms(&r), 2);
    rig_close(&r);
}

static void a_bad_reload_changes_neither_state(void **state)
{
    static const char *const bad[] = {
        "function arrive(",
        "error('top')",
        "while true do end",
        "function arrive() return 'nonsense' end",
        /* One thread's hooks are good, the other's are not. */
        "function arrive() return {tenant = 'two'} end function admit() return 5 end",
        "function arrive() return {tenant = 'two'} end function window() error('w') end",
        "function admit() return 'defer', 2 end function arrive() return 5 end",
    };

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct rig r;
        open_script(&r, says_one, NULL);
        rig_write(&r, bad[i]);
        assert_int_equal(kg_policy_reload(r.policy, &r.err), KG_EINVAL);
        assert_true(r.err.text[0] != '\0');
        kg_policy_step(r.policy);
        assert_string_equal(arrive(&r, 0).tenant, "one");
        assert_int_equal(deferred_ms(&r), 1);
        rig_close(&r);
    }
}

static void a_missing_file_keeps_the_old_script_and_says_so(void **state)
{
    struct rig r;

    (void)state;
    open_script(&r, says_one, NULL);
    assert_int_equal(unlink(r.path), 0);
    assert_int_equal(kg_policy_reload(r.policy, &r.err), KG_EIO);
    assert_non_null(strstr(r.err.text, r.path));
    assert_string_equal(arrive(&r, 0).tenant, "one");
    rig_close(&r);
}

static void reloads_the_engine_did_not_take_are_closed(void **state)
{
    struct rig r;

    (void)state;
    open_script(&r, says_one, NULL);
    for (int i = 0; i < 10; i++) {
        rig_write(&r, i % 2 ? says_one : says_two);
        assert_int_equal(kg_policy_reload(r.policy, &r.err), KG_OK);
    }
    kg_policy_step(r.policy);
    assert_int_equal(deferred_ms(&r), 1);
    rig_write(&r, says_two);
    assert_int_equal(kg_policy_reload(r.policy, &r.err), KG_OK);
    rig_close(&r); /* one is still under way; leak checkers look here */
}

struct race {
    struct rig rig;
    _Atomic int stop;
    uint64_t n;
};

static void *engine_side(void *arg)
{
    struct race *race = arg;

    while (!atomic_load(&race->stop)) {
        kg_policy_step(race->rig.policy);
        uint32_t ms = deferred_ms(&race->rig);
        if (ms != 1 && ms != 2)
            abort();
        race->n++;
    }
    return NULL;
}

static void reloading_while_the_engine_asks_is_safe(void **state)
{
    static struct race race;
    pthread_t thread;

    (void)state;
    open_script(&race.rig, says_one, NULL);
    assert_int_equal(pthread_create(&thread, NULL, engine_side, &race), 0);
    for (int i = 0; i < 100; i++) {
        rig_write(&race.rig, i % 2 ? says_one : says_two);
        assert_int_equal(kg_policy_reload(race.rig.policy, &race.rig.err), KG_OK);
        assert_string_equal(arrive(&race.rig, 0).tenant, i % 2 ? "one" : "two");
    }
    atomic_store(&race.stop, 1);
    (void)pthread_join(thread, NULL);
    kg_policy_step(race.rig.policy);
    assert_int_equal(deferred_ms(&race.rig), 1);
    rig_close(&race.rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(arrive_sees_every_field_and_no_more),
        cmocka_unit_test(admit_sees_every_field_and_no_more),
        cmocka_unit_test(answers_of_arrive_mean_what_the_guide_says),
        cmocka_unit_test(a_long_reason_is_cut_between_characters),
        cmocka_unit_test(answers_of_window_are_cut_to_the_block),
        cmocka_unit_test(a_failing_arrive_is_answered_as_configured),
        cmocka_unit_test(hooks_a_script_lacks_are_not_called),
        cmocka_unit_test(a_bucket_refills_by_the_callers_clock_alone),
        cmocka_unit_test(a_cost_above_the_burst_never_passes),
        cmocka_unit_test(a_bucket_never_lets_more_through_than_it_promised),
        cmocka_unit_test(keys_are_bounded_and_the_oldest_gives_way),
        cmocka_unit_test(rates_and_counts_survive_a_reload),
        cmocka_unit_test(strings_are_compared_plainly),
        cmocka_unit_test(log_lines_are_one_line_and_short),
        cmocka_unit_test(a_step_has_one_budget_for_all_calls),
        cmocka_unit_test(short_calls_too_use_up_a_step),
        cmocka_unit_test(wall_time_ends_a_call_that_instructions_would_not),
        cmocka_unit_test(a_good_reload_swaps_both_states),
        cmocka_unit_test(a_bad_reload_changes_neither_state),
        cmocka_unit_test(a_missing_file_keeps_the_old_script_and_says_so),
        cmocka_unit_test(reloads_the_engine_did_not_take_are_closed),
        cmocka_unit_test(reloading_while_the_engine_asks_is_safe),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
