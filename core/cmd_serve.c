/* kedge serve: opens the configuration, prints what will run and where, serves until a signal. */
#include "base/num.h"
#include "front.h"
#include "serve/serve.h"
#include "swap.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The line others wait for: on standard output, and on a descriptor if one was named. */
static void say_ready(const struct kg_serve *serve, int fd)
{
    char line[400];
    int n = snprintf(line, sizeof(line), "listening on %s\n", kg_serve_url(serve));

    (void)fputs(line, stdout);
    (void)fflush(stdout);
    clearerr(stdout); /* whoever started it may have closed that end */
    if (fd >= 0) {
        (void)!write(fd, line, (size_t)n);
        (void)close(fd);
    }
    (void)fprintf(stderr,
                  "try: curl -s %s/v1/completions -H 'Content-Type: application/json' "
                  "-d '{\"prompt\": \"Once\", \"max_tokens\": 16}'\n",
                  kg_serve_url(serve));
}

/* --- /admin/plugins --- */

static int swap(void *ctx, const struct kg_swap_names *names, const char **field,
                struct kg_error *err)
{
    return kg_swapper_swap(ctx, names, field, err);
}

static void swapped(void *ctx)
{
    kg_swapper_done(ctx);
}

static int write_plugins(void *ctx, struct kg_buf *b, struct kg_error *err)
{
    return kg_swapper_write(ctx, b, err);
}

static int serve_front(struct kg_front *f, int ready_fd, struct kg_error *err)
{
    struct kg_serve_admin admin = {.swap = swap, .swapped = swapped, .write = write_plugins};
    struct kg_serve_parts parts = {
        .conf = &f->stack->conf->server,
        .engine = f->stack->engine,
        .tok = f->tok,
        .chat = f->chat,
        .model_name = f->model_name,
        .metrics = f->stack->metrics,
        .log = &f->stack->log,
        .policy = f->stack->hooks != NULL ? &f->stack->hooks->serve : NULL,
        .admin = &admin,
        .arms = &f->stack->conf->arms,
    };
    struct kg_serve *serve = NULL;
    int rc;

    if (!kg_front_files(parts.conf->max_connections))
        (void)fprintf(stderr,
                      "warning: the system allows fewer open files than [server] "
                      "max_connections = %u needs\n",
                      parts.conf->max_connections);
    rc = f->stack->hooks != NULL ? kg_hooks_defer_lines(f->stack->hooks, err) : KG_OK;
    if (rc == KG_OK)
        rc = kg_swapper_open(f->stack, f->config, err);
    admin.ctx = f->stack->swapper;
    if (rc == KG_OK)
        rc = kg_serve_create(&parts, &serve, err);
    if (rc != KG_OK)
        return rc;
    rc = kg_engine_start(f->stack->engine, err);
    if (rc == KG_OK) {
        say_ready(serve, ready_fd);
        rc = kg_serve_run(serve, err);
        kg_engine_stop(f->stack->engine);
    }
    kg_serve_destroy(serve);
    return rc;
}

int kg_cmd_serve(int argc, char **argv)
{
    const char *ready = NULL;
    const struct kg_cmd_flag flags[] = {
        {"--ready-fd", "N", "write the address to this descriptor too, then close it", &ready,
         NULL},
        {NULL, NULL, NULL, NULL, NULL},
    };
    struct kg_cmd_line line;
    struct kg_config *config = NULL;
    struct kg_front front;
    struct kg_error err = {0};
    uint64_t fd = 0;
    int status = kg_cmd_parse(&line, argc, argv, "kedge serve -c FILE [--set section.key=value]...",
                              "Serves the OpenAI API until SIGTERM.", flags, 0);

    if (status >= 0)
        return status;
    if (ready != NULL && (kg_num_u64(ready, &fd) != KG_OK || fd > 1u << 20)) {
        (void)kg_fail(&err, KG_EINVAL, "--ready-fd %s: a descriptor number was expected", ready);
        return kg_cmd_fail(&err);
    }
    status = kg_cmd_config(&line, &config);
    if (status >= 0)
        return status;
    if (kg_front_open(&front, config, &err) != KG_OK)
        return kg_cmd_fail(&err);
    kg_front_print(&front);
    status = KG_EXIT_OK;
    if (serve_front(&front, ready != NULL ? (int)fd : -1, &err) != KG_OK)
        status = kg_cmd_fail(&err);
    kg_front_close(&front);
    return status;
}
