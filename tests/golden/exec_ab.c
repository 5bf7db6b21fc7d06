/*
 * Speed of one or more builds of exec-cpu side by side, not a test: the points of every build are
 * measured in turn, repeat by repeat, so that what else the machine does falls on all of them
 * alike. A measurement is the best of its steps (of prefill, the whole prompt); printed is the
 * median over the repeats for each build, and its ratio to the first.
 *
 * Points: decode of 1..32 sequences from a context of 256 tokens (one row and one greedy pick
 * each), prefill of 512 and 4096 tokens in steps of 512, a step that verifies a window of 1..8
 * drafts of one sequence (none is accepted), and a plain read of the bytes one row of decoding has
 * to read, as a share of the decode step at batch 1.
 *
 * The clock: with one thread the CPU time of the thread, which other processes disturb little;
 * with more the wall clock.
 *
 * usage: exec_ab [-t threads] [-m model] [-n repeats] [-a exact|fast] [-i isa] [-p points]
 *                [-c context] [plugin.so ...]
 *
 * isa: 0 the best, 1 plain C, 2 AVX2, 3 AVX-512. Points: letters of d (decode; 1 to 4: one batch
 * size), p (prefill), P (prefill of 4096), v (verify; 5 to 8: one window), r (read).
 */
#include "exec_rig.h"
#include "kernels/kernels.h"
#include "model/checkpoint.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#define CHUNK 512 /* rows of a step of prefill */
#define LONG 4096
#define CONTEXT 256 /* unless -c says another */
#define STEPS 32    /* decoded in one measurement */
#define SEQS 32
#define PAGE 64
#define WINDOW 8
#define BUILDS 4
#define POINTS 16
#define REPEATS 64
#define READ_BYTES (512ull << 20) /* what a plain read walks over: more than the caches hold */

enum point {
    DECODE_1,
    DECODE_4,
    DECODE_16,
    DECODE_32,
    PREFILL,
    PREFILL_LONG,
    VERIFY_1,
    VERIFY_2,
    VERIFY_4,
    VERIFY_8,
    READ,
    N_POINTS,
};

static const char *const point_names[N_POINTS] = {
    "decode 1",   "decode 4",   "decode 16",  "decode 32",  "prefill 512", "prefill 4096",
    "verify 1+1", "verify 1+2", "verify 1+4", "verify 1+8", "plain read"};
static const uint32_t point_rows[N_POINTS] = {1, 4, 16, 32, CHUNK, LONG, 2, 3, 5, 9, 1};
/* A point is measured when -p has its letter or that of its group. */
static const char point_letters[2][N_POINTS + 1] = {"ddddpPvvvvr", "1234pP5678r"};

struct runner {
    uint32_t tokens[LONG + CHUNK], pages[LONG / PAGE + 1];
    uint32_t n_pages;
    struct kg_sampling sampling;
    struct kg_seq seq;
};

struct build {
    const char *path;
    struct xrig rig;
    struct runner runners[SEQS];
    double ns[N_POINTS][REPEATS];
};

struct bench {
    struct build builds[BUILDS];
    uint32_t n_builds, threads, n_repeats, context;
    struct kg_team *team; /* of the plain read */
    uint8_t *memory;      /* [READ_BYTES] */
    uint64_t row_bytes, read_at;
    volatile uint64_t sink;
};

