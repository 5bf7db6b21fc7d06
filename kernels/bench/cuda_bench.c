/*
 * Time of the CUDA kernels beside what their bytes take: one Markdown table.
 * usage: cuda_bench [small | facts]
 *
 * A point is run 3 times, then `repeats` times between two marks of the stream; the median of 5
 * such figures is printed. "of copy" is the time the same bytes take at the rate of a plain copy
 * on the device, measured first, as a share of the kernel's time: 100 % is the roofline of what
 * only moves bytes. Bytes are those that must move once: weights, states, records, activations.
 * Shapes are those of one rank of eight of Kimi K3 (hidden 7168, 12 heads of 128, latent 512 + 64,
 * experts 3584 wide). `small`: shapes for the emulator, of which times say nothing; `facts`: the
 * device, no more.
 */
#include "kernels/cuda/cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REPEATS 10
#define MEDIAN_OF 5

struct bench {
    struct kg_cuda *cuda;
    struct kg_team *team;
    const struct kg_kernels *k;
    double copy_gb_s;
    uint32_t small;
    uint64_t seed;
};

static void check(int rc, const struct kg_error *err)
{
    if (rc < 0) {
        fprintf(stderr, "cuda_bench: %s\n", err->text);
        exit(1);
    }
}

static uint32_t number(struct bench *b)
{
    b->seed = b->seed * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(b->seed >> 33);
}

static void *room(struct bench *b, uint64_t bytes)
{
    struct kg_error err;
    void *p = NULL;

    check(kg_cuda_alloc(b->cuda, bytes, &p, &err), &err);
    return p;
}

static void *on_device(struct bench *b, const void *host, uint64_t bytes)
{
    struct kg_error err;
    void *p = room(b, bytes);

    kg_cuda_upload(b->cuda, p, host, bytes);
    check(kg_cuda_sync(b->cuda, &err), &err);
    return p;
}

/* -1..1 */
static float *floats(struct bench *b, uint64_t n)
{
    float *host = malloc(n * sizeof(*host)), *p;

    if (host == NULL)
        exit(1);
    for (uint64_t i = 0; i < n; i++)
        host[i] = (float)number(b) * 0x1p-30f - 1.0f;
    p = on_device(b, host, n * sizeof(*host));
    free(host);
    return p;
}

/* Weights whose bytes repeat: what is read does not depend on them. */
static struct kg_weight weight(struct bench *b, uint32_t type, uint32_t out, uint32_t in)
{
    struct kg_weight w = {
        .type = type, .out = out, .in = in, .bytes = kg_weight_bytes(type, out, in)};

