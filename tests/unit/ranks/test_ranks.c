/* The tape and what is written on it. Ranks as processes: ranks_cli.py. */
#include "ranks/tape.h"
#include "ranks/wire.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define READERS 3
#define RECORDS 3000
#define TAPE 4096

static int hope(void *ctx)
{
    (void)ctx;
    return KG_OK;
}

static uint64_t mix(uint64_t x)
{
    x ^= x >> 33;
    x *= 0xff51afd7ed558ccdull;
    x ^= x >> 29;
    return x;
}

/* Bytes of record i: mostly short, some longer than the tape. */
static size_t length(uint64_t i)
{
    uint64_t h = mix(i + 1);

    return (size_t)(h % 50 == 0 ? h % (3 * TAPE) : h % 200);
}

static unsigned char byte_of(uint64_t i, size_t at)
{
    return (unsigned char)mix(i * 65537 + at);
}

struct reader {
    struct kg_tape *tape;
    uint32_t number;
    int bad;
};

static void *read_all(void *arg)
{
    struct reader *r = arg;
    void *p = NULL;
    size_t room = 0;

    for (uint64_t i = 0; i < RECORDS && !r->bad; i++) {
        uint32_t op;
        uint64_t n;
        r->bad = kg_tape_read(r->tape, r->number, &op, &p, &room, &n, hope, NULL) != KG_OK ||
                 op != i % 7 || n != length(i);
        for (size_t k = 0; k < n && !r->bad; k++)
            r->bad = ((unsigned char *)p)[k] != byte_of(i, k);
        kg_tape_done(r->tape, r->number, mix(i) + r->number);
    }
    free(p);
    return NULL;
}

static void every_reader_gets_every_record_in_order(void **state)
{
    static unsigned char p[3 * TAPE];
    struct reader readers[READERS];
    pthread_t threads[READERS];
    struct kg_tape *tape;
    struct kg_error err;

    (void)state;
    assert_int_equal(kg_tape_create(TAPE, READERS, &tape, &err), KG_OK);
    for (uint32_t r = 0; r < READERS; r++) {
        readers[r] = (struct reader){tape, r, 0};
        assert_int_equal(pthread_create(&threads[r], NULL, read_all, &readers[r]), 0);
    }
    for (uint64_t i = 0; i < RECORDS; i++) {
        for (size_t k = 0; k < length(i); k++)
            p[k] = byte_of(i, k);
        assert_int_equal(kg_tape_write(tape, i % 7, p, length(i), hope, NULL), KG_OK);
        for (uint32_t r = 0; r < READERS && i % 97 == 0; r++) {
            uint64_t sum = 0;
            assert_int_equal(kg_tape_await(tape, r, &sum, hope, NULL), KG_OK);
            assert_int_equal(sum, mix(i) + r);
        }
    }
    for (uint32_t r = 0; r < READERS; r++) {
        (void)pthread_join(threads[r], NULL);
        assert_false(readers[r].bad);
    }
    kg_tape_destroy(tape);
}

static int give_up(void *ctx)
{
    return ++*(int *)ctx < 3 ? KG_OK : KG_ETIMEOUT;
}

static void a_writer_ahead_of_a_silent_reader_asks_whether_to_go_on(void **state)
{
    static unsigned char p[TAPE];
    struct kg_tape *tape;
    struct kg_error err;
    uint64_t sum;
    int asked = 0;

    (void)state;
    assert_int_equal(kg_tape_create(TAPE, 1, &tape, &err), KG_OK);
    assert_int_equal(kg_tape_write(tape, 1, p, 100, give_up, &asked), KG_OK);
    assert_int_equal(asked, 0);
    assert_int_equal(kg_tape_write(tape, 1, p, sizeof(p), give_up, &asked), KG_ETIMEOUT);
    assert_int_equal(asked, 3);
    asked = 0;
    assert_int_equal(kg_tape_await(tape, 0, &sum, give_up, &asked), KG_ETIMEOUT);
    kg_tape_destroy(tape);
    assert_int_equal(kg_tape_create(5000, 1, &tape, &err), KG_EINVAL);
    assert_int_equal(kg_tape_create(TAPE, 0, &tape, &err), KG_EINVAL);
    assert_int_equal(kg_tape_create(TAPE, 64, &tape, &err), KG_EINVAL);
}

#define SEQS 9
#define MOST 60

/* A batch of seed: every field and array random, some empty. */
struct sample {
    struct kg_batch batch;
    struct kg_seq seqs[SEQS];
    uint32_t numbers[SEQS][3][MOST];
    struct kg_order orders[SEQS][4];
    struct kg_sampling sampling[SEQS];
};

static uint32_t next(uint64_t *h)
{
    *h = mix(*h + 0x9e3779b97f4a7c15ull);
    return (uint32_t)(*h >> 16);
}

