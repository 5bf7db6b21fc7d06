/* Strict numbers from text: the whole text or nothing; no leading blanks, no locale. */
#ifndef KEDGE_BASE_NUM_H
#define KEDGE_BASE_NUM_H

#include <kedge/types.h>

/* Decimal digits only. KG_EINVAL for anything else, KG_ELIMIT when it does not fit. */
KG_CHECKED int kg_num_u64(const char *s, uint64_t *v);
/* The same, and one of k m g t (either case) behind the digits: powers of 1024. */
KG_CHECKED int kg_num_u64_suffix(const char *s, uint64_t *v);
/* A finite decimal number: [-+]digits[.digits][e[-+]digits]. KG_ELIMIT past double's range. */
KG_CHECKED int kg_num_f64(const char *s, double *v);
/* yes/no, on/off, true/false, 1/0. */
KG_CHECKED int kg_num_bool(const char *s, uint32_t *v);

#endif
