/* Messages over a mesh of sockets. Each has a kind and a length, so ranks that are not in the same
 * call notice. */
#include "ranks/boot.h"

#include "base/clock.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum kind { GATHER = 1, DESCRIPTOR, BARRIER, REPORT };

struct header {
    uint32_t kind, bytes;
};

int kg_boot_pairs(uint32_t world, int *fds, struct kg_error *err)
{
    if (world == 0 || world > KG_BOOT_MAX_WORLD)
        return kg_fail(err, KG_EINVAL, "ranks: %u ranks, wanted 1 .. %u", world, KG_BOOT_MAX_WORLD);
    memset(fds, 0xff, (size_t)world * world * sizeof(*fds));
    for (uint32_t i = 0; i < world; i++) {
        for (uint32_t j = i + 1; j < world; j++) {
            int pair[2];
            if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) {
                int e = errno;
                kg_boot_close_fds(fds, (size_t)world * world);
                return kg_fail(err, KG_EIO, "ranks: a socket between ranks %u and %u: %s", i, j,
                               strerror(e));
            }
            fds[i * world + j] = pair[0];
            fds[j * world + i] = pair[1];
        }
    }
    return KG_OK;
}

void kg_boot_close_fds(int *fds, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (fds[i] >= 0)
            (void)close(fds[i]);
        fds[i] = -1;
    }
}

/* When a call that may take `deadline_ns` must end. */
static uint64_t end_of(uint64_t deadline_ns)
{
    uint64_t now = kg_now_ns();

    return deadline_ns > UINT64_MAX - now ? UINT64_MAX : now + deadline_ns;
}

/* Waits until the socket can be read or written. */
static int ready(int fd, short events, uint64_t end_ns)
{
    for (;;) {
        struct pollfd p = {.fd = fd, .events = events};
        uint64_t now = kg_now_ns();
        uint64_t ms = now >= end_ns ? 0 : (end_ns - now) / KG_NS_PER_MS + 1;
        int n = poll(&p, 1, ms > 1000000 ? 1000000 : (int)ms);
        if (n > 0)
            return KG_OK; /* a closed socket is told by the read or write */
        if (n < 0 && errno != EINTR)
            return KG_EIO;
        if (n == 0 && kg_now_ns() >= end_ns)
            return KG_ETIMEOUT;
    }
}

/* Sends one message, with a descriptor where fd >= 0. */
static int send_to(const struct kg_boot *b, uint32_t to, enum kind kind, const void *p,
                   uint32_t bytes, int fd, uint64_t end_ns)
{
    struct header h = {kind, bytes};
    struct iovec io[2] = {{&h, sizeof(h)}, {(void *)(uintptr_t)p, bytes}};
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct msghdr m = {.msg_iov = io, .msg_iovlen = bytes > 0 ? 2 : 1};

    if (fd >= 0) {
        m.msg_control = control.bytes;
        m.msg_controllen = sizeof(control.bytes);
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(c), &fd, sizeof(int));
    }
    for (;;) {
        if (sendmsg(b->fds[to], &m, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0)
            return KG_OK;
        if (errno == EINTR)
            continue;
        if (errno != EAGAIN)
            return errno == EPIPE || errno == ECONNRESET ? KG_EDEVICE : KG_EIO;
        int rc = ready(b->fds[to], POLLOUT, end_ns);
        if (rc != KG_OK)
            return rc;
    }
}

static int take_fd(struct msghdr *m)
{
    struct cmsghdr *c = CMSG_FIRSTHDR(m);
    int fd = -1;

    if (c != NULL && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS &&
        c->cmsg_len == CMSG_LEN(sizeof(int)))
        memcpy(&fd, CMSG_DATA(c), sizeof(int));
    return fd;
}

/* Whether the next message may be taken by a call of this kind. A report stays where it is until
 * its rank is asked for it; what a report finds before itself belongs to a call that failed. */
static int may_take(const struct kg_boot *b, uint32_t from, enum kind kind, uint64_t end_ns)
{
    for (;;) {
        struct header h = {0};
        int rc = ready(b->fds[from], POLLIN, end_ns);
        if (rc != KG_OK)
            return rc;
        ssize_t n = recv(b->fds[from], &h, sizeof(h), MSG_PEEK);
        if (n <= 0)
            return n == 0 || errno == ECONNRESET ? KG_EDEVICE : KG_EIO;
        if ((h.kind == REPORT) == (kind == REPORT))
            return KG_OK;
        if (kind != REPORT)
            return KG_EDEVICE;
        if (recv(b->fds[from], &h, sizeof(h), 0) <= 0) /* its descriptor, if any, goes with it */
            return KG_EDEVICE;
    }
}

