/* Model output to reasoning, content and tool calls: the same for every way of cutting the ids.
 * Known failures V66, V67, V68, V69. */
#include "text_test.h"

#include "base/utf8.h"
#include "text/parser.h"
#include "text/rawjson.h"
#include "text_linear.h"

struct fixture {
    struct kg_tok *tok[2]; /* K3, Kimi-Linear */
    struct kg_tok_scratch *scratch[2];
    struct kg_chat *chat[2];
};

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    struct kg_error err = {0};
    f->tok[0] = open_tiny();
    f->tok[1] = open_linear();
    for (int i = 0; i < 2; i++) {
        f->scratch[i] = kg_tok_scratch_new(f->tok[i]);
        if (kg_chat_open(f->tok[i], &f->chat[i], &err) != KG_OK) {
            fail_msg("%s", err.text);
        }
    }
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    for (int i = 0; i < 2; i++) {
        kg_chat_close(f->chat[i]);
        kg_tok_scratch_free(f->scratch[i]);
        kg_tok_close(f->tok[i]);
    }
    free(f);
    return 0;
}

/* Everything the sink heard, deltas of one kind joined: "R:..|C:..|B0:name,id|A0:{..}|E0". */
struct heard {
    struct kg_text log;
    struct kg_text content; /* content and reasoning, for checks */
    struct kg_text args;    /* of the call in progress */
    char last;
    uint32_t last_index;
    bool check_args;
};

static void note(struct heard *h, char kind, uint32_t index, const char *text, size_t n)
{
    char head[16];
    if (h->last != kind || h->last_index != index) {
        (void)snprintf(head, sizeof(head),
                       kind == 'R' || kind == 'C' ? "%s%c:" : "%s%c%u:", h->log.n > 0 ? "|" : "",
                       kind, index);
        assert_int_equal(kg_text_puts(&h->log, head), KG_OK);
    }
    h->last = kind;
    h->last_index = index;
    assert_int_equal(kg_text_add(&h->log, text, n), KG_OK);
}

static int on_reasoning(void *user, const char *text, size_t n)
{
    struct heard *h = user;
    assert_true(n > 0);
    note(h, 'R', 0, text, n);
    return kg_text_add(&h->content, text, n);
}

static int on_content(void *user, const char *text, size_t n)
{
    struct heard *h = user;
    assert_true(n > 0);
    note(h, 'C', 0, text, n);
    return kg_text_add(&h->content, text, n);
}

static int on_begin(void *user, uint32_t index, const char *id, const char *name)
{
    char text[512];
    struct heard *h = user;
    h->args.n = 0;
    (void)snprintf(text, sizeof(text), "%s,%s", name, id);
    note(h, 'B', index, text, strlen(text));
    return 0;
}

static int on_args(void *user, uint32_t index, const char *json, size_t n)
{
    struct heard *h = user;
    assert_true(n > 0);
    note(h, 'A', index, json, n);
    return kg_text_add(&h->args, json, n);
}

static int on_end(void *user, uint32_t index)
{
    struct heard *h = user;
    struct kg_span value;
    if (h->check_args) {
        struct kg_span text = {h->args.v, h->args.n};
        assert_true(h->args.n > 0);
        assert_int_equal(kg_raw_value(text, &value), h->args.n);
        assert_int_equal(kg_raw_type_of(value), KG_RAW_OBJECT);
    }
    note(h, 'E', index, "", 0);
    return 0;
}

static struct kg_parser *new_parser(struct fixture *f, int family, struct kg_parser_opts opts,
                                    struct heard *h)
{
    struct kg_parser *p = NULL;
    struct kg_error err = {0};
    opts.sink = (struct kg_parse_sink){h, on_reasoning, on_content, on_begin, on_args, on_end};
    if (kg_parser_new(f->tok[family < 0 ? 0 : family], family < 0 ? NULL : f->chat[family], &opts,
                      &p, &err) != KG_OK) {
        fail_msg("%s", err.text);
    }
    return p;
}

