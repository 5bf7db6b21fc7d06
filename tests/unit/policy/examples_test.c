/* The scripts of scripts/policies, each through a table of cases. */
#include "base/clock.h"
#include "script_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void open_example(struct rig *r, const char *name)
{
    const char *root = getenv("KEDGE_ROOT");
    char path[400];

    assert_non_null(root);
    (void)snprintf(path, sizeof(path), "%s/scripts/policies/%s.lua", root, name);
    if (rig_open_file(r, path) != KG_OK)
        fail_msg("%s: %s", path, r->err.text);
}

static struct kg_policy_arrived ask(struct rig *r, const struct kg_policy_arrive *req,
                                    uint64_t now_ns)
{
    struct kg_policy_load load = rig_load(now_ns);
    struct kg_policy_arrived out;

    kg_policy_arrive(r->policy, req, &load, &out);
    if (strstr(out.reason, "policy failed") != NULL)
        fail_msg("%s", r->log[0]);
    return out;
}

static struct kg_policy_admitted admit(struct rig *r, const struct kg_policy_admit *req)
{
    struct kg_policy_admitted out = {0};

    kg_policy_step(r->policy);
    if (!kg_policy_admit(r->policy, req, &out))
        fail_msg("no answer: %s", r->log[0]);
    return out;
}

static void tenant_quota_counts_requests_of_each_tenant(void **state)
{
    struct rig r;
    struct kg_policy_arrive a = rig_request(), b = rig_request(), nobody = rig_request();
    uint64_t t = KG_NS_PER_S;

    (void)state;
    open_example(&r, "tenant_quota");
    b.tenant = "beta";
    nobody.tenant = "";
    for (int i = 0; i < 20; i++)
        assert_int_equal(ask(&r, &a, t).reject, 0);
    struct kg_policy_arrived out = ask(&r, &a, t);
    assert_int_equal(out.reject, 429);
    assert_string_equal(out.reason, "tenant acme sent more than 60 requests per minute");
    assert_int_equal(ask(&r, &b, t).reject, 0); /* others are not touched */
    assert_int_equal(ask(&r, &a, t + 999 * KG_NS_PER_MS).reject, 429);
    assert_int_equal(ask(&r, &a, t + 1000 * KG_NS_PER_MS).reject, 0); /* one a second */
    for (int i = 0; i < 5; i++) {
        out = ask(&r, &nobody, t);
        assert_int_equal(out.reject, 0);
        assert_string_equal(out.tenant, "anonymous");
    }
    assert_int_equal(ask(&r, &nobody, t).reject, 429);
    rig_close(&r);
}

static void tenant_quota_counts_prompt_and_answer_of_every_choice(void **state)
{
    struct rig r;
    struct kg_policy_arrive q = rig_request();

    (void)state;
    open_example(&r, "tenant_quota");
    q.n_prompts = 2; /* 2 x (2 x 20,000 + 2 x 30,000) = 200,000 of 400,000 */
    q.n = 2;
    q.prompt_tokens = 40000;
    q.max_tokens = 30000;
    assert_int_equal(ask(&r, &q, 0).reject, 0);
    assert_int_equal(ask(&r, &q, 0).reject, 0);
    struct kg_policy_arrived out = ask(&r, &q, 0);
    assert_int_equal(out.reject, 429);
    assert_string_equal(out.reason, "tenant acme used up its 200000 tokens per minute");
    assert_int_equal(ask(&r, &q, 59 * KG_NS_PER_S).reject, 429);
    assert_int_equal(ask(&r, &q, 60 * KG_NS_PER_S).reject, 0); /* 200,000 a minute */
    q.max_tokens = 200000;
    out = ask(&r, &q, 0);
    assert_int_equal(out.reject, 403);
    assert_non_null(strstr(out.reason, "880000 tokens"));
    rig_close(&r);
}

static void long_prompt_lane_keeps_room_for_short_ones(void **state)
{
    static const struct {
        const char *class_name;
        uint64_t live, promised, need;
        uint32_t running;
        uint64_t waited_ms;
        uint32_t verdict, lifetime;
    } cases[] = {
        /* half of 1,000,000 bytes is the lane */
        {"", 900000, 90000, 5000, 9, 0, KG_VERDICT_ADMIT, KG_POLICY_LIFETIME_KEEP},
        {"long", 300000, 100000, 100000, 9, 0, KG_VERDICT_ADMIT, KG_POLICY_LIFETIME_MAX},
        {"long", 300000, 100000, 100001, 9, 0, KG_VERDICT_DEFER, 0},
        {"long", 300000, 100001, 100000, 9, 59999, KG_VERDICT_DEFER, 0},
        {"long", 300000, 100001, 100000, 9, 60000, KG_VERDICT_ADMIT, KG_POLICY_LIFETIME_MAX},
        {"long", 0, 0, 600000, 0, 0, KG_VERDICT_ADMIT, KG_POLICY_LIFETIME_MAX},
    };
    struct rig r;

    (void)state;
    open_example(&r, "long_prompt_lane");
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct kg_policy_admit q = rig_admit();
        q.class_name = cases[i].class_name;
        q.live_bytes[KG_PAGE] = cases[i].live;
        q.live_bytes[KG_STATE] = 0;
        q.promised_bytes = cases[i].promised;
        q.need_bytes[KG_PAGE] = cases[i].need;
        q.need_bytes[KG_STATE] = 0;
        q.running = cases[i].running;
        q.waited_ns = cases[i].waited_ms * KG_NS_PER_MS;
        struct kg_policy_admitted out = admit(&r, &q);
        if (out.verdict != cases[i].verdict || out.lifetime != cases[i].lifetime)
            fail_msg("case %zu: verdict %u, lifetime %u", i, out.verdict, out.lifetime);
    }
    struct kg_policy_arrive q = rig_request();
    q.prompt_tokens = 16383;
    assert_string_equal(ask(&r, &q, 0).class_name, "");
    q.prompt_tokens = 16384;
    assert_string_equal(ask(&r, &q, 0).class_name, "long");
    q.n_prompts = 2; /* two of 8,192 are not long */
    assert_string_equal(ask(&r, &q, 0).class_name, "");
    rig_close(&r);
}

