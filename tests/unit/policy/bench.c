/* Cost of one call, and the longest of hostile ones: a program to run by hand.
 * usage: policy_bench [calls] */
#include "base/clock.h"
#include "base/num.h"
#include "script_rig.h"

#include <stdlib.h>

static int show(const char *what, uint64_t took_ns, uint64_t n)
{
    return printf("%-44s %8.0f ns a call\n", what, (double)took_ns / (double)n);
}

static void bench(const char *what, const char *script, uint64_t n)
{
    struct rig r;
    struct kg_policy_conf conf = rig_conf(&r);
    struct kg_policy_arrive req = rig_request();
    struct kg_policy_load load = rig_load(0);
    struct kg_policy_arrived arrived;
    struct kg_policy_admit adm = rig_admit();
    struct kg_policy_admitted admitted;

    conf.arrive_ns = 2 * KG_NS_PER_MS;
    conf.step_ns = KG_NS_PER_MS;
    if (rig_open(&r, script, &conf) != KG_OK) {
        (void)fprintf(stderr, "%s\n", r.err.text);
        exit(1);
    }
    uint64_t t = kg_now_ns();
    for (uint64_t i = 0; i < n; i++) {
        load.now_ns = i * 1000;
        if (kg_policy_has(r.policy, KG_HOOK_ARRIVE))
            kg_policy_arrive(r.policy, &req, &load, &arrived);
        kg_policy_step(r.policy);
        (void)kg_policy_admit(r.policy, &adm, &admitted);
    }
    (void)show(what, kg_now_ns() - t, n);
    rig_close(&r);
}

/* Worst of some long C calls under the wall times of the defaults. */
static void worst(const char *what, const char *body)
{
    struct rig r;
    struct kg_policy_conf conf = rig_conf(&r);
    struct kg_policy_arrive req = rig_request();
    struct kg_policy_load load = rig_load(0);
    struct kg_policy_arrived out;
    char text[1000];
    uint64_t most = 0;

    conf.arrive_ns = 2 * KG_NS_PER_MS;
    (void)snprintf(text, sizeof(text), "function arrive(r) if r.user == 'ann' then %s end end",
                   body);
    if (rig_open(&r, text, &conf) != KG_OK) {
        (void)fprintf(stderr, "%s\n", r.err.text);
        exit(1);
    }
    for (int i = 0; i < 50; i++) {
        uint64_t t = kg_now_ns();
        kg_policy_arrive(r.policy, &req, &load, &out);
        t = kg_now_ns() - t;
        most = t > most ? t : most;
    }
    printf("%-44s %8.2f ms at most, of 50\n", what, (double)most * 1e-6);
    rig_close(&r);
}

int main(int argc, char **argv)
{
    uint64_t n = 200000;

    if (argc > 1 && kg_num_u64(argv[1], &n) != KG_OK)
        return 2;
    bench("no hooks", "local x = 1", n);
    bench("arrive, empty", "function arrive() end", n);
    bench("arrive, rate of a tenant",
          "function arrive(r, v) if not kg.rate('t:' .. r.tenant, 1e9, 1e9) then return 'reject', "
          "'x' end return {tenant = r.tenant} end",
          n);
    bench("admit, empty", "function admit() end", n);
    bench("admit, share of the arena",
          "function admit(r, v) if r.class == 'long' and v.page_live_bytes + v.promised_bytes > "
          "v.arena_bytes / 2 then return 'defer', 10 end return {lifetime = 'max'} end",
          n);
    worst("endless loop", "while true do end");
    worst("endless loop of pcall", "while true do pcall(function() while true do end end) end");
    worst("concat of 80 kB",
          "local t = {} for i = 1, 2000 do t[i] = 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx' end "
          "while true do local s = table.concat(t) end");
    worst("insert at the front of 9,000",
          "local t = {} for i = 1, 9000 do t[i] = i end while true do table.insert(t, 1, 0) "
          "table.remove(t, 1) end");
    worst("deep recursion", "local function f() return 1 + f() end while true do pcall(f) end");
    worst("tables until memory ends", "local t = {} for i = 1, 1e9 do t[i] = {i} end");
    worst("doubling strings", "while true do pcall(function() local s = 'x' while true do s = s .. "
                              "s end end) end");
    return 0;
}
