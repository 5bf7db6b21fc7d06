/* The three hooks as calls: the tables they are given, the answers they may give. */
#include "policy/script.h"

#include "base/clock.h"

#include <string.h>

/* --- giving: fields of the table on top --- */

static void put_u64(lua_State *L, const char *name, uint64_t v)
{
    lua_pushinteger(L, v <= INT64_MAX ? (lua_Integer)v : INT64_MAX);
    lua_setfield(L, -2, name);
}

static void put_str(lua_State *L, const char *name, const char *s)
{
    lua_pushlstring(L, s, strnlen(s, 256));
    lua_setfield(L, -2, name);
}

static void put_bool(lua_State *L, const char *name, bool v)
{
    lua_pushboolean(L, v);
    lua_setfield(L, -2, name);
}

static void put_seconds(lua_State *L, uint64_t now_ns)
{
    lua_pushnumber(L, (double)now_ns * 1e-9);
    lua_setfield(L, -2, "now_s");
}

static void push_arrive(lua_State *L, const void *arg)
{
    const struct kg_arrive_arg *a = arg;
    const struct kg_policy_arrive *r = a->req;
    const struct kg_policy_load *v = a->load;

    lua_createtable(L, 0, 16);
    put_str(L, "tenant", r->tenant);
    put_str(L, "user", r->user);
    put_str(L, "endpoint", r->endpoint);
    put_bool(L, "stream", r->stream);
    put_bool(L, "echo", r->echo);
    put_u64(L, "prompts", r->n_prompts);
    put_u64(L, "n", r->n);
    put_u64(L, "prompt_tokens", r->prompt_tokens);
    put_u64(L, "max_tokens", r->max_tokens);
    put_u64(L, "priority", r->priority);
    lua_createtable(L, 0, 16);
    put_seconds(L, v->now_ns);
    put_u64(L, "sequences", v->sequences);
    put_u64(L, "max_sequences", v->max_sequences);
    put_u64(L, "running", v->running);
    put_u64(L, "waiting", v->waiting);
    put_u64(L, "arena_bytes", v->arena_bytes);
    put_u64(L, "live_bytes", v->live_bytes);
    put_u64(L, "cached_bytes", v->cached_bytes);
    put_u64(L, "promised_bytes", v->promised_bytes);
}

static void push_admit(lua_State *L, const void *arg)
{
    const struct kg_policy_admit *r = arg;

    lua_createtable(L, 0, 16);
    put_str(L, "tenant", r->tenant);
    put_str(L, "class", r->class_name);
    put_u64(L, "priority", r->priority);
    put_u64(L, "prompt_tokens", r->prompt_tokens);
    put_u64(L, "max_tokens", r->max_tokens);
    put_u64(L, "hit_page_tokens", r->hit_page_tokens);
    put_u64(L, "hit_state_tokens", r->hit_state_tokens);
    put_u64(L, "waited_ms", r->waited_ns / KG_NS_PER_MS);
    put_u64(L, "need_pages", r->need_units[KG_PAGE]);
    put_u64(L, "need_states", r->need_units[KG_STATE]);
    put_u64(L, "need_bytes", r->need_bytes[KG_PAGE] + r->need_bytes[KG_STATE]);
    lua_createtable(L, 0, 16);
    put_seconds(L, r->now_ns);
    put_u64(L, "waiting", r->waiting);
    put_u64(L, "running", r->running);
    put_u64(L, "max_running", r->max_running);
    put_u64(L, "step_tokens", r->step_tokens);
    put_u64(L, "arena_bytes", r->arena_bytes);
    put_u64(L, "free_bytes", r->free_bytes);
    put_u64(L, "promised_bytes", r->promised_bytes);
    put_u64(L, "page_live_bytes", r->live_bytes[KG_PAGE]);
    put_u64(L, "state_live_bytes", r->live_bytes[KG_STATE]);
    put_u64(L, "page_cached_bytes", r->cached_bytes[KG_PAGE]);
    put_u64(L, "state_cached_bytes", r->cached_bytes[KG_STATE]);
    put_u64(L, "pages_live", r->live_units[KG_PAGE]);
    put_u64(L, "states_live", r->live_units[KG_STATE]);
    put_u64(L, "pages_cached", r->cached_units[KG_PAGE]);
    put_u64(L, "states_cached", r->cached_units[KG_STATE]);
}

static void push_window(lua_State *L, const void *arg)
{
    const struct kg_policy_class *c = arg;

    lua_createtable(L, 0, 8);
    put_str(L, "tenant", c->tenant);
    put_str(L, "class", c->class_name);
    put_u64(L, "sequences", c->sequences);
    put_u64(L, "context_tokens", c->context_tokens);
    put_u64(L, "verified", c->verified);
    put_u64(L, "accepted", c->accepted);
    lua_createtable(L, 0, 4);
    put_seconds(L, c->now_ns);
    put_u64(L, "block", c->block);
    put_u64(L, "batch", c->batch);
}

/* --- taking: results at 1..3 --- */

