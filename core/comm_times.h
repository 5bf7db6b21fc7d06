/*
 * Measured times of collectives, as data. Text, one `key value...` a line, '#' begins a comment:
 *
 *     kedge-comm 1
 *     about TEXT                               where and how it was measured
 *     time PLUGIN ALGORITHM OP RANKS BYTES US  median of a call; OP as all_reduce, all_gather, ..;
 *                                              BYTES what a rank gives; in any order
 *
 * `kedge bench comm --out FILE` writes it for host memory; [parallel] comm_times names one.
 */
#ifndef KEDGE_CORE_COMM_TIMES_H
#define KEDGE_CORE_COMM_TIMES_H

#include "base/buf.h"

#include <kedge/comm.h>
#include <stdio.h>

#define KG_COMM_TIMES_ROWS 4096
#define KG_COMM_WORD 24 /* bytes of a plugin's or an algorithm's name, its NUL included */

struct kg_comm_time {
    char plugin[KG_COMM_WORD], algorithm[KG_COMM_WORD];
    uint32_t op, ranks; /* enum kg_comm_op */
    uint64_t bytes;
    double us;
};

struct kg_comm_times {
    char about[200];
    struct kg_comm_time *rows; /* [n] by curve, then by bytes; owned */
    uint32_t n;
};

/* How a time was come by. */
enum kg_comm_basis {
    KG_COMM_NOT_MEASURED = 0,
    KG_COMM_MEASURED, /* at this very size */
    KG_COMM_BETWEEN,  /* two measured sizes, linear in bytes */
    KG_COMM_BEYOND,   /* the smallest, or past the largest as between the last two */
};

/* "all_reduce" and the like; "?" for no op. */
const char *kg_comm_op_name(uint32_t op);

/* KG_ENOENT, KG_EIO, KG_ENOMEM, KG_EINVAL naming the line. Free with kg_comm_times_fini. */
KG_CHECKED int kg_comm_times_read(const char *path, struct kg_comm_times *times,
                                  struct kg_error *err);
void kg_comm_times_fini(struct kg_comm_times *times);

/* One line of the file. */
void kg_comm_times_put(FILE *f, const char *plugin, const char *algorithm, uint32_t op,
                       uint32_t ranks, uint64_t bytes, double us);

/* Time of a call in microseconds from the curve of (plugin, algorithm, op, ranks). *plugin or
 * *algorithm NULL: the quickest of all, or of the plugin's, at that size, and both are set. Nothing
 * is set when nothing was measured. */
enum kg_comm_basis kg_comm_times_find(const struct kg_comm_times *times, const char **plugin,
                                      const char **algorithm, uint32_t op, uint32_t ranks,
                                      uint64_t bytes, double *us);

#endif
