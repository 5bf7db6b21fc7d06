#include "opt.h"

#include "base/log.h"
#include "base/num.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

static size_t field_bytes(uint32_t type)
{
    switch (type) {
    case KG_OPT_U32:
    case KG_OPT_BOOL:
    case KG_OPT_ENUM:
        return sizeof(uint32_t);
    case KG_OPT_U64:
        return sizeof(uint64_t);
    case KG_OPT_F64:
        return sizeof(double);
    case KG_OPT_STR:
        return sizeof(const char *);
    default:
        return 0;
    }
}

static bool has_range(const struct kg_opt *row)
{
    return row->min != 0 || row->max != 0;
}

/* A bound as people write it: whole numbers without exponent. */
static void put_bound(struct kg_buf *b, double v)
{
    if (v == floor(v) && fabs(v) < 1e18)
        (void)kg_buf_printf(b, "%.0f", v);
    else
        (void)kg_buf_json_f64(b, v);
}

static void put_choices(const char *choices, struct kg_buf *b)
{
    for (const char *p = choices; *p != '\0'; p++) {
        if (*p == '|')
            (void)kg_buf_puts(b, ", ");
        else
            (void)kg_buf_putc(b, *p);
    }
}

void kg_opt_wanted(const struct kg_opt *row, struct kg_buf *b)
{
    switch (row->type) {
    case KG_OPT_BOOL:
        (void)kg_buf_puts(b, "yes or no");
        return;
    case KG_OPT_ENUM:
        put_choices(row->choices, b);
        return;
    case KG_OPT_STR:
        (void)kg_buf_puts(b, "text");
        return;
    default:
        break;
    }
    if (has_range(row)) {
        put_bound(b, row->min);
        (void)kg_buf_puts(b, " .. ");
        put_bound(b, row->max);
        return;
    }
    (void)kg_buf_puts(b, row->type == KG_OPT_F64 ? "a number" : "a whole number");
}

/* Index of `text` in "a|b|c", or -1. */
static int choice_index(const char *choices, const char *text)
{
    size_t n = strlen(text);
    int i = 0;

    for (const char *p = choices;; i++) {
        const char *bar = strchr(p, '|');
        size_t len = bar != NULL ? (size_t)(bar - p) : strlen(p);
        if (len == n && n > 0 && memcmp(p, text, n) == 0)
            return i;
        if (bar == NULL)
            return -1;
        p = bar + 1;
    }
}

static int refuse(const struct kg_opt *row, const char *text, struct kg_error *err)
{
    struct kg_buf wanted;

    kg_buf_init(&wanted, 300);
    kg_opt_wanted(row, &wanted);
    (void)kg_fail(err, KG_EINVAL, "%s = %s: wanted %s", row->name,
                  kg_log_quote(text, strlen(text)).text, kg_buf_cstr(&wanted));
    kg_buf_fini(&wanted);
    return KG_EINVAL;
}

static int parse_number(const struct kg_opt *row, const char *text, void *field,
                        struct kg_error *err)
{
    uint64_t u = 0;
    double d = 0;
    int rc;

    if (row->type == KG_OPT_F64) {
        rc = kg_num_f64(text, &d);
    } else {
        rc = row->type == KG_OPT_U64 ? kg_num_u64_suffix(text, &u) : kg_num_u64(text, &u);
        d = (double)u;
    }
    if (rc != KG_OK || (row->type == KG_OPT_U32 && u > UINT32_MAX))
        return refuse(row, text, err);
    if (has_range(row) && (d < row->min || d > row->max))
        return refuse(row, text, err);
    if (row->type == KG_OPT_F64)
        memcpy(field, &d, sizeof(d));
    else if (row->type == KG_OPT_U64)
        memcpy(field, &u, sizeof(u));
    else
        memcpy(field, &(uint32_t){(uint32_t)u}, sizeof(uint32_t));
    return KG_OK;
}

int kg_opt_parse(const struct kg_opt *row, const char *text, void *conf, struct kg_arena *strings,
                 struct kg_error *err)
{
    void *field = (char *)conf + row->offset;
    uint32_t word;
    int choice;
    char *copy;

