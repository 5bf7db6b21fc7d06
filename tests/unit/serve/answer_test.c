/* Answers: what the JSON of a choice holds, and that a stream joined equals the plain answer,
 * however the tokens are cut into batches. Known failures V68, V71. */
#include "serve_test.h"

#include "serve/answer.h"
#include "serve/openai_write.h"

#include <math.h>

static struct kg_call call;

/* Prepares a body and opens one answer to it. */
static void open_answer(struct fixture *f, enum kg_endpoint ep, const char *body,
                        struct kg_answer *a)
{
    struct kg_api_error err;
    struct kg_error e = {0};

    if (fixture_prepare(f, ep, body, &call, &err) != KG_OK)
        fail_msg("%s", err.message);
    if (kg_answer_open(a, &f->api, &call, 0, 0, &e) != KG_OK)
        fail_msg("%s", e.text);
}

static struct kg_ids encode(struct fixture *f, const char *text)
{
    struct kg_ids ids = {0};

    assert_int_equal(kg_tok_encode(f->tok, f->scratch, KG_TOK_MARKUP, text, strlen(text), &ids),
                     KG_OK);
    return ids;
}

/* Parses what was written; the caller frees. */
static json_t *parse(struct kg_buf *b)
{
    json_error_t e;
    json_t *v = json_loadb(b->data, b->len, JSON_ALLOW_NUL, &e);

    if (v == NULL)
        fail_msg("%s: %.*s", e.text, (int)b->len, b->data);
    kg_buf_reset(b);
    return v;
}

static const char *str(const json_t *obj, const char *name)
{
    return json_string_value(json_object_get(obj, name));
}

/* Joins the strings of obj[name] over the deltas. */
static void join(struct kg_text *to, const json_t *obj, const char *name)
{
    const json_t *v = json_object_get(obj, name);

    if (json_is_string(v))
        assert_int_equal(kg_text_add(to, json_string_value(v), json_string_length(v)), KG_OK);
}

/* Whether both say the same, where an absent text is an empty one. */
static void same_text(const struct kg_text *joined, const json_t *whole, const char *name)
{
    const json_t *v = json_object_get(whole, name);
    size_t n = json_is_string(v) ? json_string_length(v) : 0;

    assert_int_equal(joined->n, n);
    if (n > 0)
        assert_memory_equal(joined->v, json_string_value(v), n);
}

static const char *const tool_text =
    "I should look.<|close|>think<|sep|><|open|>response<|sep|>Wait\xf0\x9f\x98\x80"
    "<|close|>response<|sep|><|open|>tools<|sep|><|open|>call tool=\"get_weather\" index=\"1\""
    "<|sep|><|open|>argument key=\"city\" type=\"string\"<|sep|>Par\"is<|close|>argument<|sep|>"
    "<|open|>argument key=\"n\" type=\"number\"<|sep|>1e2<|close|>argument<|sep|>"
    "<|close|>call<|sep|><|open|>call tool=\"f\" index=\"2\"<|sep|><|close|>call<|sep|>"
    "<|close|>tools<|sep|><|close|>message<|sep|><|end_of_msg|>";

static const char *const chat_body =
    "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"return_token_ids\":true}";

static json_t *whole_answer(struct fixture *f, const char *body, const struct kg_ids *ids)
{
    struct kg_answer a;
    struct kg_buf b;
    json_t *v;

    kg_buf_init(&b, 0);
    open_answer(f, KG_EP_CHAT, body, &a);
    assert_int_equal(kg_answer_tokens(&a, ids->v, (uint32_t)ids->n, NULL, 0), 0);
    assert_int_equal(kg_answer_finish(&a, false), KG_OK);
    kg_answer_write(&a, &b);
    v = parse(&b);
    kg_answer_close(&a);
    kg_buf_fini(&b);
    return v;
}

static void reasoning_content_and_tool_calls_are_told_apart(void **state)
{
    struct kg_ids ids = encode(*state, tool_text);
    json_t *v = whole_answer(*state, chat_body, &ids);
    const json_t *m = json_object_get(v, "message"), *calls = json_object_get(m, "tool_calls");
    const json_t *f0 = json_object_get(json_array_get(calls, 0), "function");
    json_t *args = json_loads(str(f0, "arguments"), 0, NULL);

    assert_string_equal(str(m, "role"), "assistant");
    assert_string_equal(str(m, "reasoning_content"), "I should look.");
    assert_string_equal(str(m, "content"), "Wait\xf0\x9f\x98\x80");
    assert_string_equal(str(v, "finish_reason"), "tool_calls");
    assert_int_equal(json_array_size(calls), 2);
    assert_string_equal(str(f0, "name"), "get_weather");
    assert_string_equal(str(args, "city"), "Par\"is");
    assert_non_null(strstr(str(f0, "arguments"), "1e2"));
    assert_int_equal(json_array_size(json_object_get(v, "token_ids")), ids.n);
    json_decref(args);
    json_decref(v);
    kg_ids_free(&ids);
}