/* Receives one message of this kind and length. */
static int recv_from(const struct kg_boot *b, uint32_t from, enum kind kind, void *p,
                     uint32_t bytes, int *fd, uint64_t end_ns)
{
    struct header h;
    struct iovec io[2] = {{&h, sizeof(h)}, {p, bytes}};
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    struct msghdr m = {.msg_iov = io,
                       .msg_iovlen = bytes > 0 ? 2 : 1,
                       .msg_control = control.bytes,
                       .msg_controllen = sizeof(control.bytes)};

    int rc = may_take(b, from, kind, end_ns);
    if (rc != KG_OK)
        return rc;
    ssize_t n = recvmsg(b->fds[from], &m, MSG_CMSG_CLOEXEC);
    if (n <= 0)
        return n == 0 || errno == ECONNRESET ? KG_EDEVICE : KG_EIO;
    int got = take_fd(&m);
    int good = (size_t)n == sizeof(h) + bytes && (m.msg_flags & MSG_TRUNC) == 0 && h.kind == kind &&
               h.bytes == bytes && (got >= 0) == (fd != NULL);
    if (good && fd != NULL)
        *fd = got;
    else if (got >= 0)
        (void)close(got);
    return good ? KG_OK : KG_EINVAL;
}

/* Everyone sends to everyone, then reads from everyone: short messages fit the sockets' buffers. */
static int gather(struct kg_boot *b, enum kind kind, const void *in, void *out, size_t bytes,
                  uint64_t deadline_ns)
{
    uint64_t end_ns = end_of(deadline_ns);
    int rc = KG_OK;

    if (bytes > KG_BOOT_MAX_BYTES)
        return KG_ELIMIT;
    for (uint32_t r = 0; r < b->world && rc == KG_OK; r++) {
        if (r != b->rank)
            rc = send_to(b, r, kind, in, (uint32_t)bytes, -1, end_ns);
    }
    for (uint32_t r = 0; r < b->world && rc == KG_OK; r++) {
        char *to = bytes > 0 ? (char *)out + r * bytes : NULL;
        if (r != b->rank)
            rc = recv_from(b, r, kind, to, (uint32_t)bytes, NULL, end_ns);
        else if (bytes > 0)
            memcpy(to, in, bytes);
    }
    return rc;
}

static int boot_all_gather(void *ctx, const void *in, void *out, size_t bytes, uint64_t deadline_ns)
{
    return gather(ctx, GATHER, in, out, bytes, deadline_ns);
}

int kg_boot_report(struct kg_boot *boot, const void *in, void *out, size_t bytes,
                   uint64_t deadline_ns)
{
    return gather(boot, REPORT, in, out, bytes, deadline_ns);
}

static int boot_barrier(void *ctx, uint64_t deadline_ns)
{
    return gather(ctx, BARRIER, NULL, NULL, 0, deadline_ns);
}

static int boot_send_fd(void *ctx, uint32_t to, int fd, uint64_t deadline_ns)
{
    struct kg_boot *b = ctx;

    if (to >= b->world || to == b->rank || fd < 0)
        return KG_EINVAL;
    return send_to(b, to, DESCRIPTOR, NULL, 0, fd, end_of(deadline_ns));
}

static int boot_recv_fd(void *ctx, uint32_t from, int *fd, uint64_t deadline_ns)
{
    struct kg_boot *b = ctx;

    if (from >= b->world || from == b->rank)
        return KG_EINVAL;
    return recv_from(b, from, DESCRIPTOR, NULL, 0, fd, end_of(deadline_ns));
}

void kg_boot_init(struct kg_boot *boot, uint32_t rank, uint32_t world, const int *row)
{
    memset(boot, 0, sizeof(*boot));
    boot->ops = (struct kg_bootstrap){.size = sizeof(boot->ops),
                                      .ctx = boot,
                                      .all_gather = boot_all_gather,
                                      .send_fd = boot_send_fd,
                                      .recv_fd = boot_recv_fd,
                                      .barrier = boot_barrier};
    boot->rank = rank;
    boot->world = world;
    memset(boot->fds, 0xff, sizeof(boot->fds));
    memcpy(boot->fds, row, world * sizeof(*row));
}

void kg_boot_close(struct kg_boot *boot)
{
    kg_boot_close_fds(boot->fds, KG_BOOT_MAX_WORLD);
}
