#include "text/detok.h"

#include "text/stop.h"
#include "text/utf8_gate.h"
#include <stdlib.h>

struct kg_detok {
    const struct kg_tok *tok;
    bool show_special;
    bool ended;
    struct kg_utf8_gate chars;
    struct kg_stop_gate stop;
    struct kg_text step; /* whole characters of one id */
};

int kg_detok_new(const struct kg_tok *tok, const struct kg_detok_opts *opts, struct kg_detok **out,
                 struct kg_error *err)
{
    static const struct kg_detok_opts none = {0};
    opts = opts != NULL ? opts : &none;
    struct kg_detok *d = calloc(1, sizeof(*d));
    if (d == NULL) {
        return kg_fail(err, KG_ENOMEM, "detokenizer: out of memory");
    }
    d->tok = tok;
    d->show_special = opts->show_special;
    int rc = kg_stop_open(&d->stop, opts->stops, opts->n_stops, opts->keep_stop, err);
    if (rc != KG_OK) {
        kg_detok_free(d);
        return rc;
    }
    *out = d;
    return KG_OK;
}

void kg_detok_free(struct kg_detok *detok)
{
    if (detok == NULL) {
        return;
    }
    kg_stop_close(&detok->stop);
    kg_text_free(&detok->step);
    free(detok);
}

/* Text of one id into the stop gate; returns as kg_stop_push. */
static int push_one(struct kg_detok *d, uint32_t id, struct kg_text *out)
{
    if (!d->show_special && kg_tok_is_special(d->tok, id)) {
        return KG_OK;
    }
    struct kg_span bytes = kg_tok_bytes(d->tok, id);
    d->step.n = 0;
    int rc = kg_utf8_gate_push(&d->chars, bytes.p, bytes.n, &d->step);
    if (rc != KG_OK || d->step.n == 0) {
        return rc;
    }
    return kg_stop_push(&d->stop, d->step.v, d->step.n, out);
}

int kg_detok_push(struct kg_detok *detok, const uint32_t *ids, size_t n, struct kg_text *out,
                  size_t *used)
{
    if (detok->ended || detok->stop.matched >= 0) {
        *used = 0;
        return detok->stop.matched >= 0 ? 1 : KG_OK;
    }
    for (size_t i = 0; i < n; i++) {
        int rc = push_one(detok, ids[i], out);
        if (rc != KG_OK) {
            *used = i + 1;
            return rc;
        }
    }
    *used = n;
    return KG_OK;
}

int kg_detok_finish(struct kg_detok *detok, struct kg_text *out)
{
    if (detok->ended || detok->stop.matched >= 0) {
        return KG_OK;
    }
    detok->ended = true;
    detok->step.n = 0;
    int rc = kg_utf8_gate_finish(&detok->chars, &detok->step);
    if (rc == KG_OK && detok->step.n > 0) {
        rc = kg_stop_push(&detok->stop, detok->step.v, detok->step.n, out);
        /* The replacement character completed a stop string: the text ends there all the same. */
        rc = rc == 1 ? KG_OK : rc;
    }
    return rc == KG_OK ? kg_stop_finish(&detok->stop, out) : rc;
}