static double now_ns(const struct bench *b)
{
    struct timespec t;

    (void)clock_gettime(b->threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(double *v, uint32_t n)
{
    qsort(v, n, sizeof(*v), by_value);
    return n % 2 == 1 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

static void begin(struct build *b, uint32_t slot, uint32_t n_tokens)
{
    struct runner *r = &b->runners[slot];

    if (r->seq.tokens == NULL)
        r->seq.state = xrig_take(&b->rig, KG_STATE);
    while (r->n_pages < (n_tokens + PAGE - 1) / PAGE)
        r->pages[r->n_pages++] = xrig_take(&b->rig, KG_PAGE);
    for (uint32_t i = 0; i < n_tokens; i++)
        r->tokens[i] = (i * 7919 + slot * 31) % 3800;
    r->seq = (struct kg_seq){.slot = slot,
                             .flags = KG_SEQ_RESET | KG_SEQ_SAMPLE,
                             .tokens = r->tokens,
                             .pages = r->pages,
                             .n_pages = r->n_pages,
                             .state = r->seq.state,
                             .state_src = KG_STATE_ZERO,
                             .history = r->tokens,
                             .sampling = &r->sampling,
                             .left = LONG,
                             .force_accept = 0};
}

/* What follows a step that took n rows and said `token`. */
static void go_on(struct runner *r, uint32_t n, uint32_t token)
{
    r->seq.flags = KG_SEQ_SAMPLE;
    r->seq.past += n;
    r->seq.n_rows = 1;
    r->tokens[r->seq.past] = token;
    r->seq.tokens = r->tokens + r->seq.past;
    r->seq.n_pages = 0;
    r->seq.state_src = KG_STATE_KEEP;
}

static void fill_context(struct build *b, uint32_t slot, uint32_t context)
{
    struct runner *r = &b->runners[slot];
    struct kg_result result;

    begin(b, slot, context + STEPS + WINDOW + 1);
    r->seq.n_rows = r->seq.n_history = r->seq.output_start = context;
    xrig_step(&b->rig, &r->seq, 1, &result);
    go_on(r, context, result.seqs[0].tokens[0]);
}

/* Best step of n sequences with `drafts` drafts each. */
static double decode(const struct bench *bench, struct build *b, uint32_t n, uint32_t drafts)
{
    double best = 1e18;
    struct kg_seq seqs[SEQS];
    struct kg_result result;

    for (uint32_t i = 0; i < n; i++)
        fill_context(b, i, bench->context);
    for (uint32_t step = 0; step < STEPS; step++) {
        for (uint32_t i = 0; i < n; i++) {
            seqs[i] = b->runners[i].seq;
            seqs[i].n_draft = drafts;
            seqs[i].n_rows = 1 + drafts;
        }
        double took = now_ns(bench);
        xrig_step(&b->rig, seqs, n, &result);
        took = now_ns(bench) - took;
        best = took < best ? took : best;
        for (uint32_t i = 0; i < n; i++)
            go_on(&b->runners[i], 1, result.seqs[i].tokens[0]);
    }
    return best;
}

static double prefill(const struct bench *bench, struct build *b, uint32_t n)
{
    struct runner *r = &b->runners[0];
    struct kg_result result;
    double took;

    begin(b, 0, n);
    r->seq.n_history = r->seq.output_start = n;
    took = now_ns(bench);
    for (uint32_t at = 0; at < n; at += CHUNK) {
        r->seq.n_rows = CHUNK;
        if (at + CHUNK < n)
            r->seq.flags &= ~KG_SEQ_SAMPLE;
        else
            r->seq.flags |= KG_SEQ_SAMPLE;
        xrig_step(&b->rig, &r->seq, 1, &result);
        r->seq.flags = 0;
        r->seq.past += CHUNK;
        r->seq.tokens += CHUNK;
        r->seq.n_pages = 0;
        r->seq.state_src = KG_STATE_KEEP;
    }
    return now_ns(bench) - took;
}

struct reading {
    const uint64_t *from;
    uint64_t each; /* words of a task */
    volatile uint64_t *sink;
};

static void read_task(void *arg, uint32_t task, uint32_t member)
{
    const struct reading *r = arg;
    const uint64_t *p = r->from + task * r->each;
    uint64_t sum[8] = {0};

    (void)member;
    for (uint64_t i = 0; i + 8 <= r->each; i += 8)
        for (uint32_t j = 0; j < 8; j++)
            sum[j] ^= p[i + j];
    for (uint32_t j = 1; j < 8; j++)
        sum[0] ^= sum[j];
    if (sum[0] == 1)
        *r->sink = sum[0];
}

/* Reads the bytes of one row, from where the last read ended. */
static double plain_read(struct bench *b)
{
    double best = 1e18;

    for (uint32_t i = 0; i < STEPS; i++) {
        double took;
        struct reading r = {.each = b->row_bytes / 8 / (8 * b->threads), .sink = &b->sink};

        if (b->read_at + b->row_bytes > READ_BYTES)
            b->read_at = 0;
        r.from = (const uint64_t *)(const void *)(b->memory + b->read_at);
        b->read_at += b->row_bytes / 4096 * 4096;
        took = now_ns(b);
        kg_team_run(b->team, read_task, &r, 8 * b->threads);
        took = now_ns(b) - took;
        best = took < best ? took : best;
    }
    return best;
}

static int is_wanted(const char *points, uint32_t p)
{
    return strchr(points, point_letters[0][p]) != NULL ||
           strchr(points, point_letters[1][p]) != NULL;
}

static double measure(struct bench *bench, struct build *b, uint32_t point)
{
    switch (point) {
    case DECODE_1:
    case DECODE_4:
    case DECODE_16:
    case DECODE_32:
        return decode(bench, b, point_rows[point], 0);
    case PREFILL:
    case PREFILL_LONG:
        return prefill(bench, b, point_rows[point]);
    case READ:
        return plain_read(bench);
    default:
        return decode(bench, b, 1, point_rows[point] - 1);
    }
}

static uint64_t tensor_bytes(const struct kg_tensor *t)
{
    if (t->data == NULL)
        return 0;
    if (t->dtype == KG_U8)
        return (uint64_t)t->rows * t->cols / 32 * 17;
    return (uint64_t)t->rows * t->cols * kg_dtype_bytes(t->dtype);
}

static uint64_t mlp_bytes(const struct kg_ckpt_mlp *m)
{
    return tensor_bytes(&m->gate) + tensor_bytes(&m->up) + tensor_bytes(&m->down);
}

/* Bytes of the matrices one row reads: all but the embedding, top_k of the experts. */
static uint64_t row_bytes(const char *model)
{
    struct kg_ckpt *c;
    struct kg_error err;
    uint64_t sum;

    if (kg_ckpt_open(model, &c, &err) < 0)
        fail_msg("%s", err.text);
    sum = tensor_bytes(&c->lm_head);
    for (uint32_t l = 0; l < c->config.n_layers; l++) {
        const struct kg_ckpt_kda *k = &c->layers[l].kda;
        const struct kg_ckpt_mla *a = &c->layers[l].mla;
        const struct kg_ckpt_moe *m = &c->layers[l].moe;
        const struct kg_tensor *all[] = {
            &k->q,    &k->k,   &k->v, &k->f_a,    &k->f_b,         &k->b,        &k->g,
            &k->g_a,  &k->g_b, &k->o, &a->q,      &a->q_a,         &a->q_b,      &a->kv_a,
            &a->kv_b, &a->g,   &a->o, &m->router, &m->latent_down, &m->latent_up};
        for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
            sum += tensor_bytes(all[i]);
        sum += mlp_bytes(&c->layers[l].mlp) + mlp_bytes(&m->shared);
        if (c->config.layer_moe[l])
            sum += c->config.top_k * mlp_bytes(&m->experts[0]);
    }
    kg_ckpt_close(c);
    return sum;
}

/* Of the bytes of the checkpoint: narrow weights are three quarters, and nearly all are of BF16. */
static double share_read(const struct build *build, const struct xrig_options *o)
{
    return o->math != 0 && strstr(build->rig.desc.kernels, "fp16") != NULL ? 0.75 : 1;
}

static void print(struct bench *b, const struct xrig_options *o, const char *points)
{
    printf("%s, %s, %s, on %u thread%s, median of %u repeats in turn, %s\n", o->model,
           o->math == 0 ? "exact" : "fast", b->builds[0].rig.desc.kernels, b->threads,
           b->threads == 1 ? "" : "s", b->n_repeats, b->threads == 1 ? "CPU time" : "wall clock");
    for (uint32_t p = 0; p < N_POINTS; p++) {
        double first = 0;
        if (!is_wanted(points, p))
            continue;
        printf("  %-13s", point_names[p]);
        for (uint32_t i = 0; i < b->n_builds; i++) {
            double ns = median(b->builds[i].ns[p], b->n_repeats);
            double step = b->builds[i].ns[DECODE_1][b->n_repeats / 2]; /* sorted by now */
            first = i == 0 ? ns : first;
            printf(" | %8.0f us", ns / 1e3);
            if (p == READ)
                printf(" %5.1f GB/s, decode 1 at %.0f %%", (double)b->row_bytes / ns,
                       100 * ns * share_read(&b->builds[i], o) / step);
            else if (p >= VERIFY_1)
                printf(" %5.2f steps", ns / step);
            else
                printf(" %7.1f tok/s", point_rows[p] * 1e9 / ns);
            if (i > 0 && p != READ)
                printf(" x%.2f", first / ns);
        }
        printf("\n");
    }
}

static void run(struct bench *b, struct xrig_options *o, const char *points)
{
    for (uint32_t i = 0; i < b->n_builds; i++) {
        o->plugin = b->builds[i].path;
        xrig_open(&b->builds[i].rig, o);
        memset(b->builds[i].runners, 0, sizeof(b->builds[i].runners));
    }
    for (uint32_t n = 0; n < b->n_repeats; n++)
        for (uint32_t p = 0; p < N_POINTS; p++)
            for (uint32_t i = 0; i < b->n_builds; i++)
                if (is_wanted(points, p))
                    b->builds[i].ns[p][n] = measure(b, &b->builds[i], p);
    print(b, o, points);
    for (uint32_t i = 0; i < b->n_builds; i++)
        xrig_close(&b->builds[i].rig);
}

static void open_read(struct bench *b, const char *model)
{
    char path[512];
    struct kg_error err;

    (void)snprintf(path, sizeof(path), "%s/%s", model[0] == '/' ? "" : TEST_ROOT, model);
    b->row_bytes = row_bytes(path);
    b->memory = aligned_alloc(2u << 20, READ_BYTES);
    assert_non_null(b->memory);
    (void)madvise(b->memory, READ_BYTES, MADV_HUGEPAGE);
    memset(b->memory, 3, READ_BYTES);
    if (kg_team_create(b->threads, &b->team, &err) < 0)
        fail_msg("%s", err.text);
}

int main(int argc, char **argv)
{
    static struct bench bench = {.threads = 1, .n_repeats = 5, .context = CONTEXT};
    struct xrig_options o = {.model = "models/k3-tiny",
                             .page_tokens = PAGE,
                             .max_seqs = SEQS,
                             .max_rows = CHUNK,
                             .n_pages = 512,
                             .n_states = 64,
                             .max_draft = WINDOW};
    const char *points = "dpvr";
    int c, only = -1;

    while ((c = getopt(argc, argv, "t:m:n:a:i:p:c:")) != -1) {
        if (c == 't')
            bench.threads = (uint32_t)strtoul(optarg, NULL, 10);
        else if (c == 'm')
            o.model = optarg;
        else if (c == 'n')
            bench.n_repeats = (uint32_t)strtoul(optarg, NULL, 10);
        else if (c == 'a')
            only = strcmp(optarg, "fast") == 0;
        else if (c == 'i')
            o.isa = (uint32_t)strtoul(optarg, NULL, 10);
        else if (c == 'c')
            bench.context = (uint32_t)strtoul(optarg, NULL, 10);
        else if (c == 'p')
            points = optarg;
        else
            return 2;
    }
    assert_true(bench.threads >= 1 && bench.context >= 1 && bench.context <= CHUNK &&
                bench.n_repeats >= 1 && bench.n_repeats <= REPEATS);
    o.threads = bench.threads;
    bench.n_builds = argc - optind > BUILDS ? BUILDS : (uint32_t)(argc - optind);
    for (uint32_t i = 0; i < bench.n_builds; i++)
        bench.builds[i].path = argv[optind + (int)i];
    bench.n_builds = bench.n_builds == 0 ? 1 : bench.n_builds;
    open_read(&bench, o.model);
    for (o.math = 0; o.math < 2; o.math++)
        if (only < 0 || (uint32_t)only == o.math)
            run(&bench, &o, points);
    kg_team_destroy(bench.team);
    free(bench.memory);
    return 0;
}
