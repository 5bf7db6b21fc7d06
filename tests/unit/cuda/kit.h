/* What the tests of the CUDA table share: a context on an emulated device, copies, faults. */
#ifndef KEDGE_TESTS_UNIT_CUDA_KIT_H
#define KEDGE_TESTS_UNIT_CUDA_KIT_H

#include "tests/unit/kernels/kit.h"

#include "kernels/cuda/cuda.h"

#ifndef KG_ON_DEVICE
#include "tests/emu/emu.h"
#else
/* The same tests on a device: what the emulator looks for is not looked for. */
#define KG_EMU_RACES 1u
#define KG_EMU_BACKWARD 2u
static inline void kg_emu_reset(void)
{
}
static inline unsigned kg_emu_checks(void)
{
    return 0;
}
static inline void kg_emu_set_checks(unsigned checks)
{
    (void)checks;
}
static inline const char *kg_emu_fault(void)
{
    return "";
}
static inline int kg_emu_bytes(void)
{
    return 0;
}
/* Before main: without a device the program is skipped. */
__attribute__((constructor)) static void skip_without_device(void)
{
    struct kg_error err;
    uint32_t n;

    if (kg_cuda_count(&n, &err) < 0) {
        printf("skipped: %s\n", err.text);
        exit(77);
    }
}
#endif

struct rig {
    struct kg_cuda *cuda;
    struct kg_team *team;
    const struct kg_kernels *ref, *k; /* plain C, CUDA */
};

/* Races and reads of unwritten shared memory are looked for. */
static inline struct rig rig_open(enum kg_math math, uint32_t n_graphs)
{
    struct kg_cuda_args args = {.n_graphs = n_graphs, .stage_bytes = 64 << 10};
    struct kg_error err;
    struct rig r = {.ref = kg_kernels_ref(math), .k = kg_kernels_cuda(math)};

    kg_emu_reset();
    kg_emu_set_checks(kg_emu_checks() | KG_EMU_RACES);
    if (kg_cuda_open(&args, &r.cuda, &err) < 0)
        fail_msg("%s", err.text);
    r.team = kg_cuda_team(r.cuda);
    return r;
}

static inline void rig_sync(struct rig *r)
{
    struct kg_error err;

    if (kg_cuda_sync(r->cuda, &err) < 0)
        fail_msg("%s", err.text);
}

/* Fails when anything went wrong since open, or memory was lost. */
static inline void rig_close(struct rig *r)
{
    rig_sync(r);
    kg_cuda_close(r->cuda);
    assert_string_equal(kg_emu_fault(), "");
    assert_int_equal(kg_emu_bytes(), 0);
}

static inline void *dev_alloc(struct rig *r, size_t bytes)
{
    struct kg_error err;
    void *p = NULL;

    if (kg_cuda_alloc(r->cuda, bytes, &p, &err) < 0)
        fail_msg("%s", err.text);
    return p;
}

/* A copy of host memory on the device. */
static inline void *dev_copy(struct rig *r, const void *host, size_t bytes)
{
    void *p = dev_alloc(r, bytes);

    kg_cuda_upload(r->cuda, p, host, bytes);
    return p;
}

/* A copy of device memory on the host, after a sync. */
static inline void *host_copy(struct rig *r, const void *dev, size_t bytes)
{
    void *p = take(bytes);

    kg_cuda_download(r->cuda, p, dev, bytes);
    rig_sync(r);
    return p;
}

#endif
