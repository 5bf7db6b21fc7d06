/*
 * From names in the file to places in struct kg_ckpt. Internal to core/model: checkpoint.c opens
 * and closes, bind.c knows which tensors a model of this family has.
 */
#ifndef KEDGE_MODEL_BIND_H
#define KEDGE_MODEL_BIND_H

#include "model/checkpoint.h"
#include "model/safetensors.h"

/* Shapes a tensor of the model may have in the file. */
enum kg_shape {
    KG_SHAPE_MATRIX, /* [rows][cols], name + ".weight"; not scanned */
    KG_SHAPE_EXPERT, /* the same, or MXFP4 as name + ".weight_packed" and ".weight_scale" */
    KG_SHAPE_VECTOR, /* [cols] or [1][cols]; scanned for non-finite values, as all below */
    KG_SHAPE_CONV,   /* [rows][1][cols] or [rows][cols] */
    KG_SHAPE_A_LOG,  /* [1][1][cols][1], or [n] with n >= cols and zeros after cols */
};

/* Work in progress. The first error stays in rc; later calls do nothing then. */
struct kg_bind {
    const struct kg_st *st;
    struct kg_ckpt *ckpt;
    const char *file; /* folder, for messages about what is nowhere */
    uint8_t *used;    /* [kg_st_count] */
    void **owned;     /* aligned copies of tensors the file holds at odd addresses */
    uint64_t n_owned;
    uint64_t copied_bytes; /* sum of their sizes */
    int rc;
    struct kg_error *err;
};

/*
 * Finds a tensor by its full name (without ".weight"-suffix for MATRIX and EXPERT), checks it
 * and sets *t. `rows` 1 for vectors.
 */
__attribute__((format(printf, 6, 7))) void kg_bind_tensor(struct kg_bind *b, enum kg_shape shape,
                                                          uint32_t rows, uint32_t cols,
                                                          struct kg_tensor *t, const char *fmt,
                                                          ...);

/* The tensors of one attention or dense sublayer; names begin with `at` ("layers.0.mlp."). */
void kg_bind_mla(struct kg_bind *b, const char *at, struct kg_ckpt_mla *a);
void kg_bind_mlp(struct kg_bind *b, const char *at, uint32_t inter, struct kg_ckpt_mlp *m);

/* Binds every tensor of the configuration: fills embed .. layers of b->ckpt. */
void kg_bind_model(struct kg_bind *b);

/* Sorts what was not bound into vision, ignored and refused. */
void kg_bind_rest(struct kg_bind *b);

#endif