static void heard_free(struct heard *h)
{
    kg_text_free(&h->log);
    kg_text_free(&h->content);
    kg_text_free(&h->args);
}

/* What is heard of ids pushed as [0, a), [a, b), [b, n); returns ids used. */
static size_t hear(struct fixture *f, int family, struct kg_parser_opts opts,
                   const struct kg_ids *ids, size_t a, size_t b, struct heard *h)
{
    struct kg_parser *p = new_parser(f, family, opts, h);
    const size_t cut[] = {0, a, b, ids->n};
    size_t total = 0;
    for (int i = 0; i < 3; i++) {
        size_t used = 0, n = cut[i + 1] - cut[i];
        int rc = kg_parser_push(p, ids->v + cut[i], n, &used);
        assert_true(rc == 0 || rc == 1);
        assert_true(rc == 1 || used == n);
        assert_int_equal(rc == 1, kg_parser_state(p) == KG_PARSE_STOPPED);
        total += used;
    }
    assert_int_equal(kg_parser_finish(p), KG_OK);
    assert_int_equal(kg_text_add(&h->log, "", 0), KG_OK);
    kg_parser_free(p);
    return total;
}

static struct kg_ids markup(struct fixture *f, int family, const char *text)
{
    struct kg_ids ids = {0};
    int i = family < 0 ? 0 : family;
    assert_int_equal(
        kg_tok_encode(f->tok[i], f->scratch[i], KG_TOK_MARKUP, text, strlen(text), &ids), KG_OK);
    return ids;
}

/* All splits in two pushes and a sample in three hear the same. */
static void check(struct fixture *f, int family, struct kg_parser_opts opts, const char *text,
                  const char *want)
{
    struct kg_ids ids = markup(f, family, text);
    size_t used = 0;
    for (size_t a = 0; a <= ids.n; a++) {
        for (size_t b = a; b <= ids.n; b += 5) {
            struct heard h = {.check_args = true};
            size_t got = hear(f, family, opts, &ids, a, b, &h);
            if (strcmp(h.log.v, want) != 0) {
                fail_msg("%s\nsplit %zu %zu heard\n%s\nwanted\n%s", text, a, b, h.log.v, want);
            }
            used = a == 0 && b == 0 ? got : used;
            assert_int_equal(got, used);
            heard_free(&h);
        }
    }
    kg_ids_free(&ids);
}

static const struct kg_parser_opts thinking = {.start = KG_START_THINK, .call_id_prefix = "c"};
static const struct kg_parser_opts answering = {.start = KG_START_RESPONSE, .call_id_prefix = "c"};
static const struct kg_parser_opts at_message = {.start = KG_START_MESSAGE};

#define CLOSE(tag) "<|close|>" tag "<|sep|>"
#define OPEN(tag) "<|open|>" tag "<|sep|>"
#define END "<|end_of_msg|>"
#define CALL(name) OPEN("call tool=\"" name "\" index=\"1\"")
#define ARG(key, type, value) \
    OPEN("argument key=\"" key "\" type=\"" type "\"") value CLOSE("argument")

static void thinking_answer_and_calls_are_told_apart(void **state)
{
    struct fixture *f = *state;
    check(f, 0, thinking,
          "so \xe4\xbd\xa0" CLOSE("think") OPEN("response") "Hi \xf0\x9f\x98\x80!" CLOSE("response")
              CLOSE("message") END,
          "R:so \xe4\xbd\xa0|C:Hi \xf0\x9f\x98\x80!");
    check(f, 0, answering, "Hi" CLOSE("response") CLOSE("message") END, "C:Hi");
    check(f, 0, at_message,
          OPEN("message role=\"assistant\"") OPEN("think") "a" CLOSE("think")
              OPEN("response") "b" CLOSE("response") CLOSE("message") END,
          "R:a|C:b");
    check(f, 0, thinking,
          "x" CLOSE("think") OPEN("response") CLOSE("response") OPEN("tools") CALL("f")
              ARG("s", "string", "a \"q\" \\ \n\xe4\xbd\xa0") ARG("n", "number", "1e2")
                  ARG("o", "object", "{\"x\": [1, null]}") ARG("b", "boolean", "true") CLOSE("call")
                      CALL("g&amp;&quot;") CLOSE("call") CLOSE("tools") CLOSE("message") END,
          "R:x|B0:f,c0|A0:{\"s\": \"a \\\"q\\\" \\\\ \\n\xe4\xbd\xa0\", \"n\": 1e2, \"o\": {\"x\": "
          "[1, null]}, \"b\": true}|E0:|B1:g&\",c1|A1:{}|E1:");
}

