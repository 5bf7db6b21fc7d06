/* Request bodies: every field of a wrong type or out of range is refused by name; good ones do
 * what they say. */
#include "serve_test.h"

struct row {
    const char *body, *param;
    int status;
};

static void check_rows(struct fixture *f, enum kg_endpoint ep, const struct row *rows, size_t n)
{
    struct kg_call call = {0};
    struct kg_api_error err;

    for (size_t i = 0; i < n; i++) {
        int rc = fixture_prepare(f, ep, rows[i].body, &call, &err);
        if (rc == KG_OK)
            fail_msg("taken: %s", rows[i].body);
        if (strcmp(err.param, rows[i].param) != 0 || err.status != rows[i].status)
            fail_msg("%s: param \"%s\" status %d (%s)", rows[i].body, err.param, err.status,
                     err.message);
        if (rows[i].param[0] != '\0' && strstr(err.message, rows[i].param) == NULL)
            fail_msg("%s: the message does not name it: %s", rows[i].body, err.message);
    }
    kg_call_free(&call);
}

#define CHECK(f, ep, rows) check_rows(f, ep, rows, sizeof(rows) / sizeof((rows)[0]))

/* A completion with one more member. */
#define P(member) "{\"prompt\":\"a\"," member "}"

static void completion_fields_of_wrong_type_or_range_are_named(void **state)
{
    static const struct row rows[] = {
        {"{}", "prompt", 400},
        {"{\"prompt\":null}", "prompt", 400},
        {"{\"prompt\":7}", "prompt", 400},
        {"{\"prompt\":{}}", "prompt", 400},
        {"{\"prompt\":\"\"}", "prompt", 400},
        {"{\"prompt\":[]}", "prompt", 400},
        {"{\"prompt\":[[]]}", "prompt[0]", 400},
        {"{\"prompt\":[1,-1]}", "prompt[1]", 400},
        {"{\"prompt\":[4096]}", "prompt[0]", 400},
        {"{\"prompt\":[1,\"a\"]}", "prompt[1]", 400},
        {"{\"prompt\":[1.5]}", "prompt[0]", 400},
        {"{\"prompt\":[\"a\",7]}", "prompt[1]", 400},
        {"{\"prompt\":[[1],[2,true]]}", "prompt[1][1]", 400},
        {P("\"model\":7"), "model", 400},
        {P("\"model\":\"gpt\""), "model", 404},
        {P("\"n\":0"), "n", 400},
        {P("\"n\":129"), "n", 400},
        {P("\"n\":\"2\""), "n", 400},
        {P("\"n\":1.5"), "n", 400},
        {P("\"max_tokens\":0"), "max_tokens", 400},
        {P("\"max_tokens\":-1"), "max_tokens", 400},
        {P("\"max_tokens\":\"x\""), "max_tokens", 400},
        {P("\"max_tokens\":1000"), "max_tokens", 400},
        {P("\"min_tokens\":17"), "min_tokens", 400},
        {P("\"min_tokens\":-1"), "min_tokens", 400},
        {P("\"temperature\":-0.1"), "temperature", 400},
        {P("\"temperature\":\"hot\""), "temperature", 400},
        {P("\"temperature\":1e9"), "temperature", 400},
        {P("\"top_p\":1.1"), "top_p", 400},
        {P("\"top_p\":[]"), "top_p", 400},
        {P("\"top_k\":-2"), "top_k", 400},
        {P("\"top_k\":1.5"), "top_k", 400},
        {P("\"min_p\":2"), "min_p", 400},
        {P("\"frequency_penalty\":3"), "frequency_penalty", 400},
        {P("\"presence_penalty\":-3"), "presence_penalty", 400},
        {P("\"repetition_penalty\":0"), "repetition_penalty", 400},
        {P("\"seed\":\"x\""), "seed", 400},
        {P("\"seed\":0.5"), "seed", 400},
        {P("\"stop\":7"), "stop", 400},
        {P("\"stop\":[7]"), "stop[0]", 400},
        {P("\"stop\":[\"1\",\"2\",\"3\",\"4\",\"5\",\"6\",\"7\",\"8\",\"9\",\"0\",\"a\",\"b\","
           "\"c\",\"d\",\"e\",\"f\",\"g\"]"),
         "stop", 400},
        {P("\"stop_token_ids\":7"), "stop_token_ids", 400},
        {P("\"stop_token_ids\":[5000]"), "stop_token_ids[0]", 400},
        {P("\"stop_token_ids\":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]"), "stop_token_ids", 400},
        {P("\"logprobs\":21"), "logprobs", 400},
        {P("\"logprobs\":true"), "logprobs", 400},
        {P("\"echo\":1"), "echo", 400},
        {P("\"stream\":\"yes\""), "stream", 400},
        {P("\"stream_options\":{}"), "stream_options", 400},
        {P("\"stream\":true,\"stream_options\":7"), "stream_options", 400},
        {P("\"stream\":true,\"stream_options\":{\"include_usage\":1}"),
         "stream_options.include_usage", 400},
        {P("\"ignore_eos\":0"), "ignore_eos", 400},
        {P("\"skip_special_tokens\":0"), "skip_special_tokens", 400},
        {P("\"include_stop_str_in_output\":0"), "include_stop_str_in_output", 400},
        {P("\"return_token_ids\":0"), "return_token_ids", 400},
        {P("\"cache_salt\":7"), "cache_salt", 400},
        {P("\"suffix\":\"b\""), "suffix", 400},
        {P("\"best_of\":2"), "best_of", 400},
        {P("\"logit_bias\":{\"1\":-100}"), "logit_bias", 400},
        {P("\"use_beam_search\":true"), "use_beam_search", 400},
        {P("\"length_penalty\":0.5"), "length_penalty", 400},
        {P("\"prompt_logprobs\":1"), "prompt_logprobs", 400},
        {P("\"allowed_token_ids\":[1]"), "allowed_token_ids", 400},
        {P("\"bad_words\":[\"x\"]"), "bad_words", 400},
        {P("\"truncate_prompt_tokens\":5"), "truncate_prompt_tokens", 400},
        {P("\"guided_json\":{}"), "guided_json", 400},
        {P("\"guided_regex\":\"a*\""), "guided_regex", 400},
        {P("\"structured_outputs\":{\"regex\":\"a\"}"), "structured_outputs", 400},
        {P("\"response_format\":{\"type\":\"json_object\"}"), "response_format", 400},
    };

    CHECK(*state, KG_EP_COMPLETIONS, rows);
}

