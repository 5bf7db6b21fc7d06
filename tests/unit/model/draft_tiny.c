#include "draft_tiny.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define HIDDEN 32u
#define VOCAB 40u
#define MAX_ROWS 128 /* context and block */

double dspec_noise(uint64_t seed, uint64_t i)
{
    uint64_t z = seed * 0x9e3779b97f4a7c15ull + (i + 1) * 0xbf58476d1ce4e5b9ull;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return (double)((z ^ z >> 31) >> 11) * 0x1p-53;
}

static uint32_t pick(uint64_t seed, uint64_t i, uint32_t low, uint32_t high)
{
    return low + (uint32_t)(dspec_noise(seed, i) * (high - low + 1));
}

struct dspec dspec_random(uint64_t seed)
{
    struct dspec s = {.block = pick(seed, 0, 1, 8),
                      .layers = pick(seed, 1, 1, 3),
                      .heads = pick(seed, 2, 1, 3),
                      .q_lora = pick(seed, 3, 0, 1) * 12,
                      .kv_lora = pick(seed, 4, 3, 20),
                      .nope = pick(seed, 5, 2, 9),
                      .rope = 2 * pick(seed, 6, 1, 4),
                      .v = pick(seed, 7, 2, 9),
                      .inter = pick(seed, 8, 3, 40),
                      .rank = pick(seed, 9, 0, 3) * 5,
                      .causal = pick(seed, 10, 0, 7),
                      .confidence = pick(seed, 11, 0, 3) > 0,
                      .interleave = pick(seed, 13, 0, 1),
                      .yarn = pick(seed, 14, 0, 2) == 0,
                      .prefix_sum = pick(seed, 15, 0, 1),
                      .biases = pick(seed, 17, 0, 1),
                      .dtype = pick(seed, 16, 0, 1) ? "F32" : "BF16"};

    s.confidence_markov = s.confidence && s.rank > 0 && pick(seed, 12, 0, 1);
    return s;
}

/* --- writing ---------------------------------------------------------------------------------- */

struct writer {
    struct tiny *m;
    const char *dtype;
    uint64_t seed, n;
};

/* Small random values; norms about 1. */
static void put(struct writer *w, const char *name, uint64_t rows, uint64_t cols)
{
    uint64_t dims[2] = {rows == 0 ? cols : rows, cols}, n = (rows == 0 ? 1 : rows) * cols;
    struct tiny_tensor *t = tiny_add(w->m, name, w->dtype, rows == 0 ? 1 : 2, dims);
    float scale = 1.7f / sqrtf((float)cols);

    for (uint64_t i = 0; i < n; i++) {
        float v = (float)(2 * dspec_noise(w->seed, w->n++) - 1);
        tiny_set(w->m, t, i, rows == 0 && strstr(name, "norm") ? 1 + 0.3f * v : v * scale);
    }
}

static void put_layer(struct writer *w, const struct dspec *s, uint32_t l)
{
    char at[64], name[96];
    const char *const norms[] = {"input_layernorm", "post_attention_layernorm"};
    struct {
        const char *name;
        uint64_t rows, cols;
    } const t[] = {
        {"self_attn.kv_a_proj_with_mqa", s->kv_lora + s->rope, HIDDEN},
        {"self_attn.kv_b_proj", s->heads * (s->nope + s->v), s->kv_lora},
        {"self_attn.o_proj", HIDDEN, s->heads * s->v},
        {"mlp.gate_proj", s->inter, HIDDEN},
        {"mlp.up_proj", s->inter, HIDDEN},
        {"mlp.down_proj", HIDDEN, s->inter},
        {"self_attn.q_proj", s->heads * (s->nope + s->rope), HIDDEN},
        {"self_attn.q_a_proj", s->q_lora, HIDDEN},
        {"self_attn.q_b_proj", s->heads * (s->nope + s->rope), s->q_lora},
    };

    (void)snprintf(at, sizeof(at), "layers.%u.", l);
    for (int i = 0; i < 2; i++) {
        (void)snprintf(name, sizeof(name), "%s%s.weight", at, norms[i]);
        put(w, name, 0, HIDDEN);
    }
    (void)snprintf(name, sizeof(name), "%sself_attn.kv_a_layernorm.weight", at);
    put(w, name, 0, s->kv_lora);
    for (int i = 0; i < 9; i++) {
        if ((i == 6) != (s->q_lora == 0) && i >= 6)
            continue;
        if (i > 6 && s->q_lora == 0)
            continue;
        (void)snprintf(name, sizeof(name), "%s%s.weight", at, t[i].name);
        put(w, name, t[i].rows, t[i].cols);
    }
    if (s->q_lora > 0) {
        (void)snprintf(name, sizeof(name), "%sself_attn.q_a_layernorm.weight", at);
        put(w, name, 0, s->q_lora);
    }
}

