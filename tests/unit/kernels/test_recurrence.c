#include "kit.h"

/* ---- convolution ---------------------------------------------------------------------------- */

struct windows {
    float f32[3 * 200];
    uint16_t bf16[3 * 200];
};

static void *window_of(const struct kg_kernels *k, struct windows *w)
{
    return k->state_dtype == KG_BF16 ? (void *)w->bf16 : (void *)w->f32;
}

static float as_stored(const struct kg_kernels *k, float x)
{
    return k->state_dtype == KG_BF16 ? kg_f32_from_bf16(kg_bf16_from_f32(x)) : x;
}

static double conv_want(const struct kg_kernels *k, const float *u, size_t stride, const float *w,
                        uint32_t channels, uint32_t t, uint32_t c)
{
    double sum = 0;

    for (uint32_t j = 0; j < 4 && j <= t; j++)
        sum += (double)w[(3 - j) * channels + c] * as_stored(k, u[(t - j) * stride + c]);
    return sum / (1 + exp(-sum));
}

/* Cut anywhere, window carried over: same bits as in one piece; the window holds raw inputs. */
static void conv_matches_double_and_does_not_depend_on_chunks(void **state)
{
    static const uint32_t sizes[] = {1, 15, 16, 17, 33, 127, 200};
    const uint32_t rows = 23;
    uint64_t s = 31;
    struct kg_team *team;

    (void)state;
    assert_int_equal(kg_team_create(2, &team, NULL), KG_OK);
    for (size_t n = 0; n < 7; n++) {
        uint32_t ch = sizes[n];
        size_t us = ch + 1, ys = ch + 2;
        float *u = random_f(&s, rows * us, 2), *w = random_f(&s, 4 * ch, 1);
        float *whole = take_f(rows * ys), *y = take_f(rows * ys);

        for (EACH_TABLE(t)) {
            struct windows end, win;
            struct kg_conv_seq one = {NULL, window_of(t.k, &end), 0, rows};

            t.k->conv(team, whole, ys, u, us, w, ch, &one, 1);
            for (uint32_t r = 0; r < rows; r++)
                for (uint32_t c = 0; c < ch; c++)
                    near("conv", whole[r * ys + c], conv_want(t.k, u, us, w, ch, r, c), 2e-6);
            for (uint32_t j = 0; j < 3; j++) {
                for (uint32_t c = 0; c < ch; c++) {
                    float x = t.k->state_dtype == KG_BF16 ? kg_f32_from_bf16(end.bf16[j * ch + c])
                                                          : end.f32[j * ch + c];

                    assert_true(x == as_stored(t.k, u[(rows - 3 + j) * us + c]));
                }
            }
            for (uint32_t r = 0; r < rows;) {
                uint32_t run = 1 + (uint32_t)(rnd(&s) % 5);
                struct kg_conv_seq part = {r == 0 ? NULL : window_of(t.k, &win),
                                           window_of(t.k, &win), r, run};

                part.n = run > rows - r ? rows - r : run;
                t.k->conv(NULL, y, ys, u, us, w, ch, &part, 1);
                r += part.n;
            }
            for (uint32_t r = 0; r < rows; r++)
                same_bits("chunks", y + r * ys, whole + r * ys, ch);
            if (t.k->state_dtype == KG_BF16)
                assert_memory_equal(win.bf16, end.bf16, 3 * ch * sizeof(uint16_t));
            else
                same_bits("window", win.f32, end.f32, 3 * ch);
        }
        for (uint32_t math = 0; math < 2; math++) {
            struct kg_conv_seq one = {NULL, NULL, 0, rows};

            kg_kernels_ref((enum kg_math)math)->conv(NULL, whole, ys, u, us, w, ch, &one, 1);
            for (uint32_t isa = 1; isa < n_isas(); isa++) {
                table_of(isa, (enum kg_math)math)->conv(NULL, y, ys, u, us, w, ch, &one, 1);
                for (uint32_t r = 0; r < rows; r++)
                    same_bits(isa_name(isa), y + r * ys, whole + r * ys, ch);
            }
        }
        free(u);
        free(w);
        free(whole);
        free(y);
    }
    kg_team_destroy(team);
}

/* ---- recurrence ----------------------------------------------------------------------------- */

#define SEQS 3
#define ROWS 14

/* Three sequences of 7, 1 and 6 rows, each with a state to start from. */
struct kda_case {
    uint32_t heads, kd, vd;
    size_t state_floats, ks, vs;
    float *q, *k, *alpha, *v, *beta, *start[SEQS];
};

