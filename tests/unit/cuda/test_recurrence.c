/* Convolution, decay gate and recurrence: the bits of plain C at awkward sizes, however a sequence
 * is cut and whatever shares the call, and nothing written beside. */
#include "kit.h"

#define N(a) (sizeof(a) / sizeof((a)[0]))

/* Device memory that starts as a copy of `host`, and afterwards must equal `want` (of plain C). */
static void dev_equals(struct rig *r, const char *what, const void *dev, const void *want,
                       size_t bytes)
{
    unsigned char *got = host_copy(r, dev, bytes);

    for (size_t i = 0; i < bytes; i++)
        if (got[i] != ((const unsigned char *)want)[i])
            fail_msg("%s: byte %zu differs", what, i);
    free(got);
}

/* ---- convolution ---------------------------------------------------------------------------- */

/* Sequences of one call; those with an odd number start from a window, those with 2 keep none. */
static const uint32_t conv_n[] = {1, 2, 3, 33, 1, 64, 65};

static void conv_call(const struct kg_kernels *k, struct kg_team *team, float *y, const float *u,
                      const float *w, char *windows, uint32_t ch, size_t bytes)
{
    struct kg_conv_seq seqs[N(conv_n)];
    uint32_t row0 = 1;

    for (uint32_t i = 0; i < N(conv_n); i++) {
        char *own = windows + i * bytes;

        seqs[i] =
            (struct kg_conv_seq){i % 2 == 1 ? own : NULL, i == 2 ? NULL : own, row0, conv_n[i]};
        row0 += conv_n[i] + 1;
    }
    k->conv(team, y, ch + 2, u, ch + 3, w, ch, seqs, N(conv_n));
}

static void convolution_has_the_bits_of_plain_c(void **state)
{
    static const uint32_t channels[] = {1, 16, 17, 127, 130, 300};
    const uint32_t rows = 180;
    uint64_t s = 41;

    (void)state;
    for (uint32_t math = 0; math < 2; math++) {
        struct rig r = rig_open((enum kg_math)math, 0);

        for (size_t n = 0; n < N(channels); n++) {
            uint32_t ch = channels[n];
            size_t bytes = (size_t)3 * ch * (math == KG_MATH_FAST ? 2 : 4), all = 7 * bytes;
            float *u = random_f(&s, rows * (ch + 3), 2), *w = random_f(&s, 4 * ch, 1);
            float *y = take_f(rows * (ch + 2));
            char *win = take(all);

            for (size_t i = 0; i < all / 2; i++) /* small numbers of either type */
                ((uint16_t *)win)[i] = kg_bf16_from_f32(rnd_f(&s));
            float *du = dev_copy(&r, u, rows * (ch + 3) * 4), *dw = dev_copy(&r, w, 16 * ch);
            float *dy = dev_copy(&r, y, rows * (ch + 2) * 4);
            char *dwin = dev_copy(&r, win, all);

            for (int twice = 0; twice < 2; twice++) {
                conv_call(r.ref, NULL, y, u, w, win, ch, bytes);
                conv_call(r.k, r.team, dy, du, dw, dwin, ch, bytes);
            }
            dev_equals(&r, "conv", dy, y, rows * (ch + 2) * 4);
            dev_equals(&r, "windows", dwin, win, all);
            kg_cuda_free(r.cuda, du);
            kg_cuda_free(r.cuda, dw);
            kg_cuda_free(r.cuda, dy);
            kg_cuda_free(r.cuda, dwin);
            free(u);
            free(w);
            free(y);
            free(win);
        }
        rig_close(&r);
    }
}

static void decay_gates_have_the_bits_of_plain_c(void **state)
{
    static const uint32_t sizes[][3] = {{1, 1, 1}, {3, 3, 5}, {65, 1, 128}, {2, 3, 64}, {7, 5, 33}};
    struct rig r = rig_open(KG_MATH_EXACT, 0);
    uint64_t s = 42;

    (void)state;
    for (size_t n = 0; n < N(sizes); n++) {
        uint32_t rows = sizes[n][0], heads = sizes[n][1], dim = sizes[n][2], width = heads * dim;
        size_t bytes = (size_t)rows * (width + 1) * 4;
        float *f = random_f(&s, rows * (width + 1), 12), *a = random_f(&s, heads, 2);
        float *b = random_f(&s, width, 9), *y = take_f(rows * (width + 1));

        f[0] = NAN;
        for (uint32_t form = 0; form < 2; form++) {
            float *df = dev_copy(&r, f, bytes), *da = dev_copy(&r, a, 4 * heads);
            float *db = dev_copy(&r, b, 4 * width);

            memcpy(y, f, bytes); /* in place */
            r.ref->kda_gate(NULL, y, width + 1, y, width + 1, a, b, rows, heads, dim, form, -5);
            r.k->kda_gate(r.team, df, width + 1, df, width + 1, da, db, rows, heads, dim, form, -5);
            float *got = host_copy(&r, df, bytes);

            same_bits("gate", got, y, rows * (width + 1));
            free(got);
            kg_cuda_free(r.cuda, df);
            kg_cuda_free(r.cuda, da);
            kg_cuda_free(r.cuda, db);
        }
        free(f);
        free(a);
        free(b);
        free(y);
    }
    rig_close(&r);
}

