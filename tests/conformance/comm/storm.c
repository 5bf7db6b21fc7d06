#include "storm.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define ROOM (STORM_SYMM / 2 / STORM_CHANNELS) /* of an input or an output; blocks of all fit */

static uint64_t mix(uint64_t x)
{
    x ^= x >> 33;
    x *= 0xff51afd7ed558ccdull;
    x ^= x >> 33;
    x *= 0xc4ceb9fe1a85ec53ull;
    return x ^ x >> 33;
}

/* Element i that `rank` gives in call n. Sums of these depend on the order of adding. */
static float number(uint64_t n, uint32_t rank, uint64_t i)
{
    uint64_t h = mix(n * 1000003 + rank * 7919 + i);

    return (float)(int64_t)(h >> 40) / (float)(1u << (h & 31));
}

static uint16_t bf16(float f)
{
    uint32_t b;

    memcpy(&b, &f, 4);
    return (uint16_t)((b + 0x7fff + (b >> 16 & 1)) >> 16);
}

static float wide(uint16_t h)
{
    uint32_t b = (uint32_t)h << 16;
    float f;

    memcpy(&f, &b, 4);
    return f;
}

static unsigned char byte_of(uint64_t n, uint32_t rank, uint64_t i)
{
    return (unsigned char)mix(n * 31 + rank * 257 + i);
}

struct call {
    uint64_t n; /* its number */
    uint32_t op, dtype, root, in_place, loose;
    uint64_t count;
    size_t one;
};

enum { ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, ALL_TO_ALL, BROADCAST, BARRIER, N_KINDS };

/* The n-th call of a seed: all kinds, sizes from one element to half a megabyte a rank. */
static struct call draw(const struct storm *s, uint64_t n)
{
    uint64_t h = mix(s->seed * 0x9e3779b97f4a7c15ull + n);
    struct call c = {.n = n, .op = (uint32_t)(h % N_KINDS)};
    int sums = c.op == ALL_REDUCE || c.op == REDUCE_SCATTER;

    c.dtype = sums ? (h >> 8) % 2 : (uint32_t)(h >> 8) % KG_N_DTYPES;
    c.one = kg_dtype_bytes(c.dtype);
    c.root = (uint32_t)(h >> 16) % s->world;
    c.in_place = (h >> 24) % 2 && (c.op == ALL_REDUCE || c.op == BROADCAST);
    c.loose = (h >> 25) % 4 == 0; /* this time not in symmetric memory */
    uint64_t most = ((h >> 32) % 40 == 0 ? 524288u : (h >> 32) % 8 == 0 ? 40000u : 1500u) / c.one;
    if (most * c.one * s->world > ROOM)
        most = ROOM / c.one / s->world;
    c.count = (h >> 48) % 32 == 0 ? 0 : 1 + mix(h) % most;
    return c;
}

static uint64_t blocks_in(const struct storm *s, const struct call *c)
{
    return c->op == REDUCE_SCATTER || c->op == ALL_TO_ALL ? s->world : 1;
}

static void fill(const struct storm *s, const struct call *c, char *in)
{
    uint64_t n = c->count * blocks_in(s, c);

    if (c->op == ALL_REDUCE || c->op == REDUCE_SCATTER) {
        for (uint64_t i = 0; i < n; i++) {
            float f = number(c->n, s->rank, i);
            uint16_t h = bf16(f);
            memcpy(in + i * c->one, c->dtype == KG_F32 ? (void *)&f : (void *)&h, c->one);
        }
        return;
    }
    for (uint64_t i = 0; i < n * c->one; i++)
        in[i] = (char)byte_of(c->n, s->rank, i);
}

/* Sum i in any order of adding: as far from the exact one as F32 allows, with a bit to spare where
 * an adder cuts instead of rounding; then BF16's one rounding, likewise. */
