#include "base/log.h"

#include "base/buf.h"
#include "base/hash.h"
#include "base/utf8.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

static const char *const level_names[] = {"error", "warn", "info", "debug", "trace"};

const char *kg_log_level_name(uint32_t level)
{
    return level <= KG_LOG_TRACE ? level_names[level] : "?";
}

int kg_log_level_parse(const char *name, uint32_t *level)
{
    for (uint32_t i = 0; i <= KG_LOG_TRACE; i++) {
        if (strcmp(name, level_names[i]) == 0) {
            *level = i;
            return KG_OK;
        }
    }
    return KG_EINVAL;
}

void kg_log_init(struct kg_log *log, int fd, uint32_t level)
{
    memset(log, 0, sizeof(*log));
    log->fd = fd;
    log->level = level;
    log->clock = kg_clock_monotonic();
}

int kg_log_set_level(struct kg_log *log, const char *module, uint32_t level)
{
    uint32_t i = 0;

    while (i < log->n_modules && strcmp(log->modules[i].name, module) != 0)
        i++;
    if (i == KG_LOG_MODULES || strlen(module) >= sizeof(log->modules[i].name))
        return KG_ELIMIT;
    memcpy(log->modules[i].name, module, strlen(module) + 1);
    log->modules[i].level = level;
    if (i == log->n_modules)
        log->n_modules++;
    return KG_OK;
}

int kg_log_on(const struct kg_log *log, uint32_t level, const char *module)
{
    if (log == NULL || log->fd < 0)
        return 0;
    for (uint32_t i = 0; i < log->n_modules; i++) {
        if (strcmp(log->modules[i].name, module) == 0)
            return level <= log->modules[i].level;
    }
    return level <= log->level;
}

/*
 * Whether the message may be written now; *dropped is what to report with it. A full table lets
 * everything through: a log that lost its limit is better than one that lost a line.
 */
static int rate_ok(struct kg_log *log, const char *module, const char *msg, uint64_t *dropped)
{
    uint64_t key = kg_hash_bytes(msg, strlen(msg), kg_hash_bytes(module, strlen(module), 0)) | 1;
    uint64_t second = kg_clock_now(&log->clock) / KG_NS_PER_S + 1;
    struct kg_log_site *site = NULL;

    for (uint32_t i = 0; i < 8 && site == NULL; i++) {
        struct kg_log_site *s = &log->sites[(key + i) % KG_LOG_SITES];
        uint64_t seen = 0;
        if (atomic_compare_exchange_strong(&s->key, &seen, key) || seen == key)
            site = s;
    }
    *dropped = 0;
    if (site == NULL)
        return 1;
    uint64_t w = atomic_load(&site->window);
    for (;;) {
        uint64_t next = w >> 20 == second ? w + 1 : second << 20 | 1;
        if ((next & 0xfffff) > KG_LOG_PER_SECOND) {
            (void)atomic_fetch_add(&site->dropped, 1);
            return 0;
        }
        if (atomic_compare_exchange_weak(&site->window, &w, next))
            break;
    }
    *dropped = atomic_exchange(&site->dropped, 0);
    return 1;
}

static void put_time(char *line, size_t cap, size_t *len)
{
    struct timespec ts;
    struct tm tm;

    (void)clock_gettime(CLOCK_REALTIME, &ts);
    (void)gmtime_r(&ts.tv_sec, &tm);
    *len = (size_t)snprintf(line, cap, "time=%04d-%02d-%02dT%02d:%02d:%02d.%03ldZ",
                            tm.tm_year + 1900, tm.tm_mon + 1, tm.tm_mday, tm.tm_hour, tm.tm_min,
                            tm.tm_sec, ts.tv_nsec / 1000000);
}

