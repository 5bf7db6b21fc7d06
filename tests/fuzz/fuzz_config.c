/* Any bytes as config.json and, after a NUL, as generation_config.json. */
#include "model/config.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const char *text = (const char *)data, *nul = n > 0 ? memchr(data, 0, n) : NULL;
    size_t first = nul != NULL ? (size_t)(nul - text) : n;
    struct kg_model_config c;
    struct kg_error err;

    if (kg_model_config_parse("input", text, first, nul != NULL ? nul + 1 : NULL,
                              nul != NULL ? n - first - 1 : 0, &c, &err) < 0) {
        return 0;
    }
    if (c.n_layers == 0 || c.n_layers > KG_MAX_LAYERS || c.n_kda_layers == 0 ||
        c.n_kda_layers + c.n_mla_layers != c.n_layers || c.hidden == 0 || c.vocab == 0 ||
        c.n_eos > KG_MAX_EOS_IDS || c.top_k > c.n_experts) {
        abort();
    }
    return 0;
}
