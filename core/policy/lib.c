/* Every name a script may use, by allow list. What is not listed is also taken out of the library
 * tables themselves, because strings reach theirs through a metatable. */
#include "policy/script.h"

#include <lauxlib.h>
#include <lualib.h>
#include <math.h>
#include <string.h>

static const char *const base_names[] = {"assert", "error",  "ipairs",   "next", "pairs",
                                         "pcall",  "select", "tonumber", "type", NULL};
/* Without: find match gmatch gsub rep format, whose time one call does not bound. */
static const char *const string_names[] = {"byte",    "char", "len",   "lower",
                                           "reverse", "sub",  "upper", NULL};
/* Without: sort, pack, move. */
static const char *const table_names[] = {"concat", "insert", "remove", "unpack", NULL};
/* Without: random, randomseed, so that equal runs decide equally. */
static const char *const math_names[] = {
    "abs",  "acos", "asin", "atan", "ceil",       "cos",  "deg",        "exp",  "floor",
    "fmod", "huge", "log",  "max",  "maxinteger", "min",  "mininteger", "modf", "pi",
    "rad",  "sin",  "sqrt", "tan",  "tointeger",  "type", "ult",        NULL};

static bool is_listed(const char *const *names, const char *name)
{
    while (*names != NULL && strcmp(*names, name) != 0)
        names++;
    return *names != NULL;
}

/* Removes from the table on top what is not listed. */
static void keep_only(lua_State *L, const char *const *names)
{
    int t = lua_gettop(L);

    lua_pushnil(L);
    while (lua_next(L, t) != 0) {
        lua_pop(L, 1);
        if (lua_type(L, -1) != LUA_TSTRING || !is_listed(names, lua_tostring(L, -1))) {
            lua_pushvalue(L, -1);
            lua_pushnil(L);
            lua_rawset(L, t);
        }
    }
}

/* A table function that walks its table: upvalue 1, paid for by the length. */
static int walk_table(lua_State *L)
{
    lua_CFunction walk = lua_tocfunction(L, lua_upvalueindex(1));

    if (lua_istable(L, 1))
        kg_script_charge(kg_script_of(L), lua_rawlen(L, 1));
    return walk(L);
}

/* Every function of the table library, on top, becomes one that is paid for. */
static void charge_walks(lua_State *L)
{
    for (const char *const *name = table_names; *name != NULL; name++) {
        lua_getfield(L, -1, *name);
        lua_pushcclosure(L, walk_table, 1);
        lua_setfield(L, -2, *name);
    }
}

/* tostring without addresses, and without metamethods as nothing can have any. */
static int to_string(lua_State *L)
{
    luaL_checkany(L, 1);
    switch (lua_type(L, 1)) {
    case LUA_TNIL:
    case LUA_TBOOLEAN:
    case LUA_TNUMBER:
    case LUA_TSTRING:
        (void)luaL_tolstring(L, 1, NULL);
        break;
    default:
        lua_pushstring(L, luaL_typename(L, 1));
    }
    return 1;
}

/* --- kg --- */

static const char *check_key(lua_State *L, size_t *n)
{
    const char *key = luaL_checklstring(L, 1, n);

    luaL_argcheck(L, *n <= KG_KEY_BYTES, 1, "a key has at most 48 bytes");
    return key;
}

static double check_amount(lua_State *L, int arg, double standard, double least)
{
    double v = luaL_optnumber(L, arg, standard);

    luaL_argcheck(L, v >= least && v <= 1e15, arg, "not a number in range");
    return v;
}

/* rate(key, per_s [, burst [, cost]]): true, or false and the seconds to wait. */
static int kg_rate(lua_State *L)
{
    const struct kg_script_world *w = &kg_script_of(L)->world;
    size_t n;
    const char *key = check_key(L, &n);
    double per_s = check_amount(L, 2, -1, 0);
    double burst = check_amount(L, 3, per_s > 1 ? per_s : 1, 0);
    double cost = check_amount(L, 4, 1, 0);
    double wait_s = 0;

    if (w->rates != NULL)
        wait_s = kg_keys_take(w->rates, key, n, w->now_ns, per_s, burst, cost);
    lua_pushboolean(L, wait_s == 0);
    lua_pushnumber(L, wait_s);
    return 2;
}