static void deltas_join_to_the_whole_at_every_batch_size(void **state)
{
    struct kg_ids ids = encode(*state, tool_text);
    json_t *whole = whole_answer(*state, chat_body, &ids);
    const json_t *m = json_object_get(whole, "message");

    for (uint32_t step = 1; step <= ids.n; step++) {
        struct kg_text content = {0}, reasoning = {0}, args = {0};
        struct kg_answer a;
        struct kg_buf b;
        json_t *v = NULL;
        size_t n_ids = 0;

        kg_buf_init(&b, 0);
        open_answer(*state, KG_EP_CHAT, chat_body, &a);
        for (uint32_t at = 0; at <= ids.n; at += step) {
            uint32_t n = ids.n - at < step ? (uint32_t)(ids.n - at) : step;
            assert_int_equal(kg_answer_tokens(&a, ids.v + at, n, NULL, 0), 0);
            if (at + n == ids.n)
                assert_int_equal(kg_answer_finish(&a, false), KG_OK);
            if (!kg_answer_has_news(&a))
                continue;
            json_decref(v);
            kg_answer_write_delta(&a, &b);
            v = parse(&b);
            const json_t *d = json_object_get(v, "delta"), *call_list, *c;
            size_t i;
            join(&content, d, "content");
            join(&reasoning, d, "reasoning_content");
            n_ids += json_array_size(json_object_get(v, "token_ids"));
            call_list = json_object_get(d, "tool_calls");
            json_array_foreach((json_t *)(uintptr_t)call_list, i, c)
            {
                if (json_integer_value(json_object_get(c, "index")) == 0)
                    join(&args, json_object_get(c, "function"), "arguments");
            }
            if (a.finish != NULL)
                break;
        }
        assert_string_equal(str(v, "finish_reason"), "tool_calls");
        same_text(&content, m, "content");
        same_text(&reasoning, m, "reasoning_content");
        same_text(&args,
                  json_object_get(json_array_get(json_object_get(m, "tool_calls"), 0), "function"),
                  "arguments");
        assert_int_equal(n_ids, ids.n);
        json_decref(v);
        kg_answer_close(&a);
        kg_buf_fini(&b);
        kg_text_free(&content);
        kg_text_free(&reasoning);
        kg_text_free(&args);
    }
    json_decref(whole);
    kg_ids_free(&ids);
}

static void one_call_only_and_no_reasoning_when_asked(void **state)
{
    struct kg_ids ids = encode(*state, tool_text);
    json_t *v = whole_answer(*state,
                             "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],"
                             "\"parallel_tool_calls\":false,\"include_reasoning\":false}",
                             &ids);
    const json_t *m = json_object_get(v, "message");

    assert_int_equal(json_array_size(json_object_get(m, "tool_calls")), 1);
    assert_true(json_is_null(json_object_get(m, "reasoning_content")));
    assert_null(json_object_get(v, "token_ids"));
    json_decref(v);
    kg_ids_free(&ids);
}

static void log_probabilities_that_are_not_finite_are_json_all_the_same(void **state)
{
    struct kg_logprob lp[3] = {{70, -INFINITY}, {70, -INFINITY}, {71, -0.5f}};
    struct kg_answer a;
    struct kg_buf b;
    uint32_t id = 70;
    json_t *v;
    const json_t *l;

    kg_buf_init(&b, 0);
    open_answer(*state, KG_EP_COMPLETIONS, "{\"prompt\":\"a\",\"logprobs\":2}", &a);
    assert_int_equal(kg_answer_tokens(&a, &id, 1, lp, 3), 0);
    assert_int_equal(kg_answer_finish(&a, true), KG_OK);
    kg_answer_write(&a, &b);
    v = parse(&b);
    l = json_object_get(v, "logprobs");
    assert_true(json_real_value(json_array_get(json_object_get(l, "token_logprobs"), 0)) ==
                -9999.0);
    assert_int_equal(json_object_size(json_array_get(json_object_get(l, "top_logprobs"), 0)), 2);
    assert_string_equal(str(v, "finish_reason"), "length");
    json_decref(v);
    kg_answer_close(&a);
    kg_buf_fini(&b);
}