static void protect_interactive_lets_streams_first(void **state)
{
    struct rig r;
    struct kg_policy_arrive q = rig_request();
    struct kg_policy_load load = rig_load(0);
    struct kg_policy_arrived out;

    (void)state;
    open_example(&r, "protect_interactive");
    q.stream = true;
    load.waiting = 5000;
    kg_policy_arrive(r.policy, &q, &load, &out);
    assert_int_equal(out.reject, 0);
    assert_string_equal(out.class_name, "interactive");
    assert_int_equal(out.priority, 10);
    assert_int_equal(out.max_tokens, 0);
    q.stream = false;
    kg_policy_arrive(r.policy, &q, &load, &out);
    assert_int_equal(out.reject, 503);
    assert_non_null(strstr(out.reason, "fewer than 200"));
    load.waiting = 200;
    kg_policy_arrive(r.policy, &q, &load, &out);
    assert_int_equal(out.reject, 0);
    assert_string_equal(out.class_name, "batch");
    assert_int_equal(out.max_tokens, 2048);

    struct kg_policy_admit a = rig_admit();
    a.max_running = 64;
    for (uint32_t running = 40; running < 60; running++) {
        a.running = running;
        a.class_name = "batch";
        assert_int_equal(admit(&r, &a).verdict, running >= 48 ? KG_VERDICT_DEFER : 0);
        a.class_name = "interactive";
        assert_int_equal(admit(&r, &a).verdict, KG_VERDICT_ADMIT);
    }
    rig_close(&r);
}

static void protect_interactive_pauses_drafts_of_batch_work(void **state)
{
    struct rig r;
    struct kg_policy_class c = rig_class();
    struct kg_policy_window w;

    (void)state;
    open_example(&r, "protect_interactive");
    c.class_name = "batch";
    c.batch = 32;
    assert_true(kg_policy_window(r.policy, &c, &w) && !w.has_set && !w.has_cap);
    c.batch = 33;
    assert_true(kg_policy_window(r.policy, &c, &w) && w.has_set && w.length == 0);
    c.class_name = "interactive";
    assert_true(kg_policy_window(r.policy, &c, &w) && !w.has_set && !w.has_cap);
    rig_close(&r);
}

static struct kg_policy_window trim(uint32_t batch, uint64_t verified, uint64_t accepted)
{
    struct rig r;
    struct kg_policy_class c = rig_class();
    struct kg_policy_window w = {0};

    open_example(&r, "trim_windows");
    c.block = 8;
    c.batch = batch;
    c.verified = verified;
    c.accepted = accepted;
    assert_true(kg_policy_window(r.policy, &c, &w));
    rig_close(&r);
    return w;
}

static void trim_windows_shares_rows_and_pauses_what_is_not_believed(void **state)
{
    static const struct {
        uint32_t batch, verified, accepted;
        int cap, set; /* -1: not */
    } cases[] = {
        {1, 0, 0, -1, -1},     {16, 500, 400, -1, -1}, {17, 500, 400, 7, -1},
        {32, 500, 400, 4, -1}, {200, 500, 400, 0, -1}, {1, 64, 15, -1, 0},
        {1, 64, 16, -1, -1},   {1, 63, 0, -1, -1},     {32, 64, 15, -1, 0},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct kg_policy_window w = trim(cases[i].batch, cases[i].verified, cases[i].accepted);
        assert_int_equal(w.has_cap ? (int)w.length : -1, cases[i].cap);
        assert_int_equal(w.has_set ? (int)w.length : -1, cases[i].set);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tenant_quota_counts_requests_of_each_tenant),
        cmocka_unit_test(tenant_quota_counts_prompt_and_answer_of_every_choice),
        cmocka_unit_test(long_prompt_lane_keeps_room_for_short_ones),
        cmocka_unit_test(protect_interactive_lets_streams_first),
        cmocka_unit_test(protect_interactive_pauses_drafts_of_batch_work),
        cmocka_unit_test(trim_windows_shares_rows_and_pauses_what_is_not_believed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