static void json_blocks_are_the_arguments(void **state)
{
    struct fixture *f = *state;
    check(f, 0, answering,
          CLOSE("response") OPEN("tools") CALL("f")
              OPEN("json type=\"object\"") " {\"a\": 1e2} " CLOSE("json") CLOSE("call") CALL("g")
                  OPEN("json type=\"object\"") CLOSE("json") CLOSE("call") CLOSE("tools") END,
          "B0:f,c0|A0:{\"a\": 1e2}|E0:|B1:g,c1|A1:{}|E1:");
    struct kg_ids ids =
        markup(f, 0, CLOSE("response") OPEN("tools") CALL("f") OPEN("json") "not json" END);
    struct heard h = {0};
    (void)hear(f, 0, answering, &ids, 0, 0, &h);
    assert_string_equal(h.log.v, "B0:f,c0|A0:not json|E0:");
    heard_free(&h);
    kg_ids_free(&ids);
}

static void values_that_are_no_json_become_strings(void **state)
{
    struct fixture *f = *state;
    check(f, 0, answering,
          OPEN("tools") CALL("f") ARG("n", "number", "NaN") ARG("o", "object", "{\"a\":")
              ARG("e", "number", "") ARG("w", "array", " [1] ") CLOSE("call"),
          "B0:f,c0|A0:{\"n\": \"NaN\", \"o\": \"{\\\"a\\\":\", \"e\": \"\", \"w\": [1]}|E0:");
}

static void missing_close_markers_lose_nothing(void **state)
{
    struct fixture *f = *state;
    /* The think element is never closed. */
    check(f, 0, thinking, "a" OPEN("response") "b" CLOSE("response") CLOSE("message") END,
          "R:a|C:b");
    check(f, 0, thinking,
          "a" OPEN("tools") CALL("f") ARG("k", "string", "v") CLOSE("call") CLOSE("tools")
              CLOSE("message") END,
          "R:a|B0:f,c0|A0:{\"k\": \"v\"}|E0:");
    check(f, 0, thinking,
          "a" CLOSE("think") OPEN("tools") CALL("f") ARG("k", "string", "v") CLOSE("call")
              CLOSE("tools") CLOSE("message") END,
          "R:a|B0:f,c0|A0:{\"k\": \"v\"}|E0:");
    /* The message is closed inside response, or only ended. */
    check(f, 0, answering, "b" CLOSE("message") END, "C:b");
    check(f, 0, answering, "b" END, "C:b");
    check(f, 0, thinking, "b" END, "R:b");
    /* Nothing of the calls is closed. */
    check(f, 0, answering,
          "b" OPEN("tools") CALL("f") OPEN("argument key=\"k\" type=\"string\"") "v" CALL("g")
              OPEN("argument key=\"n\" type=\"number\"") "1" OPEN(
                  "argument key=\"m\" type=\"number\"") "2" END,
          "C:b|B0:f,c0|A0:{\"k\": \"v\"}|E0:|B1:g,c1|A1:{\"n\": 1, \"m\": 2}|E1:");
    /* Text goes on after the response, or the response is never opened; line breaks between
     * elements are no text. */
    check(f, 0, thinking, "a" CLOSE("think") "\n" OPEN("response") "b", "R:a|C:b");
    check(f, 0, thinking, "a" CLOSE("think") "b" CLOSE("message") END, "R:a|C:b");
    check(f, 0, answering, "b" CLOSE("response") OPEN("tools") CLOSE("tools") "\nmore" END,
          "C:bmore");
}

