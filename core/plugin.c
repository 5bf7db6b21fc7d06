#include "plugin.h"

#include "engine/builtin/builtin.h"

#include <dirent.h>
#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

const struct kg_plugin *kg_plugin_builtin(uint32_t kind, const char *name)
{
    for (const struct kg_plugin *const *p = kg_builtins; *p != NULL; p++) {
        if ((*p)->kind == kind && strcmp((*p)->name, name) == 0)
            return *p;
    }
    return NULL;
}

/*
 * dlopen maps what the program headers promise and dies of SIGBUS when the file ends before: a
 * half-copied plugin must be refused first. Says nothing about files that are no ELF at all: dlopen
 * has words for those.
 */
static int is_whole(const char *path, struct kg_error *err)
{
    struct stat st;
    Elf64_Ehdr head;
    Elf64_Phdr part;
    int rc = KG_OK, fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

    if (fd < 0)
        return KG_OK;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) ||
        pread(fd, &head, sizeof(head), 0) != (ssize_t)sizeof(head) ||
        memcmp(head.e_ident, ELFMAG, SELFMAG) != 0 || head.e_ident[EI_CLASS] != ELFCLASS64 ||
        head.e_phentsize != sizeof(part))
        goto out;
    uint64_t size = (uint64_t)st.st_size;
    for (uint32_t i = 0; i < head.e_phnum && rc == KG_OK; i++) {
        uint64_t at = head.e_phoff + (uint64_t)i * sizeof(part);
        if (at > size || pread(fd, &part, sizeof(part), (off_t)at) != (ssize_t)sizeof(part))
            rc = kg_fail(err, KG_EABI, "%s: cut off: its program headers lie behind its end", path);
        else if (part.p_type == PT_LOAD &&
                 (part.p_offset > size || part.p_filesz > size - part.p_offset))
            rc = kg_fail(err, KG_EABI, "%s: cut off: %llu bytes, segment %u wants %llu", path,
                         (unsigned long long)size, i,
                         (unsigned long long)(part.p_offset + part.p_filesz));
    }
out:
    (void)close(fd);
    return rc;
}

static int open_file(const char *path, uint32_t kind, const char *name, struct kg_plugin_ref *out,
                     struct kg_error *err)
{
    kg_plugin_entry_fn *entry;

    if (is_whole(path, err) != KG_OK)
        return KG_EABI;
    /* NODELETE: threads of a vendor library may still run in it; the process ends instead. */
    void *so = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (so == NULL) {
        const char *why = dlerror();
        return kg_fail(err, access(path, F_OK) != 0 ? KG_ENOENT : KG_EABI, "%s: does not load: %s",
                       path, why != NULL ? why : "unknown reason");
    }
    *(void **)&entry = dlsym(so, KG_PLUGIN_SYMBOL);
    if (entry == NULL)
        return kg_fail(err, KG_EABI, "%s: symbol: found none, wanted %s", path, KG_PLUGIN_SYMBOL);
    const struct kg_plugin *p = entry();
    int rc = kg_plugin_verify(p, kind, name, path, err);
    if (rc != KG_OK)
        return rc;
    out->plugin = p;
    (void)snprintf(out->path, sizeof(out->path), "%s", path);
    return KG_OK;
}

/* DIR/FILE.so or DIR/FILE/FILE.so into path; false when neither exists or is too long. */
static bool find_file(const char *dir, const char *file, char path[KG_PLUGIN_PATH])
{
    int n = snprintf(path, KG_PLUGIN_PATH, "%s/%s.so", dir, file);
    if (n > 0 && n < KG_PLUGIN_PATH && access(path, F_OK) == 0)
        return true;
    n = snprintf(path, KG_PLUGIN_PATH, "%s/%s/%s.so", dir, file, file);
    return n > 0 && n < KG_PLUGIN_PATH && access(path, F_OK) == 0;
}

