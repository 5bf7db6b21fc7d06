/* Short convolution and the KDA recurrence: lanes over channels, tokens in order. */
#include "cpu.h"

#include "vmath.h"

/* ---- convolution ---------------------------------------------------------------------------- */

struct conv {
    float *y;
    const float *u, *w;
    size_t y_stride, u_stride;
    const struct kg_conv_seq *seqs;
    uint32_t channels;
    uint32_t groups; /* tasks of one sequence */
    uint32_t width;  /* channels of a task, a multiple of 16 */
    int bf16;
};

static vf window_load(const struct conv *a, const void *window, uint32_t j, uint32_t c, uint32_t n)
{
    size_t at = (size_t)j * a->channels + c;

    if (window == NULL)
        return v_zero();
    if (!a->bf16)
        return v_loadn((const float *)window + at, n);
    if (n == LANES)
        return v_load_bf16((const uint16_t *)window + at);
    uint16_t some[LANES] = {0};
    memcpy(some, (const uint16_t *)window + at, n * sizeof(uint16_t));
    return v_load_bf16(some);
}

static void window_store(const struct conv *a, void *window, uint32_t j, uint32_t c, uint32_t n,
                         vf v)
{
    size_t at = (size_t)j * a->channels + c;

    if (!a->bf16) {
        v_storen((float *)window + at, v, n);
        return;
    }
    vi bits = vi_shr(v_bits(v), 16); /* already rounded */
    if (n == LANES) {
        vi_store_u16((uint16_t *)window + at, bits);
        return;
    }
    uint16_t some[LANES];
    vi_store_u16(some, bits);
    memcpy((uint16_t *)window + at, some, n * sizeof(uint16_t));
}

static void conv_lanes(const struct conv *a, const struct kg_conv_seq *s, uint32_t c)
{
    uint32_t n = a->channels - c < LANES ? a->channels - c : LANES;
    vf w[4], old = window_load(a, s->window_in, 0, c, n);
    vf mid = window_load(a, s->window_in, 1, c, n), new = window_load(a, s->window_in, 2, c, n);

    for (uint32_t j = 0; j < 4; j++)
        w[j] = v_loadn(a->w + (size_t)j * a->channels + c, n);
    for (uint32_t t = 0; t < s->n; t++) {
        size_t r = s->row0 + t;
        vf u = v_loadn(a->u + r * a->u_stride + c, n);

        if (a->bf16)
            u = v_from_bits(vi_shl(v_round_bf16(u), 16));
        vf sum = v_fma(w[3], u, v_fma(w[2], new, v_fma(w[1], mid, v_mul(w[0], old))));
        v_storen(a->y + r * a->y_stride + c, v_mul(sum, v_sigmoid(sum)), n);
        old = mid;
        mid = new;
        new = u;
    }
    if (s->window_out == NULL)
        return;
    window_store(a, s->window_out, 0, c, n, old);
    window_store(a, s->window_out, 1, c, n, mid);
    window_store(a, s->window_out, 2, c, n, new);
}

static void conv_task(void *arg, uint32_t task, uint32_t member)
{
    const struct conv *a = arg;
    uint32_t c0 = task % a->groups * a->width, c1 = c0 + a->width;

    (void)member;
    for (uint32_t c = c0; c < c1 && c < a->channels; c += LANES)
        conv_lanes(a, &a->seqs[task / a->groups], c);
}

static void conv_run(struct kg_team *team, struct conv *a, uint32_t n_seqs)
{
    uint64_t rows = 0;

    for (uint32_t s = 0; s < n_seqs; s++)
        rows += a->seqs[s].n;
    a->width = n_seqs >= 4 * kg_team_size(team) ? 4096 : 256;
    a->groups = (a->channels + a->width - 1) / a->width;
    run_sized(team, conv_task, a, n_seqs * a->groups, rows * a->channels * 12);
}

void ISA(conv_f32)(struct kg_team *team, float *y, size_t y_stride, const float *u, size_t u_stride,
                   const float *w, uint32_t channels, const struct kg_conv_seq *seqs,
                   uint32_t n_seqs)
{
    struct conv a = {.y = y, .u = u, .w = w, .y_stride = y_stride, .u_stride = u_stride};

    a.seqs = seqs;
    a.channels = channels;
    conv_run(team, &a, n_seqs);
}

