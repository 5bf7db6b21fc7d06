/*
 * The flags that say which trace is read and how much of it: the same in every command that reads
 * one, and passed on as they were given by those that start replays of their own.
 */
#ifndef KEDGE_CORE_TRACE_FLAGS_H
#define KEDGE_CORE_TRACE_FLAGS_H

#include "cmd.h"
#include "experiment/trace.h"

/* The arguments, as kg_cmd_parse leaves them; NULL and 0 where a flag was not given. */
struct kg_trace_flags {
    const char *trace, *format, *limit, *scale, *block, *max_input, *sessions, *spread, *horizon;
    int main_only;
};

#define KG_TRACE_WORDS 19 /* most that kg_trace_flags_words writes */

/* Rows of a table of flags that fill *f; doc: what the command does with the trace. */
#define KG_TRACE_FLAG_ROWS(f, doc)                                                                 \
    {"--trace", "FILE", doc ", .gz is read directly", &(f)->trace, NULL},                          \
        {"--format", "NAME",                                                                       \
         "native (default), mooncake, agentic, azure, servegen, aiperf, bailian", &(f)->format,    \
         NULL},                                                                                    \
        {"--limit", "N", "requests taken from the trace", &(f)->limit, NULL},                      \
        {"--scale", "S", "divide lengths and blocks by S", &(f)->scale, NULL},                     \
        {"--block", "N", "tokens of a content block, where the format leaves it open",             \
         &(f)->block, NULL},                                                                       \
        {"--max-input", "N", "leave out requests (sessions) with longer prompts", &(f)->max_input, \
         NULL},                                                                                    \
        {"--sessions", "N", "agentic: sessions taken", &(f)->sessions, NULL},                      \
        {"--spread", "S", "agentic: seconds over which --sessions start (1800)", &(f)->spread,     \
         NULL},                                                                                    \
        {"--horizon", "S", "leave out what was recorded later than S seconds", &(f)->horizon,      \
         NULL},                                                                                    \
    {                                                                                              \
        "--main-only", NULL, "agentic: without sub-agents", NULL, &(f)->main_only                  \
    }

/* What the reader is told; its seed is left alone. Returns -1 to go on, or KG_EXIT_USAGE after
 * saying which flag is wrong. */
int kg_trace_flags_read(const struct kg_trace_flags *f, struct kg_trace_conf *conf);

/* Words of a command line that read the same trace in the same way; borrowed from f. Returns how
 * many. */
uint32_t kg_trace_flags_words(const struct kg_trace_flags *f, const char *words[KG_TRACE_WORDS]);

#endif
