/* Any bytes as an INI file: refused with lines or taken, never anything else. */
#include "config.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct kg_config *c;
    struct kg_buf b;

    if (kg_config_create(&c) != KG_OK)
        return 0;
    int rc = kg_config_read_text(c, "fuzz", (const char *)data, size);
    if ((rc == KG_OK) != (kg_config_errors(c)[0] == '\0'))
        abort();
    /* a path could name a real library of this machine: loading it is not what is tried here */
    if (size < 100000 && memchr(data, '/', size) == NULL) {
        rc = kg_config_finish(c);
        if ((rc == KG_OK) != (kg_config_errors(c)[0] == '\0'))
            abort();
        kg_buf_init(&b, 0);
        kg_config_dump(c, &b);
        kg_buf_fini(&b);
    }
    kg_config_destroy(c);
    return 0;
}