void ISA(conv_bf16)(struct kg_team *team, float *y, size_t y_stride, const float *u,
                    size_t u_stride, const float *w, uint32_t channels,
                    const struct kg_conv_seq *seqs, uint32_t n_seqs)
{
    struct conv a = {.y = y, .u = u, .w = w, .y_stride = y_stride, .u_stride = u_stride};

    a.seqs = seqs;
    a.channels = channels;
    a.bf16 = 1;
    conv_run(team, &a, n_seqs);
}

/* ---- recurrence ----------------------------------------------------------------------------- */

#define K_MAX 512

struct kda_run {
    const struct kg_kda *a;
    uint32_t blocks; /* of 16 values, per head */
    uint32_t units;  /* sequences x heads x blocks */
    uint32_t per;    /* units of a task */
    int replay;
};

/* The inputs of one row and head, and where its 16 values are. */
struct kda_row {
    uint32_t k_dim;
    const float *q, *k, *alpha;
    size_t value, out, u;
};

static struct kda_row kda_row(const struct kg_kda *a, size_t r, uint32_t h, uint32_t v0)
{
    size_t at = (size_t)h * a->k_dim, v = (size_t)h * a->v_dim + v0;

    return (struct kda_row){
        .k_dim = a->k_dim,
        .q = a->q == NULL ? NULL : a->q + r * a->qk_stride + at,
        .k = a->k + r * a->qk_stride + at,
        .alpha = a->alpha + r * a->alpha_stride + at,
        .value = r * a->v_stride + v,
        .out = r * a->o_stride + v,
        .u = r * a->u_stride + v,
    };
}

/* Asks for the state behind this one, most often the next to be read, a line for each row. */
INLINE void kda_ask(const float *from, uint32_t width, uint32_t k_dim, uint32_t i)
{
    _mm_prefetch((const char *)(from + (size_t)(k_dim + i) * width), _MM_HINT_T0);
}

/* p = S^T (k * alpha) over four partial sums. */
INLINE vf kda_read(const float *state, uint32_t width, const struct kda_row *row, uint32_t k_dim)
{
    vf p[4] = {v_zero(), v_zero(), v_zero(), v_zero()};
    float ka[K_MAX];
    uint32_t i = 0;

    for (; i < k_dim; i += LANES) {
        uint32_t n = k_dim - i < LANES ? k_dim - i : LANES;

        v_store(ka + i, v_mul(v_loadn(row->k + i, n), v_loadn(row->alpha + i, n)));
    }
    for (i = 0; i + 4 <= k_dim; i += 4)
        for (uint32_t j = 0; j < 4; j++)
            p[j] = v_fma(v_set1(ka[i + j]), v_loadn(state + (size_t)(i + j) * width, width), p[j]);
    for (uint32_t j = 0; i + j < k_dim; j++)
        p[j] = v_fma(v_set1(ka[i + j]), v_loadn(state + (size_t)(i + j) * width, width), p[j]);
    return v_add(v_add(p[0], p[1]), v_add(p[2], p[3]));
}

/* S' = S * alpha + k u, one row of S. */
INLINE vf kda_update(const float *from, float *to, uint32_t width, const struct kda_row *row,
                     uint32_t i, vf u)
{
    vf s = v_mul(v_loadn(from + (size_t)i * width, width), v_set1(row->alpha[i]));

    kda_ask(from, width, row->k_dim, i);
    s = v_fma(v_set1(row->k[i]), u, s);
    v_storen(to + (size_t)i * width, s, width);
    return s;
}

INLINE vf kda_write(const float *from, float *to, uint32_t width, const struct kda_row *row,
                    uint32_t k_dim, vf u)
{
    vf o[4] = {v_zero(), v_zero(), v_zero(), v_zero()};
    uint32_t i = 0;

    for (; i + 4 <= k_dim; i += 4)
        for (uint32_t j = 0; j < 4; j++)
            o[j] = v_fma(v_set1(row->q[i + j]), kda_update(from, to, width, row, i + j, u), o[j]);
    for (uint32_t j = 0; i + j < k_dim; j++)
        o[j] = v_fma(v_set1(row->q[i + j]), kda_update(from, to, width, row, i + j, u), o[j]);
    return v_add(v_add(o[0], o[1]), v_add(o[2], o[3]));
}

