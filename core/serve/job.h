/* One API request on its way, shared by job.c (life) and job_send.c (answering). */
#ifndef KEDGE_SERVE_JOB_H
#define KEDGE_SERVE_JOB_H

#include "serve/serve_impl.h"

/* One sequence of a job: an answer here, a request in the engine. */
struct kg_job_answer {
    struct kg_answer answer;
    uint32_t slot; /* KG_NONE: not in the engine */
    bool unsent;   /* tokens came since the last send */
    uint32_t n_cached, n_verified, n_accepted;
    uint64_t piled_bytes; /* counted in serve->piled_bytes */
    uint64_t last_ns;     /* monotonic, of its last tokens; 0 none yet */
};

struct kg_job {
    struct kg_serve *serve;
    struct kg_job *prev, *next;
    struct kg_job *prev_unsent, *next_unsent; /* in serve->unsent while is_unsent */
    bool is_unsent;
    struct kg_http_req *req; /* NULL once answered or gone */
    struct kg_buf body;      /* while it is being prepared */
    bool has_body, in_prep;
    struct kg_prep_task task; /* task.call is the prepared request */

    char tenant[32], class_name[32]; /* "" for none */
    uint32_t priority;
    uint32_t arm; /* while has_arm, split.h */
    bool has_arm, forced;
    double share; /* of the arm when it was chosen, percent */
    uint64_t key; /* hash of the field that chose it, 0 before that */

    uint32_t n_answers, n_live;    /* sequences; those in the engine */
    struct kg_job_answer *answers; /* [n_answers], NULL before submit */
    char id[160];
    struct kg_envelope envelope;
    struct kg_buf chunk_open;  /* stream: what every event begins with; empty before the first */
    bool began;                /* stream: status and headers went out */
    bool paused;               /* its sequences are paused for a slow reader */
    struct event *pause_timer; /* cuts it when it stays paused; NULL before the first pause */
    bool failed;               /* an error was answered; late events do nothing */

    uint64_t start_ns, first_ns; /* monotonic: request, first tokens (0 none) */
    uint32_t n_preempted;
    char note[320]; /* for the access log */
};

/* job_policy.c: names the tenant, asks the policy, takes over what it set. KG_OK to go on. */
int kg_job_policy(struct kg_job *job, struct kg_api_error *err);
/* Answers with an error, in the stream if one has begun; cancels what is in the engine. */
void kg_job_fail(struct kg_job *job, const struct kg_api_error *err);
/* Sends what answer `index` has to say; begins the stream if need be. */
void kg_job_send(struct kg_job *job, uint32_t index);
/* All sequences are done: the whole answer, or the end of the stream. */
void kg_job_finish(struct kg_job *job);
/* Cuts the connection of a client that reads too slowly, and cancels. */
void kg_job_cut(struct kg_job *job);
/* Cancels the sequences in the engine. */
void kg_job_cancel(struct kg_job *job);
/* Pauses or resumes the sequences in the engine. */
void kg_job_pause(struct kg_job *job, bool paused);
/* The engine's id of a slot. */
uint64_t kg_slot_id(const struct kg_serve *s, uint32_t slot);

#endif
