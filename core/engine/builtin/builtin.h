/* Built-in plugins: the trivial default of a kind, with the descriptor a plugin file would have. */
#ifndef KEDGE_ENGINE_BUILTIN_BUILTIN_H
#define KEDGE_ENGINE_BUILTIN_BUILTIN_H

#include <kedge/abi.h>

extern const struct kg_plugin kg_builtin_spec_off;  /* kind spec, "off": never drafts */
extern const struct kg_plugin kg_builtin_comm_self; /* kind comm, "self": a group of one */
extern const struct kg_plugin kg_builtin_tier_mem;  /* kind tier, "mem": copies in host memory */

/* All of them, ended by NULL. */
extern const struct kg_plugin *const kg_builtins[];

#endif
