#include "model/safetensors.h"

#include "model/file.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define INDEX_NAME "model.safetensors.index.json"
#define SINGLE_NAME "model.safetensors"
#define MAX_NAME 1024

struct shard {
    char *path;
    const void *map; /* NULL when the bytes are somebody else's */
    uint64_t n;
};

struct kg_st {
    struct shard *shards;
    uint32_t n_shards;
    struct kg_st_tensor *tensors; /* sorted by name once open */
    uint64_t n, room;
};

static const struct {
    const char *name;
    uint32_t dtype;
    uint32_t bytes;
} dtypes[] = {
    {"F32", KG_F32, 4},          {"BF16", KG_BF16, 2},
    {"F16", KG_F16, 2},          {"U8", KG_U8, 1},
    {"I32", KG_I32, 4},          {"U32", KG_U32, 4},
    {"I64", KG_I64, 8},          {"F64", KG_ST_OTHER, 8},
    {"U64", KG_ST_OTHER, 8},     {"I16", KG_ST_OTHER, 2},
    {"U16", KG_ST_OTHER, 2},     {"I8", KG_ST_OTHER, 1},
    {"BOOL", KG_ST_OTHER, 1},    {"F8_E4M3", KG_ST_OTHER, 1},
    {"F8_E5M2", KG_ST_OTHER, 1}, {"F8_E8M0", KG_ST_OTHER, 1},
};
#define N_DTYPES (sizeof(dtypes) / sizeof(dtypes[0]))

const char *kg_st_dtype_name(uint32_t dtype)
{
    for (size_t i = 0; i < N_DTYPES && dtype != KG_ST_OTHER; i++) {
        if (dtypes[i].dtype == dtype) {
            return dtypes[i].name;
        }
    }
    return "?";
}

/* What is being read, for messages. */
struct place {
    const char *file;
    const char *tensor;
    struct kg_error *err;
};

__attribute__((format(printf, 2, 3))) static int bad(const struct place *at, const char *fmt, ...)
{
    char what[256], name[KG_PRINTABLE];
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(what, sizeof(what), fmt, ap);
    va_end(ap);
    return kg_fail(at->err, KG_EINVAL, "%.200s: %s: %s", at->file, kg_printable(at->tensor, name),
                   what);
}

static int read_dtype(const struct place *at, const json_t *v, struct kg_st_tensor *t,
                      uint32_t *bytes)
{
    const char *s = json_string_value(v);
    char buf[KG_PRINTABLE];

    if (s == NULL) {
        return bad(at, "dtype must be a string");
    }
    for (size_t i = 0; i < N_DTYPES; i++) {
        if (strcmp(s, dtypes[i].name) == 0) {
            t->dtype = dtypes[i].dtype;
            *bytes = dtypes[i].bytes;
            return KG_OK;
        }
    }
    return bad(at, "dtype %s is unknown", kg_printable(s, buf));
}

/* Reads the shape; *bytes becomes the bytes it spans. */
static int read_shape(const struct place *at, const json_t *v, struct kg_st_tensor *t,
                      uint64_t *bytes)
{
    size_t n = json_array_size(v);

    if (!json_is_array(v) || n > KG_ST_MAX_DIMS) {
        return bad(at, "shape must be a list of at most %d numbers", KG_ST_MAX_DIMS);
    }
    t->n_dims = (uint32_t)n;
    for (size_t i = 0; i < n; i++) {
        const json_t *d = json_array_get(v, i);
        if (!json_is_integer(d) || json_integer_value(d) < 0) {
            return bad(at, "shape[%zu] must be an integer of at least 0", i);
        }
        t->dims[i] = (uint64_t)json_integer_value(d);
        if (__builtin_mul_overflow(*bytes, t->dims[i], bytes)) {
            return bad(at, "the product of its shape does not fit 64 bits");
        }
    }
    return KG_OK;
}

