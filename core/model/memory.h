/*
 * Where the numbers of a model live: weights, activations, units of the arena. The host's own
 * memory is `memory` NULL; a device fills struct kg_memory. Everything but alloc, free and sync is
 * queued in the order of the calls, with the operations of the kernel table, and cannot fail at the
 * call: sync tells.
 */
#ifndef KEDGE_MODEL_MEMORY_H
#define KEDGE_MODEL_MEMORY_H

#include <kedge/host.h>

#include <string.h>

struct kg_sampler; /* sampler.h */

struct kg_memory {
    void *ctx; /* handed to every call */
    /* Bytes on the device, 256-aligned, not cleared. KG_ENOMEM. Not in a step. */
    int (*alloc)(void *ctx, uint64_t bytes, void **p, struct kg_error *err);
    void (*free)(void *ctx, void *p);
    /* Host memory that copies need not wait for. */
    int (*alloc_host)(void *ctx, uint64_t bytes, void **p, struct kg_error *err);
    void (*free_host)(void *ctx, void *p);
    /* Of host memory that is not from alloc_host the source may be reused at return. */
    void (*upload)(void *ctx, void *dst, const void *host, uint64_t bytes);
    void (*download)(void *ctx, void *host, const void *src, uint64_t bytes);
    void (*copy)(void *ctx, void *dst, const void *src, uint64_t bytes);
    void (*fill)(void *ctx, void *p, uint8_t byte, uint64_t bytes);
    /* Waits for all that is queued. KG_EDEVICE with the first error. */
    int (*sync)(void *ctx, struct kg_error *err);
    /* Around a pass: passes of one key are the same calls on the same addresses, for contexts up
     * to `context` tokens. NULL: not wanted. */
    void (*begin)(void *ctx, uint64_t key, uint32_t context);
    void (*end)(void *ctx);
    /* Stream for a collective behind all that is queued; NULL while it is not to be called: a pass
     * that is replayed has it. Only where `comm` works in device memory. */
    void *(*guest)(void *ctx);
    /* Device time in ns between the last two calls of mark with 0 and 1; after a sync. */
    void (*mark)(void *ctx, uint32_t mark);
    uint64_t (*time_ns)(void *ctx);
    /* Draws tokens where the logits are. NULL: logits are brought back and drawn from on the
     * host. */
    const struct kg_sampler *sampler;
};

/* Bytes aligned to `align` (host) or 256 (device). NULL: there are none. */
static inline void *kg_memory_alloc(const struct kg_memory *memory, const struct kg_host *host,
                                    uint64_t bytes, size_t align)
{
    struct kg_error err;
    void *p = NULL;

    if (memory == NULL)
        return host->alloc(host->ctx, bytes, align);
    return memory->alloc(memory->ctx, bytes, &p, &err) < 0 ? NULL : p;
}

static inline void kg_memory_free(const struct kg_memory *memory, const struct kg_host *host,
                                  void *p, uint64_t bytes)
{
    if (p == NULL)
        return;
    if (memory == NULL)
        host->free(host->ctx, p, bytes);
    else
        memory->free(memory->ctx, p);
}

static inline void kg_memory_upload(const struct kg_memory *memory, void *dst, const void *host,
                                    uint64_t bytes)
{
    if (memory == NULL)
        memcpy(dst, host, bytes);
    else
        memory->upload(memory->ctx, dst, host, bytes);
}

static inline void kg_memory_download(const struct kg_memory *memory, void *host, const void *src,
                                      uint64_t bytes)
{
    if (memory == NULL)
        memcpy(host, src, bytes);
    else
        memory->download(memory->ctx, host, src, bytes);
}

static inline void kg_memory_copy(const struct kg_memory *memory, void *dst, const void *src,
                                  uint64_t bytes)
{
    if (memory == NULL)
        memcpy(dst, src, bytes);
    else
        memory->copy(memory->ctx, dst, src, bytes);
}

static inline void kg_memory_fill(const struct kg_memory *memory, void *p, uint8_t byte,
                                  uint64_t bytes)
{
    if (memory == NULL)
        memset(p, byte, bytes);
    else
        memory->fill(memory->ctx, p, byte, bytes);
}

static inline int kg_memory_sync(const struct kg_memory *memory, struct kg_error *err)
{
    return memory == NULL ? KG_OK : memory->sync(memory->ctx, err);
}

#endif