static const uint32_t seq_row0[SEQS] = {0, 7, 8}, seq_n[SEQS] = {7, 1, 6};

static struct kda_case make_case(uint64_t *s, uint32_t heads, uint32_t kd, uint32_t vd)
{
    struct kda_case c = {.heads = heads, .kd = kd, .vd = vd};

    c.state_floats = (size_t)heads * kd * vd;
    c.ks = heads * kd + 3;
    c.vs = heads * vd + 1;
    c.q = random_f(s, ROWS * c.ks, 0.5f);
    c.k = random_f(s, ROWS * c.ks, 0.3f);
    c.alpha = random_f(s, ROWS * c.ks, 1);
    for (size_t i = 0; i < ROWS * c.ks; i++)
        c.alpha[i] = 0.5f + 0.5f * fabsf(c.alpha[i]);
    c.v = random_f(s, ROWS * c.vs, 1);
    c.beta = random_f(s, ROWS * heads, 1);
    for (int i = 0; i < SEQS; i++)
        c.start[i] = random_f(s, c.state_floats, 1);
    return c;
}

static void drop_case(struct kda_case *c)
{
    free(c->q);
    free(c->k);
    free(c->alpha);
    free(c->v);
    free(c->beta);
    for (int i = 0; i < SEQS; i++)
        free(c->start[i]);
}

static struct kg_kda args_of(const struct kda_case *c, float *o, float *u)
{
    struct kg_kda a = {.q = c->q, .k = c->k, .v = c->v, .alpha = c->alpha, .beta = c->beta};

    a.o = o;
    a.u = u;
    a.qk_stride = a.alpha_stride = c->ks;
    a.v_stride = a.o_stride = a.u_stride = c->vs;
    a.beta_stride = a.heads = c->heads;
    a.k_dim = c->kd;
    a.v_dim = c->vd;
    return a;
}

/* Runs all sequences in one call from `start` into end[]. */
static void run_whole(const struct kg_kernels *k, struct kg_team *team, const struct kda_case *c,
                      float *const *end, float *o, float *u)
{
    struct kg_kda a = args_of(c, o, u);
    struct kg_kda_seq seqs[SEQS];

    for (int i = 0; i < SEQS; i++)
        seqs[i] = (struct kg_kda_seq){i == 1 ? NULL : c->start[i], end[i], seq_row0[i], seq_n[i]};
    a.seqs = seqs;
    a.n_seqs = SEQS;
    k->kda(team, &a);
}

/* The delta rule with a plain [v][k] matrix in double precision. */
static void kda_double(const struct kda_case *c, int seq, uint32_t h, const float *o,
                       const float *end)
{
    double *S = calloc((size_t)c->kd * c->vd, sizeof(double));

    for (uint32_t v = 0; v < c->vd && seq != 1; v++)
        for (uint32_t k = 0; k < c->kd; k++)
            S[v * c->kd + k] =
                c->start[seq][(size_t)h * c->kd * c->vd + kg_state_at(c->kd, c->vd, k, v)];
    for (uint32_t r = seq_row0[seq]; r < seq_row0[seq] + seq_n[seq]; r++) {
        const float *k = c->k + r * c->ks + h * c->kd, *q = c->q + r * c->ks + h * c->kd;

        for (uint32_t v = 0; v < c->vd; v++) {
            double *row = S + v * c->kd, p = 0, out = 0, u;

            for (uint32_t i = 0; i < c->kd; i++) {
                row[i] *= c->alpha[r * c->ks + h * c->kd + i];
                p += row[i] * k[i];
            }
            u = c->beta[r * c->heads + h] * (c->v[r * c->vs + h * c->vd + v] - p);
            for (uint32_t i = 0; i < c->kd; i++) {
                row[i] += k[i] * u;
                out += row[i] * q[i];
            }
            near("kda o", o[r * c->vs + h * c->vd + v], out, 2e-5);
        }
    }
    for (uint32_t v = 0; v < c->vd; v++)
        for (uint32_t k = 0; k < c->kd; k++)
            near("kda state", end[(size_t)h * c->kd * c->vd + kg_state_at(c->kd, c->vd, k, v)],
                 S[v * c->kd + k], 2e-5);
    free(S);
}

static const uint32_t kda_dims[][2] = {{64, 64}, {128, 128}, {1, 1},   {16, 32},
                                       {33, 17}, {15, 127},  {256, 31}};
#define N_DIMS (sizeof(kda_dims) / sizeof(kda_dims[0]))

