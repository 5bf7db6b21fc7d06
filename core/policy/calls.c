/* The three hooks as calls: the tables they are given, the answers they may give. */
#include "policy/script.h"

#include "base/clock.h"

#include <lualib.h>
#include <string.h>

/* --- giving: the two tables of a hook --- */

/* What a field of a table is made from. */
enum field_type {
    FIELD_U32,
    FIELD_U64,
    FIELD_BOOL,
    FIELD_STR,     /* const char * */
    FIELD_SECONDS, /* uint64_t ns */
    FIELD_MS,      /* uint64_t ns */
    FIELD_SUM,     /* of uint64_t [KG_N_KINDS] */
};

struct field {
    const char *name;
    uint32_t type; /* enum field_type */
    uint32_t offset;
};

#define FIELD(of, name, type, member)                   \
    {                                                   \
        name, FIELD_##type, offsetof(struct of, member) \
    }

#define REQ(name, type, member) FIELD(kg_policy_arrive, name, type, member)
static const struct field arrive_req[] = {
    REQ("tenant", STR, tenant),
    REQ("user", STR, user),
    REQ("arm", STR, arm),
    REQ("endpoint", STR, endpoint),
    REQ("stream", BOOL, stream),
    REQ("echo", BOOL, echo),
    REQ("prompts", U32, n_prompts),
    REQ("n", U32, n),
    REQ("prompt_tokens", U64, prompt_tokens),
    REQ("max_tokens", U32, max_tokens),
    REQ("priority", U32, priority),
};

#define LOAD(name, type, member) FIELD(kg_policy_load, name, type, member)
static const struct field arrive_view[] = {
    LOAD("now_s", SECONDS, now_ns),
    LOAD("sequences", U32, sequences),
    LOAD("max_sequences", U32, max_sequences),
    LOAD("running", U32, running),
    LOAD("waiting", U32, waiting),
    LOAD("arena_bytes", U64, arena_bytes),
    LOAD("live_bytes", U64, live_bytes),
    LOAD("cached_bytes", U64, cached_bytes),
    LOAD("promised_bytes", U64, promised_bytes),
};

#define ADMIT(name, type, member) FIELD(kg_policy_admit, name, type, member)
static const struct field admit_req[] = {
    ADMIT("tenant", STR, tenant),
    ADMIT("class", STR, class_name),
    ADMIT("arm", STR, arm),
    ADMIT("priority", U32, priority),
    ADMIT("prompt_tokens", U32, prompt_tokens),
    ADMIT("max_tokens", U32, max_tokens),
    ADMIT("hit_page_tokens", U32, hit_page_tokens),
    ADMIT("hit_state_tokens", U32, hit_state_tokens),
    ADMIT("waited_ms", MS, waited_ns),
    ADMIT("need_pages", U32, need_units[KG_PAGE]),
    ADMIT("need_states", U32, need_units[KG_STATE]),
    ADMIT("need_bytes", SUM, need_bytes),
};
static const struct field admit_view[] = {
    ADMIT("now_s", SECONDS, now_ns),
    ADMIT("waiting", U32, waiting),
    ADMIT("running", U32, running),
    ADMIT("max_running", U32, max_running),
    ADMIT("step_tokens", U32, step_tokens),
    ADMIT("arena_bytes", U64, arena_bytes),
    ADMIT("free_bytes", U64, free_bytes),
    ADMIT("promised_bytes", U64, promised_bytes),
    ADMIT("page_live_bytes", U64, live_bytes[KG_PAGE]),
    ADMIT("state_live_bytes", U64, live_bytes[KG_STATE]),
    ADMIT("page_cached_bytes", U64, cached_bytes[KG_PAGE]),
    ADMIT("state_cached_bytes", U64, cached_bytes[KG_STATE]),
    ADMIT("pages_live", U32, live_units[KG_PAGE]),
    ADMIT("states_live", U32, live_units[KG_STATE]),
    ADMIT("pages_cached", U32, cached_units[KG_PAGE]),
    ADMIT("states_cached", U32, cached_units[KG_STATE]),
};

#define CLASS(name, type, member) FIELD(kg_policy_class, name, type, member)
static const struct field window_class[] = {
    CLASS("tenant", STR, tenant),
    CLASS("class", STR, class_name),
    CLASS("arm", STR, arm),
    CLASS("sequences", U32, sequences),
    CLASS("context_tokens", U32, context_tokens),
    CLASS("verified", U64, verified),
    CLASS("accepted", U64, accepted),
};
static const struct field window_view[] = {
    CLASS("now_s", SECONDS, now_ns),
    CLASS("block", U32, block),
    CLASS("batch", U32, batch),
};

#define BITS(fields) \
    _Static_assert(sizeof(fields) / sizeof(fields[0]) <= 32, "`used` has a bit for each field")
BITS(arrive_req);
BITS(arrive_view);
BITS(admit_req);
BITS(admit_view);
BITS(window_class);
BITS(window_view);