    w.data = room(b, w.bytes);
    kg_cuda_fill(b->cuda, w.data, type == KG_W_MXFP4 ? 0x75 : 0x3c, w.bytes);
    return w;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Median microseconds of a call. */
static double time_us(struct bench *b, void (*call)(struct bench *, void *), void *arg)
{
    double got[MEDIAN_OF];
    struct kg_error err;
    int repeats = b->small ? 1 : REPEATS;

    for (int i = 0; i < (b->small ? 1 : 3); i++)
        call(b, arg);
    for (int i = 0; i < MEDIAN_OF; i++) {
        kg_cuda_mark(b->cuda, 0);
        for (int k = 0; k < repeats; k++)
            call(b, arg);
        kg_cuda_mark(b->cuda, 1);
        check(kg_cuda_sync(b->cuda, &err), &err);
        got[i] = (double)kg_cuda_time_ns(b->cuda, 0, 1) * 1e-3 / repeats;
    }
    qsort(got, MEDIAN_OF, sizeof(*got), by_size);
    return got[MEDIAN_OF / 2];
}

static void row(const struct bench *b, const char *name, const char *shape, double us, double bytes,
                double flops)
{
    double gb_s = bytes / us * 1e-3;

    printf("| %s | %s | %.1f | %.0f | %.0f %% | %.1f |\n", name, shape, us, gb_s,
           100 * gb_s / b->copy_gb_s, flops / us * 1e-6);
    fflush(stdout);
}

struct copying {
    void *to;
    const void *from;
    uint64_t bytes;
};

static void call_copy(struct bench *b, void *arg)
{
    const struct copying *c = arg;

    kg_cuda_copy(b->cuda, c->to, c->from, c->bytes);
}

/* Bytes read and written a second. */
static void bench_copy(struct bench *b)
{
    uint64_t bytes = b->small ? 1 << 16 : 1ull << 30;
    struct copying c = {room(b, bytes), room(b, bytes), bytes};

    b->copy_gb_s = 2 * (double)bytes / time_us(b, call_copy, &c) * 1e-3;
    row(b, "copy", b->small ? "64 KiB" : "1 GiB", 2 * (double)bytes / b->copy_gb_s * 1e-3,
        2 * (double)bytes, 0);
    kg_cuda_free(b->cuda, c.to);
    kg_cuda_free(b->cuda, (void *)(uintptr_t)c.from);
}

static void call_product(struct bench *b, void *arg)
{
    b->k->product(b->team, arg, 1);
}

static void bench_products(struct bench *b)
{
    static const char *const names[] = {"product fp32", "product bf16", "product mxfp4"};
    static const uint32_t rows[] = {1, 8, 64, 1024};
    uint32_t width = b->small ? 96 : 7168, n_rows = b->small ? 3 : 4;
    char shape[64];

    for (uint32_t type = KG_W_BF16; b->k->product != NULL && type < KG_W_N_TYPES; type++) {
        struct kg_weight w = weight(b, type, width, width);
        float *x = floats(b, (uint64_t)1024 * width), *y = room(b, (uint64_t)4096 * width);
        for (uint32_t i = 0; i < n_rows; i++) {
            struct kg_product p = {&w, x, y, width, width, rows[i]};
            double us = time_us(b, call_product, &p);
            double moved = (double)w.bytes + 8.0 * rows[i] * width;
            (void)snprintf(shape, sizeof(shape), "%u rows, %u x %u", rows[i], width, width);
            row(b, names[type], shape, us, moved, 2.0 * rows[i] * width * width);
        }
        kg_cuda_free(b->cuda, w.data);
        kg_cuda_free(b->cuda, x);
        kg_cuda_free(b->cuda, y);
    }
}

static void call_norm(struct bench *b, void *arg)
{
    const struct kg_product *p = arg; /* its fields serve */

    b->k->rmsnorm(b->team, p->y, p->y_stride, p->x, p->x_stride, NULL, p->rows,
                  (uint32_t)p->x_stride, 1e-5f);
}

static void bench_norms(struct bench *b)
{
    static const uint32_t rows[] = {1, 64, 4096};
    uint32_t width = b->small ? 96 : 7168;
    float *x = floats(b, (uint64_t)4096 * width), *y = room(b, (uint64_t)4 * 4096 * width);
    char shape[64];

    for (uint32_t i = 0; b->k->rmsnorm != NULL && i < (b->small ? 2u : 3u); i++) {
        struct kg_product p = {NULL, x, y, width, width, rows[i]};
        double us = time_us(b, call_norm, &p);
        (void)snprintf(shape, sizeof(shape), "%u rows of %u", rows[i], width);
        row(b, "rmsnorm", shape, us, 8.0 * rows[i] * width, 3.0 * rows[i] * width);
    }
    kg_cuda_free(b->cuda, x);
    kg_cuda_free(b->cuda, y);
}

static void call_kda(struct bench *b, void *arg)
{
    b->k->kda(b->team, arg);
}

/* n_seqs sequences of n rows each. */
static void bench_kda(struct bench *b, uint32_t n_seqs, uint32_t n)
{
    uint32_t heads = b->small ? 2 : 12, dim = b->small ? 16 : 128, width = heads * dim;
    uint64_t rows = (uint64_t)n_seqs * n, state = (uint64_t)width * dim;
    float *wide = floats(b, 4 * rows * width), *beta = floats(b, rows * heads);
    float *states = floats(b, n_seqs * state), *o = room(b, rows * width * sizeof(float));
    struct kg_kda_seq *seqs = calloc(n_seqs, sizeof(*seqs));
    struct kg_kda a = {.q = wide,
                       .k = wide + rows * width,
                       .v = wide + 2 * rows * width,
                       .alpha = wide + 3 * rows * width,
                       .beta = beta,
                       .o = o,
                       .qk_stride = width,
                       .alpha_stride = width,
                       .v_stride = width,
                       .o_stride = width,
                       .beta_stride = heads,
                       .heads = heads,
                       .k_dim = dim,
                       .v_dim = dim,
                       .seqs = seqs,
                       .n_seqs = n_seqs};
    char shape[64];

    for (uint32_t i = 0; seqs != NULL && i < n_seqs; i++)
        seqs[i] = (struct kg_kda_seq){states + i * state, states + i * state, i * n, n};
    double us = time_us(b, call_kda, &a);
    (void)snprintf(shape, sizeof(shape), "%u x %u rows, %u heads of %u", n_seqs, n, heads, dim);
    row(b, "kda", shape, us, 8.0 * (double)(n_seqs * state) + 20.0 * (double)(rows * width),
        7.0 * (double)rows * (double)state);
    kg_cuda_free(b->cuda, wide);
    kg_cuda_free(b->cuda, beta);
    kg_cuda_free(b->cuda, states);
    kg_cuda_free(b->cuda, o);
    free(seqs);
}

static void call_mla(struct bench *b, void *arg)
{
    b->k->mla(b->team, arg);
}

/* One row of each of n_seqs sequences at `context` keys. */
static void bench_mla(struct bench *b, uint32_t n_seqs, uint32_t context)
{
    uint32_t heads = b->small ? 2 : 12, latent = b->small ? 32 : 512, rope = b->small ? 8 : 64;
    uint32_t size = b->k->state_dtype == KG_BF16 ? 2 : 4, pages = (context + 63) / 64;
    uint64_t page = (uint64_t)64 * (latent + rope) * size;
    uint8_t *arena = room(b, page * pages * n_seqs);
    uint32_t *ids = calloc((size_t)pages * n_seqs, sizeof(*ids)), *list;
    struct kg_mla_seq *seqs = calloc(n_seqs, sizeof(*seqs));
    float *q = floats(b, (uint64_t)n_seqs * heads * (latent + rope));
    float *m = room(b, (uint64_t)n_seqs * heads * latent * sizeof(float));
    struct kg_mla a = {.pages = {arena, NULL, page, (uint64_t)(latent + rope) * size, 64,
                                 b->k->state_dtype, latent, rope},
                       .qa = q,
                       .qr = q + (uint64_t)n_seqs * heads * latent,
                       .m = m,
                       .qa_stride = (size_t)heads * latent,
                       .qr_stride = (size_t)heads * rope,
                       .qr_head_stride = rope,
                       .m_stride = (size_t)heads * latent,
                       .scale = 0.07f,
                       .heads = heads,
                       .seqs = seqs,
                       .n_seqs = n_seqs};
    char shape[64];

    if (ids == NULL || seqs == NULL)
        exit(1);
    kg_cuda_fill(b->cuda, arena, 0x3c, page * pages * n_seqs);
    for (uint32_t i = 0; i < pages * n_seqs; i++)
        ids[i] = i;
    list = on_device(b, ids, (uint64_t)pages * n_seqs * sizeof(*ids));
    for (uint32_t i = 0; i < n_seqs; i++)
        seqs[i] = (struct kg_mla_seq){list + (size_t)i * pages, i, 1, context - 1};
    double us = time_us(b, call_mla, &a);
    (void)snprintf(shape, sizeof(shape), "%u rows at %u keys, %u heads", n_seqs, context, heads);
    row(b, "mla", shape, us, (double)n_seqs * context * (latent + rope) * size,
        2.0 * n_seqs * context * heads * (2.0 * latent + rope));
    kg_cuda_free(b->cuda, arena);
    kg_cuda_free(b->cuda, list);
    kg_cuda_free(b->cuda, q);
    kg_cuda_free(b->cuda, m);
    free(ids);
    free(seqs);
}

static void call_moe(struct bench *b, void *arg)
{
    b->k->moe(b->team, arg);
}

/* Experts lie at equal distances in one block. */
static struct kg_weight *experts(struct bench *b, uint32_t n, uint32_t out, uint32_t in)
{
    struct kg_weight all = weight(b, KG_W_MXFP4, out * n, in), *w = calloc(n, sizeof(*w));
    uint64_t each = kg_weight_bytes(KG_W_MXFP4, out, in);

