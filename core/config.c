/*
 * Reading. inih is kind to mistakes (it cuts long lines and takes the rest for a new key, reads
 * indented lines as continuations, calls the handler twice for a key given twice, and goes on in
 * the old section after a broken header), so every line passes line_fault() before inih sees it,
 * and a line that does not pass is handed on empty.
 */
#include "base/utf8.h"
#include "config_int.h"

#include <errno.h>
#include <ini.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* What inih holds of a line in Debian's build, its newline and NUL not counted; and of names. */
#define LINE_MAX_BYTES 197
#define NAME_MAX_BYTES 48
#define MAX_LINES 20000
#define WHERE_MAX (PATH_MAX + 16) /* "PATH:LINE" with its NUL */

struct source {
    struct kg_config *config;
    const char *name;
    const char *text; /* [n] */
    size_t n, at;
    int line;      /* number of the line handed out last */
    bool skipping; /* under a broken section header: its keys are not blamed on the one before */
    bool in_section;
};

int kg_config_create(struct kg_config **config)
{
    struct kg_config *c = calloc(1, sizeof(*c));

    if (c == NULL)
        return KG_ENOMEM;
    kg_arena_init(&c->arena, 16384, 64 << 20);
    kg_buf_init(&c->errors, 1 << 20);
    kg_buf_init(&c->warnings, 1 << 20);
    *config = c;
    return KG_OK;
}

void kg_config_destroy(struct kg_config *config)
{
    if (config == NULL)
        return;
    kg_buf_fini(&config->errors);
    kg_buf_fini(&config->warnings);
    kg_arena_fini(&config->arena);
    free(config->entries);
    free(config);
}

__attribute__((format(printf, 3, 0))) static void note(struct kg_buf *b, const char *where,
                                                       const char *fmt, va_list ap)
{
    (void)kg_buf_printf(b, "%s: ", where);
    (void)kg_buf_vprintf(b, fmt, ap);
    (void)kg_buf_putc(b, '\n');
}

void kg_config_blame(struct kg_config *c, const char *where, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    note(&c->errors, where, fmt, ap);
    va_end(ap);
    c->failed = true;
}

void kg_config_warn(struct kg_config *c, const char *where, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    note(&c->warnings, where, fmt, ap);
    va_end(ap);
}

struct kg_entry *kg_config_find(const struct kg_config *c, const char *section, const char *key)
{
    for (size_t i = 0; i < c->n_entries; i++) {
        struct kg_entry *e = &c->entries[i];
        if (strcmp(e->section, section) == 0 && strcmp(e->key, key) == 0)
            return e;
    }
    return NULL;
}

static struct kg_entry *new_entry(struct kg_config *c, const char *section, const char *key)
{
    if (c->n_entries == c->cap_entries) {
        size_t cap = c->cap_entries != 0 ? c->cap_entries * 2 : 64;
        struct kg_entry *p = realloc(c->entries, cap * sizeof(*p));
        if (p == NULL)
            return NULL;
        c->entries = p;
        c->cap_entries = cap;
    }
    struct kg_entry *e = &c->entries[c->n_entries];
    *e = (struct kg_entry){
        .section = kg_arena_strndup(&c->arena, section, strlen(section)),
        .key = kg_arena_strndup(&c->arena, key, strlen(key)),
    };
    if (e->section == NULL || e->key == NULL)
        return NULL;
    return e;
}

static int add_entry(struct kg_config *c, const char *section, const char *key, const char *value,
                     const char *where, bool from_set)
{
    struct kg_entry *e = kg_config_find(c, section, key);
    bool fresh = e == NULL;

    if (!fresh && !from_set) {
        kg_config_blame(c, where, "[%s] %s is given twice, first at %s", section, key, e->where);
        return KG_ECONFIG;
    }
    char *value_copy = kg_arena_strndup(&c->arena, value, strlen(value));
    char *where_copy = kg_arena_strndup(&c->arena, where, strlen(where));
    if (fresh)
        e = new_entry(c, section, key);
    if (e == NULL || value_copy == NULL || where_copy == NULL)
        return KG_ENOMEM;
    c->n_entries += fresh;
    e->value = value_copy;
    e->where = where_copy;
    e->from_set = from_set;
    return KG_OK;
}

static bool all_of(const char *s, size_t n, const char *legal)
{
    for (size_t i = 0; i < n; i++) {
        if (s[i] == '\0' || strchr(legal, s[i]) == NULL)
            return false;
    }
    return n > 0;
}

