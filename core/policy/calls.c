/* The three hooks as calls: the tables they are given, the answers they may give. */
#include "policy/script.h"

#include "base/clock.h"

#include <string.h>

/* --- giving: fields of the table on top --- */

/* Names of fields; each is an upvalue of the function that runs a call, made once per state. */
#define KEYS(X)                                 \
    X(ACCEPTED, "accepted")                     \
    X(ARENA_BYTES, "arena_bytes")               \
    X(BATCH, "batch")                           \
    X(BLOCK, "block")                           \
    X(CACHED_BYTES, "cached_bytes")             \
    X(CLASS, "class")                           \
    X(CONTEXT_TOKENS, "context_tokens")         \
    X(ECHO, "echo")                             \
    X(ENDPOINT, "endpoint")                     \
    X(FREE_BYTES, "free_bytes")                 \
    X(HIT_PAGE_TOKENS, "hit_page_tokens")       \
    X(HIT_STATE_TOKENS, "hit_state_tokens")     \
    X(LIVE_BYTES, "live_bytes")                 \
    X(MAX_RUNNING, "max_running")               \
    X(MAX_SEQUENCES, "max_sequences")           \
    X(MAX_TOKENS, "max_tokens")                 \
    X(N, "n")                                   \
    X(NEED_BYTES, "need_bytes")                 \
    X(NEED_PAGES, "need_pages")                 \
    X(NEED_STATES, "need_states")               \
    X(NOW_S, "now_s")                           \
    X(PAGE_CACHED_BYTES, "page_cached_bytes")   \
    X(PAGE_LIVE_BYTES, "page_live_bytes")       \
    X(PAGES_CACHED, "pages_cached")             \
    X(PAGES_LIVE, "pages_live")                 \
    X(PRIORITY, "priority")                     \
    X(PROMISED_BYTES, "promised_bytes")         \
    X(PROMPT_TOKENS, "prompt_tokens")           \
    X(PROMPTS, "prompts")                       \
    X(RUNNING, "running")                       \
    X(SEQUENCES, "sequences")                   \
    X(STATE_CACHED_BYTES, "state_cached_bytes") \
    X(STATE_LIVE_BYTES, "state_live_bytes")     \
    X(STATES_CACHED, "states_cached")           \
    X(STATES_LIVE, "states_live")               \
    X(STEP_TOKENS, "step_tokens")               \
    X(STREAM, "stream")                         \
    X(TENANT, "tenant")                         \
    X(USER, "user")                             \
    X(VERIFIED, "verified")                     \
    X(WAITED_MS, "waited_ms")                   \
    X(WAITING, "waiting")

#define AS_ENUM(id, name) KEY_##id,
#define AS_NAME(id, name) [KEY_##id] = name,
enum key { KEYS(AS_ENUM) N_KEYS };
static const char *const key_names[N_KEYS] = {KEYS(AS_NAME)};

int kg_script_push_keys(lua_State *L)
{
    luaL_checkstack(L, N_KEYS, NULL);
    for (int i = 0; i < N_KEYS; i++)
        lua_pushstring(L, key_names[i]);
    return N_KEYS;
}

static void put_key(lua_State *L, enum key key)
{
    lua_pushvalue(L, lua_upvalueindex((int)key + 1));
}

static void put_u64(lua_State *L, enum key key, uint64_t v)
{
    put_key(L, key);
    lua_pushinteger(L, v <= INT64_MAX ? (lua_Integer)v : INT64_MAX);
    lua_rawset(L, -3);
}

static void put_str(lua_State *L, enum key key, const char *s)
{
    put_key(L, key);
    lua_pushlstring(L, s, strnlen(s, 256));
    lua_rawset(L, -3);
}

static void put_bool(lua_State *L, enum key key, bool v)
{
    put_key(L, key);
    lua_pushboolean(L, v);
    lua_rawset(L, -3);
}

static void put_seconds(lua_State *L, uint64_t now_ns)
{
    put_key(L, KEY_NOW_S);
    lua_pushnumber(L, (double)now_ns * 1e-9);
    lua_rawset(L, -3);
}