/* A word of a configuration: a-z 0-9 - only, so that it can never leave the folder. */
static bool word_ok(const char *s)
{
    size_t n = strlen(s);

    return n > 0 && n <= 40 && strspn(s, "abcdefghijklmnopqrstuvwxyz0123456789-") == n;
}

/* "pool-unified" -> "unified" when the kind fits. */
static const char *strip_kind(uint32_t kind, const char *word)
{
    const char *k = kg_plugin_kind_name(kind);
    size_t n = strlen(k);

    return strncmp(word, k, n) == 0 && word[n] == '-' ? word + n + 1 : word;
}

/* A path to a file: its base name without ".so" and kind is the name it must have. */
static int load_path(uint32_t kind, const char *path, struct kg_plugin_ref *out,
                     struct kg_error *err)
{
    const char *base = strrchr(path, '/') + 1;
    size_t n = strlen(base);
    char word[64];

    if (strlen(path) >= KG_PLUGIN_PATH)
        return kg_fail(err, KG_ELIMIT, "plugin path: %zu bytes, at most %d", strlen(path),
                       KG_PLUGIN_PATH - 1);
    if (n < 4 || n - 3 >= sizeof(word) || strcmp(base + n - 3, ".so") != 0)
        return kg_fail(err, KG_ENOENT, "%s: a plugin file is called %s-NAME.so", path,
                       kg_plugin_kind_name(kind));
    memcpy(word, base, n - 3);
    word[n - 3] = '\0';
    return open_file(path, kind, strip_kind(kind, word), out, err);
}

int kg_plugin_load(const char *dir, uint32_t kind, const char *word, struct kg_plugin_ref *out,
                   struct kg_error *err)
{
    char file[64], path[KG_PLUGIN_PATH];

    if (strchr(word, '/') != NULL)
        return load_path(kind, word, out, err);
    if (!word_ok(word))
        return kg_fail(err, KG_ENOENT,
                       "plugin name \"%.60s\": wanted a-z 0-9 -, or a path with a slash", word);
    const char *name = strip_kind(kind, word);
    const struct kg_plugin *p = kg_plugin_builtin(kind, name);
    if (p != NULL) {
        int rc = kg_plugin_verify(p, kind, name, "built-in", err);
        if (rc == KG_OK) {
            out->plugin = p;
            out->path[0] = '\0';
        }
        return rc;
    }
    (void)snprintf(file, sizeof(file), "%s-%s", kg_plugin_kind_name(kind), name);
    if (!find_file(dir, file, path))
        return kg_fail(err, KG_ENOENT,
                       "no plugin %s: not built in, and no %s.so in %s; kedge plugins lists what "
                       "there is",
                       file, file, dir);
    return open_file(path, kind, name, out, err);
}

/* Names found in a folder. */
struct names {
    char (*v)[64]; /* "pool-unified" */
    size_t n, cap;
};

static int add_name(struct names *names, const char *name, size_t n)
{
    if (names->n == names->cap) {
        size_t cap = names->cap != 0 ? names->cap * 2 : 32;
        void *v = realloc(names->v, cap * sizeof(*names->v));
        if (v == NULL)
            return KG_ENOMEM;
        names->v = v;
        names->cap = cap;
    }
    memcpy(names->v[names->n], name, n);
    names->v[names->n][n] = '\0';
    names->n++;
    return KG_OK;
}

/* Whether "KIND-NAME" names a kind; *kind and where NAME begins. */
static bool split_name(const char *s, uint32_t *kind, const char **name)
{
    const char *dash = strchr(s, '-');

    if (dash == NULL || dash[1] == '\0')
        return false;
    *kind = kg_plugin_kind_parse(s, (size_t)(dash - s));
    *name = dash + 1;
    return *kind != 0;
}