static int sum_is_near(const struct storm *s, const struct call *c, uint64_t i, const char *got)
{
    double sum = 0, size = 0, is;
    float f;
    uint16_t h;

    for (uint32_t r = 0; r < s->world; r++) {
        f = number(c->n, r, i);
        f = c->dtype == KG_F32 ? f : wide(bf16(f));
        sum += f;
        size += f < 0 ? -(double)f : f;
    }
    memcpy(c->dtype == KG_F32 ? (void *)&f : (void *)&h, got, c->one);
    is = c->dtype == KG_F32 ? f : wide(h);
    double most = (s->world - 1) * 0x1p-23 * size;
    most += c->dtype == KG_F32 ? 0 : 0x1p-8 * (sum < 0 ? -sum : sum);
    return is - sum <= most && sum - is <= most;
}

/* The bits of sum i in rank order. */
static int sum_is(const struct storm *s, const struct call *c, uint64_t i, const char *got)
{
    float f = number(c->n, 0, i), sum = c->dtype == KG_F32 ? f : wide(bf16(f));
    uint16_t h;

    if (s->loose && c->op == ALL_REDUCE)
        return sum_is_near(s, c, i, got);
    for (uint32_t r = 1; r < s->world; r++) {
        f = number(c->n, r, i);
        sum += c->dtype == KG_F32 ? f : wide(bf16(f));
    }
    h = bf16(sum);
    return memcmp(got, c->dtype == KG_F32 ? (void *)&sum : (void *)&h, c->one) == 0;
}

/* Elements of what `from` sends to `to`. */
static uint64_t sent(const struct call *c, uint32_t from, uint32_t to)
{
    return c->root == 0 ? c->count : mix(c->n + from * 64 + to) % (c->count + 1);
}

static int wrong(const struct storm *s, const struct call *c, uint64_t i)
{
    static const char *const names[] = {"all_reduce", "reduce_scatter", "all_gather",
                                        "all_to_all", "broadcast",      "barrier"};

    (void)snprintf(s->fault, 300, "rank %u of %u, call %llu, %s of %llu x %zu bytes: element %llu",
                   s->rank, s->world, (unsigned long long)c->n, names[c->op],
                   (unsigned long long)c->count, c->one, (unsigned long long)i);
    return KG_EIO;
}

static int check_blocks(const struct storm *s, const struct call *c, const char *out)
{
    for (uint32_t r = 0; r < s->world; r++) {
        uint64_t n = c->op == ALL_TO_ALL ? sent(c, r, s->rank) : c->count;
        uint64_t from = c->op == ALL_TO_ALL ? s->rank * c->count * c->one : 0;
        const char *block = out + r * c->count * c->one;
        for (uint64_t i = 0; i < n * c->one; i++) {
            if ((unsigned char)block[i] != byte_of(c->n, r, from + i))
                return wrong(s, c, r * c->count + i / c->one);
        }
    }
    return KG_OK;
}

static int check(const struct storm *s, const struct call *c, const char *out)
{
    switch (c->op) {
    case ALL_REDUCE:
    case REDUCE_SCATTER:
        for (uint64_t i = 0; i < c->count; i++) {
            uint64_t at = c->op == ALL_REDUCE ? i : s->rank * c->count + i;
            if (!sum_is(s, c, at, out + i * c->one))
                return wrong(s, c, i);
        }
        return KG_OK;
    case BROADCAST:
        for (uint64_t i = 0; i < c->count * c->one; i++) {
            if ((unsigned char)out[i] != byte_of(c->n, c->root, i))
                return wrong(s, c, i / c->one);
        }
        return KG_OK;
    case BARRIER:
        return KG_OK;
    default:
        return check_blocks(s, c, out);
    }
}

/* Where a thread calls from: everything twice, in symmetric memory and not. */
struct lane {
    const struct storm *s;
    uint32_t number;
    char *in, *out, *loose_in, *loose_out;
    uint64_t *counts;
    pthread_t thread;
    int rc;
};