/* Reads data_offsets: begin <= end <= n_data. */
static int read_span(const struct place *at, const json_t *v, uint64_t n_data, uint64_t span[2])
{
    if (!json_is_array(v) || json_array_size(v) != 2) {
        return bad(at, "data_offsets must be a list of two numbers");
    }
    for (size_t i = 0; i < 2; i++) {
        const json_t *o = json_array_get(v, i);
        if (!json_is_integer(o) || json_integer_value(o) < 0) {
            return bad(at, "data_offsets[%zu] must be an integer of at least 0", i);
        }
        span[i] = (uint64_t)json_integer_value(o);
    }
    if (span[0] > span[1]) {
        return bad(at, "data_offsets run backwards: %" PRIu64 " to %" PRIu64, span[0], span[1]);
    }
    if (span[1] > n_data) {
        return bad(at, "data_offsets end at %" PRIu64 ", the file has %" PRIu64 " bytes of data",
                   span[1], n_data);
    }
    return KG_OK;
}

static int read_tensor(const struct place *at, const json_t *v, const char *data, uint64_t n_data,
                       struct kg_st_tensor *t)
{
    uint64_t bytes, span[2] = {0};
    uint32_t size = 0;
    int rc;

    if (at->tensor[0] == '\0' || strlen(at->tensor) > MAX_NAME) {
        return bad(at, "a tensor name has 1 to %d bytes", MAX_NAME);
    }
    if (!json_is_object(v)) {
        return bad(at, "its entry in the header is not an object");
    }
    if ((rc = read_dtype(at, json_object_get(v, "dtype"), t, &size)) < 0) {
        return rc;
    }
    bytes = size;
    if ((rc = read_shape(at, json_object_get(v, "shape"), t, &bytes)) < 0 ||
        (rc = read_span(at, json_object_get(v, "data_offsets"), n_data, span)) < 0) {
        return rc;
    }
    if (bytes != span[1] - span[0]) {
        return bad(at, "shape and dtype need %" PRIu64 " bytes, data_offsets span %" PRIu64, bytes,
                   span[1] - span[0]);
    }
    t->bytes = bytes;
    t->data = data + span[0];
    return KG_OK;
}

static int add_tensor(struct kg_st *st, const struct kg_st_tensor *t, const char *name,
                      struct kg_error *err)
{
    if (st->n == st->room) {
        uint64_t room = st->room == 0 ? 256 : 2 * st->room;
        struct kg_st_tensor *p = realloc(st->tensors, (size_t)room * sizeof(*p));
        if (p == NULL) {
            return kg_fail(err, KG_ENOMEM, "no memory for the table of tensors");
        }
        st->tensors = p;
        st->room = room;
    }
    char *copy = strdup(name);
    if (copy == NULL) {
        return kg_fail(err, KG_ENOMEM, "no memory for the names of tensors");
    }
    st->tensors[st->n] = *t;
    st->tensors[st->n++].name = copy;
    return KG_OK;
}

