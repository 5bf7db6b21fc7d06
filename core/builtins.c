#include "engine/builtin/builtin.h"

#include <stddef.h>

const struct kg_plugin *const kg_builtins[] = {
    &kg_builtin_spec_off,
    &kg_builtin_comm_self,
    &kg_builtin_tier_mem,
    NULL,
};
