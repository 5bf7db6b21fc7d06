#include "serve/conf.h"

#include <string.h>

#define ROW(field, kind, text, lo, hi, help)                                            \
    {                                                                                   \
        .name = #field, .type = kind, .offset = offsetof(struct kg_server_conf, field), \
        .def = text, .min = lo, .max = hi, .doc = help                                  \
    }
#define STR(field, text, help) ROW(field, KG_OPT_STR, text, 0, 0, help)
#define U32(field, text, lo, hi, help) ROW(field, KG_OPT_U32, text, lo, hi, help)
#define U64(field, text, lo, hi, help) ROW(field, KG_OPT_U64, text, lo, hi, help)

const struct kg_opt kg_server_opts[] = {
    STR(host, "127.0.0.1", "Address to listen on; 0.0.0.0 or :: for all interfaces."),
    U32(port, "8000", 0, 65535, "TCP port; 0 takes a free one and prints it."),
    STR(api_key, "",
        "Clients must send it as \"Authorization: Bearer KEY\" to /v1/*, /tokenize and "
        "/detokenize. Empty: no key is asked for."),
    STR(tenant_header, "",
        "Header that names the tenant of a request, for quotas and fairness. Set it only behind a "
        "proxy that overwrites it. Empty: the field user of the body names the tenant, and clients "
        "are trusted with it."),
    STR(model_name, "",
        "Name of the model in /v1/models and in answers. Empty: the name of the model folder."),
    U32(max_connections, "1024", 1, 65536,
        "Connections open at once; one more gets 503 and is closed. Unit: connections."),
    U64(head_bytes, "32k", 256, 1048576, "Most of a request line and its headers. Unit: bytes."),
    U64(body_bytes, "32m", 1024, 4294967296.0, "Most of one request body. Unit: bytes."),
    U64(bodies_bytes, "256m", 1024, 68719476736.0,
        "Most of all request bodies being received or waiting; beyond it 503. Unit: bytes."),
    U32(head_ms, "10000", 10, 600000,
        "Time a client has to send request line and headers; then 408. Unit: ms."),
    U32(body_ms, "60000", 10, 3600000, "Time a client has to send a body; then 408. Unit: ms."),
    U32(idle_ms, "75000", 10, 3600000,
        "Time a connection may stay open without a request. Unit: ms."),
    U32(write_ms, "30000", 10, 3600000,
        "A client that takes none of its output for so long is cut. Unit: ms."),
    U32(pause_ms, "30000", 10, 3600000,
        "A stream whose reader stays behind out_soft_bytes for so long is cut: it holds memory "
        "that "
        "others wait for. Unit: ms."),
    U64(out_soft_bytes, "256k", 1024, 1073741824.0,
        "Unsent output of a stream past which the engine plans without the request; it goes on "
        "below half of it. Unit: bytes."),
    U64(out_hard_bytes, "4m", 4096, 4294967296.0,
        "Unsent output of a stream past which it is cut and cancelled. Unit: bytes."),
    U64(reply_bytes, "64m", 65536, 4294967296.0,
        "Most of one choice's text, and of its log probabilities, kept for an answer that is not "
        "streamed. Unit: bytes."),
    U64(replies_bytes, "512m", 65536, 68719476736.0,
        "Most of all answers together, piling up or waiting to be taken by their clients; a plain "
        "answer that would go beyond it gets 503. Unit: bytes."),
    U32(max_json_depth, "64", 4, 1024, "Most nested arrays and objects of a body. Unit: levels."),
    U32(max_json_values, "2097152", 64, 268435456,
        "Most values of a body, an array or object counted as 8. Unit: values."),
    U32(max_n, "128", 1, 1024, "Most choices of one prompt (n). Unit: choices."),
    U32(max_prompts, "256", 1, 4096, "Most prompts of one completion request. Unit: prompts."),
    U32(max_sequences, "512", 1, 4096, "Most prompts times n of one request. Unit: sequences."),
    U32(max_messages, "4096", 1, 65536, "Most messages of a chat request. Unit: messages."),
    U32(max_tools, "256", 1, 4096, "Most tools of a chat request. Unit: tools."),
    U32(max_stop, "16", 1, 16, "Most stop strings of a request. Unit: strings."),
    U32(max_stop_bytes, "1024", 1, 4096, "Most of one stop string. Unit: bytes."),
    U32(max_queue, "1024", 1, 65536,
        "Most sequences in the engine, waiting ones included; beyond it 503. Unit: sequences."),
    U32(default_max_tokens, "0", 0, 16777216,
        "Answer length of a chat request that names none; 0: the rest of the context. "
        "Unit: tokens."),
    U32(prep_threads, "1", 1, 2, "Threads that tokenise long prompts. Unit: threads."),
    U64(prep_bytes, "16k", 0, 1073741824.0,
        "A body at least this long is parsed and tokenised on a preparation thread, so that it "
        "does not hold up streams. Unit: bytes."),
    U32(prep_queue, "256", 1, 65536,
        "Bodies waiting for one preparation thread; beyond it 503. Unit: bodies."),
    U32(health_stall_ms, "30000", 10, 3600000,
        "/health answers 503 when there is work and no request advanced for so long. Unit: ms."),
    U32(drain_ms, "30000", 0, 3600000,
        "After SIGTERM running requests may finish for so long; then they are cancelled. "
        "Unit: ms."),
    {.name = "request_log",
     .type = KG_OPT_STR,
     .flags = KG_OPT_PATH,
     .offset = offsetof(struct kg_server_conf, request_log),
     .def = "",
     .doc = "File that gets a JSON line for each sequence: times, tokens, arm and a hash of the "
            "client, no text; kedge ab --log compares arms by it. SIGHUP opens it anew, after it "
            "was moved away. Empty: none. Relative to the folder of the INI file."},
    U64(request_log_bytes, "1m", 4096, 1073741824.0,
        "Lines of the request log that may wait for the disk; further ones are dropped and "
        "counted. Unit: bytes."),
    {0},
};

int kg_server_conf_check(const struct kg_server_conf *conf, struct kg_error *err)
{
    if (conf->out_soft_bytes >= conf->out_hard_bytes)
        return kg_fail(
            err, KG_ECONFIG, "[server] out_soft_bytes = %llu must be below out_hard_bytes = %llu",
            (unsigned long long)conf->out_soft_bytes, (unsigned long long)conf->out_hard_bytes);
    if (conf->body_bytes > conf->bodies_bytes)
        return kg_fail(err, KG_ECONFIG, "[server] body_bytes = %llu is above bodies_bytes = %llu",
                       (unsigned long long)conf->body_bytes,
                       (unsigned long long)conf->bodies_bytes);
    if (conf->host == NULL || conf->host[0] == '\0')
        return kg_fail(err, KG_ECONFIG, "[server] host is empty; 0.0.0.0 means every address");
    for (const char *p = conf->api_key; p != NULL && *p != '\0'; p++) {
        if ((unsigned char)*p <= ' ' || (unsigned char)*p >= 127)
            return kg_fail(err, KG_ECONFIG,
                           "[server] api_key may hold visible ASCII only: a client could not "
                           "send it in a header");
    }
    return KG_OK;
}