#define WORD "abcdefghijklmnopqrstuvwxyz0123456789_"

/* Moves *s past blanks; the length without blanks on either side. */
static size_t trim(const char **s, size_t n)
{
    while (n > 0 && (**s == ' ' || **s == '\t')) {
        (*s)++;
        n--;
    }
    while (n > 0 && ((*s)[n - 1] == ' ' || (*s)[n - 1] == '\t' || (*s)[n - 1] == '\r'))
        n--;
    return n;
}

static const char *header_fault(const char *s, size_t n)
{
    const char *end = memchr(s, ']', n);

    if (end == NULL)
        return "section header without ]";
    const char *rest = end + 1;
    size_t left = trim(&rest, n - (size_t)(rest - s));
    if (left > 0 && *rest != ';' && *rest != '#')
        return "text behind a section header";
    size_t len = (size_t)(end - s) - 1;
    if (len > NAME_MAX_BYTES)
        return "section name over 48 bytes";
    if (!all_of(s + 1, len, WORD "- "))
        return "section name: wanted a-z 0-9 _ - and blanks";
    return NULL;
}

static const char *key_fault(const char *s, size_t n)
{
    const char *eq = memchr(s, '=', n);
    const char *key = s;

    if (eq == NULL)
        return "wanted key = value";
    size_t len = trim(&key, (size_t)(eq - s));
    if (len > NAME_MAX_BYTES)
        return "key over 48 bytes";
    if (!all_of(key, len, WORD))
        return "key: wanted a-z 0-9 _ before =";
    for (const char *p = eq; p + 1 < s + n; p++) {
        if ((p[0] == ' ' || p[0] == '\t') && p[1] == '#')
            return "a comment behind a value begins with ;";
    }
    return NULL;
}

static bool has_control(const char *line, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)line[i];
        bool end_of_line = c == '\r' && i + 1 == n;
        if ((c < 0x20 && c != '\t' && !end_of_line) || c == 0x7f)
            return true;
    }
    return false;
}

/* What is wrong with a line (without its newline), NULL when nothing is. */
static const char *line_fault(struct source *s, const char *line, size_t n)
{
    const char *text = line;

    if (n > LINE_MAX_BYTES)
        return "line over 197 bytes";
    if (kg_utf8_valid(line, n) != n)
        return "not UTF-8";
    if (has_control(line, n))
        return "control character";
    size_t len = trim(&text, n);
    if (len == 0 || *text == ';' || *text == '#')
        return NULL;
    if (text != line)
        return "indented line; a value cannot go on in the next line";
    if (*text == '[') {
        const char *fault = header_fault(text, len);
        s->skipping = fault != NULL;
        s->in_section = true;
        return fault;
    }
    const char *fault = key_fault(text, len);
    if (fault == NULL && !s->in_section)
        return "key before any [section]";
    return fault;
}

/* An arm that overrides nothing may have an empty section; inih does not speak of those. */
static void note_arm(struct source *s, const char *line, size_t n, const char *where)
{
    const char *end = memchr(line, ']', n);
    char section[NAME_MAX_BYTES + 1];

    if (n == 0 || line[0] != '[' || end == NULL || end - line - 1 > NAME_MAX_BYTES)
        return;
    memcpy(section, line + 1, (size_t)(end - line) - 1);
    section[end - line - 1] = '\0';
    if (kg_config_is_arm(section) && kg_config_find(s->config, section, "") == NULL &&
        add_entry(s->config, section, "", "", where, false) != KG_OK)
        kg_config_blame(s->config, where, "out of memory");
}

/* fgets for inih: one checked line, or an empty one in place of a faulty one. */
static char *read_line(char *out, int num, void *stream)
{
    struct source *s = stream;
    char where[WHERE_MAX];

    if (s->at >= s->n || s->line >= MAX_LINES)
        return NULL;
    const char *line = s->text + s->at;
    const char *end = memchr(line, '\n', s->n - s->at);
    size_t len = end != NULL ? (size_t)(end - line) : s->n - s->at;
    s->at += len + (end != NULL);
    s->line++;
    const char *fault = line_fault(s, line, len);
    if (fault == NULL && (int)len + 2 > num)
        fault = "line too long for this build of inih";
    (void)snprintf(where, sizeof(where), "%s:%d", s->name, s->line);
    if (fault != NULL) {
        kg_config_blame(s->config, where, "%s", fault);
        len = 0;
    }
    note_arm(s, line, len, where);
    memcpy(out, line, len);
    out[len] = '\n';
    out[len + 1] = '\0';
    return out;
}

