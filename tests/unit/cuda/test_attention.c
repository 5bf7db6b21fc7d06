/* Pages and attention: the bits of plain C in exact math, whatever shares a block; in fast math
 * within a bound of it, and the same bits with and without scratch, in any batch and cut. */
#include "kit.h"

#define N(a) (sizeof(a) / sizeof((a)[0]))
#define SCALE 0.11f

/* Kernels run so far; a device does not count them. */
static unsigned long long launches(void)
{
#ifdef KG_ON_DEVICE
    return 0;
#else
    return kg_emu_launches();
#endif
}

/* One sequence's cache, on the host and on the device, and queries for every position. */
struct attn {
    struct kg_pages p, d;
    uint32_t heads, total; /* tokens */
    uint32_t *ids, *table, *d_ids;
    size_t bytes, qs, qr, ms; /* of the pages; strides */
    float *c, *kr, *qa, *q, *m;
    float *d_c, *d_kr, *d_qa, *d_q, *d_m;
};

struct shape {
    uint32_t heads, latent, rope, page_tokens, total;
};

static struct attn make(struct rig *r, uint64_t *s, const struct shape *z)
{
    uint32_t n_pages = (z->total + z->page_tokens - 1) / z->page_tokens;
    uint32_t size = r->k->state_dtype == KG_BF16 ? 2 : 4, width = z->latent + z->rope;
    struct attn a = {.heads = z->heads, .total = z->total};

    a.p = (struct kg_pages){.page_tokens = z->page_tokens, .dtype = r->k->state_dtype};
    a.p.latent = z->latent;
    a.p.rope = z->rope;
    a.p.token_stride = (width + 1 + z->heads % 2) * size; /* words and half words */
    a.p.page_stride = a.p.token_stride * z->page_tokens + size;
    a.bytes = a.p.page_stride * n_pages;
    a.p.base = take(a.bytes);
    a.ids = take(n_pages * 4);
    a.table = take(n_pages * 4);
    for (uint32_t i = 0; i < n_pages; i++) {
        a.ids[i] = n_pages - 1 - i;
        a.table[a.ids[i]] = n_pages % 7 == 0 ? i : (i * 7 + 3) % n_pages;
    }
    a.p.table = a.table;
    a.qs = z->heads * z->latent + 2;
    a.qr = z->heads * (z->rope + 1);
    a.ms = z->heads * z->latent + 1;
    a.c = random_f(s, z->total * (z->latent + 1), 1);
    a.kr = random_f(s, z->total * (z->rope + 3), 1);
    a.qa = random_f(s, z->total * a.qs, 1);
    a.q = random_f(s, z->total * a.qr + 1, 1);
    a.m = take_f(z->total * a.ms);
    a.d = a.p;
    a.d.base = dev_copy(r, a.p.base, a.bytes);
    a.d.table = dev_copy(r, a.table, n_pages * 4);
    a.d_ids = dev_copy(r, a.ids, n_pages * 4);
    a.d_c = dev_copy(r, a.c, z->total * (z->latent + 1) * 4);
    a.d_kr = dev_copy(r, a.kr, z->total * (z->rope + 3) * 4);
    a.d_qa = dev_copy(r, a.qa, z->total * a.qs * 4);
    a.d_q = dev_copy(r, a.q, (z->total * a.qr + 1) * 4);
    a.d_m = dev_copy(r, a.m, z->total * a.ms * 4);
    return a;
}

static void drop(struct rig *r, struct attn *a)
{
    void *host[] = {a->p.base, a->ids, a->table, a->c, a->kr, a->qa, a->q, a->m};
    void *dev[] = {a->d.base, (void *)a->d.table, a->d_ids, a->d_c, a->d_kr, a->d_qa, a->d_q,
                   a->d_m};

    for (size_t i = 0; i < N(host); i++) {
        free(host[i]);
        kg_cuda_free(r->cuda, dev[i]);
    }
}

static struct kg_mla args_of(const struct attn *a, int dev)
{
    return (struct kg_mla){.pages = dev ? a->d : a->p,
                           .qa = dev ? a->d_qa : a->qa,
                           .qr = a->p.rope == 0 ? NULL : (dev ? a->d_q : a->q),
                           .m = dev ? a->d_m : a->m,
                           .qa_stride = a->qs,
                           .qr_stride = a->qr,
                           .qr_head_stride = a->p.rope + 1,
                           .m_stride = a->ms,
                           .scale = SCALE,
                           .heads = a->heads};
}

/* All keys written, in two sequences of the same pages; the pages then are plain C's. */
static void write_all(struct rig *r, struct attn *a)
{
    uint32_t cut = a->total / 3;
    struct kg_mla_seq seqs[2] = {{a->ids, cut, a->total - cut, cut}, {a->ids, 0, cut, 0}};
    uint32_t n = cut == 0 ? 1 : 2;
    size_t cs = a->p.latent + 1, ks = a->p.rope + 3;

    r->ref->page_write(NULL, &a->p, a->c, cs, a->kr, ks, seqs, n);
    seqs[0].pages = seqs[1].pages = a->d_ids;
    r->k->page_write(r->team, &a->d, a->d_c, cs, a->d_kr, ks, seqs, n);
    void *got = host_copy(r, a->d.base, a->bytes);

    assert_memory_equal(got, a->p.base, a->bytes);
    free(got);
}

