/*
 * Scripts that mean harm or are broken. Each must end by itself, inside its budget and memory, and
 * leave the policy answering the next call as if nothing had been. A script
 * whose top level does so must not be taken at all. Times are bounded loosely here: instructions
 * are what is counted.
 */
#include "base/buf.h"
#include "base/clock.h"
#include "base/metrics.h"
#include "policy/script.h"
#include "script_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* How an attack must end. */
enum want {
    WANT_BUDGET,
    WANT_ERROR,
    WANT_MEMORY,
    WANT_MEMORY_OR_BUDGET,
    WANT_FINE,
};

static const struct attack {
    const char *name;
    enum want want;
    const char *body; /* of arrive(req, view) when req.user is "attack" */
    const char *top;  /* before the hook, may be NULL */
} attacks[] = {
    {"endless while", WANT_BUDGET, "while true do end", NULL},
    {"endless repeat", WANT_BUDGET, "repeat until false", NULL},
    {"endless goto", WANT_BUDGET, "::again:: goto again", NULL},
    {"endless numeric for", WANT_BUDGET, "for i = 1, math.maxinteger do local x = i end", NULL},
    {"step that never arrives", WANT_BUDGET, "for i = 1, math.huge, 0.5 do end", NULL},
    {"pcall in a loop", WANT_BUDGET, "while true do pcall(function() while true do end end) end",
     NULL},
    {"pcall of pcall of pcall", WANT_BUDGET,
     "local function f() while true do pcall(pcall, pcall, f) end end "
     "while true do pcall(pcall, pcall, f) end",
     NULL},
    {"nested pcall, each with a loop behind it", WANT_BUDGET,
     "local function f(n) if n > 0 then pcall(f, n - 1) end while true do end end pcall(f, 100)",
     NULL},
    {"error handler that goes on", WANT_BUDGET,
     "local function f() local ok = pcall(error, 'x') return f() end return f()", NULL},
    {"endless tail calls", WANT_BUDGET, "local function f() return f() end return f()", NULL},
    {"two functions that call each other", WANT_BUDGET,
     "local g local function f() return g() end g = function() return f() end return f()", NULL},
    {"deep recursion", WANT_MEMORY_OR_BUDGET, "local function f() return 1 + f() end return f()",
     NULL},
    {"deep recursion inside pcall for ever", WANT_BUDGET,
     "local function f() return 1 + f() end while true do pcall(f) end", NULL},
    {"doubling string", WANT_MEMORY, "local s = 'x' while true do s = s .. s end", NULL},
    {"doubling string inside pcall for ever", WANT_BUDGET,
     "while true do pcall(function() local s = 'x' while true do s = s .. s end end) end", NULL},
    {"string.rep", WANT_ERROR, "return ('x'):rep(1 << 30)", NULL},
    {"string.format", WANT_ERROR, "return ('%099999d'):format(1)", NULL},
    {"pattern matching", WANT_ERROR, "return ('aaaa'):find('a?a?a?aaaa')", NULL},
    {"gsub through the metatable", WANT_ERROR, "return (''):gsub('', '')", NULL},
    {"table.concat of a large table in a loop", WANT_MEMORY_OR_BUDGET,
     "local t = {} for i = 1, 2000 do t[i] = 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx' end "
     "while true do local s = table.concat(t) end",
     NULL},
    {"table.insert at the front of a large table", WANT_MEMORY_OR_BUDGET,
     "local t = {} for i = 1, 20000 do t[i] = i end "
     "while true do table.insert(t, 1, 0) table.remove(t, 1) end",
     NULL},
    {"reverse of a large string in a loop", WANT_BUDGET,
     "local s = 'x' for i = 1, 17 do s = s .. s end while true do local r = s:reverse() end", NULL},
    {"giant table", WANT_MEMORY_OR_BUDGET, "local t = {} for i = 1, 1e9 do t[i] = i end", NULL},
    {"giant table kept over calls", WANT_MEMORY_OR_BUDGET,
     "for i = 1, 1e9 do kept[#kept + 1] = i end", "kept = {}"},
    {"tables inside tables", WANT_MEMORY_OR_BUDGET, "local t = {} while true do t = {t} end", NULL},
    {"sparse giant table", WANT_FINE, "local t = {} t[1 << 60] = 1 t[-1] = 2 return nil", NULL},
    {"unpack of a million", WANT_ERROR, "return table.unpack({}, 1, 1e6)", NULL},
    {"unpack of too many", WANT_ERROR, "return table.unpack({}, 1, math.maxinteger)", NULL},
    {"byte of everything", WANT_MEMORY_OR_BUDGET,
     "local s = 'x' for i = 1, 18 do s = s .. s end while true do local n = select('#', "
     "s:byte(1, -1)) end",
     NULL},
    {"error with a huge text", WANT_ERROR, "local s = 'x' for i = 1, 18 do s = s .. s end error(s)",
     NULL},
    {"error with a table", WANT_ERROR, "error({1, 2, 3})", NULL},
    {"error with nil", WANT_ERROR, "error()", NULL},
    {"error with a function", WANT_ERROR, "error(function() while true do end end)", NULL},
    {"assert with nothing", WANT_ERROR, "assert()", NULL},
    {"load", WANT_ERROR, "return load('return 1')()", NULL},
    {"require", WANT_ERROR, "return require('os')", NULL},
    {"os.execute", WANT_ERROR, "return os.execute('true')", NULL},
    {"os.time", WANT_ERROR, "return os.time()", NULL},
    {"io.open", WANT_ERROR, "return io.open('/etc/passwd')", NULL},
    {"debug.sethook", WANT_ERROR, "debug.sethook()", NULL},
    {"coroutine", WANT_ERROR, "return coroutine.wrap(function() while true do end end)()", NULL},
    {"collectgarbage", WANT_ERROR, "while true do collectgarbage() end", NULL},
    {"setmetatable with a finaliser", WANT_ERROR,
     "setmetatable({}, {__gc = function() while true do end end})", NULL},
    {"getmetatable of strings", WANT_ERROR, "getmetatable('').__index = nil", NULL},
    {"endless __index", WANT_ERROR, "local t = setmetatable({}, {}) return t.x", NULL},
    {"table.sort with a liar", WANT_ERROR, "table.sort({3, 2, 1}, function() return true end)",
     NULL},
    {"print", WANT_ERROR, "print('x')", NULL},
    {"dofile", WANT_ERROR, "dofile('/dev/stdin')", NULL},
    {"rawset on the environment", WANT_ERROR, "rawset(_ENV, 'x', 1)", NULL},
    {"_G", WANT_ERROR, "_G.arrive = nil", NULL},
    {"writes a global", WANT_ERROR, "leak = 1", NULL},
    {"writes a global through _ENV", WANT_ERROR, "_ENV['leak'] = 1", NULL},
    {"takes away its own hook", WANT_ERROR, "arrive = nil", NULL},
    {"integer division by zero", WANT_ERROR, "return 1 // 0", NULL},
    {"integer overflow", WANT_FINE,
     "local x = math.maxinteger + 1 assert(x == math.mininteger) return nil", NULL},
    {"overflow as a number of tokens", WANT_ERROR, "return {max_tokens = math.maxinteger + 1}",
     NULL},
    {"NaN as a priority", WANT_ERROR, "return {priority = 0 / 0}", NULL},
    {"infinity as a cap", WANT_ERROR, "return {max_tokens = math.huge}", NULL},
    {"half a token", WANT_ERROR, "return {max_tokens = 1.5}", NULL},
    {"number as text", WANT_ERROR, "return {max_tokens = '5'}", NULL},
    {"negative priority", WANT_ERROR, "return {priority = -1}", NULL},
    {"answers a number", WANT_ERROR, "return 5", NULL},
    {"answers false", WANT_ERROR, "return false", NULL},
    {"answers a function", WANT_ERROR, "return arrive", NULL},
    {"answers an unknown word", WANT_ERROR, "return 'accept'", NULL},
    {"answers an unknown field", WANT_ERROR, "return {tenent = 'x'}", NULL},
    {"answers a list", WANT_ERROR, "return {1, 2, 3}", NULL},
    {"answers itself", WANT_ERROR, "local t = {} t.tenant = t return t", NULL},
    {"rejects without a reason", WANT_ERROR, "return 'reject'", NULL},
    {"rejects with a table", WANT_ERROR, "return 'reject', {}", NULL},
    {"rejects with status 200", WANT_ERROR, "return 'reject', 'no', 200", NULL},
    {"rejects with status 418", WANT_ERROR, "return 'reject', 'no', 418", NULL},
    {"tenant with spaces", WANT_ERROR, "return {tenant = 'a b'}", NULL},
    {"tenant with a newline", WANT_ERROR, "return {tenant = 'a\\nb'}", NULL},
    {"tenant with a zero byte", WANT_ERROR, "return {tenant = 'a\\0b'}", NULL},
    {"tenant that is long", WANT_ERROR, "return {tenant = 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'}",
     NULL},
    {"tenant that is a megabyte less a bit", WANT_ERROR,
     "local s = 'x' for i = 1, 18 do s = s .. s end return {tenant = s}", NULL},
    {"answers a thousand values", WANT_FINE,
     "local t = {} for i = 1, 1000 do t[i] = true end return table.unpack(t)", NULL},
    {"changes its arguments", WANT_FINE,
     "req.tenant = nil view.now_s = 'x' for k in pairs(req) do req[k] = 0 end return nil", NULL},
    {"breaks the string library", WANT_FINE, "string.len = nil string.sub = error return nil",
     NULL},
    {"key of a hundred bytes", WANT_ERROR,
     "local s = 'xxxxx' s = s .. s .. s .. s .. s "
     "return kg.rate(s .. s .. s .. s, 1)",
     NULL},
    {"rate of nothing", WANT_ERROR, "kg.rate('k')", NULL},
    {"rate of NaN", WANT_ERROR, "kg.rate('k', 0 / 0)", NULL},
    {"rate below zero", WANT_ERROR, "kg.rate('k', -1)", NULL},
    {"count of infinity", WANT_ERROR, "kg.count('k', math.huge)", NULL},
    {"a million keys", WANT_BUDGET,
     "local i = 0 while true do i = i + 1 kg.rate('k' .. i, 1) "
     "kg.count('c' .. i) end",
     NULL},
    {"a log line in a loop", WANT_BUDGET, "while true do kg.log('again') end", NULL},
    {"a log line of a quarter megabyte", WANT_FINE,
     "local s = 'x' for i = 1, 18 do s = s .. s end kg.log(s) return nil", NULL},
    {"contains in a loop", WANT_BUDGET,
     "local s = 'x' for i = 1, 12 do s = s .. s end "
     "while true do kg.contains(s, 'xxxxxxxxxxy') end",
     NULL},
    {"tostring of everything", WANT_FINE,
     "assert(tostring({}) == 'table' and tostring(print) == 'nil' and tostring(type) == "
     "'function' and tostring(1) == '1') return nil",
     NULL},
};

