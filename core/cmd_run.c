/*
 * kedge run: one completion, or one chat turn, on standard output. The flags become the body of
 * an API request, so that they mean here what they mean to a client of the server.
 */
#include "base/clock.h"
#include "base/num.h"
#include "front.h"
#include "serve/answer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

struct run_args {
    const char *system, *max_tokens, *temperature, *top_p, *top_k, *seed, *stop;
    int chat, think, quiet;
    const char *prompt;
};

/* Times of the answer, monotonic ns; 0: not yet. */
struct run_times {
    uint64_t start, first, end;
};

/* All of standard input. NULL when there is no memory or more than 64 MiB. */
static char *read_stdin(void)
{
    struct kg_buf b;
    char chunk[16384];
    size_t n;

    kg_buf_init(&b, (size_t)64 << 20);
    while ((n = fread(chunk, 1, sizeof(chunk), stdin)) > 0)
        kg_buf_add(&b, chunk, n);
    if (b.rc != KG_OK || ferror(stdin)) {
        kg_buf_fini(&b);
        return NULL;
    }
    return b.data != NULL ? b.data : strdup("");
}

/* A field with the flag's text as a JSON number; what is no number is refused here. */
static int put_number(struct kg_buf *b, const char *flag, const char *name, const char *text,
                      struct kg_error *err)
{
    double v;

    if (text == NULL)
        return KG_OK;
    if (kg_num_f64(text, &v) != KG_OK)
        return kg_fail(err, KG_ECONFIG, "%s %s: a number was expected", flag, text);
    kg_buf_key_f64(b, name, v);
    return b->rc;
}

static void put_message(struct kg_buf *b, const char *role, const char *text)
{
    kg_buf_printf(b, "{\"role\":\"%s\",\"content\":", role);
    kg_buf_json_str(b, text, strlen(text));
    kg_buf_putc(b, '}');
}

/* The request body the flags stand for. */
static int write_body(const struct run_args *a, const char *prompt, struct kg_buf *b,
                      struct kg_error *err)
{
    int rc;

    if (a->chat) {
        kg_buf_puts(b, "{\"messages\":[");
        if (a->system != NULL) {
            put_message(b, "system", a->system);
            kg_buf_putc(b, ',');
        }
        put_message(b, "user", prompt);
        kg_buf_printf(b, "],\"chat_template_kwargs\":{\"thinking\":%s}",
                      a->think ? "true" : "false");
    } else {
        kg_buf_puts(b, "{");
        kg_buf_key_str(b, "prompt", prompt);
    }
    if (a->stop != NULL)
        kg_buf_key_str(b, "stop", a->stop);
    rc = put_number(b, "--max-tokens", "max_tokens", a->max_tokens, err);
    if (rc == KG_OK)
        rc = put_number(b, "--temperature", "temperature", a->temperature, err);
    if (rc == KG_OK)
        rc = put_number(b, "--top-p", "top_p", a->top_p, err);
    if (rc == KG_OK)
        rc = put_number(b, "--top-k", "top_k", a->top_k, err);
    if (rc == KG_OK)
        rc = put_number(b, "--seed", "seed", a->seed, err);
    kg_buf_putc(b, '}');
    if (rc == KG_OK && b->rc != KG_OK)
        rc = kg_fail(err, KG_ENOMEM, "out of memory");
    return rc;
}

/* Writes what the answer has to say and empties it. */
static void flush_answer(struct kg_answer *a)
{
    if (a->reasoning.len > 0)
        (void)fwrite(a->reasoning.data, 1, a->reasoning.len, stderr);
    if (a->content.len > 0)
        (void)fwrite(a->content.data, 1, a->content.len, stdout);
    (void)fflush(stdout);
    kg_buf_reset(&a->reasoning);
    kg_buf_reset(&a->content);
}

static int take_event(struct kg_front *f, struct kg_answer *a, const struct kg_event *ev,
                      struct run_times *t, struct kg_error *err)
{
    int rc = KG_OK;

    if (ev->type == KG_EVENT_TOKENS) {
        bool was_stopped = a->stopped;
        if (t->first == 0)
            t->first = kg_now_ns();
        rc = kg_answer_tokens(a, ev->tokens, ev->n, ev->logprobs, ev->n_logprobs);
        if (rc == 1 && !was_stopped)
            kg_engine_finish(f->stack->engine, ev->id, a->n_tokens);
    } else if (ev->type == KG_EVENT_DONE) {
        if (ev->finish > KG_FINISH_CALLER)
            return kg_fail(err, ev->rc != KG_OK ? ev->rc : KG_EDEVICE, "%s", ev->text);
        rc = kg_answer_finish(a, ev->finish == KG_FINISH_LENGTH);
        t->end = kg_now_ns();
    }
    flush_answer(a);
    return rc < 0 ? kg_fail(err, rc, "out of memory") : KG_OK;
}

/* Runs the one request to its end on this thread. */
static int run_request(struct kg_front *f, const struct kg_call *call, struct kg_answer *a,
                       struct run_times *t, struct kg_error *err)
{
    struct kg_request r = {
        .id = 1,
        .tokens = call->prompts[0].ids.v,
        .n_prompt = (uint32_t)call->prompts[0].ids.n,
        .max_tokens = call->prompts[0].max_tokens,
        .sampling = call->sampling,
        .boundaries = call->prompts[0].boundaries.v,
        .n_boundaries = (uint32_t)call->prompts[0].boundaries.n,
    };
    int rc;

