/*
 * The multicast object: one range of addresses behind which the switch of the links finds the same
 * place in the memories of all ranks, and adds what it reads there. Rank 0 makes it, the others get
 * it by descriptor as they get memory. All devices have to be in it before one binds its memory,
 * and all memories bound before one uses it; a rank that failed would leave the others waiting in
 * the driver, hence the agreements between the steps.
 */
#include "symm_cuda.h"

#include <stdio.h>
#include <unistd.h>

/* Keeps the first reason; the others hear it when ranks agree. */
static void give_up(struct kg_comm *c, const char *what, const char *why)
{
    struct symm_multicast *m = &c->cuda->many;

    if (m->use)
        (void)snprintf(m->why, sizeof(m->why), "%.40s: %.50s", what, why);
    m->use = 0;
}

static int works(struct kg_comm *c, CUresult e, const char *what)
{
    if (e != CUDA_SUCCESS)
        give_up(c, what, symm_driver_text(&c->cuda->driver, e));
    return e == CUDA_SUCCESS;
}

static CUmulticastObjectProp prop_of(const struct kg_comm *c)
{
    return (CUmulticastObjectProp){
        .numDevices = c->world, .size = c->cuda->bytes, .handleTypes = SYMM_HANDLES};
}

void symm_multicast_probe(struct kg_comm *c)
{
    struct symm_multicast *m = &c->cuda->many;
    const struct symm_driver *d = &c->cuda->driver;
    const CUmulticastObjectProp prop = prop_of(c);
    int can = 0;
    size_t step = 0;

    m->use = c->conf.multicast != SYMM_MULTICAST_OFF && c->world > 1;
    if (!m->use ||
        !works(c,
               d->device_attribute(&can, CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, c->cuda->device),
               "asking for multicast"))
        return;
    if (!can) {
        give_up(c, "multicast", "its device has none");
        return;
    }
    /* the least one: what is recommended may be hundreds of megabytes, on every rank */
    if (works(c, d->multicast_granularity(&step, &prop, CU_MULTICAST_GRANULARITY_MINIMUM),
              "its granularity") &&
        (step == 0 || (step & (step - 1)) != 0))
        give_up(c, "its granularity", "no power of two");
    m->step = step;
}

void symm_multicast_create(struct kg_comm *c, int *fd)
{
    struct symm_multicast *m = &c->cuda->many;
    const struct symm_driver *d = &c->cuda->driver;
    const CUmulticastObjectProp prop = prop_of(c);

    if (m->use && c->rank == 0 &&
        works(c, d->multicast_create(&m->handle, &prop), "a multicast object"))
        (void)works(c, d->export_handle(fd, m->handle, SYMM_HANDLES, 0), "exporting it");
}

int symm_multicast_join(struct kg_comm *c, const struct kg_bootstrap *boot, int fd,
                        struct kg_error *err)
{
    struct symm_multicast *m = &c->cuda->many;
    const struct symm_driver *d = &c->cuda->driver;
    int rc = KG_OK, from_root = -1;

    for (uint32_t r = 1; r < c->world && rc == KG_OK && c->rank == 0; r++)
        rc = boot->send_fd(boot->ctx, r, fd, SYMM_MEET_NS);
    if (c->rank != 0)
        rc = boot->recv_fd(boot->ctx, 0, &from_root, SYMM_MEET_NS);
    if (rc != KG_OK)
        return kg_fail(err, rc, "comm-symmem: rank %u: the multicast object did not %s", c->rank,
                       c->rank == 0 ? "reach the others" : "come");
    if (c->rank != 0) {
        (void)works(c, d->import_handle(&m->handle, (void *)(intptr_t)from_root, SYMM_HANDLES),
                    "importing the multicast object");
        (void)close(from_root);
    }
    if (m->use)
        (void)works(c, d->multicast_add(m->handle, c->cuda->device), "adding its device");
    return KG_OK;
}

void symm_multicast_bind(struct kg_comm *c)
{
    struct symm_cuda *g = c->cuda;
    struct symm_multicast *m = &g->many;
    const struct symm_driver *d = &g->driver;
    const CUmemAccessDesc desc = {
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = g->device},
        .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};

    m->bound =
        works(c, d->multicast_bind(m->handle, 0, g->handles[c->rank], 0, g->bytes, 0), "binding");
    if (m->bound && works(c, d->reserve(&m->base, g->bytes, m->step, 0, 0), "addresses for it"))
        m->mapped = works(c, d->map(m->base, g->bytes, 0, m->handle, 0), "mapping it");
    if (m->mapped)
        (void)works(c, d->set_access(m->base, g->bytes, &desc, 1), "access to it");
    g->args.many = m->base;
}

void symm_multicast_drop(struct kg_comm *c)
{
    struct symm_cuda *g = c->cuda;
    struct symm_multicast *m = &g->many;
    CUresult e = CUDA_SUCCESS;

    g->args.many = 0;
    if (m->mapped)
        (void)g->driver.unmap(m->base, g->bytes);
    if (m->base != 0)
        (void)g->driver.unreserve(m->base, g->bytes);
    if (m->bound) /* as it was bound: other numbers have no defined meaning */
        e = g->driver.multicast_unbind(m->handle, g->device, 0, g->bytes);
    if (e != CUDA_SUCCESS)
        c->host->log(c->host->ctx, KG_LOG_ERROR, "rank %u, unbinding its memory: CUDA: %s", c->rank,
                     symm_driver_text(&g->driver, e));
    if (m->handle != 0)
        (void)g->driver.release(m->handle);
    m->mapped = m->bound = 0;
    m->base = 0;
    m->handle = 0;
}