/* ---- recurrence ----------------------------------------------------------------------------- */

#define SEQS 5

/* Rows of the sequences of a call, with a row between them that belongs to none. */
struct lengths {
    uint32_t n[SEQS];
};

struct kda_case {
    uint32_t heads, kd, vd, rows;
    size_t ks, vs, state; /* strides; floats of a state */
    /* on one side: q, k, alpha, v, beta; outputs o, u; states, one of each sequence and a spare */
    float *q, *k, *alpha, *v, *beta, *o, *u, *states;
};

static size_t floats_of(const struct kda_case *c, int field)
{
    size_t k = c->rows * c->ks, v = c->rows * c->vs;
    const size_t n[8] = {k, k, k, v, (size_t)c->rows * c->heads, v, v, (SEQS + 1) * c->state};

    return n[field];
}

static float **field_of(struct kda_case *c, int field)
{
    float **p[8] = {&c->q, &c->k, &c->alpha, &c->v, &c->beta, &c->o, &c->u, &c->states};

    return p[field];
}

static struct kda_case make_case(uint64_t *s, const struct lengths *l, uint32_t heads, uint32_t kd,
                                 uint32_t vd)
{
    struct kda_case c = {.heads = heads, .kd = kd, .vd = vd, .rows = 1};

    for (int i = 0; i < SEQS; i++)
        c.rows += l->n[i] + 1;
    c.ks = (size_t)heads * kd + 3;
    c.vs = (size_t)heads * vd + 1;
    c.state = (size_t)heads * kd * vd;
    for (int i = 0; i < 8; i++)
        *field_of(&c, i) = i == 5 || i == 6 ? take_f(floats_of(&c, i))
                                            : random_f(s, floats_of(&c, i), i < 2 ? 0.4f : 1);
    for (size_t i = 0; i < floats_of(&c, 2); i++)
        c.alpha[i] = i % 19 == 0 ? 0 : 0.3f + 0.7f * fabsf(c.alpha[i]);
    return c;
}

static struct kda_case to_device(struct rig *r, struct kda_case *c)
{
    struct kda_case d = *c;

    for (int i = 0; i < 8; i++)
        *field_of(&d, i) = dev_copy(r, *field_of(c, i), floats_of(c, i) * sizeof(float));
    return d;
}

static void drop_cases(struct rig *r, struct kda_case *c, struct kda_case *d)
{
    for (int i = 0; i < 8; i++) {
        free(*field_of(c, i));
        kg_cuda_free(r->cuda, *field_of(d, i));
    }
}

static struct kg_kda args_of(const struct kda_case *c)
{
    struct kg_kda a = {.q = c->q, .k = c->k, .v = c->v, .alpha = c->alpha, .beta = c->beta};

    a.o = c->o;
    a.u = c->u;
    a.qk_stride = a.alpha_stride = c->ks;
    a.v_stride = a.o_stride = a.u_stride = c->vs;
    a.beta_stride = a.heads = c->heads;
    a.k_dim = c->kd;
    a.v_dim = c->vd;
    return a;
}

/* How a sequence treats its state: in place, from zero, into the spare (others), not kept. */
static void call(const struct kg_kernels *k, struct kg_team *team, const struct kda_case *c,
                 const struct lengths *l, int replay)
{
    struct kg_kda a = args_of(c);
    struct kg_kda_seq seqs[SEQS];
    uint32_t row0 = 1, n = 0;

    for (uint32_t i = 0; i < SEQS; row0 += l->n[i++] + 1) {
        float *own = c->states + i * c->state;
        struct kg_kda_seq one = {own, own, row0, l->n[i]};

        if (i == 1)
            one.state_in = NULL;
        if (i == 2)
            one.state_out = c->states + SEQS * c->state;
        if (i == 3 && !replay)
            one.state_out = NULL;
        if (l->n[i] > 0)
            seqs[n++] = one;
    }
    if (replay)
        a.q = a.v = a.beta = a.o = NULL;
    a.seqs = seqs;
    a.n_seqs = n;
    (replay ? k->kda_replay : k->kda)(team, &a);
}

