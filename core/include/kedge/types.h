/*
 * Result codes, error text, data types, unit kinds and ids: the vocabulary every other header
 * of the ABI is written in. Includes libc only; every function here is inline, because a plugin
 * links against nothing of the core.
 */
#ifndef KEDGE_TYPES_H
#define KEDGE_TYPES_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/*
 * Result of a call: 0 or a count is good, negative is one of these. Each has one meaning and,
 * where a client can see it, one HTTP status.
 */
enum kg_rc {
    KG_OK = 0,
    KG_EAGAIN = -1,   /* no room now, nothing was taken, come back: 503 */
    KG_ELIMIT = -2,   /* over a configured limit: 413 or 429 */
    KG_EINVAL = -3,   /* the caller's data is wrong: 400 */
    KG_ECANCEL = -4,  /* the client went away */
    KG_ETIMEOUT = -5, /* a deadline passed: 504 */
    KG_ENOMEM = -6,   /* the machine has no memory left: 500 */
    KG_EDEVICE = -7,  /* the device or a peer rank failed: 500, health reports not ready */
    KG_EIO = -8,      /* a file or socket failed: 500 */
    KG_EABI = -9,     /* start-up: a plugin does not fit this core */
    KG_ECONFIG = -10, /* start-up: the configuration cannot work */
    KG_ENOENT = -11,  /* start-up: a named thing does not exist */
    KG_ENEVER = -12,  /* it can never fit, whatever is freed: 400 with the numbers */
};

/* Filled by whoever first knows the cause; the edge (main, HTTP, engine step) logs it once. */
struct kg_error {
    int rc;         /* enum kg_rc, 0 while nothing went wrong */
    char text[500]; /* one line, NUL-terminated, names the field, file or tensor */
};

/* Writes rc and the formatted text into *err (err may be NULL) and returns rc. */
__attribute__((format(printf, 3, 4))) static inline int kg_fail(struct kg_error *err, int rc,
                                                                const char *fmt, ...)
{
    if (err != NULL) {
        va_list ap;
        va_start(ap, fmt);
        err->rc = rc;
        (void)vsnprintf(err->text, sizeof(err->text), fmt, ap);
        va_end(ap);
    }
    return rc;
}

#define KG_CHECKED __attribute__((warn_unused_result))

/* Element types of tensors and collectives. */
enum kg_dtype {
    KG_F32 = 0,
    KG_BF16 = 1,
    KG_F16 = 2,
    KG_U8 = 3,
    KG_I32 = 4,
    KG_U32 = 5,
    KG_I64 = 6,
    KG_N_DTYPES = 7,
};

/* Bytes of one element; 0 for an unknown dtype. */
static inline size_t kg_dtype_bytes(uint32_t dtype)
{
    switch (dtype) {
    case KG_F32:
    case KG_I32:
    case KG_U32:
        return 4;
    case KG_BF16:
    case KG_F16:
        return 2;
    case KG_U8:
        return 1;
    case KG_I64:
        return 8;
    default:
        return 0;
    }
}

/*
 * The two kinds of memory unit. A page holds page_tokens tokens of MLA latent for all MLA layers
 * (draft KV included when a drafter is loaded); a state is one request's KDA recurrent and
 * convolution state of all KDA layers.
 */
enum kg_kind {
    KG_PAGE = 0,
    KG_STATE = 1,
    KG_N_KINDS = 2,
};

static inline const char *kg_kind_name(uint32_t kind)
{
    return kind == KG_PAGE ? "page" : kind == KG_STATE ? "state" : "?";
}

/* Not a unit, not a physical slot, not a grant, not a backend slot. */
#define KG_NONE UINT32_MAX

/* True when the table `ops`, compiled as `type`, reaches `fn` and fills it. */
#define KG_HAS(ops, type, fn) \
    ((ops)->size >= offsetof(type, fn) + sizeof((ops)->fn) && (ops)->fn != NULL)

#endif
