/* Any bytes as a tensor file: refused or read; what is read lies inside the file. */
#include "model/safetensors.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct kg_error err;
    struct kg_st *st;
    const char *begin = (const char *)data;

    if (kg_st_parse("input", data, n, &st, &err) < 0) {
        return 0;
    }
    for (uint64_t i = 0; i < kg_st_count(st); i++) {
        const struct kg_st_tensor *t = kg_st_at(st, i);
        const char *d = t->data;
        if (d < begin || d > begin + n || t->bytes > (uint64_t)(begin + n - d) ||
            kg_st_find(st, t->name) != t) {
            abort();
        }
    }
    kg_st_close(st);
    return 0;
}