    for (uint32_t e = 0; w != NULL && e < n; e++)
        w[e] = (struct kg_weight){KG_W_MXFP4, out, in, 0, each, (uint8_t *)all.data + e * each};
    return w;
}

static void bench_moe(struct bench *b, uint32_t rows)
{
    uint32_t n = b->small ? 8 : 112, top = b->small ? 2 : 16, in = b->small ? 64 : 3584;
    uint32_t ff = b->small ? 32 : 3072, hit = 0;
    struct kg_weight *gate = experts(b, n, ff, in), *up = experts(b, n, ff, in);
    struct kg_weight *down = experts(b, n, in, ff);
    uint32_t *ids = calloc((size_t)rows * top, sizeof(*ids)), seen[128] = {0};
    uint64_t scratch = kg_moe_scratch_bytes(rows, top, n, ff, in);
    char shape[64];

    if (gate == NULL || up == NULL || down == NULL || ids == NULL)
        exit(1);
    for (uint32_t i = 0; i < rows * top; i++) { /* distinct within a row */
        ids[i] = (i % top * (n / top) + number(b) % (n / top)) % n;
        hit += seen[ids[i]]++ == 0;
    }
    struct kg_moe m = {.gate = gate,
                       .up = up,
                       .down = down,
                       .x = floats(b, (uint64_t)rows * in),
                       .y = room(b, (uint64_t)rows * in * sizeof(float)),
                       .x_stride = in,
                       .y_stride = in,
                       .ids = on_device(b, ids, (uint64_t)rows * top * sizeof(*ids)),
                       .weights = floats(b, (uint64_t)rows * top),
                       .rows = rows,
                       .top_k = top,
                       .n_experts = n,
                       .act = {KG_ACT_SITU, 4.0f, 25.0f},
                       .scratch = room(b, scratch),
                       .scratch_bytes = scratch};
    double us = time_us(b, call_moe, &m);
    double each = (double)(gate->bytes + up->bytes + down->bytes);
    (void)snprintf(shape, sizeof(shape), "%u rows, %u of %u experts read", rows, hit, n);
    row(b, "moe mxfp4", shape, us, hit * each + 8.0 * rows * in,
        6.0 * rows * top * (double)in * ff);
    kg_cuda_free(b->cuda, gate->data);
    kg_cuda_free(b->cuda, up->data);
    kg_cuda_free(b->cuda, down->data);
    kg_cuda_free(b->cuda, (void *)(uintptr_t)m.x);
    kg_cuda_free(b->cuda, m.y);
    kg_cuda_free(b->cuda, (void *)(uintptr_t)m.ids);
    kg_cuda_free(b->cuda, (void *)(uintptr_t)m.weights);
    kg_cuda_free(b->cuda, m.scratch);
    free(gate);
    free(up);
    free(down);
    free(ids);
}

static void bench_table(struct bench *b)
{
    static const uint32_t rows[] = {1, 32, 256};
    uint32_t n = b->small ? 1 : 3;

    printf("\n%s math\n\n| kernel | shape | us | GB/s | of copy | TFLOP/s "
           "|\n|---|---|---|---|---|---|\n",
           b->k->math == KG_MATH_FAST ? "fast" : "exact");
    bench_copy(b);
    bench_norms(b);
    bench_products(b);
    for (uint32_t i = 0; b->k->moe != NULL && i < n; i++)
        bench_moe(b, rows[i]);
    for (uint32_t i = 0; b->k->kda != NULL && i < n; i++)
        bench_kda(b, rows[i], 1);
    if (b->k->kda != NULL)
        bench_kda(b, 1, b->small ? 8 : 2048);
    for (uint32_t i = 0; b->k->mla != NULL && i < n; i++)
        bench_mla(b, rows[i], b->small ? 70 : 4096);
    if (b->k->mla != NULL && !b->small)
        bench_mla(b, 1, 131072);
}

int main(int argc, char **argv)
{
    struct bench b = {.small = argc > 1 && strcmp(argv[1], "small") == 0, .seed = 1};
    struct kg_cuda_args args = {0};
    struct kg_cuda_facts facts;
    struct kg_error err;
    uint32_t n;
    int only_facts = argc > 1 && strcmp(argv[1], "facts") == 0;

    if (kg_cuda_count(&n, &err) < 0) {
        printf("skipped: %s\n", err.text);
        return 77;
    }
    check(kg_cuda_open(&args, &b.cuda, &err), &err);
    kg_cuda_facts(b.cuda, &facts);
    printf("%s, %u multiprocessors, %.0f GiB\n", facts.name, facts.n_sm,
           (double)facts.memory_bytes / (1 << 30));
    b.team = kg_cuda_team(b.cuda);
    for (uint32_t math = KG_MATH_EXACT; math <= KG_MATH_FAST && !only_facts; math++) {
        b.k = kg_kernels_cuda(math);
        bench_table(&b);
    }
    kg_cuda_close(b.cuda);
    return 0;
}