/* A whole number in a range; `what` names it. */
static uint32_t take_u32(lua_State *L, int at, const char *what, uint32_t min, uint32_t max)
{
    int whole = 0;
    lua_Integer v = 0;

    if (lua_type(L, at) == LUA_TNUMBER)
        v = lua_tointegerx(L, at, &whole);
    if (!whole || v < (lua_Integer)min || v > (lua_Integer)max)
        luaL_error(L, "%s must be a whole number from %I to %I", what, (lua_Integer)min,
                   (lua_Integer)max);
    return (uint32_t)v;
}

/* A reason: cut, control characters blanked, not in the middle of a UTF-8 character. */
static void take_reason(lua_State *L, int at, char *out)
{
    size_t n = 0;

    if (lua_type(L, at) != LUA_TSTRING)
        luaL_error(L, "\"reject\" needs a reason, a string, behind it");
    const char *s = lua_tolstring(L, at, &n);
    if (n > KG_POLICY_TEXT - 1) {
        n = KG_POLICY_TEXT - 1;
        while (n > 0 && ((unsigned char)s[n] & 0xc0) == 0x80)
            n--;
    }
    for (size_t i = 0; i < n; i++)
        out[i] = (unsigned char)s[i] < ' ' || s[i] == 127 ? ' ' : s[i];
    out[n] = '\0';
}

/* A name of visible ASCII. */
static void take_name(lua_State *L, int at, const char *what, char *out)
{
    size_t n = 0;
    const char *s = lua_type(L, at) == LUA_TSTRING ? lua_tolstring(L, at, &n) : NULL;

    for (size_t i = 0; i < n; i++) {
        if (s[i] <= ' ' || s[i] > '~')
            s = NULL, n = 0;
    }
    if (s == NULL || n >= KG_POLICY_NAME)
        luaL_error(L, "%s must be a string of at most %d visible ASCII characters", what,
                   KG_POLICY_NAME - 1);
    memcpy(out, s, n);
    out[n] = '\0';
}

static bool is_word(lua_State *L, int at, const char *word)
{
    return lua_type(L, at) == LUA_TSTRING && strcmp(lua_tostring(L, at), word) == 0;
}

/* nil or true: go on, nothing to say. */
static bool is_plain_yes(lua_State *L)
{
    return lua_isnil(L, 1) || (lua_isboolean(L, 1) && lua_toboolean(L, 1));
}

static int bad_answer(lua_State *L, const char *hook, const char *words)
{
    if (lua_type(L, 1) == LUA_TSTRING)
        return luaL_error(L, "%s answered an unknown word; it may answer %s", hook, words);
    return luaL_error(L, "%s answered a %s; it may answer %s", hook, luaL_typename(L, 1), words);
}

/* One field of an answer table: the key at -2, the value at -1. */
static void arrive_field(lua_State *L, struct kg_policy_arrived *out)
{
    const char *key = lua_type(L, -2) == LUA_TSTRING ? lua_tostring(L, -2) : "";
    int at = lua_gettop(L);

    if (strcmp(key, "tenant") == 0) {
        take_name(L, at, "tenant", out->tenant);
    } else if (strcmp(key, "class") == 0) {
        take_name(L, at, "class", out->class_name);
    } else if (strcmp(key, "priority") == 0) {
        out->priority = take_u32(L, at, "priority", 0, 1000000);
        out->has_priority = true;
    } else if (strcmp(key, "max_tokens") == 0) {
        out->max_tokens = take_u32(L, at, "max_tokens", 1, INT32_MAX);
    } else {
        luaL_error(L, "arrive may set tenant, class, priority, max_tokens, nothing else");
    }
}

static void read_arrive(lua_State *L, void *arg)
{
    struct kg_policy_arrived out = {0};

    if (is_word(L, 1, "reject")) {
        take_reason(L, 2, out.reason);
        out.reject = 429;
        if (!lua_isnil(L, 3)) {
            out.reject = take_u32(L, 3, "the status", 403, 503);
            if (out.reject != 403 && out.reject != 429 && out.reject != 503)
                luaL_error(L, "the status must be 403, 429 or 503");
        }
    } else if (lua_istable(L, 1)) {
        lua_pushnil(L);
        while (lua_next(L, 1) != 0) {
            arrive_field(L, &out);
            lua_pop(L, 1);
        }
    } else if (!is_plain_yes(L)) {
        (void)bad_answer(L, "arrive", "nil, true, a table, or \"reject\", reason");
    }
    *(struct kg_policy_arrived *)arg = out;
}

static uint32_t take_lifetime(lua_State *L)
{
    if (is_word(L, -1, "prompt"))
        return KG_POLICY_LIFETIME_PROMPT;
    if (is_word(L, -1, "max"))
        return KG_POLICY_LIFETIME_MAX;
    if (is_word(L, -1, "expected"))
        return KG_POLICY_LIFETIME_EXPECTED;
    luaL_error(L, "lifetime must be \"prompt\", \"max\" or \"expected\"");
    return 0;
}

