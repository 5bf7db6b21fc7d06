/* Any bytes as config.json of a drafter. */
#include "model/draft_config.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct kg_draft_config c;
    struct kg_error err;

    if (kg_draft_config_parse("input", (const char *)data, n, &c, &err) < 0) {
        return 0;
    }
    if (c.block == 0 || c.block > KG_DRAFT_MAX_BLOCK || c.net.n_layers == 0 ||
        c.net.n_layers > KG_MAX_LAYERS || c.n_taps == 0 || c.n_taps > KG_DRAFT_MAX_TAPS ||
        c.mask_token >= c.net.vocab || c.net.rope_dim % 2 != 0 ||
        (c.confidence_markov && c.markov_rank == 0)) {
        abort();
    }
    for (uint32_t i = 0; i < c.n_taps; i++) {
        if (c.taps[i] + 1 >= c.target_layers || (i > 0 && c.taps[i] <= c.taps[i - 1])) {
            abort();
        }
    }
    for (uint32_t k = 0; k < KG_DRAFT_N_CLASSES * c.block; k++) {
        if (!(c.temperature[k / c.block][k % c.block] > 0) ||
            !(c.bias[k / c.block][k % c.block] >= -100)) {
            abort();
        }
    }
    return 0;
}
