/*
 * Device memory of all ranks in one range of addresses. Ranks do each step together and agree
 * before the next, so that nobody waits for a rank that failed; whatever was taken is given back.
 */
#include "symm_cuda.h"

#include <string.h>
#include <unistd.h>

extern const unsigned char symm_image[]; /* the kernels, for the architectures of the build */

static int failed(const struct kg_comm *c, CUresult e, const char *what, struct kg_error *err)
{
    return kg_fail(err, e == CUDA_ERROR_OUT_OF_MEMORY ? KG_ENOMEM : KG_EDEVICE,
                   "comm-symmem: rank %u, %s: %s", c->rank, what,
                   symm_driver_text(&c->cuda->driver, e));
}

static CUmemAllocationProp prop_of(const struct symm_cuda *g)
{
    return (CUmemAllocationProp){
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes = SYMM_HANDLES,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = g->device}};
}

/* Two halves of `half` bytes behind *at, which stays a multiple of 256. */
static int put(uint64_t *at, uint64_t *where, uint64_t *half, uint64_t bytes)
{
    *half = (bytes + 255) / 256 * 256;
    *where = *at;
    return bytes < UINT64_MAX / 4 && !__builtin_add_overflow(*at, 2 * *half, at);
}

/* Offsets of an area: what alloc_symm gives out, then the channels. */
static int plan(const struct kg_comm *c, struct symm_cuda *g)
{
    struct symm_cuda_args *a = &g->args;
    uint64_t at = (sizeof(struct symm_cuda_pad) + 255) / 256 * 256, all;

    a->rank = c->rank;
    a->world = c->world;
    a->lines_one = 2 * ((g->push_max + 3) / 4 * 4);
    if (!put(&at, &a->lines, &a->lines_half, a->lines_one * c->world) ||
        !put(&at, &a->notes, &a->notes_half,
             sizeof(uint64_t) * SYMM_CUDA_BLOCKS * SYMM_CUDA_RANKS) ||
        !put(&at, &a->stage, &a->stage_half, g->stage) ||
        !put(&at, &a->result, &a->result_half, g->stage))
        return 0;
    g->channel = at;
    g->channels = (c->symm_bytes + 255) / 256 * 256;
    return c->symm_bytes < UINT64_MAX / 4 &&
           !__builtin_mul_overflow(g->channel, (uint64_t)c->n_channels, &all) &&
           !__builtin_add_overflow(g->channels, all, &g->bytes);
}

static int take_device(struct kg_comm *c, uint32_t ordinal, struct kg_error *err)
{
    struct symm_cuda *g = c->cuda;
    const struct symm_driver *d = &g->driver;
    int devices = 0, vmm = 0, fds = 0;

    CUresult e = d->device_count(&devices);
    if (e == CUDA_SUCCESS && ordinal >= (uint32_t)devices)
        return kg_fail(err, KG_ECONFIG, "comm-symmem: rank %u wants device %u, and there are %d",
                       c->rank, ordinal, devices);
    if (e == CUDA_SUCCESS)
        e = d->device_get(&g->device, (int)ordinal);
    if (e == CUDA_SUCCESS)
        e = d->device_attribute(&vmm, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
                                g->device);
    if (e == CUDA_SUCCESS)
        e = d->device_attribute(
            &fds, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, g->device);
    if (e == CUDA_SUCCESS && (vmm == 0 || fds == 0))
        return kg_fail(
            err, KG_ECONFIG,
            "comm-symmem: device %u does not share memory by descriptor; try comm = nccl", ordinal);
    if (e == CUDA_SUCCESS)
        e = d->context_retain(&g->context, g->device);
    if (e == CUDA_SUCCESS)
        e = d->context_set(g->context);
    return e == CUDA_SUCCESS ? KG_OK : failed(c, e, "taking the device", err);
}

/* This rank's own memory, rounded to what the device hands out, and to what a multicast object
 * takes: equally on all ranks. */
