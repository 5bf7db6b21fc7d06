#include "text/stop.h"

#include <stdlib.h>
#include <string.h>

static void fill_back(struct kg_stop_string *s)
{
    s->back[0] = 0;
    for (uint32_t i = 1, k = 0; i < s->n; i++) {
        while (k > 0 && s->text[i] != s->text[k]) {
            k = s->back[k - 1];
        }
        k += s->text[i] == s->text[k];
        s->back[i] = k;
    }
}

int kg_stop_open(struct kg_stop_gate *gate, const struct kg_span *stops, size_t n, bool keep,
                 struct kg_error *err)
{
    *gate = (struct kg_stop_gate){.matched = -1, .keep = keep};
    if (n > KG_STOP_MAX) {
        return kg_fail(err, KG_EINVAL, "stop: %zu strings, at most %d", n, KG_STOP_MAX);
    }
    for (size_t i = 0; i < n; i++) {
        if (stops[i].n == 0 || stops[i].n > KG_STOP_MAX_BYTES) {
            return kg_fail(err, KG_EINVAL, "stop[%zu]: %zu bytes, wanted 1 to %d", i, stops[i].n,
                           KG_STOP_MAX_BYTES);
        }
    }
    gate->strings = calloc(n + 1, sizeof(*gate->strings));
    if (gate->strings == NULL) {
        return kg_fail(err, KG_ENOMEM, "stop: out of memory");
    }
    for (size_t i = 0; i < n; i++) {
        struct kg_stop_string *s = &gate->strings[gate->n_strings++];
        s->n = (uint32_t)stops[i].n;
        s->text = malloc(s->n);
        s->back = malloc(s->n * sizeof(*s->back));
        if (s->text == NULL || s->back == NULL) {
            kg_stop_close(gate);
            return kg_fail(err, KG_ENOMEM, "stop: out of memory");
        }
        memcpy(s->text, stops[i].p, s->n);
        fill_back(s);
    }
    return KG_OK;
}

void kg_stop_close(struct kg_stop_gate *gate)
{
    for (size_t i = 0; i < gate->n_strings; i++) {
        free(gate->strings[i].text);
        free(gate->strings[i].back);
    }
    free(gate->strings);
    kg_text_free(&gate->held);
    *gate = (struct kg_stop_gate){.matched = -1};
}

/* One byte through all matchers; returns the longest string complete now, or -1. */
static int step(struct kg_stop_gate *gate, char c, uint32_t *open)
{
    int best = -1;
    *open = 0;
    for (size_t i = 0; i < gate->n_strings; i++) {
        struct kg_stop_string *s = &gate->strings[i];
        while (s->state > 0 && s->text[s->state] != c) {
            s->state = s->back[s->state - 1];
        }
        s->state += s->text[s->state] == c;
        if (s->state == s->n) {
            best = best < 0 || s->n > gate->strings[best].n ? (int)i : best;
        }
        *open = s->state > *open ? s->state : *open;
    }
    return best;
}

int kg_stop_push(struct kg_stop_gate *gate, const char *text, size_t n, struct kg_text *out)
{
    if (gate->matched >= 0) {
        return 1;
    }
    if (gate->n_strings == 0) {
        return kg_text_add(out, text, n);
    }
    uint32_t open = 0;
    int hit = -1;
    size_t i = 0;
    while (i < n && hit < 0) {
        hit = step(gate, text[i++], &open);
    }
    if (i > 0 && kg_text_add(&gate->held, text, i) != KG_OK) {
        return KG_ENOMEM;
    }
    size_t sure = gate->held.n;
    if (hit < 0) {
        sure -= i > 0 ? open : sure;
    } else if (!gate->keep) {
        sure -= gate->strings[hit].n;
    }
    if (kg_text_add(out, gate->held.v, sure) != KG_OK) {
        return KG_ENOMEM;
    }
    if (hit >= 0) {
        gate->matched = hit;
        gate->held.n = 0;
        return 1;
    }
    gate->held.n -= sure;
    memmove(gate->held.v, gate->held.v + sure, gate->held.n);
    return KG_OK;
}

int kg_stop_finish(struct kg_stop_gate *gate, struct kg_text *out)
{
    int rc = gate->held.n > 0 ? kg_text_add(out, gate->held.v, gate->held.n) : KG_OK;
    gate->held.n = 0;
    /* What went out cannot be taken back by a match that began in it. */
    for (size_t i = 0; i < gate->n_strings; i++) {
        gate->strings[i].state = 0;
    }
    return rc;
}