    switch (row->type) {
    case KG_OPT_U32:
    case KG_OPT_U64:
    case KG_OPT_F64:
        return parse_number(row, text, field, err);
    case KG_OPT_BOOL:
        if (kg_num_bool(text, &word) != KG_OK)
            return refuse(row, text, err);
        memcpy(field, &word, sizeof(word));
        return KG_OK;
    case KG_OPT_ENUM:
        choice = choice_index(row->choices, text);
        if (choice < 0)
            return refuse(row, text, err);
        word = (uint32_t)choice;
        memcpy(field, &word, sizeof(word));
        return KG_OK;
    case KG_OPT_STR:
        copy = kg_arena_strndup(strings, text, strlen(text));
        if (copy == NULL)
            return kg_fail(err, KG_ENOMEM, "%s: out of memory", row->name);
        memcpy(field, &copy, sizeof(copy));
        return KG_OK;
    default:
        return kg_fail(err, KG_EABI, "%s: option type %u is not known", row->name, row->type);
    }
}

const struct kg_opt *kg_opt_find(const struct kg_opt *rows, const char *name)
{
    for (; rows != NULL && rows->name != NULL; rows++) {
        if (strcmp(rows->name, name) == 0)
            return rows;
    }
    return NULL;
}

int kg_opt_defaults(const struct kg_opt *rows, void *conf, struct kg_arena *strings,
                    struct kg_error *err)
{
    for (; rows != NULL && rows->name != NULL; rows++) {
        int rc = kg_opt_parse(rows, rows->def, conf, strings, err);
        if (rc != KG_OK)
            return rc;
    }
    return KG_OK;
}

bool kg_opt_name_ok(const char *s)
{
    if (*s < 'a' || *s > 'z')
        return false;
    for (; *s != '\0'; s++) {
        if ((*s < 'a' || *s > 'z') && (*s < '0' || *s > '9') && *s != '_')
            return false;
    }
    return true;
}

static int verify_shape(const struct kg_opt *row, size_t conf_size, struct kg_error *err)
{
    size_t bytes = field_bytes(row->type);

    if (!kg_opt_name_ok(row->name) || strlen(row->name) > 40)
        return kg_fail(err, KG_EABI, "option name: found \"%.40s\", wanted at most 40 of a-z 0-9 _",
                       row->name);
    if (bytes == 0)
        return kg_fail(err, KG_EABI, "option %s type: found %u, wanted 1 .. 6", row->name,
                       row->type);
    if ((row->flags & ~(KG_OPT_RELOAD | KG_OPT_ARM | KG_OPT_PATH)) != 0)
        return kg_fail(err, KG_EABI, "option %s flags: found 0x%x, wanted at most 0x%x", row->name,
                       row->flags, KG_OPT_RELOAD | KG_OPT_ARM | KG_OPT_PATH);
    if (row->offset % bytes != 0 || conf_size < bytes || row->offset > conf_size - bytes)
        return kg_fail(err, KG_EABI,
                       "option %s offset: found %zu, wanted a multiple of %zu inside %zu bytes",
                       row->name, row->offset, bytes, conf_size);
    if (row->def == NULL)
        return kg_fail(err, KG_EABI, "option %s default: found NULL, wanted text", row->name);
    if (row->doc == NULL || row->doc[0] == '\0')
        return kg_fail(err, KG_EABI, "option %s doc: found nothing, wanted a sentence", row->name);
    if (has_range(row) && !(row->min <= row->max))
        return kg_fail(err, KG_EABI, "option %s range: found %g .. %g, wanted min <= max",
                       row->name, row->min, row->max);
    if (row->type == KG_OPT_ENUM && (row->choices == NULL || row->choices[0] == '\0'))
        return kg_fail(err, KG_EABI, "option %s choices: found nothing, wanted words", row->name);
    return KG_OK;
}

int kg_opt_verify(const struct kg_opt *rows, size_t conf_size, struct kg_error *err)
{
    struct kg_error why;
    struct kg_arena arena;
    int rc = KG_OK;

    kg_arena_init(&arena, 0, 1 << 20);
    void *conf = kg_arena_zalloc(&arena, 1, conf_size + 1);
    if (conf == NULL)
        rc = kg_fail(err, KG_EABI, "option struct: found %zu bytes, wanted at most 1 MiB",
                     conf_size);
    for (const struct kg_opt *row = rows; rc == KG_OK && row != NULL && row->name != NULL; row++) {
        rc = verify_shape(row, conf_size, err);
        if (rc == KG_OK && kg_opt_find(rows, row->name) != row)
            rc = kg_fail(err, KG_EABI, "option %s: found twice, wanted once", row->name);
        if (rc == KG_OK && kg_opt_parse(row, row->def, conf, &arena, &why) != KG_OK)
            rc = kg_fail(err, KG_EABI, "option default %.400s", why.text);
    }
    kg_arena_fini(&arena);
    return rc;
}
