/* The sandbox: allocator with a cap, environment by allow list, and the hook that holds. */
#include "policy/script.h"

#include "base/clock.h"

#include <stdlib.h>
#include <string.h>

/* Instructions between two looks at the budget. C functions run to their end between two looks, so
 * few instructions may pass; fewer are not measurably dearer. */
#define HOOK_EVERY 20
/* C functions that make much are paid for by what they allocate, in steps of a small table. */
#define CHARGE_BYTES 16
#define LOAD_INSTRUCTIONS 1000000
#define LOAD_NS (20 * KG_NS_PER_MS)

static const char *const hook_names[KG_N_HOOKS] = {"arrive", "admit", "window"};

void kg_script_charge(struct kg_script *s, uint64_t instructions)
{
    struct kg_script_budget *b = &s->budget;

    b->instructions -= instructions < b->instructions ? instructions : b->instructions;
}

static void *allocate(void *ctx, void *p, size_t old, size_t size)
{
    struct kg_script *s = ctx;
    size_t before = p != NULL ? old : 0; /* without a block, `old` is a kind of object */

    if (size == 0) {
        free(p);
        s->used_bytes -= before;
        return NULL;
    }
    if (size > before && size - before > s->max_bytes - s->used_bytes)
        return NULL;
    void *q = realloc(p, size);
    if (q != NULL)
        s->used_bytes = s->used_bytes - before + size;
    if (size > before)
        kg_script_charge(s, (size - before) / CHARGE_BYTES);
    return q;
}

/* --- budget --- */

static void budget_hook(lua_State *L, lua_Debug *ar)
{
    struct kg_script *s = kg_script_of(L);
    struct kg_script_budget *b = &s->budget;

    (void)ar;
    if (!s->blown && b->instructions > HOOK_EVERY &&
        (b->deadline_ns == UINT64_MAX || kg_now_ns() < b->deadline_ns)) {
        b->instructions -= HOOK_EVERY;
        return;
    }
    b->instructions = 0;
    s->blown = true;
    /* From now on every instruction raises: a pcall of the script cannot go on behind it. */
    lua_sethook(L, budget_hook, LUA_MASKCOUNT, 1);
    luaL_error(L, "budget spent");
}

static void budget_start(struct kg_script *s)
{
    s->blown = false;
    if (s->budget.instructions > HOOK_EVERY) /* what a short call does not reach */
        s->budget.instructions -= HOOK_EVERY;
    lua_sethook(s->lua, budget_hook, LUA_MASKCOUNT, HOOK_EVERY);
}

/* The error value on top as text that fits between quotes in a log line; popped. Nothing here may
 * raise. */
static void take_message(lua_State *L, struct kg_error *err)
{
    const char *text = lua_type(L, -1) == LUA_TSTRING ? lua_tostring(L, -1) : NULL;
    char copy[200];
    size_t n = 0;

    for (; text != NULL && text[n] != '\0' && n < sizeof(copy) - 1; n++)
        copy[n] = (unsigned char)text[n] < ' ' ? ' ' : text[n] == '"' ? '\'' : text[n];
    copy[n] = '\0';
    if (text == NULL)
        (void)kg_fail(err, KG_EINVAL, "the script raised a %s", luaL_typename(L, -1));
    else
        (void)kg_fail(err, KG_EINVAL, "%s", copy);
    lua_pop(L, 1);
}

/* Runs the protected call of the C function and its argument on the stack. */
static enum kg_script_end guarded(struct kg_script *s, struct kg_error *err)
{
    budget_start(s);
    int rc = lua_pcall(s->lua, 1, 0, 0);
    lua_sethook(s->lua, NULL, 0, 0);
    if (rc == LUA_OK && !s->blown)
        return KG_END_OK;
    if (rc != LUA_OK)
        take_message(s->lua, err);
    if (s->blown) {
        (void)kg_fail(err, KG_ELIMIT, "the script ran out of its budget");
        return KG_END_BUDGET;
    }
    return rc == LUA_ERRMEM ? KG_END_MEMORY : KG_END_ERROR;
}

/* --- loading --- */

static int deny_global(lua_State *L)
{
    if (!kg_script_of(L)->sealed) {
        lua_rawset(L, 1);
        return 0;
    }
    if (lua_type(L, 2) == LUA_TSTRING)
        return luaL_error(L, "global '%s' may not be written in a hook; use local",
                          lua_tostring(L, 2));
    return luaL_error(L, "globals may not be written in a hook; use local");
}

/* After the top level every global moves behind the environment, where writes do not reach. */
static void seal(lua_State *L, int env)
{
    lua_getmetatable(L, env);
    lua_getfield(L, -1, "__index");
    lua_pushnil(L);
    while (lua_next(L, env) != 0) {
        lua_pushvalue(L, -2);
        lua_insert(L, -2);
        lua_rawset(L, -4); /* names[key] = value */
    }
    lua_pushnil(L);
    while (lua_next(L, env) != 0) {
        lua_pop(L, 1);
        lua_pushvalue(L, -1);
        lua_pushnil(L);
        lua_rawset(L, env); /* clearing a field during a traversal is allowed */
    }
    kg_script_of(L)->sealed = true;
    lua_pop(L, 2);
}