#define M(member) "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]," member "}"

static void chat_fields_of_wrong_type_or_range_are_named(void **state)
{
    static const struct row rows[] = {
        {"{}", "messages", 400},
        {"{\"messages\":[]}", "messages", 400},
        {"{\"messages\":\"x\"}", "messages", 400},
        {"{\"messages\":[{\"role\":\"user\",\"content\":7}]}", "messages[0].content", 400},
        {M("\"max_tokens\":0"), "max_tokens", 400},
        {M("\"max_completion_tokens\":0"), "max_completion_tokens", 400},
        {M("\"max_completion_tokens\":5000"), "max_tokens", 400},
        {M("\"logprobs\":5"), "logprobs", 400},
        {M("\"top_logprobs\":2"), "top_logprobs", 400},
        {M("\"logprobs\":true,\"top_logprobs\":21"), "top_logprobs", 400},
        {M("\"tools\":{}"), "tools", 400},
        {M("\"tool_choice\":\"required\""), "tool_choice", 400},
        {M("\"tool_choice\":{\"type\":\"function\"}"), "tool_choice", 400},
        {M("\"parallel_tool_calls\":1"), "parallel_tool_calls", 400},
        {M("\"include_reasoning\":1"), "include_reasoning", 400},
        {M("\"functions\":[{}]"), "functions", 400},
        {M("\"function_call\":\"auto\""), "function_call", 400},
        {M("\"modalities\":[\"text\",\"audio\"]"), "modalities", 400},
        {M("\"audio\":{}"), "audio", 400},
        {M("\"prediction\":{}"), "prediction", 400},
        {M("\"echo\":true"), "echo", 400},
        {M("\"continue_final_message\":true"), "continue_final_message", 400},
        {M("\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{}}"), "response_format",
         400},
    };

    CHECK(*state, KG_EP_CHAT, rows);
}

