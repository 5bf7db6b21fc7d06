#include "text/utf8.h"

#include <string.h>

static const char replacement[3] = {'\xef', '\xbf', '\xbd'};

size_t kg_utf8_put(uint32_t cp, char out[4])
{
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (char)(0xc0 | cp >> 6);
        out[1] = (char)(0x80 | (cp & 0x3f));
        return 2;
    }
    if (cp > 0x10ffff || (cp >= 0xd800 && cp < 0xe000)) {
        memcpy(out, replacement, 3);
        return 3;
    }
    if (cp < 0x10000) {
        out[0] = (char)(0xe0 | cp >> 12);
        out[1] = (char)(0x80 | (cp >> 6 & 0x3f));
        out[2] = (char)(0x80 | (cp & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | cp >> 18);
    out[1] = (char)(0x80 | (cp >> 12 & 0x3f));
    out[2] = (char)(0x80 | (cp >> 6 & 0x3f));
    out[3] = (char)(0x80 | (cp & 0x3f));
    return 4;
}

/* Length of the character that begins with b, 0 if none can. */
static uint8_t lead_need(uint8_t b)
{
    if (b < 0xc2 || b > 0xf4) {
        return 0;
    }
    return b < 0xe0 ? 2 : b < 0xf0 ? 3 : 4;
}

/* True when b may follow the bytes already in the gate. */
static bool fits(const struct kg_utf8_gate *gate, uint8_t b)
{
    uint8_t lo = 0x80, hi = 0xbf;
    if (gate->n == 1) {
        switch (gate->part[0]) {
        case 0xe0:
            lo = 0xa0;
            break;
        case 0xed:
            hi = 0x9f;
            break;
        case 0xf0:
            lo = 0x90;
            break;
        case 0xf4:
            hi = 0x8f;
            break;
        default:
            break;
        }
    }
    return b >= lo && b <= hi;
}

static int push_byte(struct kg_utf8_gate *gate, uint8_t b, struct kg_text *out)
{
    if (gate->n > 0) {
        if (fits(gate, b)) {
            gate->part[gate->n++] = b;
            if (gate->n < gate->need) {
                return KG_OK;
            }
            gate->n = 0;
            return kg_text_add(out, gate->part, gate->need);
        }
        gate->n = 0;
        int rc = kg_text_add(out, replacement, sizeof(replacement));
        if (rc != KG_OK) {
            return rc;
        }
    }
    if (b < 0x80) {
        return kg_text_add(out, &b, 1);
    }
    gate->need = lead_need(b);
    if (gate->need == 0) {
        return kg_text_add(out, replacement, sizeof(replacement));
    }
    gate->part[0] = b;
    gate->n = 1;
    return KG_OK;
}

int kg_utf8_gate_push(struct kg_utf8_gate *gate, const void *bytes, size_t n, struct kg_text *out)
{
    const uint8_t *p = bytes;
    for (size_t i = 0; i < n; i++) {
        int rc = push_byte(gate, p[i], out);
        if (rc != KG_OK) {
            return rc;
        }
    }
    return KG_OK;
}

int kg_utf8_gate_finish(struct kg_utf8_gate *gate, struct kg_text *out)
{
    if (gate->n == 0) {
        return KG_OK;
    }
    gate->n = 0;
    return kg_text_add(out, replacement, sizeof(replacement));
}
