/* Arms of a running server: which one a request belongs to, what came of them, /admin/arms. Loop
 * thread only. */
#ifndef KEDGE_SERVE_SPLIT_H
#define KEDGE_SERVE_SPLIT_H

#include "serve/serve_impl.h"

struct kg_split;

/* What became of a sequence. */
enum kg_outcome_word {
    KG_SEQ_OK = 0,
    KG_SEQ_REFUSED = 1,
    KG_SEQ_CANCELLED = 2,
    KG_SEQ_ERROR = 3,
    KG_N_SEQ_OUTCOMES = 4,
};
uint32_t kg_seq_outcome(const struct kg_event *done);

/* Copies the configured arms and registers their metrics; s->split stays NULL without arms. */
KG_CHECKED int kg_split_open(struct kg_serve *s, struct kg_error *err);
void kg_split_close(struct kg_serve *s);

/* Chooses the arm of a job whose tenant is known: job->arm, key, forced, class_name. Without arms
 * it only fills the key. Else not KG_OK: it asks for an arm it may not have. */
int kg_split_choose(struct kg_job *job, struct kg_api_error *err);
/* The name of a job's arm, "" without arms. */
const char *kg_split_name(const struct kg_job *job);
/* Header line that says so, NULL without arms; lives as long as the server. */
const char *kg_split_header(const struct kg_job *job);
/* A sequence of a job ended; one that never got into the engine was refused. */
void kg_split_done(const struct kg_job *job, const struct kg_event *done);
void kg_split_refused(const struct kg_job *job);
/* Series that are computed when asked for. */
void kg_split_write(const struct kg_serve *s, struct kg_buf *b);

/* Appends the arms with their figures as a JSON array, [] without arms. */
void kg_split_put(const struct kg_serve *s, struct kg_buf *b);
/* Name of an arm, "" without arms. Lives as long as the server. */
const char *kg_split_arm(const struct kg_serve *s, uint32_t arm);

/* GET and POST /admin/arms. */
void kg_split_list(struct kg_serve *s, struct kg_http_req *req);
void kg_split_change(struct kg_serve *s, struct kg_http_req *req);

#endif