/* Escapes s into a quoted word of at most cap-1 bytes; bytes written without the NUL. */
static size_t put_quoted(char *out, size_t cap, const char *s, size_t n)
{
    size_t len = 0;
    size_t i = 0;

    out[len++] = '"';
    while (i < n) {
        uint32_t cp;
        size_t take = kg_utf8_decode(s + i, n - i, &cp);
        char one[8];
        size_t put;
        if (take == 1 && (cp == '"' || cp == '\\')) {
            one[0] = '\\';
            one[1] = s[i];
            put = 2;
        } else if (take == 0 || cp < 0x20 || cp == 0x7f) {
            put = (size_t)snprintf(one, sizeof(one), "\\x%02x", (unsigned char)s[i]);
            take = 1;
        } else {
            memcpy(one, s + i, take);
            put = take;
        }
        if (len + put + 5 > cap) { /* "..." and the quote must still fit */
            memcpy(out + len, "...", 3);
            len += 3;
            break;
        }
        memcpy(out + len, one, put);
        len += put;
        i += take;
    }
    out[len++] = '"';
    out[len] = '\0';
    return len;
}

static void write_all(int fd, const char *p, size_t n)
{
    while (n > 0) {
        ssize_t k = write(fd, p, n);
        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0)
            return; /* nowhere to complain */
        p += k;
        n -= (size_t)k;
    }
}

static void finish(int fd, char *line, size_t len, uint64_t dropped)
{
    if (dropped > 0 && len < KG_LOG_LINE - 32)
        len += (size_t)snprintf(line + len, KG_LOG_LINE - len, " dropped=%llu",
                                (unsigned long long)dropped);
    for (size_t i = 0; i < len; i++) {
        if (line[i] == '\n')
            line[i] = ' ';
    }
    line[len++] = '\n';
    write_all(fd, line, len);
}

/* Time, level, module and message; the line has room for more behind it. */
static size_t begin(char *line, uint32_t level, const char *module, const char *text)
{
    size_t len;

    put_time(line, KG_LOG_LINE, &len);
    len += (size_t)snprintf(line + len, KG_LOG_LINE - len,
                            " level=%s module=%.24s msg=", kg_log_level_name(level), module);
    return len + put_quoted(line + len, KG_LOG_LINE - 64 - len, text, strlen(text));
}

__attribute__((format(printf, 5, 0))) static void put_line(struct kg_log *log, uint32_t level,
                                                           const char *module, const char *msg,
                                                           const char *kv_fmt, va_list ap,
                                                           uint64_t dropped)
{
    char line[KG_LOG_LINE + 8];
    size_t len = begin(line, level, module, msg);

    if (kv_fmt[0] != '\0') {
        size_t room = KG_LOG_LINE - len - 40;
        line[len] = ' ';
        int n = vsnprintf(line + len + 1, room, kv_fmt, ap);
        if (n >= (int)room) {
            memcpy(line + len + room - 3, "...", 3);
            n = (int)room - 1;
        }
        len += n > 0 ? (size_t)n + 1 : 0;
    }
    finish(log->fd, line, len, dropped);
}

void kg_log_line(struct kg_log *log, uint32_t level, const char *module, const char *msg,
                 const char *kv_fmt, ...)
{
    uint64_t dropped;
    va_list ap;

    if (!kg_log_on(log, level, module) || !rate_ok(log, module, msg, &dropped))
        return;
    va_start(ap, kv_fmt);
    put_line(log, level, module, msg, kv_fmt, ap, dropped);
    va_end(ap);
}

void kg_log_record(struct kg_log *log, uint32_t level, const char *module, const char *msg,
                   const char *kv_fmt, ...)
{
    va_list ap;

    if (!kg_log_on(log, level, module))
        return;
    va_start(ap, kv_fmt);
    put_line(log, level, module, msg, kv_fmt, ap, 0);
    va_end(ap);
}

void kg_log_text(struct kg_log *log, uint32_t level, const char *module, const char *site,
                 const char *text)
{
    char line[KG_LOG_LINE + 8];
    uint64_t dropped;

    if (!kg_log_on(log, level, module) || !rate_ok(log, module, site, &dropped))
        return;
    finish(log->fd, line, begin(line, level, module, text), dropped);
}

struct kg_quoted kg_log_quote(const char *s, size_t n)
{
    struct kg_quoted q;

    (void)put_quoted(q.text, sizeof(q.text) - 24, s, n);
    return q;
}
