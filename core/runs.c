#include "runs.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

int kg_runs_start(const char *const words[], const char *log, pid_t *pid, struct kg_error *err)
{
    posix_spawn_file_actions_t files;
    int rc = posix_spawn_file_actions_init(&files);

    if (rc != 0) {
        return kg_fail(err, KG_EIO, "a replay cannot be started: %s", strerror(rc));
    }
    rc = posix_spawn_file_actions_addopen(&files, 1, "/dev/null", O_WRONLY, 0);
    rc = rc != 0
             ? rc
             : posix_spawn_file_actions_addopen(&files, 2, log, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    rc = rc != 0 ? rc
                 : posix_spawn(pid, "/proc/self/exe", &files, NULL, (char *const *)words, environ);
    (void)posix_spawn_file_actions_destroy(&files);
    return rc == 0 ? KG_OK : kg_fail(err, KG_EIO, "a replay cannot be started: %s", strerror(rc));
}

int kg_runs_poll(pid_t pid, int wait, int *status)
{
    pid_t got;

    do {
        got = waitpid(pid, status, wait ? 0 : WNOHANG);
    } while (got < 0 && errno == EINTR);
    if (got < 0) { /* nobody's child: as if it had failed */
        *status = 1 << 8;
    }
    return got != 0;
}

int kg_runs_verdict(int status, const char *what, struct kg_error *err)
{
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
        return KG_OK;
    }
    return kg_fail(err, WIFEXITED(status) && WEXITSTATUS(status) == 2 ? KG_ECONFIG : KG_EIO,
                   "%s failed (%s %d)", what, WIFSIGNALED(status) ? "signal" : "status",
                   WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
}

static size_t read_log(const char *log, char *buf, size_t n)
{
    int fd = open(log, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd >= 0 ? read(fd, buf, n) : 0;

    if (fd >= 0) {
        (void)close(fd);
    }
    return got > 0 ? (size_t)got : 0;
}

void kg_runs_show_log(const char *log)
{
    char buf[2000];
    size_t n = read_log(log, buf, sizeof(buf));

    (void)fwrite(buf, 1, n, stderr);
}

void kg_runs_why(const char *log, char *text, size_t n)
{
    char buf[4000];
    size_t len = read_log(log, buf, sizeof(buf) - 1);

    text[0] = '\0';
    buf[len] = '\0';
    for (char *line = buf, *next; line != NULL && text[0] == '\0'; line = next) {
        next = strchr(line, '\n');
        if (next != NULL) {
            *next++ = '\0';
        }
        if (strncmp(line, "kedge: ", 7) == 0 || strncmp(line, "error: ", 7) == 0) {
            (void)snprintf(text, n, "%s", line + 7);
        }
    }
}

int kg_runs_folder(const char *name, char path[KG_RUNS_PATH], struct kg_error *err)
{
    const char *base = getenv("TMPDIR");

    base = base != NULL && base[0] != '\0' && strlen(base) < 40 ? base : "/tmp";
    (void)snprintf(path, KG_RUNS_PATH, "%s/kedge-%.8s-XXXXXX", base, name);
    if (mkdtemp(path) == NULL) {
        path[0] = '\0';
        return kg_fail(err, KG_EIO, "%s: no folder for the runs: %s", base, strerror(errno));
    }
    return KG_OK;
}

void kg_runs_drop(const char *path)
{
    DIR *d = path[0] != '\0' ? opendir(path) : NULL;
    const struct dirent *e;

    while (d != NULL && (e = readdir(d)) != NULL) {
        if (e->d_name[0] != '.') {
            (void)unlinkat(dirfd(d), e->d_name, 0);
        }
    }
    if (d != NULL) {
        (void)closedir(d);
        (void)rmdir(path);
    }
}

int kg_runs_save(const char *path, const struct kg_buf *b, struct kg_error *err)
{
    FILE *f = fopen(path, "wb");

    if (f == NULL) {
        return kg_fail(err, KG_EIO, "%s: %s", path, strerror(errno));
    }
    size_t n = b->len > 0 ? fwrite(b->data, 1, b->len, f) : 0;
    if (fclose(f) != 0 || n != b->len) {
        return kg_fail(err, KG_EIO, "%s: cannot be written", path);
    }
    return KG_OK;
}
