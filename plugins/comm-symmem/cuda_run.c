/* Device memory behind the table: open, launches, and waiting for them with a deadline. */
#include "symm_cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define STOP_NS 1000000000ull /* what a kernel that is told to leave may take */
#define LEFT_NS                                                                      \
    1000000000ull /* what a rank may be ahead: it has closed, the device is not done \
                   */
#define NAP_NS 20000
#define SPINS 1000u
#define BLOCK_BYTES 16384u /* a block more for each, up to SYMM_CUDA_BLOCKS */

struct report {
    int32_t rc, multicast;
    char text[300], why_not[100];
    uint64_t sizes, step; /* sizes: of everything that must be equal */
};

/* What all come to about multicast: used by all or by none. */
static void agree_multicast(struct kg_comm *c, const struct report *all, struct kg_error *err)
{
    struct symm_multicast *m = &c->cuda->many;
    int wanted = c->conf.multicast != SYMM_MULTICAST_OFF && c->world > 1;

    for (uint32_t r = 0; r < c->world; r++) {
        m->step = all[r].step > m->step ? all[r].step : m->step;
        if (all[r].multicast || !wanted || c->cuda->told)
            continue;
        c->cuda->told = 1;
        m->use = 0;
        if (c->conf.multicast == SYMM_MULTICAST_ON)
            (void)kg_fail(err, KG_ECONFIG, "[comm-symmem] multicast = on: rank %u, %.90s", r,
                          all[r].why_not);
        else if (c->rank == 0)
            c->host->log(c->host->ctx, KG_LOG_WARN, "sums go without multicast: rank %u, %.90s", r,
                         all[r].why_not);
    }
}

static int agree(struct kg_comm *c, const struct kg_bootstrap *boot, struct kg_error *err)
{
    const struct symm_cuda *g = c->cuda;
    const uint64_t sizes[] = {g->bytes,     g->channel,        g->stage,
                              g->push_max,  c->conf.multicast, c->conf.multicast_one_shot,
                              c->symm_bytes};
    struct report mine = {.rc = err->rc,
                          .multicast = g->many.use,
                          .sizes = symm_hash(sizes, sizeof(sizes), 0),
                          .step = g->many.step};

    if (boot == NULL)
        return err->rc;
    struct report *all = calloc(c->world, sizeof(*all));
    (void)snprintf(mine.text, sizeof(mine.text), "%.290s", err->text);
    memcpy(mine.why_not, g->many.why, sizeof(mine.why_not));
    int rc = all == NULL ? KG_ENOMEM
                         : boot->all_gather(boot->ctx, &mine, all, sizeof(mine), SYMM_MEET_NS);
    if (rc != KG_OK && err->rc == KG_OK)
        (void)kg_fail(err, rc, "comm-symmem: rank %u of %u: the other ranks did not come", c->rank,
                      c->world);
    for (uint32_t r = 0; r < c->world && err->rc == KG_OK; r++) {
        if (all[r].rc != KG_OK)
            (void)kg_fail(err, all[r].rc, "rank %u: %.290s", r, all[r].text);
        else if (all[r].sizes != mine.sizes)
            (void)kg_fail(err, KG_ECONFIG,
                          "comm-symmem: ranks %u and %u have different options or symmetric bytes",
                          r, c->rank);
    }
    if (err->rc == KG_OK)
        agree_multicast(c, all, err);
    free(all);
    return err->rc;
}

int symm_cuda_open(struct kg_comm *c, const struct kg_comm_open *args, struct kg_error *err)
{
    const uint64_t stage = c->conf.stage, symm_bytes = c->symm_bytes;

    struct symm_cuda *g = c->host->alloc(c->host->ctx, sizeof(*g), 0);
    if (g == NULL)
        return kg_fail(err, KG_ENOMEM, "comm-symmem: out of memory");
    memset(g, 0, sizeof(*g));
    g->stage = stage;
    g->push_max = symm_cuda_push(&c->conf, c->world);
    /* the host's part is for meeting only */
    c->push_max = 1;
    c->conf.stage = 4096;
    c->symm_bytes = 64;
    int rc = symm_segment_open(c, args->boot, err);
    c->symm_bytes = symm_bytes;
    c->cuda = g;
    return rc == KG_OK ? symm_cuda_map(c, args->boot, args->device, agree, err) : rc;
}