#define SHAPE(fields)                              \
    {                                              \
        fields, sizeof(fields) / sizeof(fields[0]) \
    }
static const struct shape {
    const struct field *fields;
    uint32_t n; /* <= 32: `used` of a table has a bit for each */
} shapes[KG_N_HOOKS][2] = {
    [KG_HOOK_ARRIVE] = {SHAPE(arrive_req), SHAPE(arrive_view)},
    [KG_HOOK_ADMIT] = {SHAPE(admit_req), SHAPE(admit_view)},
    [KG_HOOK_WINDOW] = {SHAPE(window_class), SHAPE(window_view)},
};

static void push_u64(lua_State *L, uint64_t v)
{
    lua_pushinteger(L, v <= INT64_MAX ? (lua_Integer)v : INT64_MAX);
}

static void push_field(lua_State *L, const struct field *f, const void *base)
{
    const char *at = (const char *)base + f->offset;

    switch (f->type) {
    case FIELD_U32:
        lua_pushinteger(L, *(const uint32_t *)(const void *)at);
        break;
    case FIELD_U64:
        push_u64(L, *(const uint64_t *)(const void *)at);
        break;
    case FIELD_BOOL:
        lua_pushboolean(L, *(const bool *)at);
        break;
    case FIELD_STR: {
        const char *s = *(const char *const *)(const void *)at;
        lua_pushlstring(L, s, strnlen(s, 256));
        break;
    }
    case FIELD_SECONDS:
        lua_pushnumber(L, (double)*(const uint64_t *)(const void *)at * 1e-9);
        break;
    case FIELD_MS:
        push_u64(L, *(const uint64_t *)(const void *)at / KG_NS_PER_MS);
        break;
    default:
        push_u64(L,
                 ((const uint64_t *)(const void *)at)[0] + ((const uint64_t *)(const void *)at)[1]);
        break;
    }
}

/* Which table a function of its metatable belongs to: upvalue 1. */
static struct kg_script_table *table_of(lua_State *L, const struct shape **shape, const void **base)
{
    struct kg_script *s = kg_script_of(L);
    lua_Integer at = lua_tointeger(L, lua_upvalueindex(1));

    *shape = &shapes[at / 2][at % 2];
    *base = s->running == at / 2 ? s->given[at % 2] : NULL;
    return &s->tables[at / 2][at % 2];
}

/* A field that was not filled: it will be from now on. Nothing outside of the hook's own call. */
static int get_field(lua_State *L)
{
    const struct shape *shape;
    const void *base;
    struct kg_script_table *t = table_of(L, &shape, &base);

    lua_settop(L, 2);
    lua_rawget(L, lua_upvalueindex(2)); /* name -> place */
    if (!lua_isinteger(L, -1) || base == NULL) {
        lua_pushnil(L);
        return 1;
    }
    uint32_t i = (uint32_t)lua_tointeger(L, -1);
    t->used |= 1u << i;
    push_field(L, &shape->fields[i], base);
    return 1;
}

/* Something of the script's own: the next call gets another table. */
static int set_field(lua_State *L)
{
    const struct shape *shape;
    const void *base;

    table_of(L, &shape, &base)->is_soiled = true;
    lua_settop(L, 3);
    lua_rawset(L, 1);
    return 0;
}

/* pairs: over a copy with every field. */
static int all_fields(lua_State *L)
{
    const struct shape *shape;
    const void *base;

    (void)table_of(L, &shape, &base);
    lua_settop(L, 1);
    lua_pushvalue(L, lua_upvalueindex(2)); /* next */
    lua_createtable(L, 0, (int)shape->n);
    for (uint32_t i = 0; base != NULL && i < shape->n; i++) {
        push_field(L, &shape->fields[i], base);
        lua_setfield(L, -2, shape->fields[i].name);
    }
    for (lua_pushnil(L); lua_next(L, 1) != 0;) { /* what the script has set wins */
        lua_pushvalue(L, -2);
        lua_insert(L, -2);
        lua_rawset(L, 3);
    }
    lua_pushnil(L);
    return 3;
}

static void push_metatable(lua_State *L, int at)
{
    const struct shape *shape = &shapes[at / 2][at % 2];

    lua_createtable(L, 0, 3);
    lua_pushinteger(L, at);
    lua_createtable(L, 0, (int)shape->n);
    for (uint32_t i = 0; i < shape->n; i++) {
        lua_pushinteger(L, i);
        lua_setfield(L, -2, shape->fields[i].name);
    }
    lua_pushcclosure(L, get_field, 2);
    lua_setfield(L, -2, "__index");
    lua_pushinteger(L, at);
    lua_pushcclosure(L, set_field, 1);
    lua_setfield(L, -2, "__newindex");
    lua_pushinteger(L, at);
    lua_pushcfunction(L, luaopen_base); /* for next, which scripts cannot change here */
    lua_call(L, 0, 1);
    lua_getfield(L, -1, "next");
    lua_remove(L, -2);
    lua_pushcclosure(L, all_fields, 2);
    lua_setfield(L, -2, "__pairs");
}

