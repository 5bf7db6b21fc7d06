#include "answers.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static int check(const char *path, uint32_t vocab, struct sim_answers *a, struct kg_error *err)
{
    const char *p = a->map;
    uint64_t n;
    int domains = a->bytes >= 24 && memcmp(p, "KGANSW02", 8) == 0;

    if (a->bytes < 24 || (!domains && memcmp(p, "KGANSW01", 8) != 0)) {
        return kg_fail(err, KG_ECONFIG, "%s: no file of answers", path);
    }
    memcpy(&n, p + 8, sizeof(n));
    if (n > (a->bytes - 24) / (domains ? 8 + SIM_ANSWER_DOMAIN : 8)) {
        return kg_fail(err, KG_ECONFIG, "%s: %llu answers in %zu bytes", path,
                       (unsigned long long)n, a->bytes);
    }
    a->n = n;
    a->start = (const uint64_t *)(const void *)(p + 16);
    a->tokens = (const uint32_t *)(const void *)(p + 24 + 8 * n);
    for (uint64_t i = 0; i < n; i++) {
        if (a->start[i + 1] < a->start[i] || a->start[i + 1] - a->start[i] > UINT32_MAX) {
            return kg_fail(err, KG_ECONFIG, "%s: answer %llu ends before it begins", path,
                           (unsigned long long)i + 1);
        }
    }
    uint64_t names = domains ? n * SIM_ANSWER_DOMAIN : 0;
    if (a->start[0] != 0 || a->start[n] != (a->bytes - 24 - 8 * n - names) / 4) {
        return kg_fail(err, KG_ECONFIG, "%s: %llu tokens in %zu bytes", path,
                       (unsigned long long)a->start[n], a->bytes);
    }
    a->domains = domains ? (const char *)(a->tokens + a->start[n]) : NULL;
    for (uint64_t i = 0; domains && i < n; i++) {
        if (a->domains[i * SIM_ANSWER_DOMAIN + SIM_ANSWER_DOMAIN - 1] != '\0') {
            return kg_fail(err, KG_ECONFIG, "%s: domain %llu does not end", path,
                           (unsigned long long)i + 1);
        }
    }
    for (uint64_t i = 0; i < a->start[n]; i++) {
        if (a->tokens[i] >= vocab) {
            return kg_fail(err, KG_ECONFIG, "%s: token %u, the vocabulary ends at %u", path,
                           a->tokens[i], vocab);
        }
    }
    return KG_OK;
}

int sim_answers_open(const char *path, uint32_t vocab, struct sim_answers *a, struct kg_error *err)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    memset(a, 0, sizeof(*a));
    if (fd < 0 || fstat(fd, &st) != 0) {
        int e = errno;
        if (fd >= 0) {
            (void)close(fd);
        }
        return kg_fail(err, e == ENOENT ? KG_ENOENT : KG_EIO, "%s: %s", path, strerror(e));
    }
    a->bytes = (size_t)st.st_size;
    void *map = a->bytes > 0 ? mmap(NULL, a->bytes, PROT_READ, MAP_SHARED, fd, 0) : MAP_FAILED;
    (void)close(fd);
    if (map == MAP_FAILED) {
        return kg_fail(err, KG_ECONFIG, "%s: no file of answers", path);
    }
    a->map = map;
    int rc = check(path, vocab, a, err);
    if (rc != KG_OK) {
        sim_answers_close(a);
    }
    return rc;
}

void sim_answers_close(struct sim_answers *a)
{
    if (a->map != NULL) {
        (void)munmap((void *)(uintptr_t)a->map, a->bytes);
    }
    memset(a, 0, sizeof(*a));
}

const uint32_t *sim_answers_find(const struct sim_answers *a, uint64_t seed, uint32_t *n)
{
    if (seed == 0 || seed > a->n) {
        *n = 0;
        return NULL;
    }
    *n = (uint32_t)(a->start[seed] - a->start[seed - 1]);
    return a->tokens + a->start[seed - 1];
}

const char *sim_answers_domain(const struct sim_answers *a, uint64_t seed)
{
    return a->domains != NULL && seed != 0 && seed <= a->n
               ? a->domains + (seed - 1) * SIM_ANSWER_DOMAIN
               : "";
}