char *symm_cuda_area(const struct kg_comm *c)
{
    return (char *)(uintptr_t)(c->cuda->base + c->rank * c->cuda->bytes);
}

void symm_cuda_stop(struct kg_comm *c)
{
    for (uint32_t i = 0; c->cuda != NULL && i < c->n_channels; i++) {
        struct symm_cuda_word *w = c->cuda->chan[i].word;
        if (w != NULL)
            __atomic_store_n(&w->stop, 1, __ATOMIC_RELEASE);
    }
}

/* Waits until what was recorded in the event is done or `until`. */
static CUresult await(const struct symm_cuda *g, CUevent event, uint64_t until)
{
    const struct timespec nap = {.tv_nsec = NAP_NS};
    CUresult e;

    while ((e = g->driver.event_query(event)) == CUDA_ERROR_NOT_READY && symm_now_ns() < until)
        (void)nanosleep(&nap, NULL);
    return e;
}

/* A rank that ends takes its memory out of what others may still read through the switch: all say
 * that their kernels are done. Nobody waits for a rank that is gone, or for long. */
static void part(struct kg_comm *c)
{
    const struct timespec nap = {.tv_nsec = NAP_NS};
    uint64_t until = symm_now_ns() + LEFT_NS;

    atomic_store(&c->head->ranks[c->rank].quiet, 1);
    for (uint32_t r = 0; r < c->world; r++) {
        while (atomic_load(&c->head->ranks[r].quiet) == 0 && symm_well(c) == KG_OK &&
               !symm_is_dead(c, r) && symm_now_ns() < until)
            (void)nanosleep(&nap, NULL);
    }
}

void symm_cuda_close(struct kg_comm *c)
{
    struct symm_cuda *g = c->cuda;

    if (g == NULL)
        return;
    if (c->head == NULL || symm_well(c) != KG_OK)
        symm_cuda_stop(c);
    int busy = 0;
    for (uint32_t i = 0; i < c->n_channels && g->context != NULL; i++) {
        struct symm_cuda_channel *ch = &g->chan[i];
        if (ch->event == NULL || ch->stream == NULL)
            continue;
        (void)g->driver.context_set(g->context);
        (void)g->driver.event_record(ch->event, ch->stream);
        busy |= await(g, ch->event, symm_now_ns() + STOP_NS) == CUDA_ERROR_NOT_READY;
    }
    if (g->many.use && c->sealed)
        part(c);
    if (busy)
        c->host->log(c->host->ctx, KG_LOG_ERROR,
                     "rank %u: a kernel does not leave; its memory stays", c->rank);
    else
        symm_cuda_unmap(c);
    c->host->free(c->host->ctx, g, sizeof(*g));
    c->cuda = NULL;
}

static int failed(struct kg_comm *c, CUresult e, const char *what)
{
    c->host->log(c->host->ctx, KG_LOG_ERROR, "rank %u, %s: CUDA: %s", c->rank, what,
                 symm_driver_text(&c->cuda->driver, e));
    (void)symm_lose(c, SYMM_DEVICE, c->rank);
    symm_cuda_stop(c);
    return KG_EDEVICE;
}

/* What a kernel could not do, or does not come to an end with. */
static int check_word(struct kg_comm *c, uint32_t channel)
{
    const struct symm_cuda_word *w = c->cuda->chan[channel].word;

    if (__atomic_load_n(&w->wrong, __ATOMIC_ACQUIRE) != 0)
        return symm_lose(c, SYMM_DIFFER, c->rank);
    return KG_OK;
}