/* count(key [, delta]): the value after adding. */
static int kg_count(lua_State *L)
{
    const struct kg_script_world *w = &kg_script_of(L)->world;
    size_t n;
    const char *key = check_key(L, &n);
    double delta = check_amount(L, 2, 1, -1e15);
    double value = delta;

    if (w->counts != NULL) {
        struct kg_key *k = kg_keys_get(w->counts, key, n);
        value = k->level + delta;
        value = value > 1e15 ? 1e15 : value < -1e15 ? -1e15 : value;
        k->level = value;
    }
    if (value == floor(value))
        lua_pushinteger(L, (lua_Integer)value);
    else
        lua_pushnumber(L, value);
    return 1;
}

static int kg_log_text_line(lua_State *L)
{
    const struct kg_script_world *w = &kg_script_of(L)->world;
    char line[KG_POLICY_TEXT];
    size_t n;
    const char *text = luaL_checklstring(L, 1, &n);

    n = n < sizeof(line) ? n : sizeof(line) - 1;
    for (size_t i = 0; i < n; i++)
        line[i] = (unsigned char)text[i] < ' ' || text[i] == 127 ? ' ' : text[i];
    line[n] = '\0';
    if (w->log != NULL)
        w->log(w->log_ctx, line, false);
    return 0;
}

static int kg_starts_with(lua_State *L)
{
    size_t n, n_prefix;
    const char *s = luaL_checklstring(L, 1, &n);
    const char *prefix = luaL_checklstring(L, 2, &n_prefix);

    lua_pushboolean(L, n_prefix <= n && memcmp(s, prefix, n_prefix) == 0);
    return 1;
}

static int kg_contains(lua_State *L)
{
    size_t n, n_part;
    const char *s = luaL_checklstring(L, 1, &n);
    const char *part = luaL_checklstring(L, 2, &n_part);

    kg_script_charge(kg_script_of(L), n / 16);
    lua_pushboolean(L, memmem(s, n, part, n_part) != NULL);
    return 1;
}

static const luaL_Reg kg_functions[] = {
    {"contains", kg_contains},       {"count", kg_count},
    {"log", kg_log_text_line},       {"rate", kg_rate},
    {"starts_with", kg_starts_with}, {NULL, NULL},
};

void kg_script_names(lua_State *L)
{
    static const struct {
        const char *name;
        lua_CFunction open;
        const char *const *keep;
    } libraries[] = {
        {"string", luaopen_string, string_names},
        {"table", luaopen_table, table_names},
        {"math", luaopen_math, math_names},
    };
    int names = lua_gettop(L);

    lua_pushcfunction(L, luaopen_base);
    lua_call(L, 0, 1); /* fills and leaves the global table */
    for (const char *const *name = base_names; *name != NULL; name++) {
        lua_getfield(L, -1, *name);
        lua_setfield(L, names, *name);
    }
    lua_pop(L, 1);
    lua_newtable(L); /* nobody needs the full one any more */
    lua_rawseti(L, LUA_REGISTRYINDEX, LUA_RIDX_GLOBALS);
    for (size_t i = 0; i < sizeof(libraries) / sizeof(libraries[0]); i++) {
        lua_pushcfunction(L, libraries[i].open);
        lua_call(L, 0, 1);
        keep_only(L, libraries[i].keep);
        if (libraries[i].keep == table_names)
            charge_walks(L);
        lua_setfield(L, names, libraries[i].name);
    }
    luaL_newlib(L, kg_functions);
    lua_setfield(L, names, "kg");
    lua_pushcfunction(L, to_string);
    lua_setfield(L, names, "tostring");
}