/* Rows first .. first + n - 1, on the device. */
static void attend(struct rig *r, const struct attn *a, uint32_t first, uint32_t n, void *scratch,
                   uint64_t bytes)
{
    struct kg_mla args = args_of(a, 1);
    struct kg_mla_seq seq = {a->d_ids, first, n, first};

    args.seqs = &seq;
    args.n_seqs = 1;
    args.scratch = scratch;
    args.scratch_bytes = bytes;
    r->k->mla(r->team, &args);
}

static void clear(struct rig *r, const struct attn *a)
{
    kg_cuda_fill(r->cuda, a->d_m, 0xff, a->total * a->ms * 4);
}

/* The last `n` rows against plain C. bound 0: bits. Returns the largest difference. */
static double compare(struct rig *r, const struct attn *a, uint32_t n, double bound)
{
    float *got = host_copy(r, a->d_m, a->total * a->ms * 4);
    size_t from = (a->total - n) * a->ms;
    double worst = 0;

    if (bound == 0)
        same_bits("mla", got, a->m, a->total * a->ms);
    for (size_t i = from; i < a->total * a->ms; i++) {
        double d = fabs((double)got[i] - (double)a->m[i]);

        if (isnan(a->m[i]))
            continue; /* between rows */
        worst = d > worst ? d : worst;
        if (!(d <= bound))
            fail_msg("mla: element %zu: %.9g and %.9g", i, (double)got[i], (double)a->m[i]);
    }
    free(got);
    return worst;
}

static void reference(struct rig *r, struct attn *a, uint32_t first, uint32_t n)
{
    struct kg_mla args = args_of(a, 0);
    struct kg_mla_seq seq = {a->ids, first, n, first};

    args.seqs = &seq;
    args.n_seqs = 1;
    r->ref->mla(NULL, &args);
}

static void exact_attention_has_the_bits_of_plain_c(void **state)
{
    static const struct shape shapes[] = {
        {1, 1, 0, 1, 2},     {3, 16, 5, 3, 15},    {3, 17, 1, 16, 65},   {1, 64, 16, 64, 130},
        {5, 128, 64, 3, 63}, {3, 512, 64, 16, 64}, {16, 512, 64, 3, 34}, {2, 1000, 24, 16, 33},
        {3, 513, 0, 1, 17},  {20, 15, 17, 16, 18},
    };
    struct rig r = rig_open(KG_MATH_EXACT, 0);
    uint64_t s = 51;

    (void)state;
    for (size_t n = 0; n < N(shapes); n++) {
        struct attn a = make(&r, &s, &shapes[n]);
        uint32_t total = a.total;

        write_all(&r, &a);
        reference(&r, &a, 0, total);
        attend(&r, &a, 0, total, NULL, 0);
        compare(&r, &a, total, 0);
        clear(&r, &a);
        for (uint32_t at = 0; at < total;) {
            uint32_t run = 1 + (uint32_t)(rnd(&s) % 30);

            run = run > total - at ? total - at : run;
            attend(&r, &a, at, run, NULL, 0);
            at += run;
        }
        compare(&r, &a, total, 0);
        drop(&r, &a);
    }
    rig_close(&r);
}

/* Every block size of the kernel by the number of rows: 16 sequences of one row each and some of
 * many, on the same pages. */
static void batches_of_any_size_give_the_same_bits(void **state)
{
    static const struct shape z = {16, 512, 64, 16, 36};
    struct rig r = rig_open(KG_MATH_EXACT, 0);
    uint64_t s = 52;
    struct attn a = make(&r, &s, &z);

    (void)state;
    write_all(&r, &a);
    reference(&r, &a, 0, z.total);
    for (uint32_t batch = 1; batch <= z.total; batch += batch == 1 ? 1 : 17) {
        clear(&r, &a);
        for (uint32_t at = 0; at < z.total; at += batch) {
            struct kg_mla args = args_of(&a, 1);
            struct kg_mla_seq seqs[36];
            uint32_t n = 0, rows = batch > z.total - at ? z.total - at : batch;

            for (uint32_t row = 0; row < rows; n++) { /* of 1, 2, 3, 1, .. rows */
                uint32_t run = 1 + n % 3 > rows - row ? rows - row : 1 + n % 3;

                seqs[n] = (struct kg_mla_seq){a.d_ids, at + row, run, at + row};
                row += run;
            }
            args.seqs = seqs;
            args.n_seqs = n;
            r.k->mla(r.team, &args);
        }
        compare(&r, &a, z.total, 0);
    }
    drop(&r, &a);
    rig_close(&r);
}

