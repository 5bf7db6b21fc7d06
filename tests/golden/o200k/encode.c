/*
 * Encodes a file with a folder's tokenizer, writes the ids as 32-bit words, prints the speed.
 * Usage: encode DIR TEXT IDS. Exit 0, or 1 with a line on stderr.
 */
#include "text/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define ROUNDS 5

static char *read_all(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    if (f == NULL || fseek(f, 0, SEEK_END) != 0) {
        return NULL;
    }
    long size = ftell(f);
    char *v = size < 0 ? NULL : malloc((size_t)size + 1);
    rewind(f);
    *n = v == NULL ? 0 : fread(v, 1, (size_t)size, f);
    (void)fclose(f);
    return v;
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

int main(int argc, char **argv)
{
    struct kg_error err = {0};
    struct kg_tok *tok = NULL;
    struct kg_ids ids = {0};
    size_t n = 0;
    if (argc != 4) {
        (void)fprintf(stderr, "usage: encode DIR TEXT IDS\n");
        return 1;
    }
    double start = seconds();
    if (kg_tok_open(argv[1], &tok, &err) != KG_OK) {
        (void)fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    double open_s = seconds() - start, best = 1e9;
    struct kg_tok_scratch *scratch = kg_tok_scratch_new(tok);
    char *text = read_all(argv[2], &n);
    for (int i = 0; i < ROUNDS && scratch != NULL && text != NULL; i++) {
        ids.n = 0;
        start = seconds();
        if (kg_tok_encode(tok, scratch, KG_TOK_PLAIN, text, n, &ids) != KG_OK) {
            return 1;
        }
        double s = seconds() - start;
        best = s < best ? s : best;
    }
    FILE *f = fopen(argv[3], "wb");
    if (f == NULL || fwrite(ids.v, sizeof(*ids.v), ids.n, f) != ids.n || fclose(f) != 0) {
        (void)fprintf(stderr, "%s: cannot be written\n", argv[3]);
        return 1;
    }
    (void)printf("%.1f MB/s, opened in %.3f s\n", (double)n / 1e6 / best, open_s);
    free(text);
    kg_ids_free(&ids);
    kg_tok_scratch_free(scratch);
    kg_tok_close(tok);
    return 0;
}