static void check_case(struct rig *r, const struct kda_case *c, const struct kda_case *d)
{
    dev_equals(r, "o", d->o, c->o, floats_of(c, 5) * 4);
    dev_equals(r, "u", d->u, c->u, floats_of(c, 6) * 4);
    dev_equals(r, "states", d->states, c->states, floats_of(c, 7) * 4);
}

static const uint32_t kda_dims[][3] = {
    {3, 1, 1},    {1, 5, 17},   {3, 16, 16}, {1, 17, 5},  {3, 64, 64},  {1, 128, 128},
    {1, 127, 33}, {1, 129, 16}, {2, 256, 8}, {1, 300, 5}, {1, 512, 17},
};

static void recurrence_has_the_bits_of_plain_c(void **state)
{
    static const struct lengths lengths[] = {
        {{1, 2, 15, 3, 65}}, {{1, 1, 1, 1, 1}}, {{63, 0, 0, 0, 1}}};
    uint64_t s = 43;

    (void)state;
    for (uint32_t math = 0; math < 2; math++) {
        struct rig r = rig_open((enum kg_math)math, 0);

        for (size_t n = 0; n < N(kda_dims); n++) {
            for (size_t l = 0; l < N(lengths) && (l == 0 || n < 6); l++) {
                struct kda_case c =
                    make_case(&s, &lengths[l], kda_dims[n][0], kda_dims[n][1], kda_dims[n][2]);
                struct kda_case d = to_device(&r, &c);

                call(r.ref, NULL, &c, &lengths[l], 0);
                call(r.k, r.team, &d, &lengths[l], 0);
                check_case(&r, &c, &d);
                call(r.ref, NULL, &c, &lengths[l], 1);
                call(r.k, r.team, &d, &lengths[l], 1);
                check_case(&r, &c, &d);
                drop_cases(&r, &c, &d);
            }
        }
        rig_close(&r);
    }
}

/* 130 rows in one call, or in runs of any length, or without u: the same bits. */
static void recurrence_does_not_depend_on_the_cut(void **state)
{
    const struct lengths whole = {{130, 0, 0, 0, 0}};
    struct rig r = rig_open(KG_MATH_EXACT, 0);
    uint64_t s = 44;
    struct kda_case c = make_case(&s, &whole, 2, 33, 40), d = to_device(&r, &c);

    (void)state;
    call(r.ref, NULL, &c, &whole, 0);
    for (uint32_t at = 0; at < 130;) {
        uint32_t n = 1 + (uint32_t)(rnd(&s) % 40);
        struct kg_kda a = args_of(&d);
        struct kg_kda_seq q = {d.states, d.states, 1 + at, n > 130 - at ? 130 - at : n};

        a.seqs = &q;
        a.n_seqs = 1;
        r.k->kda(r.team, &a);
        at += q.n;
    }
    check_case(&r, &c, &d);
    drop_cases(&r, &c, &d);
    rig_close(&r);
}

/* The delta rule in double precision over the 100 rows of sequence 0; the largest error of o. */
static double against_double(const struct kda_case *c, const float *start, const float *o)
{
    double *S = take(c->kd * sizeof(double)), worst = 0;

    for (uint32_t h = 0; h < c->heads; h++) {
        for (uint32_t v = 0; v < c->vd; v++) {
            for (uint32_t i = 0; i < c->kd; i++)
                S[i] = start[(size_t)h * c->kd * c->vd + kg_state_at(c->kd, c->vd, i, v)];
            for (size_t r = 1; r <= 100; r++) {
                const float *k = c->k + r * c->ks + h * c->kd, *q = c->q + r * c->ks + h * c->kd;
                const float *alpha = c->alpha + r * c->ks + h * c->kd;
                double p = 0, out = 0, u, d;

                for (uint32_t i = 0; i < c->kd; i++) {
                    S[i] *= alpha[i];
                    p += S[i] * k[i];
                }
                u = c->beta[r * c->heads + h] * (c->v[r * c->vs + h * c->vd + v] - p);
                for (uint32_t i = 0; i < c->kd; i++) {
                    S[i] += k[i] * u;
                    out += S[i] * q[i];
                }
                d = fabs(o[r * c->vs + h * c->vd + v] - out) / (1 + fabs(out));
                worst = d > worst ? d : worst;
                if (!(d < 1e-6))
                    fail_msg("chunks: row %zu column %u: error %.3g", r - 1, v, d);
            }
        }
    }
    free(S);
    return worst;
}

