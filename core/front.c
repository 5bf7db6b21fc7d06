#include "front.h"

#include "check.h"

#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

static void name_model(struct kg_front *f, const struct kg_conf *conf)
{
    const char *path = conf->model_path != NULL ? conf->model_path : "";
    size_t n = strlen(path);
    size_t from;

    if (conf->server.model_name != NULL && conf->server.model_name[0] != '\0') {
        (void)snprintf(f->model_name, sizeof(f->model_name), "%s", conf->server.model_name);
        return;
    }
    while (n > 0 && path[n - 1] == '/')
        n--;
    from = n;
    while (from > 0 && path[from - 1] != '/')
        from--;
    (void)snprintf(f->model_name, sizeof(f->model_name), "%.*s", (int)(n - from), path + from);
    if (f->model_name[0] == '\0' || f->model_name[0] == '.')
        (void)snprintf(f->model_name, sizeof(f->model_name), "model");
}

int kg_front_open(struct kg_front *f, struct kg_config *config, struct kg_error *err)
{
    const struct kg_conf *conf = kg_config_conf(config);
    int rc;

    *f = (struct kg_front){.config = config};
    name_model(f, conf);
    if (conf->model_path == NULL || conf->model_path[0] == '\0')
        rc = kg_fail(err, KG_ECONFIG,
                     "[model] path is empty: without a model folder there is no vocabulary");
    else
        rc = kg_tok_open(conf->model_path, &f->tok, err);
    if (rc == KG_OK && kg_chat_open(f->tok, &f->chat, &f->no_chat) != KG_OK)
        f->chat = NULL;
    if (rc == KG_OK)
        rc = kg_stack_open(config, &f->stack, err);
    if (rc == KG_OK && (f->stack->desc.caps & KG_EXEC_CAP_VIRTUAL) != 0)
        rc = kg_fail(err, KG_ECONFIG,
                     "the backend's clock is virtual; set its clock option to real to serve");
    if (rc == KG_OK)
        rc = kg_stack_engine(f->stack, err);
    if (rc != KG_OK)
        kg_front_close(f);
    return rc;
}

void kg_front_close(struct kg_front *f)
{
    kg_stack_close(f->stack);
    kg_chat_close(f->chat);
    kg_tok_close(f->tok);
    kg_config_destroy(f->config);
    *f = (struct kg_front){0};
}

void kg_front_print(const struct kg_front *f)
{
    struct kg_check check = {0};
    struct kg_error err = {0};
    struct kg_buf b;

    (void)fprintf(stderr, "kedge %s serves %s\n", KG_VERSION, f->model_name);
    kg_buf_init(&b, 0);
    if (kg_check_gather(&check, f->config, f->stack, 0, 1, &err) == KG_OK)
        kg_check_text(&check, &b);
    else
        (void)kg_buf_printf(&b, "warning: %s\n", err.text);
    (void)fputs(kg_buf_cstr(&b), stderr);
    kg_buf_fini(&b);
    kg_check_fini(&check);
    if (f->stack->desc.vocab < kg_tok_n_vocab(f->tok))
        (void)fprintf(stderr,
                      "warning: the vocabulary has %u ids but the model takes %u: text may be "
                      "refused\n",
                      kg_tok_n_vocab(f->tok), f->stack->desc.vocab);
    if (f->chat == NULL)
        (void)fprintf(stderr, "warning: no chat: %s\n", f->no_chat.text);
}

bool kg_front_files(uint32_t n)
{
    const rlim_t want = (rlim_t)n + 64;
    struct rlimit lim;

    if (getrlimit(RLIMIT_NOFILE, &lim) != 0)
        return false;
    if (lim.rlim_cur >= want)
        return true;
    lim.rlim_cur = lim.rlim_max < want ? lim.rlim_max : want;
    return setrlimit(RLIMIT_NOFILE, &lim) == 0 && lim.rlim_cur >= want;
}
