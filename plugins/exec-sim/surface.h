/*
 * Step time from a cost surface as `kedge check --write-cost` wrote it of another backend
 * (core/engine/cost.h has the format): what that backend takes by sequences, rows and context.
 *
 *     step = decode(sequences, rows) + token_ns * sum(context)
 *            + (chunk(prompt rows) - chunk(1), or chunk(prompt rows) when nothing decodes)
 *            + prompt_token_ns * sum(row's context) + draft
 *
 * decode is linear between points of equal rows a sequence; the first row of a prompt's chunk is
 * what a step costs anyhow, and is paid once.
 */
#ifndef KEDGE_EXEC_SIM_SURFACE_H
#define KEDGE_EXEC_SIM_SURFACE_H

#include "model.h"

#define SIM_SURFACE_SEQS 9
#define SIM_SURFACE_ROWS 18

struct sim_surface {
    uint32_t n_seqs, n_rows, n_chunk, n_draft;
    double token_ns, prompt_token_ns, draft_token_ns;
    double step[SIM_SURFACE_SEQS][SIM_SURFACE_ROWS]; /* 4^i sequences, 2^j rows */
    double chunk[SIM_SURFACE_ROWS];                  /* 2^j rows */
    double draft_rows[64], draft[64];                /* [n_draft] sequences x tokens, their ns */
};

/* 1: the file is a surface, 0: it is something else or cannot be read. */
int sim_surface_is(const char *path);
/* KG_ENOENT, KG_EIO, KG_ECONFIG with file and line. */
int sim_surface_read(const char *path, struct sim_surface *surface, struct kg_error *err);
double sim_surface_ns(const struct sim_surface *surface, const struct sim_load *load);

#endif
