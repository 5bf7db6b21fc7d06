#include "model/checkpoint.h"

#include "model/bind.h"
#include "model/file.h"
#include "model/safetensors.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_COPY_BYTES (4ull << 30) /* of tensors at odd addresses */

/* What kg_ckpt_close needs beside the public part. */
struct opened {
    struct kg_ckpt ckpt; /* first: the two addresses are one */
    struct kg_st *st;
    void **owned;
    uint64_t n_owned;
};

static float f16_value(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exp = h >> 10 & 31, man = h & 1023u, bits;
    float f;

    if (exp == 0) { /* zero or subnormal: man * 2^-24 */
        f = (float)man * 0x1p-24f;
        return sign != 0 ? -f : f;
    }
    bits = sign | (exp == 31 ? 0x7f800000u : (exp + 112) << 23) | man << 13;
    memcpy(&f, &bits, sizeof(f));
    return f;
}

/* Element i of a row of MXFP4 codes, with its scale byte. */
static float mxfp4_value(const uint8_t *codes, const uint8_t *scales, uint64_t i)
{
    static const float e2m1[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    uint32_t code = codes[i / 2] >> (i % 2 * 4) & 15, s = scales[i / 32];
    uint32_t bits = s == 255 ? 0x7fc00000u : s == 0 ? 0x00400000u : s << 23;
    float scale;

    memcpy(&scale, &bits, sizeof(scale));
    return (code & 8 ? -e2m1[code & 7] : e2m1[code & 7]) * scale;
}

void kg_tensor_load_f32(const struct kg_tensor *t, uint64_t first, uint64_t n, float *out)
{
    const uint16_t *half = t->data;

    switch (t->dtype) {
    case KG_F32:
        memcpy(out, (const float *)t->data + first, (size_t)n * sizeof(*out));
        break;
    case KG_BF16:
        for (uint64_t i = 0; i < n; i++) {
            uint32_t bits = (uint32_t)half[first + i] << 16;
            memcpy(&out[i], &bits, sizeof(bits));
        }
        break;
    case KG_F16:
        for (uint64_t i = 0; i < n; i++) {
            out[i] = f16_value(half[first + i]);
        }
        break;
    default: /* MXFP4: rows are whole groups, so the flat index finds code and scale */
        for (uint64_t i = 0; i < n; i++) {
            out[i] = mxfp4_value(t->data, t->scale, first + i);
        }
        break;
    }
}

/* Name, file and what is wrong; the first such call stays. */
__attribute__((format(printf, 3, 4))) static void
bad(struct kg_bind *b, const struct kg_st_tensor *t, const char *fmt, ...)
{
    char what[200], name[KG_PRINTABLE];
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(what, sizeof(what), fmt, ap);
    va_end(ap);
    b->rc = kg_fail(b->err, KG_EINVAL, "%.160s: %s: %s", kg_st_file(b->st, t->shard),
                    kg_printable(t->name, name), what);
}

/* "[2, 3]" */
static const char *shape_text(const struct kg_st_tensor *t, char *buf, size_t n)
{
    size_t at = 0;

    buf[0] = '\0';
    for (uint32_t i = 0; i < t->n_dims && at < n; i++) {
        int k = snprintf(buf + at, n - at, "%s%" PRIu64, i == 0 ? "" : ", ", t->dims[i]);
        at += k > 0 ? (size_t)k : 0;
    }
    return buf;
}

static int has_shape(const struct kg_st_tensor *t, uint32_t n_dims, const uint64_t *dims)
{
    return t->n_dims == n_dims && memcmp(t->dims, dims, n_dims * sizeof(*dims)) == 0;
}

/* True when the tensor has a form `shape` allows. */
static int fits(const struct kg_st_tensor *t, enum kg_shape shape, uint64_t rows, uint64_t cols)
{
    switch (shape) {
    case KG_SHAPE_VECTOR:
        return has_shape(t, 1, (uint64_t[]){cols}) || has_shape(t, 2, (uint64_t[]){1, cols});
    case KG_SHAPE_CONV:
        return has_shape(t, 3, (uint64_t[]){rows, 1, cols}) ||
               has_shape(t, 2, (uint64_t[]){rows, cols});
    case KG_SHAPE_A_LOG:
        return has_shape(t, 4, (uint64_t[]){1, 1, cols, 1}) ||
               (t->n_dims == 1 && t->dims[0] >= cols && t->dims[0] < cols + KG_MAX_HEADS);
    default:
        return has_shape(t, 2, (uint64_t[]){rows, cols});
    }
}

static void check_shape(struct kg_bind *b, const struct kg_st_tensor *t, enum kg_shape shape,
                        uint32_t rows, uint32_t cols)
{
    char have[100];

    if (fits(t, shape, rows, cols)) {
        return;
    }
    (void)shape_text(t, have, sizeof(have));
    switch (shape) {
    case KG_SHAPE_VECTOR:
        bad(b, t, "shape [%s], must be [%" PRIu32 "]", have, cols);
        break;
    case KG_SHAPE_CONV:
        bad(b, t, "shape [%s], must be [%" PRIu32 ", 1, %" PRIu32 "]", have, rows, cols);
        break;
    case KG_SHAPE_A_LOG:
        bad(b, t, "shape [%s], must be [1, 1, %" PRIu32 ", 1] or one list of at least as many",
            have, cols);
        break;
    default:
        bad(b, t, "shape [%s], must be [%" PRIu32 ", %" PRIu32 "]", have, rows, cols);
        break;
    }
}

static void check_float(struct kg_bind *b, const struct kg_st_tensor *t)
{
    if (b->rc == KG_OK && t->dtype != KG_F32 && t->dtype != KG_BF16 && t->dtype != KG_F16) {
        bad(b, t, "dtype %s, must be BF16, F32 or F16", kg_st_dtype_name(t->dtype));
    }
}

/* The data of a file tensor at an address its elements may be read at. */
static const void *aligned(struct kg_bind *b, const struct kg_st_tensor *t)
{
    size_t size = kg_dtype_bytes(t->dtype);

    if ((uintptr_t)t->data % size == 0) {
        return t->data;
    }
    b->copied_bytes += t->bytes;
    if (b->copied_bytes > MAX_COPY_BYTES) {
        bad(b, t,
            "its data lie at an odd address, and over %llu bytes would have to be copied; "
            "save the file again with the header padded to 8 bytes",
            MAX_COPY_BYTES);
        return NULL;
    }
    void **list = realloc(b->owned, (size_t)(b->n_owned + 1) * sizeof(*list));
    void *copy = malloc((size_t)t->bytes);
    if (list != NULL) {
        b->owned = list;
    }
    if (list == NULL || copy == NULL) {
        free(copy);
        b->rc = kg_fail(b->err, KG_ENOMEM, "%.160s: no memory to align %.120s",
                        kg_st_file(b->st, t->shard), t->name);
        return NULL;
    }
    memcpy(copy, t->data, (size_t)t->bytes);
    b->owned[b->n_owned++] = copy;
    b->ckpt->info.n_realigned++;
    return copy;
}

/* Marks as used and counts. */
static void use(struct kg_bind *b, const struct kg_st_tensor *t)
{
    b->used[t - kg_st_at(b->st, 0)] = 1;
    b->ckpt->info.n_bound++;
    b->ckpt->info.bound_bytes += t->bytes;
}

/* Small tensors: every value finite; after `n` only zeros (the padding of A_log). */
static void check_values(struct kg_bind *b, const struct kg_st_tensor *s, const struct kg_tensor *t,
                         uint64_t n)
{
    uint64_t all = s->bytes / kg_dtype_bytes(s->dtype);
    float v[256];

    for (uint64_t i = 0; i < all; i += 256) {
        uint64_t m = all - i < 256 ? all - i : 256;
        kg_tensor_load_f32(t, i, m, v);
        for (uint64_t j = 0; j < m; j++) {
            if (!isfinite(v[j])) {
                bad(b, s, "value %" PRIu64 " is not finite", i + j);
                return;
            }
            if (i + j >= n && v[j] != 0) {
                bad(b, s, "value %" PRIu64 " is past the %" PRIu64 " heads and not 0", i + j, n);
                return;
            }
        }
    }
}

static void bind_plain(struct kg_bind *b, const struct kg_st_tensor *s, enum kg_shape shape,
                       uint32_t rows, uint32_t cols, struct kg_tensor *t)
{
    check_shape(b, s, shape, rows, cols);
    check_float(b, s);
    if (b->rc < 0) {
        return;
    }
    const void *data = aligned(b, s);
    if (data == NULL) {
        return;
    }
    struct kg_tensor x = {.data = data, .dtype = s->dtype, .rows = rows, .cols = cols};
    if (shape >= KG_SHAPE_VECTOR) {
        check_values(b, s, &x, (uint64_t)rows * cols);
    }
    use(b, s);
    *t = x;
}

static void bind_mxfp4(struct kg_bind *b, const struct kg_st_tensor *codes,
                       const struct kg_st_tensor *scale, uint32_t rows, uint32_t cols,
                       struct kg_tensor *t)
{
    if (cols % 32 != 0) {
        bad(b, codes, "%" PRIu32 " columns are not a multiple of the group of 32", cols);
        return;
    }
    check_shape(b, codes, KG_SHAPE_MATRIX, rows, cols / 2);
    if (b->rc == KG_OK) {
        check_shape(b, scale, KG_SHAPE_MATRIX, rows, cols / 32);
    }
    const struct kg_st_tensor *both[2] = {codes, scale};
    for (int i = 0; i < 2 && b->rc == KG_OK; i++) {
        if (both[i]->dtype != KG_U8) {
            bad(b, both[i], "dtype %s, must be U8", kg_st_dtype_name(both[i]->dtype));
        }
    }
    if (b->rc < 0) {
        return;
    }
    use(b, codes);
    use(b, scale);
    b->ckpt->info.mxfp4 = 1;
    *t = (struct kg_tensor){
        .data = codes->data, .scale = scale->data, .dtype = KG_U8, .rows = rows, .cols = cols};
}

static void missing(struct kg_bind *b, const char *name)
{
    b->rc = kg_fail(b->err, KG_EINVAL, "%.200s: tensor %.200s is missing", b->file, name);
}

void kg_bind_tensor(struct kg_bind *b, enum kg_shape shape, uint32_t rows, uint32_t cols,
                    struct kg_tensor *t, const char *fmt, ...)
{
    const struct kg_st_tensor *plain, *codes, *scale;
    char name[200], full[220];
    va_list ap;

    if (b->rc < 0) {
        return;
    }
    va_start(ap, fmt);
    (void)vsnprintf(name, sizeof(name), fmt, ap);
    va_end(ap);
    if (shape >= KG_SHAPE_VECTOR) {
        plain = kg_st_find(b->st, name);
        if (plain == NULL) {
            missing(b, name);
            return;
        }
        bind_plain(b, plain, shape, rows, cols, t);
        return;
    }
    (void)snprintf(full, sizeof(full), "%s.weight_scale", name);
    scale = kg_st_find(b->st, full);
    (void)snprintf(full, sizeof(full), "%s.weight_packed", name);
    codes = kg_st_find(b->st, full);
    (void)snprintf(full, sizeof(full), "%s.weight", name);
    plain = kg_st_find(b->st, full);
    if (plain != NULL && (codes != NULL || scale != NULL)) {
        bad(b, plain, "is there twice: plain and packed");
    } else if (plain != NULL) {
        bind_plain(b, plain, shape, rows, cols, t);
    } else if (codes == NULL && scale == NULL) {
        missing(b, full);
    } else if (shape != KG_SHAPE_EXPERT) {
        bad(b, codes != NULL ? codes : scale, "only routed experts may be packed");
    } else if (codes == NULL || scale == NULL) {
        (void)snprintf(full, sizeof(full), "%s.weight_%s", name,
                       codes == NULL ? "packed" : "scale");
        missing(b, full);
    } else {
        bind_mxfp4(b, codes, scale, rows, cols, t);
    }
}

/* Binds an open file set; the result belongs to *o even on failure. */
static int bind_all(const char *dir, struct opened *o, struct kg_error *err)
{
    struct kg_ckpt *k = &o->ckpt;
    struct kg_bind b = {.st = o->st, .ckpt = k, .file = dir, .err = err};
    uint64_t n = kg_st_count(o->st);

    k->info.n_tensors = n;
    for (uint64_t i = 0; i < n; i++) {
        uint32_t shard = kg_st_at(o->st, i)->shard;
        k->info.n_files = shard >= k->info.n_files ? shard + 1 : k->info.n_files;
    }
    b.used = calloc((size_t)n + 1, 1);
    k->layers = calloc(k->config.n_layers, sizeof(*k->layers));
    if (b.used == NULL || k->layers == NULL) {
        b.rc = kg_fail(err, KG_ENOMEM, "%.200s: no memory", dir);
    }
    kg_bind_model(&b);
    if (b.rc == KG_OK) {
        kg_bind_rest(&b);
    }
    free(b.used);
    o->owned = b.owned;
    o->n_owned = b.n_owned;
    return b.rc;
}

int kg_ckpt_open(const char *dir, struct kg_ckpt **ckpt, struct kg_error *err)
{
    struct opened *o = calloc(1, sizeof(*o));
    int rc;

    if (o == NULL) {
        return kg_fail(err, KG_ENOMEM, "%.200s: no memory", dir);
    }
    if ((rc = kg_model_config_read(dir, &o->ckpt.config, err)) < 0 ||
        (rc = kg_st_open(dir, &o->st, err)) < 0 || (rc = bind_all(dir, o, err)) < 0) {
        kg_ckpt_close(&o->ckpt);
        return rc;
    }
    *ckpt = &o->ckpt;
    return KG_OK;
}

void kg_ckpt_close(struct kg_ckpt *ckpt)
{
    struct opened *o = (struct opened *)ckpt;

    if (ckpt == NULL) {
        return;
    }
    for (uint32_t l = 0; ckpt->layers != NULL && l < ckpt->config.n_layers; l++) {
        free(ckpt->layers[l].moe.experts);
    }
    free(ckpt->layers);
    for (uint64_t i = 0; i < o->n_owned; i++) {
        free(o->owned[i]);
    }
    free(o->owned);
    kg_st_close(o->st);
    free(o);
}
