#include "ref.h"

/* Raw input of tap `back` steps before row t; from the window where t - back < 0. */
static float tap(const struct kg_conv_seq *s, const float *u, size_t u_stride, uint32_t channels,
                 uint32_t c, uint32_t t, uint32_t back, int bf16)
{
    if (back <= t) {
        float x = u[(s->row0 + t - back) * u_stride + c];

        return bf16 ? bf16_widen(bf16_round(x)) : x;
    }
    if (s->window_in == NULL)
        return 0.0f;
    size_t at = (size_t)(3 + t - back) * channels + c;
    return bf16 ? bf16_widen(((const uint16_t *)s->window_in)[at])
                : ((const float *)s->window_in)[at];
}

static void conv_seq(float *y, size_t y_stride, const float *u, size_t u_stride, const float *w,
                     uint32_t channels, const struct kg_conv_seq *s, int bf16)
{
    for (uint32_t c = 0; c < channels; c++) {
        float last[3];

        for (uint32_t t = 0; t < s->n; t++) {
            float sum = w[c] * tap(s, u, u_stride, channels, c, t, 3, bf16);

            for (uint32_t j = 1; j < 4; j++)
                sum = fmaf(w[(size_t)j * channels + c],
                           tap(s, u, u_stride, channels, c, t, 3 - j, bf16), sum);
            y[(s->row0 + t) * y_stride + c] = sum * ref_sigmoid(sum);
        }
        for (uint32_t j = 0; j < 3; j++)
            last[j] = tap(s, u, u_stride, channels, c, s->n - 1, 2 - j, bf16);
        for (uint32_t j = 0; s->window_out != NULL && j < 3; j++) {
            if (bf16)
                ((uint16_t *)s->window_out)[(size_t)j * channels + c] = bf16_round(last[j]);
            else
                ((float *)s->window_out)[(size_t)j * channels + c] = last[j];
        }
    }
}

void ref_conv_f32(struct kg_team *team, float *y, size_t y_stride, const float *u, size_t u_stride,
                  const float *w, uint32_t channels, const struct kg_conv_seq *seqs,
                  uint32_t n_seqs)
{
    (void)team;
    for (uint32_t s = 0; s < n_seqs; s++)
        conv_seq(y, y_stride, u, u_stride, w, channels, &seqs[s], 0);
}

void ref_conv_bf16(struct kg_team *team, float *y, size_t y_stride, const float *u, size_t u_stride,
                   const float *w, uint32_t channels, const struct kg_conv_seq *seqs,
                   uint32_t n_seqs)
{
    (void)team;
    for (uint32_t s = 0; s < n_seqs; s++)
        conv_seq(y, y_stride, u, u_stride, w, channels, &seqs[s], 1);
}

void ref_kda_gate(struct kg_team *team, float *alpha, size_t alpha_stride, const float *f,
                  size_t f_stride, const float *a_log, const float *dt_bias, uint32_t rows,
                  uint32_t heads, uint32_t dim, uint32_t form, float lower_bound)
{
    (void)team;
    for (uint32_t r = 0; r < rows; r++) {
        for (uint32_t c = 0; c < heads * dim; c++) {
            float rate = ref_exp(a_log[c / dim]), z = f[r * f_stride + c] + dt_bias[c];
            float g = form == KG_GATE_SIGMOID ? lower_bound * ref_sigmoid(rate * z)
                                              : -rate * ref_softplus(z);

            alpha[r * alpha_stride + c] = ref_exp(g);
        }
    }
}

/* One column v of one head through all rows of a sequence. state: [k_dim], updated. */
static void kda_column(const struct kg_kda *a, const struct kg_kda_seq *s, uint32_t h, uint32_t v,
                       float *state, int replay)
{
    for (uint32_t t = 0; t < s->n; t++) {
        size_t r = s->row0 + t, at = h * (size_t)a->k_dim;
        const float *alpha = a->alpha + r * a->alpha_stride + at;
        const float *k = a->k + r * a->qk_stride + at;
        float *u_at = a->u == NULL ? NULL : a->u + r * a->u_stride + h * a->v_dim + v;
        float p[4] = {0}, o[4] = {0}, u;

        for (uint32_t i = 0; i < a->k_dim; i++) {
            p[i % 4] = fmaf(k[i] * alpha[i], state[i], p[i % 4]);
            state[i] *= alpha[i];
        }
        if (replay) {
            u = *u_at;
        } else {
            float value = a->v[r * a->v_stride + h * a->v_dim + v];

            u = a->beta[r * a->beta_stride + h] * (value - ((p[0] + p[1]) + (p[2] + p[3])));
            if (u_at != NULL)
                *u_at = u;
        }
        for (uint32_t i = 0; i < a->k_dim; i++) {
            state[i] = fmaf(k[i], u, state[i]);
            if (!replay)
                o[i % 4] = fmaf(a->q[r * a->qk_stride + at + i], state[i], o[i % 4]);
        }
        if (!replay)
            a->o[r * a->o_stride + h * a->v_dim + v] = (o[0] + o[1]) + (o[2] + o[3]);
    }
}