#define N_ATTACKS (sizeof(attacks) / sizeof(attacks[0]))

/* A counter read back from the metrics text, as an operator would. */
static double counter(const struct rig *r, const char *needle)
{
    struct kg_metrics *m;
    struct kg_error err;
    struct kg_buf b;
    double v = -1;

    assert_int_equal(kg_metrics_create(&m), KG_OK);
    assert_int_equal(kg_policy_metrics(r->policy, m, &err), KG_OK);
    kg_buf_init(&b, 0);
    assert_int_equal(kg_metrics_write(m, &b), KG_OK);
    const char *at = strstr(kg_buf_cstr(&b), needle);
    if (at != NULL)
        v = strtod(at + strlen(needle), NULL);
    kg_buf_fini(&b);
    kg_metrics_destroy(m);
    return v;
}

static void open_attack(struct rig *r, const struct attack *a)
{
    char text[2000];

    (void)snprintf(text, sizeof(text),
                   "%s\n"
                   "function arrive(req, view)\n"
                   "  if req.user == 'attack' then do %s end end\n"
                   "  return {tenant = 'seen-' .. req.tenant, priority = view.running}\n"
                   "end\n",
                   a->top != NULL ? a->top : "", a->body);
    if (rig_open(r, text, NULL) != KG_OK)
        fail_msg("%s: %s", a->name, r->err.text);
}

