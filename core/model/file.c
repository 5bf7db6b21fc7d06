#include "model/file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Opens a regular file; *n is its size. A FIFO must not block the start, hence O_NONBLOCK. */
static int open_regular(const char *path, int *fd, uint64_t *n, struct kg_error *err)
{
    struct stat st;
    int f = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);

    if (f < 0) {
        int rc = errno == ENOENT || errno == ENOTDIR ? KG_ENOENT : KG_EIO;
        return kg_fail(err, rc, "%.300s: %s", path, strerror(errno));
    }
    if (fstat(f, &st) != 0) {
        int e = errno;
        (void)close(f);
        return kg_fail(err, KG_EIO, "%.300s: %s", path, strerror(e));
    }
    if (!S_ISREG(st.st_mode)) {
        (void)close(f);
        return kg_fail(err, KG_EIO, "%.300s: is not a regular file", path);
    }
    *fd = f;
    *n = (uint64_t)st.st_size;
    return KG_OK;
}

/* Reads exactly `n` bytes; fewer (the file shrank) is an error too. */
static int read_all(int fd, char *to, size_t n)
{
    size_t done = 0;

    while (done < n) {
        ssize_t got = read(fd, to + done, n - done);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            return -1;
        }
        done += (size_t)got;
    }
    return 0;
}

int kg_file_read(const char *path, size_t max, char **text, size_t *n, struct kg_error *err)
{
    uint64_t size = 0;
    int fd = -1;
    int rc = open_regular(path, &fd, &size, err);

    if (rc < 0) {
        return rc;
    }
    if (size > max) {
        (void)close(fd);
        return kg_fail(err, KG_EINVAL, "%.300s: %" PRIu64 " bytes, at most %zu are accepted", path,
                       size, max);
    }
    char *buf = malloc((size_t)size + 1);
    if (buf == NULL) {
        (void)close(fd);
        return kg_fail(err, KG_ENOMEM, "%.300s: no memory for %" PRIu64 " bytes", path, size);
    }
    int bad = read_all(fd, buf, (size_t)size);
    (void)close(fd);
    if (bad) {
        free(buf);
        return kg_fail(err, KG_EIO, "%.300s: cannot be read to its end", path);
    }
    buf[size] = '\0';
    *text = buf;
    *n = (size_t)size;
    return KG_OK;
}

int kg_file_map(const char *path, const void **data, uint64_t *n, struct kg_error *err)
{
    uint64_t size = 0;
    int fd = -1;
    int rc = open_regular(path, &fd, &size, err);

    if (rc < 0) {
        return rc;
    }
    if (size == 0 || size > SIZE_MAX) {
        (void)close(fd);
        return kg_fail(err, KG_EINVAL, "%.300s: %" PRIu64 " bytes cannot be a tensor file", path,
                       size);
    }
    void *p = mmap(NULL, (size_t)size, PROT_READ, MAP_PRIVATE, fd, 0);
    int e = errno;
    (void)close(fd);
    if (p == MAP_FAILED) {
        return kg_fail(err, KG_EIO, "%.300s: cannot be mapped: %s", path, strerror(e));
    }
    *data = p;
    *n = size;
    return KG_OK;
}

void kg_file_unmap(const void *data, uint64_t n)
{
    if (data != NULL) {
        (void)munmap((void *)(uintptr_t)data, (size_t)n);
    }
}

char *kg_file_join(const char *dir, const char *name)
{
    size_t a = strlen(dir), b = strlen(name);
    char *path = malloc(a + b + 2);

    if (path != NULL) {
        memcpy(path, dir, a);
        path[a] = '/';
        memcpy(path + a + 1, name, b + 1);
    }
    return path;
}

int kg_file_exists(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0;
}

const char *kg_printable(const char *s, char buf[KG_PRINTABLE])
{
    size_t i = 0;

    for (; s[i] != '\0' && i < KG_PRINTABLE - 4; i++) {
        unsigned char ch = (unsigned char)s[i];
        buf[i] = ch < 0x20 || ch >= 0x7f ? '?' : s[i];
    }
    memcpy(buf + i, s[i] != '\0' ? "..." : "", s[i] != '\0' ? 4 : 1);
    return buf;
}