static void find_hooks(lua_State *L, struct kg_script *s, int env)
{
    for (int i = 0; i < KG_N_HOOKS; i++) {
        lua_pushstring(L, hook_names[i]);
        lua_rawget(L, env);
        if (lua_isnil(L, -1)) {
            lua_pop(L, 1);
        } else if (!lua_isfunction(L, -1)) {
            luaL_error(L, "'%s' must be a function, it is a %s", hook_names[i],
                       luaL_typename(L, -1));
        } else {
            s->hooks[i] = luaL_ref(L, LUA_REGISTRYINDEX);
        }
    }
}

/* Runs inside the protected call of kg_script_run; its upvalues are the names of fields. */
static int run_body(lua_State *L)
{
    const struct kg_script_call *call = lua_touserdata(L, 1);
    const struct kg_script *s = kg_script_of(L);

    lua_settop(L, 0);
    lua_rawgeti(L, LUA_REGISTRYINDEX, s->hooks[call->hook]);
    kg_script_give(L, call);
    lua_call(L, 2, 3);
    call->read(L, call->out);
    return 0;
}

/* Runs inside the protected call: environment, chunk, top level. */
static int load_body(lua_State *L)
{
    struct kg_script *s = lua_touserdata(L, 1);

    lua_settop(L, 0);
    lua_pushcclosure(L, run_body, kg_script_push_fields(L));
    s->runner = luaL_ref(L, LUA_REGISTRYINDEX);
    lua_newtable(L); /* 1: environment */
    lua_createtable(L, 0, 2);
    lua_newtable(L);
    kg_script_names(L);
    lua_setfield(L, -2, "__index");
    lua_pushcfunction(L, deny_global);
    lua_setfield(L, -2, "__newindex");
    lua_setmetatable(L, 1);
    if (luaL_loadbufferx(L, s->source, s->n_source, s->name, "t") != LUA_OK)
        return lua_error(L);
    lua_pushvalue(L, 1);
    if (lua_setupvalue(L, -2, 1) == NULL)
        lua_pop(L, 1); /* a chunk always has it */
    lua_call(L, 0, 0);
    find_hooks(L, s, 1);
    seal(L, 1);
    return 0;
}

static int open_state(struct kg_script *s, bool timed, struct kg_error *err)
{
    s->used_bytes = 0;
    s->sealed = false;
    s->running = -1;
    for (int i = 0; i < KG_N_HOOKS; i++)
        s->hooks[i] = LUA_NOREF;
    s->lua = lua_newstate(allocate, s);
    if (s->lua == NULL)
        return kg_fail(err, KG_ENOMEM, "out of memory");
    *(struct kg_script **)lua_getextraspace(s->lua) = s;
    s->world = (struct kg_script_world){0};
    s->budget.instructions = LOAD_INSTRUCTIONS;
    s->budget.deadline_ns = timed ? kg_now_ns() + LOAD_NS : UINT64_MAX;
    lua_pushcfunction(s->lua, load_body);
    lua_pushlightuserdata(s->lua, s);
    if (guarded(s, err) != KG_END_OK)
        return KG_EINVAL;
    return KG_OK;
}

int kg_script_open(const char *name, const char *source, size_t n, bool timed,
                   struct kg_script **script, struct kg_error *err)
{
    struct kg_script *s = calloc(1, sizeof(*s));
    size_t n_name = strlen(name) + 2;
    int rc = KG_ENOMEM;

    if (n > KG_POLICY_SCRIPT_BYTES) {
        free(s);
        return kg_fail(err, KG_EINVAL, "%s: a script of %zu bytes, at most %d are taken", name, n,
                       KG_POLICY_SCRIPT_BYTES);
    }
    if (s != NULL) {
        s->max_bytes = KG_POLICY_STATE_BYTES;
        s->name = malloc(n_name);
        s->source = malloc(n + 1);
    }
    if (s != NULL && s->name != NULL && s->source != NULL) {
        (void)snprintf(s->name, n_name, "@%s", name);
        memcpy(s->source, source, n);
        s->source[n] = '\0';
        s->n_source = n;
        rc = open_state(s, timed, err);
    } else {
        (void)kg_fail(err, KG_ENOMEM, "out of memory");
    }
    if (rc != KG_OK) {
        kg_script_close(s);
        return rc;
    }
    *script = s;
    return KG_OK;
}

void kg_script_close(struct kg_script *s)
{
    if (s == NULL)
        return;
    if (s->lua != NULL)
        lua_close(s->lua);
    free(s->name);
    free(s->source);
    free(s);
}

int kg_script_restart(struct kg_script **script, bool timed)
{
    struct kg_script *old = *script, *fresh;
    int rc = kg_script_open(old->name + 1, old->source, old->n_source, timed, &fresh, NULL);

    if (rc != KG_OK)
        return rc;
    kg_script_close(old);
    *script = fresh;
    return KG_OK;
}

/* --- running --- */

enum kg_script_end kg_script_run(struct kg_script *s, const struct kg_script_call *call,
                                 struct kg_error *err)
{
    lua_rawgeti(s->lua, LUA_REGISTRYINDEX, s->runner);
    lua_pushlightuserdata(s->lua, (void *)(uintptr_t)call);
    s->given[0] = call->req;
    s->given[1] = call->view;
    s->running = call->hook;
    enum kg_script_end end = guarded(s, err);
    s->running = -1;
    return end;
}