/* Time of this thread alone: others may keep the machine busy. */
static uint64_t cpu_ns(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * KG_NS_PER_S + (uint64_t)t.tv_nsec;
}

static void one_attack(const struct attack *a)
{
    struct rig r;
    struct kg_policy_arrive attack = rig_request(), normal = rig_request();
    struct kg_policy_load load = rig_load(KG_NS_PER_S);
    struct kg_policy_arrived out;

    open_attack(&r, a);
    attack.user = "attack";
    for (int i = 0; i < 3; i++) {
        uint64_t t = cpu_ns();
        kg_policy_arrive(r.policy, &attack, &load, &out);
        uint64_t took_ms = (cpu_ns() - t) / KG_NS_PER_MS;
        if (took_ms > 2000) /* the issue asks for 10 ms; see policy_bench for that figure */
            fail_msg("%s: took %llu ms", a->name, (unsigned long long)took_ms);
        if (a->want == WANT_FINE) {
            if (out.reject != 0)
                fail_msg("%s: %s, %s", a->name, out.reason, r.log[0]);
        } else if (out.reject != 503 || strstr(out.reason, "policy failed") == NULL) {
            fail_msg("%s: answered %u %s", a->name, out.reject, out.reason);
        }
        kg_policy_arrive(r.policy, &normal, &load, &out);
        if (out.reject != 0 || strcmp(out.tenant, "seen-acme") != 0 || out.priority != 2)
            fail_msg("%s: the next call failed: %s", a->name, r.log[0]);
    }
    double budget = counter(&r, "policy_budget_ends_total{hook=\"arrive\"} ");
    double errors = counter(&r, "policy_errors_total{hook=\"arrive\"} ");
    bool as_wanted = (a->want == WANT_FINE && budget == 0 && errors == 0) ||
                     (a->want == WANT_BUDGET && budget == 3) ||
                     (a->want == WANT_ERROR && errors == 3) ||
                     (a->want == WANT_MEMORY && errors == 3 && strstr(r.log[0], "memory")) ||
                     (a->want == WANT_MEMORY_OR_BUDGET && errors + budget == 3);
    if (!as_wanted)
        fail_msg("%s: %g errors, %g budget ends; %s", a->name, errors, budget, r.log[0]);
    rig_close(&r);
}

