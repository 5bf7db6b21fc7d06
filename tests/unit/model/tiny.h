/*
 * Small checkpoints for tests, listed tensor by tensor from the published inventories and not from
 * the code under test. A case changes the list (name, dtype, shape, span, content) and writes it.
 */
#ifndef KEDGE_TESTS_UNIT_MODEL_TINY_H
#define KEDGE_TESTS_UNIT_MODEL_TINY_H

#include <stddef.h>
#include <stdint.h>

#define TINY_MAX 128

struct tiny_tensor {
    char name[192];
    char dtype[16];
    uint32_t n_dims;
    uint64_t dims[8];
    uint64_t begin, end; /* data_offsets as written */
    uint32_t shard;      /* file of a sharded checkpoint, 0 or 1 */
    int hidden;          /* 1: left out of the header */
};

struct tiny {
    char config[4096]; /* text of config.json */
    struct tiny_tensor t[TINY_MAX];
    uint32_t n;
    unsigned char *data; /* [n_data] of all tensors, one file's layout */
    uint64_t n_data;
    char dir[256]; /* a new folder, removed by tiny_free */
};

/* Two layers: KDA with a dense MLP, MLA with two experts. k3: Kimi K3's forms, MXFP4 experts. */
struct tiny *tiny_new(int k3);
/* A folder and nothing in it: for other kinds of checkpoints. */
struct tiny *tiny_empty(void);
void tiny_free(struct tiny *m);

/* The tensor whose name ends in `end`; the test fails when there is none. */
struct tiny_tensor *tiny_find(struct tiny *m, const char *end);
/* Adds a tensor at the end of the data, filled with small values. */
struct tiny_tensor *tiny_add(struct tiny *m, const char *name, const char *dtype, uint32_t n_dims,
                             const uint64_t *dims);
/* Sets element `i` of an F32 or BF16 tensor. */
void tiny_set(struct tiny *m, const struct tiny_tensor *t, uint64_t i, float value);

/* The bytes of model.safetensors; the caller frees. */
unsigned char *tiny_bytes(const struct tiny *m, size_t *n);
/* Writes config.json and model.safetensors into m->dir. */
void tiny_write(const struct tiny *m);
/* Writes config.json, two shards a.safetensors and b.safetensors (by tensor.shard) and an index.
 * `index`: NULL for a right one, else the text to write. */
void tiny_write_sharded(const struct tiny *m, const char *index);
/* Writes a file into m->dir. */
void tiny_file(const struct tiny *m, const char *name, const void *bytes, size_t n);

#endif