/* Late: the kernel is told to leave, and says who it waited for. */
static int give_up(struct kg_comm *c, uint32_t channel, CUevent event)
{
    struct symm_cuda_channel *ch = &c->cuda->chan[channel];

    symm_cuda_stop(c);
    (void)await(c->cuda, event, symm_now_ns() + STOP_NS);
    uint32_t peer = __atomic_load_n(&ch->word->peer, __ATOMIC_ACQUIRE);
    return symm_lose(c, SYMM_LATE, peer > 0 ? peer - 1 : c->rank);
}

static uint32_t gone(const struct kg_comm *c, int dead)
{
    for (uint32_t r = 0; r < c->world; r++) {
        if (r != c->rank && (dead ? symm_is_dead(c, r) : atomic_load(&c->head->ranks[r].left) != 0))
            return r;
    }
    return KG_NONE;
}

/* Waits for the channel's event, recorded now in `stream`. */
static int finish(struct kg_comm *c, uint32_t channel, CUstream stream)
{
    struct symm_cuda *g = c->cuda;
    struct symm_cuda_channel *ch = &g->chan[channel];
    const struct timespec nap = {.tv_nsec = NAP_NS};
    uint64_t begin = symm_now_ns(), left_ns = 0;

    CUresult e = g->driver.event_record(ch->event, stream);
    if (e != CUDA_SUCCESS)
        return failed(c, e, "a stream");
    for (uint32_t looks = 0;; looks++) {
        e = g->driver.event_query(ch->event);
        if (e == CUDA_SUCCESS)
            return symm_well(c) == KG_OK ? check_word(c, channel) : KG_EDEVICE;
        if (e != CUDA_ERROR_NOT_READY)
            return failed(c, e, "a collective");
        if (symm_well(c) != KG_OK)
            break;
        if (looks < SPINS)
            continue;
        uint64_t now = symm_now_ns();
        uint32_t r = gone(c, 0);
        left_ns = r == KG_NONE ? 0 : left_ns == 0 ? now : left_ns;
        if (r != KG_NONE && now - left_ns > LEFT_NS)
            (void)symm_lose(c, SYMM_LEFT, r);
        r = gone(c, 1);
        if (r != KG_NONE)
            (void)symm_lose(c, SYMM_DIED, r);
        if (now - begin > c->timeout_ns)
            return give_up(c, channel, ch->event);
        (void)nanosleep(&nap, NULL);
    }
    symm_cuda_stop(c);
    (void)await(g, ch->event, symm_now_ns() + STOP_NS);
    return KG_EDEVICE;
}

/* Drops the tracked calls that are done. Whether the oldest left takes too long: since it was
 * given, or since the one before it was done. */
static int drain(struct kg_comm *c, struct symm_cuda_channel *ch, CUresult *bad)
{
    uint64_t now = symm_now_ns();

    while (ch->ring_n > 0) {
        uint32_t at = ch->ring_from;
        CUresult e = c->cuda->driver.event_query(ch->ring[at]);
        if (e == CUDA_ERROR_NOT_READY)
            return now - ch->since_ns[at] > c->timeout_ns;
        if (e != CUDA_SUCCESS) {
            *bad = e;
            return 0;
        }
        ch->ring_from = (at + 1) % SYMM_CUDA_RING;
        if (--ch->ring_n > 0)
            ch->since_ns[ch->ring_from] = now;
    }
    return 0;
}

