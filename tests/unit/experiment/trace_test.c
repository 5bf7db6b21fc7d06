/* Readers of traces: what each format becomes, and that wrong lines are named. */
#include "experiment/trace.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

static struct kg_trace *read_text(uint32_t format, const char *text, struct kg_trace_conf conf)
{
    struct kg_trace *t = NULL;
    struct kg_error err = {0};

    conf.format = format;
    conf.scale = conf.scale == 0 ? 1 : conf.scale;
    if (kg_trace_read_mem("mem", text, strlen(text), &conf, &t, &err) != KG_OK) {
        fail_msg("%s", err.text);
    }
    return t;
}

static struct kg_trace *read_plain(uint32_t format, const char *text)
{
    return read_text(format, text, (struct kg_trace_conf){0});
}

static void bad(uint32_t format, const char *text, const char *wanted)
{
    const struct kg_trace_conf conf = {.format = format, .scale = 1};
    struct kg_trace *t = NULL;
    struct kg_error err = {0};

    assert_int_equal(kg_trace_read_mem("mem", text, strlen(text), &conf, &t, &err), KG_EINVAL);
    assert_null(t);
    if (strstr(err.text, wanted) == NULL) {
        fail_msg("wanted \"%s\" in: %s", wanted, err.text);
    }
}

static void a_mooncake_line_becomes_runs_of_blocks(void **state)
{
    (void)state;
    struct kg_trace *t = read_plain(
        KG_TRACE_MOONCAKE,
        "{\"timestamp\": 0, \"input_length\": 1100, \"output_length\": 5, \"hash_ids\": [7,8,20]}\n"
        "\n"
        "{\"timestamp\": 1500.5, \"input_length\": 512, \"output_length\": 0, \"hash_ids\": "
        "[7]}\n");
    assert_int_equal(t->n, 2);
    const struct kg_trace_req *q = &t->reqs[0];
    assert_int_equal(q->n_prompt, 1100);
    assert_int_equal(q->n_named, 1024);
    assert_int_equal(q->n_pieces, 2);
    const struct kg_trace_piece *p = t->pieces + q->pieces_at;
    assert_int_equal(p[0].id, 7);
    assert_int_equal(p[0].n, 1024);
    assert_int_equal(p[1].id, 20);
    assert_int_equal(p[1].at, 1024);
    assert_int_equal(p[1].n, 76); /* the partial block is cut to the prompt */
    q = &t->reqs[1];
    assert_int_equal(q->arrive_ns, 1500500000);
    assert_int_equal(q->n_output, 1); /* an answer has a token */
    assert_int_equal(t->n_raised, 1);
    assert_int_equal(q->n_named, 512);
    assert_int_equal(q->line, 3);
    assert_string_equal(kg_trace_name(t, 1), "2");
    kg_trace_free(t);
}

static void native_fields_are_read(void **state)
{
    (void)state;
    struct kg_trace *t = read_plain(
        KG_TRACE_NATIVE,
        "{\"timestamp\":0,\"token_ids\":[5,6,7],\"output_length\":2,\"id\":\"a\",\"tenant\":\"x\","
        "\"domain\":\"chat\",\"boundaries\":[1,3],\"colour\":1}\n"
        "{\"input_length\":40,\"output_length\":3,\"id\":9,\"after\":\"a\",\"delay\":20,"
        "\"cancel_after\":7,\"block\":16,\"hash_ids\":[1,2,3],\"tenant\":\"x\"}\n"
        "{\"timestamp\":3,\"prompt\":\"hello\",\"output_length\":1}\n");
    const struct kg_trace_req *q = t->reqs;
    assert_int_equal(q[0].n_tokens, 3);
    assert_int_equal(t->tokens[q[0].tokens_at + 2], 7);
    assert_int_equal(q[0].n_bounds, 2);
    assert_int_equal(t->bounds[q[0].bounds_at + 1], 3);
    assert_string_equal(t->text + q[0].domain_at, "chat");
    assert_true(q[0].tenant != 0 && q[0].tenant == q[1].tenant);
    assert_int_equal(q[0].cancel_ns, KG_TRACE_NEVER);
    assert_int_equal(q[1].after, 0);
    assert_int_equal(q[1].delay_ns, 20000000);
    assert_int_equal(q[1].cancel_ns, 7000000);
    assert_int_equal(q[1].n_named, 32);
    assert_string_equal(kg_trace_name(t, 1), "9");
    assert_int_equal(q[2].n_text, 5);
    assert_string_equal(t->text + q[2].prompt_at, "hello");
    assert_string_equal(t->unknown, "colour");
    assert_int_equal(t->unknown_line, 1);
    kg_trace_free(t);
}