static void read_admit(lua_State *L, void *arg)
{
    struct kg_policy_admitted out = {0};

    if (is_word(L, 1, "reject")) {
        out.verdict = KG_VERDICT_REJECT;
        take_reason(L, 2, out.reason);
    } else if (is_word(L, 1, "defer")) {
        out.verdict = KG_VERDICT_DEFER;
        if (!lua_isnil(L, 2))
            out.defer_ms = take_u32(L, 2, "the time to wait in ms", 1, 3600000);
    } else if (lua_istable(L, 1)) {
        lua_pushnil(L);
        while (lua_next(L, 1) != 0) {
            if (!is_word(L, -2, "lifetime"))
                luaL_error(L, "admit may set lifetime, nothing else");
            out.lifetime = take_lifetime(L);
            lua_pop(L, 1);
        }
    } else if (!is_plain_yes(L)) {
        (void)bad_answer(L, "admit", "nil, true, a table, \"defer\" [, ms], or \"reject\", reason");
    }
    *(struct kg_policy_admitted *)arg = out;
}

static void read_window(lua_State *L, void *arg)
{
    struct kg_policy_window out = {0};

    if (lua_type(L, 1) == LUA_TNUMBER) {
        out.has_cap = true;
        out.length = take_u32(L, 1, "the window", 0, 1024);
    } else if (is_word(L, 1, "pause")) {
        out.has_set = true;
    } else if (is_word(L, 1, "set")) {
        out.has_set = true;
        out.length = take_u32(L, 2, "the window", 0, 1024);
    } else if (!is_plain_yes(L)) {
        (void)bad_answer(L, "window", "nil, true, a number, \"set\", number, or \"pause\"");
    }
    *(struct kg_policy_window *)arg = out;
}

const struct kg_script_call kg_call_arrive = {KG_HOOK_ARRIVE, push_arrive, NULL, read_arrive, NULL};
const struct kg_script_call kg_call_admit = {KG_HOOK_ADMIT, push_admit, NULL, read_admit, NULL};
const struct kg_script_call kg_call_window = {KG_HOOK_WINDOW, push_window, NULL, read_window, NULL};

/* --- made-up requests --- */

#define TRY_NOW_NS (3600 * KG_NS_PER_S)

static int try_one(struct kg_script *s, struct kg_script_call call, const void *arg, void *out,
                   struct kg_script_budget budget, uint64_t wall_ns, struct kg_error *err)
{
    static const char *const names[KG_N_HOOKS] = {"arrive", "admit", "window"};
    struct kg_error why = {0};

    if (!kg_script_has(s, call.hook))
        return KG_OK;
    call.arg = arg;
    call.out = out;
    s->world = (struct kg_script_world){.now_ns = TRY_NOW_NS};
    s->budget = budget;
    if (wall_ns != 0)
        s->budget.deadline_ns = kg_now_ns() + wall_ns;
    if (kg_script_run(s, &call, &why) == KG_END_OK)
        return KG_OK;
    return kg_fail(err, KG_EINVAL, "%s, tried with a made-up request: %s", names[call.hook],
                   why.text);
}

int kg_script_try(struct kg_script *s, struct kg_script_budget budget, uint64_t wall_ns,
                  struct kg_error *err)
{
    const struct kg_policy_arrive arrive = {.tenant = "acme",
                                            .user = "someone",
                                            .endpoint = "chat",
                                            .n_prompts = 1,
                                            .n = 1,
                                            .prompt_tokens = 1000,
                                            .max_tokens = 100};
    const struct kg_policy_load load = {
        .now_ns = TRY_NOW_NS, .max_sequences = 1024, .arena_bytes = 1u << 30};
    const struct kg_policy_admit admit = {.tenant = "acme",
                                          .class_name = "batch",
                                          .now_ns = TRY_NOW_NS,
                                          .prompt_tokens = 1000,
                                          .max_tokens = 100,
                                          .need_units = {18, 1},
                                          .need_bytes = {18u << 16, 1u << 20},
                                          .arena_bytes = 1u << 30,
                                          .free_bytes = 1u << 30,
                                          .waiting = 1,
                                          .max_running = 64,
                                          .step_tokens = 512};
    const struct kg_policy_class window = {.tenant = "acme",
                                           .class_name = "batch",
                                           .now_ns = TRY_NOW_NS,
                                           .block = 7,
                                           .sequences = 1,
                                           .batch = 1,
                                           .context_tokens = 1024,
                                           .verified = 100,
                                           .accepted = 60};
    struct kg_arrive_arg arg = {&arrive, &load};
    struct kg_policy_arrived arrived;
    struct kg_policy_admitted admitted;
    struct kg_policy_window length;
    int rc = try_one(s, kg_call_arrive, &arg, &arrived, budget, wall_ns, err);

    if (rc == KG_OK)
        rc = try_one(s, kg_call_admit, &admit, &admitted, budget, wall_ns, err);
    if (rc == KG_OK)
        rc = try_one(s, kg_call_window, &window, &length, budget, wall_ns, err);
    return rc;
}