/* A NaN behind a row's position, in its block of keys, does not reach it. */
static void keys_behind_the_position_are_not_used(void **state)
{
    static const struct shape z = {3, 40, 8, 16, 40};
    struct rig r = rig_open(KG_MATH_EXACT, 0);
    uint64_t s = 53;
    struct attn a = make(&r, &s, &z);

    (void)state;
    for (uint32_t i = 0; i < z.latent; i++)
        a.c[21 * (z.latent + 1) + i] = NAN;
    kg_cuda_upload(r.cuda, a.d_c, a.c, z.total * (z.latent + 1) * 4);
    write_all(&r, &a);
    reference(&r, &a, 0, z.total);
    for (uint32_t i = 0; i < z.latent; i++)
        assert_true(!isnan(a.m[20 * a.ms + i]) && isnan(a.m[21 * a.ms + i]));
    attend(&r, &a, 0, z.total, NULL, 0);
    compare(&r, &a, z.total, 0);
    drop(&r, &a);
    rig_close(&r);
}

/*
 * Contexts of less and more than a segment of 512 keys: rows alone and together, with scratch and
 * without, give the same bits, and agree with plain C over the same bf16 pages to 1e-6 (latents of
 * at most 1).
 */
static void fast_attention_is_near_and_does_not_depend_on_splits(void **state)
{
    static const struct shape shapes[] = {
        {3, 20, 5, 16, 1100}, {2, 512, 64, 64, 1026}, {1, 600, 3, 3, 530}};
    uint64_t s = 54;
    double worst = 0;

    (void)state;
    for (size_t n = 0; n < N(shapes); n++) {
        struct rig r = rig_open(KG_MATH_FAST, 0);
        struct attn a = make(&r, &s, &shapes[n]);
        uint32_t rows = 4, first = a.total - rows;
        uint64_t bytes = kg_cuda_mla_scratch_bytes(rows, a.heads, a.p.latent, a.total);
        void *scratch = dev_alloc(&r, bytes);

        write_all(&r, &a);
        reference(&r, &a, first, rows);
        attend(&r, &a, first, rows, NULL, 0);
        double d = compare(&r, &a, rows, 1e-6);
        float *want = host_copy(&r, a.d_m, a.total * a.ms * 4);

        worst = d > worst ? d : worst;
        for (uint32_t run = 1; run <= rows; run += 3) {
            unsigned long long before = launches();

            clear(&r, &a);
            for (uint32_t at = first; at < a.total; at += run)
                attend(&r, &a, at, run > a.total - at ? a.total - at : run, scratch, bytes);
            float *got = host_copy(&r, a.d_m, a.total * a.ms * 4);

            if (launches() > 0) /* attention, and joining */
                assert_int_equal(launches() - before, 2 * ((rows + run - 1) / run));
            same_bits("splits", got, want, a.total * a.ms);
            free(got);
        }
        free(want);
        kg_cuda_free(r.cuda, scratch);
        drop(&r, &a);
        rig_close(&r);
    }
    printf("fast attention: largest difference from plain C %.3g\n", worst);
}

/* A step recorded for contexts up to 1536 tokens is good for every length below. */
static void recorded_steps_serve_every_length_of_their_context(void **state)
{
    static const struct shape z = {2, 24, 8, 16, 1200};
    static const uint32_t at[] = {600, 3, 1199, 511, 512, 1024};

    (void)state;
    for (uint32_t math = 0; math < 2; math++) {
        struct rig r = rig_open((enum kg_math)math, 2);
        uint64_t s = 55, bytes = kg_cuda_mla_scratch_bytes(2, z.heads, z.latent, 1536);
        struct attn a = make(&r, &s, &z);
        void *scratch = dev_alloc(&r, bytes);

        write_all(&r, &a);
        for (size_t n = 0; n + 1 < N(at); n++) {
            struct kg_mla args = args_of(&a, 1);
            struct kg_mla_seq seqs[2] = {{a.d_ids, at[n], 1, at[n]},
                                         {a.d_ids, at[n + 1], 1, at[n + 1]}};

            args.seqs = seqs;
            args.n_seqs = 2;
            args.scratch = scratch;
            args.scratch_bytes = bytes;
            r.k->mla(r.team, &args);
            float *want = host_copy(&r, a.d_m, a.total * a.ms * 4);

            clear(&r, &a);
            kg_cuda_begin(r.cuda, 9, 1536);
            r.k->mla(r.team, &args);
            kg_cuda_end(r.cuda);
            float *got = host_copy(&r, a.d_m, a.total * a.ms * 4);

            for (int i = 0; i < 2; i++)
                same_bits("recorded", got + seqs[i].row0 * a.ms, want + seqs[i].row0 * a.ms,
                          a.heads * z.latent);
            free(want);
            free(got);
        }
        kg_cuda_free(r.cuda, scratch);
        drop(&r, &a);
        rig_close(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exact_attention_has_the_bits_of_plain_c),
        cmocka_unit_test(batches_of_any_size_give_the_same_bits),
        cmocka_unit_test(keys_behind_the_position_are_not_used),
        cmocka_unit_test(fast_attention_is_near_and_does_not_depend_on_splits),
        cmocka_unit_test(recorded_steps_serve_every_length_of_their_context),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