static int by_data(const void *a, const void *b)
{
    const struct kg_st_tensor *x = a, *y = b;
    uintptr_t p = (uintptr_t)x->data, q = (uintptr_t)y->data;

    if (p != q) {
        return p < q ? -1 : 1;
    }
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

static int by_name(const void *a, const void *b)
{
    const struct kg_st_tensor *x = a, *y = b;

    return strcmp(x->name, y->name);
}

/* No two tensors of one file share a byte. Sorts them by place. */
static int check_overlap(const char *file, struct kg_st_tensor *t, uint64_t n, struct kg_error *err)
{
    const struct kg_st_tensor *last = NULL;

    if (n > 0) {
        qsort(t, (size_t)n, sizeof(*t), by_data);
    }
    for (uint64_t i = 0; i < n; i++) {
        if (t[i].bytes == 0) {
            continue;
        }
        if (last != NULL && (const char *)last->data + last->bytes > (const char *)t[i].data) {
            struct place at = {.file = file, .tensor = t[i].name, .err = err};
            char other[KG_PRINTABLE];
            return bad(&at, "its data overlap those of %s", kg_printable(last->name, other));
        }
        last = &t[i];
    }
    return KG_OK;
}

/* The header's text, or NULL with err. */
static json_t *load_header(const char *file, const char *data, uint64_t n, uint64_t *n_header,
                           struct kg_error *err)
{
    uint64_t len = 0;
    json_error_t e;

    if (n < 8) {
        (void)kg_fail(err, KG_EINVAL, "%.200s: %" PRIu64 " bytes are too few for a header", file,
                      n);
        return NULL;
    }
    for (int i = 7; i >= 0; i--) {
        len = len << 8 | (unsigned char)data[i];
    }
    if (len > n - 8 || len > KG_ST_MAX_HEADER) {
        (void)kg_fail(err, KG_EINVAL,
                      "%.200s: header of %" PRIu64 " bytes in a file of %" PRIu64
                      " (at most %u are accepted)",
                      file, len, n, KG_ST_MAX_HEADER);
        return NULL;
    }
    if (len == 0 || data[8] != '{') {
        (void)kg_fail(err, KG_EINVAL, "%.200s: the header is not a JSON object", file);
        return NULL;
    }
    json_t *root = json_loadb(data + 8, (size_t)len, JSON_REJECT_DUPLICATES, &e);
    if (root == NULL) {
        char buf[KG_PRINTABLE];
        (void)kg_fail(err, KG_EINVAL, "%.200s: header: %s (at byte %d)", file,
                      kg_printable(e.text, buf), e.position);
        return NULL;
    }
    *n_header = 8 + len;
    return root;
}

/* Adds the tensors of one file in memory. */
static int add_file(struct kg_st *st, uint32_t shard, const char *file, const void *map, uint64_t n,
                    struct kg_error *err)
{
    const char *data = map;
    uint64_t first = st->n, n_header = 0;
    json_t *root = load_header(file, data, n, &n_header, err);
    int rc = KG_OK;

    if (root == NULL) {
        return KG_EINVAL;
    }
    for (void *it = json_object_iter(root); it != NULL && rc == KG_OK;
         it = json_object_iter_next(root, it)) {
        struct place at = {.file = file, .tensor = json_object_iter_key(it), .err = err};
        const json_t *v = json_object_iter_value(it);
        struct kg_st_tensor t = {.shard = shard};
        if (strcmp(at.tensor, "__metadata__") == 0) {
            rc = json_is_object(v) ? KG_OK : bad(&at, "must be an object");
            continue;
        }
        rc = read_tensor(&at, v, data + n_header, n - n_header, &t);
        if (rc == KG_OK) {
            rc = add_tensor(st, &t, at.tensor, err);
        }
    }
    json_decref(root);
    if (rc < 0 || st->n == first) {
        return rc;
    }
    return check_overlap(file, st->tensors + first, st->n - first, err);
}

/* Sorts by name once all files are in; a name in two files is refused. */
static int finish(struct kg_st *st, struct kg_error *err)
{
    if (st->n > 0) {
        qsort(st->tensors, (size_t)st->n, sizeof(*st->tensors), by_name);
    }
    for (uint64_t i = 1; i < st->n; i++) {
        const struct kg_st_tensor *a = &st->tensors[i - 1], *b = &st->tensors[i];
        if (strcmp(a->name, b->name) == 0) {
            struct place at = {.file = st->shards[a->shard].path, .tensor = a->name, .err = err};
            return bad(&at, "is in %.120s too", st->shards[b->shard].path);
        }
    }
    return KG_OK;
}

static struct kg_st *new_st(uint32_t n_shards, struct kg_error *err)
{
    struct kg_st *st = calloc(1, sizeof(*st));

    if (st != NULL) {
        st->shards = calloc(n_shards, sizeof(*st->shards));
        st->n_shards = n_shards;
    }
    if (st == NULL || st->shards == NULL) {
        free(st);
        (void)kg_fail(err, KG_ENOMEM, "no memory for the list of shards");
        return NULL;
    }
    return st;
}

void kg_st_close(struct kg_st *st)
{
    if (st == NULL) {
        return;
    }
    for (uint64_t i = 0; i < st->n; i++) {
        free((char *)(uintptr_t)st->tensors[i].name);
    }
    for (uint32_t i = 0; i < st->n_shards; i++) {
        kg_file_unmap(st->shards[i].map, st->shards[i].n);
        free(st->shards[i].path);
    }
    free(st->tensors);
    free(st->shards);
    free(st);
}

/* Maps one shard, whose path the caller has set, and adds its tensors. */
static int open_shard(struct kg_st *st, uint32_t i, struct kg_error *err)
{
    struct shard *s = &st->shards[i];
    int rc = kg_file_map(s->path, &s->map, &s->n, err);

    return rc < 0 ? rc : add_file(st, i, s->path, s->map, s->n, err);
}

/* A checkpoint of one shard: n bytes of memory, or with data NULL the file itself. */
static int open_single(const char *file, const void *data, uint64_t n, struct kg_st **st,
                       struct kg_error *err)
{
    struct kg_st *s = new_st(1, err);
    int rc;

    if (s == NULL) {
        return KG_ENOMEM;
    }
    s->shards[0].path = strdup(file);
    if (s->shards[0].path == NULL) {
        rc = kg_fail(err, KG_ENOMEM, "%.200s: no memory", file);
    } else {
        rc = data != NULL ? add_file(s, 0, file, data, n, err) : open_shard(s, 0, err);
    }
    if (rc == KG_OK) {
        rc = finish(s, err);
    }
    if (rc < 0) {
        kg_st_close(s);
        return rc;
    }
    *st = s;
    return KG_OK;
}

int kg_st_parse(const char *file, const void *data, uint64_t n, struct kg_st **st,
                struct kg_error *err)
{
    return open_single(file, data != NULL ? data : "", n, st, err);
}

int kg_st_open_file(const char *path, struct kg_st **st, struct kg_error *err)
{
    return open_single(path, NULL, 0, st, err);
}

/* A shard is a plain file name beside the index: nothing that leads out of the folder. */
static int is_shard_name(const char *s)
{
    size_t n = strlen(s);
    const char *end = ".safetensors";
    size_t n_end = strlen(end);

    if (n <= n_end || n > 255 || s[0] == '.' || strcmp(s + n - n_end, end) != 0) {
        return 0;
    }
    for (size_t i = 0; i < n; i++) {
        if ((unsigned char)s[i] <= 0x20 || s[i] == 0x7f || s[i] == '/' || s[i] == '\\') {
            return 0;
        }
    }
    return 1;
}

/* The different file names of the weight map, as an object name -> shard number, or NULL. */
static json_t *shard_set(const char *index, json_t *map, struct kg_error *err)
{
    json_t *set = json_object();

    if (set == NULL) {
        (void)kg_fail(err, KG_ENOMEM, "%.200s: no memory", index);
        return NULL;
    }
    for (void *it = json_object_iter(map); it != NULL; it = json_object_iter_next(map, it)) {
        const char *name = json_string_value(json_object_iter_value(it));
        struct place at = {.file = index, .tensor = json_object_iter_key(it), .err = err};
        if (name == NULL || !is_shard_name(name)) {
            char buf[KG_PRINTABLE];
            (void)bad(&at, "its file %s is not a plain NAME.safetensors",
                      name == NULL ? "(not a string)" : kg_printable(name, buf));
            goto err_set;
        }
        if (json_object_get(set, name) != NULL) {
            continue;
        }
        if (json_object_size(set) == KG_ST_MAX_SHARDS) {
            (void)kg_fail(err, KG_EINVAL, "%.200s: names more than %d files", index,
                          KG_ST_MAX_SHARDS);
            goto err_set;
        }
        if (json_object_set_new(set, name, json_integer((json_int_t)json_object_size(set))) != 0) {
            (void)kg_fail(err, KG_ENOMEM, "%.200s: no memory", index);
            goto err_set;
        }
    }
    return set;

err_set:
    json_decref(set);
    return NULL;
}

/* Every tensor of the index is in the shard it names, and no shard has others. */
static int check_index(const char *index, const struct kg_st *st, json_t *map, json_t *set,
                       struct kg_error *err)
{
    for (void *it = json_object_iter(map); it != NULL; it = json_object_iter_next(map, it)) {
        const char *file = json_string_value(json_object_iter_value(it));
        struct place at = {.file = index, .tensor = json_object_iter_key(it), .err = err};
        const struct kg_st_tensor *t = kg_st_find(st, at.tensor);
        if (t == NULL) {
            return bad(&at, "is not in %.120s, where the index places it", file);
        }
        if ((json_int_t)t->shard != json_integer_value(json_object_get(set, file))) {
            return bad(&at, "is in %.120s, the index places it in %.60s", st->shards[t->shard].path,
                       file);
        }
    }
    for (uint64_t i = 0; i < st->n; i++) {
        const struct kg_st_tensor *t = &st->tensors[i];
        if (json_object_get(map, t->name) == NULL) {
            struct place at = {.file = st->shards[t->shard].path, .tensor = t->name, .err = err};
            return bad(&at, "is not in the index");
        }
    }
    return KG_OK;
}

/* Opens all shards of a set. */
static int open_shards(const char *dir, json_t *set, struct kg_st **st, struct kg_error *err)
{
    struct kg_st *s = new_st((uint32_t)json_object_size(set), err);
    int rc = s == NULL ? KG_ENOMEM : KG_OK;
    uint32_t i = 0;

    for (void *it = json_object_iter(set); it != NULL && rc == KG_OK;
         it = json_object_iter_next(set, it), i++) {
        s->shards[i].path = kg_file_join(dir, json_object_iter_key(it));
        rc = s->shards[i].path == NULL ? kg_fail(err, KG_ENOMEM, "%.200s: no memory", dir)
                                       : open_shard(s, i, err);
    }
    if (rc == KG_OK) {
        rc = finish(s, err);
    }
    if (rc < 0) {
        kg_st_close(s);
        return rc;
    }
    *st = s;
    return KG_OK;
}

static int open_indexed(const char *dir, const char *index, struct kg_st **st, struct kg_error *err)
{
    char *text = NULL;
    json_t *root = NULL, *set = NULL, *map;
    struct kg_st *s = NULL;
    json_error_t e;
    size_t n = 0;
    int rc = kg_file_read(index, KG_ST_MAX_INDEX, &text, &n, err);

    if (rc < 0) {
        return rc;
    }
    root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &e);
    free(text);
    if (root == NULL) {
        char buf[KG_PRINTABLE];
        return kg_fail(err, KG_EINVAL, "%.200s:%d: %s", index, e.line, kg_printable(e.text, buf));
    }
    map = json_object_get(root, "weight_map");
    if (!json_is_object(map) || json_object_size(map) == 0) {
        rc = kg_fail(err, KG_EINVAL, "%.200s: weight_map must be an object that names tensors",
                     index);
        goto out;
    }
    set = shard_set(index, map, err);
    rc = set == NULL ? KG_EINVAL : open_shards(dir, set, &s, err);
    if (rc == KG_OK) {
        rc = check_index(index, s, map, set, err);
    }
    if (rc == KG_OK) {
        *st = s;
    } else {
        kg_st_close(s);
    }
out:
    json_decref(set);
    json_decref(root);
    return rc;
}

int kg_st_open(const char *dir, struct kg_st **st, struct kg_error *err)
{
    char *index = kg_file_join(dir, INDEX_NAME);
    char *single = kg_file_join(dir, SINGLE_NAME);
    int rc;

    if (index == NULL || single == NULL) {
        rc = kg_fail(err, KG_ENOMEM, "%.200s: no memory", dir);
    } else if (kg_file_exists(index)) {
        rc = open_indexed(dir, index, st, err);
    } else {
        rc = kg_st_open_file(single, st, err);
    }
    free(single);
    free(index);
    return rc;
}

uint64_t kg_st_count(const struct kg_st *st)
{
    return st->n;
}

const struct kg_st_tensor *kg_st_at(const struct kg_st *st, uint64_t i)
{
    return &st->tensors[i];
}

const struct kg_st_tensor *kg_st_find(const struct kg_st *st, const char *name)
{
    struct kg_st_tensor key = {.name = name};

    return st->n == 0 ? NULL : bsearch(&key, st->tensors, (size_t)st->n, sizeof(key), by_name);
}

const char *kg_st_file(const struct kg_st *st, uint32_t shard)
{
    return st->shards[shard].path;
}
