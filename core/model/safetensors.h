/*
 * Safetensors files, mapped read-only: one model.safetensors, or shards named by
 * model.safetensors.index.json. Nothing in a file is trusted: header length, JSON, dtype, shape
 * against byte span, spans inside the file, no two tensors that overlap (holes are allowed), no
 * name twice, and the index and the shards agree. Each refusal names file and tensor.
 */
#ifndef KEDGE_MODEL_SAFETENSORS_H
#define KEDGE_MODEL_SAFETENSORS_H

#include <kedge/types.h>

#define KG_ST_MAX_DIMS 8
#define KG_ST_MAX_HEADER (100u * 1000u * 1000u) /* bytes of JSON in one file */
#define KG_ST_MAX_INDEX (256u * 1024u * 1024u)  /* bytes of the index file */
#define KG_ST_MAX_SHARDS 4096
#define KG_ST_OTHER KG_N_DTYPES /* a dtype of the format that this program has no use for */

struct kg_st_tensor {
    const char *name;
    const void *data; /* in the mapping; may lie at any alignment */
    uint64_t bytes;   /* of the span; equals the shape's product times the dtype's bytes */
    uint32_t dtype;   /* enum kg_dtype, or KG_ST_OTHER */
    uint32_t shard;   /* index of its file, for kg_st_file */
    uint32_t n_dims;  /* 0..KG_ST_MAX_DIMS; 0: a scalar */
    uint64_t dims[KG_ST_MAX_DIMS];
};

struct kg_st; /* an open checkpoint: mappings and the table of tensors */

/*
 * Opens DIR/model.safetensors.index.json if it is there, else DIR/model.safetensors.
 * KG_ENOENT: neither exists, or a shard is missing; KG_EIO: a system call failed;
 * KG_EINVAL: the content is wrong; KG_ENOMEM. Caller closes. A file that is truncated by somebody
 * else while it is mapped ends the process with SIGBUS: do not write to checkpoints in use.
 */
KG_CHECKED int kg_st_open(const char *dir, struct kg_st **st, struct kg_error *err);
/* One file, whatever its name. */
KG_CHECKED int kg_st_open_file(const char *path, struct kg_st **st, struct kg_error *err);
void kg_st_close(struct kg_st *st); /* NULL is allowed; tensors and their data die with it */

/* Number of tensors, and each of them by index (sorted by name). */
uint64_t kg_st_count(const struct kg_st *st);
const struct kg_st_tensor *kg_st_at(const struct kg_st *st, uint64_t i);
/* By name; NULL when there is none. O(log n). */
const struct kg_st_tensor *kg_st_find(const struct kg_st *st, const char *name);
/* Path of a shard, for messages; lives until close. */
const char *kg_st_file(const struct kg_st *st, uint32_t shard);
/* "F32", "BF16", ...; "?" for others. */
const char *kg_st_dtype_name(uint32_t dtype);

/*
 * Checks one file's content that lies in memory, whole: `n` bytes from `data`. What kg_st_open_file
 * does after mapping; fuzzers and tests call it. `data` must outlive the result.
 */
KG_CHECKED int kg_st_parse(const char *file, const void *data, uint64_t n, struct kg_st **st,
                           struct kg_error *err);

#endif