static int call(const struct lane *l, const struct call *c, char *in, char *out)
{
    const struct storm *s = l->s;
    const struct kg_coll k = {.channel = s->lanes ? l->number : (uint32_t)(c->n % STORM_CHANNELS),
                              .dtype = c->dtype,
                              .count = c->count,
                              .in = in,
                              .out = c->in_place ? in : out,
                              .root = c->root,
                              .counts = l->counts};

    for (uint32_t p = 0; p < s->world; p++)
        l->counts[p] = sent(c, s->rank, p);
    switch (c->op) {
    case ALL_REDUCE:
        return s->ops->all_reduce(s->comm, &k);
    case REDUCE_SCATTER:
        return s->ops->reduce_scatter(s->comm, &k);
    case ALL_GATHER:
        return s->ops->all_gather(s->comm, &k);
    case ALL_TO_ALL:
        return s->ops->all_to_all(s->comm, &k);
    case BROADCAST:
        return s->ops->broadcast(s->comm, &k);
    default:
        return s->ops->barrier(s->comm, k.channel);
    }
}

/* Every call, or this lane's. */
static void *run_lane(void *arg)
{
    struct lane *l = arg;
    const struct storm *s = l->s;
    uint64_t step = s->lanes ? STORM_CHANNELS : 1;

    for (uint64_t n = l->number; n < s->calls && l->rc == KG_OK; n += step) {
        struct call c = draw(s, n);
        char *from = c.loose ? l->loose_in : l->in, *to = c.loose ? l->loose_out : l->out;
        if (c.count * c.one * s->world > ROOM - 1024)
            continue;
        fill(s, &c, from);
        l->rc = call(l, &c, from, to);
        if (l->rc == KG_OK)
            l->rc = check(s, &c, c.in_place ? from : to);
    }
    return NULL;
}

static int open_lane(const struct storm *s, struct lane *l)
{
    l->loose_in = malloc(ROOM);
    l->loose_out = malloc(ROOM);
    int rc = l->loose_in == NULL || l->loose_out == NULL ? KG_ENOMEM : KG_OK;
    if (rc == KG_OK)
        rc = s->ops->alloc_symm(s->comm, ROOM - 1024, (void **)&l->in);
    if (rc == KG_OK)
        rc = s->ops->alloc_symm(s->comm, ROOM - 1024, (void **)&l->out);
    if (rc == KG_OK)
        rc = s->ops->alloc_symm(s->comm, 64 * sizeof(*l->counts), (void **)&l->counts);
    return rc;
}

int storm_run(struct storm *s)
{
    struct lane lanes[STORM_CHANNELS];
    uint32_t n = s->lanes ? STORM_CHANNELS : 1, started = 1;
    struct kg_error err;
    int rc = KG_OK;

    for (uint32_t i = 0; i < n; i++)
        lanes[i] = (struct lane){.s = s, .number = i};
    for (uint32_t i = 0; i < n && rc == KG_OK; i++)
        rc = open_lane(s, &lanes[i]);
    if (rc == KG_OK)
        rc = s->ops->seal(s->comm, &err);
    if (rc == KG_OK && s->begun != NULL)
        s->begun(s->rank);
    for (; started < n && rc == KG_OK; started++) {
        if (pthread_create(&lanes[started].thread, NULL, run_lane, &lanes[started]) != 0)
            rc = KG_ENOMEM;
    }
    if (rc == KG_OK)
        (void)run_lane(&lanes[0]);
    for (uint32_t i = 1; i < started && rc != KG_ENOMEM; i++)
        (void)pthread_join(lanes[i].thread, NULL);
    for (uint32_t i = 0; i < n; i++) {
        rc = rc == KG_OK ? lanes[i].rc : rc;
        s->held[2 * i] = lanes[i].loose_in;
        s->held[2 * i + 1] = lanes[i].loose_out;
    }
    return rc;
}

void storm_end(struct storm *s)
{
    for (uint32_t i = 0; i < 2 * STORM_CHANNELS; i++)
        free(s->held[i]);
}