static void every_attack_ends_and_the_next_call_works(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_ATTACKS; i++)
        one_attack(&attacks[i]);
}

static void attacks_in_admit_and_window_leave_the_built_in_rule(void **state)
{
    static const char *const bodies[] = {
        "while true do end",
        "while true do pcall(function() while true do end end) end",
        "local s = 'x' while true do s = s .. s end",
        "return 5.5",
        "error({})",
        "return 'defer', -1",
        "return 'defer', 'x'",
        "return {lifetime = 1}",
        "return {lifetime = 'long'}",
        "return 'set'",
        "return 'set', 1 << 40",
        "leak = 1"};

    (void)state;
    for (size_t i = 0; i < sizeof(bodies) / sizeof(bodies[0]); i++) {
        struct rig r;
        char text[600];
        struct kg_policy_admit bad = rig_admit(), good = rig_admit();
        struct kg_policy_class bad_class = rig_class(), good_class = rig_class();
        struct kg_policy_admitted admitted;
        struct kg_policy_window window;
        (void)snprintf(text, sizeof(text),
                       "function admit(req) if req.tenant == 'x' then do %s end end "
                       "return {lifetime = 'max'} end\n"
                       "function window(class) if class.tenant == 'x' then do %s end end "
                       "return 2 end\n",
                       bodies[i], bodies[i]);
        assert_int_equal(rig_open(&r, text, NULL), KG_OK);
        bad.tenant = bad_class.tenant = "x";
        kg_policy_step(r.policy);
        bool a = kg_policy_admit(r.policy, &bad, &admitted);
        kg_policy_step(r.policy);
        bool w = kg_policy_window(r.policy, &bad_class, &window);
        if (a && w)
            fail_msg("%s was an answer of both hooks", bodies[i]);
        assert_true(r.n_log >= 1);
        kg_policy_step(r.policy);
        assert_true(kg_policy_admit(r.policy, &good, &admitted));
        assert_int_equal(admitted.lifetime, KG_POLICY_LIFETIME_MAX);
        assert_true(kg_policy_window(r.policy, &good_class, &window));
        assert_int_equal(window.length, 2);
        rig_close(&r);
    }
}

