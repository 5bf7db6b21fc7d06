/*
 * Request bodies: bounds and UTF-8 checked before the parser sees a byte, then typed reads of
 * fields whose errors name the field, what was expected and what was there.
 */
#ifndef KEDGE_SERVE_JSON_H
#define KEDGE_SERVE_JSON_H

#include <jansson.h>
#include <kedge/types.h>
#include <stdbool.h>

/* Why a request is refused, as the client will read it. */
/* Code of a request that the policy script refused; its message is the script's reason. */
#define KG_POLICY_REJECTED "policy_rejected"

struct kg_api_error {
    int status;         /* HTTP, 0 while nothing went wrong */
    const char *code;   /* constant word or NULL */
    char param[160];    /* field, "" for none: "messages[2].content" */
    char message[500];  /* one or two sentences, valid UTF-8 */
    const char *header; /* one more header line of the answer, ended by CRLF; NULL for none */
};

/* Fills *err with a 400 about `param` and returns KG_EINVAL. Bad UTF-8 in the text is replaced. */
__attribute__((format(printf, 3, 4))) int kg_api_refuse(struct kg_api_error *err, const char *param,
                                                        const char *fmt, ...);
/* The same with another status and code. */
__attribute__((format(printf, 5, 6))) int kg_api_fail(struct kg_api_error *err, int status,
                                                      const char *code, const char *param,
                                                      const char *fmt, ...);

/*
 * Looks over a text that should be JSON without building anything: nesting up to max_depth
 * (<= 1024), at most max_values values (an array or object counts as 8, as it costs that much
 * memory), strings in UTF-8 with paired surrogates. The error names the field where it is.
 * It does not prove the text is JSON.
 */
int kg_json_scan(const char *text, size_t n, uint32_t max_depth, uint32_t max_values,
                 struct kg_api_error *err);

/* Scan and parse; the root must be an object. *root is the caller's (json_decref). Of equal names in
 * an object the last one counts, as clients are used to. */
int kg_json_load(const char *text, size_t n, uint32_t max_depth, uint32_t max_values, json_t **root,
                 struct kg_api_error *err);
/* The same, but a name that stands twice in one object is refused: for orders, where somebody meant
 * two things. */
int kg_json_load_once(const char *text, size_t n, uint32_t max_depth, uint32_t max_values,
                      json_t **root, struct kg_api_error *err);

/*
 * Typed reads of obj[name]. Absent and null leave *out alone and return KG_OK. `where` is the
 * path of obj for errors, "" for the root. The range is inclusive.
 */
int kg_json_u32(const json_t *obj, const char *where, const char *name, uint32_t min, uint32_t max,
                uint32_t *out, struct kg_api_error *err);
int kg_json_i64(const json_t *obj, const char *where, const char *name, int64_t *out,
                struct kg_api_error *err);
int kg_json_f32(const json_t *obj, const char *where, const char *name, double min, double max,
                float *out, struct kg_api_error *err);
int kg_json_bool(const json_t *obj, const char *where, const char *name, bool *out,
                 struct kg_api_error *err);
/* *out points into obj; with no zero byte inside. */
int kg_json_str(const json_t *obj, const char *where, const char *name, const char **out,
                struct kg_api_error *err);
/* *out is borrowed from obj. */
int kg_json_array(const json_t *obj, const char *where, const char *name, const json_t **out,
                  struct kg_api_error *err);
int kg_json_object(const json_t *obj, const char *where, const char *name, const json_t **out,
                   struct kg_api_error *err);

/* The value of obj[name], NULL when absent or null. */
const json_t *kg_json_get(const json_t *obj, const char *name);

/* "a string", "the number 7", ...: what a value is, for error texts. Writes into buf. */
const char *kg_json_describe(const json_t *value, char *buf, size_t n);

#endif