/* Four lists of `block` numbers: first + class / 4 + k / 10. */
static void list_classes(const struct dspec *s, double first, char *out, size_t n)
{
    static const char *const names[] = {"greedy", "coupled", "rejection", "block"};
    size_t at = 0;

    for (uint32_t k = 0; k < 4; k++) {
        at += (size_t)snprintf(out + at, n - at, "%s\"%s\": [", k ? ", " : "", names[k]);
        for (uint32_t i = 0; i < s->block; i++)
            at += (size_t)snprintf(out + at, n - at, "%s%g", i ? ", " : "",
                                   first + 0.25 * k + 0.1 * i);
        at += (size_t)snprintf(out + at, n - at, "]");
    }
}

static void write_config(const struct dspec *s, const char *sha, struct tiny *m)
{
    char temperatures[1024], biases[1024] = "", causal[64] = "", yarn[256] = "";

    list_classes(s, 0.5, temperatures, sizeof(temperatures));
    if (s->biases) {
        (void)snprintf(biases, sizeof(biases), "\"sts_biases\": {");
        list_classes(s, -1.07, biases + strlen(biases), sizeof(biases) - 64);
        (void)snprintf(biases + strlen(biases), 8, "},\n");
    }
    for (uint32_t l = 0; l < s->layers; l++)
        (void)snprintf(causal + strlen(causal), sizeof(causal) - strlen(causal), "%s%s",
                       l ? ", " : "", s->causal >> l & 1 ? "true" : "false");
    if (s->yarn)
        (void)snprintf(yarn, sizeof(yarn),
                       "\"rope_parameters\": {\"rope_type\": \"yarn\", \"factor\": 8.0, "
                       "\"original_max_position_embeddings\": 64, \"beta_fast\": 8, "
                       "\"beta_slow\": 1, \"mscale\": 0.8, \"mscale_all_dim\": 0.5},\n");
    (void)snprintf(
        m->config, sizeof(m->config),
        "{\"model_type\": \"k3_dspark\",\n\"hidden_size\": 32,\n\"intermediate_size\": %u,\n"
        "\"num_hidden_layers\": %u,\n\"num_attention_heads\": %u,\n\"q_lora_rank\": %u,\n"
        "\"kv_lora_rank\": %u,\n\"qk_nope_head_dim\": %u,\n\"qk_rope_head_dim\": %u,\n"
        "\"v_head_dim\": %u,\n\"rms_norm_eps\": 1e-5,\n\"vocab_size\": 40,\n"
        "\"draft_vocab_size\": 40,\n\"max_position_embeddings\": 4096,\n\"mla_use_nope\": false,\n"
        "\"mla_use_output_gate\": false,\n\"rope_theta\": 1000.0,\n%s\"rope_interleave\": %s,\n"
        "\"num_target_layers\": 1,\n\"target_layer_ids\": [0],\n\"target_hidden_size\": 32,\n"
        "\"target_num_hidden_layers\": 2,\n\"tap_convention\": \"after_layer\",\n"
        "\"aux_hidden_stream\": \"%s\",\n\"mask_token_id\": 38,\n\"block_size\": %u,\n"
        "\"causal\": [%s],\n\"markov_head_type\": \"vanilla\",\n\"markov_rank\": %u,\n"
        "\"enable_confidence_head\": %s,\n\"confidence_head_with_markov\": %s,\n"
        "\"sts_temperatures\": {%s},\n%s\"target_sha256\": \"%s\"}",
        s->inter, s->layers, s->heads, s->q_lora, s->kv_lora, s->nope, s->rope, s->v, yarn,
        s->interleave ? "true" : "false", s->prefix_sum ? "prefix_sum" : "attn_res", s->block,
        causal, s->rank, s->confidence ? "true" : "false", s->confidence_markov ? "true" : "false",
        temperatures, biases, sha);
}