static void draw(struct sample *s, uint64_t seed)
{
    uint64_t h = seed;

    memset(s, 0, sizeof(*s));
    s->batch = (struct kg_batch){.size = sizeof(s->batch),
                                 .step = next(&h),
                                 .seqs = s->seqs,
                                 .n_seqs = next(&h) % (SEQS + 1)};
    for (uint32_t i = 0; i < s->batch.n_seqs; i++) {
        struct kg_seq *q = &s->seqs[i];
        *q = (struct kg_seq){.slot = next(&h),
                             .epoch = next(&h),
                             .id = (uint64_t)next(&h) << 32 | next(&h),
                             .flags = next(&h),
                             .past = next(&h),
                             .n_rows = next(&h) % MOST,
                             .n_draft = next(&h),
                             .n_pages = next(&h) % MOST,
                             .state = next(&h),
                             .state_src = next(&h),
                             .n_orders = next(&h) % 5,
                             .output_start = next(&h),
                             .left = next(&h),
                             .force_accept = next(&h)};
        for (int k = 0; k < 3; k++) {
            for (int n = 0; n < MOST; n++)
                s->numbers[i][k][n] = next(&h);
        }
        for (int n = 0; n < 4; n++)
            s->orders[i][n] = (struct kg_order){next(&h), next(&h)};
        q->tokens = s->numbers[i][0];
        q->pages = s->numbers[i][1];
        q->orders = s->orders[i];
        if (next(&h) % 2) {
            q->history = s->numbers[i][2];
            q->n_history = next(&h) % MOST;
        }
        if (next(&h) % 2) {
            s->sampling[i].temperature = (float)next(&h);
            s->sampling[i].seed = next(&h);
            q->sampling = &s->sampling[i];
        }
    }
}

static int same(const void *a, const void *b, size_t bytes)
{
    return bytes == 0 || memcmp(a, b, bytes) == 0;
}

static void assert_same_seq(const struct kg_seq *a, const struct kg_seq *b)
{
    struct kg_seq x = *a, y = *b;

    assert_true(same(a->tokens, b->tokens, 4 * a->n_rows));
    assert_true(same(a->pages, b->pages, 4 * a->n_pages));
    assert_true(same(a->orders, b->orders, sizeof(struct kg_order) * a->n_orders));
    assert_int_equal(a->history == NULL, b->history == NULL);
    assert_true(same(a->history, b->history, 4 * a->n_history));
    assert_int_equal(a->sampling == NULL, b->sampling == NULL);
    assert_true(a->sampling == NULL || same(a->sampling, b->sampling, sizeof(*a->sampling)));
    x.tokens = y.tokens = x.pages = y.pages = x.history = y.history = NULL;
    x.orders = y.orders = NULL;
    x.sampling = y.sampling = NULL;
    assert_memory_equal(&x, &y, sizeof(x));
}

static void a_batch_comes_back_as_it_was_and_no_part_of_one_does(void **state)
{
    static struct sample s;
    struct kg_seq seqs[SEQS];
    struct kg_wire_batch got = {.seqs = seqs, .max_seqs = SEQS};
    struct kg_buf b;

    (void)state;
    kg_buf_init(&b, 0);
    for (uint64_t seed = 0; seed < 300; seed++) {
        draw(&s, seed);
        kg_buf_reset(&b);
        assert_int_equal(kg_wire_put_batch(&b, &s.batch), KG_OK);
        assert_int_equal(kg_wire_get_batch(kg_buf_cstr(&b), b.len, &got), KG_OK);
        assert_int_equal(got.batch.step, s.batch.step);
        assert_int_equal(got.batch.n_seqs, s.batch.n_seqs);
        for (uint32_t i = 0; i < s.batch.n_seqs; i++)
            assert_same_seq(&got.seqs[i], &s.seqs[i]);
        for (size_t n = 0; n < b.len; n += 8) { /* cut anywhere: in memory of just that size */
            void *part = malloc(n + 1);
            assert_non_null(part);
            memcpy(part, kg_buf_cstr(&b), n);
            assert_int_equal(kg_wire_get_batch(part, n, &got), KG_EINVAL);
            free(part);
        }
        got.max_seqs = s.batch.n_seqs > 0 ? s.batch.n_seqs - 1 : SEQS;
        assert_int_equal(kg_wire_get_batch(kg_buf_cstr(&b), b.len, &got),
                         s.batch.n_seqs > 0 ? KG_EINVAL : KG_OK);
        got.max_seqs = SEQS;
    }
    kg_buf_fini(&b);
}

static void wrong_counts_do_not_reach_beyond_the_bytes(void **state)
{
    static struct sample s;
    struct kg_seq seqs[SEQS];
    struct kg_wire_batch got = {.seqs = seqs, .max_seqs = SEQS};
    struct kg_buf b;

    (void)state;
    kg_buf_init(&b, 0);
    for (uint64_t seed = 0; seed < 3000; seed++) {
        draw(&s, seed % 20);
        kg_buf_reset(&b);
        assert_int_equal(kg_wire_put_batch(&b, &s.batch), KG_OK);
        uint32_t *words = malloc(b.len);
        assert_non_null(words);
        memcpy(words, kg_buf_cstr(&b), b.len);
        words[mix(seed) % (b.len / 4)] = (uint32_t)(mix(seed + 7) >> (seed % 33));
        if (kg_wire_get_batch(words, b.len, &got) == KG_OK) { /* then all of it can be read */
            uint64_t sum = 0;
            for (uint32_t i = 0; i < got.batch.n_seqs; i++) {
                for (uint32_t k = 0; k < got.seqs[i].n_rows; k++)
                    sum += got.seqs[i].tokens[k];
                for (uint32_t k = 0; k < got.seqs[i].n_history; k++)
                    sum += got.seqs[i].history[k];
            }
            assert_true(sum + 1 > 0);
        }
        free(words);
    }
    kg_buf_fini(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_reader_gets_every_record_in_order),
        cmocka_unit_test(a_writer_ahead_of_a_silent_reader_asks_whether_to_go_on),
        cmocka_unit_test(a_batch_comes_back_as_it_was_and_no_part_of_one_does),
        cmocka_unit_test(wrong_counts_do_not_reach_beyond_the_bytes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
