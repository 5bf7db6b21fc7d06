/*
 * One Lua state with one script in it: the sandbox, its memory cap and its budget. Belongs to one
 * thread. Everything that may raise runs inside a protected call; nothing here can end the process.
 */
#ifndef KEDGE_POLICY_SCRIPT_H
#define KEDGE_POLICY_SCRIPT_H

#include "policy/keys.h"
#include "policy/policy.h"

#include <lauxlib.h>

/* How a call into the script ended. */
enum kg_script_end {
    KG_END_OK = 0,
    KG_END_ERROR = 1,  /* the script raised, or answered something that is no answer */
    KG_END_BUDGET = 2, /* instructions or time were spent */
    KG_END_MEMORY = 3, /* the state's memory was spent */
};

/* What the functions of `kg` work on during a call. */
struct kg_script_world {
    struct kg_keys *rates, *counts; /* NULL: loading and trying, nothing is remembered */
    uint64_t now_ns;
    void (*log)(void *ctx, const char *text, bool failure); /* NULL: dropped */
    void *log_ctx;
};

struct kg_script_budget {
    uint64_t instructions; /* left */
    uint64_t deadline_ns;  /* machine clock; UINT64_MAX for none */
};

/* One of the two tables a hook is given: kept from call to call, filled with what the script reads.
 */
struct kg_script_table {
    int table, metatable; /* references */
    int first_name;       /* upvalue of the runner: names of fields from here on */
    uint32_t used;        /* fields the script ever looked at */
    bool is_soiled;       /* the script put something into it, or there is none: make another */
};

struct kg_script {
    lua_State *lua;
    size_t used_bytes, max_bytes; /* memory of the state */
    int hooks[KG_N_HOOKS];        /* references, LUA_NOREF when the script has none */
    int runner;                   /* reference of the function that runs a call */
    struct kg_script_table tables[KG_N_HOOKS][2];
    const void *given[2]; /* what the tables of the running call are made from */
    int running;          /* enum kg_policy_hook, -1 between calls */
    struct kg_script_world world;
    struct kg_script_budget budget;
    bool blown;  /* the budget ended this call */
    bool sealed; /* globals may not be written any more */
    char *name;  /* of the chunk, for messages */
    char *source;
    size_t n_source;
};

/*
 * A call of a hook: req and view are what its two tables are made from. read finds the three
 * results at 1..3 and raises for what is no answer; it runs inside the protected call.
 */
struct kg_script_call {
    enum kg_policy_hook hook;
    const void *req, *view;
    void (*read)(lua_State *L, void *out);
    void *out;
};

/* Builds the sandbox and runs the top level of `source` (copied) under a load budget; text chunks
 * only. timed: the load budget has a wall time too. KG_EINVAL with the message of Lua. */
KG_CHECKED int kg_script_open(const char *name, const char *source, size_t n, bool timed,
                              struct kg_script **script, struct kg_error *err);
void kg_script_close(struct kg_script *script); /* NULL is allowed */
/* Runs a hook the script has, under script->budget, which is used up as it runs. Text of what went
 * wrong in err. Set world and budget before. */
enum kg_script_end kg_script_run(struct kg_script *script, const struct kg_script_call *call,
                                 struct kg_error *err);
/* For a state out of memory: the same script from the start, in a new state; *script is replaced
 * and the old one closed. It stays as it is when that fails. */
KG_CHECKED int kg_script_restart(struct kg_script **script, bool timed);

/* Takes instructions off the budget of the call: for C functions, whose work the count of
 * instructions does not see. The call ends at the next look at the budget. */
void kg_script_charge(struct kg_script *script, uint64_t instructions);

static inline bool kg_script_has(const struct kg_script *s, enum kg_policy_hook hook)
{
    return s->hooks[hook] != LUA_NOREF;
}

static inline struct kg_script *kg_script_of(lua_State *L)
{
    return *(struct kg_script **)lua_getextraspace(L);
}

/* lib.c: fills the table on top of the stack with every name a script may use. Raises. */
void kg_script_names(lua_State *L);

/* calls.c: makes the tables of all hooks and pushes the names of their fields, upvalues of the
 * function that runs a call; returns their number. Raises. */
int kg_script_push_fields(lua_State *L);
/* Pushes the two tables of a call. Inside the function that runs it. Raises. */
void kg_script_give(lua_State *L, const struct kg_script_call *call);
/* The three hooks as calls; req, view and out of the types of policy.h. */
extern const struct kg_script_call kg_call_arrive; /* _arrive, _load, _arrived */
extern const struct kg_script_call kg_call_admit;  /* _admit, the same, _admitted */
extern const struct kg_script_call kg_call_window; /* _class, the same, _window */
/* Runs every hook the script has with made-up requests, each under a full budget. */
KG_CHECKED int kg_script_try(struct kg_script *script, struct kg_script_budget budget,
                             uint64_t wall_ns, struct kg_error *err);

#endif
