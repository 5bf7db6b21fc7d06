#include "runs.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

/* Those that end a program and leave it a moment to put things away. They are held back while there
 * is a folder, so that nobody needs a handler, which could tell the rest of the program of them only
 * through a global: whoever waits for a run looks whether one is pending, and kg_runs_drop lets it
 * through. One that is ignored, SIGHUP under nohup, would be pending too when held back, and ends
 * nothing: it is not among them. */
static sigset_t endings(void)
{
    static const int ends[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction is;
    sigset_t set;

    (void)sigemptyset(&set);
    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
        if (sigaction(ends[i], NULL, &is) == 0 && is.sa_handler != SIG_IGN) {
            (void)sigaddset(&set, ends[i]);
        }
    }
    return set;
}

int kg_runs_told(void)
{
    sigset_t set = endings(), pending, both;

    return sigpending(&pending) == 0 && sigandset(&both, &set, &pending) == 0 &&
           !sigisemptyset(&both);
}

/* In the child. Whoever started it may be killed or interrupted: then this ends, too. */
static void become(const char *const words[], const int fds[2], pid_t parent)
{
    sigset_t set = endings();

    if (sigprocmask(SIG_UNBLOCK, &set, NULL) == 0 && prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 &&
        getppid() == parent && dup2(fds[0], 1) == 1 && dup2(fds[1], 2) == 2) {
        (void)execve("/proc/self/exe", (char *const *)words, environ);
    }
    _exit(127);
}

int kg_runs_start(const char *const words[], const char *log, pid_t *pid, struct kg_error *err)
{
    int fds[2] = {open("/dev/null", O_WRONLY | O_CLOEXEC),
                  open(log, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)};
    pid_t parent = getpid(), child = fds[0] >= 0 && fds[1] >= 0 ? fork() : -1;
    int rc = errno;

    if (child == 0) {
        become(words, fds, parent);
    }
    for (uint32_t i = 0; i < 2; i++) {
        if (fds[i] >= 0) {
            (void)close(fds[i]);
        }
    }
    if (child < 0) {
        return kg_fail(err, KG_EIO, "a replay cannot be started: %s", strerror(rc));
    }
    *pid = child;
    return KG_OK;
}

int kg_runs_poll(pid_t pid, int wait, int *status)
{
    const struct timespec tick = {.tv_nsec = 10000000};
    int told = 0;
    pid_t got;

    for (;;) {
        got = waitpid(pid, status, told ? 0 : WNOHANG);
        if (got > 0 || (got < 0 && errno != EINTR)) {
            break;
        }
        if (kg_runs_told()) {
            (void)kill(pid, SIGKILL);
            told = 1;
        } else if (wait) {
            (void)nanosleep(&tick, NULL);
        } else {
            return 0;
        }
    }
    if (got < 0) { /* nobody's child: as if it had failed */
        *status = 1 << 8;
    }
    return 1;
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
    sigset_t set = endings();
    (void)sigprocmask(SIG_BLOCK, &set, NULL);
    if (mkdtemp(path) == NULL) {
        path[0] = '\0';
        (void)sigprocmask(SIG_UNBLOCK, &set, NULL);
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
    sigset_t set = endings();
    (void)sigprocmask(SIG_UNBLOCK, &set, NULL);
}