static void push_arrive(lua_State *L, const void *arg)
{
    const struct kg_arrive_arg *a = arg;
    const struct kg_policy_arrive *r = a->req;
    const struct kg_policy_load *v = a->load;

    lua_createtable(L, 0, 16);
    put_str(L, KEY_TENANT, r->tenant);
    put_str(L, KEY_USER, r->user);
    put_str(L, KEY_ENDPOINT, r->endpoint);
    put_bool(L, KEY_STREAM, r->stream);
    put_bool(L, KEY_ECHO, r->echo);
    put_u64(L, KEY_PROMPTS, r->n_prompts);
    put_u64(L, KEY_N, r->n);
    put_u64(L, KEY_PROMPT_TOKENS, r->prompt_tokens);
    put_u64(L, KEY_MAX_TOKENS, r->max_tokens);
    put_u64(L, KEY_PRIORITY, r->priority);
    lua_createtable(L, 0, 16);
    put_seconds(L, v->now_ns);
    put_u64(L, KEY_SEQUENCES, v->sequences);
    put_u64(L, KEY_MAX_SEQUENCES, v->max_sequences);
    put_u64(L, KEY_RUNNING, v->running);
    put_u64(L, KEY_WAITING, v->waiting);
    put_u64(L, KEY_ARENA_BYTES, v->arena_bytes);
    put_u64(L, KEY_LIVE_BYTES, v->live_bytes);
    put_u64(L, KEY_CACHED_BYTES, v->cached_bytes);
    put_u64(L, KEY_PROMISED_BYTES, v->promised_bytes);
}

static void push_admit(lua_State *L, const void *arg)
{
    const struct kg_policy_admit *r = arg;

    lua_createtable(L, 0, 16);
    put_str(L, KEY_TENANT, r->tenant);
    put_str(L, KEY_CLASS, r->class_name);
    put_u64(L, KEY_PRIORITY, r->priority);
    put_u64(L, KEY_PROMPT_TOKENS, r->prompt_tokens);
    put_u64(L, KEY_MAX_TOKENS, r->max_tokens);
    put_u64(L, KEY_HIT_PAGE_TOKENS, r->hit_page_tokens);
    put_u64(L, KEY_HIT_STATE_TOKENS, r->hit_state_tokens);
    put_u64(L, KEY_WAITED_MS, r->waited_ns / KG_NS_PER_MS);
    put_u64(L, KEY_NEED_PAGES, r->need_units[KG_PAGE]);
    put_u64(L, KEY_NEED_STATES, r->need_units[KG_STATE]);
    put_u64(L, KEY_NEED_BYTES, r->need_bytes[KG_PAGE] + r->need_bytes[KG_STATE]);
    lua_createtable(L, 0, 16);
    put_seconds(L, r->now_ns);
    put_u64(L, KEY_WAITING, r->waiting);
    put_u64(L, KEY_RUNNING, r->running);
    put_u64(L, KEY_MAX_RUNNING, r->max_running);
    put_u64(L, KEY_STEP_TOKENS, r->step_tokens);
    put_u64(L, KEY_ARENA_BYTES, r->arena_bytes);
    put_u64(L, KEY_FREE_BYTES, r->free_bytes);
    put_u64(L, KEY_PROMISED_BYTES, r->promised_bytes);
    put_u64(L, KEY_PAGE_LIVE_BYTES, r->live_bytes[KG_PAGE]);
    put_u64(L, KEY_STATE_LIVE_BYTES, r->live_bytes[KG_STATE]);
    put_u64(L, KEY_PAGE_CACHED_BYTES, r->cached_bytes[KG_PAGE]);
    put_u64(L, KEY_STATE_CACHED_BYTES, r->cached_bytes[KG_STATE]);
    put_u64(L, KEY_PAGES_LIVE, r->live_units[KG_PAGE]);
    put_u64(L, KEY_STATES_LIVE, r->live_units[KG_STATE]);
    put_u64(L, KEY_PAGES_CACHED, r->cached_units[KG_PAGE]);
    put_u64(L, KEY_STATES_CACHED, r->cached_units[KG_STATE]);
}

static void push_window(lua_State *L, const void *arg)
{
    const struct kg_policy_class *c = arg;

    lua_createtable(L, 0, 8);
    put_str(L, KEY_TENANT, c->tenant);
    put_str(L, KEY_CLASS, c->class_name);
    put_u64(L, KEY_SEQUENCES, c->sequences);
    put_u64(L, KEY_CONTEXT_TOKENS, c->context_tokens);
    put_u64(L, KEY_VERIFIED, c->verified);
    put_u64(L, KEY_ACCEPTED, c->accepted);
    lua_createtable(L, 0, 4);
    put_seconds(L, c->now_ns);
    put_u64(L, KEY_BLOCK, c->block);
    put_u64(L, KEY_BATCH, c->batch);
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
