#include "mirror.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#define AREAS 8

/* The driver's functions by their types; device addresses are numbers of 64 bits. */
static struct {
    int (*init)(unsigned flags);
    int (*count)(int *n);
    int (*device)(int *device, int ordinal);
    int (*retain)(void **context, int device);
    int (*release)(int device);
    int (*current)(void *context);
    int (*copy)(uint64_t to, uint64_t from, size_t bytes);
} driver;

static const struct {
    const char *name;
    void **to;
} functions[] = {
    {"cuInit", (void **)&driver.init},
    {"cuDeviceGetCount", (void **)&driver.count},
    {"cuDeviceGet", (void **)&driver.device},
    {"cuDevicePrimaryCtxRetain", (void **)&driver.retain},
    {"cuDevicePrimaryCtxRelease_v2", (void **)&driver.release},
    {"cuCtxSetCurrent", (void **)&driver.current},
    {"cuMemcpy", (void **)&driver.copy},
};

static const struct kg_comm_ops *real;
static struct kg_comm_ops mirrored;

/* Of the rank that this thread is. */
static _Thread_local struct {
    struct area {
        char *host;
        uint64_t device;
        uint64_t bytes;
    } areas[AREAS];
    uint32_t n;
    int device;
} own;

static int enter(uint32_t ordinal, struct kg_error *err)
{
    void *context;

    if (driver.device(&own.device, (int)ordinal) != 0 || driver.retain(&context, own.device) != 0 ||
        driver.current(context) != 0)
        return kg_fail(err, KG_EDEVICE, "no context on device %u for copies", ordinal);
    return KG_OK;
}

static void mirror_close(struct kg_comm *comm)
{
    for (uint32_t i = 0; i < own.n; i++)
        free(own.areas[i].host);
    own.n = 0;
    real->close(comm);
    if (comm != NULL)
        (void)driver.release(own.device);
}

static int mirror_open(const struct kg_host *host, const void *conf,
                       const struct kg_comm_open *args, struct kg_comm **comm, struct kg_error *err)
{
    struct kg_comm *made;
    int rc = real->open(host, conf, args, &made, err);

    if (rc != KG_OK)
        return rc;
    own.n = 0;
    rc = enter(args->device, err);
    if (rc == KG_OK)
        *comm = made;
    else
        real->close(made);
    return rc;
}

static int mirror_alloc(struct kg_comm *comm, uint64_t bytes, void **p)
{
    void *device;
    int rc = real->alloc_symm(comm, bytes, &device);

    if (rc != KG_OK)
        return rc;
    char *host = own.n < AREAS ? aligned_alloc(64, (bytes + 63) / 64 * 64) : NULL;
    if (host == NULL)
        return KG_ENOMEM;
    memset(host, 0, bytes);
    own.areas[own.n++] = (struct area){host, (uintptr_t)device, bytes};
    *p = host;
    return KG_OK;
}

/* The place on the device of one in a copy; what is in none stays as it is. */
static void *there(const void *p)
{
    for (uint32_t i = 0; i < own.n; i++) {
        uint64_t at = (uintptr_t)p - (uintptr_t)own.areas[i].host;
        if (p != NULL && at < own.areas[i].bytes)
            return (void *)(uintptr_t)(own.areas[i].device + at);
    }
    return (void *)(uintptr_t)p;
}

static int carry(int to_device)
{
    int rc = 0;

    for (uint32_t i = 0; i < own.n && rc == 0; i++) {
        uint64_t host = (uintptr_t)own.areas[i].host, device = own.areas[i].device;
        rc = driver.copy(to_device ? device : host, to_device ? host : device, own.areas[i].bytes);
    }
    return rc == 0 ? KG_OK : KG_EDEVICE;
}

static int call(int (*collective)(struct kg_comm *, const struct kg_coll *), struct kg_comm *comm,
                const struct kg_coll *c)
{
    struct kg_coll d = *c;

    d.in = there(c->in);
    d.out = there(c->out);
    d.counts = there(c->counts);
    int rc = carry(1);
    if (rc == KG_OK)
        rc = collective(comm, &d);
    return rc == KG_OK ? carry(0) : rc;
}

#define MIRROR(op)                                                        \
    static int mirror_##op(struct kg_comm *comm, const struct kg_coll *c) \
    {                                                                     \
        return call(real->op, comm, c);                                   \
    }

MIRROR(all_reduce)
MIRROR(reduce_scatter)
MIRROR(all_gather)
MIRROR(all_to_all)
MIRROR(broadcast)

const struct kg_comm_ops *mirror_ops(const struct kg_comm_ops *ops, const char *name,
                                     uint32_t world, struct kg_error *err)
{
    void *so = dlopen(name != NULL ? name : "libcuda.so.1", RTLD_NOW);
    int n = 0, rc;

    if (so == NULL) {
        (void)kg_fail(err, KG_EDEVICE, "no CUDA device, the driver is not here: %s", dlerror());
        return NULL;
    }
    for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
        *functions[i].to = dlsym(so, functions[i].name);
        if (*functions[i].to == NULL) {
            (void)kg_fail(err, KG_EDEVICE, "the driver has no %s", functions[i].name);
            return NULL;
        }
    }
    rc = driver.init(0);
    if (rc == 0)
        rc = driver.count(&n);
    if (rc != 0 || n < (int)world) {
        (void)kg_fail(err, KG_EDEVICE, "%d CUDA devices for %u ranks (driver: %d)", n, world, rc);
        return NULL;
    }
    real = ops;
    mirrored = *ops;
    mirrored.open = mirror_open;
    mirrored.close = mirror_close;
    mirrored.alloc_symm = mirror_alloc;
    mirrored.all_reduce = mirror_all_reduce;
    mirrored.reduce_scatter = mirror_reduce_scatter;
    mirrored.all_gather = mirror_all_gather;
    mirrored.all_to_all = mirror_all_to_all;
    mirrored.broadcast = mirror_broadcast;
    return &mirrored;
}