/* Notes a call in a caller's stream, so that poll can tell when it takes too long. */
static int track(struct kg_comm *c, uint32_t channel, CUstream stream)
{
    struct symm_cuda *g = c->cuda;
    struct symm_cuda_channel *ch = &g->chan[channel];
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;

    CUresult e = g->driver.stream_capturing(stream, &status);
    if (e == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE)
        return KG_OK; /* an event recorded now would become part of the graph */
    if (e == CUDA_SUCCESS)
        (void)drain(c, ch, &e);
    if (e == CUDA_SUCCESS) {
        /* when there is no room the newest event moves behind this call */
        uint32_t k = ch->ring_n < SYMM_CUDA_RING ? ch->ring_n++ : SYMM_CUDA_RING - 1;
        uint32_t at = (ch->ring_from + k) % SYMM_CUDA_RING;
        ch->since_ns[at] = symm_now_ns();
        e = g->driver.event_record(ch->ring[at], stream);
    }
    return e == CUDA_SUCCESS ? KG_OK : failed(c, e, "a stream");
}

int symm_cuda_watch(struct kg_comm *c, uint32_t channel, void *stream)
{
    CUresult e = c->cuda->driver.context_set(c->cuda->context);

    return e == CUDA_SUCCESS ? track(c, channel, stream) : failed(c, e, "its context");
}

/* A call in a caller's stream is late. poll may not wait: kernels are told to leave, and one of the
 * next looks reads who they waited for. */
static int late(struct kg_comm *c, uint32_t channel)
{
    struct symm_cuda_channel *ch = &c->cuda->chan[channel];
    uint32_t peer = __atomic_load_n(&ch->word->peer, __ATOMIC_ACQUIRE);

    symm_cuda_stop(c);
    if (ch->late_ns == 0)
        ch->late_ns = symm_now_ns();
    if (peer == 0 && symm_now_ns() - ch->late_ns < STOP_NS)
        return KG_OK;
    return symm_lose(c, SYMM_LATE, peer > 0 ? peer - 1 : c->rank);
}

int symm_cuda_poll(struct kg_comm *c)
{
    if (!c->sealed)
        return KG_OK;
    (void)c->cuda->driver.context_set(c->cuda->context);
    for (uint32_t i = 0; i < c->n_channels; i++) {
        struct symm_cuda_channel *ch = &c->cuda->chan[i];
        CUresult bad = CUDA_SUCCESS;
        int is_late = drain(c, ch, &bad) || ch->late_ns != 0;
        int rc = bad != CUDA_SUCCESS ? failed(c, bad, "poll")
                 : is_late           ? late(c, i)
                                     : check_word(c, i);
        if (rc != KG_OK)
            return rc;
    }
    return KG_OK;
}

/* This rank's counts can be: read where the caller waits anyway. In a stream of the caller's the
 * kernel looks. */
static int check_counts(struct kg_comm *c, const struct kg_coll *k)
{
    struct symm_cuda_channel *ch = &c->cuda->chan[k->channel];

    CUresult e = c->cuda->driver.copy_to_host(ch->counts, (CUdeviceptr)(uintptr_t)k->counts,
                                              c->world * sizeof(uint64_t), ch->stream);
    int rc = e == CUDA_SUCCESS ? finish(c, k->channel, ch->stream) : failed(c, e, "counts");
    for (uint32_t p = 0; p < c->world && rc == KG_OK; p++)
        rc = ch->counts[p] > k->count ? KG_EINVAL : KG_OK;
    return rc;
}

static uint32_t blocks_for(uint64_t units, uint64_t of)
{
    uint64_t n = (units + of - 1) / of;

    return n < 1 ? 1 : n > SYMM_CUDA_BLOCKS ? SYMM_CUDA_BLOCKS : (uint32_t)n;
}

static int launch(struct kg_comm *c, CUfunction f, uint32_t blocks, CUstream stream,
                  struct symm_cuda_args *a)
{
    void *args[] = {a};
    CUresult e =
        c->cuda->driver.launch(f, blocks, 1, 1, SYMM_CUDA_THREADS, 1, 1, 0, stream, args, NULL);

    return e == CUDA_SUCCESS ? KG_OK : failed(c, e, "a launch");
}

