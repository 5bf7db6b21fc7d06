#include "text/tok_impl.h"

#include <jansson.h>
#include <stdlib.h>
#include <sys/stat.h>

/* A whole file; v has a NUL behind the n bytes. */
static int read_file(const char *path, struct kg_text *out, struct kg_error *err)
{
    FILE *f = fopen(path, "rb");
    if (f == NULL) {
        return kg_fail(err, KG_ENOENT, "%s: cannot be opened: %m", path);
    }
    struct stat st;
    int rc = KG_OK;
    if (fstat(fileno(f), &st) != 0 || !S_ISREG(st.st_mode)) {
        rc = kg_fail(err, KG_EIO, "%s: not a regular file", path);
    } else if (st.st_size > KG_TOK_MAX_FILE) {
        rc = kg_fail(err, KG_ECONFIG, "%s: %lld bytes, more than %u", path, (long long)st.st_size,
                     KG_TOK_MAX_FILE);
    } else if (kg_text_reserve(out, (size_t)st.st_size) != KG_OK) {
        rc = kg_fail(err, KG_ENOMEM, "%s: out of memory", path);
    } else if (fread(out->v, 1, (size_t)st.st_size, f) != (size_t)st.st_size) {
        rc = kg_fail(err, KG_EIO, "%s: cannot be read", path);
    } else {
        out->n = (size_t)st.st_size;
        out->v[out->n] = '\0';
    }
    (void)fclose(f);
    return rc;
}

/* The text of one rank while the file is being read. */
struct rank_line {
    const char *text; /* base64; NULL while the rank was not seen */
    uint32_t n;       /* characters of it */
    uint32_t line;    /* 1-based */
};