/* All rows of a sequence for `width` values of one head. */
INLINE void kda_lanes(const struct kg_kda *a, const struct kg_kda_seq *s, uint32_t h, uint32_t v0,
                      uint32_t width, int replay)
{
    float local[K_MAX * LANES];
    size_t at = (size_t)h * a->k_dim * a->v_dim + (size_t)v0 * a->k_dim;
    const float *from = s->state_in == NULL ? local : s->state_in + at;
    float *to = s->state_out == NULL ? local : s->state_out + at;

    if (s->state_in == NULL)
        memset(local, 0, (size_t)a->k_dim * width * sizeof(float));
    for (uint32_t t = 0; t < s->n; t++, from = to) {
        size_t r = s->row0 + t;
        struct kda_row row = kda_row(a, r, h, v0);

        if (replay) {
            vf u = v_loadn(a->u + row.u, width);

            for (uint32_t i = 0; i < a->k_dim; i++)
                kda_update(from, to, width, &row, i, u);
            continue;
        }
        vf p = kda_read(from, width, &row, a->k_dim);
        vf u = v_mul(v_set1(a->beta[r * a->beta_stride + h]),
                     v_sub(v_loadn(a->v + row.value, width), p));
        if (a->u != NULL)
            v_storen(a->u + row.u, u, width);
        v_storen(a->o + row.out, kda_write(from, to, width, &row, a->k_dim, u), width);
    }
}

static void kda_full(const struct kg_kda *a, const struct kg_kda_seq *s, uint32_t h, uint32_t v0)
{
    kda_lanes(a, s, h, v0, LANES, 0);
}

static void replay_full(const struct kg_kda *a, const struct kg_kda_seq *s, uint32_t h, uint32_t v0)
{
    kda_lanes(a, s, h, v0, LANES, 1);
}

static void kda_narrow(const struct kg_kda *a, const struct kg_kda_seq *s, uint32_t h, uint32_t v0,
                       int replay)
{
    kda_lanes(a, s, h, v0, a->v_dim - v0, replay);
}

static void kda_task(void *arg, uint32_t task, uint32_t member)
{
    const struct kda_run *run = arg;
    const struct kg_kda *a = run->a;
    uint32_t end = (task + 1) * run->per;

    (void)member;
    for (uint32_t unit = task * run->per; unit < end && unit < run->units; unit++) {
        uint32_t v0 = unit % run->blocks * LANES, h = unit / run->blocks % a->heads;
        const struct kg_kda_seq *s = &a->seqs[unit / run->blocks / a->heads];

        if (a->v_dim - v0 < LANES)
            kda_narrow(a, s, h, v0, run->replay);
        else if (run->replay)
            replay_full(a, s, h, v0);
        else
            kda_full(a, s, h, v0);
    }
}

static void kda_run(struct kg_team *team, const struct kg_kda *a, int replay)
{
    struct kda_run run = {.a = a, .replay = replay, .blocks = (a->v_dim + LANES - 1) / LANES};
    uint32_t tasks = kg_team_size(team) * 4;
    uint64_t rows = 0;

    for (uint32_t s = 0; s < a->n_seqs; s++)
        rows += a->seqs[s].n;
    run.units = a->n_seqs * a->heads * run.blocks;
    run.per = (run.units + tasks - 1) / tasks;
    run.per = run.per == 0 ? 1 : run.per;
    run_sized(team, kda_task, &run, (run.units + run.per - 1) / run.per,
              rows * a->heads * a->k_dim * a->v_dim * 4);
}

void ISA(kda)(struct kg_team *team, const struct kg_kda *args)
{
    kda_run(team, args, 0);
}

void ISA(kda_replay)(struct kg_team *team, const struct kg_kda *args)
{
    kda_run(team, args, 1);
}
