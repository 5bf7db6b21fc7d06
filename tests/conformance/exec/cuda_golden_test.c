/*
 * exec-cuda in exact math against the double-precision vectors of tests/golden: the 16 best logits
 * of each position, some rows in chunks and the rest one at a time. A prefix of a prompt has the
 * logits of the whole. cuda_golden_test [MODEL FILE]..., for FILE.json and FILE.safetensors; the
 * first rows of each prompt, with KEDGE_FULL=1 as far as the driver's context goes.
 */
#include "model/safetensors.h"
#include "xc.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#ifdef XC_ON_DEVICE
#define DEVICE "cuda"
#else
#define DEVICE "cuda-emu"
#endif
#define BEST 16
#define LIMIT 1e-3 /* of a logit, as for every engine in fp32 */
#define DECODED 6  /* rows, one at a time, behind those in chunks */
#define CHUNK 13

static const char *file;

static uint32_t is_full(void)
{
    const char *v = getenv("KEDGE_FULL");

#ifdef XC_ON_DEVICE
    return 1;
#endif
    return v != NULL && v[0] == '1';
}

static const void *tensor(const struct kg_st *st, const char *prompt, const char *what,
                          uint32_t dtype, uint32_t rows)
{
    char name[128];

    (void)snprintf(name, sizeof(name), "%s.%s", prompt, what);
    const struct kg_st_tensor *t = kg_st_find(st, name);
    if (t == NULL || t->dtype != dtype || t->n_dims != 2 || t->dims[0] < rows || t->dims[1] != BEST)
        fail_msg("%s: no such tensor of %u rows", name, rows);
    return t->data;
}

/* Rows [past - rows, past) of s, as just computed. */
static double worst_of(const struct xc *x, const struct xseq *s, uint32_t rows, const float *top,
                       const int32_t *ids)
{
    double worst = 0.0;

    assert_non_null(s->res.logits);
    for (uint32_t r = 0; r < rows; r++) {
        size_t at = (size_t)(s->past - rows + r) * BEST;
        const float *row = s->res.logits + (size_t)r * x->desc.vocab;
        for (uint32_t i = 0; i < BEST; i++) {
            assert_in_range(ids[at + i], 0, x->desc.vocab - 1);
            double e = fabs((double)row[ids[at + i]] - (double)top[at + i]);
            worst = e > worst || e != e ? e : worst;
        }
        for (uint32_t t = 0; t < x->desc.vocab; t++) /* and none is better than the best */
            assert_true((double)row[t] <= (double)top[at] + LIMIT);
    }
    return worst;
}

static void check(struct xc *x, const struct kg_st *st, const char *name, const json_t *ids,
                  uint32_t n)
{
    const float *top = tensor(st, name, "top_logits", KG_F32, n);
    const int32_t *best = tensor(st, name, "top_ids", KG_I32, n);
    double worst = 0.0;
    struct xseq s;

    xseq_init(x, &s, 0, n, 1);
    for (uint32_t i = 0; i < n; i++)
        s.tokens[i] = (uint32_t)json_integer_value(json_array_get(ids, i));
    while (s.past < n) {
        uint32_t left = n - s.past, rows = left > DECODED ? left - DECODED : 1;
        rows = rows < CHUNK ? rows : CHUNK;
        s.flags = KG_SEQ_LOGITS;
        xc_one(x, &s, rows);
        double e = worst_of(x, &s, rows, top, best);
        worst = e > worst || e != e ? e : worst;
    }
    xseq_end(x, &s);
    print_message("%s: %u rows, logits off by %.2g at most\n", name, n, worst);
    assert_true(worst <= LIMIT);
}

static void logits_are_those_of_the_reference(void **state)
{
    (void)state;
    char path[600];
    struct kg_error err = {0};
    struct kg_st *st = NULL;
    struct xc x;

    (void)snprintf(path, sizeof(path), "%s.json", file);
    json_t *doc = json_load_file(path, 0, NULL);
    assert_true(json_array_size(doc) > 0);
    (void)snprintf(path, sizeof(path), "%s.safetensors", file);
    if (kg_st_open_file(path, &st, &err) < 0)
        fail_msg("%s", err.text);
    xc_open(&x);
    for (size_t i = 0; i < json_array_size(doc); i++) {
        const json_t *item = json_array_get(doc, i), *ids = json_object_get(item, "ids");
        uint32_t have = (uint32_t)json_array_size(ids), want = is_full() ? XC_CONTEXT - 8 : 32;
        check(&x, st, json_string_value(json_object_get(item, "name")), ids,
              have < want ? have : want);
    }
    xc_close(&x);
    kg_st_close(st);
    json_decref(doc);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(logits_are_those_of_the_reference)};

    int rc = 0;

#ifdef XC_ON_DEVICE /* a build for machines with a GPU takes no arguments */
    static char *device[] = {"gpu_golden_test", XC_ON_DEVICE};

    if (argc < 2) {
        argc = (int)(sizeof(device) / sizeof(device[0]));
        argv = device;
    }
#endif
    if (argc < 3)
        return 2;
    xc_name = DEVICE;
    xc_options = "math=exact threads=1";
    xc_model = argv[1];
    if (xc_is_absent())
        return 77;
    for (int i = 1; i + 1 < argc; i += 2) {
        xc_model = argv[i];
        file = argv[i + 1];
        rc += cmocka_run_group_tests(tests, NULL, NULL);
    }
    return rc;
}
