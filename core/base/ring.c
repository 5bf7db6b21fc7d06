#include "base/ring.h"

#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

/*
 * Positions only grow; the byte at position p lies at p & mask. A record is an 8-byte head with
 * its length and its data padded to 8. A record never wraps: when it does not fit before the end,
 * a head with SKIP fills the rest.
 */
#define HEAD 8
#define SKIP UINT32_MAX

/* `sleep`: whether the next commit must write to the descriptor. */
enum { SIGNALLED = 0, ARMED = 1 };

struct kg_ring {
    /* producer */
    _Alignas(64) _Atomic uint64_t tail; /* published */
    uint64_t next;                      /* where the reserved record's head lies */
    size_t reserved;
    /* consumer */
    _Alignas(64) _Atomic uint64_t head; /* consumed */
    int was_empty;                      /* the last peek found nothing */
    /* both */
    _Alignas(64) _Atomic int sleep;
    int fd;
    uint64_t size, mask;
    unsigned char *data;
};

static uint64_t padded(size_t n)
{
    return HEAD + ((n + 7) & ~(size_t)7);
}

int kg_ring_create(size_t bytes, struct kg_ring **ring)
{
    uint64_t size = 256;

    if (bytes == 0 || bytes > (size_t)1 << 30)
        return KG_EINVAL;
    while (size < bytes)
        size *= 2;
    struct kg_ring *r = aligned_alloc(64, sizeof(*r));
    if (r == NULL)
        return KG_ENOMEM;
    memset(r, 0, sizeof(*r));
    r->size = size;
    r->mask = size - 1;
    atomic_init(&r->sleep, ARMED);
    r->data = aligned_alloc(64, size);
    if (r->data == NULL) {
        free(r);
        return KG_ENOMEM;
    }
    r->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (r->fd < 0) {
        free(r->data);
        free(r);
        return KG_EIO;
    }
    *ring = r;
    return KG_OK;
}

void kg_ring_destroy(struct kg_ring *ring)
{
    if (ring == NULL)
        return;
    (void)close(ring->fd);
    free(ring->data);
    free(ring);
}

/* Half the ring: a record of this size fits an empty ring wherever its ends are. */
size_t kg_ring_max(const struct kg_ring *ring)
{
    return ring->size / 2 - HEAD;
}

/* Free bytes before the end of the buffer and in all, seen from the producer. */
static void space(const struct kg_ring *r, uint64_t *to_end, uint64_t *all)
{
    uint64_t tail = atomic_load_explicit(&r->tail, memory_order_relaxed);
    /* As strict as the store of the consumer: who says that it waits for room and then looks, and
     * who makes room and then looks for somebody waiting, must not miss each other. */
    uint64_t head = atomic_load(&r->head);

    *all = r->size - (tail - head);
    *to_end = r->size - (tail & r->mask);
}

size_t kg_ring_room(const struct kg_ring *ring)
{
    uint64_t to_end, all;

    space(ring, &to_end, &all);
    uint64_t best = all < to_end ? all : to_end;
    if (all > to_end && all - to_end > best)
        best = all - to_end;
    if (best < HEAD)
        return 0;
    best -= HEAD;
    return best < kg_ring_max(ring) ? best : kg_ring_max(ring);
}

static void put_head(struct kg_ring *r, uint64_t at, uint32_t len)
{
    memcpy(r->data + (at & r->mask), &len, sizeof(len));
}

void *kg_ring_reserve(struct kg_ring *ring, size_t n)
{
    uint64_t to_end, all;

    if (n > kg_ring_max(ring))
        return NULL;
    space(ring, &to_end, &all);
    uint64_t need = padded(n);
    uint64_t tail = atomic_load_explicit(&ring->tail, memory_order_relaxed);
    if (need <= to_end) {
        if (need > all)
            return NULL;
        ring->next = tail;
    } else {
        if (all < to_end || need > all - to_end)
            return NULL;
        put_head(ring, tail, SKIP);
        ring->next = tail + to_end;
    }
    ring->reserved = n;
    return ring->data + (ring->next & ring->mask) + HEAD;
}

static void signal_fd(struct kg_ring *r)
{
    uint64_t one = 1;

    /* EAGAIN would mean the counter is full: then it is readable already. */
    while (write(r->fd, &one, sizeof(one)) < 0 && errno == EINTR)
        ;
}

void kg_ring_commit(struct kg_ring *ring, size_t n)
{
    int armed = ARMED;

    if (n > ring->reserved)
        n = ring->reserved;
    put_head(ring, ring->next, (uint32_t)n);
    ring->reserved = 0;
    /* Sequentially consistent with the consumer's arm-then-look: one of the two sees the other. */
    atomic_store(&ring->tail, ring->next + padded(n));
    if (atomic_load(&ring->sleep) == ARMED &&
        atomic_compare_exchange_strong(&ring->sleep, &armed, SIGNALLED))
        signal_fd(ring);
}

int kg_ring_put(struct kg_ring *ring, const void *record, size_t n)
{
    if (n > kg_ring_max(ring))
        return KG_ELIMIT;
    void *p = kg_ring_reserve(ring, n);
    if (p == NULL)
        return KG_EAGAIN;
    if (n > 0)
        memcpy(p, record, n);
    kg_ring_commit(ring, n);
    return KG_OK;
}

/* The next published record, or NULL. */
static const void *look(struct kg_ring *r, size_t *n)
{
    uint64_t head = atomic_load_explicit(&r->head, memory_order_relaxed);
    uint32_t len;

    if (head == atomic_load(&r->tail))
        return NULL;
    memcpy(&len, r->data + (head & r->mask), sizeof(len));
    if (len == SKIP) { /* never alone: the record behind it was published with it */
        head += r->size - (head & r->mask);
        atomic_store_explicit(&r->head, head, memory_order_release);
        memcpy(&len, r->data, sizeof(len));
    }
    *n = len;
    return r->data + (head & r->mask) + HEAD;
}

/*
 * Arm first, then clear, then look again: what was committed before the arming is seen by the
 * second look, what comes after it writes to the descriptor. A write that lands late leaves the
 * descriptor readable without cause; the empty peek after that wake-up clears it.
 */
const void *kg_ring_peek(struct kg_ring *ring, size_t *n)
{
    const void *p = look(ring, n);

    if (p == NULL) {
        int before = atomic_exchange(&ring->sleep, ARMED);
        uint64_t count;
        if (before == SIGNALLED || ring->was_empty) {
            while (read(ring->fd, &count, sizeof(count)) < 0 && errno == EINTR)
                ;
        }
        p = look(ring, n);
    }
    ring->was_empty = p == NULL;
    return p;
}

void kg_ring_consume(struct kg_ring *ring)
{
    uint64_t head = atomic_load_explicit(&ring->head, memory_order_relaxed);
    uint32_t len;

    memcpy(&len, ring->data + (head & ring->mask), sizeof(len));
    atomic_store(&ring->head, head + padded(len));
}

int kg_ring_fd(const struct kg_ring *ring)
{
    return ring->fd;
}

void kg_ring_wait(struct kg_ring *ring, int timeout_ms)
{
    struct pollfd p = {.fd = ring->fd, .events = POLLIN};

    (void)poll(&p, 1, timeout_ms);
}

void kg_ring_wake(struct kg_ring *ring)
{
    signal_fd(ring);
}