/* The argument of a call; offsets of its channel become those of the area. */
static struct symm_cuda_args args_of(const struct kg_comm *c, enum symm_op op,
                                     const struct kg_coll *k)
{
    struct symm_cuda_args a = c->cuda->args;

    a.pad = c->cuda->channels + k->channel * c->cuda->channel;
    a.lines += a.pad;
    a.notes += a.pad;
    a.stage += a.pad;
    a.result += a.pad;
    a.word = c->cuda->chan[k->channel].word_at;
    a.in = (uintptr_t)k->in;
    a.out = (uintptr_t)k->out;
    a.counts = (uintptr_t)k->counts;
    a.count = k->count;
    a.op = op;
    a.dtype = k->dtype;
    a.one = (uint32_t)kg_dtype_bytes(k->dtype);
    a.root = k->root;
    return a;
}

static int run_pieces(struct kg_comm *c, CUfunction f, struct symm_cuda_args *a, CUstream stream)
{
    int blocks = a->op == SYMM_REDUCE_SCATTER || a->op == SYMM_ALL_TO_ALL;
    uint64_t most = c->cuda->stage / a->one / (blocks ? c->world : 1);
    int rc = KG_OK;

    for (a->at = 0; a->at < a->count && rc == KG_OK; a->at += most) {
        a->n = a->count - a->at < most ? a->count - a->at : most;
        rc = launch(c, f, blocks_for(a->n * a->one, BLOCK_BYTES), stream, a);
    }
    return rc;
}

/* Debug runs: all ranks mean the same call. Kernels of different calls would wait for each other
 * until the deadline. */
static int compare(struct kg_comm *c, const struct symm_cuda_args *a, uint32_t channel)
{
    const struct symm_said said = {.what = a->op | a->dtype << 8,
                                   .root = a->op == SYMM_BROADCAST ? a->root : 0,
                                   .count = a->count,
                                   .in_offset = SYMM_NOWHERE};

    return symm_meet_all(c, channel, &said, 0);
}

int symm_cuda_run(struct kg_comm *c, enum symm_op op, const struct kg_coll *k)
{
    static const uint8_t metrics[] = {[SYMM_WAY_PUSH] = SYMM_M_PUSH,
                                      [SYMM_WAY_STAGED] = SYMM_M_TWO_SHOT,
                                      [SYMM_WAY_MULTICAST_ONE] = SYMM_M_MULTICAST,
                                      [SYMM_WAY_MULTICAST_TWO] = SYMM_M_MULTICAST};
    struct symm_cuda *g = c->cuda;
    struct symm_cuda_args a = args_of(c, op, k);
    CUstream stream = k->stream != NULL ? (CUstream)k->stream : g->chan[k->channel].stream;
    enum symm_way way = symm_cuda_way(&c->conf, c->world, g->many.use, op, a.count * a.one);

    CUresult e = g->driver.context_set(g->context);
    int rc = e == CUDA_SUCCESS ? KG_OK : failed(c, e, "its context");
    if (rc == KG_OK && k->counts != NULL && op == SYMM_ALL_TO_ALL && k->stream == NULL)
        rc = check_counts(c, k);
    if (op != SYMM_ALL_TO_ALL)
        a.counts = 0;
    if (rc == KG_OK && c->conf.checksum)
        rc = compare(c, &a, k->channel);
    if (rc != KG_OK)
        return rc;
    if (c->host->cells != NULL && op == SYMM_ALL_REDUCE)
        kg_add(&c->host->cells[metrics[way]], 1);
    a.shots = way == SYMM_WAY_MULTICAST_ONE ? 1 : 2;
    if (way == SYMM_WAY_PUSH)
        rc = launch(c, g->push, blocks_for((a.count * a.one + 3) / 4, SYMM_CUDA_THREADS), stream,
                    &a);
    else
        rc = run_pieces(c, way == SYMM_WAY_STAGED ? g->staged : g->multicast, &a, stream);
    if (rc != KG_OK)
        return rc;
    return k->stream == NULL ? finish(c, k->channel, stream) : track(c, k->channel, stream);
}