int kg_script_push_fields(lua_State *L)
{
    struct kg_script *s = kg_script_of(L);
    int n = 0;

    luaL_checkstack(L, 256, NULL);
    for (int at = 0; at < 2 * KG_N_HOOKS; at++) {
        struct kg_script_table *t = &s->tables[at / 2][at % 2];
        const struct shape *shape = &shapes[at / 2][at % 2];
        push_metatable(L, at);
        *t = (struct kg_script_table){.table = LUA_NOREF, .is_soiled = true, .first_name = n + 1};
        t->metatable = luaL_ref(L, LUA_REGISTRYINDEX);
        for (uint32_t i = 0; i < shape->n; i++, n++)
            lua_pushstring(L, shape->fields[i].name);
    }
    return n;
}

/* One table, with the fields the script has looked at before; the others come when they are looked
 * at. It is the same table in every call, unless the script put something into it. */
static void push_table(lua_State *L, struct kg_script_table *t, const struct shape *shape,
                       const void *base)
{
    if (t->is_soiled) {
        luaL_unref(L, LUA_REGISTRYINDEX, t->table);
        t->table = LUA_NOREF;
        lua_createtable(L, 0, 8);
        lua_rawgeti(L, LUA_REGISTRYINDEX, t->metatable);
        lua_setmetatable(L, -2);
        lua_pushvalue(L, -1);
        t->table = luaL_ref(L, LUA_REGISTRYINDEX);
        t->is_soiled = false;
    } else {
        lua_rawgeti(L, LUA_REGISTRYINDEX, t->table);
    }
    for (uint32_t left = t->used; left != 0; left &= left - 1) {
        int i = __builtin_ctz(left);
        lua_pushvalue(L, lua_upvalueindex(t->first_name + i));
        push_field(L, &shape->fields[i], base);
        lua_rawset(L, -3);
    }
}

void kg_script_give(lua_State *L, const struct kg_script_call *call)
{
    struct kg_script *s = kg_script_of(L);

    for (int k = 0; k < 2; k++)
        push_table(L, &s->tables[call->hook][k], &shapes[call->hook][k], s->given[k]);
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

const struct kg_script_call kg_call_arrive = {.hook = KG_HOOK_ARRIVE, .read = read_arrive};
const struct kg_script_call kg_call_admit = {.hook = KG_HOOK_ADMIT, .read = read_admit};
const struct kg_script_call kg_call_window = {.hook = KG_HOOK_WINDOW, .read = read_window};

/* --- made-up requests --- */

#define TRY_NOW_NS (3600 * KG_NS_PER_S)

static int try_one(struct kg_script *s, struct kg_script_call call, const void *req,
                   const void *view, void *out, struct kg_script_budget budget, uint64_t wall_ns,
                   struct kg_error *err)
{
    static const char *const names[KG_N_HOOKS] = {"arrive", "admit", "window"};
    struct kg_error why = {0};

    if (!kg_script_has(s, call.hook))
        return KG_OK;
    call.req = req;
    call.view = view;
    call.out = out;
    s->world = (struct kg_script_world){.now_ns = TRY_NOW_NS};
    s->budget = budget;
    if (wall_ns != 0)
        s->budget.deadline_ns = kg_now_ns() + wall_ns;
    if (kg_script_run(s, &call, &why) == KG_END_OK)
        return KG_OK;
    (void)kg_fail(err, why.rc, "%s, tried with a made-up request: %s", names[call.hook], why.text);
    return KG_EINVAL;
}

int kg_script_try(struct kg_script *s, struct kg_script_budget budget, uint64_t wall_ns,
                  struct kg_error *err)
{
    const struct kg_policy_arrive arrive = {.tenant = "acme",
                                            .arm = "",
                                            .user = "someone",
                                            .endpoint = "chat",
                                            .n_prompts = 1,
                                            .n = 1,
                                            .prompt_tokens = 1000,
                                            .max_tokens = 100};
    const struct kg_policy_load load = {
        .now_ns = TRY_NOW_NS, .max_sequences = 1024, .arena_bytes = 1u << 30};
    const struct kg_policy_admit admit = {.tenant = "acme",
                                          .arm = "",
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
                                           .arm = "",
                                           .class_name = "batch",
                                           .now_ns = TRY_NOW_NS,
                                           .block = 7,
                                           .sequences = 1,
                                           .batch = 1,
                                           .context_tokens = 1024,
                                           .verified = 100,
                                           .accepted = 60};
    struct kg_policy_arrived arrived;
    struct kg_policy_admitted admitted;
    struct kg_policy_window length;
    int rc = try_one(s, kg_call_arrive, &arrive, &load, &arrived, budget, wall_ns, err);

    if (rc == KG_OK)
        rc = try_one(s, kg_call_admit, &admit, &admit, &admitted, budget, wall_ns, err);
    if (rc == KG_OK)
        rc = try_one(s, kg_call_window, &window, &window, &length, budget, wall_ns, err);
    return rc;
}
