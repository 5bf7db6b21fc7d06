/*
 * kedge bench serve: a load generator for any server that speaks the OpenAI API, with the
 * figures, definitions and report lines of vLLM's `bench serve`, so that numbers compare with
 * published ones. It talks only to the address it is given. The parts: what to send and when
 * (bench_load.c), the client (bench_client.c), figures and report (bench_report.c), and the
 * command (cmd_bench_serve.c).
 *
 * Definitions, all client side. TTFT: from sending a request to the first streamed output. ITL:
 * gap between two streamed outputs (tokens that come bundled are one gap). TPOT: (end - first) /
 * (output tokens - 1). Goodput: requests per second that meet every given limit.
 */
#ifndef KEDGE_CORE_BENCH_SERVE_H
#define KEDGE_CORE_BENCH_SERVE_H

#include "base/buf.h"
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

enum kg_bench_dataset { KG_BENCH_RANDOM, KG_BENCH_PREFIX_REPETITION };

enum kg_bench_metric {
    KG_BENCH_TTFT,
    KG_BENCH_TPOT,
    KG_BENCH_ITL,
    KG_BENCH_E2EL,
    KG_BENCH_METRICS
};

struct kg_bench_conf {
    char host[256], path[256]; /* of --base-url and --endpoint */
    uint32_t port;
    const char *base_url, *endpoint, *backend, *model, *tokenizer, *api_key;
    bool chat; /* the endpoint takes messages, not a prompt */
    enum kg_bench_dataset dataset;
    uint32_t num_prompts, num_warmups;
    uint32_t input_len, output_len, prefix_len; /* random: tokens; the prefix is shared by all */
    double range_ratio;                         /* lengths vary by this share, 0 .. 1 */
    uint32_t n_prefixes;                        /* prefix_repetition */
    uint32_t vocab;                             /* ids are drawn below */
    double request_rate;                        /* requests/s; infinity: all at once */
    double burstiness;                          /* shape of the gamma gaps; 1 is Poisson */
    uint32_t max_concurrency;                   /* 0: no limit */
    uint64_t seed;
    bool ignore_eos, save_result, save_detailed;
    double temperature; /* NaN: not sent */
    const char *result_dir, *result_filename;
    bool show[KG_BENCH_METRICS];
    double percentiles[16];
    uint32_t n_percentiles;
    double goodput_ms[KG_BENCH_METRICS]; /* 0: no limit */
    bool has_goodput;
    uint32_t timeout_s; /* of one request */
};

/* One request: what is sent, and what came of it. Times in ns from the start of the run. */
struct kg_bench_req {
    char *body; /* owned */
    size_t n_body;
    uint32_t n_input; /* tokens asked for; replaced by the server's count when it gives one */
    uint32_t n_want;  /* output tokens asked for */
    uint64_t due_ns;  /* when to send it at the earliest */
    bool done, ok;
    uint64_t sent_ns, first_ns, last_ns, end_ns;
    uint32_t n_output; /* tokens, from usage; else outputs counted */
    uint32_t n_chunks; /* streamed outputs */
    uint64_t *gaps_ns; /* [n_gaps], owned: between streamed outputs */
    uint32_t n_gaps, cap_gaps;
    char error[200];
};

/* Draws prompts, lengths and send times, and writes the bodies. KG_ENOMEM. */
KG_CHECKED int kg_bench_load(const struct kg_bench_conf *conf, uint32_t n, uint64_t seed,
                             struct kg_bench_req **reqs, struct kg_error *err);
void kg_bench_free(struct kg_bench_req *reqs, uint32_t n);

/*
 * Sends all requests, each no earlier than due_ns and with at most max_concurrency in flight,
 * and fills in what came of them. *duration_ns: first send to last end. KG_EIO when the address
 * cannot be resolved; failed requests are not an error.
 */
KG_CHECKED int kg_bench_run(const struct kg_bench_conf *conf, struct kg_bench_req *reqs, uint32_t n,
                            uint64_t *duration_ns, struct kg_error *err);
/* One GET; the body of a 200 goes to *body. KG_EIO. */
KG_CHECKED int kg_bench_get(const struct kg_bench_conf *conf, const char *path, struct kg_buf *body,
                            struct kg_error *err);

struct kg_bench_stat {
    double mean, median, std, percentile[16]; /* ms */
};

struct kg_bench_result {
    uint32_t completed, failed;
    uint64_t total_input, total_output; /* tokens */
    double duration_s, request_throughput, request_goodput, output_throughput, total_throughput;
    double peak_output_throughput; /* tokens of the busiest second */
    uint32_t peak_concurrent;      /* requests in flight in the busiest second */
    struct kg_bench_stat stats[KG_BENCH_METRICS];
};

KG_CHECKED int kg_bench_measure(const struct kg_bench_conf *conf, const struct kg_bench_req *reqs,
                                uint32_t n, uint64_t duration_ns, struct kg_bench_result *r,
                                struct kg_error *err);
/* The report block. */
void kg_bench_print(const struct kg_bench_conf *conf, const struct kg_bench_result *r,
                    struct kg_buf *b);
/* The result object. */
void kg_bench_json(const struct kg_bench_conf *conf, const struct kg_bench_result *r,
                   const struct kg_bench_req *reqs, uint32_t n, struct kg_buf *b);

#endif