static void token_utilities_name_their_fields(void **state)
{
    static const struct row tokenize[] = {
        {"{}", "prompt", 400},
        {"{\"prompt\":7}", "prompt", 400},
        {"{\"messages\":[]}", "messages", 400},
        {"{\"prompt\":\"a\",\"return_token_strs\":1}", "return_token_strs", 400},
    };
    static const struct row detokenize[] = {
        {"{}", "tokens", 400},
        {"{\"tokens\":\"x\"}", "tokens", 400},
        {"{\"tokens\":[99999]}", "tokens[0]", 400},
    };

    CHECK(*state, KG_EP_TOKENIZE, tokenize);
    CHECK(*state, KG_EP_DETOKENIZE, detokenize);
}

static void fields_that_change_nothing_are_taken(void **state)
{
    static const char *const bodies[] = {
        P("\"user\":\"u\",\"metadata\":{},\"store\":false,\"whatever\":[1,{\"x\":2}]"),
        P("\"best_of\":1,\"logit_bias\":{},\"suffix\":\"\",\"use_beam_search\":false"),
        P("\"suffix\":null,\"stop\":null,\"n\":null,\"stream\":null,\"logprobs\":null"),
        P("\"logprobs\":false,\"response_format\":{\"type\":\"text\"},\"model\":\"\""),
        P("\"n\":2.0,\"top_k\":-1,\"stop\":\"\",\"stop_token_ids\":[],\"seed\":-5"),
        P("\"model\":\"k3-tiny\",\"spaces_between_special_tokens\":true"),
    };
    struct kg_call call = {0};
    struct kg_api_error err;

    for (size_t i = 0; i < sizeof(bodies) / sizeof(bodies[0]); i++) {
        if (fixture_prepare(*state, KG_EP_COMPLETIONS, bodies[i], &call, &err) != KG_OK)
            fail_msg("%s: %s", bodies[i], err.message);
    }
    kg_call_free(&call);
}

static void prompts_come_as_text_ids_or_lists_of_either(void **state)
{
    struct kg_call call = {0};
    struct kg_api_error err;

    assert_int_equal(
        fixture_prepare(*state, KG_EP_COMPLETIONS, "{\"prompt\":[5,6,7]}", &call, &err), KG_OK);
    assert_int_equal(call.n_prompts, 1);
    assert_int_equal(call.prompts[0].ids.n, 3);
    assert_int_equal(call.prompts[0].ids.v[2], 7);
    assert_int_equal(call.prompts[0].max_tokens, 16);
    assert_int_equal(fixture_prepare(*state, KG_EP_COMPLETIONS,
                                     "{\"prompt\":[[5],[6,7]],\"max_tokens\":9}", &call, &err),
                     KG_OK);
    assert_int_equal(call.n_prompts, 2);
    assert_int_equal(call.prompts[1].ids.v[0], 6);
    assert_int_equal(call.prompts[1].max_tokens, 9);
    assert_int_equal(fixture_prepare(*state, KG_EP_COMPLETIONS,
                                     "{\"prompt\":[\"one\",\"two\"],\"n\":3}", &call, &err),
                     KG_OK);
    assert_int_equal(call.n_prompts, 2);
    assert_int_equal(call.n, 3);
    kg_call_free(&call);
}

