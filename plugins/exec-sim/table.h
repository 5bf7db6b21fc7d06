/*
 * Measured kernel times of one system: named curves in a text file (scripts/perf/tables tells the
 * keys), and how values between and beyond the measured points are made.
 *
 * Between two points a value is linear: on these tables that is nearer to a point left out than
 * logarithmic interpolation for every family but attention of prompts over their length, which is
 * interpolated in log-log. Below the first point the first value holds (a launch has a floor);
 * above the last one the time per unit does (utilisation stays), for attention of prompts the slope
 * of the last two points in log-log. What is not on a point says so: every value has a class.
 */
#ifndef KEDGE_EXEC_SIM_TABLE_H
#define KEDGE_EXEC_SIM_TABLE_H

#include <kedge/types.h>

/* Where a figure comes from; the later, the less it is worth. */
enum sim_class {
    SIM_MEASURED = 0,     /* a point of a table */
    SIM_INTERPOLATED = 1, /* between points */
    SIM_EXTRAPOLATED = 2, /* beyond them, or another shape's utilisation */
    SIM_PUBLISHED = 3,    /* a figure somebody printed */
    SIM_ASSUMED = 4,      /* nobody's figure */
    SIM_N_CLASSES = 5,
};

/* A time and its worst class. */
struct sim_value {
    double us;
    uint32_t class;
};

struct sim_curve {
    const char *key;
    uint32_t n;      /* points, >= 1 */
    const double *x; /* [n] ascending */
    const double *y; /* [n] us */
};

struct sim_table {
    char *text; /* of the file; keys point into it */
    char system[32];
    struct sim_curve *curves; /* [n_curves] by key */
    uint32_t n_curves, n_axes;
    double *numbers; /* of all axes and curves */
    /* What the maker states: bytes, bytes/s, operations/s; 0 where nothing is. */
    double mem_bytes, mem_bw, bf16_flops, fp8_flops, fp4_flops, scaleup_bw, scaleout_bw;
    double gpus_per_node, gpus_per_scaleup;
};

/* Reads and checks a file. KG_ENOENT, KG_EIO, KG_ENOMEM, KG_ECONFIG with file and line. */
int sim_table_read(const char *path, struct sim_table *table, struct kg_error *err);
void sim_table_free(struct sim_table *table);
/* The curve of a key, NULL when there is none. */
const struct sim_curve *sim_table_find(const struct sim_table *table, const char *key);
/* The curves whose key begins with a prefix, [*n] in the order of keys. */
const struct sim_curve *sim_table_prefix(const struct sim_table *table, const char *prefix,
                                         uint32_t *n);

struct sim_value sim_curve_at(const struct sim_curve *curve, double x);
/* The same in log-log: attention of prompts. */
struct sim_value sim_curve_log_at(const struct sim_curve *curve, double x);

/* Curves of one family, ordered by a number of their key: heads, sequences. */
#define SIM_FAMILY 16
struct sim_family {
    uint32_t n;
    double at[SIM_FAMILY];
    const struct sim_curve *curve[SIM_FAMILY];
};
/* Curves named "<prefix><number><suffix>" with nothing else; n is 0 when there are none. */
void sim_family_find(const struct sim_table *table, const char *prefix, const char *suffix,
                     struct sim_family *family);
/* At (at, x); log: as sim_curve_log_at along x. An empty family is worth nothing: {0, ASSUMED}. */
struct sim_value sim_family_at(const struct sim_family *family, double at, double x, int log);
/* Linear between two values at a and b, and the rules beyond the ends, as of curves. */
struct sim_value sim_between(double a, struct sim_value va, double b, struct sim_value vb,
                             double x);

#endif
