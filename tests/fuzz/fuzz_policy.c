/* Any bytes as a policy script: loaded or refused, every hook it has called, then reset. What must
 * hold besides no fault: memory stays under its cap and a call ends inside its budget. */
#include "policy/script.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const struct kg_script_budget budget = {20000, UINT64_MAX};
    struct kg_script *s = NULL;
    struct kg_error err = {0};

    if (kg_script_open("fuzz.lua", (const char *)data, n, false, &s, &err) != KG_OK) {
        if (err.text[0] == '\0')
            abort(); /* refused without a reason */
        return 0;
    }
    for (int i = 0; i < 3; i++) {
        if (kg_script_try(s, budget, 0, &err) != KG_OK && err.text[0] == '\0')
            abort();
        if (s->used_bytes > s->max_bytes)
            abort();
    }
    if (kg_script_restart(&s, false) != KG_OK)
        abort(); /* what loaded once loads again: nothing is remembered */
    kg_script_close(s);
    return 0;
}