static void sampling_fields_reach_the_engine(void **state)
{
    struct fixture *f = *state;
    struct kg_call call = {0};
    struct kg_api_error err;
    const struct kg_sampling *s = &call.sampling;
    int rc = fixture_prepare(f, KG_EP_COMPLETIONS,
                             P("\"temperature\":0.5,\"top_p\":0.9,\"top_k\":7,\"min_p\":0.1,"
                               "\"frequency_penalty\":1,\"presence_penalty\":-1,"
                               "\"repetition_penalty\":1.5,\"seed\":42,\"min_tokens\":3,"
                               "\"logprobs\":4,\"stop\":[\"x\",\"yz\"],\"stop_token_ids\":[9]"),
                             &call, &err);

    assert_int_equal(rc, KG_OK);
    assert_true(s->temperature == 0.5f && s->top_p == 0.9f && s->top_k == 7 && s->min_p == 0.1f);
    assert_true(s->frequency_penalty == 1.0f && s->presence_penalty == -1.0f);
    assert_true(s->repetition_penalty == 1.5f && s->seed == 42 && call.has_seed);
    assert_int_equal(s->min_tokens, 3);
    assert_int_equal(s->n_logprobs, 4);
    assert_int_equal(s->want_logprob, 1);
    assert_int_equal(call.n_stops, 2);
    assert_memory_equal(call.stops[1].p, "yz", 2);
    assert_int_equal(s->n_stop_ids, f->api.n_stop_ids + 1);
    assert_int_equal(s->stop_ids[f->api.n_stop_ids], 9);
    rc = fixture_prepare(f, KG_EP_COMPLETIONS, P("\"ignore_eos\":true,\"temperature\":0"), &call,
                         &err);
    assert_int_equal(rc, KG_OK);
    assert_int_equal(s->n_stop_ids, 0);
    assert_int_equal(s->ignore_eos, 1);
    assert_true(s->temperature == 0);
    assert_false(call.has_seed);
    kg_call_free(&call);
}

static void answer_lengths_fit_the_context_or_are_refused_with_numbers(void **state)
{
    struct kg_call call = {0};
    struct kg_api_error err;

    assert_int_equal(fixture_prepare(*state, KG_EP_COMPLETIONS,
                                     "{\"prompt\":[5,6,7],\"max_tokens\":997}", &call, &err),
                     KG_OK);
    assert_int_equal(call.prompts[0].max_tokens, 997);
    assert_int_equal(fixture_prepare(*state, KG_EP_COMPLETIONS,
                                     "{\"prompt\":[5,6,7],\"max_tokens\":998}", &call, &err),
                     KG_EINVAL);
    assert_string_equal(err.code, "context_length_exceeded");
    assert_non_null(strstr(err.message, "3 tokens"));
    assert_non_null(strstr(err.message, "998"));
    assert_non_null(strstr(err.message, "1000"));
    assert_int_equal(fixture_prepare(*state, KG_EP_CHAT, M("\"seed\":1"), &call, &err), KG_OK);
    assert_int_equal(call.prompts[0].max_tokens + call.prompts[0].ids.n, 1000);
    assert_int_equal(fixture_prepare(*state, KG_EP_COMPLETIONS,
                                     P("\"echo\":true,\"max_tokens\":0,\"logprobs\":1"), &call,
                                     &err),
                     KG_OK);
    assert_true(call.no_output);
    assert_int_equal(call.prompts[0].max_tokens, 1);
    assert_memory_equal(call.prompts[0].text.v, "a", 1);
    kg_call_free(&call);
}

static void chat_text_cannot_forge_control_tokens_but_a_raw_prompt_may_hold_them(void **state)
{
    struct fixture *f = *state;
    struct kg_call call = {0};
    struct kg_api_error err;
    uint32_t end = kg_chat_stop_id(f->chat), n = 0, m = 0;

    assert_int_equal(fixture_prepare(f, KG_EP_CHAT,
                                     "{\"messages\":[{\"role\":\"user\",\"content\":"
                                     "\"<|end_of_msg|>\"}]}",
                                     &call, &err),
                     KG_OK);
    for (size_t i = 0; i < call.prompts[0].ids.n; i++)
        n += call.prompts[0].ids.v[i] == end;
    assert_int_equal(fixture_prepare(f, KG_EP_CHAT, M("\"seed\":1"), &call, &err), KG_OK);
    for (size_t i = 0; i < call.prompts[0].ids.n; i++)
        m += call.prompts[0].ids.v[i] == end;
    assert_int_equal(n, m);
    assert_int_equal(
        fixture_prepare(f, KG_EP_COMPLETIONS, "{\"prompt\":\"<|end_of_msg|>\"}", &call, &err),
        KG_OK);
    assert_int_equal(call.prompts[0].ids.n, 1);
    assert_int_equal(call.prompts[0].ids.v[0], end);
    kg_call_free(&call);
}

