#include "text/utf8_gate.h"

#include "base/utf8.h"
#include <string.h>

static const char replacement[] = "\xef\xbf\xbd";

/* Lets out of the gate what is certain after one more byte. */
static int settle(struct kg_utf8_gate *gate, struct kg_text *out)
{
    int rc = KG_OK;
    while (gate->n > 0 && rc == KG_OK && !kg_utf8_is_cut(gate->part, gate->n)) {
        uint32_t cp;
        size_t len = kg_utf8_decode(gate->part, gate->n, &cp);
        if (len > 0) {
            rc = kg_text_add(out, gate->part, len);
        } else {
            len = kg_utf8_broken(gate->part, gate->n);
            rc = kg_text_puts(out, replacement);
        }
        gate->n -= (uint32_t)len;
        memmove(gate->part, gate->part + len, gate->n);
    }
    return rc;
}

int kg_utf8_gate_push(struct kg_utf8_gate *gate, const void *bytes, size_t n, struct kg_text *out)
{
    const char *p = bytes;
    int rc = KG_OK;
    for (size_t i = 0; i < n && rc == KG_OK;) {
        size_t run = 0;
        while (gate->n == 0 && i + run < n && (uint8_t)p[i + run] < 0x80) {
            run++;
        }
        if (run > 0) {
            rc = kg_text_add(out, p + i, run);
            i += run;
        } else {
            gate->part[gate->n++] = p[i++];
            rc = settle(gate, out);
        }
    }
    return rc;
}

int kg_utf8_gate_finish(struct kg_utf8_gate *gate, struct kg_text *out)
{
    if (gate->n == 0) {
        return KG_OK;
    }
    gate->n = 0;
    return kg_text_puts(out, replacement);
}