    if (!call->has_seed && getrandom(&r.sampling.seed, sizeof(r.sampling.seed), 0) < 0)
        r.sampling.seed = t->start;
    rc = kg_engine_submit(f->stack->engine, &r, err);
    while (rc == KG_OK && t->end == 0) {
        struct kg_event ev;
        int moved = kg_engine_step(f->stack->engine, err);
        bool any = false;
        if (moved < 0)
            return moved;
        while (rc == KG_OK && kg_engine_next(f->stack->engine, &ev) == KG_OK) {
            any = true;
            rc = take_event(f, a, &ev, t, err);
        }
        if (rc == KG_OK && moved == 0 && !any && t->end == 0)
            return kg_fail(err, KG_EDEVICE, "the engine has nothing to do but no answer came");
    }
    return rc;
}

static int run_front(struct kg_front *f, const struct run_args *args, const struct kg_buf *body,
                     struct kg_error *err)
{
    struct kg_api api;
    struct kg_tok_scratch *scratch = kg_tok_scratch_new(f->tok);
    struct kg_call call = {0};
    struct kg_answer answer = {0};
    struct kg_api_error no = {0};
    struct run_times t = {.start = kg_now_ns()};
    int rc = scratch == NULL ? kg_fail(err, KG_ENOMEM, "out of memory") : KG_OK;

    kg_api_init(&api, &f->stack->conf->server, f->tok, f->chat, f->model_name,
                kg_engine_max_tokens(f->stack->engine), f->stack->desc.vocab);
    if (rc == KG_OK && kg_call_prepare(&api, scratch, args->chat ? KG_EP_CHAT : KG_EP_COMPLETIONS,
                                       (struct kg_span){body->data, body->len}, &call, &no) != KG_OK)
        rc = kg_fail(err, no.status < 500 ? KG_ECONFIG : KG_ENOMEM, "%s", no.message);
    if (rc == KG_OK)
        rc = kg_answer_open(&answer, &api, &call, 0, 0, err);
    if (rc == KG_OK)
        rc = run_request(f, &call, &answer, &t, err);
    if (rc == KG_OK) {
        (void)fputc('\n', stdout);
        (void)fflush(stdout); /* the answer comes before what is said of it */
        if (!args->quiet)
            (void)fprintf(stderr,
                          "%zu prompt tokens, %u output tokens (%s), first after %.1f ms, "
                          "%.1f tokens/s\n",
                          call.prompts[0].ids.n, answer.n_tokens, answer.finish,
                          (double)(t.first - t.start) / 1e6,
                          t.end > t.first && answer.n_tokens > 1
                              ? (answer.n_tokens - 1) * 1e9 / (double)(t.end - t.first)
                              : 0);
    }
    kg_answer_close(&answer);
    kg_call_free(&call);
    kg_tok_scratch_free(scratch);
    return rc;
}

static int open_and_run(struct kg_config *config, const struct run_args *args, struct kg_error *err)
{
    bool from_stdin = strcmp(args->prompt, "-") == 0;
    char *text = from_stdin ? read_stdin() : NULL;
    struct kg_front front;
    struct kg_buf body;
    int rc;

    kg_buf_init(&body, 0);
    if (from_stdin && text == NULL)
        rc = kg_fail(err, KG_EIO, "cannot read the prompt from standard input");
    else /* before the weights: a wrong flag is said at once */
        rc = write_body(args, from_stdin ? text : args->prompt, &body, err);
    if (rc != KG_OK)
        kg_config_destroy(config);
    else
        rc = kg_front_open(&front, config, err);
    if (rc == KG_OK) {
        rc = run_front(&front, args, &body, err);
        kg_front_close(&front);
    }
    kg_buf_fini(&body);
    free(text);
    return rc;
}

int kg_cmd_run(int argc, char **argv)
{
    struct run_args a = {.max_tokens = "64", .temperature = "0"};
    const struct kg_cmd_flag flags[] = {
        {"--chat", NULL, "the text is a user's message, not the beginning of a text", NULL,
         &a.chat},
        {"--system", "TEXT", "system message; means --chat", &a.system, NULL},
        {"--think", NULL, "let the model reason first (on standard error); means --chat", NULL,
         &a.think},
        {"--max-tokens", "N", "length of the answer at most; default 64", &a.max_tokens, NULL},
        {"--temperature", "X", "0 takes the likeliest token; default 0", &a.temperature, NULL},
        {"--top-p", "X", "nucleus, 0 to 1", &a.top_p, NULL},
        {"--top-k", "N", "likeliest tokens to draw from", &a.top_k, NULL},
        {"--seed", "N", "of the draw; default random", &a.seed, NULL},
        {"--stop", "TEXT", "end before this text", &a.stop, NULL},
        {"--quiet", NULL, "no line of figures on standard error", NULL, &a.quiet},
        {NULL, NULL, NULL, NULL, NULL},
    };
    struct kg_cmd_line line;
    struct kg_config *config = NULL;
    struct kg_error err = {0};
    int status =
        kg_cmd_parse(&line, argc, argv, "kedge run -c FILE [flags] TEXT",
                     "Completes TEXT once (\"-\" reads it from standard input).", flags, 1);

    if (status >= 0)
        return status;
    if (line.n_rest != 1) {
        (void)kg_fail(&err, KG_EINVAL, "run: give one TEXT to complete, in quotes");
        (void)kg_cmd_fail(&err);
        return KG_EXIT_USAGE;
    }
    a.prompt = line.rest[0];
    a.chat = a.chat || a.think || a.system != NULL;
    status = kg_cmd_config(&line, &config);
    if (status >= 0)
        return status;
    return open_and_run(config, &a, &err) == KG_OK ? KG_EXIT_OK : kg_cmd_fail(&err);
}