/* Runs of rows of sequence 0 from position `past`, in place. ends: rows, rising, up to 100. */
static void run_chunks(struct rig *r, const struct kda_case *d, uint32_t past, const uint32_t *ends,
                       uint32_t n_ends)
{
    for (uint32_t i = 0, at = 0; i < n_ends; at = ends[i++]) {
        struct kg_kda a = args_of(d);
        struct kg_kda_seq q = {d->states, d->states, 1 + at, ends[i] - at};
        uint32_t first = past + at;

        a.seqs = &q;
        a.n_seqs = 1;
        a.past = &first;
        r->k->kda(r->team, &a);
    }
}

/* Fast math with positions: near the delta rule, from any position; cuts at multiples of 16 keep
 * the bits, and so does what else is in the call. */
static void chunks_are_near_and_do_not_depend_on_cuts_of_their_grid(void **state)
{
    static const uint32_t dims[][3] = {{1, 128, 128}, {2, 33, 20}, {1, 5, 130}};
    static const uint32_t whole[] = {100}, cuts[] = {5, 21, 69, 85, 100};
    const struct lengths l = {{100, 0, 0, 0, 0}};
    struct rig r = rig_open(KG_MATH_FAST, 0);
    uint64_t s = 46;
    double worst = 0;

    (void)state;
    for (size_t n = 0; n < N(dims); n++) {
        struct kda_case c = make_case(&s, &l, dims[n][0], dims[n][1], dims[n][2]);
        float *o[2], *end[2];

        for (size_t i = 0; i < c.rows; i++) { /* normalised, as the model has them */
            for (uint32_t h = 0; h < c.heads; h++) {
                float *k = c.k + i * c.ks + h * c.kd, sum = 1e-6f;

                for (uint32_t j = 0; j < c.kd; j++)
                    sum += k[j] * k[j];
                for (uint32_t j = 0; j < c.kd; j++)
                    k[j] /= sqrtf(sum);
                c.beta[i * c.heads + h] = fabsf(c.beta[i * c.heads + h]);
            }
        }
        for (int i = 0; i < 2; i++) { /* position 11: the first 5 rows are no chunk */
            struct kda_case d = to_device(&r, &c);

            run_chunks(&r, &d, 11, i == 0 ? whole : cuts, i == 0 ? 1 : N(cuts));
            o[i] = host_copy(&r, d.o, floats_of(&c, 5) * 4);
            end[i] = host_copy(&r, d.states, floats_of(&c, 7) * 4);
            for (int f = 0; f < 8; f++)
                kg_cuda_free(r.cuda, *field_of(&d, f));
        }
        double e = against_double(&c, c.states, o[0]);

        worst = e > worst ? e : worst;
        same_bits("chunks o", o[1], o[0], floats_of(&c, 5));
        same_bits("chunks state", end[1], end[0], floats_of(&c, 7));
        for (int i = 0; i < 2; i++) {
            free(o[i]);
            free(end[i]);
        }
        for (int f = 0; f < 8; f++)
            free(*field_of(&c, f));
    }
    rig_close(&r);
    printf("chunks: largest error %.3g of 1 + |o|\n", worst);
}

/* Of a recorded step: lists are written anew, nothing else is. */
static void recorded_steps_take_other_rows_and_states(void **state)
{
    struct rig r = rig_open(KG_MATH_EXACT, 2);
    const struct lengths a = {{4, 1, 1, 1, 1}}, b = {{1, 1, 1, 4, 1}};
    uint64_t s = 45;
    struct kda_case c = make_case(&s, &a, 2, 20, 24), d = to_device(&r, &c);

    (void)state;
    for (int i = 0; i < 4; i++) {
        const struct lengths *l = i % 2 == 0 ? &a : &b;

        call(r.ref, NULL, &c, l, 0);
        call(r.ref, NULL, &c, l, 1);
        kg_cuda_begin(r.cuda, 7, 0);
        call(r.k, r.team, &d, l, 0);
        call(r.k, r.team, &d, l, 1);
        kg_cuda_end(r.cuda);
        check_case(&r, &c, &d);
    }
    drop_cases(&r, &c, &d);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(convolution_has_the_bits_of_plain_c),
        cmocka_unit_test(decay_gates_have_the_bits_of_plain_c),
        cmocka_unit_test(recurrence_has_the_bits_of_plain_c),
        cmocka_unit_test(recurrence_does_not_depend_on_the_cut),
        cmocka_unit_test(chunks_are_near_and_do_not_depend_on_cuts_of_their_grid),
        cmocka_unit_test(recorded_steps_take_other_rows_and_states),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