static void control_tokens_never_reach_the_text(void **state)
{
    struct fixture *f = *state;
    check(f, 0, answering,
          "a<|sep|>b" OPEN("bold") "c" CLOSE("bold") "[BOS]d<|reserved_token_4000|>e<|media_pad|>"
                                                     "f" CLOSE("think") "g" END "h" OPEN("x") "i",
          "C:abcdefg");
    check(f, 0, answering, "a<|open|>", "C:a");
    check(f, 0, answering, "a<|open|>call tool=\"f", "C:a");
    check(f, 0, answering, "a<|open|>resp<|open|>x<|close|>message<|sep|>b", "C:a");
    check(f, 0, answering, "a<|close|>response" END, "C:a");
    check(f, 0, answering, "a[EOS]b", "C:a");
    /* A new message without an end is an end. */
    check(f, 0, answering, "a" OPEN("message role=\"user\"") "b", "C:a");
}

static void a_call_that_was_cut_off_stays_open(void **state)
{
    struct fixture *f = *state;
    check(f, 0, answering,
          OPEN("tools") CALL("f") OPEN("argument key=\"k\" type=\"string\"") "rm -rf /tm",
          "B0:f,c0|A0:{\"k\": \"rm -rf /tm");
    check(f, 0, answering, OPEN("tools") CALL("f"), "B0:f,c0");
    check(f, 1, answering,
          "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0"
          "<|tool_call_argument_begin|>{\"a\":",
          "B0:f,functions.f:0|A0:{\"a\":");
}

static void calls_without_a_name_and_stray_arguments_are_dropped(void **state)
{
    struct fixture *f = *state;
    check(f, 0, answering,
          "a" OPEN("tools") OPEN("call index=\"1\"") ARG("k", "string", "v") CLOSE("call")
              CALL("f") "stray" OPEN("argument type=\"string\"") "no key" CLOSE("argument")
                  CLOSE("call") END,
          "C:a|B0:f,c0|A0:{}|E0:");
    check(f, 0, answering, "a" OPEN("json type=\"object\"") "{}" CLOSE("json") "b" END, "C:a{}b");
    check(f, 0, answering, "a" ARG("k", "string", "v") CLOSE("call") CLOSE("tools") "b" END,
          "C:avb");
}

static void default_call_ids_name_the_function(void **state)
{
    struct fixture *f = *state;
    struct kg_parser_opts opts = {.start = KG_START_RESPONSE};
    check(f, 0, opts, OPEN("tools") CALL("f") CLOSE("call") CALL("g") CLOSE("call"),
          "B0:f,functions.f:0|A0:{}|E0:|B1:g,functions.g:1|A1:{}|E1:");
}

static void stop_strings_end_content_only(void **state)
{
    struct fixture *f = *state;
    struct kg_span stops[] = {{"STOP", 4}, {"!!", 2}};
    struct kg_parser_opts opts = thinking;
    opts.text = (struct kg_detok_opts){.stops = stops, .n_stops = 2};
    check(f, 0, opts,
          "STOP!!" CLOSE("think") OPEN("response") "one ST two STOP three" CLOSE("response") END,
          "R:STOP!!|C:one ST two ");
    check(f, 0, opts,
          "x" CLOSE("think") OPEN("response") "held ST" CLOSE("response") OPEN("tools") CALL("f")
              ARG("k", "string", "STOP") CLOSE("call") CLOSE("tools") END,
          "R:x|C:held ST|B0:f,c0|A0:{\"k\": \"STOP\"}|E0:");
    check(f, 0, opts, OPEN("response") "a!" OPEN("b") "!c", "C:a");
    check(f, 0, opts, OPEN("response") "a!", "C:a!");
    check(f, -1, opts, "plain STO STOP", "C:plain STO ");
    check(f, 1, opts, "linear! !!", "C:linear! ");
    opts.text.keep_stop = true;
    check(f, -1, opts, "plain STO STOP x", "C:plain STO STOP");
}

