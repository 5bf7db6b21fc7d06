/*
 * The request log: a JSON line for each sequence that ended or was refused, in the form of a
 * replay's rows (core/docs/replay.md) with arm and key of the client; kedge ab --log reads it. No
 * text of anybody is in it.
 *
 * The loop hands lines to a writer thread through a bounded ring and never waits: when the disk
 * does not keep up, lines are dropped and counted.
 */
#ifndef KEDGE_SERVE_REQLOG_H
#define KEDGE_SERVE_REQLOG_H

#include "serve/serve_impl.h"

struct kg_reqlog;

/* Opens [server] request_log for appending and starts the writer; s->reqlog stays NULL when the
 * option is empty. KG_ECONFIG with the reason. */
KG_CHECKED int kg_reqlog_open(struct kg_serve *s, struct kg_error *err);
/* Writes what is left and ends the writer; a pipe nobody reads is given up after two seconds. */
void kg_reqlog_close(struct kg_serve *s);
/* The file was moved away: the next line goes into a new one of the old name. If that cannot be
 * opened, the log says so and the old file goes on. */
void kg_reqlog_reopen(struct kg_serve *s);

/* Sequence `index` of a job ended. */
void kg_reqlog_done(const struct kg_job *job, uint32_t index, const struct kg_event *done);
/* The engine never saw it; `why` is what the client was told. */
void kg_reqlog_refused(const struct kg_job *job, uint32_t index, const struct kg_api_error *why);

#endif