static void a_bad_top_level_is_not_taken(void **state)
{
    static const struct {
        const char *script, *says;
    } cases[] = {
        {"while true do end", "budget"},
        {"while true do pcall(function() while true do end end) end", "budget"},
        {"local s = 'x' while true do s = s .. s end", "memory"},
        {"error('at once')", "policy.lua:1: at once"},
        {"error({})", "raised a table"},
        {"\n\nfunction arrive(", "policy.lua:3:"},
        {"arrive = 5", "'arrive' must be a function, it is a number"},
        {"admit = {}", "'admit' must be a function"},
        {"function arrive() return 7 end", "arrive, tried with a made-up request"},
        {"function admit(r) return r.missing.field end", "admit, tried"},
        {"function window() while true do end end", "window, tried"},
        {"os.exit(1)", "os"},
        {"local x <close> = 5", "policy.lua:1:"},
        {"x = nil + 1", "policy.lua:1:"},
        {"goto nowhere", "nowhere"},
        {"\xff\xfe", "policy.lua:1:"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct rig r;
        int rc = rig_open(&r, cases[i].script, NULL);
        if (rc == KG_OK || strstr(r.err.text, cases[i].says) == NULL)
            fail_msg("%s: %d, %s", cases[i].script, rc, r.err.text);
        rig_close(&r);
    }
}

static void deep_nesting_and_long_scripts_are_refused(void **state)
{
    static char text[KG_POLICY_SCRIPT_BYTES + 100];
    struct rig r;

    (void)state;
    (void)snprintf(text, sizeof(text), "x = ");
    memset(text + 4, '(', 60000);
    text[60004] = '\0';
    assert_int_equal(rig_open(&r, text, NULL), KG_EINVAL);
    rig_close(&r);
    memset(text, ' ', KG_POLICY_SCRIPT_BYTES + 1);
    text[KG_POLICY_SCRIPT_BYTES + 1] = '\0';
    assert_int_equal(rig_open(&r, text, NULL), KG_EINVAL);
    assert_non_null(strstr(r.err.text, "more than"));
    rig_close(&r);
    text[KG_POLICY_SCRIPT_BYTES] = '\0';
    assert_int_equal(rig_open(&r, text, NULL), KG_OK); /* the limit itself is taken */
    rig_close(&r);
}

static int to_memory(lua_State *L, const void *p, size_t n, void *ctx)
{
    (void)L;
    return kg_buf_add(ctx, p, n) != KG_OK;
}

static void a_binary_chunk_is_refused(void **state)
{
    struct rig r;
    struct kg_buf b;
    lua_State *L = luaL_newstate();

    (void)state;
    assert_non_null(L);
    kg_buf_init(&b, 0);
    assert_int_equal(luaL_loadstring(L, "function arrive() return nil end"), LUA_OK);
    assert_int_equal(lua_dump(L, to_memory, &b, 0), 0);
    lua_close(L);
    assert_int_equal(rig_open_bytes(&r, b.data, b.len, NULL), KG_EINVAL);
    assert_non_null(strstr(r.err.text, "binary"));
    kg_buf_fini(&b);
    rig_close(&r);
}

/* The names a script can reach, found by the script itself, are those of the list and no more. */
static void the_environment_is_the_list(void **state)
{
    static const char script[] =
        "local want = {assert=1, error=1, ipairs=1, next=1, pairs=1, pcall=1, select=1,\n"
        "  tonumber=1, tostring=1, type=1, math=1, string=1, table=1, kg=1}\n"
        "local tables = {\n"
        "  string = {byte=1, char=1, len=1, lower=1, reverse=1, sub=1, upper=1},\n"
        "  table = {concat=1, insert=1, remove=1, unpack=1},\n"
        "  kg = {contains=1, count=1, log=1, rate=1, starts_with=1}}\n"
        "for lib, names in pairs(tables) do\n"
        "  for name in pairs(_ENV[lib]) do assert(names[name], lib .. '.' .. name) end\n"
        "  for name in pairs(names) do assert(_ENV[lib][name], lib .. '.' .. name) end\n"
        "end\n"
        "assert(not math.random and not math.randomseed and math.floor(2.5) == 2)\n"
        "for name in pairs(want) do assert(_ENV[name], name) end\n"
        "for _, name in ipairs({'_G', 'load', 'loadstring', 'loadfile', 'dofile', 'require',\n"
        "  'package', 'os', 'io', 'debug', 'coroutine', 'collectgarbage', 'print', 'warn',\n"
        "  'setmetatable', 'getmetatable', 'rawget', 'rawset', 'rawequal', 'rawlen', 'xpcall',\n"
        "  'utf8', '_VERSION'}) do assert(_ENV[name] == nil, name) end\n"
        "assert((''):len() == 0 and not pcall(function() return ('').rep('x', 2) end))\n";
    struct rig r;

    (void)state;
    if (rig_open(&r, script, NULL) != KG_OK)
        fail_msg("%s", r.err.text);
    rig_close(&r);
}

static void nothing_beyond_the_list_is_in_the_index_of_names(void **state)
{
    /* pairs does not see what lies behind the environment, so count there. */
    struct kg_script *s;
    struct kg_error err;
    int n = 0;

    (void)state;
    assert_int_equal(kg_script_open("t", "", 0, false, &s, &err), KG_OK);
    lua_State *L = luaL_newstate();
    lua_newtable(L);
    *(struct kg_script **)lua_getextraspace(L) = s;
    kg_script_names(L);
    lua_pushnil(L);
    while (lua_next(L, 1) != 0) {
        n++;
        lua_pop(L, 1);
    }
    assert_int_equal(n, 14);
    lua_close(L);
    kg_script_close(s);
}

static void memory_is_capped_and_given_back(void **state)
{
    struct kg_script *s;
    struct kg_error err;
    static const char text[] =
        "function window(c, v) local t = {} for i = 1, v.block do t[i] = {i} "
        "end return 1 end";

    (void)state;
    assert_int_equal(kg_script_open("t", text, strlen(text), false, &s, &err), KG_OK);
    assert_true(s->used_bytes > 1000 && s->used_bytes < 65536);
    struct kg_script_call call = kg_call_window;
    struct kg_policy_class c = rig_class();
    struct kg_policy_window out;
    call.req = call.view = &c;
    call.out = &out;
    for (int i = 0; i < 50; i++) {
        c.block = i % 2 ? 1000000 : 3;
        s->budget = (struct kg_script_budget){10000000, UINT64_MAX};
        enum kg_script_end end = kg_script_run(s, &call, &err);
        if (end != (i % 2 ? KG_END_MEMORY : KG_END_OK))
            fail_msg("call %d ended with %d: %s", i, end, err.text);
        assert_true(s->used_bytes <= s->max_bytes);
    }
    (void)lua_gc(s->lua, LUA_GCCOLLECT);
    assert_true(s->used_bytes < 65536);
    kg_script_close(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_attack_ends_and_the_next_call_works),
        cmocka_unit_test(attacks_in_admit_and_window_leave_the_built_in_rule),
        cmocka_unit_test(a_bad_top_level_is_not_taken),
        cmocka_unit_test(deep_nesting_and_long_scripts_are_refused),
        cmocka_unit_test(a_binary_chunk_is_refused),
        cmocka_unit_test(the_environment_is_the_list),
        cmocka_unit_test(nothing_beyond_the_list_is_in_the_index_of_names),
        cmocka_unit_test(memory_is_capped_and_given_back),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