/* What was held when an element closed has been sent: the next element starts from nothing. */
static void stop_strings_do_not_span_elements(void **state)
{
    struct fixture *f = *state;
    struct kg_span stops[] = {{"STOP", 4}, {"STOLEN", 6}};
    struct kg_parser_opts opts = {.start = KG_START_RESPONSE};
    opts.text = (struct kg_detok_opts){.stops = stops, .n_stops = 2};
    check(f, 0, opts, "a STO" CLOSE("response") OPEN("response") "P b" CLOSE("response") END,
          "C:a STOP b");
    check(f, 0, opts, "a STO" CLOSE("response") OPEN("response") "LE" CLOSE("response") END,
          "C:a STOLE");
    check(f, 0, opts, "a STO" CLOSE("response") OPEN("response") "STOP b" CLOSE("response") END,
          "C:a STO");
    check(f, 1, opts,
          "a STO"
          "<|tool_calls_section_begin|><|tool_calls_section_end|>"
          "P b<|im_end|>",
          "C:a STOP b");
}

static void kimi_linear_calls_are_told_apart(void **state)
{
    struct fixture *f = *state;
    struct kg_parser_opts opts = {.start = KG_START_RESPONSE};
#define SECTION(x) "<|tool_calls_section_begin|>" x "<|tool_calls_section_end|>"
#define LCALL(id, args) \
    "<|tool_call_begin|>" id "<|tool_call_argument_begin|>" args "<|tool_call_end|>"
    check(f, 1, opts,
          "hi" SECTION(LCALL("functions.get:0", "{\"a\": \"\xe4\xbd\xa0\"}")
                           LCALL(" x.y:12\n", "{}")) "<|im_end|>",
          "C:hi|B0:get,functions.get:0|A0:{\"a\": \"\xe4\xbd\xa0\"}|E0:|B1:x.y,x.y:12|A1:{}|E1:");
    /* Missing markers: no section, no argument marker, no ends. */
    check(f, 1, opts, "hi" LCALL("functions.f:0", "{}") "<|im_end|>",
          "C:hi|B0:f,functions.f:0|A0:{}|E0:");
    check(f, 1, opts, "<|tool_call_begin|>f<|tool_call_end|><|tool_calls_section_end|>after",
          "B0:f,f|A0:{}|E0:|C:after");
    check(f, 1, opts,
          "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{\"a\":1}<|tool_call_begin|>"
          "functions.g:1<|tool_call_argument_begin|><|im_end|>x",
          "B0:f,functions.f:0|A0:{\"a\":1}|E0:|B1:g,functions.g:1|A1:{}|E1:");
    check(f, 1, opts, "a<|im_middle|>b<|tool_call_argument_begin|>c[BOS]d<|tool_call_end|>e[EOS]f",
          "C:abcde");
    check(f, 1, opts, "a<|im_user|>user<|im_middle|>b", "C:a");
    check(f, 1, at_message, "<|im_assistant|>assistant<|im_middle|>a<|im_end|>b", "C:a");
    check(f, 1, opts, "<|tool_call_begin|>  <|tool_call_argument_begin|>{}<|tool_call_end|>", "");
}

static void past_the_end_text_is_content_when_asked_for(void **state)
{
    struct fixture *f = *state;
    struct kg_parser_opts opts = answering;
    opts.past_end = true;
    check(f, 0, opts, "a" END "b" CLOSE("message") END "c[PAD]d", "C:abcd");
    check(f, 0, opts,
          "a" CLOSE("message") END OPEN("message role=\"user\"") "b" CLOSE("message") END, "C:ab");
    check(f, 1, opts, "a<|im_end|>b<|im_user|>user<|im_middle|>c<|im_end|>", "C:abc");
}

static void plain_mode_passes_text_and_drops_special_tokens(void **state)
{
    struct fixture *f = *state;
    struct kg_parser_opts opts = {0};
    check(f, -1, opts, "a[BOS]<|open|>b" END "c", "C:a<|open|>bc");
    opts.text.show_special = true;
    check(f, -1, opts, "a[BOS]" END "c", "C:a[BOS]" END "c");
}

