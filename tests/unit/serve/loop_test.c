/* The loop beside an engine that never falls silent: a double that has an event whenever it is
 * asked. Whoever connects must be heard all the same. */
#include "serve/serve.h"
#include "serve_test.h"

#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#define PATIENCE_MS 20000

static int engine_fd;
static _Atomic uint64_t n_asked;
static atomic_bool is_silent; /* the double has nothing more to say */

/* --- the double --- */

int kg_engine_next(struct kg_engine *engine, struct kg_event *event)
{
    static const uint32_t token = 5;

    (void)engine;
    (void)atomic_fetch_add(&n_asked, 1);
    if (atomic_load(&is_silent))
        return KG_EAGAIN;
    *event = (struct kg_event){.id = UINT64_MAX, .type = KG_EVENT_TOKENS, .n = 1, .tokens = &token};
    return KG_OK;
}

int kg_engine_fd(const struct kg_engine *engine)
{
    (void)engine;
    return engine_fd;
}

int kg_engine_submit(struct kg_engine *engine, const struct kg_request *req, struct kg_error *err)
{
    (void)engine;
    (void)req;
    return kg_fail(err, KG_EAGAIN, "full");
}

void kg_engine_cancel(struct kg_engine *engine, uint64_t id)
{
    (void)engine;
    (void)id;
}

void kg_engine_finish(struct kg_engine *engine, uint64_t id, uint32_t n_output)
{
    (void)engine;
    (void)id;
    (void)n_output;
}

void kg_engine_pause(struct kg_engine *engine, uint64_t id, bool paused)
{
    (void)engine;
    (void)id;
    (void)paused;
}

void kg_engine_stats(const struct kg_engine *engine, struct kg_engine_stats *stats)
{
    (void)engine;
    *stats = (struct kg_engine_stats){0};
}

void kg_engine_picture_ask(struct kg_engine *engine)
{
    (void)engine;
}

int kg_engine_picture(const struct kg_engine *engine, struct kg_picture *picture)
{
    (void)engine;
    (void)picture;
    return KG_ENOENT;
}

const struct kg_exec_desc *kg_engine_desc(const struct kg_engine *engine)
{
    static const struct kg_exec_desc desc = {.vocab = 4096};

    (void)engine;
    return &desc;
}

const struct kg_pool_layout *kg_engine_layout(const struct kg_engine *engine)
{
    static const struct kg_pool_layout layout = {.page_tokens = 64};

    (void)engine;
    return &layout;
}

uint64_t kg_engine_now(const struct kg_engine *engine)
{
    (void)engine;
    return 1;
}

uint32_t kg_engine_max_tokens(const struct kg_engine *engine)
{
    (void)engine;
    return 1000;
}

/* --- the test --- */

static void *run(void *arg)
{
    struct kg_error err = {0};

    return kg_serve_run(arg, &err) == KG_OK ? arg : NULL;
}

/* Asks for /version on a connection of its own; the answer's first line, "" when none came. */
static void ask(uint32_t port, char *line, size_t n)
{
    static const char text[] = "GET /version HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)port),
                             .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct pollfd p = {.fd = fd, .events = POLLIN};
    ssize_t got = -1;

    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)(void *)&to, sizeof(to)), 0);
    assert_int_equal(write(fd, text, sizeof(text) - 1), sizeof(text) - 1);
    if (poll(&p, 1, PATIENCE_MS) == 1)
        got = read(fd, line, n - 1);
    line[got > 0 ? got : 0] = '\0';
    (void)close(fd);
}

static void an_engine_that_never_falls_silent_leaves_connections_their_turn(void **state)
{
    struct fixture *f = *state;
    struct kg_serve_parts parts = {.conf = &f->conf, .tok = f->tok, .model_name = "k3-tiny"};
    struct kg_serve *serve = NULL;
    struct kg_error err = {0};
    pthread_t thread;
    uint64_t one = 1;
    void *ended = NULL;
    char line[64];

    f->conf.port = 0;
    engine_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    assert_true(engine_fd >= 0);
    if (kg_serve_create(&parts, &serve, &err) != KG_OK)
        fail_msg("%s", err.text);
    assert_int_equal(write(engine_fd, &one, sizeof(one)), sizeof(one)); /* for ever readable */
    assert_int_equal(pthread_create(&thread, NULL, run, serve), 0);
    while (atomic_load(&n_asked) < 1000)
        ;
    for (int i = 0; i < 3; i++) {
        ask(kg_serve_port(serve), line, sizeof(line));
        line[15] = '\0';
        if (strcmp(line, "HTTP/1.1 200 OK") != 0)
            break;
    }
    atomic_store(&is_silent, true); /* also for a loop that did not hear us: it must end */
    kg_serve_stop(serve);
    assert_int_equal(pthread_join(thread, &ended), 0);
    kg_serve_destroy(serve);
    (void)close(engine_fd);
    assert_string_equal(line, "HTTP/1.1 200 OK");
    assert_non_null(ended);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_engine_that_never_falls_silent_leaves_connections_their_turn),
    };

    return cmocka_run_group_tests(tests, fixture_open, fixture_close);
}