static int digit64(char c)
{
    if (c >= 'A' && c <= 'Z') {
        return c - 'A';
    }
    if (c >= 'a' && c <= 'z') {
        return c - 'a' + 26;
    }
    if (c >= '0' && c <= '9') {
        return c - '0' + 52;
    }
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* Decodes padded base64; returns the number of bytes, or -1 if it is not well-formed. */
static int decode64(const char *p, uint32_t n, char *out)
{
    if (n == 0 || n % 4 != 0) {
        return -1;
    }
    uint32_t pad = p[n - 1] != '=' ? 0 : p[n - 2] != '=' ? 1 : 2;
    int len = 0;
    for (uint32_t i = 0; i < n; i += 4) {
        uint32_t w = 0;
        for (uint32_t k = 0; k < 4; k++) {
            bool padding = i + k >= n - pad;
            int d = padding ? 0 : digit64(p[i + k]);
            if (d < 0) {
                return -1;
            }
            w = w << 6 | (uint32_t)d;
        }
        uint32_t bytes = i + 4 == n ? 3 - pad : 3;
        if ((w & ((1u << 8 * (3 - bytes)) - 1)) != 0) {
            return -1;
        }
        for (uint32_t k = 0; k < bytes; k++) {
            out[len++] = (char)(w >> (16 - 8 * k));
        }
    }
    return len;
}

/* Decimal without sign or leading zeros, below 2^24; KG_NONE otherwise. */
static uint32_t decimal(const char *p, size_t n)
{
    if (n == 0 || n > 8 || (n > 1 && p[0] == '0')) {
        return KG_NONE;
    }
    uint32_t v = 0;
    for (size_t i = 0; i < n; i++) {
        if (p[i] < '0' || p[i] > '9') {
            return KG_NONE;
        }
        v = v * 10 + (uint32_t)(p[i] - '0');
    }
    return v < KG_TOK_MAX_VOCAB ? v : KG_NONE;
}

/* Sorts one line into ranks[n_lines]. */
static int take_line(const char *path, uint32_t line, struct kg_span s, struct rank_line *ranks,
                     uint32_t n_lines, struct kg_error *err)
{
    if (s.n > 0 && s.p[s.n - 1] == '\r') {
        s.n--;
    }
    const char *space = s.n == 0 ? NULL : memchr(s.p, ' ', s.n);
    if (space == NULL) {
        return kg_fail(err, KG_ECONFIG, "%s:%u: not \"base64 rank\"", path, line);
    }
    size_t n = (size_t)(space - s.p);
    if (n > (KG_TOK_MAX_BYTES + 2) / 3 * 4) {
        return kg_fail(err, KG_ECONFIG, "%s:%u: a token of more than %u bytes", path, line,
                       KG_TOK_MAX_BYTES);
    }
    uint32_t rank = decimal(space + 1, s.n - n - 1);
    if (rank == KG_NONE) {
        return kg_fail(err, KG_ECONFIG, "%s:%u: the rank is not a number below %u", path, line,
                       KG_TOK_MAX_VOCAB);
    }
    if (rank >= n_lines) {
        return kg_fail(err, KG_ECONFIG,
                       "%s:%u: rank %u, but the file has %u lines: ranks have gaps", path, line,
                       rank, n_lines);
    }
    if (ranks[rank].text != NULL) {
        return kg_fail(err, KG_ECONFIG, "%s:%u: rank %u again, first on line %u", path, line, rank,
                       ranks[rank].line);
    }
    ranks[rank] = (struct rank_line){s.p, (uint32_t)n, line};
    return KG_OK;
}

static int map_alloc(struct kg_tok_map *map, uint32_t n)
{
    uint64_t size = 16;
    while (size < 2 * (uint64_t)n) {
        size *= 2;
    }
    map->slots = calloc(size, sizeof(*map->slots));
    map->mask = size - 1;
    return map->slots == NULL ? KG_ENOMEM : KG_OK;
}

/* Adds an id whose bytes are in the blob. Returns the id that has the same bytes, or KG_NONE. */
static uint32_t map_add(const struct kg_tok *tok, struct kg_tok_map *map, uint32_t id)
{
    const char *p = tok->blob + tok->off[id];
    size_t n = tok->off[id + 1] - tok->off[id];
    uint32_t same = kg_tok_find(tok, map, p, n);
    if (same != KG_NONE) {
        return same;
    }
    uint64_t h = kg_tok_hash(p, n);
    uint64_t i = h & map->mask;
    while (map->slots[i] != 0) {
        i = (i + 1) & map->mask;
    }
    map->slots[i] = (h >> 32) << 32 | (id + 1);
    return KG_NONE;
}

/* Bytes, offsets and the map of all ranks; every rank has been seen once. */
static int fill_ranks(struct kg_tok *tok, const char *path, const struct rank_line *ranks,
                      struct kg_error *err)
{
    size_t at = 0;
    for (uint32_t r = 0; r < tok->n_ranks; r++) {
        int n = decode64(ranks[r].text, ranks[r].n, tok->blob + at);
        if (n < 0) {
            return kg_fail(err, KG_ECONFIG, "%s:%u: not base64", path, ranks[r].line);
        }
        tok->off[r] = (uint32_t)at;
        at += (size_t)n;
        tok->off[r + 1] = (uint32_t)at;
        uint32_t same = map_add(tok, &tok->map, r);
        if (same != KG_NONE) {
            return kg_fail(err, KG_ECONFIG, "%s:%u: rank %u has the bytes of rank %u", path,
                           ranks[r].line, r, same);
        }
        if ((uint32_t)n > tok->max_len) {
            tok->max_len = (uint32_t)n;
        }
    }
    for (uint32_t b = 0; b < 256; b++) {
        char c = (char)b;
        tok->byte_id[b] = kg_tok_find(tok, &tok->map, &c, 1);
        if (tok->byte_id[b] == KG_NONE) {
            return kg_fail(err, KG_ECONFIG, "%s: no token for the single byte 0x%02x", path, b);
        }
    }
    return KG_OK;
}

/*
 * Reads the lines of the file. Decoded bytes are fewer than its characters, so the blob fits;
 * control names are appended by add_names.
 */
int kg_tok_ranks(struct kg_tok *tok, const char *path, const struct kg_text *file,
                 struct kg_error *err)
{
    uint32_t n_lines = 0;
    for (size_t i = 0; i < file->n; i++) {
        n_lines += file->v[i] == '\n';
    }
    n_lines += file->n > 0 && file->v[file->n - 1] != '\n';
    if (n_lines == 0 || n_lines >= KG_TOK_MAX_VOCAB) {
        return kg_fail(err, KG_ECONFIG, "%s: %u lines, wanted 1 to %u", path, n_lines,
                       KG_TOK_MAX_VOCAB - 1);
    }
    struct rank_line *ranks = calloc(n_lines, sizeof(*ranks));
    tok->n_ranks = n_lines;
    tok->blob = malloc(file->n);
    tok->off = calloc((size_t)n_lines + 1, sizeof(*tok->off));
    int rc = KG_OK;
    if (ranks == NULL || tok->blob == NULL || tok->off == NULL ||
        map_alloc(&tok->map, n_lines) != KG_OK) {
        rc = kg_fail(err, KG_ENOMEM, "%s: out of memory", path);
    }
    const char *p = file->v, *end = file->v + file->n;
    for (uint32_t line = 1; line <= n_lines && rc == KG_OK; line++) {
        const char *nl = memchr(p, '\n', (size_t)(end - p));
        size_t len = (size_t)((nl != NULL ? nl : end) - p);
        rc = take_line(path, line, (struct kg_span){p, len}, ranks, n_lines, err);
        p += len + (nl != NULL);
    }
    if (rc == KG_OK) {
        rc = fill_ranks(tok, path, ranks, err);
    }
    free(ranks);
    return rc;
}

/* Parses a JSON file whose top is an object. */
static int read_json(const char *path, json_t **out, struct kg_error *err)
{
    struct kg_text file = {0};
    int rc = read_file(path, &file, err);
    if (rc == KG_OK) {
        json_error_t je;
        *out = json_loadb(file.v, file.n, JSON_REJECT_DUPLICATES, &je);
        if (*out == NULL) {
            rc = kg_fail(err, KG_ECONFIG, "%s:%d:%d: %s", path, je.line, je.column, je.text);
        } else if (!json_is_object(*out)) {
            json_decref(*out);
            *out = NULL;
            rc = kg_fail(err, KG_ECONFIG, "%s: not a JSON object", path);
        }
    }
    kg_text_free(&file);
    return rc;
}

/* vocab_size of config.json, of its text_config if that has one. Absent: 0. */
static int read_vocab_size(const char *dir, uint32_t *n_vocab, struct kg_error *err)
{
    char path[4096];
    (void)snprintf(path, sizeof(path), "%s/config.json", dir);
    json_t *config = NULL;
    int rc = read_json(path, &config, err);
    *n_vocab = 0;
    if (rc == KG_ENOENT) {
        return KG_OK;
    }
    if (rc != KG_OK) {
        return rc;
    }
    json_t *size = json_object_get(json_object_get(config, "text_config"), "vocab_size");
    if (size == NULL) {
        size = json_object_get(config, "vocab_size");
    }
    json_int_t v = json_integer_value(size);
    if (size != NULL && (v < 1 || v > (json_int_t)KG_TOK_MAX_VOCAB)) {
        rc = kg_fail(err, KG_ECONFIG, "%s: vocab_size: not an integer from 1 to %u", path,
                     KG_TOK_MAX_VOCAB);
    } else {
        *n_vocab = (uint32_t)v;
    }
    json_decref(config);
    return rc;
}

/* One member of added_tokens_decoder; *id and *name (borrowed) on success. */
static int added_token(const struct kg_tok *tok, const char *path, const char *key, json_t *value,
                       uint32_t *id, const char **name, struct kg_error *err)
{
    uint32_t v = decimal(key, strlen(key));
    if (v == KG_NONE || v < tok->n_ranks) {
        return kg_fail(err, KG_ECONFIG, "%s: added_tokens_decoder.%.40s: not an id from %u on",
                       path, key, tok->n_ranks);
    }
    const char *content = json_string_value(json_object_get(value, "content"));
    if (content == NULL || content[0] == '\0' || strlen(content) > KG_TOK_MAX_BYTES) {
        return kg_fail(err, KG_ECONFIG,
                       "%s: added_tokens_decoder.%s.content: not a string of 1 to %u bytes", path,
                       key, KG_TOK_MAX_BYTES);
    }
    *id = v;
    *name = content;
    return KG_OK;
}

/* names[i] and special[i] for id n_ranks + i; sets n_vocab. names' strings belong to `added`. */
static int collect_names(struct kg_tok *tok, const char *path, json_t *added, uint32_t n_vocab,
                         const char ***names, struct kg_error *err)
{
    const char *key;
    json_t *value;
    uint32_t id, top = tok->n_ranks;
    const char *name;
    json_object_foreach(added, key, value)
    {
        int rc = added_token(tok, path, key, value, &id, &name, err);
        if (rc != KG_OK) {
            return rc;
        }
        top = id + 1 > top ? id + 1 : top;
    }
    tok->n_vocab = n_vocab > 0 ? n_vocab : top;
    if (top > tok->n_vocab) {
        return kg_fail(err, KG_ECONFIG, "%s: id %u, but the vocabulary has %u ids", path, top - 1,
                       tok->n_vocab);
    }
    uint32_t n = tok->n_vocab - tok->n_ranks;
    if (n > KG_TOK_MAX_CONTROLS) {
        return kg_fail(err, KG_ECONFIG, "%s: %u ids behind the %u ranks, more than %u", path, n,
                       tok->n_ranks, KG_TOK_MAX_CONTROLS);
    }
    *names = calloc((size_t)n + 1, sizeof(**names));
    tok->special = calloc((size_t)n + 1, sizeof(*tok->special));
    if (*names == NULL || tok->special == NULL) {
        return kg_fail(err, KG_ENOMEM, "%s: out of memory", path);
    }
    memset(tok->special, true, n);
    json_object_foreach(added, key, value)
    {
        int rc = added_token(tok, path, key, value, &id, &name, err);
        if (rc != KG_OK) {
            return rc;
        }
        (*names)[id - tok->n_ranks] = name;
        json_t *special = json_object_get(value, "special");
        tok->special[id - tok->n_ranks] = special == NULL || json_is_true(special);
    }
    return KG_OK;
}

static int add_names(struct kg_tok *tok, const char *path, const char *const *names,
                     struct kg_error *err)
{
    uint32_t n = tok->n_vocab - tok->n_ranks;
    struct kg_text all = {0};
    uint32_t *off = realloc(tok->off, ((size_t)tok->n_vocab + 1) * sizeof(*off));
    if (off == NULL) {
        return kg_fail(err, KG_ENOMEM, "%s: out of memory", path);
    }
    tok->off = off;
    int rc = kg_text_add(&all, tok->blob, off[tok->n_ranks]);
    for (uint32_t i = 0; i < n && rc == KG_OK; i++) {
        char spare[48];
        (void)snprintf(spare, sizeof(spare), "<|reserved_token_%u|>", tok->n_ranks + i);
        rc = kg_text_puts(&all, names[i] != NULL ? names[i] : spare);
        off[tok->n_ranks + i + 1] = (uint32_t)all.n;
    }
    if (rc == KG_OK) {
        rc = map_alloc(&tok->controls, n);
    }
    if (rc != KG_OK || all.n >= UINT32_MAX) {
        kg_text_free(&all);
        return kg_fail(err, KG_ENOMEM, "%s: out of memory", path);
    }
    free(tok->blob);
    tok->blob = all.v;
    for (uint32_t id = tok->n_ranks; id < tok->n_vocab; id++) {
        uint32_t same = map_add(tok, &tok->controls, id);
        if (same != KG_NONE) {
            return kg_fail(err, KG_ECONFIG, "%s: ids %u and %u have the same content", path, same,
                           id);
        }
        uint32_t len = off[id + 1] - off[id];
        tok->max_control_len = len > tok->max_control_len ? len : tok->max_control_len;
        tok->control_first[(uint8_t)tok->blob[off[id]]] = true;
    }
    return KG_OK;
}

static int load_controls(struct kg_tok *tok, const char *dir, struct kg_error *err)
{
    char path[4096];
    uint32_t n_vocab = 0;
    int rc = read_vocab_size(dir, &n_vocab, err);
    if (rc != KG_OK) {
        return rc;
    }
    if (n_vocab > 0 && n_vocab < tok->n_ranks) {
        return kg_fail(err, KG_ECONFIG, "%s/config.json: vocab_size %u, but tiktoken.model has %u",
                       dir, n_vocab, tok->n_ranks);
    }
    (void)snprintf(path, sizeof(path), "%s/tokenizer_config.json", dir);
    json_t *config = NULL;
    rc = read_json(path, &config, err);
    if (rc != KG_OK) {
        return rc;
    }
    json_t *added = json_object_get(config, "added_tokens_decoder");
    const char **names = NULL;
    if (added != NULL && !json_is_object(added)) {
        rc = kg_fail(err, KG_ECONFIG, "%s: added_tokens_decoder: not an object", path);
    } else {
        rc = collect_names(tok, path, added, n_vocab, &names, err);
    }
    if (rc == KG_OK) {
        rc = add_names(tok, path, names, err);
    }
    free(names);
    json_decref(config);
    return rc;
}

int kg_tok_load(struct kg_tok *tok, const char *dir, struct kg_error *err)
{
    char path[4096];
    if (snprintf(path, sizeof(path), "%s/tokenizer_config.json", dir) >= (int)sizeof(path)) {
        return kg_fail(err, KG_ENOENT, "checkpoint path longer than %zu bytes", sizeof(path));
    }
    (void)snprintf(path, sizeof(path), "%s/tiktoken.model", dir);
    struct kg_text file = {0};
    int rc = read_file(path, &file, err);
    if (rc == KG_OK) {
        rc = kg_tok_ranks(tok, path, &file, err);
    }
    kg_text_free(&file);
    return rc == KG_OK ? load_controls(tok, dir, err) : rc;
}