static void channels_say_what_each_token_was(void **state)
{
    struct fixture *f = *state;
    struct heard h = {0};
    struct kg_ids ids =
        markup(f, 0,
               "a" CLOSE("think") OPEN("response") "a" CLOSE("response") OPEN("tools") CALL("f")
                   OPEN("argument key=\"k\" type=\"string\"") "a" END);
    struct kg_parser *p = new_parser(f, 0, thinking, &h);
    char seen[256] = "";
    size_t n = 0;
    for (size_t i = 0; i < ids.n; i++) {
        size_t used;
        assert_int_equal(kg_parser_push(p, &ids.v[i], 1, &used), 0);
        if (kg_parser_channel(p) != KG_CHANNEL_NONE) {
            seen[n++] = "-RCT"[kg_parser_channel(p)];
        }
    }
    assert_string_equal(seen, "RCT");
    assert_int_equal(kg_parser_state(p), KG_PARSE_ENDED);
    assert_int_equal(kg_parser_n_calls(p), 1);
    kg_parser_free(p);
    heard_free(&h);
    kg_ids_free(&ids);
}

static void parallel_streams_do_not_mix(void **state)
{
    struct fixture *f = *state;
    struct kg_ids ids = markup(
        f, 0,
        "why" CLOSE("think") OPEN("tools") CALL("f") ARG("k", "string", "some longer value here")
            ARG("n", "number", "12345") CLOSE("call") CLOSE("tools") CLOSE("message") END);
    struct heard h[16] = {0};
    struct kg_parser *p[16];
    size_t at[16] = {0}, left = 16;
    uint64_t seed = 5;
    for (int i = 0; i < 16; i++) {
        p[i] = new_parser(f, 0, thinking, &h[i]);
    }
    while (left > 0) {
        size_t i = rnd(&seed) % 16, used;
        if (at[i] < ids.n) {
            assert_int_equal(kg_parser_push(p[i], &ids.v[at[i]++], 1, &used), 0);
            left -= at[i] == ids.n;
        }
    }
    for (int i = 0; i < 16; i++) {
        assert_int_equal(kg_text_add(&h[i].log, "", 0), KG_OK);
        assert_string_equal(
            h[i].log.v, "R:why|B0:f,c0|A0:{\"k\": \"some longer value here\", \"n\": 12345}|E0:");
        kg_parser_free(p[i]);
        heard_free(&h[i]);
    }
    kg_ids_free(&ids);
}

static void check_random(struct fixture *f, int family, struct kg_parser_opts opts,
                         const struct kg_ids *ids, uint64_t *seed)
{
    struct heard whole = {.check_args = family == 0}, cut = {.check_args = family == 0};
    size_t a = rnd(seed) % (ids->n + 1), b = a + rnd(seed) % (ids->n + 1 - a);
    size_t used = hear(f, family, opts, ids, 0, 0, &whole);
    assert_int_equal(hear(f, family, opts, ids, a, b, &cut), used);
    assert_string_equal(whole.log.v, cut.log.v);
    for (size_t i = 0; i < whole.log.n;) {
        uint32_t cp;
        size_t n = kg_utf8_decode(whole.log.v + i, whole.log.n - i, &cp);
        assert_true(n > 0);
        i += n;
    }
    if (whole.content.n > 0) {
        assert_null(strstr(whole.content.v, "<|"));
    }
    heard_free(&whole);
    heard_free(&cut);
}

/* Words the grammar knows, control tokens, and any bytes; json blocks may be invalid JSON, so
 * they are left out where arguments are checked. */
