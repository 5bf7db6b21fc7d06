/*
 * [server]: where to listen and how much of everything one client, or all of them, may take.
 * The rows are the only list of options; kedge config-reference prints them.
 */
#ifndef KEDGE_SERVE_CONF_H
#define KEDGE_SERVE_CONF_H

#include <kedge/abi.h>

struct kg_server_conf {
    const char *host;          /* address to listen on, numeric or a name */
    uint32_t port;             /* 0: any free one */
    const char *api_key;       /* "" for none */
    const char *tenant_header; /* header that names the tenant; "": the body's user does */
    const char *model_name;    /* id in /v1/models and in answers; "" for the checkpoint's folder */

    uint32_t max_connections; /* open at once; further ones are closed after a 503 */
    uint64_t head_bytes;      /* request line and headers */
    uint64_t body_bytes;      /* one request body */
    uint64_t bodies_bytes;    /* all request bodies being received or waiting */
    uint32_t head_ms;         /* from the first byte of a request to the end of its headers */
    uint32_t body_ms;         /* from the end of the headers to the end of the body */
    uint32_t idle_ms;         /* a kept-alive connection without a request */
    uint32_t write_ms;        /* a client that takes none of the bytes it was sent */
    uint32_t pause_ms;        /* a stream paused for its reader without a break */
    uint64_t out_soft_bytes;  /* unsent output of a stream: past it the engine pauses the request */
    uint64_t out_hard_bytes;  /* past it the connection is cut and the request cancelled */

    uint64_t reply_bytes;   /* of one choice that is not streamed, each of text and the rest */
    uint64_t replies_bytes; /* of all answers: piling up, and written but not taken yet */

    uint32_t max_json_depth;
    uint32_t max_json_values;    /* of one body, see kg_json_scan */
    uint32_t max_n;              /* choices per prompt */
    uint32_t max_prompts;        /* prompts of one completion request */
    uint32_t max_sequences;      /* prompts x n of one request */
    uint32_t max_messages;       /* of one chat request */
    uint32_t max_tools;          /* of one chat request */
    uint32_t max_stop;           /* stop strings of a request */
    uint32_t max_stop_bytes;     /* of one stop string */
    uint32_t max_queue;          /* sequences in the engine at once, waiting ones included */
    uint32_t default_max_tokens; /* of a chat request that names none; 0: the rest of the context */

    uint32_t prep_threads;    /* tokenise long prompts beside the loop */
    uint64_t prep_bytes;      /* a body at least this long is parsed and tokenised there */
    uint32_t prep_queue;      /* bodies waiting for one preparation thread */
    uint32_t health_stall_ms; /* /health says 503 when work made no progress for this long */
    uint32_t drain_ms;        /* SIGTERM: running requests may finish this long */

    const char *request_log;    /* file of one JSON line a sequence; "" for none */
    uint64_t request_log_bytes; /* lines waiting to be written; more are dropped */
};

/* Rows of the section, ended by a row without a name. */
extern const struct kg_opt kg_server_opts[];

/* Checks what single ranges cannot say (soft below hard, ...). KG_ECONFIG names the option. */
KG_CHECKED int kg_server_conf_check(const struct kg_server_conf *conf, struct kg_error *err);

#endif
