#include "trace_flags.h"

int kg_trace_flags_read(const struct kg_trace_flags *f, struct kg_trace_conf *conf)
{
    uint64_t scale = 1, block = 0, max_input = 0, sessions = 0;
    double spread_s = 1800, horizon_s = 0;
    int rc = -1;

    if (f->format != NULL && kg_trace_format_parse(f->format, &conf->format) != KG_OK) {
        return kg_cmd_bad("--format", f->format,
                          "native, mooncake, agentic, azure, servegen, aiperf or bailian");
    }
    rc = rc >= 0 ? rc : kg_cmd_whole("--limit", f->limit, 1, UINT32_MAX, &conf->limit);
    rc = rc >= 0 ? rc : kg_cmd_whole("--scale", f->scale, 1, 1 << 20, &scale);
    rc = rc >= 0 ? rc : kg_cmd_whole("--block", f->block, 1, KG_TRACE_MAX_TOKENS, &block);
    rc = rc >= 0 ? rc : kg_cmd_whole("--max-input", f->max_input, 1, UINT32_MAX, &max_input);
    rc = rc >= 0 ? rc : kg_cmd_whole("--sessions", f->sessions, 1, UINT32_MAX, &sessions);
    rc = rc >= 0 ? rc : kg_cmd_real("--spread", f->spread, 1e-9, 1e7, &spread_s);
    rc = rc >= 0 ? rc : kg_cmd_real("--horizon", f->horizon, 1e-9, 1e8, &horizon_s);
    conf->scale = (uint32_t)scale;
    conf->block = (uint32_t)block;
    conf->max_input = (uint32_t)max_input;
    conf->n_sessions = (uint32_t)sessions;
    conf->main_only = (uint32_t)f->main_only;
    conf->spread_ns = (uint64_t)(spread_s * 1e9);
    conf->horizon_ns = (uint64_t)(horizon_s * 1e9);
    return rc;
}

uint32_t kg_trace_flags_words(const struct kg_trace_flags *f, const char *words[KG_TRACE_WORDS])
{
    const struct {
        const char *flag, *value;
    } given[] = {
        {"--trace", f->trace},       {"--format", f->format}, {"--limit", f->limit},
        {"--scale", f->scale},       {"--block", f->block},   {"--max-input", f->max_input},
        {"--sessions", f->sessions}, {"--spread", f->spread}, {"--horizon", f->horizon}};
    uint32_t n = 0;

    for (size_t i = 0; i < sizeof(given) / sizeof(given[0]); i++) {
        if (given[i].value != NULL) {
            words[n++] = given[i].flag;
            words[n++] = given[i].value;
        }
    }
    if (f->main_only) {
        words[n++] = "--main-only";
    }
    return n;
}