static int handle(void *user, const char *section, const char *key, const char *value)
{
    struct source *s = user;
    char where[WHERE_MAX];

    if (s->skipping)
        return 1;
    (void)snprintf(where, sizeof(where), "%s:%d", s->name, s->line);
    if (add_entry(s->config, section, key, value, where, false) == KG_ENOMEM)
        kg_config_blame(s->config, where, "out of memory");
    return 1;
}

int kg_config_read_text(struct kg_config *config, const char *name, const char *text, size_t n)
{
    struct source s = {.config = config, .name = name, .text = text, .n = n};
    char where[WHERE_MAX];

    if (n >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0)
        s.at = 3;
    int line = ini_parse_stream(read_line, &s, handle, &s);
    (void)snprintf(where, sizeof(where), "%s:%d", name, line > 0 ? line : s.line);
    if (s.at < s.n)
        kg_config_blame(config, where, "more than %d lines", MAX_LINES);
    else if (line != 0 && !config->failed)
        kg_config_blame(config, where, "not read: neither section nor key");
    return config->failed ? KG_ECONFIG : KG_OK;
}

/* The folder of a path with its slash, "" for the current one. */
static const char *folder_of(struct kg_config *c, const char *path)
{
    const char *slash = strrchr(path, '/');

    if (slash == NULL)
        return "";
    const char *dir = kg_arena_strndup(&c->arena, path, (size_t)(slash - path) + 1);
    return dir != NULL ? dir : "";
}

int kg_config_read(struct kg_config *config, const char *path)
{
    struct kg_buf text;
    char chunk[4096];
    size_t got;

    FILE *f = fopen(path, "rb");
    if (f == NULL) {
        kg_config_blame(config, path, "%s", strerror(errno));
        return KG_ECONFIG;
    }
    kg_buf_init(&text, 1 << 20);
    while (text.rc == KG_OK && (got = fread(chunk, 1, sizeof(chunk), f)) > 0)
        (void)kg_buf_add(&text, chunk, got);
    int bad = ferror(f) ? errno : 0;
    (void)fclose(f);
    config->folder = folder_of(config, path);
    if (bad != 0)
        kg_config_blame(config, path, "cannot be read: %s", strerror(bad));
    else if (text.rc != KG_OK)
        kg_config_blame(config, path, "over 1 MiB");
    else
        (void)kg_config_read_text(config, path, kg_buf_cstr(&text), text.len);
    kg_buf_fini(&text);
    return config->failed ? KG_ECONFIG : KG_OK;
}

int kg_config_set(struct kg_config *config, const char *assignment)
{
    const char *eq = strchr(assignment, '=');
    const char *dot = eq != NULL ? memchr(assignment, '.', (size_t)(eq - assignment)) : NULL;
    char section[NAME_MAX_BYTES + 1], key[NAME_MAX_BYTES + 1];

    if (dot == NULL || dot - assignment > NAME_MAX_BYTES || eq - dot - 1 > NAME_MAX_BYTES ||
        !all_of(assignment, (size_t)(dot - assignment), WORD "- ") ||
        !all_of(dot + 1, (size_t)(eq - dot) - 1, WORD) ||
        kg_utf8_valid(eq, strlen(eq)) != strlen(eq) || has_control(eq, strlen(eq))) {
        kg_config_blame(config, "--set", "%s: wanted section.key=value",
                        kg_log_quote(assignment, strlen(assignment)).text);
        return KG_ECONFIG;
    }
    memcpy(section, assignment, (size_t)(dot - assignment));
    section[dot - assignment] = '\0';
    memcpy(key, dot + 1, (size_t)(eq - dot) - 1);
    key[eq - dot - 1] = '\0';
    int rc = add_entry(config, section, key, eq + 1, "--set", true);
    if (rc != KG_OK)
        kg_config_blame(config, "--set", "%s.%s: out of memory", section, key);
    return rc;
}

const char *kg_config_errors(const struct kg_config *config)
{
    return kg_buf_cstr(&config->errors);
}

const char *kg_config_warnings(const struct kg_config *config)
{
    return kg_buf_cstr(&config->warnings);
}