static int allocate(struct kg_comm *c, struct kg_error *err)
{
    struct symm_cuda *g = c->cuda;
    const CUmemAllocationProp prop = prop_of(g);
    size_t step = 0;

    CUresult e = g->driver.granularity(&step, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
    if (e == CUDA_SUCCESS && g->many.use && g->many.step > step)
        step = g->many.step; /* both are powers of two */
    if (e == CUDA_SUCCESS && (step == 0 || g->bytes > (uint64_t)INT64_MAX - step))
        e = CUDA_ERROR_INVALID_VALUE;
    if (e == CUDA_SUCCESS) {
        g->bytes = (g->bytes + step - 1) / step * step;
        e = g->driver.create(&g->handles[c->rank], g->bytes, &prop, 0);
    }
    return e == CUDA_SUCCESS ? KG_OK : failed(c, e, "symmetric device memory", err);
}

/* This rank's memory as a descriptor. */
static int export_own(struct kg_comm *c, int *fd, struct kg_error *err)
{
    struct symm_cuda *g = c->cuda;

    CUresult e = g->driver.export_handle(fd, g->handles[c->rank], SYMM_HANDLES, 0);
    return e == CUDA_SUCCESS ? KG_OK : failed(c, e, "exporting its memory", err);
}

static int import_from(struct kg_comm *c, const struct kg_bootstrap *boot, uint32_t from,
                       struct kg_error *err)
{
    struct symm_cuda *g = c->cuda;
    int fd = -1;

    int rc = boot->recv_fd(boot->ctx, from, &fd, SYMM_MEET_NS);
    if (rc != KG_OK)
        return kg_fail(err, rc, "comm-symmem: rank %u did not send its memory", from);
    CUresult e = g->driver.import_handle(&g->handles[from], (void *)(intptr_t)fd, SYMM_HANDLES);
    (void)close(fd); /* the import holds its own reference */
    return e == CUDA_SUCCESS ? KG_OK : failed(c, e, "importing memory", err);
}

/* Everyone's memory to everyone. A rank that fails goes on to take what is sent to it, or it would
 * be left in its sockets. The first error is kept. */
static int swap(struct kg_comm *c, const struct kg_bootstrap *boot, int fd, struct kg_error *err)
{
    struct kg_error later = {0};
    int rc = KG_OK;

    for (uint32_t r = 0; r < c->world && rc == KG_OK; r++) {
        if (r != c->rank)
            rc = boot->send_fd(boot->ctx, r, fd, SYMM_MEET_NS);
        if (rc != KG_OK)
            return kg_fail(err, rc, "comm-symmem: rank %u did not take a descriptor", r);
    }
    for (uint32_t r = 0; r < c->world; r++) {
        if (r == c->rank || import_from(c, boot, r, &later) == KG_OK)
            continue;
        if (rc == KG_OK)
            *err = later;
        rc = err->rc;
    }
    return rc;
}

/* All memories side by side, zeroed where it is this rank's. */
static int map_all(struct kg_comm *c, struct kg_error *err)
{
    struct symm_cuda *g = c->cuda;
    const CUmemAccessDesc desc = {
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = g->device},
        .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};

    CUresult e = g->driver.reserve(&g->base, g->bytes * c->world, 0, 0, 0);
    if (e != CUDA_SUCCESS)
        return failed(c, e, "addresses for all memories", err);
    for (uint32_t r = 0; r < c->world && e == CUDA_SUCCESS; r++) {
        e = g->driver.map(g->base + r * g->bytes, g->bytes, 0, g->handles[r], 0);
        g->n_mapped += e == CUDA_SUCCESS;
    }
    if (e == CUDA_SUCCESS)
        e = g->driver.set_access(g->base, g->bytes * c->world, &desc, 1);
    if (e == CUDA_SUCCESS)
        e = g->driver.fill(g->base + c->rank * g->bytes, 0, g->bytes);
    if (e == CUDA_SUCCESS)
        e = g->driver.context_wait();
    g->args.base = g->base;
    g->args.stride = g->bytes;
    return e == CUDA_SUCCESS ? KG_OK : failed(c, e, "mapping all memories", err);
}

static CUresult open_channel(struct kg_comm *c, uint32_t i)
{
    struct symm_cuda *g = c->cuda;
    struct symm_cuda_channel *ch = &g->chan[i];
    size_t one = sizeof(*ch->word) + SYMM_CUDA_RANKS * sizeof(uint64_t);
    CUdeviceptr host_at = 0;

    ch->word = (struct symm_cuda_word *)((char *)g->host + i * one);
    ch->counts = (uint64_t *)(ch->word + 1);
    CUresult e = g->driver.host_address(&host_at, ch->word, 0);
    ch->word_at = host_at;
    if (e == CUDA_SUCCESS)
        e = g->driver.stream_create(&ch->stream, CU_STREAM_NON_BLOCKING);
    if (e == CUDA_SUCCESS)
        e = g->driver.event_create(&ch->event, CU_EVENT_DISABLE_TIMING);
    for (uint32_t k = 0; k < SYMM_CUDA_RING && e == CUDA_SUCCESS; k++)
        e = g->driver.event_create(&ch->ring[k], CU_EVENT_DISABLE_TIMING);
    return e;
}

/* Kernels, host memory the device sees, streams and events. */
static int prepare(struct kg_comm *c, struct kg_error *err)
{
    struct symm_cuda *g = c->cuda;
    const struct symm_driver *d = &g->driver;
    size_t one = sizeof(struct symm_cuda_word) + SYMM_CUDA_RANKS * sizeof(uint64_t);

    CUresult e = d->module_load(&g->module, symm_image);
    if (e == CUDA_SUCCESS)
        e = d->function(&g->push, g->module, "symm_push");
    if (e == CUDA_SUCCESS)
        e = d->function(&g->staged, g->module, "symm_staged");
    if (e == CUDA_SUCCESS)
        e = d->function(&g->multicast, g->module, "symm_multicast");
    if (e != CUDA_SUCCESS)
        return failed(c, e, "its kernels", err);
    e = d->host_alloc(&g->host, one * c->n_channels, CU_MEMHOSTALLOC_DEVICEMAP);
    if (e == CUDA_SUCCESS)
        memset(g->host, 0, one * c->n_channels);
    for (uint32_t i = 0; i < c->n_channels && e == CUDA_SUCCESS; i++)
        e = open_channel(c, i);
    return e == CUDA_SUCCESS ? KG_OK : failed(c, e, "streams and events", err);
}