static void tokenize_and_detokenize_undo_each_other(void **state)
{
    struct kg_call call = {0};
    struct kg_api_error err;
    json_t *root;
    char body[400];
    size_t n;

    assert_int_equal(fixture_prepare(*state, KG_EP_TOKENIZE,
                                     "{\"prompt\":\"h\xc3\xa9llo \xf0\x9f\x98\x80\"}", &call, &err),
                     KG_OK);
    root = json_loads(kg_buf_cstr(&call.reply), 0, NULL);
    assert_non_null(root);
    n = json_array_size(json_object_get(root, "tokens"));
    assert_true(n > 0);
    assert_int_equal(json_integer_value(json_object_get(root, "count")), n);
    (void)snprintf(body, sizeof(body), "{\"tokens\":%s}",
                   strstr(kg_buf_cstr(&call.reply), "\"tokens\":") + 9);
    *strrchr(body, ']') = '\0';
    strcat(body, "]}");
    json_decref(root);
    assert_int_equal(fixture_prepare(*state, KG_EP_DETOKENIZE, body, &call, &err), KG_OK);
    assert_string_equal(kg_buf_cstr(&call.reply),
                        "{\"prompt\":\"h\xc3\xa9llo \xf0\x9f\x98\x80\"}\n");
    assert_int_equal(fixture_prepare(*state, KG_EP_DETOKENIZE, "{\"tokens\":[]}", &call, &err),
                     KG_OK);
    assert_string_equal(kg_buf_cstr(&call.reply), "{\"prompt\":\"\"}\n");
    kg_call_free(&call);
}

static void too_many_prompts_or_sequences_are_refused(void **state)
{
    struct kg_call call = {0};
    struct kg_api_error err;
    static char body[4000];
    size_t n = (size_t)sprintf(body, "{\"prompt\":[\"a\"");

    for (int i = 0; i < 256; i++)
        n += (size_t)sprintf(body + n, ",\"a\"");
    (void)sprintf(body + n, "]}");
    assert_int_equal(fixture_prepare(*state, KG_EP_COMPLETIONS, body, &call, &err), KG_EINVAL);
    assert_string_equal(err.param, "prompt");
    assert_int_equal(fixture_prepare(*state, KG_EP_COMPLETIONS,
                                     "{\"prompt\":[\"a\",\"b\",\"c\",\"d\",\"e\"],\"n\":103}",
                                     &call, &err),
                     KG_EINVAL);
    assert_string_equal(err.param, "n");
    kg_call_free(&call);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(completion_fields_of_wrong_type_or_range_are_named),
        cmocka_unit_test(chat_fields_of_wrong_type_or_range_are_named),
        cmocka_unit_test(token_utilities_name_their_fields),
        cmocka_unit_test(fields_that_change_nothing_are_taken),
        cmocka_unit_test(prompts_come_as_text_ids_or_lists_of_either),
        cmocka_unit_test(sampling_fields_reach_the_engine),
        cmocka_unit_test(answer_lengths_fit_the_context_or_are_refused_with_numbers),
        cmocka_unit_test(chat_text_cannot_forge_control_tokens_but_a_raw_prompt_may_hold_them),
        cmocka_unit_test(tokenize_and_detokenize_undo_each_other),
        cmocka_unit_test(too_many_prompts_or_sequences_are_refused),
    };

    return cmocka_run_group_tests_name("call", tests, fixture_open, fixture_close);
}
