/* Between the readers of trace formats and the store in trace.c. */
#ifndef KEDGE_EXPERIMENT_TRACE_INT_H
#define KEDGE_EXPERIMENT_TRACE_INT_H

#include "base/rng.h"
#include "experiment/lines.h"
#include "experiment/trace.h"

#include <jansson.h>

/* Ids of content nobody else has: the request's whole prompt, its tail, its answer. Ids read from
 * files stay below 2^62. */
#define KG_ID_LIMIT (UINT64_C(1) << 62)
#define KG_ID_PROMPT(i) (UINT64_C(1) << 62 | (uint64_t)(i) << 26)
#define KG_ID_TAIL(i) (UINT64_C(2) << 62 | (uint64_t)(i) << 26)
#define KG_ID_ANSWER(i) (UINT64_C(3) << 62 | (uint64_t)(i) << 26)

/* Names to request numbers, open addressing over offsets into trace->text. */
struct kg_names {
    uint32_t *slots; /* [mask + 1] request, KG_NONE empty */
    size_t mask, n;
};

struct kg_reader {
    struct kg_lines *lines;
    struct kg_trace *t;
    const struct kg_trace_conf *conf;
    struct kg_names names;
    struct kg_error *err;
    struct kg_rng rng;
};

/* Fails with "FILE: line N: TEXT". */
#define KG_BAD(r, fmt, ...)                                                        \
    kg_fail((r)->err, KG_EINVAL, "%s: line %llu: " fmt, kg_lines_name((r)->lines), \
            (unsigned long long)kg_lines_number((r)->lines), __VA_ARGS__)

/* --- trace.c --- */

/* A request with its defaults, not yet part of the trace. */
struct kg_trace_req kg_trace_blank(const struct kg_reader *r);
/* Appends. `name` NULL: its number. `name` must be new (KG_EINVAL). */
KG_CHECKED int kg_trace_add(struct kg_reader *r, struct kg_trace_req *q, const char *name);
/* A copy of n bytes and a NUL in the text store. */
KG_CHECKED int kg_trace_text(struct kg_reader *r, const char *s, size_t n, size_t *at);
/* The tenant of q by name. */
KG_CHECKED int kg_trace_tenant(struct kg_reader *r, struct kg_trace_req *q, const char *name);
/* Adds `count` blocks from `id` to the pieces of q (which must be the last to get pieces), joined
 * with the piece before where ids and positions go on. q->n_pieces counts; positions start at the
 * sum so far; the last piece may be cut by kg_trace_cut. */
KG_CHECKED int kg_trace_blocks(struct kg_reader *r, struct kg_trace_req *q, uint64_t id,
                               uint64_t count);
/* Adds n tokens of the content `id` (any number of blocks). */
KG_CHECKED int kg_trace_piece(struct kg_reader *r, struct kg_trace_req *q, uint64_t id, uint32_t n);
KG_CHECKED int kg_trace_bound(struct kg_reader *r, struct kg_trace_req *q, uint32_t position);
/* Room for n literal tokens of q; they lie at t->tokens + q->tokens_at. */
KG_CHECKED int kg_trace_literal(struct kg_reader *r, struct kg_trace_req *q, size_t n);
/* Request of that name, KG_NONE. */
uint32_t kg_trace_find(const struct kg_reader *r, const char *name);
/* 1 when the trace has all it may take. */
int kg_trace_full(const struct kg_reader *r);
/* Tokens after scaling: at least 1; counts lengths of 0. */
uint32_t kg_trace_scaled(struct kg_reader *r, uint64_t n);
/* Milliseconds, or seconds, to nanoseconds; v >= 0 and at most 10 years (checked by the reader). */
uint64_t kg_trace_ns(double v, double unit_ns);

/* --- json fields (trace_json.c). Each returns 1, 0 when absent (null counts), KG_EINVAL. --- */

int kg_tj_line(struct kg_reader *r, const char *text, size_t n, json_t **root);
/* Calls `read` with the object of each line until one fails, the trace is full, or the file ends;
 * KG_OK or the error. Fields that are not in `known` are noted; NULL: nobody looks. */
KG_CHECKED int kg_tj_lines(struct kg_reader *r, const char *const *known,
                           int (*read)(struct kg_reader *r, const json_t *o, void *ctx), void *ctx);
int kg_tj_u64(struct kg_reader *r, const json_t *o, const char *key, uint64_t lo, uint64_t hi,
              uint64_t *v);
int kg_tj_time(struct kg_reader *r, const json_t *o, const char *key, double unit_ns, uint64_t *ns);
/* A string, or an integer as its digits; *text lives in `digits` or in o. */
int kg_tj_name(struct kg_reader *r, const json_t *o, const char *key, char digits[24],
               const char **text);
int kg_tj_array(struct kg_reader *r, const json_t *o, const char *key, const json_t **array);
/* Like u64, but absent is an error. Returns KG_OK or KG_EINVAL. */
KG_CHECKED int kg_tj_need(struct kg_reader *r, const json_t *o, const char *key, uint64_t lo,
                          uint64_t hi, uint64_t *v);
/* Notes the first key that is not in `known` (ends with NULL). */
void kg_tj_unknown(struct kg_reader *r, const json_t *o, const char *const *known);

/* --- one reader per format: reads all lines --- */

KG_CHECKED int kg_read_json(struct kg_reader *r); /* native, mooncake, bailian */
KG_CHECKED int kg_read_agentic(struct kg_reader *r);
KG_CHECKED int kg_read_azure(struct kg_reader *r);
KG_CHECKED int kg_read_servegen(struct kg_reader *r);
KG_CHECKED int kg_read_aiperf(struct kg_reader *r);

#endif
