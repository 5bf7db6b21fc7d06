/* Counters only grow; a side that waits spins a little, gives its core away, then sleeps on the
 * other's counter. */
#include "ranks/tape.h"

#include "base/hash.h"

#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define MOST_READERS 63u
#define LEAST_BYTES 4096u
#define LOOKS 200
#define SLICE_NS 50000000

/* A counter others wait for. `beat` changes with it and is what they sleep on. */
struct counter {
    _Alignas(128) _Atomic uint64_t n;
    _Atomic uint32_t beat, sleepers;
};

struct mark {
    struct counter read; /* bytes taken from the tape */
    struct counter done; /* records */
    uint64_t sum;        /* of the last one */
};

struct kg_tape {
    uint64_t bytes, mapped;
    uint32_t n_readers;
    uint64_t n_records;     /* written; the writer's */
    struct counter written; /* bytes */
    struct mark marks[MOST_READERS];
    _Alignas(128) char data[];
};

struct head {
    uint32_t op, reserved;
    uint64_t bytes, hash;
};

int kg_tape_create(uint64_t bytes, uint32_t readers, struct kg_tape **tape, struct kg_error *err)
{
    if (bytes < LEAST_BYTES || (bytes & (bytes - 1)) != 0 || bytes > UINT64_C(1) << 40 ||
        readers == 0 || readers > MOST_READERS)
        return kg_fail(err, KG_EINVAL, "tape: %llu bytes for %u readers", (unsigned long long)bytes,
                       readers);
    size_t all = sizeof(struct kg_tape) + bytes;
    struct kg_tape *t = mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (t == MAP_FAILED)
        return kg_fail(err, KG_ENOMEM, "tape: no %zu bytes of shared memory", all);
    t->bytes = bytes;
    t->mapped = all;
    t->n_readers = readers;
    *tape = t;
    return KG_OK;
}

void kg_tape_destroy(struct kg_tape *tape)
{
    if (tape != NULL)
        (void)munmap(tape, tape->mapped);
}

static void set(struct counter *c, uint64_t n)
{
    atomic_store_explicit(&c->n, n, memory_order_release);
    atomic_fetch_add(&c->beat, 1);
    if (atomic_load(&c->sleepers) != 0)
        (void)syscall(SYS_futex, (uint32_t *)&c->beat, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static uint64_t get(struct counter *c)
{
    return atomic_load_explicit(&c->n, memory_order_acquire);
}

/* Waits until the counter is at least n. */
static int wait_for(struct counter *c, uint64_t n, kg_tape_hope *hope, void *ctx)
{
    const struct timespec slice = {.tv_nsec = SLICE_NS};
    int rc = KG_OK;

    for (int i = 0; i < LOOKS; i++) {
        if (get(c) >= n)
            return KG_OK;
        (void)sched_yield();
    }
    (void)atomic_fetch_add(&c->sleepers, 1);
    while (rc == KG_OK) {
        uint32_t beat = atomic_load(&c->beat);
        if (get(c) >= n)
            break;
        rc = hope(ctx);
        if (rc == KG_OK)
            (void)syscall(SYS_futex, (uint32_t *)&c->beat, FUTEX_WAIT, beat, &slice, NULL, 0);
    }
    (void)atomic_fetch_sub(&c->sleepers, 1);
    return rc;
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Bytes at..at+n of the endless tape, which may go round the end of the memory. */
static void copy_in(struct kg_tape *t, uint64_t at, const char *p, uint64_t n)
{
    uint64_t from = at & (t->bytes - 1), k = least(n, t->bytes - from);

    memcpy(t->data + from, p, k);
    memcpy(t->data, p + k, n - k);
}

static void copy_out(const struct kg_tape *t, uint64_t at, char *p, uint64_t n)
{
    uint64_t from = at & (t->bytes - 1), k = least(n, t->bytes - from);

    memcpy(p, t->data + from, k);
    memcpy(p + k, t->data, n - k);
}

static int stream_in(struct kg_tape *t, const char *p, uint64_t n, kg_tape_hope *hope, void *ctx)
{
    while (n > 0) {
        uint64_t at = atomic_load_explicit(&t->written.n, memory_order_relaxed), room = t->bytes;
        for (uint32_t r = 0; r < t->n_readers; r++) {
            /* a quarter of the tape at least, or all that is left: not byte by byte */
            uint64_t want = least(n, t->bytes / 4);
            uint64_t need = at + want > t->bytes ? at + want - t->bytes : 0;
            int rc = wait_for(&t->marks[r].read, need, hope, ctx);
            if (rc != KG_OK)
                return rc;
            room = least(room, t->bytes - (at - get(&t->marks[r].read)));
        }
        uint64_t k = least(n, room);
        copy_in(t, at, p, k);
        set(&t->written, at + k);
        p += k;
        n -= k;
    }
    return KG_OK;
}

int kg_tape_write(struct kg_tape *tape, uint32_t op, const void *p, uint64_t bytes,
                  kg_tape_hope *hope, void *ctx)
{
    const struct head h = {op, 0, bytes, kg_hash_bytes(p, bytes, op)};

    int rc = stream_in(tape, (const char *)&h, sizeof(h), hope, ctx);
    if (rc == KG_OK)
        rc = stream_in(tape, p, bytes, hope, ctx);
    if (rc == KG_OK)
        tape->n_records++;
    return rc;
}

int kg_tape_await(struct kg_tape *tape, uint32_t reader, uint64_t *sum, kg_tape_hope *hope,
                  void *ctx)
{
    int rc = wait_for(&tape->marks[reader].done, tape->n_records, hope, ctx);

    if (rc == KG_OK)
        *sum = tape->marks[reader].sum;
    return rc;
}

static int stream_out(struct kg_tape *t, uint32_t reader, char *p, uint64_t n, kg_tape_hope *hope,
                      void *ctx)
{
    struct counter *read = &t->marks[reader].read;

    while (n > 0) {
        uint64_t at = get(read);
        int rc = wait_for(&t->written, at + 1, hope, ctx);
        if (rc != KG_OK)
            return rc;
        uint64_t k = least(n, get(&t->written) - at);
        copy_out(t, at, p, k);
        set(read, at + k);
        p += k;
        n -= k;
    }
    return KG_OK;
}

int kg_tape_read(struct kg_tape *tape, uint32_t reader, uint32_t *op, void **p, size_t *room,
                 uint64_t *bytes, kg_tape_hope *hope, void *ctx)
{
    struct head h;

    int rc = stream_out(tape, reader, (char *)&h, sizeof(h), hope, ctx);
    if (rc != KG_OK)
        return rc;
    if (h.bytes > *room) {
        void *larger = realloc(*p, h.bytes);
        if (larger == NULL)
            return KG_ENOMEM;
        *p = larger;
        *room = h.bytes;
    }
    rc = stream_out(tape, reader, *p, h.bytes, hope, ctx);
    if (rc == KG_OK && kg_hash_bytes(*p, h.bytes, h.op) != h.hash)
        rc = KG_EIO;
    *op = h.op;
    *bytes = h.bytes;
    return rc;
}

void kg_tape_done(struct kg_tape *tape, uint32_t reader, uint64_t sum)
{
    struct mark *m = &tape->marks[reader];

    m->sum = sum;
    set(&m->done, get(&m->done) + 1);
}