struct tiny *dspec_write(const struct dspec *s, const char *target_dir, uint64_t seed)
{
    struct tiny *m = tiny_empty();
    struct writer w = {.m = m, .dtype = s->dtype, .seed = seed};
    struct kg_error err = {0};
    char sha[KG_SHA256_HEX];

    assert_int_equal(kg_draft_target_sha256(target_dir, sha, &err), KG_OK);
    write_config(s, sha, m);
    put(&w, "context_proj.weight", HIDDEN, HIDDEN);
    put(&w, "context_norm.weight", 0, HIDDEN);
    put(&w, "final_norm.weight", 0, HIDDEN);
    for (uint32_t l = 0; l < s->layers; l++)
        put_layer(&w, s, l);
    if (s->rank > 0) {
        put(&w, "markov_head.markov_w1.weight", VOCAB, s->rank);
        put(&w, "markov_head.markov_w2.weight", VOCAB, s->rank);
    }
    if (s->confidence) {
        put(&w, "confidence_head.proj.weight", 1, HIDDEN + (s->confidence_markov ? s->rank : 0));
        put(&w, "confidence_head.proj.bias", 0, 1);
    }
    tiny_write(m);
    return m;
}

/* --- the reference ---------------------------------------------------------------------------- */

static double at(const struct kg_tensor *t, uint64_t i)
{
    float v;

    kg_tensor_load_f32(t, i, 1, &v);
    return v;
}

/* y = W x */
static void times(const struct kg_tensor *w, uint32_t row0, uint32_t rows, const double *x,
                  double *y)
{
    for (uint32_t r = 0; r < rows; r++) {
        y[r] = 0;
        for (uint32_t c = 0; c < w->cols; c++)
            y[r] += at(w, (uint64_t)(row0 + r) * w->cols + c) * x[c];
    }
}

