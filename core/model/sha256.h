/* SHA-256 (FIPS 180-4) of a file: a drafter names the target it was trained for by it. */
#ifndef KEDGE_MODEL_SHA256_H
#define KEDGE_MODEL_SHA256_H

#include <kedge/types.h>

#define KG_SHA256_HEX 65 /* 64 lower-case digits and NUL */

/* Digest of `n` bytes. */
void kg_sha256(const void *data, uint64_t n, char hex[KG_SHA256_HEX]);
/* Digest of a whole file; codes as kg_file_map. hex is set only on success. */
KG_CHECKED int kg_sha256_file(const char *path, char hex[KG_SHA256_HEX], struct kg_error *err);

#endif