/* The steps of opening; between them all ranks agree. 1: the device, and what it can. */
static int begin(struct kg_comm *c, uint32_t ordinal, struct kg_error *err)
{
    struct symm_cuda *g = c->cuda;

    if (!plan(c, g))
        return kg_fail(err, KG_ELIMIT, "comm-symmem: symm_bytes and stage do not fit an address");
    int rc = symm_driver_load(c->conf.driver, &g->driver, err);
    if (rc == KG_OK)
        rc = take_device(c, ordinal, err);
    if (rc == KG_OK)
        symm_multicast_probe(c);
    return rc;
}

/* 2: this rank's memory, and the descriptors for the others: fds[0] is of it, fds[1] of the
 * multicast object. */
static int own(struct kg_comm *c, int *fds, struct kg_error *err)
{
    int rc = allocate(c, err);

    if (rc == KG_OK && c->world > 1)
        rc = export_own(c, &fds[0], err);
    if (rc == KG_OK)
        symm_multicast_create(c, &fds[1]);
    return rc;
}

/* 3: everything of the others', and what needs nobody. */
static int share(struct kg_comm *c, const struct kg_bootstrap *boot, const int *fds,
                 struct kg_error *err)
{
    struct kg_error later = {0};
    int rc = c->world > 1 ? swap(c, boot, fds[0], err) : KG_OK;

    /* also where memory could not be imported: it is sent to this rank */
    if (c->cuda->many.use && symm_multicast_join(c, boot, fds[1], &later) != KG_OK && rc == KG_OK) {
        *err = later;
        rc = err->rc;
    }
    if (rc == KG_OK)
        rc = map_all(c, err);
    return rc == KG_OK ? prepare(c, err) : rc;
}

int symm_cuda_map(struct kg_comm *c, const struct kg_bootstrap *boot, uint32_t ordinal,
                  symm_agree *agree, struct kg_error *err)
{
    struct kg_error mine = {0};
    int fds[2] = {-1, -1};

    mine.rc = begin(c, ordinal, &mine);
    int rc = agree(c, boot, &mine);
    if (rc == KG_OK) {
        mine.rc = own(c, fds, &mine);
        rc = agree(c, boot, &mine);
    }
    if (rc == KG_OK) {
        mine.rc = share(c, boot, fds, &mine);
        rc = agree(c, boot, &mine); /* and nobody's kernel runs before all memory is zero */
    }
    if (rc == KG_OK && c->cuda->many.use) { /* 4: all devices are in it */
        symm_multicast_bind(c);
        rc = agree(c, boot, &mine); /* and nobody uses it before all memories are bound */
    }
    if (!c->cuda->many.use)
        symm_multicast_drop(c);
    for (int i = 0; i < 2; i++) {
        if (fds[i] >= 0)
            (void)close(fds[i]);
    }
    if (rc != KG_OK)
        *err = mine;
    return rc;
}

static void close_channel(const struct symm_cuda *g, const struct symm_cuda_channel *ch)
{
    for (uint32_t k = 0; k < SYMM_CUDA_RING; k++) {
        if (ch->ring[k] != NULL)
            (void)g->driver.event_destroy(ch->ring[k]);
    }
    if (ch->event != NULL)
        (void)g->driver.event_destroy(ch->event);
    if (ch->stream != NULL)
        (void)g->driver.stream_destroy(ch->stream);
}

void symm_cuda_unmap(struct kg_comm *c)
{
    struct symm_cuda *g = c->cuda;

    if (g->context == NULL)
        return;
    (void)g->driver.context_set(g->context);
    for (uint32_t i = 0; i < c->n_channels; i++)
        close_channel(g, &g->chan[i]);
    symm_multicast_drop(c);
    for (uint32_t r = 0; r < g->n_mapped; r++)
        (void)g->driver.unmap(g->base + r * g->bytes, g->bytes);
    for (uint32_t r = 0; r < c->world; r++) {
        if (g->handles[r] != 0)
            (void)g->driver.release(g->handles[r]);
    }
    if (g->base != 0)
        (void)g->driver.unreserve(g->base, g->bytes * c->world);
    if (g->module != NULL)
        (void)g->driver.module_unload(g->module);
    if (g->host != NULL)
        (void)g->driver.host_free(g->host);
    (void)g->driver.context_release(g->device);
}