static void kda_matches_the_delta_rule_in_double(void **state)
{
    uint64_t s = 32;

    (void)state;
    for (size_t n = 0; n < N_DIMS; n++) {
        struct kda_case c = make_case(&s, 3, kda_dims[n][0], kda_dims[n][1]);
        float *o = take_f(ROWS * c.vs), *base = take_f(ROWS * c.vs), *end[SEQS], *base_end[SEQS];

        for (int i = 0; i < SEQS; i++) {
            end[i] = take_f(c.state_floats);
            base_end[i] = take_f(c.state_floats);
        }
        run_whole(kg_kernels_ref(KG_MATH_EXACT), NULL, &c, base_end, base, NULL);
        for (int i = 0; i < SEQS; i++)
            for (uint32_t h = 0; h < c.heads; h++)
                kda_double(&c, i, h, base, base_end[i]);
        for (EACH_TABLE(t)) { /* all tables, both maths: the bits of plain C */
            run_whole(t.k, NULL, &c, end, o, NULL);
            same_bits(t.k->name, o, base, ROWS * c.vs);
            for (int i = 0; i < SEQS; i++)
                same_bits("state", end[i], base_end[i], c.state_floats);
        }
        for (int i = 0; i < SEQS; i++) {
            free(end[i]);
            free(base_end[i]);
        }
        free(o);
        free(base);
        drop_case(&c);
    }
}

/* One row per call in place (decode), runs of rows (chunks), two threads; verify keeps the state;
 * replay of the recorded u writes the same state. */
static void kda_path_does_not_matter(void **state)
{
    uint64_t s = 33;
    struct kg_team *team;

    (void)state;
    assert_int_equal(kg_team_create(2, &team, NULL), KG_OK);
    for (size_t n = 0; n < N_DIMS; n++) {
        struct kda_case c = make_case(&s, 3, kda_dims[n][0], kda_dims[n][1]);
        float *o = take_f(ROWS * c.vs), *u = take_f(ROWS * c.vs), *base = take_f(ROWS * c.vs);
        float *end[SEQS], *st = take_f(c.state_floats), *none[SEQS] = {NULL, NULL, NULL};

        for (int i = 0; i < SEQS; i++)
            end[i] = take_f(c.state_floats);
        for (EACH_TABLE(t)) {
            run_whole(t.k, team, &c, end, base, u);
            run_whole(t.k, NULL, &c, none, o, NULL); /* verify */
            same_bits("verify", o, base, ROWS * c.vs);
            for (int i = 0; i < SEQS; i += 2) {
                struct kg_kda a = args_of(&c, o, u);
                struct kg_kda_seq q = {st, st, 0, 1};

                a.seqs = &q;
                a.n_seqs = 1;
                memcpy(st, c.start[i], c.state_floats * sizeof(float));
                memset(o, 0xff, ROWS * c.vs * sizeof(float));
                a.u = NULL;
                for (uint32_t j = 0; j < seq_n[i];) {
                    q.row0 = seq_row0[i] + j;
                    q.n = t.i % 2 ? 1 : 1 + (uint32_t)(rnd(&s) % (seq_n[i] - j));
                    t.k->kda(NULL, &a);
                    j += q.n;
                }
                same_bits("decode state", st, end[i], c.state_floats);
                for (uint32_t r = seq_row0[i]; r < seq_row0[i] + seq_n[i]; r++)
                    for (uint32_t h = 0; h < c.heads; h++)
                        same_bits("decode", o + r * c.vs + h * c.vd, base + r * c.vs + h * c.vd,
                                  c.vd);
                a = args_of(&c, NULL, u);
                a.q = a.v = a.beta = NULL;
                q = (struct kg_kda_seq){c.start[i], st, seq_row0[i], seq_n[i]};
                a.seqs = &q;
                a.n_seqs = 1;
                memset(st, 0xff, c.state_floats * sizeof(float));
                t.k->kda_replay(team, &a);
                same_bits("replay state", st, end[i], c.state_floats);
            }
        }
        for (int i = 0; i < SEQS; i++)
            free(end[i]);
        free(o);
        free(u);
        free(base);
        free(st);
        drop_case(&c);
    }
    kg_team_destroy(team);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(conv_matches_double_and_does_not_depend_on_chunks),
        cmocka_unit_test(kda_matches_the_delta_rule_in_double),
        cmocka_unit_test(kda_path_does_not_matter),
    };

    return cmocka_run_group_tests(tests, say_skipped, NULL);
}