static void kda(const struct kg_kda *a, int replay)
{
    for (uint32_t n = 0; n < a->n_seqs; n++) {
        const struct kg_kda_seq *s = &a->seqs[n];

        for (uint32_t h = 0; h < a->heads; h++) {
            size_t head = (size_t)h * a->k_dim * a->v_dim;

            for (uint32_t v = 0; v < a->v_dim; v++) {
                float column[512];

                for (uint32_t k = 0; k < a->k_dim; k++)
                    column[k] = s->state_in == NULL
                                    ? 0.0f
                                    : s->state_in[head + kg_state_at(a->k_dim, a->v_dim, k, v)];
                kda_column(a, s, h, v, column, replay);
                for (uint32_t k = 0; s->state_out != NULL && k < a->k_dim; k++)
                    s->state_out[head + kg_state_at(a->k_dim, a->v_dim, k, v)] = column[k];
            }
        }
    }
}

void ref_kda(struct kg_team *team, const struct kg_kda *args)
{
    (void)team;
    kda(args, 0);
}

void ref_kda_replay(struct kg_team *team, const struct kg_kda *args)
{
    (void)team;
    kda(args, 1);
}

void ref_page_write(struct kg_team *team, const struct kg_pages *pages, const float *c,
                    size_t c_stride, const float *kr, size_t kr_stride,
                    const struct kg_mla_seq *seqs, uint32_t n_seqs)
{
    (void)team;
    for (uint32_t n = 0; n < n_seqs; n++) {
        for (uint32_t j = 0; j < seqs[n].n; j++) {
            uint8_t *record = page_record(pages, seqs[n].pages, seqs[n].past + j);
            size_t r = seqs[n].row0 + j;

            for (uint32_t i = 0; i < pages->latent + pages->rope; i++) {
                float x =
                    i < pages->latent ? c[r * c_stride + i] : kr[r * kr_stride + i - pages->latent];

                if (pages->dtype == KG_BF16)
                    ((uint16_t *)record)[i] = bf16_round(x);
                else
                    ((float *)record)[i] = x;
            }
        }
    }
}

static void read_record(const struct kg_pages *p, const uint32_t *ids, uint32_t t, float *key)
{
    const uint8_t *record = page_record(p, ids, t);

    for (uint32_t i = 0; i < p->latent + p->rope; i++)
        key[i] = p->dtype == KG_BF16 ? bf16_widen(((const uint16_t *)record)[i])
                                     : ((const float *)record)[i];
}

/* One row and head over keys 0..last. */
static void mla_head(const struct kg_mla *a, const uint32_t *ids, uint32_t last, const float *qa,
                     const float *qr, float *m)
{
    uint32_t latent = a->pages.latent;
    float best = -INFINITY, sum = 0.0f, key[KEY_BLOCK][KG_MLA_MAX], score[KEY_BLOCK];

    memset(m, 0, latent * sizeof(float));
    for (uint32_t t0 = 0; t0 <= last; t0 += KEY_BLOCK) {
        uint32_t n = last - t0 + 1 < KEY_BLOCK ? last - t0 + 1 : KEY_BLOCK;
        float top = best;

        for (uint32_t j = 0; j < n; j++) {
            float lane[16] = {0};

            read_record(&a->pages, ids, t0 + j, key[j]);
            dot16(lane, qa, key[j], latent);
            dot16(lane, qr, key[j] + latent, a->pages.rope);
            score[j] = join16(lane) * a->scale;
            top = score[j] > top ? score[j] : top;
        }
        float keep = ref_exp(best - top);

        best = top;
        sum *= keep;
        for (uint32_t j = 0; j < n; j++) {
            score[j] = ref_exp(score[j] - best);
            sum += score[j];
        }
        for (uint32_t i = 0; i < latent; i++) {
            m[i] *= keep;
            for (uint32_t j = 0; j < n; j++)
                m[i] = fmaf(score[j], key[j][i], m[i]);
        }
    }
    for (uint32_t i = 0; i < latent; i++)
        m[i] = m[i] / sum;
}

void ref_mla(struct kg_team *team, const struct kg_mla *args)
{
    (void)team;
    for (uint32_t n = 0; n < args->n_seqs; n++) {
        const struct kg_mla_seq *s = &args->seqs[n];

        for (uint32_t j = 0; j < s->n; j++) {
            for (uint32_t h = 0; h < args->heads; h++) {
                size_t r = s->row0 + j;

                mla_head(args, s->pages, s->past + j,
                         args->qa + r * args->qa_stride + (size_t)h * args->pages.latent,
                         args->qr == NULL
                             ? NULL
                             : args->qr + r * args->qr_stride + h * args->qr_head_stride,
                         args->m + r * args->m_stride + (size_t)h * args->pages.latent);
            }
        }
    }
}
