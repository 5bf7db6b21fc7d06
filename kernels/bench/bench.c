/*
 * Speed of the kernel tables: products over shapes and row counts, the recurrence, attention.
 * usage: kernels_bench [threads [seconds-per-point [isa 0..4]]]
 * A product line gives GFLOP/s (2 * rows * out * in) and GB/s of packed weights read.
 */
#include "kernels/kernels.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

struct bench {
    const struct kg_kernels *k;
    struct kg_team *team;
    double seconds;
};

/* With one thread its CPU time, which other processes disturb little. */
static double now_s(const struct bench *b)
{
    struct timespec t;

    clock_gettime(kg_team_size(b->team) == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* In huge pages where they pay, as a model's weights lie. */
static void *take(size_t n)
{
    size_t align = n < (4u << 20) ? 64 : 2u << 20;
    void *p = aligned_alloc(align, (n + align - 1) / align * align);

    if (p == NULL) {
        fprintf(stderr, "no memory for %zu bytes\n", n);
        exit(1);
    }
    if (align > 64)
        (void)madvise(p, n, MADV_HUGEPAGE);
    return p;
}

static float *numbers(size_t n)
{
    float *p = take(n * sizeof(float));

    for (size_t i = 0; i < n; i++)
        p[i] = (float)((i * 2654435761u >> 8) % 2001) * 1e-3f - 1.0f;
    return p;
}

/* Best time of one call within b->seconds. */
static double best_s(const struct bench *b, void (*call)(const struct bench *, void *), void *arg)
{
    double best = 1e9, end = now_s(b) + b->seconds;

    do {
        double t = now_s(b);

        call(b, arg);
        t = now_s(b) - t;
        best = t < best ? t : best;
    } while (now_s(b) < end);
    return best;
}

/* A ring of equal matrices larger than the caches, so that a small one is not read from them. */
struct product_arg {
    struct kg_product p;
    struct kg_weight ring[64];
    uint32_t n, next;
};

static void call_product(const struct bench *b, void *arg)
{
    struct product_arg *a = arg;

    a->p.w = &a->ring[a->next++ % a->n];
    b->k->product(b->team, &a->p, 1);
}

static const char *const types[] = {"f32", "bf16", "mxfp4", "", "e4m7"};

/* The form that the table multiplies: the time of a start, not of a step. */
static void prepare(const struct bench *b, struct kg_weight *w)
{
    if (b->k->prepare != NULL)
        b->k->prepare(b->team, w);
}

static void bench_product(const struct bench *b, uint32_t type, uint32_t out, uint32_t in, int cold)
{
    static const uint32_t rows[] = {1, 4, 16, 64, 512};
    uint64_t bytes = kg_weight_bytes(type, out, in), each = (bytes + 63) / 64 * 64;
    struct product_arg a = {.n = 1};
    uint8_t *memory;
    float *x = numbers((size_t)512 * in), *y = take((size_t)512 * out * sizeof(float));

    while (cold && a.n < 64 && a.n * bytes < (256u << 20))
        a.n++;
    memory = take(a.n * each);
    for (uint32_t i = 0; i < a.n; i++) {
        if (kg_weight_init(&a.ring[i], type, out, in, memory + i * each) != KG_OK)
            exit(1);
        if (type == KG_W_MXFP4)
            memset(a.ring[i].data, 0x77, bytes);
        else if (type == KG_W_F32)
            for (uint64_t j = 0; j < bytes / 4; j++)
                ((float *)a.ring[i].data)[j] = 0.01f;
        else
            for (uint64_t j = 0; j < bytes / 2; j++)
                ((uint16_t *)a.ring[i].data)[j] = 0x3c24;
        prepare(b, &a.ring[i]);
    }
    printf("%-5s %5s %6ux%-6u%s", b->k->math == KG_MATH_FAST ? "fast" : "exact",
           types[a.ring[0].type], out, in, cold ? " cold" : " warm");
    for (size_t r = 0; r < sizeof(rows) / sizeof(rows[0]); r++) {
        a.p = (struct kg_product){NULL, x, y, in, out, rows[r]};
        double t = best_s(b, call_product, &a);

        printf(" | %u: %6.1f GF %5.1f GB/s", rows[r], 2e-9 * rows[r] * out * in / t,
               1e-9 * (double)a.ring[0].bytes / t);
    }
    printf("\n");
    free(memory);
    free(x);
    free(y);
}

static void call_kda(const struct bench *b, void *arg)
{
    b->k->kda(b->team, arg);
}

/* `seqs` sequences of n rows each, every one with a state of its own. */
static void bench_kda(const struct bench *b, uint32_t heads, uint32_t dim, uint32_t seqs,
                      uint32_t n)
{
    size_t width = (size_t)heads * dim, floats = width * dim;
    uint32_t rows = seqs * n;
    float *in = numbers(rows * width), *o = take(rows * width * sizeof(float));
    float *alpha = take(rows * width * sizeof(float)), *state = take(seqs * floats * sizeof(float));
    struct kg_kda_seq *q = take(seqs * sizeof(*q));
    struct kg_kda a = {.q = in, .k = in, .v = in, .alpha = alpha, .beta = alpha, .o = o};

    for (size_t i = 0; i < rows * width; i++) {
        in[i] *= 0.1f;
        alpha[i] = 0.9f;
    }
    memset(state, 0, seqs * floats * sizeof(float));
    for (uint32_t s = 0; s < seqs; s++)
        q[s] = (struct kg_kda_seq){state + s * floats, state + s * floats, s * n, n};
    a.qk_stride = a.alpha_stride = a.v_stride = a.o_stride = a.beta_stride = width;
    a.heads = heads;
    a.k_dim = a.v_dim = dim;
    a.seqs = q;
    a.n_seqs = seqs;
    double t = best_s(b, call_kda, &a);

    printf("kda   %u heads of %u, %u seqs x %u rows: %.2f us a row, %.1f GB/s of state\n", heads,
           dim, seqs, n, 1e6 * t / rows, 1e-9 * (double)(2 * seqs * floats * 4) / t);
    free(in);
    free(o);
    free(alpha);
    free(state);
    free(q);
}

static void call_mla(const struct bench *b, void *arg)
{
    b->k->mla(b->team, arg);
}

static void bench_mla(const struct bench *b, uint32_t heads, uint32_t latent, uint32_t rope,
                      uint32_t past, uint32_t n)
{
    uint32_t tokens = past + n, width = latent + rope, pages = (tokens + 63) / 64;
    size_t element = b->k->state_dtype == KG_F32 ? 4 : 2;
    uint32_t *ids = take(pages * sizeof(*ids));
    struct kg_mla_seq seq = {ids, 0, n, past};
    struct kg_mla a = {.scale = 0.05f, .heads = heads, .seqs = &seq, .n_seqs = 1};

    for (uint32_t i = 0; i < pages; i++)
        ids[i] = i;
    a.pages = (struct kg_pages){.page_tokens = 64, .latent = latent, .rope = rope};
    a.pages.dtype = b->k->state_dtype;
    a.pages.token_stride = width * element;
    a.pages.page_stride = 64 * width * element;
    a.pages.base = take(pages * a.pages.page_stride);
    memset(a.pages.base, 0x3c, pages * a.pages.page_stride);
    a.qa = numbers((size_t)n * heads * latent);
    a.qr = numbers((size_t)n * heads * rope);
    a.m = take((size_t)n * heads * latent * sizeof(float));
    a.qa_stride = a.m_stride = (size_t)heads * latent;
    a.qr_stride = (size_t)heads * rope;
    a.qr_head_stride = rope;
    double t = best_s(b, call_mla, &a), keys = (double)n * (past + (n + 1) / 2.0);

    printf("mla   %u heads, %u+%u, %u rows at %u: %.1f us a row, %.1f GFLOP/s\n", heads, latent,
           rope, n, past, 1e6 * t / n, 2e-9 * keys * heads * (2.0 * latent + rope) / t);
    free(ids);
    free(a.pages.base);
    free((void *)a.qa);
    free((void *)a.qr);
    free(a.m);
}

/* A ring of routed layers, so that the experts are not read from the nearest caches. */
struct moe_arg {
    struct kg_moe m;
    struct kg_weight *experts; /* [n][3][n_experts] */
    uint32_t n, next;
};

static void call_moe(const struct bench *b, void *arg)
{
    struct moe_arg *a = arg;
    struct kg_weight *w = a->experts + a->next++ % a->n * 3 * a->m.n_experts;

    a->m.gate = w;
    a->m.up = w + a->m.n_experts;
    a->m.down = w + 2 * a->m.n_experts;
    b->k->moe(b->team, &a->m);
}

static void bench_moe(const struct bench *b, uint32_t type, uint32_t width, uint32_t ff,
                      uint32_t experts, uint32_t top_k, uint32_t layers)
{
    static const uint32_t rows[] = {1, 2, 4, 9, 16, 32, 512};
    struct moe_arg a = {.n = layers};
    uint64_t each = (kg_weight_bytes(type, ff, width) + kg_weight_bytes(type, width, ff)) / 2;
    uint64_t bytes = kg_moe_scratch_bytes(512, top_k, experts, ff, width), at = 0;
    uint8_t *memory = take((each + 1024) * 3 * experts * layers);
    uint32_t *ids = take(512 * top_k * sizeof(*ids));

    a.experts = take(sizeof(*a.experts) * 3 * experts * layers);
    for (uint32_t i = 0; i < 3 * experts * layers; i++) {
        int down = i / experts % 3 == 2;
        struct kg_weight *w = &a.experts[i];
        if (kg_weight_init(w, type, down ? width : ff, down ? ff : width, memory + at) != KG_OK)
            exit(1);
        memset(w->data, 0x3c, w->bytes);
        at += (w->bytes + 63) / 64 * 64;
        prepare(b, w);
    }
    for (uint32_t r = 0; r < 512; r++)
        for (uint32_t s = 0; s < top_k; s++) /* distinct within a row */
            ids[r * top_k + s] = (r * 2654435761u / 97 + s * (experts / top_k)) % experts;
    a.m = (struct kg_moe){.x = numbers(512 * width), .y = take(512 * width * sizeof(float))};
    a.m.x_stride = a.m.y_stride = width;
    a.m.ids = ids;
    a.m.weights = numbers(512 * top_k);
    a.m.top_k = top_k;
    a.m.n_experts = experts;
    a.m.scratch = take(bytes);
    a.m.scratch_bytes = bytes;
    printf("moe %5s %u experts of %u x %u, top %u:", types[a.experts[0].type], experts, width, ff,
           top_k);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        a.m.rows = rows[i];
        double t = best_s(b, call_moe, &a);

        printf(" | %u: %5.1f us a row, %5.1f GF", rows[i], 1e6 * t / rows[i],
               6e-9 * rows[i] * top_k * width * ff / t);
    }
    printf("\n");
    free(memory);
    free(a.experts);
    free(ids);
    free((void *)a.m.x);
    free(a.m.y);
    free((void *)a.m.weights);
    free(a.m.scratch);
}

static void call_nothing(void *arg, uint32_t task, uint32_t member)
{
    (void)arg;
    (void)task;
    (void)member;
}

static void call_fork(const struct bench *b, void *arg)
{
    kg_team_run(b->team, call_nothing, arg, kg_team_size(b->team));
}

static void bench_all(const struct bench *b)
{
    static const uint32_t shapes[][2] = {{192, 192},   {576, 192},   {1024, 1024},
                                         {4096, 2304}, {7168, 1536}, {3072, 7168}};

    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
        for (uint32_t type = 0; type < KG_W_N_TYPES; type++)
            bench_product(b, type, shapes[i][0], shapes[i][1], shapes[i][0] > 1000);
    for (uint32_t type = KG_W_BF16; type < KG_W_N_TYPES; type++) {
        bench_moe(b, type, 128, 96, 16, 4, 8);
        bench_moe(b, type, 1024, 256, 32, 4, 7);
    }
    bench_kda(b, 3, 64, 1, 1);
    bench_kda(b, 8, 128, 1, 1);
    bench_kda(b, 8, 128, 1, 128);
    bench_kda(b, 8, 128, 32, 1);
    bench_kda(b, 32, 128, 8, 1);
    bench_mla(b, 3, 64, 16, 512, 1);
    bench_mla(b, 3, 64, 16, 0, 512);
    bench_mla(b, 8, 512, 64, 2048, 1);
    bench_mla(b, 8, 512, 64, 0, 512);
    bench_mla(b, 32, 512, 64, 4096, 1);
}

int main(int argc, char **argv)
{
    struct bench b = {.seconds = argc > 2 ? atof(argv[2]) : 0.1};
    uint32_t isa = argc > 3 ? (uint32_t)atoi(argv[3]) : KG_ISA_AVX512_FP16;
    struct kg_error err;

    if (kg_team_create(argc > 1 ? (uint32_t)atoi(argv[1]) : 2, &b.team, &err) != KG_OK) {
        fprintf(stderr, "%s\n", err.text);
        return 2;
    }
    for (uint32_t math = 0; math < 2; math++) {
        b.k = kg_kernels_cpu((enum kg_math)math, (enum kg_isa)isa);
        printf("# %s %s, %u threads\n", b.k->name, math == KG_MATH_FAST ? "fast" : "exact",
               kg_team_size(b.team));
        printf("fork and join: %.2f us\n", 1e6 * best_s(&b, call_fork, NULL));
        bench_all(&b);
    }
    kg_team_destroy(b.team);
    return 0;
}