static const char *const words[2][24] = {
    {"<|open|>",
     "<|close|>",
     "<|sep|>",
     "<|end_of_msg|>",
     "message",
     "think",
     "response",
     "tools",
     "call tool=\"f\"",
     "argument key=\"k\" type=\"string\"",
     "argument key=\"k\" type=\"number\"",
     "call",
     "argument",
     OPEN("tools"),
     CALL("g"),
     ARG("x", "string", "y"),
     ARG("x", "number", "1"),
     CLOSE("call"),
     "[BOS]",
     "text ",
     " ",
     OPEN("response"),
     CLOSE("think"),
     "12"},
    {"<|im_end|>",
     "<|im_user|>",
     "<|im_middle|>",
     "<|tool_calls_section_begin|>",
     "<|tool_calls_section_end|>",
     "<|tool_call_begin|>",
     "<|tool_call_argument_begin|>",
     "<|tool_call_end|>",
     "functions.f:0",
     "{\"a\":1}",
     "text ",
     " ",
     "x",
     "12",
     "user",
     "[BOS]",
     "functions.",
     ":3",
     "<|im_assistant|>",
     "<|im_system|>",
     "{",
     "}",
     "y",
     "z"},
};

static void random_ids_are_cut_invariant_and_clean(void **state)
{
    struct fixture *f = *state;
    uint64_t seed = 99;
    struct kg_span stops[] = {{"t", 1}, {"x 1", 3}};
    for (int round = 0; round < 6000; round++) {
        int family = round % 2;
        struct kg_ids ids = {0};
        for (size_t n = rnd(&seed) % 40; n > 0; n--) {
            if (rnd(&seed) % 5 == 0) {
                assert_int_equal(kg_ids_push(&ids, (uint32_t)(rnd(&seed) % 256)), KG_OK);
                continue;
            }
            const char *w = words[family][rnd(&seed) % 24];
            assert_int_equal(kg_tok_encode(f->tok[family], f->scratch[family], KG_TOK_MARKUP, w,
                                           strlen(w), &ids),
                             KG_OK);
        }
        struct kg_parser_opts opts = {.start = (enum kg_chat_start)(rnd(&seed) % 3),
                                      .past_end = rnd(&seed) % 3 == 0};
        opts.text.stops = stops;
        opts.text.n_stops = rnd(&seed) % 4 == 0 ? 2 : 0;
        check_random(f, family, opts, &ids, &seed);
        kg_ids_free(&ids);
    }
}

static int refuse(void *user, const char *text, size_t n)
{
    (void)user;
    (void)text;
    (void)n;
    return KG_ECANCEL;
}

static void a_sinks_refusal_ends_the_push(void **state)
{
    struct fixture *f = *state;
    struct kg_ids ids = markup(f, 0, "abc def");
    struct kg_parser_opts opts = {.start = KG_START_RESPONSE, .sink = {.content = refuse}};
    struct kg_parser *p = NULL;
    struct kg_error err = {0};
    size_t used;
    assert_int_equal(kg_parser_new(f->tok[0], f->chat[0], &opts, &p, &err), KG_OK);
    assert_int_equal(kg_parser_push(p, ids.v, ids.n, &used), KG_ECANCEL);
    kg_parser_free(p);
    kg_ids_free(&ids);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(thinking_answer_and_calls_are_told_apart),
        cmocka_unit_test(json_blocks_are_the_arguments),
        cmocka_unit_test(values_that_are_no_json_become_strings),
        cmocka_unit_test(missing_close_markers_lose_nothing),
        cmocka_unit_test(control_tokens_never_reach_the_text),
        cmocka_unit_test(a_call_that_was_cut_off_stays_open),
        cmocka_unit_test(calls_without_a_name_and_stray_arguments_are_dropped),
        cmocka_unit_test(default_call_ids_name_the_function),
        cmocka_unit_test(stop_strings_end_content_only),
        cmocka_unit_test(stop_strings_do_not_span_elements),
        cmocka_unit_test(kimi_linear_calls_are_told_apart),
        cmocka_unit_test(past_the_end_text_is_content_when_asked_for),
        cmocka_unit_test(plain_mode_passes_text_and_drops_special_tokens),
        cmocka_unit_test(channels_say_what_each_token_was),
        cmocka_unit_test(parallel_streams_do_not_mix),
        cmocka_unit_test(random_ids_are_cut_invariant_and_clean),
        cmocka_unit_test(a_sinks_refusal_ends_the_push),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