static void a_stop_string_ends_the_answer_and_names_its_length(void **state)
{
    struct kg_ids ids = encode(*state, "one two three four");
    struct kg_answer a;

    for (uint32_t step = 1; step <= ids.n; step++) {
        int rc = 0;
        open_answer(*state, KG_EP_COMPLETIONS, "{\"prompt\":\"a\",\"stop\":\"o th\"}", &a);
        for (uint32_t at = 0; at < ids.n; at += step) {
            uint32_t n = ids.n - at < step ? (uint32_t)(ids.n - at) : step;
            rc = kg_answer_tokens(&a, ids.v + at, n, NULL, 0);
        }
        assert_int_equal(rc, 1);
        assert_true(a.stopped && a.n_tokens < ids.n);
        /* even when the engine had run into max_tokens by then */
        assert_int_equal(kg_answer_finish(&a, true), KG_OK);
        assert_string_equal(a.finish, "stop");
        assert_string_equal(kg_buf_cstr(&a.content), "one tw");
        kg_answer_close(&a);
    }
    kg_ids_free(&ids);
}

static void an_answer_over_its_limit_is_an_error(void **state)
{
    struct fixture *f = *state;
    struct kg_ids ids = encode(f, "some words to say");
    struct kg_answer a;
    int rc = 0;

    f->conf.reply_bytes = 1000;
    open_answer(f, KG_EP_COMPLETIONS, "{\"prompt\":\"a\"}", &a);
    for (int i = 0; i < 100 && rc == 0; i++)
        rc = kg_answer_tokens(&a, ids.v, (uint32_t)ids.n, NULL, 0);
    assert_int_equal(rc, KG_ELIMIT);
    kg_answer_close(&a);
    f->conf.reply_bytes = 1u << 26;
    kg_ids_free(&ids);
}

static void envelopes_and_errors_have_the_published_shape(void **state)
{
    struct kg_envelope e = {.id = "i\"d", .model = "m", .created = 5, .chat = true, .chunk = true};
    struct kg_usage u = {.prompt = 3, .completion = 4, .cached = 2};
    struct kg_api_error err = {0};
    struct kg_buf b;
    json_t *v;

    (void)state;
    kg_buf_init(&b, 0);
    kg_write_open(&b, &e);
    kg_write_close(&b, &u, false);
    v = parse(&b);
    assert_string_equal(str(v, "id"), "i\"d");
    assert_string_equal(str(v, "object"), "chat.completion.chunk");
    assert_int_equal(
        json_integer_value(json_object_get(json_object_get(v, "usage"), "total_tokens")), 7);
    assert_null(json_object_get(json_object_get(v, "usage"), "completion_tokens_details"));
    json_decref(v);
    u.verified = 9;
    u.accepted = 5;
    kg_write_open(&b, &e);
    kg_write_close(&b, &u, false);
    v = parse(&b);
    const json_t *d = json_object_get(json_object_get(v, "usage"), "completion_tokens_details");
    assert_int_equal(json_integer_value(json_object_get(d, "accepted_prediction_tokens")), 5);
    assert_int_equal(json_integer_value(json_object_get(d, "rejected_prediction_tokens")), 4);
    json_decref(v);
    kg_write_open(&b, &e);
    kg_write_close(&b, NULL, true);
    v = parse(&b);
    assert_true(json_is_null(json_object_get(v, "usage")));
    json_decref(v);
    (void)kg_api_refuse(&err, "x[0]", "bad \"%s\"", "\xff\n");
    kg_write_error(&b, &err);
    v = parse(&b);
    assert_string_equal(str(json_object_get(v, "error"), "param"), "x[0]");
    assert_string_equal(str(json_object_get(v, "error"), "type"), "invalid_request_error");
    assert_string_equal(str(json_object_get(v, "error"), "message"), "bad \"??\"");
    json_decref(v);
    kg_buf_fini(&b);
}

static int close_all(void **state)
{
    kg_call_free(&call);
    return fixture_close(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reasoning_content_and_tool_calls_are_told_apart),
        cmocka_unit_test(deltas_join_to_the_whole_at_every_batch_size),
        cmocka_unit_test(one_call_only_and_no_reasoning_when_asked),
        cmocka_unit_test(log_probabilities_that_are_not_finite_are_json_all_the_same),
        cmocka_unit_test(a_stop_string_ends_the_answer_and_names_its_length),
        cmocka_unit_test(an_answer_over_its_limit_is_an_error),
        cmocka_unit_test(envelopes_and_errors_have_the_published_shape),
    };

    return cmocka_run_group_tests_name("answer", tests, fixture_open, close_all);
}