static int collect(const char *dir, struct names *names, struct kg_error *err)
{
    DIR *d = opendir(dir);
    struct dirent *e;
    int rc = KG_OK;

    if (d == NULL)
        return kg_fail(err, KG_EIO, "%s: %s", dir, strerror(errno));
    while (rc == KG_OK && (e = readdir(d)) != NULL) {
        char path[KG_PLUGIN_PATH], word[64];
        const char *name;
        uint32_t kind;
        size_t n = strlen(e->d_name);
        if (n > 3 && strcmp(e->d_name + n - 3, ".so") == 0)
            n -= 3;
        if (n >= sizeof(word))
            continue;
        memcpy(word, e->d_name, n);
        word[n] = '\0';
        if (!split_name(word, &kind, &name) || !word_ok(word) || !find_file(dir, word, path))
            continue;
        rc = add_name(names, word, n);
    }
    (void)closedir(d);
    return rc == KG_OK ? KG_OK : kg_fail(err, rc, "%s: out of memory", dir);
}

/* By kind, then by name. */
static int compare(const void *a, const void *b)
{
    uint32_t ka = 0, kb = 0;
    const char *na = "", *nb = "";

    (void)split_name(a, &ka, &na);
    (void)split_name(b, &kb, &nb);
    return ka != kb ? (ka < kb ? -1 : 1) : strcmp(na, nb);
}

int kg_plugin_scan_kind(const char *dir, uint32_t only, kg_plugin_visit *visit, void *ctx,
                        struct kg_error *err)
{
    struct names names = {0};
    int rc = KG_OK;

    for (const struct kg_plugin *const *p = kg_builtins; rc == KG_OK && *p != NULL; p++) {
        char word[64];
        int n = snprintf(word, sizeof(word), "%s-%s", kg_plugin_kind_name((*p)->kind), (*p)->name);
        rc = add_name(&names, word, (size_t)n);
    }
    if (rc == KG_OK && dir != NULL)
        rc = collect(dir, &names, err);
    if (names.n > 0)
        qsort(names.v, names.n, sizeof(*names.v), compare);
    for (size_t i = 0; rc == KG_OK && i < names.n; i++) {
        struct kg_plugin_ref ref;
        struct kg_error why = {0};
        const char *name = "";
        uint32_t kind = 0;
        if (i > 0 && strcmp(names.v[i], names.v[i - 1]) == 0)
            continue; /* DIR/x.so beside DIR/x/x.so, or a built-in in its way */
        (void)split_name(names.v[i], &kind, &name);
        if (only != 0 && kind != only)
            continue;
        if (kg_plugin_load(dir != NULL ? dir : "", kind, name, &ref, &why) == KG_OK)
            visit(ctx, kind, name, &ref, NULL);
        else
            visit(ctx, kind, name, NULL, &why);
    }
    free(names.v);
    return rc;
}

int kg_plugin_scan(const char *dir, kg_plugin_visit *visit, void *ctx, struct kg_error *err)
{
    return kg_plugin_scan_kind(dir, 0, visit, ctx, err);
}

static bool is_dir(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

int kg_plugin_default_dir(char dir[KG_PLUGIN_PATH], struct kg_error *err)
{
    char exe[KG_PLUGIN_PATH - 64];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof(exe) - 1);

    if (n <= 0 || n == (ssize_t)sizeof(exe) - 1)
        return kg_fail(err, KG_ENOENT, "/proc/self/exe: cannot be read; set [plugins] dir");
    exe[n] = '\0';
    *strrchr(exe, '/') = '\0';
    (void)snprintf(dir, KG_PLUGIN_PATH, "%s/plugins", exe);
    if (is_dir(dir))
        return KG_OK;
    (void)snprintf(dir, KG_PLUGIN_PATH, "%s/../" KG_LIBDIR "/kedge", exe);
    if (is_dir(dir))
        return KG_OK;
    return kg_fail(err, KG_ENOENT,
                   "no folder of plugins: neither %.200s/plugins nor ../" KG_LIBDIR
                   "/kedge from there; set [plugins] dir",
                   exe);
}