static void rms(const struct kg_tensor *w, double eps, uint32_t n, const double *x, double *y)
{
    double sum = 0;

    for (uint32_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    for (uint32_t i = 0; i < n; i++)
        y[i] = x[i] / sqrt(sum / n + eps) * at(w, i);
}

/* Radians per token, the published form of yarn: a ramp between two pair numbers. */
static double rate(const struct kg_rope *r, uint32_t dim, uint32_t i)
{
    const double two_pi = 2 * acos(-1.0);
    double plain = 1 / pow(r->theta, 2.0 * i / dim);
    double lo, hi, ramp;

    if (!r->yarn)
        return plain;
    lo = floor(dim * log(r->original / (r->beta_fast * two_pi)) / (2 * log(r->theta)));
    hi = ceil(dim * log(r->original / (r->beta_slow * two_pi)) / (2 * log(r->theta)));
    lo = fmax(lo, 0);
    hi = fmin(hi, dim - 1);
    hi = hi <= lo ? lo + 0.001 : hi;
    ramp = fmin(fmax((i - lo) / (hi - lo), 0), 1);
    return plain / r->factor * ramp + plain * (1 - ramp);
}

static double mscale(const struct kg_rope *r, double m)
{
    return r->yarn && r->factor > 1 ? 0.1 * m * log(r->factor) + 1 : 1;
}

static void turn(const struct dcase *c, double position, double *x)
{
    const struct kg_rope *r = &c->ckpt->config.rope;
    uint32_t dim = c->ckpt->config.net.rope_dim;
    int pairs = (int)r->interleave ^ (c->mistake == D_OTHER_PAIRS);
    double scale = mscale(r, r->mscale) / mscale(r, r->mscale_all_dim);

    for (uint32_t i = 0; i < dim / 2; i++) {
        uint32_t a = pairs ? 2 * i : i, b = pairs ? 2 * i + 1 : i + dim / 2;
        double angle = position * rate(r, dim, i), u = x[a], v = x[b];
        x[a] = (u * cos(angle) - v * sin(angle)) * scale;
        x[b] = (v * cos(angle) + u * sin(angle)) * scale;
    }
}

/* Latent and turned key of one row. */
static void record(const struct dcase *c, uint32_t layer, const double *x, double position,
                   double *out)
{
    const struct kg_model_config *n = &c->ckpt->config.net;
    const struct kg_ckpt_mla *a = &c->ckpt->layers[layer].mla;

    times(&a->kv_a, 0, n->kv_lora + n->rope_dim, x, out);
    rms(&a->kv_a_norm, n->rms_eps, n->kv_lora, out, out);
    turn(c, position, out + n->kv_lora);
}

void dref_records(const struct dcase *c, uint32_t layer, double *out)
{
    const struct kg_draft_config *k = &c->ckpt->config;
    uint32_t width = k->n_taps * k->target_hidden;

    for (uint32_t t = 0; t < c->past; t++) {
        uint32_t from = c->mistake == D_CONTEXT_SHIFTED && t > 0 ? t - 1 : t;
        double f[DREF_WIDTH], h[DREF_WIDTH];
        for (uint32_t i = 0; i < width; i++) {
            uint32_t j = c->mistake == D_TAPS_SWAPPED ? (i + width / 2) % width : i;
            f[i] = c->features[(size_t)from * width + j];
        }
        times(&c->ckpt->context_proj, 0, k->net.hidden, f, h);
        rms(&c->ckpt->context_norm, k->net.rms_eps, k->net.hidden, h, h);
        if (c->mistake == D_CONTEXT_NORMED)
            rms(&c->ckpt->layers[layer].input_norm, k->net.rms_eps, k->net.hidden, h, h);
        record(c, layer, h, t, out + (size_t)t * (k->net.kv_lora + k->net.rope_dim));
    }
}

/* One head of one row over `n` records; adds W_o of it to y. */
static void head(const struct dcase *c, uint32_t layer, uint32_t h, const double *q,
                 const double *records, uint32_t n, double *o)
{
    const struct kg_model_config *m = &c->ckpt->config.net;
    const struct kg_ckpt_mla *a = &c->ckpt->layers[layer].mla;
    uint32_t width = m->kv_lora + m->rope_dim, base = h * (m->nope_dim + m->v_dim);
    double scale = mscale(&c->ckpt->config.rope, c->ckpt->config.rope.mscale_all_dim);
    double score[MAX_ROWS], top = -INFINITY, sum = 0, k[DREF_WIDTH], v[DREF_WIDTH];

    for (uint32_t t = 0; t < n; t++) {
        score[t] = 0;
        times(&a->kv_b, base, m->nope_dim, records + (size_t)t * width, k);
        for (uint32_t i = 0; i < m->nope_dim; i++)
            score[t] += q[i] * k[i];
        for (uint32_t i = 0; i < m->rope_dim; i++)
            score[t] += q[m->nope_dim + i] * records[(size_t)t * width + m->kv_lora + i];
        score[t] *= scale * scale / sqrt(m->nope_dim + m->rope_dim);
        top = fmax(top, score[t]);
    }
    memset(o, 0, m->v_dim * sizeof(*o));
    for (uint32_t t = 0; t < n; t++) {
        double p = exp(score[t] - top);
        times(&a->kv_b, base + m->nope_dim, m->v_dim, records + (size_t)t * width, v);
        sum += p;
        for (uint32_t i = 0; i < m->v_dim; i++)
            o[i] += p * v[i];
    }
    for (uint32_t i = 0; i < m->v_dim; i++)
        o[i] /= sum;
}

static void attend(const struct dcase *c, uint32_t layer, const double *x, double position,
                   const double *records, uint32_t n, double *y)
{
    const struct kg_model_config *m = &c->ckpt->config.net;
    const struct kg_ckpt_mla *a = &c->ckpt->layers[layer].mla;
    uint32_t width = m->nope_dim + m->rope_dim;
    double low[DREF_WIDTH], q[4 * DREF_WIDTH], o[4 * DREF_WIDTH];

    if (m->q_lora == 0) {
        times(&a->q, 0, m->mla_heads * width, x, q);
    } else {
        times(&a->q_a, 0, m->q_lora, x, low);
        rms(&a->q_a_norm, m->rms_eps, m->q_lora, low, low);
        times(&a->q_b, 0, m->mla_heads * width, low, q);
    }
    for (uint32_t h = 0; h < m->mla_heads; h++) {
        turn(c, position, q + (size_t)h * width + m->nope_dim);
        head(c, layer, h, q + (size_t)h * width, records, n, o + (size_t)h * m->v_dim);
    }
    times(&a->o, 0, m->hidden, o, y);
}

static void feed(const struct dcase *c, uint32_t layer, const double *x, double *y)
{
    const struct kg_ckpt_mlp *m = &c->ckpt->layers[layer].mlp;
    uint32_t inter = c->ckpt->config.net.dense_inter;
    double g[DREF_WIDTH], u[DREF_WIDTH];

    times(&m->gate, 0, inter, x, g);
    times(&m->up, 0, inter, x, u);
    for (uint32_t i = 0; i < inter; i++)
        g[i] = g[i] / (1 + exp(-g[i])) * u[i];
    times(&m->down, 0, m->down.rows, g, y);
}

static void layer_of(const struct dcase *c, uint32_t layer, uint32_t rows, double x[][DREF_WIDTH])
{
    const struct kg_draft_config *k = &c->ckpt->config;
    const struct kg_draft_ckpt_layer *y = &c->ckpt->layers[layer];
    uint32_t width = k->net.kv_lora + k->net.rope_dim, n = k->net.hidden;
    double first = (double)c->past - (c->mistake == D_POSITION_EARLY ? 1 : 0);
    int causal = k->causal[layer] ^ (c->mistake == D_OTHER_MASK);
    double *records = calloc((size_t)MAX_ROWS * width, sizeof(*records));
    double normed[DREF_WIDTH], out[DREF_WIDTH];

    assert_non_null(records);
    dref_records(c, layer, records);
    for (uint32_t j = 0; j < rows; j++) {
        rms(&y->input_norm, k->net.rms_eps, n, x[j], normed);
        record(c, layer, normed, first + j, records + (size_t)(c->past + j) * width);
    }
    for (uint32_t j = 0; j < rows; j++) {
        rms(&y->input_norm, k->net.rms_eps, n, x[j], normed);
        attend(c, layer, normed, first + j, records, c->past + (causal ? j + 1 : rows), out);
        for (uint32_t i = 0; i < n; i++)
            x[j][i] += out[i];
        rms(&y->post_norm, k->net.rms_eps, n, x[j], normed);
        feed(c, layer, normed, out);
        for (uint32_t i = 0; i < n; i++)
            x[j][i] += out[i];
    }
    free(records);
}

static void heads_of(const struct dcase *c, uint32_t k, const double *h, struct dref *out)
{
    const struct kg_draft_config *f = &c->ckpt->config;
    uint32_t before = k == 0 ? c->anchor : c->drafted[k - 1], rank = f->markov_rank;
    double w1[DREF_WIDTH], bias[DREF_VOCAB], in[2 * DREF_WIDTH];

    memcpy(out->hidden[k], h, f->net.hidden * sizeof(*h));
    times(c->lm_head, 0, f->net.vocab, h, out->logits[k]);
    memcpy(in, h, f->net.hidden * sizeof(*h));
    if (rank > 0) {
        for (uint32_t i = 0; i < rank; i++)
            in[f->net.hidden + i] = w1[i] = at(&c->ckpt->w1, (uint64_t)before * rank + i);
        times(&c->ckpt->w2, 0, f->net.vocab, w1, bias);
        for (uint32_t v = 0; v < f->net.vocab && c->mistake != D_NO_MARKOV; v++)
            out->logits[k][v] += bias[v];
    }
    if (f->confidence) {
        times(&c->ckpt->confidence_w, 0, 1, in, &out->confidence[k]);
        out->confidence[k] += at(&c->ckpt->confidence_b, 0);
    }
}

void dref_run(const struct dcase *c, struct dref *out)
{
    const struct kg_draft_config *k = &c->ckpt->config;
    static double x[KG_DRAFT_MAX_BLOCK][DREF_WIDTH];
    double h[DREF_WIDTH];

    assert_true(c->past + k->block <= MAX_ROWS);
    memset(out, 0, sizeof(*out));
    for (uint32_t j = 0; j < k->block; j++) {
        uint32_t id = j == 0 ? c->anchor : k->mask_token;
        for (uint32_t i = 0; i < k->net.hidden; i++)
            x[j][i] = at(c->embed, (uint64_t)id * k->net.hidden + i);
    }
    for (uint32_t l = 0; l < k->net.n_layers; l++)
        layer_of(c, l, k->block, x);
    for (uint32_t j = 0; j < k->block; j++) {
        uint32_t row = c->mistake == D_ROW_SHIFTED ? (j + 1) % k->block : j;
        rms(&c->ckpt->final_norm, k->net.rms_eps, k->net.hidden, x[row], h);
        heads_of(c, j, h, out);
    }
}