static void wrong_lines_are_named_with_their_field(void **state)
{
    (void)state;
    static const struct {
        const char *text, *wanted;
    } rows[] = {
        {"{\"timestamp\":0}", "line 1: output_length: missing"},
        {"{\"timestamp\":0,\"output_length\":1}", "input_length: missing"},
        {"{\"output_length\":1,\"input_length\":1}", "timestamp: missing"},
        {"{\"timestamp\":-1,\"output_length\":1,\"input_length\":1}", "timestamp: wanted a time"},
        {"{\"timestamp\":\"x\",\"output_length\":1,\"input_length\":1}", "found a string"},
        {"{\"timestamp\":0,\"output_length\":1.5,\"input_length\":1}", "output_length: wanted"},
        {"{\"timestamp\":0,\"output_length\":1,\"input_length\":99999999}", "found 99999999"},
        {"{\"timestamp\":0,\"output_length\":1,\"input_length\":1000,\"hash_ids\":[1,2,3]}",
         "hash_ids: 3 ids"},
        {"{\"timestamp\":0,\"output_length\":1,\"input_length\":1000,\"hash_ids\":[1,\"2\"]}",
         "hash_ids[1]: wanted an integer"},
        {"{\"timestamp\":0,\"output_length\":1,\"input_length\":2,\"token_ids\":[1]}",
         "token_ids: 1 tokens"},
        {"{\"timestamp\":0,\"output_length\":1,\"token_ids\":[]}", "token_ids: an empty prompt"},
        {"{\"timestamp\":0,\"output_length\":1,\"prompt\":\"a\",\"token_ids\":[1]}",
         "only one of them"},
        {"{\"timestamp\":0,\"output_length\":1,\"prompt\":\"\"}", "prompt: wanted a string"},
        {"{\"timestamp\":0,\"output_length\":1,\"input_length\":5,\"boundaries\":[3,3]}",
         "boundaries[1]"},
        {"{\"timestamp\":0,\"output_length\":1,\"input_length\":5,\"boundaries\":[6]}",
         "behind the prompt"},
        {"{\"timestamp\":0,\"output_length\":1,\"input_length\":5,\"after\":\"zz\"}",
         "after: no request \"zz\" before this line"},
        {"{\"timestamp\":0,\"output_length\":1,\"input_length\":5,\"id\":1}\n\n"
         "{\"timestamp\":0,\"output_length\":1,\"input_length\":5,\"id\":\"1\"}",
         "line 3: id: \"1\" was used on line 1"},
        {"{\"timestamp\":0,\"timestamp\":0,\"output_length\":1,\"input_length\":5}", "duplicate"},
        {"[1,2]", "wanted a JSON object"},
        {"{\"timestamp\":", "line 1: column"},
        {"\n \n", "no requests"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        bad(KG_TRACE_NATIVE, rows[i].text, rows[i].wanted);
    }
}

static void scaling_divides_lengths_and_blocks_and_keeps_ids(void **state)
{
    (void)state;
    struct kg_trace *t = read_text(
        KG_TRACE_MOONCAKE,
        "{\"timestamp\":0,\"input_length\":1100,\"output_length\":33,\"hash_ids\":[7,8,20]}\n"
        "{\"timestamp\":0,\"input_length\":1023,\"output_length\":1,\"hash_ids\":[7,9]}\n"
        "{\"timestamp\":0,\"input_length\":515,\"output_length\":1,\"hash_ids\":[7,11]}\n",
        (struct kg_trace_conf){.scale = 16});
    const struct kg_trace_req *q = t->reqs;
    assert_int_equal(q[0].block, 32);
    assert_int_equal(q[0].n_prompt, 68);
    assert_int_equal(q[0].n_named, 64);
    assert_int_equal(q[0].n_output, 2);
    assert_int_equal(q[1].n_prompt, 63);
    assert_int_equal(q[1].n_named, 32); /* a partial block stays partial */
    assert_int_equal(q[1].n_output, 1);
    assert_int_equal(q[2].n_prompt, 32); /* three tokens are none */
    assert_int_equal(q[2].n_named, 32);
    assert_int_equal(q[2].n_pieces, 1);
    kg_trace_free(t);
    const struct kg_trace_conf conf = {.scale = 3};
    struct kg_error err = {0};
    const char *line = "{\"timestamp\":0,\"input_length\":9,\"output_length\":1,\"hash_ids\":[1]}";
    assert_int_equal(kg_trace_read_mem("mem", line, strlen(line), &conf, &t, &err), KG_EINVAL);
    assert_non_null(strstr(err.text, "cannot be divided by the scale 3"));
}

static const char agentic[] =
    "{\"session\":1,\"tool\":100,\"sys\":20,\"n\":3}\n"
    "{\"s\":1,\"k\":0,\"t\":0,\"in\":200,\"out\":4,\"think\":0,\"svc\":1000,\"h\":[1,3]}\n"
    "{\"s\":1,\"k\":1,\"spawn\":1,\"t\":1500,\"kind\":\"x\",\"dur\":9,\"tool\":1,\"sys\":1,\"n\":2,"
    "\"status\":\"ok\"}\n"
    "{\"s\":1,\"a\":1,\"k\":0,\"t\":0,\"in\":70,\"out\":5,\"think\":0,\"svc\":10,\"h\":[50,1]}\n"
    "{\"s\":1,\"a\":1,\"k\":1,\"t\":40,\"in\":130,\"out\":5,\"svc\":10,\"h\":[50,2]}\n"
    "{\"s\":1,\"k\":2,\"t\":5000,\"in\":260,\"out\":4,\"think\":2500,\"svc\":9,\"h\":[1,3,9,1]}\n"
    "{\"session\":2,\"tool\":1,\"sys\":1,\"n\":1}\n"
    "{\"s\":2,\"k\":0,\"t\":0,\"in\":999,\"out\":4,\"think\":0,\"svc\":1,\"h\":[1,15]}\n"
    "{\"session\":3,\"tool\":1,\"sys\":1,\"n\":1}\n"
    "{\"s\":3,\"k\":0,\"t\":0,\"in\":64,\"out\":4,\"think\":0,\"svc\":1,\"h\":[1,1]}\n";

static void sessions_become_chains(void **state)
{
    (void)state;
    struct kg_trace *t = read_plain(KG_TRACE_AGENTIC, agentic);
    const struct kg_trace_req *q = t->reqs;
    assert_int_equal(t->n, 6);
    assert_int_equal(q[0].after, KG_NONE);
    assert_string_equal(kg_trace_name(t, 1), "s1.0.a1");
    assert_int_equal(q[1].after, 0); /* the sub-agent begins 500 ms after the main agent's answer */
    assert_int_equal(q[1].delay_ns, 500000000);
    assert_int_equal(q[2].after, 1); /* no think time: start minus end of the one before */
    assert_int_equal(q[2].delay_ns, 30000000);
    assert_int_equal(q[3].after, 0);
    assert_int_equal(q[3].delay_ns, 2500000000);
    assert_int_equal(q[0].n_named, 192);
    assert_int_equal(q[0].n_prompt, 200);
    assert_true(t->pieces[q[0].pieces_at].id != t->pieces[q[5].pieces_at].id); /* other session */
    kg_trace_free(t);
}

static void whole_sessions_are_left_out_and_starts_are_spread(void **state)
{
    (void)state;
    struct kg_trace *t =
        read_text(KG_TRACE_AGENTIC, agentic,
                  (struct kg_trace_conf){
                      .max_input = 300, .n_sessions = 2, .main_only = 1, .spread_ns = 10000000000});
    assert_int_equal(t->n, 3);
    assert_int_equal(t->n_dropped, 1);
    assert_string_equal(kg_trace_name(t, 2), "s3.0");
    assert_int_equal(t->reqs[0].arrive_ns, 0);
    assert_int_equal(t->reqs[2].arrive_ns, 5000000000);
    kg_trace_free(t);
    bad(KG_TRACE_AGENTIC, "{\"s\":1,\"k\":0,\"in\":1,\"out\":1,\"h\":[]}", "s: session 1");
    bad(KG_TRACE_AGENTIC, "{\"session\":1}\n{\"s\":1,\"k\":0,\"in\":128,\"out\":1,\"h\":[1,1]}",
        "h: 1 blocks");
    bad(KG_TRACE_AGENTIC, "{\"session\":1}\n{\"s\":1,\"k\":0,\"in\":64,\"out\":1,\"h\":[1]}",
        "line 2: h: an odd number");
}

static void azure_rows_have_times_and_lengths(void **state)
{
    (void)state;
    struct kg_trace *t = read_plain(KG_TRACE_AZURE, "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
                                                    "2023-11-16 23:59:59.9000000,480,10\r\n"
                                                    "2023-11-17 00:00:00.0000001,31,8");
    assert_int_equal(t->n, 2);
    assert_int_equal(t->reqs[1].arrive_ns, 100000100);
    assert_int_equal(t->reqs[1].n_prompt, 31);
    assert_int_equal(t->reqs[1].n_output, 8);
    kg_trace_free(t);
    bad(KG_TRACE_AZURE, "TIMESTAMP,ContextTokens\n", "header");
    bad(KG_TRACE_AZURE, "2023-13-16 18:17:03.9,1,1", "TIMESTAMP");
    bad(KG_TRACE_AZURE, "2023-11-16 18:17:03.9,x,1", "ContextTokens");
    bad(KG_TRACE_AZURE, "2023-11-16 18:17:03.9,1,-1", "GeneratedTokens");
    bad(KG_TRACE_AZURE, "2023-11-16 18:17:03.9,1", "2 columns");
    bad(KG_TRACE_AZURE, "2023-11-16 18:17:03.9,1,1,1", "more than 3");
}

static void aiperf_turns_repeat_the_session(void **state)
{
    (void)state;
    struct kg_trace *t = read_plain(
        KG_TRACE_AIPERF,
        "{\"session_id\":\"a\",\"timestamp\":5,\"input_length\":600,\"output_length\":10,"
        "\"hash_ids\":[1,2]}\n"
        "{\"session_id\":\"b\",\"input_length\":512,\"output_length\":1,\"hash_ids\":[1]}\n"
        "{\"session_id\":\"a\",\"delay\":30,\"input_length\":20,\"output_length\":7,"
        "\"hash_ids\":[3]}\n");
    const struct kg_trace_req *q = t->reqs;
    assert_int_equal(t->n, 3);
    assert_int_equal(q[2].n_prompt, 600 + 10 + 20);
    assert_int_equal(q[2].after, 0);
    assert_int_equal(q[2].delay_ns, 30000000);
    assert_int_equal(q[0].cont, 2);
    assert_int_equal(q[1].cont, KG_NONE);
    assert_string_equal(kg_trace_name(t, 2), "a.1");
    uint32_t at = 0;
    for (uint32_t i = 0; i < q[2].n_pieces; i++) {
        assert_int_equal(t->pieces[q[2].pieces_at + i].at, at);
        at += t->pieces[q[2].pieces_at + i].n;
    }
    assert_int_equal(at, 630);
    kg_trace_free(t);
    bad(KG_TRACE_AIPERF,
        "{\"session_id\":\"a\",\"input_length\":600,\"output_length\":10,\"hash_ids\":[1]}",
        "hash_ids: 1 ids");
    bad(KG_TRACE_AIPERF, "{\"input_length\":600,\"output_length\":10}", "session_id: missing");
}

static void bailian_times_are_seconds_and_unknown_parents_are_roots(void **state)
{
    (void)state;
    struct kg_trace *t =
        read_plain(KG_TRACE_BAILIAN,
                   "{\"chat_id\":1,\"parent_chat_id\":-1,\"timestamp\":61.114,\"input_length\":20,"
                   "\"output_length\":3,\"type\":\"text\",\"turn\":1,\"hash_ids\":[1,2]}\n"
                   "{\"chat_id\":2,\"parent_chat_id\":1,\"timestamp\":70,\"input_length\":32,"
                   "\"output_length\":3,\"type\":\"text\",\"turn\":2,\"hash_ids\":[1,3]}\n");
    assert_int_equal(t->reqs[0].after, KG_NONE);
    assert_int_equal(t->reqs[0].arrive_ns, 61114000000);
    assert_int_equal(t->reqs[0].block, 16);
    assert_int_equal(t->reqs[1].after, 0);
    assert_string_equal(t->unknown, "");
    kg_trace_free(t);
}

static const char clients[] =
    "{\"client\":0,\"win\":[[0,1,1,\"Gamma\",1.0,1.0],[600,2,1,\"Weibull\",1.0,0.5]],"
    "\"len\":{\"0\":{\"in\":[[10,0.5],[20,0.5]],\"out\":[[3,1]]}}}\n"
    "{\"client\":7,\"win\":[[0,1,1,\"Gamma\",0.5,2.0]],"
    "\"len\":{\"0\":{\"in\":[[1000,1]],\"out\":[[5,1]]}}}\n";

static void servegen_draws_at_the_given_rates_and_by_seed(void **state)
{
    (void)state;
    struct kg_trace *t = read_text(KG_TRACE_SERVEGEN, clients, (struct kg_trace_conf){.seed = 4});
    struct kg_trace *u = read_text(KG_TRACE_SERVEGEN, clients, (struct kg_trace_conf){.seed = 4});
    struct kg_trace *v = read_text(KG_TRACE_SERVEGEN, clients, (struct kg_trace_conf){.seed = 5});
    uint32_t n[2] = {0, 0}, tens = 0, second = 0;
    for (uint32_t i = 0; i < t->n; i++) {
        const struct kg_trace_req *q = &t->reqs[i];
        assert_true(i == 0 || q->arrive_ns >= q[-1].arrive_ns);
        n[q->n_prompt == 1000]++;
        tens += q->n_prompt == 10;
        second += q->n_prompt != 1000 && q->arrive_ns > 600000000000;
    }
    /* Means 600 + 1200 and 600; six standard deviations of a Poisson count, twice that for the
     * burstier client. */
    assert_in_range(n[0], 1800 - 255, 1800 + 255);
    assert_in_range(second, 1200 - 210, 1200 + 210);
    assert_in_range(n[1], 600 - 300, 600 + 300);
    assert_in_range(tens, n[0] / 2 - 130, n[0] / 2 + 130);
    assert_int_equal(t->n, u->n);
    assert_memory_equal(t->reqs, u->reqs, t->n * sizeof(*t->reqs));
    assert_true(t->n != v->n || memcmp(t->reqs, v->reqs, t->n * sizeof(*t->reqs)) != 0);
    kg_trace_free(u);
    u = read_text(KG_TRACE_SERVEGEN, clients, (struct kg_trace_conf){.seed = 4, .limit = 100});
    assert_int_equal(u->n, 100);
    assert_int_equal(u->reqs[99].arrive_ns, t->reqs[99].arrive_ns); /* the beginning of the same */
    kg_trace_free(t);
    kg_trace_free(u);
    kg_trace_free(v);
    /* Found by fuzzing: millions were drawn of a window of which a thousand were wanted. */
    t = read_text(KG_TRACE_SERVEGEN,
                  "{\"client\":1,\"win\":[[0,4391,1,\"Gamma\",600,0.2]],\"len\":{\"2\":{\"in\":"
                  "[[0,0.5],[20,0.55],[20,0.5]],\"out\":[[3,1]]}}}",
                  (struct kg_trace_conf){.seed = 4, .limit = 1000});
    assert_int_equal(t->n, 1000);
    kg_trace_free(t);
    bad(KG_TRACE_SERVEGEN,
        "{\"client\":0,\"win\":[[0,1,1,\"Normal\",1,1]],\"len\":{\"0\":{\"in\":"
        "[[1,1]],\"out\":[[1,1]]}}}",
        "win[0]");
    bad(KG_TRACE_SERVEGEN, "{\"client\":0,\"win\":[],\"len\":{\"0\":{\"in\":[[1]],\"out\":[]}}}",
        "len.in[0]");
}

static void lines_out_of_order_are_sorted_and_a_limit_cuts(void **state)
{
    (void)state;
    static const char text[] = "{\"timestamp\":9,\"input_length\":1,\"output_length\":1}\n"
                               "{\"timestamp\":3,\"input_length\":2,\"output_length\":1}\n"
                               "{\"timestamp\":3,\"input_length\":3,\"output_length\":1}\n";
    struct kg_trace *t = read_plain(KG_TRACE_NATIVE, text);
    assert_int_equal(t->reqs[0].n_prompt, 2);
    assert_int_equal(t->reqs[1].n_prompt, 3);
    assert_int_equal(t->reqs[2].n_prompt, 1);
    kg_trace_free(t);
    t = read_text(KG_TRACE_NATIVE, text, (struct kg_trace_conf){.limit = 2});
    assert_int_equal(t->n, 2);
    kg_trace_free(t);
    t = read_text(KG_TRACE_NATIVE, text, (struct kg_trace_conf){.max_input = 2});
    assert_int_equal(t->n, 2);
    assert_int_equal(t->n_dropped, 1);
    kg_trace_free(t);
}

static void gzip_is_read_as_the_text_inside_and_broken_gzip_is_an_error(void **state)
{
    (void)state;
    static const char line[] = "{\"timestamp\":1,\"input_length\":4,\"output_length\":2}\n";
    char path[] = "/tmp/kedge-trace-XXXXXX", bytes[4096];
    const struct kg_trace_conf conf = {.scale = 1};
    struct kg_trace *t = NULL;
    struct kg_error err = {0};
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    gzFile gz = gzdopen(dup(fd), "wb");
    for (int i = 0; i < 1000; i++) {
        assert_int_equal(gzwrite(gz, line, sizeof(line) - 1), sizeof(line) - 1);
    }
    assert_int_equal(gzclose(gz), Z_OK);
    assert_int_equal(kg_trace_read(path, &conf, &t, &err), KG_OK);
    assert_int_equal(t->n, 1000);
    kg_trace_free(t);
    ssize_t n = pread(fd, bytes, sizeof(bytes), 0);
    assert_true(n > 100);
    assert_int_equal(ftruncate(fd, n / 2), 0); /* cut short */
    t = NULL;
    assert_true(kg_trace_read(path, &conf, &t, &err) < 0);
    assert_null(t);
    bytes[n / 2] = (char)~bytes[n / 2];
    bytes[n - 6] = (char)~bytes[n - 6]; /* the checksum */
    assert_int_equal(pwrite(fd, bytes, (size_t)n, 0), n);
    assert_true(kg_trace_read(path, &conf, &t, &err) < 0);
    assert_true(strlen(err.text) > 0);
    (void)close(fd);
    (void)unlink(path);
    assert_int_equal(kg_trace_read(path, &conf, &t, &err), KG_ENOENT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_mooncake_line_becomes_runs_of_blocks),
        cmocka_unit_test(native_fields_are_read),
        cmocka_unit_test(wrong_lines_are_named_with_their_field),
        cmocka_unit_test(scaling_divides_lengths_and_blocks_and_keeps_ids),
        cmocka_unit_test(sessions_become_chains),
        cmocka_unit_test(whole_sessions_are_left_out_and_starts_are_spread),
        cmocka_unit_test(azure_rows_have_times_and_lengths),
        cmocka_unit_test(aiperf_turns_repeat_the_session),
        cmocka_unit_test(bailian_times_are_seconds_and_unknown_parents_are_roots),
        cmocka_unit_test(servegen_draws_at_the_given_rates_and_by_seed),
        cmocka_unit_test(lines_out_of_order_are_sorted_and_a_limit_cuts),
        cmocka_unit_test(gzip_is_read_as_the_text_inside_and_broken_gzip_is_an_error),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
